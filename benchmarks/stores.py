"""The memory of the stores that drafters copy from, under many requests: entries and bytes against their bound.

Requests are replayed, not decoded: questions and answers of the synthetic world, as ids of the model's tokenizer, pass
the drafter round by round as if a target had said them, so that every draft is made and every answer is remembered.
Three rows: suffix decoding in each request's own text, suffix decoding with a store across requests, and retrieval from
a datastore of other answers. Bytes are measured in three ways: what the store says of itself, the size of all objects
that it reaches, and what the interpreter has allocated since it was made (tracemalloc).
"""

from __future__ import annotations

import gc
import random
import sys
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from typing import Any

import torch

from mmspec.benchmarks.machine import conditions
from mmspec.benchmarks.tables import aligned, number
from mmspec.contract import Accepted, Draft, Drafter, State, Verified
from mmspec.drafters.datastore import Datastore
from mmspec.drafters.history import History
from mmspec.drafters.retrieval import Retrieval
from mmspec.drafters.suffix import Suffix, SuffixStore
from mmspec.errors import check_least
from mmspec.miniworld.language import questions
from mmspec.miniworld.scenes import draw_facts
from mmspec.progress import progress
from mmspec.sampling import Sampler, Sampling

SLACK = 1 << 18
"""Bytes beside the tokens: the objects around the arrays, and what the interpreter keeps for itself."""
SUFFIX_BYTES, DATASTORE_BYTES = 28, 8
"""Bytes per token that the stores promise at most."""
WARM = 20
"""Requests before the interpreter's memory is looked at."""
HEAD = ["store", "requests", "tokens", "entries", "bytes", "reached", "allocated", "bound", "tokens/round"]

Request = tuple[list[int], list[int]]
"""The ids of a prompt and of its answer."""


@dataclass(frozen=True)
class StoreSettings:
    """What is replayed. model: whose tokenizer. max_tokens: of the store, and of the datastore. points: lines of the
    table per store."""

    model: str
    requests: int = 10_000
    max_tokens: int = 1 << 16
    points: int = 10
    seed: int = 0

    def __post_init__(self) -> None:
        check_least(self, "requests")
        check_least(self, "max_tokens", least=2)
        check_least(self, "points")


@dataclass(frozen=True)
class Point:
    """A store after some requests. Bytes are the most that was seen at any request since the last point.

    tokens: ids of answers so far. entries: tokens that the store holds. counted, reached, allocated: see above; the
    last one is taken at the point alone. bound: the promised bytes. per_round: tokens of an answer per round of the
    replay, since the last point.
    """

    store: str
    requests: int
    tokens: int
    entries: int
    counted: int
    reached: int
    allocated: int
    bound: int
    per_round: float

    @property
    def within(self) -> bool:
        """Whether nothing that was measured is above the bound."""
        return self.counted <= self.bound and max(self.reached, self.allocated) <= self.bound + SLACK


@dataclass(frozen=True)
class Kept:
    """What a drafter keeps at a moment. held: the object. entries: its tokens. counted, bound: bytes."""

    held: Any
    entries: int
    counted: int
    bound: int


NOTHING = Kept(None, 0, 0, 0)


def said(seed: str, encode: Callable[[str], list[int]]) -> Iterator[Request]:
    """Questions of the synthetic world and their answers, without end."""
    index = 0
    while True:
        facts = draw_facts(random.Random(f"{seed}/{index}/facts"))
        for qa in questions(facts, random.Random(f"{seed}/{index}/language")):
            yield encode(qa.question), encode(qa.answer)
        index += 1


def replay(drafter: Drafter, sampler: Sampler, request: Request) -> tuple[int, Any]:
    """The rounds that an answer takes if the target says exactly it, and the drafter on the request, as it was left."""
    prompt, answer = request
    count = torch.ones(1, dtype=torch.long)
    state = State([prompt + answer[:1]], [len(answer) == 1], count, count * len(prompt), [len(answer)])
    drafting, rounds, at = drafter.begin(state, sampler, "point"), 0, 1
    verified = Verified(torch.empty(1, 0, 0))  # nothing was: the answer is known
    while True:
        state.pending, state.room = torch.tensor(answer[at - 1 : at]), len(answer) - at - 1
        draft = drafting.propose(state)
        path = followed(draft, answer[at:-1])
        emitted = answer[at : at + len(path)]
        state.ids[0] += emitted
        at += len(emitted)
        state.done[0] = at >= len(answer)
        drafting.observe(state, draft, verified, Accepted(count, count, count, None, [path], [emitted]))
        rounds += 1
        if state.done[0]:
            return rounds, drafting


def followed(draft: Draft, text: Sequence[int]) -> list[int]:
    """The nodes of a draft, from node 0 down, that `text` goes along."""
    parents, tokens = draft.parents[0].tolist(), draft.tokens[0].tolist()
    below = {(parent, token): node for node, (parent, token) in enumerate(zip(parents, tokens, strict=True)) if node}
    path = [0]
    for token in text:
        node = below.get((path[-1], token))
        if node is None:
            break
        path.append(node)
    return path


