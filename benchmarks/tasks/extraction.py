"""A judge model that finds the answer in a reply, for tasks whose official scores are taken so (MathVista).

Which model judges, and the words of its prompt, change the score: it is named after the judge.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from mmspec import Pipeline, load

MOST = 24
"""Tokens of an extracted answer."""
PROMPT = """\
Below are a question and a reply to it. Copy the final answer out of the reply: {wanted}. Write nothing else. If the
reply gives no answer, write: none.

Question: {question}
Reply: {reply}
Final answer:"""
NONE = "none"


@dataclass
class Judge:
    """A text model. name: as it was told. answers: what it said of every prompt: methods often reply alike."""

    name: str
    pipe: Pipeline
    answers: dict[str, str] = field(default_factory=dict)

    @classmethod
    def load(cls, model: str, dtype: str | None = None, device: str | None = None) -> Judge:
        """The judge that a bundled name, a folder or a hub id means. Raises: Error: as `mmspec.load`."""
        more: dict[str, Any] = {name: value for name, value in (("dtype", dtype), ("device", device)) if value}
        return cls(model, load(model, "none", **more, compile=False))

    def __call__(self, question: str, reply: str, wanted: str) -> str:
        """The answer in a reply; "" if there is none. wanted: what kind of answer is asked for."""
        asked = PROMPT.format(question=question, reply=reply.strip(), wanted=wanted)
        if asked not in self.answers:
            text = self.pipe(prompt=asked, max_new_tokens=MOST, temperature=0).answer.strip()
            first = text.splitlines()[0].strip() if text else ""
            self.answers[asked] = "" if first.rstrip(".").lower() == NONE else first
        return self.answers[asked]
