"""The parts of the engine by themselves: shared products, attention that is chosen by device, recorded functions."""

import gc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tiny_families
import torch
import toys
from made import Made
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from mmspec.ancestry import ancestors
from mmspec.benchmarks.gpu.models import build, spec_of
from mmspec.best import MANY, PART, best_of_many
from mmspec.contract import Draft
from mmspec.decoder import Decoder
from mmspec.drafters.eagle import Eagle
from mmspec.drafters.precision import convert
from mmspec.engine.attention import MASKED, NAME, masked_attention, use_masked_attention, use_tree_attention
from mmspec.engine.compiled import Compiled
from mmspec.engine.fusing import Part, fuse
from mmspec.engine.graphs import CAPTURING, LARGE, Graph, Place, Recorded, copy_all
from mmspec.grouped import NAME as GROUPED
from mmspec.placeholders import forbid, listed
from mmspec.sampling import Sampler, Sampling
from mmspec.targets import CausalTarget

IDS = torch.tensor([[5, 6, 7], [8, 9, 5]])
CPU = torch.device("cpu")


# Shared products ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [toys.llama, toys.qwen2])
def test_layers_that_read_the_same_input_share_a_product(make: Any, tmp_path: Path) -> None:
    """In compiled graphs alone: seven products per layer become four. Names, values and outputs stay as they are."""
    model = make()
    for name, bias in model.named_parameters():
        if name.endswith("bias"):  # of Qwen2's q, k and v; zero in a new model
            nn.init.normal_(bias)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    products = []

    def counting(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        products.append(sum(node.target is torch._C._nn.linear for node in graph.graph.nodes))
        return graph.forward

    def compiled() -> Any:
        torch._dynamo.reset()
        return torch.compile(lambda ids: model(ids, use_cache=False).logits, fullgraph=True, backend=counting)

    with torch.inference_mode():
        want = model(IDS, use_cache=False).logits
        compiled()(IDS)
        fuse(model)
        fuse(model)  # a second time nothing is left to do
        assert torch.equal(model(IDS, use_cache=False).logits, want)
        run = compiled()
        for _ in range(2):
            assert torch.allclose(run(IDS), want, atol=1e-9)
    layers = model.config.num_hidden_layers
    assert products == [7 * layers + 1, 4 * layers + 1]
    parts = [module for module in model.modules() if isinstance(module, Part)]
    shared = [part.shared for part in parts]
    assert len(shared) == 5 * layers
    assert all(each.given is None and each.made is None for each in shared)
    after = model.state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], value) for name, value in before.items())
    attention = model.model.layers[0].self_attn
    ends = attention.q_proj.weight.data_ptr() + attention.q_proj.weight.nbytes
    assert attention.k_proj.weight.data_ptr() == ends  # one buffer, not a copy beside it
    model.float().double()  # weights that move take the shared one along
    assert attention.k_proj.weight.data_ptr() == attention.q_proj.weight.data_ptr() + attention.q_proj.weight.nbytes
    assert attention.q_proj.weight.data_ptr() == attention.q_proj.shared.weight.data_ptr()
    assert attention.q_proj.shared.weight.dtype == torch.float64
    model.load_state_dict(before)
    with torch.inference_mode():
        assert torch.allclose(compiled()(IDS), want, atol=1e-9)
    model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float64)
    with torch.inference_mode():
        assert torch.equal(again(IDS, use_cache=False).logits, want)


def test_a_group_that_is_asked_in_part_keeps_nothing() -> None:
    """As when a block drafter takes keys and values of a context, and never a query."""
    attention = toys.llama().model.layers[0].self_attn
    fuse(attention)
    run = torch.compile(lambda x: (attention.k_proj(x), attention.v_proj(x)), fullgraph=True, backend="eager")
    x = torch.randn(1, 3, attention.q_proj.in_features, dtype=torch.float64)
    with torch.inference_mode():
        for _ in range(2):
            x += 1  # the same tensor with other numbers
            assert torch.equal(run(x)[0], attention.k_proj(x))
    assert attention.k_proj.shared.given is None


