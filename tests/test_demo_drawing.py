"""The drawing tab: what a page shows of a picture that is drawn, limits on what is asked, and the page itself."""

import itertools
import re
from base64 import b64decode, b64encode
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import test_image_llamagen
import tiny_images
from PIL import Image

import mmspec
from mmspec.demos.cells import CELL, COLOURS, MARKS, grid, legend
from mmspec.demos.easel import LOOK, LOOSE, MOST, Caption, Easel, PictureRace, Sketches, shown
from mmspec.demos.knobs import relaxed
from mmspec.demos.trace import BONUS, CORRECTED, DRAFTED, PLAIN, Step, Trace
from mmspec.errors import InputError, MismatchError, UnknownNameError, UnsupportedError
from mmspec.image_ar.judge import Asked

pytest.importorskip("gradio")
from mmspec.demos import app, easel, markup, picture_board

LENGTH = tiny_images.SIDE**2


class Tiny(Easel):
    """Knows the words of the tiny model."""

    captions = ["a red circle", "two blue square"]  # type: ignore[assignment]


def pixels(file: bytes) -> bytes:
    """Of a PNG file."""
    return Image.open(BytesIO(file)).tobytes()


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Easel:
    place = tmp_path_factory.mktemp("easel") / "janus"
    folder = tiny_images.save(place, tiny_images.janus_model(), tiny_images.janus_processor())
    return Tiny(str(folder), ["scd-gs", "sjd"])


