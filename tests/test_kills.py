"""Kill -9 of real commands at random moments (repeatable ones: the seeds are fixed). The same command goes on, and what
comes out is what comes out of a run that nobody disturbed."""

import itertools
import json
import os
import signal
import sys
from collections.abc import Iterator
from functools import partial
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

import kills
import pytest
import torch
from safetensors.torch import load_file
from tiny import smolvlm_model, tiny_llama, tiny_smolvlm

import mmspec
from mmspec.checkpoints import save_drafter, writing
from mmspec.replacing import exchanged, take_place, tidy
from mmspec.training.loop import last_checkpoint
from mmspec.training.medusa import MedusaRecipe


@pytest.fixture(scope="module", autouse=True)
def server() -> None:
    kills.ready()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_smolvlm(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def speaker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("speaker"), seed=3)


# benchmarks


def below(folder: Path) -> list[Path]:
    """All that lies in a folder, also while a run makes and removes folders there, which rglob does not stand."""
    return [Path(at, name) for at, folders, files in os.walk(folder) for name in (*folders, *files)]


def count(out: Path) -> int:
    """Whole lines of samples so far."""
    return sum(path.read_bytes().count(b"\n") for path in below(out) if path.name == "samples.jsonl")


@pytest.mark.parametrize("seed", [1])
@pytest.mark.slow
def test_a_benchmark_that_is_killed_again_and_again_loses_and_doubles_nothing(
    seed: int, model: Path, speaker: Path, tmp_path: Path
) -> None:
    """Fixed drafts: with `auto` the number of drafted tokens would follow the clock."""
    drafters = f"none,prompt-lookup,{speaker}"
    small = ["--drafters", drafters, "--max-new-tokens", 6, "--repeats", 1, "--shape", "own", "--threads", 1]
    tasks = ["bench", "--model", model, "--task", "chartqa,scienceqa", "--limit", 4, *small, "--no-plot", "--out"]
    log, rng = tmp_path / "log", Random(seed)
    seconds = kills.finished(log, *tasks, tmp_path / "whole")
    whole = kills.samples(tmp_path / "whole")
    assert [len(records) for records in whole.values()] == [8, 8]

    out, cut = tmp_path / "cut", 0
    # at first anywhere between start and end; then after one, four, ... more samples, and a moment
    for more in (0, 1, 4, 3):
        before = count(out)
        delay = rng.uniform(0, seconds / (40 if more else 2))
        cut += kills.killed(log, partial(count, out), before + more, delay, *tasks, out)
        assert count(out) >= before
        if more == 4:
            kills.torn(max(out.rglob("samples.jsonl"), key=lambda file: file.stat().st_mtime), rng)
    assert cut >= 2
    kills.finished(log, *tasks, out)
    assert kills.samples(out) == whole
    scores = [[report["scores"] for report in json.loads((folder / "summary.json").read_text())["reports"]]
              for folder in (out, tmp_path / "whole")]  # fmt: skip
    assert scores[0] == scores[1]


def test_a_table_that_is_killed_in_its_second_and_in_a_later_task_is_that_of_one_run(
    model: Path, tmp_path: Path
) -> None:
    small = ["--drafters", "none,prompt-lookup", "--max-new-tokens", 4, "--shape", "own", "--threads", 1, "--no-plot"]
    table = ["bench", "--model", model, "--table", 2, "--limit", 1, *small, "--out"]
    log, rng, out = tmp_path / "log", Random(4), tmp_path / "cut"
    seconds = kills.finished(log, *table, tmp_path / "whole")
    whole = kills.samples(tmp_path / "whole")
    assert [len(records) for records in whole.values()] == [2] * 6  # six tasks, a question each, at two temperatures
    for wanted in (3, 8):
        assert kills.killed(log, partial(count, out), wanted, rng.uniform(0, seconds / 100), *table, out)
        assert wanted <= count(out) < 12
        assert not (out / "table.txt").exists()
    kills.torn(max(out.rglob("samples.jsonl"), key=lambda file: file.stat().st_mtime), rng)
    kills.finished(log, *table, out)
    assert kills.samples(out) == whole
    told = [counted_in(folder) for folder in (out, tmp_path / "whole")]
    assert told[0] == told[1]
    heads = [[line.split() for line in (folder / "table.txt").read_text().splitlines() if line.startswith("model ")]
             for folder in (out, tmp_path / "whole")]  # fmt: skip
    assert heads[0] == heads[1]
    assert heads[0][0][:4] == ["model", "method", "MMT", "S"]


def counted_in(out: Path) -> list[Any]:
    """Of a run's summary what is counted and not timed, task by task."""
    reports = json.loads((out / "summary.json").read_text())["reports"]
    taus = [[(each["method"], each["temperature"], each["tau"]) for each in report["figures"]] for report in reports]
    return [
        [report["task"], report["scores"], report["refused"], tau] for report, tau in zip(reports, taus, strict=True)
    ]


