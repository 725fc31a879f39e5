"""Speech on the command line: a sentence becomes a WAV file, mistakes end in one line."""

import json
from pathlib import Path
from typing import Any

import pytest
import test_speech_llasa
import tiny
import tiny_speech
from commands import generate

import mmspec
from mmspec.errors import InputError, UnknownNameError, UnsupportedError
from mmspec.speech.audio import read_audio
from mmspec.speech.valle_target import ValleTarget


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_speech.tiny_valle(tmp_path_factory.mktemp("cli") / "valle")


def test_a_sentence_becomes_a_wav_file(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "speech.wav"
    done = generate("two red circles", "--model", folder, "--voice", "high", "--max-new-tokens", 12, "--out", file)
    assert done.exit_code == 0, done.output
    assert read_audio(file).rate == tiny_speech.RATE
    assert "s of sound" in done.stderr
    assert "exact (lossless)" in done.stderr


def test_an_utterance_that_was_cut_is_reported(folder: Path, tmp_path: Path) -> None:
    done = generate("two red circles", "--model", folder, "--max-new-tokens", 2, "--out", tmp_path / "cut.wav")
    assert done.exit_code == 0, done.output
    assert "ended by length" in done.stderr


def test_json_and_a_file_together(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "speech.wav"
    done = generate(
        "one", "--model", folder, "--max-new-tokens", 6, "--out", file, "--json", "--acceptance", "tolerance"
    )
    assert done.exit_code == 0, done.output
    assert '"lossless": false' in done.stdout
    assert file.exists()


def test_mistakes_are_errors_of_ours(folder: Path, tmp_path: Path) -> None:
    assert isinstance(
        generate("one", "--model", folder, "--voice", "nobody", "--out", tmp_path / "x.wav").exception, UnknownNameError
    )
    silent = tiny.tiny_llama(tmp_path / "llama")
    done = generate("hello", "--model", silent, "--max-new-tokens", 4, "--out", tmp_path / "x.wav")
    assert isinstance(done.exception, InputError)
    assert "no sound" in str(done.exception)
    assert isinstance(generate("hello", "--model", silent, "--voice", "low").exception, InputError)


def test_a_file_that_cannot_be_written_is_found_before_anything_is_said(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mmspec.Pipeline, "stream", None)
    silent = tiny.tiny_llama(tmp_path / "llama")
    done = generate("one", "--model", folder)
    assert isinstance(done.exception, InputError)
    assert "this model makes a sound: say where to, such as --out speech.wav" in str(done.exception)
    for model, file, message in (
        (folder, "speech.mp3", "has the ending '.mp3': speech is written as .wav"),
        (folder, "no/such/speech.wav", "there is no folder"),
        (silent, "speech.wav", "no picture and no sound to write"),
    ):
        done = generate("one", "--model", model, "--out", tmp_path / file)
        assert isinstance(done.exception, InputError)
        assert message in str(done.exception)


def test_a_model_without_a_codec_is_told_before_anything_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = tmp_path / "bare"
    test_speech_llasa.model().save_pretrained(bare)
    test_speech_llasa.tokenizer().save_pretrained(bare)
    told = ("two red circles", "--model", bare, "--max-new-tokens", 4)
    assert len(json.loads(generate(*told, "--json").stdout)["token_ids"]) == 4
    monkeypatch.setattr(mmspec.Pipeline, "stream", None)
    done = generate(*told, "--out", tmp_path / "speech.wav")
    assert isinstance(done.exception, UnsupportedError)
    assert "no sound is made here of the codes of this LlamaForCausalLM" in str(done.exception)
    assert "put --json in the place of --out" in str(done.exception)


def test_an_answer_without_sound_costs_nothing_but_its_file(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    product_of = ValleTarget.product_of

    def silent(target: Any, inputs: Any, row: int, ids: list[int]) -> Any:
        return {"audio": None} if row == 0 else product_of(target, inputs, row, ids)

    monkeypatch.setattr(ValleTarget, "product_of", silent)
    told = ("two red circles", "--model", folder, "--max-new-tokens", 12, "--out", tmp_path / "speech.wav", "--json")
    several = generate(*told, "--n", 2)
    assert several.exit_code == 2
    assert len(json.loads(several.stdout)) == 2
    assert "speech-1.wav: nothing is written, since the answer has no picture and no sound" in several.stderr
    assert [file.name for file in tmp_path.iterdir()] == ["speech-2.wav"]
    compared = generate(*told, "--compare")
    assert compared.exit_code == 2
    assert json.loads(compared.stdout)["agree"] is True
