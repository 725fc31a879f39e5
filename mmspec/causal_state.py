"""What a causal target keeps of a request, apart from the targets: decoders and engines are handed it, too."""

from __future__ import annotations

from dataclasses import dataclass, field

from mmspec.cache import RowCache
from mmspec.contract import State
from mmspec.sampling import Sampler


@dataclass
class CausalState(State):
    """A request in a causal target: the cache, the taps in use, the sampling."""

    cache: RowCache = field(kw_only=True)
    taps: tuple[int, ...] = field(kw_only=True)
    sampler: Sampler = field(kw_only=True)