def test_a_copy_shares_nothing_and_lost_views_are_laid_anew() -> None:
    model = toys.qwen2()
    fuse(model)
    attention = model.model.layers[0].self_attn
    copied = deepcopy(model)
    assert not [module for module in copied.modules() if isinstance(module, Part)]
    with torch.inference_mode():
        assert torch.equal(copied(IDS).logits, model(IDS).logits)
    assert attention.q_proj.intact()
    attention.q_proj.weight.data = attention.q_proj.weight.data + 1
    assert not attention.q_proj.intact()
    fuse(model)
    assert attention.q_proj.intact()
    with torch.inference_mode():
        run = torch.compile(lambda x: attention.q_proj(x), fullgraph=True, backend="eager")
        x = torch.ones(1, 1, attention.q_proj.in_features, dtype=torch.float64)
        assert torch.allclose(run(x), attention.q_proj(x))


def test_layers_of_another_kind_are_left_alone() -> None:
    class Rounded(nn.Linear):
        pass

    model = toys.llama()
    attention, watched = model.model.layers[0].self_attn, model.model.layers[1].self_attn
    attention.k_proj = Rounded(attention.k_proj.in_features, attention.k_proj.out_features, bias=False)
    watched.v_proj.register_forward_hook(lambda *_: None)
    fuse(model)
    assert not isinstance(attention.q_proj, Part)
    assert not isinstance(watched.q_proj, Part)
    assert isinstance(model.model.layers[0].mlp.up_proj, Part)


def test_drafters_are_rounded_whole_on_a_compiled_target() -> None:
    net = toys.eagle_head(toys.llama()).float()
    linear = sum(type(module) is nn.Linear for module in net.modules())
    fuse(net)
    assert convert(net, torch.int8) == linear
    assert not [module for module in net.modules() if isinstance(module, nn.Linear)]


def test_only_the_language_model_is_fused() -> None:
    model, _ = tiny_families.smolvlm(0)
    fuse(Decoder(model).language())
    parts = [name for name, module in model.named_modules() if isinstance(module, Part)]
    assert parts
    assert not [name for name in parts if "vision" in name]


# Attention ---------------------------------------------------------------------------------------------------------


def test_attention_is_chosen_where_the_device_has_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """The decoder's alone; nothing on a CPU, and nothing for a model that was loaded with another attention."""
    seeing, _ = tiny_families.smolvlm(0)
    model, eager, moved = toys.llama(), toys.llama(), toys.llama(GROUPED)
    eager.set_attn_implementation("eager")
    for each in (seeing, model, eager):
        use_tree_attention(each)
    assert model.config._attn_implementation == "sdpa"
    monkeypatch.setattr(PreTrainedModel, "device", property(lambda _: torch.device("cuda")))
    for each in (seeing, model, eager, moved):
        use_tree_attention(each)
    assert model.config._attn_implementation == moved.config._attn_implementation == NAME
    assert eager.config._attn_implementation == "eager"
    assert seeing.config.text_config._attn_implementation == NAME
    assert seeing.config.vision_config._attn_implementation == "sdpa"
    net = toys.eagle_head(model)
    use_masked_attention(net)
    assert net.config._attn_implementation == GROUPED  # its weights lie on a CPU
    monkeypatch.setattr(Tensor, "is_cuda", property(lambda _: True), raising=False)
    use_masked_attention(net)
    assert {module.config._attn_implementation for module in net.modules() if hasattr(module, "config")} == {MASKED}


def test_models_of_one_configuration_each_keep_their_own() -> None:
    """Attention that is chosen for one may not reach the stock model that it is measured against."""
    spec = spec_of("llava-7b", small=True)
    own, stock = (build(spec, CPU, torch.float32) for _ in range(2))
    own.set_attn_implementation(NAME)
    assert own.config._attn_implementation == NAME
    assert stock.config._attn_implementation == "sdpa"
    assert {module.config._attn_implementation for module in stock.modules() if hasattr(module, "config")} == {"sdpa"}
    assert spec.config._attn_implementation != NAME


@pytest.mark.parametrize("scaling", [None, 0.7])
def test_masked_attention_is_sdpa(scaling: float | None) -> None:
    module = nn.Module()
    module.num_key_value_groups, module.is_causal = 3, True
    draw = torch.Generator().manual_seed(1)
    query = torch.randn(2, 6, 5, 8, generator=draw)
    key, value = torch.randn(2, 2, 2, 40, 8, generator=draw)
    mask = torch.where(torch.rand(2, 1, 5, 40, generator=draw) < 0.5, torch.finfo(torch.float32).min, 0.0)
    mask[..., 0] = 0
    for given in (mask, None):
        out, none = masked_attention(module, query, key, value, given, scaling=scaling)
        want, _ = sdpa_attention_forward(module, query, key, value, given, scaling=scaling)
        assert none is None
        assert torch.allclose(out, want, atol=1e-5)


