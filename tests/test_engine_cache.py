"""The static cache by itself: the same numbers in the same rows as the dynamic one, whatever is committed."""

import gc
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import test_equality
import tiny_images
import torch
import toys
from test_engine_parts import Line
from torch import Tensor

from mmspec.acceptance.exact import Exact
from mmspec.cache import RowCache
from mmspec.decode import decode
from mmspec.drafters.none import NoDrafter
from mmspec.engine.cache import FEW, FRONT, Form, Slab, Slabs, StaticRows, rounded
from mmspec.engine.engine import Engine
from mmspec.errors import UnsupportedError
from mmspec.image_ar.jacobi import GumbelSharing
from mmspec.image_ar.janus import Janus
from mmspec.sampling import Sampler, Sampling
from mmspec.stopping import Stop
from mmspec.targets import CausalTarget

pytestmark = pytest.mark.dynamic("is about the caches themselves")
KINDS = ((2, 4), (1, 8), (2, 4))
"""Heads of each layer, and their size."""
ONE = ((1, 1),)
CPU = torch.device("cpu")


def prefilled(lengths: list[int], generator: torch.Generator) -> RowCache:
    """Random keys and values of right-padded rows."""
    cache = RowCache(len(lengths), CPU)
    write([cache], len(lengths), max(lengths), generator)
    cache.fill(lengths)
    return cache


def write(caches: list[RowCache], rows: int, nodes: int, generator: torch.Generator) -> None:
    """Forward some nodes: the same random numbers into every cache."""
    for cache in caches:
        if isinstance(cache, StaticRows):
            cache.slab.start.zero_()
    for layer, (heads, size) in enumerate(KINDS):
        keys, values = torch.randn(2, rows, heads, nodes, size, generator=generator)
        for cache in caches:
            cache.hf.update(keys, values, layer)


def committed(cache: RowCache, row: int) -> Tensor:
    """[L x 2 x heads x length x D]: what a row holds, in order."""
    first = cache.slab.front if isinstance(cache, StaticRows) else 0
    here = slice(first, first + cache.lengths[row])
    return torch.cat([part[row, :, here].flatten() for x in cache.hf.layers for part in (x.keys, x.values)])


@pytest.mark.parametrize("room", [40, 600], ids=["grows", "fits"])
def test_any_commits_leave_what_the_dynamic_cache_holds(room: int) -> None:
    """Random increasing paths, empty ones among them, then a roll-back. The small one grows several times."""
    generator = torch.Generator().manual_seed(0)
    dynamic = prefilled([30, 12, 39], generator)
    fixed = StaticRows(dynamic, Slabs(), room)
    assert fixed.slab.room == rounded(FRONT + room) - FRONT
    fixed.shift = torch.tensor([[0], [-3], [2]])
    dynamic.shift = fixed.shift
    sizes = {fixed.slab.room}
    for step in range(60):
        write([dynamic, fixed], 3, 16, generator)
        paths = []
        for row in range(3):
            nodes = torch.randperm(16, generator=generator)[: int(torch.randint(0, 13, (), generator=generator))]
            paths.append([] if (step + row) % 5 == 0 else sorted(nodes.tolist()))
        dynamic.commit(16, paths)
        fixed.commit(16, paths)
        sizes.add(fixed.slab.room)
        assert dynamic.lengths == fixed.lengths == fixed.slab.lengths.tolist()
        for row in range(3):
            assert torch.equal(committed(dynamic, row), committed(fixed, row))
        if step == 30:
            back = [length - 5 for length in fixed.lengths]
            dynamic.fill(back)
            fixed.fill(back)
    assert fixed.width == dynamic.width == max(fixed.lengths)
    assert (len(sizes) > 1) == (room == 40)
    assert fixed.shift.flatten().tolist() == [0, -3, 2]
    assert torch.equal(fixed.positions(), dynamic.positions())


def test_a_compiled_commit_asks_for_layers_and_not_for_whole_buffers() -> None:
    """What is asked for beside its own views is compiled to copies. The same numbers as by a plain call."""
    form = Form(((1, 3),) * FEW + ((2, 2),), 2, torch.float64, CPU)
    plain, made = Slab(form, 8, 24), Slab(form, 8, 24)
    for slab in (plain, made):
        for kv in slab.kv.values():
            kv.copy_(torch.arange(kv.numel()).reshape(kv.shape))
        slab.lengths.copy_(torch.tensor([5, 2]))
    path, count = torch.tensor([[0, 2, 5], [0, 3, 7]]), torch.tensor([3, 2])
    asked: list[int] = []

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        asked.extend(each.dim() for each in inputs if isinstance(each, Tensor))
        return graph.forward

    torch.compile(made.keep, fullgraph=True, dynamic=False, backend=backend)(path, count)
    before = {kind: kv.clone() for kind, kv in plain.kv.items()}
    plain.keep(path, count)
    assert max(asked) == 4
    for kind, kv in plain.kv.items():
        assert kv.dim() == 6
        assert torch.equal(made.kv[kind], kv)
        assert not torch.equal(kv, before[kind])
    assert made.lengths.tolist() == plain.lengths.tolist() == [8, 4]


