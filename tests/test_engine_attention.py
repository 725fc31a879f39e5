"""Tree attention over a static buffer: the twin against stock sdpa with explicit masks, the kernel against the twin.

The kernel runs in Triton's interpreter (`interpreted_kernel.py`), so no GPU is needed to check what it computes.
"""

import json
import os
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from interpreted_kernel import CASES, SCORES, highest, inputs
from torch import Tensor
from transformers import (
    Cache,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
)
from transformers.cache_utils import DynamicLayer

from mmspec.ancestry import ancestors
from mmspec.decoder import Decoder
from mmspec.engine.attention import NAME, TreeSlots, ancestor_words, attend, tree_attention
from mmspec.errors import UnsupportedError

VOCABULARY, WINDOW, FRONT, SLOTS = 97, 8, 16, 64
SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "initializer_range": 0.3,
    "max_position_embeddings": 128,
}
TREE = torch.tensor([[-1, 0, 0, 1, 1, 2, 3, 6, 7, 8, 9], [-1, 0, 1, 2, 3, 4, 5, 0, 7, 7, 9]])


def llama() -> PreTrainedModel:
    return LlamaForCausalLM(LlamaConfig(**SHAPE, num_hidden_layers=2))


def mistral() -> PreTrainedModel:
    """Every layer sees a window."""
    return MistralForCausalLM(MistralConfig(**SHAPE, num_hidden_layers=2, sliding_window=WINDOW))


def gemma3() -> PreTrainedModel:
    """Sliding and full layers, and a scale of its own."""
    kinds = ["sliding_attention", "sliding_attention", "full_attention"]
    return Gemma3ForCausalLM(
        Gemma3TextConfig(
            **SHAPE, num_hidden_layers=3, sliding_window=WINDOW, layer_types=kinds, query_pre_attn_scalar=5
        )
    )


MODELS = {"llama": llama, "mistral": mistral, "gemma3": gemma3}


class Buffered(DynamicLayer):
    """A layer whose tree lies in front of what was committed, in one buffer of constant size."""

    def __init__(self, states: DynamicLayer) -> None:
        super().__init__()
        self.keys, self.values = (F.pad(each, (0, 0, FRONT, 0)) for each in (states.keys, states.values))
        self.keys, self.values = (F.pad(each, (0, 0, 0, SLOTS - each.shape[2])) for each in (self.keys, self.values))
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args, **kwargs) -> tuple[Tensor, Tensor]:
        nodes = key_states.shape[2]
        self.keys[:, :, :nodes] = key_states
        self.values[:, :, :nodes] = value_states
        return self.keys, self.values


@cache
def built(name: str) -> PreTrainedModel:
    torch.manual_seed(0)
    return MODELS[name]().double().eval()


def slots_of(lengths: list[int], parents: Tensor = TREE, front: int = FRONT) -> TreeSlots:
    above = ancestors(parents)
    return TreeSlots(parents.shape[1], front, torch.tensor(lengths), above, above.sum(-1) - 1)


def unread_mask(tree: TreeSlots, by_layer_type: bool = False) -> Tensor | dict[str, Tensor]:
    """What to pass as `attention_mask` beside a tree: four dimensions, which models pass on without building masks.

    Args: by_layer_type: for models that take one mask per layer type.
    """
    mask = tree.ancestors.new_ones(1, 1, 1, 1)
    return {"full_attention": mask, "sliding_attention": mask} if by_layer_type else mask


