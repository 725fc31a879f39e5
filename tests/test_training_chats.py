"""Conversations of one's own to train on and to measure with: their last question is asked, with all before it."""

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from commands import succeeded
from PIL import Image
from tiny_vision import BLUE, RED
from typer.testing import CliRunner

import mmspec
from mmspec.benchmarks.cli import app
from mmspec.errors import InputError
from mmspec.training import hub
from mmspec.training.answers import AnswerOptions, collect
from mmspec.training.asking import held_out_batches, prepare
from mmspec.training.conversations import conversation
from mmspec.training.course import Course
from mmspec.training.data import Lines, open_data
from mmspec.training.drafter import train_drafters
from mmspec.training.eagle import EagleRecipe
from mmspec.training.medusa import MedusaRecipe
from mmspec.training.questions import as_text
from mmspec.training.written import own_answer

TEMPLATE = (
    "{% for turn in messages %}<{{ turn['role'] }}>{{ turn['content'] }} {{ loop.index }}<end_of_utterance>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
"""Of a tokenizer; turns are counted, so that an answer is not the same behind other turns."""

STRINGS = (
    "{% for turn in messages %}{% if turn['role'] == 'user' %}{% for part in turn['content'] %}"
    "{{ '[' + part['text'] + ']' if part['type'] == 'text' else '<image>' }}{% endfor %}"
    "{% else %}{{ ANSWER }}<end_of_utterance>{% endif %}{% endfor %}"
)
"""Of a processor, with parts from the user and strings from the assistant."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.tiny_smolvlm(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def pipe(folder: Path) -> Any:
    return mmspec.load(folder, drafter="none", dtype="float64")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder with two pictures."""
    place = tmp_path / "data"
    (place / "more").mkdir(parents=True)
    RED.save(place / "a.png")
    BLUE.save(place / "more" / "b.png")
    return place


def write(folder: Path, *lines: Any, name: str = "mine.jsonl") -> Path:
    (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def says(role: str, *parts: Any, key: str = "image") -> dict[str, Any]:
    """A turn; what is no text is a picture, None one without a source."""
    content = [
        {"type": "text", "text": part}
        if isinstance(part, str) and not part.endswith(".png")
        else {"type": "image", **({} if part is None else {key: part})}
        for part in parts
    ]
    return {"role": role, "content": content}


def llava(*values: str, image: Any = None) -> dict[str, Any]:
    """A line as LLaVA-Instruct has it, the user's turn first."""
    turns = [{"from": ("human", "gpt")[place % 2], "value": value} for place, value in enumerate(values)]
    return {"id": "1", "conversations": turns, **({} if image is None else {"image": image})}


ASKED = ("what is it?", "a red bar", "and", "?")
SEEN = ["a.png", "more/b.png"]
FORMS: dict[str, dict[str, Any]] = {
    "image": {
        "messages": [
            says("user", "a.png", ASKED[0]),
            {"role": "assistant", "content": ASKED[1]},
            says("user", "and", "more/b.png", "?"),
            {"role": "assistant", "content": "a blue one"},
        ]
    },
    "path": {
        "messages": [
            says("user", "a.png", ASKED[0], key="path"),
            says("assistant", ASKED[1]),
            says("user", "and", "more/b.png", "?", key="path"),
            says("assistant", "a blue", " one"),
        ]
    },
    "places": {
        "messages": [
            says("user", None, ASKED[0]),
            says("assistant", ASKED[1]),
            says("user", "and", None, "?"),
            says("assistant", "a blue one"),
        ],
        "images": SEEN,
    },
    "llava": llava("<image>\nwhat is it?", ASKED[1], "and<image>?", "a blue one", image=SEEN),
}
CHAT = [says("user", RED, ASKED[0]), says("assistant", ASKED[1]), says("user", "and", BLUE, "?")]


@pytest.mark.parametrize("form", FORMS)
def test_a_conversation_is_asked_as_its_chat(form: str, pipe: Any, data: Path) -> None:
    asked = Lines(write(data, FORMS[form]))[0]
    assert (asked.image, asked.answer, asked.where) == (None, "a blue one", "mine.jsonl, line 1")
    wanted = pipe.processor.apply_chat_template(
        CHAT, add_generation_prompt=True, tokenize=True, return_dict=True, return_tensors="pt"
    )
    found = prepare(pipe, [asked])
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)
    assert as_text(asked.prompt) == "user: <image> what is it?\nassistant: a red bar\nuser: and <image> ?"


def test_a_list_in_a_json_file_is_read_as_llava_is_published(data: Path) -> None:
    lines = [llava("<image>\nwhat?", "a bar", image="a.png"), llava("why?", "so", "and?"), {"prompt": "which?"}]
    (data / "instruct.json").write_text(json.dumps(lines))
    (data / "sizes.json").write_text('{"a.png": 3}')
    found = Lines(data)
    assert [as_text(found[place].prompt) for place in range(3)] == [
        "what?", "user: why?\nassistant: so\nuser: and?", "which?",
    ]  # fmt: skip
    assert found.places[1] == found.chat == "instruct.json, entry 2"
    write(data, {"prompt": "these alone"})  # where there are lines, other files are what they were: none of ours
    assert len(Lines(data)) == 1
    (data / "mine.jsonl").unlink()
    (data / "instruct.json").write_text("[")
    with pytest.raises(InputError, match="instruct.json: not JSON"):
        Lines(data)


def test_one_turn_is_the_prompt_and_picture_of_a_plain_line(data: Path) -> None:
    """So that models which take no chats can be asked, and a run goes on with the same questions, written otherwise."""
    asked = says("user", "a.png", "what?")
    lines = Lines(
        write(
            data,
            {"image": "a.png", "prompt": "what?", "answer": None},
            {"messages": [asked]},
            llava("<image>\nwhat?", image="a.png"),
            llava("what?", image=["a.png"]),
            {"messages": [{"role": "system", "content": ""}, {"role": "assistant", "content": "Welcome!"}, asked]},
        )
    )
    assert [lines[place] for place in range(1, 5)] == [lines[0]] * 4
    assert lines.chat == ""


@pytest.mark.parametrize(
    ("talk", "said", "answer"),
    [
        (llava("why?", "so", "and?", "thus")["conversations"], "user: why?\nassistant: so\nuser: and?", "thus"),
        (llava("why?", "so", "and?")["conversations"], "user: why?\nassistant: so\nuser: and?", None),
        ([says("system", "be brief"), says("user", "why?")], "system: be brief\nuser: why?", None),
        ([{"from": "system", "value": "be brief"}, says("user", "why?")], "system: be brief\nuser: why?", None),
        ([{"user": "why?", "assistant": "so"}, {"user": "and?"}], "user: why?\nassistant: so\nuser: and?", None),
        ([says("user", "why?"), says("tool", "3"), says("assistant", "so")], "why?", "so"),
        ([{**says("user", "why?"), "name": "Ann", "tool_calls": [], "function_call": None}], "why?", None),
        (
            [says("user", "why?"), says("assistant", "so"), {"role": "assistant", "tool_calls": [{"id": "1"}]}],
            "why?",
            "so",
        ),  # what comes behind the answer is nobody's concern
        ([says("user", "why ", "not", "?"), says("assistant", "so")], "why not?", "so"),
        ([{"role": "user", "content": [{"type": None, "text": "why"}, {"text": "?"}]}], "why?", None),
    ],
)
def test_the_last_user_is_asked_with_all_before(talk: Any, said: str, answer: str | None) -> None:
    found = conversation(talk)
    assert (as_text(found.asked([])[0]), found.answer) == (said, answer)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("<image>\nwhich?", [None, "which?"]),
        ("which?\n<image><image>\n", ["which?", None, None]),
        ("one: <image>\ntwo: <image>\nwhich?", ["one: ", None, "\ntwo: ", None, "\nwhich?"]),
        (" <image> <image> which? ", [None, None, "which? "]),
        (" which? ", [" which? "]),
    ],
)
def test_words_and_pictures_keep_their_places(text: str, parts: list[str | None]) -> None:
    assert conversation([{"role": "user", "content": text}]).messages == [says("user", *parts)]


