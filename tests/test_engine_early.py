"""Rounds that start before the host has read the last one: the same tokens, and nothing is kept of a row that ended."""

import gc
import weakref
from dataclasses import asdict, dataclass, field
from functools import cache
from typing import Any

import pytest
import test_drafters
import test_engine
import test_equality
import test_families
import test_image_janus
import tiny_families
import tiny_images
import torch
import toys
from test_engine import SETTINGS, Resting
from test_families import PICTURES, SAMPLED, TEXTS, Oracle
from torch import Tensor
from torch._dynamo.utils import counters

import mmspec
from mmspec.acceptance.exact import Exact
from mmspec.acceptance.ratio import Ratio
from mmspec.contract import Accepted, Draft, Drafter, Drafting, Kind, Needs, Round, Shape, State, Verified
from mmspec.control import OWN, Auto, Fixed
from mmspec.decode import decode
from mmspec.drafters.dflash import BlockDrafter, BlockNet, DFlash
from mmspec.drafters.dspark import DSpark, SparkNet
from mmspec.drafters.eagle import Eagle, Eagle1
from mmspec.drafters.hydra import Hydra, HydraHeads
from mmspec.drafters.medusa import Medusa, MedusaHeads
from mmspec.drafters.none import NoDrafter
from mmspec.drafters.whole import Whole
from mmspec.engine.engine import MOST_KEPT, OVER, Engine
from mmspec.engine.graphs import Graph
from mmspec.engine.judging import judge
from mmspec.image_ar.janus import Janus
from mmspec.sampling import Sampler, Sampling
from mmspec.speech.viterbi import PairedHeads, Viterbi
from mmspec.stopping import Stop
from mmspec.targets import CausalTarget
from mmspec.tree import chain, path_to

pytestmark = pytest.mark.dynamic("has engines of its own")


def early(target: Any, backend: str | None = None) -> Any:
    """The target with static caches, and rounds that start before the last one is read."""
    target.decoder.engine = Engine(target.decoder, backend, (1, 8, 16), early=True)
    return target


def recorded_rounds(target: Any) -> int:
    """How many are kept."""
    gc.collect()
    return sum(len(lane.rounds) for slab in target.decoder.engine.slabs.free for lane in slab.lanes.values())


@dataclass
class Noting(Drafter):
    """The drafts of another drafter; writes down what happens when."""

    inner: Any
    events: list[str] = field(default_factory=list)
    drafts: list[Any] = field(default_factory=list)

    @property
    def kinds(self) -> Any:
        return self.inner.kinds

    @property
    def needs(self) -> Any:
        return self.inner.needs

    @property
    def shapes(self) -> Any:
        return self.inner.shapes

    def bind(self, target: Any) -> None:
        self.inner.bind(target)

    def begin(self, state: State, sampler: Sampler, kind: Kind) -> "NotingDrafting":
        self.state = state
        return NotingDrafting(self.inner.begin(state, sampler, kind), self.events, self.drafts)


@dataclass
class NotingDrafting(Drafting):
    inner: Any
    events: list[str]
    drafts: list[Any]

    @property
    def early(self) -> bool:
        early: bool = self.inner.early
        return early

    def ahead(self, state: State) -> bool:
        ahead: bool = self.inner.ahead(state)
        return ahead

    def propose(self, state: State) -> Draft:
        self.events.append("propose")
        draft: Draft = self.inner.propose(state)
        self.drafts.append(test_drafters.paths_of(draft))
        return draft

    def observe(self, state: State, draft: Draft, verified: Verified, accepted: Accepted) -> None:
        self.events.append("observe read" if accepted.paths else "observe")
        self.inner.observe(state, draft, verified, accepted)


def head(model: Any, amount: float = 0.1) -> Eagle:
    """A tree that is often accepted, and read in one launch."""
    return Eagle(toys.copying_head(model, amount), depth=3, width=2, top_k=3, total=8)


def watched(
    target: Any,
    noting: Noting,
    inputs: Any,
    budget: int,
    control: Any = OWN,
    sampling: Sampling | None = None,
    rule: Any = None,
) -> tuple[list[int], list[Round]]:
    """How many rounds were under way, committed and not read, when the host read each; and the rounds."""
    noting.bind(target)
    stop = Stop((), budget)
    cut = stop.cut
    found: list[int] = []

    def counted(*given: Any) -> None:
        found.append(noting.events.count("observe") - len(found))
        cut(*given)

    stop.cut = counted  # type: ignore[method-assign]
    sampler = Sampler(sampling or Sampling(), len(inputs["input_ids"]), torch.device("cpu"))
    asked = {**inputs, "max_new_tokens": budget}
    return found, list(decode(target, noting, rule or Exact(), asked, sampler, stop, control))


