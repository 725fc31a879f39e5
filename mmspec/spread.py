"""A map over samples: in this process, or spread over workers of a Ray cluster, each with a replica of the model.

A worker has one sample at a time. If it is lost (its process is killed, its machine goes down), only that sample is
made again, by another worker; what is finished has long been handed back. Results come back as they are finished, with
the place of their sample. Ray ships functions and samples to the workers, so both must be picklable, and every machine
of a cluster needs mmspec and the model.
"""

from __future__ import annotations

import logging
import os
import socket
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol, Self

from mmspec.errors import InputError, UnsupportedError, one_line, require

logger = logging.getLogger(__name__)

LOCAL = "local"
MOST_LOSSES = 3
"""Workers that a sample may cost; then it is the cause, and another worker would be lost as well."""
STORE_BYTES = 256 * 2**20
"""Of Ray's store of objects, where it is started here: a few samples with their pictures."""

Begin = Callable[[Any], Callable[[Any], Any]]
"""What a worker does first: from its replica to the function that makes a result of a sample."""


class Spread(Protocol):
    """Where samples are worked on."""

    shared: bool
    """Whether several workers may run on one machine, so that their timings are no speeds."""

    def map(self, begin: Begin, samples: Iterable[Any]) -> Iterator[tuple[int, Any]]:
        """Place and result of every sample, as they are finished. Samples are taken from the iterable when there is a
        worker for them. An error that a sample raises is raised here."""

    def __enter__(self) -> Self:
        """Workers start with the first sample."""

    def __exit__(self, *error: object) -> None:
        """They are gone afterwards."""


@dataclass
class Here:
    """One after the other in this process, with the replica that it has."""

    replica: Any
    shared: bool = False

    def map(self, begin: Begin, samples: Iterable[Any]) -> Iterator[tuple[int, Any]]:
        """See `Spread`."""
        work = begin(self.replica)
        for place, sample in enumerate(samples):
            yield place, work(sample)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass


@dataclass(frozen=True)
class Where:
    """A Ray cluster. address: "local" starts Ray on this machine; "auto" and HOST:PORT are clusters that run.
    workers: how many; 0 is one per GPU of the cluster, and without GPUs two."""

    address: str = LOCAL
    workers: int = 0

    def __post_init__(self) -> None:
        if self.workers < 0:
            raise InputError(
                f"workers={self.workers} is not valid: 0 (one per GPU, without GPUs two) or more is needed"
            )


class Worker:
    """What lives in a worker's process."""

    def __init__(self) -> None:
        self.replica: Any = None

    def start(self, load: Callable[[], Any], begin: Begin) -> str:
        """Get ready for a map; says where this is."""
        if self.replica is None:
            self.replica = load()
        self.work = begin(self.replica)
        return f"{socket.gethostname()}, process {os.getpid()}"

    def do(self, sample: Any) -> Any:
        """The result of a sample."""
        return self.work(sample)


