"""Samples spread over workers: every sample once, lost workers replaced, the same results as in one process.

What needs Ray runs on two workers that Ray starts on this machine, and is skipped without it.
"""

import logging
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import kills
import pytest
from tiny import tiny_llama, tiny_smolvlm
from typer.testing import CliRunner

import mmspec
from mmspec.benchmarks.cli import app
from mmspec.errors import InputError, MissingExtraError, UnsupportedError
from mmspec.spread import MOST_LOSSES, Cluster, Here, Where, read_where, spread_over
from mmspec.training.answers import AnswerOptions, collect
from mmspec.training.cli import app as train
from mmspec.training.course import Course
from mmspec.training.data import Miniworld
from mmspec.training.drafter import train_drafters
from mmspec.training.medusa import MedusaRecipe


@pytest.fixture(scope="module")
def ray() -> Any:
    """Ray, and its processes gone afterwards."""
    found = pytest.importorskip("ray", reason='Ray is not installed: pip install "mmspec[ray]"')
    yield found
    found.shutdown()


@pytest.fixture
def local(ray: Any) -> Iterator[Where]:
    """Two workers on this machine; the tests of this file share the Ray that the first of them starts."""
    if not ray.is_initialized():
        Cluster(Where("local", 2), int)._connect()
    return Where("local", 2)


def places(found: Iterator[tuple[int, Any]]) -> dict[int, Any]:
    listed = list(found)
    assert len(dict(listed)) == len(listed)  # none twice
    return dict(listed)


def killer(folder: Path, most: int) -> Callable[[Any], Callable[[Any], Any]]:
    """Squares, but sample 3 ends its worker without a word, the first `most` times."""

    def begin(replica: int) -> Callable[[int], int]:
        def work(sample: int) -> int:
            if sample == 3 and len(list(folder.iterdir())) < most:
                (folder / str(os.getpid())).touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return replica * sample * sample

        return work

    return begin


# the map


def test_here_works_on_one_sample_after_the_other_and_takes_none_early() -> None:
    taken: list[int] = []

    def samples() -> Iterator[int]:
        for sample in range(4):
            taken.append(sample)
            yield sample

    with Here(10) as spread:
        found = spread.map(lambda replica: lambda sample: replica * sample, samples())
        assert not taken
        assert next(found) == (0, 0)
        assert taken == [0]
        assert list(found) == [(1, 10), (2, 20), (3, 30)]


def test_workers_make_every_sample_once(local: Where) -> None:
    with Cluster(local, lambda: 10) as cluster:
        assert places(cluster.map(lambda replica: lambda sample: replica * sample, range(9))) == {
            place: 10 * place for place in range(9)
        }
        assert places(cluster.map(lambda replica: lambda sample: -replica, range(1))) == {0: -10}  # with the same crew
        assert len(cluster.crew) == 2


def test_samples_of_a_lost_worker_go_to_others(local: Where, tmp_path: Path, caplog: Any) -> None:
    with Cluster(local, lambda: 10) as cluster:
        found = places(cluster.map(killer(tmp_path, 1), range(9)))
        assert found == {place: 10 * place**2 for place in range(9)}
        assert len(list(tmp_path.iterdir())) == 1
        assert len(cluster.crew) == 2
    assert "a worker was lost" in caplog.text


def test_a_sample_that_ends_every_worker_is_named(local: Where, tmp_path: Path) -> None:
    with (
        Cluster(local, lambda: 10) as cluster,
        pytest.raises(UnsupportedError, match=rf"{MOST_LOSSES} workers .* same sample \(number 3\)"),
    ):
        list(cluster.map(killer(tmp_path, 99), range(9)))
    assert len(list(tmp_path.iterdir())) == MOST_LOSSES


