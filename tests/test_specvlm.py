"""SpecVLM: each way to compress a picture, the gate that takes one, and what it learns."""

from typing import Any

import pytest
import sights
import taught
import test_equality
import test_families
import torch
import toys
from sights import Insight
from test_vision_drafters import check_laws
from torch import Tensor

from mmspec.training.answers import Answered
from mmspec.training.muon import build_optimizer
from mmspec.vlm.drafters.compressors import Convolve, Nothing, Pool, Prune
from mmspec.vlm.drafters.sight import Sight
from mmspec.vlm.drafters.specvlm import SpecVlmHead, asked

WAYS = ["prune", "pool", "convolve", "resample", "nothing"]


def bent(net: SpecVlmHead, way: str) -> SpecVlmHead:
    """A network whose gate takes one way, whatever is asked."""
    with torch.no_grad():
        net.gate.weight.zero_()
        net.gate.bias.copy_(10.0 * torch.nn.functional.one_hot(torch.tensor(WAYS.index(way)), len(WAYS)))
    return net


@pytest.mark.parametrize("way", WAYS)
def test_every_way_drafts_as_a_full_forward_does(way: str) -> None:
    _, target = test_equality.make("smolvlm")
    net = sights.network("specvlm", target)
    assert list(net.ways) == WAYS
    check_laws("specvlm", target, bent(net, way))


def test_ways_by_hand() -> None:
    """Two pictures, of five and of three slots, three slots per vector."""
    vectors = torch.arange(20.0).view(2, 5, 2)
    real = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]).bool()
    focus = torch.tensor([[0.1, 0.5, 0.2, 0.4, 0.3], [0.1, 0.2, 0.1, 9.0, 9.0]])
    made, there = Prune(3)(vectors, real, focus)
    assert there.int().tolist() == [[0, 1, 0, 1, 0], [0, 1, 0, 0, 0]]
    assert torch.equal(made, vectors * there[..., None])
    made, there = Pool(3)(vectors, real, focus)
    assert there.int().tolist() == [[0, 0, 1, 0, 1], [0, 0, 1, 0, 0]]
    assert made[0, 2].tolist() == [2.0, 3.0]
    assert made[0, 4].tolist() == [7.0, 8.0]  # the mean of two: what fills the group up does not count
    assert made[1, 2].tolist() == [12.0, 13.0]
    assert made[~there].abs().max() == 0
    convolve = Convolve(2, 3)
    assert torch.allclose(convolve(vectors, real, focus)[0][1, 2], torch.tensor([12.0, 13.0]))  # at first the mean
    with torch.no_grad():
        convolve.kernel.copy_(torch.tensor([[1.0, 0.0], [0.0, 2.0], [0.0, 0.0]]))
        convolve.mix.weight.copy_(torch.tensor([[0.0, 1.0], [1.0, 0.0]]))
    assert torch.equal(convolve(vectors, real, focus)[0][0, 4], torch.tensor([18.0, 6.0]))
    assert not Nothing()(vectors, real, focus)[1].any()


def test_the_gate_hears_the_words_of_the_prompt_and_the_picture_alone() -> None:
    """What is answered changes nothing; another question or another picture does, for its own row."""
    net = sights.network("specvlm", test_families.plain("smolvlm").target)
    torch.manual_seed(0)
    embeddings, features = torch.randn(2, 2, 9, 32, dtype=torch.float64)
    image = torch.tensor([[0, 1, 1, 1, 1, 0, 0, 0, 0]] * 2).bool()
    heard: list[Tensor] = []
    net.gate.register_forward_hook(lambda module, given, out: heard.append(out.detach()))

    def logits(**changes: tuple[int, int]) -> Tensor:
        given = {"embeddings": embeddings.clone(), "features": features.clone()}
        for name, (row, slot) in changes.items():
            given[name][row, slot] += 1.0
        net.see(Sight(given["embeddings"], given["features"], image, torch.tensor([7, 6]), torch.rand(2, 9)))
        return heard[-1]

    base = logits()
    assert torch.equal(logits(embeddings=(0, 7)), base)  # of the answer
    assert torch.equal(logits(embeddings=(1, 6)), base)
    assert torch.equal(logits(features=(0, 5)), base)
    for slot in (5, 2):
        other = logits(embeddings=(0, slot))
        assert (other[0] - base[0]).abs().max() > 1e-3
        assert torch.equal(other[1], base[1])
    words = Sight(embeddings, features, image, torch.tensor([7, 6]))
    assert torch.allclose(asked(words)[0], embeddings[0, [0, 5, 6]].mean(0))


def test_the_gate_hears_of_a_prompt_in_a_batch_what_it_hears_of_it_alone() -> None:
    _, target = test_equality.make("smolvlm")
    made = sights.drafter("specvlm", sights.network("specvlm", target))
    inputs = test_equality.inputs_for(target, *sights.LENGTHS)
    heard: list[Tensor] = []
    made.net.gate.register_forward_hook(lambda module, given, out: heard.append(out.detach()))
    for one in (inputs, *(toys.row_of(inputs, row) for row in range(3))):
        toys.answer(target, made, one, 4)
    torch.testing.assert_close(torch.cat(heard[1:]), heard[0])


