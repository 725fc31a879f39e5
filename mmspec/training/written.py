"""The data's own answers, as the target would have to write them."""

from __future__ import annotations

from typing import Any

from mmspec.errors import InputError, shorten
from mmspec.training.questions import Question


def own_answer(pipe: Any, question: Question) -> list[int]:
    """The ids of the data's own answer, as the target would have to write it, up to the first that ends it.

    With a chat template that is what the template puts between the prompt and the end of the assistant's turn.
    """
    if pipe.target.makes != "text":
        raise InputError("the data's own answers are texts, and this model makes none: use the target's answers")
    if question.answer is None:
        raise InputError(
            f"the question {shorten(question.prompt)} has no answer in the data: use the target's, "
            "and no warm-up (--answers target --warm-steps 0)"
        )
    tokenizer = getattr(pipe.processor, "tokenizer", pipe.processor)
    text = written_answer(pipe, question.image, question.prompt, question.answer)
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    ends = {*pipe.target.ends(), tokenizer.eos_token_id}  # of a turn and of a text: two ids in some families
    return ids[: next((place for place, token in enumerate(ids, 1) if token in ends), None)]


def written_answer(pipe: Any, image: Any, prompt: str, answer: str) -> str:
    """An answer as the target would have to write it behind its prompt, with what ends its turn.

    Args: image: a picture, a list of them, or None.
    Raises: InputError: the chat template writes the prompt otherwise when an answer follows.
    """
    tokenizer = getattr(pipe.processor, "tokenizer", pipe.processor)
    if not getattr(pipe.processor, "chat_template", None):
        return answer + (tokenizer.eos_token or "")
    given = image if isinstance(image, list | tuple) else [image]
    pictures = [{"type": "image"} for one in given if one is not None]
    turns = [_turn(pipe, "user", prompt, pictures)]
    before = pipe.processor.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
    whole: str = pipe.processor.apply_chat_template([*turns, _turn(pipe, "assistant", answer, [])], tokenize=False)
    if not whole.startswith(before):
        raise InputError("the chat template rewrites the prompt when an answer follows: use the target's answers")
    return whole[len(before) :]


def _turn(pipe: Any, role: str, text: str, before: list[dict[str, str]]) -> dict[str, Any]:
    """A chat message: parts for a processor, a plain text for a tokenizer."""
    parts = [*before, {"type": "text", "text": text}]
    return {"role": role, "content": parts if hasattr(pipe.processor, "tokenizer") else text}
