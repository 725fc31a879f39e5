"""Static caches and compiled verification: the same tokens as with the dynamic path, and nothing compiled twice.

"Static" is the engine with plain calls, which most tests use because it is quick; "compiled" goes through
torch.compile with a backend that builds the graph and does not optimise it.
"""

import gc
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import test_commit
import test_drafters
import test_equality
import test_families
import test_image_janus
import tiny_dia
import tiny_families
import tiny_images
import tiny_mar
import tiny_musicgen
import torch
import toys
from test_families import PICTURES, SAMPLED, TEXTS, Oracle
from torch._dynamo.utils import counters
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import LlamaConfig

import mmspec
from mmspec.acceptance.exact import Exact
from mmspec.acceptance.ratio import Ratio
from mmspec.contract import Needs, Shape
from mmspec.control import NO_DRAFT, OWN, Fixed
from mmspec.decode import decode
from mmspec.drafters.dflash import BlockDrafter, BlockNet, DFlash
from mmspec.drafters.dspark import DSpark, SparkNet
from mmspec.drafters.eagle import Eagle, Eagle1
from mmspec.drafters.kangaroo import Adapter, Kangaroo
from mmspec.drafters.none import NoDrafter
from mmspec.drafters.whole import MOST_KEPT
from mmspec.engine import attention
from mmspec.engine.engine import Engine, misfit
from mmspec.engine.graphs import Graph, Place
from mmspec.engine.steps import WIDTHS
from mmspec.errors import InputError, UnsupportedError
from mmspec.image_ar.jacobi import GumbelSharing
from mmspec.image_ar.janus import Janus
from mmspec.loading import compile_target
from mmspec.sampling import Sampler, Sampling
from mmspec.stopping import Stop
from mmspec.targets import CausalTarget

pytestmark = pytest.mark.dynamic("compares both paths")
BUDGET = test_families.BUDGET
CPU = torch.device("cpu")


def static(target: Any, sizes: tuple[int, ...] = (1, 8, 16), backend: str | None = None) -> Any:
    """The target with static caches, and with a backend compiled."""
    target.decoder.engine = Engine(target.decoder, backend, sizes)
    return target


def family(name: str, **settings: Any) -> mmspec.Pipeline:
    """A family with an engine, on the model that the dynamic path of `test_families` uses."""
    base = test_families.plain(name)
    pipe = mmspec.load(base.target.model, "none", processor=base.processor)
    static(pipe.target, **settings)
    return pipe


def tree_drafter(model: Any) -> Eagle:
    """Its own layer is static with the target, too."""
    return Eagle(toys.eagle_head(model), depth=3, width=2, top_k=3, total=8)


