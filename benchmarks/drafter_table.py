"""The survey's table of trained and free drafters, runnable: families x drafters x temperatures x kinds of question.

Each cell has S with its 95 % interval, tau, S / tau, and the cap that the measured times set:

    cap = tau / (c_v + D c_d)

c_v and D c_d being the seconds of a round's verification and of its drafting, in units of an autoregressive token. What
of S is missing to the cap went into everything else. At temperature 1 three ways of drafting a tree are compared:
coupled (`eagle2`), EAGLE-2's plain top-k (`eagle2@match`), EAGLE-1's recursive rule on drawn children (`eagle@ratio`).

Families and drafters that are not there are named as missing. Every combination has a folder of its own, and the same
call goes on where it was interrupted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from mmspec import Pipeline
from mmspec.benchmarks.figures import (
    BASELINES,
    OURS,
    Figures,
    baseline,
    best_possible,
    counted,
    figures,
)
from mmspec.benchmarks.methods import Method, Ours, methods
from mmspec.benchmarks.records import FolderError, Sample, Store, conditions_of, plain
from mmspec.benchmarks.report import keep
from mmspec.benchmarks.rows import in_dtype, row, split
from mmspec.benchmarks.speed import SpeedSettings, run, token_counter
from mmspec.benchmarks.start import check_sees, loaded
from mmspec.benchmarks.tables import NAMED, number, span
from mmspec.benchmarks.weights import weights_of, weights_of_rows
from mmspec.benchmarks.world_tasks import TASKS
from mmspec.errors import Error, InputError, one_line, unknown_name
from mmspec.intervals import LEAST_UNITS

FAMILIES = ("smolvlm-mini", "llava-next-mini", "pixtral-mini", "gemma3-mini")
DRAFTERS = ("spd", "kangaroo", "medusa", "hydra", "eagle", "eagle2", "eagle3", "dflash", "dspark")
SEEING = ("msd", "vispec", "hivis", "dream", "specvlm", "massv", "spec-llava", "ibed", "tabed")
FREE = ("prompt-lookup", "suffix", "recycling")
RULES = ("eagle2@match", "eagle@ratio")
"""What is compared with the coupled trees where tokens are drawn."""
AVERAGE = "average"
SPACED = 1_000_000
"""Between the numbers of questions of two tasks."""


@dataclass(frozen=True)
class TableSettings:
    """speed: what every run has in common; its model, drafters and temperatures are those of the table.

    families: names, folders or hub ids. tasks: of `world_tasks.TASKS`.
    """

    speed: SpeedSettings
    families: tuple[str, ...] = FAMILIES
    tasks: tuple[str, ...] = tuple(TASKS)

    def __post_init__(self) -> None:
        for task in self.tasks:
            if task not in TASKS:
                raise unknown_name("task", task, TASKS)


@dataclass(frozen=True)
class Row:
    """One method of one family at one temperature on one task; `task` is AVERAGE for all of them together."""

    family: str
    task: str
    temperature: float
    figures: Figures
    cap: float | None


@dataclass
class DrafterTable:
    """What was found. missing: what there is nothing of, and why. short: tasks without a reply that is long enough.
    stores: folders of the samples."""

    settings: TableSettings
    rows: list[Row] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    short: list[str] = field(default_factory=list)
    stores: list[Path] = field(default_factory=list)

    def summary(self) -> dict[str, Any]:
        """Everything, for JSON."""
        return {
            "settings": asdict(self.settings),
            **conditions_of(self.stores),
            "rows": [asdict(one) for one in self.rows],
            "missing": self.missing,
            "short": self.short,
        }

    def text(self) -> str:
        """Everything, in Markdown."""
        least = self.settings.speed.min_tokens
        parts = [
            f"S (with its 95 % interval, where there are {LEAST_UNITS} prompts or more), tau, S / tau and the measured "
            f"cap of S, on replies of {least} tokens or more. `average` takes all tasks together. In every block S is "
            "against the faster of our autoregressive loop and HF `generate`."
        ]
        for family in dict.fromkeys(one.family for one in self.rows):
            for temperature in dict.fromkeys(one.temperature for one in self.rows if one.family == family):
                chosen = [one for one in self.rows if (one.family, one.temperature) == (family, temperature)]
                parts.append(f"## {family}, temperature {temperature:g}\n\n{markdown(chosen)}")
        for title, lines in (("Missing", self.missing), ("Replies too short", self.short)):
            parts += [f"## {title}\n\n" + "\n".join(f"- {line}" for line in lines)] if lines else []
        return "\n\n".join(parts)


def markdown(rows: Sequence[Row]) -> str:
    """A block of one family and temperature: a line per method, a column per task."""
    tasks = list(dict.fromkeys(one.task for one in rows))
    cells = {(one.figures.method, one.task): one for one in rows}
    lines = [["method", *(TASKS[task].title if task in TASKS else task for task in tasks)]]
    for method in dict.fromkeys(one.figures.method for one in rows):
        told = [cells.get((method, task)) for task in tasks]
        lines.append([NAMED.get(method, method), *("-" if one is None else cell(one) for one in told)])
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def cell(line: Row) -> str:
    """S (interval), tau, efficiency, cap."""
    found = line.figures
    if found.method in BASELINES:
        return f"{number(found.speedup)}"
    rest = f"tau {number(found.tau)}, eff {number(found.efficiency)}, cap {number(line.cap)}"
    around = "" if found.speedup is None else f" ({span(found.speedup_low, found.speedup_high)})"
    return f"{number(found.speedup)}{around}, {rest}"


def run_table(settings: TableSettings, folder: Path) -> DrafterTable:
    """Run what the folder does not hold yet; writes summary.json and table.txt there, after every family where there
    was no table yet.

    Raises: InputError: there is no family to measure. FolderError: what the folder holds of one is of another run. Then
        a table that is there already stays as it is.
    """
    table, fresh = DrafterTable(settings), not (folder / "summary.json").exists()
    for place, family in enumerate(settings.families, 1):
        speed = replace(settings.speed, model=family)
        try:
            check_sees(family)
            fill(table, loaded(speed, OURS), speed, folder / plain(family))
        except FolderError:
            raise
        except Error as error:  # what was measured of the family stays
            table.missing.append(f"{family}: {error}")
        left = [f"{other}: not measured yet" for other in settings.families[place:]]
        if table.rows and (fresh or not left):  # a table that is there may have more families
            keep(folder, replace(table, missing=table.missing + left))
    if not table.rows:
        raise InputError("; ".join([*table.missing, *table.short]) or "there is nothing to measure")
    return table


def fill(table: DrafterTable, pipe: Pipeline, speed: SpeedSettings, place: Path) -> None:
    """Add the rows of a family."""
    there = drafters_there(table, pipe, speed)
    for temperature in speed.temperatures:
        compared = [
            rule for rule in RULES if temperature and split(rule)[0] in there and split(rule)[0] in speed.drafters
        ]
        whole: list[Sample] = []
        for order, task in enumerate(table.settings.tasks):
            here = replace(speed, drafters=tuple(there), temperatures=(temperature,))
            store = place / task / f"T{temperature:g}"
            samples = measured(pipe, here, task, compared, store)
            table.stores.append(store)
            kept = counted(samples, speed.min_tokens)
            if not kept:
                table.short.append(
                    f"{speed.model}, {TASKS[task].title}, temperature {temperature:g}: none of {len(samples)} replies "
                    f"has {speed.min_tokens} tokens"
                )
                continue
            table.rows += rows(kept, speed.model, task)
            whole += [replace(one, question=SPACED * order + one.question) for one in kept]
        if len({one.task for one in table.rows if (one.family, one.temperature) == (speed.model, temperature)}) > 1:
            table.rows += rows(whole, speed.model, AVERAGE)


def drafters_there(table: DrafterTable, pipe: Pipeline, speed: SpeedSettings) -> list[str]:
    """Our autoregressive loop and those of the drafters that the family has; the others are noted as missing."""
    found = [OURS]
    for name in speed.drafters:
        drafter, dtype = in_dtype(name)
        try:
            pipe.with_drafter(drafter, drafter_dtype=dtype)
        except Error as error:
            table.missing.append(f"{name} for {speed.model}: {one_line(error)}")
            continue
        found += [name] if name != OURS else []
    return found


def measured(pipe: Pipeline, settings: SpeedSettings, task: str, compared: Sequence[str], place: Path) -> list[Sample]:
    """The samples of a family on a task at one temperature. compared: rows DRAFTER@RULE beside the drafters."""
    told = {"run": "drafters", "task": task, "compared": list(compared), **asdict(settings)}
    store = Store(place, told | weights_of(pipe, settings.drafters) | weights_of_rows(pipe, compared))

    def make(pipe: Pipeline) -> dict[str, Method]:
        return {**methods(pipe, settings.drafters), **{rule: Ours(row(pipe, rule)) for rule in compared}}

    return run(pipe, settings, store, lambda: TASKS[task].questions(settings.questions, token_counter(pipe)), make)


def rows(samples: Sequence[Sample], family: str, task: str) -> list[Row]:
    """The figures of every method; samples: of one temperature."""
    return [Row(family, task, found.temperature, found, cap(samples, found.method)) for found in figures(samples)]


def cap(samples: Sequence[Sample], method: str) -> float | None:
    """tau / (c_v + D c_d), from the summed seconds of verification and drafting; None where they are not told."""
    base = baseline(samples)
    return best_possible(samples, base, method, ("verify", "draft")) if base else None


def usual(drafters: Iterable[str]) -> tuple[str, ...]:
    """The drafters of the table: those that are given, or the survey's and those made for pictures."""
    return tuple(drafters) or (*DRAFTERS, *SEEING, *FREE)
