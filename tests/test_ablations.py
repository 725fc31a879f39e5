"""Parts of the bundled drafters, taken away: each is found in the weights, and less is accepted without it."""

import json
from typing import Any

import pytest
import torch

import mmspec
from mmspec.benchmarks.ablations import ABLATIONS, run_ablations
from mmspec.benchmarks.told import ToldSettings, run_told
from mmspec.checkpoints import bundled, drafters_of
from mmspec.errors import InputError
from mmspec.vlm.drafters.sight import Sight


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
