"""Runs of benchmark tasks with a tiny random model: what is kept, resumed, reported and refused."""

import csv
import itertools
import json
import re
from collections.abc import Callable
from dataclasses import asdict, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
from commands import succeeded
from PIL import Image
from test_bench import run_of, sample_with
from tiny import tiny_llama, tiny_smolvlm, tokenizer
from transformers import LlamaConfig, WhisperConfig
from typer.testing import CliRunner, Result

import mmspec
from mmspec.benchmarks import plan_run, survey
from mmspec.benchmarks.cli import app
from mmspec.benchmarks.plan import TASK_DRAFTERS, Plan, read_plan
from mmspec.benchmarks.records import FolderError, plain
from mmspec.benchmarks.start import check_sees, usual_rows
from mmspec.benchmarks.task_report import TaskReport, task_report
from mmspec.benchmarks.task_run import Answered, Reply, TaskRun, TaskSettings, answered_of, judged
from mmspec.benchmarks.tasks import scienceqa
from mmspec.benchmarks.tasks.extraction import Judge
from mmspec.benchmarks.tasks.hub import official
from mmspec.benchmarks.tasks.mathvista import MathVista
from mmspec.benchmarks.tasks.rows import LARGEST_CELL, find_files
from mmspec.benchmarks.tasks.task import EXPLAINED, STYLES, TASKS, WORDED, Item, Mark, find_task
from mmspec.benchmarks.tasks.world import SEED
from mmspec.benchmarks.token_classes import counts
from mmspec.errors import Error, InputError, UnknownNameError

READ = (".json", ".jsonl", ".tsv")
SMALL = ["--drafters", "none,prompt-lookup", "--max-new-tokens", "6", "--temperature", "0", "--repeats", "1"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_smolvlm(tmp_path_factory.mktemp("target"))


def call(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(each) for each in arguments])


def charts(folder: Path, number: int = 3) -> Path:
    """Official ChartQA files with blank pictures and labels that nothing says."""
    (folder / "png").mkdir(parents=True)
    for index in range(number):
        Image.new("RGB", (20, 20), "red").save(folder / "png" / f"{index}.png")
    rows = [{"imgname": f"{index}.png", "query": f"How many {index}?", "label": "none"} for index in range(number)]
    (folder / "test_human.json").write_text(json.dumps(rows))
    return folder / "test_human.json"


# whole runs