# The cache against fresh prefills ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", tiny_families.CHOSEN)
def test_commit_then_continue_equals_a_fresh_prefill(name: str) -> None:
    """Random trees and chains, every row accepts another path, in turn one row is done; Gemma gets past five windows
    of eight."""
    pipe = family(name)
    target = pipe.target
    singles = [pipe.prepare(*prompt) for prompt in zip(PICTURES, TEXTS, strict=True)]
    sampler = Sampler(Sampling(), 3, CPU)
    generator = torch.Generator().manual_seed(1)
    with torch.inference_mode():
        state = target.prefill({**pipe.prepare(PICTURES, TEXTS), "max_new_tokens": 100}, Needs(taps=(1,)), sampler)
        for row, first in enumerate(state.pending.tolist()):
            state.ids[row].append(first)
        rounds = 9 if "gemma" in name else 4
        for step in range(rounds):
            draft = test_commit.random_tree(3, 7, generator)
            if step % 2:
                line = torch.arange(7).expand(3, 7)
                draft.parents, draft.depth = line - 1, line.clone()
            draft.tokens[:, 0] = state.pending
            verified = target.verify(state, draft)
            assert verified.taps[1].shape[:2] == (3, 7)
            for row in range(3):
                for node in (0, 3, 6) if step in (0, rounds - 2, rounds - 1) else ():
                    above = draft.ancestors[row, node].nonzero()[:, 0]
                    ids = state.ids[row][:-1] + draft.tokens[row, above].tolist()
                    inputs = test_families.texts_of(target, singles[row], ids)
                    fresh = target.model(**inputs, output_hidden_states=True)
                    assert (verified.logits[row, node] - fresh.logits[0, -1]).abs().max() < test_commit.TOLERANCE
                    state_of = fresh.hidden_states[1].flatten(0, -3)[0, -1]  # of several streams the first
                    assert torch.allclose(verified.taps[1][row, node], state_of, atol=1e-9)
            last = torch.randint(0, 7, (3,), generator=generator)
            last[step % 3] = 6 if step % 2 else 0  # a whole chain, or nothing
            accepted = test_commit.path_to(draft, last, torch.randint(30, 90, (3,), generator=generator))
            test_commit.take(state.ids, draft, accepted)
            done = (step + 1) % 3
            state.done[done] = step == 2
            before = state.cache.lengths[done]
            target.commit(state, draft, accepted)
            if state.done[done]:
                assert state.cache.lengths[done] == before
                state.ids[done] = state.ids[done][: before + 1]
                state.pending[done] = state.ids[done][-1]
                state.done[done] = False
            assert state.cache.lengths == [len(ids) - 1 for ids in state.ids] == state.cache.slab.lengths.tolist()
        if "gemma" in name:
            assert max(state.cache.lengths) - state.prompt_length.max() > 16


# Tokens of the static path -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", tiny_families.CHOSEN)
def test_static_caches_say_what_the_dynamic_path_says(name: str) -> None:
    """Greedy (also as transformers) and sampled, alone and in a batch, plain steps, chains and trees."""
    pipe = family(name)
    model = pipe.target.model
    for options, want in ({}, test_families.greedy(name)), (SAMPLED, test_families.sampled(name)):
        oracle = Oracle(want, pipe.target.vocab_size)
        for drafter in (NoDrafter(), tree_drafter(model), oracle, "prompt-lookup"):
            drafting = pipe.with_drafter(drafter, "own")
            batch = drafting(PICTURES, TEXTS, max_new_tokens=BUDGET, **options)
            assert [answer.token_ids for answer in batch] == want
            if drafter is oracle:
                assert max(n for answer in batch for n in answer.stats.accept_lengths) >= 3
                oracle.answers = want[:1]
                alone = drafting(PICTURES[0], TEXTS[0], max_new_tokens=BUDGET, **options)
                assert alone.token_ids == want[0]


@pytest.mark.parametrize(("name", "budget"), [("gemma3", 60), ("gemma4", 30), ("gemma3n", 30)])
def test_past_several_windows(name: str, budget: int) -> None:
    want = test_families.greedy(name, budget=budget)
    pipe = family(name)
    for drafter in (Oracle(want, pipe.target.vocab_size), tree_drafter(pipe.target.model)):
        answers = pipe.with_drafter(drafter)(PICTURES, TEXTS, max_new_tokens=budget)
        assert [answer.token_ids for answer in answers] == want


@pytest.mark.parametrize("name", ["mistral", "qwen2", "simple"])
def test_text_models_with_every_kind_of_window(name: str) -> None:
    """Windows in every layer, in some, in none; eager attention, too."""
    for how in ("sdpa", "eager"):
        model, target = test_equality.make(name, how)
        inputs = test_equality.inputs_for(target, 17, 9, 14)
        for sampling in (Sampling(), test_equality.SAMPLINGS["all"]):
            want = toys.answer(target, NoDrafter(), inputs, sampling=sampling).rows
            for drafter in ("none", "spd-perturbed", "eagle-copying"):
                made = toys.DRAFTERS[drafter](model)
                got = toys.answer(static(CausalTarget(model)), made, inputs, sampling=sampling)
                assert got.rows == want, (how, drafter)


