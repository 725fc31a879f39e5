"""Thoughts and answers apart: by the marks that models write, and by what their tokenizers say."""

import copy
import pickle
from dataclasses import asdict
from typing import Any

import pytest
import tiny
from tokenizers import AddedToken

import mmspec
from mmspec import thoughts
from mmspec.results import Generation
from mmspec.templates import control_tokens
from mmspec.text import decode_text
from mmspec.thoughts import FRAMES, KEPT, apart


def reader(special: tuple[str, ...] = (), plain: tuple[str, ...] = ()) -> Any:
    """The tiny tokenizer with further tokens."""
    tokenizer = copy.deepcopy(tiny.tokenizer())
    tokenizer.add_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in plain])
    return tokenizer


def ids(tokenizer: Any, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False)["input_ids"]


MARKS = tuple(sorted(KEPT))
QWEN, GLM, BARE = reader(plain=MARKS), reader(special=FRAMES[2:], plain=(*MARKS, *FRAMES[:2])), tiny.tokenizer()
HIDDEN = reader(special=(*MARKS, *FRAMES))
GEMMA = "<|channel>thought\nred, \u00e9!\n<channel|>4 bars<end_of_utterance>"
BOXED = "<think>red</think>\n<answer>So <|begin_of_box|>4<|end_of_box|> bars</answer>"


@pytest.mark.parametrize("tokenizer", [QWEN, GLM, BARE, HIDDEN], ids=["plain", "glm", "no tokens", "special"])
@pytest.mark.parametrize(
    ("prompt", "reply", "thought", "answer"),
    [
        ("why<think>\n", "red\n\nor blue\n</think>\n\n4 bars", "red\n\nor blue", "4 bars"),
        ("why", "<think>red</think>4 bars", "red", "4 bars"),
        ("why", "\n<think>\n\n</think>\n4 bars", "", "4 bars"),
        ("why<think>", "<think>red</think>4 bars", "red", "4 bars"),
        ("why<think>\n\n</think>\n\n", "4 bars", "", "4 bars"),
        ("why<think>\n", "red, or bl", "red, or bl", ""),
        ("why", "<think>red </thi", "red </thi", ""),
        ("why", BOXED, "red", "So 4 bars"),
        ("why<think></think>\n", "<|begin_of_box|>4<|end_of_box|>", "", "4"),
        ("why", GEMMA, "red, \u00e9!", "4 bars"),
        ("why", "[THINK]red[/THINK]4 bars", "red", "4 bars"),
        ("what is <think>?\nAnswer:", " 4 bars, a < b", "", " 4 bars, a < b"),
        ("why", "4 bars\n", "", "4 bars\n"),
        ("why", "", "", ""),
    ],
)
def test_a_thought_stands_apart(tokenizer: Any, prompt: str, reply: str, thought: str, answer: str) -> None:
    check(tokenizer, ids(tokenizer, prompt), ids(tokenizer, reply), (thought, answer))


def check(tokenizer: Any, prompt: list[int], reply: list[int], wanted: tuple[str, str]) -> None:
    """The parts of a reply are those that are wanted, and what was shown of them while it came stays."""
    assert apart(tokenizer, prompt, reply) == wanted
    shown = [apart(tokenizer, prompt, reply[:count], last=False) for count in range(len(reply))]
    for part, end in enumerate(wanted):
        grown = [each[part] for each in shown] + [end]
        assert all(more.startswith(less) for less, more in zip(grown, grown[1:], strict=False)), grown


def test_a_mark_that_is_only_told_of_is_none() -> None:
    reply = ids(QWEN, "Write <think>so</think>.")
    assert apart(QWEN, ids(QWEN, "why"), reply) == ("", decode_text(QWEN, reply))


TEMPLATE = {
    "start_anchor": "Assistant:",
    "fields": {
        "thinking": {"open": "<muse>", "close": "</muse>", "content": "text"},
        "calls": {"open": "<call>", "close": "</call>", "content": "json"},
        "content": {"close": "<end_of_utterance>", "content": "text"},
    },
}


