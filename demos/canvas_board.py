"""The canvas tab: a picture of continuous tokens drawn one step at a time and with drafts, side by side."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gradio as gr

from mmspec.demos import markup
from mmspec.demos.canvas_easel import RULES, CanvasEasel, CanvasRace, CanvasWish, account, counters
from mmspec.demos.easel import shown
from mmspec.demos.parts import ask_box, both_sides, heat, sizes
from mmspec.demos.picture_board import below, drawing, fidelity
from mmspec.demos.replay import replay
from mmspec.demos.studio import LONGEST_PROMPT

ENDING = (
    "One step at a time: {slow}; with drafts: {fast}. One picture says little: see mmspec bench images, also for "
    "fewer steps without drafts, which is the usual way to be faster here."
)


def build(easel: CanvasEasel, folder: Path, name: str) -> None:
    """Put the tab into the page that is being built. folder: not needed here. name: how the ids of elements begin."""
    name = f"{name}-canvas"
    gr.Markdown(
        f"`{easel.name}` has no codes: each step reveals several **continuous tokens** of a canvas, in random order, "
        f"and what is not known yet is grey. It draws a {easel.noun} twice, **one step at a time** and **with drafts** "
        "of several steps, one after the other; then both are replayed on one clock. The rule `exact` keeps the law of "
        "plain decoding, but not the picture of a seed; the others are lossy."
    )
    with gr.Row():
        with gr.Column(scale=2, min_width=300):
            hint, noun = "What is to be drawn? Enter draws it.", easel.noun.capitalize()
            asked = ask_box(name, noun, hint, "Draw", LONGEST_PROMPT, easel.captions)
        with gr.Column(scale=1, min_width=240):
            drafter = gr.Dropdown(easel.choices, value=easel.drafters[0], label="Drafter: what guesses ahead")
            rule = gr.Dropdown(list(RULES), value="exact", label="Acceptance rule: what is kept")
            temperature = heat(easel.wish)
            shape, seed = sizes(easel.wish, "picture", "steps; auto learns it")
    hint = f"Pick an example, or write a {easel.noun}."
    views = both_sides(f"{name}-draw", hint, markup.legend(), "step", "picture", apart=True, again="another")
    knobs = [drafter, rule, temperature, seed, shape]
    below(name, "token", asked, knobs, views, partial(show_run, easel), show_replay, "draw_canvas")


def show_run(
    easel: CanvasEasel,
    prompt: str,
    drafter: str,
    rule: str,
    temperature: float,
    seed: int,
    shape: str,
    drawn: list[Any],
) -> Iterator[tuple[Any, ...]]:
    """See `drawing`."""

    def wish() -> CanvasWish:
        return CanvasWish(prompt or "", drafter, rule, float(temperature), int(seed or 0), shape)

    yield from drawing(easel, wish, drawn, "step", sides, counters)


def sides(race: CanvasRace, moment: float) -> tuple[str, ...]:
    """Of both sides, at a time of the race, how much of the caption holds and how the tokens came about; then both
    pictures. See `picture_board.sides`."""
    pairs = ((race.slow, race.slow_sketches), (race.fast, race.fast_sketches))
    counts = (
        fidelity(race, side, moment >= trace.seconds) + account(trace.rounds(moment), race.length)
        for side, (trace, _) in enumerate(pairs)
    )
    return *counts, *(shown(sketches.at(moment), race.caption) for _, sketches in pairs)


show_replay = partial(replay, sides=sides, ending=ENDING, views=6, cards=counters)
"""Message, cards, both sides and both pictures, frame by frame, on one clock."""
