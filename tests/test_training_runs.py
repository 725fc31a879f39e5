"""What surrounds the training of drafters: early stop, data sets of the hub, several processes, what a run costs; and
for every method one batch by heart, and a run that was killed.
"""

import itertools
import json
import logging
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import taught
import test_training
import tiny
import torch
import toys
import two_processes
from one_drafter import train_drafter
from PIL import Image
from safetensors.torch import load_file
from taught import METHODS
from torch import nn
from transformers import TrainingArguments

import mmspec
from mmspec.drafters.none import NoDrafter
from mmspec.errors import CheckpointError, InputError, MissingExtraError, UnknownNameError
from mmspec.pretrain.command import parsed, target_parser
from mmspec.registry import modalities, names, resolve
from mmspec.targets import CausalTarget
from mmspec.training import drafter as training
from mmspec.training import hub, processes, shares, updates
from mmspec.training.answers import AnswerOptions, collect
from mmspec.training.card import Trained, model_card
from mmspec.training.data import Lines, Miniworld, open_data, warm_up_data, written_data
from mmspec.training.drafter import train_drafters
from mmspec.training.learner import Learner, LearnerTrainer
from mmspec.training.loop import training_arguments
from mmspec.training.processes import check_device
from mmspec.training.questions import Question, as_text
from mmspec.training.spd import SpdRecipe
from mmspec.training.validation import best_step, exhausted, measure
from mmspec.training.written import own_answer

COURSE = test_training.COURSE


