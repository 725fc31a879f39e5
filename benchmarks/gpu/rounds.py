"""Stage rounds: complete rounds on true-size models with random weights and synthetic acceptance.

The draft is that of an EAGLE head of true size; its tree is a static one, because random weights have no confidence and
dynamic trees would stay flat. Scores, acceptance and commit are the real ones; only how many tokens are accepted is
made up (`synthetic.py`). A round hardly takes longer or shorter for it, so one measurement gives S for every tau.
Answers of two lengths tell what one more round takes from what every answer takes once, such as the drafter's reading
of the prompt. Every line is synthetic: text and quality mean nothing. At the end the profiler looks at a plain step and
at rounds (`trace.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from statistics import median
from typing import Any

import torch
from transformers import LlamaConfig, PreTrainedModel

from mmspec import Pipeline
from mmspec.benchmarks.gpu import trace
from mmspec.benchmarks.gpu.baselines import COMPILED, OWN
from mmspec.benchmarks.gpu.bench import DECODING, Bench, found_before, pipeline, sized
from mmspec.benchmarks.gpu.book import Row
from mmspec.benchmarks.gpu.clock import settle
from mmspec.benchmarks.gpu.floors import draft_seconds, step_seconds
from mmspec.benchmarks.gpu.models import Spec, build, prompt_of
from mmspec.benchmarks.gpu.sweep import verify_ms
from mmspec.benchmarks.gpu.synthetic import TABLES, Synthetic
from mmspec.benchmarks.gpu.trace import traced
from mmspec.benchmarks.gpu.waiting import Waiting
from mmspec.contract import Needs
from mmspec.drafters.eagle import Eagle1, EagleHead
from mmspec.stats import Stats

INTRO = (
    "SYNTHETIC acceptance on random weights of true size: no line says anything about a trained drafter. S(tau) is tau "
    "times the time of a plain step over that of a round; the cap is what verification and draft steps at their floors "
    "would leave of tau. c_v is the time of a verification of a draft over that of one node. round_ms, from which S "
    "and all shares follow, is the time of a whole answer over its rounds, and holds a part of what an answer takes "
    "once, such as the drafter's reading of the prompt. Shorter answers tell the two apart: one more round is the "
    "slope between the two lengths, per answer what is left beside all rounds at that slope. The parts of a round are "
    "those of other answers, in which the host waits after drafting: what the host does meanwhile is in `other`. Times "
    "are medians over answers that take turns. The plain "
    "step is the fastest of our loop's and, if the stage baselines ran in the same folder, of all its ways."
)
NODES = 32
DEPTHS = (3, 5, 7)
TAUS = (2, 3, 4, 5, 6)
PLAYED = 3.0
"""tau of the rounds that are timed."""
SHORTER = 4
"""How many times fewer tokens the shorter answers have."""


def run(bench: Bench) -> None:
    """A record per model, depth and law; and what a plain step and the last of these rounds did."""
    settle(bench.device)
    depths = bench.settings.depths or ((3,) if bench.small else DEPTHS)
    before = found_before("baselines", bench.folder, bench.settings, DECODING)
    for spec in bench.specs:
        keys = {f"synthetic: {spec.name}, depth {depth}, {law}": (depth, law) for depth in depths for law in TABLES}
        looks = {f"trace: {spec.name}, {kind}": kind != "plain step" for kind in ("plain step", f"depth {depths[-1]}")}
        if not bench.missing(*keys, *looks):
            continue
        with bench.freed():
            pipes = cache(partial(prepared, bench, spec, depths))
            plain = cache(partial(plain_ms, bench, spec, pipes, before.get(spec.name, {}).get("ms", {})))
            for key, (depth, law) in keys.items():
                bench.record(key, partial(measured, bench, spec, pipes, plain, depth, law))
            for key, drafts in looks.items():
                bench.record(key, partial(seen, bench, spec, pipes, depths[-1] if drafts else 0))
            del pipes, plain


def prepared(bench: Bench, spec: Spec, depths: tuple[int, ...]) -> dict[str, Pipeline]:
    """The pipelines of a model. With a gate, all that the records will run is compiled, and the turn has come."""
    pipes = pipelines(bench, partial(build, spec, bench.device, bench.dtype))
    if bench.gate is None:
        return pipes
    ids = prompt_of(spec, spec.prompt, bench.device, bench.settings.rows)
    for pipe in pipes.values():
        sized(pipe, (1,)).generate(input_ids=ids, max_new_tokens=8)
    for depth in depths:
        pipe = drafting(bench, spec, list(pipes.values())[-1], depth, "even")
        pipe.generate(input_ids=ids, max_new_tokens=bench.settings.tokens)
    bench.turn()
    return pipes


def seen(bench: Bench, spec: Spec, pipes: Callable[[], dict[str, Pipeline]], depth: int) -> dict[str, Any]:
    """What a round of that depth does, or with none a plain step."""
    pipe = list(pipes().values())[-1]
    if depth:
        return traced(bench, spec, drafting(bench, spec, pipe, depth, "even"), depth)
    return traced(bench, spec, sized(pipe, (1,)), 0)


def head_like(model: PreTrainedModel, words: int | None = None) -> EagleHead:
    """An EAGLE head of random weights whose layer has the shape of the model's. words: how many it drafts; all."""
    config = model.config
    names = (
        "hidden_size",
        "intermediate_size",
        "num_attention_heads",
        "num_key_value_heads",
        "max_position_embeddings",
    )
    shape = {name: getattr(config, name) for name in names}
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    with torch.device(model.device):
        torch.manual_seed(1)
        net = EagleHead(LlamaConfig(**shape, head_dim=head_dim, num_hidden_layers=1)).to(model.dtype)
        if words is not None:
            net.draft_ids = torch.arange(words)
    return net


