"""Chats of several turns as prompts: what the model reads is what transformers makes of the same messages."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import test_families
import tiny
import torch
from PIL import Image
from test_families import hf, plain
from tiny_vision import BLUE, RED, WIDE
from transformers import LlamaConfig, LlamaForCausalLM

import mmspec
from mmspec import prompts
from mmspec.errors import InputError
from mmspec.image_ar.janus import Janus
from mmspec.prompts import read_prompts
from mmspec.templates import template_of

BRIEF = {"role": "system", "content": "answer briefly"}


def asks(*parts: Any) -> dict[str, Any]:
    """A turn of the user, texts and pictures in this order."""
    content = [
        {"type": "text", "text": part} if isinstance(part, str) else {"type": "image", "image": part} for part in parts
    ]
    return {"role": "user", "content": content}


TURNS = [asks(RED, "what is it?"), {"role": "assistant", "content": "a red bar"}, asks("and", BLUE, "?", WIDE)]


@pytest.mark.parametrize("family", test_families.FAMILIES)
def test_a_chat_is_read_as_transformers_reads_it(family: str) -> None:
    """Pictures of several turns, one of them between two texts; alone, in a batch beside a text, with drafts."""
    pipe = plain(family)
    given = [{"role": turn["role"], "content": parts_of(turn)} for turn in TURNS]
    wanted = pipe.processor.apply_chat_template(
        given, add_generation_prompt=True, tokenize=True, return_dict=True, return_tensors="pt"
    )
    inputs = pipe.prepare(None, TURNS)
    assert inputs.keys() == wanted.keys()
    assert all(torch.equal(inputs[name], wanted[name]) for name in inputs)
    want = hf(pipe.target.model, dict(wanted))[0]
    drafting = pipe.with_drafter("recycling", "own")
    options = {"max_new_tokens": test_families.BUDGET}
    assert pipe(prompt=TURNS, **options).token_ids == drafting(prompt=TURNS, **options).token_ids == want
    both = drafting([None, RED], [TURNS, "why"], **options)
    assert [answer.token_ids for answer in both] == [want, pipe(RED, "why", **options).token_ids]
    assert [answer.token_ids for answer in pipe(prompt=TURNS, n=2, **options)] == [want, want]


def parts_of(turn: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"type": "text", "text": turn["content"]}] if isinstance(turn["content"], str) else turn["content"]


def test_one_turn_is_the_text_and_its_pictures() -> None:
    pipe = plain("smolvlm")
    assert torch.equal(pipe.prepare([], [asks("why")])["input_ids"], pipe.prepare([], "why")["input_ids"])
    chat, usual = pipe.prepare(None, [asks(RED, BLUE, "why")]), pipe.prepare([RED, BLUE], "why")
    assert all(torch.equal(chat[name], usual[name]) for name in usual)


def test_pictures_may_be_paths(tmp_path: Any) -> None:
    RED.save(tmp_path / "red.png")
    pipe = plain("smolvlm")
    wanted = pipe.prepare(None, [asks(RED, "why")])
    for key in ("path", "image"):
        part = {"type": "image", key: str(tmp_path / "red.png")}
        found = pipe.prepare(None, [{"role": "user", "content": [part, {"type": "text", "text": "why"}]}])
        assert all(torch.equal(found[name], wanted[name]) for name in wanted)


TEMPLATE = "{% for turn in messages %}<{{ turn['role'] }}>{{ turn['content'] }}{% endfor %}"


@pytest.fixture(scope="module")
def writer() -> mmspec.Pipeline:
    tokenizer = copy.deepcopy(tiny.tokenizer())
    tokenizer.chat_template = TEMPLATE
    model = LlamaForCausalLM(LlamaConfig(**{k: v for k, v in tiny.text_config().items() if k != "model_type"}))
    return mmspec.load(model.eval(), "none", processor=tokenizer)


def test_a_text_model_reads_system_prompts_and_turns(writer: mmspec.Pipeline) -> None:
    chat = [BRIEF, asks("what is ", "blue?"), {"role": "assistant", "content": "a bar"}, asks("why?")]
    found = writer.target.tokenizer.decode(writer.prepare(None, chat)["input_ids"][0])
    assert found == "<system>answer briefly<user>what is blue?<assistant>a bar<user>why?"
    with pytest.raises(InputError, match="leave image out, or take a model that does"):
        writer(prompt=[asks(RED, "what?")])


def test_control_tokens_of_every_turn_stay_text(writer: mmspec.Pipeline) -> None:
    end = writer.target.tokenizer.eos_token
    held = [{"role": "system", "content": f"say {end}"}, asks(f"why {end}?")]
    ids = writer.prepare(None, held)["input_ids"][0].tolist()
    assert writer.target.tokenizer.eos_token_id not in ids
    slot = plain("llava").processor.image_token
    with pytest.raises(InputError, match=f"control token '{slot}'"):
        plain("llava").prepare(None, [{"role": "assistant", "content": f"see {slot}"}, asks("why")])


def test_a_turn_of_several_texts_makes_no_control_token(writer: mmspec.Pipeline) -> None:
    """Nor does a role: a client's messages open no turns of their own."""
    end = writer.target.tokenizer.eos_token
    with pytest.raises(InputError, match="the prompt holds the control token"):
        writer.prepare(None, [asks(f"why {end[:4]}", f"{end[4:]} so")])
    whole = writer.prepare(None, [asks(f"why {end}", " so")])["input_ids"][0].tolist()
    assert writer.target.tokenizer.eos_token_id not in whole
    for family, token in (("smolvlm", "<end_of_utterance>"), ("llava", "<image>")):
        with pytest.raises(InputError, match=f"the prompt holds the control token '{token}'"):
            plain(family).prepare(None, [asks(token[:3], RED, token[3:])])
    for pipe in (writer, plain("smolvlm")):
        with pytest.raises(InputError, match='the "role" of message 0 of the prompt is'):
            pipe.prepare(None, [{"role": f"user{end}", "content": "x"}, asks("why")])


