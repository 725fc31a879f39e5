"""Rules for continuous tokens: what their docstrings say of the law is so, and is not so where they say that it is not.

Statistical tests fail by chance once in 1e6 runs; seeds are fixed.
"""

import math
from typing import Any

import pytest
import tiny_mar
import torch
from noted_noise import noted_noise
from torch import Tensor

from mmspec import noise
from mmspec.drafters.none import NoDrafter
from mmspec.errors import InputError
from mmspec.image_ar import mar
from mmspec.image_ar.continuous import Conditioned, Continuous, Proposal, Released, Walk
from mmspec.image_ar.mar import ContinuousSampler, MarTarget, walks
from mmspec.image_ar.mar_canvas import Canvas
from mmspec.image_ar.mar_drafter import MarDrafter
from mmspec.sampling import Sampling

ROWS = 1500
SMALL: dict[str, Any] = {
    "grid": 2,
    "channels": 2,
    "reveal_steps": 3,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "head_layers": 1,
    "vae_config": {**tiny_mar.VAE, "latent_channels": 2},
}


def walk(mean: list[float], std: list[float], trail: float = 0.0) -> Walk:
    """One walk."""
    return Walk(torch.tensor([mean]).double(), torch.tensor([std]).double().log(), torch.tensor([trail]).double())


def many(one: Walk, count: int) -> Walk:
    return Walk(one.mean.expand(count, -1), one.log_std.expand(count, -1), one.trail.expand(count))


def uniformity(values: Tensor) -> float:
    """The Kolmogorov-Smirnov distance of numbers from the uniform law, over the one that chance exceeds in 1e-6."""
    ordered = values.flatten().double().sort().values
    count = len(ordered)
    grid = torch.arange(count + 1).double() / count
    distance = torch.maximum((ordered - grid[:-1]).abs().max(), (ordered - grid[1:]).abs().max())
    return float(distance) / math.sqrt(math.log(2e6) / 2 / count)


# The residual ------------------------------------------------------------------------------------------------------


def residual_cdf(p: Walk, q: Walk, factor: float) -> tuple[Tensor, Tensor]:
    """Of norm(max(S p - q, 0)) in one dimension: places, and the mass below each, by adding up."""
    places = torch.linspace(-12, 12, 240_001, dtype=torch.double)
    densities = [one.log_density(places[:, None]).exp() for one in (p, q)]
    rest = (factor * densities[0] - densities[1]).clamp(min=0)
    return places, rest.cumsum(0) / rest.sum()


@pytest.mark.parametrize("trail", [0.0, 0.7])
@pytest.mark.parametrize("q", [([0.8], [1.0]), ([0.0], [0.5]), ([-0.3], [2.0])])
def test_the_residual_is_that_of_numerical_integration(q: tuple[list[float], list[float]], trail: float) -> None:
    target, law = walk([0.2], [1.0]), walk(*q, trail)
    count = 20_000
    rule = Continuous()
    seeds, places = torch.arange(count), torch.full((count,), 3)
    drawn, missed = rule.residual(many(target, count), many(law, count), seeds, places)
    assert missed == 0
    grid, below = residual_cdf(target, law, math.exp(trail))

    def mass(values: Tensor) -> Tensor:
        return below[torch.searchsorted(grid, values.flatten()).clamp(max=len(grid) - 1)]

    assert uniformity(mass(drawn)) < 1
    plain = target.mean + torch.randn(count, 1, generator=torch.Generator().manual_seed(0)).double()
    assert uniformity(mass(plain)) > 1
    if trail:
        assert uniformity(mass(Conditioned().residual(many(target, count), many(law, count), seeds, places)[0])) > 1


def test_tries_that_do_not_suffice_are_counted_and_end_in_the_targets_own_law() -> None:
    same = many(walk([0.5], [2.0]), 4000)
    seeds, places = torch.arange(4000), torch.zeros(4000, dtype=torch.long)
    drawn, missed = Continuous(tries=20).residual(same, same, seeds, places)
    assert missed == 4000
    assert uniformity(torch.special.ndtr((drawn - 0.5) / 2)) < 1
    zeros, missed = Released().residual(same, same, seeds, places)
    assert missed == 4000
    assert not zeros.any()
    few, missed = Continuous(tries=1).residual(same, many(walk([2.5], [2.0]), 4000), seeds, places)
    assert 0 < missed < 4000
    for wrong in (0, -1, 1.5):
        with pytest.raises(InputError, match="tries=.* is not valid"):
            Continuous(tries=wrong)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="softness=0 is not valid"):
        Released(softness=0)


