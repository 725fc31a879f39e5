"""How every run gets its pipeline."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import TYPE_CHECKING, Any

from mmspec.errors import InputError

if TYPE_CHECKING:
    from mmspec import Pipeline
    from mmspec.benchmarks.speed import SpeedSettings


BLIND = {
    "picture": ("draws", "images"),
    "sound": ("speaks", "speech"),
    "speech": ("hears", "--data FOLDER"),
    "text": ("reads text alone", "--data FOLDER, or --task spec-bench"),
}
"""Models that see no pictures: what they make, or of those that write what they read -> what they do, and what of
`mmspec bench` is for them."""


@dataclass(frozen=True)
class ModelSettings:
    """What of a run's settings decides how the model is loaded. threads: 0 leaves torch's choice.

    Raises: InputError: fewer than 0 threads.
    """

    model: str
    _: KW_ONLY
    acceptance: str = "exact"
    threads: int = 0
    dtype: str | None = None
    device: str | None = None

    def __post_init__(self) -> None:
        if self.threads < 0:
            raise InputError(f"threads={self.threads} is not valid: 0 (torch's choice) or more is needed")


def check_sees(model: str, worded: bool = False) -> None:
    """Raise InputError for a model that answers no questions about pictures, before its weights are read.

    Args: worded: whether some questions have no picture; then a model that reads text alone will do.
    """
    from mmspec.loading import family_of

    family = family_of(model)
    if family.modality == "vlm" or (family.modality == "text" and worded):
        return
    does, other = BLIND[family.modality if family.makes == "text" else family.makes]
    raise InputError(
        f"{model} {does}, and these questions are for models that answer about pictures: take mmspec bench {other}"
    )


def loaded(settings: ModelSettings, drafter: str) -> Pipeline:
    """The pipeline that the settings ask for, on their number of threads; compiled where they say so."""
    import torch
    import transformers

    import mmspec

    transformers.logging.set_verbosity_error()  # its assisted generation warns about its own calls
    if settings.threads:
        torch.set_num_threads(settings.threads)
    placed = {"dtype": settings.dtype, "device": settings.device}
    compile = getattr(settings, "compile", False)  # runs without that choice time nothing
    return mmspec.load(settings.model, drafter, settings.acceptance, **placed, compile=compile)


def fitted(settings: Any, pipe: Pipeline) -> Any:
    """The settings of a run, of whose `drafters` nobody named one, with those that the model has."""
    return replace(settings, drafters=usual_rows(pipe, settings.drafters))


def at_own_temperature(settings: SpeedSettings, pipe: Pipeline) -> SpeedSettings:
    """The settings of a run of which nobody told a temperature, with the one of the checkpoint's generation config."""
    return replace(settings, temperatures=(pipe.target.sampling({}).temperature,))


def usual_rows(pipe: Pipeline, rows: Sequence[str]) -> tuple[str, ...]:
    """Of rows that nobody wrote, those whose drafters the model has; says which others training would give it."""
    from mmspec.benchmarks.rows import split
    from mmspec.loading import has_drafter, needs_files
    from mmspec.registry import names, resolve

    drafters = {row: split(row)[0].partition(":")[0] for row in rows}
    modality = pipe.target.modality
    lacking = [name for name in dict.fromkeys(drafters.values()) if not has_drafter(name, pipe.target, pipe.folder)]
    ours = names("drafters", modality)
    known: dict[str, Any] = {name: resolve("drafters", name, modality) for name in lacking if name in ours}
    trained = [name for name, kind in known.items() if needs_files(kind)]
    if trained:
        print(f"left out, since none is trained for this model: {', '.join(trained)}", file=sys.stderr)
    return tuple(row for row, drafter in drafters.items() if drafter not in lacking)
