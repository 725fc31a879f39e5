"""How trees grow from what a drafter says of a node: which children, and which of all nodes are kept."""

import math
from typing import Any

import pytest
import taught
import torch
import toys
from torch import Tensor

from mmspec.contract import Draft, Kind, Shape
from mmspec.control import PRUNED, TREES
from mmspec.drafters.children import Choice, Judged
from mmspec.drafters.dflash import DFlash
from mmspec.drafters.dspark import DSpark
from mmspec.drafters.eagle import Eagle, Eagle1
from mmspec.drafters.growing import Guess, grow, grow_at_once
from mmspec.drafters.hydra import Hydra
from mmspec.sampling import Sampler, Sampling
from mmspec.targets import CausalTarget

CPU = torch.device("cpu")
PENDING, EMITTED = torch.tensor([3, 8]), torch.tensor([1, 6])
LAWS = torch.randn(2, 5, 30, generator=torch.Generator().manual_seed(4)) * 2
SMALL = Shape(2, 2, 9)
GREEDY, WARM = Sampling(), Sampling(temperature=1.0, seed=5)


def paths_of(draft: Draft) -> list[set[tuple[int, ...]]]:
    """Of every row the paths that its nodes end, pending token left out."""
    found = []
    for row, tokens in enumerate(draft.tokens):
        real = range(draft.size) if draft.valid is None else draft.valid[row].nonzero()[:, 0].tolist()
        found.append({tuple(tokens[draft.ancestors[row, node].nonzero()[1:, 0]].tolist()) for node in real})
    return found


@pytest.mark.parametrize("sampling", [GREEDY, WARM])
@pytest.mark.parametrize("kind", ["point", "coupled"])
@pytest.mark.parametrize(("levels", "nodes"), [(5, 12), (5, 40), (1, 9), (2, 3)])
def test_levels_guessed_at_once_make_the_same_tree_as_level_by_level(
    levels: int, nodes: int, kind: Kind, sampling: Sampling
) -> None:
    asked = []

    def logits(wanted: int) -> Tensor:
        asked.append(wanted)
        return LAWS[:, :wanted]

    guess, shape = Guess(logits), Shape(levels, 50, nodes)
    choice = Choice(Sampler(sampling, 2, CPU), kind, (7,), trust=1.4, sharpness=1.2)
    found = grow_at_once(PENDING.tolist(), EMITTED, choice, guess, shape, 4)
    wanted = grow(PENDING, EMITTED, choice, guess.level_by_level(levels), shape, 4)
    assert asked == [levels, levels]  # the network is asked once per tree
    assert paths_of(found) == paths_of(wanted)
    assert found.kind == kind
    assert found.tokens[:, 0].equal(PENDING)
    assert found.size == min(nodes, wanted.size)
    assert not (found.tokens == 7).any()
    assert (found.depth == found.ancestors.sum(-1) - 1).all()


def test_a_law_of_few_tokens_makes_a_smaller_tree_and_rows_may_differ() -> None:
    laws = LAWS[:, :2].clone()
    laws[0, :, 2:] = -math.inf
    choice = Choice(Sampler(GREEDY, 2, CPU), "point")
    draft = grow_at_once(PENDING.tolist(), EMITTED, choice, Guess(lambda levels: laws), Shape(2, 4, 20), 4)
    assert draft.valid is not None
    assert draft.valid.sum(-1).tolist() == [1 + 2 + 4, 20]
    assert all(0 <= token < 2 for path in paths_of(draft)[0] for token in path)


@pytest.mark.parametrize("kind", ["point", "coupled", "sampled"])
def test_a_law_of_fewer_tokens_than_children_proposes_none_that_is_ruled_out(kind: Kind) -> None:
    """Two of 30 words have a chance, and a placeholder has the highest score."""
    sampling = GREEDY if kind == "point" else Sampling(temperature=1.0, top_k=2, seed=5)
    choice = Choice(Sampler(sampling, 2, CPU), kind, (0, 1))
    laws = torch.full((2, 1, 30), -math.inf)
    laws[:, :, 0], laws[:, :, 20:22] = 9.0, torch.tensor([2.0, 1.0])
    draft = grow(PENDING, EMITTED, choice, lambda level, tokens, *_: laws.expand(-1, tokens.shape[1], -1), SMALL, 4)
    assert draft.size == SMALL.total
    assert set(draft.tokens[:, 1:].unique().tolist()) <= {20, 21}