def test_a_lossless_rule_warns_where_no_try_was_accepted(caplog: pytest.LogCaptureFixture) -> None:
    p, q = walk([0.2], [1.0]), walk([0.8], [1.0])
    judged(Conditioned(), p, q, 500)
    judged(Continuous(tries=1), p, q, 500)  # keeps no law anyway
    assert not caplog.text
    judged(Conditioned(tries=1), p, q, 500)
    assert "the target's own law instead of the residual, since none of 1 tries was accepted" in caplog.text


def test_ratios_are_those_of_the_paper_and_of_its_code() -> None:
    p, q = walk([0.3, -0.2], [0.5, 0.8], -1.3), walk([0.1, 0.4], [0.7, 0.6], -0.9)
    x = torch.tensor([[0.2, 0.1]]).double()

    def density(one: Walk, spread: float = 1.0) -> float:
        normal = torch.distributions.Normal(one.mean, one.log_std.exp() * spread)
        return float(normal.log_prob(x).sum()) + 2 * math.log(spread)

    assert float(Continuous().log_ratio(x, p, q)) == pytest.approx(density(p) - density(q) + (-0.9 + 1.3))
    assert float(Conditioned().log_ratio(x, p, q)) == pytest.approx(density(p) - density(q))
    softened = density(p, 42) - density(q, 42) + (-1.3 + 0.9)
    assert float(Released().log_ratio(x, p, q)) == pytest.approx(softened)
    assert float(Released().log_excess(x, p, q)) == pytest.approx(density(p) - density(q) + (-1.3 + 0.9))
    assert torch.equal(Walk.unpack(p.pack()).pack(), p.pack())
    assert Walk.unpack(p.pack()).trail == p.trail