@pytest.mark.parametrize("name", tiny_families.CHOSEN)
def test_families_say_the_same(name: str) -> None:
    """Greedy and sampled, alone and in a batch whose rows accept differently; plain steps, trees, and a drafter that
    needs the host."""
    pipe = test_engine.family(name)
    model = early(pipe.target).model
    for options, want in ({}, test_families.greedy(name)), (SAMPLED, test_families.sampled(name)):
        tree, oracle = test_engine.tree_drafter(model), Oracle(want, pipe.target.vocab_size)
        for drafter, shape in (NoDrafter(), "own"), (tree, "own"), (tree, "auto"), (oracle, "own"):
            drafting = pipe.with_drafter(drafter, shape)
            batch = drafting(PICTURES, TEXTS, max_new_tokens=test_families.BUDGET, **options)
            assert [answer.token_ids for answer in batch] == want
        alone = pipe.with_drafter(test_engine.tree_drafter(model), "own")(
            PICTURES[0], TEXTS[0], max_new_tokens=test_families.BUDGET, **options
        )
        assert alone.token_ids == want[0]


def eagle(kind: type[Eagle]) -> Any:
    return lambda model: kind(toys.copying_head(model, 0.1), depth=3, width=2, top_k=3, total=16)


def wrong(model: Any) -> Eagle:
    """A head of random weights, whose drafts are hardly ever right."""
    return Eagle(toys.eagle_head(model), depth=3, width=2, top_k=3, total=8)


def medusa(model: Any) -> Medusa:
    torch.manual_seed(4)
    return Medusa(MedusaHeads(toys.eagle_head(model).config, levels=3).to(model.dtype), depth=3, width=3, total=8)


def hydra(model: Any) -> Hydra:
    torch.manual_seed(4)
    return Hydra(HydraHeads(toys.eagle_head(model).config, levels=3).to(model.dtype), depth=3, width=3, total=8)


def viterbi(model: Any) -> Viterbi:
    torch.manual_seed(4)
    vocabulary = model.config.vocab_size
    net = PairedHeads(toys.eagle_head(model).config, 3, vocabulary, kept=5)
    texts = [torch.randint(vocabulary, (40,)).tolist() for _ in range(4)]
    net.count(texts)
    return Viterbi(net.to(model.dtype), depth=3, candidates=4)


def block(kind: type[BlockDrafter], net: type[BlockNet]) -> Any:
    def make(model: Any) -> BlockDrafter:
        return kind(toys.block_net(net, CausalTarget(model)), depth=4, width=3, top_k=3, total=16)

    return make


DRAFTERS = {
    "eagle2": eagle(Eagle),
    "eagle": eagle(Eagle1),
    "medusa": medusa,
    "hydra": hydra,
    "mtp-viterbi": viterbi,
    "dflash": block(DFlash, BlockNet),
    "dspark": block(DSpark, SparkNet),
}


