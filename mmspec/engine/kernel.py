"""Tree attention in Triton: a length-aware, split kernel and the one that joins its parts (flash decoding with a tree).

`attend` of `mmspec.engine.attention` is its twin and says what it computes. How it is laid out:

- A program has one row of the batch, one kv head, one tile of query rows (the heads of a group x the nodes, packed, so
  that keys and values are read once for all of them) and one part of the committed prefix. The number of parts follows
  from the size of the buffer and of the device alone, so a CUDA graph stays valid; the part itself follows from the
  row's length, read on the device. Windowed layers begin at the first position that any node sees.
- One more part takes the tree: whether node i sees node j is a bit of an ancestor word.
- Scores, running maxima and sums are float32; exponentials have base 2. Parts are joined by their maxima.

Which calls it serves (`serves`): half, bfloat16 and float32, heads of at most 256; any number of nodes. Heads are
padded to a power of two, and products of float32 are taken in float32. Everything else is left to the twin.
"""

# No postponed annotations here: torch reads the schema of the operator from them. Kernels are written in Triton's
# language, whose arguments have no Python types.
# mypy: disable-error-code="no-untyped-def"

import math
from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
TILES = {
    256: ((0, 64, 64, 3),),
    512: ((164_352, 64, 32, 3), (90_624, 64, 32, 2), (0, 32, 16, 2)),
    1024: ((156_160, 64, 32, 2), (0, 16, 16, 2)),
}
"""By the bytes of a head, at most: the shared memory that it takes, in bytes, to have so many query rows in a program,
so many slots in a tile of keys, and so many tiles on their way at once. A consumer card has 99 KiB, a data centre's 163
and more."""
MOST_PARTS = 16
WAVES, SHARED_WAVES = 2, 1
"""Programs per multiprocessor that splitting aims at; where heads share keys, parts read little beside what they leave.
"""


def serves(query: Tensor) -> bool:
    """Whether the kernel computes this call: by dtype and size of the heads."""
    return query.dtype in DTYPES and query.shape[-1] <= 256


@triton.jit
def _fold(queries, keys, values, seen, top, total, mixed, scale, cap, CAPPED: tl.constexpr):
    """Take one tile of keys [D, slots] and values [slots, D] into the running softmax of every query row."""
    scores = tl.dot(queries, keys, input_precision="ieee") * scale
    if CAPPED:
        scores = cap * (2 * tl.sigmoid(2 * scores) - 1)  # tanh
    scores = tl.where(seen, scores, float("-inf"))
    higher = tl.maximum(top, tl.max(scores, 1))
    base = tl.where(higher == float("-inf"), 0.0, higher)  # a row that has seen nothing yet
    weights = tl.exp2(scores - base[:, None])
    kept = tl.exp2(top - base)
    total = total * kept + tl.sum(weights, 1)
    mixed = mixed * kept[:, None] + tl.dot(weights.to(values.dtype), values, input_precision="ieee")
    return higher, total, mixed


