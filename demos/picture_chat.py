"""The chat tab: a question, about a picture if the model sees, answered one token at a time and with drafts."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gradio as gr

from mmspec.demos import drawings, markup
from mmspec.demos.examples import examples
from mmspec.demos.parts import ask_box, both_sides, heat, sizes
from mmspec.demos.race import Race
from mmspec.demos.replay import replay
from mmspec.demos.studio import LONGEST_PROMPT, MOST_TOKENS, Question, Studio, opened
from mmspec.demos.trace import Trace
from mmspec.demos.wiring import wire
from mmspec.errors import Error

ENDING = "One token at a time: {slow}; with drafts: {fast}; prompt included. One run says little: see mmspec bench."
SIZES = "auto learns it; 5x4x16 is a tree"
NO_PICTURE = "Without a picture: ask, and click on Race."
REFRESH = 0.15
"""Seconds between two looks at a running request."""


def build(studio: Studio, folder: Path, name: str) -> None:
    """Put the tab into the page that is being built. folder: for the examples' files. name: how the ids of elements
    begin."""
    sees = studio.modality == "vlm"
    name = name if sees else f"{name}-text"
    gr.Markdown(
        f"Ask {'about a picture' if sees else 'a question'}. The model answers twice, **one token at a time** and "
        "**with drafts**, one after the other; then both are replayed on one clock. The answer is the same; colours "
        "and lines show where it came from."
    )
    with gr.Row():
        column = gr.Column(min_width=300, visible=sees)
        with gr.Column(min_width=300):
            prompt, go, stop = ask_box(
                name, "Question", "What would you like to know? Enter asks.", "Race", LONGEST_PROMPT
            )
            drafter = gr.Dropdown(studio.choices, value=studio.drafters[0], label="Drafter: what guesses ahead")
            temperature = heat(studio.wish)
            tokens = gr.Slider(8, MOST_TOKENS, value=96, step=8, label="Most tokens")
            shape, seed = sizes(studio.wish, "answer", SIZES)

    hint = "Pick an example, or upload a picture and ask." if sees else "Write a question."
    views = both_sides(name, hint, markup.legend(), "token", "answer")
    with gr.Accordion("What happened, round by round", open=True):
        chart = gr.HTML("After a race: how much of each draft was accepted, and its tree.", elem_id=f"{name}-chart")
        number = gr.Slider(1, 2, value=1, step=1, label="Round", visible=False, elem_id=f"{name}-round")
        tree = gr.HTML(elem_id=f"{name}-tree")

    chosen = gr.State(None)  # a path: small, and a question must not lose its picture
    if sees:
        with column:
            offer_pictures(examples(folder), name, chosen, prompt, views[0])
    raced = wire(
        go,
        prompt,
        stop,
        run=partial(show_run, studio),
        show_replay=show_replay,
        inputs=[chosen, prompt, drafter, temperature, tokens, seed, shape],
        views=views,
        more=[chart, number, tree],
        name="run",
    )
    number.change(
        show_tree, [raced, number], tree, concurrency_limit=16, concurrency_id="replay", show_progress="hidden",
        api_visibility="private",
    )  # fmt: skip


def offer_pictures(samples: list[list[str]], name: str, chosen: gr.State, prompt: gr.Textbox, message: gr.HTML) -> None:
    """Examples to click on, an upload, and a way back to no picture at all: what a question is asked about."""
    table = gr.Dataset(
        components=[gr.Image(visible=False, type="filepath")],
        samples=[[file] for file, _ in samples],
        type="index",
        layout="gallery",
        label="Examples: click on one",
        elem_id=f"{name}-examples",
    )
    picture = gr.Image(interactive=False, label="Picture", height=280, buttons=[], elem_id=f"{name}-picture")
    with gr.Row():
        # not an input of gr.Image, which opens what it gets before anything here could answer a mistake
        upload = gr.UploadButton(
            "Upload a picture", file_types=["image"], type="filepath", min_width=140, elem_id=f"{name}-upload"
        )
        none = gr.Button("No picture", min_width=120)
    names = [f"Example: {Path(file).stem}. {question}" for file, question in samples]
    # Gradio's pictures have no names
    gr.on(None, None, [], js=markup.name_all(f"#{name}-examples button", names))
    gr.on(None, None, [], js=markup.name_all(f"#{name}-picture button", ["The picture that is asked about"]))

    taken = [chosen, picture, message]
    how: Any = {"concurrency_limit": 4, "show_progress": "hidden"}
    upload.upload(take, upload, taken, **how)
    table.click(
        lambda index: (*take(samples[index][0]), samples[index][1]), table, [*taken, prompt],
        api_visibility="private", **how,
    )  # fmt: skip
    none.click(lambda: (None, None, markup.note(NO_PICTURE)), None, taken, api_visibility="private", **how)


def take(file: str | None) -> tuple[str | None, Any, str]:
    """What was uploaded or clicked on: its file if it can be used, else None; its picture; a message."""
    try:
        picture = opened(Path(file or ""))
    except Error as error:
        return None, None, markup.problem(str(error))
    return file, picture, markup.note("Now ask, and click on Race.")


def show_run(
    studio: Studio,
    picture: str | None,
    prompt: str,
    drafter: str,
    temperature: float,
    tokens: int,
    seed: int,
    shape: str,
) -> Iterator[tuple[Any, ...]]:
    """Both answers as they come: the race once it is finished, message, cards, both texts, chart, slider, tree."""
    empty = (gr.skip(),) * 3
    yield None, markup.note("Waiting for the model ..."), "", "", "", *empty
    try:
        question = Question(
            prompt or "",
            drafter,
            temperature=float(temperature),
            seed=int(seed or 0),
            shape=shape,
            picture=Path(picture) if picture else None,
            max_new_tokens=int(tokens or 0),
        )
        race, shown = None, 0.0
        for race in studio.race(question):
            if race.finished or time.monotonic() - shown > REFRESH:
                shown = time.monotonic()
                yield None, *live(race), *empty
    except Error as error:
        yield None, markup.problem(str(error)), "", "", "", "", gr.Slider(visible=False), ""
        return
    assert race is not None
    yield race, *live(race), *details_of(race)


def live(race: Race) -> tuple[str, str, str, str]:
    """Message, cards and both texts while a race is run."""
    if race.finished:
        text = "Done."
    elif race.fast.steps:
        text = f"Decoding with drafts ({race.fast.method}) ..."
    else:
        text = "Decoding one token at a time ..."
    return markup.note(text), "", *sides(race, math.inf)


def details_of(race: Race) -> tuple[str, Any, str]:
    """Chart, slider and tree of a finished race; the slider starts at the round that accepted most."""
    lengths = race.fast.accept_lengths
    best = 1 + max(range(len(lengths)), key=lengths.__getitem__) if lengths else 1
    slider = gr.Slider(1, max(len(lengths), 2), value=best, step=1, visible=len(lengths) > 1)
    return drawings.bars(lengths), slider, tree_of(race.fast, best)


def sides(race: Race, moment: float) -> tuple[str, str]:
    """Both texts at a time of the race."""
    slow, fast = (markup.tokens(trace.rounds(moment), trace.thought) for trace in (race.slow, race.fast))
    return slow, fast


show_replay = partial(replay, sides=sides, ending=ENDING)
"""Message, cards and both texts, frame by frame, on one clock."""


def show_tree(race: Race | None, number: int) -> str:
    """The draft of a round."""
    return "" if race is None else tree_of(race.fast, int(number))


def tree_of(trace: Trace, number: int) -> str:
    """The drawing of the draft of round `number`, counted from 1."""
    rounds = trace.steps[1:]
    return drawings.tree(rounds[min(max(number, 1), len(rounds)) - 1].nodes) if rounds else drawings.tree(())
