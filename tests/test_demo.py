"""The demos: what a page shows of a request, limits on what is asked, and the page itself, without a browser."""

import os
import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from PIL import Image
from tiny import png_header, tiny_llama, tiny_smolvlm, tokenizer
from typer.testing import CliRunner

import mmspec
from mmspec.demos import app, drawings, markup
from mmspec.demos.app import studio_of
from mmspec.demos.canvas_easel import CanvasEasel
from mmspec.demos.cli import app as command
from mmspec.demos.cli import check_free
from mmspec.demos.easel import Easel
from mmspec.demos.race import LONGEST, Race, read
from mmspec.demos.recorder import Recorded
from mmspec.demos.studio import LONGEST_PROMPT, Question, Studio, usable
from mmspec.demos.trace import BONUS, CORRECTED, DRAFTED, PLAIN, Node, Step, Trace, follow, kinds_of
from mmspec.errors import Error, InputError, MismatchError, MissingExtraError, UnknownNameError, UnsupportedError
from mmspec.results import Piece
from mmspec.thoughts import Apart

pytest.importorskip("gradio")
from mmspec.demos import picture_chat, wiring  # they import gradio

PATIENCE = 600.0
"""Seconds until a page that says nothing fails the test; httpx waits for five."""


def step(text: str, kinds: str, seconds: float) -> Step:
    """A round whose tokens are letters; kinds: d, c, b or p for each."""
    names = {"d": DRAFTED, "c": CORRECTED, "b": BONUS, "p": PLAIN}
    return Step(tuple(text), tuple(names[kind] for kind in kinds), seconds)


@pytest.fixture
def race() -> Race:
    """Six tokens: one at a time in 1 + 5 s, with drafts in 1 + 2 s and two rounds."""
    slow = Trace("none", steps=[step("abcdef"[i], "p", 1.0 + i) for i in range(6)], token_ids=list(range(6)))
    fast = Trace("x", steps=[step("a", "p", 1), step("bcd", "ddc", 2), step("ef", "db", 3)], token_ids=list(range(6)))
    return Race(slow, fast, finished=True)


# what happened


def test_counters_count_what_was_done_by_a_time(race: Race) -> None:
    assert read(race.slow, 0.5).tokens == 0
    assert read(race.fast, 1.0) == read(race.fast, 1.9)
    assert (read(race.fast, 2.0).tokens, read(race.fast, 2.0).tau) == (4, 3.0)
    whole = read(race.fast, 9.0)
    assert (whole.tokens, whole.verifications, whole.tau, whole.tokens_per_second) == (6, 2, 2.5, 2.5)
    assert race.speedup == pytest.approx((5 / 5) / (2 / 5))
    assert race.fast.accept_lengths == [2, 1]
    race.fast.begun = 0.5  # of the first second, in which the drafter read the prompt
    assert race.speedup == pytest.approx((5 / 5) / (2.5 / 5))


def test_replay_is_in_real_time_unless_that_is_too_long(race: Race) -> None:
    moments = list(race.clock())
    assert race.pace == 1
    assert moments == sorted(moments)
    assert moments[-1] == 6.0
    assert len(moments) == 6 * 8 + 1
    slow = Race(Trace("none", steps=[step("a", "p", 10 * LONGEST)]), race.fast)
    assert slow.pace == 10
    assert len(list(slow.clock())) <= 8 * LONGEST + 1


