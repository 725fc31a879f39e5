"""The drawing tab: a caption drawn one code at a time and with drafts, side by side."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gradio as gr

from mmspec.demos import drawings, markup
from mmspec.demos.easel import RULES, Easel, PictureRace, Wish, grid, shown
from mmspec.demos.studio import LONGEST_PROMPT, SHAPES
from mmspec.errors import Error

TITLE = "Drawing"


def build(easel: Easel, folder: Path) -> None:
    """Put the tab into the page that is being built. folder: not needed here."""
    gr.Markdown(
        f"`{easel.model}` draws a caption twice, **one code at a time** and **with drafts**, one after the other; then "
        "both are replayed on one clock. With the rule `exact` the picture is the same; the others say what they are."
    )
    with gr.Row():
        with gr.Column(scale=2, min_width=300):
            prompt = gr.Textbox(label="Caption", lines=2, max_length=LONGEST_PROMPT, elem_id="mm-caption")
            with gr.Row():
                go = gr.Button("Draw", variant="primary", elem_id="mm-draw")
                stop = gr.Button("Stop")
            gr.Examples([[text] for text in easel.captions], prompt, label="Examples: click on one")
        with gr.Column(scale=1, min_width=240):
            drafter = gr.Dropdown(easel.drafters, value=easel.drafters[0], label="Drafter")
            rule = gr.Dropdown(list(RULES), value="exact", label="Acceptance rule")
            temperature = gr.Slider(0, 2, value=1, step=0.1, label="Temperature (0 is greedy)")
            shape = gr.Dropdown(SHAPES, value="auto", label="Draft size (auto learns it)")
            seed = gr.Number(0, label="Seed", precision=0)
    message = gr.HTML(markup.note("Pick an example, or write a caption."), elem_id="mm-draw-message")
    cards = gr.HTML(elem_id="mm-draw-cards")
    gr.HTML(markup.legend())
    with gr.Row():
        with gr.Column(min_width=300):
            gr.Markdown("#### One code at a time")
            slow = gr.HTML(elem_id="mm-draw-slow")
        with gr.Column(min_width=300):
            gr.Markdown("#### With drafts")
            fast = gr.HTML(elem_id="mm-draw-fast")
    with gr.Accordion("Drafted codes accepted, round by round", open=True):
        chart = gr.HTML(elem_id="mm-draw-chart")
    raced = gr.State(None, time_to_live=1800)
    views = [message, cards, slow, fast]

    def run(*given: Any) -> Iterator[tuple[Any, ...]]:
        yield from show_run(easel, *given)

    inputs = [prompt, drafter, rule, temperature, seed, shape]
    running = go.click(
        run, inputs, [raced, *views, chart], concurrency_limit=1, concurrency_id="model", show_progress="hidden"
    )
    replaying = running.success(
        show_replay, raced, views, concurrency_limit=16, concurrency_id="replay", show_progress="hidden",
        api_visibility="private",
    )  # fmt: skip
    stop.click(lambda: markup.note("Stopped."), None, message, cancels=[running, replaying], api_visibility="private")


def show_run(
    easel: Easel, prompt: str, drafter: str, rule: str, temperature: float, seed: int, shape: str
) -> Iterator[tuple[Any, ...]]:
    """Both drawings as they come: the race once it is finished, message, cards, both sides, chart."""
    yield None, markup.note("Waiting for the model ..."), "", "", "", gr.skip()
    try:
        wish = Wish(prompt or "", drafter, rule, float(temperature), int(seed or 0), shape)
        race, seen = None, (-1, -1)
        for race in easel.draw(wish):
            now = len(race.slow_sketches.shots), len(race.fast_sketches.shots)
            if now != seen and not race.finished:
                seen = now
                how = "with drafts" if race.fast.steps else "one code at a time"
                yield None, markup.note(f"Drawing {how} ..."), "", *sides(race, math.inf), gr.skip()
    except Error as error:
        yield None, markup.problem(str(error)), "", "", "", ""
        return
    assert race is not None
    end = race.slow.seconds + race.fast.seconds
    yield race, *frame(race, end, markup.note("Done.")), drawings.bars(race.fast.accept_lengths)


def show_replay(race: PictureRace | None) -> Iterator[tuple[Any, ...]]:
    """Message, cards and both sides, frame by frame, on one clock."""
    if race is None:
        yield (gr.skip(),) * 4  # an empty generator would wipe out what the page says
        return
    pace = "in real time" if race.pace == 1 else f"{race.pace:.1f} times as fast as it was"
    begun = time.monotonic()
    for moment in race.clock():
        time.sleep(max(0.0, begun + moment / race.pace - time.monotonic()))
        yield frame(race, moment, markup.note(f"Replay on one clock, {pace}: {moment:.1f} s"))
    slow, fast = (f"{trace.seconds:.2f} s" for trace in (race.slow, race.fast))
    text = f"One code at a time: {slow}; with drafts: {fast}. One picture says little: see mmspec bench images."
    yield frame(race, race.slow.seconds + race.fast.seconds, markup.note(text))


def frame(race: PictureRace, moment: float, message: str) -> tuple[str, str, str, str]:
    """What a replay shows at a time of the race."""
    return message, markup.counters(race, moment), *sides(race, moment)


def sides(race: PictureRace, moment: float) -> tuple[str, str]:
    """Both pictures, and where their codes came from, at a time of the race."""
    pairs = ((race.slow, race.slow_sketches), (race.fast, race.fast_sketches))
    slow, fast = (shown(sketches.at(moment)) + grid(trace.rounds(moment), race.columns) for trace, sketches in pairs)
    return slow, fast
