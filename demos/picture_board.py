"""The drawing tab: a caption drawn one code at a time and with drafts, side by side."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

import gradio as gr

from mmspec.demos import cells, drawings, markup
from mmspec.demos.easel import LOOSE, RULES, Caption, Easel, PictureRace, shown
from mmspec.demos.parts import ask_box, both_sides, knobs_of
from mmspec.demos.replay import final, replay
from mmspec.demos.studio import KEPT, LONGEST_PROMPT, Wish
from mmspec.demos.wiring import wire
from mmspec.errors import Error

SHOWN = 12
"""Pictures of the gallery."""
FRAME = 128
"""Pixels per side of each."""
ENDING = "One code at a time: {slow}; with drafts: {fast}. One picture says little: see mmspec bench images."


def build(easel: Easel, folder: Path, name: str) -> None:
    """Put the tab into the page that is being built. folder: not needed here. name: how the ids of elements begin."""
    gr.Markdown(
        f"`{easel.name}` draws a caption twice, **one code at a time** and **with drafts**, one after the other; then "
        "both are replayed on one clock. With the rule `exact` the picture is the same; the others say what they are."
    )
    with gr.Row():
        with gr.Column(scale=2, min_width=300):
            asked = ask_box(
                name, "Caption", "What is to be drawn? Enter draws it.", "Draw", LONGEST_PROMPT, easel.captions
            )
        with gr.Column(scale=1, min_width=240):
            knobs = knobs_of(easel, RULES, "lantern, gsd and cool-sd", "picture")
    hint = "Pick an example, or write a caption."
    views = both_sides(f"{name}-draw", hint, cells.legend(), "code", "picture", apart=True)
    below(name, "code", asked, knobs, views, partial(show_run, easel), show_replay, "draw")


def below(
    name: str,
    token: str,
    asked: tuple[gr.Textbox, gr.Button, gr.Button],
    knobs: list[Any],
    views: list[gr.HTML],
    run: Callable[..., Any],
    show_replay: Callable[..., Any],
    call: str,
) -> None:
    """What stands below both sides, a chart and a gallery; and what happens when somebody asks. See `wire`.

    Args: token: what the model's tokens are called. asked: of `ask_box`. call: the name of `run` in the API.
    """
    with gr.Accordion(f"Drafted {token}s accepted, round by round", open=True):
        chart = gr.HTML("After a run: how much of each draft was accepted.", elem_id=f"{name}-draw-chart")
    with gr.Accordion("Drawn so far, with drafts", open=True):
        gallery = gr.HTML("Every picture of this visit, the newest first.", elem_id=f"{name}-draw-gallery")
    drawn = gr.State([], time_to_live=KEPT)
    prompt, go, stop = asked
    wire(
        go,
        prompt,
        stop,
        run=run,
        show_replay=show_replay,
        inputs=[prompt, *knobs, drawn],
        views=views,
        more=[chart, drawn, gallery],
        name=call,
    )


def show_run(
    easel: Easel,
    prompt: str,
    drafter: str,
    rule: str,
    temperature: float,
    seed: int,
    shape: str,
    looseness: float,
    drawn: list[Any],
) -> Iterator[tuple[Any, ...]]:
    """See `drawing`."""

    def wish() -> Caption:
        return Caption(prompt or "", drafter, rule, float(temperature), int(seed or 0), shape, float(looseness))

    yield from drawing(easel, wish, drawn, "code", sides, markup.counters)


def drawing(
    easel: Easel,
    wanted: Callable[[], Wish],
    drawn: list[Any],
    unit: str,
    sides: Callable[[Any, float], tuple[str, ...]],
    cards: Callable[[Any, float], str],
) -> Iterator[tuple[Any, ...]]:
    """Both drawings as they come: the race once it is finished, message, cards, both sides, both pictures, chart; what
    was drawn so far, and its gallery.

    Args: wanted: what the visitor wants, or its Error. drawn: so far. unit: of plain decoding, in one word. sides,
        cards: what the tab shows at a time of the race.
    """
    empty, same = ("",) * 5, (gr.skip(),) * 3
    yield None, markup.note("Waiting for the model ..."), *empty, *same
    try:
        wish = wanted()
        race, seen = None, (-1, -1)
        for race in easel.race(wish):
            now = len(race.slow_sketches.shots), len(race.fast_sketches.shots)
            if now != seen and not race.finished:
                seen = now
                how = "with drafts" if race.fast.steps else f"one {unit} at a time"
                yield None, markup.note(f"Drawing {how} ..."), "", *sides(race, math.inf), *same
    except Error as error:
        yield None, markup.problem(str(error)), *empty, "", gr.skip(), gr.skip()
        return
    assert race is not None
    drawn = [(race.fast_sketches.shots[-1][1], titled(race, wish, easel.names[wish.drafter])), *drawn][:SHOWN]
    chart = drawings.bars(race.fast.accept_lengths)
    yield race, *final(race, sides, "Done.", cards), chart, drawn, framed(drawn)


def titled(race: PictureRace, wish: Wish, drafter: str) -> str:
    """What stands under a picture of the gallery. drafter: its name for visitors."""
    how = f"{wish.rule} {wish.looseness:g}" if wish.rule in LOOSE else wish.rule
    speed = "" if race.speedup is None else f", S {race.speedup:.2f}"
    return f"{race.caption} ({drafter}, {how}{speed}{race.law})"


def framed(drawn: Sequence[tuple[bytes, str]]) -> str:
    """The gallery: PNG files, each with what stands under it."""
    frames = (
        f"<figure>{shown(file, title, FRAME)}<figcaption>{escape(title)}</figcaption></figure>" for file, title in drawn
    )
    return f'<div class="mm-gallery">{"".join(frames)}</div>'


def sides(race: PictureRace, moment: float) -> tuple[str, ...]:
    """Of both sides, at a time of the race, how much of the caption holds and where the codes came from; then both
    pictures.

    These stand apart from what changes with every code: Gradio sends nothing of an element that is as it was, and the
    whole of one that was changed.
    """
    pairs = ((race.slow, race.slow_sketches), (race.fast, race.fast_sketches))
    codes = (
        fidelity(race, side, moment >= trace.seconds) + cells.grid(trace.rounds(moment), race.columns)
        for side, (trace, _) in enumerate(pairs)
    )
    return *codes, *(shown(sketches.at(moment), race.caption) for _, sketches in pairs)


show_replay = partial(replay, sides=sides, ending=ENDING, views=6)
"""Message, cards, both sides and both pictures, frame by frame, on one clock."""


def fidelity(race: PictureRace, side: int, whole: bool) -> str:
    """How much of the caption holds in a whole picture, if anybody can tell."""
    if race.kept is None or not whole:
        return ""
    return f'<p class="mm-kept">{race.kept[side]} of {race.kept[2]} things that the caption says hold</p>'
