"""`mmspec bench auto`: its plumbing, with tiny models; the figures mean nothing here."""

import json
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
import toys
from transformers import Qwen3Config
from typer.testing import CliRunner

import mmspec
from mmspec.benchmarks.auto import endless, outside_picture, outside_questions, with_random_weights
from mmspec.benchmarks.cli import app
from mmspec.benchmarks.records import conditions_of
from mmspec.control import CHAINS
from mmspec.drafters.dflash import BlockNet, DFlash
from mmspec.drafters.eagle import Eagle
from mmspec.drafters.independent import Independent
from mmspec.errors import InputError

SMALL = ["--questions", "1", "--max-new-tokens", "10", "--min-tokens", "10", "--long-questions", "2"]
SMALL += ["--long-tokens", "9", "--temperature", "0"]  # a reply of fixed length counts, however long the others must be


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny.tiny_smolvlm(tmp_path_factory.mktemp("target")))


def test_every_run_is_reported_and_kept_and_not_made_twice(model: str, tmp_path: Path) -> None:
    speaker, out = tiny.tiny_llama(tmp_path / "drafter", seed=1), tmp_path / "out"
    arguments = ["auto", "--model", model, "--drafter", str(speaker), *SMALL, "--out", str(out)]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert "auto / best" in result.output
    summary = json.loads((out / "summary.json").read_text())
    assert summary["date"] == conditions_of([out / "world"])["date"]
    runs = {name: {each["method"]: each for each in run} for name, run in summary["runs"].items()}
    assert list(runs) == ["world", "random", "outside"]
    assert list(runs["world"]) == ["none", "hf", "auto", *map(str, CHAINS)]
    assert list(runs["random"]) == list(runs["outside"]) == ["none", "hf", "auto"]
    for run in runs.values():
        assert all(each["equal_hf"] in (None, 1.0) and each["equal_ours"] in (None, 1.0) for each in run.values())
    assert runs["outside"]["auto"]["new_tokens"] == 2 * 9  # no end token ended a reply
    (verdict,) = summary["verdicts"]
    fixed = {name: each["speedup"] for name, each in runs["world"].items() if name.isdigit()}
    assert verdict["best_fixed"] == max(fixed.values()) == fixed[verdict["best"]]
    assert verdict["ratio"] == pytest.approx(runs["world"]["auto"]["speedup"] / verdict["best_fixed"])
    assert verdict["random"] == runs["random"]["auto"]["speedup"]

    written = {path: path.read_text() for path in out.glob("*/samples.jsonl")}
    assert len(written) == 3
    CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert {path: path.read_text() for path in out.glob("*/samples.jsonl")} == written


def test_end_tokens_come_back_after_a_run_of_fixed_length(model: str) -> None:
    pipe = mmspec.load(model, "none")
    config = pipe.target.model.generation_config
    before = config.eos_token_id
    assert before is not None
    with endless(pipe):
        assert config.eos_token_id is None
    assert config.eos_token_id == before


def test_pictures_from_outside_are_the_same_every_time_and_unlike_each_other() -> None:
    pictures = [np.asarray(outside_picture(index)) for index in range(8)]
    assert all(np.array_equal(picture, outside_picture(index)) for index, picture in enumerate(pictures))
    assert len({picture.tobytes() for picture in pictures}) == 8
    assert {picture.shape for picture in pictures} == {(320, 320, 3)}
    assert min(np.std(picture) for picture in pictures) > 5
    assert [question.index for question in outside_questions(3)] == [0, 1, 2]


def test_random_weights_are_others_in_the_same_architecture() -> None:
    net = toys.llama()
    config = Qwen3Config(hidden_size=32, intermediate_size=48, num_attention_heads=4, num_hidden_layers=1, head_dim=8)
    for drafter, weights in (
        (Eagle(toys.eagle_head(net)), lambda other: other.net.state_dict()),
        (DFlash(BlockNet(config, [0, 2], 6), depth=5), lambda other: other.net.state_dict()),
        (Independent(net), lambda other: other.decoder.model.state_dict()),
    ):
        old, new = weights(drafter), weights(with_random_weights(drafter))
        assert old.keys() == new.keys()
        assert all(old[name].shape == new[name].shape and old[name].dtype == new[name].dtype for name in old)
        assert not all(torch.equal(old[name], new[name]) for name in old)
        assert getattr(drafter, "depth", 0) == getattr(with_random_weights(drafter), "depth", 0)


def test_random_weights_are_the_same_in_every_run_and_other_chance_is_not_touched() -> None:
    for drafter in (Eagle(toys.eagle_head(toys.llama())), Independent(toys.llama())):
        state = torch.get_rng_state()
        one, same = (with_random_weights(drafter).net.state_dict() for _ in range(2))
        assert torch.equal(torch.get_rng_state(), state)
        assert all(torch.equal(weight, same[name]) for name, weight in one.items())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--drafter", "spd,eagle2"], "one drafter is needed"),
        (["--drafter", "none"], "no shapes to choose from"),
        (["--long-tokens", "0"], "long_tokens=0"),
    ],
)
def test_what_cannot_be_run_is_one_clear_error(model: str, arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["auto", "--model", model, *SMALL, *arguments])
    assert isinstance(result.exception, InputError)
    assert message in str(result.exception)