def test_pictures_without_a_place_are_shown_first_of_all(data: Path) -> None:
    line = llava("what?", "a bar", "and?", image=SEEN)
    line["conversations"].insert(0, {"from": "system", "value": "be brief"})
    assert as_text(Lines(write(data, line))[0].prompt).splitlines()[:2] == [
        "system: be brief", "user: <image> <image> what?",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ({"messages": []}, r"line 2: nobody asks anything in the conversation \[\]"),
        ({"messages": "why?"}, "line 2: nobody asks anything"),
        ({"messages": [says("assistant", "so")]}, "line 2: nobody asks anything"),
        ({"messages": ["why?"]}, r"line 2: a turn is .*, not 'why\?'"),
        (
            {"messages": [says("user", "why?"), says("assistant"), says("user", "?")]},
            "line 2: turn 2 of .* says",
        ),
        ({"messages": [says("user", "a.png")]}, "line 2: the prompt is .*, not a text"),
        ({"messages": [{"role": "user", "content": [{"type": "video", "path": "a"}]}]}, "line 2: a part of a turn is"),
        ({"messages": [{"role": "user", "content": 3}]}, "line 2: a part of a turn is .*, not 3"),
        ({"messages": [says("user", "../a.png", "why?")]}, "line 2: the image '../a.png' is not a file inside"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "image": 3}, "?"]}]}, "line 2: a part of a turn"),
        ({"messages": [says("user", "a.png", "?", key="url")]}, "line 2: a part of a turn is .*url"),
        ({"messages": [says("user", "a.png", "?", key="base64")]}, "line 2: a part of a turn is .*base64"),
        ({"messages": [{"role": "user", "content": [{"text": "?", "image": "a.png"}]}]}, "line 2: a part of a turn"),
        (
            {"messages": [says("user", "?"), {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}]},
            "line 2: a turn has tool_calls, which no prompt can hold",
        ),
        (
            {"messages": [{"role": "assistant", "function_call": {"name": "f"}}, says("user", "?")]},
            "line 2: a turn has function_call, which no prompt can hold",
        ),
        ({"messages": [says("user", "?")], "image": 3}, "line 2: image must be one text or a list of them, not 3"),
        ({"messages": [says("user", "?")], "prompt": "a"}, "line 2: messages say all .*: leave prompt out"),
        (llava("<image>\nwhy?"), "line 2: places for pictures in the conversation: 1, pictures with it: 0"),
        ({"messages": [says("user", "why", None, "?")]}, "line 2: places for pictures .*: 1, pictures with it: 0"),
        (llava("<image>\nwhy?", image=SEEN), "line 2: places for pictures in the conversation: 1, pictures with it: 2"),
    ],
)
def test_a_bad_conversation_is_named(line: Any, words: str, data: Path) -> None:
    RED.save(data.parent / "a.png")
    with pytest.raises(InputError, match=words):
        Lines(write(data, {"prompt": "good"}, line))