@pytest.mark.parametrize(
    ("prompt", "reply", "thought", "answer"),
    [
        ("User: why\nAssistant:", "<muse>red</muse>4 bars<end_of_utterance>", "red", "4 bars"),
        ("User: why\nAssistant:<muse>\n", "red</muse>4 bars", "red", "4 bars"),
        ("User: why\nAssistant:<muse>\n", "red", "red", ""),
        ("User: why\nAssistant:", "4 bars", "", "4 bars"),
        ("User: why\nAssistant:", "<muse></muse>4 bars", "", "4 bars"),
        ("no turn", "<muse>red</muse>4 bars", "red", "4 bars"),
        ("User: why\nAssistant:<muse>\n", "red<end_of_utterance>", "red", ""),
        ("User: why\nAssistant:", "Write <answer>42</answer>.", "", "Write <answer>42</answer>."),
        ("User: why\nAssistant:", "  4 bars", "", "  4 bars"),
        ("User: why\nAssistant:", "<muse>red</muse>4 <answer>bars</answer>", "red", "4 bars"),
        ("User: why\nAssistant:", "", "", ""),
    ],
)
def test_the_response_template_says_what_a_thought_is(prompt: str, reply: str, thought: str, answer: str) -> None:
    tokenizer = copy.deepcopy(tiny.tokenizer())
    tokenizer.response_template = TEMPLATE
    check(tokenizer, ids(tokenizer, prompt), ids(tokenizer, reply), (thought, answer))


def test_what_the_response_template_cannot_read_is_read_by_its_marks() -> None:
    tokenizer = copy.deepcopy(tiny.tokenizer())
    tokenizer.response_template = TEMPLATE
    cut = ids(tokenizer, "<think>red</think>4 <call>{")
    assert apart(tokenizer, ids(tokenizer, "Assistant:"), cut) == ("red", "4 <call>{")


def test_a_tokenizer_that_tells_its_tokens_by_a_method_is_asked_for_its_special_ones() -> None:
    """As that of mistral-common does."""

    class Telling:
        all_special_tokens = ("</s>",)

        def added_tokens_decoder(self) -> dict[int, str]:
            return {2: "</s>"}

    assert control_tokens(Telling()) == ["</s>"]


@pytest.fixture(scope="module")
def pipe() -> mmspec.Pipeline:
    return mmspec.load(tiny.smolvlm_model(), "none", processor=tiny.processor())


def options(**more: Any) -> dict[str, Any]:
    return {"max_new_tokens": 12, "temperature": 1.0, "seed": 3, **more}


def test_an_answer_has_its_parts_only_when_they_are_asked_for(
    pipe: mmspec.Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = pipe(prompt="why", **options())
    assert (plain.thought, plain.answer) == ("", plain.text)
    middle = decode_text(pipe.target.tokenizer, plain.token_ids[5:6])
    thought, _, answer = plain.text.partition(middle)
    monkeypatch.setattr(thoughts, "MARKS", [("Assistant:", middle)])  # as if the template opened a thought
    asked: list[int] = []
    monkeypatch.setattr("mmspec.results.apart", lambda *told: asked.append(1) or apart(*told))
    with pipe.stream(None, ["why", "why is it so"], **options()) as stream:
        first, second = stream.finish()
    assert not asked
    assert first.text == plain.text
    assert (first.thought, first.answer) == (thought.strip(), answer.strip())
    assert first.as_dict()["thought"] == first.thought
    assert first.as_dict()["answer"] == first.answer
    for same in (pickle.loads(pickle.dumps(first)), copy.deepcopy(first), Generation(**asdict(first))):  # noqa: S301
        assert (same.thought, same.answer) == (first.thought, first.answer)
    assert len(asked) == 1
    cut = pipe(prompt="why", **options(max_new_tokens=3))
    assert (cut.thought, cut.answer) == (cut.text.strip(), "")
    assert second.thought


def test_a_stream_tells_the_parts_so_far(pipe: mmspec.Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thoughts, "MARKS", [("Assistant:", "no such mark")])
    with pipe.stream(None, "why", **options()) as stream:
        assert stream.apart() == ("", "")
        said = [stream.apart().thought for _ in stream]
    assert said == sorted(said, key=len)
    assert said[-1] == stream.finish().thought
    assert stream.apart(count=3).thought == said[2]
