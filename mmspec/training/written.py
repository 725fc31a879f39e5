"""The data's own answers, as the target would have to write them."""

from __future__ import annotations

from typing import Any

from mmspec.errors import InputError, shorten
from mmspec.prompts import messages_of
from mmspec.templates import as_strings, asking, fitted
from mmspec.training.questions import Messages, Question, as_text


def own_answer(pipe: Any, question: Question) -> list[int]:
    """The ids of the data's own answer, as the target would have to write it, up to the first that ends it.

    With a chat template that is what the template puts between the prompt and the end of the assistant's turn; where it
    puts no end there, as those of LLaVA, it is the answer alone and the end of a text.
    """
    if pipe.target.makes != "text":
        raise InputError("the data's own answers are texts, and this model makes none: use the target's answers")
    if question.answer is None:
        raise InputError(
            f"the question {shorten(as_text(question.prompt))} has no answer in the data: use the target's "
            "(--answers target)"
        )
    tokenizer = getattr(pipe.processor, "tokenizer", pipe.processor)
    before, text = _written(pipe, question.image, question.prompt, question.answer)
    ids = _ids_behind(tokenizer, before, text)
    ends = {*pipe.target.ends(), tokenizer.eos_token_id}  # of a turn and of a text: two ids in some families
    place = next((place for place, token in enumerate(ids, 1) if token in ends), None)
    if place is not None or tokenizer.eos_token_id is None:
        return ids[:place]
    answer = question.answer.strip()
    lead = text[: max(0, text.find(answer))]  # a space, in most templates
    return [*_ids_behind(tokenizer, before, lead + answer), tokenizer.eos_token_id]


def written_answer(pipe: Any, image: Any, prompt: str | Messages, answer: str) -> str:
    """An answer as the target would have to write it behind its prompt, with what ends its turn.

    Args: image: a picture, a list of them, or None; a chat holds its own.
    Raises: InputError: the chat template does not take an answer, or writes the prompt otherwise when one follows.
    """
    return _written(pipe, image, prompt, answer)[1]


def _written(pipe: Any, image: Any, prompt: str | Messages, answer: str) -> tuple[str, str]:
    """What the chat template makes of the prompt (empty: there is no template), and what it puts behind that."""
    tokenizer = getattr(pipe.processor, "tokenizer", pipe.processor)
    if not getattr(pipe.processor, "chat_template", None):
        return "", answer + (tokenizer.eos_token or "")
    given = image if isinstance(image, list | tuple) else [image]
    pictures = [one for one in given if one is not None]
    asked = messages_of(prompt, pictures) if isinstance(prompt, str) else prompt
    answered = [*asked, {"role": "assistant", "content": [{"type": "text", "text": answer}]}]
    with asking(pipe.processor):
        before = _in_template(pipe.processor, asked, True)
        whole = _in_template(pipe.processor, answered, False)
    if not whole.startswith(before):
        raise InputError("the chat template rewrites the prompt when an answer follows: use the target's answers")
    return before, whole[len(before) :]


def _in_template(processor: Any, messages: Messages, add_generation_prompt: bool) -> str:
    """Messages in the chat template, in the form in which the target's `encode` writes them."""
    alone = not hasattr(processor, "tokenizer")  # it is one
    form = as_strings(messages) if alone else fitted(processor, messages, add_generation_prompt)
    whole: str = processor.apply_chat_template(form, add_generation_prompt=add_generation_prompt, tokenize=False)
    return whole


def _ids_behind(tokenizer: Any, before: str, text: str) -> list[int]:
    """The ids of a text where it stands behind another one: alone, some tokenizers would put a space in front of it."""
    known, ids = (tokenizer(each, add_special_tokens=False)["input_ids"] for each in (before, before + text))
    if ids[: len(known)] == known:
        return list(ids[len(known) :])
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])