class Cluster:
    """Workers on a Ray cluster. load: makes the replica of each.

    Raises: MissingExtraError: Ray is not installed. InputError: no cluster answers, or it is too small.
        UnsupportedError: no worker is left, or a sample loses one after the other.
    """

    shared = True

    def __init__(self, where: Where, load: Callable[[], Any]) -> None:
        self.where, self.load = where, load
        self.ray = require_ray()
        self.crew: list[Any] = []
        self.mine = False
        """Whether this process was connected here, and not by its user before."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for worker in self.crew:
            self.ray.kill(worker)
        self.crew = []
        if self.mine:
            self.ray.shutdown()

    def map(self, begin: Begin, samples: Iterable[Any]) -> Iterator[tuple[int, Any]]:
        """See `Spread`."""
        source = iter(enumerate(samples))
        waiting: deque[tuple[int, Any]] = deque(islice(source, 1))
        if not waiting:
            return  # no worker is started for nothing
        self._assemble()
        busy: dict[Any, tuple[Any, tuple[int, Any] | None]] = {}  # call -> worker, and its sample once it is ready
        busy.update((self._start(worker, begin), (worker, None)) for worker in self.crew)
        idle: list[Any] = []
        losses: Counter[int] = Counter()
        while waiting or any(item for _, item in busy.values()):
            if not busy:
                raise UnsupportedError("every worker was lost; what is finished is kept, and the same command goes on")
            (done,), _ = self.ray.wait(list(busy), num_returns=1)
            worker, item = busy.pop(done)
            try:
                result = self.ray.get(done)
            except self.ray.exceptions.RayTaskError as error:
                raise error.cause from error
            except self.ray.exceptions.RayError as error:
                self._lost(worker, error)
                if item is not None:
                    losses[item[0]] += 1
                    if losses[item[0]] == MOST_LOSSES:
                        raise UnsupportedError(
                            f"{MOST_LOSSES} workers were lost with the same sample (number {item[0]}); the last one: "
                            f"{one_line(error)}"
                        ) from error
                    waiting.append(item)
                    self.crew.append(self._hire())
                    busy[self._start(self.crew[-1], begin)] = (self.crew[-1], None)
            else:
                idle.append(worker)
                if item is None:
                    logger.info("a worker is ready: %s", result)
                else:
                    yield item[0], result
            while idle and waiting:
                worker, item = idle.pop(), waiting.popleft()
                waiting.extend(islice(source, 0 if waiting else 1))
                busy[worker.do.remote(item[1])] = (worker, item)

    def _assemble(self) -> None:
        """The first workers."""
        if self.crew:
            return
        self._connect()
        resources = self.ray.cluster_resources()
        gpus, cpus = int(resources.get("GPU", 0)), int(resources.get("CPU", 0))
        wanted = self.where.workers or gpus or 2
        if wanted > (gpus or cpus):
            raise InputError(
                f"the Ray cluster has {gpus} GPUs and {cpus} CPUs, too few for {wanted} workers: take --workers "
                f"{gpus or cpus}, or a larger cluster"
            )
        self.needs = {"num_cpus": 1, "num_gpus": 1 if gpus else 0, "scheduling_strategy": "SPREAD"}
        self.crew = [self._hire() for _ in range(wanted)]

    def _connect(self) -> None:
        if self.ray.is_initialized():
            return
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is reported to anybody
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        if self.where.address == LOCAL:
            cores = max(os.cpu_count() or 1, self.where.workers, 2)
            quiet |= {"num_cpus": cores, "include_dashboard": False, "object_store_memory": STORE_BYTES}
        try:
            self.ray.init(address=self.where.address, **quiet)
        except (ConnectionError, ValueError, RuntimeError, OSError, self.ray.exceptions.RayError) as error:
            raise InputError(
                f"no Ray cluster answers at {self.where.address!r} ({one_line(error)}): give the address that "
                f"`ray start --head` told, or {LOCAL}; if the cluster asks for a token, set RAY_AUTH_MODE=token"
            ) from error
        self.mine = True

    def _hire(self) -> Any:
        return self.ray.remote(Worker).options(**self.needs).remote()

    def _start(self, worker: Any, begin: Begin) -> Any:
        return worker.start.remote(self.load, begin)

    def _lost(self, worker: Any, error: Exception) -> None:
        """A worker without an answer. It may live on out of reach, so it is told to end."""
        logger.warning("a worker was lost; what it had goes to another one: %s", one_line(error))
        self.crew.remove(worker)
        self.ray.kill(worker)


def spread_over(where: Where | None, replica: Any, load: Callable[[], Any]) -> Spread:
    """Workers on a cluster, or with None this process and the replica that it has."""
    return Here(replica) if where is None else Cluster(where, load)


def read_where(ray: str | None, workers: int) -> Where | None:
    """What the options --ray and --workers mean: a cluster, or None for this process.

    Raises: InputError: workers without a cluster. MissingExtraError: Ray is not installed.
    """
    if ray is None and workers:
        raise InputError("--workers belongs to --ray: add --ray local, or the address of a cluster")
    if ray is None:
        return None
    require_ray()  # before anything large is read
    return Where(ray, workers)


def require_ray() -> Any:
    """Ray. Raises MissingExtraError if it is not installed."""
    require("ray.exceptions", "ray")
    return require("ray", "ray")
