"""The speed run: every method answers the same questions in turn, so that a slow minute hits all of them alike."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from typing import Any, Protocol

from mmspec import Pipeline
from mmspec.benchmarks.figures import counted, too_short
from mmspec.benchmarks.methods import Method, forget, methods
from mmspec.benchmarks.questions import long_questions, own_questions
from mmspec.benchmarks.records import Sample, Store, sample_of
from mmspec.benchmarks.start import ModelSettings
from mmspec.control import read_shape
from mmspec.engine.cache import FRONT, rounded
from mmspec.errors import Error, InputError, check_least
from mmspec.progress import progress
from mmspec.spread import Here, Spread
from mmspec.training.questions import Question

WARM_UP_SEED = "bench-warm-up"
WARM_UPS = 3
"""Replies of every method at every temperature before those that are timed. In the first ones memory is allocated and
`auto` learns; Spec-Bench and EAGLE take as many."""
FEW = 4
"""Samples after which it is told that no reply is long enough to count: a run may take hours."""


class Prompt(Protocol):
    """What can be asked: a text or a chat, and what `Pipeline.prepare` takes for its pictures and its voice."""

    @property
    def image(self) -> Any:
        """Pictures, or None."""

    @property
    def prompt(self) -> str | Sequence[Any]:
        """The text or chat, or those of a batch."""

    @property
    def voice(self) -> Any:
        """Who says it, or of a recogniser what it hears; mostly None."""


@dataclass(frozen=True)
class SpeedSettings(ModelSettings):
    """What the samples of a speed run depend on.

    drafters: names, folders or hub ids, as for `methods`; the partners of transformers come with them. questions: how
    many prompts, of one's own data those that cannot be asked included. min_tokens: shorter replies do not count.
    repeats: times that each prompt is answered. seed: of the first reply; each has one of its own, or all would meet
    the same noise. rows: prompts that are answered together, as a batch. shape: of drafts, as `--shape` takes it; by
    default auto: how many tokens a round drafts then follows the clock (the reply does not), while with any other one
    it is the same in every run. compile: whether our loop runs compiled forwards; None: as `mmspec.load` chooses. data:
    whose questions are asked, the last ones of a folder or of a data set of the hub (`own_questions`); None: the
    world's.
    """

    drafters: tuple[str, ...]
    temperatures: tuple[float, ...] = (0.0, 1.0)
    questions: int = 32
    max_new_tokens: int = 96
    min_tokens: int = 60
    repeats: int = 2
    seed: int = 0
    rows: int = 1
    shape: str | None = None
    compile: bool | None = None
    data: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self, "questions", "max_new_tokens", "min_tokens", "repeats", "rows")
        if self.min_tokens > self.max_new_tokens:
            raise InputError(
                f"min_tokens={self.min_tokens} is above max_new_tokens={self.max_new_tokens}: no reply counts"
            )
        read_shape(self.shape or "auto")
        for name in ("drafters", "temperatures"):
            given = getattr(self, name)
            if not given or len(set(given)) < len(given):
                told = ", ".join(map(str, given)) or "nothing"
                raise InputError(f"{name} must name at least one and each once, got {told}")


def model_inputs(pipe: Pipeline, question: Prompt) -> dict[str, Any]:
    """What a model is given of a question."""
    return pipe.prepare(question.image, question.prompt, question.voice)


def prompt_size(pipe: Pipeline, question: Prompt) -> int:
    """How many tokens the prompt has; of a batch, the longest."""
    return model_inputs(pipe, question)["input_ids"].shape[1]


def run_speed(
    pipe: Pipeline,
    settings: SpeedSettings,
    store: Store,
    questions: Sequence[Prompt],
    spread: Spread | None = None,
) -> list[Sample]:
    """Answer what the store does not hold yet; returns all samples in order.

    Args: pipe: a pipeline on the target, without a drafter. questions: those of `asked`. spread: as for `run`.
    """
    return run(
        pipe,
        replace(settings, questions=len(questions)),
        store,
        lambda: questions,
        partial(methods, drafters=settings.drafters, shape=settings.shape),
        warm=lambda: warm_question(pipe, settings.data, settings.questions),
        spread=spread,
    )


def asked(pipe: Pipeline, settings: SpeedSettings) -> tuple[Sequence[Prompt], list[str]]:
    """The questions of a run, and why others of one's own data cannot be asked.

    Raises: InputError: none of them can.
    """
    if settings.data is None:
        return long_questions(settings.questions, token_counter(pipe)), []
    read = list(own_read(pipe, settings.data, settings.questions))
    questions, refused = [one for one, _ in read if one], [why for _, why in read if why]
    if not questions:
        raise InputError(f"none of {len(refused)} questions of {settings.data} can be asked; the first: {refused[0]}")
    return questions, refused


def own_read(pipe: Pipeline, data: str, number: int) -> Iterator[tuple[Question | None, str]]:
    """The last `number` questions of one's own data; None, and why, for one that cannot be asked."""
    own = own_questions(data, number)
    for index in range(len(own)):
        try:
            question = own[index]
        except InputError as error:
            yield None, str(error)
        else:
            why = refusal(pipe, question)
            yield (None, f"{question.where}: {why}") if why else (question, "")


def refusal(pipe: Pipeline, question: Prompt) -> str:
    """Why the model cannot be asked a question: its pictures, its text, no room for a reply; "" if it can."""
    try:
        length, room = prompt_size(pipe, question), pipe.target.decoder.max_length
    except Error as error:
        return str(error)
    return f"the prompt has {length} tokens, the model's context is {room}" if length >= room else ""


