"""The law of Jacobi windows under every rule that takes them, on tables whose outcomes can be enumerated.

Checks draw 5 000 pictures of six codes through the whole loop and fail at a chi-square p-value under 1e-6, of the
pictures or of their last three codes; wrong variants must fail with as many.
"""

from collections import Counter
from typing import Any

import pytest
import tables
import torch
import toys
from noted_noise import noted_noise
from torch import Tensor

import mmspec
from mmspec import noise
from mmspec.acceptance.block import Block
from mmspec.acceptance.exact import Exact
from mmspec.acceptance.match import Match
from mmspec.acceptance.ratio import Ratio
from mmspec.contract import State
from mmspec.decode import choose_kind
from mmspec.drafters.none import NoDrafter
from mmspec.errors import MismatchError
from mmspec.image_ar import jacobi, pac
from mmspec.image_ar.guesses import INITS
from mmspec.image_ar.jacobi import SJD, GumbelSharing, Jacobi, MaximalCoupling
from mmspec.image_ar.layout import Layout
from mmspec.image_ar.pac import Proactive
from mmspec.image_ar.target import guide
from mmspec.image_ar.window import Redraw
from mmspec.sampling import Sampler, Sampling, warp

VOCAB, BUDGET, ROWS = 3, 6, 5_000
FALSE_ALARM = 1e-6
SAMPLINGS = {
    "plain": Sampling(temperature=1.0, seed=100),
    "warped": Sampling(temperature=0.8, top_k=2, seed=7),
}


class Painted(tables.TableTarget):
    """A table that emits a picture of 3 x 2 codes."""

    layout = Layout(3, 2, VOCAB)


TARGET = Painted(tables.random_table(VOCAB, 3, 3.0))
PROMPTS = {"input_ids": torch.tensor([[1, 2]]).repeat(ROWS, 1)}
METHODS: dict[str, Any] = {"jacobi": Jacobi, "sjd": SJD, "scd-mc": MaximalCoupling, "scd-gs": GumbelSharing}


def tree(window: int = 4, init: str = "random", width: int = 2) -> Proactive:
    return Proactive(window, init, width=width, depth=3)


def draw(drafter: Any, rule: Any, sampling: Sampling, prompts: Any = PROMPTS) -> toys.Answer:
    return toys.answer(TARGET, drafter, prompts, BUDGET, sampling, rule)


def outcomes(sampling: Sampling) -> dict[tuple[int, ...], float]:
    """The exact law of all pictures."""
    law = {(1, 2): 1.0}
    for _ in range(BUDGET):
        law = {
            (*ids, token): mass * p
            for ids, mass in law.items()
            for token, p in enumerate(warp(TARGET.table[ids[-2:]], sampling).softmax(-1).tolist())
        }
    return {ids[2:]: mass for ids, mass in law.items()}


def p_value(rows: list[list[int]], sampling: Sampling) -> float:
    """The smaller one of pictures and of their last three codes: faults add up, and fewer outcomes show less chance."""
    law, tail = outcomes(sampling), dict[tuple[int, ...], float]()
    for ids, mass in law.items():
        tail[ids[3:]] = tail.get(ids[3:], 0.0) + mass
    whole = tables.p_value(Counter(map(tuple, rows)), law)
    return min(whole, tables.p_value(Counter(tuple(row[3:]) for row in rows), tail))


@pytest.mark.parametrize("how", SAMPLINGS)
@pytest.mark.parametrize("name", ["sjd", "scd-mc", "scd-gs", "sjd-pac"])
def test_windows_keep_the_targets_law_under_the_ratio_rule(name: str, how: str) -> None:
    got = draw(tree(3) if name == "sjd-pac" else METHODS[name](3), Ratio(), SAMPLINGS[how])
    assert p_value(got.rows, SAMPLINGS[how]) > FALSE_ALARM
    assert {0, 1, 2} <= set(got.accepted)


@pytest.mark.parametrize("init", INITS)
def test_every_first_guess_keeps_the_targets_law(init: str) -> None:
    for drafter in (SJD(2, init), MaximalCoupling(6, init), tree(5, init, 3)):
        got = draw(drafter, Ratio(), SAMPLINGS["plain"])
        assert p_value(got.rows, SAMPLINGS["plain"]) > FALSE_ALARM


