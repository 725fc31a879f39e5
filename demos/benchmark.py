"""The benchmark tab: the drafters of a model measured on a few requests of the synthetic world, row by row."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import gradio as gr
import pandas as pd

from mmspec.demos import markup
from mmspec.demos.measures import HEAD, PARTS, PLOTS, bars, cells, report
from mmspec.demos.measuring import LONGEST, MOST_DRAFTERS, MOST_REQUESTS, Measured, measure, wishes
from mmspec.demos.parts import heat, sizes
from mmspec.demos.studio import KEPT, MOST_TOKENS, Question, Studio
from mmspec.demos.wiring import wire
from mmspec.errors import Error

REFRESH = 0.15
"""Seconds between two looks at a running request."""
ENDING = "Done: {replies} replies. A few requests say little, and a busy computer less: see mmspec bench."
CUT = f"Ended after {LONGEST // 60} minutes, for others wait: {{replies}} replies. Choose less, or see mmspec bench."
COLOURS = dict(zip(PARTS, ("#fee2c5", "#fdba74", "#f97316"), strict=True))


def build(studio: Studio, name: str) -> None:
    """Put the part of a model into the tab. name: how the ids of elements begin."""
    noun, answers = studio.wish.noun, issubclass(studio.wish, Question)
    equal = "must be equal (in float16 and bfloat16 up to rounding)"
    law = "follow the same law, and may differ" if "values" in studio.shows else equal
    gr.Markdown(
        f"`{studio.name}` is given the same few {noun}s of the synthetic world again and again: one token at a time, "
        "and with each drafter chosen. **S** is seconds per token of `none`, our loop of one token at a time, over the "
        "drafter's, both in this run, warm, prompts not counted; mmspec bench times HF `generate`, too, and takes the "
        f"faster of both. With the rule `exact` replies {law}; the last column counts those that are equal. What is "
        "lossy says so."
    )
    with gr.Row():
        with gr.Column(min_width=300):
            choices = [(shown, drafter) for shown, drafter in studio.choices if drafter != "none"]
            drafters = gr.CheckboxGroup(
                choices,
                value=[drafter for _, drafter in choices[:2]],
                label=f"Drafters, at most {MOST_DRAFTERS}",
                elem_id=f"{name}-drafters",
            )
            with gr.Row():
                go = gr.Button("Measure", variant="primary", min_width=120, elem_id=f"{name}-measure")
                stop = gr.Button("Stop", min_width=120, elem_id=f"{name}-stop")
        with gr.Column(min_width=300):
            count = gr.Slider(1, MOST_REQUESTS, value=4, step=1, label=f"{noun.capitalize()}s (4 for an interval of S)")
            temperature = heat(studio.wish)
            tokens = gr.Slider(8, MOST_TOKENS, value=96, step=8, label="Most tokens of a reply", visible=answers)
            rules = list(studio.wish.rules)
            rule = gr.Dropdown(rules, value="exact", label="Acceptance rule: what is kept", visible=len(rules) > 1)
            looseness = gr.Slider(
                0, 1, value=0.3, step=0.1, label="Looseness of relaxed rules", visible=bool(studio.knobs)
            )
            shape, seed = sizes(studio.wish, "replies")
    message = gr.HTML(markup.note("Choose drafters, and click on Measure."), elem_id=f"{name}-message")
    table = gr.Dataframe(
        headers=list(HEAD), label="Every drafter", interactive=False, buttons=[], elem_id=f"{name}-table"
    )
    with gr.Row():
        plots = [plot(title, f"{name}-plot{place}") for place, title in enumerate(PLOTS)]
    download = gr.DownloadButton(
        f"Download JSON (kept for {KEPT // 60} minutes)", interactive=False, elem_id=f"{name}-download"
    )
    wire(
        go,
        None,
        stop,
        run=partial(show_run, studio),
        show_replay=lambda measured: iter(()),
        inputs=[drafters, count, temperature, tokens, rule, looseness, seed, shape],
        views=[message, table, *plots, download],
        more=[],
        name="benchmark",
    )


def plot(title: str, name: str) -> gr.BarPlot:
    """An empty plot of one measure. name: the id of the element."""
    look: dict[str, Any] = {"min_width": 220}
    if title == "S":
        look = {"min_width": 340, "scale": 2, "color": "part", "color_map": COLOURS, "color_title": "95 % interval"}
        look["tooltip"] = "none"  # it would tell the height of a part
    axes: dict[str, Any] = {"x": "drafter", "x_title": " ", "x_label_angle": -40, "y": title, "y_lim": [0, None]}
    return gr.BarPlot(None, **axes, **look, height=280, elem_id=name)


def show_run(
    studio: Studio,
    drafters: list[str],
    count: int,
    temperature: float,
    tokens: int,
    rule: str,
    looseness: float,
    seed: int,
    shape: str,
) -> Iterator[tuple[Any, ...]]:
    """The benchmark as it goes: None, message, table, plots, download."""
    same = (gr.skip(),) * (2 + len(PLOTS))  # what was found before stays until there is more
    yield None, markup.note("Waiting for the model ..."), *same
    with TemporaryDirectory(prefix="mmspec-benchmark-") as folder:
        try:
            samples = studio.samples(Path(folder))[: int(count or 0)]
            how = {"rule": rule, "temperature": float(temperature), "seed": int(seed or 0), "shape": shape}
            limit = {"max_new_tokens": int(tokens or 0)} if issubclass(studio.wish, Question) else {}
            asked = wishes(studio, samples, drafters or [], looseness=float(looseness), **how, **limit)
            known, shown = 0, 0.0
            for measured in measure(studio, asked, drafters):
                if len(measured.replies) > known:
                    known = len(measured.replies)
                    yield None, working(measured), *found(studio, measured, Path(folder))
                elif time.monotonic() - shown > REFRESH:
                    shown = time.monotonic()
                    yield None, working(measured), *same
        except Error as error:
            yield None, markup.problem(str(error)), *same
            return
        ending = (ENDING if measured.done == measured.total else CUT).format(replies=known)
        yield None, markup.note(ending), *found(studio, measured, Path(folder))  # programs get this last frame alone


def working(measured: Measured) -> str:
    """How far it is."""
    what = "measured" if measured.replies else "warming up"
    return markup.progress(f"Reply {measured.done} of {measured.total}, {what} ...", measured.done, measured.total)


def found(studio: Studio, measured: Measured, folder: Path) -> tuple[Any, ...]:
    """Table, plots and a file to download."""
    frames = [
        pd.DataFrame(drawn, columns=["drafter", "part", title]).astype({title: float})
        for title, drawn in bars(measured).items()
    ]
    file = folder / f"{studio.name.replace('/', '-')}-benchmark.json"
    file.write_text(json.dumps(report(studio, measured), indent=1, allow_nan=False), encoding="utf-8")
    return cells(measured), *frames, gr.DownloadButton(value=str(file), interactive=True)
