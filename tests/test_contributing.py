"""The code in CONTRIBUTING.md runs as it stands there, and its drafter and its rule keep what they promise."""

import re
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import test_equality
import tiny
import torch
import toys
from commands import generate, succeeded
from test_drafters import paths_of
from test_law import FALSE_ALARM, SAMPLINGS, TREES, draw, p_value

import mmspec
from mmspec import registry
from mmspec.contract import Shape, State, bound
from mmspec.drafters.none import NoDrafter
from mmspec.sampling import Sampling
from mmspec.targets import CausalTarget

ROOT = Path(__file__).parents[1]
GUIDE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
DRAFTER, RULE, ELSEWHERE = "Add a drafter", "Add an acceptance rule", "From another distribution"
ASKED = ROOT / "vlm" / "samples" / "chart.png", "Describe this picture in detail."


def blocks(title: str, language: str = "python") -> list[str]:
    """The fenced code of a section, in order."""
    section = GUIDE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    return re.findall(rf"^```{language}\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)


@cache
def ran(title: str) -> dict[str, Any]:
    """The names that a section's Python code leaves behind; it runs once."""
    names: dict[str, Any] = {"__name__": "contributing"}
    for code in blocks(title):
        exec(compile(code, "CONTRIBUTING.md", "exec"), names)  # noqa: S102  the text of this repository
    return names


def repeat() -> Any:
    return ran(DRAFTER)["Repeat"]()


def prefix() -> Any:
    return ran(RULE)["Prefix"]()


def test_all_python_code_of_the_guide_is_run_here() -> None:
    assert [len(blocks(title)) for title in (DRAFTER, RULE)] == [2, 2]
    assert GUIDE.count("```python") == 4


# The drafter --------------------------------------------------------------------------------------------------------


def test_the_drafter_copies_within_the_room_and_up_to_a_placeholder() -> None:
    """A row that is cut short, one without a match, one that is done, and one whose match ends with the row."""
    drafter, zeros = repeat(), torch.zeros(4, dtype=torch.long)
    drafter.bind(SimpleNamespace(placeholders=(8,)))
    ids = [[5, 6, 7, 8, 5], [1, 2, 3, 4, 9], [3, 4, 3], [4, 4]]
    state = State(ids, [False, False, True, False], zeros, zeros, [9] * 4, room=6)

    def longest() -> list[tuple[int, ...]]:
        return [paths[-1] for paths in paths_of(drafter.propose(state))]

    assert longest() == [(5, 6, 7), (9,), (3,), (4, 4)]
    state.shape = Shape(1)
    assert longest() == [(5, 6), (9,), (3,), (4, 4)]
    state.shape, state.room = None, 0
    assert longest() == [(5,), (9,), (3,), (4,)]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", ["llama", "simple", "smolvlm"])
def test_the_drafter_changes_no_token_of_any_row(name: str, temperature: float) -> None:
    _, target = test_equality.make(name)
    inputs, sampling = test_equality.inputs_for(target, 17, 9, 14), Sampling(temperature=temperature, seed=5)
    want = toys.answer(target, NoDrafter(), inputs, 30, sampling)
    assert toys.answer(target, repeat(), inputs, 30, sampling).rows == want.rows


def test_rows_end_where_they_end_without_the_drafter_and_budgets_are_met() -> None:
    _, target = test_equality.make("simple")
    toys.check_endings(target, test_equality.inputs_for(target, 17, 9, 14), {"repeat": repeat})


def test_a_text_that_repeats_itself_is_drafted_and_rows_keep_different_lengths() -> None:
    target = CausalTarget(toys.simple_llama())  # its last token decides the next, so it soon goes in circles
    inputs = toys.prompts(12, 7, 9)
    plain, got = (toys.answer(target, drafter, inputs, 60) for drafter in (NoDrafter(), repeat()))
    assert got.rows == plain.rows
    assert sum(got.accepted) > 30
    assert any(len(set(played.drafted)) > 1 for played in got.rounds)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_bundled_model_says_the_same_with_the_drafter(temperature: float) -> None:
    pipe = ran(DRAFTER)["pipe"]
    assert pipe.names == ("Repeat", "exact")
    options = {"max_new_tokens": 60, "temperature": temperature, "seed": 5}
    want, got = pipe.with_drafter("none")(*ASKED, **options), pipe(*ASKED, **options)
    assert got.token_ids == want.token_ids
    if not temperature:
        assert got.stats.target_calls < want.stats.target_calls


# The rule -----------------------------------------------------------------------------------------------------------


def test_at_temperature_0_the_rule_gives_the_plain_answer() -> None:
    model = toys.llama()
    target, inputs = CausalTarget(model), toys.prompts(9, 6)
    want = toys.answer(target, NoDrafter(), inputs, 16).rows
    made = {name: toys.DRAFTERS[name](model) for name in ("none", "spd-copy", "spd-perturbed", "eagle-copying")}
    kept = {}
    for name, drafter in {**made, "repeat": repeat()}.items():
        got = toys.answer(target, drafter, inputs, 16, rule=prefix())
        assert got.rows == want, name
        kept[name] = sum(got.accepted)
    assert kept["none"] == 0 < kept["spd-copy"]


def test_above_temperature_0_the_rule_has_another_law_where_something_is_drafted_and_says_so() -> None:
    rule, sampling = prefix(), SAMPLINGS["plain"]
    plain, drafted = (draw(TREES[name], rule, sampling) for name in ("none", "tree"))
    assert p_value(plain, sampling) > FALSE_ALARM
    assert p_value(drafted, sampling) < FALSE_ALARM
    assert not rule.lossless
    assert not bound(rule, greedy=False)
    assert bound(rule, greedy=True)


def test_the_bundled_model_says_the_same_with_the_rule_at_temperature_0() -> None:
    pipe = ran(RULE)["pipe"]
    plain = pipe.with_drafter("none", acceptance="exact")
    options = {"max_new_tokens": 40, "temperature": 0}
    want, got = plain(*ASKED, **options), pipe(*ASKED, **options)
    assert got.token_ids == want.token_ids
    assert (got.stats.lossless, want.stats.lossless) == (False, True)


# Their names --------------------------------------------------------------------------------------------------------


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """The package that the guide describes, and the entry points that it declares."""
    package = tmp_path / "my_package"
    package.mkdir()
    for name, text in (("__init__", ""), ("drafter", blocks(DRAFTER)[0]), ("rule", blocks(RULE)[0])):
        (package / f"{name}.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    (declared,) = blocks(ELSEWHERE, "toml")
    groups = tomllib.loads(declared)["project"]["entry-points"]
    points = [EntryPoint(name, value, group) for group, table in groups.items() for name, value in table.items()]
    monkeypatch.setattr(registry, "entry_points", lambda group: [point for point in points if point.group == group])
    registry.entries.cache_clear()
    yield
    registry.entries.cache_clear()
    for name in ("my_package", "my_package.drafter", "my_package.rule"):
        sys.modules.pop(name, None)


@pytest.mark.usefixtures("installed")
def test_names_of_entry_points_are_used_like_our_own(tmp_path: Path) -> None:
    assert "mine" in mmspec.list_drafters("vlm")
    assert "mine" not in mmspec.list_drafters("speech")
    folder = tiny.tiny_smolvlm(tmp_path / "model")
    assert mmspec.load(folder, "mine", "mine").names == ("mine", "mine")
    more = "--model", folder, "--max-new-tokens", 12, "--temperature", 0
    told = succeeded(generate("why", "--drafter", "mine", "--acceptance", "mine", *more))
    assert "mine, mine (LOSSY)" in told