def test_budgets_ends_and_contexts_are_met_exactly() -> None:
    model, target = test_equality.make("simple")
    inputs = test_equality.inputs_for(target, 12, 17, 9)
    drafter = toys.DRAFTERS["eagle-copying"](model)
    want = toys.answer(target, NoDrafter(), inputs, 12).rows
    fixed = static(CausalTarget(model))
    for budget in (1, 2, 3, 5, 8):
        got = toys.answer(fixed, drafter, inputs, budget)
        assert got.rows == [row[:budget] for row in want]
        assert got.finish == ["length"] * 3
    eos = [want[0][4], want[1][7]]
    plain = toys.answer(target, NoDrafter(), inputs, 12, eos=eos)
    got = toys.answer(fixed, drafter, inputs, 12, eos=eos)
    assert (got.rows, got.finish) == (plain.rows, plain.finish)
    assert "stop" in got.finish
    assert len({len(row) for row in got.rows}) > 1

    model = toys.llama(max_position_embeddings=24)
    inputs = toys.prompts(17, 12)
    plain = toys.answer(CausalTarget(model), NoDrafter(), inputs, 50)
    got = toys.answer(static(CausalTarget(model)), toys.DRAFTERS["spd-copy"](model), inputs, 50)
    assert (got.rows, got.finish) == (plain.rows, ["length", "length"])


def test_two_rows_of_guidance_share_a_static_cache() -> None:
    plain = Janus(tiny_images.janus_model(), tiny_images.tokenizer())
    target = static(Janus(tiny_images.janus_model(), tiny_images.tokenizer()))
    for inputs in (tiny_images.prompts(3, 6, 1), tiny_images.prompts(5)):
        for sampling in (None, test_image_janus.SAMPLED):
            for guidance in (1.0, 3.0):
                asked = {**inputs, "guidance": guidance}
                want = test_image_janus.draw(plain, NoDrafter(), asked, sampling).rows
                for drafter in (NoDrafter(), GumbelSharing(6)):
                    assert test_image_janus.draw(target, drafter, asked, sampling).rows == want


def test_a_drafter_on_the_targets_first_layers_leaves_its_cache_as_it_was() -> None:
    model, plain = test_equality.make("llama")
    config = toys.eagle_head(model).config
    torch.manual_seed(5)
    drafter = Kangaroo(Adapter(config, exit_layer=1).double(), depth=3, width=2, top_k=2, total=7)
    inputs = test_equality.inputs_for(plain, 17, 9)
    for sampling in (Sampling(), Sampling(temperature=0.8, seed=2)):
        want = toys.answer(plain, drafter, inputs, sampling=sampling)
        got = toys.answer(static(CausalTarget(model)), drafter, inputs, sampling=sampling)
        assert got.rows == want.rows
        assert got.accepted == want.accepted  # so it reads the same of the text


def test_a_draft_of_more_nodes_than_the_front_holds_makes_it_longer() -> None:
    model, target = test_equality.make("simple")
    inputs = test_equality.inputs_for(target, 12, 9)
    want = toys.answer(target, NoDrafter(), inputs).rows
    drafter = Eagle(toys.copying_head(model, 0.1), depth=4, width=8, top_k=9, total=100)
    got = toys.answer(static(CausalTarget(model)), drafter, inputs)
    assert got.rows == want
    assert max(r.proposed for r in got.rounds) > 64


def test_an_attention_function_that_knows_trees_takes_the_place_of_masks() -> None:
    """It is told where the tree stands, and is asked for nothing else; windows of Gemma, keys that layers share and
    heads of two sizes included."""
    for name in ("smolvlm", "gemma3", "gemma4", "gemma3n"):
        model, processor = tiny_families.EVERY[name](0)
        model.set_attn_implementation(attention.NAME)
        pipe = mmspec.load(model, "none", processor=processor)
        for engine in (None, Engine(pipe.target.decoder, None, (1, 8))):
            pipe.target.decoder.engine = engine
            for options, want in ({}, test_families.greedy(name)), (SAMPLED, test_families.sampled(name)):
                answers = pipe.with_drafter(tree_drafter(model), "own")(
                    PICTURES, TEXTS, max_new_tokens=BUDGET, **options
                )
                assert [answer.token_ids for answer in answers] == want