@torch.no_grad()
def logits_of(name: str, lengths: list[int], tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Logits of a tree by the stock path (rows cache, explicit masks), and by the buffer and the function here."""
    model = built(name)
    model.set_attn_implementation("sdpa")
    decoder = Decoder(model)
    prompt = torch.randint(0, VOCABULARY, (len(lengths), max(lengths)), generator=torch.Generator().manual_seed(1))
    rows, _ = decoder.read([{"input_ids": prompt}], lengths)
    tree = slots_of(lengths)
    buffer = Cache(layers=[Buffered(layer) for layer in rows.hf.layers])
    stock = decoder.extend(rows, tokens, tree.depth, tree.ancestors).logits
    model.set_attn_implementation(NAME)
    try:
        own = model(
            input_ids=tokens,
            position_ids=tree.lengths[:, None] + tree.depth,
            attention_mask=unread_mask(tree, decoder.by_layer_type),
            past_key_values=buffer,
            tree=tree,
        ).logits
    finally:
        model.set_attn_implementation("sdpa")
    return stock, own


@pytest.mark.parametrize("lengths", [[5, 23], [17, 2]], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_stock_models_give_the_logits_of_stock_attention(name: str, lengths: list[int]) -> None:
    tokens = torch.randint(0, VOCABULARY, TREE.shape, generator=torch.Generator().manual_seed(2))
    stock, own = logits_of(name, lengths, tokens)
    assert torch.allclose(stock, own, atol=1e-12)
    assert stock.std() > 0.1  # the logits depend on something


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_without_a_tree_it_is_sdpa_with_the_model_s_own_masks(name: str) -> None:
    model = built(name)
    ids = torch.randint(0, VOCABULARY, (2, 3 * WINDOW), generator=torch.Generator().manual_seed(3))
    padded = torch.ones_like(ids)
    padded[1, :5] = 0
    model.set_attn_implementation("sdpa")
    expected = model(input_ids=ids, attention_mask=padded).logits
    model.set_attn_implementation(NAME)
    try:
        found = model(input_ids=ids, attention_mask=padded).logits
    finally:
        model.set_attn_implementation("sdpa")
    assert torch.equal(expected[0], found[0])
    assert torch.equal(expected[1, 5:], found[1, 5:])


@torch.no_grad()
def test_one_graph_serves_all_lengths_and_trees() -> None:
    """The forward compiles whole, and neither another length nor another tree compiles it again."""
    model = built("gemma3")
    model.set_attn_implementation(NAME)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    compiled = torch.compile(model.forward, fullgraph=True, dynamic=False, backend="eager")
    seen = []

    def forward(run, lengths: list[int], parents: Tensor) -> Tensor:
        tree = slots_of(lengths, parents)
        draw = torch.Generator().manual_seed(sum(lengths))
        states = [SimpleNamespace(keys=each, values=each) for each in torch.randn(3, 1, 2, 30, 8, generator=draw)]
        return run(
            input_ids=torch.arange(parents.shape[1])[None],
            position_ids=tree.lengths[:, None] + tree.depth,
            attention_mask=unread_mask(tree, True),
            past_key_values=Cache(layers=[Buffered(layer) for layer in states]),
            tree=tree,
        ).logits

    try:
        for lengths, parents in [([5], TREE[:1]), ([29], TREE[:1]), ([11], TREE[1:])]:
            model.double()
            states = torch.get_default_dtype()
            torch.set_default_dtype(torch.float64)
            try:
                found, expected = (forward(run, lengths, parents) for run in (compiled, model.forward))
            finally:
                torch.set_default_dtype(states)
            assert torch.allclose(found, expected, atol=1e-12)
            seen.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    finally:
        model.set_attn_implementation("sdpa")
        torch._dynamo.reset()
    assert seen == [1, 1, 1]


def brute(tree: TreeSlots, slots: int, window: int | None) -> Tensor:
    """What each node sees, slot by slot, from the definition."""
    seen = torch.zeros(len(tree.lengths), tree.nodes, slots, dtype=torch.bool)
    for row, length in enumerate(tree.lengths.tolist()):
        for node in range(tree.nodes):
            stands = length + int(tree.depth[row, node])
            for slot in range(slots):
                if slot < tree.nodes:
                    there = bool(tree.ancestors[row, node, slot])
                    position = length + int(tree.depth[row, slot])
                else:
                    there = 0 <= slot - tree.front < length
                    position = slot - tree.front
                seen[row, node, slot] = there and (window is None or stands - position < window)
    return seen


@given(st.integers(1, 9), st.integers(0, 3), st.lists(st.integers(0, 14), min_size=1, max_size=3), st.data())
@settings(max_examples=40)
def test_visible_is_the_definition(nodes: int, spare: int, lengths: list[int], data: st.DataObject) -> None:
    parents = [[-1] + [data.draw(st.integers(0, node - 1)) for node in range(1, nodes)] for _ in lengths]
    tree = slots_of(lengths, torch.tensor(parents), nodes + spare)
    window = data.draw(st.none() | st.integers(1, 12))
    slots = nodes + spare + max(lengths) + 2
    assert torch.equal(tree.visible(slots, window), brute(tree, slots, window))


@pytest.mark.parametrize("nodes", [1, 2, 63, 64, 65, 130])
def test_words_hold_every_bit(nodes: int) -> None:
    above = torch.rand(2, nodes, nodes, generator=torch.Generator().manual_seed(nodes)) < 0.5
    above[:, :, -1] = True  # also the sign bit of a full word
    words = ancestor_words(above)
    assert words.shape == (2, nodes, -(-nodes // 64))
    found = torch.stack([(words[..., node // 64] >> (node % 64)) & 1 for node in range(nodes)], -1)
    assert torch.equal(found.bool(), above)


@pytest.mark.parametrize("name", CASES)
def test_the_twin_is_sdpa_with_an_explicit_mask(name: str) -> None:
    case = CASES[name]
    query, key, value, tree = inputs(case)
    query, key, value = query.double(), key.double(), value.double()
    found = attend(query, key, value, tree, 0.3, case.window, case.softcap)
    seen = brute(tree, case.slots, case.window or None)[:, None]
    group = case.heads // case.kv_heads
    keys, values = (each.repeat_interleave(group, 1) for each in (key, value))
    if case.softcap:
        scores = case.softcap * (query @ keys.mT * 0.3 / case.softcap).tanh()
        expected = scores.masked_fill(~seen, -torch.inf).softmax(-1) @ values
    else:
        expected = F.scaled_dot_product_attention(query, keys, values, attn_mask=seen, scale=0.3)
    assert found.shape == (len(case.lengths), case.nodes, case.heads, case.size)
    assert torch.allclose(found, expected.transpose(1, 2), atol=1e-10)


def test_half_precision_scores_are_taken_in_float32() -> None:
    case = CASES["half precision"]
    query, key, value, tree = inputs(case)
    exact = attend(query.double(), key.double(), value.double(), tree, 4.0)
    assert (attend(query, key, value, tree, 4.0).double() - exact).abs().max() < 2e-2


def test_scores_with_something_unknown_added_are_refused() -> None:
    query, key, value, tree = inputs(CASES["a tree, groups of two"])
    with pytest.raises(UnsupportedError, match="s_aux"):
        tree_attention(torch.nn.Module(), query, key, value, None, tree=tree, s_aux=torch.zeros(4))


def test_the_window_is_the_layer_s_own_unless_told() -> None:
    query, key, value, tree = inputs(CASES["windows shorter than the tree is deep"])
    layer = torch.nn.Module()
    plain = tree_attention(layer, query, key, value, None, tree=tree)[0]
    layer.sliding_window = 4
    own = tree_attention(layer, query, key, value, None, tree=tree)[0]
    told = tree_attention(torch.nn.Module(), query, key, value, None, tree=tree, sliding_window=4)[0]
    assert torch.equal(own, told)
    assert not torch.allclose(own, plain, atol=1e-3)


@cache
def interpreted() -> dict:
    """What the kernel gave in Triton's interpreter."""
    if find_spec("triton") is None:
        pytest.skip("Triton is not installed, so its interpreter cannot run the kernel")
    script = Path(__file__).with_name("interpreted_kernel.py")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, script], check=False, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", CASES)
