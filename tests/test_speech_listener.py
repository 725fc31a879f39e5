"""The listener that judges speech: words, letters, padding, voices, its training, the judge's distances."""

import functools
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_speech
import torch
from safetensors.torch import load_file

from mmspec.edits import distance
from mmspec.errors import CheckpointError, InputError, MismatchError
from mmspec.speech.audio import Audio
from mmspec.speech.judge import Judge, path_cost
from mmspec.speech.listener import BLANK, Listener, ListenerConfig, symbols, written
from mmspec.speech.pretrain import listener_training
from mmspec.speech.pretrain.corpus import Say, Utterance, record
from mmspec.speech.pretrain.espeak import VOICES, Speaker, usual
from mmspec.speech.pretrain.listener_training import ListenerLoss, errors, hidden
from mmspec.speech.text import spoken
from mmspec.speech.texts import sentences
from mmspec.speech.wer import audible, pairs, word_errors
from mmspec.training.muon import build_optimizer

RATE = 4000
TINY = {"rate": RATE, "n_fft": 256, "hop": 32, "mels": 24, "width": 32, "blocks": 3, "kernel": 5, "manner": 8}


def tiny_listener(**changes: Any) -> Listener:
    torch.manual_seed(1)
    return Listener(ListenerConfig(**{**TINY, **changes})).eval()


def tones(text: str, speaker: Speaker) -> Audio:
    """A letter is a tone of 60 ms; a voice is another tone above it."""
    time = np.arange(int(0.06 * RATE)) / RATE
    own = 1500 + 20 * (speaker.pitch - 40)
    parts = [
        np.sin(2 * np.pi * (150 + 45 * (ord(letter) - 96)) * time) * (letter.isalpha())
        + 0.4 * np.sin(2 * np.pi * own * time)
        for letter in text
    ]
    return Audio((0.3 * np.concatenate(parts)).astype(np.float32), RATE)


def slow_distance(said: str, heard: str) -> int:
    @functools.cache
    def cost(i: int, j: int) -> int:
        if not i or not j:
            return i + j
        return min(cost(i - 1, j) + 1, cost(i, j - 1) + 1, cost(i - 1, j - 1) + (said[i - 1] != heard[j - 1]))

    return cost(len(said), len(heard))


def test_distance_is_the_least_number_of_edits() -> None:
    texts = ["".join(letters) for n in range(4) for letters in itertools.product("ab", repeat=n)]
    for said, heard in itertools.product(texts, texts):
        assert distance(said, heard) == slow_distance(said, heard)
    assert distance("kitten", "sitting") == 3


@pytest.mark.parametrize(
    ("said", "heard", "expected"),
    [
        ("the red bar", "the bat", [("the", "the"), ("red", ""), ("bar", "bat")]),
        ("a b", "a x y b", [("a", "a"), ("", "x"), ("", "y"), ("b", "b")]),
        ("one", "", [("one", "")]),
        ("", "one", [("", "one")]),
    ],
)
def test_words_stand_beside_those_that_were_heard(said: str, heard: str, expected: list[tuple[str, str]]) -> None:
    found = pairs(said.split(), heard.split())
    assert found == expected
    assert sum(one != other for one, other in found) == distance(said.split(), heard.split())


def test_word_errors_by_hand() -> None:
    assert word_errors("the red bar is tall", "the bat is very tall") == (3, 5)
    assert word_errors("one two", "") == (2, 2)
    assert word_errors("one", "one two three") == (2, 1)


def test_what_can_be_heard_has_no_punctuation_and_no_digits() -> None:
    assert audible("It's 21, twenty-one; (A-b)!") == "it's twenty one twenty one a b"
    assert audible(spoken("The bar: 7.")) == audible("the bar, 7")


def test_a_path_through_the_frames_is_read_as_ctc_does() -> None:
    a, b = symbols("a")[0], symbols("b")[0]
    assert written([BLANK, a, a, BLANK, a, b, b, BLANK]) == "aab"
    assert written([BLANK, BLANK]) == ""
    assert written(symbols("the bar")) == "the bar"