def test_plain_calls_forward_nothing_but_the_prompt_and_the_rounds() -> None:
    """What is not compiled needs no call in advance."""
    model, calls = toys.llama(), []
    inputs = toys.prompts(9, 12)
    hook = model.register_forward_hook(lambda *given: calls.append(given))
    got = toys.answer(static(CausalTarget(model)), NoDrafter(), inputs, 6)
    hook.remove()
    assert len(calls) == len(got.rounds) == 6


def test_what_learns_may_use_the_buffers_of_requests_and_the_other_way_round() -> None:
    """A request runs in inference mode, whose tensors nobody else may write into; a training does not."""
    model = toys.llama()
    target, drafter, inputs = static(CausalTarget(model)), tree_drafter(model), toys.prompts(9, 12)
    want = toys.answer(CausalTarget(model), NoDrafter(), inputs, 6).rows
    assert toys.answer(target, drafter, inputs, 6).rows == want
    with torch.no_grad():
        sampler = Sampler(Sampling(), 2, CPU)
        state = target.prefill({**inputs, "max_new_tokens": 6}, drafter.needs, sampler)
        assert state.pending is not None
        for row, token in zip(state.ids, state.pending.tolist(), strict=True):
            row.append(token)
        draft = drafter.begin(state, sampler, "point").propose(state)
        target.verify(state, draft)
    del state
    assert toys.answer(target, drafter, inputs, 6).rows == want


# The drafter's own layer -------------------------------------------------------------------------------------------


@dataclass
class Resting:
    """No draft in the first rounds, so that what was accepted piles up; then a tree. Its own plan."""

    rounds: int

    def begin(self, rows: int, sampler: Sampler, rule: Any) -> "Resting":
        return Resting(self.rounds)

    def choose(self, room: int) -> Shape:
        self.rounds -= 1
        return NO_DRAFT if self.rounds >= 0 else Shape(3, 2, 11)

    def learn(self, *args: Any) -> None:
        """Nothing to learn."""


def lanes(drafter: Any) -> list[set[Any]]:
    """The steps that were made ready in each buffer of a drafter, whose requests are gone; none if it is not static."""
    if drafter.steps is None:
        return []
    gc.collect()  # a request gives its buffers back when it is gone
    slabs = drafter.steps[0].slabs
    assert slabs.free
    return [set(slab.lanes) for slab in slabs.free]


def drafted_alike(
    targets: tuple[Any, Any], drafters: tuple[Any, Any], inputs: Any, resting: int, sampling: Sampling, rule: Any
) -> int:
    """Checks that two drafters, each with its target, draft the same trees; returns how many tokens were accepted."""
    seen: list[list[Any]] = [[], []]
    answers = []
    for target, drafter, drafts in zip(targets, drafters, seen, strict=True):

        def note(state: Any, draft: Any, drafts: Any = drafts, depth: int = drafter.depth) -> None:
            if state.room >= depth:  # near the end a whole draft has levels that are in vain
                drafts.append(test_drafters.paths_of(draft))

        watched = test_drafters.Watched(drafter, note)
        control = Resting(resting) if resting else OWN
        answers.append(toys.answer(target, watched, inputs, resting + 20, sampling, rule, control=control))
    whole = None if rule.invariant else -1 - drafters[0].depth
    assert [row[:whole] for row in answers[0].rows] == [row[:whole] for row in answers[1].rows]
    assert seen[0] == seen[1]
    assert len(seen[0]) > 2
    return sum(answers[0].accepted)


SETTINGS: list[tuple[Sampling, Any]] = [
    (Sampling(), Exact()),
    (Sampling(temperature=0.7, seed=4), Exact()),
    (Sampling(temperature=0.7, seed=4), Ratio()),
]


