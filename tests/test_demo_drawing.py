"""The drawing tab: what a page shows of a picture that is drawn, limits on what is asked, and the page itself."""

from base64 import b64decode
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import tiny_images
from PIL import Image

import mmspec
from mmspec.demos.easel import CELL, COLOURS, LOOK, Easel, Sketches, Wish, grid, shown
from mmspec.demos.trace import BONUS, CORRECTED, DRAFTED, PLAIN, Step
from mmspec.errors import InputError, UnknownNameError

pytest.importorskip("gradio")
from mmspec.demos import app, easel, picture_board

LENGTH = tiny_images.SIDE**2


class Tiny(Easel):
    """Knows the words of the tiny model."""

    captions = ["a red circle", "two blue square"]  # type: ignore[assignment]


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Easel:
    place = tmp_path_factory.mktemp("easel") / "janus"
    folder = tiny_images.save(place, tiny_images.janus_model(), tiny_images.janus_processor())
    return Tiny(str(folder), ["scd-gs", "sjd"])


def test_a_race_draws_the_same_picture_twice(board: Easel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(easel, "LOOK", 0.0)  # a picture per round
    wish = Wish("a red circle", "scd-gs", seed=3, shape="own")
    states = [(len(race.slow.steps), len(race.fast.steps), race.finished) for race in board.draw(wish)]
    assert states == sorted(states)
    assert states[-1][2]
    race = list(board.draw(wish))[-1]
    want = mmspec.load(board.model, "none")(prompt="a red circle", temperature=1.0, seed=3)
    assert race.agree
    assert race.invariant
    assert race.slow.token_ids == want.token_ids
    assert len(race.fast.steps) == 1 + len(race.fast.accept_lengths)
    for sketches, trace in ((race.slow_sketches, race.slow), (race.fast_sketches, race.fast)):
        assert len(sketches.shots) == len(trace.steps) + 1  # one per round, and the whole
        assert sketches.shots[-1][1].tobytes() == want.image.tobytes()
        assert sketches.at(-1.0) is None
        half = sketches.at(trace.steps[len(trace.steps) // 2].seconds)
        assert half is not None
        assert half.tobytes() != want.image.tobytes()
    assert sum(len(step.kinds) for step in race.fast.steps) == LENGTH


def test_the_decoder_runs_now_and_then_only(board: Easel, monkeypatch: pytest.MonkeyPatch) -> None:
    assert LOOK > 0
    monkeypatch.setattr(easel, "LOOK", 1000.0)
    monkeypatch.setattr(easel.time, "monotonic", lambda: 5000.0)
    race = list(board.draw(Wish("a red circle", "scd-gs")))[-1]
    assert [len(each.shots) for each in (race.slow_sketches, race.fast_sketches)] == [2, 2]  # the first, and the whole


def test_lossy_rules_say_so(board: Easel) -> None:
    race = list(board.draw(Wish("a red circle", "sjd", "gsd", seed=1, shape="own")))[-1]
    assert not race.fast.lossless
    assert not race.invariant


def test_cells_have_the_colour_of_how_their_code_came_about() -> None:
    kinds = [(PLAIN,), (DRAFTED, DRAFTED, CORRECTED), (DRAFTED, BONUS)]
    steps = [Step(("",) * len(each), each, float(index)) for index, each in enumerate(kinds)]
    drawn = grid(steps, 4)
    order = [part.split('"')[0] for part in drawn.split('fill="')[1:]]
    assert order == [COLOURS[kind] for each in kinds for kind in each]
    assert f'width="{4 * CELL}" height="{2 * CELL}"' in drawn
    assert f'x="0" y="{CELL}"' in drawn  # the fifth code begins the second row
    assert "rect" not in grid([], 4)


def test_a_picture_is_shown_as_it_is() -> None:
    picture = Image.new("RGB", (3, 2), (1, 2, 3))
    data = shown(picture).split("base64,")[1].split('"')[0]
    assert Image.open(BytesIO(b64decode(data))).tobytes() == picture.tobytes()
    assert "img" not in shown(None)
    assert Sketches([(1.0, picture)]).at(0.5) is None


@pytest.mark.parametrize(
    ("wish", "message"),
    [
        ({"prompt": " "}, "the caption is empty"),
        ({"prompt": "a " * 2000}, "the caption has 4000 characters"),
        ({"temperature": 3.0}, "temperature 3 is not valid"),
        ({"rule": "block"}, "unknown rule 'block'"),
        ({"seed": -1}, "the seed -1 is not valid"),
    ],
)
def test_wishes_have_limits(wish: dict[str, Any], message: str) -> None:
    with pytest.raises((InputError, UnknownNameError), match=message):
        Wish(**{"prompt": "a circle", "drafter": "sjd", **wish})


def test_the_tab_answers_and_says_what_is_wrong(board: Easel) -> None:
    frames = list(picture_board.show_run(board, "a red circle", "scd-gs", "exact", 1.0, 0, "own"))
    assert frames[-1][0].finished
    assert "img" in frames[-1][3]
    assert "img" in frames[-1][4]
    assert "yes, lossless" in frames[-1][2]
    *_, last = picture_board.show_replay(frames[-1][0])
    assert "One code at a time" in last[0]
    assert last[2:] == frames[-1][3:5]
    for given, message in (
        (("a unicorn", "scd-gs", "exact", 1.0, 0, "own"), "words that the model was never told"),
        (("a circle", "nobody", "exact", 1.0, 0, "own"), "unknown drafter"),
        (("a circle", "scd-gs", "exact", 1.0, 0, "99z"), "99z"),
    ):
        assert message in list(picture_board.show_run(board, *given))[-1][1]
    assert len(next(picture_board.show_replay(None))) == 4


def test_a_page_has_a_tab_per_model(board: Easel, tmp_path: Path) -> None:
    import tiny

    assert type(app.studio_of(board.model)) is Easel
    chat = app.studio_of(str(tiny.tiny_smolvlm(tmp_path / "vlm")), ["prompt-lookup"])
    assert type(chat) is app.Studio
    blocks = app.page(chat, app.studio_of(board.model))
    labels = {getattr(block, "label", None) for block in blocks.blocks.values()}
    assert {"Picture chat", "Drawing", "Caption", "Question"} <= labels
    names = app.studio_of(board.model).drafters
    assert {"scd-gs", "sjd", "jacobi"} <= set(names)
    assert names.index("sjd") < names.index("prompt-lookup")
