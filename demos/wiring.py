"""What happens on every tab when somebody asks: one request at a time runs on the model, then its race is replayed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from inspect import Parameter, signature
from typing import Any

import gradio as gr

from mmspec.demos import markup


class Switch:
    """What a visitor asked for and stopped. Requests are counted, for a click may come while one waits, runs or ends.

    Gradio's own way to stop frees the model before a running step has ended, and may take the next click for a second
    one; here a request ends by itself, between two steps.
    """

    def __init__(self) -> None:
        self.asked = self.begun = self.stopped = self.ended = 0
        self.waiting: deque[int] = deque()

    def ask(self) -> None:
        """Another request is made, and waits for the model."""
        self.asked += 1
        self.waiting.append(self.asked)

    def begin(self) -> int:
        """The number of the request that the model comes to now: they come in turn, and more may wait behind it."""
        self.begun = self.waiting.popleft() if self.waiting else 0
        return self.begun

    def fail(self) -> None:
        """A request broke, or was not let into a queue that is full: none that waits can be told from it."""
        self.waiting.clear()
        self.ended = self.asked

    def stop(self) -> bool:
        """Every request so far is to end. Returns: whether there is one that has not ended."""
        self.stopped = self.asked
        return self.ended < self.asked

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

    def running(switch: Switch, *values: Any) -> Iterator[Any]:
        yield from switch.until_stopped(run(*values), switch.begin())

    # Gradio names the parameters of its API by the signature
    asks = [Parameter("switch", Parameter.POSITIONAL_OR_KEYWORD), *signature(run).parameters.values()]
    running.__signature__ = signature(run).replace(parameters=asks)  # type: ignore[attr-defined]

    def replaying(switch: Switch, race: Any) -> Iterator[Any]:
        request = switch.begun
        yield from switch.until_stopped(show_replay(race), request)
        if switch.is_stopped(request):
            yield markup.note("Stopped."), gr.skip(), gr.skip(), gr.skip()
        switch.ended = request

    def broken(switch: Switch) -> str:
        switch.fail()
        return markup.problem(markup.BROKEN)

    def stopping(switch: Switch) -> Any:
        return markup.note("Stopping after the step that runs ...") if switch.stop() else gr.skip()

    message, switch = views[0], gr.State(Switch())
    asked = [go.click, prompt.submit]
    gr.on(asked, None, js=markup.scroll_to(message.elem_id))
    asking = gr.on(asked, Switch.ask, switch, queue=False, api_visibility="private")
    ran = asking.then(
        running, [switch, *inputs], [raced, *views, *more], concurrency_limit=1, concurrency_id="model",
        show_progress="minimal", show_progress_on=message, api_name=name,
    )  # fmt: skip
    ran.failure(broken, switch, message, api_visibility="private")
    ran.success(
        replaying, [switch, raced], views, concurrency_limit=16, concurrency_id="replay", show_progress="hidden",
        api_visibility="private",
    )  # fmt: skip
    stop.click(stopping, switch, message, queue=False, api_visibility="private")
