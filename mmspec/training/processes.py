"""Several processes that train the same drafters, as `accelerate launch` starts them; usually there is one.

What is made once for all, answers and folders, is shared through files; what one process decides, the others are told.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any, TypeVar

import torch

from mmspec.errors import InputError

T = TypeVar("T")

PATIENCE = timedelta(days=1)
"""How long a process waits for the others: some answer longer than others, and the first one validates alone."""


def group() -> Any:
    """accelerate's view of the processes: `num_processes`, `process_index`, `is_main_process`, `device`."""
    from accelerate import PartialState
    from accelerate.utils import parse_flag_from_env

    cpu = parse_flag_from_env("ACCELERATE_USE_CPU") or not torch.cuda.is_available()
    return PartialState(cpu=cpu, timeout=PATIENCE)


def check_device(device: str | None) -> None:
    """Raises: InputError: a GPU by its number: the Trainer takes the first one that its process sees."""
    kind, _, number = (device or "").partition(":")
    if kind == "cuda" and number.isdigit() and int(number) and group().num_processes == 1:
        raise InputError(f"training takes the first GPU: set CUDA_VISIBLE_DEVICES={number}, and --device cuda")


def check_alone() -> None:
    """Raises: InputError: there are several processes, for what one process trains."""
    count = group().num_processes
    if count > 1:
        raise InputError(f"a bundled model is trained by one process, not {count}: start it without accelerate launch")


def leader_first() -> AbstractContextManager[None]:
    """A block that the first process leaves before the others enter it."""
    return group().main_process_first()


def wait() -> None:
    """Go on when all processes have come here."""
    group().wait_for_everyone()


def own_part(items: Sequence[T]) -> Sequence[T]:
    """What this process takes of a list that is the same in all of them: neighbours, so that what alternates along the
    list is shared out evenly."""
    here, count = group().process_index, group().num_processes
    return items[len(items) * here // count : len(items) * (here + 1) // count]


def told(value: Any) -> Any:
    """What the first process gives, in every process; the others give anything."""
    from accelerate.utils import broadcast_object_list

    return broadcast_object_list([value])[0]