@pytest.fixture(scope="module")
def finished(model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A run of two tasks on stand-ins."""
    out = tmp_path_factory.mktemp("run")
    tasks = ("--model", model, *SMALL, "--task", "chartqa,scienceqa", "--limit", 3, "--out", out)
    return out, succeeded(call(*tasks, "--table", 2))


def lines(out: Path, task: str = "chartqa") -> list[dict[str, Any]]:
    (file,) = out.glob(f"*/{task}/samples.jsonl")
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_every_reply_is_kept_with_its_text_and_mark(finished: tuple[Path, str]) -> None:
    records = lines(finished[0])
    assert [record["question"] for record in records] == [0, 1, 2]
    assert len({record["id"] for record in records}) == 3
    for record in records:
        assert list(record["runs"]) == list(record["replies"]) == ["none", "hf", "prompt-lookup", "hf-prompt-lookup"]
        assert record["replies"]["prompt-lookup"] == {
            **record["replies"]["none"], "classes": record["replies"]["prompt-lookup"]["classes"]
        }  # fmt: skip
        assert record["groups"]["split"] in ("human", "augmented")


def test_the_score_counts_every_reply_with_and_without_drafts(finished: tuple[Path, str]) -> None:
    summary = json.loads((finished[0] / "summary.json").read_text())
    chartqa = next(report for report in summary["reports"] if report["task"] == "chartqa-format/miniworld")
    records = lines(finished[0])
    for score in chartqa["scores"]:
        rights = [record["replies"][score["method"]]["right"] for record in records]
        assert score["whole"]["accuracy"] == sum(rights) / 3
        assert sum(group["questions"] for group in score["groups"]["split"]) == 3
    assert chartqa["figures"][0]["tau"] == 1
    assert {"date", "versions", "hardware", "settings"} <= set(chartqa)


def test_replies_that_ended_by_length_are_counted(finished: tuple[Path, str], model: Path) -> None:
    """From their tokens, so that what earlier runs have kept is counted, too."""
    reports = {
        each["task"].partition("-")[0]: each
        for each in json.loads((finished[0] / "summary.json").read_text())["reports"]
    }
    ends = mmspec.load(model, "none").target.ends()
    for task in ("chartqa", "scienceqa"):
        records = lines(finished[0], task)
        for score in reports[task]["scores"]:
            replies = [record["runs"][score["method"]]["tokens"] for record in records]
            assert score["cut"] == sum(tokens[-1] not in ends for tokens in replies) > 0
    heads = [line for line in finished[1].splitlines() if line.endswith("no answer  cut")]
    assert len(heads) == 2
    assert finished[1].count("cut: judged replies that ended by length, after 6 tokens at most") == 2
    assert "speed prompts, replies of at most 6 tokens: " in finished[1]


def test_stand_ins_are_never_called_the_data_set(finished: tuple[Path, str]) -> None:
    out, text = finished
    assert "chartqa-format/miniworld (stand-in data: no score of ChartQA), speed prompts" in text
    assert "Stand-in data, no results of the data sets: chartqa-format/miniworld" in text
    assert (out / "table.txt").read_text() == text
    began = [json.loads(file.read_text())["date"] for file in out.glob("*/*/conditions.json")]
    reports = json.loads((out / "summary.json").read_text())["reports"]
    assert sorted(report["date"] for report in reports) == sorted(began)
    last = text.splitlines()[-2:]  # what the figures depend on: the call, then date, hardware, versions
    assert last[0].startswith("mmspec ")
    assert re.match(r"\d{4}-\d\d-\d\d, .* cores, .* torch .*, transformers ", last[1])
    assert json.loads((out / "summary.json").read_text())["command"] == last[0]


def test_a_plan_names_all_conditions_that_its_samples_were_made_under() -> None:
    def made(date: str, torch: str) -> dict[str, Any]:
        hardware = {"system": "Linux", "processor": "", "cores": 2, "threads": 1, "gpu": None}
        return {"date": date, "versions": {"torch": torch}, "hardware": hardware}

    first, second = made("2026-03-01", "1.0"), made("2026-03-02", "2.0")
    told = plan_run.PlanReport(Plan(), [], [first, first | {"others": [second]}], [], "").conditions.splitlines()
    assert [line[-9:] for line in told] == ["torch 1.0", "torch 2.0"]


def test_table_and_page_are_written(finished: tuple[Path, str]) -> None:
    out, text = finished
    head = next(line for line in text.splitlines() if line.startswith("model"))
    assert head.split() == ["model", "method", "ChartQA", "S", "tau", "ScienceQA", "S", "tau", "Average", "S", "tau"]
    assert any(line.split()[1:2] == ["PLD"] for line in text.splitlines())
    html = (out / "report.html").read_text()
    assert html.count("<svg") == 8
    assert html.count("<!-- share of tokens that were drafted -->") == 2
    assert not re.search(r'(src|href)="(?!#)|<link|<script|@import|url\((?!#)', html)  # nothing beside it is needed


def test_resumed_run_doubles_nothing_and_keeps_what_it_had(model: Path, tmp_path: Path) -> None:
    data, out = charts(tmp_path / "data"), tmp_path / "out"
    arguments = ("--model", model, *SMALL, "--task", "chartqa", "--data", data, "--out", out, "--no-plot")
    succeeded(call(*arguments))
    (file,) = out.glob("*/chartqa/samples.jsonl")
    whole = file.read_text().splitlines(keepends=True)
    assert len(whole) == 3
    file.write_text(whole[0] + whole[1][:70])  # killed while it wrote the second
    text = succeeded(call(*arguments))
    again = file.read_text().splitlines(keepends=True)
    assert again[0] == whole[0]

    def untimed(line: str) -> Any:
        record = json.loads(line)
        for run in record["runs"].values():
            run.update({name: 0 for name in run if name.endswith("seconds")})
        return record

    assert list(map(untimed, again)) == list(map(untimed, whole))
    assert "stand-in" not in text
    refused = call(*arguments, "--seed", "7")
    assert "holds a run with" in refused.output + str(refused.exception)


def test_a_run_goes_on_with_the_length_that_it_was_begun_with(model: Path, tmp_path: Path) -> None:
    """And takes that of the task where nobody says one."""
    data, own = charts(tmp_path / "data", 1), tmp_path / "own"
    short = [each for each in SMALL if each not in ("--max-new-tokens", "6")]
    chosen = ("--model", model, "--task", "chartqa", "--data", data, "--style", "score", "--no-plot")
    text = succeeded(call(*chosen, *short, "--out", own))
    assert "score prompts, replies of at most 16 tokens: " in text
    assert json.loads(next(own.glob("*/chartqa/settings.json")).read_text())["max_new_tokens"] == 16
    begun = (*chosen, "--out", tmp_path / "begun")
    succeeded(call(*begun, *SMALL))
    kept = lines(tmp_path / "begun")
    assert "holds a run with max_new_tokens=6 (now 16)" in str(call(*begun, *short).exception)
    succeeded(call(*begun, *SMALL))
    assert lines(tmp_path / "begun") == kept


def test_a_broken_picture_is_named_and_the_other_questions_are_asked(model: Path, tmp_path: Path) -> None:
    data, out = charts(tmp_path / "data"), tmp_path / "out"
    (data.parent / "png" / "1.png").write_bytes(b"no picture")
    arguments = ("--model", model, *SMALL, "--task", "chartqa", "--data", data.parent, "--out", out, "--no-plot")
    text = succeeded(call(*arguments))
    assert "refused: question 'test_human/2':" in text
    assert "test_human.json, row 2: column 'imgname'" in text
    assert [record["id"] for record in lines(out)] == ["test_human/1", "test_human/3"]


def test_what_has_no_answer_to_judge_by_counts_in_no_score(model: Path, tmp_path: Path) -> None:
    """As in the official files that hold a split with hidden answers, too."""
    data, out = find_task("mathvista").fixture(tmp_path / "data", 3, SEED), tmp_path / "out"
    changed("testmini.json", answer=None)(data)
    text = succeeded(call("--model", model, *SMALL, "--task", "mathvista", "--data", data, "--limit", 3, "--out", out))
    assert [record["id"] for record in lines(out, "mathvista")] == ["1", "2", "3"], text
    (report,) = json.loads((out / "summary.json").read_text())["reports"]
    assert report["samples"] == 3
    assert {score["whole"]["questions"] for score in report["scores"]} == {2}
    assert (out / "report.html").read_text().count("<td>not judged</td>") == 1


def test_a_broken_task_does_not_stop_the_others(model: Path, tmp_path: Path) -> None:
    charts(tmp_path / "data" / "chartqa")
    arguments = ("--model", model, *SMALL, "--task", "mathvista,chartqa", "--data", tmp_path / "data")
    result = call(*arguments)
    assert result.exit_code == 2
    assert "failed: " in result.output
    assert "mathvista does not exist" in result.output
    assert "How many" not in result.output
    assert "3 of 3 replies are timed" in result.output


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("janus-mini", "draws, .*: take mmspec bench images"),
        ("mar-mini", "draws, .*: take mmspec bench images"),
        ("valle-mini", "speaks, .*: take mmspec bench speech"),
        ("whisper", "hears, .*: take mmspec bench --data FOLDER"),
        ("llama", "reads text alone, .*: take mmspec bench --data FOLDER, or --task spec-bench"),
    ],
)
def test_a_model_that_sees_no_pictures_is_told_so_before_it_is_loaded(
    name: str, told: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = {"llama": LlamaConfig(), "whisper": WhisperConfig()}
    if name in made:
        made[name].save_pretrained(tmp_path / name)
    asked = str(tmp_path / name) if name in made else name
    read: list[str] = []
    monkeypatch.setattr(plan_run, "loaded", lambda settings, drafter: read.append(settings.model) or load(drafter))
    load = lambda drafter: mmspec.load(model, drafter)  # noqa: E731
    result = call("--task", "chartqa", "--model", asked)
    assert re.search(f"{re.escape(asked)} {told}", str(result.exception))
    assert not read
    result = call("--task", "chartqa", "--model", f"{asked},{model}", *SMALL, "--limit", 1)
    assert result.exit_code == 2
    assert "1 of 1 replies are timed" in result.output  # the other one is asked
    assert read == [str(model)]


def test_tasks_of_pictures_are_refused_before_a_model_of_text_is_loaded_for_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    llama = str(tmp_path / "llama")
    LlamaConfig().save_pretrained(llama)
    done: list[str] = []

    def run_task(pipe: Any, settings: TaskSettings, *others: Any) -> TaskRun:
        done.append(settings.task)
        raise InputError("no more")

    monkeypatch.setattr(plan_run, "loaded", lambda settings, drafter: done.append("loaded"))
    monkeypatch.setattr(plan_run, "run_task", run_task)

    def failures(*tasks: str) -> list[str]:
        with pytest.raises(InputError) as told:
            plan_run.run_plan(Plan((llama,), tasks, ("none",)), tmp_path, "", page=False)
        return str(told.value).split("; ")

    pictures, words = failures("chartqa", "spec-bench", "mathvista")
    assert pictures.startswith(f"{llama}, chartqa, mathvista: {llama} reads text alone")
    assert words == f"{llama}, spec-bench: no more"
    assert done == ["loaded", "spec-bench"]
    assert failures("chartqa", "mathvista") == [pictures]
    assert done == ["loaded", "spec-bench"]


def test_a_folder_of_other_settings_ends_the_run_and_keeps_what_was_found(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    whole = ("--model", model, *SMALL, "--no-plot", "--limit", 1, "--out", out)
    succeeded(call(*whole, "--task", "chartqa"))
    kept = {file: file.read_bytes() for file in (out / "summary.json", out / "table.txt")}
    refused = call(*whole, "--task", "mathvista,chartqa", "--seed", 7)
    assert isinstance(refused.exception, FolderError)
    assert {file: file.read_bytes() for file in kept} == kept


def test_what_reads_text_alone_is_asked_what_is_told_in_words(tmp_path: Path) -> None:
    LlamaConfig().save_pretrained(tmp_path / "llama")
    assert WORDED == ("scienceqa", "spec-bench")
    check_sees(str(tmp_path / "llama"), worded=True)
    with pytest.raises(InputError, match="reads text alone"):
        check_sees(str(tmp_path / "llama"))


Damage = Callable[[Path], None]


def records_in(whole: Any) -> Any:
    """The list or the object of records in a JSON file."""
    return whole["questions"] if isinstance(whole, dict) and "questions" in whole else whole


def changed(name: str, **values: object) -> Damage:
    """The last record of a JSON file with other values; `...` takes a column away."""

    def damage(folder: Path) -> None:
        file = folder / name
        whole = json.loads(file.read_text())
        rows = records_in(whole)
        key = len(rows) - 1 if isinstance(rows, list) else list(rows)[-1]
        rows[key] = {column: value for column, value in {**rows[key], **values}.items() if value is not ...}
        file.write_text(json.dumps(whole))

    return damage


def rewritten(name: str, change: Callable[[str], str]) -> Damage:
    """A file with another text."""

    def damage(folder: Path) -> None:
        before = (folder / name).read_text()
        (folder / name).write_text(change(before))
        assert (folder / name).read_text() != before

    return damage


BROKEN: dict[str, tuple[Damage, str]] = {
    "chartqa": (changed("test_human.json", query=...), "human.json, row 1: column 'query' or 'question' is missing"),
    "mathvista": (changed("testmini.json", answer_type=["text"]), "testmini.json, entry '2': column 'answer_type'"),
    "ocrbench": (
        changed("OCRBench/OCRBench.json", answers={"a": 1}), "OCRBench.json, row 2: column 'answers' must hold a text"
    ),
    "mmt-bench": (rewritten("MMT-Bench_VAL.tsv", lambda text: text.replace("iVBOR", "iV*OR")), "row 1: column 'image'"),
    "seed-bench-2": (changed("SEED-Bench_v2_level1_2_3.json", data_id=[7]), "2_3.json, row 2: column 'data_id'"),
    "scienceqa": (rewritten("pid_splits.json", lambda _: '{"test": []}'), "scienceqa holds no questions of ScienceQA"),
}  # fmt: skip
"""Stand-ins of two rows, each damaged in its own way, and what is said about it."""


def test_tasks_with_bad_data_are_named_and_what_can_be_asked_is_kept(model: Path, tmp_path: Path) -> None:
    """Missing column, unexpected types, wrong base64, broken picture cell, empty split, all in one run."""
    data, out = tmp_path / "data", tmp_path / "out"
    for name, (damage, _) in BROKEN.items():
        find_task(name).fixture(data / name, 2, "bad")
        damage(data / name)
    find_task("spec-bench").fixture(data / "spec-bench", 2, "bad")
    whole = ("--model", model, *SMALL, "--no-plot", "--limit", 2, "--data", data, "--out", out)
    arguments = (*whole, "--task", ",".join([*BROKEN, "spec-bench"]))
    result = call(*arguments)
    assert result.exit_code == 2
    told = [line for line in result.output.splitlines() if line.startswith(("failed: ", "refused: "))]
    for name, (_, message) in BROKEN.items():
        assert any(re.search(message, line) for line in told), (name, told)
    assert "Traceback" not in result.output
    assert len(lines(out, "seed-bench-2")) == 1  # its other question could be asked
    kept = (next(out.glob("*/spec-bench/samples.jsonl")), next(out.glob("*/seed-bench-2/samples.jsonl")))
    before = [file.read_text() for file in kept]
    find_task("chartqa").fixture(data / "chartqa", 2, "bad")  # put right
    assert call(*arguments).exit_code == 2  # the others are as they were
    assert [file.read_text() for file in kept] == before
    assert len(lines(out)) == 2


ODD = (None, True, 5, -1.5, "", " ", "[oops", "['a'", {"a": 1}, [], [3], [None], [["x"]])
"""What may stand in a cell where something else should."""


@pytest.mark.parametrize("name", TASKS)
def test_any_value_in_any_column_is_taken_or_named(name: str, tmp_path: Path) -> None:
    """Every column of a row of a stand-in is missing in turn, and holds one odd value after the other."""
    task = find_task(name)
    found = task.fixture(tmp_path, 3, "odd")
    files = [path for path in (found.rglob("*") if found.is_dir() else [found]) if path.suffix in READ]
    file = max(files, key=lambda path: path.stat().st_size)  # that of the questions
    if file.suffix == ".tsv":
        pytest.skip("cells of a TSV file are texts: see below")
    text = file.read_text(encoding="utf-8")
    whole = [json.loads(line) for line in text.splitlines()] if file.suffix == ".jsonl" else json.loads(text)
    rows = records_in(whole)
    key, named = 0 if isinstance(rows, list) else next(iter(rows)), []
    row = rows[key]
    for column, odd in itertools.product(row, (..., *ODD)):
        rows[key] = {**row, column: odd} if odd is not ... else {each: row[each] for each in row if each != column}
        told = "\n".join(map(json.dumps, whole)) if file.suffix == ".jsonl" else json.dumps(whole)
        file.write_text(told, encoding="utf-8")
        try:
            for item in task.items(found):
                assert all(isinstance(task.prompt(item, style), str) for style in STYLES)
                task.mark(item, "The answer is (A).", "speed")
                for picture in item.pictures:
                    picture.load()
        except InputError as error:
            named.append((column, odd, str(error)))
    assert [each for each in named if not re.search(rf"{file.name}, (row 1|line 1|entry '1')", each[2])] == []
    assert len(named) > len(ODD)


def test_any_text_in_any_cell_of_a_tsv_file_is_taken_or_named(tmp_path: Path) -> None:
    task, named = find_task("mmt-bench"), []
    file = task.fixture(tmp_path, 4, "odd")
    csv.field_size_limit(LARGEST_CELL)  # which the loader would set, and maybe has not yet
    with file.open(encoding="utf-8", newline="") as given:
        rows = list(csv.DictReader(given, delimiter="\t"))
    texts = (
        "",
        " ",
        "5",
        "-1",
        "[oops",
        "['a'",
        "[]",
        "[7]",
        "[None]",
        "{[]: 1}",
        "[" + "-" * 3000 + "1]",
        "AB",
        "\u00e9",
    )
    for column, odd in itertools.product(rows[0], (..., *texts)):
        names = [name for name in rows[0] if name != column or odd is not ...]
        with file.open("w", encoding="utf-8", newline="") as taken:
            writer = csv.DictWriter(taken, names, delimiter="\t", extrasaction="ignore")
            writer.writeheader()
            writer.writerows([{**rows[0], column: odd}, *rows[1:]])
        try:
            for item in task.items(file):
                task.mark(item, "The answer is (A).", "speed")
                for picture in item.pictures:
                    picture.load()
        except InputError as error:
            named.append((column, str(error)))
    assert [each for each in named if not re.search(rf"{file.name}, row [1234]: ", each[1])] == []
    assert {column for column, _ in named} >= {"index", "question", "answer", "A", "image"}


@pytest.mark.parametrize("answer", ["", "AB", "F"])
def test_an_answer_is_one_letter_of_an_option(answer: str, tmp_path: Path) -> None:
    task = find_task("scienceqa")
    task.fixture(tmp_path, 2, "letters")
    changed("problems.json", answer=answer)(tmp_path)
    with pytest.raises(InputError, match=r"problems.json, entry '2': the answer '\w*' is not the index of one of"):
        list(task.items(tmp_path))


def test_of_a_mirror_with_two_sets_the_whole_one_is_taken(tmp_path: Path) -> None:
    """The other one has those of its questions that have a picture."""
    for name in ("ScienceQA-FULL", "ScienceQA-IMG"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "test-00000-of-00001.parquet").touch()
    (found,) = find_files(tmp_path, scienceqa.FILES)
    assert found.parent.name == "ScienceQA-FULL"


def test_decimal_places_may_be_told_as_text(tmp_path: Path) -> None:
    task = find_task("mathvista")
    task.fixture(tmp_path, 3, "places")
    changed("testmini.json", precision="1.0")(tmp_path)
    assert [item.facts["precision"] for item in task.items(tmp_path)] == [None, None, 1]


def test_text_tasks_need_no_pictures(model: Path) -> None:
    text = succeeded(call("--model", model, *SMALL, "--table", 1, "--limit", 6))
    assert "refused: question '6': the prompt has" in text  # the tiny context does not hold its three passages
    head = next(line for line in text.splitlines() if line.startswith("model"))
    assert "conversation" in head
    assert "Overall S" in head
    assert "spec-bench-format/miniworld" in text
    assert "score" not in head
    assert text.count("conversation: first turns only") == 2  # below the table, and in the task's report


# the survey's tables from figures known by hand


def report(task: str, seconds: dict[str, float], model: str = "m", group: str = "bar") -> TaskReport:
    """One reply of 21 tokens: our loop and HF need 20 s, the others what is given, with 10 verifications."""
    runs = {name: run_of(21, time, rounds=10) for name, time in seconds.items()}
    sample = sample_with(0, none=run_of(21, 20.0), hf=run_of(21, 20.0), **runs)
    replies = {name: Reply("text", "text" if name == "eagle2" else "", name == "eagle2", {}) for name in sample.runs}
    settings = TaskSettings(task, Plan(models=(model,), drafters=("none",)).settings(model, task).speed)
    answered = [Answered("1", {"category": group}, sample, replies)]
    judged = [] if task == "spec-bench" else answered
    return task_report(TaskRun(settings, find_task(task), answered, [], judged))


def test_table_2_has_s_and_tau_per_task_and_their_means() -> None:
    text = survey.table_2([report("chartqa", {"eagle2": 10.0, "spd": 20.0}), report("mathvista", {"eagle2": 5.0})])
    rows = {line.split()[1]: line.split()[2:] for line in text.splitlines() if line.startswith("m ")}
    assert rows == {"EAGLE-2": ["2.00", "2.00", "4.00", "2.00", "3.00", "2.00"], "SPD": ["1.00", "2.00"] + ["-"] * 4}


def test_table_1_has_the_geometric_mean_and_the_best_method_first() -> None:
    whole = report("spec-bench", {"spd": 10.0, "eagle2": 5.0}, group="conversation")
    kinds = [report("spec-bench", {"spd": 10.0, "eagle2": 5.0 * 2**i}, group=kind).run.answered[0]
             for i, kind in enumerate(survey.KINDS.values())]  # fmt: skip
    whole.run.answered = kinds
    text = survey.table_1([whole])
    rows = [line.split() for line in text.splitlines() if line.startswith("m ")]
    assert [row[1] for row in rows] == ["SPD", "EAGLE-2"]
    assert rows[0][2:] == ["2.00"] * 6 + ["2.00", "2.00"]
    assert rows[1][2:8] == ["4.00", "2.00", "1.00", "0.50", "0.25", "0.12"]
    assert rows[1][-1] == f"{2 ** (-0.5):.2f}"
    assert survey.geometric([1.0, None]) is None


def test_first_turns_are_called_so_where_a_task_has_more() -> None:
    said = "conversation: first turns only, where the benchmark has two."
    found = report("spec-bench", {"eagle2": 10.0}, group="conversation")
    assert said in survey.table_1([found])
    assert said in found.text()
    assert found.summary()["note"] == said[:-1]
    other = report("chartqa", {"eagle2": 10.0})
    assert "turns" not in survey.table_2([other]) + other.text()
    assert other.summary()["note"] == ""


def test_what_the_limit_ended_is_told_where_there_is_any() -> None:
    sample = sample_with(0, none=run_of(21, 20.0), eagle2=run_of(21, 10.0))
    replies = {name: asdict(Reply("text", "text", True, {})) for name in sample.runs}
    record = {"id": "1", "groups": {}, "replies": replies, **asdict(sample)}
    record["runs"]["eagle2"]["tokens"][-1] = 77
    run = report("chartqa", {}).run
    for ends, cut in (({77}, {"none": 1, "eagle2": 0}), ({77, sample.runs["none"].tokens[-1]}, {})):
        run.answered = run.judged = [answered_of(record, ends)]
        found = task_report(run)
        assert {score.method: score.cut for score in found.scores} == dict.fromkeys(("none", "eagle2"), 0) | cut
        assert ("no answer  cut" in found.text()) is bool(cut)
        assert ("cut: judged replies that ended by length, after 96 tokens at most" in found.text()) is bool(cut)


def test_scores_tell_right_wrong_and_silent() -> None:
    found = {score.method: score for score in report("chartqa", {"eagle2": 10.0}).scores}
    assert (found["eagle2"].whole.accuracy, found["eagle2"].silent) == (1, 0)
    assert (found["none"].whole.accuracy, found["none"].silent) == (0, 1)
    run = report("chartqa", {"eagle2": 10.0}).run
    run.answered[0].replies["none"] = Reply("text", "text", False, {})  # an answer, and a wrong one
    assert [(score.whole.accuracy, score.silent) for score in task_report(run).scores if score.method == "none"] == [
        (0, 0)
    ]
    assert not report("spec-bench", {"eagle2": 10.0}).scores


@pytest.mark.parametrize(
    ("task", "said"),
    [
        ("chartqa", "relaxed accuracy, as published"),
        ("mmt-bench", "accuracy, as published"),
        ("mathvista", "rule accuracy, answers found by rules, where the published one takes a judge model"),
        (
            "seed-bench-2",
            "accuracy, as in lmms-eval, where the model answers; the published one ranks the options by likelihood",
        ),
    ],
)
def test_a_score_is_called_published_where_it_is_taken_so(task: str, said: str) -> None:
    found = report(task, {"eagle2": 10.0})
    assert found.metric().endswith("answers found in explanations by rules")  # the speed style
    found.run.settings = replace(found.run.settings, style="score")
    assert found.metric() == said


def test_table_1_takes_the_intervals_of_a_kind_once(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[str] = []
    figures = survey.figures
    monkeypatch.setattr(survey, "figures", lambda samples: (taken.append("kind"), figures(samples))[1])
    survey.table_1([report("spec-bench", {"spd": 10.0, "eagle2": 5.0, "suffix": 20.0}, group="conversation")])
    assert len(taken) == len(survey.KINDS)  # and not for every method anew


def test_tokens_are_counted_by_class_and_origin() -> None:
    texts = ["The", "bar", "4", "2", ".", "end", "x"]
    found = counts(range(7), [2, 0, 1], lambda token: texts[token])
    # the first is the prefill's; then bar and 4 drafted, 2 own; . own; end drafted, x own
    assert found == {"number": [2, 1], "word": [3, 2], "other": [1, 0]}
    assert counts(range(3), [2], lambda token: texts[token]) == {"number": [1, 1], "word": [1, 1], "other": [0, 0]}


# plans


def test_a_file_and_options_make_a_plan(tmp_path: Path) -> None:
    file = tmp_path / "table.toml"
    file.write_text('models = ["a", "b"]\ntasks = ["chartqa"]\ntemperatures = [0, 0.5]\n[data]\nchartqa = "charts"\n')
    plan = Plan(**read_plan(file))
    assert plan.models == ("a", "b")
    assert plan.temperatures == (0.0, 0.5)
    settings = plan.settings("b", "chartqa")
    assert (settings.data, settings.name, settings.speed.model) == (tmp_path / "charts", "chartqa", "b")
    file.write_text('[data]\nchartqa = "some/charts"\nmathvista = "official/maths"\n')
    (tmp_path / "official" / "maths").mkdir(parents=True)
    assert read_plan(file)["data"] == {"chartqa": Path("some/charts"), "mathvista": tmp_path / "official" / "maths"}
    assert Plan(table=1).tasks == ("spec-bench",)
    assert len(Plan(table=2).tasks) == 6
    asked = Plan(acceptance="ratio", questions=3, repeats=4, seed=5, dtype="float64", shape="4").settings(
        "m", "chartqa"
    )
    told = {"acceptance": "ratio", "questions": 3, "repeats": 4, "seed": 5, "dtype": "float64", "shape": "4"}
    assert {name: getattr(asked.speed, name) for name in told} == told
    assert (asked.speed.min_tokens, asked.speed.data, asked.speed.drafters) == (1, None, ("none", "spd", "eagle2"))
    assert [plain(name) for name in ("org/model-1.5", "/tmp/x y", "..")] == ["org_model-1.5", "tmp_x_y", "model"]


@pytest.mark.parametrize(
    ("task", "length"),
    [("mmt-bench", 8), ("seed-bench-2", 16), ("scienceqa", 16), ("ocrbench", 128), ("chartqa", 16), ("mathvista", 2048),
     ("spec-bench", 1024)],
)  # fmt: skip
def test_replies_to_official_questions_have_the_length_that_their_evaluation_allows(task: str, length: int) -> None:
    """Those to stand-ins that of the world's questions, in either style, and all the one that is named."""

    def longest(**told: Any) -> int:
        return Plan(tasks=(task,), **told).settings("m", task).speed.max_new_tokens

    official: dict[str, Any] = {"data": {task: Path("here")}}
    assert longest(**official, style="score") == length
    assert longest(**official) == EXPLAINED
    assert longest(**official, table=1 if task == "spec-bench" else 2) == EXPLAINED
    assert longest(style="score") == longest() == longest(table=2) == 96
    assert longest(**official, style="score", max_new_tokens=7) == longest(max_new_tokens=7) == 7
    with pytest.raises(InputError, match="max_new_tokens=0"):
        longest(max_new_tokens=0)


def test_the_surveys_drafters_are_run_in_its_order(capsys: pytest.CaptureFixture[str]) -> None:
    two = ("none", "spd", "kangaroo", "medusa", "hydra", "eagle", "eagle2")
    assert Plan(table=2).usual_drafters == two
    assert Plan().usual_drafters == TASK_DRAFTERS  # a task alone is no table
    one = Plan(table=1).usual_drafters
    order = ["EAGLE-2", "HASS", "EAGLE", "Hydra", "SPD", "PLD", "Recycling", "Kangaroo", "Medusa", "REST", "Lookahead"]
    assert [survey.NAMES[name] for name in one[1:]] == [*order, "Suffix"]
    pipe = mmspec.load("smolvlm-mini", "none")
    assert usual_rows(pipe, two) == two
    assert usual_rows(pipe, one) == tuple(name for name in one if name not in ("hass", "retrieval"))
    assert "hass" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("questoins = 3", UnknownNameError, "did you mean 'questions'"),
        ("questions = 'three'", InputError, "a whole number is needed"),
        ("questions = true", InputError, "a whole number is needed"),
        ("tasks = 'chartqa'", InputError, "a list of names is needed"),
        ("temperatures = ['warm']", InputError, "a list of numbers is needed"),
        ("data = 'here'", InputError, "a table of task = path"),
        ("questions = 1\ntasks = [", InputError, "is not TOML: Invalid value (at end of document)"),
        ("compile = 1", InputError, "true or false is needed"),
        ("style = 'fast'", UnknownNameError, "unknown style 'fast'"),
        ("table = 3", InputError, "table=3"),
        ("tasks = ['chartqua']", UnknownNameError, "did you mean 'chartqa'"),
        ("tasks = ['chartqa', 'chartqa']", InputError, "each once"),
        ("questions = 0", InputError, "questions=0"),
    ],
)
def test_typos_in_a_plan_are_one_clear_error(text: str, error: type[Error], message: str, tmp_path: Path) -> None:
    (tmp_path / "table.toml").write_text(text)
    result = call("--config", tmp_path / "table.toml")
    assert isinstance(result.exception, error)
    assert message in str(result.exception)
    assert str(tmp_path / "table.toml") in str(result.exception)


