"""Where an answer ends: end-of-sequence ids, the token budget, stop strings. Cuts inside an accepted run.

The result is what one-token-at-a-time decoding gives: tokens after the first stop never count, are never shown and
never timed as gain. As in transformers, the stop token and the tokens that complete a stop string are part of the
output, and a stop string may begin in the prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from os.path import commonprefix

import torch
from torch import Tensor

from mmspec.contract import Accepted, Draft, State
from mmspec.errors import InputError, shorten
from mmspec.finite import not_finite


class Stop:
    """Decides where each row ends, and fills the host side of `Accepted` from one copy from the device.

    Args:
        eos: ids that end a row. budget: most tokens a row may emit; `State.limits` may allow fewer.
        strings: stop strings; needs `text_of`, which turns ids into text.

    Raises: InputError for a budget below 1 or an empty stop string.

    outputs: the ids that each row has emitted. finish: why each row ended, "stop" or "length"; "" while it runs.
    """

    def __init__(
        self,
        eos: Sequence[int],
        budget: int,
        strings: Sequence[str] = (),
        text_of: Callable[[list[int]], str] | None = None,
    ) -> None:
        if not isinstance(budget, int) or isinstance(budget, bool) or budget < 1:
            raise InputError(f"max_new_tokens={shorten(budget)} is not valid: it must be a whole number, 1 or more")
        if not all(isinstance(string, str) and string for string in strings):
            raise InputError(f"stop={shorten(strings)} is not valid: stop strings must be non-empty text")
        self.eos = frozenset(eos)
        self.budget = budget
        self.strings = tuple(strings)
        self.text_of = text_of
        self.outputs: list[list[int]] = []
        self.finish: list[str] = []

    def start(self, state: State) -> list[list[int]]:
        """Take over each row's first token, which `prefill` drew."""
        assert state.pending is not None
        self.outputs = [[] for _ in state.ids]
        self.finish = [""] * len(state.ids)
        first = [[token] for token in state.pending.tolist()]
        for row, run in enumerate(first):
            self._emit(state, row, run)
        state.emitted = torch.ones_like(state.pending)
        return first

    def ask(self, state: State, draft: Draft, accepted: Accepted) -> Tensor:
        """See `report`, which a round in one launch brings along."""
        return report(draft, accepted, state.finite) if accepted.report is None else accepted.report

    def cut(self, state: State, draft: Draft, accepted: Accepted, known: list[list[int]]) -> None:
        """Fill the host side of `accepted`; extend `state.ids`; mark rows that end; say how much room is left.

        Raises: NumericalError: the round's logits are no numbers.
        """
        width = accepted.path.shape[1]
        for row, (numbers, count, following, *rest) in enumerate(known):
            if not numbers:
                raise not_finite(f"output position {max(map(len, self.outputs))}")
            accepted.paths.append(rest[:count])
            run = [*rest[width + 1 : width + count], following]
            kept = [] if state.done[row] else self._emit(state, row, run)
            accepted.emitted.append(kept)
            accepted.drafted.append(min(len(kept), count - 1))
        rows = zip(self.outputs, state.limits, state.done, strict=True)
        state.room = max((limit - len(output) for output, limit, done in rows if not done), default=0) - 1

    def _emit(self, state: State, row: int, run: list[int]) -> list[int]:
        """Append the part of `run` up to the row's first stop; returns it."""
        output, ids = self.outputs[row], state.ids[row]
        for index, token in enumerate(run):
            output.append(token)
            ids.append(token)
            if token in self.eos or self._completes_string(ids):
                self.finish[row] = "stop"
            elif len(output) >= min(self.budget, state.limits[row]):
                self.finish[row] = "length"
            if self.finish[row]:
                state.done[row] = True
                return run[: index + 1]
        return run

    def _completes_string(self, ids: list[int]) -> bool:
        """Does a stop string end in the last token's text?"""
        if not self.strings or self.text_of is None:
            return False
        tail = ids[-4 * max(map(len, self.strings)) - 4 :]  # a token is at least a byte, a character at most four
        text, before = self.text_of(tail), self.text_of(tail[:-1])
        known = len(commonprefix([text, before]))  # not len(before): half a character decodes to something else
        return any(text.find(string, max(0, known - len(string) + 1)) >= 0 for string in self.strings)


def report(draft: Draft, accepted: Accepted, finite: Tensor | None) -> Tensor:
    """[B, 3 + 2 A] int64, what the host must know of a round: whether logits are finite ([] bool; None for yes),
    how many nodes were accepted, what follows them, which they are, their tokens."""
    assert accepted.next is not None
    finite = accepted.count.new_ones(()) if finite is None else finite
    tokens = draft.tokens.gather(1, accepted.path)
    columns = finite.expand(len(tokens), 1), accepted.count[:, None], accepted.next[:, None], accepted.path, tokens
    return torch.cat(columns, 1)