def warm_question(pipe: Pipeline, data: str | None, questions: int) -> Prompt:
    """One to warm up with that is not among the `questions` that are measured; the first one that can be asked where
    those are all of one's own data, or the one before them cannot."""
    if data is None:
        return long_questions(1, token_counter(pipe), WARM_UP_SEED)[0]
    return next(question for question, _ in own_read(pipe, data, questions + 1) if question)


def run(
    pipe: Pipeline,
    settings: SpeedSettings,
    store: Store,
    ask: Callable[[], Sequence[Prompt]],
    make: Callable[[Pipeline], dict[str, Method]],
    warm: Callable[[], Prompt] | None = None,
    note: Callable[[Sample], dict[str, Any]] = lambda sample: {},
    prepare: Callable[[Pipeline, Any], Any] = model_inputs,
    spread: Spread | None = None,
) -> list[Sample]:
    """Answer what the store does not hold yet; returns all samples in order, in which the store's lines are left.

    Args: ask, make: the questions and the methods, if something is missing. warm: a question to warm up with; by
        default one of the miniworld. note: what else to write down about a sample. prepare: what the methods are given
        of a question. spread: where questions are answered, by default here. Workers elsewhere call `make` and
        `prepare` with pipelines of their own, so these must be picklable then.
    """
    done = {sample.key: sample for sample in map(sample_of, store.load())}
    wanted = list(product(range(settings.questions), settings.temperatures, range(settings.repeats)))
    missing = sorted((plan for plan in wanted if plan not in done), key=pass_of)
    if missing:
        store.go_on()
        questions = ask()
        first = warm() if warm else warm_question(pipe, None, settings.questions)
        begin = partial(answering, make=make, prepare=prepare, settings=settings, first=first)
        answered = (spread or Here(pipe)).map(begin, ((plan, questions[plan[0]]) for plan in missing))
        # the bar counts from where an earlier run stopped
        bar = progress(answered, desc="speed", unit="prompt", total=len(wanted), initial=len(done))
        early = max(FEW, len(done) + 1)
        for _, sample in bar:
            store.add(asdict(sample) | note(sample))
            done[sample.key] = sample
            if len(done) == early < len(wanted) and not counted([*done.values()], settings.min_tokens):
                bar.write(
                    f"{too_short([*done.values()], settings.min_tokens)}: shorter ones do not count. If all may be "
                    "short, end the run and lower --min-tokens; what --out keeps is not measured again",
                    file=sys.stderr,
                )
    store.arrange(wanted)  # even if nothing is missing: a kill may have come between the last sample and this
    return [done[plan] for plan in wanted]


def answering(
    pipe: Pipeline,
    make: Callable[[Pipeline], dict[str, Method]],
    prepare: Callable[[Pipeline, Any], Any],
    settings: SpeedSettings,
    first: Prompt,
) -> Callable[[tuple[tuple[int, float, int], Prompt]], Sample]:
    """Warm methods, as a function from a sample's plan and its question to the sample."""
    ready, inputs = make(pipe), prepare(pipe, first)
    warm_up(ready, settings, inputs, WARM_UPS)
    current: tuple[int, float] | None = None
    warm = {buffer_of(pipe, first, inputs, settings)}

    def answered(asked: tuple[tuple[int, float, int], Prompt]) -> Sample:
        nonlocal current
        plan, question = asked
        inputs = prepare(pipe, question)
        if (buffer := buffer_of(pipe, question, inputs, settings)) not in warm:
            warm_up(ready, settings, inputs, 1)
            warm.add(buffer)
            current = None  # what remembers replies has met this one
        if pass_of(plan) != current:
            current = pass_of(plan)
            forget(ready)
        return answer(ready, inputs, plan, settings)

    return answered


def buffer_of(pipe: Pipeline, question: Prompt, inputs: Any, settings: SpeedSettings) -> int:
    """The size of the cache of a reply, for which forwards are compiled once; 0 where nothing is compiled.

    Args: inputs: what the methods are given, in most cases model inputs of the question: pictures are read once.
    """
    if not pipe.target.compiled:
        return 0
    size = inputs["input_ids"].shape[1] if isinstance(inputs, dict) else prompt_size(pipe, question)
    return rounded(FRONT + size + settings.max_new_tokens)


def pass_of(plan: tuple[int, float, int]) -> tuple[int, float]:
    """The repetition and the temperature of a sample. In a pass no question comes twice, so that a drafter which
    remembers replies gains from other questions alone; between two passes it forgets."""
    _, temperature, repeat = plan
    return repeat, temperature


def answer(ready: dict[str, Method], inputs: Any, plan: tuple[int, float, int], settings: SpeedSettings) -> Sample:
    """All methods on one question; which one begins changes from sample to sample."""
    index, temperature, repeat = plan
    names = list(ready)
    first = (index + repeat) % len(names)
    seed = settings.seed + (index * settings.repeats + repeat) * settings.rows
    runs = {}
    for name in names[first:] + names[:first]:
        runs[name] = ready[name](inputs, settings.max_new_tokens, temperature, seed)
    return Sample(index, temperature, repeat, {name: runs[name] for name in names})


def warm_up(ready: dict[str, Method], settings: SpeedSettings, inputs: Any, times: int) -> None:
    """So many replies of every method at every temperature, which are not measured."""
    for temperature, repeat in product(settings.temperatures, range(times)):
        answer(ready, inputs, (0, temperature, repeat), settings)


def token_counter(pipe: Pipeline) -> Callable[[str], int]:
    """How many tokens a text has for this model."""
    tokenizer = tokenizer_of(pipe)
    return lambda text: len(tokenizer(text, add_special_tokens=False)["input_ids"])


def tokenizer_of(pipe: Pipeline) -> Any:
    """The tokenizer, which for text models is the processor itself."""
    return getattr(pipe.processor, "tokenizer", pipe.processor)
