"""EAGLE: one decoder layer over the target's last features drafts a tree (arXiv 2401.15077, 2406.16858).

In the shifted frame, slot t holds the token x_{t+1} and the feature f_t (the target's final hidden state, the tensor
that enters its head): z = fc([E(x_{t+1}); f_t]), one decoder layer without input norm gives an estimate of f_{t+1}, and
the target's own frozen head turns that into the law of x_{t+2}. While drafting, the estimate takes the place of f.

The network and the weights of EAGLE, EAGLE-2 and HASS are of one form. They differ in the tree, which is static in
EAGLE and grows with the drafter's confidence in the others, and in training.

Image slots of a prompt hold the image token's embedding, and a slot's position is its number. Heads that others trained
may say otherwise (`OneLayer`): then the prompt is read as the target read it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

from mmspec.cache import Past
from mmspec.causal_state import CausalState
from mmspec.contract import State
from mmspec.drafters.axes import rotary
from mmspec.drafters.growing import Above, Expand
from mmspec.drafters.heads import HeadNet, Sizes
from mmspec.drafters.on_slots import SlotDrafter
from mmspec.drafters.slots import Forward, Last, Slots, below
from mmspec.drafters.static import best_tree


class OneLayer(HeadNet):
    """fc and one decoder layer. Embeddings, features and output head are the target's.

    Args: config: the shape of the layer (`hidden_size` is the target's). settings: see `HeadNet`. Of a head that read
        prompts with pictures otherwise than ours do: `pictures`, whether image slots hold what the target made of the
        pictures, and `axes`, the axis of each rotary frequency (`mmspec.drafters.axes`), where slots have the target's
        positions on three axes.
    """

    def __init__(self, config: LlamaConfig, **settings: Any) -> None:
        super().__init__(config, **settings)
        self.fc = nn.Linear(2 * config.hidden_size, config.hidden_size)
        self.layer = LlamaDecoderLayer(config, layer_idx=0)
        self.layer.input_layernorm = nn.Identity()
        self.rotary = rotary(config, settings.get("axes"))

    def estimate(self, content: Tensor, positions: Tensor, mask: Tensor | None, cache: Any = None) -> Tensor:
        """The next features [B, N, H] of slots that hold content [B, N, H] at positions [B, N].

        mask: additive [B, 1, N, K], or None for plain causal attention without a past.
        """
        return self.layer(
            content,
            attention_mask=mask,
            position_embeddings=self.rotary(content, positions),
            past_key_values=cache,
            use_cache=cache is not None,
        )

    def logits(self, features: Tensor, head: nn.Module) -> Tensor:
        """[.., V] of estimates [.., H], with the target's output head."""
        return head(features)


class EagleHead(OneLayer):
    """The trained part."""

    def forward(
        self, embeddings: Tensor, features: Tensor, positions: Tensor, mask: Tensor | None, cache: Any = None
    ) -> Tensor:
        """Estimate the next features.

        Args:
            embeddings: [B, N, H] of the tokens x_{t+1}. features: [B, N, H] f_t or estimates.
            positions: [B, N]. mask: additive [B, 1, N, K], or None for plain causal attention without a past.
        Returns: [B, N, H].
        """
        return self.estimate(self.fc(torch.cat([embeddings, features], -1)), positions, mask, cache)


class Eagle(SlotDrafter):
    """Drafts a dynamic tree with an `EagleHead`."""

    method = "eagle2"
    source = "EAGLE-2, arXiv 2406.16858"
    kin: ClassVar[tuple[str, ...]] = ("eagle",)
    measured = True
    noun = "EAGLE"
    floor = 0.04  # of a token, as in `mmspec.drafters.dspark`
    net_class: ClassVar[type[HeadNet]] = EagleHead

    def bind(self, target: Any) -> None:
        """Share the target's embeddings and head, and its engine where it has one."""
        super().bind(target)
        net, embed = self.net, target.embed

        def step(tokens: Tensor, *inputs: Any) -> Tensor:
            estimates: Tensor = net(embed(tokens), *inputs)
            return estimates

        seen = net.settings
        self.needs = replace(self.needs, embeddings=bool(seen.get("pictures")), inputs="axes" in seen)
        self.forwards, self.steps = (step,), None
        if self.engine is not None:
            self.forwards = self.steps = (self.engine.steps(net, step, self.method),)

    def taps(self, target: Any) -> tuple[int, ...]:
        """The features that enter the target's head."""
        return (target.num_layers,)

    def prompt_slots(self, state: State) -> Last | Slots:
        """See `SlotDrafter`. A head that saw pictures has read all but the pending token's slot."""
        slots = super().prompt_slots(state)
        if self.needs.embeddings or self.needs.inputs:
            assert isinstance(slots, Slots)
            self._see(slots, state)
        return slots

    def _see(self, slots: Slots, state: State) -> None:
        """Read the prompt's slots with what they held, and where they stood, while the head was trained: slot t has the
        embedding that the target read of x_{t+1}, and the target's position of x_t."""
        places, net, ((tokens, _, _),) = self._places(state), self.net, slots.waiting
        rows = torch.arange(len(tokens), device=tokens.device)[:, None]
        if self.needs.embeddings:
            assert state.prompt_embeddings is not None
            read = state.prompt_embeddings.roll(-1, 1)  # the last one is the pending token's, and not read here
        else:
            read = self.target.embed(tokens)

        def forward(held: Tensor, features: Tensor, positions: Tensor, mask: Tensor, cache: Any) -> Tensor:
            where = positions if places is None else places[:, rows, positions]
            estimates: Tensor = net(held, features, where, mask, cache)
            return estimates

        slots.read_prompt(forward, read)
        if places is not None:
            assert isinstance(state, CausalState)
            slots.cache.shift = state.cache.shift.clone()

    def _places(self, state: State) -> Tensor | None:
        """[3, B, T] the target's positions of a prompt; None where it has one axis, or no picture."""
        if not self.needs.inputs:
            return None
        inputs = state.prompt_inputs
        if state.prompt_features is not None:  # else the target would look at the pictures again
            inputs = {**inputs, "features": state.prompt_features}
        places: Tensor | None = self.target.arrange(inputs, [ids[:-1] for ids in state.ids]).get("position_ids")
        return places if places is not None and places.ndim == 3 else None

    def forwarded(self, sizes: Sizes) -> int:
        """Of trees that grow, and of those whose form is given, which may be wider where they have children."""
        form = best_tree(self.shares, sizes.total, sizes.levels, sizes.top_k)
        inner = Counter(form[parent - 1].level for parent in {node.parent for node in form} if parent)
        return max(
            self._forwarded([sizes.width] * (sizes.levels - 1)),
            self._forwarded([inner[level] for level in sorted(inner)]),
        )

    def _forwarded(self, widths: Sequence[int]) -> int:
        """The same for levels of so many nodes: each stands padded behind those above it. The first one is not there,
        since it is read."""
        assert self.steps is not None
        most = above = 0
        for width in widths:
            most = max(most, above + self.steps[0].padded(width))
            above += width
        return most

    def expansion(self, forwards: Sequence[Forward], past: Past, read: Callable[[], Tensor], pending: Tensor) -> Expand:
        """Estimates upon estimates."""
        (forward,), states = forwards, torch.empty(0)

        def expand(level: int, tokens: Tensor, origin: Tensor, above: Above) -> Tensor:
            nonlocal states
            states = read()[:, None] if level == 0 else below(forward, past, states, level, tokens, origin, above)
            return self.net.logits(states, self.head)

        return expand


class Eagle1(Eagle):
    """The same network with a static tree, whose shape was measured (`mmspec.drafters.static`)."""

    method = "eagle"
    source = "EAGLE, arXiv 2401.15077"
    kin = ("eagle2",)
    static = True


class Hass(Eagle):
    """EAGLE-2 whose head was trained on its own estimates; see `mmspec.training.eagle`."""

    method = "hass"
    source = "HASS, arXiv 2408.15766"
