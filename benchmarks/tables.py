"""Figures as plain text with aligned columns."""

from __future__ import annotations

import math
from collections.abc import Sequence

from mmspec.benchmarks.accuracy import Judged
from mmspec.benchmarks.figures import HF, OURS, Figures, scores
from mmspec.benchmarks.gauges import LIMITS, Gauges
from mmspec.intervals import LEAST_UNITS

MISSING = "-"
REFUSED = (
    "S is not given: our AR loop (drafter 'none') and, where it serves the model, HF generate must run on the same "
    "prompts; add none to the methods."
)
ALONE = "S is against our AR loop alone: HF generate is not run on this model."
FEW = f"No 95 % intervals: they take {LEAST_UNITS} prompts or more (where prompts are batched: as many batches)."
SHARED = (
    "Several workers answered at once: where they shared a machine they slowed each other down, so times and S are no "
    "speeds. Replies, tau and scores are those of a run on one worker."
)
NAMED = {OURS: "our AR loop", HF: "HF generate"}
SPEED = ["tau", "S", "95 %", "S whole", "S/tau", "draft", "verify", "other", "= AR", "= HF"]
"""S whole: with prefill. = AR, = HF: replies with the same tokens."""
HEAD = ["method", "ms/token", "calls", *SPEED, "MB", "x AR"]
"""calls: verifications per reply. MB: peak memory."""


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Rows of equal length as text: the first column flush left, the others flush right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]

    def line(row: Sequence[str]) -> str:
        first, *rest = (cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        return "  ".join([row[0].ljust(len(first)), *rest]).rstrip()

    return "\n".join(map(line, rows))


def number(value: float | None, digits: int = 2) -> str:
    """The number, or a dash for what is not known."""
    return MISSING if value is None else f"{value:.{digits}f}"


def percent(value: float | None) -> str:
    """A share as a whole percentage."""
    return MISSING if value is None else f"{100 * value:.0f}%"


def whole_percent(value: float | None) -> str:
    """A share as a whole percentage that is cut down, so that 100% are all."""
    return MISSING if value is None else f"{math.floor(100 * value + 1e-9)}%"


def span(low: float | None, high: float | None, digits: int = 2, to: str = "-") -> str:
    """An interval, or a dash for one that is not known. to: stands between its ends, which may be negative."""
    return MISSING if low is None or high is None else f"{low:.{digits}f}{to}{high:.{digits}f}"


def change(low: float | None, high: float | None, digits: int = 2) -> str:
    """An interval of a difference."""
    return MISSING if low is None or high is None else f"{low:+.{digits}f} to {high:+.{digits}f}"


def named(figures: Figures) -> str:
    """The method, and whether it is lossy."""
    return figures.method + ("" if figures.lossless else " (lossy)")


def speed_cells(figures: Figures) -> list[str]:
    """What stands under SPEED."""
    return [
        number(figures.tau),
        number(figures.speedup) + ("!" if figures.suspicious else ""),
        span(figures.speedup_low, figures.speedup_high),
        number(figures.end_to_end),
        number(figures.efficiency),
        percent(figures.draft),
        percent(figures.verify),
        percent(figures.other),
        whole_percent(figures.equal_ours),
        whole_percent(figures.equal_hf),
    ]


def speed_notes(found: Sequence[Figures]) -> list[str]:
    """Lines under a block of methods: what S is against, why it has no interval, which S cannot be true, and which
    replies are not what they must be."""
    notes = [against(found)]
    if any(each.speedup is not None and each.speedup_low is None for each in found):
        notes.append(FEW)
    notes += [
        f"! {each.method}: not every reply is that of our AR loop, as it must be with this rule in float32"
        for each in found
        if each.exact and each.equal_ours is not None and each.equal_ours < 1
    ]
    return notes + [
        f"! {each.method}: S {each.speedup:.2f} is above tau * t_AR / t_verify = {each.bound:.2f}: an error of "
        "measurement, repeat it on a quiet machine"
        for each in found
        if each.suspicious
    ]


def against(found: Sequence[Figures]) -> str:
    """What S is against."""
    baseline = found[0].baseline
    if baseline is None:
        return REFUSED
    both = any(each.method == HF for each in found)
    return f"S is against {NAMED[baseline]}, the faster AR decoding." if both else ALONE


def speed_table(found: Sequence[Figures], peaks: dict[str, int], baseline_peak: int | None) -> str:
    """Speed of every method, one block per temperature, then accept lengths."""
    return "\n\n".join(
        _block([figures for figures in found if figures.temperature == temperature], peaks, baseline_peak)
        for temperature in dict.fromkeys(figures.temperature for figures in found)
    )


def _block(found: Sequence[Figures], peaks: dict[str, int], baseline_peak: int | None) -> str:
    rows = [HEAD]
    for figures in found:
        peak = peaks.get(figures.method)
        rows.append([
            named(figures),
            number(figures.ms_per_token),
            number(figures.verifications / figures.replies, 1),
            *speed_cells(figures),
            MISSING if peak is None else f"{peak / 2**20:.0f}",
            number(peak / baseline_peak if peak and baseline_peak else None),
        ])  # fmt: skip
    first = found[0]
    title = f"temperature {first.temperature:g}, {first.replies} replies per method"
    lengths = [[f.method, *map(percent, f.histogram)] for f in found if len(f.histogram) > 1]
    parts = [title, aligned(rows), *speed_notes(found)]
    if lengths:
        longest = max(map(len, lengths))
        table = [["accepted", *map(str, range(longest - 1))], *(row + [""] * (longest - len(row)) for row in lengths)]
        parts.append(aligned(table))
    return "\n".join(parts)


def gauge_table(found: Sequence[Gauges]) -> str:
    """Gauges with the limits of an honest task."""
    rows = [["gauge", *(f"T={gauges.temperature:g}" for gauges in found), "honest"]]
    names = {
        "unsure": "tokens with top probability < 0.9",
        "top": "mean top-1 probability",
        "image_share": "tokens that only the picture determines",
        "closed_share": "yes/no and multiple-choice questions",
        "lookup_speedup": "S of prompt lookup",
    }
    for field, name in names.items():
        low, high = LIMITS.get(field, (0.0, 1.0))
        limit = f">= {low:g}" if low else f"<= {high:g}" if field in LIMITS else ""
        rows.append([name, *(number(getattr(gauges, field)) for gauges in found), limit])
    return aligned(rows)


def accuracy_table(answers: Sequence[Judged]) -> str:
    """Relaxed accuracy per class and per form, then overall; answers about one picture belong together."""
    found = [
        *scores((each.kind, each.right, each.picture) for each in answers),
        *scores((f"form {each.form}", each.right, each.picture) for each in answers),
        *scores(("all", each.right, each.picture) for each in answers),
    ]
    rows = [["", "questions", "accuracy", "95 %"]]
    rows += [[each.name, str(each.questions), f"{each.accuracy:.3f}", span(each.low, each.high, 3)] for each in found]
    return aligned(rows)
