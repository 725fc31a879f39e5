"""The speaking tab: a sentence said one code at a time and with drafts, side by side."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gradio as gr

from mmspec.demos import drawings, markup
from mmspec.demos.booth import LONGEST_TEXT, RULES, Booth, Line, SpokenRace, player
from mmspec.demos.easel import grid
from mmspec.demos.studio import SHAPES
from mmspec.errors import Error

TITLE = "Speaking"
COLUMNS = 48
"""Codes per line of the grid."""
EVERY = 10
"""Rounds between two looks at a request that runs."""


def build(booth: Booth, folder: Path) -> None:
    """Put the tab into the page that is being built. folder: not needed here."""
    gr.Markdown(
        f"`{booth.model}` says a sentence twice, **one code at a time** and **with drafts**, one after the other; then "
        "both are replayed on one clock. With the rule `exact` the sound is the same; the others say what they are."
    )
    with gr.Row():
        with gr.Column(scale=2, min_width=300):
            text = gr.Textbox(label="Sentence", lines=2, max_length=LONGEST_TEXT, elem_id="mm-sentence")
            with gr.Row():
                go = gr.Button("Say", variant="primary", elem_id="mm-say")
                stop = gr.Button("Stop")
            gr.Examples([[line] for line in booth.sentences], text, label="Examples: click on one")
        with gr.Column(scale=1, min_width=240):
            drafter = gr.Dropdown(booth.drafters, value=booth.drafters[0], label="Drafter")
            rule = gr.Dropdown(list(RULES), value="exact", label="Acceptance rule")
            voice = gr.Dropdown(booth.voices, value=next(iter(booth.voices), None), label="Voice")
            temperature = gr.Slider(0, 2, value=1, step=0.1, label="Temperature (0 is greedy)")
            shape = gr.Dropdown(SHAPES, value="auto", label="Draft size (auto learns it)")
            seed = gr.Number(0, label="Seed", precision=0)
    message = gr.HTML(markup.note("Pick an example, or write a sentence."), elem_id="mm-say-message")
    cards = gr.HTML(elem_id="mm-say-cards")
    gr.HTML(markup.legend())
    with gr.Row():
        with gr.Column(min_width=300):
            gr.Markdown("#### One code at a time")
            slow_sound, slow = gr.HTML(elem_id="mm-say-slow-sound"), gr.HTML(elem_id="mm-say-slow")
        with gr.Column(min_width=300):
            gr.Markdown("#### With drafts")
            fast_sound, fast = gr.HTML(elem_id="mm-say-fast-sound"), gr.HTML(elem_id="mm-say-fast")
    with gr.Accordion("Drafted codes accepted, round by round", open=True):
        chart = gr.HTML(elem_id="mm-say-chart")
    raced = gr.State(None, time_to_live=1800)
    views = [message, cards, slow, fast]

    def run(*given: Any) -> Iterator[tuple[Any, ...]]:
        yield from show_run(booth, *given)

    inputs = [text, drafter, rule, voice, temperature, seed, shape]
    running = go.click(
        run, inputs, [raced, *views, slow_sound, fast_sound, chart], concurrency_limit=1, concurrency_id="model",
        show_progress="hidden",
    )  # fmt: skip
    replaying = running.success(
        show_replay, raced, views, concurrency_limit=16, concurrency_id="replay", show_progress="hidden",
        api_visibility="private",
    )  # fmt: skip
    stop.click(lambda: markup.note("Stopped."), None, message, cancels=[running, replaying], api_visibility="private")


def show_run(
    booth: Booth, text: str, drafter: str, rule: str, voice: str | None, temperature: float, seed: int, shape: str
) -> Iterator[tuple[Any, ...]]:
    """Both utterances as they come: the race once it is finished, message, cards, both sides, both sounds, chart."""
    yield None, markup.note("Waiting for the model ..."), "", "", "", "", "", gr.skip()
    try:
        line = Line(text or "", drafter, rule, voice or "", float(temperature), int(seed or 0), shape)
        race = None
        for index, race in enumerate(booth.say(line)):
            if index % EVERY == 0 and not race.finished:
                what = markup.note(f"Speaking ({'with drafts' if race.fast.steps else 'one code at a time'}) ...")
                yield None, what, "", *sides(race, float("inf")), "", "", gr.skip()
    except Error as error:
        yield None, markup.problem(str(error)), "", "", "", "", "", ""
        return
    assert race is not None
    end = race.slow.seconds + race.fast.seconds
    sounds = player(race.slow_sound), player(race.fast_sound)
    yield race, *frame(race, end, markup.note("Done.")), *sounds, drawings.bars(race.fast.accept_lengths)


def show_replay(race: SpokenRace | None) -> Iterator[tuple[Any, ...]]:
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
    text = f"One code at a time: {slow}; with drafts: {fast}. One sentence says little: see mmspec bench speech."
    yield frame(race, race.slow.seconds + race.fast.seconds, markup.note(text))


def frame(race: SpokenRace, moment: float, message: str) -> tuple[str, str, str, str]:
    """What a replay shows at a time of the race."""
    return message, markup.counters(race, moment), *sides(race, moment)


def sides(race: SpokenRace, moment: float) -> tuple[str, str]:
    """Where the codes of both utterances came from, at a time of the race."""
    slow, fast = (grid(trace.rounds(moment), COLUMNS) for trace in (race.slow, race.fast))
    return slow, fast