def test_mistakes_on_the_command_line_are_one_clear_error(tmp_path: Path) -> None:
    for arguments, message in (
        (["--data", tmp_path], "holds no lines in *.jsonl files"),
        (["--task", "chartqa", "--model", tmp_path / "none"], "there is no such folder"),
        (["--config", tmp_path / "none.toml"], "cannot be read"),
        (["--task", "chartqua"], "unknown task 'chartqua'; did you mean 'chartqa'"),
    ):
        result = call(*arguments)
        assert isinstance(result.exception, Error)
        assert message in str(result.exception)


CHARTS = find_task("chartqa").files


class Hub:
    """The hub, as far as data sets are listed and downloaded. files: of the only one. asked: patterns of downloads."""

    def __init__(self, files: list[str], folder: Path) -> None:
        self.files, self.folder, self.asked = files, folder, list[list[str]]()

    def list_repo_files(self, name: str, repo_type: str) -> list[str]:
        assert (name, repo_type) == ("some/charts", "dataset")
        return self.files

    def snapshot(self, name: str, repo_type: str, allow_patterns: list[str], ignore_patterns: list[str]) -> str:
        assert (name, repo_type, ignore_patterns) == ("some/charts", "dataset", [])
        self.asked.append(allow_patterns)
        return str(self.folder)

    def downloaded(self) -> list[str]:
        """The files that the last download takes."""
        return [file for file in self.files if any(fnmatch(file, pattern) for pattern in self.asked[-1])]


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    found = Hub(["README.md", "test_human.json", "test_augmented.json", "png/1.png"], tmp_path / "hub")
    monkeypatch.setattr("huggingface_hub.HfApi", lambda: found)
    monkeypatch.setattr("huggingface_hub.snapshot_download", found.snapshot)
    monkeypatch.chdir(tmp_path)
    return found


