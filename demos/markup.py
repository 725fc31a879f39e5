"""HTML of the demos: coloured tokens, counters, messages. Every text that came from outside is escaped here."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape

from mmspec.demos.race import Race, read
from mmspec.demos.trace import BONUS, CORRECTED, DRAFTED, PLAIN, Step

MEANING = {
    DRAFTED: "accepted as it was",
    CORRECTED: "the draft was wrong here",
    BONUS: "the target's own, after a draft that was right to its end",
    PLAIN: "the target's own, nothing was drafted",
}
CLOTHED = (DRAFTED, CORRECTED, BONUS)
"""Kinds of tokens that have clothes of their own."""
BROKEN = "There is no answer: the page is too busy, or something broke. Try again; the log of the demo says more."
CSS = """
.gradio-container { --block-info-text-color: var(--body-text-color); }
@media (max-width: 500px) { .tab-wrapper .tab-container button { padding-inline: 0.5rem; } }
.mm-text { min-height: 9rem; line-height: 1.9; white-space: pre-wrap; overflow-wrap: anywhere; }
.mm-drafted { background: #cdeccf; color: #12381a; text-decoration: underline; text-underline-offset: 3px; }
.mm-corrected { background: #ffd9b8; color: #5a2600; font-weight: 600; border-bottom: 2px dotted #b34700; }
.mm-bonus { background: #d8e4fb; color: #10306b; border-bottom: 2px dashed #2f5fc4; }
.mm-thought { font-size: 0.9em; margin-bottom: 0.5rem; padding-left: 0.7rem; border-left: 3px solid #8888; }
.mm-thought summary { cursor: pointer; }
.mm-empty { opacity: 0.8; line-height: 1.9; }
.mm-legend { display: flex; flex-wrap: wrap; gap: 0.2rem 1.2rem; }
.mm-key svg { display: inline; vertical-align: -1px; }
.mm-cards { display: flex; flex-wrap: wrap; gap: 0.5rem; }
.mm-card { flex: 1 1 6.5rem; border: 1px solid #8884; border-radius: 8px; padding: 0.4rem 0.7rem; }
.mm-card b { display: block; font-size: 1.3rem; font-variant-numeric: tabular-nums; }
.mm-note { padding: 0.5rem 0.7rem; border-left: 4px solid #2f5fc4; }
.mm-error { padding: 0.5rem 0.7rem; border-left: 4px solid #b00020; background: #b0002018; font-weight: 600; }
.mm-progress { display: block; width: 100%; height: 0.6rem; margin-top: 0.3rem; appearance: none; background: #8884; }
.mm-progress::-webkit-progress-bar { background: #8884; }
.mm-progress::-webkit-progress-value { background: #2f5fc4; }
.mm-progress::-moz-progress-bar { background: #2f5fc4; }
.mm-cells { margin: 0.5rem 0; }
.mm-cells svg { max-width: 100%; height: auto; }
.mm-wave svg { width: 100%; }
.mm-heard mark { background: #ffd9b8; color: #5a2600; }
.mm-gallery { display: flex; flex-wrap: wrap; gap: 0.8rem; }
.mm-gallery figure { margin: 0; width: 128px; font-size: 0.8rem; line-height: 1.3; overflow-wrap: anywhere; }
.mm-drawing { overflow-x: auto; }
.mm-drawing svg { max-width: none; }
"""


def tokens(steps: Sequence[Step], thought: int = 0) -> str:
    """The text of steps, each token in the clothes of how it came about. thought: how many of the first ones the model
    thought: they stand apart, folded up as soon as an answer follows."""
    spans = []
    for step in steps:
        for piece, kind in zip(step.pieces, step.kinds, strict=True):
            text = escape(piece)
            spans.append(f'<span class="mm-{kind}" title="{kind}">{text}</span>' if kind in CLOTHED and text else text)
    thoughts, answer = "".join(spans[:thought]).strip(), "".join(spans[thought:]).lstrip()
    if thoughts:
        title = f"Thought: {min(thought, len(spans))} tokens"
        unfolded = "" if answer else " open"
        thoughts = f'<details class="mm-thought"{unfolded}><summary>{title}</summary>{thoughts}</details>'
    return f'<div class="mm-text">{thoughts}{answer}</div>'


def legend() -> str:
    """What the clothes mean."""
    kinds = "".join(f'<span><b class="mm-{kind}">{kind}</b> {escape(text)}</span>' for kind, text in MEANING.items())
    return f'<div class="mm-legend">{kinds}</div>'


def counters(race: Race, until: float) -> str:
    """The cards of both sides at a time of the race, S of what both have said by then; the verdict when it is over."""
    slow, fast = read(race.slow, until), read(race.fast, until)
    return cards(
        {
            "speed-up S": told(race.speedup_by(until), "x"),
            "tau, tokens per call": told(fast.tau),
            "tokens/s, one at a time": told(slow.tokens_per_second, digits=1),
            "tokens/s, drafting": told(fast.tokens_per_second, digits=1),
            "target calls, both": f"{1 + slow.verifications} / {1 + fast.verifications}",
            "same answer": verdict(race) if race.over(until) else "...",
        }
    )


def cards(counts: Mapping[str, str]) -> str:
    """A card for each counter: its name, and what it stands at."""
    return f'<div class="mm-cards">{"".join(card(name, value) for name, value in counts.items())}</div>'


def card(name: str, value: str) -> str:
    """One counter."""
    return f'<div class="mm-card">{escape(name)}<b>{escape(value)}</b></div>'


def verdict(race: Race) -> str:
    """Whether both sides say the same, and whether they had to."""
    if race.agree:
        return "yes, lossless" if race.fast.lossless else "yes"
    if race.invariant:
        return "NO: an error"
    return "no, same law" if race.fast.lossless else "no, lossy rule"


def told(value: float | None, unit: str = "", digits: int = 2) -> str:
    """A number, or dots for what is not known yet."""
    return "..." if value is None else f"{value:.{digits}f}{unit}"


def note(text: str, spoken: bool = True) -> str:
    """What is going on. spoken: screen readers say it; a clock that runs would never let them finish."""
    role = ' role="status"' if spoken else ""
    return f'<div class="mm-note"{role}>{escape(text)}</div>'


def progress(text: str, done: int, total: int) -> str:
    """How far a long request is. text: also the name of the bar."""
    bar = f'<progress class="mm-progress" value="{done}" max="{total}" aria-label="{escape(text)}"></progress>'
    return f'<div class="mm-note">{escape(text)}{bar}</div>'


def blank(text: str) -> str:
    """What will stand here."""
    return f'<div class="mm-empty">{escape(text)}</div>'


def problem(text: str) -> str:
    """What went wrong, in one line."""
    return f'<div class="mm-error" role="alert">{escape(" ".join(text.split()))}</div>'


def name_all(selector: str, names: Sequence[str]) -> str:
    """Script that names elements for screen readers, in their order, now and when more of them appear: what stands on
    a tab is made when the tab is first opened."""
    return (
        f"() => {{ const nameAll = () => document.querySelectorAll({json.dumps(selector)})"
        f".forEach((element, place) => element.ariaLabel = {json.dumps(list(names))}[place]); "
        "nameAll(); new MutationObserver(nameAll).observe(document.body, { childList: true, subtree: true }) }"
    )


def scroll_to(element: str) -> str:
    """Script that brings an element into view, for narrow screens; without motion for those who want none."""
    how = "matchMedia('(prefers-reduced-motion: reduce)').matches ? 'auto' : 'smooth'"
    return f"() => {{ document.querySelector('#{element}').scrollIntoView({{behavior: {how}}}) }}"
