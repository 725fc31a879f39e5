"""`mmspec.generate`: load and ask in one call; what was read stays for the next one.

print(mmspec.generate("chart.png", "Which bar is the tallest?").text)
"""

from __future__ import annotations

import gc
import os
from collections import defaultdict
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from threading import RLock
from typing import Any, TypeVar, Unpack

import torch
from transformers import PreTrainedModel

from mmspec.api import DEFAULT_MODEL, ELSEWHERE, Pipeline, check_request, load
from mmspec.base_target import BaseTarget
from mmspec.checkpoints import FILES, JUDGED, find_model
from mmspec.contract import Rule, Shape
from mmspec.control import asked_shape
from mmspec.drafters.precision import read_format
from mmspec.errors import out_of_memory
from mmspec.loading import check_names
from mmspec.options import Options, given
from mmspec.prompts import Asked

T = TypeVar("T")

READ = {Path(pattern).suffix for pattern in FILES} | {".wav"}
"""Endings of the files that a model or a drafter is read from."""


def generate(
    image: Any = None,
    prompt: Asked = "",
    *,
    model: str | os.PathLike[str] | PreTrainedModel = DEFAULT_MODEL,
    drafter: Any = None,
    acceptance: str | Rule = "exact",
    shape: str | Shape | None = None,
    compile: bool | None = None,
    drafter_dtype: Any = None,
    **options: Unpack[Options],
) -> Any:
    """Answer a prompt: `load`, then call. Models given by name or folder stay loaded, the last two of them, or none
    where another finds too little memory beside them; a folder whose files were written anew is read anew.

    Args: image, prompt, options: as for `Pipeline.__call__`. model, drafter, acceptance, shape, compile, drafter_dtype:
    as for `load`.
    Returns: a `Generation`; for a list of prompts a list of them.
    """
    numbers = read_format(drafter_dtype)
    shape = asked_shape(shape)
    told = given(options, ELSEWHERE)  # what is wrong is said before anything large is read
    if not isinstance(model, str | os.PathLike):
        pipe = load(model, drafter, acceptance, shape=shape, compile=compile, drafter_dtype=numbers)
        return pipe(image, prompt, **options)
    named = all(isinstance(part, str | os.PathLike | None) for part in (drafter, acceptance))
    parts: Any = (model, drafter, acceptance)
    own, drafters = _written(model), (_written(model, "drafters/*/"), _written(drafter))
    family = _checked(*(parts if named else (model, None, None)), own, drafters)
    image, prompt = check_request(family, image, prompt, told)

    def ready() -> Pipeline:
        with _TURNS[str(model), compile]:  # a cache makes a thing twice if two threads ask at once
            pipelines: Any = _pipelines(parts[0], compile, own)
            make = pipelines if named else pipelines.__wrapped__
            return make(drafters, drafter, shape, acceptance, numbers)

    return _with_room(ready)(image, prompt, **options)


def _written(place: Any, under: str = "") -> Any:
    """What tells a folder from others that have, or had, its name: where it lies, and when the files that are read from
    it were written. None for names and hub ids.

    Args: under: where in the folder the files are, as a glob.
    """
    path = os.path.expanduser(place) if isinstance(place, str | os.PathLike) else ""
    if not os.path.isdir(path):
        return None
    folder = Path(path).resolve()
    try:
        files = [file for depth in ("*", "*/*") for file in folder.glob(f"{under}{depth}") if file.suffix in READ]
        return folder, frozenset((file, file.stat().st_mtime_ns) for file in files)
    except OSError:  # replaced this moment, or not ours to look at: whoever reads it tells
        return folder, None


@lru_cache(maxsize=32)
def _checked(model: str | os.PathLike[str], drafter: Any, acceptance: Any, *written: Any) -> type[BaseTarget]:
    """`check_names`, of what is known to be right no more."""
    return check_names(drafter, acceptance, find_model(model, JUDGED))


_TURNS: defaultdict[tuple[str, bool | None], Any] = defaultdict(RLock)
"""Of threads that ask for the same model; who asks for another one does not wait for its weights."""


@lru_cache(maxsize=2)
def _pipelines(model: str | os.PathLike[str], compile: bool | None, written: Any) -> Callable[..., Pipeline]:
    """`Pipeline.with_drafter` on a model that is read now, after what is `_written` of drafters; the last two pipelines
    stay, as they learn what pays."""
    pipe = load(model, "none", compile=compile)
    return lru_cache(maxsize=2)(lambda written, *given: pipe.with_drafter(*given))


def _with_room(make: Callable[[], T]) -> T:
    """What is made; where memory is too short, after letting go of the models that stay for `generate`.

    Raises: OutOfMemoryError, ours or torch's: it is too short without them, too.
    """
    try:
        return make()
    except RuntimeError as error:  # torch's own, too: of a drafter, or of what decodes codes
        if not out_of_memory(error) or not _pipelines.cache_info().currsize:
            raise
    # Out here, for in there the error would keep what was made so far.
    _pipelines.cache_clear()
    gc.collect()  # models and what is recorded of them refer to each other
    torch.cuda.empty_cache()  # nothing happens where CUDA is not in use
    return make()