def test_a_data_set_of_the_hub_is_downloaded_unless_it_lies_here(hub: Hub, tmp_path: Path) -> None:
    find_task("chartqa").fixture(hub.folder, 2, "hub")
    items = list(find_task("chartqa").items(official(Path("some/charts"), CHARTS)))
    assert len(items) == 2
    assert hub.downloaded() == hub.files[1:]
    (tmp_path / "some" / "charts").mkdir(parents=True)
    for path in (Path("some/charts"), Path("no such/folder/at/all"), tmp_path / "nothing"):
        assert official(path, CHARTS) == path
    assert len(hub.asked) == 1


@pytest.mark.parametrize(
    ("task", "files", "taken"),
    [
        (
            "mmt-bench",
            ["MMT-Bench_ALL.tsv", "MMT-Bench_ALL_MI.tsv", "MMT-Bench_VAL.tsv", "MMT-Bench_VAL_MI.tsv", "a.png"],
            ["MMT-Bench_VAL.tsv"],
        ),
        (
            "chartqa",
            ["data/test-0-of-2.parquet", "data/test-1-of-2.parquet", "data/train-0-of-9.parquet", "data/meta.json"],
            ["data/test-0-of-2.parquet", "data/test-1-of-2.parquet"],
        ),
        (
            "scienceqa",
            ["ScienceQA-FULL/test-0.parquet", "ScienceQA-FULL/train-0.parquet", "ScienceQA-IMG/test-0.parquet"],
            ["ScienceQA-FULL/test-0.parquet"],
        ),
        (
            "scienceqa",
            ["old/a.png", "data/problems.json", "data/pid_splits.json", "data/images/test/1/image.png", "data/all.zip"],
            ["data/problems.json", "data/pid_splits.json", "data/images/test/1/image.png"],
        ),
        ("spec-bench", ["data/question.jsonl", "data/plot.png", "model.zip"], ["data/question.jsonl"]),
        ("mathvista", ["testmini.json", "images.zip", "data/testmini-0.parquet"], ["data/testmini-0.parquet"]),
        ("mathvista", ["testmini.json", "logo.png", "a.tgz", "MathVista_MINI.tsv"], ["MathVista_MINI.tsv"]),
        ("mathvista", ["testmini.json", "images/1.png", "testmini.parquet"], ["testmini.json", "images/1.png"]),
    ],
)
def test_only_what_a_task_reads_is_downloaded(hub: Hub, task: str, files: list[str], taken: list[str]) -> None:
    hub.files = files
    official(Path("some/charts"), find_task(task).files)
    assert hub.downloaded() == taken


