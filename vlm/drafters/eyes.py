"""Small models that speak and see, as the drafters of this folder use them: with the target's eyes, or with their own.

Both turn a prompt into embeddings, words and pictures apart, so that a drafter may put in an image slot's place what it
likes: its vector, a mean of several, a caption, nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from math import isqrt
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, LlamaForCausalLM, PreTrainedModel

from mmspec.checkpoints import read_model
from mmspec.contract import Needs, State
from mmspec.drafters.precision import placed
from mmspec.errors import MismatchError
from mmspec.loading import build_target, find_family
from mmspec.vlm.vision import flat

PROJECTOR = "projector.safetensors"


class Eyes(nn.Module):
    """A model that speaks, and how it sees."""

    needs: Needs

    def __init__(self, speaker: PreTrainedModel) -> None:
        super().__init__()
        self.speaker = speaker

    def fit(self, target: Any, method: str) -> None:
        """Raise MismatchError unless it can see what the target sees."""
        raise NotImplementedError

    def words(self, ids: Sequence[int]) -> Tensor:
        """[n, D] embeddings of a text."""
        speaker: Any = self.speaker
        return speaker.get_input_embeddings()(torch.tensor(ids, dtype=torch.long, device=speaker.device))

    def pictures(self, state: State, placeholders: tuple[int, ...]) -> list[Tensor]:
        """Per row [n, D]: what it sees in the image slots of the prompt."""
        raise NotImplementedError

    def prompt(
        self,
        ids: list[int],
        seen: Tensor,
        placeholders: Sequence[int],
        way: str = "multimodal",
        caption: Sequence[int] = (),
    ) -> Tensor:
        """[T, D] embeddings of a prompt; its last token alone, where nothing else would be left of it.

        Args: seen: [n, D] its image slots; what they hold matters to the ways "multimodal" and "pooled" alone. way:
            what stands for a picture, see the members of `mmspec.vlm.drafters.ensemble`. caption: of all pictures
            together.
        """
        parts: list[Tensor] = []
        start = 0
        for image, run in groupby(ids, lambda token: token in placeholders):
            tokens = list(run)
            if not image:
                parts.append(self.words(tokens))
                continue
            here, start = seen[start : start + len(tokens)], start + len(tokens)
            if way == "multimodal":
                parts.append(here)
            elif way == "pooled":
                parts.append(pooled(here))
            elif way == "caption":
                parts.append(self.words(caption))
                caption = ()  # it stands where the first picture was
        return torch.cat(parts) if any(map(len, parts)) else self.words(ids[-1:])

    def save(self, folder: Path) -> dict[str, Any]:
        """Write what the folder of the speaker lacks; returns what the description must say."""
        raise NotImplementedError


class Grafted(Eyes):
    """With the target's eyes: an MLP brings the target's embeddings of the pictures to its size. size: of those."""

    needs = Needs(embeddings=True)

    def __init__(self, llama: LlamaForCausalLM, size: int) -> None:
        super().__init__(llama)
        width = llama.config.hidden_size
        self.size = size
        self.projector = nn.Sequential(nn.Linear(size, width), nn.GELU(), nn.Linear(width, width))

    def fit(self, target: Any, method: str) -> None:
        """See `Eyes`."""
        if self.size != target.hidden_size:
            raise MismatchError(
                f"the {method} drafter reads image embeddings of size {self.size}, the target's have "
                f"{target.hidden_size}"
            )

    def pictures(self, state: State, placeholders: tuple[int, ...]) -> list[Tensor]:
        """See `Eyes`."""
        assert state.prompt_embeddings is not None
        places = [[place for place, token in enumerate(ids[:-1]) if token in placeholders] for ids in state.ids]
        return [self.projector(row[here]) for row, here in zip(state.prompt_embeddings, places, strict=True)]

    def save(self, folder: Path) -> dict[str, Any]:
        """See `Eyes`."""
        save_file(self.projector.state_dict(), folder / PROJECTOR)
        return {"eyes": "target"}


class OwnEyes(Eyes):
    """With its own: a small VLM of the target's family, as the published Spec-LLaVA, IbED and TABED are.

    Nothing here trains one: `mmspec.load(target, drafter=SpecLlava(OwnEyes(small)))` drafts with a model that is there.
    Pictures are ordinary positions of its prompt here, so families that give them others, or let them see each other,
    are read a little otherwise than on their own; those with positions on three axes are refused.
    """

    needs = Needs(inputs=True)

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__(model)
        self.family: Any = build_target(find_family(model.config), model, None)

    def fit(self, target: Any, method: str) -> None:
        """See `Eyes`."""
        family, slot = type(self.family), getattr(self.family, "slot", None)
        if slot is None or family is not type(target) or slot != target.slot or "image_grid_thw" in target.extra_inputs:
            raise MismatchError(
                f"{method} needs a small VLM of the target's family with the same image token, and positions on one "
                f"axis; the drafter is a {family.__name__}, the target a {type(target).__name__}"
            )

    def pictures(self, state: State, placeholders: tuple[int, ...]) -> list[Tensor]:
        """See `Eyes`."""
        texts = [ids[:-1] for ids in state.ids]
        features = self.family.arrange(state.prompt_inputs, texts).get("features")
        slots = iter(() if features is None else flat(features.pooler_output))
        found = []
        for ids in texts:  # placeholders that are no slots (breaks between rows) are words
            seen = [
                next(slots) if token == self.family.slot else self.words([token])[0]
                for token in ids
                if token in placeholders
            ]
            found.append(torch.stack(seen) if seen else self.words([]))
        return found

    def save(self, folder: Path) -> dict[str, Any]:
        """See `Eyes`."""
        return {"eyes": "own"}


def pooled(slots: Tensor) -> Tensor:
    """A quarter of the vectors [n, D] of a run of image slots: means of squares, or of four in a row."""
    side = isqrt(len(slots))
    if side * side == len(slots) and side % 2 == 0:
        return slots.view(side // 2, 2, side // 2, 2, -1).mean((1, 3)).flatten(0, 1)
    return torch.stack([part.mean(0) for part in slots.split(4)])


def load_eyes(folder: Path, eyes: str, target: Any) -> Eyes:
    """What `Eyes.save` and `save_pretrained` wrote, on the device and in the dtype of `target`.

    Raises: CheckpointError: damaged or missing weights.
    """
    device, dtype = target.model.device, target.model.dtype
    if eyes == "own":
        return OwnEyes(read_model(AutoModelForImageTextToText, folder, dtype).to(device))
    model = read_model(AutoModelForCausalLM, folder, dtype)
    weights = load_file(folder / PROJECTOR)
    net = placed(Grafted(model, weights["0.weight"].shape[1]), device, dtype)
    net.projector.load_state_dict(weights)
    return net