def test_a_race_draws_the_same_picture_twice(board: Easel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(easel, "LOOK", 0.0)  # a picture per round
    wish = Caption("a red circle", "scd-gs", seed=3, shape="own")
    states = [(len(race.slow.steps), len(race.fast.steps), race.finished) for race in board.race(wish)]
    assert states == sorted(states)
    assert states[-1][2]
    race = list(board.race(wish))[-1]
    want = mmspec.load(board.model, "none")(prompt="a red circle", temperature=1.0, seed=3)
    assert race.agree
    assert race.invariant
    assert race.slow.token_ids == want.token_ids
    assert len(race.fast.steps) == 1 + len(race.fast.accept_lengths)
    for sketches, trace in ((race.slow_sketches, race.slow), (race.fast_sketches, race.fast)):
        assert len(sketches.shots) == len(trace.steps) + 1  # one per round, and the whole
        assert pixels(sketches.shots[-1][1]) == want.image.tobytes()
        assert sketches.at(-1.0) is None
        half = sketches.at(trace.steps[len(trace.steps) // 2].seconds)
        assert half is not None
        assert pixels(half) != want.image.tobytes()
    assert sum(len(step.kinds) for step in race.fast.steps) == LENGTH


def test_a_model_of_classes_is_asked_for_classes(tmp_path: Path) -> None:
    made = test_image_llamagen.model()
    made.save_pretrained(tmp_path / "classes")
    studio = Easel(str(tmp_path / "classes"), ["scd-gs"])
    assert all(0 <= int(each) < made.config.classes for each in studio.captions)
    assert list(studio.race(Caption("1", "scd-gs", shape="own")))[-1].agree


def test_the_decoder_runs_now_and_then_only(board: Easel, monkeypatch: pytest.MonkeyPatch) -> None:
    assert LOOK > 0
    monkeypatch.setattr(easel, "LOOK", 1000.0)
    monkeypatch.setattr(easel.time, "monotonic", lambda: 5000.0)
    race = list(board.race(Caption("a red circle", "scd-gs")))[-1]
    assert [len(each.shots) for each in (race.slow_sketches, race.fast_sketches)] == [2, 2]  # the first, and the whole


@pytest.mark.parametrize("rule", LOOSE)
def test_looseness_turns_the_knob_of_a_relaxed_rule(board: Easel, rule: str) -> None:
    turned = LOOSE[rule]
    knob, neutral, loosest = turned.name, turned.neutral, turned.loosest
    ends = [relaxed(rule, share, LOOSE, "image") for share in (0.0, 1.0)]
    made = [type(end)(**{knob: value}, **turned.beside) for end, value in zip(ends, (neutral, loosest), strict=True)]
    assert [vars(end) for end in ends] == [vars(other) for other in made]
    assert vars(ends[0]) != vars(ends[1])
    assert [end.lossless for end in ends] == [True, False]
    assert not relaxed(rule, 0.1, LOOSE, "image").lossless
    codes = [
        list(board.race(Caption("a red circle", "sjd", rule, seed=2, shape="own", looseness=share)))[-1].fast
        for share in (0.0, 1.0)
    ]
    ratio = list(board.race(Caption("a red circle", "sjd", "ratio", seed=2, shape="own")))[-1].fast
    if rule != "cool-sd":  # whose residual is another one
        assert codes[0].token_ids == ratio.token_ids
    assert len(codes[1].accept_lengths) <= len(codes[0].accept_lengths)


def test_an_example_is_judged_by_the_reader_beside_the_model(board: Easel, monkeypatch: pytest.MonkeyPatch) -> None:
    class Known:
        def facts(self, asked: list[Asked], pictures: list[Image.Image]) -> list[list[bool]]:
            assert [one.prompt for one in asked] == ["a red circle"] * 2
            assert pictures[0].tobytes() == pictures[1].tobytes()
            return [[True, False, True], [True, True, True]]

    monkeypatch.setitem(vars(board), "asked", [Asked("a red circle")])
    monkeypatch.setitem(vars(board), "judge", Known())
    race = list(board.race(Caption("a red circle", "scd-gs", shape="own")))[-1]
    assert race.kept == (2, 3, 3)
    slow, fast, *_ = picture_board.sides(race, race.slow.seconds + race.fast.seconds)
    assert "2 of 3 things" in slow
    assert "3 of 3 things" in fast
    assert "things" not in picture_board.sides(race, 0.0)[0]
    other = list(board.race(Caption("two blue square", "scd-gs", shape="own")))[-1]
    assert other.kept is None
    assert "things" not in picture_board.sides(other, 99.0)[0]


def test_the_drafter_that_the_model_would_take_comes_first(board: Easel) -> None:
    assert Easel(board.model).drafters[:2] == ["scd-gs", "jacobi"]


def test_what_does_not_fit_is_told_by_the_name_of_the_drafter(board: Easel) -> None:
    with pytest.raises(MismatchError, match="the drafter 'jacobi' makes point"):
        list(Tiny(board.model).race(Caption("a red circle", "jacobi", "gsd")))


@pytest.mark.parametrize("drafter", ["lookahead", "sjd-pac"])
def test_a_size_that_does_not_fit_is_told_by_the_name_of_the_drafter_too(board: Easel, drafter: str) -> None:
    """And what to choose in its place by the words of the page."""
    chosen = Tiny(board.model, [drafter])
    with pytest.raises(MismatchError, match=f"the drafter '{drafter}' makes drafts") as refused:
        chosen.drafting(drafter, "3x4x9")
    assert "of other sizes than 3x4x9: choose the draft size auto or own" in str(refused.value)
    for size in ("auto", "own"):
        chosen.drafting(drafter, size)


def test_a_rule_is_never_bound_with_settings_that_nobody_draws_with(board: Easel) -> None:
    """`gsd` with its usual limit warns on small models that it is the ratio rule."""
    made = Tiny(board.model, ["sjd"])
    made.drafting("sjd", "auto", "gsd", 0.5)
    assert [pipe.rule.distance for pipe in made._pipes.values()] == [None]


def test_a_model_of_codes_alone_is_told_before_anything_is_drawn(board: Easel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(board.plain.target, "codes_alone", True)
    for drafter in ("sjd", "nobody"):
        with pytest.raises(UnsupportedError, match="no picture is made here of the codes of this Janus"):
            next(board.race(Caption("a red circle", drafter)))


def test_lossy_rules_say_so(board: Easel) -> None:
    race = list(board.race(Caption("a red circle", "sjd", "gsd", seed=1, shape="own")))[-1]
    assert not race.fast.lossless
    assert not race.invariant


@pytest.mark.parametrize("rule", LOOSE)
def test_a_relaxed_rule_that_is_not_loose_is_not_called_lossy(board: Easel, rule: str) -> None:
    race = list(board.race(Caption("a red circle", "sjd", rule, seed=1, shape="own", looseness=0.0)))[-1]
    assert race.fast.lossless
    race.fast.token_ids = []
    assert markup.verdict(race) == "no, same law"


def test_cells_have_the_colour_and_the_mark_of_how_their_code_came_about() -> None:
    kinds = [(PLAIN,), (DRAFTED, DRAFTED, CORRECTED), (DRAFTED, BONUS)]
    steps = [Step(("",) * len(each), each, float(index)) for index, each in enumerate(kinds)]
    drawn = grid(steps, 4)
    flat = [kind for each in kinds for kind in each]
    for kind, colour in COLOURS.items():
        layer = drawn.split(f"<title>{kind}</title>")[1].split("</g>")[0]
        cells = re.findall(r"M(\d+) (\d+)h", layer)
        assert f'fill="{colour}"' in layer
        assert [int(x) // CELL + 4 * (int(y) // CELL) for x, y in cells] == [
            place for place, each in enumerate(flat) if each == kind
        ]
        marks = len(re.findall(re.escape(MARKS.get(kind, "no mark")), layer))
        assert marks == (len(cells) if kind in MARKS else 0)  # not by colour alone
    assert f'width="{4 * CELL}" height="{2 * CELL}"' in drawn
    assert 'aria-label="6 codes: 3 drafted, 1 corrected, 1 bonus, 1 plain"' in drawn
    assert "path" not in grid([], 4)
    assert len(set(MARKS.values())) == len(MARKS) == len(COLOURS) - 1
    assert all(text in legend() for text in [*COLOURS, *COLOURS.values(), *MARKS.values()])


def test_a_row_is_not_longer_than_the_picture_is_wide() -> None:
    drawn = grid([Step(("",) * 7, (PLAIN,) * 7, 0.0)], 3)
    assert max(int(x) for x in re.findall(r"M(\d+) ", drawn)) == 2 * CELL
    assert f'height="{3 * CELL}"' in drawn


def test_a_picture_is_shown_as_it_is() -> None:
    picture = Image.new("RGB", (3, 2), (1, 2, 3))
    sketches = Sketches()
    sketches.add(1.0, picture)
    tag = shown(sketches.at(1.0), 'a "red" <circle>')
    data = tag.split("base64,")[1].split('"')[0]
    assert Image.open(BytesIO(b64decode(data))).tobytes() == picture.tobytes()
    assert 'alt="a &quot;red&quot; &lt;circle&gt;, as far as it is drawn"' in tag
    assert "img" not in shown(None, "a circle")
    assert sketches.at(0.5) is None


def test_a_long_race_keeps_few_pictures_from_its_whole_length() -> None:
    sketches = Sketches()
    for second in range(1000):
        sketches.add(float(second), Image.new("RGB", (2, 2), (second % 256, 0, 0)))
    seconds = [second for second, _ in sketches.shots]
    assert len(seconds) <= MOST
    assert seconds == sorted(seconds)
    assert seconds[0] == 0
    assert seconds[-1] == 999
    assert sketches.pause >= 2 * LOOK


@pytest.mark.parametrize(
    ("wish", "message"),
    [
        ({"prompt": " "}, "the caption is empty"),
        ({"prompt": "a " * 2000}, "the caption has 4000 characters"),
        ({"temperature": 3.0}, "temperature 3 is not valid"),
        ({"rule": "block"}, "unknown rule 'block'"),
        ({"seed": -1}, "the seed -1 is not valid"),
        ({"shape": "64x64x9999"}, "unknown draft size '64x64x9999'"),
        ({"shape": None}, "unknown draft size None"),
    ],
)
def test_wishes_have_limits(wish: dict[str, Any], message: str) -> None:
    with pytest.raises((InputError, UnknownNameError), match=message):
        Caption(**{"prompt": "a circle", "drafter": "sjd", **wish})


def test_the_tab_answers_and_says_what_is_wrong(board: Easel) -> None:
    frames = list(picture_board.show_run(board, "a red circle", "scd-gs", "exact", 1.0, 0, "own", 0.3, []))
    assert frames[-1][0].finished
    assert len({len(each) for each in frames}) == 1
    assert "svg" in frames[-1][3]
    assert "svg" in frames[-1][4]
    assert "img" in frames[-1][5]
    assert "img" in frames[-1][6]
    assert "yes, lossless" in frames[-1][2]
    *_, last = picture_board.show_replay(frames[-1][0])
    assert "One code at a time" in last[0]
    assert last[2:] == frames[-1][3:7]
    (file, title), *others = frames[-1][8]
    assert not others
    assert pixels(b64decode(frames[-1][6].split("base64,")[1].split('"')[0])) == pixels(file)
    assert b64encode(file).decode() in frames[-1][9]
    assert title.startswith("a red circle (scd-gs, exact")
    again = picture_board.show_run(board, "two blue square", "sjd", "gsd", 1.0, 0, "own", 0.5, frames[-1][8])
    assert [text.split(", S")[0] for _, text in list(again)[-1][8]] == [
        "two blue square (sjd, gsd 0.5",
        title.split(", S")[0],
    ]
    for given, message in (
        (("a unicorn", "scd-gs", "exact", 1.0, 0, "own", 0.3, []), "words that the model was never told"),
        (("a circle", "nobody", "exact", 1.0, 0, "own", 0.3, []), "unknown drafter"),
        (("a circle", "scd-gs", "exact", 1.0, 0, "99z", 0.3, []), "unknown draft size"),
        (("a circle", "scd-gs", "lantern", 1.0, 0, "own", 2.0, []), "looseness 2 is not valid"),
    ):
        refused = list(picture_board.show_run(board, *given))[-1]
        assert message in refused[1]
        assert len(refused) == len(frames[-1])
    assert len(next(picture_board.show_replay(None))) == 6  # the four of every tab, and both pictures


def test_a_replay_sends_a_picture_once_and_not_with_every_frame() -> None:
    """By what Gradio makes of two frames: the words that change a part of a page."""
    from gradio.utils import diff

    slow, fast = (
        Trace("x", steps=[Step(("",), (PLAIN,), (place + 1) * pace) for place in range(20)]) for pace in (0.05, 0.025)
    )
    seconds = (0.2, 0.5, 0.9), (0.1, 0.3, 0.5)
    shots = [[(second, f"{side} at {second}".encode()) for second in each] for side, each in enumerate(seconds)]
    race = PictureRace(slow, fast, True, columns=4, slow_sketches=Sketches(shots[0]), fast_sketches=Sketches(shots[1]))
    frames = [list(frame) for frame in picture_board.show_replay(race)]
    assert len(frames) > 8
    sent = str([frames[0], *itertools.starmap(diff, itertools.pairwise(frames))])
    assert [sent.count(b64encode(file).decode()) for each in shots for _, file in each] == [1] * 6


def test_a_page_has_a_tab_per_model(board: Easel, tmp_path: Path) -> None:
    import tiny

    assert type(app.studio_of(board.model)) is Easel
    chat = app.studio_of(str(tiny.tiny_smolvlm(tmp_path / "vlm")), ["prompt-lookup"])
    assert type(chat) is app.Studio
    blocks = app.page(chat, app.studio_of(board.model))
    labels = {getattr(block, "label", None) for block in blocks.blocks.values()}
    assert {"Picture chat", "Drawing", "Caption", "Question"} <= labels
    ids = {getattr(block, "elem_id", None) for block in blocks.blocks.values()}
    assert {f"{tab}-{part}" for tab in ("mm", "mm-draw") for part in ("message", "cards", "slow", "fast")} <= ids
    assert {"mm-draw-slow-picture", "mm-draw-fast-picture"} <= ids
    names = app.studio_of(board.model).drafters
    assert {"scd-gs", "sjd", "jacobi"} <= set(names)
    assert names.index("sjd") < names.index("prompt-lookup")