# training


def history(folder: Path) -> list[dict[str, Any]]:
    """What a training run has logged: losses, rates, and what was measured, but not what it cost."""
    left = last_checkpoint(folder)
    assert left is not None
    log = json.loads(Path(left, "trainer_state.json").read_text(encoding="utf-8"))["log_history"]
    return [entry for entry in log if "seconds" not in entry]


def assert_same_training(one: Path, other: Path) -> None:
    """Equal but for rounding: where a tensor lies in memory decides in which order a processor adds its numbers up."""
    left, right = history(one), history(other)
    assert [entry["step"] for entry in left] == [entry["step"] for entry in right]
    for before, after in zip(left, right, strict=True):
        numbers = {name for name, value in after.items() if isinstance(value, float)}
        assert {name: value for name, value in before.items() if name not in numbers} == {
            name: value for name, value in after.items() if name not in numbers
        }
        assert [before[name] for name in numbers] == pytest.approx(
            [after[name] for name in numbers], rel=1e-4, abs=1e-6
        )
    weights = [load_file(Path(str(last_checkpoint(folder)), "model.safetensors")) for folder in (one, other)]
    assert weights[0].keys() == weights[1].keys()
    for name, weight in weights[0].items():
        torch.testing.assert_close(weight, weights[1][name], rtol=1e-4, atol=1e-5)


def newest_step(folder: Path) -> int:
    """Of the checkpoints anywhere in a run's folder, whole or not."""
    steps = [path.name.rpartition("-")[2] for path in below(folder) if path.name.startswith("checkpoint-")]
    return max((int(step) for step in steps if step.isdecimal()), default=0)


def shards_and_steps(folder: Path) -> int:
    """Shards of answers, then updates."""
    return len(list(folder.glob("answers-target/*.jsonl"))) + newest_step(folder)


def assert_same_weights(one: Path, other: Path) -> None:
    """What was written at the end, in bfloat16."""
    weights, others = (load_file(folder / "model.safetensors") for folder in (one, other))
    assert weights.keys() == others.keys()
    for name, weight in weights.items():
        torch.testing.assert_close(weight.float(), others[name].float(), rtol=1e-2, atol=1e-4)


@pytest.mark.slow
def test_a_drafters_training_that_is_killed_ends_with_the_same_losses_and_weights(model: Path, tmp_path: Path) -> None:
    sizes = {"questions": 12, "answer-batch": 2, "max-new-tokens": 12, "steps": 20, "batch": 4, "warm-steps": 3}
    sizes |= {"warm-questions": 8, "held-out": 2, "validate-every": 10, "save-every": 2}
    small = [part for name, value in sizes.items() for part in (f"--{name}", value)]
    train = ["train", "drafter", "--target", model, "--method", "spd", *small, "--set", "width=32", "--device", "cpu"]
    log, rng = tmp_path / "log", Random(2)

    def paths(name: str) -> list[object]:
        return ["--run", tmp_path / name, "--out", tmp_path / f"{name}-drafter"]

    progress = partial(shards_and_steps, tmp_path / "cut")
    seconds = kills.finished(log, *train, *paths("whole"))
    cut = 0
    for wanted in (2, 8, 12):  # in the middle of the six shards, of the warm-up, of the training
        cut += kills.killed(log, progress, wanted, rng.uniform(0, seconds / 40), *train, *paths("cut"))
        assert not (tmp_path / "cut-drafter").exists()
    assert cut == 3
    kills.finished(log, *train, *paths("cut"))
    (whole_home,), (cut_home,) = ((tmp_path / name).glob("spd-*") for name in ("whole", "cut"))
    assert whole_home.name == cut_home.name
    assert_same_training(cut_home, whole_home)
    shards = [sorted((tmp_path / name / "answers-target").glob("*.jsonl")) for name in ("whole", "cut")]
    assert len(shards[0]) == 6
    assert [file.read_bytes() for file in shards[0]] == [file.read_bytes() for file in shards[1]]
    assert_same_weights(tmp_path / "whole-drafter", tmp_path / "cut-drafter")


@pytest.mark.slow
def test_a_targets_training_that_is_killed_ends_with_the_same_losses_and_weights(tmp_path: Path) -> None:
    """The smallest of the bundled models, with few updates: a checkpoint is written every other one."""
    train = ["train", "target", "janus-reader", "--steps", 16, "--batch", 2, "--held-out", 2, "--threads", 1]
    log, rng = tmp_path / "log", Random(3)
    seconds = kills.finished(log, *train, "--run", tmp_path / "whole", "--out", tmp_path / "whole-reader")
    cut = 0
    for wanted in (4, 8):
        paths = ["--run", tmp_path / "cut", "--out", tmp_path / "cut-reader"]
        delay = rng.uniform(0, seconds / 40)
        cut += kills.killed(log, partial(newest_step, tmp_path / "cut"), wanted, delay, *train, *paths)
    assert cut == 2
    kills.finished(log, *train, *paths)
    assert_same_training(tmp_path / "cut", tmp_path / "whole")
    assert_same_weights(tmp_path / "cut-reader", tmp_path / "whole-reader")