def test_padding_changes_nothing_for_a_shorter_row() -> None:
    listener = tiny_listener().double()
    short, long = (torch.from_numpy(tones(text, usual("adam")).samples) for text in ("bar", "the tallest bar"))
    alone = listener(*listener.mel([short]))
    laws, counts, manner = listener(*listener.mel([short, long]))
    assert int(counts[0]) == alone[0].shape[1] < laws.shape[1]
    torch.testing.assert_close(laws[0, : int(counts[0])], alone[0][0], atol=1e-6, rtol=0)
    torch.testing.assert_close(manner[0], alone[2][0], atol=1e-9, rtol=0)
    assert manner.norm(dim=-1).tolist() == pytest.approx([1, 1])


def test_loudness_changes_nothing() -> None:
    listener = tiny_listener()
    noise = np.random.default_rng(0).normal(scale=0.05, size=2000).astype(np.float32)
    audio, louder = Audio(noise, RATE), Audio(3 * noise, RATE)
    laws = [listener(*listener.mel([torch.from_numpy(each.samples)]))[0] for each in (audio, louder)]
    torch.testing.assert_close(*laws, atol=1e-3, rtol=0)


@pytest.fixture(scope="module")
def taught() -> tuple[Listener, list[Utterance]]:
    """A listener that has heard sixteen utterances of tones again and again."""
    rng = np.random.default_rng(0)
    texts = [" ".join("".join(rng.choice(list("abc"), 2)) for _ in range(3)) for _ in range(16)]
    spoken_by = [Speaker("adam", "", 165, 60 if i % 2 else 40) for i in range(16)]
    corpus = [
        Utterance(text, i % 2, torch.from_numpy((tones(text, who).samples * 32767).astype(np.int16)))
        for i, (text, who) in enumerate(zip(texts, spoken_by, strict=True))
    ]
    listener = tiny_listener(voices=2).train()
    loss, optimizer = ListenerLoss(listener), build_optimizer(listener, 0.02)
    for step in range(180):
        optimizer.zero_grad()
        loss(torch.arange(16) + 16 * step, corpus).backward()
        optimizer.step()
    return listener.eval(), corpus


def test_it_learns_words_and_voices(taught: tuple[Listener, list[Utterance]]) -> None:
    listener, corpus = taught
    assert errors(listener, corpus) < 0.35
    assert errors(listener, corpus, shift=1) > 0.7
    assert listener_training.right_voices(listener, corpus) == 1
    one, same, other = (listener.manner_of(Audio(corpus[i].samples.numpy(), RATE)) for i in (0, 2, 1))
    assert float(one @ same) > float(one @ other) + 0.3


def test_the_judge_marks_words_and_voices(taught: tuple[Listener, list[Utterance]]) -> None:
    listener, corpus = taught
    judge = Judge(listener)
    sounds = [Audio(one.samples.numpy(), RATE) for one in corpus[:3]]
    voices = judge.voice(sounds[2]), judge.voice(sounds[1])
    marks = judge.mark(corpus[0].text, corpus[1].text, sounds[0], *voices)
    assert marks["words"] == marks["other_words"] == 3
    assert marks["errors"] < marks["other_errors"]
    assert marks["own_voice"] > marks["other_voice"]
    silent = judge.mark(corpus[0].text, corpus[1].text, None, *voices)
    assert (silent["errors"], silent["words"]) == (3, 3)
    assert "own_voice" not in silent
    alone = judge.mark(corpus[0].text, None, sounds[0])
    assert alone == {"errors": marks["errors"], "words": 3}


def test_some_bands_and_some_time_are_hidden_and_nothing_else_changes() -> None:
    import random

    mel = torch.ones(2, 24, 60)
    blanked = [hidden(mel, random.Random(i)) for i in range(20)]
    assert all(set(each.unique().tolist()) <= {0.0, 1.0} for each in blanked)
    assert len({float(each.mean()) for each in blanked}) > 5
    assert float(mel.min()) == 1


