"""The speaking tab: a sentence said one code at a time and with drafts, side by side."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gradio as gr

from mmspec.demos import cells, drawings, markup, waves
from mmspec.demos.booth import LONGEST_TEXT, RULES, Booth, Line, SpokenRace, player
from mmspec.demos.parts import ask_box, both_sides, knobs_of
from mmspec.demos.replay import final, replay
from mmspec.demos.wiring import wire
from mmspec.errors import Error

ENDING = "One code at a time: {slow}; with drafts: {fast}. One sentence says little: see mmspec bench speech."
COLUMNS = 24
"""Codes per line of the grid while a sound is being made, which fits a phone."""
EVERY = 10
"""Rounds between two looks at a request that runs."""


def build(booth: Booth, folder: Path, name: str) -> None:
    """Put the tab into the page that is being built. folder: not needed here. name: how the ids of elements begin."""
    gr.Markdown(
        f"`{booth.name}` says a sentence twice, **one code at a time** and **with drafts**, one after the other; then "
        "both are replayed on one clock. With the rule `exact` the sound is the same; the others say what they are."
    )
    with gr.Row():
        with gr.Column(scale=2, min_width=300):
            text, go, stop = ask_box(
                name, "Sentence", "What is to be said? Enter says it.", "Say", LONGEST_TEXT, booth.sentences
            )
        with gr.Column(scale=1, min_width=240):
            knobs = knobs_of(booth, RULES, "tolerance to pcg", "sound", booth.voices)
    hint = "Pick an example, or write a sentence."
    *views, slow_sound, fast_sound = both_sides(f"{name}-say", hint, cells.legend(), "code", "sound", apart=True)
    with gr.Accordion("Drafted codes accepted, round by round", open=True):
        chart = gr.HTML("After a run: how much of each draft was accepted.", elem_id=f"{name}-say-chart")
    wire(
        go,
        text,
        stop,
        run=partial(show_run, booth),
        show_replay=show_replay,
        inputs=[text, *knobs],
        views=views,
        more=[slow_sound, fast_sound, chart],
        name="say",
    )


def show_run(
    booth: Booth,
    text: str,
    drafter: str,
    rule: str,
    voice: str | None,
    temperature: float,
    seed: int,
    shape: str,
    looseness: float,
) -> Iterator[tuple[Any, ...]]:
    """Both utterances as they come: the race once it is finished, message, cards, both sides, both sounds, chart."""
    yield None, markup.note("Waiting for the model ..."), "", "", "", "", "", gr.skip()
    try:
        how = float(temperature), int(seed or 0), shape, float(looseness)
        line = Line(text or "", drafter, rule, *how, voice=voice or "")
        race = None
        for index, race in enumerate(booth.race(line)):
            if index % EVERY == 0 and not race.finished:
                what = markup.note(f"Speaking ({'with drafts' if race.fast.steps else 'one code at a time'}) ...")
                yield None, what, "", *sides(race, float("inf")), "", "", gr.skip()
    except Error as error:
        yield None, markup.problem(str(error)), "", "", "", "", "", ""
        return
    assert race is not None
    sounds = player(race.slow_sound, "said one code at a time"), player(race.fast_sound, "said with drafts")
    verb = "accepted" if race.fast.verifies else "taken unverified"
    yield race, *final(race, sides, "Done."), *sounds, drawings.bars(race.fast.accept_lengths, verb)


def sides(race: SpokenRace, moment: float) -> tuple[str, str]:
    """Where the codes of both utterances came from, at a time of the race; once a sound is whole, on its waveform."""
    pairs = ((race.slow, race.slow_sound), (race.fast, race.fast_sound))
    slow, fast = (
        cells.grid(trace.rounds(moment), COLUMNS)
        if sound is None
        else waves.timeline(trace.rounds(moment), len(trace.token_ids), sound.peaks)
        for trace, sound in pairs
    )
    return slow, fast


show_replay = partial(replay, sides=sides, ending=ENDING)
"""Message, cards and both sides, frame by frame, on one clock."""
