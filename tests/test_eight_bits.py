"""Drafters whose weights lie on disk in eight bits: what is read back, how much room it takes, what is refused."""

from pathlib import Path
from typing import Any

import pytest
import sights
import taught
import tiny
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from taught import METHODS
from test_interchange import command

import mmspec
from mmspec.checkpoints import CARD, WEIGHTS, load_drafter, save_drafter
from mmspec.drafters import eight_bits
from mmspec.drafters.independent import Independent
from mmspec.errors import CheckpointError, UnsupportedError
from mmspec.interchange.export import IN_EIGHT_BITS, export
from mmspec.miniworld import sample
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


@pytest.mark.parametrize("method", [*METHODS, *sights.METHODS])
def test_every_head_comes_back_in_half_the_room(method: str, tmp_path: Path) -> None:
    found: Any = sights if method in sights.METHODS else taught
    make = tiny.tiny_smolvlm if found is sights else tiny.tiny_llama
    target = mmspec.load(make(tmp_path / "target"), "none", dtype="bfloat16").target
    made = found.drafter(method, found.network(method, target).to(torch.bfloat16))
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
    with pytest.raises(UnsupportedError, match="only those of heads"):
        export(Independent(tiny.llama_model()), target, "it", "int8", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_bundled_head_packed_drafts_as_well(tmp_path: Path) -> None:
    pipe = mmspec.load("smolvlm-mini", "eagle2", shape="own")
    packed = pipe.with_drafter(export(pipe.drafter, pipe.target, "smolvlm-mini", "int8", tmp_path / "out"), "own")
    drawn = [sample("eight-bits", index) for index in range(4)]
    asked = [max((qa.question for qa in one.qas if qa.form != "short"), key=len) for one in drawn]
    pictures = [one.image for one in drawn]
    whole, rounded = (one(pictures, asked, max_new_tokens=64, seed=1) for one in (pipe, packed))
    assert [reply.token_ids for reply in rounded] == [reply.token_ids for reply in whole]
    tau = [sum(reply.stats.tau for reply in replies) / 4 for replies in (rounded, whole)]
    assert tau[1] > 2
    assert tau[0] == pytest.approx(tau[1], rel=0.1)


def test_a_file_says_itself_what_is_packed(tmp_path: Path) -> None:
    """Whole numbers are read as they are, whatever they are; what lacks its scales is damaged; a clash is refused."""
    file = tmp_path / WEIGHTS
    whole = torch.randint(-9, 9, (3, 4), dtype=torch.int8)
    save_file({"whole": whole, "matrix": torch.randn(3, 4)}, file)
    eight_bits.pack(file)
    assert eight_bits.read(file)["whole"].equal(whole)
    with safe_open(file, "pt") as opened:
        note = opened.metadata()
    kept = {name: tensor for name, tensor in load_file(file).items() if not name.endswith(".scale")}
    save_file(kept, file, note)
    with pytest.raises(CheckpointError, match="lacks matrix or its scales"):
        eight_bits.read(file)
    save_file({"a": torch.randn(3, 4), "a.scale": torch.ones(3)}, file)
    with pytest.raises(CheckpointError, match="a weight named a.scale"):
        eight_bits.pack(file)
    assert [path.name for path in tmp_path.iterdir()] == [WEIGHTS]


def test_a_draft_vocabulary_stays(tmp_path: Path) -> None:
    target = mmspec.load(tiny.tiny_llama(tmp_path / "target"), "none").target
    net = taught.network("eagle2", CausalTarget(tiny.llama_model())).float()
    net.draft_ids = torch.arange(0, 40, 2)
    made: Any = taught.drafter("eagle2", net)
    made.bind(target)
    save_drafter(made, tmp_path / "packed", target, packed=True)
    back = load_drafter(tmp_path / "packed", target)
    assert back.net.draft_ids.equal(net.draft_ids)


def test_the_command_writes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    target = mmspec.load(tiny.tiny_llama(tmp_path / "target"), "none").target
    made: Any = taught.drafter("medusa", taught.network("medusa", CausalTarget(tiny.llama_model())).float())
    made.bind(target)
    save_drafter(made, tmp_path / "head", target, card="# A head\n")
    told = ("export", tmp_path / "head", "--target", tmp_path / "target", "--out", tmp_path / "out")
    assert command(monkeypatch, *told) == 2
    assert "int8: all heads" in capfd.readouterr().err
    assert command(monkeypatch, *told, "--format", "int8") == 0
    assert load_drafter(tmp_path / "out", target).method == "medusa"
    assert (tmp_path / "out" / WEIGHTS).stat().st_size < (tmp_path / "head" / WEIGHTS).stat().st_size
    assert (tmp_path / "head" / CARD).read_text() == "# A head\n"
    assert (tmp_path / "out" / CARD).read_text() == "# A head\n" + IN_EIGHT_BITS
    assert command(monkeypatch, "export", tmp_path / "out", *told[2:-1], tmp_path / "again", "--format", "int8") == 0
    assert (tmp_path / "again" / CARD).read_text() == (tmp_path / "out" / CARD).read_text()  # said once
