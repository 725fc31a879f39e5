"""Drafters on disk: saved whole or not at all, loaded only for the target that they were trained for."""

import json
import os
import tomllib
from pathlib import Path

import pytest
import tiny
import torch
import toys
from PIL import Image
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig
from transformers.utils import logging

import mmspec
from mmspec import checkpoints, replacing
from mmspec.checkpoints import bundled, find_model, fingerprint, load_drafter, quiet, save_drafter, writing
from mmspec.drafters.dflash import DFlash
from mmspec.drafters.dspark import DSpark, SparkNet
from mmspec.drafters.eagle import Eagle, Eagle1, EagleHead
from mmspec.drafters.independent import Independent
from mmspec.drafters.layer import block_config
from mmspec.drafters.prompt_lookup import PromptLookup
from mmspec.errors import CheckpointError, InputError, MismatchError, UnknownNameError
from mmspec.loading import has_drafter
from mmspec.safe_files import whole, write_whole
from mmspec.targets import CausalTarget

RED = Image.new("RGB", (50, 40), "red")


@pytest.fixture(scope="module")
def target(pipe: mmspec.Pipeline) -> CausalTarget:
    return pipe.target


def eagle(seed: int = 0, hidden: int = 32, **options: int) -> Eagle:
    torch.manual_seed(seed)
    return Eagle(EagleHead(LlamaConfig(**{**tiny.text_config(hidden=hidden), "num_hidden_layers": 1})), **options)


def edit(file: Path, **fields: object) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))


def test_an_eagle_head_comes_back_as_it_was(pipe: mmspec.Pipeline, target: CausalTarget, tmp_path: Path) -> None:
    head = eagle(depth=3, width=2, top_k=3, total=7, sharpness=0.5)
    folder = save_drafter(head, tmp_path / "head", target)
    assert sorted(path.name for path in folder.iterdir()) == ["drafter.json", "model.safetensors"]
    loaded = load_drafter(folder, target)
    assert isinstance(loaded, Eagle)
    assert (loaded.depth, loaded.width, loaded.top_k, loaded.total, loaded.sharpness) == (3, 2, 3, 7, 0.5)
    assert next(loaded.net.parameters()).dtype == torch.float64
    for name, weight in head.net.state_dict().items():
        assert torch.equal(loaded.net.state_dict()[name], weight.double())
    head.net.double()
    answers = [pipe.with_drafter(drafter)(RED, "why", max_new_tokens=12) for drafter in (head, loaded)]
    assert answers[0].stats.accept_lengths == answers[1].stats.accept_lengths


def test_an_independent_drafter_comes_back_as_it_was(target: CausalTarget, tmp_path: Path) -> None:
    model = tiny.llama_model(seed=3)
    folder = save_drafter(Independent(model, length=6), tmp_path / "spd", target)
    loaded = load_drafter(str(folder), target)
    assert isinstance(loaded, Independent)
    assert loaded.length == 6
    ids = torch.arange(9)[None]
    assert torch.allclose(loaded.decoder.model(ids).logits, model.double()(ids).logits)


def test_a_stock_language_model_folder_is_an_independent_drafter(target: CausalTarget, tmp_path: Path) -> None:
    assert isinstance(load_drafter(tiny.tiny_llama(tmp_path), target), Independent)


def test_a_language_model_with_fewer_words_needs_its_tokenizer(target: CausalTarget, tmp_path: Path) -> None:
    model = tiny.llama_model()
    model.resize_token_embeddings(290)
    model.save_pretrained(tmp_path / "small")
    with pytest.raises(MismatchError, match="290 ids, the target one of 300, and without both tokenizers"):
        load_drafter(tmp_path / "small", target)
    tiny.tokenizer().save_pretrained(tmp_path / "small")
    drafter = load_drafter(tmp_path / "small", target)
    assert drafter.gap == 10
    assert load_drafter(save_drafter(drafter, tmp_path / "spd", target), target).gap == 10