USER = "{% if turn['role'] == 'user' %}"
PARTS = "{% for part in turn['content'] %}{{ '[IMG]' if part['type'] == 'image' else part['text'] }}{% endfor %}"
EITHER = f"{{% if turn['content'] is string %}}{{{{ turn['content'] }}}}{{% else %}}{PARTS}{{% endif %}}"
TEMPLATES = {
    "joins strings": f"{USER}{EITHER}{{% else %}}{{{{ '<' + turn['content'] }}}}{{% endif %}}",
    "writes what it gets": f"{USER}{EITHER}{{% else %}}<{{{{ turn['content'] }}}}{{% endif %}}",
    "strings of the system": (
        f"{{% if turn['role'] == 'system' %}}<{{{{ turn['content'] | trim }}}}{{% else %}}({PARTS}{{% endif %}}"
    ),
    "parts of the user": f"{USER}{PARTS}{{% else %}}<{{{{ turn['content'] }}}}{{% endif %}}",
    "parts": f"({PARTS}",
}
"""As of Pixtral; GLM-4.1V; Gemma 4, whose system turn alone is written as it is; none known; most."""


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_gets_turns_in_the_form_that_it_takes(name: str) -> None:
    base = plain("pixtral")
    processor = copy.deepcopy(base.processor)
    processor.chat_template = f"{{% for turn in messages %}}{TEMPLATES[name]}{{% endfor %}}"
    pipe = mmspec.load(base.target.model, "none", processor=processor)
    chat = [BRIEF, asks(RED, "what?"), {"role": "assistant", "content": "a bar"}, asks("why", "?")]
    shown = processor.decode(pipe.prepare(None, chat)["input_ids"][0])
    for place in ("[IMG_END]", "answer briefly", "what?", "a bar", "why?"):
        assert shown.count(place) == 1
        shown = shown.partition(place)[2] if place != "[IMG_END]" else shown
    assert not {"{", "type"} & set(shown)


