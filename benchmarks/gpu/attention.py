"""Stage attention: which function reads a long prefix and a small tree fastest.

Each candidate attends with q nodes over `length` committed tokens that lie in a buffer of `slots`; GB/s are those of
the keys and values that are of use, so a candidate that reads the whole buffer or copies keys shows it. What each
computes is compared with the twin in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from mmspec.ancestry import ancestors
from mmspec.benchmarks.gpu.bench import Bench
from mmspec.benchmarks.gpu.book import Row
from mmspec.benchmarks.gpu.clock import lasts, seconds, settle
from mmspec.engine.attention import TreeSlots, attend
from mmspec.errors import one_line

INTRO = (
    "Microseconds per layer, and GB/s of useful keys and values. A tree of q nodes; q = 1 is a plain step. The calls "
    "of a measurement are one graph."
)
LAYOUTS = {"32/32x128": (32, 32, 128), "32/8x128": (32, 8, 128), "16/8x256": (16, 8, 256), "32/32x64": (32, 32, 64)}
"""Heads / kv heads x size: LLaVA, Pixtral, Gemma3, SmolVLM."""
NODES = (1, 8, 32, 64)
LENGTHS = (3072, 1024, 8128)
BUFFER = 8192
LAYERS = 8
"""Buffers that are used in turn, so that none stays in a cache."""
INNER = 4
"""How often in one measurement."""

Call = Callable[[int], Tensor]


@dataclass(frozen=True)
class Scene:
    """A tree over a buffer. query: [1, heads, N, D]. keys, values: [layers, 1, kv heads, S, D]."""

    query: Tensor
    keys: Tensor
    values: Tensor
    tree: TreeSlots

    @property
    def group(self) -> int:
        """Heads that share keys."""
        return self.query.shape[1] // self.keys.shape[2]

    @property
    def spare(self) -> bool:
        """Whether the buffer has slots that hold nothing."""
        return self.tree.front + int(self.tree.lengths[0]) < self.keys.shape[3]

    @property
    def useful_bytes(self) -> int:
        """Of one layer's keys and values."""
        kv_heads, size = self.keys.shape[2], self.keys.shape[4]
        seen = self.tree.nodes + int(self.tree.lengths[0])
        return 2 * kv_heads * size * seen * self.keys.element_size()


def scene(
    layout: tuple[int, int, int], nodes: int, length: int, slots: int, device: torch.device, dtype: torch.dtype
) -> Scene:
    """Random states, and a tree in which node i hangs from node (i - 1) // 2."""
    heads, kv_heads, size = layout
    parents = ((torch.arange(nodes, device=device) - 1) // 2)[None]
    above = ancestors(parents)
    tree = TreeSlots(nodes, nodes, torch.tensor([length], device=device), above, above.sum(-1) - 1)
    query = torch.randn(1, heads, nodes, size, device=device, dtype=dtype)
    keys, values = torch.randn(2, LAYERS, 1, kv_heads, slots, size, device=device, dtype=dtype)
    return Scene(query, keys, values, tree)


def candidates(at: Scene, with_flex: bool) -> dict[str, tuple[Call, AbstractContextManager[Any]]]:
    """Name -> what attends in layer i, and the context to call it in. Some refuse when they are called.

    Args: with_flex: flex attention, too; it is compiled for every scene.
    """
    scaling = at.query.shape[-1] ** -0.5
    mask = at.tree.visible(at.keys.shape[3])[:, None]  # [1, 1, N, S]

    def masked(layer: int) -> Tensor:
        return F.scaled_dot_product_attention(
            at.query, at.keys[layer], at.values[layer], attn_mask=mask, scale=scaling, enable_gqa=at.group > 1
        ).transpose(1, 2)

    def repeated(layer: int) -> Tensor:
        keys, values = (each[layer].repeat_interleave(at.group, 1) for each in (at.keys, at.values))
        return F.scaled_dot_product_attention(at.query, keys, values, attn_mask=mask, scale=scaling).transpose(1, 2)

    def twin(layer: int) -> Tensor:
        return attend(at.query, at.keys[layer], at.values[layer], at.tree, scaling)

    found: dict[str, tuple[Call, AbstractContextManager[Any]]] = {
        "sdpa, torch's choice": (masked, nullcontext()),
        "sdpa, keys repeated": (repeated, nullcontext()),
        "sdpa math": (masked, sdpa_kernel(SDPBackend.MATH)),
        "twin": (twin, nullcontext()),
    }
    if with_flex:
        found["flex"] = (flex(at, scaling), nullcontext())
    if at.query.is_cuda:
        from mmspec.engine import kernel

        def own(layer: int) -> Tensor:
            tree = at.tree
            return kernel.tree_attention(
                at.query,
                at.keys[layer],
                at.values[layer],
                tree.words,
                tree.depth,
                tree.lengths,
                tree.front,
                0,
                scaling,
                0.0,
            )

        found["own kernel"] = (own, nullcontext())
        found["sdpa cuDNN"] = (masked, sdpa_kernel(SDPBackend.CUDNN_ATTENTION))
        found["sdpa efficient"] = (repeated, sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION))
    if at.tree.nodes == 1 and not at.spare:

        def unmasked(layer: int) -> Tensor:
            return F.scaled_dot_product_attention(
                at.query, at.keys[layer], at.values[layer], scale=scaling, enable_gqa=at.group > 1
            ).transpose(1, 2)

        found["sdpa flash, no mask"] = (unmasked, sdpa_kernel(SDPBackend.FLASH_ATTENTION))
    return found


