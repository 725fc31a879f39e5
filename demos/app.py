"""The demo as one page with a tab per model, one that measures them, and the settings under which it can be shown to
others.

A tab is a module with a function `build(studio, folder, name)`; a new one is a line in TABS.
"""

from __future__ import annotations

from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mmspec.demos.booth import Booth
from mmspec.demos.canvas_easel import CanvasEasel
from mmspec.demos.easel import Easel
from mmspec.demos.markup import CSS
from mmspec.demos.studio import KEPT, Studio, TextStudio, check_named
from mmspec.errors import UnsupportedError, require

TABS: dict[type[Studio], str] = {
    Studio: "mmspec.demos.picture_chat",
    TextStudio: "mmspec.demos.picture_chat",
    Easel: "mmspec.demos.picture_board",
    CanvasEasel: "mmspec.demos.canvas_board",
    Booth: "mmspec.demos.speaking_booth",
}
"""What stands behind a tab -> the tab."""
BENCHMARK = "mmspec.demos.benchmark"
"""The last tab, with a part for every model."""
WAITING = 32
"""Requests that may wait; further ones are told that the queue is full."""
LAUNCH: dict[str, Any] = {
    "share": False,
    "show_error": False,  # what a visitor can get wrong is answered in the page, the rest is not for visitors
    "max_file_size": "10mb",
    "max_threads": 24,
    "state_session_capacity": 200,
    "enable_monitoring": False,
    "mcp_server": False,
    "ssr_mode": False,
    "footer_links": ["gradio"],
    "css": CSS,
}


def require_gradio() -> Any:
    """gradio without telemetry. Raises: MissingExtraError if it is not installed."""
    import os

    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # read when it is imported, too
    return require("gradio", "demo")


def studio_of(model: str, drafters: list[str] | None = None) -> Studio:
    """What stands behind the tab of a model, by its modality and by what its tokens are."""
    from mmspec.loading import family_of

    family = family_of(model)
    if family.modality == "speech" and family.makes == "text":
        raise UnsupportedError(f"{model} listens, and no tab shows that: use mmspec generate")
    served = (kind for kind in TABS if kind.modality == family.modality and family.emits in kind.shows)
    kind = next(served, Studio)
    for name in drafters or ():
        check_named(name, model)
    return kind(model, drafters)


def page(*studios: Studio) -> Any:
    """The page, a `gr.Blocks` with its queue; a tab per studio."""
    gr = require_gradio()
    folder = TemporaryDirectory(prefix="mmspec-demo-")
    with gr.Blocks(title="mmspec", analytics_enabled=False, delete_cache=(KEPT, KEPT)) as blocks:
        models = ", ".join(f"`{studio.name}`" for studio in studios)
        gr.Markdown(f"# mmspec: speculative decoding, seen\n{'Models' if len(studios) > 1 else 'Model'}: {models}")
        for studio in studios:
            tab = import_module(TABS[type(studio)])
            alike = [other for other in studios if type(other) is type(studio)]
            with gr.Tab(studio.title if len(alike) == 1 else f"{studio.title}: {studio.name}"):
                tab.build(studio, Path(folder.name), f"mm{alike.index(studio) or ''}")
        with gr.Tab("Benchmark"):
            for place, studio in enumerate(studios):
                with gr.Tab(studio.name) if len(studios) > 1 else nullcontext():
                    import_module(BENCHMARK).build(studio, f"mm-bench{place or ''}")
    blocks.mmspec_examples = folder  # goes when the page goes
    return blocks.queue(max_size=WAITING, default_concurrency_limit=1)
