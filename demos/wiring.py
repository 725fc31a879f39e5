"""What happens on every tab when somebody asks: one request at a time runs on the model, then its race is replayed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from inspect import Parameter, signature
from typing import Any

import gradio as gr

from mmspec.demos import markup
from mmspec.demos.studio import KEPT


class Switch:
    """What a visitor asked for and stopped. Requests are counted, for a click may come while one waits, runs or ends.

    Gradio's own way to stop frees the model before a running step has ended, and may take the next click for a second
    one; here a request ends by itself, between two steps.

    Numbers of requests: asked, the last; ran, the last that the model is done with; stopped: up to this one all are to
    end. busy: the last one is not over.
    """

    def __init__(self) -> None:
        self.asked = self.ran = self.stopped = 0
        self.busy = False

    def ask(self) -> int:
        """Another request is made. Returns: its number."""
        self.asked += 1
        self.busy = True
        return self.asked

    def stop(self) -> bool:
        """Every request so far is to end. Returns: whether one is not over."""
        self.stopped = self.asked
        return self.busy

    def is_stopped(self, request: int) -> bool:
        """Whether a request is to end. request: its number; 0 for that of a program, which never asks."""
        return self.stopped >= request > 0

    def until_stopped(self, frames: Iterator[Any], request: int) -> Iterator[Any]:
        """What a request shows as long as nobody stops it."""
        for frame in frames:
            if self.is_stopped(request):
                return
            yield frame


def wire(
    go: gr.Button,
    prompt: gr.Textbox | None,
    stop: gr.Button,
    *,
    run: Callable[..., Any],
    show_replay: Callable[..., Any],
    inputs: list[Any],
    views: list[Any],
    more: list[Any],
    name: str,
) -> gr.State:
    """Let `go`, or Enter in a `prompt`, ask, and `stop` end what runs.

    Args: run: generator from `inputs` to the finished race, then `views` and `more`. show_replay: generator from the
        race to `views`. views: the message, the counters, both sides, and what else a replay changes. name: of `run` in
        the API.
    Returns: the finished race, for what else is shown of it.
    """
    message, switch, raced = views[0], gr.State(Switch()), gr.State(None, time_to_live=KEPT)
    # a request waits with what it was asked with, its number too; a state would be read when its turn comes
    number = gr.Number(0, precision=0, visible=False, label="Number of a visitor's request; 0 for a program's")
    results = [raced, *views, *more]

    def asking(switch: Switch) -> int:
        switch.stop()  # what was asked before would be shown in the same places
        return switch.ask()

    def running(switch: Switch, *values: Any) -> Iterator[Any]:
        *asked, request = values
        yield from switch.until_stopped(run(*asked), request)
        if switch.is_stopped(request):
            yield (gr.skip(),) * len(results)  # an empty generator would wipe out what the page says
        switch.ran = request

    # Gradio names the parameters of its API by the signature
    first, last = (Parameter(each, Parameter.POSITIONAL_OR_KEYWORD) for each in ("switch", "number"))
    asks = [first, *signature(run).parameters.values(), last]
    running.__signature__ = signature(run).replace(parameters=asks)  # type: ignore[attr-defined]

    def replaying(switch: Switch, race: Any) -> Iterator[Any]:
        request = switch.ran
        yield from switch.until_stopped(show_replay(race), request)
        told = gr.skip()
        if request == switch.asked:  # else what stands there belongs to another one by now
            switch.busy = False
            told = markup.note("Stopped.") if switch.is_stopped(request) else told
        yield told, *(gr.skip() for _ in views[1:])

    def broken(switch: Switch) -> str:
        switch.busy = False
        return markup.problem(markup.BROKEN)

    def stopping(switch: Switch) -> Any:
        return markup.note("Stopping after the step that runs ...") if switch.stop() else gr.skip()

    triggers = [go.click, *([prompt.submit] if prompt else [])]
    gr.on(triggers, None, js=markup.scroll_to(message.elem_id))
    ran = gr.on(triggers, asking, switch, number, queue=False, api_visibility="private").then(
        running, [switch, *inputs, number], results, trigger_mode="multiple", concurrency_limit=1,
        concurrency_id="model", show_progress="minimal", show_progress_on=message, api_name=name,
    )  # fmt: skip
    ran.failure(broken, switch, message, api_visibility="private")
    ran.success(
        replaying, [switch, raced], views, trigger_mode="multiple", concurrency_limit=16, concurrency_id="replay",
        show_progress="hidden", api_visibility="private",
    )  # fmt: skip
    stop.click(stopping, switch, message, queue=False, api_visibility="private")
    return raced