@triton.jit
def _parts(
    query,
    key,
    value,
    words,
    depth,
    lengths,
    tops,
    totals,
    mixes,
    query_row,
    query_head,
    query_node,
    key_row,
    key_head,
    key_slot,
    value_row,
    value_head,
    value_slot,
    kv_heads,
    parts,
    front,
    window,
    scale,
    cap,
    NODES: tl.constexpr,
    GROUP: tl.constexpr,
    WORDS: tl.constexpr,
    SIZE: tl.constexpr,
    WIDE: tl.constexpr,
    ROWS: tl.constexpr,
    SLOTS: tl.constexpr,
    WINDOWED: tl.constexpr,
    CAPPED: tl.constexpr,
):
    """Maxima, sums and unnormalised mixes of values of one part of the prefix, for one tile of query rows."""
    pair = tl.program_id(0)
    part = tl.program_id(2)
    row = (pair // kv_heads).to(tl.int64)
    head = (pair % kv_heads).to(tl.int64)
    item = tl.program_id(1) * ROWS + tl.arange(0, ROWS)  # query row: head of the group, then node
    real = item < GROUP * NODES
    node = item % NODES
    dim = tl.arange(0, WIDE)
    inside = dim < SIZE
    key += row * key_row + head * key_head
    value += row * value_row + head * value_head
    from_query = row * query_row + (head * GROUP + item // NODES) * query_head + node * query_node
    queries = tl.load(query + from_query[:, None] + dim[None, :], mask=real[:, None] & inside[None, :], other=0.0)
    length = tl.load(lengths + row).to(tl.int32)
    own = length + tl.load(depth + row * NODES + node, mask=real, other=0).to(tl.int32)  # positions

    low = length * 0
    if WINDOWED:
        low = tl.maximum(length - window + 1, 0)
    share = tl.cdiv(tl.cdiv(length - low, SLOTS), parts - 1) * SLOTS  # the last part's begins at the end
    begin = low + part * share
    end = tl.minimum(begin + share, length)
    top = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    mixed = tl.zeros([ROWS, WIDE], tl.float32)
    for start in range(begin, end, SLOTS):
        place = start + tl.arange(0, SLOTS)
        there = place < end
        slot = front + place
        keys = tl.load(key + slot[None, :] * key_slot + dim[:, None], mask=there[None, :] & inside[:, None], other=0.0)
        values = tl.load(
            value + slot[:, None] * value_slot + dim[None, :], mask=there[:, None] & inside[None, :], other=0.0
        )
        seen = there[None, :] & real[:, None]
        if WINDOWED:
            seen = seen & (own[:, None] - place[None, :] < window)
        top, total, mixed = _fold(queries, keys, values, seen, top, total, mixed, scale, cap, CAPPED)

    if part == parts - 1:
        for start in range(0, NODES, SLOTS):
            other = start + tl.arange(0, SLOTS)
            there = other < NODES
            keys = tl.load(
                key + other[None, :] * key_slot + dim[:, None], mask=there[None, :] & inside[:, None], other=0.0
            )
            values = tl.load(
                value + other[:, None] * value_slot + dim[None, :], mask=there[:, None] & inside[None, :], other=0.0
            )
            wanted = there[None, :] & real[:, None]
            word = tl.load(words + (row * NODES + node[:, None]) * WORDS + other[None, :] // 64, mask=wanted, other=0)
            seen = ((word >> (other % 64).to(tl.int64)[None, :]) & 1) == 1
            if WINDOWED:
                stands = length + tl.load(depth + row * NODES + other, mask=there, other=0).to(tl.int32)
                seen = seen & (own[:, None] - stands[None, :] < window)
            top, total, mixed = _fold(queries, keys, values, seen, top, total, mixed, scale, cap, CAPPED)

    at = (pair.to(tl.int64) * parts + part) * (GROUP * NODES) + item
    tl.store(tops + at, top, mask=real)
    tl.store(totals + at, total, mask=real)
    used = real & (total > 0)  # what an idle part mixed is never read
    tl.store(mixes + at[:, None] * SIZE + dim[None, :], mixed, mask=used[:, None] & inside[None, :])


@triton.jit
def _join(
    tops,
    totals,
    mixes,
    out,
    kv_heads,
    parts,
    NODES: tl.constexpr,
    GROUP: tl.constexpr,
    SIZE: tl.constexpr,
    WIDE: tl.constexpr,
    PARTS: tl.constexpr,
):
    """One query row's output from its parts."""
    pair = tl.program_id(0).to(tl.int64)
    item = tl.program_id(1)
    part = tl.arange(0, PARTS)
    real = part < parts
    dim = tl.arange(0, WIDE)
    inside = dim < SIZE
    at = (pair * parts + part) * (GROUP * NODES) + item
    top = tl.load(tops + at, mask=real, other=float("-inf"))
    total = tl.load(totals + at, mask=real, other=0.0)
    used = total > 0
    mixed = tl.load(mixes + at[:, None] * SIZE + dim[None, :], mask=used[:, None] & inside[None, :], other=0.0)
    highest = tl.max(top, 0)
    weight = tl.where(used, tl.exp2(top - tl.where(used, highest, 0.0)), 0.0)
    whole = tl.sum(total * weight, 0)
    joined = tl.sum(mixed * weight[:, None], 0) / tl.where(whole > 0, whole, 1.0)  # padding may see nothing at all
    row, head = pair // kv_heads, pair % kv_heads
    goal = ((row * NODES + item % NODES) * kv_heads + head) * GROUP + item // NODES
    tl.store(out + goal * SIZE + dim, joined.to(out.dtype.element_ty), mask=inside)


@torch.library.custom_op("mmspec::tree_attention", mutates_args=())
def tree_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    words: Tensor,
    depth: Tensor,
    lengths: Tensor,
    front: int,
    window: int,
    scaling: float,
    softcap: float,
) -> Tensor:
    """See `mmspec.engine.attention.attend`; words, depth, lengths, front are fields of `TreeSlots`.

    Args: query: [B, heads, N, D]. key, value: [B, kv heads, S, D], the last dimension contiguous.
        window, softcap: 0 for none.
    Returns: [B, N, heads, D], contiguous.
    """
    batch, heads, nodes, size = query.shape
    kv_heads, slots = key.shape[1], key.shape[2]
    query = query if query.stride(-1) == 1 else query.contiguous()
    words, depth, lengths = words.contiguous(), depth.contiguous(), lengths.contiguous()
    pairs, items = batch * kv_heads, heads // kv_heads * nodes
    wide = max(16, triton.next_power_of_2(size))
    most, tile, stages = tiling(wide * query.element_size(), _shared_memory(query.device))
    rows = min(most, max(16, triton.next_power_of_2(items)))
    tiles = triton.cdiv(items, rows)
    waves = WAVES if kv_heads == heads else SHARED_WAVES
    parts = 1 + part_count(pairs * tiles, triton.cdiv(slots - front, tile), waves, query.device)
    tops = torch.empty(pairs, parts, items, dtype=torch.float32, device=query.device)
    totals = torch.empty_like(tops)
    mixes = torch.empty(pairs, parts, items, size, dtype=torch.float32, device=query.device)
    out = torch.empty(batch, nodes, heads, size, dtype=query.dtype, device=query.device)
    log2e = math.log2(math.e)
    shape = {"NODES": nodes, "GROUP": heads // kv_heads, "SIZE": size, "WIDE": wide}
    with torch.cuda.device_of(query):  # Triton launches on the current device
        _parts[(pairs, tiles, parts)](
            query,
            key,
            value,
            words,
            depth,
            lengths,
            tops,
            totals,
            mixes,
            *query.stride()[:3],
            *key.stride()[:3],
            *value.stride()[:3],
            kv_heads,
            parts,
            front,
            window,
            scaling / softcap if softcap else scaling * log2e,
            softcap * log2e,
            **shape,
            WORDS=words.shape[-1],
            ROWS=rows,
            SLOTS=tile,
            WINDOWED=window > 0,
            CAPPED=softcap > 0,
            num_stages=stages,
        )
        _join[(pairs, items)](
            tops,
            totals,
            mixes,
            out,
            kv_heads,
            parts,
            **shape,
            PARTS=triton.next_power_of_2(parts),
            num_warps=4 if wide > 128 else 2,
        )
    return out


@tree_attention.register_fake
def _shape_of(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    words: Tensor,
    depth: Tensor,
    lengths: Tensor,
    front: int,
    window: int,
    scaling: float,
    softcap: float,
) -> Tensor:
    batch, heads, nodes, size = query.shape
    return query.new_empty(batch, nodes, heads, size)


def tiling(width: int, memory: int) -> tuple[int, int, int]:
    """The first of `TILES` that fits: query rows, slots and stages.

    Args: width: bytes of a padded head. memory: bytes of shared memory that a program may have.
    """
    choices = next(TILES[most] for most in TILES if width <= most)
    return next((rows, slots, stages) for needed, rows, slots, stages in choices if needed <= memory)


def part_count(programs: int, blocks: int, waves: int, device: torch.device) -> int:
    """Into how many parts the prefix is cut, so that `waves` programs run per multiprocessor; at most one per block."""
    return max(1, min(MOST_PARTS, blocks, waves * _multiprocessors(device) // programs))


@cache
def _multiprocessors(device: torch.device) -> int:
    """Of the device; a few where the interpreter runs the kernel on a CPU."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 16


@cache
def _shared_memory(device: torch.device) -> int:
    """Bytes that a program on the device may have; no limit where the interpreter runs the kernel on a CPU."""
    if device.type != "cuda":
        return 1 << 30
    properties: Any = torch.cuda.get_device_properties(device)  # its stubs leave this one out
    return int(properties.shared_memory_per_block_optin)
