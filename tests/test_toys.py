"""The loop is general: methods unlike each other run on `mmspec.decode.decode` as it is."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
import tables
import torch
import toys
from torch import Tensor

from mmspec import noise
from mmspec.acceptance.exact import Exact
from mmspec.cache import RowCache
from mmspec.contract import Accepted, Draft, Drafter, Drafting, Kind, Needs, Rule, State, Verified
from mmspec.decode import decode
from mmspec.decoder import Decoder
from mmspec.drafters.none import NoDrafter
from mmspec.sampling import Sampler, Sampling
from mmspec.stopping import Stop
from mmspec.targets import CausalTarget
from mmspec.tree import chain

CPU = torch.device("cpu")


# Static and dynamic trees ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("total", [None, 5], ids=["static", "dynamic"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_static_and_dynamic_trees_change_nothing_but_the_rounds(total: int | None, temperature: float) -> None:
    table = tables.random_table(40, 3)
    target = tables.TableTarget(table)
    near = table + 0.4 * tables.random_table(40, 4)
    inputs = {"input_ids": torch.tensor([[1, 2], [3, 4], [5, 6], [7, 8]])}
    sampling = Sampling(temperature=temperature, seed=2)
    plain = toys.answer(target, NoDrafter(), inputs, 60, sampling)
    drafted = toys.answer(target, tables.TableDrafter(near, (3, 2, 1), total), inputs, 60, sampling)
    assert drafted.rows == plain.rows
    assert len(drafted.rounds) < 0.7 * len(plain.rounds)
    assert drafted.rounds[1].proposed == (15 if total is None else 4)
    assert {0, 1, 2} <= set(drafted.accepted)


# A Jacobi window ---------------------------------------------------------------------------------------------------


@dataclass
class Jacobi(Drafter):
    """Guesses the next `window` tokens at once; each round, the target's choices become the next round's guesses."""

    window: int
    kinds = frozenset({"point"})

    def bind(self, target: Any) -> None:
        self.vocab_size = target.vocab_size

    def begin(self, state: State, sampler: Sampler, kind: Kind) -> "Iterating":
        guesses = torch.zeros(len(state.ids), self.window, dtype=torch.long) + 40
        return Iterating(sampler, guesses)


@dataclass
class Iterating(Drafting):
    sampler: Sampler
    guesses: Tensor  # [B, W]

    def propose(self, state: State) -> Draft:
        assert state.pending is not None
        return chain(torch.cat([state.pending[:, None], self.guesses], 1))

    def observe(self, state: State, draft: Draft, verified: Verified, accepted: Accepted) -> None:
        """What the target would say after node i is the guess for the token that follows it, now that i moved up."""
        window = self.guesses.shape[1]
        said = verified.logits.argmax(-1)  # [B, W + 1], after the pending token and after every guess
        later = torch.arange(1, window + 1) + accepted.count[:, None] - 1
        self.guesses = said.gather(1, later.clamp(max=window))


def test_a_jacobi_window_that_remembers_the_last_round() -> None:
    model = toys.simple_llama(0.15)
    target = CausalTarget(model)
    inputs = toys.prompts(12, 7, 9)
    for sampling in (Sampling(), Sampling(temperature=0.3, seed=1)):
        plain = toys.answer(target, NoDrafter(), inputs, 30, sampling)
        parallel = toys.answer(target, Jacobi(6), inputs, 30, sampling)
        assert parallel.rows == plain.rows
        assert sum(parallel.accepted) > 0


# A guided target ---------------------------------------------------------------------------------------------------


@dataclass
class GuidedState(State):
    cache: RowCache = field(kw_only=True)


class Guided:
    """Classifier-free guidance: two rows of one model per row of the batch, l = u + scale * (c - u)."""

    modality = "text"
    placeholders: tuple[int, ...] = ()

    def __init__(self, model: Any, scale: float) -> None:
        self.decoder, self.scale = Decoder(model), scale
        self.vocab_size = model.config.vocab_size

    def guide(self, logits: Tensor) -> Tensor:
        told, free = logits.chunk(2)
        return free + self.scale * (told - free)

    def prefill(self, inputs: dict[str, Any], needs: Needs, sampler: Sampler) -> GuidedState:
        """`input_ids` [B, T] and `free_ids` [B, T'], the prompts without the condition."""
        rows = inputs["input_ids"].tolist() + inputs["free_ids"].tolist()
        lengths = [len(row) for row in rows]
        ids = torch.tensor([row + [0] * (max(lengths) - len(row)) for row in rows])
        cache, heard = self.decoder.read([{"input_ids": ids}], lengths)
        batch = len(rows) // 2
        zeros = torch.zeros(batch, dtype=torch.long)
        scores = sampler.warp(Draft.root(zeros), self.guide(heard.logits))
        return GuidedState(
            ids=rows[:batch],
            done=[False] * batch,
            emitted=zeros,
            prompt_length=zeros + lengths[0],
            limits=[1 << 30] * batch,
            pending=sampler.draw(scores, zeros[:, None])[:, 0],
            room=inputs["max_new_tokens"] - 2,
            cache=cache,
        )

    def verify(self, state: State, draft: Draft) -> Verified:
        assert isinstance(state, GuidedState)
        tokens, depth, above = (torch.cat([x, x]) for x in (draft.tokens, draft.depth, draft.ancestors))
        return Verified(self.guide(self.decoder.extend(state.cache, tokens, depth, above).logits))

    def commit(self, state: State, draft: Draft, accepted: Accepted) -> None:
        assert isinstance(state, GuidedState)
        state.cache.commit(draft.size, accepted.paths * 2)
        state.pending = accepted.next
        state.emitted = state.emitted + accepted.count


def test_a_guided_target_of_two_rows() -> None:
    model = toys.llama()
    target = Guided(model, 1.7)
    told, free = (toys.prompts(size, size, seed=size)["input_ids"] for size in (11, 6))
    inputs = {"input_ids": told, "free_ids": free}

    want: list[list[int]] = [[], []]
    for row in range(2):
        for _ in range(12):
            after = [torch.cat([prompt[row], torch.tensor(want[row], dtype=torch.long)]) for prompt in (told, free)]
            with torch.no_grad():
                condition, nothing = (model(ids[None]).logits[0, -1] for ids in after)
            want[row].append(int((nothing + 1.7 * (condition - nothing)).argmax()))
    single = toys.answer(CausalTarget(model), NoDrafter(), {"input_ids": told}, 12).rows
    assert want != single
    for drafter in (NoDrafter(), toys.DRAFTERS["spd-perturbed"](model), toys.DRAFTERS["prompt-lookup"](model)):
        assert toys.answer(target, drafter, inputs, 12).rows == want


# Continuous tokens, revealed in random order -----------------------------------------------------------------------

PLACES, COUPLING = 4, 0.6


@dataclass
class Canvas(State):
    """values: [B, L] what is known, 0 elsewhere. known: [B] how many places. order: [B, L] the order of the places."""

    values: Tensor = field(kw_only=True)
    known: Tensor = field(kw_only=True)
    order: Tensor = field(kw_only=True)


class Masked:
    """Fills places in a random order; a value is N(COUPLING * sum of those known, 1). No cache, no pending token."""

    def prefill(self, inputs: dict[str, Any], needs: Needs, sampler: Sampler) -> Canvas:
        batch = inputs["rows"]
        zeros = torch.zeros(batch, dtype=torch.long)
        order = noise.uniform(sampler.seeds, noise.TARGET, zeros[:, None] + 1000, PLACES)[:, 0].argsort(-1)
        return Canvas(
            ids=[[] for _ in range(batch)],
            done=[False] * batch,
            emitted=zeros,
            prompt_length=zeros,
            limits=[PLACES] * batch,
            values=torch.zeros(batch, PLACES),
            known=zeros,
            order=order,
        )

    def verify(self, state: State, draft: Draft) -> Verified:
        """[B, N, 1] the mean at every drafted place, given what is known and the nodes before it."""
        assert isinstance(state, Canvas)
        before = state.values.sum(-1, keepdim=True) + draft.tokens.cumsum(-1) - draft.tokens
        return Verified((COUPLING * before)[..., None])

    def commit(self, state: State, draft: Draft, accepted: Accepted) -> None:
        assert isinstance(state, Canvas)
        assert accepted.values is not None
        counts = torch.tensor([len(nodes) for nodes in accepted.paths])
        rows, nodes = (torch.arange(draft.size) < counts[:, None]).nonzero(as_tuple=True)
        places = state.order[rows, state.known[rows] + nodes]
        state.values[rows, places] = accepted.values[rows, nodes]
        state.known = state.known + counts
        state.emitted = state.known


@dataclass
class Painter(Drafter):
    """Draws values for the next `count` places from N(0, 1), whatever is known."""

    count: int
    kinds = frozenset({"sampled"})

    def bind(self, target: Any) -> None:
        """Fits the one target."""

    def begin(self, state: State, sampler: Sampler, kind: Kind) -> "Painting":
        return Painting(self.count, sampler)


@dataclass
class Painting(Drafting):
    count: int
    sampler: Sampler

    def propose(self, state: State) -> Draft:
        places = state.emitted[:, None] + torch.arange(self.count)
        u = noise.uniform(self.sampler.seeds, noise.DRAFT, places, 1)[..., 0]
        draft = chain(torch.zeros(len(state.ids), self.count, dtype=torch.long), "sampled")
        draft.tokens = torch.special.ndtri(u)
        return draft

    def observe(self, state: State, draft: Draft, verified: Verified, accepted: Accepted) -> None:
        """Nothing to learn."""


class Densities(Rule):
    """Ratio of densities p = N(mean, 1) and q = N(0, 1); the first rejected value is drawn again from the residual."""

    lossless = True
    invariant = False
    takes: tuple[Kind, ...] = ("sampled",)
    biased = False

    def __call__(self, draft: Draft, scores: Tensor, sampler: Sampler, emitted: Tensor) -> Accepted:
        batch, size = draft.tokens.shape
        mean, x = scores[..., 0], draft.tokens
        places = emitted[:, None] + torch.arange(size)
        coin = noise.uniform(sampler.seeds, noise.ACCEPT, places, 1)[..., 0]
        keep = coin < ((x**2 - (x - mean) ** 2) / 2).exp()
        count = keep.long().cumprod(-1).sum(-1)  # accepted; the first rejected one is drawn again
        u = noise.uniform(sampler.seeds, noise.TARGET, places, 1)[..., 0]
        again = mean + torch.special.ndtri(u) if self.biased else self.residual(mean, u)
        revealed = (count + 1).clamp(max=size)
        path = torch.arange(size).expand(batch, size)
        return Accepted(path, revealed, None, torch.where(keep, x, again), drafted=count.tolist())

    @staticmethod
    def residual(mean: Tensor, u: Tensor) -> Tensor:
        """The u-quantile of norm(max(p - q, 0)), by bisection; its support begins half way between the means."""
        far, phi = mean.double().abs(), torch.special.ndtr
        low, high = far / 2, far + 9
        mass = u * (phi(far / 2) - phi(-far / 2))
        for _ in range(40):
            middle = (low + high) / 2
            below = phi(middle - far) - phi(middle) + phi(far / 2) - phi(-far / 2)
            low, high = torch.where(below < mass, middle, low), torch.where(below < mass, high, middle)
        return (low * mean.sign()).float()


class Filled(Stop):
    """Ends a row when every place is known."""

    def start(self, state: State) -> list[list[int]]:
        return [[] for _ in state.ids]

    def ask(self, state: State, draft: Draft, accepted: Accepted) -> Tensor:
        assert isinstance(state, Canvas)
        return torch.stack([state.known, accepted.count], 1)

    def cut(self, state: State, draft: Draft, accepted: Accepted, known: list[list[int]]) -> None:
        assert isinstance(state, Canvas)
        for row, (before, revealed) in enumerate(known):
            revealed = min(revealed, PLACES - before)
            accepted.paths.append(list(range(revealed)))
            accepted.emitted.append(state.order[row, before : before + revealed].tolist())
            accepted.drafted[row] = min(accepted.drafted[row], revealed)
            state.done[row] = before + revealed == PLACES


class Unwarped(Sampler):
    """Means are not logits: nothing to warp."""

    def warp(self, draft: Draft, logits: Tensor) -> Tensor:
        return logits


def paint(count: int, rule: Densities, rows: int = 15_000) -> tuple[Tensor, list[Any]]:
    """[B, L] values in the order of revelation, and the rounds."""
    target, painter = Masked(), Painter(count)
    kept: list[Canvas] = []

    class Keeping(Masked):
        def prefill(self, inputs: dict[str, Any], needs: Needs, sampler: Sampler) -> Canvas:
            kept.append(target.prefill(inputs, needs, sampler))
            return kept[0]

    sampler = Unwarped(Sampling(temperature=1.0, seed=9), rows, CPU)
    rounds = list(decode(Keeping(), painter, rule, {"rows": rows}, sampler, Filled((), PLACES)))
    for row in range(50):
        assert [place for r in rounds for place in r.tokens[row]] == kept[0].order[row].tolist()
    return kept[0].values.gather(1, kept[0].order), rounds


def expected_covariance() -> Tensor:
    """x_t = c (x_1 + ... + x_{t-1}) + e_t."""
    lower = torch.eye(PLACES) - COUPLING * torch.ones(PLACES, PLACES).tril(-1)
    inverse = torch.linalg.inv(lower)
    return inverse @ inverse.T


@pytest.mark.parametrize("count", [1, 3])
def test_continuous_values_revealed_several_at_a_time_in_random_order(count: int) -> None:
    values, rounds = paint(count, Densities())
    orders = {tuple(place for r in rounds for place in r.tokens[row]) for row in range(300)}
    assert len(orders) == 24
    if count > 1:
        assert max(len(places) for places in rounds[1].tokens) == 3
        assert len({len(places) for places in rounds[1].tokens}) > 1
    assert (values.mean(0).abs() < 0.08).all()
    assert torch.allclose(torch.cov(values.T), expected_covariance(), rtol=0.08, atol=0.08)


def test_the_check_of_continuous_values_finds_a_wrong_residual() -> None:
    wrong = Densities()
    wrong.biased = True
    values, _ = paint(3, wrong)
    assert not torch.allclose(torch.cov(values.T), expected_covariance(), rtol=0.08, atol=0.08)


# A loop inside the loop --------------------------------------------------------------------------------------------

DEPTHS = 3


class Frames(tables.TableTarget):
    """Every outer token opens a frame of DEPTHS inner tokens, which an inner loop decodes while the outer draft is
    verified.

    The next outer token depends on the frames, so they are needed for every node of the draft, accepted or not.
    """

    def __init__(self, table: Tensor, inner: tables.TableTarget, drafter: Any) -> None:
        super().__init__(table)
        self.inner, self.drafter = inner, drafter
        self.frames: dict[int, list[list[int]]] = {}

    def verify(self, state: State, draft: Draft) -> Verified:
        assert isinstance(state, tables.TableState)
        before, last = tables.node_pairs(draft, state.before)
        sampler = Sampler(Sampling(temperature=1.0), last.numel(), CPU)
        index = state.emitted[:, None] + draft.depth  # a frame's noise depends on its row and place, not on the draft
        sampler.seeds = (torch.arange(len(last))[:, None] * 1000 + index).flatten()
        inputs = {"input_ids": torch.stack([before, last], -1).flatten(0, 1), "max_new_tokens": DEPTHS}
        stop = Stop([], DEPTHS)
        for _ in decode(self.inner, self.drafter, Exact(), inputs, sampler, stop):
            pass
        self.heard = torch.tensor(stop.outputs).view(*last.shape, DEPTHS)
        return Verified(self.table[before, last] + self.table[self.heard.sum(-1) % self.vocab_size, last])

    def commit(self, state: State, draft: Draft, accepted: Accepted) -> None:
        for row, path in enumerate(accepted.paths):
            self.frames.setdefault(row, []).extend(self.heard[row, path].tolist())
        super().commit(state, draft, accepted)


def test_a_loop_inside_the_loop() -> None:
    outer, depth = tables.random_table(9, 1), tables.random_table(9, 2)
    inputs = {"input_ids": torch.tensor([[1, 2], [3, 4], [5, 6]])}
    sampling = Sampling(temperature=1.0, seed=5)
    quick = tables.TableDrafter(depth + 0.3 * tables.random_table(9, 3), (2, 1))
    guess = tables.TableDrafter(2 * outer, (3, 2))
    results = []
    for drafter, inner in ((NoDrafter(), NoDrafter()), (guess, NoDrafter()), (NoDrafter(), quick), (guess, quick)):
        target = Frames(outer, tables.TableTarget(depth), inner)
        got = toys.answer(target, drafter, inputs, 16, sampling)
        frames = [target.frames[row][: len(ids) - 1] for row, ids in enumerate(got.rows)]
        results.append((got, frames))
    plain, frames = results[0]
    for got, other in results[1:]:
        assert got.rows == plain.rows
        assert other == frames
    assert all(len(row) == 15 and len(row[0]) == DEPTHS for row in frames)
    assert Counter(results[3][0].accepted)[0] < len(results[3][0].accepted)
    assert len(results[3][0].rounds) < len(plain.rounds)