def test_what_cannot_be_read_of_the_hub_is_told_before_it_is_downloaded(hub: Hub) -> None:
    groups = find_task("seed-bench-2").files
    hub.files = ["SEED-Bench_v2_level1_2_3.json", "cc3m-image.zip", "SEED-Bench-2-image.zip.001", "README.md"]
    with pytest.raises(InputError, match=r"pictures in archives \(cc3m-image.zip, SEED-Bench-2-image.zip.001\), which"):
        official(Path("some/charts"), groups)
    hub.files = ["deep/er/SEED-Bench_v2_level1_2_3.json", "train-0.parquet"]
    with pytest.raises(InputError, match="some/charts of the hub holds none of the official files: SEED-Bench_v2"):
        official(Path("some/charts"), groups)
    assert not hub.asked


def test_archives_beside_some_pictures_are_named(hub: Hub, caplog: pytest.LogCaptureFixture) -> None:
    """Those that lie open may be a logo alone."""
    official(Path("some/charts"), CHARTS)
    assert not caplog.records
    hub.files = ["test_human.json", "test_augmented.json", "logo.png", "png.zip"]
    official(Path("some/charts"), CHARTS)
    assert hub.downloaded() == hub.files[:3]
    (told,) = caplog.messages
    assert "some/charts of the hub may have pictures in archives (png.zip), which are not unpacked here" in told
    assert "download them and test_human.json, test_augmented.json into a folder, unpack them there" in told


