"""A small VLM of the target's family as drafter: it sees the pictures, too (as in Spec-LLaVA, arXiv 2509.11961).

It drafts as a language-only drafter does, one token per step with a cache of its own, but reads the whole prompt. The
pictures reach it as the inputs that the target got; where vision tower and connector are the same weights in both, as
in a target with layers left out, the target's features are taken and nothing is encoded twice.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForImageTextToText, PreTrainedModel

from mmspec.contract import Kind, Needs, State
from mmspec.drafters.independent import Independent, Writing, same_weights
from mmspec.errors import MismatchError, one_line
from mmspec.loading import build_target, find_family
from mmspec.sampling import Sampler


class SmallVLM(Independent):
    """Drafts with a VLM that shares the target's class, vocabulary and image slots.

    Args: as for `Independent`.
    """

    needs = Needs(inputs=True)
    method = "small-vlm"
    source = "small VLM of the same family, as in Spec-LLaVA, arXiv 2509.11961"
    advice = "pass the folder or hub id of a small model of the target's family"

    model_class = AutoModelForImageTextToText

    def __init__(self, model: PreTrainedModel, length: int = 4, tokenizer: Any = None) -> None:
        super().__init__(model, length, tokenizer)
        self.small: Any = build_target(find_family(model.config), model, None)
        self.shares_vision = False

    def bind(self, target: Any) -> None:
        """Both must be of one family, with one vocabulary; find out whether they see with the same weights."""
        super().bind(target)
        if type(self.small) is not type(target) or self.small.slot != target.slot:
            raise MismatchError(
                f"the drafter is a {type(self.small).__name__}, the target a {type(target).__name__}: a small VLM must "
                "be of the target's family, with the same image token"
            )
        self.shares_vision = same_weights(vision_weights(self.small.model), vision_weights(target.model))

    def begin(self, state: State, sampler: Sampler, kind: Kind) -> Writing:
        """Read the prompts, pictures included; the pending tokens wait for the first proposal."""
        texts = [self.known(torch.tensor(ids[:-1])).tolist() for ids in state.ids]
        self.check_room(max(map(len, texts)))
        inputs = dict(state.prompt_inputs)
        if self.shares_vision and state.prompt_features is not None:
            inputs["features"] = state.prompt_features
        try:
            cache, _ = self.small.read(inputs, texts)
        except ValueError as error:  # of our own check, or of the model's forward
            raise MismatchError(f"the small VLM cannot read the target's pictures: {one_line(error)}") from error
        return Writing(self, sampler, kind, cache, [ids[-1:] for ids in state.ids])


def vision_weights(model: PreTrainedModel) -> dict[str, Tensor]:
    """The weights that make features of pictures: all but those of the decoder and the output head."""
    rest = {id(weight) for part in (model.get_decoder(), model.get_output_embeddings()) for weight in part.parameters()}
    return {name: weight for name, weight in model.named_parameters() if id(weight) not in rest}
