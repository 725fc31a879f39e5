"""The replay of a race, as every tab shows it: both sides on one clock, frame by frame."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import gradio as gr

from mmspec.demos import markup


def replay(
    race: Any,
    sides: Callable[[Any, float], tuple[str, ...]],
    ending: str,
    views: int = 4,
    cards: Callable[[Any, float], str] = markup.counters,
) -> Iterator[tuple[Any, ...]]:
    """Message, cards and both sides at every moment of the race's clock; at last `ending` stands as the message.

    Args: race: a `Race`, or None. sides: what both sides show at a time of the race. views: elements of a frame.
        cards: the counters at a time of the race.
    """
    if race is None:
        yield (gr.skip(),) * views  # an empty generator would wipe out what the page says
        return
    pace = "in real time" if race.pace == 1 else f"{race.pace:.1f} times as fast as it was"
    begun = time.monotonic()
    for moment in race.clock():
        time.sleep(max(0.0, begun + moment / race.pace - time.monotonic()))
        note = markup.note(f"Replay on one clock, {pace}: {moment:.1f} s", spoken=False)
        yield note, cards(race, moment), *sides(race, moment)
    slow, fast = (f"{trace.seconds:.2f} s" for trace in (race.slow, race.fast))
    yield final(race, sides, ending.format(slow=slow, fast=fast), cards)


def final(
    race: Any,
    sides: Callable[[Any, float], tuple[str, ...]],
    message: str,
    cards: Callable[[Any, float], str] = markup.counters,
) -> tuple[str, ...]:
    """What a finished race shows. See `replay`."""
    end = race.slow.seconds + race.fast.seconds
    return markup.note(message), cards(race, end), *sides(race, end)