def test_without_the_hub_what_was_downloaded_before_will_do(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    find_task("chartqa").fixture(hub.folder, 2, "hub")
    monkeypatch.setattr(hub, "list_repo_files", lambda *given, **named: (_ for _ in ()).throw(ConnectionError("off")))
    assert official(Path("some/charts"), CHARTS) == hub.folder
    assert hub.asked[0] == []  # nothing is asked of it but where it lies
    assert "test_human.json" in hub.asked[1]


class Copying:
    """A judge's pipeline that says what it is told."""

    def __init__(self, text: str) -> None:
        self.answer, self.asked = text, ""

    def __call__(self, prompt: str, **options: Any) -> "Copying":
        self.asked = prompt
        return self


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        (" 42\nbecause", "integer", "42"),
        ("None.", "integer", ""),
        ("", "integer", ""),
        ("about 3.14159", "float", "3.14"),
        ("[1, 2]", "list", "[1, 2]"),
        ("(B)", "text", "blue"),
    ],
)
def test_a_judge_finds_the_answer_in_a_reply(text: str, kind: str, value: str) -> None:
    pipe: Any = Copying(text)
    choices = ("red", "blue") if kind == "text" else ()
    facts = {"answer_type": kind, "precision": 2, "unit": ""}
    item = Item("1", "How many?", (value,) if value else ("7",), choices=choices, facts=facts)
    task: Any = MathVista().judged_by(Judge("referee", pipe))
    assert task.mark(item, "I counted them all.", "speed") == Mark(value, bool(value))
    assert "I counted them all." in pipe.asked
    assert "How many?" in pipe.asked
    assert task.metric == "accuracy, answers extracted by referee"
    assert MathVista().mark(item, "I counted them all.", "speed").value == ""