@pytest.mark.parametrize(
    ("count", "drafted", "parents", "kept", "kinds"),
    [
        (3, 2, [-1, 0, 1, 2], [0, 1, 2], (DRAFTED, DRAFTED, CORRECTED)),  # a chain, wrong at its third token
        (4, 3, [-1, 0, 1, 2], [0, 1, 2, 3], (DRAFTED, DRAFTED, DRAFTED, BONUS)),
        (1, 0, [-1, 0, 0], [0], (CORRECTED,)),
        (2, 1, [-1, 0, 0, 1], [0, 2], (DRAFTED, BONUS)),  # the second child has no children
        (2, 1, [-1, 0, 0, 1], [0, 1], (DRAFTED, CORRECTED)),
        (2, 2, [-1, 0, 1, 2], [0, 1, 2, 3], (DRAFTED, DRAFTED)),  # the end came inside the draft
        (1, 0, [], [], (PLAIN,)),
    ],
)
def test_kinds_of_tokens(count: int, drafted: int, parents: list[int], kept: list[int], kinds: tuple[str, ...]) -> None:
    depth: list[int] = []
    for parent in parents:
        depth.append(0 if parent < 0 else depth[parent] + 1)
    nodes = [Node("x", parent, level, i in kept) for i, (parent, level) in enumerate(zip(parents, depth, strict=True))]
    assert kinds_of(count, drafted, nodes) == kinds


def test_a_stream_becomes_a_trace() -> None:
    """A character of several tokens appears with the last of them, as in the answer itself, where half a one ends."""
    words = tokenizer()
    ids = words("red \u00e9!\u00e9", add_special_tokens=False)["input_ids"][:-1]

    class Scripted:
        apart = staticmethod(lambda count: Apart("red", "" if count < 3 else "!"))
        stats = [SimpleNamespace(lossless=False, verifies=True, seconds=0.0, draft_seconds=0.25)]

        def __iter__(self) -> Iterator[Piece]:
            for number, (tokens, drafted) in enumerate([(ids[:1], 0), (ids[1:4], 2), (ids[4:], 0)]):
                self.stats[0].seconds = 1.0 + number
                self.stats[0].draft_seconds += number
                yield Piece("", tokens, drafted)

    draft = Recorded(*map(torch.tensor, ([ids[0], *ids[1:4], 5], [-1, 0, 1, 2, 2], [0, 1, 2, 3, 3])), None, [0, 1, 2])
    alone = Recorded(*map(torch.tensor, ([ids[3]], [-1], [0])), None, [0])
    stream: Any = Scripted()
    trace = Trace("x")
    known = [len(trace.steps) for _ in follow(stream, trace, words, [draft, alone], lambda token: str(token))]
    assert known == [1, 2, 3]  # a piece comes when the trace has it
    assert "".join(piece for each in trace.steps for piece in each.pieces) == "red \u00e9!\ufffd" == words.decode(ids)
    assert [each.seconds for each in trace.steps] == [1, 2, 3]
    assert trace.steps[1].kinds == (DRAFTED, DRAFTED, CORRECTED)
    assert [node.kept for node in trace.steps[1].nodes] == [True, True, True, False, False]
    assert set(trace.steps[2].kinds) == {PLAIN}
    assert trace.token_ids == ids
    assert trace.thought == 2
    assert not trace.lossless
    assert trace.begun == 0.25  # what the drafter took before the first round


# what is shown


def test_tokens_are_escaped_and_clothed() -> None:
    text = markup.tokens([Step(("<b>", "&", "x", ""), (DRAFTED, CORRECTED, PLAIN, BONUS), 1.0)])
    assert '<span class="mm-drafted" title="drafted">&lt;b&gt;</span>' in text
    assert '<span class="mm-corrected" title="corrected">&amp;</span>' in text
    assert text.endswith("</span>x</div>")
    assert "<b>" not in text
    for kind in (DRAFTED, CORRECTED, BONUS):  # not by colour alone
        rule = re.search(rf"\.mm-{kind} {{([^}}]*)}}", markup.CSS)
        assert rule is not None
        assert "underline" in rule[1] or "border-bottom" in rule[1]