def pipelines(bench: Bench, build: Callable[[], PreTrainedModel]) -> dict[str, Pipeline]:
    """Our loop, plain and compiled, on one model; one of each serves all its records, so that nothing is compiled
    twice."""
    model = build()
    return {COMPILED if compiled else OWN: pipeline(model, compiled=compiled) for compiled in bench.kinds.values()}


def node_count(bench: Bench) -> int:
    """Nodes of a draft, node 0 included: as many as ride along for the price of one."""
    return 8 if bench.small else NODES if bench.settings.rows <= 4 else NODES // 2


def drafting(bench: Bench, spec: Spec, pipe: Pipeline, depth: int, law: str) -> Pipeline:
    """The pipeline with an EAGLE head of true size and synthetic acceptance."""
    nodes, rows = node_count(bench), bench.settings.rows
    head = head_like(pipe.target.model, spec.draft_vocabulary)
    table = TABLES[law](min(PLAYED, depth + 1), depth, rows).to(bench.device)
    drafter = Eagle1(head, depth=depth, width=8, top_k=8, total=nodes)
    return sized(pipe, (nodes,)).with_drafter(drafter, "own", Synthetic(table))


def plain_ms(
    bench: Bench, spec: Spec, pipes: Callable[[], dict[str, Pipeline]], before: dict[str, Any]
) -> dict[str, float]:
    """Milliseconds of a plain step: of our loop, measured here, and of the stage baselines, if it ran.

    Args: before: of the model, what that stage found.
    """
    found = {f"{name} (baselines)": taken["median"] for name, taken in before.items()}
    ways = {name: sized(pipe, (1,)) for name, pipe in pipes().items()}
    whole = [(pipe, bench.settings.tokens) for pipe in ways.values()]
    for name, each in zip(ways, answered(bench, spec, *whole), strict=True):
        found[name] = 1000 * median(stats.decode_seconds / (stats.new_tokens - 1) for stats in each)
    return found


def answered(bench: Bench, spec: Spec, *asked: tuple[Pipeline, int]) -> list[list[Stats]]:
    """By pipeline and number of tokens the accounts of `repeats` answers (their first rows), after one that warmed
    everything up. All of them, of the same numbers of nodes, take turns, so that what slows the machine slows all."""
    ids = prompt_of(spec, spec.prompt, bench.device, bench.settings.rows)

    def told(pipe: Pipeline, tokens: int) -> Stats:
        out = pipe.generate(input_ids=ids, max_new_tokens=tokens)
        return out.stats if bench.settings.rows == 1 else out[0].stats

    for each in asked:
        told(*each)
    settle(bench.device)  # while it compiled, the card was idle
    turns = [[told(*each) for each in asked] for _ in range(bench.settings.repeats)]
    return [list(each) for each in zip(*turns, strict=True)]


def per_round(answers: list[Stats], part: str) -> float:
    """Milliseconds of a part of a round, or of `decode`, which is all of it: the median over answers."""
    return 1000 * median(getattr(stats, f"{part}_seconds") / len(stats.accept_lengths) for stats in answers)


def apart(whole: list[Stats], shorter: list[Stats]) -> tuple[float, float] | tuple[None, None]:
    """Milliseconds of one more round, and those that an answer takes beside its rounds: medians over pairs of answers
    of two lengths. None where the shorter one has as many rounds."""
    pairs = [
        (len(one.accept_lengths), one.decode_seconds, len(other.accept_lengths), other.decode_seconds)
        for one, other in zip(whole, shorter, strict=True)
    ]
    if any(rounds == fewer for rounds, _, fewer, _ in pairs):
        return None, None
    slope = median((seconds - less) / (rounds - fewer) for rounds, seconds, fewer, less in pairs)
    return 1000 * slope, 1000 * median(seconds - rounds * slope for rounds, seconds, *_ in pairs)


