"""Autoregressive and speculative decoding side by side: do they agree, and what does drafting gain?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Unpack

from mmspec.api import Pipeline
from mmspec.contract import bound
from mmspec.options import Options, given
from mmspec.prompts import Asked
from mmspec.results import Generation
from mmspec.stats import Stats

REPEATS = 3
EXACT = ("float32", "float64")


@dataclass
class Comparison:
    """The fastest of `REPEATS` answers of each kind.

    bound: both would be equal, token by token, in exact numbers; a rule that draws with other noise agrees only in law.
    dtype: of the model. In half precision sums of one and of several rows round differently, which decides close calls.
    """

    autoregressive: Generation
    speculative: Generation
    bound: bool
    dtype: str

    @property
    def must_agree(self) -> bool:
        """Whether a difference is a fault."""
        return self.bound and self.dtype in EXACT

    @property
    def agree(self) -> bool:
        """Whether the tokens are the same, and the pictures: the tokens of continuous ones only say in what order."""
        one, other = self.autoregressive, self.speculative
        return one.token_ids == other.token_ids and one.image == other.image

    @property
    def verdict(self) -> str:
        """One sentence on whether they agree."""
        if self.agree:
            return f"Both decodings agree on all {self.speculative.stats.new_tokens} tokens."
        if self.must_agree:
            return "The decodings DIFFER, which must not happen with this rule."
        if not self.speculative.stats.lossless:
            return "The decodings differ, as they may: this rule is lossy."
        if self.bound:
            return f"The decodings differ, as they may in {self.dtype}: close calls depend on rounding."
        return "The decodings differ, as they may: this rule draws with noise of its own."

    @property
    def speedup(self) -> float | None:
        """S: seconds per token of our autoregressive loop / those of the drafter, decoding only."""
        return self._gain(lambda stats: stats.decode_seconds / (stats.new_tokens - stats.first))  # the prefill's token

    @property
    def speedup_end_to_end(self) -> float | None:
        """S with the prefill counted on both sides."""
        return self._gain(lambda stats: stats.seconds / stats.new_tokens)

    def _gain(self, per_token: Callable[[Stats], float]) -> float | None:
        """Seconds per token of the one answer / those of the other; None where nothing was verified."""
        slow, fast = self.autoregressive.stats, self.speculative.stats
        return per_token(slow) / per_token(fast) if fast.accept_lengths else None

    def as_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        return {
            "text": self.speculative.text,
            "agree": self.agree,
            "must_agree": self.must_agree,
            "tau": self.speculative.stats.as_dict()["tau"],
            "S": self.speedup,
            "S_end_to_end": self.speedup_end_to_end,
            "accept_lengths": self.speculative.stats.accept_lengths,
            "autoregressive": self.autoregressive.as_dict(),
            "speculative": self.speculative.as_dict(),
        }


def compare(pipe: Pipeline, image: Any, prompt: Asked, **options: Unpack[Options]) -> Comparison:
    """Answer one prompt both ways, in turns, after a warm-up of each. A store of the caller's learns nothing of it."""
    plain = pipe.with_drafter("none")

    def answered() -> tuple[Any, Any]:
        pipe.forget()  # or the reply that it drafts would be known to it
        drafting = Pipeline(pipe.target, pipe.processor, pipe.drafter.aside(), pipe.rule, pipe.folder, pipe.control)
        return plain(image, prompt, **options), drafting(image, prompt, **options)

    answers = [answered() for _ in range(1 + REPEATS)][1:]
    slow, fast = (min(runs, key=lambda answer: answer.stats.decode_seconds) for runs in zip(*answers, strict=True))
    greedy = pipe.target.sampling(given(options)).temperature == 0
    dtype = str(pipe.target.model.dtype).removeprefix("torch.")
    return Comparison(slow, fast, bound(pipe.rule, greedy), dtype)
