"""Where to look: some attention heads are taught to find in the picture what a word names.

A look-up head attends from a word of the text to the image slots that show this word; a reading head attends, before a
word is said, to the slots that show it; a counting head, before a number of things is said, to each of these things
alike and to the first token: what it gets then tells how many there are. Answers then get their words from the picture,
not from habit. Only the loss knows of this: the model stays the stock one.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import log_softmax

from mmspec.pretrain.pointing import pointing_loss, reading_layers

FADING = 0.9  # per token: how fast what was said is forgotten when asking what is meant


class Taught(NamedTuple):
    """The layers with a look-up head, with reading heads and with a counting head."""

    looking: int
    reading: tuple[int, int]
    counting: int


def taught_layers(layers: int) -> Taught:
    """By the depth of the decoder."""
    reading = reading_layers(layers)
    return Taught(layers // 4 - 1, reading, reading[0] + max(1, layers // 12))


def known_after(layers: int) -> tuple[int, int]:
    """The numbers of layers after which the states are asked for what decides a word (deep supervision, arXiv
    1409.5185): what can be read, behind the first reading head, early enough to compare and to add it; and, behind the
    second, what a yes, a no or a letter hangs on. Else a value is known when no layer is left to reckon with it."""
    first, second = reading_layers(layers)
    return min(first + 2, layers - 1), min(second + 3, layers - 1)


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


def counting_loss(scores: Tensor, counted: Tensor) -> Tensor:
    """Cross-entropy of the attention with an even one on all that is counted. scores: [N, keys]; counted: [N, keys]
    bool, some in every row."""
    even = counted / counted.sum(-1, keepdim=True)
    return -(even * log_softmax(scores, -1)).sum(-1).mean() if len(scores) else scores.sum() * 0.0


def taught_loss(taught: Taught, scores: dict[int, Tensor], batch: dict[str, Tensor]) -> Tensor:
    """What the taught heads are asked, together.

    Args: scores: of the taught layers, attention logits [B, T, 1 + slots], the first token's before those of the slots.
        batch: of `PackedPictures`.
    """
    segments = batch["segments"].flatten(1)
    said, decided, counts = segments > 0, batch["weights"] > 1, batch["counted"].any(-1)
    here = shown(batch["tokens"], batch["words"])
    ahead = meant(shown(batch["sought"], batch["words"]), here, segments) & batch["pictured"][..., None]
    loss = pointing_loss(scores[taught.looking][said][:, 1:], here[said])
    for layer in taught.reading:
        loss = loss + pointing_loss(scores[layer][decided][:, 1:], ahead[decided])
    return loss + counting_loss(scores[taught.counting][counts], batch["counted"][counts])