@pytest.mark.parametrize("sampling", [GREEDY, WARM])
@pytest.mark.parametrize("nodes", [8, 60])
@pytest.mark.parametrize(("least", "deeper"), [(0.05, 0.15), (0.2, 0.5), (0.6, 0.6)])
def test_what_is_hardly_taken_is_left_out_and_deeper_levels_are_not_asked_for(
    least: float, deeper: float, nodes: int, sampling: Sampling
) -> None:
    """Against the whole tree: its paths of enough confidence, and of a row that has none the surest one. A deeper level
    costs as much as three nodes, but is asked for below a path of one half."""
    laws = torch.stack([LAWS[0], LAWS[0] / 40])
    choice = Choice(Sampler(sampling, 2, CPU), "coupled")
    asked: list[list[int]] = [[], []]

    def grown(place: int, total: int, least: float) -> Draft:
        def expand(level: int, tokens: Tensor, *_: Any) -> Tensor:
            asked[place].append(level)
            return laws[:, level, None].expand(-1, tokens.shape[1], -1)

        return grow(PENDING, EMITTED, choice, expand, Shape(5, 4, total), 4, least)

    raced = laws if sampling.temperature == 0 else laws + choice.sampler.noise_ahead(EMITTED, 5, 30)
    sure = raced.softmax(-1)
    assert bool((sure[1] < 0.05).all()) is (sampling.temperature == 0)
    whole, part = grown(0, 4000, 0.0), grown(1, nodes, least)

    def chance(row: int, path: tuple[int, ...]) -> float:
        return math.prod(float(sure[row, level, token]) for level, token in enumerate(path))

    for row, (every, kept) in enumerate(zip(paths_of(whole), paths_of(part), strict=True)):
        ranked = sorted(every - {()}, key=lambda path: -chance(row, path))
        likely = [path for path in ranked if chance(row, path) >= least and len(path) <= len(asked[1])]
        assert kept == {(), *(likely or ranked[:1])[: nodes - 1]}
        assert len(likely) < len(every)
    assert least > 0.1 or len(paths_of(part)[0]) > 4
    assert asked[0] == [0, 1, 2, 3, 4]
    worth = [len(path) for row, every in enumerate(paths_of(whole)) for path in every if chance(row, path) >= deeper]
    assert asked[1] == [0, 1, 2, 3, 4][: max(worth, default=0) + 1]


@pytest.mark.parametrize("kind", ["coupled", "point"])
def test_under_a_penalty_every_node_of_a_level_has_children_of_its_own(kind: Kind) -> None:
    """A drafter that guesses all levels at once must not give them the same ones then."""
    target = CausalTarget(toys.simple_llama())
    penalty = Sampling(temperature=1.0, repetition_penalty=3.0, seed=5)
    drafter = Guessing(taught.network("dflash", target), total=12)
    drafter.bind(target)
    sampler = Sampler(penalty, 1, CPU)
    with torch.inference_mode():
        state = target.prefill({**toys.prompts(9), "max_new_tokens": 20}, drafter.needs, sampler)
        state.ids[0].append(int(state.pending))
        draft = drafter.begin(state, sampler, kind).propose(state)
    laws, levels = drafter.guessed[0], 0
    for node in draft.parents[0].unique().tolist():
        if node < 0:
            continue
        path = draft.tokens[:, draft.ancestors[0, node].nonzero()[:, 0]]
        level = path.shape[1] - 1
        score = sampler.after(path, laws[None, level])
        if kind == "coupled":
            score = score * 1.4 + sampler.target_noise(state.emitted[:, None] + level, score.shape[-1])[:, 0]
        children = (draft.parents[0] == node).nonzero()[:, 0]
        assert set(draft.tokens[0, children].tolist()) == set(score[0].topk(len(children)).indices.tolist())
        levels = max(levels, level)
    assert levels > 0


class Guessing(DFlash):
    """Notes what it guesses."""

    def tree(self, state: Any, choice: Choice, expand: Any) -> Draft:
        self.guessed = expand.logits(self.most)
        return super().tree(state, choice, Guess(lambda levels: self.guessed[:, :levels]))


def test_a_block_drafter_trusts_itself_by_temperature_and_offers_trees_as_deep_as_its_block() -> None:
    target = CausalTarget(toys.simple_llama())
    drafter = DFlash(taught.network("dflash", target))
    drafter.bind(target)
    greedy, warm = (drafter.choice(Sampler(how, 1, CPU), "coupled") for how in (GREEDY, WARM))
    assert (greedy.sharpness, warm.sharpness, warm.trust) == (2.5, 1.0, 1.4)
    most = drafter.most
    assert drafter.depth == most
    sizes = [shape.total for shape in drafter.shapes]
    assert sizes == sorted(sizes)
    assert all(shape.depth == min(shape.total - 1, most) for shape in drafter.shapes)
    spark = DSpark(taught.network("dspark", target))
    spark.bind(target)
    assert all(shape.depth == min(shape.total - 1, most) for shape in spark.shapes)


@pytest.mark.dynamic("the host does not look at compiled trees")
def test_trees_leave_out_what_is_hardly_taken_where_the_host_looks_at_them() -> None:
    target = CausalTarget(toys.simple_llama())
    pruned, block, hydra, static = (
        kind(taught.network(method, target))
        for kind, method in ((Eagle, "eagle2"), (DSpark, "dspark"), (Hydra, "hydra"), (Eagle1, "eagle"))
    )
    for drafter in (pruned, block, hydra, static):
        assert drafter.shapes == ()  # not bound yet
        drafter.bind(target)
    assert [shape.total for shape in pruned.shapes] == [shape.total for shape in PRUNED]
    assert {shape.least for shape in pruned.shapes} == {Eagle.floor}
    assert {shape.least for shape in block.shapes} == {DSpark.floor}
    assert static.shapes == TREES
    assert {shape.least for shape in hydra.shapes} == {0.0}


