"""Questions and answers about a picture: the entry point of the miniworld's language.

The talk modules know what can be said and asked about a kind of picture; this one chooses topics and forms, puts sentences
together, keeps answers within their length and turns mark-up into spans. Randomness comes from the given generator only.
"""

import random
import re
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

from mmspec.miniworld import ask_shapes, talk_charts, talk_shapes, talk_signs, talk_tables
from mmspec.miniworld.facts import QA, Chart, Facts, Shapes, Sign, Table
from mmspec.miniworld.phrases import Ask, Voice, finish, length, mark, plain, tidy

LOW, HIGH = 55, 110  # words and punctuation marks of a long answer
CHOICES = "ABCD"
ENDING = (
    "[[so|thus|hence|therefore] the [answer|result] is {v}|answer: {v}|the [answer|result] is [therefore|thus|then] {v}"
    "|[this means|we see] that the [answer|result] is {v}]."
)
STEPS_CUE = (
    "[Explain [|your answer ][step by step|in steps]|Show [how you get there|your work|the steps]|[Reason|Think|Work] step by step"
    "|Give the steps[ and the answer|]|Explain how you [know|find out|get there]]."
)
TALKS: dict[type, tuple[ModuleType, Any]] = {
    Shapes: (talk_shapes, ask_shapes.TOPICS),
    Chart: (talk_charts, talk_charts.TOPICS),
    Table: (talk_tables, talk_tables.TOPICS),
    Sign: (talk_signs, talk_signs.TOPICS),
}
"""What can be said and asked about a kind of picture."""


class Talker(NamedTuple):
    """The talk about one family of pictures."""

    voice: Voice
    facts: Facts
    talk: ModuleType
    topics: dict[Callable[[Voice, Any], Ask | None], int]


def questions(facts: Facts, rng: random.Random) -> tuple[QA, ...]:
    """Ten to fourteen questions with answers about one picture.

    Args: facts: what the picture shows; rng: the only source of randomness.
    Returns: one description, three or four worked answers and short ones, with few yes/no and multiple-choice questions
        among them, in random order.
    """
    voice = Voice(rng)
    talker = Talker(voice, facts, *TALKS[type(facts)])
    total = rng.randint(10, 14)
    forms = ["worked"] * rng.choice((3, 3, 4))
    forms += ["yesno"] * rng.choices((0, 1, 2), (30, 55, 15))[0] + ["choice"] * rng.choices((0, 1), (40, 60))[0]
    forms += ["short"] * (total - 1 - len(forms))
    seen: set[str] = set()
    found = [_description(talker)]
    for form in forms:
        qa = _answer(talker, form, seen)
        if qa is not None:
            found.append(qa)
    rng.shuffle(found)
    return tuple(found)


def _draw(talker: Talker, form: str, seen: set[str]) -> Ask | None:
    """Something to ask in that form; what was asked before only if nothing else is found."""
    topics, weights = list(talker.topics), list(talker.topics.values())
    fallback = None
    for attempt in range(40):
        ask = talker.voice.rng.choices(topics, weights)[0](talker.voice, talker.facts)
        if ask is None or not _fits(ask, form):
            continue
        if ask.key not in seen:
            seen |= {ask.key, f"{form} {ask.key}"}
            return ask
        if f"{form} {ask.key}" not in seen:
            fallback = ask
        if attempt > 15 and fallback:
            break
    if fallback:
        seen.add(f"{form} {fallback.key}")
    return fallback


def _fits(ask: Ask, form: str) -> bool:
    """Whether that can be asked in that form."""
    if form == "worked":
        return ask.steps is not None
    if form == "choice":
        return len(ask.wrong) >= 2 and not (" " in ask.gold and ask.quoted)
    return form != "yesno" or bool(ask.wrong)


def _answer(talker: Talker, form: str, seen: set[str]) -> QA | None:
    ask = _draw(talker, form, seen)
    if ask is None:
        return None
    return _worked(talker, ask) if form == "worked" else phrased(talker.voice, ask, form)


def phrased(voice: Voice, ask: Ask, form: str) -> QA:
    """A question with a brief answer. form: "short", "yesno" or "choice"; the last two need wrong values."""
    return {"short": _short, "yesno": _yesno, "choice": _choice}[form](voice, ask)


def _short(voice: Voice, ask: Ask) -> QA:
    if voice.rng.random() < 0.5:
        cue = voice.say(
            "[Answer with [just |]the [value|word or number]|Give [only|just] the [value|answer]|[Only|Just] the [value|answer], please|No sentence, just the answer]."
        )
        return _qa(ask, "short", _with_cue(voice, ask.question, cue), mark(ask.gold), sentences=False)
    cue = voice.say(
        "[|Answer in [a|one] [short |]sentence.|Please answer in a [short |full ]sentence.|Use a [short |full ]sentence.]"
    )
    return _qa(ask, "short", _with_cue(voice, ask.question, cue), ask.claim(mark(ask.gold)) + ".")


def _with_cue(voice: Voice, question: str, cue: str) -> str:
    return f"{cue} {question}" if voice.rng.random() < 0.2 else f"{question} {cue}"


