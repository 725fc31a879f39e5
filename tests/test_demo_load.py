"""The load script: what it finds of a real demo on a tiny model, and what it makes of what it finds."""

import json
from pathlib import Path
from typing import Any

import pytest
from tiny import tiny_smolvlm
from typer.testing import CliRunner

from mmspec.benchmarks.cli import app
from mmspec.benchmarks.load import FLAT, LoadReport, LoadSettings, Visit, bare, run_load
from mmspec.errors import InputError, UnsupportedError

pytest.importorskip("gradio_client")
pytest.importorskip("psutil")


@pytest.mark.slow
def test_a_crowd_is_answered_and_memory_is_watched(tmp_path: Path) -> None:
    target = tiny_smolvlm(tmp_path / "target")
    report = run_load(LoadSettings(str(target), "prompt-lookup", at_once=3, requests=4, max_new_tokens=64))
    visits = [*report.crowd, *report.single]
    assert [visit.problem for visit in visits] == [""] * 7
    assert len({visit.text for visit in visits}) == 1
    assert visits[0].text
    assert all(visit.answered > 0 for visit in report.crowd)  # in their order, if the clients themselves never wait
    assert report.waited >= 1  # who came last found others
    assert len(report.memory) == 5
    assert all(100e6 < size < 10e9 for size in report.memory)  # a process with torch in it
    assert report.opened > 0
    summary = json.loads(json.dumps(report.summary()))
    assert summary["settings"]["at_once"] == 3
    assert {"date", "versions", "hardware"} <= set(summary)
    assert "3 of 3" in report.text()


def made(**changes: Any) -> LoadReport:
    """A report of a demo that stood everything, with changes."""
    crowd = [Visit([place], answered=1.0 + place, text="x") for place in range(3)]
    good = {"opened": 5.0, "crowd": crowd, "single": [Visit(text="x")] * 8, "memory": [100] * 9}
    return LoadReport(LoadSettings("m", at_once=3, requests=8), **{**good, **changes})  # type: ignore[arg-type]


def test_what_stands_everything_passes() -> None:
    assert made().failures() == []
    assert made(memory=[50, 80, 100, 100, 100, 100, 100, 105, 105]).failures() == []  # a warm-up is no leak
    assert "Passed" in made().text()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"crowd": [Visit([0], 2.0, "x"), Visit([1], 1.0, "x")]}, "not answered first"),
        (
            {"crowd": [Visit([0], 1.0, "x"), Visit([1], 2.0, "", "queue is full")]},
            "1 requests had no answer: queue is full",
        ),
        ({"single": [Visit(text="y")] * 8}, "in different ways"),
        ({"opened": 16.0}, "more than 15 s"),
        ({"memory": [100, 100, 100, 100, 100, 100, 100, 110, 120]}, "memory grew by 15 %"),
    ],
)
def test_what_it_did_not_stand_is_named(changes: dict[str, Any], message: str) -> None:
    report = made(**changes)
    assert message in "; ".join(report.failures())
    assert f"FAILED: {'; '.join(report.failures())}" in report.text()
    assert FLAT > 1


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"at_once": 0}, "0 visitors"),
        ({"at_once": 100}, "1 to 32"),
        ({"requests": 3}, "4 or more"),
        ({"max_new_tokens": 1000}, "8 to 256"),
    ],
)
def test_limits_are_told(wrong: dict[str, int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        LoadSettings(**wrong)  # type: ignore[arg-type]


def test_a_demo_that_does_not_start_says_why() -> None:
    with pytest.raises(UnsupportedError, match="the demo did not start: error: unknown model 'nowhere'"):
        run_load(LoadSettings("nowhere"))


def test_clothes_are_taken_off() -> None:
    assert bare('<div class="mm-text"><span title="drafted">a &amp; b</span> c</div>') == "a &amp; b c"


def test_help_teaches() -> None:
    text = CliRunner().invoke(app, ["load", "--help"]).output
    assert "Example: mmspec bench load" in text
    assert "1.05 times" in text
