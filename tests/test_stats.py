"""The account of a request."""

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
