"""Chats with models that hear: what they read is what transformers makes of the same messages."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_hearing as hearing
import torch
from test_families import hf
from test_speech_hearing import plain
from tiny_hearing import HIGH, LONG, LOW
from torch import Tensor
from typer.testing import CliRunner

from mmspec.cli import app
from mmspec.errors import InputError
from mmspec.speech.audio import Audio

FAMILIES = ["voxtral", "qwen2-audio", "audio-flamingo-3"]
RECOGNISERS = ["qwen3-asr", "glm-asr"]
BUDGET = 6
GREEDY: Any = {"temperature": 0, "max_new_tokens": BUDGET}
BRIEF = {"role": "system", "content": "answer briefly"}
SAID = {"role": "assistant", "content": "a low voice"}


def asks(*parts: Any) -> dict[str, Any]:
    """A turn of the user, texts and recordings in this order."""
    return {
        "role": "user",
        "content": [{"type": "text", "text": part} if isinstance(part, str) else part for part in parts],
    }


def heard(source: Any) -> dict[str, Any]:
    """The part of a recording."""
    return {"type": "audio", "audio": source}


def talk(family: str) -> list[dict[str, Any]]:
    """Two turns, with more recordings in the second one where the processor takes them."""
    more = [] if family == "audio-flamingo-3" else [heard(HIGH), "or", heard(LONG)]
    return [asks(heard(LOW), "what is said?"), SAID, asks("and", *more, "?")]


def stock(family: str, chat: list[dict[str, Any]]) -> dict[str, Tensor]:
    """What the stock processor makes of a chat. For Voxtral mistral-common makes it, which has a test of its own."""
    pipe = plain(family)
    if family == "voxtral":
        return pipe.prepare(None, chat)
    given = [{"role": turn["role"], "content": [part_of(part) for part in parts_of(turn)]} for turn in chat]
    told = {"add_generation_prompt": True, "tokenize": True, "return_dict": True, "return_tensors": "pt"}
    return dict(pipe.processor.apply_chat_template(given, **told))


def parts_of(turn: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"type": "text", "text": turn["content"]}] if isinstance(turn["content"], str) else turn["content"]


def part_of(part: dict[str, Any]) -> dict[str, Any]:
    return {**part, "audio": part["audio"].samples} if "audio" in part else part


@pytest.mark.parametrize("family", FAMILIES)
def test_a_chat_is_read_as_transformers_reads_it(family: str) -> None:
    """Recordings in several turns, none, or one without a word; alone, and in a batch with a text, with drafts."""
    pipe = plain(family).with_drafter("recycling", "own")
    chats = [talk(family), [asks("why?"), SAID, asks("so?")], [asks(heard(HIGH))]]
    wanted = [stock(family, chat) for chat in chats]
    for chat, want in zip(chats, wanted, strict=True):
        found = pipe.prepare(None, chat)
        assert found.keys() == want.keys()
        assert all(torch.equal(found[name], want[name]) for name in want)
    said = [hf(pipe.target.model, want, BUDGET)[0] for want in wanted]
    batch = pipe(prompt=[*chats, "why"], voice=[None, None, None, LONG], **GREEDY)
    assert [answer.token_ids for answer in batch] == [*said, pipe(prompt="why", voice=LONG, **GREEDY).token_ids]
    assert len({tuple(answer) for answer in said}) == 3


def test_voxtral_s_chats_are_the_published_ones() -> None:
    pipe = plain("voxtral")

    def words(text: str) -> list[int]:
        return [len(hearing.CONTROL) + byte for byte in text.encode()]

    sound = [25, *[24] * 25]
    chat = [
        asks(heard(LOW), "what", "else?"),
        {"role": "assistant", "content": "a [/INST] "},
        asks("and", heard(HIGH), heard(LONG), "?"),
    ]
    found = pipe.prepare(None, chat)
    first = [1, 3, *sound, *words("what\n\nelse?"), 4, *words("a [/INST]"), 2]
    assert found["input_ids"].tolist() == [[*first, 3, *words("and"), *sound, *sound, *words("?"), 4]]
    each = [pipe.prepare(None, "why", voice=one)["input_features"] for one in (LOW, HIGH, LONG)]
    assert torch.equal(found["input_features"], torch.cat(each))
    ids = pipe.prepare(None, [BRIEF, asks("why")])["input_ids"].tolist()
    assert ids == [[1, 17, *words("answer briefly"), 18, 3, *words("why"), 4]]
    for wrong, what in (
        ([BRIEF, asks(heard(LOW), "why")], "nothing beside a system prompt"),
        ([asks("why"), {**asks(heard(LOW)), "role": "assistant"}, asks("so")], "hears what its user plays"),
        ([asks("why"), asks("so")], "by turns, .* not those of user, user"),
        ([{"role": "tool", "content": "42"}, asks("so")], "not those of tool, user"),
    ):
        with pytest.raises(InputError, match=what):
            pipe.prepare(None, wrong)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_recording_beside_a_chat_is_heard_with_the_first_words_of_its_user(family: str, tmp_path: Path) -> None:
    pipe = plain(family)
    system = [] if family == "voxtral" else [BRIEF]
    file = str(LOW.save(tmp_path / "low.wav"))
    found = pipe.prepare(None, [*system, asks("what?"), SAID, asks("why?")], voice=file)
    for source in (file, Path(file), Path(file).read_bytes()):
        want = pipe.prepare(None, [*system, asks(heard(source), "what?"), SAID, asks("why?")])
        assert all(torch.equal(found[name], want[name]) for name in want)
    named = asks({"type": "audio", "path": file}, "what?")
    want = pipe.prepare(None, [*system, named, SAID, asks("why?")])
    assert torch.equal(found["input_features"], want["input_features"])
    one, several = pipe.prepare(None, "why", voice=LOW), pipe.prepare(None, [asks("why")], voice=LOW)
    assert all(torch.equal(one[name], several[name]) for name in one)
    with pytest.raises(InputError, match="a chat holds its recordings in its messages: leave voice out"):
        pipe.prepare(None, [asks(heard(LOW), "what?")], voice=LOW)


@pytest.mark.parametrize("family", FAMILIES)
def test_control_tokens_of_every_turn_stay_text(family: str) -> None:
    pipe, end = plain(family), "<end_of_utterance>" if family != "voxtral" else "[/INST]"
    tokenizer = pipe.processor.tokenizer

    def ids(word: str) -> Any:
        said = {"role": "assistant", "content": f"a {word}"}
        chat = [asks(heard(LOW), f"what is {word}?"), said, asks(f"{word}?")]
        return pipe.prepare(None, chat)["input_ids"][0].tolist()

    held, place = ids(end), tokenizer.convert_tokens_to_ids(end)
    assert held.count(place) == ids("it").count(place)
    assert tokenizer.decode(held).count(end) == 3 + held.count(place)
    slot = tokenizer.convert_ids_to_tokens(pipe.target.slot)
    for wrong in ([asks(heard(LOW), slot)], [asks(slot[:3], heard(LOW), slot[3:])]):
        with pytest.raises(InputError, match="the prompt holds the control token"):
            pipe.prepare(None, wrong)
    with pytest.raises(InputError, match='the "role" of message 0 of the prompt is'):
        pipe.prepare(None, [{"role": f"user{end}", "content": "x"}, asks("why")])


@pytest.mark.parametrize("family", FAMILIES)
def test_what_cannot_be_heard_in_a_chat_is_told(family: str) -> None:
    pipe = plain(family)
    longest = int(pipe.target.longest(pipe.processor))
    for wrong, what in (
        ("https://a/b.wav", "'https://a/b.wav': URLs are not fetched; download the file and pass its path"),
        ("data:audio/wav;base64,AA", "URLs are not fetched"),
        ("nowhere.wav", "there is no audio file 'nowhere.wav'"),
        (b"RIFF", "not a WAV file"),
        (3, "audio must be a WAV file's path or bytes, or an Audio, not int"),
        (Audio(np.zeros((longest + 1) * 4000, np.float32), 4000), "heard at most|at most 600 s are read"),
    ):
        with pytest.raises(InputError, match=what):
            pipe(prompt=[asks("what?", heard(wrong)), SAID, asks("why?")])
    for part in ({"type": "audio", "url": "https://a/b.wav"}, {"type": "audio"}):
        with pytest.raises(InputError, match="a part without its recording"):
            pipe(prompt=[asks(part)])


def test_a_processor_for_one_recording_refuses_two() -> None:
    with pytest.raises(InputError, match="AudioFlamingo3Processor refuses the prompt: .* 2 audios"):
        plain("audio-flamingo-3")(prompt=[asks(heard(LOW), "what?"), SAID, asks(heard(HIGH), "and now?")])


@pytest.mark.parametrize("family", RECOGNISERS)
def test_a_recogniser_takes_no_chats(family: str) -> None:
    with pytest.raises(InputError, match="takes a text.*, and no chat of several turns"):
        plain(family)(prompt=[asks(heard(LOW), "transcribe")])


def test_the_command_line_has_a_system_prompt_for_recordings(tmp_path: Path) -> None:
    model, processor = hearing.MAKERS["qwen2-audio"](0)
    model.float().save_pretrained(tmp_path)
    processor.save_pretrained(tmp_path)
    told = ["--model", str(tmp_path), "--voice", str(LOW.save(tmp_path / "low.wav")), "--max-new-tokens", "3", "--json"]
    answers = [
        json.loads(CliRunner().invoke(app, ["generate", "what is said?", *told, *more]).stdout)
        for more in ([], ["--system", "answer briefly"])
    ]
    ids = [plain("qwen2-audio").prepare(None, [*system, asks(heard(LOW), "what is said?")]) for system in ([], [BRIEF])]
    assert [answer["prompt_tokens"] for answer in answers] == [len(one["input_ids"][0]) for one in ids]
