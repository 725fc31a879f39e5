"""Commands of mmspec in processes of their own, to be killed (SIGKILL) while they work.

The processes are forked from a server that has imported everything and run nothing, so each starts in a moment.
"""

import json
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["mmspec.api", "mmspec.benchmarks.cli", "mmspec.training.drafter", "diffusers"])
PATIENCE = 1800.0
"""Seconds until a process that does nothing fails the test."""
TICK = 0.002
LEASH = 3
"""How much further than wanted a process gets that is to be killed."""


def command(arguments: list[str], log: str, progress: Callable[[], int] | None = None, most: int = 0) -> None:
    """`mmspec ARGUMENTS`, as a process does it; what it prints goes to the file `log`. progress, most: see `hold`."""
    os.setpgrp()
    with Path(log).open("a", encoding="utf-8") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    multiprocessing.set_start_method("fork", force=True)  # of its own workers, as outside of a server
    from mmspec.cli import main

    if progress is not None:
        hold(progress, most)
    sys.argv = ["mmspec", *arguments]
    main()


def hold(progress: Callable[[], int], most: int) -> None:
    """From now on this process stands still before it writes, once `progress` says `most`: who kills it may be late."""

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        writes = event in ("os.mkdir", "os.rename") or (event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR))
        while writes and progress() >= most:
            signal.pause()

    sys.addaudithook(hook)


def ready() -> None:
    """Wait until the server has imported everything, so that no command is slower than the others."""
    process = SERVER.Process(target=int)
    process.start()
    process.join(PATIENCE)
    assert process.exitcode == 0


@contextmanager
def running(log: Path, *arguments: object, held: tuple[Callable[[], int], int] | None = None) -> Iterator[Any]:
    """A command at work. It does not outlive the block. held: the arguments of `hold`, if it is to be held."""
    process = SERVER.Process(target=command, args=([str(each) for each in arguments], str(log), *(held or ())))
    process.start()
    try:
        yield process
    finally:
        process.kill()
        process.join()
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # workers that it started and could not end any more


def finished(log: Path, *arguments: object) -> float:
    """Let a command run to its end; returns its seconds."""
    start = time.monotonic()
    with running(log, *arguments) as process:
        process.join(PATIENCE)
        assert process.exitcode == 0, log.read_text(encoding="utf-8")[-3000:]
    return time.monotonic() - start


def killed(log: Path, progress: Callable[[], int], wanted: int, delay: float, *arguments: object) -> bool:
    """Start a command, wait until `progress` says `wanted`, then another `delay` seconds, and kill it.

    It gets no further than `LEASH` beyond that, however late the kill comes. progress: something that can be pickled.
    Returns: whether it was killed in the middle; False if it had ended before.
    """
    with running(log, *arguments, held=(progress, wanted + LEASH)) as process:
        deadline = time.monotonic() + PATIENCE
        while progress() < wanted and process.is_alive():
            assert time.monotonic() < deadline, f"no progress: {log.read_text(encoding='utf-8')[-3000:]}"
            time.sleep(TICK)
        process.join(delay)
        process.kill()
        process.join()
        assert process.exitcode in (-signal.SIGKILL, 0), log.read_text(encoding="utf-8")[-3000:]
        return process.exitcode != 0


def torn(file: Path, rng: Random) -> None:
    """Cut the last line of a file somewhere, as a machine that went down would leave it."""
    text = file.read_bytes()
    start = text.rfind(b"\n", 0, -1) + 1
    file.write_bytes(text[: rng.randrange(start + 1, len(text))])


def samples(out: Path) -> dict[str, list[Any]]:
    """The samples of every task in their order, without what clocks say."""
    found = {}
    for file in sorted(out.rglob("samples.jsonl")):
        records = [json.loads(line) for line in file.read_bytes().splitlines()]
        for record in records:
            for run in record["runs"].values():
                run.update({name: 0 for name in run if name.endswith("seconds")})
        found[str(file.relative_to(out))] = records
    return found
