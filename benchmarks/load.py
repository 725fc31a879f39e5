"""What the demo stands: visitors who all ask at once, then visitors one after the other, with its memory watched.

The demo runs in a process of its own on this computer, and nothing but this computer is asked. Every request comes from
a visitor of its own, through Gradio's client: it uploads a picture, asks, and waits in the queue.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any

from mmspec.benchmarks.machine import conditions
from mmspec.benchmarks.tables import aligned
from mmspec.errors import InputError, UnsupportedError, one_line, require
from mmspec.progress import progress

HOST = "127.0.0.1"
QUESTION = "Describe this picture in detail."
OPENS = 15.0
"""Seconds that the page may take to open, from the start of its process."""
FLAT = 1.05
"""Memory is flat if its mean over the last quarter of the requests is at most this times that over the second."""
MOST_AT_ONCE = 32  # as many as the demo lets wait
DONE = "Done."
"""What the page says of a request that was answered."""
GLANCE = 0.05  # seconds between two looks at visitors who wait


@dataclass(frozen=True)
class LoadSettings:
    """What is asked of the demo. patience: seconds that one answer, or the start, may take. Raises: InputError."""

    model: str = "smolvlm-mini"
    drafter: str = ""
    at_once: int = 20
    requests: int = 200
    max_new_tokens: int = 32
    patience: float = 600.0

    def __post_init__(self) -> None:
        if not 1 <= self.at_once <= MOST_AT_ONCE:
            raise InputError(f"{self.at_once} visitors at once are not valid: 1 to {MOST_AT_ONCE} are taken")
        if self.requests < 4:
            raise InputError(f"{self.requests} requests are not valid: 4 or more tell whether memory is flat")
        if not 8 <= self.max_new_tokens <= 256:
            raise InputError(f"{self.max_new_tokens} tokens are not valid: 8 to 256 are taken")


@dataclass
class Visit:
    """A request. places: its places in the queue as they were told, 0 is next. answered: seconds since the visitors
    began to ask. problem: why there was no answer, or "".
    """

    places: list[int] = field(default_factory=list)
    answered: float = 0.0
    text: str = ""
    problem: str = ""


@dataclass
class LoadReport:
    """What was found. crowd: visits at once, in the order of their arrival. memory: resident bytes of the demo before
    the first single request and after each.
    """

    settings: LoadSettings
    opened: float
    crowd: list[Visit]
    single: list[Visit]
    memory: list[int]

    @property
    def orderly(self) -> bool:
        """Whether who came first was answered first."""
        times = [visit.answered for visit in self.crowd]
        return times == sorted(times)

    @property
    def waited(self) -> int:
        """Visitors who were told a place in the queue."""
        return sum(bool(visit.places) for visit in self.crowd)

    @property
    def growth(self) -> float:
        """Memory over the last quarter of the single requests, over that of the second quarter."""
        quarter = len(self.memory) // 4
        return mean(self.memory[-quarter:]) / mean(self.memory[quarter : 2 * quarter])

    def failures(self) -> list[str]:
        """What the demo did not stand."""
        visits = [*self.crowd, *self.single]
        texts = {visit.text for visit in visits if not visit.problem}
        problems = list(dict.fromkeys(visit.problem for visit in visits if visit.problem))
        told = {
            f"{sum(bool(visit.problem) for visit in visits)} requests had no answer: {'; '.join(problems)}": problems,
            "the same question was answered in different ways": len(texts) > 1,
            "who came first was not answered first": not self.orderly,
            f"the page took more than {OPENS:g} s to open": self.opened > OPENS,
            f"memory grew by {100 * (self.growth - 1):.0f} %": self.growth > FLAT,
        }
        return [text for text, found in told.items() if found]

    def summary(self) -> dict[str, Any]:
        """Everything, for JSON."""
        return {
            "settings": asdict(self.settings),
            **conditions(),
            "opened_s": self.opened,
            "orderly": self.orderly,
            "waited": self.waited,
            "crowd": [asdict(visit) for visit in self.crowd],
            "memory_bytes": self.memory,
            "growth": self.growth,
            "failures": self.failures(),
        }

    def text(self) -> str:
        """Everything, for people."""
        asked = f"{len(self.crowd)} visitors at once, then {len(self.single)} one after the other"
        places = [place for visit in self.crowd for place in visit.places]
        facts = [
            ["the page opened after", f"{self.opened:.1f} s"],
            ["answered, of those at once", f"{sum(not visit.problem for visit in self.crowd)} of {len(self.crowd)}"],
            ["told a place in the queue", f"{self.waited}, the last one {1 + max(places, default=0)}"],
            ["in the order of arrival", "yes" if self.orderly else "NO"],
            [
                "answered, one after the other",
                f"{sum(not visit.problem for visit in self.single)} of {len(self.single)}",
            ],
            ["memory, last quarter / second quarter", f"{self.growth:.3f}"],
        ]
        step = max(len(self.single) // 8, 1)
        rows = [["requests", "resident MB"]]
        rows += [[str(place), f"{self.memory[place] / 1e6:.0f}"] for place in range(0, len(self.memory), step)]
        verdict = "; ".join(self.failures())
        verdict = f"FAILED: {verdict}." if verdict else "Passed: all answered, in order, and memory is flat."
        return "\n\n".join([f"{self.settings.model}: {asked}", aligned(facts), aligned(rows), verdict])


def run_load(settings: LoadSettings) -> LoadReport:
    """Start the demo, ask it, and end it. Raises: MissingExtraError, UnsupportedError: the demo does not start."""
    # Gradio's client sends telemetry unless it is told not to before it is imported.
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
    psutil = require("psutil", "bench")
    require("gradio_client", "demo")
    with tempfile.TemporaryDirectory(prefix="mmspec-load-") as folder, demo(settings, Path(folder)) as (url, process):
        opened = wait_for(url, process, Path(folder) / LOG, settings.patience)
        picture = draw(Path(folder))
        crowd = together(url, picture, settings)
        watched = psutil.Process(process.pid)
        single: list[Visit] = []
        memory = [resident(watched)]
        for _ in progress(range(settings.requests), unit="request", desc="one after the other"):
            single += together(url, picture, settings, 1)
            memory.append(resident(watched))
    return LoadReport(settings, opened, crowd, single, memory)


# the demo

LOG = "demo.log"


@contextmanager
def demo(settings: LoadSettings, folder: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """The demo's address and its process, which ends with the block; what it prints goes to a file in the folder."""
    with closing(socket.socket()) as free:
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the demo's, so that both may have the port
        free.bind((HOST, 0))
        port = free.getsockname()[1]
        command = [sys.executable, "-m", "mmspec", "demo", "--host", HOST, "--port", str(port)]
        command += ["--model", settings.model]
        command += ["--drafters", settings.drafter] if settings.drafter else []
        with (folder / LOG).open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)  # noqa: S603
        try:
            yield f"http://{HOST}:{port}/", process  # the port stays bound here, so that nobody else is given it
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def wait_for(url: str, process: subprocess.Popen[bytes], log: Path, patience: float) -> float:
    """Seconds until the page can be opened. Raises: UnsupportedError: the demo ended, or takes too long."""
    import httpx

    begun = time.monotonic()
    while (waited := time.monotonic() - begun) < patience:
        if process.poll() is not None:
            said = log.read_text(errors="replace").strip().splitlines()
            raise UnsupportedError(f"the demo did not start: {said[-1] if said else 'it said nothing'}")
        try:
            if httpx.get(url, timeout=patience).is_success:
                return time.monotonic() - begun
        except httpx.TransportError:
            time.sleep(GLANCE)
    raise UnsupportedError(f"the demo did not open within {waited:.0f} s: give it more --patience")


