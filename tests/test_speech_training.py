"""Drafters of a speech model from texts to a table: every method is trained by the command, also after it was killed,
lies beside the model, and is measured by its name."""

import copy
import hashlib
import json
import pickle
import shutil
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import tiny_speech
import torch
from taught import Given
from tiny_musicgen import musicgen
from typer.testing import CliRunner

import mmspec
from mmspec.benchmarks.cli import app as bench
from mmspec.benchmarks.rows import row
from mmspec.benchmarks.speaking.run import curve_rows
from mmspec.checkpoints import drafters_of, load_drafter
from mmspec.drafters.medusa import MedusaHeads
from mmspec.drafters.prompt_lookup import PromptLookup
from mmspec.errors import InputError, MismatchError
from mmspec.speech.joint import JointRecipe
from mmspec.speech.musicgen import Musicgen
from mmspec.speech.recipes import Sentences, ViterbiRecipe
from mmspec.speech.ssd import SSD, shortened
from mmspec.speech.texts import sentences
from mmspec.speech.vadusa import Vadusa
from mmspec.speech.viterbi import Viterbi
from mmspec.training import chunks
from mmspec.training.answers import Answered, AnswerOptions, collect
from mmspec.training.asking import prepare
from mmspec.training.cli import app as train
from mmspec.training.data import Lines, Voiced, open_data
from mmspec.training.drafter import check_together, find_recipe
from mmspec.training.learner import Learner
from mmspec.training.muon import build_optimizer
from mmspec.training.start import digest, shaped
from mmspec.training.validation import measure