@pytest.mark.parametrize("make", [lambda model: NoDrafter(), head, *DRAFTERS.values()])
def test_the_next_round_starts_before_the_last_one_is_read(make: Any) -> None:
    model, plain = test_equality.make("simple")
    inputs = toys.row_of(test_equality.inputs_for(plain, 12, 9), 0)
    noting = Noting(make(model))
    under_way, _ = watched(early(CausalTarget(model)), noting, inputs, 80)
    assert under_way.count(2) >= len(under_way) - 2  # the one that is read, and the next one
    assert len(under_way) > 10
    assert max(under_way) == 2
    if isinstance(noting.inner, NoDrafter):
        assert under_way[-1] == 1  # none starts where the last token is surely under way
    assert "observe read" not in noting.events


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of every proposal, whether it was made in one launch."""
    found: list[bool] = []
    propose = Whole.propose

    def noted(whole: Whole, state: State) -> Draft | None:
        draft = propose(whole, state)
        found.append(draft is not None)
        return draft

    monkeypatch.setattr(Whole, "propose", noted)
    return found


@pytest.mark.parametrize("name", ["eagle2", "eagle", "dflash", "dspark"])
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=1, seed=3)])
def test_the_first_draft_of_an_answer_is_one_launch_too(name: str, sampling: Sampling, launched: list[bool]) -> None:
    """Alone and in a batch of unequal rows, one of which may end with what the prefill gave."""
    model, plain = test_equality.make("simple")
    target, drafter = early(CausalTarget(model)), DRAFTERS[name](model)
    inputs = test_equality.inputs_for(plain, 17, 9, 14)
    first = toys.answer(plain, NoDrafter(), inputs, 1, sampling).rows
    for asked in (inputs, toys.row_of(inputs, 1)):
        for eos in ((), first[0]):
            want = toys.answer(plain, NoDrafter(), asked, 24, sampling, eos=eos).rows
            launched.clear()
            assert toys.answer(target, drafter, asked, 24, sampling, eos=eos).rows == want
            assert launched[0]
            assert all(launched)


@pytest.mark.parametrize("kind", [Eagle, Eagle1])
@pytest.mark.parametrize(("sampling", "rule"), SETTINGS)
@pytest.mark.parametrize("shape", [Shape(8, 8, 60), Shape(5, 10, 60), Shape(4, 9, 100)], ids=str)
def test_large_and_deep_trees_are_one_launch_too(
    kind: type[Eagle], sampling: Sampling, rule: Any, shape: Shape, launched: list[bool]
) -> None:
    """Where they need more slots than a cache has, it grows once, and those of later requests have them at once."""
    model, plain = test_equality.make("simple")
    target = early(CausalTarget(model))
    drafter = kind(toys.copying_head(model, 0.1))
    drafter.bind(target)
    drafter.bind = lambda target: None  # type: ignore[method-assign]  # the same steps for all requests
    for number, row in enumerate((0, 1)):
        inputs = toys.row_of(test_equality.inputs_for(plain, 17, 9), row)
        launched.clear()
        under_way, rounds = watched(target, Noting(drafter), inputs, 36, Fixed(shape), sampling, rule)
        got = [token for round_ in rounds for token in round_.tokens[0]]
        if rule.invariant:
            assert [got] == toys.answer(plain, NoDrafter(), inputs, 36, sampling).rows
        assert all(launched)
        assert under_way.count(2) >= len(under_way) - 3  # and no round waits for the host
        gc.collect()
        assert drafter.steps is not None
        slabs = drafter.steps[0].slabs.free
        assert slabs[-1].front == (128 if shape.total > 64 else 64)
        assert number or len(slabs) == (2 if shape.total > 64 else 1)


@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize(
    ("sampling", "rule", "resting"),
    [*((*setting, 0) for setting in SETTINGS), *((*setting, 5) for setting in (SETTINGS[0], SETTINGS[-1]))],
)
def test_drafts_are_those_of_rounds_that_wait(name: str, sampling: Sampling, rule: Any, resting: int) -> None:
    """The same trees, drawn ones, too, and after rounds without a draft, which pile up."""
    model, plain = test_equality.make("simple")
    waiting, going = test_engine.static(CausalTarget(model)), early(CausalTarget(model))
    inputs = test_equality.inputs_for(plain, 17, 9, 14)
    made = tuple(DRAFTERS[name](model) for _ in range(2))
    if not made[0].kinds & set(rule.takes):
        pytest.skip("it draws no trees")
    kept = 0
    for asked in (inputs, toys.row_of(inputs, 1)):
        seen: list[list[Any]] = [[], []]
        answers = []
        for target, drafter, drafts in zip((waiting, going), made, seen, strict=True):
            noting = Noting(drafter, drafts=drafts)
            control = Resting(resting) if resting else OWN
            answers.append(toys.answer(target, noting, asked, 24, sampling, rule, control=control))
        whole = None if rule.invariant else -4  # the last draft is cut by what the host knows of the room
        assert [row[:whole] for row in answers[0].rows] == [row[:whole] for row in answers[1].rows]
        if len(asked["input_ids"]) == 1:  # of a row that has ended, a round in vain drafts something else
            assert seen[1][: len(seen[0])][:-5] == seen[0][:-5]
            assert len(seen[0]) > 6
        kept += sum(answers[1].accepted)
    assert kept > 0


def assert_nothing_is_kept_of_rows_that_ended(state: Any) -> None:
    """But for the round that ended it, and one that had started."""
    most = [len(ids) + 2 * 4 for ids in state.ids]
    assert all(length <= bound for length, bound in zip(state.cache.slab.lengths.tolist(), most, strict=True))


def test_budgets_ends_and_contexts_are_met_exactly() -> None:
    """Rows end one by one, in the middle of what was accepted; nothing of theirs is kept afterwards."""
    model, plain = test_equality.make("simple")
    inputs = test_equality.inputs_for(plain, 12, 17, 9)
    want = toys.answer(plain, NoDrafter(), inputs, 40).rows
    going = early(CausalTarget(model))
    noting = Noting(head(model))
    for budget in (1, 2, 3, 5, 8, 40):
        got = toys.answer(going, noting, inputs, budget)
        assert got.rows == [row[:budget] for row in want]
        assert got.finish == ["length"] * 3
    eos = [want[0][4], want[1][7]]
    for drafter in (noting, NoDrafter()):
        stopped = toys.answer(plain, NoDrafter(), inputs, 40, eos=eos)
        got = toys.answer(going, drafter, inputs, 40, eos=eos)
        assert (got.rows, got.finish) == (stopped.rows, stopped.finish)
        assert len({len(row) for row in got.rows}) > 1
    assert_nothing_is_kept_of_rows_that_ended(noting.state)
    warm = Sampling(temperature=1, seed=3)  # under a rule that is not played in one launch
    free = toys.answer(going, noting, inputs, 40, warm, Ratio()).rows
    got = toys.answer(going, noting, inputs, 40, warm, Ratio(), eos=free[1][4:5])
    assert [len(row) for row in got.rows] == [40, 5, 40]
    assert_nothing_is_kept_of_rows_that_ended(noting.state)

    model = toys.llama(max_position_embeddings=24)
    inputs = toys.prompts(17, 12)
    want = toys.answer(CausalTarget(model), NoDrafter(), inputs, 50).rows
    for drafter in (NoDrafter(), head(model)):
        got = toys.answer(early(CausalTarget(model)), drafter, inputs, 50)
        assert (got.rows, got.finish) == (want, ["length", "length"])


@dataclass
class Failing(Noting):
    """Fails at its call number `last` of what `at` names."""

    last: int = 0
    at: str = "propose"

    def begin(self, state: State, sampler: Sampler, kind: Kind) -> "NotingDrafting":
        drafting = super().begin(state, sampler, kind)
        asked = getattr(drafting, self.at)

        def failing(*given: Any) -> Any:
            if self.events.count(self.at) == self.last:
                raise RuntimeError("out of memory")
            return asked(*given)

        setattr(drafting, self.at, failing)
        return drafting


@pytest.mark.parametrize("at", ["propose", "observe"])
def test_a_round_that_cannot_start_loses_nothing_of_what_was_verified(at: str) -> None:
    model, plain = test_equality.make("simple")
    target, inputs, budget = early(CausalTarget(model)), test_equality.inputs_for(plain, 12), 24

    def emitted(last: int) -> tuple[list[int], bool]:
        """The tokens, and whether the failure was seen."""
        failing = Failing(head(model), last=last, at=at)
        failing.bind(target)
        sampler = Sampler(Sampling(), 1, torch.device("cpu"))
        asked = {**inputs, "max_new_tokens": budget}
        found: list[int] = []
        try:
            for one in decode(target, failing, Exact(), asked, sampler, Stop((), budget), OWN):
                found += one.tokens[0]
        except RuntimeError:
            return found, True
        return found, False

    whole, failed = emitted(-1)
    assert len(whole) == budget
    assert not failed
    lengths = []
    for last in range(budget):
        tokens, failed = emitted(last)
        assert tokens == whole[: len(tokens)]
        lengths.append(len(tokens))
        if not failed:
            break
    assert (lengths[0] == 1) == (at == "propose")  # what the prefill gave; a failure to observe comes after a round
    assert lengths == sorted(set(lengths))  # each round before the failure has told its tokens
    assert lengths[-1] == budget  # and a failure in vain is none


def test_the_host_knows_the_lengths_once_it_has_read_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the buffer has to grow while a round is under way."""
    monkeypatch.setattr("mmspec.targets.AHEAD", 1)
    monkeypatch.setattr("mmspec.engine.engine.OVER", 0)
    monkeypatch.setattr("mmspec.engine.cache.rounded", lambda slots: slots)
    model, plain = test_equality.make("simple")
    inputs = test_equality.inputs_for(plain, 12, 17, 9)
    want = toys.answer(plain, NoDrafter(), inputs, 30).rows
    for drafter in (head(model), NoDrafter()):
        target = early(CausalTarget(model))
        drafter.bind(target)
        sampler = Sampler(Sampling(), 3, torch.device("cpu"))
        noting = Noting(drafter)
        stop = Stop((), 30)
        sizes = set()
        for _ in decode(target, noting, Exact(), {**inputs, "max_new_tokens": 30}, sampler, stop):
            cache = noting.state.cache
            sizes.add(cache.slab.room)
            known, device = list(cache.lengths), cache.slab.lengths.tolist()
            assert all(few <= many <= cache.most for few, many in zip(known, device, strict=True))
            assert [
                len(ids) - 1 for ids, done in zip(noting.state.ids, noting.state.done, strict=True) if not done
            ] == [length for length, done in zip(known, noting.state.done, strict=True) if not done]
        assert stop.outputs == want
        assert len(sizes) > 1


