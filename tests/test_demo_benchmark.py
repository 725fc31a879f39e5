"""The benchmark tab: what is measured, what is said of it, limits on what is asked, and the page itself."""

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import test_demo_canvas
import tiny_images
import tiny_speech
from tiny import tiny_llama, tiny_smolvlm

import mmspec
from mmspec.demos import markup, measuring
from mmspec.demos.booth import Booth
from mmspec.demos.easel import Caption, Easel
from mmspec.demos.measures import HEAD, PARTS, PLOTS, bars, cells, report, rows
from mmspec.demos.measuring import MOST_DRAFTERS, PLAIN, Measured, Reply, alike, measure, wishes
from mmspec.demos.studio import SHAPES, Question, Studio, TextStudio
from mmspec.errors import InputError, MismatchError, UnknownNameError
from mmspec.intervals import bootstrap, speedups
from mmspec.stats import Stats

pytest.importorskip("gradio")
from mmspec.demos import app, benchmark

HOW: dict[str, Any] = {"shape": "own", "max_new_tokens": 10}
NAMES = {PLAIN: PLAIN, "x": "x"}


@pytest.fixture(scope="module")
def studio(tmp_path_factory: pytest.TempPathFactory) -> Studio:
    speaker = tiny_llama(tmp_path_factory.mktemp("drafter"), seed=1)
    return Studio(str(tiny_smolvlm(tmp_path_factory.mktemp("target"))), ["prompt-lookup", "recycling", str(speaker)])


@pytest.fixture(scope="module")
def easel(tmp_path_factory: pytest.TempPathFactory) -> Easel:
    place = tmp_path_factory.mktemp("easel") / "janus"
    made = Easel(str(tiny_images.save(place, tiny_images.janus_model(), tiny_images.janus_processor())), ["scd-gs"])
    made.captions = ["a red circle"]
    return made


def measured(studio: Studio, samples: list[dict[str, Any]], **how: Any) -> Measured:
    """A benchmark of all drafters that is over."""
    drafters = [name for name in studio.drafters if name != PLAIN]
    *_, last = measure(studio, wishes(studio, samples, drafters, **how), drafters)
    return last


def reply(request: int, drafter: str, tokens: int, decode: float, accepted: list[int], **more: Any) -> Reply:
    """One with a prefill of a second and ten drafted tokens a round."""
    lossless = more.pop("lossless", True)
    drafted = 10 * len(accepted) if drafter != PLAIN else 0
    stats = Stats(lossless, tokens, accepted, 1.0, verify_seconds=decode, drafted_tokens=drafted)
    return Reply(request, drafter, stats, list(range(tokens)), **more)


def scripted(requests: int = 4, **more: Any) -> Measured:
    """Plain decoding takes a second per token, drafts half of that: a bit more, or less."""
    found = Measured([PLAIN, "x"], [Question("why", "x")] * requests, NAMES)
    for number in range(requests):
        found.replies.append(reply(number, PLAIN, 11, 10.0, [0] * 10))
        found.replies.append(reply(number, "x", 11, 5.0 + 0.1 * number, [4, 4], **more))
    return found


# what is measured


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_every_drafter_replies_to_every_request_as_plain_decoding_does(
    studio: Studio, tmp_path: Path, temperature: float
) -> None:
    samples = studio.samples(tmp_path)[:2]
    found = measured(studio, samples, temperature=temperature, seed=3, **HOW)
    names = [PLAIN, *studio.drafters]
    assert [(each.request, each.drafter) for each in found.replies] == [(n, name) for n in range(2) for name in names]
    assert found.done == found.total == 3 * len(names)  # the first request once more: everything is warm
    assert found.ended
    assert found.exact
    plain = mmspec.load(studio.model, "none")
    for number, sample in enumerate(samples):
        want = plain(sample["picture"], sample["prompt"], max_new_tokens=10, temperature=temperature, seed=3)
        assert {tuple(each.token_ids) for each in found.replies if each.request == number} == {tuple(want.token_ids)}
    assert all(each.equal for each in found.replies)
    for each in rows(found):
        assert (each.replies, each.equal) == (2, 2)
        assert each.low is None  # two requests have no interval
        assert each.speedup is not None
        assert each.speedup > 0


