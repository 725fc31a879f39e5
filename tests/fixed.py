"""Targets with static caches wherever they are made: what `pytest --engine static` switches on for all tests, and
`test_engine_matrix.py` for some of them in the usual run.

The engine makes plain calls: caches of fixed size, padded drafts, masks by slot, rounds that start before the last one
is read; but nothing is compiled.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from mmspec.engine.engine import Engine, misfit
from mmspec.targets import CausalTarget

SIZES = (1, 8, 16)


class WithEngine:
    """The attribute `decoder` of targets: whoever sets it, it gets an engine, if the target can be compiled."""

    def __set__(self, target: CausalTarget, decoder: Any) -> None:
        target.__dict__["decoder"] = decoder
        if target.compiles and not misfit(decoder.config):
            decoder.engine = Engine(decoder, None, SIZES, early=True)

    def __get__(self, target: CausalTarget, kind: Any = None) -> Any:
        return target.__dict__["decoder"]


@contextmanager
def static_caches() -> Iterator[None]:
    """Targets that are made in here verify on static caches."""
    CausalTarget.decoder = WithEngine()
    try:
        yield
    finally:
        del CausalTarget.decoder
