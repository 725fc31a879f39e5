"""Length and tree control: it finds what pays under made-up costs, and it never changes an output.

No clocks: simulated rounds tell the control how long they took.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest
import test_equality
import tiny
import torch
import toys
from test_drafters import Watched
from typer.testing import CliRunner

import mmspec
from mmspec.acceptance.block import Block
from mmspec.acceptance.exact import Exact
from mmspec.acceptance.match import Match
from mmspec.acceptance.ratio import Ratio
from mmspec.acceptance.typical import Typical
from mmspec.cli import app
from mmspec.contract import Accepted, Draft, Round, Shape, State
from mmspec.control import (
    BASELINE,
    CHAINS,
    COPIES,
    MOST_QUIET,
    NO_DRAFT,
    OWN,
    TREES,
    Auto,
    Choosing,
    Fixed,
    control_for,
    read_shape,
    within,
)
from mmspec.drafters.lookahead import Lookahead
from mmspec.drafters.none import NoDrafter
from mmspec.drafters.prompt_lookup import PromptLookup
from mmspec.drafters.slots import joined
from mmspec.errors import InputError, MismatchError
from mmspec.payoff import STEP, Costs, Rates
from mmspec.sampling import Sampler, Sampling

GREEDY = Sampler(Sampling(), 1, torch.device("cpu"))
NOTHING = torch.zeros(1, 1)
SAMPLED = Sampler(Sampling(temperature=1.0), 1, torch.device("cpu"))


# Simulated rounds ---------------------------------------------------------------------------------------------------


@dataclass
class World:
    """Made-up costs and acceptance, in units of a round without a draft.

    rate: (width, depth) -> chance that a path goes on to that depth. step: seconds per level of a draft; node: seconds
    per node verified beyond the first, after `jump` for the second. found: share of rounds in which there is a
    proposal at all. pace: a factor on everything. noise: spread of the timings, with rare long pauses.
    """

    rate: Callable[[int, int], float]
    step: float = 0.05
    node: float = 0.02
    jump: float = 0.1
    found: float = 1.0
    pace: float = 1.0
    noise: float = 0.15
    dice: random.Random = field(default_factory=lambda: random.Random(1))

    def verify(self, nodes: int) -> float:
        return 1.0 if nodes == 1 else 1.0 + self.jump + self.node * (nodes - 1)

    def expected(self, shape: Shape) -> tuple[float, float]:
        """Tokens and seconds of a round with a shape, on average."""
        total = reach = 1.0
        for depth in range(1, shape.depth + 1):
            reach *= self.rate(shape.width, depth)
            total += reach
        seconds = self.step * shape.depth + self.verify(shape.total)
        return self.found * total + 1 - self.found, self.pace * (self.found * seconds + 1 - self.found)

    def best(self, shapes: Any) -> float:
        """Tokens per second of the best fixed shape, or of none."""
        return max(tokens / seconds for tokens, seconds in map(self.expected, (NO_DRAFT, *shapes)))

    def play(self, plan: Any, rounds: int, room: int = 99) -> tuple[float, list[Shape]]:
        """Expected tokens per second of that many rounds under a plan, and the shapes that it chose."""
        shapes = []
        for _ in range(rounds):
            shape = plan.choose(room)
            shapes.append(shape)
            draft = shape if shape != NO_DRAFT and self.dice.random() < self.found else NO_DRAFT
            kept = 0
            while kept < draft.depth and self.dice.random() < self.rate(draft.width, kept + 1):
                kept += 1
            jitter = self.pace * (1 + self.noise * (2 * self.dice.random() - 1))
            jitter *= 20 if self.noise and self.dice.random() < 0.005 else 1
            done = Round([[0] * (kept + 1)], [kept], draft_s=self.step * draft.depth * jitter)
            done.verify_s = self.verify(draft.total) * jitter
            plan.learn(SimpleNamespace(size=draft.total), path_of(kept), done)
        tokens, seconds = map(sum, zip(*map(self.expected, shapes), strict=True))
        return tokens / seconds, shapes


def path_of(kept: int) -> Accepted:
    """What a rule and the stop say of one row that kept that many drafted tokens."""
    return Accepted(NOTHING, NOTHING, None, paths=[list(range(kept + 1))], emitted=[[0] * (kept + 1)])


def flat(chance: float) -> Callable[[int, int], float]:
    """The same rate at every depth; more children miss less."""
    return lambda width, depth: 1 - (1 - chance) ** width**0.4


def falling(chance: float, factor: float) -> Callable[[int, int], float]:
    return lambda width, depth: 1 - (1 - chance * factor ** (depth - 1)) ** width**0.4


WORLDS = {
    "good and cheap": (CHAINS, World(flat(0.9), step=0.02)),
    "good and dear": (CHAINS, World(flat(0.85), step=0.35)),
    "middling": (CHAINS, World(flat(0.6), step=0.08)),
    "falls with depth": (CHAINS, World(falling(0.85, 0.7), step=0.05)),
    "large verifications are dear": (TREES, World(flat(0.6), node=0.12)),
    "large verifications are free": (TREES, World(flat(0.6), step=0.03, node=0.001)),
    "only trees pay": (TREES, World(flat(0.25), step=0.08, node=0.005)),
    "hardly worth it": (CHAINS, World(flat(0.35), step=0.05)),
    "copies": (COPIES, World(flat(0.9), step=0.0, found=0.3)),
    "never": (TREES, World(flat(0.03))),
}


def plan_for(shapes: Any, control: Auto | None = None) -> Any:
    return (control or Auto(shapes)).begin(1, GREEDY, Exact())


def begun(shapes: Any) -> Any:
    """A plan behind its first rounds, which have no draft and take a second each."""
    plan = plan_for(shapes)
    for _ in range(BASELINE):
        plan.choose(4)
        plan.learn(SimpleNamespace(size=1), path_of(0), Round([[0]], [0], verify_s=1.0))
    return plan


@pytest.mark.parametrize("name", WORLDS)
def test_it_comes_within_five_percent_of_the_best_fixed_shape(name: str) -> None:
    """Learning included, over 1000 rounds with noisy timings; four runs of dice."""
    shapes, world = WORLDS[name]
    found = []
    for seed in range(4):
        world.dice = random.Random(seed)
        found.append(world.play(plan_for(shapes), 1000)[0] / world.best(shapes))
    assert sum(found) / 4 > 0.95
    assert min(found) > 0.85


@pytest.mark.parametrize("step", [0.02, 0.1, 0.4])
def test_a_useless_drafter_costs_less_than_five_percent_of_512_tokens(step: float) -> None:
    speed, shapes = World(flat(0.02), step=step).play(plan_for(TREES), 500)
    assert speed > 0.95
    assert 3 < sum(shape != NO_DRAFT for shape in shapes) < 40


def test_it_gives_up_soon_after_drafting_stops_to_pay_and_comes_back_when_it_pays_again() -> None:
    world, plan = World(flat(0.75)), plan_for(TREES)
    world.play(plan, 300)
    world.rate = flat(0.02)
    speed, shapes = world.play(plan, 480)
    assert speed > 0.93
    assert shapes[40:].count(NO_DRAFT) > 0.95 * 440
    world.rate = flat(0.75)
    shapes = world.play(plan, 2 * MOST_QUIET)[1]
    back = next(i for i in range(len(shapes)) if NO_DRAFT not in shapes[i : i + 8])
    assert back < 1.5 * MOST_QUIET
    assert world.play(plan, 300)[0] > 0.9 * world.best(TREES)


def test_a_request_with_bad_pictures_after_good_ones_costs_little() -> None:
    control, world = Auto(TREES), World(flat(0.8), step=0.1)
    for _ in range(10):
        world.play(plan_for(TREES, control), 40)
    world.rate = flat(0.02)
    assert world.play(plan_for(TREES, control), 500)[0] > 0.94


def test_a_slower_computer_or_a_longer_text_changes_no_decision() -> None:
    """All rounds get slower alike, suddenly and by and by: that says nothing about drafts."""
    for change in (lambda i: 3.0, lambda i: 1.0 + i / 20):
        world, plan = World(flat(0.7)), plan_for(TREES)
        world.play(plan, 200)
        idle = 0
        for i in range(60):
            world.pace = change(i)
            idle += world.play(plan, 5)[1].count(NO_DRAFT)
        assert idle < 10


def test_what_was_learnt_serves_the_next_request() -> None:
    control, world = Auto(CHAINS), World(flat(0.9), step=0.02)
    world.play(plan_for(CHAINS, control), 400)
    shapes = world.play(plan_for(CHAINS, control), 10)[1]
    assert NO_DRAFT not in shapes
    assert min(shape.depth for shape in shapes) >= 5
    fresh = world.play(control.begin(2, GREEDY, Exact()), 3)[1]  # of batches of two, nothing is known
    assert fresh == [NO_DRAFT] * 3
    assert world.play(control.begin(1, SAMPLED, Exact()), 3)[1] == [NO_DRAFT] * 3


def test_a_round_without_a_draft_costs_no_arithmetic(monkeypatch: pytest.MonkeyPatch) -> None:
    world, plan = World(flat(0.0)), plan_for(TREES)
    world.play(plan, 100)
    assert plan.resting
    plan.quiet = 0
    monkeypatch.setattr(Choosing, "_gains", lambda self, shapes: pytest.fail("nothing needs to be worked out"))
    assert world.play(plan, plan.patience)[1] == [NO_DRAFT] * plan.patience


def test_looking_for_copies_goes_on_while_there_are_none() -> None:
    """A drafter that proposes nothing takes no time, so it is not given up for that."""
    world, plan = World(flat(0.9), step=0.0, found=0.0), plan_for(COPIES)
    assert world.play(plan, 100)[1].count(NO_DRAFT) == 3  # which are played first
    world.found = 1.0
    assert world.play(plan, 60)[0] > 0.85 * world.best(COPIES)


def test_of_drafts_that_would_all_be_cut_short_only_the_first_is_played() -> None:
    assert within(CHAINS, 5) == list(map(Shape, (1, 2, 3, 4, 5)))
    assert within(CHAINS, 7) == list(CHAINS)
    wide = (Shape(1), Shape(3), Shape(7, 2, 8), Shape(11, 3, 16), Shape(11, 4, 32), Shape(12, 4, 40))
    assert within(wide, 2) == [*wide[:5]]
    assert within(wide, 12) == [*wide]


def test_a_tree_that_is_cut_short_and_still_has_all_its_nodes_tells_its_cost_and_a_chain_does_not() -> None:
    for shape, nodes, plays in ((Shape(11, 3, 16), 16, 1), (Shape(9), 5, 0)):
        plan = begun([shape])
        assert plan.choose(4) == shape
        plan.learn(SimpleNamespace(size=nodes), path_of(2), Round([[0] * 3], [2], draft_s=0.1, verify_s=1.2))
        assert plan.memory.costs.plays(shape) == plays
        assert plan.memory.rates.known


def test_rows_that_ended_tell_nothing() -> None:
    known = []
    alone = [[0, 1, 2]], [[5, 6, 7]]
    beside_one = [[0, 1, 2], [0]], [[5, 6, 7], []]
    for paths, emitted in (alone, beside_one):
        plan = begun([Shape(2)])
        assert plan.choose(4) == Shape(2)
        played = Accepted(NOTHING, NOTHING, None, paths=paths, emitted=emitted)
        plan.learn(SimpleNamespace(size=3), played, Round(emitted, [2] * len(paths), verify_s=1.2))
        known.append(plan.memory.rates.known)
    assert known[0] == known[1]


def test_levels_for_which_there_was_no_room_were_not_tried_and_are_forgotten_by_and_by() -> None:
    plan = begun([Shape(4)])
    counts = []
    for room, kept in ((4, 4), (4, 4), (1, 1)):
        assert plan.choose(room) == Shape(4)
        plan.learn(SimpleNamespace(size=1 + room), path_of(kept), Round([[0] * (kept + 1)], [kept], verify_s=1.2))
        counts.append([rate.count for rate in plan.memory.rates.known[1]])
    assert counts[2][0] > counts[1][0]
    assert counts[2][1:] == pytest.approx([count * (1 - STEP) for count in counts[1][1:]])


def test_looking_in_vain_is_no_part_of_what_a_round_without_a_draft_costs() -> None:
    plan = plan_for(CHAINS)
    plan.choose(4)
    plan.learn(SimpleNamespace(size=1), path_of(0), Round([[0]], [0], draft_s=5.0, verify_s=0.75, other_s=0.25))
    assert plan.memory.costs.predict([NO_DRAFT]) == [1.0]


def test_rounds_without_room_for_a_draft_do_not_tell_what_one_without_costs() -> None:
    """CSM begins a frame in such a round, by a pass of the backbone that no draft can save."""
    control = Auto(CHAINS)
    plan = control.begin(1, GREEDY, Exact())
    for room, seconds in ((3, 1.0), (0, 9.0)) * 8:
        plan.choose(room)
        plan.learn(SimpleNamespace(size=1), path_of(0), Round([[0]], [0], verify_s=seconds))
    (memory,) = control.memories.values()
    assert memory.costs.plays(NO_DRAFT) == 8
    assert memory.costs.predict([NO_DRAFT]) == pytest.approx([1.0])


def test_drafts_fit_into_what_is_left_of_the_budget() -> None:
    world, plan = World(flat(0.9), step=0.01), plan_for(CHAINS)
    world.play(plan, 100)
    for room in (0, 1, 2, 5):
        assert all(shape.depth <= room for shape in world.play(plan, 40, room)[1])
    long = Auto([Shape(9)])
    world.play(plan_for((), long), 20)
    assert Shape(9) in world.play(plan_for((), long), 5, room=4)[1]  # the only shape there is: the budget cuts it short


def test_rates_are_counted_by_depth_and_row() -> None:
    rates = Rates()
    for _ in range(400):
        rates.learn(1, 3, [0, 1, 2, 3])
    assert rates.of(1, 3) == pytest.approx([3 / 4, 2 / 3, 1 / 2], rel=0.01)
    assert rates.tokens([Shape(3), Shape(1)], 9) == pytest.approx([1 + 6 / 4, 1.75], rel=0.01)
    assert rates.tokens([Shape(3)], 1) == rates.tokens([Shape(1)], 9)
    assert 0.75 < rates.of(4, 1)[0] < 1
    for _ in range(400):
        rates.learn(4, 3, [0])
    assert rates.of(1, 1)[0] < 0.11  # a chain accepts no more than a tree


def test_costs_are_robust_means_at_one_pace() -> None:
    costs = Costs()
    for seconds in (9.0, 1.0, 1.0, 1.0, 1.0, 50.0, 1.0):
        costs.learn(NO_DRAFT, seconds)
    assert costs.predict([NO_DRAFT])[0] < 1.5
    costs = Costs()
    for shape, seconds in ((NO_DRAFT, 1.0), (Shape(3), 2.0), (Shape(7), 3.0)):
        for _ in range(30):
            costs.learn(shape, seconds)
    assert costs.predict([Shape(3), Shape(5), Shape(9)]) == pytest.approx([2, 2.5, 3 + 2 / 7])
    costs.learn(Shape(4), 100.0)  # the first time, with a pause
    assert costs.predict([Shape(4)])[0] < 4
    for _ in range(40):
        costs.learn(Shape(3), 4.0)
    alone, chain = costs.predict([NO_DRAFT, Shape(3)])
    assert chain / alone == pytest.approx(2.0, rel=0.15)


# Where it is at work, and how it is asked for -------------------------------------------------------------------------


def test_it_decides_only_where_no_output_can_depend_on_it() -> None:
    control = Auto(CHAINS)
    for rule in (Exact(), Match(), Ratio(), Block(), Typical()):
        assert isinstance(control.begin(1, GREEDY, rule), Choosing)
        assert (control.begin(1, SAMPLED, rule) is OWN) == isinstance(rule, Ratio | Block | Typical)


def test_a_name_gets_auto_a_drafter_of_the_users_keeps_its_settings(tmp_path: Path) -> None:
    folder = str(tiny.tiny_llama(tmp_path))
    pipe = mmspec.load(folder, "prompt-lookup")
    assert isinstance(pipe.control, Auto)
    assert pipe.control.shapes == COPIES
    assert mmspec.load(folder, PromptLookup(length=3)).control == OWN
    assert mmspec.load(folder, "prompt-lookup", shape=Shape(2)).control == Fixed(Shape(2))
    assert mmspec.load(folder, "prompt-lookup", shape="own").control == OWN
    assert isinstance(pipe.with_drafter(PromptLookup(), shape="auto").control, Auto)
    assert pipe.with_drafter("none").control == OWN
    expected = pipe.with_drafter("none")(None, "red red red red", max_new_tokens=16, temperature=1.0, seed=3)
    for shape in ("auto", "own", Shape(3)):
        other = pipe.with_drafter("prompt-lookup", shape)
        for _ in range(2):
            got = other(None, "red red red red", max_new_tokens=16, temperature=1.0, seed=3)
            assert got.token_ids == expected.token_ids


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("auto", "auto"),
        ("own", "own"),
        ("4", Shape(4)),
        ("5x4x16", Shape(5, 4, 16)),
        ("3x2", Shape(3, 2, 7)),
        ("5x4x16x0.1", Shape(5, 4, 16, least=0.1)),
        ("4x1x5x0.05", Shape(4, least=0.05)),
    ],
)
def test_shapes_are_read_as_they_are_printed(text: str, shape: Any) -> None:
    assert read_shape(text) == shape
    assert read_shape(str(shape)) == shape


@pytest.mark.parametrize("least", ["0.1", True, None])
def test_a_confidence_that_is_no_number_is_one_clear_error(least: Any) -> None:
    with pytest.raises(InputError, match="a number is needed"):
        Shape(5, 4, 16, least=least)


@pytest.mark.parametrize("text", ["", "big", "4x", "x", "4x4x4x4", "5x4x16x", "5x4x16x0.1x2", "-1", "4x0x9", "4x2x3"])
def test_what_is_no_shape_is_one_clear_error(text: str) -> None:
    with pytest.raises(InputError, match="auto, own, a depth such as 4"):
        read_shape(text)


def test_the_command_line_takes_shapes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, shapes = str(tiny.tiny_llama(tmp_path)), []
    load = mmspec.load
    monkeypatch.setattr(
        mmspec, "load", lambda *parts, shape, **more: shapes.append(shape) or load(*parts, shape=shape, **more)
    )
    arguments = ["generate", "--model", folder, "--max-new-tokens", "3", "--shape"]
    for text in ("own", "3", "4x2x8"):
        result = CliRunner().invoke(app, [*arguments, text, "red"])
        assert result.exception is None, result.exception
    assert shapes == ["own", Shape(3), Shape(4, 2, 8)]
    assert isinstance(CliRunner().invoke(app, [*arguments, "4x"]).exception, InputError)


def test_shapes_that_cannot_be_had_are_one_clear_error() -> None:
    for wrong in ((-1,), (2, 0), (4, 1, 4), (2.0,), (True,)):
        with pytest.raises(InputError, match="is not valid"):
            Shape(*wrong)
    with pytest.raises(InputError, match=r"shape=5 is not valid: 'auto', 'own', a mmspec\.Shape"):
        mmspec.load("no/such-model", shape=5)  # told before anything is looked for
    with pytest.raises(MismatchError, match=r"'none' makes drafts of its own size"):
        control_for(Shape(3), NoDrafter())
    looking = Lookahead(window=5, ngram=4, branches=4)
    for less in (Shape(6, 5, 28), Shape(7)):
        with pytest.raises(MismatchError, match="'lookahead' makes drafts of shape 7x5x28 or none"):
            control_for(less, looking)
    for shape in (NO_DRAFT, Shape(7, 5, 28), Shape(8, 8, 60)):
        assert control_for(shape, looking) == Fixed(shape)
    assert control_for("auto", NoDrafter()) == OWN


# Outputs, in the real loop --------------------------------------------------------------------------------------------


@dataclass
class Jumping:
    """Any shape or none, at random: rests of several rounds among them."""

    seed: int
    played: list[Shape] = field(default_factory=list)
    resting: int = 0

    def begin(self, rows: int, sampler: Any, rule: Any) -> "Jumping":
        self.dice = random.Random(self.seed)
        return self

    def choose(self, room: int) -> Shape:
        self.resting -= 1
        if self.resting < 1 and self.dice.random() < 0.3:
            self.resting = self.dice.choice((1, 2, 5))
        self.played.append(NO_DRAFT if self.resting > 0 else self.dice.choice((*CHAINS, *TREES)))
        return self.played[-1]

    def learn(self, draft: Draft, accepted: Accepted, done: Round) -> None:
        """Nothing to learn."""


SAMPLINGS = {"T0": Sampling(), "T1": Sampling(temperature=1.0, top_k=30, seed=6)}


@pytest.mark.parametrize("how", SAMPLINGS)
@pytest.mark.parametrize("name", [name for name in toys.DRAFTERS if name != "none"])
def test_no_sequence_of_shapes_changes_an_output(name: str, how: str) -> None:
    model, target = test_equality.make("simple")
    inputs = toys.prompts(17, 9, 12)
    eos = [toys.answer(target, NoDrafter(), inputs, 40, SAMPLINGS[how]).rows[1][17]]  # a row ends before the others
    want = toys.answer(target, NoDrafter(), inputs, 40, SAMPLINGS[how], eos=eos).rows
    for seed in range(2):
        jumping = Jumping(seed)
        got = toys.answer(target, toys.DRAFTERS[name](model), inputs, 40, SAMPLINGS[how], eos=eos, control=jumping)
        assert got.rows == want
        assert len(set(jumping.played)) > 4
        if name in ("spd-copy", "eagle-copying"):
            assert max(got.accepted) >= 1


@pytest.mark.parametrize("how", SAMPLINGS)
@pytest.mark.parametrize("name", ["prompt-lookup", "spd-perturbed", "eagle-copying"])
def test_auto_changes_no_output(name: str, how: str) -> None:
    model, target = test_equality.make("simple")
    drafter, inputs = toys.DRAFTERS[name](model), toys.prompts(17, 9)
    want = toys.answer(target, NoDrafter(), inputs, 40, SAMPLINGS[how]).rows
    drafter.bind(target)
    control = control_for("auto", drafter)
    for _ in range(2):
        assert toys.answer(target, drafter, inputs, 40, SAMPLINGS[how], control=control).rows == want
    assert isinstance(control, Auto)
    assert control.memories[2, how == "T0"].rounds > 0


def test_one_request_at_a_time_uses_what_is_known() -> None:
    control = Auto(CHAINS)
    plan = control.begin(1, GREEDY, Exact())
    other = Thread(target=plan.choose, args=(4,))
    with control.memories[1, True].lock:
        other.start()
        other.join(0.05)
        assert other.is_alive()
    other.join()


class Refusing(Exact):
    """Keeps nothing, so there is a draft at every position."""

    def __call__(self, draft: Draft, scores: torch.Tensor, sampler: Sampler, emitted: torch.Tensor) -> Accepted:
        chosen = super().__call__(Draft.root(draft.tokens[:, 0]), scores[:, :1], sampler, emitted)
        return Accepted(chosen.path, chosen.count, chosen.next)


@dataclass
class Script:
    """A given shape for every round, then the last one."""

    shapes: list[Shape]

    def begin(self, rows: int, sampler: Any, rule: Any) -> "Script":
        self.left = list(self.shapes)
        return self

    def choose(self, room: int) -> Shape:
        return self.left.pop(0) if len(self.left) > 1 else self.left[0]

    def learn(self, draft: Draft, accepted: Accepted, done: Round) -> None:
        """Nothing to learn."""


@pytest.mark.parametrize("name", ["spd-perturbed", "eagle-random", "eagle-copying", "prompt-lookup"])
def test_after_a_rest_drafts_are_those_of_a_drafter_that_never_rested(name: str) -> None:
    """Catching up on many tokens at once, in rows that accepted different lengths before."""
    model, target = test_equality.make("simple")
    inputs, shape = toys.prompts(17, 9, 12), Shape(3, 3, 9)
    drafts: list[dict[tuple[int, int], list[int]]] = []

    def run(control: Any, rule: Any) -> list[Any]:
        drafts.append({})

        def look(state: State, draft: Draft) -> None:
            for row, ids in enumerate(state.ids):
                if not state.done[row] and state.shape == shape and state.room >= shape.depth:
                    real = slice(None) if draft.valid is None else draft.valid[row]
                    drafts[-1][row, len(ids)] = [*draft.tokens[row, real].tolist(), *draft.parents[row, real].tolist()]

        drafter = Watched(toys.DRAFTERS[name](model), look)
        return toys.answer(target, drafter, inputs, 60, rule=rule, control=control).rows

    always = run(Fixed(shape), Refusing())
    resting = run(Script([shape] * 4 + [NO_DRAFT] * 15 + [shape] * 2 + [NO_DRAFT] * 2 + [shape]), Exact())
    assert resting == always
    shared = drafts[0].keys() & drafts[1].keys()
    assert len({length for row, length in shared if row == 0}) > 5
    assert [drafts[1][key] for key in shared] == [drafts[0][key] for key in shared]


def test_waiting_slots_of_several_rounds_are_joined_without_gaps() -> None:
    def part(*rows: list[int]) -> tuple[torch.Tensor, torch.Tensor, list[int]]:
        width = max(map(len, rows))
        tokens = torch.tensor([row + [0] * (width - len(row)) for row in rows])
        return tokens, tokens[..., None].repeat(1, 1, 2).float(), [len(row) for row in rows]

    tokens, features, counts = joined([part([1, 2, 3], [4]), part([5], [6]), part([7], [8, 9])])
    assert counts == [5, 4]
    assert tokens[0].tolist() == [1, 2, 3, 5, 7]
    assert tokens[1, :4].tolist() == [4, 6, 8, 9]
    assert features[1, :4, 1].tolist() == [4, 6, 8, 9]


def test_a_fixed_shape_is_followed() -> None:
    model, target = test_equality.make("simple")
    inputs = toys.prompts(17)
    for name, shape in (("spd-copy", Shape(2)), ("eagle-copying", Shape(2, 3, 6)), ("prompt-lookup", Shape(2))):
        got = toys.answer(target, toys.DRAFTERS[name](model), inputs, 24, control=Fixed(shape))
        assert max(done.proposed for done in got.rounds) == shape.total - 1
        assert max(got.accepted) <= 2