def test_only_the_way_that_is_taken_is_tried() -> None:
    net = bent(sights.network("specvlm", test_families.plain("smolvlm").target), "pool")
    ran: list[str] = []
    for name, way in net.ways.items():
        way.register_forward_hook(lambda module, given, out, name=name: ran.append(name))
    torch.manual_seed(0)
    embeddings, features = torch.randn(2, 1, 9, 32, dtype=torch.float64)
    image = torch.tensor([[0, 1, 1, 1, 1, 0, 0, 0, 0]]).bool()
    sight = Sight(embeddings, features, image, torch.tensor([7]), torch.rand(1, 9))
    plain = net.see(sight)
    assert ran == ["pool"]
    noisy = net.see(sight, torch.Generator().manual_seed(0))
    assert ran[1:] == WAYS
    assert torch.equal(noisy.content, plain.content)  # the others add a gradient, and nothing else
    assert torch.equal(noisy.kept, plain.kept)


def test_noise_lets_every_way_learn_and_depends_on_the_batch_alone() -> None:
    target = test_families.plain("smolvlm").target
    net = sights.recipe_of("specvlm").build(target).double()
    torch.manual_seed(0)
    embeddings, features = torch.randn(2, 1, 9, 32, dtype=torch.float64)
    image = torch.tensor([[0, 1, 1, 1, 1, 0, 0, 0, 0]]).bool()
    sight = Sight(embeddings, features, image, torch.tensor([7]), torch.rand(1, 9))
    reads = [int(net.see(sight, torch.Generator().manual_seed(seed)).kept[0, 1:5].sum()) for seed in range(40)]
    assert reads.count(0) in range(2, 18)  # one in five
    assert reads.count(2) + reads.count(0) == 40
    twice = [net.see(sight, torch.Generator().manual_seed(3)).content for _ in range(2)]
    assert torch.equal(*twice)


def test_noise_takes_each_way_as_often_as_the_gate_says() -> None:
    """4000 pictures: 0.03 is nearly four standard deviations of the largest share."""
    net, shares = sights.network("specvlm", test_families.plain("smolvlm").target), [0.5, 0.3, 0.1, 0.05, 0.05]
    with torch.no_grad():
        net.gate.weight.zero_()
        net.gate.bias.copy_(torch.tensor(shares).log())
    compress, taken = net.compress, []
    net.compress = lambda *given, every: taken.append(given[3].argmax(-1)) or compress(*given, every=every)
    embeddings, image = torch.zeros(4000, 4, 32, dtype=torch.float64), torch.tensor([[0, 1, 1, 0]] * 4000).bool()
    sight = Sight(embeddings, embeddings, image, torch.full((4000,), 4), torch.zeros(4000, 4))
    with torch.no_grad():
        net.see(sight, torch.Generator().manual_seed(0))
    assert (taken[0].bincount(minlength=5) / 4000).tolist() == pytest.approx(shares, abs=0.03)


def test_the_gate_learns_what_each_way_would_have_been_worth() -> None:
    """Straight through: the content is that of the way taken, the gradient that of the softmax over all ways."""
    net = sights.network("specvlm", test_families.plain("smolvlm").target)
    torch.manual_seed(0)
    vectors, worth = torch.randn(2, 2, 4, 32, dtype=torch.float64)
    there, focus = torch.ones(2, 4).bool(), torch.rand(2, 4)
    wanted = torch.randn(2, len(WAYS), dtype=torch.float64, requires_grad=True)
    made = [way(vectors, there, focus)[0] for way in net.ways.values()]
    content = net.compress(vectors, there, focus, wanted, every=True)[0]
    for row, best in enumerate(wanted.argmax(-1).tolist()):
        torch.testing.assert_close(content[row], made[best][row])
    (content * worth).sum().backward()
    law, value = wanted.detach().softmax(-1), torch.stack([(one * worth).sum((1, 2)) for one in made], 1)
    torch.testing.assert_close(wanted.grad, law * (value - (law * value).sum(-1, keepdim=True)))


def test_a_compressor_that_learnt_is_worth_more_than_the_mean() -> None:
    """Two texts of the same words and features whose next words differ by their pictures; the pictures have the same
    mean, so that pooling whole pictures shows nothing."""
    base = test_families.plain("smolvlm")
    target = sights.Single(base.target)
    slot, size = base.target.placeholders[0], base.target.hidden_size
    torch.manual_seed(0)
    shared, goals = torch.randn(9, size), 2 * torch.randn(2, size)
    picture = torch.randn(4, size)
    pictures = torch.stack([picture, picture.flip(0)])
    rows = [Answered(index, [7, *[slot] * 4, 40, 41], [50, 52], 0.0) for index in range(2)]
    states: dict[int, Tensor] = {}
    known: dict[int, Insight] = {}
    for index in range(2):
        embeddings, features = shared.clone(), shared.clone()
        embeddings[1:5] = pictures[index]
        features[7] = goals[index]
        states[index] = torch.stack([embeddings, features], 1)
        known[index] = Insight(torch.rand(9), 1, features)

    recipe = sights.recipe_of("specvlm", unroll=1, noise=0.0, feature_weight=0.0, ratio=4, queries=2)
    net = bent(recipe.build(base.target), "convolve")
    loss = sights.loss_of(recipe, net, target, taught.Given(states, (0, 2)), known)
    loss.look = lambda sight, batch: net.see(sight)
    optimizer = build_optimizer(net, 0.02)

    def value() -> Any:
        return loss(position=torch.tensor([0]), rows=rows)

    for _ in range(60):
        optimizer.zero_grad()
        value().backward()
        optimizer.step()
    with torch.no_grad():
        learnt = float(value())
        pooled = float(bent(net, "pool") and value())
        nothing = float(bent(net, "nothing") and value())
        again = float(bent(net, "convolve") and value())
    assert again == learnt
    assert pooled > learnt + 0.3
    assert nothing > learnt + 0.3
