"""The text tab: the picture tab without pictures, for models that read text only."""

from __future__ import annotations

from pathlib import Path

from mmspec.demos import picture_chat
from mmspec.demos.studio import Studio

TITLE = "Text chat"


def build(studio: Studio, folder: Path, name: str) -> None:
    """Put the tab into the page that is being built. See `picture_chat.build`."""
    picture_chat.build(studio, folder, f"{name}-text")