@pytest.mark.parametrize("rule", [Continuous(), Conditioned()])
def test_no_number_that_judges_or_draws_a_token_serves_twice(rule: Continuous, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the coin that refused a token, nor the draw where all tries fail, is one of a try's."""
    asked = noted_noise(monkeypatch)
    judged(rule, walk([0.2], [1.0]), walk([0.8], [1.0]), 500)
    assert {stream for stream, *_ in asked} == {noise.TARGET, noise.DRAFT, noise.ACCEPT}
    assert set(asked.values()) == {1}


# One token --------------------------------------------------------------------------------------------------------


class WrongResidual(Conditioned):
    """Draws from the target's law after a rejection, instead of from what is left of it."""

    def log_excess(self, tokens: Tensor, target: Walk, law: Walk) -> Tensor:
        return torch.full_like(tokens[..., 0], torch.inf)


def judged(rule: Continuous, p: Walk, q: Walk, count: int = 20_000) -> Tensor:
    """[count, D] what becomes of tokens drawn from q."""
    rows = torch.zeros(count, 1, dtype=torch.long)
    n = torch.randn(count, 1, 1, generator=torch.Generator().manual_seed(1)).double()
    law = Walk(*(part[:, None] for part in vars(many(q, count)).values()))
    draft = Proposal(
        tokens=law.mean + law.log_std.exp() * n,
        parents=rows - 1,
        depth=rows,
        kind=rule.takes[0],
        valid=rows == 0,
        places=rows,
        filled=rows == 0,
        law=law,
        groups=2,
    )
    sampler = ContinuousSampler(Sampling(temperature=1.0, seed=3), count, torch.device("cpu"))
    done = rule(draft, many(p, count).pack()[:, None], sampler, rows[:, 0])
    assert done.values is not None
    assert 0 < int(done.kept.sum()) < count or isinstance(rule, Released)  # which rejects next to nothing
    assert done.count.tolist() == [1] * count
    return done.values[:, 0]


@pytest.mark.parametrize("q", [([0.8], [1.0]), ([0.2], [0.5]), ([-0.3], [2.0])])
def test_one_token_is_drawn_from_the_targets_law_if_the_factor_is_left_out(q: tuple[list[float], list[float]]) -> None:
    """Whatever earlier steps added: given the noise that is shared, only the last step's densities count."""
    p = walk([0.2], [1.0])

    def score(rule: Continuous, trail: float) -> float:
        return uniformity(torch.special.ndtr(judged(rule, p, walk(*q, trail)) - 0.2))

    assert score(Conditioned(), 0.0) < 1
    assert score(Conditioned(), 0.4) < 1
    assert score(Continuous(), 0.0) < 1
    assert score(Continuous(), 0.4) > 1
    assert score(WrongResidual(), 0.0) > 1
    assert score(Released(), 0.0) > 1


# Whole pictures ----------------------------------------------------------------------------------------------------


def laws(made: Any, canvas: Canvas, counts: Tensor, context: Tensor, places: Tensor) -> Walk:
    """The laws [B, L, D] of some places, given their walks' noise and what a context knows.

    counts: [B, C] how many tokens each context knows. context, places: [B, L].
    """
    canvas.known = torch.zeros_like(canvas.known)
    with torch.inference_mode():
        return walks(made, canvas, canvas.values, counts, canvas.length, places, torch.zeros_like(places), context)


def given_the_plan(made: Any, canvas: Canvas) -> Walk:
    """Of all places in their order, given what plain decoding knows before the step of each."""
    counts = canvas.plan[:-1].expand(len(canvas.values), -1)
    steps = torch.searchsorted(canvas.plan, torch.arange(canvas.length), right=True) - 1
    return laws(made, canvas, counts, steps.expand_as(canvas.order), canvas.order)


def given_the_rounds(made: Any, canvas: Canvas, rounds: list[Any]) -> Walk:
    """The same, given what was known before the round that revealed a place."""
    counts, context = torch.zeros(2, *canvas.order.shape, dtype=torch.long)
    for row in range(len(counts)):
        known = 0
        for index, done in enumerate(rounds[1:]):
            counts[row, index] = known
            context[row, known : known + len(done.tokens[row])] = index
            known += len(done.tokens[row])
    return laws(made, canvas, counts, context, canvas.order)


def misfit(canvas: Canvas, law: Walk, other: Walk) -> float:
    """How far the values are from a law (below 1: not at all). Where each lies in its own law must be uniform, also if
    the laws are turned such that the means of `other`, which values may wrongly follow, lie above theirs."""
    values = canvas.values.gather(1, canvas.order[..., None].expand_as(law.mean))
    score = torch.special.ndtr((values - law.mean) / law.log_std.exp())
    return uniformity(torch.where(other.mean < law.mean, 1 - score, score))


def drawn(steps: int, rule: Any, drafter: str = "near", length: int = 3) -> tuple[Any, Any, Canvas, list[Any]]:
    """Target, drafter, the canvas and the rounds."""
    made = tiny_mar.model(diffusion_steps=steps, **SMALL)
    other = tiny_mar.near(made, 0.05 if drafter == "near" else 0.2)
    helper = NoDrafter() if drafter == "none" else MarDrafter(other, length, alone=0.0)
    canvas, rounds = tiny_mar.draw(MarTarget(made), helper, rule, ROWS, SMALL["grid"] ** 2, seed=4)
    return made, other, canvas, rounds


def share(canvas: Canvas, rounds: list[Any]) -> float:
    """Of all tokens, those that were drafted."""
    return sum(sum(done.drafted) for done in rounds) / canvas.order.numel()


def test_plain_decoding_draws_from_the_targets_law() -> None:
    made, other, canvas, _ = drawn(2, Conditioned(), "none")
    law, wrong = given_the_plan(made, canvas), given_the_plan(other, canvas)
    assert misfit(canvas, law, wrong) < 1
    assert misfit(canvas, wrong, law) > 1  # the check tells models apart


@pytest.mark.parametrize(("steps", "drafter"), [(1, "near"), (1, "far"), (3, "far")])
def test_the_conditioned_rule_keeps_the_law_of_plain_decoding(steps: int, drafter: str) -> None:
    rule = Conditioned()
    made, other, canvas, rounds = drawn(steps, rule, drafter)
    assert 0.01 < share(canvas, rounds) < 0.9
    assert len({len(places) for places in rounds[1].tokens}) > 1  # rows accept as much as is theirs
    assert rule.capped == 0
    assert misfit(canvas, given_the_plan(made, canvas), given_the_plan(other, canvas)) < 1


def test_a_row_near_its_end_keeps_what_it_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    kept, unequal = [], []

    def watched(model: Any, canvas: Canvas, values: Tensor, *more: Any) -> Walk:
        ranks = torch.arange(canvas.length).expand_as(canvas.order) < canvas.known[:, None]
        known = torch.zeros_like(ranks).scatter(1, canvas.order, ranks)
        kept.append(torch.equal(values[known], canvas.values[known]))
        unequal.append(len(set(canvas.revealed)) > 1)
        return walks(model, canvas, values, *more)

    monkeypatch.setattr(mar, "walks", watched)
    drawn(1, Conditioned())
    assert any(unequal)
    assert all(kept)


def test_a_wrong_residual_is_found() -> None:
    made, other, canvas, _ = drawn(1, WrongResidual())
    assert misfit(canvas, given_the_plan(made, canvas), given_the_plan(other, canvas)) > 1


def test_the_papers_rule_with_one_step_keeps_the_law_given_what_was_known_before_the_round() -> None:
    made, other, canvas, rounds = drawn(1, Continuous())
    assert 0.01 < share(canvas, rounds) < 0.9
    before, plan = given_the_rounds(made, canvas, rounds), given_the_plan(made, canvas)
    assert misfit(canvas, before, given_the_plan(other, canvas)) < 1
    assert misfit(canvas, before, plan) < 1
    assert misfit(canvas, plan, before) > 1


def test_the_released_rule_keeps_no_law() -> None:
    made, other, canvas, rounds = drawn(1, Released())
    drafts = given_the_plan(other, canvas)
    assert misfit(canvas, given_the_plan(made, canvas), drafts) > 1
    assert misfit(canvas, given_the_rounds(made, canvas, rounds), drafts) > 1


@pytest.mark.parametrize("steps", [1, 3])
def test_an_equal_drafter_is_accepted_wholly_where_it_is_judged_by_what_it_saw(steps: int) -> None:
    made = tiny_mar.model(diffusion_steps=steps)
    target = MarTarget(made)
    plain, _ = tiny_mar.draw(target, NoDrafter(), Conditioned(), 5, seed=2)
    for length in (1, 3, 5):
        drafter = MarDrafter(made, length, alone=0.0)
        canvas, rounds = tiny_mar.draw(target, drafter, Conditioned(), 5, seed=2)
        assert len(rounds) - 1 == math.ceil(6 / (length + 1))
        assert torch.allclose(canvas.values, plain.values, atol=1e-9)
        starts = range(0, 6, length + 1)
        drafted = sum(canvas.stages[min(5, start + length)] - canvas.stages[start] for start in starts)
        assert [sum(done.drafted[row] for done in rounds) for row in range(5)] == [drafted] * 5
    masked, rounds = tiny_mar.draw(target, MarDrafter(made, 3, alone=0.0), Continuous(), 5, seed=2)
    assert min(rounds[1].drafted) >= canvas.stages[1]
    assert sum(rounds[1].drafted) < 5 * canvas.stages[3]


@pytest.mark.parametrize(("schedule", "other"), [("linear", "constant"), ("constant", "linear")])
def test_a_drafter_is_guided_by_the_schedule_of_its_target(schedule: str, other: str) -> None:
    target = MarTarget(tiny_mar.model(guidance_schedule=schedule))
    drafters = [MarDrafter(tiny_mar.model(guidance_schedule=name), 3, alone=0.0) for name in (schedule, other)]
    drawings = [tiny_mar.draw(target, drafter, Conditioned(), 5, seed=2, guidance=4.0) for drafter in drafters]
    (canvas, rounds), (again, as_many) = drawings
    assert [done.drafted for done in as_many] == [done.drafted for done in rounds]
    assert len(rounds) - 1 == 2  # all is kept, since the weights are the target's
    assert torch.equal(again.values, canvas.values)