# saving

EVENTS = ("open", "os.", "shutil.", "tempfile.")
"""Of Python's audit hooks: what touches files. A hook is called before what it names is done."""


def content(folder: Path) -> str | None:
    """What a folder holds, as one hash; None if there is no folder."""
    if not folder.is_dir():
        return None
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    parts = [(str(file.relative_to(folder)), sha256(file.read_bytes()).hexdigest()) for file in files]
    return sha256(json.dumps(parts).encode()).hexdigest()


def saves(home: str, found: str) -> None:
    """In a process of its own: replace a drafter's folder in a child that is killed before its n-th touch of a file,
    for n = 1, 2, ... until it gets through. Writes down what was there each time: "old", "new", or else what it was."""
    folder, wanted = Path(home, "drafter"), Path(home, "wanted")
    pipe, recipe, seen = mmspec.load(smolvlm_model(), drafter="none"), MedusaRecipe(levels=1), []
    for n in range(500):
        net = recipe.build(pipe.target)
        for weight in net.parameters():
            torch.nn.init.constant_(weight, n)  # another drafter than the one before
        drafter = recipe.drafter(net)
        drafter.bind(pipe.target)
        save_drafter(drafter, wanted, pipe.target)
        before, new = content(folder), content(wanted)
        child = os.fork()
        if not child:
            touches = itertools.count(1)

            def hook(event: str, arguments: Any, n: int = n, touches: Iterator[int] = touches) -> None:
                if event.startswith(EVENTS) and next(touches) == n:
                    os.kill(os.getpid(), signal.SIGKILL)

            sys.addaudithook(hook)
            save_drafter(drafter, folder, pipe.target)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        after = content(folder)
        beside = sorted(path.name for path in Path(home).iterdir() if path not in (folder, wanted))
        seen.append(({before: "old", new: "new"}.get(after, str(after)), status, beside))
        if n and not status:
            break
    Path(found).write_text(json.dumps(seen), encoding="utf-8")


def test_a_save_that_is_killed_at_any_touch_of_a_file_leaves_the_old_folder_or_the_new_one(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    process = kills.SERVER.Process(target=saves, args=(str(tmp_path / "home"), str(tmp_path / "found")))
    process.start()
    process.join(kills.PATIENCE)
    assert process.exitcode == 0
    (first, *cut), last = (lambda seen: (seen[:-1], seen[-1]))(json.loads((tmp_path / "found").read_text()))
    assert first == last == ["new", 0, []]
    assert len(cut) > 10
    assert all(status == signal.SIGKILL for _, status, _ in cut)
    states = [state for state, _, _ in cut]
    assert states == sorted(states, reverse=True)  # old, then, once it is in place, new
    assert set(states) == {"old", "new"}
    assert all(len(beside) <= 1 for _, _, beside in cut)  # what the one before left is removed


@pytest.mark.parametrize("in_one_step", [True, False])
def test_a_folder_replaces_another_and_a_failure_leaves_it(
    in_one_step: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not in_one_step:
        monkeypatch.setattr("mmspec.replacing.exchanged", lambda one, other: False)

    def folder(name: str, text: str) -> Path:
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(text)
        return tmp_path / name

    goal = folder("goal", "old")
    take_place(folder(".goal.1.tmp", "new"), goal)
    assert (goal / "config.json").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["goal"]
    if in_one_step:
        assert exchanged(goal, folder("other", "other"))  # this file system can
        return
    monkeypatch.setattr(Path, "rename", lambda path, to: os.rename(path, to) if path.suffix != ".tmp" else 1 / 0)
    with pytest.raises(ZeroDivisionError), writing(goal) as draft:
        (draft / "config.json").write_text("newer")  # killed between the two steps
    assert not goal.exists()
    for path in tmp_path.iterdir():
        path.rename(tmp_path / path.name.replace(str(os.getpid()), gone()))
    folder(f".goal.{os.getppid()}.tmp", "another save that is at work")
    tidy(goal)
    assert (goal / "config.json").read_text() == "new"
    assert sorted(path.name for path in tmp_path.iterdir()) == [f".goal.{os.getppid()}.tmp", "goal"]


def gone() -> str:
    """The number of a process that has ended."""
    process = kills.SERVER.Process(target=int)
    process.start()
    process.join()
    return str(process.pid)