def test_an_error_in_a_worker_is_the_error_that_it_would_be_here(local: Where) -> None:
    def begin(replica: int) -> Callable[[int], int]:
        def work(sample: int) -> int:
            raise InputError(f"sample {sample} is bad")

        return work

    def load() -> int:
        raise InputError("no such model")

    for cluster, message in (
        (Cluster(local, lambda: 1), r"sample \d is bad"),
        (Cluster(local, load), "no such model"),
    ):
        with cluster, pytest.raises(InputError, match=message) as caught:
            list(cluster.map(begin, range(4)))
        assert type(caught.value) is InputError  # what the command line prints in one line


def test_workers_that_cannot_load_the_model_are_not_replaced_for_ever(local: Where) -> None:
    def load() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    with Cluster(local, load) as cluster, pytest.raises(UnsupportedError, match="every worker was lost"):
        list(cluster.map(lambda replica: lambda sample: sample, range(4)))


def test_no_worker_is_started_for_nothing(monkeypatch: pytest.MonkeyPatch, ray: Any) -> None:
    cluster = Cluster(Where("local", 2), int)
    monkeypatch.setattr(cluster, "_connect", lambda: pytest.fail("Ray was started"))
    assert not list(cluster.map(lambda replica: lambda sample: sample, ()))


def test_mistakes_are_one_clear_error(local: Where, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="workers=-1"):
        Where("local", -1)
    with Cluster(Where("local", 9999), int) as many, pytest.raises(InputError, match="too few for 9999 workers"):
        list(many.map(lambda replica: lambda sample: sample, range(2)))
    assert isinstance(CliRunner().invoke(app, ["--workers", "2"]).exception, InputError)
    assert isinstance(CliRunner().invoke(app, ["--ray", "local", "--table", "drafters"]).exception, InputError)
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"mmspec\[ray\]"):
        spread_over(Where("local"), None, int)
    assert spread_over(None, 5, int) == Here(5)


@pytest.mark.parametrize("name", ["ConnectionError", "AuthenticationError"])
def test_a_cluster_that_refuses_is_one_clear_error(name: str, ray: Any) -> None:
    """Ray says the same of a cluster that is not there and of one whose token it was not given."""

    error = ray.exceptions.AuthenticationError if name == "AuthenticationError" else ConnectionError

    def refuse(**_: Any) -> None:
        raise error("no")

    cluster = Cluster(Where("127.0.0.1:1"), int)
    cluster.ray = SimpleNamespace(is_initialized=lambda: False, init=refuse, exceptions=ray.exceptions)
    with pytest.raises(InputError, match=r"no Ray cluster answers at '127.0.0.1:1'.*RAY_AUTH_MODE=token"):
        list(cluster.map(lambda replica: lambda sample: sample, range(2)))


# a benchmark, and the answers that a drafter learns from


