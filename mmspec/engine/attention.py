"""Attention along the branches of a tree, over a static buffer: registered with transformers under the names
"mmspec_tree" and "mmspec_masked", so that unmodified models call it.

A forward that gets `tree=TreeSlots(..)` hands it down to every layer; keys and values are then the whole buffer.
Without a tree (prefill, a vision tower) it is transformers' own sdpa, masks included. On a CUDA device the Triton
kernel of `mmspec.engine.kernel` computes it; `attend` is its twin in plain torch, with the same arguments and, but for
rounding, the same result.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from mmspec.errors import UnsupportedError
from mmspec.grouped import NAME as GROUPED
from mmspec.grouped import use_attention

if torch.cuda.is_available():  # Triton compiles for what it finds; elsewhere nothing needs it
    from mmspec.engine import kernel

NAME, MASKED = "mmspec_tree", "mmspec_masked"
FEW = 64
"""Most queries for which scores of a whole buffer are written down."""
BEYOND = ("s_aux", "position_bias")
"""What some models add to their scores (sinks, biases) and neither the kernel nor its twin knows."""
WORD = 64
"""Bits of an ancestor word."""


@dataclass
class TreeSlots:
    """Where one round's tree stands in a buffer [B, kv heads, S, D].

    The nodes of the round lie in slots 0 .. N-1, always at the same addresses; a row's committed tokens lie from slot
    `front` on, one after the other. What a node may see is then its ancestors among the first slots and a plain prefix
    behind them: work follows the true length, whatever the size of the buffer.

    nodes: N, at most `front`. front: the slot of the first committed token.
    lengths: [B] int64, committed tokens of each row. ancestors: [B, N, N] bool, see `mmspec.contract.Draft`.
    depth: [B, N] int64; a node of a row with n committed tokens stands at position n + depth.
    words: [B, N, W] int64, the rows of `ancestors` as words of 64 bits: bit j % 64 of word j // 64 is node j.
    """

    nodes: int
    front: int
    lengths: Tensor
    ancestors: Tensor
    depth: Tensor
    words: Tensor = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.words = ancestor_words(self.ancestors)

    def visible(self, slots: int, window: int | None = None) -> Tensor:
        """[B, N, slots] bool: which slots of a buffer of that size each node sees.

        Args: window: how many positions a sliding layer sees, its own included; None for all.
        """
        slot = torch.arange(slots, device=self.depth.device)
        place = slot - self.front  # of a committed token; for a slot of the tree it is negative
        committed = (place >= 0) & (place < self.lengths[:, None])  # [B, S]
        seen = F.pad(self.ancestors, (0, slots - self.nodes)) | committed[:, None]
        if window is None:
            return seen
        behind = torch.arange(self.nodes, slots, device=slot.device) - self.front
        stands = torch.cat(
            [self.lengths[:, None] + self.depth, behind.expand(len(self.depth), -1)], 1
        )  # [B, S] positions
        return seen & (stands[:, : self.nodes, None] - stands[:, None, :] < window)


def ancestor_words(ancestors: Tensor) -> Tensor:
    """[B, N, N] bool -> [B, N, W] int64, W words of 64 bits; bit 63 is the sign, so adding bits is or-ing them."""
    padded = F.pad(ancestors, (0, -ancestors.shape[-1] % WORD)).unflatten(-1, (-1, WORD))
    return (padded.long() << torch.arange(WORD, device=ancestors.device)).sum(-1)


def tree_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    tree: TreeSlots | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """The attention function of a layer, as transformers calls it.

    Args:
        query: [B, heads, N, D]. key, value: [B, kv heads, S, D], with a tree the whole buffer.
        attention_mask: read only without a tree. tree: where nodes and committed tokens lie.
        sliding_window: positions that this layer sees; None asks the layer itself, which may have no window.
    Returns: [B, N, heads, D], and no weights.
    Raises: UnsupportedError: the model adds something to its scores that is not known here.
    """
    if tree is None:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout, scaling, softcap=softcap, **kwargs
        )
    for name in BEYOND:
        if kwargs.get(name) is not None:
            raise UnsupportedError(
                f"{type(module).__name__} adds {name} to its attention scores, which tree attention does not know: "
                "load the model without compile=True"
            )
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    window = getattr(module, "sliding_window", None) if sliding_window is None else sliding_window
    if query.is_cuda and kernel.serves(query):
        out = kernel.tree_attention(
            query,
            key,
            value,
            tree.words,
            tree.depth,
            tree.lengths,
            tree.front,
            window or 0,
            float(scaling),
            float(softcap or 0.0),
        )
        return out, None
    return attend(query, key, value, tree, scaling, window, softcap), None


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    tree: TreeSlots,
    scaling: float,
    window: int | None = None,
    softcap: float | None = None,
) -> Tensor:
    """The kernel's twin: exact, in the dtype of its inputs (scores at least in float32), keys never repeated.

    Args: query: [B, heads, N, D]. key, value: [B, kv heads, S, D]. window: in positions, None or 0 for none.
        softcap: scores s become softcap * tanh(s / softcap); None or 0 leaves them.
    Returns: [B, N, heads, D].
    """
    batch, heads, nodes, size = query.shape
    grouped = query.reshape(batch, key.shape[1], -1, size)  # rows = heads of a group x nodes
    scores = grouped @ key.transpose(-1, -2) * scaling  # [B, kv heads, rows, S]
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    if softcap:
        scores = softcap * (scores / softcap).tanh()
    seen = tree.visible(key.shape[2], window or None)[:, None, None]  # [B, 1, 1, N, S]
    scores = scores.unflatten(2, (-1, nodes)).masked_fill(~seen, torch.finfo(scores.dtype).min)
    out = scores.softmax(-1).to(value.dtype).flatten(2, 3) @ value  # [B, kv heads, rows, D]
    return out.reshape(batch, heads, nodes, size).transpose(1, 2)


def masked_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention of a drafter's few nodes under a mask of their own: two products and what a compiler fuses between.

    Library kernels do not split keys for so few queries, and leave most of a GPU idle. Arguments as for
    `tree_attention`; attention_mask: additive [B, 1, N, S], and without one (or for long queries) it is sdpa.
    """
    batch, heads, nodes, size = query.shape
    if attention_mask is None or nodes > FEW:
        return sdpa_attention_forward(module, query, key, value, attention_mask, dropout, scaling, **kwargs)
    scaling = size**-0.5 if scaling is None else scaling
    query = query * scaling  # before the product, which half precision might not hold
    scores = query.reshape(batch, key.shape[1], -1, size) @ key.transpose(-1, -2)  # rows = heads of a group x nodes
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    scores = scores.unflatten(2, (-1, nodes)) + attention_mask[:, :, None]
    out = scores.softmax(-1).to(value.dtype).flatten(2, 3) @ value
    return out.reshape(batch, heads, nodes, size).transpose(1, 2), None


def use_tree_attention(model: PreTrainedModel) -> None:
    """Let the decoder of a model that runs sdpa call `tree_attention` instead, where the device has the kernel."""
    text = model.config.get_text_config(decoder=True)
    if model.device.type == "cuda" and text._attn_implementation in ("sdpa", GROUPED):
        use_attention(model, NAME)


def use_masked_attention(net: nn.Module) -> None:
    """The same for the layers of a drafter and `masked_attention`."""
    for module in net.modules():
        config: Any = getattr(module, "config", None)
        if getattr(config, "_attn_implementation", None) in ("sdpa", GROUPED) and next(net.parameters()).is_cuda:
            config._attn_implementation = MASKED


for name, function in ((NAME, tree_attention), (MASKED, masked_attention)):
    ALL_ATTENTION_FUNCTIONS.register(name, function)
    ALL_MASK_ATTENTION_FUNCTIONS.register(name, ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])
