"""The speaking tab: both utterances of a sentence, limits on what is asked, and the page itself."""

import math
import re
import time
from base64 import b64decode
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_musicgen
import tiny_speech
from test_speech_whisper import whisper

import mmspec
from mmspec.demos.booth import LOOSE, Booth, Line, Sound, player
from mmspec.demos.cells import CELL, COLOURS
from mmspec.demos.knobs import relaxed
from mmspec.demos.race import read
from mmspec.demos.trace import CORRECTED, DRAFTED, PLAIN, Step
from mmspec.demos.waves import BARS, WIDTH, peaks_of, timeline
from mmspec.errors import InputError, MismatchError, UnknownNameError, UnsupportedError

pytest.importorskip("gradio")
from mmspec.demos import app, speaking_booth


class Tiny(Booth):
    """Says what fits into the tiny model's context."""

    sentences = [tiny_speech.TEXT, "one bar"]  # type: ignore[assignment] # noqa: RUF012


@pytest.fixture(scope="module")
def booth(tmp_path_factory: pytest.TempPathFactory) -> Booth:
    folder = tiny_speech.tiny_valle(tmp_path_factory.mktemp("booth") / "valle")
    return Tiny(str(folder), ["prompt-lookup", "suffix"])


def test_a_race_says_the_same_twice(booth: Booth) -> None:
    line = Line(tiny_speech.TEXT, "prompt-lookup", voice="low", seed=3, shape="own", temperature=0.7)
    states = [(len(race.slow.steps), len(race.fast.steps), race.finished) for race in booth.race(line)]
    assert states == sorted(states)
    race = list(booth.race(line))[-1]
    want = mmspec.load(booth.model, "none")(prompt=tiny_speech.TEXT, temperature=0.7, seed=3, voice="low")
    assert race.finished
    assert race.agree
    assert race.invariant
    assert race.slow.token_ids == want.token_ids
    assert race.slow_sound is not None
    assert race.fast_sound is not None
    assert race.slow_sound.wav == race.fast_sound.wav == want.audio.wav()
    assert race.slow_sound.seconds == pytest.approx(want.audio.seconds)
    assert race.slow_sound.first is not None
    other = list(booth.race(Line(tiny_speech.TEXT, "prompt-lookup", voice="high", seed=3, temperature=0.7)))[-1]
    assert other.slow.token_ids != race.slow.token_ids


def test_a_model_of_columns_is_shown_without_a_drafter_and_a_recogniser_is_not(tmp_path: Path) -> None:
    music = tiny_musicgen.musicgen(codebooks=4)
    music.save_pretrained(tmp_path / "music")
    tiny_musicgen.tokenizer().save_pretrained(tmp_path / "music")
    assert type(app.studio_of(str(tmp_path / "music"))) is Booth
    studio = Tiny(str(tmp_path / "music"))
    assert studio.drafters == ["none"]
    studio.plain = mmspec.load(music, "none", processor=tiny_musicgen.tokenizer())  # type: ignore[misc]
    assert studio.drafting("none", "own").drafter.drafts is None
    whisper().save_pretrained(tmp_path / "whisper")
    with pytest.raises(UnsupportedError, match="listens, and no tab shows that"):
        app.studio_of(str(tmp_path / "whisper"))