# Recorded functions ------------------------------------------------------------------------------------------------


def test_a_recorded_function_reads_what_it_is_given() -> None:
    """Fewer columns, too: those behind them keep what they held. It is first run on zeros."""
    seen: list[Tensor] = []

    def run(table: Tensor, count: Tensor) -> Tensor:
        seen.append(table.clone())
        return table[:, 0] + count

    recorded = Recorded(run, (torch.ones(2, 3, dtype=torch.long), torch.ones(2, dtype=torch.long)), Place(IDS.device))
    assert not any(given.any() for given in recorded.inputs)
    assert recorded(IDS, torch.tensor([1, 2])).tolist() == [6, 10]
    assert recorded(torch.tensor([[1], [2]]), torch.tensor([3, 4])).tolist() == [4, 6]
    assert seen[-1].tolist() == [[1, 6, 7], [2, 9, 5]]


def test_small_tensors_share_a_copy_and_large_ones_never_do(monkeypatch: pytest.MonkeyPatch) -> None:
    shared: list[list[int]] = []
    copy = torch._foreach_copy_

    def noted(into: list[Tensor], given: list[Tensor], **options: Any) -> None:
        shared.append([tensor.numel() for tensor in into])
        copy(into, given, **options)

    monkeypatch.setattr(torch, "_foreach_copy_", noted)
    given = [torch.randn(size) for size in (LARGE, 3, LARGE, 5, LARGE - 1, 0)]
    into = [torch.zeros_like(tensor) for tensor in given]
    copy_all(into, given)
    assert all(torch.equal(one, other) for one, other in zip(into, given, strict=True))
    assert shared == [[3, 5, LARGE - 1]]


class Line:
    """What stands for a stream where there is no card."""

    def __init__(self, *given: Any) -> None:
        self.waited: list[Line] = []

    def wait_stream(self, other: "Line") -> None:
        self.waited.append(other)


def test_who_comes_later_waits_for_another_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, place = Line(), Line(), Place(CPU)
    place.take_turn()
    assert not place.used  # without a card there is nothing to wait for
    place.cuda = True
    for here in (first, first, second, second, first):
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device, here=here: here)
        place.take_turn()
    assert (first.waited, second.waited) == ([second], [first])
    place.hand_back()
    assert (first.waited, second.waited) == ([second], [first, first])


