"""A task run: every method answers the questions of a data set; replies are timed, judged and kept."""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, ClassVar

from PIL import Image

from mmspec import Pipeline
from mmspec.benchmarks.methods import methods
from mmspec.benchmarks.records import Run, Sample, Store, sample_of
from mmspec.benchmarks.speed import SpeedSettings, model_inputs, refusal, run, tokenizer_of
from mmspec.benchmarks.tasks.hub import official
from mmspec.benchmarks.tasks.task import Item, Mark, Style, Task, choose, find_task
from mmspec.benchmarks.tasks.world import SEED
from mmspec.benchmarks.token_classes import Counts, counts
from mmspec.benchmarks.weights import weights_of
from mmspec.errors import InputError
from mmspec.spread import Spread
from mmspec.text import decode_text
from mmspec.thoughts import apart

WARM_UP_SEED = "tasks-warm-up"


@dataclass(frozen=True)
class TaskSettings:
    """One model on one task. data: the official files, None for the stand-in of the miniworld.

    speed: how it is asked; its `questions` is the most, and a data set may have fewer. judge: a text model that finds
    answers in replies, for tasks that take one; None leaves it to rules.
    """

    task: str
    speed: SpeedSettings
    style: Style = "speed"
    data: Path | None = None
    judge: str | None = None

    @property
    def name(self) -> str:
        """What the results are called: a stand-in's are none of the data set's."""
        return self.task if self.data else f"{self.task}-format/miniworld"


@dataclass(frozen=True)
class TaskQuestion:
    """A question of a task, as the runner asks it. opened: its pictures, None to open them when they are needed."""

    item: Item
    prompt: str
    opened: list[Image.Image] | None = None
    voice: ClassVar[None] = None

    @property
    def image(self) -> list[Image.Image]:
        """The pictures."""
        return [picture.load() for picture in self.item.pictures] if self.opened is None else self.opened

    def __reduce__(self) -> tuple[Any, ...]:
        """What is shipped to a worker: the pictures themselves, since their files may not be there."""
        return TaskQuestion, (replace(self.item, pictures=()), self.prompt, self.image)


@dataclass(frozen=True)
class Reply:
    """A judged reply. text: without what the model thought. value: the answer that was found in it, "" if none was.
    classes: see `token_classes`."""

    text: str
    value: str
    right: bool
    classes: Counts


@dataclass
class Answered:
    """One question at one temperature, answered and judged: method -> reply. cut: the methods whose reply ended by
    length, before it was done."""

    id: str
    groups: dict[str, str]
    sample: Sample
    replies: dict[str, Reply]
    cut: frozenset[str] = frozenset()


@dataclass
class TaskRun:
    """What a task run found. refused: questions that could not be asked, each with its reason. judged: the part of
    `answered` whose right answers are known. shared: whether workers shared a machine, so timings are no speeds."""

    settings: TaskSettings
    task: Task
    answered: list[Answered]
    refused: list[str]
    judged: list[Answered]
    shared: bool = False

    @property
    def samples(self) -> list[Sample]:
        """What was measured."""
        return [each.sample for each in self.answered]


