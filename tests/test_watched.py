"""Drafters and rules that look at what another one does say of themselves what that one says, whatever that comes to
be, and change nothing.
"""

from inspect import get_annotations
from types import FunctionType
from typing import Any

import pytest
import toys
from torch import Tensor

from mmspec.acceptance.exact import Exact
from mmspec.benchmarks.certainty import Watching
from mmspec.contract import Accepted, Draft, Drafter, Drafting, Kind, Rule, State
from mmspec.demos.recorder import Recorder
from mmspec.drafters.prompt_lookup import PromptLookup
from mmspec.drafters.suffix import Suffix, SuffixStore
from mmspec.drafters.watched import Watched
from mmspec.sampling import Sampler
from mmspec.targets import CausalTarget
from mmspec.training.shares import Counting


def flags(kind: type) -> list[str]:
    """What a class says of itself: all its public attributes that are no functions, and those that it only declares."""
    there = {name for name, value in vars(kind).items() if not name.startswith("_") and not callable(value)}
    return sorted(there | get_annotations(kind).keys())


def deeds(kind: type) -> set[str]:
    """The public methods of a class, without those that are asked of the class itself."""
    return {name for name, value in vars(kind).items() if isinstance(value, FunctionType) and not name.startswith("_")}


class Says:
    """Says something of its own of everything that `declared` names, and once it is bound something else."""

    declared: type

    def __init__(self) -> None:
        self.say()

    def say(self) -> None:
        for name in flags(self.declared):
            setattr(self, name, object())

    def bind(self, target: Any) -> None:
        self.say()


class Frank(Says, Drafter):
    """A drafter that does."""

    declared = Drafter

    def begin(self, state: State, sampler: Sampler, kind: Kind) -> Drafting:
        raise AssertionError


class Candid(Says, Rule):
    """A rule that does."""

    declared = Rule

    def __call__(self, draft: Draft, scores: Tensor, sampler: Sampler, emitted: Tensor) -> Accepted:
        raise AssertionError


WATCHED = [Recorder, lambda inner: Counting(inner, 2, 2)]


def check_said(outer: Any, inner: Any, kind: type, *but: str) -> None:
    lost = [name for name in flags(kind) if getattr(outer, name) is not getattr(inner, name)]
    assert lost == list(but)


@pytest.mark.parametrize("make", WATCHED)
def test_a_watched_drafter_says_what_the_other_one_says(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it is bound and after, and what `Drafter` will come to declare."""
    assert {"kinds", "needs", "shapes", "reuses", "placeholders", "drafts_chains", "lossless"} < set(flags(Drafter))
    monkeypatch.setitem(Drafter.__annotations__, "counts_backwards", "bool")
    monkeypatch.setattr(Drafter, "counts_backwards", False, raising=False)
    inner = Frank()
    outer = make(inner)
    check_said(outer, inner, Drafter)
    outer.bind(None)
    check_said(outer, inner, Drafter)
    assert type(outer.counts_backwards) is object


def test_a_watched_rule_says_what_the_other_one_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """But that it may be recorded: its looks are on the host."""
    assert {"takes", "invariant", "chains", "verifies", "on_device"} < set(flags(Rule))
    monkeypatch.setitem(Rule.__annotations__, "rolls_dice", "bool")
    monkeypatch.setattr(Rule, "rolls_dice", False, raising=False)
    outer = Watching(Candid())
    check_said(outer, outer.rule, Rule, "on_device")
    outer.bind(None)
    check_said(outer, outer.rule, Rule, "on_device")
    assert type(outer.rolls_dice) is object
    assert Watching(Exact()).on_device is False


@pytest.mark.parametrize("kind", [Drafter, Rule])
def test_whatever_a_contract_says_is_annotated(kind: type) -> None:
    """Else it would not be handed on."""
    assert flags(kind) == sorted(get_annotations(kind))


def test_whatever_a_drafter_can_be_asked_to_do_the_other_one_does() -> None:
    assert deeds(Drafter) <= deeds(Watched)
    assert deeds(Rule) <= deeds(Watching)


@pytest.mark.parametrize("make", WATCHED)
def test_a_watched_drafter_set_aside_tells_the_store_nothing(make: Any) -> None:
    store = SuffixStore()
    outer = make(Suffix(store=store))
    beside = outer.aside()
    assert type(beside) is type(outer)
    assert outer.drafter.store is store
    assert beside.drafter.store is not store
    calls: list[str] = []
    outer.drafter.forget = lambda: calls.append("forgotten")
    outer.forget()
    assert calls == ["forgotten"]


def test_watching_changes_no_answer_and_sees_every_round() -> None:
    target, inputs = CausalTarget(toys.llama()), toys.prompts(17, 9, 14)
    want = toys.answer(target, PromptLookup(), inputs, 20)
    recorder, counting = Recorder(PromptLookup()), Counting(PromptLookup(), 2, 1)
    for outer in (recorder, counting):
        assert toys.answer(target, outer, inputs, 20).rows == want.rows
    assert len(recorder.rounds) == len(want.rounds) - 1  # the first one is the prompt's
    kept = [round.drafted for round in want.rounds[1:]]
    assert sum(map(sum, counting.hits)) == sum(min(2, count) for row in kept for count in row) > 0
