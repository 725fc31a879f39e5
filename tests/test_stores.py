"""What suffix and retrieval stores keep: never more than their bound, oldest out first, and nobody else's answers."""

import gc
import json
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
import toys
from typer.testing import CliRunner

from mmspec.benchmarks import stores
from mmspec.benchmarks.cli import app
from mmspec.benchmarks.stores import StoreSettings, across, reached_bytes, replay, run_stores, watch
from mmspec.drafters.datastore import Datastore
from mmspec.drafters.history import History
from mmspec.drafters.hybrid import Hybrid
from mmspec.drafters.retrieval import Retrieval
from mmspec.drafters.suffix import Suffix, SuffixStore
from mmspec.errors import InputError
from mmspec.sampling import Sampler, Sampling

OBJECTS = 4000
"""Bytes of the few objects around the arrays of a store."""
PASSING = 16_000
"""Bytes that this test itself may have allocated meanwhile; two hundred answers in Python objects take twice that."""
SAMPLER = Sampler(Sampling(), 1, torch.device("cpu"))


def encode(text: str, words: dict[str, int] = {}) -> list[int]:  # noqa: B006  ids are given out once
    """A word is an id."""
    return [words.setdefault(word, len(words)) for word in text.split()]


@pytest.mark.parametrize("capacity", [2, 3, 7, 64, 100, 4096])
def test_the_promised_bytes_per_token_hold_for_every_size(capacity: int) -> None:
    store = SuffixStore(capacity)
    assert store.nbytes <= 28 * capacity
    assert store.nbytes <= reached_bytes(store) <= 28 * capacity + OBJECTS


def test_a_small_store_keeps_the_newest_and_never_exceeds_its_bound() -> None:
    """Answers of three ids and their end, into room for sixteen of them: looked at after every one."""
    gc.collect()
    tracemalloc.start()
    try:
        store = SuffixStore(64)
        size, made = reached_bytes(store), tracemalloc.get_traced_memory()[0]
        assert made <= 28 * 64 + OBJECTS
        for last in range(200):
            answer = [3 * last, 3 * last + 1, 3 * last + 2]
            tracemalloc.reset_peak()
            store.add(answer)
            assert tracemalloc.get_traced_memory()[1] <= made + PASSING
            assert reached_bytes(store) <= size + sys.getsizeof(2**30)  # the counter is a number that grows
            known = range(max(0, last - 20), last + 1)
            found = [i for i in known if store.history.find([3 * i, 3 * i + 1], 1, 8, 64) == (2, [[3 * i + 2]])]
            assert found == [i for i in known if i > last - 16]
    finally:
        tracemalloc.stop()


def test_many_requests_stay_within_the_bound_and_the_report_says_so() -> None:
    settings = StoreSettings("words", requests=120, max_tokens=300, points=3)
    report = run_stores(settings, encode)
    summary = json.loads(json.dumps(report.summary()))
    assert summary["within"] is True
    assert "no store was ever above its bound" in report.text()
    by = {name: [point for point in report.points if point.store == name] for name in ("suffix, store", "retrieval")}
    assert [point.requests for point in by["suffix, store"]] == [40, 80, 120]
    assert by["suffix, store"][-1].tokens > 3 * 300  # the bound was met often
    assert [point.entries for point in by["suffix, store"]] == [300] * 3
    assert len({(point.entries, point.counted, point.bound) for point in by["retrieval"]}) == 1
    assert 200 < by["retrieval"][0].entries <= 300
    own = [point for point in report.points if point.store == "suffix, own text"]
    assert all(point.bound == 28 * point.entries or point.entries < 300 for point in own)
    assert by["suffix, store"][-1].per_round > own[-1].per_round >= 1  # what was said before is said again


def test_a_store_that_hoards_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    class Hoard(SuffixStore):
        kept: list[Any]

        def add(self, ids: Any) -> None:
            self.kept = [*getattr(self, "kept", []), bytes(10_000)]
            super().add(ids)

    monkeypatch.setattr(stores, "SLACK", 1 << 17)
    asked = [(encode("what is it ?"), encode(f"it is the number {i} of them")) for i in range(60)]
    honest = watch("honest", lambda: Suffix(store=SuffixStore(100)), across, asked, 2)
    assert all(point.within for point in honest)
    hoarding = watch("hoard", lambda: Suffix(store=Hoard(100)), across, asked, 2)
    assert hoarding[0].counted == honest[0].counted  # its own word is not enough
    assert [point.within for point in hoarding] == [False, False]
    assert hoarding[-1].reached > 500_000
    assert hoarding[-1].allocated > 500_000


