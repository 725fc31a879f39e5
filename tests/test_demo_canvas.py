"""The canvas tab: a picture of continuous tokens, whose drafts are counted by themselves, and the page itself."""

import itertools
import math
import re
from base64 import b64decode
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import tiny_images
import tiny_mar
from PIL import Image

import mmspec
from mmspec.checkpoints import save_drafter
from mmspec.demos.canvas_easel import RULES, CanvasEasel, CanvasRace, CanvasWish, account, counters, kinds_of, proposed
from mmspec.demos.easel import Easel, Sketches
from mmspec.demos.race import read
from mmspec.demos.trace import BONUS, CORRECTED, DRAFTED, PLAIN, Node, Step, Trace
from mmspec.errors import InputError, UnknownNameError
from mmspec.image_ar.mar import MarTarget
from mmspec.image_ar.mar_drafter import MarDrafter
from mmspec.image_ar.pretrain.architecture import build_tokenizer
from mmspec.image_ar.pretrain.world import scene

pytest.importorskip("gradio")
from mmspec.demos import app, canvas_board, easel

LENGTH, STEPS = tiny_mar.GRID**2, 6


def captioned(place: Path) -> CanvasEasel:
    """A tiny model that knows the words of the synthetic world, and its drafter."""
    tokenizer = build_tokenizer(scene("tokenizer", index).caption.text for index in range(300))
    made = tiny_mar.model(captions=True, buffer=40, classes=len(tokenizer))
    tiny_mar.save(place, made, tokenizer)
    helper = MarDrafter(tiny_mar.near(tiny_mar.without_vae(made), 0.02).float(), 2, alone=0.0)
    save_drafter(helper, place / "drafters" / "mar", MarTarget(made.float()))
    return CanvasEasel(str(place), ["mar", "none"])


@pytest.fixture(scope="module")
def canvas(tmp_path_factory: pytest.TempPathFactory) -> CanvasEasel:
    return captioned(tmp_path_factory.mktemp("canvas") / "mar")


def drawn(canvas: CanvasEasel, drafter: str = "mar", rule: str = "exact", shape: str = "own") -> CanvasRace:
    """A race that is over."""
    *_, race = canvas.race(CanvasWish(canvas.captions[0], drafter, rule, seed=3, shape=shape))
    assert isinstance(race, CanvasRace)
    return race


def pixels(file: bytes) -> bytes:
    """Of a PNG file."""
    return Image.open(BytesIO(file)).tobytes()


