"""What comes back: whole answers, or pieces of them round by round."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field, fields
from functools import cached_property, partial
from threading import Lock
from typing import Any

from mmspec.base_target import unpad
from mmspec.contract import Round, Rule
from mmspec.stats import Stats
from mmspec.stopping import Stop
from mmspec.text import TextStream, decode_text
from mmspec.thoughts import TAIL, Apart, apart


class Making(partial[dict[str, Any]]):
    """What makes a picture, a sound, or two parts of a text. `dataclasses.asdict` copies what it finds, and behind this
    stands a model."""

    def __deepcopy__(self, memo: Any) -> Making:
        return self


@dataclass
class Generation:
    """One answer.

    text: without special tokens; a stop string is part of it, as in transformers; "" without a tokenizer, and of
        models that speak.
    token_ids: what was emitted, the stop token included. prompt_tokens: ids of the prompt, image slots included.
    finish: "stop" (an end token or a stop string), "length", or "closed" where the stream was closed before the end.
    make: makes `image` and `audio`, or `thought` and `answer`, once, when one of them is asked for; until then it keeps
        the model, or the tokenizer.
    """

    text: str
    token_ids: list[int]
    prompt_tokens: int
    finish: str
    stats: Stats
    make: Callable[[], dict[str, Any]] = field(default=dict, repr=False, compare=False)

    @property
    def thought(self) -> str:
        """Of models that think first, what they thought, all there is if that was cut off; "" of others."""
        return self._made().get("thought", "") if self.text else ""

    @property
    def answer(self) -> str:
        """The text behind the thought, without its marks; `text` itself where the model does not think."""
        return self._made().get("answer", self.text) if self.text else ""

    @property
    def image(self) -> Any:
        """Of image models, the picture (a PIL image); None of others."""
        return self._made().get("image")

    @property
    def audio(self) -> Any:
        """Of speech models, the sound (`.samples`, `.rate`, `.save(path)`); None of others, and of silence."""
        return self._made().get("audio")

    def as_dict(self) -> dict[str, Any]:
        """Everything that JSON can hold."""
        told = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "make"}
        parts = {"text": self.text, "thought": self.thought, "answer": self.answer}
        return {**parts, **told, "stats": self.stats.as_dict()}

    def __getstate__(self) -> dict[str, Any]:
        """What is pickled or copied: what was made, and no model."""
        self._made()
        return vars(self)

    def _made(self) -> dict[str, Any]:
        made = self.make()
        self.make = made.copy
        return made


@dataclass
class Piece:
    """What one round added to one answer: `tokens`, of which the first `drafted` ones were drafted, and their text.

    audio: of speech models, the next sound to play, where there is enough for a chunk; of those whose sound is made in
        one go all of it, in the last piece.
    draw: of image models, makes `image`.
    """

    text: str
    tokens: list[int]
    drafted: int
    audio: Any = None
    draw: Callable[[], Any] | None = field(default=None, repr=False, compare=False)

    @cached_property
    def image(self) -> Any:
        """Of image models, the picture as it was known after this round, the rest grey; None of others.

        The picture decoder runs when it is asked for, once, and not for the pieces that nobody looks at.
        """
        return None if self.draw is None else self.draw()


class Lasting:
    """Rounds whose error stays: asked again they raise it again, where a generator would say that they are over.

    over: no more of them are wanted.
    """

    def __init__(self, rounds: Generator[Round]) -> None:
        self._rounds = rounds
        self._error: BaseException | None = None
        self.over = False

    def __iter__(self) -> Lasting:
        return self

    def __next__(self) -> Round:
        if self.over:
            raise StopIteration
        if self._error is not None:
            raise self._error
        try:
            return next(self._rounds)
        except StopIteration:
            raise
        except BaseException as error:
            self._error = error
            raise

    def close(self) -> None:
        """Let go of the request, also of what an error in it holds."""
        self._rounds.close()
        self._error = None


class Stream:
    """A request at work: an iterator of what each round adds, a list with a `Piece` per row. As the context of a `with`
    block it lets go of the request, and of its memory, at the block's end, however that comes. Threads that ask the
    same one take turns.

    Args: rounds: the decode loop. stop, target, rule: the loop's own. inputs: what the target was given. prompt_tokens:
        per row. single: yield the only prompt's piece itself. n: rows per prompt.

    worked_seconds: how long the steps took so far, the making of sound included, without what is done with pieces
        between them and what `finish` does. first_audio_seconds: those up to the step with the first chunk of sound;
        None until there is one.
    """

    def __init__(
        self,
        rounds: Generator[Round],
        stop: Stop,
        target: Any,
        rule: Rule,
        inputs: dict[str, Any],
        prompt_tokens: list[int],
        single: bool,
        n: int,
    ) -> None:
        self._rounds, self._stop, self._single, self._n = Lasting(rounds), stop, single, n
        self._product, self._makes = partial(target.product_of, inputs), target.makes
        self._inputs, self._prompt_tokens = inputs, prompt_tokens
        self._tokenizer = None if self._makes == "sound" else target.tokenizer  # codes are no text
        self._texts = [TextStream(self._tokenizer) for _ in prompt_tokens]
        self.stats = [Stats(rule.lossless, verifies=rule.verifies) for _ in prompt_tokens]
        self._sounds = [target.sounding(inputs, row) for row in range(len(prompt_tokens))]
        self._whole: dict[int, dict[str, Any]] = {}  # what rows made, of whose sound there are no chunks
        self._turn = Lock()
        self.worked_seconds = 0.0
        self.first_audio_seconds: float | None = None

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Any:
        return self._in_turn(self._step)

    def _step(self) -> Any:
        begun = time.perf_counter()
        done = self._account(next(self._rounds))
        pieces = [
            Piece(text.add(tokens, last=bool(finish)), tokens, drafted)
            for text, tokens, drafted, finish in zip(
                self._texts, done.tokens, done.drafted, self._stop.finish, strict=True
            )
        ]
        self._sound(pieces)
        if self._makes == "picture":
            for row, piece in enumerate(pieces):
                piece.draw = partial(self._drawn, row, len(self._stop.outputs[row]))
        self.worked_seconds += time.perf_counter() - begun
        if self.first_audio_seconds is None and any(piece.audio is not None for piece in pieces):
            self.first_audio_seconds = self.worked_seconds
        return self._by_prompt(pieces)

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the request up, if it is not finished: nothing follows the pieces that came.

        Nobody waits for a round that another thread is at: it is the last one, and that thread lets go of the request.
        """
        self._rounds.over = True
        if self._turn.acquire(blocking=False):
            try:
                self._rounds.close()
            finally:
                self._turn.release()

    def finish(self) -> Any:
        """Run to the end; returns the `Generation` of the only row, or a list of them, as the pieces are. After `close`
        it holds what came before.

        Raises: what a round raised, now or before.
        """
        return self._in_turn(self._rest)

    def apart(self, row: int = 0, count: int | None = None) -> Apart:
        """Thought and answer of a row so far, or of its first `count` tokens; see `mmspec.thoughts.apart`. Later they
        are longer, and begin in the same way."""
        if self._tokenizer is None or not self._stop.outputs:
            return Apart("", "")
        ids = self._stop.outputs[row][:count]
        over = bool(self._stop.finish[row]) and len(ids) == len(self._stop.outputs[row])
        return apart(self._tokenizer, self._tails[row], ids, over)

    @cached_property
    def _tails(self) -> list[list[int]]:
        """The ends of the prompts, which may have opened a thought."""
        return [row[-TAIL:] for row in unpad(self._inputs)]

    def _rest(self) -> Any:
        for done in self._rounds:
            self._account(done)
        answers = [self._answer(row) for row in range(len(self.stats))]
        return self._by_prompt(answers)

    def _in_turn(self, work: Callable[[], Any]) -> Any:
        """What `work` gives, done by one thread at a time."""
        try:
            with self._turn:
                return work()
        finally:
            if self._rounds.over:  # closed by another thread, which did not wait
                self.close()

    def _by_prompt(self, rows: list[Any]) -> Any:
        """What stands for each prompt: its row, or a list of its n rows; of a single prompt that alone."""
        n = self._n
        prompts = rows if n == 1 else [rows[start : start + n] for start in range(0, len(rows), n)]
        return prompts[0] if self._single else prompts

    def _drawn(self, row: int, known: int) -> Any:
        return self._product(row, self._stop.outputs[row][:known]).get("image")

    def _sound(self, pieces: list[Piece]) -> None:
        for row, (sound, piece, finish) in enumerate(zip(self._sounds, pieces, self._stop.finish, strict=True)):
            if sound is not None:
                piece.audio = sound.add(piece.tokens, last=bool(finish))
            elif self._makes == "sound" and finish and piece.tokens:  # it has just ended
                self._whole[row] = self._product(row, self._stop.outputs[row])
                piece.audio = self._whole[row].get("audio")

    def _account(self, done: Round) -> Round:
        for row, stats in enumerate(self.stats):
            stats.add(row, done)
        return done

    def _answer(self, row: int) -> Generation:
        begun = bool(self._stop.outputs)  # else it was closed before the first round
        ids, finish = (self._stop.outputs[row], self._stop.finish[row]) if begun else ([], "")
        text = decode_text(self._tokenizer, ids)
        answer = Generation(text, ids, self._prompt_tokens[row], finish or "closed", self.stats[row])
        if row in self._whole:
            answer.make = self._whole[row].copy
        elif ids and self._makes != "text":
            answer.make = Making(self._product, row, ids)
        elif text:
            answer.make = Making(_parts, self._tokenizer, self._tails[row], ids)
        return answer


def _parts(tokenizer: Any, prompt: list[int], ids: list[int]) -> dict[str, Any]:
    return apart(tokenizer, prompt, ids)._asdict()