def test_a_place_amid_words_is_none_where_no_picture_comes(data: Path) -> None:
    lines = Lines(write(data, llava("What does <image> mean?", "so"), llava("Is <image> a tag?", "yes", "and?")))
    assert (lines[0].image, lines[0].prompt) == (None, "What does mean?")
    assert as_text(lines[1].prompt) == "user: Is a tag?\nassistant: yes\nuser: and?"


def test_a_folder_without_lines_is_told_what_it_may_hold(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "none"):
        with pytest.raises(InputError, match=r"in \*\.jsonl files, (nor|or) a list of them in \*\.json files"):
            Lines(place)


def test_what_is_not_read_of_conversations_is_told(data: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "mmspec")
    write(data, {**llava("why?"), "picture": "a.png"})
    Lines(data)
    assert caplog.messages == [f"{data}: not read of conversations: picture"]
    caplog.clear()
    Lines(write(data, llava("why?")))
    assert not caplog.messages  # the number that LLaVA gives a line is nothing to read


def test_plain_data_has_the_name_that_it_had(tmp_path: Path) -> None:
    """Runs and answers are found by it."""
    (tmp_path / "a.png").write_bytes(b"x" * 100)
    (tmp_path / "b.png").write_bytes(b"y" * 7)
    lines = [
        {"image": "a.png", "prompt": "Which <image> bar?", "answer": "This."},
        {"image": SEEN[:1] + ["b.png"], "prompt": "<image>\nCompare.", "answer": None},
        {"prompt": "What?"},
    ]
    assert Lines(write(tmp_path, *lines)).name == f"{tmp_path} 6a3e40558ef8885b"
    chats = Lines(write(tmp_path, *lines, llava("why?", "so", "and?")))
    assert chats.name != Lines(write(tmp_path, *lines, llava("why?", "so", "but?"))).name


# Answers, training and benchmarks


def mixed(data: Path, count: int = 0) -> Path:
    """Chats beside plain lines, all with answers."""
    plain = [{"image": "a.png", "prompt": f"which {n}?", "answer": f"the {n} one"} for n in range(count)]
    chats = [llava("<image>\nwhat?", "a bar", f"and {n}?", f"{n} bars", image="a.png") for n in range(count)]
    return write(data, FORMS["llava"], {"prompt": "what is blue?", "answer": "the bar"}, *plain, *chats)