def test_a_request_has_room_from_the_beginning_for_rounds_in_vain(monkeypatch: pytest.MonkeyPatch) -> None:
    """To grow at the very end would cost more than all of them."""
    monkeypatch.setattr("mmspec.engine.cache.rounded", lambda slots: slots)
    model, plain = test_equality.make("simple")
    target = early(CausalTarget(model))
    toys.answer(target, head(model), test_equality.inputs_for(plain, 12, 17, 9), 30)
    gc.collect()
    (slab,) = target.decoder.engine.slabs.free
    assert slab.room == 17 + 30 + OVER


def test_shapes_are_learnt_from_the_rounds_that_had_them() -> None:
    """`auto` chooses a round's shape before it has learnt from the last one."""
    model, plain = test_equality.make("simple")
    inputs = toys.row_of(test_equality.inputs_for(plain, 12), 0)
    learnt: list[tuple[Shape, int]] = []
    auto = Auto((Shape(1), Shape(3, 2, 8)))
    drafter = head(model)
    target = early(CausalTarget(model))
    plan = auto.begin(1, Sampler(Sampling(), 1, torch.device("cpu")), Exact())
    learn = plan.learn

    def noted(draft: Draft, accepted: Accepted, done: Any) -> None:
        learnt.append((plan.played[0][0], draft.size))  # type: ignore[attr-defined]
        learn(draft, accepted, done)

    plan.learn = noted  # type: ignore[method-assign]
    auto.begin = lambda *given: plan  # type: ignore[method-assign]
    toys.answer(target, drafter, inputs, 60, control=auto)
    assert {shape for shape, _ in learnt} >= {Shape(0), Shape(1)}
    assert all(size <= shape.total for shape, size in learnt)
    assert all(size == shape.total for shape, size in learnt[:-3])