def test_half_of_what_is_heard_at_last_comes_from_the_codec() -> None:
    made = [Utterance(text, 0, torch.zeros(4)) for text in "abcde"]
    heard = listener_training.mixed(made[:3], made[3:])
    assert [one.text for one in heard] == ["a", "d", "b", "e", "c", "d"]


def test_alignment_costs_nothing_for_a_slower_copy_and_more_for_another() -> None:
    a, b = torch.randn(9, 4), torch.randn(9, 4)
    slow = a.repeat_interleave(2, 0)
    assert path_cost(torch.cdist(a, a, p=1)) == 0
    assert path_cost(torch.cdist(a, slow, p=1)) == 0
    assert path_cost(torch.cdist(a, b, p=1)) > 0.5
    assert path_cost(torch.cdist(a, b, p=1)) == pytest.approx(path_cost(torch.cdist(b, a, p=1)))
    assert path_cost(torch.full((3, 5), 2.0)) == 2


def test_alignment_takes_the_cheapest_path() -> None:
    def every(costs: torch.Tensor, i: int, j: int) -> float:
        here = float(costs[i, j])
        if i == j == 0:
            return 2 * here
        ways = []
        if i:
            ways.append(every(costs, i - 1, j) + here)
        if j:
            ways.append(every(costs, i, j - 1) + here)
        if i and j:
            ways.append(every(costs, i - 1, j - 1) + 2 * here)
        return min(ways)

    torch.manual_seed(0)
    for shape in ((4, 3), (2, 5), (1, 4), (3, 1), (1, 1)):
        costs = torch.rand(shape)
        assert path_cost(costs) == pytest.approx(every(costs, shape[0] - 1, shape[1] - 1) / sum(shape))


def test_mel_distance_is_zero_for_the_same_sound_only() -> None:
    judge = Judge(tiny_listener())
    one, other = tones("a red bar", usual("adam")), tones("two blue lines", usual("adam"))
    assert judge.mel_distance(one, one) == 0
    assert judge.mel_distance(one, other) > 0.1


def test_a_listener_is_found_beside_a_model_or_where_one_is_named(tmp_path: Path) -> None:
    assert Judge.find(tmp_path) is None
    assert Judge.find(None) is None
    listener = tiny_listener()
    listener.figures = {"wer_of_recordings": 0.25}
    listener.write(tmp_path / "listener")
    found = Judge.find(tmp_path)
    assert found is not None
    assert found.own_errors == {"wer_of_recordings": 0.25}
    audio = tones("a red bar", usual("adam"))
    torch.testing.assert_close(found.listener.manner_of(audio), listener.manner_of(audio))
    tiny_speech.tiny_valle(tmp_path / "valle")
    for wrong in ("nowhere", "valle"):
        with pytest.raises(CheckpointError, match=wrong):
            Judge.find(tmp_path, tmp_path / wrong)
    (tmp_path / "listener" / "model.safetensors").write_bytes(b"x")
    with pytest.raises(CheckpointError, match="cannot be loaded"):
        Judge.find(tmp_path)


def test_sentences_come_from_a_file_or_from_what_was_held_out(tmp_path: Path) -> None:
    assert Judge.texts(3) == Judge.texts(5)[:3]
    file = tmp_path / "lines.txt"
    file.write_text("one bar\n\n two bars \nthree")
    assert Judge.texts(3, file) == ["one bar", "two bars", "three"]
    with pytest.raises(InputError, match="holds 3 sentences"):
        Judge.texts(4, file)
    with pytest.raises(InputError, match="cannot be read"):
        Judge.texts(1, tmp_path / "none.txt")