def test_no_drafter_knows_the_reply_from_the_warm_up(studio: Studio, tmp_path: Path) -> None:
    """The first request is asked twice; `recycling` would draft all of the second reply."""
    asked = wishes(studio, studio.samples(tmp_path)[:1], ["recycling"], **HOW)
    *_, found = measure(studio, asked, ["recycling"])
    fresh = studio.drafting("recycling", "own")(**asked[0].options())
    assert found.replies[-1].stats.accept_lengths == fresh.stats.accept_lengths


def test_requests_take_turns_and_a_page_hears_of_every_round(studio: Studio, tmp_path: Path) -> None:
    asked = wishes(studio, studio.samples(tmp_path)[:2], ["prompt-lookup"], **HOW)
    seen = [(each.done, len(each.replies)) for each in measure(studio, asked, ["prompt-lookup"])]
    assert seen == sorted(seen)
    assert {count for _, count in seen} == {0, 1, 2, 3, 4}
    assert len(seen) > 6 * 2  # it can be stopped within a reply


def test_who_waits_is_not_kept_waiting_for_ever(
    studio: Studio, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = iter(range(0, 10_000, 100))  # a reply takes 100 seconds by this clock
    monkeypatch.setattr(measuring, "time", SimpleNamespace(monotonic=lambda: next(now)))
    found = measured(studio, studio.samples(tmp_path)[:2], **HOW)
    assert found.ended
    assert found.done == 3 < found.total


def test_models_that_draw_speak_or_read_are_measured_by_the_same_code(easel: Easel, tmp_path: Path) -> None:
    speaking = Booth(str(tiny_speech.tiny_valle(tmp_path / "valle")), ["prompt-lookup"])
    speaking.sentences = ["one bar"]
    reading = TextStudio(str(tiny_llama(tmp_path / "llama")), ["prompt-lookup"])
    assert len(reading.samples(tmp_path)) == 6
    kinds: list[tuple[Studio, dict[str, Any]]] = [(easel, {}), (speaking, {}), (reading, {"max_new_tokens": 8})]
    for studio, how in kinds:
        shortest = min(studio.samples(tmp_path), key=lambda sample: len(sample["prompt"]))
        found = measured(studio, [shortest], temperature=1.0, seed=2, **how)
        assert [each.equal for each in found.replies] == [True, True]
        assert found.exact
    loose = measured(easel, easel.samples(tmp_path), rule="lantern", looseness=1.0, shape="own")
    assert not loose.exact
    assert [each.lossless for each in rows(loose)] == [True, False]
    assert cells(loose)[1][0] == "scd-gs (lossy)"


def test_of_a_canvas_pictures_are_compared(tmp_path: Path) -> None:
    canvas = test_demo_canvas.captioned(tmp_path / "mar")
    one, other = (canvas.plain(prompt=canvas.captions[0], temperature=1.0, seed=seed) for seed in (1, 2))
    assert alike(canvas, one, one)
    assert not alike(canvas, one, replace(other, token_ids=one.token_ids))
    found = measured(canvas, canvas.samples(tmp_path)[:1], shape="own")
    assert not found.exact
    assert rows(found)[0].tau == found.replies[0].stats.tau
    assert cells(found)[1][-1] in ("0 of 1, same law", "1 of 1")


@pytest.mark.parametrize(
    ("samples", "drafters", "how", "message"),
    [
        (0, 1, {}, "0 questions are not valid: 1 to 6"),
        (7, 1, {}, "7 questions are not valid: 1 to 6"),
        (1, 0, {}, "0 drafters are chosen"),
        (1, MOST_DRAFTERS + 1, {}, "7 drafters are chosen: 1 to 6"),
        (1, 1, {"max_new_tokens": 100_000}, "1 to 256"),
        (1, 1, {"temperature": 3.0}, "temperature 3"),
    ],
)
def test_limits_hold_for_everybody(
    studio: Studio, samples: int, drafters: int, how: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        wishes(studio, [{"prompt": "why"}] * samples, ["x"] * drafters, **how)


def test_what_does_not_fit_is_told_before_anything_is_measured(easel: Easel) -> None:
    chain = Easel(easel.model, ["lookahead"])
    chain.captions = easel.captions
    for drafter, error in (("/etc/passwd", UnknownNameError), ("lookahead", MismatchError)):
        asked = [Caption("a red circle", drafter, shape="3x4x9")]
        with pytest.raises(error):
            next(each for each in measure(chain, asked, [drafter]) if each.done)


# what is said of it


def test_figures_are_those_of_sums() -> None:
    found = scripted()
    plain, x = rows(found)
    assert (plain.speedup, plain.low, plain.tau, plain.accepted, plain.ms) == (1.0, None, 1.0, None, 1000.0)
    assert x.speedup == pytest.approx(40 / 20.6)
    assert x.ms == pytest.approx(515)
    assert (x.tau, x.accepted) == (5.0, 0.4)
    costs = [[10.0, 10, 5.0 + 0.1 * number, 10] for number in range(4)]
    assert (x.low, x.high) == bootstrap(np.array(costs), speedups)
    assert x.low is not None
    assert x.high is not None
    assert x.low < x.speedup < x.high
    assert rows(scripted(3))[1].low is None
    found.replies.append(reply(4, PLAIN, 11, 1000.0, [0] * 10))  # x is yet to come
    assert rows(found)[1].speedup == x.speedup


def test_what_a_prefill_gave_whole_says_nothing_of_speed() -> None:
    found = Measured([PLAIN, "x"], [Question("why", "x")], NAMES)
    found.replies += [reply(0, PLAIN, 1, 0.0, []), reply(0, "x", 1, 0.0, [])]
    assert cells(found)[1] == ["x", "-", "-", "-", "-", "-", "1 of 1"]
    assert bars(found) == {plot: [] for plot in PLOTS}


@pytest.mark.parametrize(
    ("exact", "invariant", "lossless", "told"),
    [
        (True, True, True, ": AN ERROR"),
        (False, True, True, ", rounding"),
        (False, False, True, ", same law"),
        (False, False, False, ", lossy"),
    ],
)
def test_replies_that_differ_say_why(exact: bool, invariant: bool, lossless: bool, told: str) -> None:
    found = scripted(equal=False, lossless=lossless)
    found.exact, found.invariant = exact, invariant
    assert cells(found)[0][-1] == "4 of 4"
    assert cells(found)[1][-1] == f"0 of 4{told}"
    assert cells(found)[1][0] == ("x" if lossless else "x (lossy)")
    assert all(len(line) == len(HEAD) for line in cells(found))


def test_the_parts_of_a_bar_end_where_its_interval_does() -> None:
    _, x = rows(scripted())
    drawn = bars(scripted())
    heights = {part: height for drafter, part, height in drawn["S"] if drafter == "x"}
    above, below, rest = (heights[part] for part in PARTS)
    assert (rest, rest + below, rest + below + above) == pytest.approx((x.low, x.speedup, x.high))
    assert [(drafter, height) for drafter, _, height in drawn["S"] if height][0] == (PLAIN, 1.0)
    assert drawn["accepted, %"] == [("x", "", 40.0)]
    few = [height for drafter, _, height in bars(scripted(1))["S"] if drafter == "x"]
    assert few == [0.0, 0.0, 2.0]  # every part is there from the start


def test_drafters_of_one_name_are_told_apart(tmp_path: Path) -> None:
    speakers = [str(tiny_llama(tmp_path / place / "speaker", seed=1)) for place in ("one", "other")]
    reading = TextStudio(str(tiny_llama(tmp_path / "llama")), speakers)
    assert [shown for shown, _ in reading.choices] == ["speaker", "speaker (2)"]
    found, names = measured(reading, [{"prompt": "why"}], **HOW), [PLAIN, "speaker", "speaker (2)"]
    assert [each.drafter for each in rows(found)] == names
    assert [drafter for drafter, _, _ in bars(found)["ms/token"]] == names
    assert [each["drafter"] for each in report(reading, found)["replies"]] == names


def test_the_records_are_json_and_name_no_folders(studio: Studio, tmp_path: Path) -> None:
    found = measured(studio, studio.samples(tmp_path)[:1], **HOW)
    text = json.dumps(report(studio, found), allow_nan=False)
    assert str(tmp_path) not in text
    assert str(Path(studio.model).parent) not in text
    told = json.loads(text)
    assert told["model"] == studio.name
    assert told["asked"]["temperature"] == 0
    assert told["exact"]
    assert [each["drafter"] for each in told["replies"]] == [each["drafter"] for each in told["drafters"]]
    assert told["replies"][0]["token_ids"] == found.replies[0].token_ids
    assert {"tau", "decode_seconds", "accept_lengths", "equal"} <= set(told["replies"][0])


# the page


def test_only_what_a_model_takes_is_offered(studio: Studio, tmp_path: Path) -> None:
    canvas = test_demo_canvas.captioned(tmp_path / "mar")
    offered = {}
    for each in (studio, canvas):
        with benchmark.gr.Blocks() as blocks:
            benchmark.build(each, "bench")
        labelled = {block.label: block for block in blocks.blocks.values() if getattr(block, "label", None)}
        (heat,) = (block for label, block in labelled.items() if label.startswith("Temperature"))
        shapes = [shape for shape, _ in labelled["Draft size"].choices]
        (text,) = (block.value for block in blocks.blocks.values() if isinstance(block, benchmark.gr.Markdown))
        offered[each.title] = heat.label, heat.minimum, shapes, "must be equal (in float16 and bfloat16 up to" in text
    assert offered["Picture chat"] == ("Temperature (0 is greedy)", 0, list(SHAPES), True)
    assert offered["Canvas"] == ("Temperature", 0.1, ["auto", "own", "2", "4", "8"], False)


def shown(studio: Studio, drafters: list[str], count: int = 2, rule: str = "exact") -> list[tuple[Any, ...]]:
    return list(benchmark.show_run(studio, drafters, count, 0.0, 10, rule, 0.3, 0, "own"))


def test_a_run_grows_row_by_row_and_can_be_downloaded_at_any_time(studio: Studio) -> None:
    lines, files = [], []
    for _, message, table, *plots, button in benchmark.show_run(
        studio, ["prompt-lookup"], 2, 0.0, 10, "exact", 0.3, 0, "own"
    ):
        if isinstance(table, list):
            lines.append(len(table))
            files.append(len(json.loads(Path(button.value["path"]).read_text())["replies"]))
            assert ('<progress class="mm-progress"' in message) == (len(lines) < 5)
            assert [list(frame.columns) for frame in plots] == [["drafter", "part", plot] for plot in PLOTS]
            assert all(frame[plot].dtype == float for frame, plot in zip(plots, PLOTS, strict=True))
    assert lines == [1, 2, 2, 2, 2]
    assert files == [1, 2, 3, 4, 4]
    assert "Done: 4 replies" in message
    assert 'role="status"' in message


def test_a_bar_of_progress_has_a_name() -> None:
    drawn = markup.progress("Reply 1 of <4>", 1, 4)
    assert re.search(r'<progress [^>]*value="1" max="4" aria-label="Reply 1 of &lt;4&gt;"', drawn)


def test_mistakes_are_messages(studio: Studio) -> None:
    for drafters, count, told in (([], 2, "0 drafters"), (["prompt-lookup"], 0, "0 questions"), (["no"], 1, "unknown")):
        last = shown(studio, drafters, count)[-1]
        assert told in last[1]
        assert 'role="alert"' in last[1]
        assert all(part == benchmark.gr.skip() for part in last[2:])  # what was found before stays


def test_one_at_a_time_is_measured(studio: Studio) -> None:
    blocks = app.page(studio, Studio(studio.model, ["none", "suffix"]))
    asking = [each for each in blocks.fns.values() if str(each.api_name).startswith("benchmark")]
    races = [each for each in blocks.fns.values() if str(each.api_name).startswith("run")]
    assert len(asking) == len(races) == 2
    assert {(each.concurrency_limit, each.concurrency_id) for each in [*asking, *races]} == {(1, "model")}
    boxes = [each for each in blocks.blocks.values() if isinstance(each, benchmark.gr.CheckboxGroup)]
    assert [[value for _, value in each.choices] for each in boxes] == [studio.drafters, ["suffix"]]


def test_a_program_can_ask_for_it(studio: Studio) -> None:
    client = pytest.importorskip("gradio_client")
    blocks = app.page(studio)
    _, url, _ = blocks.launch(prevent_thread_lock=True, quiet=True, server_name="127.0.0.1", **app.LAUNCH)
    talk = client.Client(url, verbose=False, httpx_kwargs={"timeout": 600.0})
    asked = (["prompt-lookup"], 1, 0, 16, "exact", 0.3, 0, "own")
    message, table, *_, file = talk.predict(*asked, api_name="/benchmark")
    assert "Done: 2 replies" in message
    assert [line[0] for line in table["data"]] == [PLAIN, "prompt-lookup"]
    assert len(json.loads(Path(file["value"]).read_text(encoding="utf-8"))["replies"]) == 2
    with pytest.raises(Exception, match="maximum value 6"):
        talk.predict(["prompt-lookup"], 7, *asked[2:], api_name="/benchmark")
    blocks.close()