class Dear(Noting):
    """One whose drafts take ten times as long as a step, on a clock that nothing else moves but looking at it."""

    now = 0.0

    def perf_counter(self) -> float:
        self.now += 1e-3
        return self.now

    def begin(self, state: State, sampler: Sampler, kind: Kind) -> "NotingDrafting":
        drafting = super().begin(state, sampler, kind)
        propose = drafting.propose

        def later(state: State) -> Draft:
            self.now += 1e-2
            return propose(state)

        drafting.propose = later  # type: ignore[method-assign]
        return drafting


def test_rounds_without_a_draft_go_ahead_too_and_a_probe_is_played_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """`auto` rests with a drafter that is never right: nothing waits, and no probe starts before the last is learnt."""
    model, plain = test_equality.make("simple")
    inputs = toys.row_of(test_equality.inputs_for(plain, 12), 0)
    target = early(CausalTarget(model))
    want = toys.answer(plain, NoDrafter(), inputs, 150).rows
    noting = Dear(wrong(model))
    monkeypatch.setattr("mmspec.decode.time", noting)
    under_way, rounds = watched(target, noting, inputs, 150, Auto((Shape(1), Shape(3, 2, 8))))
    assert [token for round_ in rounds for token in round_.tokens[0]] == want[0]
    drafted = [round_.proposed > 0 for round_ in rounds]
    resting = drafted[20:]  # by then it knows
    assert any(resting)
    assert not any(one and other for one, other in zip(resting, resting[1:], strict=False))
    assert sum(drafted) < 20
    assert under_way.count(2) > len(under_way) - 2 * sum(drafted) - 2  # a draft after a rest waits for plain calls