def test_answers_to_chats_are_those_of_calls(pipe: Any, data: Path, tmp_path: Path) -> None:
    rows = collect(pipe, Lines(mixed(data)), AnswerOptions(sampled=0, max_new_tokens=12), tmp_path / "run", "it")
    wanted = [pipe(prompt=CHAT, max_new_tokens=12), pipe(None, "what is blue?", max_new_tokens=12)]
    assert [row.answer for row in rows] == [[*answer.token_ids] for answer in wanted]
    assert rows[0].prompt == pipe.prepare(None, CHAT)["input_ids"][0].tolist()


def test_own_answers_to_chats_are_what_the_template_writes(pipe: Any, data: Path) -> None:
    asked = Lines(mixed(data))[0]
    whole = pipe.processor.apply_chat_template(
        [*CHAT, says("assistant", "a blue one")], tokenize=True, return_dict=True, return_tensors="pt"
    )["input_ids"][0]
    ids = [*prepare(pipe, [asked])["input_ids"][0].tolist(), *own_answer(pipe, asked)]
    end = pipe.processor.tokenizer.eos_token_id
    assert ids == whole[: len(ids)].tolist()
    assert ids[-1] == end
    assert end not in whole[len(ids) :]


@pytest.mark.parametrize("written", ["turn['content'] + ''", "turn['content']"])
@pytest.mark.parametrize("earlier", [(), ("<image>\nwhat?", "a bar")])
def test_own_answers_are_texts_where_the_template_writes_the_assistant_s_as_they_are(
    earlier: tuple[str, ...], written: str, pipe: Any, data: Path
) -> None:
    """As Pixtral's does, which stumbles over parts, and others, which would write them out."""
    processor = copy.deepcopy(pipe.processor)
    processor.chat_template = STRINGS.replace("ANSWER", written)
    writer = mmspec.load(tiny.smolvlm_model(), "none", processor=processor)
    asked = Lines(write(data, llava(*earlier, "and?", "a blue one", image="a.png" if earlier else None)))[0]
    end = "<end_of_utterance>"
    prompt = processor.tokenizer.decode(prepare(writer, [asked])["input_ids"][0])
    assert prompt.endswith(f"[what?]a bar{end}[and?]" if earlier else "[and?]")
    assert processor.tokenizer.decode(own_answer(writer, asked)) == f"a blue one{end}"


def test_own_answers_to_chats_of_a_tokenizer(data: Path) -> None:
    tokenizer = copy.deepcopy(tiny.tokenizer())
    tokenizer.chat_template = TEMPLATE
    writer = mmspec.load(tiny.llama_model(), "none", processor=tokenizer)
    line = {"messages": [says("system", "be brief"), says("user", "why", "?"), says("assistant", "so")]}
    asked = Lines(write(data, line, llava("why?", "so", "and?")))
    prompt = tokenizer.decode(prepare(writer, [asked[0]])["input_ids"][0])
    end = "<end_of_utterance>"
    assert prompt + tokenizer.decode(own_answer(writer, asked[0])) == (
        f"<system>be brief 1{end}<user>why? 2{end}<assistant>so 3{end}"
    )
    with pytest.raises(InputError, match=r"the question 'user: why\?\\nassistant: so\\nuser: and\?' has no answer"):
        own_answer(writer, asked[1])