METHODS = ("vadusa", "mtp-viterbi", "eagle2", "ssd")
LINES = [
    "two red circles",
    "one bar",
    "is it nine?",
    "the blue line",
    "a",
    "what is it?",
    "six",
    "the end",
    "no",
    "yes",
]
BRIEF = ("--steps", 4, "--batch", 4, "--held-out", 2, "--max-new-tokens", 16, "--answer-batch", 3, "--save-every", 1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny_speech.tiny_valle(tmp_path / "valle")


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    place = tmp_path / "texts"
    place.mkdir()
    (place / "texts.jsonl").write_text("".join(json.dumps({"prompt": line}) + "\n" for line in LINES))
    return place


def trained(folder: Path, texts: Path, methods: str, out: Path, run: Path, *more: Any) -> Any:
    told = ("drafter", "--target", folder, "--method", methods, "--data", texts, "--out", out, "--run", run)
    return CliRunner().invoke(train, [*map(str, told), *map(str, BRIEF), *map(str, more)], catch_exceptions=True)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors")


def test_every_method_is_trained_found_by_name_and_measured_in_one_table(
    folder: Path, texts: Path, tmp_path: Path
) -> None:
    place, run = folder / "drafters", tmp_path / "run"
    heads = trained(folder, texts, "vadusa,mtp-viterbi,eagle2", place, run, "--questions", 7)
    assert heads.exit_code == 0, repr(heads.exception)
    alone = trained(folder, texts, "ssd", place / "ssd", run, "--questions", 7)
    assert alone.exit_code == 0, repr(alone.exception)  # on the same answers
    assert set(drafters_of(folder)) == set(METHODS)
    answers = [json.loads(line) for file in sorted(run.glob("answers-target/*.jsonl")) for line in file.open()]
    assert {row["temperature"] for row in answers} == {1.0}
    assert len({tuple(row["prompt"][-10:]) for row in answers}) == 2  # both voices speak
    for method in METHODS:
        assert mmspec.load(folder, method).drafter.method == method
        card = (place / method / "README.md").read_text()
        assert "7 sampled as its checkpoint says" in card
        assert "| step | as its checkpoint samples |" in card
    rows = ",".join(["none", *METHODS, "vadusa@tolerance=3", "ssd@beta=0.4", "mtp-viterbi@unverified"])
    told = ["speech", "--model", folder, "--methods", rows, "--sentences", 2, "--max-new-tokens", 16, "--min-tokens", 2]
    done = CliRunner().invoke(bench, [*map(str, told), "--json"], catch_exceptions=True)
    assert done.exit_code == 0, repr(done.exception)
    figures = {each["method"]: each for each in json.loads(done.stdout)["figures"]}
    assert set(figures) == {*rows.split(","), "hf"}
    assert all(figures[method]["equal_ours"] == 1 for method in METHODS)
    assert not figures["vadusa@tolerance=3"]["lossless"]
    pipe = mmspec.load(folder, "none")
    for text in curve_rows():
        assert len(row(pipe, text)(prompt="two red circles", max_new_tokens=4, seed=1).token_ids) <= 4


def test_a_drafter_learns_from_speech_that_is_sampled_as_its_checkpoint_says(
    folder: Path, texts: Path, tmp_path: Path
) -> None:
    """With one code to choose from, sampling says what greedy decoding would."""

    def made(run: str) -> list[dict[str, Any]]:
        done = trained(folder, texts, "eagle2", tmp_path / f"{run}-out", tmp_path / run, "--questions", 7)
        assert done.exit_code == 0, repr(done.exception)
        files = sorted((tmp_path / run).glob("answers-target/*.jsonl"))
        return [json.loads(line) for file in files for line in file.open()]

    own = json.loads((folder / "generation_config.json").read_text())
    free = made("free")
    (folder / "generation_config.json").write_text(json.dumps({**own, "do_sample": True, "top_k": 1}))
    bound = made("bound")
    pipe = mmspec.load(folder, "none")
    for index, said in enumerate(bound):
        ids = torch.tensor([said["prompt"]])
        assert said["answer"] == pipe.generate(ids, max_new_tokens=16, temperature=0).token_ids
        assert free[index]["prompt"] == said["prompt"]
    assert [said["answer"] for said in free] != [said["answer"] for said in bound]
    refused = trained(folder, texts, "eagle2", tmp_path / "out", tmp_path / "free", "--questions", 7)
    assert "differs in" in str(refused.exception)  # the answers of the run follow another law
    shutil.rmtree(tmp_path / "free" / "answers-target")
    again = made("free")
    assert [said["answer"] for said in again] == [said["answer"] for said in bound]
    assert len(list((tmp_path / "free").glob("eagle2-*"))) == 2  # and so does what learnt from them


@pytest.mark.parametrize("methods", ["vadusa,mtp-viterbi", "ssd", "vadusa-joint"])
def test_a_run_that_was_killed_gives_the_same_drafter(
    folder: Path, texts: Path, tmp_path: Path, methods: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = trained(folder, texts, methods, tmp_path / "whole", tmp_path / "one")
    assert whole.exit_code == 0, repr(whole.exception)
    forward, calls = Learner.forward, count(1)

    def killed(self: Any, **batch: Any) -> Any:
        if next(calls) == 3:
            raise KeyboardInterrupt
        return forward(self, **batch)

    monkeypatch.setattr(Learner, "forward", killed)
    cut = trained(folder, texts, methods, tmp_path / "cut", tmp_path / "two")
    assert cut.exit_code != 0
    assert not (tmp_path / "cut").exists()
    again = trained(folder, texts, methods, tmp_path / "cut", tmp_path / "two")
    assert again.exit_code == 0, repr(again.exception)
    assert next(calls) == 6  # two updates, the one that was killed, and the two that were missing
    for name in methods.split(",") if "," in methods else [""]:
        first, second = weights(tmp_path / "whole" / name), weights(tmp_path / "cut" / name)
        for key, weight in first.items():
            torch.testing.assert_close(weight.float(), second[key].float(), rtol=1e-2, atol=1e-3)


def digests(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_heads_that_learn_with_their_target_make_a_new_one(folder: Path, texts: Path, tmp_path: Path) -> None:
    before, new = digests(folder), tmp_path / "new"
    told = ("--steps", 12, "--rate", 0.05)
    done = trained(folder, texts, "vadusa-joint", new, tmp_path / "run", *told)
    assert done.exit_code == 0, repr(done.exception)
    assert digests(folder) == before
    assert set(drafters_of(new)) == {"vadusa"}
    assert "--model FOLDER --drafter vadusa" in (new / "README.md").read_text()
    old_weights, new_weights = weights(folder), weights(new)
    moved = {
        name for name, weight in old_weights.items() if not torch.allclose(weight, new_weights[name].float(), atol=0.02)
    }
    assert moved
    assert all(name.startswith("speaker.") for name in moved)  # what makes sound of codes is as it was
    asked: dict[str, Any] = {"prompt": "two red circles", "max_new_tokens": 20, "temperature": 1.0, "seed": 3}
    plain, fast = (mmspec.load(new, drafter, dtype="float64")(**asked) for drafter in ("none", "vadusa"))
    assert fast.token_ids == plain.token_ids
    assert fast.audio.samples.shape == plain.audio.samples.shape


def test_heads_that_are_there_learn_on_with_their_target(folder: Path, texts: Path, tmp_path: Path) -> None:
    heads = tmp_path / "heads"
    done = trained(folder, texts, "vadusa", heads, tmp_path / "run", "--levels", 2)
    assert done.exit_code == 0, repr(done.exception)
    pipe, recipe = mmspec.load(folder, "none"), JointRecipe()
    start = load_drafter(heads, pipe.target)
    net = recipe.begin(start, pipe.target)
    assert shaped(recipe, net).levels == 2
    for name, weight in start.net.state_dict().items():
        assert torch.equal(net.heads.state_dict()[name], weight)
    for name, weight in pipe.target.speaker.state_dict().items():
        assert torch.equal(net.speaker.state_dict()[name], weight)
    assert not {id(one) for one in net.parameters()} & {id(one) for one in pipe.target.model.parameters()}
    before = digest(net)
    net.heads.draft_ids = torch.arange(3)
    assert digest(net) != before

    more = ("--start", heads)
    done = trained(folder, texts, "vadusa-joint", tmp_path / "new", tmp_path / "run", *more)
    assert done.exit_code == 0, repr(done.exception)
    assert len(mmspec.load(tmp_path / "new", "vadusa").drafter.net.heads) == 2
    refused = trained(folder, texts, "vadusa-joint", tmp_path / "other", tmp_path / "run", *more, "--levels", 3)
    assert isinstance(refused.exception, MismatchError)
    assert "vadusa-joint starts with a drafter whose levels is 2, and not 3" in str(refused.exception)
    projected = Vadusa(MedusaHeads(start.net.config, levels=2, projected=True))
    paired = Viterbi(ViterbiRecipe(levels=2).build(pipe.target))
    for other in (SSD(shortened(pipe.target.speaker, 1, [1])), projected, paired):
        kind = f"training of vadusa-joint cannot start with that drafter: it is one of {other.method}"
        with pytest.raises(MismatchError, match=kind):
            recipe.begin(other, pipe.target)
    with pytest.raises(MismatchError, match="mtp-viterbi cannot start .*: it is one of vadusa, and its known"):
        ViterbiRecipe().begin(start, pipe.target)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_new_target_is_stored_as_the_old_one(tmp_path: Path, dtype: torch.dtype) -> None:
    tiny_speech.valle().to(dtype).save_pretrained(tmp_path / "old")
    tiny_speech.processor().save_pretrained(tmp_path / "old")
    recipe, own = JointRecipe(), tiny_speech.valle().to(dtype)
    read: dict[str, Any] = {"model": tmp_path / "old", "dtype": "float32"}  # in another number format
    made: dict[str, Any] = {"model": own, "processor": tiny_speech.processor()}
    for place, which in enumerate((read, made)):  # the second one has no folder
        pipe = mmspec.load(**which, drafter="none")
        net = recipe.build(pipe.target)
        recipe.save(recipe.serving(pipe, net), recipe.drafter(net), tmp_path / f"new-{place}")
        assert {weight.dtype for weight in weights(tmp_path / f"new-{place}").values()} == {dtype}


def test_the_old_target_is_never_written_to(folder: Path, texts: Path, tmp_path: Path) -> None:
    before = digests(folder)
    for place in (folder, folder / "drafters" / ".."):
        refused = trained(folder, texts, "vadusa-joint", place, tmp_path / "run")
        assert isinstance(refused.exception, InputError)
        assert "never changed" in str(refused.exception)
    assert digests(folder) == before
    assert not (tmp_path / "run").exists()  # refused before anything was done
    other = trained(tiny.tiny_llama(tmp_path / "llama"), texts, "vadusa-joint", tmp_path / "new", tmp_path / "run")
    assert isinstance(other.exception, MismatchError)
    assert "trained for speech models" in str(other.exception)


def joint_lesson(folder: Path) -> tuple[Any, Any, Any, list[Answered]]:
    """A target, a copy of it that learns with heads, their loss, and two answers to learn from."""
    target = mmspec.load(folder, "none").target
    codes = target.code_ids()
    rows = [Answered(i, [1, 5, 6, 2, codes[3], 3], codes[i : i + 9], 1.0) for i in range(2)]
    recipe = JointRecipe(steps=10, batch=2)
    net = recipe.build(target, rows)
    states = {
        row.index: target.model(input_ids=torch.tensor([row.ids]), output_hidden_states=True)
        .hidden_states[-1][0, :, None]
        .detach()
        for row in rows
    }
    return target, net, recipe.loss(net, target, Given(states, (target.num_layers,))), rows


def test_the_joint_loss_holds_the_target_where_it_was_until_heads_count(folder: Path) -> None:
    target, net, loss, rows = joint_lesson(folder)

    def gradients(position: int) -> tuple[float, float, float]:
        net.zero_grad()
        value = loss(position=torch.tensor([position, position + 1]), rows=rows)
        value.backward()
        norms = [
            [float(one.grad.norm()) for one in part.parameters() if one.grad is not None]
            for part in (net.speaker, net.heads)
        ]
        return float(value.detach()), *(max(part, default=0.0) for part in norms)

    still, trunk, heads = gradients(0)
    assert trunk < 1e-4  # the cross-entropy to its own law is least where it is
    assert heads == 0
    grown, trunk, heads = gradients(10)
    assert grown > still
    assert min(trunk, heads) > 1e-3
    full, _, _ = gradients(20)
    assert full - still == pytest.approx(2 * (grown - still), rel=1e-4)
    assert gradients(40)[0] == pytest.approx(full)  # and no further
    assert all(weight.grad is None for weight in target.model.parameters())
    with pytest.raises(InputError, match="trunk_pace"):
        JointRecipe(trunk_pace=0.0)


def test_the_joint_loss_reads_no_states_of_prompts(folder: Path) -> None:
    _, net, loss, rows = joint_lesson(folder)
    assert not JointRecipe.context
    found = []
    for cut in (False, True):
        if cut:
            loss.features.context, loss.features.last = False, {}
            loss.features.kept = {row.index: loss.features.kept[row.index][row.start - 1 :] for row in rows}
        net.zero_grad()
        value = loss(position=torch.tensor([10, 11]), rows=rows)
        value.backward()
        found.append((value.detach(), [weight.grad for weight in net.parameters() if weight.grad is not None]))
    assert torch.equal(found[0][0], found[1][0])
    assert all(map(torch.equal, found[0][1], found[1][1]))


def test_the_joint_loss_is_judged_in_chunks(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loss and its gradients are those of all at once, and no chunk is larger than it may be."""
    target, net, loss, rows = joint_lesson(folder)

    def judged() -> tuple[torch.Tensor, list[torch.Tensor]]:
        value = loss(position=torch.tensor([10, 11]), rows=rows)
        return value.detach(), list(torch.autograd.grad(value, [*net.parameters()], allow_unused=True))

    whole = judged()
    sizes: list[int] = []
    for head in (target.head, net.speaker.lm_head):
        head.register_forward_hook(lambda _, given, made: sizes.append(len(made)))
    monkeypatch.setattr(chunks, "LOGITS", 3 * target.vocab_size)
    parts = judged()
    assert max(sizes) == 3
    torch.testing.assert_close(parts, whole)


def test_no_sound_is_made_of_what_is_learnt_from_or_measured(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe = mmspec.load(folder, "none")
    monkeypatch.setattr(pipe.target, "product_of", lambda *_: pytest.fail("nobody hears it"))
    options = AnswerOptions(max_new_tokens=8, batch=2, sampled=1.0)
    assert collect(pipe, Sentences("drafter/1", 3), options, tmp_path / "answers", "it")
    assert measure(pipe, PromptLookup(), [pipe.prepare(None, ["one", "two"])], 8, 0)["tau_t1"] >= 1


def test_a_sound_is_made_once_when_it_is_asked_for_and_then_without_the_model(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe = mmspec.load(folder, "none")
    made: list[int] = []
    product_of = pipe.target.product_of
    monkeypatch.setattr(pipe.target, "product_of", lambda *told: made.append(told[1]) or product_of(*told))
    out, copied = (pipe(prompt="two red circles", max_new_tokens=12, seed=1) for _ in range(2))
    assert "audio" not in out.as_dict()
    assert "two red" not in repr(out)
    assert not made
    assert out.audio is out.audio
    assert replace(out, text="it").audio is out.audio
    assert out.image is None
    assert made == [0]
    for other in (copy.copy(copied), copy.deepcopy(copied), pickle.loads(pickle.dumps(copied))):  # noqa: S301
        assert np.array_equal(other.audio.samples, out.audio.samples)
        assert other.token_ids == out.token_ids
    assert made == [0, 0]
    assert len(pickle.dumps(copied)) < 100_000


def test_a_module_learns_at_its_pace() -> None:
    net = torch.nn.ModuleDict({name: torch.nn.Linear(3, 3) for name in ("slow", "usual")})
    net["slow"].pace = 0.25
    groups = build_optimizer(net, 0.04).param_groups
    rates = {id(parameter): group["lr"] for group in groups for parameter in group["params"]}
    assert [rates[id(weight)] for weight in net["usual"].parameters()] == pytest.approx([0.04, 0.006])
    assert [rates[id(weight)] for weight in net["slow"].parameters()] == pytest.approx([0.01, 0.0015])


def test_questions_take_turns_in_the_voices_unless_they_name_one(tmp_path: Path) -> None:
    lines = [{"prompt": "one"}, {"prompt": "two"}, {"prompt": "three", "voice": "low"}, {"prompt": "four"}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    said, held_out = open_data(str(tmp_path), None, 1, 0, "speech", ["high", "low"])
    assert [said[index].voice for index in range(3)] == ["high", "low", "low"]
    assert held_out[0].voice == "high"
    assert said.name != Lines(tmp_path).name  # answers by other voices are other answers
    pipe = mmspec.load(tiny_speech.valle(), drafter="none", processor=tiny_speech.processor())
    both = prepare(pipe, [said[0], said[1]])["voice_codes"]
    assert torch.equal(both[0], pipe.processor.voice("high"))
    assert torch.equal(both[1], pipe.processor.voice("low"))
    assert torch.equal(prepare(pipe, [Lines(tmp_path)[0]])["voice_codes"][0], pipe.processor.voice("high"))


def test_a_voice_that_is_a_file_is_looked_for_beside_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("texts").mkdir()
    file = tiny_speech.voice(pitch=90.0).save("texts/adam.wav")
    Path("texts/a.jsonl").write_text('{"prompt": "one", "voice": "adam.wav"}\n{"prompt": "two", "voice": "low"}\n')
    lines, processor = Lines(Path("texts")), tiny_speech.processor()
    assert torch.equal(processor.voice(lines[0].voice), processor.voice(str(file)))
    assert lines[1].voice == "low"
    tiny_speech.voice(2.0).save(file)
    assert Lines(Path("texts")).name != lines.name  # answers to another voice are other answers


def test_the_world_has_sentences_to_say_and_others_that_were_held_out() -> None:
    said, held_out = open_data("miniworld", 30, 10, 0, "speech", ["low"])
    assert isinstance(said, Voiced)
    texts = {said[index].prompt for index in range(len(said))}
    assert len(texts) == 30
    assert not texts & {held_out[index].prompt for index in range(len(held_out))}
    assert Sentences("drafter/1", 3)[2].image is None


def test_another_seed_brings_other_sentences_and_those_held_out_stay_so() -> None:
    first, other = (Sentences(f"drafter/{seed}", 40) for seed in (0, 71))
    assert (first.name, first.lines) == ("sentences/train", sentences("train", 40))
    assert other.name != first.name  # answers to one are no answers to the other
    assert not set(other.lines) <= set(first.lines)
    held_out = [Sentences(f"drafter/held-out/{seed}", 40) for seed in (0, 71)]
    assert len({each.name for each in (first, other, *held_out)}) == 4
    assert not {*held_out[0].lines, *held_out[1].lines} & {*first.lines, *other.lines}


def test_heads_can_be_trained_together_with_their_own_defaults() -> None:
    check_together([find_recipe(method, "speech")() for method in METHODS if method != "ssd"])


@pytest.mark.parametrize("method", ["ssd", "vadusa-joint"])
def test_what_is_trained_from_a_speaking_llama_refuses_other_targets(method: str) -> None:
    with pytest.raises(MismatchError, match=f"{method} needs a target that speaks with a Llama, not a Musicgen"):
        find_recipe(method, "speech")().check(Musicgen(musicgen()))


def test_mistakes_are_told(folder: Path, texts: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    together = trained(folder, texts, "ssd,vadusa", tmp_path / "out", run)
    assert isinstance(together.exception, InputError)
    assert "ssd does not learn" in str(together.exception)
    (texts / "more.jsonl").write_text('{"prompt": "\\u6f22"}\n' * 6)  # more than may be left out
    strange = trained(folder, texts, "vadusa", tmp_path / "out", run)
    assert isinstance(strange.exception, InputError)
    assert "cannot pronounce" in str(strange.exception)
    (texts / "more.jsonl").write_text('{"prompt": "one", "voice": "nobody"}\n' * 3)
    unknown = trained(folder, texts, "vadusa", tmp_path / "out", run)
    assert "unknown voice 'nobody'" in str(unknown.exception)
    (texts / "more.jsonl").unlink()
    assert trained(folder, texts, "vadusa", tmp_path / "out", run).exit_code == 0
    other = trained(folder, texts, "vadusa", tmp_path / "out", run, "--sampled", 0.5)
    assert isinstance(other.exception, MismatchError)
