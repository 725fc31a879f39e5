"""What all stages share: settings, the device, the models, the ceilings, and how a record is made or skipped."""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

import mmspec
from mmspec import Pipeline
from mmspec.benchmarks.gpu.book import Book, Tables
from mmspec.benchmarks.gpu.clock import Deadline, OutOfTime, settle, wait
from mmspec.benchmarks.gpu.floors import H200, Card
from mmspec.benchmarks.gpu.models import Spec, names, spec_of
from mmspec.errors import InputError, one_line
from mmspec.safe_files import read_json

logger = logging.getLogger(__name__)

CARD = ("small", "device", "dtype")
DECODING = (*CARD, "rows")
"""Settings on which the rates of a card, and those of plain decoding, depend."""


@dataclass(frozen=True)
class Settings:
    """small: shrunken models and counts. dtype: of the weights. compile, plain: whether the static engine and forwards
    without it are measured.

    repeats: measurements of a figure. tokens: new ones of an answer. rows: of a batch. depths, nodes: those of rounds
    and of the sweep; none for the stage's own.
    """

    small: bool = False
    device: str = "cuda"
    dtype: str = "bfloat16"
    compile: bool = True
    plain: bool = True
    repeats: int = 5
    tokens: int = 256
    rows: int = 1
    depths: tuple[int, ...] = ()
    nodes: tuple[int, ...] = ()


class Bench:
    """One stage at work.

    Args: stage: its name. folder: for results. models: names; none for all. deadline: when to stop. gate: see `turn`.
    """

    def __init__(
        self,
        stage: str,
        settings: Settings,
        folder: Path,
        models: tuple[str, ...],
        deadline: Deadline,
        intro: str,
        tables: Tables,
        gate: Path | None = None,
    ) -> None:
        self.settings, self.deadline, self.gate = settings, deadline, gate
        try:
            self.device = torch.device(settings.device)
        except RuntimeError as error:
            raise InputError(f"device={settings.device!r} is not valid: cuda or cpu is needed") from error
        self.dtype = getattr(torch, settings.dtype)
        if self.device.type == "cuda" and not torch.cuda.is_available():
            raise InputError("there is no CUDA device here: add --small, or --device cpu")
        self.specs: list[Spec] = [spec_of(name, settings.small) for name in models or names()]
        self.card = ceilings_of(folder, settings)
        about = {"bandwidth": self.card.bandwidth, "flops": self.card.flops, "ceilings": self.card.source, **parts()}
        self.book = Book(folder, stage, asdict(settings), intro, tables, about)
        self.folder = folder

    @property
    def small(self) -> bool:
        """Whether this is a check of the machinery."""
        return self.settings.small

    @property
    def kinds(self) -> dict[str, bool]:
        """The kinds of forward that are measured, and whether each is compiled."""
        kinds = {"plain": (False, self.settings.plain), "compiled": (True, self.settings.compile)}
        return {name: compiled for name, (compiled, wanted) in kinds.items() if wanted}

    def record(self, key: str, make: Callable[[], dict[str, Any]]) -> None:
        """Make a record unless it is there. One that cannot be made is noted with its reason, and the run goes on.

        Raises: OutOfTime.
        """
        if self.book.has(key):
            return
        self.deadline.check()
        logger.info("%s: %s", self.book.stage, key)
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        try:
            made = make()
        except OutOfTime:
            raise
        except Exception as error:  # noqa: BLE001  compilers and backends have errors of their own; they are findings
            made = {"error": f"{type(error).__name__}: {one_line(error)}"}
            logger.warning("%s: %s", key, made["error"])
        if self.device.type == "cuda":
            made["peak_gb"] = torch.cuda.max_memory_allocated(self.device) / 1e9
        self.book.add(key, made)

    def turn(self) -> None:
        """Called when all is compiled and nothing is timed yet. With a gate: says so in a file beside it, and waits for
        the gate, so that several runs compile side by side and are timed one after the other. Then brings the card to
        its working clock.

        Raises: OutOfTime.
        """
        wait(self.device)
        if self.gate is not None:
            self.gate.parent.mkdir(parents=True, exist_ok=True)
            self.gate.with_name(f"{self.gate.name}.ready").touch()
            while not self.gate.exists():
                self.deadline.check()
                time.sleep(0.2)
        settle(self.device)  # while it compiled, the card was idle

    def missing(self, *keys: str) -> bool:
        """Whether any of these is still to be made: otherwise its model need not be built."""
        return not all(map(self.book.has, keys))

    @contextmanager
    def freed(self) -> Iterator[None]:
        """What is made inside is gone from the device afterwards."""
        try:
            yield
        finally:
            wait(self.device)
            torch._dynamo.reset()
            gc.collect()
            if self.device.type == "cuda":
                torch.cuda.empty_cache()


def pipeline(
    model: Any, drafter: Any = "none", compiled: bool = False, sizes: tuple[int, ...] = (1,), **where: Any
) -> Pipeline:
    """A pipeline whose drafts have the drafter's own size, compiled or not. Args: sizes: see `sized`."""
    return sized(mmspec.load(model, drafter, shape="own", compile=compiled, **where), sizes)


def sized(pipe: Pipeline, sizes: tuple[int, ...]) -> Pipeline:
    """The pipeline; if it is compiled, then for these numbers of nodes and no others, each of which costs a minute."""
    if pipe.target.compiled:
        pipe.target.decoder.engine.sizes = sizes
    return pipe


def ceilings_of(folder: Path, settings: Settings) -> Card:
    """What the stage `ceilings` found in this folder; else the rates of the card that the goals were set for."""
    found = found_before("ceilings", folder, settings, CARD).get("card", {})
    if "copy_gb_s" not in found or "matmul_tflops" not in found:
        return H200
    return Card(found["copy_gb_s"] * 1e9, found["matmul_tflops"] * 1e12, "the stage ceilings, same folder")


def found_before(stage: str, folder: Path, settings: Settings, same: Sequence[str]) -> dict[str, Any]:
    """The records of another stage in the same folder; none, and a line that says so, where it ran otherwise.

    Args: same: names of the settings that have to be the same.
    """
    path = folder / f"{stage}.json"
    if not path.exists():
        return {}
    found = read_json(path)
    before, now = found.get("settings", {}), asdict(settings)
    differs = [f"{name} {before.get(name)} (now {now[name]})" for name in same if before.get(name) != now[name]]
    if differs:
        logger.warning("%s is not used, since it is of %s", path, ", ".join(differs))
        return {}
    return found["records"]


def parts() -> dict[str, Any]:
    """Versions that decide GPU figures, beside those of every benchmark."""
    if not torch.cuda.is_available():
        return {}
    import triton

    return {
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "triton": triton.__version__,
        "cudnn_sdp": torch.backends.cuda.cudnn_sdp_enabled(),
        "memory_gb": torch.cuda.get_device_properties(0).total_memory / 1e9,
    }