@pytest.mark.parametrize("name", METHODS)
def test_the_exact_rule_emits_what_the_autoregressive_loop_emits(name: str) -> None:
    prompts = {"input_ids": PROMPTS["input_ids"][:500]}
    for sampling in SAMPLINGS.values():
        want = draw(NoDrafter(), Exact(), sampling, prompts).rows
        for init in INITS:
            assert draw(METHODS[name](3, init), Exact(), sampling, prompts).rows == want
        assert draw(tree(), Exact(), sampling, prompts).rows == want


def test_coupling_accepts_more_than_new_draws() -> None:
    """What the coupled methods are for: guesses settle, while new draws in every round keep the context moving."""
    prompts = {"input_ids": PROMPTS["input_ids"][:2000]}

    def rounds(drafter: Any, rule: Any) -> int:
        return len(draw(drafter, rule, SAMPLINGS["plain"], prompts).accepted)

    fresh = rounds(SJD(4), Ratio())
    coupled = rounds(MaximalCoupling(4), Ratio())
    assert coupled < fresh
    assert rounds(tree(), Ratio()) < coupled
    assert rounds(GumbelSharing(4), Ratio()) < fresh
    assert rounds(GumbelSharing(4), Exact()) < rounds(SJD(4), Exact())


@pytest.mark.parametrize("name", ["sjd", "scd-mc", "sjd-pac"])
def test_no_number_of_the_drafters_noise_serves_twice(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for two uses, nor in two rounds. Only scd-gs keeps that of a place."""
    asked = noted_noise(monkeypatch)
    for seed in range(10):
        drafter = tree() if name == "sjd-pac" else METHODS[name](4)
        draw(drafter, Ratio(), Sampling(temperature=1.0, seed=seed), {"input_ids": PROMPTS["input_ids"][:1]})
    drafted = [times for (stream, *_), times in asked.items() if stream == noise.DRAFT]
    assert len(drafted) > 100
    assert set(drafted) == {1}


def test_what_a_row_draws_depends_on_no_other_row() -> None:
    """Also where rows accept different lengths, so that their windows begin anew at different columns."""

    def drawn(rows: int, seed: int) -> list[list[int]]:
        prompts = {"input_ids": PROMPTS["input_ids"][:rows]}
        return toys.answer(TARGET, SJD(4), prompts, 5 * BUDGET, Sampling(temperature=1.0, seed=seed), Ratio()).rows

    assert drawn(6, 5) == [row for seed in range(5, 11) for row in drawn(1, seed)]


class Kept(MaximalCoupling):
    """Wrong: guesses stay as they are, under the new law's name."""

    def redraw(self, at: Redraw) -> Tensor:
        if at.old is None or at.first:
            return super().redraw(at)
        fresh = (at.scores + at.fresh(jacobi.REST)).argmax(-1)
        fresh[:, : at.old.tokens.shape[1]] = at.old.tokens
        return fresh


class SameCoins(MaximalCoupling):
    """Wrong: the coin that kept a guess accepts it, too."""

    def redraw(self, at: Redraw) -> Tensor:
        at.coins = lambda count: noise.uniform(at.sampler.seeds, noise.ACCEPT, at.places[:, :count], 1)[..., 0]  # type: ignore[method-assign]
        return super().redraw(at)


@pytest.mark.parametrize("wrong", [Kept, SameCoins])
def test_the_check_finds_a_wrong_way_to_draw_again(wrong: Any) -> None:
    assert p_value(draw(wrong(4), Ratio(), SAMPLINGS["plain"]).rows, SAMPLINGS["plain"]) < FALSE_ALARM


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_guidance_rounds_no_more_than_the_model_did(dtype: torch.dtype) -> None:
    told, free = (10 * torch.randn(2, 1, 3, 50, generator=torch.Generator().manual_seed(0))).to(dtype)
    want = free.double() + 7.5 * (told.double() - free.double())
    got = guide(torch.cat([told, free]), 1, 7.5)
    assert got.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    torch.testing.assert_close(got.double(), want, rtol=0, atol=1e-4)
    assert guide(told, 1, 1.0) is told


def test_the_check_finds_a_wrong_residual(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jacobi, "residual", lambda p, q: p)
    rows = draw(MaximalCoupling(6), Ratio(), SAMPLINGS["plain"]).rows
    assert p_value(rows, SAMPLINGS["plain"]) < FALSE_ALARM


def test_the_check_finds_siblings_drawn_from_another_law(monkeypatch: pytest.MonkeyPatch) -> None:
    def drawn(self: pac.Tree, state: State, guesses: Tensor, q: Tensor, width: int) -> Tensor:
        return real(self, state, guesses, torch.ones_like(q), width)

    real = pac.Tree._siblings
    monkeypatch.setattr(pac.Tree, "_siblings", drawn)
    assert p_value(draw(tree(), Ratio(), SAMPLINGS["plain"]).rows, SAMPLINGS["plain"]) < FALSE_ALARM


def test_rules_that_look_ahead_refuse_windows_that_draft_again() -> None:
    """What block verification looked at may not come back; with new draws in every round it is exact."""
    for drafter in (MaximalCoupling(4), GumbelSharing(4), Proactive(4)):
        with pytest.raises(MismatchError, match="looks at every drafted token"):
            choose_kind(Block(), drafter)
    assert p_value(draw(SJD(4), Block(), SAMPLINGS["plain"]).rows, SAMPLINGS["plain"]) > FALSE_ALARM


def test_a_window_survives_rounds_that_it_did_not_draft() -> None:
    """Under a control that sometimes drafts nothing, or less than the whole window."""

    class Moody:
        turn = 0

        def begin(self, *args: Any) -> "Moody":
            return self

        def choose(self, room: int) -> Any:
            from mmspec.contract import Shape

            self.turn += 1
            return [None, Shape(0), Shape(2), Shape(1)][self.turn % 4]

        def learn(self, *args: Any) -> None:
            pass

    for name, rule in (("scd-mc", Ratio()), ("scd-gs", Ratio()), ("sjd", Ratio()), ("scd-gs", Exact())):
        drafter = METHODS[name](3, "sample-left")
        got = toys.answer(TARGET, drafter, PROMPTS, BUDGET, SAMPLINGS["plain"], rule, control=Moody())
        assert p_value(got.rows, SAMPLINGS["plain"]) > FALSE_ALARM


def test_a_first_guess_copies_what_its_neighbour_was_drawn_again_to() -> None:
    """Not what stood there before, or nothing: places that were looked at are the neighbours of those that are new."""
    copies: list[bool] = []

    class Watched(SJD):
        def begin(self, state: State, sampler: Sampler, kind: Any) -> Any:
            window = super().begin(state, sampler, kind)
            observe = window.observe

            def observed(state: State, *done: Any) -> None:
                observe(state, *done)
                for ids, held, known in zip(state.ids, window.guesses.tokens, window.past.known.tolist(), strict=True):
                    tokens = [*ids[2:], *held.tolist()]
                    ahead = range(known + 1, min(BUDGET, len(tokens)))
                    new = [place for place in ahead if place % 2]  # in the second of two columns
                    copies.extend(tokens[place] == tokens[min(place - 1, known)] for place in new)

            window.observe = observed  # type: ignore[method-assign]
            return window

    draw(Watched(3, "repeat-left"), Ratio(), SAMPLINGS["plain"], {"input_ids": PROMPTS["input_ids"][:500]})
    assert len(copies) > 100
    assert all(copies)


def test_a_proactive_tree_has_siblings_on_its_first_levels_and_then_a_chain() -> None:
    parents, level, rank = pac.branches(2, 3, 4)
    assert parents == [-1, 0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 13]
    assert level == [0, 1, 1, 1] + [2] * 9 + [3, 4]
    assert rank[:4] == [0, 0, 1, 2]
    for width, window in ((4, 45), (3, 53)):  # with D = 3 the published 64 nodes, the last token included
        assert len(pac.branches(2, width, window)[0]) == 64
    for bad in ({"width": 0}, {"width": 2.5}, {"depth": 9, "window": 4}, {"depth": 8, "width": 8, "window": 16}):
        with pytest.raises(mmspec.Error, match="SJD-PAC needs"):
            Proactive(**bad)
    small = Proactive(8, width=4)
    small.bind(TARGET)
    with pytest.raises(mmspec.Error, match="4 different tokens per level, and there are 3"):
        small.begin(None, None, "sampled")  # type: ignore[arg-type]


def test_every_method_but_jacobi_refuses_rules_without_its_kind() -> None:
    with pytest.raises(MismatchError, match="'ratio' takes"):
        choose_kind(Ratio(), Jacobi())
    assert choose_kind(Exact(), GumbelSharing()) == "coupled"
    assert choose_kind(Match(), GumbelSharing()) == "sampled"
    assert choose_kind(Ratio(), GumbelSharing()) == "sampled"


def test_first_guesses_are_what_they_are_said_to_be() -> None:
    """On a picture of 2 rows of 3 codes and a line end: neighbours, edges, forced places, places not known yet."""
    from mmspec.image_ar.guesses import Places

    layout = Layout(2, 3, 5, newline=5)
    first = torch.tensor([4])

    def laws(init: str, known: int, places: list[int]) -> list[Any]:
        past = Places.start(init, layout, layout.vocab_size, first, 2)
        tokens = torch.tensor([[4, 3, 2, 5, 1, 0, 3, 5]])
        past.note(torch.arange(8)[None], tokens)
        past.note_laws(torch.arange(8)[None], torch.arange(8.0)[None, :, None].expand(1, 8, 6) * torch.arange(6))
        past.known = torch.tensor([known])
        found = past.guess(torch.tensor([places]))[0].softmax(-1)
        return [int(law.argmax()) if law.max() == 1 else law for law in found]

    assert laws("repeat-left", 1, [2, 3]) == [3, 5]
    left = laws("repeat-left", 0, [2, 4, 5, 7])
    assert left[0] == 4  # place 1 is not known yet, place 0 is
    assert torch.allclose(left[1], torch.tensor([0.2] * 5 + [0.0]))  # nothing stands left of the first column
    assert left[3] == 5
    assert laws("repeat-above", 3, [4, 5, 6]) == [4, 3, 2]
    assert torch.allclose(laws("repeat-above", 0, [1])[0], torch.tensor([0.2] * 5 + [0.0]))
    drawn = laws("sample-left", 4, [5])[0]
    assert torch.allclose(drawn[:5], (4.0 * torch.arange(5)).softmax(-1))
    assert torch.allclose(laws("random", 0, [1])[0], torch.tensor([0.2] * 5 + [0.0]))


def test_the_place_above_is_the_nearest_one_that_is_known() -> None:
    layout = Layout(3, 4, 5, newline=5)
    for known in range(layout.length):
        for place in range(layout.length):
            want = [above for above in range(place % 5 - 5, place, 5) if above <= known][-1]
            assert int(layout.above(torch.tensor(place), torch.tensor(known))) == want


def test_a_layout_forces_line_ends_and_nothing_else() -> None:
    layout = Layout(2, 2, 3, newline=3, tail=(4, 5))
    assert (layout.width, layout.length, layout.vocab_size) == (3, 8, 6)
    forced = layout.force(torch.zeros(1, 8, 6), torch.arange(8)[None])[0].softmax(-1)
    assert forced.argmax(-1).tolist()[2::3] == [3, 3]
    assert [int(row.argmax()) for row in forced[6:]] == [4, 5]
    assert torch.allclose(forced[0], torch.tensor([1 / 3] * 3 + [0.0] * 3))
    assert layout.grid([0, 1, 3, 2, 0, 3, 4, 5]) == [0, 1, 2, 0]
    assert layout.grid([0, 1, 3, 2]) == [0, 1, 2]


def test_unused_state_is_not_read() -> None:
    """A drafter is shared by requests: two at once do not disturb each other."""
    drafter = MaximalCoupling(3)
    drafter.bind(TARGET)
    few = {"input_ids": PROMPTS["input_ids"][:2]}
    sampler = Sampler(SAMPLINGS["plain"], 2, torch.device("cpu"))
    states = [TARGET.prefill({**few, "max_new_tokens": 5}, drafter.needs, sampler) for _ in range(2)]
    windows = [drafter.begin(state, sampler, "sampled") for state in states]
    assert isinstance(states[0], State)
    first = windows[0].propose(states[0]).tokens
    windows[1].propose(states[1])
    assert torch.equal(windows[0].propose(states[0]).tokens, first)
