"""Drafters whose weights lie on disk in eight bits: what is read back, how much room it takes, what is refused."""

from pathlib import Path
from typing import Any

import pytest
import taught
import tiny
import torch
from safetensors.torch import load_file, save_file
from taught import METHODS

import mmspec
from mmspec.checkpoints import WEIGHTS, load_drafter, save_drafter
from mmspec.drafters import eight_bits
from mmspec.drafters.independent import Independent
from mmspec.errors import UnsupportedError
from mmspec.interchange.export import export
from mmspec.targets import CausalTarget


def test_matrices_are_half_a_step_off_and_the_rest_is_as_it_was(tmp_path: Path) -> None:
    torch.manual_seed(0)
    given = {
        "flat": torch.randn(6, 40),
        "stacked": torch.randn(3, 5, 40) * torch.tensor([1.0, 100.0, 0.01])[:, None, None],
        "half": torch.randn(4, 40).to(torch.bfloat16),
        "norm": torch.randn(40),
        "ids": torch.arange(12).view(3, 4),
    }
    given["flat"][2] = 0
    file = tmp_path / WEIGHTS
    save_file(given, file)
    eight_bits.pack(file)
    assert load_file(file)["stacked"].dtype == torch.int8
    found = eight_bits.read(file)
    assert found.keys() == given.keys()
    for name in ("norm", "ids"):
        assert found[name].equal(given[name])
    for name in ("flat", "stacked", "half"):
        exact = given[name].float()
        step = exact.abs().amax(-1, keepdim=True) / 127
        assert found[name].dtype == torch.float32
        assert ((found[name] - exact).abs() <= step * 0.5001).all()
        assert not found[name].equal(exact)
    assert not found["flat"][2].any()


def test_what_was_not_packed_is_read_as_it_is(tmp_path: Path) -> None:
    given = {"matrix": torch.randn(3, 4).to(torch.bfloat16), "scale": torch.ones(3)}
    save_file(given, tmp_path / WEIGHTS)
    found = eight_bits.read(tmp_path / WEIGHTS)
    assert found.keys() == given.keys()
    assert all(found[name].equal(tensor) and found[name].dtype == tensor.dtype for name, tensor in given.items())


@pytest.mark.parametrize("method", METHODS)
def test_every_head_comes_back_in_half_the_room(method: str, tmp_path: Path) -> None:
    target = mmspec.load(tiny.tiny_llama(tmp_path / "target"), "none", dtype="bfloat16").target
    net = taught.network(method, CausalTarget(tiny.llama_model())).to(torch.bfloat16)
    made: Any = taught.drafter(method, net)
    made.bind(target)
    save_drafter(made, tmp_path / "whole", target)
    save_drafter(made, tmp_path / "packed", target, packed=True)
    sizes = [sum(t.nbytes for t in load_file(tmp_path / name / WEIGHTS).values()) for name in ("packed", "whole")]
    assert sizes[0] < 0.75 * sizes[1]  # rows of this tiny model are so short that scales count
    before, after = made.net.state_dict(), load_drafter(tmp_path / "packed", target).net.state_dict()
    assert before.keys() == after.keys()
    for name, weight in before.items():
        assert after[name].dtype == weight.dtype
        if weight.ndim > 1 and weight.is_floating_point():
            assert 0 < float((after[name] - weight).norm() / weight.norm()) < 0.02
        else:
            assert after[name].equal(weight)


def test_a_drafter_that_is_a_whole_model_is_refused(tmp_path: Path) -> None:
    target = CausalTarget(tiny.llama_model())
    with pytest.raises(UnsupportedError, match="whole model"):
        export(Independent(tiny.llama_model()), target, "it", "int8", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_bundled_head_packed_says_what_it_said(tmp_path: Path) -> None:
    pipe = mmspec.load("smolvlm-mini", "eagle2")
    packed = pipe.with_drafter(export(pipe.drafter, pipe.target, "smolvlm-mini", "int8", tmp_path / "packed"))
    whole = pipe(None, "What is this?", max_new_tokens=24, seed=1)
    assert packed(None, "What is this?", max_new_tokens=24, seed=1).token_ids == whole.token_ids