def test_a_thought_stands_apart_and_is_folded_up_before_an_answer() -> None:
    steps = [step("abc", "ddc", 1.0), step("de", "dp", 2.0)]
    whole, coming = markup.tokens(steps, 4), markup.tokens(steps[:1], 4)
    thought, answer = whole.split("</details>")
    assert '<details class="mm-thought"><summary>Thought: 4 tokens</summary>' in thought
    assert re.sub("<[^>]*>", "", thought) == "Thought: 4 tokensabcd"
    assert answer == "e</div>"
    assert '<details class="mm-thought" open><summary>Thought: 3 tokens</summary>' in coming
    assert "details" not in markup.tokens(steps)


def light(colour: str) -> float:
    """Relative luminance of #rrggbb, 0 to 1 (WCAG 2)."""
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("kind", markup.CLOTHED)
def test_clothed_tokens_can_be_read(kind: str) -> None:
    """In the light and the dark theme alike: they bring both of their colours."""
    rule = re.search(rf"\.mm-{kind} {{ background: (#\w{{6}}); color: (#\w{{6}});", markup.CSS)
    assert rule is not None
    high, low = light(rule[1]), light(rule[2])
    assert (high + 0.05) / (low + 0.05) >= 7


def test_a_running_clock_is_not_read_aloud(race: Race) -> None:
    assert 'role="status"' in markup.note("Done.")
    *ticks, end = picture_chat.show_replay(race)
    assert not [frame for frame in ticks if "role=" in frame[0]]
    assert 'role="status"' in end[0]


def test_messages_and_drawings_are_escaped() -> None:
    assert "<i>" not in markup.problem("<i>") + markup.note("<i>")
    nodes = (Node("<i>", -1, 0, True), Node("</svg>", 0, 1, True), Node("a b\n", 0, 1, False))
    drawn = drawings.tree(nodes)
    assert "<i>" not in drawn
    assert drawn.count("</svg>") == 1
    assert 'aria-label="Draft of 2 tokens, 1 accepted"' in drawn
    assert drawn.count("line-through") == 1
    assert "a\u00b7b\u21b5" in drawn
    assert "No draft" in drawings.tree(())


def test_no_two_nodes_of_a_level_are_drawn_on_the_same_line() -> None:
    parents = [-1, 0, 0, 0, 1, 1, 2, 3, 3, 4]
    depth = [0, 1, 1, 1, 2, 2, 2, 2, 2, 3]
    nodes = [Node("x", parent, level, False) for parent, level in zip(parents, depth, strict=True)]
    rows = drawings.places(nodes)
    assert len({(level, row) for level, row in zip(depth, rows, strict=True)}) == len(nodes)
    children = [rows[1], rows[2], rows[3]]
    assert children == sorted(children)
    assert rows[0] == (rows[1] + rows[3]) / 2


def test_a_bar_for_every_round() -> None:
    assert drawings.bars([0, 3, 1]).count("<rect") == 3
    assert "4 of the drafted tokens were accepted in 3 rounds" in drawings.bars([0, 3, 1])
    assert "4 of the drafted tokens were taken unverified" in drawings.bars([0, 3, 1], "taken unverified")
    assert "Nothing was verified" in drawings.bars([])


def test_cards_count_along_and_give_the_verdict_at_the_end(race: Race) -> None:
    start, middle = markup.counters(race, 1.0), markup.counters(race, 2.0)
    assert re.findall("<b>(.*?)</b>", start) == ["...", "...", "...", "...", "1 / 1", "..."]
    # after 2 s one side has said a token a second, the other three of them in one call
    assert re.findall("<b>(.*?)</b>", middle) == ["3.00x", "3.00", "1.0", "3.0", "2 / 2", "..."]
    assert race.speedup_by(1.0) is None
    end = markup.counters(race, 6.0)
    assert "2.50x" in end
    assert "6 / 3" in end  # target calls, the prompt's included
    assert "yes, lossless" in end
    race.fast.token_ids = [9]
    assert "NO: an error" in markup.counters(race, 6.0)
    race.invariant, race.fast.lossless = False, False
    assert "no, lossy rule" in markup.counters(race, 6.0)


