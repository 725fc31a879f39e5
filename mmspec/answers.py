"""What comes back: whole answers, or pieces of them round by round."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from mmspec.decode import Round
from mmspec.stats import Stats
from mmspec.stopping import TextStop
from mmspec.text import TextStream, decode_text


@dataclass
class Generation:
    """One answer.

    text: without special tokens; a stop string is part of it, as in transformers; "" without a tokenizer.
    token_ids: what was emitted, the stop token included. prompt_tokens: ids of the prompt, image slots included.
    finish: "stop" (an end token or a stop string) or "length".
    """

    text: str
    token_ids: list[int]
    prompt_tokens: int
    finish: str
    stats: Stats

    def as_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        return {**vars(self), "stats": self.stats.as_dict()}


@dataclass
class Piece:
    """What one round added to one answer: `tokens`, of which the first `drafted` ones were drafted, and their text."""

    text: str
    tokens: list[int]
    drafted: int


class Stream:
    """A request at work: an iterator of what each round adds, a list with a `Piece` per row.

    Args: rounds: the decode loop. stop: the loop's own. tokenizer: None gives no text. prompt_tokens: per row.
        single: yield the only row's piece itself.
    """

    def __init__(
        self,
        rounds: Iterator[Round],
        stop: TextStop,
        tokenizer: Any,
        prompt_tokens: list[int],
        lossless: bool,
        single: bool,
    ) -> None:
        self._rounds, self._stop, self._tokenizer, self._single = rounds, stop, tokenizer, single
        self._prompt_tokens = prompt_tokens
        self._texts = [TextStream(tokenizer) for _ in prompt_tokens]
        self.stats = [Stats(lossless) for _ in prompt_tokens]

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Any:
        done = self._account(next(self._rounds))
        pieces = [
            Piece(text.add(tokens, last=bool(finish)), tokens, drafted)
            for text, tokens, drafted, finish in zip(
                self._texts, done.tokens, done.drafted, self._stop.finish, strict=True
            )
        ]
        return pieces[0] if self._single else pieces

    def finish(self) -> Any:
        """Run to the end; returns the `Generation` of the only row, or a list of them."""
        for done in self._rounds:
            self._account(done)
        answers = [self._answer(row) for row in range(len(self.stats))]
        return answers[0] if self._single else answers

    def _account(self, done: Round) -> Round:
        for row, stats in enumerate(self.stats):
            stats.add(row, done)
        return done

    def _answer(self, row: int) -> Generation:
        ids = self._stop.outputs[row]
        text = decode_text(self._tokenizer, ids)
        return Generation(text, ids, self._prompt_tokens[row], self._stop.finish[row], self.stats[row])