def first_children(choice: Choice, level: int) -> Tensor:
    return choice.children(LAWS[:, level, None], EMITTED, level, 1, PENDING[:, None, None])[0][:, 0, 0]


@pytest.mark.parametrize("trust", [1.0, 1.4, 3.0])
def test_a_coupled_child_is_the_winner_of_the_targets_race_with_the_law_raised_to_the_trust(trust: float) -> None:
    sampler = Sampler(WARM, 2, CPU)
    noise = sampler.target_noise(EMITTED[:, None] + torch.arange(5), 30)
    wanted = (LAWS.log_softmax(-1) * trust + noise).argmax(-1)
    choice = Choice(sampler, "coupled", trust=trust)
    found = torch.stack([first_children(choice, level) for level in range(5)], 1)
    assert torch.equal(found, wanted)
    assert (found != LAWS.argmax(-1)).any() or trust == 3.0


JUDGED = [torch.rand(2, 3, 1, generator=torch.Generator().manual_seed(n)) + 0.5 for n in range(3)]


@pytest.mark.parametrize(("sampling", "kind"), [(WARM, "coupled"), (GREEDY, "coupled"), (WARM, "sampled")])
def test_a_drafter_says_node_by_node_what_its_law_counts_beside_the_noise(sampling: Sampling, kind: Kind) -> None:
    """Against the race written out; a law that children are drawn from stays as it is."""
    sampler = Sampler(sampling, 2, CPU)
    choice = Choice(sampler, kind, trust=1.4, sharpness=1.2)
    laws, paths = LAWS[:, 2:5], PENDING[:, None, None].expand(-1, 3, -1)
    plain = choice.children(laws, EMITTED, 2, 30, paths)
    neutral = choice.children(Judged(laws, *3 * [torch.ones(2, 3, 1)]), EMITTED, 2, 30, paths)
    judged = choice.children(Judged(laws, *JUDGED), EMITTED, 2, 30, paths)
    for one, other in zip(plain, neutral, strict=True):
        torch.testing.assert_close(one, other)
    for law, (tokens, _) in ((laws, plain), (Judged(laws, *JUDGED), judged)):
        assert choice.ahead(law, EMITTED, 2, 30, paths).equal(tokens)  # where nobody asks for confidence
        drawn, scores = choice.drawn(law, EMITTED, 2, 30, paths)
        assert drawn.equal(tokens)
        assert scores.equal(sampler.shape(laws))
    if kind == "sampled":
        assert judged[0].equal(plain[0])
        return
    trust, sharpness, greedy = JUDGED
    if sampling.temperature == 0:
        raced = laws * 1.2 * greedy
    else:
        raced = (1.4 * trust * laws + sampler.target_noise(EMITTED[:, None] + 2, 30)) * 1.2 * sharpness
    confidence, token = raced.log_softmax(-1).topk(30)
    assert judged[0].equal(token)
    torch.testing.assert_close(judged[1], confidence)
    assert not torch.allclose(judged[1], plain[1], atol=0.05)


@pytest.mark.parametrize("more", [{}, {"top_p": 0.8}, {"min_p": 0.1}, {"top_p": 0.6, "min_p": 0.05}, {"top_p": 1e-9}])
@pytest.mark.parametrize("temperature", [0.7, 1.0])
@pytest.mark.parametrize("judged", [False, True])
def test_a_race_of_the_likeliest_tokens_alone_has_the_same_winners(
    more: dict[str, float], temperature: float, judged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against the race of all tokens of the warped law, of which most are ruled out."""
    sampler = Sampler(Sampling(temperature=temperature, top_k=9, **more), 2, CPU)
    choice = Choice(sampler, "coupled", placeholders=[int(LAWS[0, 2].argmax())], trust=1.4, sharpness=1.2)
    laws, paths = LAWS[:, 2:5], PENDING[:, None, None].expand(-1, 3, -1)
    law = Judged(laws, *JUDGED) if judged else laws

    def found() -> list[torch.Tensor]:
        children = choice.children(law, EMITTED, 2, 4, paths)
        return [*children, choice.ahead(law, EMITTED, 2, 4, paths), *choice.children_of_levels(laws, EMITTED, 4)]

    assert choice._few(4)
    assert not choice._few(10)
    few = found()
    monkeypatch.setattr(Choice, "_few", lambda *given: False)
    for one, other in zip(few, found(), strict=True):
        torch.testing.assert_close(one, other)


def test_sharper_confidence_keeps_a_longer_path_instead_of_a_sibling() -> None:
    laws = torch.tensor([[[0.6, 0.4], [0.6, 0.4]]]).log()
    trees = {}
    for sharpness in (1.0, 2.5):
        choice = Choice(Sampler(GREEDY, 1, CPU), "point", sharpness=sharpness)
        draft = grow_at_once([3], EMITTED[:1], choice, Guess(lambda levels: laws), Shape(2, 2, 3), 2)
        trees[sharpness] = draft.depth[0].tolist()
    assert trees == {1.0: [0, 1, 1], 2.5: [0, 1, 2]}  # .4 against .36, and .27 against .54