# asking


@pytest.fixture(scope="module")
def studio(tmp_path_factory: pytest.TempPathFactory) -> Studio:
    speaker = tiny_llama(tmp_path_factory.mktemp("drafter"), seed=1)
    folder = tiny_smolvlm(tmp_path_factory.mktemp("target"))
    return Studio(str(folder), ["prompt-lookup", str(speaker)])


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    Image.new("RGB", (40, 30), "red").save(tmp_path / "red.png")
    return tmp_path / "red.png"


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("drafter", [0, 1])
def test_a_race_says_what_the_pipeline_says(studio: Studio, picture: Path, drafter: int, temperature: float) -> None:
    name = studio.drafters[drafter]
    asked = Question("why", name, temperature=temperature, seed=3, shape="own", picture=picture, max_new_tokens=14)
    *before, race = studio.race(asked)
    assert race.finished
    assert race.agree
    assert race.invariant
    assert len(before) > 14
    answer = mmspec.load(studio.model, "none")(picture, "why", max_new_tokens=14, temperature=temperature, seed=3)
    assert race.fast.token_ids == answer.token_ids
    said = "".join(piece for each in race.fast.steps for piece in each.pieces)
    assert answer.text.startswith(said)
    assert not answer.text.removeprefix(said).strip("\ufffd")  # bytes that never became a character
    for each in race.fast.steps[1:]:
        assert each.accepted == sum(node.kept for node in each.nodes[1:]) or each is race.fast.steps[-1]
    assert [each.nodes for each in race.slow.steps] == [()] * len(race.slow.steps)
    assert any(each.nodes for each in race.fast.steps) or drafter == 0  # a model drafts always, a copy if it finds one


def test_no_race_drafts_what_the_race_before_said(studio: Studio, picture: Path) -> None:
    remembering = Studio(studio.model, ["recycling"])
    asked = Question("why", "recycling", shape="own", picture=picture, max_new_tokens=14)
    first, again = (list(remembering.race(asked))[-1] for _ in range(2))
    assert [each.accepted for each in again.fast.steps] == [each.accepted for each in first.fast.steps]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prompt": " "}, "the question is empty"),
        ({"prompt": "x" * (LONGEST_PROMPT + 1)}, "2001 characters"),
        ({"temperature": 2.1}, "temperature 2.1"),
        ({"temperature": float("nan")}, "temperature nan"),
        ({"max_new_tokens": 0}, "0 tokens"),
        ({"max_new_tokens": 100_000}, "1 to 256"),
        ({"seed": -1}, "the seed -1"),
        ({"shape": "9x9x999999"}, "unknown draft size"),
        ({"shape": None}, "unknown draft size"),
        ({"rule": "ratio"}, "unknown rule 'ratio'"),
    ],
)
def test_limits_hold_for_everybody(changes: dict[str, Any], message: str) -> None:
    good: dict[str, Any] = {"prompt": "why", "drafter": "prompt-lookup"}
    with pytest.raises(Error, match=message):
        Question(**{**good, **changes})


def shown(studio: Studio, picture: Path | None, prompt: str = "why", drafter: str = "prompt-lookup") -> list[tuple]:
    return list(picture_chat.show_run(studio, str(picture) if picture else None, prompt, drafter, 0.0, 10, 0, "own"))


