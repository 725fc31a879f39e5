"""What happens on every tab when somebody asks: one request at a time runs on the model, then its race is replayed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gradio as gr

from mmspec.demos import markup


def wire(
    go: gr.Button,
    prompt: gr.Textbox,
    stop: gr.Button,
    *,
    run: Callable[..., Any],
    show_replay: Callable[..., Any],
    inputs: list[Any],
    raced: gr.State,
    views: list[Any],
    more: list[Any],
    name: str,
) -> None:
    """Let `go`, or Enter in `prompt`, ask, and `stop` end what runs.

    Args: run: generator from `inputs` to the finished race, for `raced`, then `views` and `more`. show_replay:
        generator from the race to `views`. views: the message, the counters and both sides. name: of `run` in the API.
    """
    message = views[0]
    asked = [go.click, prompt.submit]
    gr.on(asked, None, js=markup.scroll_to(message.elem_id))
    running = gr.on(
        asked, run, inputs, [raced, *views, *more], concurrency_limit=1, concurrency_id="model",
        show_progress="minimal", show_progress_on=message, api_name=name,
    )  # fmt: skip
    running.failure(lambda: markup.problem(markup.BROKEN), None, message, api_visibility="private")
    replaying = running.success(
        show_replay, raced, views, concurrency_limit=16, concurrency_id="replay", show_progress="hidden",
        api_visibility="private",
    )  # fmt: skip
    stop.click(lambda: markup.note("Stopped."), None, message, cancels=[running, replaying], api_visibility="private")
