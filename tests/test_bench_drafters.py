"""The table of drafters: its cells, what is missing, and a run that goes on where it was interrupted."""

import json
from pathlib import Path
from typing import Any

import pytest
import taught
import tiny
from test_bench import sample_with, two_samples
from test_bench_tasks import call, succeeded

import mmspec
from mmspec.benchmarks import drafter_table as dt
from mmspec.benchmarks import world_tasks
from mmspec.benchmarks.records import FolderError, Sample, conditions_of, plain
from mmspec.benchmarks.speed import SpeedSettings
from mmspec.checkpoints import save_drafter
from mmspec.errors import InputError, UnknownNameError

__all__ = ["two_samples"]


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with two random heads beside it."""
    folder = tiny.tiny_smolvlm(tmp_path_factory.mktemp("families") / "tiny")
    target = mmspec.load(folder, drafter="none").target
    for method in ("eagle", "eagle2"):
        net = taught.recipe_of(method).build(target)
        save_drafter(taught.drafter(method, net), folder / "drafters" / method, target)
    return folder


def settings(family: Path, **changes: Any) -> dt.TableSettings:
    speed = SpeedSettings(
        model=str(family),
        drafters=("medusa", "eagle", "eagle2", "prompt-lookup"),
        questions=2,
        max_new_tokens=6,
        min_tokens=4,
        repeats=1,
    )
    return dt.TableSettings(speed, (str(family), "no/such-family"), ("chart",), **changes)


# Questions


def test_questions_are_held_out_long_and_of_their_kind() -> None:
    words = lambda text: len(text.split())  # noqa: E731
    for name, task in world_tasks.TASKS.items():
        asked = task.questions(3, words)
        again = task.questions(4, words)
        assert [one.prompt for one in again[:3]] == [one.prompt for one in asked], name
        assert len({one.prompt for one in again} | {"x"}) > 2
        assert all(one.image.size == (320, 320) for one in asked)
    options = world_tasks.TASKS["choice"].questions(2, words)
    assert all("(A) " in one.prompt and "(D) " in one.prompt for one in options)
    assert not any("(A) " in one.prompt for one in world_tasks.TASKS["reasoning"].questions(3, words))


def test_reference_answers_are_long_as_the_model_counts() -> None:
    seen: list[str] = []

    def tokens(text: str) -> int:
        seen.append(text)
        return 60 if len(seen) > 3 else 59

    (one,) = world_tasks.TASKS["chart"].questions(1, tokens)
    assert one.prompt
    assert len(seen) > 3


# Cells


def test_the_cap_is_what_verification_and_drafting_leave(two_samples: list[Sample]) -> None:
    """tau / (c_v + D c_d): 60 tokens in 24 rounds, whose verification took 18 s and drafting 3 s, at 1 s per token."""
    assert dt.cap(two_samples, "eagle2") == pytest.approx(2.5 / (18 / 24 + 3 / 24))
    assert dt.cap(two_samples, "hf") is None
    alone = [sample_with(0, eagle2=two_samples[0].runs["eagle2"])]
    assert dt.cap(alone, "eagle2") is None  # nothing to compare with
    (line,) = [row for row in dt.rows(two_samples, "family", "chart") if row.figures.method == "eagle2"]
    assert dt.cell(line).startswith("2.50 (")
    assert dt.cell(line).endswith("tau 2.50, eff 1.00, cap 2.86")


def test_a_block_has_a_line_per_method_and_a_column_per_task(two_samples: list[Sample]) -> None:
    rows = [*dt.rows(two_samples, "f", "chart"), *dt.rows(two_samples[:1], "f", "choice")[:2]]
    lines = dt.markdown(rows).splitlines()
    assert lines[0] == "| method | chart | multiple choice |"
    assert [line.split(" | ")[0] for line in lines[2:]] == ["| our AR loop", "| HF generate", "| eagle2"]
    assert lines[4].endswith("| - |")


# Runs


@pytest.fixture(scope="module")
def finished(family: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dt.DrafterTable]:
    out = tmp_path_factory.mktemp("table")
    return out, dt.run_table(settings(family), out)


def test_a_run_measures_what_is_there_and_names_the_rest(finished: tuple[Path, dt.DrafterTable], family: Path) -> None:
    out, table = finished
    assert [line.partition(":")[0] for line in table.missing] == [f"medusa for {family}", "no/such-family"]
    assert "is trained, and there is no such one for this model" in table.missing[0]
    found = {(row.task, row.temperature, row.figures.method) for row in table.rows}
    drawn = {"none", "hf", "eagle", "eagle2", "prompt-lookup", "hf-prompt-lookup", "eagle2@match", "eagle@ratio"}
    assert {method for task, temperature, method in found if temperature == 1} == drawn
    assert {method for task, temperature, method in found if temperature == 0} == drawn - set(dt.RULES)
    assert {row.task for row in table.rows} == {"chart"}  # there is nothing to average
    eagle = [row for row in table.rows if row.figures.method == "eagle2"]
    assert all(row.figures.speedup for row in eagle)
    assert all(row.cap is None or row.cap > 0 for row in eagle)  # None where `auto` drafted nothing
    others = ("none", "hf", "hf-prompt-lookup", "eagle@ratio")  # transformers' own, and a rule with other draws
    assert all(row.figures.equal_ours == 1 for row in table.rows if row.figures.method not in others)
    summary = json.loads((out / "summary.json").read_text())
    assert len(summary["rows"]) == len(table.rows)
    assert summary["date"] == conditions_of([*out.glob("*/chart/T*")])["date"]
    assert summary["rows"][0]["figures"]["method"] == "none"
    assert summary["missing"] == table.missing  # also what no other family follows
    text = (out / "table.txt").read_text()
    assert "## Missing" in text
    assert "- no/such-family: " in text
    assert "temperature 1" in text
    assert "| eagle@ratio | " in text


def test_a_run_goes_on_where_it_stopped(
    finished: tuple[Path, dt.DrafterTable], family: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, table = finished
    place = next(out.glob("*/chart/T0")) / "samples.jsonl"
    lines = place.read_text().splitlines(keepends=True)
    assert len(lines) == 2
    place.write_text(lines[0] + lines[1][:40])  # killed while it wrote
    answered = []
    answer = dt.run.__globals__["answer"]
    monkeypatch.setitem(
        dt.run.__globals__, "answer", lambda *arguments: (answered.append(arguments[2]), answer(*arguments))[1]
    )
    again = dt.run_table(settings(family), out)
    assert answered == [(0, 0.0, 0), (0, 0.0, 1), (0, 0.0, 2), (1, 0.0, 0)]  # behind the warm-up
    assert place.read_text().splitlines()[0] == lines[0].rstrip()
    assert len(again.rows) == len(table.rows)
    with pytest.raises(InputError, match="choose another folder"):
        dt.run_table(dt.TableSettings(SpeedSettings(str(family), ("eagle2",), questions=1), (str(family),)), out)


def test_a_family_that_fails_costs_no_other_family_its_rows(
    family: Path, tmp_path: Path, two_samples: list[Sample], monkeypatch: pytest.MonkeyPatch
) -> None:
    good = tiny.tiny_smolvlm(tmp_path / "good")

    def measured(pipe: Any, here: SpeedSettings, task: str, *others: Any) -> list[Sample]:
        if here.model == str(family) and task == "scene":
            raise InputError("no picture here")
        return two_samples

    monkeypatch.setattr(dt, "measured", measured)
    speed = SpeedSettings(str(family), ("prompt-lookup",), temperatures=(0.0,), questions=2, min_tokens=1)
    table = dt.run_table(dt.TableSettings(speed, (str(family), str(good)), ("chart", "scene")), tmp_path)
    assert {(one.family, one.task) for one in table.rows} == {
        (str(family), "chart"), *((str(good), task) for task in ("chart", "scene", dt.AVERAGE))
    }  # fmt: skip
    assert table.missing == [f"{family}: no picture here"]
    assert len(table.stores) == 3
    assert "no picture here" in (tmp_path / "table.txt").read_text()


def test_a_folder_of_other_settings_ends_the_run_and_keeps_the_table(
    family: Path, tmp_path: Path, two_samples: list[Sample], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a family before it could be measured."""
    good, out = tiny.tiny_smolvlm(tmp_path / "good"), tmp_path / "out"
    monkeypatch.setattr(dt, "run", lambda *given: two_samples)

    def table(*families: Path, questions: int) -> dt.DrafterTable:
        speed = SpeedSettings(str(family), ("eagle",), temperatures=(0.0,), questions=questions, min_tokens=1)
        return dt.run_table(dt.TableSettings(speed, tuple(map(str, families)), ("chart",)), out)

    table(family, questions=2)
    kept = {file: file.read_bytes() for file in (out / "summary.json", out / "table.txt")}
    with pytest.raises(FolderError, match=r"holds a run with questions=2 \(now 3\): choose another folder"):
        table(good, family, questions=3)
    (settings,) = (out / plain(str(family))).rglob("settings.json")
    settings.write_text("{")
    with pytest.raises(FolderError, match="is damaged"):
        table(good, family, questions=3)
    assert {file: file.read_bytes() for file in kept} == kept


