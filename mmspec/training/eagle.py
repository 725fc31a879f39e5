"""Training of an EAGLE head: estimate the target's next feature, and through the target's own head its next law.

Source: Li et al., EAGLE (arXiv 2401.15077), section 3.2 for loss and noise; the unroll on the head's own estimates
follows HASS (arXiv 2408.15766) and EAGLE-3's training-time test (arXiv 2503.01840).

Slot t holds the token x_{t+1} and the feature f_t, and its estimate stands for f_{t+1}, whose law is that of x_{t+2}.
While drafting, only the slots up to the pending token carry true features; level s of the tree has estimates in its
last s slots. So step s of the unroll feeds each slot the estimate that step s - 1 made one slot earlier, and lets it
see what it will see then: true slots up to t - s, then one slot of each of the steps 1 to s.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, pad, smooth_l1_loss
from torch.nn.utils.rnn import pad_sequence
from transformers import DynamicCache, LlamaConfig

from mmspec.drafters.eagle import Eagle, EagleHead
from mmspec.errors import InputError
from mmspec.training.answers import Answered
from mmspec.training.features import Features
from mmspec.training.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class EagleRecipe(Recipe):
    """How an EAGLE head is trained.

    feature_weight: of SmoothL1 between estimate and feature (EAGLE: 1.0). law_weight: of the cross-entropy to the
    target's law (EAGLE: 0.1). noise: half the width of the uniform noise on the features that the head is given,
    relative to their root mean square. unroll: steps, of which all but the first run on estimates; as many as the
    tree has levels. decay: weight of a step relative to the one before. intermediate: width of the layer's MLP (None:
    the target's).
    """

    steps: int = 500
    batch: int = 32
    rate: float = 0.02
    feature_weight: float = 0.1
    law_weight: float = 1.0
    noise: float = 0.1
    unroll: int = 5
    decay: float = 0.8
    intermediate: int | None = None

    method: ClassVar[str] = "eagle2"
    about: ClassVar[str] = (
        "An EAGLE head: one decoder layer that estimates the target's next feature and drafts a dynamic tree with the "
        "target's own embeddings and output head (arXiv 2401.15077, 2406.16858)."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if min(self.feature_weight, self.law_weight, self.noise) < 0 or self.feature_weight + self.law_weight == 0:
            raise InputError(
                "the weights of an EAGLE loss and its noise are 0 or more, and one of the weights is positive"
            )
        if not 1 <= self.unroll <= 16 or not 0 < self.decay <= 1:
            raise InputError(f"an unroll has 1 to 16 steps and a decay in (0, 1], got {self.unroll} and {self.decay}")
        if self.intermediate is not None and self.intermediate < 1:
            raise InputError(f"the MLP of an EAGLE head needs a positive width, got {self.intermediate}")

    def build(self, target: Any) -> EagleHead:
        """A head with new weights."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            return EagleHead(head_config(target, self.intermediate))

    def loss(self, net: EagleHead, target: Any, features: Features | None) -> EagleLoss:
        """EAGLE's loss; there is none without features."""
        if features is None:
            raise InputError("an EAGLE head learns from the target's features: it has no warm-up")
        return EagleLoss(net, target, features, self)

    def drafter(self, net: EagleHead) -> Eagle:
        """With the default tree."""
        return Eagle(net)


def head_config(target: Any, intermediate: int | None = None) -> LlamaConfig:
    """A Llama layer of the target's shape."""
    text = target.decoder.config
    rope = getattr(text, "rope_parameters", None) or {}
    if "rope_theta" not in rope:  # one set per kind of layer
        rope = rope.get("full_attention", {})
    return LlamaConfig(
        vocab_size=target.vocab_size,
        hidden_size=target.hidden_size,
        intermediate_size=intermediate or text.intermediate_size,
        num_hidden_layers=1,
        num_attention_heads=text.num_attention_heads,
        num_key_value_heads=getattr(text, "num_key_value_heads", None) or text.num_attention_heads,
        head_dim=getattr(text, "head_dim", None) or target.hidden_size // text.num_attention_heads,
        max_position_embeddings=text.max_position_embeddings,
        rms_norm_eps=getattr(text, "rms_norm_eps", 1e-6),
        rope_parameters={"rope_type": "default", "rope_theta": rope.get("rope_theta", 10000.0)},
    )


