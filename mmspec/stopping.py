"""Where an answer ends: end-of-sequence ids, the token budget, stop strings. Cuts inside an accepted run.

The result is what one-token-at-a-time decoding gives: tokens after the first stop never count, are never shown and never
timed as gain. As in transformers, the stop token and the tokens that complete a stop string are part of the output.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from mmspec.contract import Accepted, Draft, State


class TextStop:
    """Stops causal rows. See `mmspec.decode.Stop`.

    Args:
        eos: ids that end a row. budget: most tokens a row may emit.
        strings: stop strings; needs `text_of`, which turns ids into text.
    """

    def __init__(
        self,
        eos: Sequence[int],
        budget: int,
        strings: Sequence[str] = (),
        text_of: Callable[[list[int]], str] | None = None,
    ) -> None:
        self.eos = frozenset(eos)
        self.budget = budget
        self.strings = tuple(strings)
        self.text_of = text_of
        self.outputs: list[list[int]] = []

    def start(self, state: State) -> list[list[int]]:
        """Take over each row's first token, which `prefill` drew."""
        assert state.pending is not None
        self.outputs = [[] for _ in state.ids]
        first = [[token] for token in state.pending.tolist()]
        for row, tokens in enumerate(first):
            state.ids[row].extend(self._emit(state, row, tokens))
        state.emitted = torch.ones_like(state.pending)
        return first

    def cut(self, state: State, draft: Draft, accepted: Accepted) -> None:
        """Fill `accepted.paths` and `accepted.emitted`; extend `state.ids`; mark rows that end."""
        assert accepted.next is not None
        tokens = draft.tokens.gather(1, accepted.path)
        width = accepted.path.shape[1]
        # one tensor, so one synchronisation with the device
        host = torch.cat([accepted.count[:, None], accepted.next[:, None], accepted.path, tokens], 1).tolist()
        for row, (count, following, *rest) in enumerate(host):
            accepted.paths.append(rest[:count])
            run = [*rest[width + 1 : width + count], following]
            kept = [] if state.done[row] else self._emit(state, row, run)
            state.ids[row].extend(kept)
            accepted.emitted.append(kept)

    def _emit(self, state: State, row: int, run: list[int]) -> list[int]:
        """The part of `run` up to the row's first stop."""
        output = self.outputs[row]
        for index, token in enumerate(run):
            output.append(token)
            if token in self.eos or len(output) >= self.budget or self._has_string(output):
                state.done[row] = True
                return run[: index + 1]
        return run

    def _has_string(self, output: list[int]) -> bool:
        if not self.strings or self.text_of is None:
            return False
        longest = max(map(len, self.strings))
        tail = self.text_of(output[-4 * longest - 4 :])  # a token is at least a byte, a character at most four
        return any(string in tail for string in self.strings)