@pytest.fixture(scope="module")
def pipe(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return mmspec.load(tiny.tiny_smolvlm(tmp_path_factory.mktemp("target")), drafter="none")


# Early stop


def entry(step: int, greedy: float, sampled: float = 1.0, method: str = "eagle2") -> dict[str, Any]:
    return {"step": step, "method": method, "tau_t0": greedy, "tau_t1": sampled}


def test_training_is_over_when_patience_is() -> None:
    history = [
        {"step": 1, "loss": 3.0},
        entry(2, 1.5),
        entry(4, 2.0),
        entry(6, 1.9),
        entry(8, 2.0),
        {"step": 8, "loss": 1},
    ]
    assert best_step(history) == 4  # the first of equals
    assert [exhausted(history, patience) for patience in (0, 1, 2, 3)] == [False, True, True, False]
    both = [entry(2, 2.0), entry(2, 2.0, method="medusa"), entry(4, 3.0), entry(4, 1.5, method="medusa")]
    assert best_step(both) == 4  # by the mean of all methods
    assert best_step(history, settled=4) == 8
    assert [exhausted(history[:4], 1, settled) for settled in (0, 4, 6)] == [True, False, False]
    assert best_step([]) == 0
    assert not exhausted([], 1)


def told(taus: list[float], monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Make measured taus what a test says; returns a list that grows with every measurement."""
    measured: list[int] = []

    def measure(*arguments: Any) -> dict[str, float]:
        measured.append(1)
        return {"tau_t0": taus[len(measured) - 1], "tau_t1": 1.0}

    monkeypatch.setattr(training, "measure", measure)
    return measured


def test_a_run_stops_early_and_takes_the_best_weights(
    pipe: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same whether it was killed on the way or not, and when the command is given once more."""
    recipe = taught.recipe_of("medusa", steps=12, batch=4, levels=2)
    course = replace(COURSE, validate_every=2, save_every=2, patience=2)
    short = taught.recipe_of("medusa", steps=12, batch=4, levels=2)
    weights: dict[int, Any] = {}
    keep = training.Best.keep

    def noted(self: Any) -> None:
        weights[len(weights)] = {name: weight.clone() for name, weight in self.learner.state_dict().items()}
        keep(self)

    monkeypatch.setattr(training.Best, "keep", noted)
    measured = told([1.5, 2.5, 2.0, 2.4, 9.0], monkeypatch)
    figures = train_drafter(pipe, recipe, course, tmp_path / "one", tmp_path / "run", "tiny")
    assert len(measured) == 4
    assert len(weights) == 2
    assert (figures["step"], figures["tau_t0"]) == (4, 2.5)
    card = (tmp_path / "one" / "README.md").read_text()
    assert "The weights are those of step 4, the best." in card
    assert "| 4 | 2.50 | 1.00 |" in card
    assert "| 6 |" not in card
    saved = load_file(tmp_path / "one" / "model.safetensors")
    for name, weight in saved.items():
        torch.testing.assert_close(weight, weights[1][f"nets.medusa.{name}"].bfloat16())
    assert train_drafter(pipe, short, course, tmp_path / "two", tmp_path / "run", "tiny") == figures
    assert len(measured) == 4  # nothing was trained or measured again
    for name in ("README.md", "model.safetensors"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_patience_that_comes_later_takes_the_best_weights(
    pipe: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, course = taught.recipe_of("medusa", steps=6, batch=4, levels=2), replace(COURSE, validate_every=2)
    told([1.5, 2.5, 2.0], monkeypatch)
    assert train_drafter(pipe, recipe, course, tmp_path / "last", tmp_path / "run", "tiny")["step"] == 6
    patient = replace(course, patience=1)
    assert train_drafter(pipe, recipe, patient, tmp_path / "best", tmp_path / "run", "tiny")["step"] == 4
    last, best = (load_file(tmp_path / name / "model.safetensors") for name in ("last", "best"))
    assert any(not torch.equal(weight, best[name]) for name, weight in last.items())


def test_other_questions_to_measure_on_are_another_run(
    pipe: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was measured on others neither stands on the card nor chooses the weights."""
    recipe = taught.recipe_of("medusa", steps=4, batch=4, levels=2)
    course = replace(COURSE, validate_every=2, patience=9)
    measured = told([9.0, 8.0, 1.5, 2.5], monkeypatch)
    train_drafter(pipe, recipe, course, tmp_path / "two", tmp_path / "run", "tiny")
    fewer = replace(course, held_out=1)
    figures = train_drafter(pipe, recipe, fewer, tmp_path / "one", tmp_path / "run", "tiny")
    assert len(measured) == 4
    assert (figures["step"], figures["tau_t0"]) == (4, 2.5)
    card = (tmp_path / "one" / "README.md").read_text()
    assert "on 1 held-out questions" in card
    assert "| 9.00 |" not in card


def test_held_out_questions_that_could_not_be_asked_are_told_apart(
    pipe: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A picture that was away for a while: what was measured without it is another run's."""
    (tmp_path / "data").mkdir()
    lines = [{"prompt": f"Which {number}?"} for number in range(5)] + [{"image": "a.png", "prompt": "Which?"}]
    (tmp_path / "data" / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    good = picture("red")["bytes"]
    course = replace(COURSE, data=str(tmp_path / "data"), questions=None)
    told([1.5, 2.5], monkeypatch)
    for number, content in enumerate((bytes(len(good)), good)):
        (tmp_path / "data" / "a.png").write_bytes(content)
        recipe = taught.recipe_of("medusa", steps=2, batch=4, levels=2)
        train_drafter(pipe, recipe, course, tmp_path / str(number), tmp_path / "run", "tiny")
        assert f"on {1 + number} held-out questions" in (tmp_path / str(number) / "README.md").read_text()
    found = [json.loads(file.read_text())["held_out"] for file in tmp_path.glob("run/medusa-*/settings.json")]
    assert sorted(one.get("left_out", []) for one in found) == [[], [1]]


def test_a_warm_up_prepares_no_more_questions_than_it_reads(
    pipe: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told([1.5], monkeypatch)
    recipe = SpdRecipe(steps=1, batch=2, warm_steps=1, warm_questions=8, width=32)
    train_drafter(pipe, recipe, COURSE, tmp_path / "out", tmp_path / "run", "tiny")
    rows = [line for file in tmp_path.glob("run/answers-warm/*.jsonl") for line in file.open()]
    assert len(rows) == 2


def test_own_answers_that_teach_nothing_are_told_before_the_target_answers(tmp_path: Path) -> None:
    pipe = mmspec.load(tiny.llama_model(), drafter="none", processor=tiny.tokenizer())
    (tmp_path / "data").mkdir()
    lines = [json.dumps({"prompt": f"Which {number}?", "answer": "A"}) for number in range(8)]
    (tmp_path / "data" / "a.jsonl").write_text("\n".join(lines))
    recipe = SpdRecipe(steps=1, batch=2, warm_steps=1, warm_questions=4, width=32)
    course = replace(COURSE, data=str(tmp_path / "data"), questions=4)
    with pytest.raises(InputError, match=r"own answers is longer than two tokens: give --warm-steps 0"):
        train_drafter(pipe, recipe, course, tmp_path / "out", tmp_path / "run", "tiny")
    assert not list(tmp_path.glob("run/answers-target*"))


def test_a_corrected_file_is_other_data(tmp_path: Path) -> None:
    def name(answer: str, color: str = "red") -> str:
        (tmp_path / "a.png").write_bytes(picture(color)["bytes"])
        (tmp_path / "a.jsonl").write_text(json.dumps({"image": "a.png", "prompt": "Which?", "answer": answer}))
        return Lines(tmp_path).name

    assert name("red") == name("red")
    assert len({name("red"), name("blue"), name("red", "#123456")}) == 3


def test_a_weight_with_two_names_is_saved_once_and_comes_back(pipe: Any, tmp_path: Path) -> None:
    """The language-only drafter shares its table of tokens with its output head."""
    recipe = SpdRecipe(width=32)
    net = recipe.build(pipe.target)
    assert net.lm_head.weight is net.model.embed_tokens.weight
    learner = Learner({"spd": net}, [recipe.loss(net, pipe.target, None)])
    best = training.Best(learner, tmp_path / "best.safetensors")
    best.keep()
    before = net.lm_head.weight.clone()
    nn.init.zeros_(net.lm_head.weight)
    best.take()
    torch.testing.assert_close(net.lm_head.weight, before)
    assert net.lm_head.weight is net.model.embed_tokens.weight


# Data sets of the hub


def written(folder: Path, rows: list[dict[str, Any]], split: str = "train") -> Path:
    """A data set as the hub lays it out: parquet files in a folder `data`."""
    import datasets

    (folder / "data").mkdir(parents=True, exist_ok=True)
    datasets.Dataset.from_list(rows).to_parquet(folder / "data" / f"{split}-00000-of-00001.parquet")
    return folder


def picture(color: str) -> dict[str, Any]:
    import io

    stream = io.BytesIO()
    Image.new("RGB", (8, 8), color).save(stream, "PNG")
    return {"bytes": stream.getvalue(), "path": None}


def test_a_folder_in_the_hub_s_layout_is_read(tmp_path: Path) -> None:
    import datasets

    rows = [
        {"image": picture(color), "question": f"Which {color}?", "answers": [color, "x"]} for color in ("red", "blue")
    ]
    features = datasets.Features(
        {
            "image": datasets.Image(),
            "question": datasets.Value("string"),
            "answers": datasets.List(datasets.Value("string")),
        }
    )
    (tmp_path / "data").mkdir()
    table = datasets.Dataset.from_list([*rows, *rows], features=features)
    table.to_parquet(tmp_path / "data" / "train-00000-of-00001.parquet")
    train, held_out = open_data(str(tmp_path), None, 1, 0)
    assert (len(train), len(held_out)) == (3, 1)
    asked = train[1]
    assert (asked.prompt, asked.answer) == ("Which blue?", "blue")
    assert isinstance(asked.image, Image.Image)
    assert asked.image.convert("RGB").getpixel((3, 3)) == (0, 0, 255)
    assert held_out[0].prompt == "Which blue?"
    assert len(warm_up_data(str(tmp_path), 2, 1, 0)) == 2
    assert len(warm_up_data(str(tmp_path), 9, 1, 0)) == 3  # what is held out teaches nothing
    with pytest.raises(InputError, match="holds 4 rows: 9 are held out"):
        open_data(str(tmp_path), None, 9, 0)
    with pytest.raises(IndexError):
        hub.HubData(str(tmp_path))[4]


def test_pictures_of_a_row_come_together_and_a_damaged_one_is_named(tmp_path: Path) -> None:
    import datasets

    kinds = {"images": datasets.List(datasets.Image()), "prompt": datasets.Value("string")}
    damaged = {"bytes": picture("red")["bytes"][:40], "path": None}
    rows = [[picture("red"), picture("blue")], [picture("red")], [], [damaged]]
    (tmp_path / "data").mkdir()
    table = datasets.Dataset.from_list(
        [{"images": row, "prompt": "Which?"} for row in rows], features=datasets.Features(kinds)
    )
    table.to_parquet(tmp_path / "data" / "train-00000-of-00001.parquet")
    read = hub.HubData(str(tmp_path))
    assert [len(read[0].image), isinstance(read[1].image, Image.Image), read[2].image] == [2, True, None]
    with pytest.raises(InputError, match=r":train, row 3 cannot be read: "):
        read[3]


@pytest.mark.parametrize("kind", ["text", "texts", "picture", "pictures"])
def test_a_row_of_a_data_set_opens_no_file_but_its_own(kind: str, tmp_path: Path) -> None:
    import datasets

    folder = tmp_path / "set"
    (folder / "data").mkdir(parents=True)
    for file in (tmp_path / "private.png", folder / "own.png"):
        Image.new("RGB", (8, 8), "red").save(file)
    found = ["own.png", str(tmp_path / "private.png"), "../private.png"]
    pictures = [{"bytes": None, "path": name} for name in found] if "picture" in kind else found
    feature = datasets.Image() if "picture" in kind else datasets.Value("string")
    several = kind.endswith("s")
    table = datasets.Dataset.from_list(
        [{"image": [one, one] if several else one, "prompt": "Which?"} for one in pictures],
        features=datasets.Features(
            {"image": datasets.List(feature) if several else feature, "prompt": datasets.Value("string")}
        ),
    )
    table.to_parquet(folder / "data" / "train-00000-of-00001.parquet", batch_size=3)  # else it looks for the files
    rows = hub.HubData(str(folder))
    own = rows[0].image
    assert all(one.getpixel((3, 3)) == (255, 0, 0) for one in (own if several else [own]))
    for index in (1, 2):
        with pytest.raises(InputError, match=rf"row {index} cannot be read: the picture '.*' is no file of the data"):
            rows[index]


@pytest.mark.parametrize("text", ["private.png", "iVBORw0KGgo" * 99, "a\0b"])
def test_what_is_no_picture_of_a_row_is_named(text: str, tmp_path: Path) -> None:
    Image.new("RGB", (8, 8), "red").save(tmp_path / "private.png")
    folder = written(tmp_path / "set", [{"image": {"bytes": str(tmp_path / text), "path": None}, "prompt": "Which?"}])
    with pytest.raises(InputError, match="row 0 cannot be read: the picture '.*' is no file of the data set"):
        hub.HubData(str(folder))[0]
    folder = written(tmp_path / "other", [{"image": text, "prompt": "Which?"}])
    with pytest.raises(InputError, match="row 0 cannot be read: the picture '.*' is no file of the data set"):
        hub.HubData(str(folder))[0]


def test_pictures_in_an_archive_of_a_data_set_are_read(tmp_path: Path) -> None:
    import zipfile

    (tmp_path / "set").mkdir()
    for place in (tmp_path / "set" / "all.zip", tmp_path / "private.zip"):
        with zipfile.ZipFile(place, "w") as archive:
            archive.writestr("a.png", picture("red")["bytes"])
    names = [f"zip://a.png::{tmp_path / place}" for place in ("set/all.zip", "private.zip")]
    rows = hub.HubData(str(written(tmp_path / "set", [{"image": name, "prompt": "Which?"} for name in names])))
    assert rows[0].image.getpixel((3, 3)) == (255, 0, 0)
    with pytest.raises(InputError, match="row 1 cannot be read: the picture '.*' is no file of the data set"):
        rows[1]


def test_a_split_is_named_behind_a_colon(tmp_path: Path) -> None:
    written(tmp_path, [{"prompt": "a"}])
    written(tmp_path, [{"prompt": "b"}, {"prompt": "c"}], "test")
    assert len(hub.HubData(f"{tmp_path}:test")) == len(written_data(f"{tmp_path}:test")) == 2
    assert hub.HubData(f"{tmp_path}:test").name != hub.HubData(str(tmp_path)).name
    with pytest.raises(InputError, match=r"split 'validation'"):
        hub.HubData(f"{tmp_path}:validation")


def test_a_configuration_is_named_before_the_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    configs = ""
    for name, count in (("charts", 1), ("tables", 2)):
        written(tmp_path / name, [{"prompt": name}] * count)
        configs += f"- config_name: {name}\n  data_files: {name}/data/train-*\n"
    (tmp_path / "README.md").write_text(f"---\nconfigs:\n{configs}---\n")
    found = written_data(f"{tmp_path}:tables:train")
    assert (len(found), found[1].prompt) == (2, "tables")
    assert found.name != written_data(f"{tmp_path}:charts:train").name
    assert hub.address("some/data:train[10:20]") == ("some/data", None, "train[10:20]")
    assert len(written_data(f"{tmp_path}:tables:train[:1]")) == 1
    with pytest.raises(InputError, match=r"configuration 'none', split 'train'"):
        written_data(f"{tmp_path}:none:train")
    with pytest.raises(InputError, match=r"no data set: owner/name, owner/name:split or owner/name:config:split"):
        written_data(f"{tmp_path}:a:b:c")

    asked = []

    def load(*place: str, split: str) -> Any:
        asked.append((*place, split))
        return datasets.Dataset.from_list([{"query": "a"}])

    monkeypatch.setattr(datasets, "load_dataset", load)
    names = [hub.HubData(told).place for told in ("some/data/tables", "some/data/tables:dev", "some/data:tables:dev")]
    assert asked == [("some/data", "tables", "train"), *[("some/data", "tables", "dev")] * 2]
    assert names == ["some/data:tables:train", *["some/data:tables:dev"] * 2]


def test_a_changed_data_set_is_other_data(tmp_path: Path) -> None:
    def name(prompt: str) -> str:
        return hub.HubData(str(written(tmp_path, [{"prompt": prompt}]))).name

    first = name("a")
    assert hub.HubData(str(tmp_path)).name == first
    assert name("b") != first


@pytest.mark.parametrize(
    ("talk", "said"),
    [
        ([{"from": "human", "value": "<image>\nWhich?"}, {"from": "gpt", "value": "This."}], ("Which?", "This.")),
        (
            [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Which?"}],
            ("system: Be brief.\nuser: Which?", None),
        ),
        ([{"user": "Which?", "assistant": "This.", "source": "x"}], ("Which?", "This.")),
        (
            [{"role": "user", "content": [{"type": "image", "text": None}, {"type": "text", "text": "Which?"}]}],
            ("Which?", None),
        ),
        (
            [
                {"from": "gpt", "value": "Welcome!"},
                {"from": "human", "value": "Which?"},
                {"from": "gpt", "value": "This."},
                {"from": "human", "value": "And then?"},
            ],
            ("user: Which?\nassistant: This.\nuser: And then?", None),
        ),
        ([{"from": "gpt", "value": "Welcome!"}, {"from": "human", "value": "Which?"}], ("Which?", None)),
    ],
)
def test_the_last_question_of_a_conversation_is_asked(talk: Any, said: Any, tmp_path: Path) -> None:
    rows = hub.HubData(str(written(tmp_path, [{"conversations": talk, "id": "1"}])))
    assert (as_text(rows[0].prompt), rows[0].answer) == said
    assert rows[0].image is None


def test_a_data_set_that_says_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has the columns label, size; a prompt is looked for in prompt, question"):
        hub.HubData(str(written(tmp_path / "a", [{"label": 1, "size": 2}])))
    with pytest.raises(InputError, match="row 0: the prompt is '  ', not a text"):
        hub.HubData(str(written(tmp_path / "b", [{"prompt": "  "}])))[0]
    talk = [{"from": "human", "value": "<image>"}, {"from": "gpt", "value": "A bar."}]
    with pytest.raises(InputError, match="row 0: the prompt is '<image>', not a text"):
        hub.HubData(str(written(tmp_path / "c", [{"conversations": talk}])))[0]


@pytest.mark.parametrize("several", [False, True])
def test_pictures_that_nobody_would_see_are_refused(several: bool, tmp_path: Path) -> None:
    import datasets

    def saved(folder: Path, *names: str) -> str:
        kind = datasets.List(datasets.Image()) if several else datasets.Image()
        row = {name: [picture("red")] if several else picture("red") for name in names}
        features = {"prompt": datasets.Value("string"), **dict.fromkeys(names, kind)}
        table = datasets.Dataset.from_list([{"prompt": "Which?", **row}] * 2, features=datasets.Features(features))
        (folder / "data").mkdir(parents=True)
        table.to_parquet(folder / "data" / "train-00000-of-00001.parquet")
        return str(folder)

    with pytest.raises(InputError, match=r"pictures in image_1, image_2, which .* looked for in image, images, pic"):
        open_data(saved(tmp_path / "a", "image_1", "image_2"), None, 1, 0, "vlm")
    text, _ = open_data(str(tmp_path / "a"), None, 1, 0, "text")  # who sees nothing misses nothing
    assert text[0].prompt == "Which?"
    assert hub.HubData(saved(tmp_path / "b", "image", "image_2"))[0].image is not None


def test_what_is_read_of_a_data_set_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "mmspec")
    talk = [{"from": "human", "value": "Which?"}, {"from": "gpt", "value": "This."}]
    rows: dict[str, dict[str, Any]] = {
        "a": {"question": "Which?", "answer": "This.", "hint": "None.", "id": "1"},
        "b": {"conversations": talk, "image": picture("red")},
    }
    for name, row in rows.items():
        folder = str(written(tmp_path / name, [row, row, row]))
        open_data(folder, None, 1, 0)
        warm_up_data(folder, 1, 1, 0)
    first, second = (text.partition(":train: ")[2] for text in caplog.messages if "answer from" in text)
    assert first == "prompt from question, no picture, answer from answer; not read: hint, id"
    assert second == "prompt from conversations, picture from image, answer from conversations"


def test_a_hub_that_cannot_be_reached_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"data set 'some/data' of the hub cannot be read \(split 'train'\)"):
        open_data("some/data", None, 1, 0)
    find = hub.find_spec
    monkeypatch.setattr(hub, "find_spec", lambda name: None if name == "datasets" else find(name))
    with pytest.raises(MissingExtraError, match=r"datasets is not installed.*mmspec\[train\]"):
        open_data("some/data", None, 1, 0)
    (tmp_path / "a.jsonl").write_text('{"prompt": "a"}\n{"prompt": "b"}\n')
    assert isinstance(training.open_data(str(tmp_path), None, 1, 0)[0].source, Lines)  # type: ignore[attr-defined]


def test_a_hub_id_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    asked = []

    def load(place: str, split: str) -> Any:
        asked.append((place, split))
        return datasets.Dataset.from_list([{"query": "a"}, {"query": "b"}])

    monkeypatch.setattr(datasets, "load_dataset", load)
    train, _ = open_data("some/data:dev", None, 1, 0)
    assert asked == [("some/data", "dev")]
    assert train[0] == Question(None, "a")


# Several processes


@pytest.mark.slow
def test_two_processes_learn_what_one_learns(tmp_path: Path) -> None:
    """Of every update each takes half of the answers; gradients are averaged, so both end with the weights of one."""
    script = Path(two_processes.__file__)
    ran = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "two")],
        cwd=script.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    first, second = (load_file(tmp_path / "two" / f"{rank}.safetensors") for rank in range(2))
    assert first.keys() == second.keys()
    for name, weight in first.items():
        torch.testing.assert_close(weight, second[name], rtol=0, atol=0)
    answers = tmp_path / "two" / "run" / "answers-target"
    assert len(list(answers.glob("*.jsonl"))) == 4
    two_processes.write_data(tmp_path / "one")
    figures, alone = two_processes.trained(tmp_path / "one")
    for name, weight in alone.items():
        torch.testing.assert_close(weight, first[name], rtol=1e-2, atol=1e-4)  # stored in bfloat16
    assert first["tau"].tolist() == pytest.approx([figures["tau_t0"], figures["tau_t1"]])
    for folder in ("one", "two"):
        assert (tmp_path / folder / "out" / "drafter.json").exists()
    same = (tmp_path / "one" / "run" / "answers-target" / "00003.jsonl").read_text()
    assert same == (answers / "00003.jsonl").read_text()


def process(rank: int, count: int) -> SimpleNamespace:
    """One of several processes, which waits for nobody."""
    return SimpleNamespace(
        num_processes=count,
        process_index=rank,
        is_main_process=rank == 0,
        main_process_first=nullcontext,
        wait_for_everyone=lambda: None,
    )


def test_every_process_answers_greedily_and_by_chance(
    pipe: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each takes neighbours of the shards that are missing, and together they take all of them."""
    questions, options = Miniworld("test", 10), AnswerOptions(max_new_tokens=4, batch=2)
    made: list[str] = []
    for rank in range(2):
        monkeypatch.setattr(processes, "group", partial(process, rank, 2))
        collect(pipe, questions, options, tmp_path / str(rank), "it")
        files = sorted((tmp_path / str(rank)).glob("*.jsonl"))
        made += [file.name for file in files]
        assert {json.loads(line)["temperature"] for file in files for line in file.open()} == {0.0, 1.0}
    assert made == [f"{shard:05d}.jsonl" for shard in range(5)]


@pytest.mark.parametrize("length", [0, 2, 7, 9])
def test_a_list_is_shared_out_by_neighbours(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = []
    for rank in range(3):
        monkeypatch.setattr(processes, "group", partial(process, rank, 3))
        parts.append(list(processes.own_part(range(length))))
    assert sum(parts, []) == list(range(length))
    assert max(map(len, parts)) - min(map(len, parts)) < 2


def test_processes_wait_for_each_other_for_hours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some answer longer than others; after ten minutes, the usual time, the run would end."""
    given: dict[str, Any] = {}
    monkeypatch.setattr("accelerate.PartialState", lambda **told: given.update(told))
    processes.group()
    assert given["timeout"] >= timedelta(hours=12)


def test_the_loss_goes_through_the_module_that_was_wrapped(tmp_path: Path) -> None:
    calls = []

    class Wrapped(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, **batch: Any) -> Any:
            calls.append(sorted(batch))
            return self.inner(**batch)

    net = nn.Linear(2, 1)
    learner = Learner({"it": net}, [lambda position, rows: net(torch.ones(2)).sum()] * 2)
    arguments = training_arguments(tmp_path, steps=1, batch=1, rate=0.01, seed=0, use_cpu=True)
    trainer = LearnerTrainer(model=learner, args=arguments)
    loss = trainer.compute_loss(Wrapped(learner), {"position": torch.zeros(1), "rows": []}, num_items_in_batch=None)
    assert calls == [["position", "rows"]]
    torch.testing.assert_close(loss, 2 * net(torch.ones(2)).sum())


def test_a_process_trains_on_one_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def four(arguments: TrainingArguments) -> torch.device:
        arguments._n_gpu = 4
        return torch.device("cpu")

    monkeypatch.setattr(TrainingArguments, "_setup_devices", property(four))
    assert TrainingArguments(str(tmp_path), report_to="none").n_gpu == 4
    assert training_arguments(tmp_path, steps=1, batch=1, rate=0.01, seed=0, use_cpu=False).n_gpu == 1


def test_another_gpu_than_the_first_is_refused() -> None:
    for device in (None, "cpu", "cuda", "cuda:0"):
        check_device(device)
    with pytest.raises(InputError, match="CUDA_VISIBLE_DEVICES=2"):
        check_device("cuda:2")


def test_answers_that_cannot_be_shared_are_refused(pipe: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Three:
        num_processes = 3

    monkeypatch.setattr(updates, "group", Three)
    with pytest.raises(InputError, match="4 answers per update cannot be shared by 3 processes"):
        train_drafter(pipe, test_training.SMALL["eagle2"], COURSE, tmp_path / "out", tmp_path / "run", "tiny")
    assert not list(tmp_path.iterdir())


def test_a_bundled_model_is_trained_by_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Two:
        num_processes = 2

    monkeypatch.setattr(processes, "group", Two)
    with pytest.raises(InputError, match="trained by one process, not 2: start it without accelerate launch"):
        parsed(target_parser("it", None), ["--out", str(tmp_path)])


def test_alone_a_process_is_told_what_it_says() -> None:
    assert processes.told({"a": 1}) == {"a": 1}
    assert processes.group().num_processes == 1
    processes.wait()


# The response mask


def test_a_template_that_rewrites_the_prompt_has_no_boundary(tmp_path: Path) -> None:
    """What is learnt begins where the template's prompt ends; where that is not so, the data's answers are refused."""
    tokenizer = tiny.tokenizer()
    pipe = mmspec.load(tiny.llama_model(), drafter="none", processor=tokenizer)
    try:
        tokenizer.chat_template = (
            "{% for turn in messages %}{{ turn['role'] }}: {{ turn['content'] }}<end_of_utterance>\n{% endfor %}"
            "{% if add_generation_prompt %}assistant:{% endif %}"
        )
        ids = own_answer(pipe, Question(None, "Which?", "This one."))
        assert tokenizer.decode(ids) == " This one.<end_of_utterance>"
        tokenizer.chat_template = "{{ messages | length }}{% for turn in messages %}{{ turn['content'] }}{% endfor %}"
        with pytest.raises(InputError, match="the chat template rewrites the prompt"):
            own_answer(pipe, Question(None, "Which?", "This one."))
    finally:
        tokenizer.chat_template = None


# What is said of a run


def test_the_card_says_what_the_run_cost(pipe: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "mmspec"):
        train_drafter(pipe, test_training.SMALL["eagle2"], COURSE, tmp_path / "out", tmp_path / "run", "tiny")
    assert "the hidden states of all answers take 0.00 GB, 4.00 GB may be kept in memory" in caplog.text
    card = (tmp_path / "out" / "README.md").read_text()
    assert "## Cost" in card
    rows = [
        json.loads(line)
        for file in sorted((tmp_path / "run" / "answers-target").glob("*.jsonl"))
        for line in file.read_text().splitlines()
    ]
    assert len(rows) == 12
    tokens = 4 * sum(len(row["answer"]) for row in rows)  # 12 updates of 4 answers: four times all of them
    assert f"{tokens:,} tokens of answers in 12 updates took " in card
    state = json.loads((test_training.checkpoint_of(tmp_path / "run", "eagle2") / "trainer_state.json").read_text())
    costs = [one for one in state["log_history"] if "peak_bytes" in one]
    assert [one["step"] for one in costs] == [4, 8, 12]
    seconds = [one["seconds"] for one in costs]
    assert seconds == sorted(seconds)
    assert all(one["peak_bytes"] > 2**26 for one in costs)


def test_the_card_tells_of_what_was_read_and_measured() -> None:
    """A run that stops early has not read all answers, and some held-out questions may have been left out."""
    rows = [test_training.made_up(5, 8, index)[0] for index in range(10)]
    history = [{"step": 3, "seconds": 60.0, "peak_bytes": 2**30, "device": "a CPU"}]
    recipe = taught.recipe_of("eagle2", steps=9, batch=2)
    card = model_card(Trained("tiny", "vlm", recipe, COURSE, ["eagle2"], rows, history, 7, measured=1))
    assert "\n6 questions of `miniworld`; the answers (48 tokens) are the target's, 6 of them greedy" in card
    assert "on 1 held-out questions" in card
    whole = model_card(Trained("tiny", "vlm", recipe, COURSE, ["eagle2"], rows, [], 7, measured=2))
    assert "\n10 questions of `miniworld`" in whole


def test_held_out_questions_are_measured_in_batches_of_the_answers_size(
    pipe: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[list[int]] = []

    def noted(pipe: Any, drafter: Any, inputs: Any, *more: Any) -> dict[str, float]:
        sizes.append([len(batch["input_ids"]) for batch in inputs])
        return measure(pipe, drafter, inputs, *more)

    for place in (training, shares):
        monkeypatch.setattr(place, "measure", noted)
    recipe = taught.recipe_of("medusa", steps=2, batch=4, levels=2)
    train_drafter(pipe, recipe, replace(COURSE, held_out=5), tmp_path / "out", tmp_path / "run", "tiny")
    assert sizes == [[4, 1], [4, 1]]  # tau, and the shape of the tree
    assert "on 5 held-out questions" in (tmp_path / "out" / "README.md").read_text()


@pytest.mark.parametrize(("name", "warnings"), [("mine", 1), ("owner/smolvlm-mini", 1), ("smolvlm-mini", 0)])
def test_only_bundled_models_learn_about_the_synthetic_world_without_a_warning(
    name: str, warnings: int, pipe: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def warned(course: Any) -> list[str]:
        caplog.clear()
        nowhere = replace(course, start=str(tmp_path / "nowhere"))
        with pytest.raises(UnknownNameError, match="no such folder"):  # which ends it before anything is answered
            train_drafter(pipe, test_training.SMALL["eagle2"], nowhere, tmp_path / "out", tmp_path / "run", name)
        return [text for text in caplog.messages if "a synthetic world" in text and "--data" in text]

    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.jsonl").write_text('{"prompt": "Which?"}\n{"prompt": "What?"}\n')
    assert len(warned(COURSE)) == warnings
    assert not warned(replace(COURSE, data=str(tmp_path / "data"), questions=None, held_out=1))


# Every method: a batch by heart, and a run that was killed


@pytest.mark.parametrize("method", METHODS)
def test_one_batch_is_learnt_by_heart(method: str) -> None:
    """Of two answers that it has seen many times, a drafter gets much more right than at first."""
    target = CausalTarget(toys.llama())
    inputs = toys.prompts(9, 6)
    answers = toys.answer(target, NoDrafter(), inputs, 12).rows
    rows, features = taught.studied(target, inputs, answers)
    reached = {}
    for steps in (1, 60):
        drafter = taught.drafter(method, taught.taught(method, target, rows, features, steps))
        drafter.bind(target)
        said = toys.answer(target, drafter, inputs, 12)
        assert said.rows == answers
        reached[steps] = 1 + sum(said.accepted) / len(said.accepted)
    assert reached[60] > reached[1] + 0.5, reached


def test_a_killed_run_of_every_method_resumes(pipe: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All in one run, which is killed between two checkpoints; `tests/test_training.py` kills that of spd."""
    recipes = [taught.recipe_of(method, steps=4, batch=2) for method in METHODS]
    course = replace(COURSE, questions=6, held_out=1, validate_every=4, save_every=2)
    told([1.5] * 2 * len(METHODS), monkeypatch)
    monkeypatch.setattr(training, "measured_shares", lambda pipe, drafter, *others: drafter.shares)

    def run(name: str) -> None:
        train_drafters(
            pipe, recipes, course, [tmp_path / name / method for method in METHODS], tmp_path / "run", "tiny"
        )

    run("whole")
    unbroken = test_training.losses(tmp_path / "run", "+".join(METHODS))
    for folder in (tmp_path / "run").glob("*+*"):
        folder.rename(tmp_path / folder.name)  # the answers stay
    forward, calls = Learner.forward, itertools.count(1)

    def killed(self: Any, *batch: Any, **named: Any) -> Any:
        if next(calls) == 4:
            raise KeyboardInterrupt
        return forward(self, *batch, **named)

    monkeypatch.setattr(Learner, "forward", killed)
    with pytest.raises(KeyboardInterrupt):
        run("cut")
    assert not (tmp_path / "cut").exists()
    run("cut")
    resumed = test_training.losses(tmp_path / "run", "+".join(METHODS))
    assert [step for step, _ in resumed] == [1, 2, 3, 4]
    for (_, one), (_, other) in zip(unbroken, resumed, strict=True):
        assert one == pytest.approx(other, abs=1e-4)
    for method in METHODS:
        whole, cut = (load_file(tmp_path / name / method / "model.safetensors") for name in ("whole", "cut"))
        for name, weight in whole.items():
            torch.testing.assert_close(weight, cut[name], rtol=1e-2, atol=1e-3)  # stored in bfloat16


@pytest.mark.parametrize("name", names("trainers"))
def test_what_lies_in_the_way_of_a_finished_model_is_told_first(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, run = tmp_path / "out", tmp_path / "run"
    out.mkdir()
    (out / "notes.txt").write_text("mine")
    train: Any = resolve("trainers", name, modalities("trainers")[name][0])
    monkeypatch.setattr(sys.modules[train.__module__], "require_espeak", lambda: None, raising=False)
    with pytest.raises(CheckpointError, match=r"holds something that is not a checkpoint \(notes.txt\)"):
        train(["--out", str(out), "--run", str(run), "--threads", "1"])
    assert not run.exists()