def test_a_run_shows_both_answers_and_then_everything(studio: Studio, picture: Path) -> None:
    views = shown(studio, picture)
    assert "Waiting" in views[0][1]
    race, message, _, slow, fast, chart, slider, tree = views[-1]
    assert race.finished
    assert "Done" in message
    assert re.sub("<[^>]*>", "", slow) == re.sub("<[^>]*>", "", fast) != ""
    assert chart.count("<rect") == len(race.fast.accept_lengths)
    assert tree
    frames = list(picture_chat.show_replay(race))
    assert frames[-1][2:] == (slow, fast)
    assert "see mmspec bench" in frames[-1][0]
    assert picture_chat.show_tree(race, 1) == picture_chat.tree_of(race.fast, 1)
    assert picture_chat.show_tree(None, 1) == ""


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty (0 bytes)"),
        (b"no picture at all", "not a readable image"),
        (png_header(60, 40), "truncated or broken"),
        (png_header(20_000, 1_000), "20000 x 1000 pixels"),
    ],
)
def test_a_bad_upload_is_one_message_and_the_next_request_works(
    studio: Studio, picture: Path, tmp_path: Path, content: bytes, message: str
) -> None:
    bad = tmp_path / ("0" * 64) / "bad.png"  # as long as Gradio's own paths
    bad.parent.mkdir()
    bad.write_bytes(content)
    chosen, preview, told = picture_chat.take(str(bad))
    assert (chosen, preview) == (None, None)
    assert message in told
    last = shown(studio, bad)[-1]  # a file that was broken later
    assert last[0] is None
    assert 'role="alert"' in last[1]
    assert message in last[1]
    assert str(tmp_path) not in last[1]  # paths of the server are nobody's business
    (unchanged,) = picture_chat.show_replay(last[0])
    assert all(each == picture_chat.gr.skip() for each in unchanged)  # the message stays
    assert shown(studio, picture)[-1][0].finished


def test_other_mistakes_are_messages_too(studio: Studio, tmp_path: Path) -> None:
    for drafter in ("prompt-lookup", "nobody"):  # the picture is looked at first
        told = shown(studio, tmp_path / "forgotten.png", drafter=drafter)[-1][1]
        assert "kept for ten minutes: upload it again" in told
    assert "the question is empty" in shown(studio, None, prompt="")[-1][1]
    assert "unknown drafter" in shown(studio, None, drafter="/etc/passwd")[-1][1]
    assert "control token" in shown(studio, None, prompt="<|im_end|> x <image>")[-1][1]
    with pytest.raises(UnknownNameError):
        studio.drafting("none", "auto")


# the page


@dataclass
class Served:
    url: str
    blocks: Any
    model: str


@pytest.fixture(scope="module")
def served(studio: Studio) -> Iterator[Served]:
    blocks = app.page(studio)
    _, url, _ = blocks.launch(prevent_thread_lock=True, quiet=True, server_name="127.0.0.1", **app.LAUNCH)
    yield Served(url, blocks, studio.model)
    blocks.close()


def test_nobody_reads_files_or_waits_without_end(served: Served) -> None:
    import httpx

    web = httpx.Client(timeout=PATIENCE)
    config = web.get(f"{served.url}config").json()
    assert not config["analytics_enabled"]
    own = Path(__file__)  # in the folder that the server was started in, or below
    for path in ("/etc/passwd", own, os.path.relpath(own), "../../../../etc/passwd", Path(served.model, "config.json")):
        answer = web.get(f"{served.url}gradio_api/file={path}")
        assert answer.status_code in (403, 404), path
        assert b"root:" not in answer.content
    large = {"files": ("large.png", b"0" * (10 * 1024**2 + 1))}
    assert web.post(f"{served.url}gradio_api/upload", files=large).status_code == 413
    assert served.blocks._queue.max_size == app.WAITING
    assert not served.blocks.share
    assert served.blocks.max_file_size == 10 * 1024**2
    assert served.blocks.delete_cache == (600, 600)
    run = next(each for each in config["dependencies"] if each["api_name"] == "run")
    assert served.blocks.fns[run["id"]].concurrency_limit == 1