@pytest.mark.parametrize("rule", RULES)
def test_a_race_draws_what_the_pipelines_draw_and_counts_what_they_count(
    canvas: CanvasEasel, rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(easel, "LOOK", 0.0)  # a picture per round
    race = drawn(canvas, rule=rule)
    assert race.finished
    for name, trace, sketches in (("none", race.slow, race.slow_sketches), ("mar", race.fast, race.fast_sketches)):
        pipe = mmspec.load(canvas.model, name, rule if name == "mar" else "exact", shape="own")
        want = pipe(prompt=race.caption, temperature=1.0, seed=3)
        assert pixels(sketches.shots[-1][1]) == want.image.tobytes()
        assert len(sketches.shots) == len(trace.steps) + 1  # one per round, and the whole
        assert len({file for _, file in sketches.shots}) == len(trace.steps)  # each shows more, from nothing on
        assert trace.accept_lengths == want.stats.accept_lengths
        assert proposed(trace.steps) == want.stats.drafted_tokens
        end = read(trace, math.inf)
        assert (end.tokens, end.verifications) == (LENGTH, want.stats.target_calls)
        assert end.tau == want.stats.tau  # nothing is known after the prefill
    assert read(race.slow, math.inf).verifications == STEPS
    assert race.speedup == pytest.approx(
        (race.slow.seconds - race.slow.steps[0].seconds + race.slow.begun)
        / (race.fast.seconds - race.fast.steps[0].seconds + race.fast.begun)
    )


def group(depth: int, *kept: bool) -> list[Node]:
    """Nodes of one group of a draft."""
    return [Node("", -1, depth, each) for each in kept]


@pytest.mark.parametrize(
    ("count", "drafted", "nodes", "kinds", "number"),
    [
        (1, 0, [], (PLAIN,), 0),  # a single node is no draft
        (3, 0, group(0, True, True, True), (PLAIN,) * 3, 0),  # the target's group alone
        (3, 2, group(0, True, True) + group(1, True), (DRAFTED, DRAFTED, BONUS), 2),
        (2, 1, group(0, True, True) + group(1, False), (DRAFTED, CORRECTED), 2),
        (3, 1, group(0, True) + group(1, True, True) + group(2, False), (DRAFTED, CORRECTED, CORRECTED), 3),
        (2, 0, group(0, True, True) + group(1, False, False) + group(2, False), (CORRECTED,) * 2, 4),
    ],
)
def test_kinds_of_tokens_on_a_canvas(
    count: int, drafted: int, nodes: list[Node], kinds: tuple[str, ...], number: int
) -> None:
    assert kinds_of(count, drafted, nodes) == kinds
    assert proposed([Step(("",) * count, kinds, 1.0, tuple(nodes))]) == number


@pytest.mark.parametrize(
    ("drafter", "rule", "law", "verdict", "name"),
    [
        ("mar", "exact", "lossless", "no, same law", "continuous-conditioned"),
        ("mar", "continuous", "lossy", "no, lossy rule", "continuous"),
        ("mar", "continuous-released", "lossy", "no, lossy rule", "continuous-released"),
        ("none", "exact", "lossless", "yes, lossless", "continuous-conditioned"),
    ],
)
def test_the_law_stands_beside_the_speed_and_pictures_are_compared(
    canvas: CanvasEasel, drafter: str, rule: str, law: str, verdict: str, name: str
) -> None:
    race = drawn(canvas, drafter, rule)
    end = max(race.slow.seconds, race.fast.seconds)
    told = dict(re.findall(r'<div class="mm-card">(.*?)<b>(.*?)</b>', counters(race, end)))
    assert told[f"speed-up S, {law}"] == f"{race.speedup:.2f}x"
    assert told[f"rule, {law}"] == name
    assert told["same picture"] == verdict
    assert told["seconds, both"] == f"{race.slow.seconds:.2f} / {race.fast.seconds:.2f}"
    assert told["target calls, both"] == f"{STEPS} / {len(race.fast.accept_lengths)}"
    assert told["tokens per call, both"] == f"{LENGTH / STEPS:.2f} / {LENGTH / len(race.fast.accept_lengths):.2f}"
    assert told["drafted tokens accepted"] == f"{sum(race.fast.accept_lengths)} of {proposed(race.fast.steps)}"
    assert "codes" not in counters(race, end)
    early = counters(race, race.slow.steps[1].seconds)
    assert re.findall(r"speed-up.*?<b>(.*?)</b>|same picture<b>(.*?)</b>", early) == [("...", ""), ("", "...")]


def test_the_same_places_are_not_the_same_picture() -> None:
    race = CanvasRace(Trace("none", token_ids=[1, 0]), Trace("mar", token_ids=[1, 0]))
    for sketches, colour in ((race.slow_sketches, "red"), (race.fast_sketches, "blue")):
        sketches.add(1.0, Image.new("RGB", (2, 2), colour))
    assert not race.agree
    race.fast_sketches.add(2.0, race.slow_sketches.last)
    race.fast.token_ids = [0, 1]  # in another order
    assert race.agree


def test_the_account_counts_tokens_by_how_they_came_about() -> None:
    steps = [Step((), (), 0.0), Step(("",) * 3, (DRAFTED, CORRECTED, CORRECTED), 1.0), Step(("",), (PLAIN,), 2.0)]
    text = re.sub("<[^>]*>", "", account(steps, 9))
    assert text == "4 of 9 tokens in 2 target calls: 1 drafted, 2 corrected, 1 plain"
    assert account([], 9) == "<p>0 of 9 tokens in 0 target calls</p>"


def test_a_model_of_classes_is_asked_for_classes(tmp_path: Path) -> None:
    made = tiny_mar.model()
    studio = app.studio_of(str(tiny_mar.save(tmp_path / "classes", made)))
    assert type(studio) is CanvasEasel
    assert studio.drafters == ["none"]  # nothing lies beside it, and nothing else fits
    assert studio.noun == "class"
    assert all(0 <= int(each) < made.config.classes for each in studio.captions)
    assert list(studio.race(CanvasWish("1", "none")))[-1].agree
    labels = {getattr(block, "label", None) for block in app.page(studio).blocks.values()}
    assert "Class" in labels
    assert "Caption" not in labels


def test_the_tab_answers_and_says_what_is_wrong(canvas: CanvasEasel) -> None:
    caption = canvas.captions[1]
    frames = list(canvas_board.show_run(canvas, caption, "mar", "exact", 1.0, 0, "own", []))
    assert frames[-1][0].finished
    assert len({len(each) for each in frames}) == 1
    assert "Done" in frames[-1][1]
    assert [message for message in frames if "Drawing one step at a time" in message[1]]
    assert f"{LENGTH} of {LENGTH} tokens in {STEPS} target calls: " in frames[-1][3]
    assert 'class="mm-drafted"' in frames[-1][4]
    assert "svg" not in frames[-1][3] + frames[-1][4]  # there are no codes of which a grid could be drawn
    assert frames[-1][7].count("<rect") == len(frames[-1][0].fast.accept_lengths)
    (file, title), *others = frames[-1][8]
    assert not others
    assert pixels(b64decode(frames[-1][6].split("base64,")[1].split('"')[0])) == pixels(file)
    assert re.fullmatch(re.escape(f"{caption} (mar, exact, S ") + r"[\d.]+, lossless\)", title)
    *_, last = canvas_board.show_replay(frames[-1][0])
    assert "One step at a time" in last[0]
    assert last[1:] == frames[-1][2:7]
    again = list(canvas_board.show_run(canvas, caption, "mar", "continuous", 1.0, 0, "own", frames[-1][8]))
    assert again[-1][8][0][1].endswith(", lossy)")
    for given, message in (
        (("a unicorn", "mar", "exact", 1.0, 0, "own", []), "words that the model was never told"),
        ((caption, "nobody", "exact", 1.0, 0, "own", []), "unknown drafter"),
        ((caption, "mar", "exact", 0.0, 0, "own", []), "temperature 0 is not valid: 0.1 to 2 is taken"),
        ((caption, "mar", "lantern", 1.0, 0, "own", []), "unknown rule"),
        ((caption, "mar", "exact", 1.0, 0, "99z", []), "unknown draft size"),
    ):
        refused = list(canvas_board.show_run(canvas, *given))[-1]
        assert message in refused[1]
        assert len(refused) == len(frames[-1])
    assert len(next(canvas_board.show_replay(None))) == 6


@pytest.mark.parametrize("shape", CanvasWish.sizes)
def test_every_size_that_is_offered_fits(canvas: CanvasEasel, shape: str) -> None:
    assert "x" not in shape
    assert len(drawn(canvas, shape=shape).fast.token_ids) == LENGTH


def test_a_canvas_that_is_not_begun_is_shown_empty() -> None:
    race = CanvasRace(Trace("none"), Trace("mar"), length=LENGTH, slow_sketches=Sketches(), fast_sketches=Sketches())
    *texts, slow, fast = canvas_board.sides(race, 0.0)
    assert texts == [account([], LENGTH)] * 2
    assert "img" not in slow + fast
    assert "NO" not in counters(race, 0.0)


@pytest.mark.parametrize(
    ("wish", "message"),
    [
        ({"prompt": " "}, "the caption is empty"),
        ({"temperature": 3.0}, "temperature 3 is not valid"),
        ({"rule": "ratio"}, "unknown rule 'ratio'"),
        ({"seed": -1}, "the seed -1 is not valid"),
        ({"shape": "64x64x9999"}, "unknown draft size '64x64x9999'"),
        ({"shape": "3x4x9"}, "unknown draft size '3x4x9'"),  # a tree
    ],
)
def test_wishes_have_limits(wish: dict[str, Any], message: str) -> None:
    with pytest.raises((InputError, UnknownNameError), match=message):
        CanvasWish(**{"prompt": "a circle", "drafter": "mar", **wish})


def ids_of(blocks: Any) -> Iterator[str]:
    """The ids of a page's elements, as often as they occur."""
    return (block.elem_id for block in blocks.blocks.values() if getattr(block, "elem_id", None))


def test_a_page_shows_both_kinds_of_image_models(canvas: CanvasEasel, tmp_path: Path) -> None:
    place = tiny_images.save(tmp_path / "janus", tiny_images.janus_model(), tiny_images.janus_processor())
    studios = [app.studio_of(canvas.model), app.studio_of(str(place), ["scd-gs"])]
    assert [type(each) for each in studios] == [CanvasEasel, Easel]
    assert studios[0].drafters == ["mar"]
    blocks = app.page(*studios)
    ids = list(ids_of(blocks))
    assert not [one for one, other in itertools.pairwise(sorted(ids)) if one == other]
    parts = ("message", "cards", "slow", "fast", "slow-picture", "fast-picture", "chart", "gallery")
    assert {f"{tab}-{part}" for tab in ("mm-draw", "mm-canvas-draw") for part in parts} <= {*ids}
    labels = {getattr(block, "label", None) for block in blocks.blocks.values()}
    assert {"Canvas", "Drawing", "Drafted tokens accepted, round by round"} <= labels
    assert {"draw", "draw_canvas"} <= {each.api_name for each in blocks.fns.values()}