@contextmanager
def a_worker_killed(ray: Any, when: Callable[[], bool]) -> Iterator[list[int]]:
    """Kill -9 of the first worker that gets ready, as soon as `when` holds; yields a list that holds it then.

    It has a sample at that time: the kill comes when samples have been handed out and the next result is waited for.
    """
    ready: list[int] = []
    gone: list[int] = []

    class Watch(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "is ready" in record.msg:
                ready.append(int(record.getMessage().rpartition(" ")[2]))

    def killing(*calls: Any, **options: Any) -> Any:
        if ready and not gone and when():
            os.kill(ready[0], signal.SIGKILL)
            gone.append(ready[0])
        return wait(*calls, **options)

    handler, logger, wait = Watch(), logging.getLogger("mmspec.spread"), ray.wait
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(ray, "wait", killing)
            yield gone
    finally:
        logger.setLevel(before)
        logger.removeHandler(handler)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_smolvlm(tmp_path_factory.mktemp("target"))


@pytest.mark.slow
def test_a_benchmark_on_two_workers_of_which_one_is_killed_has_the_samples_of_one_process(
    ray: Any, local: Where, model: Path, tmp_path: Path, caplog: Any
) -> None:
    speaker = tiny_llama(tmp_path / "speaker", seed=3)
    small = ["--drafters", f"none,prompt-lookup,{speaker}", "--max-new-tokens", 6, "--repeats", 1, "--threads", 1]
    tasks = ["--model", model, "--task", "chartqa", "--limit", 6, *small, "--shape", "own", "--no-plot", "--out"]

    def bench(out: Path, *more: object) -> str:
        result = CliRunner().invoke(app, [str(each) for each in (*tasks, out, *more)])
        if result.exception is not None:
            raise result.exception
        return result.output

    alone, out = bench(tmp_path / "alone"), tmp_path / "out"
    with a_worker_killed(ray, lambda: any(file.stat().st_size for file in out.rglob("samples.jsonl"))) as gone:
        text = bench(out, "--ray", "local", "--workers", 2)
    assert len(gone) == 1
    assert "a worker was lost" in caplog.text
    (whole,) = kills.samples(tmp_path / "alone").values()
    assert len(whole) == 12
    assert kills.samples(out) == {"".join(kills.samples(out)): whole}
    assert "no speeds" in text
    assert "no speeds" not in alone
    # such timings are not mixed with others
    refused = CliRunner().invoke(app, [str(each) for each in (*tasks, out)])
    assert "shared=True (now None)" in refused.output + str(refused.exception)
    before = next(out.rglob("samples.jsonl")).read_bytes()
    bench(out, "--ray", "local", "--workers", 2)  # nothing is left to do
    assert next(out.rglob("samples.jsonl")).read_bytes() == before


def test_answers_of_workers_of_which_one_is_killed_are_those_of_one_process(
    ray: Any, local: Where, model: Path, tmp_path: Path, caplog: Any
) -> None:
    load = partial(mmspec.load, str(model), drafter="none")
    options, questions = AnswerOptions(max_new_tokens=12, batch=2, seed=5), Miniworld("test", 20)
    pipe = load()
    here = collect(pipe, questions, options, tmp_path / "here", "it")
    there = tmp_path / "there"
    with (
        a_worker_killed(ray, lambda: any(there.glob("0*.jsonl"))) as gone,
        Cluster(local, load) as cluster,
    ):
        assert collect(pipe, questions, options, there, "it", cluster) == here
    assert len(gone) == 1
    assert "a worker was lost" in caplog.text
    for file in sorted((tmp_path / "here").iterdir()):
        assert (there / file.name).read_bytes() == file.read_bytes()
    with Cluster(local, lambda: pytest.fail("nothing is missing")) as idle:
        assert collect(pipe, questions, options, there, "it", idle) == here


def test_workers_are_gone_before_a_drafter_learns(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = mmspec.load(model, drafter="none")
    told: list[str] = []

    class Noted(Here):
        def map(self, *given: Any) -> Iterator[tuple[int, Any]]:
            told.append("answers")
            return super().map(*given)

        def __exit__(self, *error: object) -> None:
            told.append("gone")

    def learn(*given: object) -> None:
        told.append("learns")
        raise KeyboardInterrupt

    monkeypatch.setattr("mmspec.training.drafter.train", learn)
    course = Course(questions=4, held_out=1, answers=AnswerOptions(max_new_tokens=8, batch=2))
    with pytest.raises(KeyboardInterrupt):
        train_drafters(
            pipe, [MedusaRecipe(levels=1)], course, [tmp_path / "out"], tmp_path / "run", "tiny", Noted(pipe)
        )
    assert told == ["answers", "gone", "learns"]


def test_options_mean_a_cluster_or_this_process(ray: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="--workers belongs to --ray"):
        read_where(None, 2)
    assert read_where("local", 3) == Where("local", 3)
    assert read_where(None, 0) is None
    monkeypatch.setattr("mmspec.training.processes.group", lambda: SimpleNamespace(num_processes=2))
    refused = CliRunner().invoke(train, ["drafter", "--ray", "local"])
    assert isinstance(refused.exception, InputError)
    assert "take one of them" in str(refused.exception)