def run_task(pipe: Pipeline, settings: TaskSettings, folder: Path, spread: Spread | None = None) -> TaskRun:
    """Ask what the folder does not hold yet.

    Args: pipe: a pipeline on the target, without a drafter. folder: where samples are kept. spread: where questions are
        answered, by default here; pictures are opened here in any case.
    Raises: InputError: the data cannot be used, or none of its questions can be asked.
    """
    task, shared = judged_task(settings), spread is not None and spread.shared
    with files(task, settings) as path:
        chosen = choose(task.items(path), settings.speed.questions, settings.speed.seed)
        if not chosen:
            raise InputError(
                f"{path} holds no questions of {task.title}: its files can be read, and the split is empty"
            )
        questions, refused = askable(pipe, task, chosen, settings.style)
        speed = replace(settings.speed, questions=len(questions))
        kept = {
            "run": "task",
            "task": settings.name,
            "style": settings.style,
            "data": str(settings.data) if settings.data else None,
            "asked": sha256("\n".join(question.item.told for question in questions).encode()).hexdigest(),
            **asdict(speed),
            **weights_of(pipe, speed.drafters),
            **({"shared": True} if shared else {}),
            **({"judge": settings.judge} if settings.judge and hasattr(task, "judged_by") else {}),
        }
        store = Store(folder, kept)
        tokenizer, prompt = tokenizer_of(pipe), model_inputs(pipe, questions[0])["input_ids"][0].tolist()

        def note(sample: Sample) -> dict[str, Any]:
            item = questions[sample.question].item
            replies = {
                name: asdict(judged(task, item, each, settings.style, tokenizer, prompt))
                for name, each in sample.runs.items()
            }
            return {"id": item.id, "groups": dict(item.groups), "replies": replies}

        run(
            pipe,
            speed,
            store,
            lambda: questions,
            partial(methods, drafters=speed.drafters, shape=speed.shape),
            warm=lambda: warm_question(task, settings.style),
            note=note,
            spread=spread,
        )
    ends = pipe.target.ends()
    answered = [answered_of(record, ends) for record in store.load()]
    with_answers = [each for each in answered if questions[each.sample.question].item.answers]
    return TaskRun(settings, task, answered, refused, with_answers, shared)


@contextmanager
def files(task: Task, settings: TaskSettings) -> Iterator[Path]:
    """The data: the user's, from the hub if need be, or a stand-in that is gone afterwards."""
    if settings.data is not None:
        yield official(settings.data, task.files)
        return
    with tempfile.TemporaryDirectory(prefix="mmspec-task-") as folder:
        yield task.fixture(Path(folder), settings.speed.questions, SEED)


def askable(pipe: Pipeline, task: Task, items: list[Item], style: Style) -> tuple[list[TaskQuestion], list[str]]:
    """The questions whose pictures and texts the model takes, and why others are refused.

    Raises: InputError if none is left.
    """
    questions, refused = [], []
    for item in items:
        question = TaskQuestion(item, task.prompt(item, style))
        if why := refusal(pipe, question):
            refused.append(f"question {item.id!r}: {why}")
        else:
            questions.append(question)
    if not questions:
        raise InputError(f"none of {len(items)} questions can be asked; the first: {refused[0]}")
    return questions, refused


def warm_question(task: Task, style: Style) -> TaskQuestion:
    """A question of the task's kind that is never measured."""
    with tempfile.TemporaryDirectory(prefix="mmspec-task-") as folder:
        (item,) = task.items(task.fixture(Path(folder), 1, WARM_UP_SEED))
        # the folder will be gone
        return TaskQuestion(item, task.prompt(item, style), [picture.load() for picture in item.pictures])


def judged_task(settings: TaskSettings) -> Task:
    """The task, with the judge of the settings if it takes one."""
    task: Any = find_task(settings.task)
    if settings.judge is None or not hasattr(task, "judged_by"):
        return task
    from mmspec.benchmarks.tasks.extraction import Judge

    return task.judged_by(Judge.load(settings.judge, settings.speed.dtype, settings.speed.device))


def judged(task: Task, item: Item, run: Run, style: Style, tokenizer: Any, prompt: list[int]) -> Reply:
    """A reply with its mark; where the answers are hidden, nothing is right.

    prompt: ids of any question: all end alike, perhaps with what opens a thought.
    """
    text = apart(tokenizer, prompt, run.tokens).answer.strip()
    mark = task.mark(item, text, style) if item.answers else Mark("", False)
    classes = counts(run.tokens, run.accept_lengths, lambda token: decode_text(tokenizer, [token]))
    return Reply(text, mark.value, mark.right, classes)


def answered_of(record: dict[str, Any], ends: Collection[int]) -> Answered:
    """What a line of the store holds. ends: the ids that end a reply, which it keeps."""
    replies = {method: Reply(**reply) for method, reply in record["replies"].items()}
    sample = sample_of(record)
    cut = frozenset(method for method, run in sample.runs.items() if run.tokens[-1] not in ends)
    return Answered(record["id"], record["groups"], sample, replies, cut)