def test_an_empty_turn_may_stand_in_a_conversation() -> None:
    chat = [asks(RED, "what?"), {"role": "assistant", "content": ""}, asks("why?")]
    assert plain("smolvlm")(prompt=chat, max_new_tokens=3).token_ids


@pytest.mark.parametrize("name", TEMPLATES)
def test_an_empty_turn_is_refused_where_it_would_be_written_as_a_list(name: str) -> None:
    base = plain("pixtral")
    processor = copy.deepcopy(base.processor)
    processor.chat_template = f"{{% for turn in messages %}}{TEMPLATES[name]}{{% endfor %}}"
    pipe = mmspec.load(base.target.model, "none", processor=processor)
    chat = [asks(RED, "what?"), {"role": "assistant", "content": ""}, asks("why", "?")]
    if name in ("strings of the system", "parts"):
        assert processor.decode(pipe.prepare(None, chat)["input_ids"][0]).endswith("((why?")
    else:
        with pytest.raises(InputError, match="message 1 is empty, and the chat template takes texts alone there"):
            pipe.prepare(None, chat)


def test_a_page_may_come_without_a_word() -> None:
    pipe = plain("lighton-ocr")
    alone = pipe.prepare(RED, "")
    wanted = pipe.prepare(None, [asks(RED)])
    assert all(torch.equal(alone[name], wanted[name]) for name in wanted)
    for other, image in ((pipe, None), (plain("internvl"), RED)):
        with pytest.raises(InputError, match="the prompt is empty"):
            other(image, "")


THOUGHT = "{{ '' if enable_thinking is defined and not enable_thinking else '<think>' }}"


def test_a_family_that_thinks_unasked_has_the_long_budget_too() -> None:
    """The template of GLM-4.1V says nothing of it."""
    pipe = plain("glm4v")
    assert "think" not in template_of(pipe.processor)
    assert pipe.target.budget == 4096


@pytest.mark.parametrize("sees", [False, True])
def test_thinking_is_told_to_the_template(writer: mmspec.Pipeline, sees: bool) -> None:
    base = plain("smolvlm") if sees else writer
    processor = copy.deepcopy(base.processor)
    processor.chat_template = base.processor.chat_template + THOUGHT
    pipe = mmspec.load(base.target.model, "none", processor=processor)
    picture = RED if sees else None
    shown = {
        told: processor.decode(pipe.prepare(picture, "why", thinking=told)["input_ids"][0])
        for told in (None, True, False)
    }
    assert shown[None] == shown[True] == shown[False] + "<think>"
    options: dict[str, Any] = {"max_new_tokens": 5, "temperature": 0}
    assert (pipe.target.budget, base.target.budget) == (4096, 128)
    processor.chat_template = base.processor.chat_template + "<think>"  # always, as of Qwen3-VL-Thinking
    assert pipe.target.budget == 4096
    processor.chat_template = base.processor.chat_template + THOUGHT
    off = pipe(picture, "why", thinking=False, **options).token_ids
    assert off == base(picture, "why", **options).token_ids
    with pytest.raises(InputError, match="the chat template knows no enable_thinking"):
        base(picture, "why", thinking=False)
    with pytest.raises(InputError, match="thinking='no' is not valid: True or False is needed"):
        pipe(picture, "why", thinking="no")


