"""The parts of a page that several tabs have: where a visitor asks, what may be turned, and both sides of a race."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gradio as gr

from mmspec.demos import markup
from mmspec.demos.studio import Studio, Wish


def ask_box(
    name: str, label: str, hint: str, verb: str, longest: int, examples: Sequence[str] = ()
) -> tuple[gr.Textbox, gr.Button, gr.Button]:
    """A box to ask in, a button `verb` that asks and one that stops; below them texts to choose from. name: how the
    ids of the elements begin."""
    box_id = f"{name}-{label.lower()}"
    box = gr.Textbox(label=label, placeholder=hint, lines=1, max_lines=4, max_length=longest, elem_id=box_id)
    with gr.Row():
        go = gr.Button(verb, variant="primary", min_width=120, elem_id=f"{name}-{verb.lower()}")
        stop = gr.Button("Stop", min_width=120)
    if examples:
        gr.Examples([[text] for text in examples], box, label="Examples: click on one", elem_id=f"{box_id}s")
    return box, go, stop


def heat(wish: type[Wish]) -> gr.Slider:
    """The temperature, from the lowest that a kind of wish allows."""
    label = "Temperature" if wish.coldest else "Temperature (0 is greedy)"
    return gr.Slider(wish.coldest, 2, value=wish.temperature, step=0.1, label=label)


def sizes(wish: type[Wish], product: str, about: str = "auto learns it") -> tuple[gr.Dropdown, gr.Number]:
    """The size of drafts, one of a kind of wish, and the seed, which gives the same `product` again."""
    with gr.Row():
        shape = gr.Dropdown(list(wish.sizes), value="auto", label="Draft size", info=about, min_width=140)
        seed = gr.Number(0, label="Seed", info=f"same seed, same {product}", precision=0, min_width=110)
    return shape, seed


def knobs_of(
    studio: Studio, rules: Sequence[str], loose: str, product: str, voices: Sequence[str] | None = None
) -> list[Any]:
    """Drafter, rule, voice (None: a model without), temperature, seed, draft size and looseness of the rules named
    `loose`: all that may be turned, in the order in which a tab's `show_run` takes it."""
    drafter = gr.Dropdown(studio.choices, value=studio.drafters[0], label="Drafter: what guesses ahead")
    rule = gr.Dropdown(list(rules), value="exact", label="Acceptance rule: what is kept")
    looseness = gr.Slider(0, 1, value=0.3, step=0.1, label=f"Looseness of {loose} (0: none)")
    voice = [] if voices is None else [gr.Dropdown(voices, value=next(iter(voices), None), label="Voice")]
    temperature = heat(studio.wish)
    shape, seed = sizes(studio.wish, product)
    return [drafter, rule, *voice, temperature, seed, shape, looseness]


def both_sides(
    name: str, hint: str, legend: str, unit: str, product: str, apart: bool = False, again: str = "the same"
) -> list[gr.HTML]:
    """What a race fills: the message, at first `hint`, the counters, and below the legend both sides, each with what it
    makes one `unit` at a time or with drafts.

    Args: name: how the ids of the elements begin. apart: the product has an element of its own above each side.
        again: which `product` drafts make.
    Returns: message, counters, both sides; then the products that stand apart.
    """
    message, cards = gr.HTML(markup.note(hint), elem_id=f"{name}-message"), gr.HTML(elem_id=f"{name}-cards")
    gr.HTML(legend)
    columns = {
        "slow": (f"## One {unit} at a time", f"The {product} of plain decoding comes first."),
        "fast": ("## With drafts", f"Then {again} {product}, with drafts."),
    }
    sides, products = [], []
    with gr.Row():
        for side, (title, coming) in columns.items():
            with gr.Column(min_width=300):
                gr.Markdown(title)
                if apart:
                    products.append(gr.HTML(markup.blank(coming), elem_id=f"{name}-{side}-{product}"))
                sides.append(gr.HTML(None if apart else markup.blank(coming), elem_id=f"{name}-{side}"))
    return [message, cards, *sides, *products]
