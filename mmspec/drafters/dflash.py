"""DFlash: a block of tokens from one pass of a small model that looks at the target's features (arXiv 2602.06036).

Several hidden states of the target are fused to a context, c = norm(fc(taps)), which every layer turns into keys and
values of its own. A block stands after it: the pending token's embedding, then a learned mask in every other slot. Its
slots see the whole context and each other, in both directions, and slot i gives, through the target's frozen output
head, the law of the token at its own place: one forward per draft instead of one per level.

    keys, values = [of the context ; of the block],  queries of the block alone

The layers are stock ones of Qwen3: context keys and values are put into their cache, block keys are appended and
dropped again. Slots are drawn independently of each other; a tree is built best first from the laws of the slots.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import DynamicCache, Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import (
    Qwen3DecoderLayer,
    Qwen3RMSNorm,
    Qwen3RotaryEmbedding,
    rotate_half,
)

from mmspec.cache import Past
from mmspec.contract import Shape
from mmspec.drafters.growing import Expand, Guess
from mmspec.drafters.heads import HeadNet, Sizes
from mmspec.drafters.on_slots import SlotDrafter
from mmspec.drafters.slots import Forward, Slots, beyond
from mmspec.engine.sizes import padded
from mmspec.engine.steps import WIDTHS


class BlockNet(HeadNet):
    """The block drafter.

    Args: config: the shape of its layers. taps: the target's `hidden_states` that make the context. block: slots,
        the pending token's included.
    """

    config_class = Qwen3Config
    free = ("block",)  # one mask for all slots, told apart by their positions

    def __init__(self, config: Qwen3Config, taps: Sequence[int], block: int) -> None:
        super().__init__(config, taps=list(taps), block=block)
        size = config.hidden_size
        self.fc = nn.Linear(len(taps) * size, size, bias=False)
        self.context_norm = Qwen3RMSNorm(size, config.rms_norm_eps)
        self.layers = nn.ModuleList(Qwen3DecoderLayer(config, index) for index in range(config.num_hidden_layers))
        self.norm = Qwen3RMSNorm(size, config.rms_norm_eps)
        self.mask = nn.Parameter(torch.zeros(size))
        self.rotary = Qwen3RotaryEmbedding(config)

    def fuse(self, heard: Tensor) -> Tensor:
        """The context [B, N, H] of the taps side by side, [B, N, taps * H]."""
        return self.context_norm(self.fc(heard))

    def absorb(self, context: Tensor, positions: Tensor, cache: DynamicCache) -> None:
        """Append the keys and values of context [B, N, H] at positions [B, N] to the cache of every layer."""
        cos, sin = (part[:, None] for part in self.rotary(context, positions))  # the same for every head
        for index, layer in enumerate(self.layers):
            attention: Any = layer.self_attn
            shape = (*context.shape[:2], -1, attention.head_dim)
            keys = attention.k_norm(attention.k_proj(context).view(shape)).transpose(1, 2)
            values = attention.v_proj(context).view(shape).transpose(1, 2)
            cache.update(keys * cos + rotate_half(keys) * sin, values, index)

    def blocks(self, embeddings: Tensor) -> Tensor:
        """Embeddings [.., H] of first tokens -> the inputs of their blocks, [.., block, H]."""
        masks = self.mask.to(embeddings.dtype).expand(*embeddings.shape[:-1], self.settings["block"] - 1, -1)
        return torch.cat([embeddings[..., None, :], masks], -2)

    def forward(self, inputs: Tensor, positions: Tensor, mask: Tensor, cache: DynamicCache) -> Tensor:
        """What enters the output head for every slot.

        Args: inputs: [B, M, H], M a multiple of the block. positions: [B, M]. mask: additive [B, 1, M, K + M].
            cache: with K slots of context; the blocks' own keys and values are appended.
        """
        rotary = self.rotary(inputs, positions)
        for layer in self.layers:
            inputs = layer(
                inputs, attention_mask=mask, position_embeddings=rotary, past_key_values=cache, use_cache=True
            )
        return self.norm(inputs)


class BlockDrafter(SlotDrafter):
    """What drafters have in common that guess the slots of a block: context and block, compiled as the target is.

    Arguments as for `HeadDrafter`, from the third on by name; by default trees are as deep as the block.
    """

    net_class: ClassVar[type[HeadNet]] = BlockNet
    masked = False  # every slot of the context stands for itself
    menu: ClassVar[tuple[tuple[int, int], ...]]
    """Width and nodes of the trees among which `auto` chooses, each as deep as it may be. What they pay differs little
    from one to the next, so a finer choice would follow the noise."""

    def __init__(self, net: Any, depth: int | None = None, **options: Any) -> None:
        super().__init__(net, net.settings["block"] - 1 if depth is None else depth, **options)

    def bind(self, target: Any) -> None:
        """Share the target's embeddings and head, and its engine where it has one."""
        super().bind(target)
        net: BlockNet = self.net

        def absorb(tokens: Tensor, context: Tensor, positions: Tensor, mask: Tensor, cache: Any) -> Tensor:
            """Takes the context in, and returns it."""
            net.absorb(context, positions, cache)
            return context

        def block(tokens: Tensor, inputs: Tensor, positions: Tensor, mask: Tensor, cache: Any) -> Tensor:
            """What enters the output head, from the inputs of a block in the place of features."""
            return net(inputs, positions, mask, cache)

        self.forwards, self.steps = (absorb, block), None
        if self.engine is not None:
            self.forwards = self.steps = (
                self.engine.steps(net, absorb, f"{self.method}'s context"),
                self.engine.steps(net, block, f"{self.method}'s block", (net.settings["block"],)),
            )

    def offered(self) -> tuple[Shape, ...]:
        """All slots are guessed in any case, so that trees may be as deep: it is only asked how many nodes pay."""
        least = self.least
        return tuple(
            Shape(min(size - 1, self.most), width, size, least)
            for width, size in self.menu
            if size <= 1 + width * self.most
        )

    @property
    def most(self) -> int:
        """One level per slot but the first."""
        return self.net.settings["block"] - 1

    @property
    def most_read(self) -> int:
        """As many as a block can emit."""
        return padded(self.net.settings["block"], WIDTHS)

    def taps(self, target: Any) -> tuple[int, ...]:
        """Those that the block drafter was trained on."""
        return tuple(self.net.settings["taps"])

    def forwarded(self, sizes: Sizes) -> int:
        """What was accepted, then the block."""
        return max(2 * self.most_read, self.net.settings["block"])

    def settle(self, slots: Slots, budget: int) -> None:
        """Makes the block's step ready, too."""
        super().settle(slots, budget)
        assert self.steps is not None
        self.steps[1].settle(slots.cache, self.net.mask.expand(len(slots.cache.lengths), 1, -1), 0)

    def expansion(
        self, forwards: Sequence[Forward], past: Past, read: Callable[[], Tensor], pending: Tensor
    ) -> Expand | Guess:
        """Read the context, then the block."""

        def hidden() -> Tensor:
            read()
            return self.hidden(forwards[1], past, pending)

        return self.laws(hidden)

    @abstractmethod
    def laws(self, hidden: Callable[[], Tensor]) -> Expand | Guess:
        """What follows the nodes of a tree; hidden: gives what enters the output head for all slots but the first,
        [B, block - 1, H], and is asked for nothing if there is no room for a tree."""

    def hidden(self, block: Forward, past: Past, pending: Tensor) -> Tensor:
        """What enters the output head for all slots but the first, [B, block - 1, H].

        Args: block: the step that makes it. past: the cache with all of the context. pending: [B].
        """
        inputs = self.net.blocks(self.target.embed(pending))
        batch, size = inputs.shape[:2]
        everyone = torch.ones(batch, size, size, dtype=torch.bool, device=inputs.device)
        first, mask = beyond(past, 0, everyone, inputs.dtype)
        positions = first + torch.arange(size, device=inputs.device)
        tokens = pending[:, None].expand(-1, size)
        return block(tokens, inputs, positions, mask, past.hf)[:, 1:]


class DFlash(BlockDrafter):
    """Drafts a tree from the slots of a block."""

    method = "dflash"
    source = "DFlash, arXiv 2602.06036"
    kin: ClassVar[tuple[str, ...]] = ("dspark",)
    noun = "DFlash"
    menu = ((1, 2), (1, 4), (2, 8), (3, 16), (4, 32), (6, 64))
    greedy_sharpness = 2.5  # its laws are averages over what may stand before a slot, too flat where nothing is drawn

    def laws(self, hidden: Callable[[], Tensor]) -> Guess:
        """Each slot has a law of its own, whatever stands before it."""
        return Guess(lambda levels: self.head(hidden()[:, :levels]))


def spread_taps(num_layers: int, count: int) -> tuple[int, ...]:
    """`count` hidden states from the one that enters layer 2 to the one that layer L - 3 leaves behind, evenly spread
    (fewer in a shallow target); a single one is the middle."""
    low, high = min(2, num_layers), max(num_layers - 2, min(2, num_layers))
    if count == 1 or low == high:
        return (num_layers // 2 + 1,) if count == 1 else (low,)
    return tuple(sorted({low + round(place * (high - low) / (count - 1)) for place in range(count)}))
