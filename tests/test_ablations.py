"""Parts of the bundled drafters, taken away: each is found in the weights, and less is accepted without it."""

import json
from typing import Any

import pytest
import torch
from transformers import LlamaConfig

import mmspec
from mmspec.benchmarks.ablations import ABLATIONS, parts_of, run_ablations
from mmspec.benchmarks.told import ToldSettings, run_told
from mmspec.checkpoints import bundled, drafters_of
from mmspec.drafters.hydra import PrefixedHeads
from mmspec.drafters.medusa import MedusaHeads
from mmspec.errors import InputError
from mmspec.vlm.drafters.sight import Sight
from mmspec.vlm.drafters.specvlm import SpecVlmHead
from mmspec.vlm.drafters.vispec import ViSpecHead


@pytest.fixture(scope="module")
def pipe() -> mmspec.Pipeline:
    return mmspec.load("smolvlm-mini", "none")


PARTS = [
    (name, part) for name in drafters_of(bundled()["smolvlm-mini"]) if name in ABLATIONS for part in ABLATIONS[name]
]


def held_by(net: Any) -> list[torch.Tensor]:
    """What an ablation may change: the weights, and what is read of a picture."""
    weights = [value.clone() for value in net.state_dict().values()]
    if not hasattr(net, "see"):
        return weights
    torch.manual_seed(0)
    states = torch.randn(1, 8, net.config.hidden_size)
    image = torch.tensor([[False, True, True, True, True, False, False, False]])
    seen = net.see(Sight(states, states, image, torch.tensor([8]), torch.rand(1, 8)))
    return [*weights, seen.kept, seen.content]


@pytest.mark.parametrize(("name", "part"), PARTS)
def test_every_part_is_there_to_be_taken(pipe: mmspec.Pipeline, name: str, part: str) -> None:
    drafter: Any = pipe.with_drafter(name).drafter
    with torch.no_grad():
        before = held_by(drafter.net)
        ABLATIONS[name][part](drafter.net)
        after = held_by(drafter.net)
    same = len(before) == len(after) and all(map(torch.equal, before, after))
    assert same == (part == "75% of the image slots")  # that is how it was trained


SMALL = LlamaConfig(vocab_size=40, hidden_size=16, intermediate_size=32, num_attention_heads=2, num_key_value_heads=2)


def random_net(made: Any) -> Any:
    torch.manual_seed(0)
    with torch.no_grad():
        for weight in made.parameters():
            weight += 0.3 * torch.randn_like(weight)
    return made.eval()


def test_only_parts_that_a_head_was_made_with_are_taken() -> None:
    def parts(**settings: Any) -> list[str]:
        return [*parts_of("vispec", ViSpecHead(SMALL, **settings))]

    assert parts() == ["adaptor removed", "g = 0"]
    assert parts(global_feature=False) == ["adaptor removed"]
    assert parts(queries=0) == []


@torch.no_grad()
@pytest.mark.parametrize("projected", [False, True])
def test_heads_are_reversed_with_what_is_theirs(projected: bool) -> None:
    net, head, features = (
        random_net(MedusaHeads(SMALL, 3, projected=projected)),
        torch.nn.Identity(),
        torch.randn(2, 16),
    )
    before = net.guess(features, head)
    ABLATIONS["medusa"]["heads in reverse order"](net)
    assert torch.equal(net.guess(features, head), before.flip(-2))


@torch.no_grad()
def test_hydra_hears_nothing_of_a_hidden_path() -> None:
    net, paths = random_net(PrefixedHeads(SMALL, 2)), torch.randn(2, 1, 32).repeat(1, 2, 1)
    paths[:, 1, 16:] += 1
    told = [net.guess(0, paths, torch.nn.Identity())]
    ABLATIONS["hydra++"]["words of the path hidden"](net)
    told.append(net.guess(0, paths, torch.nn.Identity()))
    assert [torch.equal(*each.unbind(1)) for each in told] == [False, True]


@torch.no_grad()
def test_specvlm_takes_the_one_way_that_is_left() -> None:
    for place, part in enumerate(ABLATIONS["specvlm"]):
        net = random_net(SpecVlmHead(SMALL))
        ABLATIONS["specvlm"][part](net)
        wanted = net.wanted(torch.randn(3, 16), torch.randn(3, 4, 16), torch.ones(3, 4).bool())
        assert wanted.argmax(-1).tolist() == [place] * 3
        assert repr([*net.ways][place]) in part
    assert len(net.ways) == len(ABLATIONS["specvlm"])


@pytest.mark.slow
def test_without_a_part_less_is_accepted_and_the_whole_is_measured_as_ever(pipe: mmspec.Pipeline) -> None:
    settings = ToldSettings("smolvlm-mini", ("eagle2",), 2, shape="3x2x6")
    report = run_ablations(pipe, settings)
    table = report.drafters["eagle2"]
    assert table.counts["eagle2"] == run_told(pipe, settings).counts["eagle2"]
    for kind in ("image", "template"):
        whole, without = (table.share(name, kind) for name in ("eagle2", "  features hidden"))
        assert whole is not None
        assert without is not None
        assert without < whole - 0.2
    assert "features hidden" in report.text()
    assert "features hidden" in json.dumps(report.summary())


def test_a_drafter_without_parts_is_refused(pipe: mmspec.Pipeline) -> None:
    with pytest.raises(InputError, match="no part of drafter 'prompt-lookup'"):
        run_ablations(pipe, ToldSettings("smolvlm-mini", ("prompt-lookup",), 2))