@pytest.mark.parametrize("kind", [Eagle, Eagle1])
@pytest.mark.parametrize("resting", [0, 75])
def test_a_static_drafter_makes_the_same_drafts(kind: type[Eagle], resting: int) -> None:
    """All tokens that it drafts, in dynamic and static trees, greedy, coupled and sampled, one row or three; and what
    piled up is read in steps that were made ready."""
    model, plain = test_equality.make("simple")
    fixed = static(CausalTarget(model))
    inputs = test_equality.inputs_for(plain, 17, 9, 14)
    heads = [toys.copying_head(model, 0.1), toys.eagle_head(model)]  # what the second drafts depends on its past
    kept = 0
    for head in heads:
        for sampling, rule in SETTINGS[: 1 if resting or head is heads[1] else 3]:
            for asked in (inputs, toys.row_of(inputs, 1)):
                made = tuple(kind(head, depth=3, width=2, top_k=3, total=16) for _ in range(2))  # all candidates
                kept += drafted_alike((plain, fixed), made, asked, resting, sampling, rule)
                assert not lanes(made[0])
                ready = {(kind.method, width) for width in WIDTHS}
                assert all(found == ready for found in lanes(made[1]))
                assert any(key[0] == "whole" for slab in made[1].steps[0].slabs.free for key in slab.recorded)
    assert kept > 0


@pytest.mark.parametrize(("kind", "net"), [(DFlash, BlockNet), (DSpark, SparkNet)])
def test_a_compiled_block_drafter_makes_the_same_drafts(kind: type[BlockDrafter], net: type[BlockNet]) -> None:
    """Its context takes keys and values of layers whose queries only its block asks for."""
    model, plain = test_equality.make("simple")
    fixed = static(CausalTarget(model), (16,), "eager")
    block = toys.block_net(net, plain)
    made = tuple(kind(copy, depth=4, width=3, top_k=3, total=16) for copy in (deepcopy(block), block))
    inputs = test_equality.inputs_for(plain, 17, 9, 14)
    assert drafted_alike((plain, fixed), made, inputs, 0, *SETTINGS[0]) > 0


def on_one_buffer() -> tuple[CausalTarget, CausalTarget, dict[str, Any], Any]:
    """A target, the same with static caches, a prompt, and a drafter that has one buffer for all requests."""
    model, plain = test_equality.make("simple")
    fixed = static(CausalTarget(model))
    inputs = toys.row_of(test_equality.inputs_for(plain, 17, 9, 14), 0)
    drafter = Eagle(toys.copying_head(model, 0.1), depth=3, width=2, top_k=3, total=16)
    drafter.bind(fixed)
    drafter.bind = lambda target: None  # type: ignore[method-assign]
    return plain, fixed, inputs, drafter


def test_recordings_of_many_sizes_make_room_for_each_other() -> None:
    """The newest are kept; a size that comes again is recorded again."""
    plain, fixed, inputs, drafter = on_one_buffer()
    want = toys.answer(plain, NoDrafter(), inputs, 20).rows
    kept: list[int] = []
    for total in (*range(4, 4 + MOST_KEPT + 1), 4):
        drafter.total = total
        assert toys.answer(fixed, drafter, inputs, 20).rows == want
        kept = [*kept, total][-MOST_KEPT:]
        (slab,) = drafter.steps[0].slabs.free
        assert [key[1].total for key in slab.recorded if key[0] == "whole"] == kept


def test_recordings_that_are_used_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mmspec.drafters.whole.MOST_KEPT", 2)
    _, fixed, inputs, drafter = on_one_buffer()
    for drafter.total in (4, 5, 4, 6):
        toys.answer(fixed, drafter, inputs, 20)
    (slab,) = drafter.steps[0].slabs.free
    assert [key[1].total for key in slab.recorded if key[0] == "whole"] == [4, 6]