def resident(process: Any) -> int:
    """Resident bytes of a process and those it started."""
    return sum(each.memory_info().rss for each in (process, *process.children(recursive=True)))


def draw(folder: Path) -> Path:
    """The picture that everybody asks about."""
    from mmspec.miniworld import sample

    file = folder / "picture.png"
    sample("load", 0, "bar").image.save(file)
    return file


# its visitors


class Visitor:
    """A browser, as it were: it has uploaded its picture, and asks once."""

    def __init__(self, url: str, picture: Path, patience: float) -> None:
        from gradio_client import Client, handle_file

        patient = {"timeout": patience}  # a demo that loads its model may be deaf for longer than httpx waits
        self.client = Client(url, verbose=False, download_files=False, analytics_enabled=False, httpx_kwargs=patient)
        self.client.predict(handle_file(picture), api_name="/take")
        self.visit = Visit()
        self.job: Any = None

    def ask(self, tokens: int, begun: float, patience: float) -> None:
        """Join the queue; comes back when the place in it is known, so that the order of arrival is."""
        from gradio_client.utils import Status

        self.job = self.client.submit(prompt=QUESTION, tokens=tokens, api_name="/run")
        self.job.add_done_callback(lambda _: setattr(self.visit, "answered", time.monotonic() - begun))
        while time.monotonic() - begun < patience and self.look() in (Status.STARTING, Status.JOINING_QUEUE):
            time.sleep(GLANCE / 4)

    def look(self) -> Any:
        """Note the place in the queue; returns how far the request is."""
        from gradio_client.utils import Status

        status = self.job.status()
        place = status.rank if status.code == Status.IN_QUEUE else None
        if place is not None and place not in self.visit.places[-1:]:
            self.visit.places.append(place)
        return status.code

    def leave(self) -> Visit:
        """What came of it."""
        try:
            message, _, _, answer = map(bare, self.job.result(timeout=0)[:4])
            self.visit.text, self.visit.problem = answer, "" if message == DONE else message
        except Exception as error:  # noqa: BLE001 - whatever the client raises is what this visitor was told
            self.visit.problem = one_line(error)
            self.job.cancel()
        self.client.close()
        return self.visit


def bare(markup: str) -> str:
    """The text of a piece of the page: how tokens are clothed depends on clocks, what they say does not."""
    return re.sub("<[^>]*>", "", markup).strip()


def together(url: str, picture: Path, settings: LoadSettings, count: int = 0) -> list[Visit]:
    """Visitors who come one by one and wait together; their visits in the order of arrival. count: 0 for a crowd."""
    visitors = [Visitor(url, picture, settings.patience) for _ in range(count or settings.at_once)]
    begun = time.monotonic()
    for visitor in visitors:
        visitor.ask(settings.max_new_tokens, begun, settings.patience)
    while waiting(visitors) and time.monotonic() - begun < settings.patience * len(visitors):
        time.sleep(GLANCE)
    return [visitor.leave() for visitor in visitors]


def waiting(visitors: Sequence[Visitor]) -> bool:
    """Whether someone has no answer yet."""
    for visitor in visitors:
        visitor.look()
    return not all(visitor.job.done() for visitor in visitors)
