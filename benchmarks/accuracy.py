"""The accuracy run: held-out questions of every form, judged by relaxed accuracy, with shuffled pictures as control."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

from mmspec import Pipeline
from mmspec.benchmarks.questions import Question, class_of, judged_questions, shuffled
from mmspec.benchmarks.records import Store
from mmspec.benchmarks.start import ModelSettings
from mmspec.benchmarks.stock import Stock
from mmspec.checkpoints import find_model
from mmspec.errors import InputError, check_least
from mmspec.miniworld.scoring import final_value, relaxed_match
from mmspec.progress import progress


@dataclass(frozen=True)
class AccuracySettings(ModelSettings):
    """What the answers of an accuracy run depend on. drafter and acceptance change the time, and not the answers.

    stock: whether transformers alone answers everything as well, in float32.
    """

    drafter: str = "none"
    questions: int = 3000
    max_new_tokens: int = 192
    batch: int = 32
    shuffle_images: bool = False
    stock: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self, "questions", "max_new_tokens", "batch")
        if self.shuffle_images and self.questions < 20:
            raise InputError(f"questions={self.questions} is not valid with shuffled images: at least 20 are needed")


@dataclass(frozen=True)
class Judged:
    """One judged answer. picture: index of the miniworld sample. kind: the class it is counted under
    (`questions.class_of`); same: whether transformers alone said the same, None if it was not asked."""

    question: int
    picture: int
    kind: str
    form: str
    family: str
    asked: str
    reply: str
    value: str
    gold: str
    right: bool
    same: bool | None = None


def run_accuracy(pipe: Pipeline, settings: AccuracySettings, store: Store) -> list[Judged]:
    """Answer what the store does not hold yet, in batches of similar length; returns all answers in order."""
    done = {record["question"]: Judged(**record) for record in store.load()}
    questions = judged_questions(settings.questions)
    if settings.shuffle_images:
        questions = shuffled(questions)
    stock = Stock(find_model(settings.model)) if settings.stock else None
    missing = sorted((q for q in questions if q.index not in done), key=lambda q: (q.qa.form, q.index))
    if missing:
        store.go_on()
    with progress(desc="accuracy", unit="answer", total=len(questions), initial=len(done)) as bar:
        for start in range(0, len(missing), settings.batch):
            batch = missing[start : start + settings.batch]
            replies = pipe(
                [question.image for question in batch],
                [question.qa.question for question in batch],
                max_new_tokens=settings.max_new_tokens,
                temperature=0.0,
                repetition_penalty=1.0,
            )
            others: list[str | None] = [None] * len(batch)
            if stock is not None:
                pictures, asked = [question.image for question in batch], [question.qa.question for question in batch]
                others = [*stock.replies(pictures, asked, settings.max_new_tokens)]
            for question, reply, other in zip(batch, replies, others, strict=True):
                judged = judge(question, reply.answer)
                if other is not None:
                    judged = replace(judged, same=other == reply.text.strip())
                store.add(asdict(judged))
                done[judged.question] = judged
            bar.update(len(batch))
    return [done[question.index] for question in questions]


def judge(question: Question, reply: str) -> Judged:
    """Compare the value that a reply states with the gold one."""
    qa = question.qa
    assert qa.gold is not None
    value = final_value(reply)
    right = relaxed_match(value, qa.gold)
    kind = class_of(question.family, qa.form, qa.topic)
    place = question.index, question.picture
    return Judged(*place, kind, qa.form, question.family, qa.question, reply, value, qa.gold, right)