def test_chats_that_cannot_be_asked_are_named_and_left_out(
    pipe: Any, data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A picture that is not there, and a control token, both of an earlier turn."""
    damaged = llava("<image>\nwhat?", "so", "and?", image="no.png")
    control = llava(f"why <image>{pipe.processor.video_token}?", "so", "and?", image="a.png")
    lines = Lines(write(data, damaged, FORMS["llava"], control, {"prompt": "which?"}))
    found = collect(pipe, lines, AnswerOptions(sampled=0, max_new_tokens=8), tmp_path / "run", "it")
    assert {row.index for row in found} <= {1, 3}
    picture, token = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"][:2]
    assert picture.startswith("question 0 is left out: mine.jsonl, line 1: the image 'no.png' is not a file inside ")
    assert token.startswith("question 2 is left out: mine.jsonl, line 3: the prompt holds the control token")
    assert held_out_batches(pipe, lines, 4)[1] == [0, 2]


@pytest.mark.parametrize("author", ["target", "data"])
def test_drafters_learn_from_chats_and_a_run_goes_on(
    author: str, pipe: Any, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    course = Course(
        str(mixed(data, 4)), held_out=3, validate_every=9, answers=AnswerOptions(author, 0.5, max_new_tokens=8, batch=4)
    )
    recipes = [EagleRecipe(steps=2, batch=4), MedusaRecipe(steps=2, batch=4)]
    outs = [tmp_path / "out" / recipe.method for recipe in recipes]
    figures = train_drafters(pipe, recipes, course, outs, tmp_path / "run", "tiny")
    assert all(figures[recipe.method]["tau_t0"] >= 1 for recipe in recipes)
    drafting = pipe.with_drafter(outs[0], "own")
    assert drafting(prompt=CHAT, max_new_tokens=12).token_ids == pipe(prompt=CHAT, max_new_tokens=12).token_ids
    assert len(list(tmp_path.glob("run/eagle2+medusa-*"))) == 1
    monkeypatch.setattr("mmspec.training.answers._answer", lambda *given: pytest.fail("it is answered again"))
    assert train_drafters(pipe, recipes, course, outs, tmp_path / "run", "tiny") == figures
    assert len(list(tmp_path.glob("run/eagle2+medusa-*"))) == 1


def test_a_model_that_takes_no_chats_says_so_before_any_work(
    folder: Path, pipe: Any, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(data, {"prompt": "which?"}, FORMS["llava"])
    said = "^mine.jsonl, line 2 holds a chat, and the model takes a text, and no chat of several turns$"
    monkeypatch.setattr("mmspec.benchmarks.commands.speed.loaded", lambda *given: pytest.fail("the model was loaded"))
    monkeypatch.setattr(type(pipe.target), "chats", False)
    monkeypatch.setattr(pipe, "prepare", None)
    course = Course(str(data), held_out=1)
    with pytest.raises(InputError, match=said):
        train_drafters(pipe, [EagleRecipe()], course, [tmp_path / "out"], tmp_path / "run", "tiny")
    with pytest.raises(InputError, match=said):
        succeeded(CliRunner().invoke(app, ["--model", str(folder), "--drafters", "none", "--data", str(data)]))
    write(data, llava("<image>\nwhat?", image="a.png"), {"prompt": "which?"})
    assert open_data(str(data), None, 1, 0, chats=False)[0][0].prompt == "what?"  # one turn is no chat


def test_chats_are_measured(folder: Path, data: Path, tmp_path: Path) -> None:
    (data / "bad.png").write_bytes(b"no picture")
    bad, gone = (llava("?", "so", "and?", image=name) for name in ("bad.png", "gone.png"))
    write(data, FORMS["llava"], {"prompt": "Say something."}, FORMS["image"], bad, gone)
    arguments = ["--questions", "5", "--max-new-tokens", "8", "--min-tokens", "1", "--repeats", "1", "--no-memory"]
    arguments += ["--model", str(folder), "--drafters", "none,suffix", "--temperature", "0", "--no-plot"]
    arguments += ["--data", str(data), "--out", str(tmp_path / "out")]
    for _ in range(2):  # the second time nothing is left to do
        text = succeeded(CliRunner().invoke(app, arguments))
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["samples"] == 3
    first, second = summary["refused"]
    assert re.match(r"mine.jsonl, line 4: image .* is not a readable image", first)
    assert second == f"mine.jsonl, line 5: the image 'gone.png' is not a file inside {data}"
    assert f"2 of them cannot be asked; the first: {first}" in text
    runs = [json.loads(line)["runs"] for line in (tmp_path / "out" / "samples.jsonl").read_text().splitlines()]
    # the first and the third are one conversation, in its two forms
    assert runs[0]["none"]["tokens"] == runs[2]["none"]["tokens"] == runs[0]["suffix"]["tokens"]
    plain = mmspec.load(folder, "none")
    assert runs[0]["none"]["tokens"] == plain(prompt=CHAT, max_new_tokens=8, temperature=0).token_ids


# Data sets of the hub


def rows_of(folder: Path, rows: list[dict[str, Any]], pictures: bool = True) -> hub.HubData:
    """A data set as the hub lays it out, with a column `images`."""
    import io

    datasets = pytest.importorskip("datasets")
    if pictures:
        stored = {}
        for name, picture in (("a.png", RED), ("more/b.png", BLUE)):
            stream = io.BytesIO()
            picture.save(stream, "PNG")
            stored[name] = {"bytes": stream.getvalue(), "path": None}
        rows = [{**row, "images": [stored[name] for name in row.get("images", SEEN)]} for row in rows]
    table = datasets.Dataset.from_list(rows)
    if pictures:
        table = table.cast_column("images", datasets.List(datasets.Image()))
    (folder / "data").mkdir(parents=True)
    table.to_parquet(folder / "data" / "train-00000-of-00001.parquet")
    return hub.HubData(str(folder))


def test_rows_with_conversations_are_asked_as_their_chats(pipe: Any, tmp_path: Path) -> None:
    turns = FORMS["llava"]["conversations"]
    for name, column, talk in (("a", "messages", FORMS["places"]["messages"]), ("b", "conversations", turns)):
        if column == "messages":  # as parquet files have it: one kind of parts, with empty fields
            talk = [{**turn, "content": [{"text": None, **part} for part in turn["content"]]} for turn in talk]
        rows = rows_of(tmp_path / name, [{column: talk}])
        asked = rows[0]
        assert (asked.image, asked.answer) == (None, "a blue one")
        wanted = pipe.prepare(None, CHAT)
        found = prepare(pipe, [asked])
        assert all(torch.equal(found[name], wanted[name]) for name in wanted)
        assert rows.chat == f"{tmp_path / name}:train, row 0"
        with pytest.raises(InputError, match=":train, row 0 holds a chat"):
            open_data(str(tmp_path / name), None, 0, 0, chats=False)


def test_a_row_without_a_picture_for_a_place_is_named(tmp_path: Path) -> None:
    talk = llava("<image>\nwhat?", "so", "and?")
    rows = rows_of(tmp_path, [{**talk, "images": names} for names in ([], ["a.png"], SEEN)])
    for index, count in ((0, 0), (2, 2)):
        with pytest.raises(
            InputError, match=f"row {index}: places for pictures in the conversation: 1, pictures with it: {count}$"
        ):
            rows[index]
    assert as_text(rows[1].prompt) == "user: <image> what?\nassistant: so\nuser: and?"


def test_a_row_with_one_question_is_asked_behind_whatever_pictures_it_has(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, [{**llava("<image>\nwhat?", "so"), "images": names} for names in ([], ["a.png"], SEEN)])
    assert [rows[index].prompt for index in range(3)] == ["what?"] * 3
    assert [rows[0].image, len(rows[2].image), rows.chat] == [None, 2, ""]
    assert isinstance(rows[1].image, Image.Image)


def test_conversations_of_one_question_keep_their_name_and_others_have_a_new_one(tmp_path: Path) -> None:
    """Of the others the first question was asked once."""
    one, several = llava("<image>\nWhich?", "This."), llava("Which?", "This.", "And?", "That.")
    digests = [
        rows_of(tmp_path / str(place), [{"conversations": line["conversations"]}] * 2, pictures=False).name[-16:]
        for place, line in enumerate((one, several))
    ]
    assert digests[0] == "02fa1f2eb9e36abc"
    assert digests[1] != "5cf3a70ce3bce6b0"


def test_words_stay_apart_where_no_picture_comes(tmp_path: Path) -> None:
    lines = llava("Look.<image>Which?\n<image>"), llava("<image>", "This.", "And now?")
    rows = rows_of(tmp_path, [{"conversations": line["conversations"]} for line in lines], pictures=False)
    assert (rows[0].prompt, rows.chat) == ("Look. Which?", "")
    with pytest.raises(InputError, match="row 1: a turn of the conversation is a picture alone, and none comes"):
        rows[1]


def test_a_conversation_of_a_row_opens_no_file_but_those_of_its_data_set(tmp_path: Path) -> None:
    for place in (tmp_path / "private.png", tmp_path / "set" / "own.png"):
        place.parent.mkdir(exist_ok=True)
        RED.save(place)
    names = ["own.png", "../private.png", str(tmp_path / "private.png")]
    talks = [[{"role": "user", "content": [{"type": "text", "text": "what?", "image": None}]}] for _ in names]
    for talk, name in zip(talks, names, strict=True):
        talk[0]["content"].insert(0, {"type": "image", "text": None, "image": name})
    rows = rows_of(tmp_path / "set", [{"messages": talk} for talk in talks], pictures=False)
    assert rows[0].image.getpixel((3, 3)) == RED.getpixel((3, 3))
    for index in (1, 2):
        with pytest.raises(InputError, match=rf"row {index} cannot be read: the picture '.*' is no file of the data"):
            rows[index]
