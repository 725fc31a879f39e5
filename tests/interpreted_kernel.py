"""Runs the Triton kernels in Triton's interpreter against their twins, and prints the largest difference of every case.

A process of its own, because whether Triton interprets is decided when its modules are imported:
`TRITON_INTERPRET=1 python tests/interpreted_kernel.py`.
"""

import json
import operator
from typing import Any, NamedTuple

import torch

from mmspec.ancestry import ancestors
from mmspec.engine.attention import TreeSlots, attend


class Case(NamedTuple):
    """nodes, heads, kv heads, head size, committed tokens per row, slots of the buffer, window, softcap, dtype."""

    nodes: int
    heads: int
    kv_heads: int
    size: int
    lengths: tuple[int, ...]
    slots: int
    window: int = 0
    softcap: float = 0.0
    dtype: torch.dtype = torch.float32


CASES = {
    "one node, no past": Case(1, 2, 2, 16, (0,), 66),
    "one node, short and long rows": Case(1, 4, 2, 16, (3, 200), 300),
    "a tree, groups of two": Case(8, 4, 2, 16, (5, 130), 264),
    "a tree, groups of four, no power of two": Case(13, 4, 1, 24, (64, 65), 200),
    "several blocks in a part": Case(6, 8, 8, 16, (330, 150), 400),
    "several tiles of query rows": Case(40, 6, 2, 16, (100,), 256),
    "64 nodes": Case(64, 2, 2, 32, (70, 1), 160),
    "more nodes than a word has bits": Case(70, 2, 1, 16, (90,), 256),
    "windows shorter than the tree is deep": Case(12, 4, 2, 16, (2, 150), 256, window=4),
    "windows over several blocks": Case(9, 2, 1, 16, (180, 40), 256, window=100),
    "soft caps": Case(7, 4, 2, 16, (33, 90), 256, softcap=2.0),
    "a window and a soft cap": Case(7, 4, 2, 16, (33, 90), 256, window=20, softcap=2.0),
    "wide heads": Case(5, 2, 1, 160, (50, 20), 128),
    "half precision": Case(8, 4, 2, 16, (5, 130), 264, dtype=torch.float16),
}


def inputs(case: Case, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, TreeSlots]:
    """Query, key, value and a random tree; unused slots hold large numbers, so that reading one cannot be overlooked.

    The front leaves a few slots unused behind the tree, the buffer is a view into a larger one, as in a stacked cache,
    and the query is a transposed view, as a projection leaves it.
    """
    draw = torch.Generator().manual_seed(seed)
    batch, front = len(case.lengths), case.nodes + 3
    parents = torch.stack(
        [
            torch.tensor([-1] + [int(torch.randint(0, node, (), generator=draw)) for node in range(1, case.nodes)])
            for _ in range(batch)
        ]
    )
    above = ancestors(parents)
    tree = TreeSlots(case.nodes, front, torch.tensor(case.lengths), above, above.sum(-1) - 1)
    query = torch.randn(batch, case.nodes, case.heads, case.size, generator=draw).transpose(1, 2)
    stacked = torch.randn(2, batch, case.kv_heads, case.slots, case.size + 8, generator=draw)[..., : case.size]
    stacked[..., case.nodes : front, :] = 1e4
    for row, length in enumerate(case.lengths):
        stacked[:, row, :, front + length :] = 1e4
    query, stacked = query.to(case.dtype), stacked.to(case.dtype)
    return query, stacked[0], stacked[1], tree


def loops(*bounds: Any) -> range:
    """Python's range over the interpreter's scalars: Triton 3.6 converts them in a way that NumPy 2.4 refuses."""
    return range(
        *(int(each.handle.data.item()) if hasattr(each, "handle") else operator.index(each) for each in bounds)
    )


def difference(kernel: Any, case: Case) -> float:
    """Largest absolute difference between the kernel and its twin, which computes in float64."""
    query, key, value, tree = inputs(case)
    scaling = case.size**-0.5
    out = kernel.tree_attention(
        query,
        key,
        value,
        tree.words,
        tree.depth,
        tree.lengths,
        tree.front,
        case.window,
        scaling,
        case.softcap,
    )
    twin = attend(query.double(), key.double(), value.double(), tree, scaling, case.window, case.softcap)
    assert out.dtype == case.dtype
    assert out.is_contiguous()
    return float((out.double() - twin).abs().max())


SCORES = {"few": (6, 40, 5), "one part": (2, 1024, 8), "several parts": (4, 5000, 8), "the best alone": (3, 3000, 1)}
"""Rows, vocabulary and k of searches for the highest scores."""


def scores_of(name: str) -> tuple[torch.Tensor, int]:
    """Random ones [2, rows / 2, V], all different; k of them are wanted."""
    rows, words, k = SCORES[name]
    scores = torch.stack([torch.randperm(words) for _ in range(rows)]).float()
    return scores.unflatten(0, (2, -1)) if rows % 2 == 0 else scores, k


def highest(module: Any, name: str) -> bool:
    """Whether the kernel finds what `torch.topk` does, and leaves NaN out."""
    scores, k = scores_of(name)
    found, want = module.top_k(scores, k), scores.topk(k)
    same = all(torch.equal(some, other) for some, other in zip(found, want, strict=True))
    scores[..., 7] = torch.nan
    values, places = module.top_k(scores, k)
    return same and bool((scores.gather(-1, places) == values).all())


def barred(module: Any) -> list[list[int]]:
    """The places it finds where all but two scores are ruled out, and where all are."""
    scores = torch.full((2, 1500), -torch.inf)
    scores[0, 1200], scores[0, 3] = 2.0, 1.0
    places: list[list[int]] = module.top_k(scores, 4)[1].tolist()
    return places


def main() -> None:
    """Print {case: difference}, what was found of scores, and whether torch finds the operators well declared."""
    from mmspec.engine import kernel, top_k

    kernel.range = top_k.range = loops  # type: ignore[attr-defined]
    found = {name: difference(kernel, case) for name, case in CASES.items()}
    query, key, value, tree = inputs(CASES["a tree, groups of two"])
    arguments = (query, key, value, tree.words, tree.depth, tree.lengths, tree.front, 0, 0.25, 0.0)
    checks = torch.library.opcheck(
        kernel.tree_attention, arguments, test_utils=("test_schema", "test_faketensor"), raise_exception=False
    )
    more = torch.library.opcheck(
        top_k.top_k, scores_of("several parts"), test_utils=("test_schema", "test_faketensor"), raise_exception=False
    )
    best = {name: highest(top_k, name) for name in SCORES}
    print(
        json.dumps(
            {
                "differences": found,
                "checks": [*checks.values(), *more.values()],
                "highest": best,
                "barred": barred(top_k),
            }
        )
    )


if __name__ == "__main__":
    main()