def flex(at: Scene, scaling: float) -> Call:
    """flex_attention with a block mask of the tree; compiled where it is fast."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    tree, slots = at.tree, at.keys.shape[3]
    above, lengths, nodes, front = tree.ancestors, tree.lengths, tree.nodes, tree.front

    def sees(batch: Tensor, head: Tensor, node: Tensor, slot: Tensor) -> Tensor:
        branch = (slot < nodes) & above[batch, node.clamp(max=nodes - 1), slot.clamp(max=nodes - 1)]
        return branch | ((slot >= front) & (slot - front < lengths[batch]))

    blocks = create_block_mask(sees, 1, None, nodes, slots, device=str(at.query.device))
    run: Any = torch.compile(flex_attention, dynamic=False) if at.query.is_cuda else flex_attention

    def attended(layer: int) -> Tensor:
        return run(
            at.query, at.keys[layer], at.values[layer], block_mask=blocks, scale=scaling, enable_gqa=at.group > 1
        ).transpose(1, 2)

    return attended


def run(bench: Bench) -> None:
    """All records: the key tells layout, nodes, length and slots; and what a new key length costs cuDNN."""
    settle(bench.device)
    layouts = {"4/2x16": (4, 2, 16)} if bench.small else LAYOUTS
    nodes, lengths, buffer = ((1, 5), (60,), 96) if bench.small else (NODES, LENGTHS, BUFFER)
    for name, layout in layouts.items():
        for length in lengths:
            for count in nodes:
                for slots in dict.fromkeys((length + count, buffer)):
                    with_flex = slots == buffer and length == lengths[0]
                    make = partial(measured, bench, layout, count, length, slots, with_flex)
                    bench.record(f"{name}, q {count}, {length} of {slots}", make)
            torch._dynamo.reset()
    bench.record("new length", lambda: new_length(bench, next(iter(layouts.values())), lengths[0]))


def measured(
    bench: Bench, layout: tuple[int, int, int], nodes: int, length: int, slots: int, with_flex: bool
) -> dict[str, Any]:
    """Every candidate in one scene: microseconds, GB/s, and the largest difference from the twin in float32."""
    with bench.freed(), torch.inference_mode():
        at = scene(layout, nodes, length, slots, bench.device, bench.dtype)
        exact = attend(at.query.float(), at.keys[0].float(), at.values[0].float(), at.tree, layout[2] ** -0.5)
        found: dict[str, Any] = {"us": {}, "gb_s": {}, "difference": {}, "refused": {}}
        for name, (call, context) in candidates(at, with_flex).items():
            try:
                with context:
                    found["difference"][name] = float((call(0).float() - exact).abs().max())
                    layers = len(at.keys)

                    def all_layers(call: Call = call, layers: int = layers) -> None:
                        for layer in range(layers):
                            call(layer)

                    repeats = bench.settings.repeats
                    taken = seconds(all_layers, bench.device, repeats, INNER, captured=True) / layers
            except Exception as error:  # noqa: BLE001  compilers and backends have errors of their own
                found["refused"][name] = one_line(error)
                continue
            found["us"][name], found["gb_s"][name] = 1e6 * taken, at.useful_bytes / taken / 1e9
        return found


def new_length(bench: Bench, layout: tuple[int, int, int], length: int) -> dict[str, Any]:
    """Milliseconds of sdpa's first and second call at key lengths that it has not seen: what a growing cache pays."""
    firsts, seconds_ = [], []
    with torch.inference_mode():
        for step in range(4):
            at = scene(layout, 1, length + step, length + step + 1, bench.device, bench.dtype)

            def call(at: Scene = at) -> Tensor:
                return F.scaled_dot_product_attention(at.query, at.keys[0], at.values[0], enable_gqa=at.group > 1)

            firsts.append(1000 * lasts(call, bench.device))
            seconds_.append(1000 * lasts(call, bench.device))
    return {"first_ms": firsts, "second_ms": seconds_}


def tables(records: dict[str, dict[str, Any]]) -> list[tuple[str, list[Row]]]:
    """Microseconds and GB/s of every candidate, a row per scene."""
    scenes = {key: record for key, record in records.items() if "us" in record}
    found: list[tuple[str, list[Row]]] = []
    if scenes:
        names = list(dict.fromkeys(name for record in scenes.values() for name in record["us"]))
        for title, field in (("Microseconds", "us"), ("GB/s of useful keys and values", "gb_s")):
            rows: list[Row] = [["layout, nodes, tokens of slots", *names]]
            rows += [[key, *(record[field].get(name) for name in names)] for key, record in scenes.items()]
            found.append((title, rows))
        far = max(value for record in scenes.values() for value in record["difference"].values())
        found.append(("Largest difference from the twin in float32", [["all candidates"], [far]]))
    if "new length" in records:
        record = records["new length"]
        rows = [["ms at a new key length", *range(len(record["first_ms"]))]]
        rows += [["first call", *record["first_ms"]], ["second call", *record["second_ms"]]]
        found.append(("A growing cache under torch's choice of sdpa", rows))
    return found