def test_a_run_writes_a_listener_with_its_own_errors_and_waits_for_the_codec(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    told = {"out": tmp_path / "ear", "run": tmp_path / "run", "sentences": 12, "held-out": 3, "resynthesised": 4,
            "steps": 3, "codec-steps": 2, "batch": 4}  # fmt: skip
    options = listener_training.parser().parse_args([f"--{name}={value}" for name, value in told.items()])

    def run(speak: Say) -> None:
        listener_training.run(options, ListenerConfig(**TINY, voices=len(VOICES)), speak)

    with pytest.raises(CheckpointError, match="holds no codec"):
        run(tones)
    before = load_file(tmp_path / "run" / "listener" / "plain-done" / "model.safetensors")
    tiny_speech.processor().codec.save_pretrained(tmp_path / "run" / "codec-done")

    def silent(text: str, speaker: Speaker) -> Audio:
        raise AssertionError("recordings are those of the run")

    run(silent)
    listener = Listener.load(tmp_path / "ear")
    assert set(listener.figures) == {"wer_of_recordings", "wer_of_codec", "wer_of_wrong_texts", "right_voices"}
    assert json.loads((tmp_path / "ear" / "figures.json").read_text()) == listener.figures
    assert "12 sentences" in (tmp_path / "ear" / "README.md").read_text()
    assert any(not torch.equal(before[name], each) for name, each in listener.state_dict().items())
    options.batch = 2
    with pytest.raises(MismatchError, match="differs in batch"):
        run(silent)


def test_the_recordings_are_those_of_the_run_whatever_the_seed_of_the_training(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    for split, count in (("train", 4), ("dev", 2)):
        record(sentences(split, count), RATE, tmp_path / "run" / f"speech-{split}", seed=7, speak=tones)
    told = {"out": tmp_path / "ear", "run": tmp_path / "run", "sentences": 4, "held-out": 2, "resynthesised": 2,
            "steps": 1, "codec-steps": 1, "batch": 2, "seed": 3}  # fmt: skip
    options = listener_training.parser().parse_args([f"--{name}={value}" for name, value in told.items()])

    def silent(text: str, speaker: Speaker) -> Audio:
        raise AssertionError("recordings are those of the run")

    other = ListenerConfig(**TINY | {"rate": 2 * RATE}, voices=len(VOICES))
    with pytest.raises(MismatchError, match="differs in rate"):
        listener_training.run(options, other, silent)
    assert not (tmp_path / "run" / "listener").exists()  # where the right one will be
    with pytest.raises(CheckpointError, match="holds no codec"):
        listener_training.run(options, ListenerConfig(**TINY, voices=len(VOICES)), silent)
    assert (tmp_path / "run" / "listener" / "plain-done").exists()


def test_a_listener_goes_on_from_another_one_of_its_sizes(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    config = ListenerConfig(**TINY, voices=len(VOICES))
    old = Listener(config)
    with torch.no_grad():
        old.voices.bias.fill_(3.0)  # no training comes near it
    old.figures = {}
    (tmp_path / "old").mkdir()
    old.write(tmp_path / "old")
    tiny_speech.processor().codec.save_pretrained(tmp_path / "run" / "codec-done")
    told = {"out": tmp_path / "ear", "run": tmp_path / "run", "sentences": 4, "held-out": 2, "resynthesised": 2,
            "steps": 0, "codec-steps": 1, "batch": 2, "start": tmp_path / "old"}  # fmt: skip
    options = listener_training.parser().parse_args([f"--{name}={value}" for name, value in told.items()])
    options.codec_steps = 0
    with pytest.raises(InputError, match="--codec-steps 0 is not valid: at least 1"):
        listener_training.run(options, config, tones)
    options.codec_steps = 1
    wider = {name: 2 * value for name, value in TINY.items() if name in ("width", "manner")}
    with pytest.raises(MismatchError, match="which differs in width, manner"):
        listener_training.run(options, ListenerConfig(**TINY | wider, voices=len(VOICES)), tones)
    assert not (tmp_path / "run" / "listener").exists()
    listener_training.run(options, config, tones)
    assert Listener.load(tmp_path / "ear").voices.bias.min() > 2
    card = (tmp_path / "ear" / "README.md").read_text()
    assert "It began with the weights of another listener. 0 updates on recordings, 1 more on both" in card
    assert "--seed 0 --start old" in card
