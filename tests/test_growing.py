"""How trees grow from what a drafter says of a node: which children, and which of all nodes are kept."""

import pytest
import torch
from torch import Tensor

from mmspec.contract import Draft, Kind, Shape
from mmspec.drafters.growing import Choice, Expand, Guess, fill, grow
from mmspec.drafters.static import TYPICAL, best_tree
from mmspec.sampling import Sampler, Sampling

CPU = torch.device("cpu")
PENDING, EMITTED = torch.tensor([3, 8]), torch.tensor([1, 6])
LAWS = torch.randn(2, 5, 30, generator=torch.Generator().manual_seed(4)) * 2
GREEDY, WARM = Sampling(), Sampling(temperature=1.0, seed=5)
PENALISED = Sampling(temperature=1.0, repetition_penalty=3.0, seed=5)


def level_by_level(level: int, tokens: Tensor, origin: Tensor, above: Tensor) -> Tensor:
    return LAWS[:, level, None].expand(-1, tokens.shape[1], -1)


def grown(expand: Expand | Guess, choice: Choice) -> list[Draft]:
    nodes = best_tree(TYPICAL, 12, 5, 3)
    if choice.sampler.remembers:
        choice.sampler.see([[3, 5], [8, 9]], 30)
    made = [fill(PENDING, EMITTED, choice, expand, nodes)]
    return made if choice.draws else [*made, grow(PENDING, EMITTED, choice, expand, Shape(5, 3, 12), 3)]


@pytest.mark.parametrize("sampling", [GREEDY, WARM, PENALISED])
@pytest.mark.parametrize("kind", ["point", "coupled", "sampled"])
def test_levels_guessed_at_once_make_the_same_trees_as_level_by_level(kind: Kind, sampling: Sampling) -> None:
    asked = []

    def logits(levels: int) -> Tensor:
        asked.append(levels)
        return LAWS[:, :levels]

    def choice() -> Choice:
        sampler = Sampler(sampling, 2, CPU)
        if sampling is PENALISED:
            sampler.see([[3, 5], [8, 9]], 30, prompt=True)
        return Choice(sampler, kind, (7,), trust=1.4, sharpness=1.2)

    found, wanted = grown(Guess(logits), choice()), grown(level_by_level, choice())
    assert asked == [5] * len(found)  # the network is asked once per tree
    for mine, theirs in zip(found, wanted, strict=True):
        assert mine.size == 12
        assert len(mine.tokens.unique()) > 5
        assert not (mine.tokens == 7).any()
        for name in ("tokens", "parents", "depth"):
            assert torch.equal(getattr(mine, name), getattr(theirs, name))
        assert (mine.q is None) == (theirs.q is None)
        assert mine.q is None or torch.equal(mine.q, theirs.q)


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


def test_sharper_confidence_keeps_a_longer_path_instead_of_a_sibling() -> None:
    laws = torch.tensor([[[0.6, 0.4], [0.6, 0.4]]]).log()
    trees = {}
    for sharpness in (1.0, 2.5):
        choice = Choice(Sampler(GREEDY, 1, CPU), "point", sharpness=sharpness)
        draft = grow(PENDING[:1], EMITTED[:1], choice, Guess(lambda levels: laws[:, :levels]), Shape(2, 2, 3), 2)
        trees[sharpness] = draft.depth[0].tolist()
    assert trees == {1.0: [0, 1, 1], 2.5: [0, 1, 2]}  # .4 against .36, and .27 against .54