def measured(
    bench: Bench,
    spec: Spec,
    pipes: Callable[[], dict[str, Pipeline]],
    timed: Callable[[], dict[str, float]],
    depth: int,
    law: str,
) -> dict[str, Any]:
    """The time of a round and of its parts, and what follows for S.

    Args: pipes, timed: give our loops and the milliseconds of plain steps, made when first asked for.
    """
    plain = timed()
    rows = bench.settings.rows
    nodes = node_count(bench)
    tau = min(PLAYED, depth + 1)
    pipe = drafting(bench, spec, list(pipes().values())[-1], depth, law)
    tokens, waits = bench.settings.tokens, pipe.with_drafter(Waiting(pipe.drafter, bench.device), "own")
    asked = (pipe, tokens), (pipe, max(2, tokens // SHORTER)), (waits, tokens)
    whole, shorter, split = answered(bench, spec, *asked)
    verify = {
        count: verify_ms(bench, spec, sized(pipe, (count,)).target, count, needs)[1]
        for count, needs in ((1, Needs()), (nodes, pipe.drafter.needs))
    }
    base = min(plain, key=lambda name: plain[name])
    round_ms = per_round(whole, "decode")
    further_ms, answer_ms = apart(whole, shorter)
    reached = median(stats.tau for stats in whole)
    dims, length = spec.dims, spec.prompt + bench.settings.tokens // 2
    drafted = depth * draft_seconds(dims, length, bench.card, spec.draft_vocabulary, rows)
    floor = step_seconds(dims, nodes, length, bench.card, rows) + drafted
    plain_floor = step_seconds(dims, 1, length, bench.card, rows)
    share, limit = plain[base] / round_ms, plain_floor / floor
    return {
        "synthetic": True,
        "model": spec.name,
        "prompt": spec.prompt,
        "rows": rows,
        "depth": depth,
        "nodes": nodes,
        "law": law,
        "drafted_words": spec.draft_vocabulary,
        "plain_ms": plain,
        "base": base,
        "base_ms": plain[base],
        "plain_floor_ms": 1000 * plain_floor,
        "round_ms": round_ms,
        "further_ms": further_ms,
        "answer_ms": answer_ms,
        "verify_alone_ms": verify[nodes],
        "c_v": verify[nodes] / verify[1],
        **{f"{part}_ms": per_round(split, part) for part in ("draft", "verify", "other")},
        "floor_ms": 1000 * floor,
        "tau_asked": tau,
        "tau_reached": reached,
        "tokens_s": 1000 * rows * reached / round_ms,
        "efficiency": share,
        "cap": limit,
        "share_of_cap": share / limit,
        "speedup": {str(tau): tau * share for tau in TAUS if tau <= depth + 1},
    }


def tables(records: dict[str, dict[str, Any]]) -> list[tuple[str, list[Row]]]:
    """Rounds and their parts; S by tau; what the profiler saw."""
    lines = {key: record for key, record in records.items() if record.get("synthetic")}
    traces = {key: record for key, record in records.items() if "longest" in record}
    found: list[tuple[str, list[Row]]] = []
    if lines:
        fields = {
            "base_ms": "base_ms",
            "round_ms": "round_ms",
            "further_ms": "one more round, ms",
            "answer_ms": "per answer, ms",
            "draft_ms": "draft_ms",
            "verify_ms": "verify_ms",
            "other_ms": "other_ms",
            "floor_ms": "floor_ms",
            "c_v": "c_v",
            "tau_reached": "tau_reached",
            "tokens_s": "tokens_s",
        }
        rows: list[Row] = [["synthetic", *fields.values(), "plain floor %", "floor %", "S/tau", "cap", "of the cap"]]
        for key, record in lines.items():
            shares = [100 * record["plain_floor_ms"] / record["base_ms"], 100 * record["floor_ms"] / record["round_ms"]]
            ends = [*shares, record["efficiency"], record["cap"], record["share_of_cap"]]
            rows.append([key, *(record.get(name) for name in fields), *ends])
        found.append(("Rounds (synthetic)", rows))
        rows = [["synthetic", *(f"S at tau {tau}" for tau in TAUS)]]
        rows += [[key, *(record["speedup"].get(str(tau)) for tau in TAUS)] for key, record in lines.items()]
        found.append(("Speed-up (synthetic)", rows))
    if traces:
        found += trace.tables(traces)
    return found