def test_a_whole_draft_never_reads_what_earlier_rounds_left() -> None:
    """Behind the accepted path stand places of older rounds; what was heard there may be no number."""
    model, plain = test_equality.make("simple")
    fixed = static(CausalTarget(model))
    drafter = Eagle(toys.copying_head(model, 0.1), depth=3, width=2, top_k=3, total=16)
    toys.answer(fixed, drafter, toys.row_of(test_equality.inputs_for(plain, 17, 9, 14), 0), 20)
    (slab,) = drafter.steps[0].slabs.free
    (whole,) = (recorded for key, recorded in slab.recorded.items() if key[0] == "whole")
    _, heard, path, count, *_ = whole.inputs
    heard[:, :5], heard[:, 5:] = 0.1, torch.nan
    path[:, 0], path[:, 1:], count[:] = 0, 5, 1
    with torch.inference_mode():
        whole.graph()
    assert not any(kv.isnan().any() for kv in slab.kv.values())


class NoHost(TorchDispatchMode):
    """Fails where a graph could not be captured: a number is asked of the device, or a new tensor comes from the
    host."""

    forbidden = ("item", "_local_scalar_dense", "nonzero", "lift_fresh", "is_nonzero", "equal", "one_hot")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func.overloadpacket.__name__ not in self.forbidden
        return func(*args, **kwargs or {})


@pytest.mark.parametrize(("sampling", "rule"), SETTINGS)
@pytest.mark.parametrize("kind", [Eagle, Eagle1])
def test_a_whole_draft_is_recorded_without_the_host(kind: type[Eagle], sampling: Sampling, rule: Any) -> None:
    """Trees that grow, that are filled and that are drawn; commits, too: what is recorded never waits."""
    model, plain = test_equality.make("simple")
    fixed = static(CausalTarget(model))
    inputs = test_equality.inputs_for(plain, 17, 9, 14)
    drafter = kind(toys.copying_head(model, 0.1), depth=3, width=2, top_k=3, total=16)
    toys.answer(fixed, drafter, inputs, 20, sampling, rule)
    slabs = *drafter.steps[0].slabs.free, *fixed.decoder.engine.slabs.free
    assert {key[0] for slab in slabs for key in slab.recorded} == {"whole", "keep"}
    for slab in slabs:
        for recorded in slab.recorded.values():
            for given in recorded.inputs:
                given.zero_()  # keeps nothing, so that lengths stay
            before = slab.lengths.clone()
            with torch.inference_mode(), NoHost():
                recorded.graph()
            assert torch.equal(slab.lengths, before)


@pytest.mark.parametrize(("kind", "net"), [(DFlash, BlockNet), (DSpark, SparkNet)])
@pytest.mark.parametrize("resting", [0, 75])
def test_a_static_block_drafter_makes_the_same_drafts(
    kind: type[BlockDrafter], net: type[BlockNet], resting: int
) -> None:
    """The same for a block of slots, whose size is a width of its own."""
    model, plain = test_equality.make("simple")
    fixed = static(CausalTarget(model))
    inputs = test_equality.inputs_for(plain, 17, 9, 14)
    block = toys.block_net(net, plain)
    kept = 0
    for sampling, rule in SETTINGS[: 1 if resting else 3]:
        for asked in (inputs, toys.row_of(inputs, 1)):
            made = tuple(kind(block, depth=4, width=3, top_k=3, total=16) for _ in range(2))
            kept += drafted_alike((plain, fixed), made, asked, resting, sampling, rule)
            assert not lanes(made[0])
            context, slots = f"{kind.method}'s context", f"{kind.method}'s block"
            ready = {(context, width) for width in WIDTHS} | {(slots, 5)}
            assert all(found == ready for found in lanes(made[1]))
    assert kept > 0