@pytest.fixture
def ending(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Stands for a card on which no capture can be ended: as torch does then, it leaves the thread on the stream.

    here: the current stream. ended, released: pools. collecting: whether garbage was collected during each call.
    """
    card = SimpleNamespace(here=Line(), ended=[], released=[], collecting=[], pools=0)

    @contextmanager
    def stream(other: Line) -> Iterator[None]:
        before, card.here = card.here, other
        try:
            yield
        finally:
            card.here = before

    @contextmanager
    def capture(graph: Any, pool: Any, stream: Line, capture_error_mode: str) -> Iterator[None]:
        card.here = stream
        yield
        raise RuntimeError("the capture cannot be ended")

    def new_pool() -> tuple[int, int]:
        card.pools += 1
        return 0, card.pools

    # the first, since it imports what may look at the others
    monkeypatch.setattr("torch._inductor.cudagraph_trees.clear_cublas_manager", nullcontext)
    for name, value in {
        "stream": stream,
        "graph": capture,
        "current_stream": lambda *_: card.here,
        "current_device": lambda: 0,
        "device": lambda _: nullcontext(),
        "graph_pool_handle": new_pool,
        "Stream": Line,
        "CUDAGraph": SimpleNamespace,
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    for name, pools in ("_cuda_endAllocateToPool", card.ended), ("_cuda_releasePool", card.released):
        monkeypatch.setattr(torch._C, name, lambda index, pool, pools=pools: pools.append(pool), raising=False)
    return card


def test_a_capture_that_fails_leaves_the_thread_where_it_was(ending: SimpleNamespace) -> None:
    """And the place with another pool and stream, garbage collected as before."""
    place, here = Place(torch.device("cuda")), ending.here
    pool, stream = place.pool, place.stream
    with pytest.raises(RuntimeError, match="cannot be ended"):
        Graph(lambda: ending.collecting.append(gc.isenabled()), place)
    assert ending.here is here
    assert ending.collecting == [True, True, True, False]
    assert gc.isenabled()
    assert ending.ended == ending.released == [pool]
    assert place.pool != pool
    assert place.stream is not stream
    assert CAPTURING.acquire(blocking=False)
    CAPTURING.release()
    assert not place.lock.locked()


@pytest.mark.parametrize("cuda", [False, True])
def test_who_may_compile_keeps_others_from_capturing(cuda: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler that measures kernels waits for the card; without one, threads do not wait for each other. It compiles
    as often as it has to."""
    torch._dynamo.reset()
    taken: list[bool] = []

    def held() -> bool:
        free = CAPTURING.acquire(blocking=False)
        if free:
            CAPTURING.release()
        return not free

    def note() -> None:
        with ThreadPoolExecutor(1) as other:
            taken.append(other.submit(held).result())

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        note()
        return graph.forward

    with monkeypatch.context() as here:  # only here: to compile, torch would ask the card for its random numbers
        here.setattr(torch.cuda, "is_available", lambda: cuda)
        made = Compiled(lambda x: x + 1, backend, "a sum")  # type: ignore[arg-type]
    for size in range(1, 11):  # torch's own limit is 8
        assert torch.equal(made(torch.ones(size)), torch.full((size,), 2.0))
    Compiled(note, None, "a plain call")()
    assert taken == [*[cuda] * 10, False]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_after_a_capture_that_failed_others_go_on() -> None:
    """What asks the device for a number cannot be captured. The same place serves again, and so do its graphs."""
    numbers = torch.arange(4.0, device="cuda")
    place, here = Place(numbers.device), torch.cuda.current_stream()
    before = Graph(lambda: numbers + 1, place)
    for _ in range(2):
        with pytest.raises(RuntimeError):
            Graph(lambda: numbers.sum().item(), place)
        assert torch.cuda.current_stream() == here
        assert gc.isenabled()
        after = Graph(lambda: numbers * 2 + 1, place)
        for _ in range(3):
            assert before().tolist() == [1, 2, 3, 4]
            assert after().tolist() == [1, 3, 5, 7]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_graphs_of_one_place_never_overlap_on_any_streams() -> None:
    """What one of them holds in between lies where the other one's does."""
    ones = torch.ones(1 << 20, device="cuda")
    place = Place(ones.device)

    def slowly(factor: int) -> Graph:
        def run() -> Tensor:
            between = ones * factor
            torch.cuda._sleep(50_000_000)
            return between + 1

        return Graph(run, place)

    graphs, streams = [slowly(2), slowly(5)], [torch.cuda.Stream() for _ in range(2)]
    torch.cuda.synchronize()
    found = []
    for graph, stream in zip(graphs, streams, strict=True):
        with torch.cuda.stream(stream):
            found.append(graph())
    torch.cuda.synchronize()
    assert [each.unique().tolist() for each in found] == [[3], [6]]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_graph_keeps_what_cublas_works_in() -> None:
    """Graphs of others, torch's own and those that go, free what cuBLAS keeps: replays may not point to it."""
    some, other = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for shape in ((32, 8192), (8192, 512)))
    place = Place(some.device)
    want = some @ other
    graph, gone = (Graph(lambda: some @ other, place) for _ in range(2))
    del gone
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    for _ in range(3):
        assert torch.allclose(graph().float(), want.float(), atol=1.0)


# Trees -------------------------------------------------------------------------------------------------------------


def walked(parents: Tensor) -> Tensor:
    """The long way: up from every node, one parent after the other."""
    above = torch.zeros(*parents.shape, parents.shape[1], dtype=torch.bool)
    for row, nodes in enumerate(parents.tolist()):
        for node in range(len(nodes)):
            place = node
            while place >= 0:
                above[row, node, place] = True
                place = nodes[place]
    return above