def test_the_mask_shows_committed_tokens_and_ancestors_and_nothing_else() -> None:
    """Against the dynamic mask, slot by slot, with and without a window."""
    generator = torch.Generator().manual_seed(0)
    dynamic = prefilled([5, 9], generator)
    fixed = StaticRows(dynamic, Slabs(), 20)
    depth = torch.tensor([[0, 1, 1, 2], [0, 1, 2, 3]])
    ancestors = torch.eye(4, dtype=torch.bool).repeat(2, 1, 1)
    ancestors[0, :, 0] = ancestors[0, 3, 1] = True
    ancestors[1] = torch.ones(4, 4).tril().bool()
    for new in (4, 2):
        if new == 2:  # the first two were forwarded before
            write([dynamic], 2, 2, generator)
        for window in (None, 3):
            want = dynamic.mask(ancestors[:, -new:], depth, torch.float64, window)[:, 0]
            got = fixed.mask(ancestors[:, -new:], depth, torch.float64, window)[:, 0]
            assert want.shape == (2, new, 9 + 4)
            assert torch.equal(got[..., :4], want[..., 9:])
            assert torch.equal(got[..., FRONT : FRONT + 9], want[..., :9])
            assert (got[..., 4:FRONT] < 0).all()
            assert (got[..., FRONT + 9 :] < 0).all()
            assert fixed.slab.start.item() == 4 - new
    with pytest.raises(UnsupportedError, match="65 nodes are forwarded in a round, and .* slots for 64"):
        fixed.first(1).mask(torch.ones(2, 65, 65, dtype=torch.bool), torch.zeros(2, 65), torch.float64)
    before = [committed(fixed, row) for row in range(2)]
    wide = fixed.mask(torch.ones(2, 65, 65, dtype=torch.bool).tril(), torch.zeros(2, 65), torch.float64)
    assert wide.shape[-1] == fixed.slab.front + fixed.slab.room == fixed.hf.layers[0].keys.shape[2]
    assert fixed.slab.front >= 130
    assert all(torch.equal(committed(fixed, row), before[row]) for row in range(2))


def test_keys_that_are_longer_than_values_are_refused() -> None:
    cache = RowCache(1, CPU)
    cache.hf.update(torch.zeros(1, 2, 3, 8), torch.zeros(1, 2, 3, 4), 0)
    cache.fill([3])
    with pytest.raises(UnsupportedError, match="keys that are longer than values, .* compile=False"):
        StaticRows(cache, Slabs(), 10)


def test_sizes_grow_by_a_quarter_of_the_next_power_of_two_at_most() -> None:
    sizes = [rounded(slots) for slots in (1, 256, 257, 1024, 1025, 2049, 3000, 9000)]
    assert sizes == [256, 256, 512, 1024, 1536, 3072, 3072, 12288]
    for slots in range(1, 20_000, 37):
        assert slots <= rounded(slots) < max(slots + 256, 1.5 * slots)


def test_requests_share_buffers_one_after_the_other_and_never_at_once() -> None:
    model, target = test_equality.make("llama")
    target.decoder.engine = engine = Engine(target.decoder, None, (1, 8))
    inputs = test_equality.inputs_for(target, 12)
    want = toys.answer(CausalTarget(model), NoDrafter(), inputs).rows
    assert toys.answer(target, NoDrafter(), inputs).rows == want
    gc.collect()
    (left,) = engine.slabs.free
    assert toys.answer(target, NoDrafter(), inputs).rows == want
    gc.collect()
    assert engine.slabs.free == [left]

    def running() -> Any:
        asked = {**inputs, "max_new_tokens": 20}
        return decode(target, NoDrafter(), Exact(), asked, Sampler(Sampling(), 1, CPU), Stop([], 20))

    first, second = running(), running()
    got: list[list[int]] = [[], []]
    for step, pair in enumerate(zip(first, second, strict=True)):
        assert step or not engine.slabs.free
        for tokens, done in zip(got, pair, strict=True):
            tokens += done.tokens[0]
    assert got == want * 2
    gc.collect()
    assert len(set(map(id, engine.slabs.free))) == 2