def test_a_replayed_answer_takes_the_rounds_that_its_target_would_take() -> None:
    new = list(range(40, 60))
    assert replay(Suffix(), SAMPLER, ([1, 2, 3], new))[0] == len(new) - 1  # nothing to copy
    copied, drafting = replay(Suffix(length=4), SAMPLER, ([*new, 7], [41, *new[2:12]]))
    assert copied == 3  # two copies and the next, four and the next, and what is left
    assert drafting.own[0].nbytes <= 28 * drafting.own[0].capacity
    assert replay(Suffix(), SAMPLER, ([1], [5]))[0] == 1


def test_a_datastore_is_never_written_to() -> None:
    documents = [[40, 41, 42, 43, 44], [50, 51, 52]]
    store = Datastore.build(documents)
    before = [part.copy() for part in (store.tokens, store.order)]
    drafter = Retrieval(store, shortest=1)
    for start in range(20):
        replay(drafter, SAMPLER, ([start, 40], [41, 42, 43, 60 + start]))
    assert all(np.array_equal(one, other) for one, other in zip(before, (store.tokens, store.order), strict=True))
    assert store.nbytes == 8 * (len(documents) + sum(map(len, documents)))


def proposals(drafter: Any, target: Any, inputs: dict[str, Any], row: int = 0) -> list[list[int]]:
    """What was drafted for a row, round by round."""
    seen: list[list[int]] = []
    begin = drafter.begin

    def watched(state: Any, sampler: Any, kind: Any) -> Any:
        drafting = begin(state, sampler, kind)
        propose = drafting.propose

        def noted(now: Any) -> Any:
            draft = propose(now)
            real = [True] * draft.size if draft.valid is None else draft.valid[row].tolist()
            if not now.done[row]:
                seen.append([token for token, here in zip(draft.tokens[row].tolist(), real, strict=True) if here])
            return draft

        drafting.propose = noted
        return drafting

    drafter.begin = watched
    toys.answer(target, drafter, inputs, 24)
    del drafter.begin
    return seen


@pytest.mark.parametrize("make", [Suffix, lambda: Hybrid(Suffix(), least=2)], ids=["suffix", "hybrid"])
def test_users_of_one_drafter_draft_from_their_own_text_alone(make: Any) -> None:
    """Neither an earlier request nor another row of the same batch is copied from, unless a store was passed."""
    target = toys.target_of(toys.llama())
    mine, theirs = [3, 50, 31, 77, 40, 50], [60, 50, 31, 77, 40, 31]

    def asked(*rows: list[int]) -> dict[str, Any]:
        return {"input_ids": torch.tensor(rows)}

    alone = proposals(make(), target, asked(mine))
    shared = make()
    proposals(shared, target, asked(theirs))
    assert proposals(shared, target, asked(mine)) == alone
    assert proposals(make(), target, asked(mine, theirs)) == alone
    told = Suffix(store=SuffixStore(1000))
    first = proposals(told, target, asked(mine))
    assert proposals(told, target, asked(mine)) != first  # the test would see what is kept


def test_the_command_writes_what_it_prints(tmp_path: Path) -> None:
    folder = tiny.tiny_llama(tmp_path / "llama")
    told = (
        "stores",
        "--model",
        folder,
        "--requests",
        24,
        "--max-tokens",
        100,
        "--points",
        2,
        "--out",
        tmp_path / "out",
    )
    done = CliRunner().invoke(app, [*map(str, told)], catch_exceptions=True)
    assert done.exit_code == 0, repr(done.exception)
    assert done.stdout == (tmp_path / "out" / "table.txt").read_text()
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert [point["requests"] for point in summary["points"]] == [12, 24] * 3
    assert summary["within"]


@pytest.mark.parametrize("command", ["stores", "load", "dependence"])
def test_a_folder_that_cannot_be_written_is_told_before_the_long_part(command: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = CliRunner().invoke(app, [command, "--out", str(tmp_path / "file" / "out")], catch_exceptions=True)
    assert isinstance(done.exception, InputError)
    assert "cannot write to" in str(done.exception)


@pytest.mark.parametrize("name", ["requests", "max_tokens", "points"])
def test_sizes_that_measure_nothing_are_refused(name: str) -> None:
    with pytest.raises(InputError, match=name):
        StoreSettings("words", **{name: 0})


def test_a_history_counts_what_it_holds() -> None:
    history = History(4)
    assert len(history) == 0
    history.extend([1, 2, 3])
    assert len(history) == 3
    history.extend([4, 5])
    assert len(history) == 4