def test_the_kernel_is_its_twin(name: str) -> None:
    limit = 2e-3 if CASES[name].dtype == torch.float16 else 2e-5
    assert interpreted()["differences"][name] < limit


def test_the_operators_are_well_declared() -> None:
    assert set(interpreted()["checks"]) == {"SUCCESS"}


@pytest.mark.parametrize("name", SCORES)
def test_the_highest_scores_are_found(name: str) -> None:
    assert interpreted()["highest"][name]


def test_what_is_ruled_out_comes_after_what_is_not() -> None:
    """Places are inside the vocabulary all the same."""
    some, none = interpreted()["barred"]
    assert some[:2] == [1200, 3]
    assert all(0 <= place < 1500 for place in (*some, *none))


CARDS = {"A100": (80, 166_912), "A10": (86, 101_376), "H100": (90, 232_448), "50": (120, 101_376)}
"""Their capability, and bytes of shared memory that a program may have."""


def kernel_for(card: int, size: int, dtype: str, rows: int, slots: int, stages: int) -> Any:
    """The kernel with 64 nodes in a group of 4 heads, compiled for a card of that capability; none is needed for it."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, compile

    from mmspec.engine import kernel

    constants = {"NODES": 64, "GROUP": 4, "WORDS": 1, "SIZE": size, "WIDE": size, "ROWS": rows, "SLOTS": slots}
    constants |= {"WINDOWED": True, "CAPPED": True}
    kinds = dict.fromkeys(("query", "key", "value"), f"*{dtype}") | dict.fromkeys(("words", "depth", "lengths"), "*i64")
    kinds |= dict.fromkeys(("tops", "totals", "mixes"), "*fp32") | dict.fromkeys(("scale", "cap"), "fp32")
    names = kernel._parts.arg_names
    signature = {name: "constexpr" if name in constants else kinds.get(name, "i32") for name in names}
    even = [name for name in names if signature[name][0] == "*" or name.startswith(("query_", "key_", "value_"))]
    source = ASTSource(
        kernel._parts,
        signature,
        constexprs=constants,
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in even},
    )
    return compile(source, target=GPUTarget("cuda", card, 32), options={"num_warps": 4, "num_stages": stages})


@pytest.mark.slow
@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed, so nothing compiles the kernel")
def test_the_kernel_compiles_for_a_card() -> None:
    """Down to PTX for a Hopper card, with tensor-core products and asynchronous copies."""
    made = kernel_for(90, 128, "bf16", 64, 64, 3)
    assert "wgmma.mma_async" in made.asm["ptx"]
    assert "cp.async" in made.asm["ptx"]


@pytest.mark.slow
@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed, so nothing compiles the kernel")
@pytest.mark.parametrize(
    ("card", "memory", "size", "dtype", "bytes_each"),
    [
        pytest.param(*CARDS[name], size, dtype, 4 if dtype == "fp32" else 2, id=f"{name}-{size}-{dtype}")
        for size, dtype, names in (
            (128, "bf16", ("A100", "H100")),
            (256, "bf16", CARDS),
            (128, "fp32", ("A10", "H100")),  # what compiles for long; an A100's needs are those of an H100
        )
        for name in names
    ],
)
def test_tiles_fit_into_the_shared_memory_of_a_card(
    card: int, memory: int, size: int, dtype: str, bytes_each: int
) -> None:
    from mmspec.engine import kernel

    made = kernel_for(card, size, dtype, *kernel.tiling(size * bytes_each, memory))
    assert made.metadata.shared <= memory


@pytest.mark.slow
@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed, so nothing compiles the kernel")
def test_wide_heads_of_float32_get_small_tiles_on_a_small_card() -> None:
    from mmspec.engine import kernel

    assert kernel.tiling(1024, 232_448) == (64, 32, 2)
    assert kernel_for(86, 256, "fp32", *kernel.tiling(1024, 101_376)).metadata.shared <= 101_376


@pytest.mark.slow
@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed, so nothing compiles the kernel")
@pytest.mark.parametrize(("named", "part"), [(False, 1024), (True, 256)])
def test_the_search_compiles_for_a_card(named: bool, part: int) -> None:
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, compile

    from mmspec.engine import top_k

    constants = {"NAMED": named, "K": 8, "PART": part}
    kinds = dict.fromkeys(("scores", "values"), "*fp32") | dict.fromkeys(("names", "places"), "*i64")
    names = top_k._best.arg_names
    signature = {name: "constexpr" if name in constants else kinds.get(name, "i32") for name in names}
    made = compile(ASTSource(top_k._best, signature, constexprs=constants), target=GPUTarget("cuda", 90, 32))
    assert "shfl.sync" in made.asm["ptx"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("name", SCORES)
def test_the_compiled_search_finds_the_highest_scores(name: str) -> None:
    from mmspec.engine import top_k

    with torch.device("cuda"):
        assert highest(top_k, name)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("name", CASES)
def test_the_compiled_kernel_is_its_twin(name: str, dtype: torch.dtype) -> None:
    from mmspec.engine import kernel

    case = CASES[name]
    query, key, value, tree = inputs(case._replace(dtype=dtype))
    where = {"device": "cuda"}
    placed = TreeSlots(
        tree.nodes, tree.front, tree.lengths.to(**where), tree.ancestors.to(**where), tree.depth.to(**where)
    )
    query, key, value = (each.to(**where) for each in (query, key, value))
    out = kernel.tree_attention(
        query,
        key,
        value,
        placed.words,
        placed.depth,
        placed.lengths,
        placed.front,
        case.window,
        0.25,
        case.softcap,
    )
    exact = attend(query.double(), key.double(), value.double(), placed, 0.25, case.window, case.softcap)
    limit = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}[dtype]
    assert (out.double() - exact).abs().max() < limit