def reached_bytes(*roots: Any) -> int:
    """The size of all objects that some objects reach through attributes and containers, each counted once."""
    seen: set[int] = set()
    total, todo = 0, list(roots)
    while todo:
        item = todo.pop()
        if id(item) in seen or isinstance(item, type):
            continue
        seen.add(id(item))
        total += sys.getsizeof(item)
        if isinstance(item, dict):
            todo += [*item.keys(), *item.values()]
        elif isinstance(item, list | tuple | set | frozenset):
            todo += item
        todo.append(getattr(item, "__dict__", None))
    return total


def own_text(drafter: Suffix, drafting: Any) -> Kept:
    """What a request's own text takes while it is answered."""
    own: list[History] = drafting.own
    bound = SUFFIX_BYTES * sum(history.capacity for history in own)
    return Kept(own, sum(map(len, own)), sum(history.nbytes for history in own), bound)


def across(drafter: Suffix, drafting: Any) -> Kept:
    """What the answers to earlier requests take."""
    store: Any = drafter.store
    return Kept(store, len(store.history), store.nbytes, SUFFIX_BYTES * store.history.capacity)


def looked_up(drafter: Retrieval, drafting: Any) -> Kept:
    """What a datastore takes."""
    store = drafter.datastore
    return Kept(store, len(store.tokens), store.nbytes, DATASTORE_BYTES * len(store.tokens))


def watch(
    name: str, make: Callable[[], Any], kept: Callable[[Any, Any], Kept], asked: list[Request], points: int
) -> list[Point]:
    """Replay the requests through a new drafter, and look at what it keeps after each of them."""
    sampler = Sampler(Sampling(), 1, torch.device("cpu"))
    warm = make()
    for request in asked[:WARM]:  # what is made once, by whatever, is not the store's
        replay(warm, sampler, request)
    del warm
    gc.collect()
    tracemalloc.start()
    try:
        drafter, found = make(), []
        tokens = rounds = emitted = reached = 0
        most = NOTHING
        for count, request in enumerate(progress(asked, desc=name, unit="request"), 1):
            more, drafting = replay(drafter, sampler, request)
            rounds, emitted, tokens = rounds + more, emitted + len(request[1]) - 1, tokens + len(request[1])
            now = kept(drafter, drafting)
            reached = max(reached, reached_bytes(now.held))
            most = max(most, replace(now, held=None), key=lambda one: (one.counted, one.entries))
            del drafting, now  # the request is over: what is still allocated is the store's
            if count * points // len(asked) > (count - 1) * points // len(asked):
                gc.collect()
                allocated, speed = tracemalloc.get_traced_memory()[0], emitted / max(rounds, 1)
                sizes = (most.entries, most.counted, reached, allocated, most.bound)
                found.append(Point(name, count, tokens, *sizes, speed))
                rounds = emitted = reached = 0
                most = NOTHING
        return found
    finally:
        tracemalloc.stop()


@dataclass
class StoreReport:
    """What a run says."""

    settings: StoreSettings
    points: list[Point]

    def summary(self) -> dict[str, Any]:
        """Everything, for JSON."""
        return {
            "settings": asdict(self.settings),
            **conditions(),
            "slack_bytes": SLACK,
            "within": all(point.within for point in self.points),
            "points": [{**asdict(point), "within": point.within} for point in self.points],
        }

    def text(self) -> str:
        """Everything, for people."""
        rows = [HEAD]
        for each in self.points:
            sizes = (each.requests, each.tokens, each.entries, each.counted, each.reached, each.allocated, each.bound)
            rows.append([each.store, *map(str, sizes), number(each.per_round)])
        wrong = [point for point in self.points if not point.within]
        verdict = f"{len(wrong)} points are above the bound" if wrong else "no store was ever above its bound"
        notes = f"bytes that are reached or allocated may be {SLACK} above it, for the objects around the tokens"
        return f"{self.settings.model}, {self.settings.requests} requests\n\n{aligned(rows)}\n\n{verdict}; {notes}"


def run_stores(settings: StoreSettings, encode: Callable[[str], list[int]]) -> StoreReport:
    """Replay the requests through every store. encode: text -> ids."""
    asked = list(islice(said(f"stores/{settings.seed}", encode), settings.requests))
    documents: list[list[int]] = []
    room = settings.max_tokens
    for _, answer in said(f"stores/documents/{settings.seed}", encode):
        room -= len(answer) + 1  # a separator stands behind each
        if room < 0 and documents:
            break
        documents.append(answer)
    stores: list[tuple[str, Callable[[], Any], Callable[[Any, Any], Kept]]] = [
        ("suffix, own text", Suffix, own_text),
        ("suffix, store", lambda: Suffix(store=SuffixStore(settings.max_tokens)), across),
        ("retrieval", lambda: Retrieval(Datastore.build(documents)), looked_up),
    ]
    points = [point for name, make, kept in stores for point in watch(name, make, kept, asked, settings.points)]
    return StoreReport(settings, points)