def test_a_model_without_a_codec_is_told_before_anything_is_said(booth: Booth, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(booth.plain.target, "processor", None)
    with pytest.raises(UnsupportedError, match="no sound is made here of the codes of this"):
        next(booth.race(Line("one", "suffix")))


def test_without_verification_there_is_no_tau(booth: Booth) -> None:
    race = list(booth.race(Line("one", "prompt-lookup", "unverified", temperature=0.0)))[-1]
    assert not race.invariant
    assert len(race.fast.steps) > 1
    assert read(race.fast, math.inf).tau is None
    assert read(race.slow, math.inf).tau is not None


def test_lossy_rules_say_so_and_misfits_are_refused(booth: Booth) -> None:
    race = list(booth.race(Line("one", "prompt-lookup", "tolerance", seed=1)))[-1]
    assert not race.fast.lossless
    assert not race.invariant
    with pytest.raises(MismatchError, match="takes proposals"):
        next(booth.race(Line("one", "prompt-lookup", "beta")))


@pytest.mark.parametrize("rule", LOOSE)
def test_looseness_turns_the_knob_of_a_relaxed_rule(rule: str) -> None:
    turned = LOOSE[rule]
    knob, neutral, loosest = turned.name, turned.neutral, turned.loosest
    ends = [relaxed(rule, share, LOOSE, "speech") for share in (0.0, 1.0)]
    assert [getattr(end, knob) for end in ends] == [neutral, pytest.approx(loosest)]
    assert [end.lossless for end in ends] == [True, False]
    assert not relaxed(rule, 0.1, LOOSE, "speech").lossless


def test_what_a_listener_hears_stands_below_the_sound(booth: Booth, monkeypatch: pytest.MonkeyPatch) -> None:
    class Ear:
        def words(self, text: str, audio: Any) -> list[tuple[str, str]]:
            return [(text, f"{audio.seconds:.1f}")]

    monkeypatch.setattr(booth, "judge", Ear())
    race = list(booth.race(Line("one", "suffix", "tolerance", looseness=0.0)))[-1]
    assert race.fast.lossless
    assert race.slow_sound.words == (("one", f"{race.slow_sound.seconds:.1f}"),)


def test_the_work_of_a_sound_is_the_whole_stream_s_codec_included(
    booth: Booth, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = type(booth.plain.target)
    made, sounding = [], kind.sounding

    def slow(target: Any, inputs: dict[str, Any], row: int) -> Any:
        sound = sounding(target, inputs, row)
        add = sound.add

        def late(*given: Any, **how: Any) -> Any:
            time.sleep(0.01)
            made.append(given)
            return add(*given, **how)

        sound.add = late
        return sound

    monkeypatch.setattr(kind, "sounding", slow)
    race = list(booth.race(Line("one", "suffix")))[-1]
    sounds = [(race.slow_sound, race.slow), (race.fast_sound, race.fast)]
    assert sum(sound.work - trace.seconds for sound, trace in sounds) > 0.01 * len(made) > 0
    assert all(sound.first <= sound.work for sound, _ in sounds)
    told = f"{race.slow_sound.work / race.slow_sound.seconds:.2f} s of work for each"
    assert told in player(race.slow_sound, "")


def test_a_sound_can_be_played_as_it_is() -> None:
    data = player(Sound(b"RIFF1234", 1.25, 0.5, 2.5), "said <twice>")
    assert b64decode(data.split("base64,")[1].split('"')[0]) == b"RIFF1234"
    assert "1.25 s of speech, 2.00 s of work for each, first sound after 0.50 s" in data
    assert "Heard" not in data
    assert 'aria-label="said &lt;twice&gt;"' in data
    assert "first sound" not in player(Sound(b"", 1.0, None), "")
    assert "audio" not in player(None, "")
    words = (("the", "the"), ("red", "<b>"), ("bar", ""), ("", "is"))
    told = "Heard: the <mark>&lt;b&gt;</mark> <del>bar</del> <mark>is</mark> (3 wrong or missing)"
    assert told in player(Sound(b"", 1.0, None, words=words), "")


def test_a_waveform_is_as_high_as_the_sound_is_loud_and_dark_as_far_as_it_was_said() -> None:
    sound = np.zeros(1600, np.float32)
    sound[400:800], sound[800:810] = 0.5, -1.0  # quiet, half as loud, and a click
    peaks = peaks_of(sound)
    assert len(peaks) == BARS
    assert set(peaks[: BARS // 4]) == {0.0}
    assert set(peaks[BARS // 4 : BARS // 2]) == {0.5}
    assert peaks[BARS // 2] == 1.0
    steps = [Step(("", "", ""), (PLAIN, DRAFTED, CORRECTED), 1.0)]
    drawn = timeline(steps, 6, peaks)  # half of the codes
    dark, pale = re.findall(r'class="mm-strokes" d="([^"]*)"', drawn)
    assert (dark.count("M"), pale.count("M")) == (BARS // 2, BARS // 2)
    heights = [float(each) for each in re.findall(r"v([\d.]+)", dark + pale)]
    assert heights.index(max(heights)) == BARS // 2
    assert heights[BARS // 4] == pytest.approx(max(heights) / 2)
    ends = [WIDTH / 6 * place / CELL for place in (CELL, 2 * CELL, 3 * CELL)]
    scale = float(re.findall(r"scale\(([\d.]+) 1\)", drawn)[0])
    assert [CELL * scale * place for place in (1, 2, 3)] == pytest.approx(ends, rel=1e-3)
    assert 'aria-label="Waveform of 3 codes: 1 drafted, 1 corrected, 1 plain"' in drawn
    assert f'fill="{COLOURS[DRAFTED]}"' in drawn
    assert "mm-strokes" in timeline([], 6, peaks)  # nothing said yet: all of it pale
    assert "strokes" not in timeline([], 0, ())


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"prompt": " "}, "the sentence is empty"),
        ({"prompt": "a" * 300}, "the sentence has 300 characters"),
        ({"temperature": 3.0}, "temperature 3 is not valid"),
        ({"rule": "lantern"}, "unknown rule 'lantern'"),
        ({"seed": -1}, "the seed -1 is not valid"),
        ({"looseness": 2.0}, "looseness 2 is not valid"),
        ({"shape": "64x64x9999"}, "unknown draft size '64x64x9999'"),
        ({"shape": None}, "unknown draft size None"),
    ],
)
def test_lines_have_limits(line: dict[str, Any], message: str) -> None:
    with pytest.raises((InputError, UnknownNameError), match=message):
        Line(**{"prompt": "one", "drafter": "suffix", **line})


def test_the_tab_answers_and_says_what_is_wrong(booth: Booth) -> None:
    frames = list(speaking_booth.show_run(booth, "one bar", "suffix", "exact", "low", 1.0, 0, "own", 0.3))
    assert len({len(each) for each in frames}) == 1
    assert frames[-1][0].finished
    assert "yes, lossless" in frames[-1][2]
    assert "mm-strokes" in frames[-1][3]
    assert "mm-strokes" in frames[-1][4]
    assert "audio/wav" in frames[-1][5]
    assert "audio/wav" in frames[-1][6]
    *_, last = speaking_booth.show_replay(frames[-1][0])
    assert speaking_booth.sides(frames[-1][0], 0.0) != last[2:]
    assert "One code at a time" in last[0]
    assert last[2:] == frames[-1][3:5]
    for given, message in (
        (("!?", "suffix", "exact", "low", 1.0, 0, "own", 0.3), "nothing to pronounce"),
        (("one", "nobody", "exact", "low", 1.0, 0, "own", 0.3), "unknown drafter"),
        (("one", "suffix", "exact", "nobody", 1.0, 0, "own", 0.3), "unknown voice"),
        (("one", "suffix", "beta", "low", 1.0, 0, "own", 0.3), "takes proposals"),
        (("one", "suffix", "exact", "low", 1.0, 0, "99z", 0.3), "unknown draft size"),
    ):
        assert message in list(speaking_booth.show_run(booth, *given))[-1][1]  # type: ignore[arg-type]
    assert len(next(speaking_booth.show_replay(None))) == 4


def test_a_page_has_the_tab(booth: Booth, tmp_path: Path) -> None:
    made = app.studio_of(booth.model)
    assert type(made) is Booth
    assert "prompt-lookup" in made.drafters
    app.TABS[Tiny] = app.TABS[Booth]
    try:
        blocks = app.page(booth)
    finally:
        del app.TABS[Tiny]
    labels = {getattr(block, "label", None) for block in blocks.blocks.values()}
    assert {"Speaking", "Sentence", "Voice"} <= labels
    ids = {getattr(block, "elem_id", None) for block in blocks.blocks.values()}
    parts = ("message", "cards", "slow", "fast", "slow-sound", "fast-sound")
    assert {f"mm-say-{part}" for part in parts} <= ids