@pytest.mark.parametrize("opened", [False, True])
def test_what_a_model_thought_is_not_judged(opened: bool) -> None:
    ids = lambda text: tokenizer()(text, add_special_tokens=False)["input_ids"]  # noqa: E731
    item, before, mark = Item("1", "Which?", answers=("B",), choices=("red", "blue")), "Answer:", "<think>"
    prompt, reply = (before + mark, "not A</think>B") if opened else (before, f"{mark}not A</think>B")

    def reply_of(text: str) -> Reply:
        tokens = ids(text)
        return judged(
            scienceqa.ScienceQA(),
            item,
            replace(run_of(len(tokens), 1.0), tokens=tokens),
            "score",
            tokenizer(),
            ids(prompt),
        )

    said, cut = reply_of(reply), reply_of(reply.removesuffix("</think>B"))
    assert (said.text, said.value, said.right) == ("B", "B", True)
    assert (cut.text, cut.value, cut.right) == ("", "", False)


def test_a_judge_reads_the_same_reply_once() -> None:
    asked: list[str] = []
    pipe: Any = lambda prompt, **_: asked.append(prompt) or Copying("42")  # noqa: E731
    judge = Judge("referee", pipe)
    wanted = [("How many?", "Many.", "a number"), ("How many?", "Many.", "a list"), ("How many?", "Few.", "a number")]
    assert [judge(*each) for each in wanted * 3] == ["42"] * 9
    assert len(asked) == 3


def test_a_run_says_who_judged(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    judge = str(tiny_llama(tmp_path / "judge"))
    assert isinstance(Judge.load(judge)("7 + 8?", "15.", "a number"), str)
    monkeypatch.setattr(Judge, "load", lambda name, *_: Judge(name, Copying("15")))  # its context is too short
    chosen = ("--model", model, *SMALL, "--limit", 2, "--no-plot", "--out", tmp_path / "out", "--task")
    text = succeeded(call(*chosen, "chartqa,mathvista", "--judge", judge))
    assert f"accuracy, answers extracted by {judge}" in text
    assert "holds a run with judge" in str(call(*chosen, "mathvista").exception)
    succeeded(call(*chosen, "chartqa"))  # which takes no judge
    with pytest.raises(InputError, match="no task of the run takes one, mathvista does"):
        Plan(tasks=("chartqa",), judge="referee")
