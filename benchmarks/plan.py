"""Which models answer which tasks with which drafters: from the command line, or from a TOML file for whole tables.

models = ["smolvlm-mini"]
tasks = ["chartqa", "mathvista"]
drafters = ["none", "spd", "eagle2"]
temperatures = [0, 1]
questions = 20

[data]
chartqa = "/data/ChartQA/test"
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, cast

from mmspec.benchmarks.speed import SpeedSettings
from mmspec.benchmarks.task_run import TaskSettings
from mmspec.benchmarks.tasks.task import STYLES, TASKS, Style, find_task
from mmspec.checkpoints import HUB_ID
from mmspec.errors import InputError, UnknownNameError, shorten, unknown_name

TABLE_TASKS = {1: ("spec-bench",), 2: tuple(name for name in TASKS if name != "spec-bench")}
TABLE_DRAFTERS = {
    1: ("none", "eagle2", "hass", "eagle", "hydra", "spd", "prompt-lookup", "recycling", "kangaroo", "medusa",
        "retrieval", "lookahead", "suffix"),
    2: ("none", "spd", "kangaroo", "medusa", "hydra", "eagle", "eagle2"),
}  # fmt: skip
"""In the survey's order; it does not have suffix."""
TASK_DRAFTERS = ("none", "spd", "eagle2")
"""Of tasks without a table."""
TABLE_TEMPERATURES = {1: (0.0,), 2: (0.0, 1.0)}


@dataclass(frozen=True)
class Plan:
    """Everything that a run of tasks depends on; the names are those of the options and of the file.

    table: 1 or 2 prints the survey's table and chooses tasks, drafters and temperatures where they are not given.
    drafters: none named are those of the table, without one `TASK_DRAFTERS`, as far as the model has them.
    max_new_tokens: None takes those of each task (`Task.lengths`), of stand-ins those of the world's questions.
    data: task -> official files; a task that is not named gets its stand-in. judge: a text model that finds answers in
    replies, for tasks that take one.
    """

    models: tuple[str, ...] = ("smolvlm-mini",)
    tasks: tuple[str, ...] = ()
    drafters: tuple[str, ...] = ()
    acceptance: str = "exact"
    temperatures: tuple[float, ...] = ()
    questions: int = 32
    max_new_tokens: int | None = None
    repeats: int = 1
    seed: int = 0
    style: Style = "speed"
    table: int | None = None
    threads: int = 0
    dtype: str | None = None
    device: str | None = None
    shape: str | None = None
    compile: bool | None = None
    judge: str | None = None
    data: dict[str, Path] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.table not in (None, 1, 2):
            raise InputError(f"table={self.table!r} is not valid: 1 (text) or 2 (vision-language) is needed")
        if self.style not in STYLES:
            raise unknown_name("style", self.style, STYLES)
        table = self.table or 2
        for name, usual in (("tasks", TABLE_TASKS), ("temperatures", TABLE_TEMPERATURES)):
            object.__setattr__(self, name, getattr(self, name) or usual[table])
        for name in ("models", "tasks"):
            given = getattr(self, name)
            if not given or len(set(given)) < len(given):
                raise InputError(f"{name} must name at least one and each once, got {', '.join(given) or 'nothing'}")
        for task in (*self.tasks, *self.data):
            find_task(task)
        if self.judge is not None and not any(hasattr(find_task(task), "judged_by") for task in self.tasks):
            raise InputError(f"judge={self.judge!r}: no task of the run takes one, mathvista does")
        self.settings(self.models[0], self.tasks[0])  # what is wrong with a number is said now

    @property
    def usual_drafters(self) -> tuple[str, ...]:
        """The drafters where none are named."""
        return TABLE_DRAFTERS[self.table] if self.table else TASK_DRAFTERS

    def longest(self, task: str) -> int:
        """Most tokens of a reply to a question of a task."""
        if self.max_new_tokens is not None:
            return self.max_new_tokens
        return find_task(task).lengths[self.style] if task in self.data else SpeedSettings.max_new_tokens

    def settings(self, model: str, task: str) -> TaskSettings:
        """The settings of one model on one task."""
        own = {each.name for each in fields(self)} - {"drafters", "data", "max_new_tokens"}
        told = {each.name: getattr(self, each.name) for each in fields(SpeedSettings) if each.name in own}
        drafters, length = self.drafters or self.usual_drafters, self.longest(task)
        speed = SpeedSettings(model, drafters, max_new_tokens=length, min_tokens=1, **told)
        return TaskSettings(task, speed, self.style, self.data.get(task), self.judge)


def read_plan(file: Path) -> dict[str, Any]:
    """The settings of a TOML file, ready for `Plan`. Raises: InputError, UnknownNameError: what is wrong in it."""
    try:
        whole = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file} cannot be read: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{file} is not TOML: {error}") from error
    known = [each.name for each in fields(Plan)]
    for name in whole:
        if name not in known:
            raise unknown_name("setting", name, known, f"in {file}")
    settings = {name: _checked(file, name, value) for name, value in whole.items()}
    try:
        Plan(**settings)
    except (InputError, UnknownNameError) as error:
        raise type(error)(f"{file}: {error}") from error
    return settings


def _beside(file: Path, path: str) -> Path:
    """What a file of settings means by a path: as seen from its folder, or a data set of the hub."""
    return Path(path) if HUB_ID.fullmatch(path) and not (file.parent / path).exists() else file.parent / path


def _checked(file: Path, name: str, value: Any) -> Any:
    """A value of the type that the setting has."""
    problem = f"{file}: {name} = {shorten(value)} is not valid"
    if name == "data":
        if not isinstance(value, dict) or not all(isinstance(path, str) for path in value.values()):
            raise InputError(f"{problem}: a table of task = path is needed")
        return {task: _beside(file, path) for task, path in value.items()}
    if name in ("models", "tasks", "drafters"):
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise InputError(f"{problem}: a list of names is needed")
        return tuple(value)
    if name == "temperatures":
        if not isinstance(value, list) or not all(_is(item, int | float) for item in value):
            raise InputError(f"{problem}: a list of numbers is needed")
        return tuple(map(float, value))
    if name == "compile":
        if not isinstance(value, bool):
            raise InputError(f"{problem}: true or false is needed")
        return value
    whole_numbers = ("questions", "max_new_tokens", "repeats", "seed", "table", "threads")
    wanted = cast("type", int if name in whole_numbers else str)
    if not _is(value, wanted):
        raise InputError(f"{problem}: {'a whole number' if wanted is int else 'a text'} is needed")
    return value


def _is(value: Any, wanted: Any) -> bool:
    return isinstance(value, wanted) and not isinstance(value, bool)