def test_the_seconds_of_rounds_in_vain_are_those_of_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock that stands still but for drafts."""
    monkeypatch.setattr(Dear, "perf_counter", lambda noting: noting.now)
    model, plain = test_equality.make("simple")
    noting = Dear(head(model))
    monkeypatch.setattr("mmspec.decode.time", noting)
    inputs = toys.row_of(test_equality.inputs_for(plain, 12), 0)
    _, rounds = watched(early(CausalTarget(model)), noting, inputs, 20)
    assert noting.events.count("propose") > len(rounds) - 1  # there was one
    assert sum(round_.seconds for round_ in rounds) == pytest.approx(noting.now)


def test_two_rows_of_guidance() -> None:
    plain = Janus(tiny_images.janus_model(), tiny_images.tokenizer())
    going = early(Janus(tiny_images.janus_model(), tiny_images.tokenizer()))
    asked = {**tiny_images.prompts(3, 6, 1), "guidance": 3.0}
    for sampling in (None, test_image_janus.SAMPLED):
        want = test_image_janus.draw(plain, NoDrafter(), asked, sampling).rows
        noting = Noting(NoDrafter())
        assert test_image_janus.draw(going, noting, asked, sampling).rows == want
        assert set(noting.events) == {"propose", "observe"}


LAWS = [
    Sampling(),
    Sampling(temperature=1, seed=3),
    Sampling(temperature=0.8, top_p=0.9, seed=5),
    Sampling(temperature=1.2, top_k=20, min_p=0.02, suppress_tokens=range(0, toys.VOCAB, 3), seed=2),
]
CARD = pytest.param(
    "cuda",
    marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")],
)


@cache
def said_plainly(device: str) -> list[Any]:
    """What the loop says under every law, a batch and a row alone."""
    plain = mmspec.load(toys.llama().to(device), "none", compile=False)
    return [plain.generate(**given, max_new_tokens=24, **asked) for given, asked in requests(device)]


def requests(device: str) -> list[tuple[dict[str, Tensor], dict[str, Any]]]:
    """Inputs and options."""
    inputs = {name: value.to(device) for name, value in toys.prompts(17, 9, 14).items()}
    asked = [{key: value for key, value in asdict(law).items() if value != getattr(Sampling(), key)} for law in LAWS]
    return [(given, options) for options in asked for given in (inputs, toys.row_of(inputs, 1))]


@pytest.mark.parametrize("device", ["cpu", CARD])
@pytest.mark.parametrize("name", ["none", *DRAFTERS])
def test_recorded_rounds_say_the_same(device: str, name: str) -> None:
    """One launch verifies, judges and commits; on a card every launch is a graph. Greedy and under every warper."""
    model = toys.llama().to(device)
    drafter = DRAFTERS[name](model) if name in DRAFTERS else "none"
    if drafter != "none":
        drafter.net.to(device)
    going = mmspec.load(model, drafter, shape="own", compile=False)
    early(going.target)
    for (given, asked), want in zip(requests(device), said_plainly(device), strict=True):
        got = going.generate(**given, max_new_tokens=24, **asked)
        rows = [one if isinstance(one, list) else [one] for one in (want, got)]
        assert [each.token_ids for each in rows[0]] == [each.token_ids for each in rows[1]]


@torch.inference_mode()
def test_padding_is_never_accepted() -> None:
    """Of the same draft, whose token is right, in the same recorded round: with and without its last node."""
    model, plain = test_equality.make("simple")
    inputs = test_equality.inputs_for(plain, 12, 9)
    want = toys.answer(plain, NoDrafter(), inputs, 4).rows
    target = early(CausalTarget(model))
    for valid, count in (None, 3), (torch.tensor([[True, True, False], [True, False, False]]), 0), (None, 3):
        state = verified = accepted = None  # so that its buffer, and what the lane was told, serves this one
        sampler = Sampler(Sampling(), 2, torch.device("cpu"))
        state = target.prefill({**inputs, "max_new_tokens": 4}, Needs(), sampler)
        tokens = torch.tensor([row[:3] for row in want])
        draft = chain(tokens)
        draft.valid = valid
        verified, accepted = target.play(state, draft, Exact())
        assert verified.logits.untyped_storage().size() == 0  # they are large, and nobody asks for them
        assert accepted.count.tolist() == ([count] * 2 if count else [2, 1])
        assert accepted.next is not None
        assert accepted.next.tolist() == ([row[3] for row in want] if count else [want[0][2], want[1][1]])
        assert state.cache.slab.lengths.tolist() == [
            length + n for length, n in zip((12, 9), accepted.count.tolist(), strict=True)
        ]


def test_a_rule_that_asks_the_host_is_not_recorded() -> None:
    model, plain = test_equality.make("simple")
    inputs = test_equality.inputs_for(plain, 12, 9)

    class Asking(Exact):
        on_device = False

    want = toys.answer(plain, NoDrafter(), inputs).rows
    target = early(CausalTarget(model))
    assert toys.answer(target, head(model), inputs, rule=Asking()).rows == want
    assert recorded_rounds(target) == 0
    assert toys.answer(target, head(model), inputs, rule=Exact()).rows == want
    assert recorded_rounds(target) > 0


class Biased(CausalTarget):
    def verify(self, state: State, draft: Draft) -> Verified:
        found = super().verify(state, draft)
        return Verified(-found.logits, found.taps)


class Skipping(CausalTarget):
    def commit(self, state: State, draft: Draft, accepted: Accepted) -> None:
        super().commit(state, draft, accepted)
        state.pending = (state.pending + 1) % toys.VOCAB  # type: ignore[operator]


@pytest.mark.parametrize("kind", [Biased, Skipping])
def test_a_target_that_works_in_its_own_way_does_so(kind: type[CausalTarget]) -> None:
    model, plain = test_equality.make("simple")
    inputs = test_equality.inputs_for(plain, 12, 9)
    want = toys.answer(kind(model), NoDrafter(), inputs).rows
    assert want != toys.answer(plain, NoDrafter(), inputs).rows
    target = early(kind(model))
    assert toys.answer(target, NoDrafter(), inputs).rows == want
    assert recorded_rounds(target) == 0


def test_every_rule_has_rounds_of_its_own() -> None:
    """Also one that cannot be hashed."""

    @dataclass
    class First(Exact):
        """Keeps no drafted token, so every round emits one."""

        def __call__(self, draft: Draft, scores: Tensor, sampler: Sampler, emitted: Tensor) -> Accepted:
            judged = super().__call__(draft, scores, sampler, emitted)
            return path_to(draft, torch.zeros_like(judged.count), scores[:, 0].argmax(-1))

    model, plain = test_equality.make("simple")
    inputs = toys.row_of(test_equality.inputs_for(plain, 12), 0)
    target, drafter = early(CausalTarget(model)), Eagle(toys.copying_head(model, 0.0), depth=3, width=2, total=8)
    answers = [toys.answer(target, drafter, inputs, 20, rule=rule) for rule in (First(), Exact(), First())]
    assert answers[0].rows == answers[1].rows == answers[2].rows == toys.answer(plain, NoDrafter(), inputs, 20).rows
    assert [sum(answer.accepted) > 0 for answer in answers] == [False, True, False]


@pytest.mark.parametrize("law", LAWS)
def test_a_round_is_recorded_without_the_host(law: Sampling) -> None:
    model, plain = test_equality.make("simple")
    target = early(CausalTarget(model))
    toys.answer(target, head(model), test_equality.inputs_for(plain, 12, 9), 20, law)
    gc.collect()
    (slab,) = target.decoder.engine.slabs.free
    lengths = slab.lengths.clone()
    rounds = [(lane, graph) for lane in slab.lanes.values() for graph in lane.rounds.values()]
    assert rounds
    for lane, graph in rounds:
        lane.running.zero_()  # keeps nothing
        with torch.inference_mode(), test_engine.NoHost():
            graph()
    assert torch.equal(slab.lengths, lengths)


def test_what_is_recorded_keeps_no_noise() -> None:
    sampler = Sampler(Sampling(temperature=1, seed=3), 1, torch.device("cpu"))
    draft = chain(torch.tensor([[1, 2]]))
    told = draft.tokens, draft.parents, draft.depth, draft.ancestors, torch.ones(1, 2, dtype=torch.bool)
    counts = torch.zeros(1, dtype=torch.long)
    judge(torch.randn(1, 2, 9), *told, counts, counts, Exact(), sampler, 2)
    assert sampler._ahead is None


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.2, seed=1)])
def test_recording_does_not_trip_over_what_was_there(monkeypatch: pytest.MonkeyPatch, sampling: Sampling) -> None:
    """On a card a round runs while it is recorded, on what a deeper draft of the same size has left."""

    class Running(Graph):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            self.run()

    monkeypatch.setattr("mmspec.engine.engine.Graph", Running)
    model, plain = test_equality.make("simple")
    inputs = toys.row_of(test_equality.inputs_for(plain, 12), 0)
    target = early(CausalTarget(model))
    drafter = Eagle(toys.copying_head(model, 0.0), depth=10, width=1, top_k=2, total=16)
    for drafter.depth, budget in (10, 60), (4, 9), (10, 7), (4, 30):
        want = toys.answer(plain, NoDrafter(), inputs, budget, sampling).rows
        assert toys.answer(target, drafter, inputs, budget, sampling).rows == want
    gc.collect()
    (slab,) = target.decoder.engine.slabs.free
    assert len({longest for longest, *_ in slab.lanes[16].rounds}) > 1


@pytest.mark.parametrize("control", [OWN, Fixed(Shape(3, 2, 8)), Auto((Shape(1), Shape(3, 2, 8)))])
def test_only_sizes_that_stay_are_compiled_with_their_rule(control: Any) -> None:
    model, plain = test_equality.make("simple")
    inputs = toys.row_of(test_equality.inputs_for(plain, 12), 0)
    for sampling in (Sampling(), Sampling(temperature=0.5, seed=2)):
        target = early(CausalTarget(model))
        toys.answer(target, head(model), inputs, 30, sampling, control=control)
        gc.collect()
        (slab,) = target.decoder.engine.slabs.free
        (often,) = {often for lane in slab.lanes.values() for *_, often in lane.rounds}
        assert often == (isinstance(control, Fixed) and sampling.temperature == 0)


@pytest.mark.parametrize("make", [lambda model: NoDrafter(), DRAFTERS["eagle"], DRAFTERS["dspark"]])
def test_rounds_that_come_often_are_compiled_with_their_rule_once(make: Any) -> None:
    model, plain = test_equality.make("simple")
    inputs = test_equality.inputs_for(plain, 12, 9)
    target, drafter, law = early(CausalTarget(model), "eager"), make(model), Sampling(suppress_tokens=range(50))
    want = toys.answer(plain, NoDrafter(), inputs, 30, law).rows
    assert toys.answer(target, drafter, inputs, 30, law).rows == want
    counted = counters["stats"]["unique_graphs"]
    assert toys.answer(target, drafter, inputs, 30, law, rule=Exact()).rows == want
    assert counters["stats"]["unique_graphs"] == counted > 0


def test_a_buffer_that_is_let_go_takes_its_rounds_along() -> None:
    model, plain = test_equality.make("simple")
    target = early(CausalTarget(model))
    toys.answer(target, head(model), test_equality.inputs_for(plain, 12, 9))
    gc.collect()  # a request gives its buffer back when it is gone
    (slab,) = target.decoder.engine.slabs.free
    target.decoder.engine.slabs.free = []
    assert sum(len(lane.rounds) for lane in slab.lanes.values()) > 0
    gc.disable()  # what refers to itself would stay
    try:
        slab.drop()
        left = weakref.ref(slab)
        del slab
        assert left() is None
    finally:
        gc.enable()


def test_recorded_rounds_of_many_laws_are_forgotten_again() -> None:
    model, plain = test_equality.make("simple")
    inputs = toys.row_of(test_equality.inputs_for(plain, 12), 0)
    target = early(CausalTarget(model))
    for seed in range(40):
        sampling = Sampling(temperature=1 + seed / 100, seed=seed)
        want = toys.answer(plain, NoDrafter(), inputs, 6, sampling).rows
        assert toys.answer(target, NoDrafter(), inputs, 6, sampling).rows == want
    gc.collect()
    (slab,) = target.decoder.engine.slabs.free
    assert len(slab.lanes[1].rounds) == MOST_KEPT


@pytest.mark.parametrize("plays", [True, False])
def test_the_forward_alone_is_captured_only_where_it_is_asked_for(plays: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds that are played in one launch have graphs of their own."""
    model, plain = test_equality.make("simple")
    inputs = toys.row_of(test_equality.inputs_for(plain, 12), 0)
    monkeypatch.setattr(Exact, "on_device", plays)
    target = early(CausalTarget(model), "eager")
    want = toys.answer(plain, NoDrafter(), inputs, 6).rows
    for _ in range(2):
        assert toys.answer(target, NoDrafter(), inputs, 6).rows == want
        gc.collect()  # or the second request finds no buffer, and makes its own
    (slab,) = target.decoder.engine.slabs.free
    assert {size: len(lane.ready) for size, lane in slab.lanes.items()} == {1: 1}
    assert {size for size, lane in slab.lanes.items() if lane.graphs} == (set() if plays else {1})
    assert {size for size, lane in slab.lanes.items() if lane.rounds} == ({1} if plays else set())


def test_recorded_rounds_that_are_used_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mmspec.engine.engine.MOST_KEPT", 2)
    model, plain = test_equality.make("simple")
    inputs = toys.row_of(test_equality.inputs_for(plain, 12), 0)
    target = early(CausalTarget(model))
    for temperature in (0.5, 0.6, 0.5, 0.7):
        toys.answer(target, NoDrafter(), inputs, 6, Sampling(temperature=temperature))
    gc.collect()
    (slab,) = target.decoder.engine.slabs.free
    assert [law.temperature for *_, law, _ in slab.lanes[1].rounds] == [0.5, 0.7]


def test_laws_that_remember_wait_for_the_host() -> None:
    model, plain = test_equality.make("simple")
    inputs = test_equality.inputs_for(plain, 12, 9)
    sampling = Sampling(temperature=0.8, repetition_penalty=1.3, seed=3)
    want = toys.answer(plain, NoDrafter(), inputs, sampling=sampling).rows
    noting = Noting(head(model))
    assert toys.answer(early(CausalTarget(model)), noting, inputs, sampling=sampling).rows == want
    assert set(noting.events) == {"propose", "observe read"}