def test_a_picture_has_all_its_room_at_once_and_shares_it_with_pictures_of_other_prompts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However long it is: its length is known, where a text may end at any token."""
    rooms: list[int] = []

    class Counted(Slab):
        def __init__(self, form: Form, front: int, room: int) -> None:
            rooms.append(room)
            super().__init__(form, front, room)

    monkeypatch.setattr("mmspec.engine.cache.Slab", Counted)
    monkeypatch.setattr("mmspec.targets.AHEAD", 1)
    monkeypatch.setattr("mmspec.engine.cache.rounded", lambda slots: -(-slots // 8) * 8)
    janus = Janus(tiny_images.janus_model(), tiny_images.tokenizer())
    janus.decoder.engine = Engine(janus.decoder, None, (1, 8))
    for words in (3, 4):  # with the start of a picture two more
        assert len(toys.answer(janus, GumbelSharing(6), tiny_images.prompts(words), 16).rows[0]) == 16
        gc.collect()
    assert rooms == [24]
    rooms.clear()
    _, target = test_equality.make("llama")
    target.decoder.engine = Engine(target.decoder, None, (1, 8))
    toys.answer(target, NoDrafter(), test_equality.inputs_for(target, 6), 16)
    assert rooms == [8, 16, 24]


def test_one_given_back_while_another_is_looked_for_does_no_harm() -> None:
    """As the garbage collector does it, in the thread that is looking."""

    class Interrupting(Form):
        def __eq__(self, other: object) -> bool:
            for slab in given:
                slabs.give(slab)
            return True

    slabs, form = Slabs(), (ONE, 1, torch.float32, CPU)
    wanted, *given = (Slab(Form(*form), 8, 248) for _ in range(3))
    slabs.give(wanted)
    assert slabs.take(Interrupting(*form), 8, 200) is wanted
    assert wanted not in slabs.free


def test_a_buffer_goes_from_stream_to_stream_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who takes it waits for the last request; when it goes, the streams before wait, to which its memory goes back."""
    slabs, form = Slabs(), Form(ONE, 1, torch.float32, CPU)
    first, second = Line(), Line()
    slab = slabs.take(form, 8, 200)
    slab.place.cuda = True
    for here in (first, first, second):
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device, here=here: here)
        slabs.give(slab)
        assert slabs.take(form, 8, 200) is slab
    assert (first.waited, second.waited) == ([], [first])
    slab.drop()
    assert (first.waited, second.waited) == ([second], [first])


def test_idle_buffers_make_room_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory holds one buffer, whoever uses it."""
    alive: weakref.WeakSet[Slab] = weakref.WeakSet()

    class Large(Slab):
        def __init__(self, *sizes: Any) -> None:
            if alive:
                raise torch.OutOfMemoryError("one buffer is all that fits")
            super().__init__(*sizes)
            alive.add(self)

    monkeypatch.setattr("mmspec.engine.cache.Slab", Large)
    form = Form.of(prefilled([3], torch.Generator().manual_seed(0)))
    slabs = Slabs()
    used = slabs.take(form, FRONT, 20)
    with pytest.raises(torch.OutOfMemoryError):  # it is in use
        slabs.take(form, FRONT, 2000)
    slabs.give(used)
    del used
    assert slabs.take(form, FRONT, 2000).room >= 2000
    assert not slabs.free


def test_a_buffer_that_is_not_kept_is_gone_at_once() -> None:
    gc.collect()
    gc.disable()  # what refers to itself would stay
    try:
        slabs, form = Slabs(), Form(ONE, 1, torch.float32, CPU)
        made = [Slab(form, 8, 248) for _ in range(3)]
        made[0].lanes[1] = partial(print, made[0])  # as a captured forward does
        left = [weakref.ref(slab) for slab in made]
        while made:
            slabs.give(made.pop(0))
        assert [slab() is None for slab in left] == [True, False, False]
    finally:
        gc.enable()


def test_what_a_broken_request_left_behind_harms_no_later_one() -> None:
    model, target = test_equality.make("llama")
    target.decoder.engine = engine = Engine(target.decoder, None, (1, 8))
    inputs = test_equality.inputs_for(target, 12, 9)
    want = toys.answer(target, NoDrafter(), inputs).rows
    gc.collect()
    (left,) = engine.slabs.free
    with torch.inference_mode():
        for kv in left.kv.values():
            kv.fill_(torch.nan)
    assert toys.answer(target, NoDrafter(), inputs).rows == want
