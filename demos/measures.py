"""What a benchmark found, as the lines of a table, the bars of plots and JSON: the view model of its tab."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from mmspec.demos.measuring import PLAIN, Measured, Reply
from mmspec.demos.studio import Studio
from mmspec.intervals import bootstrap, speedups

HEAD = ("drafter", "S", "95 % interval", "tau", "accepted", "ms/token", "equal replies")
PLOTS = ("S", "tau", "accepted, %", "ms/token")
PARTS = ("above S", "below S", "not in it")
"""What stands where in the interval of S, from above, as Gradio stacks what it sees."""


@dataclass(frozen=True)
class Row:
    """What was measured of a drafter. speedup, low, high: S, decoding only, and its 95 % interval over requests.
    accepted: share of the drafted tokens. ms: per token, decoding only. equal: replies that are those of plain
    decoding. None stands for what cannot be said."""

    drafter: str
    lossless: bool
    replies: int
    speedup: float | None
    low: float | None
    high: float | None
    tau: float | None
    accepted: float | None
    ms: float | None
    equal: int


def rows(measured: Measured) -> list[Row]:
    """A row for each drafter that has replied, plain decoding first."""
    given = {name: [reply for reply in measured.replies if reply.drafter == name] for name in measured.drafters}
    return [row(measured.names[drafter], given[PLAIN], own) for drafter, own in given.items() if own]


def row(name: str, plain: Sequence[Reply], own: Sequence[Reply]) -> Row:
    """The row of a drafter. plain: the replies of plain decoding to the same requests, and maybe to one more."""
    seconds, tokens = np.sum([cost(reply) for reply in own], 0)
    costs = np.array([[*cost(slow), *cost(fast)] for slow, fast in zip(plain, own, strict=False)], dtype=float)
    speedup = known(float(speedups(costs.sum(0))))
    low, high = bootstrap(costs, speedups) if speedup is not None and own[0].drafter != PLAIN else (None, None)
    rounds = sum(len(reply.stats.accept_lengths) for reply in own if reply.stats.verifies)
    drafted = sum(reply.stats.drafted_tokens for reply in own)
    accepted = sum(sum(reply.stats.accept_lengths) for reply in own)
    return Row(
        drafter=name,
        lossless=all(reply.stats.lossless for reply in own),
        replies=len(own),
        speedup=speedup,
        low=low,
        high=high,
        tau=float(tokens / rounds) if rounds else None,
        accepted=accepted / drafted if drafted else None,
        ms=float(1000 * seconds / tokens) if tokens else None,
        equal=sum(reply.equal for reply in own),
    )


def cost(reply: Reply) -> tuple[float, int]:
    """Seconds and tokens after the prefill."""
    return reply.stats.decode_seconds, reply.stats.new_tokens - reply.stats.first


def known(value: float) -> float | None:
    """The number, None if it is none."""
    return value if math.isfinite(value) else None


def cells(measured: Measured) -> list[list[str]]:
    """The lines of a table with HEAD."""
    return [
        [
            each.drafter + ("" if each.lossless else " (lossy)"),
            told(each.speedup),
            "-" if each.low is None else f"{each.low:.2f} to {each.high:.2f}",
            told(each.tau),
            "-" if each.accepted is None else f"{100 * each.accepted:.0f} %",
            told(each.ms),
            f"{each.equal} of {each.replies}" + judged(measured, each),
        ]
        for each in rows(measured)
    ]


def told(value: float | None) -> str:
    """A number, or a dash for what cannot be said."""
    return "-" if value is None else f"{value:.2f}"


def judged(measured: Measured, row: Row) -> str:
    """Why replies differ, if they do."""
    if row.equal == row.replies:
        return ""
    if measured.exact:
        return ": AN ERROR"
    if not row.lossless:
        return ", lossy"
    return ", rounding" if measured.invariant else ", same law"


def bars(measured: Measured) -> dict[str, list[tuple[str, str, float]]]:
    """Of every plot its bars: drafter, part and height. The parts of S stand one on the other, with no height where
    there is no interval: Gradio's plots keep the colours of the parts that they see first."""
    found: dict[str, list[tuple[str, str, float]]] = {plot: [] for plot in PLOTS}
    for each in rows(measured):
        if each.speedup is not None:
            low, high = (each.speedup, each.speedup) if each.low is None or each.high is None else (each.low, each.high)
            heights = high - each.speedup, each.speedup - low, low
            found["S"] += [(each.drafter, part, height) for part, height in zip(PARTS, heights, strict=True)]
        percent = None if each.accepted is None else 100 * each.accepted
        for plot, value in zip(PLOTS[1:], (each.tau, percent, each.ms), strict=True):
            found[plot] += [] if value is None else [(each.drafter, "", value)]
    return found


def report(studio: Studio, measured: Measured) -> dict[str, Any]:
    """Everything, for JSON; of files and folders nothing but their names."""
    from mmspec.inventory import info

    first, own = asdict(measured.wishes[0]), ("prompt", "picture", "drafter")
    return {
        "model": studio.name,
        **{key: value for key, value in info().items() if key in ("mmspec", "packages", "device", "threads")},
        "asked": {key: value for key, value in first.items() if key not in own},
        "prompts": [wish.prompt for wish in measured.wishes],
        "exact": measured.exact,
        "drafters": [asdict(each) for each in rows(measured)],
        "replies": [
            {
                "request": reply.request,
                "drafter": measured.names[reply.drafter],
                "equal": reply.equal,
                "token_ids": reply.token_ids,
                **reply.stats.as_dict(),
            }
            for reply in measured.replies
        ],
    }
