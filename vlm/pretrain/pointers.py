"""Where to look: some attention heads are taught to find in the picture what a word names.

A look-up head attends from a word of the text to the image slots that show this word; a reading head attends, before a
word is said, to the slots that show it. Answers then get their words from the picture, not from habit. Only the loss
knows of this: the model stays the stock one.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import log_softmax

HEAD = 0  # the head of a watched layer that is taught
FADING = 0.9  # per token: how fast what was said is forgotten when asking what is meant


def taught_layers(layers: int) -> tuple[int, tuple[int, int]]:
    """The layer with the look-up head and those with a reading head, by the depth of the decoder."""
    return layers // 4 - 1, (layers // 2 - 1, layers * 3 // 4 - 1)


@dataclass
class Watch:
    """What the taught heads of some layers attend to among the image slots.

    layers: the watched ones; slots: where the image slots lie in the row; prefix: tokens before the packed ones.
    scores: filled by the forward pass, layer -> attention logits [B, T, slots] of the packed tokens.
    """

    layers: tuple[int, ...]
    slots: slice
    prefix: int
    scores: dict[int, Tensor] = field(default_factory=dict)

    def see(self, layer: int, query: Tensor, key: Tensor, scaling: float) -> None:
        """query, key: [B, H, prefix + T, D], rotated."""
        if layer in self.layers:
            keys = key[:, HEAD, self.slots].transpose(1, 2)
            self.scores[layer] = query[:, HEAD, self.prefix :] @ keys * scaling


def shown(tokens: Tensor, words: Tensor) -> Tensor:
    """Which slots show each token: [B, T, slots] bool, from tokens [B, T] and words [B, slots, LABELS]."""
    return (words[:, None] == tokens[:, :, None, None]).any(-1)


def meant(showing: Tensor, before: Tensor, segments: Tensor) -> Tensor:
    """The slots that are meant by a word, among all that show it: those that show most of what was said just before.

    In "Tue has 25 for Visits" the slot of the 2 is the one that belongs to Tue.

    Args: showing: [B, T, slots], the slots that show the next word; before: the same of the word at hand; segments:
        [B, T], the question each token belongs to.
    Returns: [B, T, slots] bool, a part of `showing`.
    """
    distance = torch.arange(before.shape[1], device=before.device)
    distance = distance[:, None] - distance
    weights = torch.where(distance >= 0, FADING ** distance.clamp(min=0), 0.0)
    same = segments[:, :, None] == segments[:, None, :]
    support = (weights * same) @ before.float()
    support = support.masked_fill(~showing, -1.0)
    return showing & (support >= support.amax(-1, keepdim=True) - 1e-4)


def pointing_loss(scores: Tensor, right: Tensor) -> Tensor:
    """-log of the attention on the right slots, averaged over the tokens that have some. scores, right: [N, slots]."""
    known = right.any(-1)
    chances = log_softmax(scores[known], -1).masked_fill(~right[known], -torch.inf)
    return -chances.logsumexp(-1).mean() if bool(known.any()) else scores.sum() * 0.0