def test_the_page_answers_gradios_own_client(served: Served, picture: Path, tmp_path: Path) -> None:
    client = pytest.importorskip("gradio_client")
    bad = tmp_path / "bad.png"
    bad.write_bytes(b"no picture")
    patient = {"verbose": False, "httpx_kwargs": {"timeout": PATIENCE}}
    talk = client.Client(served.url, **patient)
    taken = talk.predict(client.handle_file(picture), api_name="/take")
    assert "Now ask" in taken[1]
    answer = talk.predict("why", "prompt-lookup", 0, 16, 0, "own", api_name="/run")
    assert "Done" in answer[0]
    assert re.sub("<[^>]*>", "", answer[2]) == re.sub("<[^>]*>", "", answer[3]) != ""
    alone = client.Client(served.url, **patient).predict("why", "prompt-lookup", 0, 16, 0, "own", api_name="/run")
    assert alone[2] != answer[2]  # without the picture, which belongs to the other visitor
    assert "not a readable image" in talk.predict(client.handle_file(bad), api_name="/take")[1]
    assert "the question is empty" in talk.predict(" ", "prompt-lookup", 0, 16, 0, "own", api_name="/run")[0]
    with pytest.raises(Exception, match="maximum value 256"):
        talk.predict("why", "prompt-lookup", 0, 100_000, 0, "own", api_name="/run")


def test_a_stop_ends_what_was_asked_for_before_it_and_nothing_later() -> None:
    switch = wiring.Switch()
    assert list(switch.until_stopped(iter("abc"), 0)) == ["a", "b", "c"]  # Gradio's client never asks
    assert not switch.stop()  # nothing runs
    first, second = switch.ask(), switch.ask()
    frames = switch.until_stopped(iter("abc"), first)
    assert next(frames) == "a"
    assert switch.stop()
    third = switch.ask()
    assert list(frames) == []
    assert list(switch.until_stopped(iter("abc"), second)) == []  # one that has waited until now
    assert list(switch.until_stopped(iter("abc"), third)) == ["a", "b", "c"]
    assert list(switch.until_stopped(iter("abc"), 0)) == ["a", "b", "c"]  # a program runs it again


@pytest.fixture
def wired() -> SimpleNamespace:
    """The functions behind a tab that says a word letter by letter. modes: Gradio's trigger mode of each."""
    gr = wiring.gr

    def run(word: str) -> Iterator[tuple[str, ...]]:
        yield from ((letter,) * 6 for letter in word)

    def show_replay(race: str) -> Iterator[tuple[str, ...]]:
        yield from ((f"{race}{frame}",) * 4 for frame in range(2))

    with gr.Blocks() as blocks:
        box, views = gr.Textbox(), [gr.HTML() for _ in range(4)]
        parts: dict[str, Any] = {"run": run, "show_replay": show_replay, "inputs": [box], "views": views}
        wiring.wire(gr.Button(), box, gr.Button(), **parts, more=[gr.HTML()], name="run")
    found = {each.fn.__name__: each for each in blocks.fns.values() if each.fn}
    modes = {name: each.trigger_mode for name, each in found.items()}
    return SimpleNamespace(modes=modes, **{name: each.fn for name, each in found.items()})


SAME = wiring.gr.skip()
"""What leaves a part of the page as it is."""


def test_of_two_clicks_the_second_one_is_answered(wired: SimpleNamespace) -> None:
    """And once it is, nothing is left that could be stopped."""
    switch = wiring.Switch()
    first, second = wired.asking(switch), wired.asking(switch)
    assert list(wired.running(switch, "why", first)) == [(SAME,) * 6]
    assert list(wired.replaying(switch, "race")) == [(SAME,) * 4]
    assert wired.stopping(switch) != SAME
    third = wired.asking(switch)
    assert list(wired.running(switch, "why", second)) == [(SAME,) * 6]
    assert [frame[0] for frame in wired.running(switch, "why", third)] == ["w", "h", "y"]
    assert [frame[0] for frame in wired.replaying(switch, "race")] == ["race0", "race1", SAME]
    assert wired.stopping(switch) == SAME
    assert {wired.modes[each] for each in ("running", "replaying")} == {"multiple"}  # else Gradio drops what was asked


