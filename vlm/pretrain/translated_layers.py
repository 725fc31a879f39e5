"""The stage after a translation: each layer of the new decoder learns by itself what its counterpart does.

Every layer is given the states that the known decoder has before it, and is asked for those behind it: 24 short
lessons at once, in which no layer waits for the others to be right (hidden states are distilled layer by layer, as in
TinyBERT, arXiv 1909.10351, but from the known input).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, ProcessorMixin

from mmspec.vlm.pretrain.attention import NAME as PACKED
from mmspec.vlm.pretrain.family import Family
from mmspec.vlm.pretrain.known import Known
from mmspec.vlm.pretrain.language import AnswerTrainer, image_places, prefix_ids, read_rows
from mmspec.vlm.pretrain.smolvlm import SMOLVLM
from mmspec.vlm.pretrain.vision import Sight, word_scale


class LayerTrainer(AnswerTrainer):
    """Trains the decoder on packed rows whose image tokens are those of a known model; the tower is left alone."""

    def __init__(
        self, family: Family, known: Known, model: PreTrainedModel, processor: ProcessorMixin, **more: Any
    ) -> None:
        super().__init__(family, model, processor, **more)
        self.known_model: Any = deepcopy(known.model).to(self.args.device)  # whose attention becomes another
        self.known_model.model.get_submodule(SMOLVLM.decoder).config._attn_implementation = PACKED
        self.known_prefix = prefix_ids(SMOLVLM, known.tokenizer)
        self.scale = word_scale(model)

    def compute_loss(self, model: nn.Module, inputs: dict[str, Tensor], *args: Any, **kwargs: Any) -> Tensor:
        """The share of what the known layers add that is missed, mean of all layers."""
        return self.layer_losses(inputs).mean()

    def layer_losses(self, inputs: dict[str, Tensor]) -> Tensor:
        """[layers], what each misses. The few tokens of a prefix that the known one has not pass through all layers."""
        prefix = self.prefix.to(inputs["tokens"].device)
        own = _Aligned(self.model.model.get_submodule(self.family.decoder), image_places(self.model, prefix), prefix)
        with self.accelerator.autocast():
            images, known = self.known_states(inputs)
            with own.states([states * self.scale for states in known]) as made:
                read_rows(self.family, self.model, prefix, inputs, images * self.scale)
        slots = inputs["segments"].new_ones(images.shape[:2])
        read = torch.cat([slots, inputs["segments"].flatten(1)], 1) > 0
        losses = [
            missed(states[read] / self.scale, after[read], before[read])
            for states, before, after in zip(made[1:], known, known[1:], strict=False)
        ]
        return torch.stack(losses)

    @torch.no_grad()
    def known_states(self, inputs: dict[str, Tensor]) -> tuple[Tensor, list[Tensor]]:
        """The image tokens of the known model [B, slots, D], and its states [B, slots + bins * WIDTH, D] before the
        first layer and behind each."""
        known, prefix = self.known_model, self.known_prefix.to(inputs["tokens"].device)
        images = Sight(SMOLVLM, known)(inputs["pixels"]).float()
        aligned = _Aligned(known.model.get_submodule(SMOLVLM.decoder), image_places(known, prefix), prefix)
        with aligned.states() as made:
            read_rows(SMOLVLM, known, prefix, inputs, images)
        return images, made


def missed(made: Tensor, after: Tensor, before: Tensor) -> Tensor:
    """Mean squared distance of what a layer made from what it should, relative to the variance of what it should add.

    Args: made, after, before: [N, D].
    """
    added = after - before
    return (made - after).square().mean() / (added - added.mean(0)).square().mean()


class _Aligned:
    """The states of a decoder at the places that decoders with other prefixes share: image slots, and all behind it."""

    def __init__(self, decoder: Any, slots: Tensor, prefix: Tensor) -> None:
        self.layers, self.slots, self.length = decoder.layers, slots, prefix.shape[1]

    @contextmanager
    def states(self, given: Sequence[Tensor] | None = None) -> Iterator[list[Tensor]]:
        """While it is open, notes the states before the first layer and behind each layer that runs.

        Args: given: what the layers get in place of what the one before made, [B, slots + tokens, D] each.
        """
        made: list[Tensor] = []

        def replaced(number: int) -> Any:
            def hook(_: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
                states = args[0]
                if given is not None:
                    states = states.clone()
                    states[:, self.slots], states[:, self.length :] = (
                        given[number].to(states.dtype).split([len(self.slots), states.shape[1] - self.length], 1)
                    )
                if number == 0:
                    made.append(self._shared(states))
                return (states, *args[1:])

            return hook

        def noted(_: nn.Module, args: Any, output: Tensor) -> None:
            made.append(self._shared(output))

        hooks = [layer.register_forward_pre_hook(replaced(number)) for number, layer in enumerate(self.layers)]
        hooks += [layer.register_forward_hook(noted) for layer in self.layers]
        try:
            yield made
        finally:
            for hook in hooks:
                hook.remove()

    def _shared(self, states: Tensor) -> Tensor:
        return torch.cat([states[:, self.slots], states[:, self.length :]], 1).float()