# Compiled ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "backend"), [("smolvlm", "aot_eager"), ("gemma3", "eager"), ("gemma3n", "eager")])
def test_compiled_verification_says_the_same_and_is_compiled_once_per_size(name: str, backend: str) -> None:
    pipe = family(name, sizes=(1, 8), backend=backend)
    drafting = pipe.with_drafter(tree_drafter(pipe.target.model), Shape(3, 3, 8))
    counters.clear()

    def graphs() -> int:
        return counters["stats"]["unique_graphs"]

    def ask(drafting: mmspec.Pipeline, **options: Any) -> list[list[int]]:
        return [answer.token_ids for answer in drafting(PICTURES, TEXTS, max_new_tokens=BUDGET, **options)]

    stream = drafting.stream(PICTURES, TEXTS, max_new_tokens=BUDGET)
    next(iter(stream))
    ready = graphs()
    assert ready == 2 + len(WIDTHS)  # before the first round: sizes of the target's forward, and of the drafter's
    assert [answer.token_ids for answer in stream.finish()] == test_families.greedy(name)
    assert ask(drafting, **SAMPLED) == test_families.sampled(name)
    texts = [text + " " + text for text in TEXTS]  # other lengths
    longer = [answer.token_ids for answer in drafting(PICTURES, texts, max_new_tokens=BUDGET)]
    plain = test_families.plain(name)(PICTURES, texts, max_new_tokens=BUDGET)
    assert longer == [answer.token_ids for answer in plain]
    assert graphs() == ready + 1  # a whole draft, once
    assert not counters["graph_break"]


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize(
    ("drafts", "control", "expected", "came"),
    [
        (False, OWN, [1], {1}),
        (True, OWN, [1], {1, 16}),
        (True, Fixed(NO_DRAFT), [1], {1}),
        (True, Fixed(Shape(3, 2, 8)), [1, 8], {1, 8}),
        (True, Fixed(Shape(4, 4, 40)), [1, 64], {1, 64}),
        (True, Resting(2), [1, 8, 16, 32, 64], {1, 8, 16, 32, 64}),
    ],
)
def test_sizes_that_a_request_expects_are_made_ready_and_others_when_they_come(
    drafts: bool, control: Any, expected: list[int], came: set[int], early: bool
) -> None:
    """Of a drafter's own size nothing is known before, of a plan that chooses all that it may choose."""
    model, plain = test_equality.make("simple")
    inputs = toys.row_of(test_equality.inputs_for(plain, 12), 0)
    target = CausalTarget(model)
    target.decoder.engine = engine = Engine(target.decoder, None, (1, 8, 16), early)
    made: list[int] = []
    engine.compiled.compile = lambda *given: made.append(given[1].shape[1])  # type: ignore[method-assign]
    drafter = Eagle(toys.copying_head(model, 0.1), depth=3, width=2, top_k=3, total=16) if drafts else NoDrafter()
    drafter.bind(target)
    asked, sampler = {**inputs, "max_new_tokens": 20}, Sampler(Sampling(), 1, CPU)
    rounds = decode(target, drafter, Exact(), asked, sampler, Stop([], 20), control)
    tokens = list(next(rounds).tokens[0])
    assert made == expected
    tokens += [token for each in rounds for token in each.tokens[0]]
    assert tokens == toys.answer(plain, NoDrafter(), inputs, 20).rows[0]
    assert set(made) == came


def test_a_model_that_cannot_be_compiled_whole_is_refused() -> None:
    _, target = test_equality.make("llama")

    def leaky(module: Any, inputs: Any, output: Any) -> None:
        print(output.sum().item())

    model = toys.llama()
    model.model.norm.register_forward_hook(leaky)
    broken = static(CausalTarget(model), (1,), "eager")
    with pytest.raises(UnsupportedError, match=r"LlamaForCausalLM cannot be compiled .* compile=False"):
        toys.answer(broken, NoDrafter(), test_equality.inputs_for(target, 9))


# The face ----------------------------------------------------------------------------------------------------------