def test_a_new_question_ends_the_replay_of_the_one_before(wired: SimpleNamespace) -> None:
    switch = wiring.Switch()
    assert len(list(wired.running(switch, "why", wired.asking(switch)))) == 3
    old = wired.replaying(switch, "old")
    assert next(old)[0] == "old0"
    running = wired.running(switch, "who", wired.asking(switch))
    assert next(running)[0] == "w"
    assert list(old) == [(SAME,) * 4]
    assert wired.stopping(switch) != SAME  # the new one runs
    assert list(running) == [(SAME,) * 6]
    told = [frame[0] for frame in wired.replaying(switch, None)]
    assert len(told) == 1
    assert "Stopped." in told[0]
    assert wired.stopping(switch) == SAME


def test_after_a_defect_nothing_is_stopped_and_the_next_question_is_answered(wired: SimpleNamespace) -> None:
    switch = wiring.Switch()
    lost = wired.asking(switch)
    assert markup.BROKEN in wired.broken(switch)
    assert wired.stopping(switch) == SAME
    assert [frame[0] for frame in wired.running(switch, "why", wired.asking(switch))] == ["w", "h", "y"]
    assert list(wired.running(switch, "late", lost)) == [(SAME,) * 6]  # if it comes after all


def ids_of(blocks: Any) -> list[str]:
    """The ids of a page's elements, as often as they occur."""
    return [block.elem_id for block in blocks.blocks.values() if getattr(block, "elem_id", None)]


def test_no_two_elements_of_a_page_have_the_same_id(studio: Studio, tmp_path: Path) -> None:
    text = app.studio_of(str(tiny_llama(tmp_path)))
    blocks = app.page(studio, Studio(studio.model, studio.drafters), text)
    ids = ids_of(blocks)
    assert len(ids) == len(set(ids))
    assert {f"{tab}-{part}" for tab in ("mm", "mm1", "mm-text") for part in ("race", "message", "slow", "fast")} <= {
        *ids
    }
    meant = [name for each in blocks.fns.values() for name in re.findall(r"#([\w-]+)", str(each.js))]
    assert set(meant) <= {*ids}
    assert len(meant) == len(set(meant)) == 2 * 3 + 2 * 2  # messages that are scrolled to, and names on two tabs


def test_a_model_that_reads_text_only_is_not_shown_pictures(tmp_path: Path) -> None:
    text = app.studio_of(str(tiny_llama(tmp_path)))
    assert text.drafters[0] == "prompt-lookup"
    blocks = app.page(text)
    labels = {getattr(block, "label", None) for block in blocks.blocks.values()}
    assert {"Text chat", "Question"} <= labels
    assert not {"Picture", "Examples: click on one"} & labels
    assert not [name for name in ids_of(blocks) if re.search("picture|upload|example", name)]
    assert shown(text, None)[-1][0].agree


def test_visitors_do_not_see_where_models_lie(studio: Studio) -> None:
    assert studio.name == Path(studio.model).name != studio.model
    assert studio.choices[0] == ("prompt-lookup", "prompt-lookup")
    assert studio.choices[1] == (Path(studio.drafters[1]).name, studio.drafters[1])
    assert Studio("google/gemma-3-4b-it", []).name == "google/gemma-3-4b-it"


def test_drafters_of_one_name_are_numbered() -> None:
    given = ["eagle2", "/my/eagle2", "/my/eagle2 (2)", "/her/eagle2", "/my/none", "none"]
    shown = ["eagle2", "eagle2 (2)", "eagle2 (2) (2)", "eagle2 (3)", "none (2)", "none"]
    assert Studio("x", given).choices == list(zip(shown, given, strict=True))