def unroll(head: EagleHead, embeddings: Tensor, features: Tensor, first: int, steps: int) -> list[Tensor]:
    """Estimates of the slots from `first` on, one tensor per step.

    Args:
        embeddings: [B, T, H] of x_1 .. x_T. features: [B, T, H] f_0 .. f_{T-1}. first: at least 1.
    Returns: `steps` tensors [B, T - first, H]. In step s the first s slots have no estimates to start from: do not
    use them.
    """
    width, device = features.shape[1], features.device
    positions = torch.arange(width, device=device)[None]
    cache = DynamicCache()
    whole = head(embeddings, features, positions, None, cache)
    found = [whole[:, first:]]
    before = whole[:, first - 1 : -1]
    for step in range(1, steps):
        mask = unrolled_mask(width, first, step, features.dtype, device)
        found.append(head(embeddings[:, first:], before, positions[:, first:], mask, cache))
        before = pad(found[-1], (0, 0, 1, 0))[:, :-1]
    return found


def unrolled_mask(width: int, first: int, step: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """[1, 1, R, width + step * R] additive mask of step `step` over the keys of all steps so far, R = width - first."""
    slots = torch.arange(first, width, device=device)[:, None]
    true = torch.arange(width, device=device) <= slots - step
    own = [slots - (step - earlier) == slots.T for earlier in range(1, step + 1)]
    seen = torch.cat([true, *own], -1)[None, None]
    return torch.zeros(seen.shape, dtype=dtype, device=device).masked_fill_(~seen, torch.finfo(dtype).min)


class EagleLoss:
    """The loss of a batch.

    Args: head: to be trained. target: whose embeddings and head it shares, frozen. features: where true features come
    from.
    """

    def __init__(self, head: EagleHead, target: Any, features: Features, recipe: EagleRecipe) -> None:
        self.head, self.target, self.features = head, target, features
        self.recipe = recipe

    def __call__(self, position: Tensor, rows: list[Answered]) -> Tensor:
        """A scalar. position: [B] of the samples in the training run, the source of the noise."""
        true = self.features(rows)  # [B, n, H]
        slots = true.shape[1] - 2  # slot t needs the token x_{t+2}: the last two positions have none
        first = max(1, min(row.start for row in rows) - 1)
        tokens = pad_sequence([torch.tensor(row.ids, device=true.device) for row in rows], batch_first=True)
        with torch.no_grad():
            embeddings = self.target.embed(tokens[:, 1 : slots + 1]).float()
        goal = true[:, first + 1 : slots + 1]
        seen = true[:, :slots] + self._noise(int(position[0]), true[:, :slots])
        roots = drafted_slots(rows, first, slots, 0).to(true.device)
        with torch.no_grad():
            laws = self._logits(goal[roots]).softmax(-1)
        total, weights = true.new_zeros(()), 0.0
        for step, estimate in enumerate(unroll(self.head, embeddings, seen, first, self.recipe.unroll)):
            drafted = drafted_slots(rows, first, slots, step).to(true.device)  # fewer than the roots, and among them
            if drafted.any():
                weight = self.recipe.decay**step
                total = total + weight * self._step(estimate[drafted], goal[drafted], laws[drafted[roots]])
                weights += weight
        return total / weights

    def _step(self, estimate: Tensor, goal: Tensor, law: Tensor) -> Tensor:
        """The loss of estimates [M, H] of the features `goal` [M, H], whose laws are `law` [M, V]."""
        by_law = cross_entropy(self._logits(estimate), law)
        return self.recipe.feature_weight * smooth_l1_loss(estimate, goal) + self.recipe.law_weight * by_law

    def _logits(self, features: Tensor) -> Tensor:
        head = self.target.head
        return head(features.to(head.weight.dtype)).float()

    def _noise(self, position: int, features: Tensor) -> Tensor:
        # A generator per batch, not the global one: the noise of a resumed run is that of an unbroken one.
        generator = torch.Generator(features.device).manual_seed(self.recipe.seed * 1_000_003 + position)
        width = 2 * self.recipe.noise * features.square().mean().sqrt()
        return (torch.rand(features.shape, generator=generator, device=features.device) - 0.5) * width


def drafted_slots(rows: list[Answered], first: int, slots: int, step: int) -> Tensor:
    """[B, slots - first] bool: slots from `first` on whose estimate drafts an answer token in step `step`.

    The first root is the slot that holds the first answer token; step s drafts from s slots behind a root.
    """
    slot = torch.arange(first, slots)
    start = torch.tensor([row.start - 1 + step for row in rows])[:, None]
    stop = torch.tensor([len(row.ids) - 2 for row in rows])[:, None]
    return (slot >= start) & (slot < stop)