def test_load_compiles_where_it_is_asked_to() -> None:
    model = toys.llama()
    asked = mmspec.load(model, "none", compile=True)
    assert isinstance(asked.target.decoder.engine, Engine)
    assert mmspec.load(model, "none").target.decoder.engine is None
    with pytest.raises(InputError, match="compile='yes' is not valid: True or False"):
        mmspec.load(model, "none", compile="yes")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("device", "attention", "compiles", "wanted"),
    [
        ("cuda", "sdpa", True, True),
        ("cpu", "sdpa", True, False),
        ("cuda", "eager", True, False),
        ("cuda", "sdpa", False, False),
    ],
)
def test_where_nobody_says_models_on_cuda_are_compiled(
    device: str, attention: str, compiles: bool, wanted: bool
) -> None:
    class Target:
        model: Any = SimpleNamespace(device=torch.device(device), config=LlamaConfig(attn_implementation=attention))
        compiled = False

        def compile(self) -> None:
            self.compiled = True

    for asked, ours, expected in (
        (None, True, wanted),
        (None, False, False),
        (False, True, False),
        (True, False, True),
    ):
        target: Any = Target()
        target.compiles = compiles
        compile_target(target, asked, ours)
        assert target.compiled is expected


@pytest.mark.parametrize("make", [tiny_mar.model, tiny_musicgen.musicgen, tiny_dia.dia])
def test_targets_that_do_not_forward_trees_are_refused(make: Callable[[], Any]) -> None:
    with pytest.raises(UnsupportedError, match="cannot be compiled here: .* compile=False"):
        mmspec.load(make(), "none", compile=True)


@pytest.mark.dynamic("compiles by itself")
def test_frequencies_that_follow_the_length_are_fixed_where_that_is_compiled() -> None:
    """As far as such a model is served they are the usual ones, also after a text that is longer."""
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
    model = toys.llama(rope_parameters=rope, max_position_embeddings=64)
    asked: dict[str, Any] = {"input_ids": torch.arange(10, 20)[None], "max_new_tokens": 40, "temperature": 0}
    with torch.no_grad():
        want = model.generate(asked["input_ids"], max_new_tokens=40, do_sample=False)[0, 10:].tolist()
        model(torch.arange(3, 93)[None])
    pipe = mmspec.load(model, "recycling", shape="own")
    assert misfit(pipe.target.decoder.config) == ""
    pipe.target.compile("eager")
    assert pipe.target.compiled
    assert pipe.generate(**asked).token_ids == want


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"rope_parameters": {"full_attention": {"rope_type": "dynamic", "factor": 2.0}}}, "follow the length"),
        ({"kv_lora_rank": 8}, "keys that are longer than their values"),
    ],
)
def test_a_decoder_that_cannot_be_compiled_is_left_as_it_is_unless_that_is_asked_for(
    changes: dict[str, Any], why: str, caplog: pytest.LogCaptureFixture
) -> None:
    target = CausalTarget(toys.llama())
    assert misfit(target.decoder.config) == ""
    for name, value in changes.items():
        setattr(target.decoder.config, name, value)
    with pytest.raises(UnsupportedError, match=f"LlamaForCausalLM cannot be compiled here: .*{why}"):
        compile_target(target, True, True)
    target.model = SimpleNamespace(device=torch.device("cuda"), config=LlamaConfig(attn_implementation="sdpa"))
    compile_target(target, None, True)
    assert not target.compiled
    assert why in caplog.text


def test_without_cuda_a_graph_is_a_call() -> None:
    calls = []

    def run() -> int:
        calls.append(1)
        return len(calls)

    graph = Graph(run, Place(CPU))
    assert not calls
    assert [graph(), graph()] == [1, 2]


def test_drafts_are_padded_to_the_next_size() -> None:
    engine = Engine(CausalTarget(toys.llama()).decoder, None, (1, 8, 16))
    assert [engine.padded(nodes) for nodes in (1, 2, 8, 9, 16, 17, 33, 65)] == [1, 8, 8, 16, 16, 32, 64, 128]