def _worked(talker: Talker, ask: Ask) -> QA:
    voice = talker.voice
    cue = voice.say(STEPS_CUE)
    best = ""
    assert ask.steps is not None
    for _ in range(8):
        last = _ending(voice, ask)
        best = _fill(talker, ask.steps(), last)
        if LOW <= length(best) <= HIGH:
            break
    return _qa(ask, "worked", _with_cue(voice, ask.question, cue), best)


def reasoned(voice: Voice, ask: Ask) -> QA:
    """A question whose answer is the last step of a worked one, and the result. `ask` has steps."""
    cue = voice.say(STEPS_CUE)
    assert ask.steps is not None
    step = ask.steps().rstrip().rsplit(". ", 1)[-1]
    return _qa(ask, "worked", _with_cue(voice, ask.question, cue), f"{step} {_ending(voice, ask)}")


def _ending(voice: Voice, ask: Ask) -> str:
    """The sentence that states the result."""
    return voice.say(ENDING, v=f'"{mark(ask.gold)}"' if ask.quoted else mark(ask.gold))


def _fill(talker: Talker, steps: str, last: str) -> str:
    """The steps and the last sentence, behind true remarks where the answer would be too short without."""
    voice, talk = talker.voice, talker.talk
    goal = voice.rng.randint(LOW + 3, LOW + 27)
    size = length(f"{steps} {last}")
    extra: list[str] = []
    if size < goal:
        if voice.rng.random() < 0.4:
            extra = [talk.opening(voice, talker.facts)]
            size += length(extra[0])
        for remark in _meaty(voice, talk.remarks(voice, talker.facts)):
            if size >= goal:
                break
            if size + length(remark) < HIGH - 3:
                extra.append(remark)
                size += length(remark)
    return " ".join([*extra, steps, last])


def _meaty(voice: Voice, remarks: list[str]) -> list[str]:
    """The remarks in random order, those first on average that tell most about the picture."""
    return sorted(remarks, key=lambda text: -text.count("<") / length(text) * voice.rng.uniform(0.6, 1.4))


def _description(talker: Talker) -> QA:
    voice = talker.voice
    question = voice.say(
        "[[Describe|Please describe] [the|this] [picture|image] [in detail|carefully|in full|as well as you can]."
        "|What [does [the|this] [picture|image] show|can you see in [the|this] [picture|image]]? [Give|Tell me] [all|the] details."
        "|Tell me [everything|all] about [the|this] [picture|image].|Write a [long|detailed|full] description of [the|this] [picture|image].]"
    )
    text = ""
    for _ in range(8):
        parts = talker.talk.describe(voice, talker.facts)
        goal, size = voice.rng.randint(LOW + 5, LOW + 35), length(" ".join(parts))
        for remark in _meaty(voice, talker.talk.remarks(voice, talker.facts)):
            if size < goal and size + length(remark) < HIGH - 2:
                parts.append(remark)
                size += length(remark)
        text = " ".join(parts)
        if LOW <= length(text) <= HIGH:
            break
    answer, spans = finish(tidy(text), question, None)
    return QA(tidy(question), answer, "describe", "describe", None, spans)


def _yesno(voice: Voice, ask: Ask) -> QA:
    truth = voice.rng.random() < 0.5
    value = ask.gold if truth else voice.rng.choice(ask.wrong)
    claimed = plain(ask.claim(mark(value)))
    question = voice.say(
        "[Is it [true|correct|right] that|Can [you|we] say that|Would you [agree|say] that] {c}?", c=claimed
    )
    if not all(re.search(rf"\b{re.escape(name)}\b", claimed) for name in ask.about):  # "its color is red": whose?
        question = f"{ask.question} {question}"
    gold = "yes" if truth else "no"
    answer = f"<{gold}>, {ask.claim(mark(ask.gold))}."
    if voice.rng.random() < 0.3:
        question, answer = f"{question} Answer yes or no.", f"<{gold}>."
    made = Ask(ask.topic, ask.key, question, gold, ask.claim)
    return _qa(made, "yesno", question, answer, reason=ask.gold)


def _choice(voice: Voice, ask: Ask) -> QA:
    wrong = voice.rng.sample(ask.wrong, min(len(ask.wrong), voice.rng.choice((2, 3))))
    options = wrong + [ask.gold]
    voice.rng.shuffle(options)
    listed = " ".join(f"({letter}) {option}" for letter, option in zip(CHOICES, options, strict=False))
    letter = CHOICES[options.index(ask.gold)]
    cue = voice.say("[Choose [one|from]:|Pick [one|from]:|Options:|]")
    answer = voice.say("[(<{k}>) {v}|[it|the answer] is (<{k}>) {v}.|{v}]", k=letter, v=mark(ask.gold))
    asked = f"{ask.question} {cue}"
    whole = answer.endswith(".")
    return _qa(ask, "choice", f"{asked} {listed}", answer, asked=asked, sentences=whole, reason=ask.gold)


def _qa(
    ask: Ask,
    form: str,
    question: str,
    answer: str,
    *,
    asked: str = "",
    sentences: bool = True,
    reason: str | None = None,
) -> QA:
    """The finished record; asked: the part of the question whose words count as copied, if not all of it."""
    text, spans = finish(tidy(answer, sentences=sentences), asked or question, ask.gold)
    return QA(tidy(question), text, form, ask.topic, ask.gold, spans, reason)
