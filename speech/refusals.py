"""What models that write the codes of several codebooks refuse alike."""

from __future__ import annotations

from mmspec.errors import InputError
from mmspec.sampling import Sampling


def check_no_history(sampling: Sampling) -> None:
    """Raise InputError for a setting that looks at single codes of the history."""
    if sampling.ras_window or sampling.repetition_penalty != 1:
        raise InputError("codes of different codebooks share their ids: repetition cannot be penalised here")