@pytest.mark.parametrize("size", [1, 2, 3, 8, 17, 40])
@pytest.mark.parametrize("back", [1, 2, 5, 40])
def test_ancestors_are_found_however_much_is_known_of_the_levels(size: int, back: int) -> None:
    """Chains and bushes of random shape, the deepest path known, or a number above it, or nothing; padded rows, too."""
    draw = torch.Generator().manual_seed(100 * size + back)
    for _ in range(5):
        rows = [
            [-1, *(int(torch.randint(max(0, node - back), node, (), generator=draw)) for node in range(1, size))]
            for _ in range(3)
        ]
        rows[1][size // 2 + 1 :] = [0] * (size - size // 2 - 1)  # nodes that are not valid hang from node 0
        parents = torch.tensor(rows)
        want = walked(parents)
        levels = int(want.sum(-1).max()) - 1
        for known in (None, levels, levels + 1, 2 * size):
            assert torch.equal(ancestors(parents, known), want)


def test_ancestors_take_no_more_products_than_the_draft_has_levels() -> None:
    """Each doubles how far up a node sees: two of them where no path is longer than four, five where nothing is known
    of 32 nodes."""

    class Products(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.count += func.overloadpacket.__name__ == "bmm"
            return func(*args, **kwargs or {})

    parents = ((torch.arange(32) - 1) // 2)[None].expand(2, -1).contiguous()
    depth = walked(parents).sum(-1) - 1
    for levels, count in (None, 5), (5, 3), (4, 2):
        kept = parents[:, : 31 if levels == 4 else 32]  # the last one stands on a level of its own
        draft = Draft(kept, kept, depth[:, : kept.shape[1]], _levels=levels)
        with Products() as products:
            found = draft.ancestors
        assert torch.equal(found, walked(kept))
        assert products.count == count


# Placeholders ------------------------------------------------------------------------------------------------------


def test_placeholders_are_ruled_out_by_a_mask_that_a_recording_holds() -> None:
    """To write to a list of ids is a kernel of its own in every level of a draft. The mask is made before anything is
    compiled, and stays where it is if the cache forgets it."""
    ran: list[str] = []

    def noting(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        ran.extend(str(node.target) for node in graph.graph.nodes if node.op.startswith("call"))
        return graph.forward

    drafter = Eagle(toys.eagle_head(toys.llama()))
    target = CausalTarget(toys.llama())
    target.placeholders = (7, 9)
    drafter.bind(target)
    choice = drafter.choice(Sampler(Sampling(), 2, CPU), "point")
    assert choice.barred is not None
    assert choice.barred.nonzero()[:, 0].tolist() == [7, 9]
    assert len(choice.barred) == target.vocab_size
    again = replace(choice, sampler=Sampler(Sampling(), 2, CPU))
    assert again.barred is choice.barred  # one for all requests
    listed.cache_clear()
    law = torch.zeros(2, 3, target.vocab_size)
    law[..., 7:10] = torch.tensor([3.0, 1.0, 2.0])
    where = torch.zeros(2, dtype=torch.long), 0, 2, torch.zeros(2, 3, 1, dtype=torch.long)
    torch._dynamo.reset()
    with torch.inference_mode():
        found = torch.compile(choice.ahead, fullgraph=True, backend=noting)(law, *where)
        assert torch.equal(found, choice.ahead(law, *where))
        assert torch.equal(found, replace(choice, vocabulary=None).ahead(law, *where))  # as a plain call finds it
        assert torch.equal(forbid(law, (7, 9)), law.index_fill(-1, torch.tensor([7, 9]), -torch.inf))
    assert found[..., 0].eq(8).all()
    assert not {7, 9} & set(found.flatten().tolist())
    assert [name for name in ran if "masked_fill" in name]
    assert not [name for name in ran if "index_fill" in name or "tensor" in name or "zeros" in name]
    assert listed.cache_info().currsize == 1  # that of the plain call


# The best of a large vocabulary ------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [50, MANY - 1, MANY, MANY + 1, 3 * MANY + PART // 2])
@pytest.mark.parametrize("k", [1, 8, 50])
def test_a_search_in_parts_finds_the_best(size: int, k: int) -> None:
    """Values as of topk, at different places that hold them; a part may hold all of them."""
    draw = torch.Generator().manual_seed(size + k)
    scores = torch.randn(2, 3, size, generator=draw)
    scores[0, 0, -k:] += 100  # all in the last part
    scores[1, 1] = scores[1, 1].round()  # many are equal
    scores[1, 2, 3 if k < 4 else k :] = -torch.inf
    values, index = best_of_many(scores, k)
    assert torch.equal(values, scores.topk(k).values)
    real = values > -torch.inf
    assert torch.equal(scores.gather(-1, index)[real], values[real])
    assert all(len(set(row[kept].tolist())) == int(kept.sum()) for row, kept in zip(
        index.flatten(0, 1), real.flatten(0, 1), strict=True))  # fmt: skip
    assert int(index.max()) < size


@pytest.mark.parametrize("short", [0, 1])
def test_a_search_in_parts_copies_the_scores_only_to_fill_the_last_part(short: int) -> None:
    made = Made()
    scores = torch.randn(2, 3 * MANY - short)
    with made:
        best_of_many(scores, 8)
    assert (max(made.sizes) >= scores.numel()) == bool(short)