def test_a_language_model_with_as_many_words_but_other_ones_is_refused(target: CausalTarget, tmp_path: Path) -> None:
    folder = tiny.tiny_llama(tmp_path)
    told = json.loads((folder / "tokenizer.json").read_text())["model"]
    words = told["vocab"]
    words["a"], words["b"] = words["b"], words["a"]
    edit(folder / "tokenizer.json", model=told)
    first = min(words["a"], words["b"])
    with pytest.raises(MismatchError, match=f"300 ids, the target one of 300, and the id {first} is one word"):
        load_drafter(folder, target)


def test_a_folder_that_is_called_like_a_bundled_model_is_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_model("smolvlm-mini") == bundled()["smolvlm-mini"]
    assert not caplog.records
    (tmp_path / "smolvlm-mini").mkdir()
    assert find_model("smolvlm-mini") == bundled()["smolvlm-mini"]
    assert "the folder here is ./smolvlm-mini" in caplog.text
    caplog.clear()
    monkeypatch.chdir(bundled()["smolvlm-mini"].parent)
    find_model("smolvlm-mini")
    assert not caplog.records


def test_a_path_is_no_name(pipe: mmspec.Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    told = "there is no such folder; pass a name or a hub id as a text"
    for name in ("smolvlm-mini", "some/model"):
        with pytest.raises(UnknownNameError, match=f"model '{name}': {told}"):
            find_model(Path(name))
    with pytest.raises(UnknownNameError, match=f"drafter 'eagle2': {told}"):
        pipe.with_drafter(Path("eagle2"))


def test_whoever_is_quiet_last_puts_back_what_the_first_one_found() -> None:
    """Threads that read models at the same time end in any order."""

    def told() -> tuple[bool, int]:
        return logging.is_progress_bar_enabled(), logging.get_verbosity()

    before, first, second = told(), quiet(), quiet()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert told() == (False, logging.ERROR)
    second.__exit__(None, None, None)
    assert told() == before


def test_the_description_says_what_the_drafter_is_for(target: CausalTarget, tmp_path: Path) -> None:
    description = json.loads((save_drafter(eagle(), tmp_path / "head", target) / "drafter.json").read_text())
    assert description["format"] == 1
    assert description["method"] == "eagle2"
    assert description["target"] == fingerprint(target)
    assert description["target"]["model_type"] == "smolvlm"
    assert len(description["target"]["tokenizer"]) == 64


def test_drafters_without_weights_are_not_saved(target: CausalTarget, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="PromptLookup has no weights"):
        save_drafter(PromptLookup(), tmp_path / "x", target)
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("field", ["model_type", "hidden_size", "vocab_size", "num_layers", "tokenizer"])
def test_a_head_for_another_target_is_refused(target: CausalTarget, tmp_path: Path, field: str) -> None:
    folder = save_drafter(eagle(), tmp_path / "head", target)
    other = "0" * 64 if field == "tokenizer" else 77
    edit(folder / "drafter.json", target={**fingerprint(target), field: other})
    with pytest.raises(MismatchError) as caught:
        load_drafter(folder, target)
    assert repr(other)[:12] in str(caught.value)
    assert repr(fingerprint(target)[field])[:12] in str(caught.value)


def test_an_independent_drafter_minds_only_the_vocabulary(target: CausalTarget, tmp_path: Path) -> None:
    folder = save_drafter(Independent(tiny.llama_model()), tmp_path / "spd", target)
    edit(folder / "drafter.json", target={**fingerprint(target), "num_layers": 77, "hidden_size": 77})
    assert load_drafter(folder, target)
    edit(folder / "drafter.json", target={**fingerprint(target), "tokenizer": "0" * 64})
    with pytest.raises(MismatchError, match="trained for another target: its vocabulary"):
        load_drafter(folder, target)


def test_objects_that_do_not_fit_the_target_are_refused(pipe: mmspec.Pipeline) -> None:
    with pytest.raises(MismatchError, match="features of size 64, the target has 32"):
        pipe.with_drafter(eagle(hidden=64))
    small = tiny.llama_model()
    small.resize_token_embeddings(50)
    with pytest.raises(MismatchError, match="vocabulary of 50 ids, the target one of 300"):
        pipe.with_drafter(Independent(small))


def test_an_interrupted_save_leaves_the_old_folder(
    target: CausalTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save_drafter(eagle(seed=1), tmp_path / "head", target)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    save = Eagle.save

    def interrupted(self: Eagle, folder: Path) -> None:
        save(self, folder)
        raise KeyboardInterrupt

    monkeypatch.setattr(Eagle, "save", interrupted)  # after the weights, before the description
    with pytest.raises(KeyboardInterrupt):
        save_drafter(eagle(seed=2), folder, target)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["head"]


@pytest.mark.parametrize("step", ["write", "first rename", "second rename"])
def test_a_full_disk_leaves_the_old_folder_and_one_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    folder = tmp_path / "model"
    with writing(folder) as draft:
        (draft / "config.json").write_text("old")
    monkeypatch.setattr(replacing, "exchanged", lambda *_: False)  # a system that has to rename twice
    rename, calls = Path.rename, []

    def failing(self: Path, goal: Path) -> Path:
        calls.append(goal)
        if len(calls) == {"write": 0, "first rename": 1, "second rename": 2}[step]:
            raise OSError(28, "No space left on device")
        return rename(self, goal)

    monkeypatch.setattr(Path, "rename", failing)

    def save() -> None:
        with writing(folder) as draft:
            (draft / "config.json").write_text("new")
            if step == "write":
                raise OSError(28, "No space left on device")

    with pytest.raises(CheckpointError, match="was not saved, and is as it was before: .*No space left"):
        save()
    assert (folder / "config.json").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_writing_replaces_the_whole_folder(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "model"
    for names in (("config.json", "README.md"), ("config.json", "drafter.json")):
        with writing(folder) as draft:
            for name in names:
                (draft / name).write_text("{}")
            assert not (folder / "drafter.json").exists()
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "drafter.json"]  # a card may go


@pytest.mark.parametrize("kept", ["drafters", ".git", "model.safetensors"])
def test_a_folder_is_not_replaced_by_one_that_has_not_all_of_it(kept: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    (folder / kept).mkdir(parents=True)
    (folder / kept / "precious").touch()
    (folder / "config.json").touch()
    with pytest.raises(CheckpointError, match=f"also holds {kept}, which would be lost"), writing(folder) as draft:
        (draft / "config.json").write_text("new")
    assert (folder / kept / "precious").exists()
    assert (folder / "config.json").read_text() == ""
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_drafter_does_not_take_the_place_of_a_model(target: CausalTarget, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"config\.json, which would be lost"):
        save_drafter(eagle(), tmp_path, target)
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


def test_whoever_may_read_the_folder_may_read_the_weights(target: CausalTarget, tmp_path: Path) -> None:
    """Files of safetensors are readable by their owner alone when they are made."""
    before = os.umask(0o027)
    try:
        folder = save_drafter(eagle(), tmp_path / "head", target)
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()}
    assert set(modes.values()) == {0o640}, modes


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    goal = tmp_path / "a.json"
    write_whole(goal, "old")

    def fail() -> None:
        with whole(goal) as draft:
            draft.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert goal.read_text() == "old"
    assert list(tmp_path.iterdir()) == [goal]
    with whole(goal) as draft:
        draft.write_text("new")
        assert goal.read_text() == "old"
    assert goal.read_text() == "new"
    assert list(tmp_path.iterdir()) == [goal]
    with pytest.raises(FileNotFoundError), whole(goal):
        pass  # nothing was written
    assert goal.read_text() == "new"
    left, other = (tmp_path / f".{name}.{2**22 + 1}.tmp" for name in (goal.name, f"{goal.name}.json"))
    for draft in (left, other):
        draft.write_text("half")  # by a process that was killed, of this file and of another
    write_whole(goal, "newer")
    assert set(tmp_path.iterdir()) == {goal, other}


def test_folders_that_hold_something_else_are_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "holiday.jpg").write_text("")
    with pytest.raises(CheckpointError, match=r"not a checkpoint \(holiday.jpg\)"), writing(tmp_path):
        pass
    with pytest.raises(CheckpointError, match="is a file"), writing(tmp_path / "holiday.jpg"):
        pass
    for nowhere, reason in (("x" * 300, "File name too long"), ("~nobody-of-this-name/x", "home directory")):
        with pytest.raises(CheckpointError, match=f"cannot be written: .*{reason}"), writing(nowhere):
            pass
    assert (tmp_path / "holiday.jpg").exists()


def test_damaged_drafters(target: CausalTarget, tmp_path: Path) -> None:
    folder = save_drafter(eagle(), tmp_path / "head", target)
    weights, description = folder / "model.safetensors", folder / "drafter.json"
    good, text = weights.read_bytes(), description.read_text()
    for damaged in (good[: len(good) // 2], b"", b"\xff" * 100):
        weights.write_bytes(damaged)
        with pytest.raises(CheckpointError, match="cannot be loaded"):
            load_drafter(folder, target)
    weights.write_bytes(good)
    tensors = load_file(weights)
    for wrong in ({**tensors, "fc.bias": torch.zeros(5)}, {"fc.bias": tensors["fc.bias"]}):
        save_file(wrong, weights)
        with pytest.raises(CheckpointError, match="fc"):
            load_drafter(folder, target)
    save_file({**tensors, "fc.bias": tensors["fc.bias"] * torch.nan}, weights)
    with pytest.raises(CheckpointError, match="fc.bias is not finite"):
        load_drafter(folder, target)
    weights.write_bytes(good)
    for wrong_text, message in (
        ("{", "cannot be read"),
        ("[]", "must hold a JSON object"),
        (json.dumps({**json.loads(text), "format": 2}), "reads format 1"),
        (json.dumps({**json.loads(text), "target": None}), "target None; a JSON object is needed"),
        (json.dumps({**json.loads(text), "method": "prompt-lookup"}), "'prompt-lookup', which has no weights"),
        (json.dumps({**json.loads(text), "options": {"depht": 3}}), "depht"),
        (json.dumps({**json.loads(text), "options": {"depth": 0}}), "depth"),
    ):
        description.write_text(wrong_text)
        with pytest.raises((CheckpointError, InputError), match=message):
            load_drafter(folder, target)
    edit_method = json.dumps({**json.loads(text), "method": "eagel2"})
    description.write_text(edit_method)
    with pytest.raises(UnknownNameError, match="did you mean 'eagle2'"):
        load_drafter(folder, target)
    description.write_text(text)
    assert load_drafter(folder, target)


def test_a_language_model_with_damaged_weights_is_refused_as_a_drafter(target: CausalTarget, tmp_path: Path) -> None:
    model = tiny.llama_model()
    model.model.norm.weight.data[3] = torch.inf
    folder = save_drafter(Independent(model), tmp_path / "spd", target)
    with pytest.raises(CheckpointError, match="are damaged, or too large for torch.float64: model.norm.weight is not"):
        load_drafter(folder, target)


def test_folders_without_usable_weights(target: CausalTarget, tmp_path: Path) -> None:
    folder = save_drafter(eagle(), tmp_path / "head", target)
    (folder / "model.safetensors").rename(folder / "model.bin")
    with pytest.raises(CheckpointError, match=r"only pickled weights \(model.bin\).*refused"):
        load_drafter(folder, target)
    (folder / "model.bin").unlink()
    with pytest.raises(CheckpointError, match="holds no weights.* or it has only pickled ones, which are not"):
        load_drafter(folder, target)
    (folder / "pytorch_model.bin.index.json").write_text("{}")  # what is downloaded of a model in pickled parts
    with pytest.raises(CheckpointError, match=r"only pickled weights \(pytorch_model.bin\).*refused"):
        load_drafter(folder, target)
    with pytest.raises(CheckpointError, match="holds no drafter.json"):
        load_drafter(tmp_path, target)


def test_bundled_checkpoints_are_folders_with_a_configuration() -> None:
    for name, folder in bundled().items():
        assert (folder / "config.json").is_file()
        assert folder.name == name


def test_a_wheel_has_one_checkpoint_per_modality_and_fits_where_wheels_are_put() -> None:
    root = Path(__file__).parents[1]
    carried = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    globs = {package.removeprefix("mmspec."): [each for each in patterns if "checkpoints" in each]
             for package, patterns in carried.items()}  # fmt: skip
    files = [file for package, each in globs.items() for one in each for file in (root / package).glob(f"{one}/*")]
    assert all(len(globs[package]) == 1 for package in checkpoints.MODALITIES)
    assert {file.name for file in files} >= {"config.json", "model.safetensors", "drafter.json"}
    assert sum(file.stat().st_size for file in files if file.is_file()) < 90e6


def test_a_checkpoint_that_is_not_installed_is_no_unknown_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mmspec.checkpoints.bundled", lambda: {"smolvlm-mini": Path("x")})
    with pytest.raises(
        CheckpointError, match="valle-mini is not in this installation, which has smolvlm-mini. It lies"
    ) as told:
        mmspec.load("valle-mini")
    repository, training = (str(told.value).index(way) for way in ("pip install -e FOLDER", "mmspec train target"))
    assert repository < training  # which takes hours
    with pytest.raises(UnknownNameError, match="valle-listener"):  # no model
        mmspec.load("valle-listener")


def test_any_trained_drafter_beside_a_model_is_taken_and_the_best_first(target: CausalTarget, tmp_path: Path) -> None:
    for name in ("medusa", "spd", "eagle3"):
        folder = tmp_path / "drafters" / name
        folder.mkdir(parents=True)
        (folder / "drafter.json").write_text("{}")
    assert list(checkpoints.drafters_of(tmp_path)) == ["spd", "eagle3", "medusa"]
    for name, there in {"spd": True, "tabed": False, "dflash": False, "suffix": True, "retrieval": False}.items():
        assert has_drafter(name, target, tmp_path) is there
        assert has_drafter(name, target, None) is (name == "suffix")


def test_weights_serve_the_methods_that_differ_in_the_tree_alone(tmp_path: Path) -> None:
    place = tiny.tiny_llama(tmp_path / "model")
    target = mmspec.load(place, "none").target
    head = Eagle(toys.eagle_head(target.model), shares=[[0.9, 0.05, 0.01], [0.5, 0.4, 0.1]])
    save_drafter(head, place / "drafters" / "eagle2", target)
    for name, there in {"eagle": True, "eagle2": True, "eagle3": False, "hass": False, "hydra": False}.items():
        assert has_drafter(name, target, place) is there
    block = DSpark(SparkNet(block_config(target, 1, 48), (0, 2), 4))
    with torch.no_grad():
        block.net.pull.weight.normal_()
    save_drafter(block, place / "drafters" / "dspark", target)
    plain = mmspec.load(place, "dflash").drafter
    assert type(plain) is DFlash
    assert all(torch.equal(weight, block.net.state_dict()[name]) for name, weight in plain.net.state_dict().items())
    assert not has_drafter("dspark", target, tmp_path)

    pipe = mmspec.load(place, "eagle")
    assert type(pipe.drafter) is Eagle1
    assert pipe.drafter.shares == head.shares
    assert pipe(None, "What?", max_new_tokens=6).stats.accept_lengths


def test_a_hub_that_cannot_be_reached_is_one_error(target: CausalTarget) -> None:
    with pytest.raises(CheckpointError, match="'nobody/nothing' is no folder here, and the hub cannot be reached"):
        load_drafter("nobody/nothing", target)


def test_a_language_model_leaves_out_of_a_prompt_what_it_has_no_words_for(target: CausalTarget) -> None:
    """As the marks around pictures, which a VLM adds to the ids of its language model."""
    model = tiny.llama_model()
    model.resize_token_embeddings(290)
    drafter = Independent(model)
    drafter.placeholders = (7,)
    assert drafter.heard([5, 289, 290, 7, 6, 299]) == [5, 289, 6]