def test_a_table_has_the_families_that_a_killed_run_measured(
    family: Path, tmp_path: Path, two_samples: list[Sample], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table that is there may have more of them, and is left until all are measured again."""
    good, out = tiny.tiny_smolvlm(tmp_path / "good"), tmp_path / "out"
    killed_at = [str(good)]
    out.mkdir()

    def measured(pipe: Any, here: SpeedSettings, *others: Any) -> list[Sample]:
        if here.model in killed_at:
            raise KeyboardInterrupt
        return two_samples

    def table() -> None:
        speed = SpeedSettings(str(family), ("eagle",), temperatures=(0.0,), questions=2, min_tokens=1)
        dt.run_table(dt.TableSettings(speed, (str(family), str(good)), ("chart",)), out)

    def found() -> tuple[set[str], list[str]]:
        summary = json.loads((out / "summary.json").read_text())
        return {row["family"] for row in summary["rows"]}, summary["missing"]

    monkeypatch.setattr(dt, "measured", measured)
    with pytest.raises(KeyboardInterrupt):
        table()
    assert found() == ({str(family)}, [f"{good}: not measured yet"])
    killed_at.clear()
    table()
    families, missing = found()
    assert families == {str(family), str(good)}
    assert [line.partition(":")[0] for line in missing] == [f"eagle for {good}"]
    killed_at.append(str(good))
    with pytest.raises(KeyboardInterrupt):
        table()
    assert found()[0] == {str(family), str(good)}


def test_a_model_that_draws_is_missing_before_it_is_loaded(
    family: Path, tmp_path: Path, two_samples: list[Sample], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dt, "measured", lambda *given: two_samples)
    speed = SpeedSettings(str(family), ("prompt-lookup",), temperatures=(0.0,), questions=2, min_tokens=1)
    table = dt.run_table(dt.TableSettings(speed, ("janus-mini", str(family)), ("chart",)), tmp_path)
    (line,) = table.missing
    assert line.startswith(
        "janus-mini: janus-mini draws, and these questions are for models that answer about pictures"
    )
    assert {one.family for one in table.rows} == {str(family)}


def test_replies_that_are_too_short_are_told(
    family: Path, tmp_path: Path, two_samples: list[Sample], monkeypatch: pytest.MonkeyPatch
) -> None:
    speed = SpeedSettings(str(family), ("prompt-lookup",), temperatures=(0.0,), questions=2, min_tokens=30)
    monkeypatch.setattr(dt, "measured", lambda pipe, here, task, *others: two_samples[: 1 + (task == "chart")])
    table = dt.run_table(dt.TableSettings(speed, (str(family),), ("chart", "scene")), tmp_path)
    assert table.short == [f"{family}, scene, temperature 0: none of 1 replies has 30 tokens"]
    assert {row.task for row in table.rows} == {"chart"}  # of the second question, whose reply has 41 tokens
    assert {row.figures.replies for row in table.rows} == {1}
    assert "## Replies too short" in table.text()


def test_the_average_takes_every_question_of_every_task(
    family: Path, tmp_path: Path, two_samples: list[Sample], monkeypatch: pytest.MonkeyPatch
) -> None:
    speed = SpeedSettings(str(family), ("prompt-lookup",), temperatures=(0.0,), questions=2, min_tokens=1)
    monkeypatch.setattr(dt, "measured", lambda pipe, here, task, *others: two_samples[: 1 + (task == "chart")])
    table = dt.run_table(dt.TableSettings(speed, (str(family),), ("chart", "scene", "text")), tmp_path)
    (row,) = [one for one in table.rows if one.task == dt.AVERAGE and one.figures.method == "eagle2"]
    assert row.figures.replies == 4
    assert row.figures.speedup == pytest.approx((20 + 40 + 20 + 20) / (8 + 16 + 8 + 8))
    assert row.figures.speedup_low is not None
    assert row.figures.speedup_low <= 2.5 <= row.figures.speedup_high  # type: ignore[operator]


def test_names_that_are_wrong_are_told(family: Path, tmp_path: Path) -> None:
    speed = SpeedSettings(str(family), ("prompt-lookup",))
    with pytest.raises(UnknownNameError, match="unknown task 'charts'; did you mean 'chart'"):
        dt.TableSettings(speed, (str(family),), ("charts",))
    with pytest.raises(InputError, match="no/such-family"):
        dt.run_table(dt.TableSettings(speed, ("no/such-family",), ("chart",)), tmp_path)
    assert not list(tmp_path.iterdir())  # a table that is there is not written over


def test_the_command(family: Path, tmp_path: Path) -> None:
    small = ["--drafters", "prompt-lookup", "--max-new-tokens", 4, "--min-tokens", 2, "--limit", 1, "--task", "scene"]
    text = succeeded(
        call("--table", "drafters", "--model", family, "--temperature", 0, *small, "--out", tmp_path / "out")
    )
    assert "| prompt-lookup | " in text
    assert (tmp_path / "out" / "table.txt").exists()
    for wrong, words in (
        (["--style", "score"], "--style is not for --table drafters"),
        (["--data", "x"], "--data is not"),
    ):
        assert words in str(call("--table", "drafters", *wrong).exception)
    assert "--min-tokens is not for tasks" in str(call("--table", "2", "--min-tokens", 4).exception)
    for wrong_table in ("drafter", "3"):
        assert "1, 2 or drafters is needed" in str(call("--table", wrong_table).exception)
