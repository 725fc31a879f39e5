"""The demo as one page with a tab per modality, and the settings under which it can be shown to others.

A tab is a module with a TITLE and a function `build(studio, folder)`; a new one is a line in TABS.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mmspec.demos.markup import CSS
from mmspec.demos.studio import Studio
from mmspec.errors import missing_extra

TABS = ("mmspec.demos.picture_chat",)
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
    try:
        import gradio
    except ImportError as error:
        raise missing_extra("gradio", "demo") from error
    return gradio


def page(studio: Studio) -> Any:
    """The page, a `gr.Blocks` with its queue."""
    gr = require_gradio()
    folder = TemporaryDirectory(prefix="mmspec-demo-")
    with gr.Blocks(title="mmspec", analytics_enabled=False, delete_cache=(600, 600)) as blocks:
        gr.Markdown(f"# mmspec: speculative decoding, seen\nModel: `{studio.model}`")
        for name in TABS:
            tab = import_module(name)
            with gr.Tab(tab.TITLE):
                tab.build(studio, Path(folder.name))
    blocks.mmspec_examples = folder  # goes when the page goes
    return blocks.queue(max_size=WAITING, default_concurrency_limit=1)