@pytest.mark.parametrize("given", [[], ["--model", "smolvlm-mini"]])
def test_tabs_that_are_absent_are_named_to_who_starts_the_page(
    given: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = []
    page = SimpleNamespace(launch=lambda **_: None, local_url="http://127.0.0.1:1/", block_thread=lambda: None)
    monkeypatch.setattr(app, "page", lambda *studios: shown.extend(studios) or page)
    monkeypatch.setattr("mmspec.checkpoints.bundled", lambda: {"smolvlm-mini": None, "janus-mini": None})
    monkeypatch.setattr(app, "studio_of", lambda model, drafters=None: model)
    result = CliRunner().invoke(command, given)
    assert result.exit_code == 0
    if given:
        assert shown == ["smolvlm-mini"]
        assert result.output == "The page is at http://127.0.0.1:1/ until Ctrl-C.\n"
    else:
        assert shown == ["smolvlm-mini", "janus-mini"]
        assert "no tab for valle-mini" in result.output
        assert "mmspec demo --model smolvlm-mini,valle-mini" in result.output


def test_a_drafter_that_is_none_is_refused_before_anybody_visits(studio: Studio) -> None:
    with pytest.raises(UnknownNameError, match="unknown drafter 'nope'"):
        app.studio_of(studio.model, ["prompt-lookup", "nope"])
    with pytest.raises(UnknownNameError, match="'jacobi' exists for: image"):
        app.studio_of(studio.model, ["jacobi"])
    for model, absent in ((studio.model, "kangaroo"), ("valle-mini", "depth")):
        with pytest.raises(MismatchError, match=f"no drafter '{absent}'"):
            app.studio_of(model, [absent])
    for fitting in ("suffix", "smolvlm-mini", "someone/somewhere"):
        assert app.studio_of(studio.model, [fitting]).drafters == [fitting]


def test_help_teaches_and_mistakes_are_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    text = CliRunner().invoke(command, ["--help"]).output
    assert "Nothing is sent anywhere" in text
    assert "Example" in text or "Try:" in text
    result = CliRunner().invoke(command, ["--port", "99999"])
    assert isinstance(result.exception, InputError)
    monkeypatch.setitem(__import__("sys").modules, "gradio", None)
    result = CliRunner().invoke(command, [])
    assert isinstance(result.exception, MissingExtraError)
    assert "mmspec[demo]" in str(result.exception)
    assert issubclass(MissingExtraError, Error)


@pytest.mark.parametrize(
    ("model", "modality", "first"),
    [
        ("smolvlm-mini", "vlm", ["dspark", "eagle2"]),
        ("janus-mini", "image", ["scd-gs", "eagle2"]),
        ("valle-mini", "speech", ["eagle2", "vadusa"]),
    ],
)
def test_the_drafter_that_load_takes_is_offered_first_and_trained_ones_next(
    model: str, modality: str, first: list[str]
) -> None:
    offered = usable(model, modality)
    assert offered[:2] == first
    assert len(set(offered)) == len(offered)
    assert "depth" not in offered  # it drafts for models with a depth decoder alone
    assert {"jacobi"} <= set(offered) if modality == "image" else {"prompt-lookup"} <= set(offered)


def test_an_address_that_nothing_can_listen_on_is_told_before_anything_is_loaded() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=f"cannot listen on 127.0.0.1, port {port}: "):
            check_free("127.0.0.1", port)
    check_free("127.0.0.1", port)
    check_free("[::1]", 0) if socket.has_dualstack_ipv6() else None
    for host in ("1.2.3.4", "a..b"):
        with pytest.raises(InputError, match=f"cannot listen on {host}: "):
            check_free(host, 0)


def test_a_model_without_codes_has_a_tab_of_its_own() -> None:
    made = studio_of("mar-mini")
    assert type(made) is CanvasEasel
    assert made.drafters == ["mar"]
    assert app.TABS[CanvasEasel] != app.TABS[Easel]


def test_a_model_that_listens_has_no_tab(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "whisper"}')
    with pytest.raises(UnsupportedError, match="listens, and no tab shows that"):
        studio_of(str(tmp_path))
