"""The account of a request."""

import math

import pytest

from mmspec.contract import Round
from mmspec.stats import Stats


@pytest.mark.parametrize(("emitted", "calls"), [([], 0), ([5], 1), ([5, 6], 1)])
def test_the_prefill_is_a_call_where_it_emitted_something(emitted: list[int], calls: int) -> None:
    """Not of targets that begin with an empty canvas."""
    stats = Stats(True)
    stats.add(0, Round([emitted], [0], prefill=True))
    assert stats.target_calls == calls
    stats.add(0, Round([[7]], [0]))
    assert stats.target_calls == calls + 1


def test_the_acceptance_rate_counts_what_was_drafted_while_the_row_ran() -> None:
    """Two rounds of a batch whose second row ended with the first of them."""
    rows = [Stats(True), Stats(True)]
    rounds = [Round([[5], [5]], [0, 0], prefill=True), Round([[7, 7, 8], [9]], [2, 0], 4), Round([[1], []], [0, 0], 4)]
    for done in rounds:
        for row, stats in enumerate(rows):
            stats.add(row, done)
    assert [stats.drafted_tokens for stats in rows] == [8, 4]
    assert [stats.acceptance_rate for stats in rows] == [0.25, 0.0]
    assert rows[0].as_dict()["acceptance_rate"] == 0.25
    assert math.isnan(Stats(True).acceptance_rate)
    assert Stats(True).as_dict()["acceptance_rate"] is None
