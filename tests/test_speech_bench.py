"""`mmspec bench speech` on a tiny model with a tiny listener: rows, marks, figures, resuming, mistakes."""

import json
import shutil
import time
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import test_speech_csm
import test_speech_llasa
import tiny
import tiny_speech
import torch
from tiny_musicgen import musicgen, tokenizer
from typer.testing import CliRunner

import mmspec
from mmspec.acceptance.exact import Exact
from mmspec.benchmarks.certainty import Watching, mean_top
from mmspec.benchmarks.cli import app
from mmspec.benchmarks.commands.reading import words
from mmspec.benchmarks.commands.speech import SPEECH
from mmspec.benchmarks.commands.speed import OTHERS
from mmspec.benchmarks.figures import figures
from mmspec.benchmarks.records import Run, Sample
from mmspec.benchmarks.rows import row, split
from mmspec.benchmarks.speaking.figures import spoken_figures
from mmspec.benchmarks.speaking.marking import Sentence, Sounds, marks, voice_of
from mmspec.benchmarks.speaking.report import draw_curve, speech_report
from mmspec.benchmarks.speaking.run import SpeechSettings, curve_rows, run_speech, script, speech_methods
from mmspec.benchmarks.speed import SpeedSettings, prompt_size
from mmspec.benchmarks.start import usual_rows
from mmspec.errors import Error, InputError, UnknownNameError
from mmspec.intervals import widening
from mmspec.named import rule_named
from mmspec.registry import entries, names
from mmspec.speech.audio import read_audio
from mmspec.speech.columns import Columns
from mmspec.speech.judge import Judge
from mmspec.speech.listener import Listener, ListenerConfig
from mmspec.speech.relaxed import Tolerance

LISTENER = {"rate": tiny_speech.RATE, "n_fft": 256, "hop": 64, "mels": 16, "width": 16, "blocks": 3, "kernel": 5,
            "manner": 8}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tiny_speech.tiny_valle(tmp_path_factory.mktemp("bench") / "valle")
    torch.manual_seed(3)
    listener = Listener(ListenerConfig(**LISTENER)).eval()
    listener.figures = {"wer_of_recordings": 0.125}
    listener.write(place / "listener")
    return place


@pytest.fixture(scope="module")
def pipe(folder: Path) -> Any:
    return mmspec.load(folder, "none")


def test_a_model_of_speech_is_measured_as_such_without_being_told(folder: Path) -> None:
    arguments = ["--model", str(folder), "--drafters", "none", "--questions", "1", "--max-new-tokens", "12"]
    done = CliRunner().invoke(app, [*arguments, "--min-tokens", "2"], catch_exceptions=True)
    assert done.exit_code == 0, repr(done.exception)
    assert "LM-RTF" in done.stdout


def test_lengths_of_a_speech_run_are_held_against_its_own_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where one is not told, the other models' would be too long or too short for it."""
    asked: list[tuple[int, int]] = []

    def told(model: str, max_new_tokens: int = 320, min_tokens: int = 20) -> None:
        asked.append((max_new_tokens, min_tokens))

    monkeypatch.setitem(OTHERS, "speech", told)
    for more in (("--max-new-tokens", "40"), ("--min-tokens", "100")):
        done = CliRunner().invoke(app, ["--model", str(folder), *more], catch_exceptions=True)
        assert done.exit_code == 0, repr(done.exception)
    assert asked == [(40, 20), (320, 100)]


def bench(*arguments: Any) -> Any:
    return CliRunner().invoke(app, ["speech", *map(str, arguments)], catch_exceptions=True)


SMALL = ("--sentences", 2, "--max-new-tokens", 24, "--min-tokens", 2)


