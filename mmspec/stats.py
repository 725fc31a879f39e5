"""What a request cost and what drafting gained, per row."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from mmspec.contract import Round


@dataclass
class Stats:
    """The account of one row of a request. Rows of a batch share its seconds.

    new_tokens: tokens emitted, stop token included.
    accept_lengths: drafted tokens accepted in each round, without the bonus token.
    drafted_tokens: all that were drafted and verified; of a batch, whose rows are padded to one size, as many as that
        (on a canvas each row counts its own).
    lossless: whether the acceptance rule keeps the target's law. verifies: whether it looks at that law at all.
    prefill_seconds: reading the prompt. draft_seconds: the drafter, its own reading of the prompt included.
    verify_seconds: target forwards. other_seconds: everything else in a round. On CUDA, where the host runs ahead,
    their sum is right, but not the parts: work counts where the host waits for it (`bench gpu` waits everywhere).
    first: tokens that the prefill emitted: 1, but 0 for targets that begin with an empty canvas.
    """

    lossless: bool
    new_tokens: int = 0
    accept_lengths: list[int] = field(default_factory=list)
    prefill_seconds: float = 0.0
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    other_seconds: float = 0.0
    verifies: bool = True
    first: int = 1
    drafted_tokens: int = 0

    @property
    def tau(self) -> float:
        """Tokens emitted per verification, bonus included, prefill excluded; NaN where nothing was verified."""
        rounds = len(self.accept_lengths) if self.verifies else 0
        return (self.new_tokens - self.first) / rounds if rounds else math.nan

    @property
    def acceptance_rate(self) -> float:
        """Share of the drafted tokens that was accepted; NaN where nothing was drafted. In a tree one of several
        siblings can be, so that it tells chains apart, and trees of one shape."""
        return sum(self.accept_lengths) / self.drafted_tokens if self.drafted_tokens else math.nan

    @property
    def target_calls(self) -> int:
        """Target forwards: the prefill, where it emitted something, and one per round."""
        return min(self.first, self.new_tokens, 1) + len(self.accept_lengths)

    @property
    def decode_seconds(self) -> float:
        """All seconds after the prefill."""
        return self.draft_seconds + self.verify_seconds + self.other_seconds

    @property
    def seconds(self) -> float:
        """Prefill and decoding."""
        return self.prefill_seconds + self.decode_seconds

    def add(self, row: int, done: Round) -> None:
        """Count one round of the loop for row `row`; rounds after the row's end are not its own."""
        emitted = done.tokens[row]
        if done.prefill:
            self.first = len(emitted)
        if not emitted:
            return
        self.new_tokens += len(emitted)
        self.other_seconds += 0.0 if done.prefill else done.other_s
        if done.prefill:
            self.prefill_seconds += done.verify_s
            self.draft_seconds += done.other_s
        else:
            self.accept_lengths.append(done.drafted[row])
            self.drafted_tokens += done.offered[row] if done.offered else done.proposed
            self.draft_seconds += done.draft_s
            self.verify_seconds += done.verify_s

    def as_dict(self) -> dict[str, Any]:
        """Everything, for JSON: an undefined number is None."""
        return {
            "tau": None if math.isnan(self.tau) else self.tau,
            "acceptance_rate": None if math.isnan(self.acceptance_rate) else self.acceptance_rate,
            "accept_lengths": self.accept_lengths,
            "drafted_tokens": self.drafted_tokens,
            "new_tokens": self.new_tokens,
            "target_calls": self.target_calls,
            "seconds": self.seconds,
            "prefill_seconds": self.prefill_seconds,
            "decode_seconds": self.decode_seconds,
            "draft_seconds": self.draft_seconds,
            "verify_seconds": self.verify_seconds,
            "other_seconds": self.other_seconds,
            "lossless": self.lossless,
        }