@pytest.mark.parametrize(
    ("chat", "said"),
    [
        ([{"role": "user"}], 'message 0 of the prompt must have a "role" and a "content"'),
        ([asks("why"), {"role": "assistant", "content": "so"}], "the last message of the prompt is of the assistant"),
        ([{"role": "user", "content": 3}], "must be a text or a list of parts, not 3"),
        ([{"role": "user", "content": [{"type": "video", "path": "a.mp4"}]}], "a part that is neither"),
        (
            [{"role": "user", "content": [{"type": "image", "url": "https://a/b.png"}]}],
            "a part without its picture: write",
        ),
        ([{"role": "user", "content": [{"type": ["image"], "image": "a.png"}]}], "a part that is neither"),
        ([{"role": "user", "content": ""}], "the last message of the prompt is empty"),
        ([{"role": "user", "content": []}], "must be a text or a list of parts"),
        ([{"role": "tool", "content": "42", "name": "sum"}, asks("why")], "message 0 of the prompt has 'name'"),
        ([{"role": 3, "content": "why"}], 'the "role" of message 0 of the prompt is 3'),
    ],
)
def test_what_is_no_chat_is_one_error(chat: list[dict[str, Any]], said: str) -> None:
    with pytest.raises(InputError, match=said):
        plain("smolvlm")(prompt=chat)


def test_a_model_that_does_not_hear_takes_no_recordings(writer: mmspec.Pipeline) -> None:
    chat = [{"role": "user", "content": [{"type": "audio", "audio": "a.wav"}, {"type": "text", "text": "why"}]}]
    for pipe in (writer, plain("smolvlm")):
        with pytest.raises(InputError, match="does not hear: leave the recordings out"):
            pipe(prompt=chat)


def test_a_chat_that_is_read_is_a_prompt_and_not_read_again(tmp_path: Any) -> None:
    file = tmp_path / "red.png"
    RED.save(file)
    pipe = plain("smolvlm")
    chat = [{"role": "user", "content": [{"type": "image", "path": str(file)}, {"type": "text", "text": "why"}]}]
    want = pipe.prepare([None, RED], [chat, "why"])
    (read,), _ = read_prompts(chat, None)
    file.unlink()
    for found in (pipe.prepare([None, RED], [read, "why"]), pipe.prepare(None, read, n=2)):
        assert all(torch.equal(found[name], want[name]) for name in want)


def test_where_chats_do_not_belong() -> None:
    with pytest.raises(InputError, match="leave image out"):
        plain("smolvlm")(RED, [asks("why")])
    with pytest.raises(InputError, match="prompt 1 must be a text"):
        plain("smolvlm")(prompt=["why", 3])
    with pytest.raises(InputError, match="prompt must be a text, a chat or a list of them, not ndarray"):
        plain("smolvlm")(prompt=np.array(["why", "so"]))
    drawing = mmspec.load("janus-mini", "none")
    assert isinstance(drawing.target, Janus)
    with pytest.raises(InputError, match="takes a text, and no chat of several turns"):
        drawing(prompt=[asks("a red star")])
    language = LlamaForCausalLM(LlamaConfig(**{k: v for k, v in tiny.text_config().items() if k != "model_type"}))
    tokenizer = copy.deepcopy(tiny.tokenizer())
    tokenizer.chat_template = None
    with pytest.raises(InputError, match="has no chat template: pass a text, not a chat"):
        mmspec.load(language.eval(), "none", processor=tokenizer)(prompt=[asks("why")])


def test_a_chat_is_asked_in_one_call() -> None:
    chat = [asks(RED, "Describe this picture in detail.")]
    told = mmspec.generate(prompt=chat, max_new_tokens=8)
    assert told.token_ids == mmspec.generate(RED, "Describe this picture in detail.", max_new_tokens=8).token_ids
    with pytest.raises(InputError, match="takes a text, and no chat"):
        mmspec.generate(prompt=[asks("a red star")], model="janus-mini")


def test_pictures_of_one_call_are_read_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "red.png"
    Image.new("RGB", (32, 24), "red").save(file)
    load, read = prompts.load_image, []
    monkeypatch.setattr(prompts, "load_image", lambda source: read.append(source) or load(source))
    chat = [{"role": "user", "content": [{"type": "image", "path": file}, {"type": "text", "text": "why"}]}]
    mmspec.generate([None, file], [chat, "why"], max_new_tokens=2)
    mmspec.generate(file, "why", max_new_tokens=2)
    mmspec.generate(prompt=chat, max_new_tokens=2)
    assert read.count(file) == 4