def test_a_run_measures_speed_words_and_voices_and_goes_on_where_it_stopped(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    methods = "none,prompt-lookup,prompt-lookup@tolerance=3"
    told = ("--model", folder, "--methods", methods, *SMALL, "--out", out)
    done = bench(*told)
    assert done.exit_code == 0, done.output + repr(done.exception)
    assert "wer of recordings 0.125" in done.stdout
    assert "mean top-1 probability" in done.stdout
    assert (out / "plot.png").stat().st_size > 10_000
    assert (out / "spectrograms.png").stat().st_size > 10_000
    waves = sorted(path.name for path in (out / "sounds").iterdir())
    named = ["hf", "none", "prompt-lookup", "prompt-lookup_tolerance_3"]
    assert waves == [f"{i}-{name}.wav" for i in (0, 1) for name in named]
    plainly, drafted = (read_audio(out / "sounds" / f"1-{name}.wav").samples for name in ("none", "prompt-lookup"))
    assert np.array_equal(plainly, drafted)
    summary = json.loads((out / "summary.json").read_text())
    spoken = {each["method"]: each for each in summary["spoken"]}
    assert list(spoken) == ["none", "hf", "prompt-lookup", "prompt-lookup@tolerance=3"]
    assert spoken["none"]["added"] is None
    for name in ("wer", "added", "mel", "length"):
        assert spoken["prompt-lookup"][name] is not None
    assert spoken["prompt-lookup"]["wer_low"] is None  # of two sentences
    assert spoken["prompt-lookup"]["added"] == 0
    assert spoken["prompt-lookup"]["mel"] == 0
    assert spoken["prompt-lookup"]["length"] == 1
    assert spoken["none"]["ttfa"] > 0
    assert spoken["none"]["rtf"] > spoken["none"]["lm_rtf"] > 0
    assert -1 <= spoken["none"]["own_voice"] <= 1
    figures = {each["method"]: each for each in summary["figures"]}
    assert figures["prompt-lookup"]["equal_ours"] == 1
    assert figures["prompt-lookup@tolerance=3"]["lossless"] is False
    assert figures["none"]["speedup"] is not None
    for name in ("none", "hf"):  # every token is a forward, that of the prefill as well
        assert spoken[name]["nfe"] * spoken[name]["audio_seconds"] == pytest.approx(figures[name]["new_tokens"])
    lines = (out / "samples.jsonl").read_bytes()
    again = bench(*told)
    assert again.exit_code == 0
    assert (out / "samples.jsonl").read_bytes() == lines, "what was measured is not measured again"
    assert json.loads((out / "summary.json").read_text())["spoken"] == summary["spoken"]


def test_speech_is_spoken_at_the_checkpoint_s_own_temperature(folder: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(folder, model)
    config = json.loads((model / "generation_config.json").read_text())
    (model / "generation_config.json").write_text(json.dumps(config | {"do_sample": True, "temperature": 0.7}))
    done = bench("--model", model, "--methods", "none", *SMALL, "--no-plot", "--out", tmp_path / "out")
    assert done.exit_code == 0, done.output + repr(done.exception)
    assert "temperature 0.7, as it sounds" in done.stdout
    assert json.loads((tmp_path / "out" / "settings.json").read_text())["temperatures"] == [0.7]


def test_a_model_of_columns_is_measured_without_a_partner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = mmspec.load(musicgen(), "none", processor=tokenizer())
    product_of = pipe.target.product_of

    def slowly(*asked: Any) -> Any:
        time.sleep(0.3)
        return product_of(*asked)

    monkeypatch.setattr(pipe.target, "product_of", slowly)
    speed = SpeedSettings("m", ("none",), temperatures=(1.0,), questions=1, max_new_tokens=7, min_tokens=2, repeats=1)
    settings = SpeechSettings(speed)
    said = script(pipe, settings, None)
    found = run_speech(pipe, settings, tmp_path, said, None)
    assert all(run.more["request_seconds"] > 0.3 for sample, _ in found for run in sample.runs.values())  # sound, too
    report = speech_report(pipe, found, settings, said, None)
    assert report.certainty[1.0] is not None
    assert 0 < report.certainty[1.0] < 1
    assert report.figures[0].speedup == 1
    assert "our AR loop alone" in report.text()


def test_a_compiled_model_is_timed_with_sentences(pipe: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which are no model inputs: what a reply's cache has to hold is asked of the processor."""
    monkeypatch.setattr(type(pipe.target), "compiled", True)
    speed = SpeedSettings("m", ("none",), temperatures=(1.0,), questions=1, max_new_tokens=7, min_tokens=2, repeats=1)
    (said,) = script(pipe, SpeechSettings(speed), None)
    ((sample, _),) = run_speech(pipe, SpeechSettings(speed), tmp_path, [said], None)
    assert set(sample.runs) == {"none", "hf"}
    longer = replace(said, prompt=f"{said.prompt} {said.prompt}")
    assert prompt_size(pipe, said) < prompt_size(pipe, longer)


@pytest.mark.parametrize("option", [(), ("--max-new-tokens", 7)])
def test_an_utterance_has_ten_seconds_where_nobody_says_how_long(folder: Path, option: tuple[Any, ...]) -> None:
    """In what the model counts, whose own budget is that of thirty."""
    told = ("--model", folder, "--methods", "none", "--sentences", 1, "--min-tokens", 1, "--json")
    done = bench(*told, *option)
    assert done.exit_code == 0, repr(done.exception)
    frames = tiny_speech.processor().frames_per_second
    length = json.loads(done.stdout)["settings"]["max_new_tokens"]
    assert length == (7 if option else int(30 * frames) // 3)


def test_generate_of_transformers_has_the_ends_and_the_warpers_of_our_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of speech is in no generation config of Llasa's."""
    processor = test_speech_llasa.LlasaProcessor(test_speech_llasa.tokenizer(), test_speech_llasa.codec())
    pipe = mmspec.load(test_speech_llasa.model().double(), "none", processor=processor)
    whole = pipe(prompt="two red circles", temperature=0, max_new_tokens=12).token_ids
    monkeypatch.setattr(pipe.target, "end", next(token for token in whole[3:] if token not in whole[:3]))
    sentence, ours = Sentence("two red circles", None, None, None), ("none",)
    made = speech_methods(pipe, ours, Sounds(pipe))
    tokens = [made[name](sentence, 12, 0.0, 0).tokens for name in ("none", "hf")]
    assert tokens[0] == tokens[1]
    assert tokens[1][-1] == pipe.target.end
    assert len(tokens[1]) < len(whole)
    assert "min_p" not in cast("Any", made["hf"]).inner.warpers  # and costs nothing
    pipe.target.model.generation_config.min_p = 0.2
    inner = cast("Any", speech_methods(pipe, ours, Sounds(pipe))["hf"]).inner
    assert inner.warpers == {"top_k": 0, "top_p": 1.0, "repetition_penalty": 1.0, "min_p": 0.2}
    pipe.target.model.generation_config.repetition_penalty = 5.0
    made = speech_methods(pipe, ours, Sounds(pipe))
    other = [made[name](sentence, 12, 0.0, 0).tokens for name in ("none", "hf")]
    assert other[0] == other[1] != tokens[0]  # greedily, too
    pipe.target.model.generation_config.suppress_tokens = other[0]
    assert made["hf"](sentence, 12, 0.0, 0).tokens == other[0]  # as ours does not apply it


def test_a_listener_is_read_once(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Any] = []
    load = Listener.load
    monkeypatch.setattr(Listener, "load", lambda place: read.append(place) or load(place))
    done = bench("--model", folder, "--methods", "none", *SMALL, "--out", tmp_path / "out")
    assert done.exit_code == 0, repr(done.exception)
    assert read == [folder / "listener"]


def test_a_text_need_only_be_one_that_the_model_says_unless_somebody_listens(folder: Path, tmp_path: Path) -> None:
    """MusicGen takes any text, Llasa any that has a word in it."""
    texts = tmp_path / "texts.txt"
    texts.write_text("\u4f60\u597d\n?!\n")
    music = mmspec.load(musicgen(), "none", processor=tokenizer())
    llasa = mmspec.load(
        test_speech_llasa.model(), "none", processor=test_speech_llasa.LlasaProcessor(test_speech_llasa.tokenizer())
    )
    settings = SpeechSettings(SpeedSettings("m", ("none",), questions=2), texts)
    assert [one.prompt for one in script(music, settings, None)] == ["\u4f60\u597d", "?!"]
    with pytest.raises(InputError, match="sentence 2: the text '[?]!' has nothing to pronounce"):
        script(llasa, settings, None)
    with pytest.raises(InputError, match="sentence 1: the listener cannot write down"):
        script(music, settings, Judge.find(folder))


def test_without_a_listener_the_table_says_so(tmp_path: Path) -> None:
    deaf = tiny_speech.tiny_valle(tmp_path / "deaf")
    done = bench("--model", deaf, "--methods", "none", *SMALL)
    assert done.exit_code == 0, repr(done.exception)
    assert "no listener lies beside the model" in done.stdout


def test_a_file_of_few_sentences_is_said_as_far_as_it_goes(folder: Path, pipe: Any, tmp_path: Path) -> None:
    told = ("--model", folder, "--methods", "none", "--max-new-tokens", 24, "--min-tokens", 1, "--json")
    one, three = tmp_path / "one.txt", tmp_path / "three.txt"
    one.write_text("two red circles\n")
    three.write_text("two red circles\n\none bar\nthe blue line\n")
    cases = [(one, 1, ()), (one, 1, ("--sentences", 1)), (three, 3, ()), (three, 2, ("--sentences", 2))]
    for file, count, asked in cases:
        done = bench(*told, "--texts", file, *asked)
        assert done.exit_code == 0, repr(done.exception)
        summary = json.loads(done.stdout)
        (found,) = (each for each in summary["spoken"] if each["method"] == "none")
        assert summary["settings"]["questions"] == found["utterances"] == count
        assert found["wer"] is not None
        assert (found["other"] is None) == (file == one)  # no other text to compare with
    speed = SpeedSettings("m", ("none",), questions=1)
    (only,) = script(pipe, SpeechSettings(speed, three), None)
    assert (only.prompt, only.other) == ("two red circles", "one bar")


def test_mistakes_are_errors_of_ours(folder: Path, tmp_path: Path) -> None:
    wrong = bench("--model", folder, "--methods", "none,vadusa@tolerence=4", *SMALL)
    assert isinstance(wrong.exception, Error)
    assert isinstance(bench("--model", folder, "--methods", "none,none", *SMALL).exception, InputError)
    assert isinstance(bench("--model", folder, "--listener", tmp_path, *SMALL).exception, Error)
    (tmp_path / "few.txt").write_text("one bar\n")
    few = bench("--model", folder, "--texts", tmp_path / "few.txt", *SMALL)
    assert isinstance(few.exception, InputError)
    assert "1 sentences" in str(few.exception)
    (tmp_path / "bad.txt").write_text("one bar\n\u4f60\u597d\ntwo bars\n")
    bad = bench("--model", folder, "--texts", tmp_path / "bad.txt", *SMALL)
    assert "sentence 2" in str(bad.exception)
    mute = bench("--model", tiny.tiny_llama(tmp_path / "llama"), *SMALL)
    assert isinstance(mute.exception, InputError)
    assert "does not speak" in str(mute.exception)


def test_rows_name_a_drafter_a_rule_and_its_knob(pipe: Any) -> None:
    found = row(pipe, "prompt-lookup@tolerance=4")
    assert isinstance(found.rule, Tolerance)
    assert found.rule.draws == 4
    assert type(found.drafter).__name__ == "PromptLookup"
    assert found.target is pipe.target
    assert isinstance(row(pipe, "none").rule, Exact)
    assert split("ssd@beta=0.4") == ("ssd", "beta", 0.4)
    assert split("ssd") == ("ssd", "exact", None)
    with pytest.raises(UnknownNameError, match="tolerance"):
        rule_named("tolerence=4", pipe.target)
    with pytest.raises(InputError, match="tolerance"):
        rule_named("tolerance=much", pipe.target)
    with pytest.raises(InputError, match="no settings"):
        rule_named("exact=2", pipe.target)
    with pytest.raises(InputError, match="beta in"):
        rule_named("beta=7", pipe.target)


def test_a_name_stands_for_what_it_stands_for_in_the_target(pipe: Any) -> None:
    music = mmspec.load(musicgen(), "none", processor=tokenizer())
    assert isinstance(rule_named("exact", music.target), Columns)
    for text in ("none", "none@exact"):
        assert isinstance(row(music, text).rule, Columns)
    loose = SimpleNamespace(modality="speech", rules={"exact": "tolerance"})
    for text in ("exact=4", "exact:draws=4"):
        assert rule_named(text, loose).draws == 4


def test_the_certainty_is_that_of_the_warped_law(pipe: Any) -> None:
    asked = {"prompt": "two red circles", "seed": 5, "max_new_tokens": 20}
    warm = mean_top(pipe, [{**asked, "temperature": 1.0}])
    cold = mean_top(pipe, [{**asked, "temperature": 0.2}])
    sure = mean_top(pipe, [{**asked, "temperature": 1.0, "top_k": 1}])
    assert warm is not None
    assert cold is not None
    assert 0 < warm < cold < 1
    assert sure == pytest.approx(1)
    assert mean_top(pipe, []) is None


def test_watching_changes_no_token(pipe: Any) -> None:
    asked = {"prompt": "two red circles", "seed": 5, "max_new_tokens": 20, "temperature": 1.0}
    rule = Watching(Exact())
    assert Exact.on_device
    assert not rule.on_device  # or an engine would record it, and it would see one round
    watched = pipe.with_drafter("none", acceptance=rule)(**asked)
    assert watched.token_ids == pipe(**asked).token_ids
    assert len(rule.tops) == len(watched.token_ids) - 1


def test_a_rule_that_is_watched_is_bound_for_each_pipeline_alone(pipe: Any) -> None:
    class Bound(Exact):
        target: Any = None

        def bind(self, target: Any) -> None:
            self.target = target

    rule = Bound()
    watching = Watching(rule)
    watched: list[Any] = [mmspec.load(pipe.folder, "none", watching) for _ in range(2)]
    for each in watched:
        assert each.rule.rule.target is each.target
    assert rule.target is None


def test_a_sound_is_made_and_heard_once(folder: Path, pipe: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[list[int]] = []
    heard: list[Any] = []
    judge, product_of = Judge.find(folder), pipe.target.product_of
    assert judge is not None
    take_in = judge.listener.take_in

    def making(inputs: Any, row: int, ids: list[int]) -> Any:
        made.append(ids)
        return product_of(inputs, row, ids)

    def hearing(audio: Any) -> Any:
        heard.append(audio)
        return take_in(audio)

    monkeypatch.setattr(pipe.target, "product_of", making)
    monkeypatch.setattr(judge.listener, "take_in", hearing)
    first = pipe.target.model.config.first_code
    same, other = ([first + code % 7 for code in range(start, start + 12)] for start in (0, 3))
    codes = {"none": same, "hf": same, "vadusa": list(same), "loose": other}
    said = Sample(0, 1.0, 0, {name: replace(spoken(5), tokens=ids) for name, ids in codes.items()})
    sentence = Sentence("two red circles", "low", "one bar", "high")
    voice = cache(partial(voice_of, pipe, judge))
    found = marks(Sounds(pipe), sentence, said, judge, voice)
    assert made == [same, other]
    assert len(heard) == 2 + 2  # and the voices
    assert found["vadusa"] == found["hf"] == found["none"] | {"mel_distance": 0}
    assert found["loose"]["mel_distance"] > 0
    assert "mel_distance" not in found["none"]
    sounds, whole = Sounds(pipe), pipe(prompt="two red circles", voice="low", seed=1, max_new_tokens=12)
    sounds.keep(sentence, whole.token_ids, whole.audio)
    made.clear()
    heard.clear()
    told = Sample(0, 1.0, 0, {"none": replace(spoken(5), tokens=list(whole.token_ids))})
    assert marks(sounds, sentence, told, judge, voice)["none"]["audio_seconds"] == whole.audio.seconds
    assert not made
    assert len(heard) == 1


def test_codes_that_nothing_makes_sound_of_are_no_silence(pipe: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipe.target, "product_of", lambda *_: {})
    said = sample(0, none=spoken(5), fast=spoken(5))
    sentence = Sentence("two red circles", "low", None, None)
    assert marks(Sounds(pipe), sentence, said, None, lambda name: None) == {"none": {}, "fast": {}}


def sample(question: int, **runs: Run) -> Sample:
    return Sample(question, 1.0, 0, dict(runs))


def spoken(calls: float, first: float = 0.1) -> Run:
    more = {"calls": calls, "request_seconds": 4.0, "first_audio_seconds": first, "ended": 1.0}
    return Run([1, 2, 3], 1.0, 0.25, 2, 2, more=more)


def marked(errors: int, audio: float = 2.0, other: int = 9) -> dict[str, float]:
    return {"errors": errors, "words": 10, "other_errors": other, "other_words": 10, "audio_seconds": audio}


def test_figures_by_hand() -> None:
    found = [
        (sample(i, none=spoken(30), fast=spoken(10, first)), {"none": marked(1), "fast": marked(errors, 1.0)})
        for i, (errors, first) in enumerate([(1, 0.1), (3, 0.3), (2, 0.2), (2, 0.2)])
    ]
    plain, fast = spoken_figures(found)
    assert (plain.wer, plain.other, plain.nfe) == (0.1, 0.9, 15)
    assert plain.added is None
    assert fast.wer == pytest.approx(0.2)
    assert fast.added == pytest.approx(0.1)
    # one to seven of forty more, the sums of four draws from 0, 1, 1, 2, stretched as for four sentences
    wide = 0.075 * widening(4)
    assert (fast.added_low, fast.added_high) == pytest.approx((0.1 - wide, 0.1 + wide))
    assert (fast.nfe, fast.lm_rtf, fast.rtf, fast.ttfa, fast.length) == (10, 1, 4, 0.2, 0.5)


def test_the_curve_leads_from_the_exact_rule_along_the_knob() -> None:
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    rows = {"none": (8.0, 1), "ssd": (4.0, 1), "ssd@beta=0.2": (3.0, 2), "ssd@beta=0.4": (2.0, 4), "hf": (9.0, 1)}
    runs = {name: replace(spoken(10), seconds=seconds) for name, (seconds, _) in rows.items()}
    marks = {name: marked(errors) for name, (_, errors) in rows.items()}
    found = [(sample(0, **runs), marks)]
    panel = Figure().subplots()
    draw_curve(panel, figures([one for one, _ in found]), spoken_figures(found))
    lines = {line.get_label(): line for line in panel.lines if not str(line.get_label()).startswith("_")}
    assert set(lines) == {"ssd @ exact, T=1", "ssd @ beta, T=1"}
    assert list(lines["ssd @ beta, T=1"].get_xdata()) == pytest.approx([0, 10, 30])  # points of WER above AR's
    assert list(lines["ssd @ beta, T=1"].get_ydata()) == pytest.approx(
        [7.75 / 3.75, 7.75 / 2.75, 7.75 / 1.75]
    )  # without prefill
    assert [text.get_text() for text in panel.texts] == ["0.2", "0.4"]


def test_usual_rows_are_those_whose_drafters_are_there(pipe: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert usual_rows(pipe, words(SPEECH)) == ("none", "prompt-lookup")
    told = capsys.readouterr().err
    assert "left out, since none is trained for this model: vadusa, mtp-viterbi, ssd" in told
    assert "depth" not in told  # which no training would give it
    csm = mmspec.load(test_speech_csm.model(), "none", processor=tiny.processor().tokenizer)
    assert "depth" in usual_rows(csm, words(SPEECH))
    told = capsys.readouterr().err
    assert "left out, since none is trained for this model: vadusa" in told
    assert "depth" not in told
    bundled = mmspec.load("valle-mini", "none")
    for row_ in (*usual_rows(bundled, words(SPEECH)), *usual_rows(bundled, curve_rows())):
        assert row(bundled, row_)
    assert "vadusa@tolerance=4" in usual_rows(bundled, words(SPEECH))
    for rows in (usual_rows(bundled, words(SPEECH)), usual_rows(bundled, curve_rows())):
        assert {"beta", "pcg"} <= {split(text)[1] for text in rows}  # with drafters that lie beside it


def test_every_tolerant_rule_with_a_knob_is_on_the_curve(pipe: Any) -> None:
    rows = curve_rows()
    assert rows[:2] == ("vadusa", "eagle2:shape=7")
    told = {split(text)[1] for text in rows[2:]}
    lossy = {name for name in names("rules", "speech") if f"speech/{name}" in entries("rules")}
    assert told == {name for name in lossy if not name.startswith("columns")} - {"unverified"}
    for text in rows[2:]:
        _, rule, knob = split(text)
        assert not rule_named(f"{rule}={knob:g}", pipe.target).lossless


def test_silence_is_all_errors_and_unjudged_is_unknown() -> None:
    silent = {"none": {"errors": 10, "words": 10, "audio_seconds": 0.0}}
    (found,) = spoken_figures([(sample(0, none=spoken(5)), silent)])
    assert found.wer == 1
    assert (found.nfe, found.lm_rtf, found.rtf) == (None, None, None)
    (found,) = spoken_figures([(sample(0, none=spoken(5)), {"none": {"audio_seconds": 1.0}})])
    assert found.wer is None
    assert found.nfe == 5
    (found,) = spoken_figures([(sample(0, none=spoken(5)), {"none": {}})])  # without a codec
    assert (found.utterances, found.audio_seconds, found.nfe, found.wer, found.length) == (1, None, None, None, None)
