"""Acceptance by what a token depends on: labels of a reference answer, and a drafter that knows some of them."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tiny
import torch
from PIL import Image
from test_drafters import Watched
from typer.testing import CliRunner

import mmspec
from mmspec.benchmarks import plot
from mmspec.benchmarks.questions import Question, long_questions
from mmspec.benchmarks.speed import token_counter
from mmspec.benchmarks.token_classes import kinds_of
from mmspec.benchmarks.told import First, Told, ToldReport, ToldSettings, answer_of, told_counts
from mmspec.cli import app
from mmspec.contract import Draft, Drafter, Drafting, Kind, State
from mmspec.errors import InputError
from mmspec.tree import chain


@pytest.fixture(scope="module")
def pipe() -> mmspec.Pipeline:
    return mmspec.load(tiny.smolvlm_model(), "none", processor=tiny.processor())


@pytest.fixture(scope="module")
def question(pipe: mmspec.Pipeline) -> Question:
    """One whose answer fits the tiny context."""
    found = long_questions(12, token_counter(pipe))
    return min(found, key=lambda one: len(one.qa.answer))


def test_a_node_that_is_not_real_is_no_try() -> None:
    """As under a successor that `recycling` does not know."""
    told, draft = Told([5, 6, 7]), chain(torch.tensor([[5, 6, 9]]))
    for valid in (True, False):
        draft.valid = torch.tensor([[True, True, valid]])
        told(draft, torch.zeros(1, 3, 12), First(5, torch.device("cpu")), torch.tensor([1]))
    assert told.tries == [True, False, True, None]


class Knowing(Drafter, Drafting):
    """Drafts what it is told, three tokens a round, but wrong ids in the places of some kinds."""

    kinds: frozenset[Kind] = frozenset({"point"})

    def __init__(self, answer: list[int], kinds: list[str], knows: set[str]) -> None:
        self.answer, self.known = answer, [kind in knows for kind in kinds]

    def begin(self, *given: Any) -> "Knowing":
        return self

    def propose(self, state: State) -> Draft:
        start, levels = int(state.emitted[0]), min(3, state.room)
        if levels < 1:
            return state.undrafted()
        places = range(start, start + levels)
        return chain(torch.tensor([[int(state.pending[0]), *(self.answer[p] + (not self.known[p]) for p in places)]]))

    def observe(self, *given: Any) -> None:
        pass


def test_labels_of_a_text_are_those_of_its_spans() -> None:
    offsets = [(0, 3), (3, 7), (7, 9), (9, 12), (12, 14)]
    spans = [(4, 7, "image"), (8, 10, "copy"), (10, 11, "image")]
    assert kinds_of(offsets, spans) == ["template", "image", "copy", "image", "template"]
    assert kinds_of(offsets, spans, shift=3) == ["template", "template", "image", "image", "image"]
    assert kinds_of(offsets, [(8, 10, "copy")], shift=3) == ["template"] * 3 + ["copy"] * 2


def test_the_answer_is_the_template_s_with_its_labels(pipe: mmspec.Pipeline, question: Question) -> None:
    ids, kinds = answer_of(pipe, question.image, question.qa)
    text = pipe.processor.tokenizer.decode(ids)
    assert text.strip() == question.qa.answer
    assert len(ids) == len(kinds)
    for start, end, kind in question.qa.spans:
        said = question.qa.answer[start:end]
        for token, label in zip(ids, kinds, strict=True):
            part = pipe.processor.tokenizer.decode([token]).strip()
            if len(part) > 3 and part in said and question.qa.answer.count(part) == 1:
                assert label == kind
    assert {"image", "template"} <= set(kinds)


@pytest.mark.parametrize("knows", [{"image"}, {"template"}, {"image", "template", "copy"}, set()])
def test_a_drafter_is_credited_with_what_it_knows(pipe: mmspec.Pipeline, question: Question, knows: set[str]) -> None:
    """All of the dependences that it knows and none of the others, wherever a draft was offered."""
    ids, kinds = answer_of(pipe, question.image, question.qa)
    counts = told_counts(pipe.with_drafter(Knowing(ids, kinds, knows), "own"), question)
    for kind, (tried, held) in counts.items():
        assert held == (tried if kind in knows else 0), kind
    assert counts["image"][0] > 3
    offered = sum(tried for tried, _ in counts.values())
    assert 0.6 * len(ids) < offered < len(ids)


def test_every_drafter_is_asked_for_the_reference(pipe: mmspec.Pipeline, question: Question) -> None:
    """The text behind which a draft is made is the reference, whatever the target would have said."""
    ids, kinds = answer_of(pipe, question.image, question.qa)
    seen: list[list[int]] = []
    inner = Knowing(ids, kinds, {"template"})
    prompt = pipe.prepare(question.image, question.prompt)["input_ids"][0].tolist()
    watched: Any = Watched(inner, lambda state, draft: seen.append(state.ids[0][len(prompt) :]))
    told_counts(pipe.with_drafter(watched, "own"), question)
    assert all(text == ids[: len(text)] for text in seen)
    assert len(seen) > 5


def test_a_token_behind_a_whole_draft_was_not_offered() -> None:
    rule = Told([5, 6, 7, 8, 9])
    emitted = torch.tensor([1])
    kept = rule(chain(torch.tensor([[5, 6, 7]])), torch.zeros(1, 3, 10), None, emitted)
    assert int(kept.next[0]) == 8
    assert rule.tries == [True, True, None]
    rule(chain(torch.tensor([[8, 4]])), torch.zeros(1, 2, 10), None, torch.tensor([4]))
    assert rule.tries[3:] == [False]
    rule(Draft.root(torch.tensor([9])), torch.zeros(1, 1, 10), None, torch.tensor([5]))
    assert rule.tries[4:] == [None]


def test_shares_gains_and_the_table() -> None:
    """Worked by hand; the interval of a constant gain is a point."""

    def one(tried: int, held: int) -> dict[str, list[int]]:
        return {"image": [tried, held], "copy": [0, 0], "template": [10, 5]}

    settings = ToldSettings("m", ("a", "b"), 4)
    few = ToldReport(settings, {"a": [one(10, 2)] * 3, "b": [one(10, 6)] * 3})
    assert few.gain("b", "image") == (pytest.approx(0.4), None, None)
    assert few.text().splitlines()[2].split()[-2:] == ["+0.40", "-"]
    report = ToldReport(settings, {"a": [one(10, 2)] * 4, "b": [one(10, 6)] * 4})
    assert report.share("a", "image") == 0.2
    assert report.share("a", "copy") is None
    assert report.gain("b", "image") == pytest.approx((0.4, 0.4, 0.4))
    assert report.gain("b", "copy") is None
    uneven = [one(10, 0), one(10, 9), one(10, 9), one(10, 9)]
    mean, low, high = ToldReport(settings, {"a": [one(10, 2)] * 4, "b": uneven}).gain("b", "image") or (0, 0, 0)
    assert low < mean < high
    text = report.text().splitlines()
    assert "0.60 of 40" in text[2]
    assert "+0.40 to +0.40" in text[2]
    assert json.loads(json.dumps(report.summary()))["methods"]["b"]["share"]["image"] == 0.6
    with pytest.raises(InputError, match="1 or more"):
        ToldSettings("m", ("a",), 0)
    with pytest.raises(InputError, match="depends on clocks"):
        ToldSettings("m", ("a",), 4, shape="auto")
    with pytest.raises(InputError, match="at least one drafter"):
        ToldSettings("m", (), 4)


def test_the_command_writes_a_table_and_a_plot(tmp_path: Path, monkeypatch: Any) -> None:
    pytest.importorskip("matplotlib")
    folder = tiny.tiny_smolvlm(tmp_path / "model")
    monkeypatch.setattr("mmspec.benchmarks.told.long_questions", short_questions)
    drawn, save = [], plot.save_figure
    monkeypatch.setattr(plot, "save_figure", lambda *given: (drawn.append(given[0].axes[0].get_ylabel()), save(*given)))
    arguments = [
        "bench",
        "dependence",
        "--model",
        str(folder),
        "--drafters",
        "prompt-lookup,suffix",
        "--questions",
        "2",
        "--shape",
        "3",
    ]
    done = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    assert "more of image" in done.output
    assert drawn == ["acceptance"]
    assert (tmp_path / "out" / "plot.png").stat().st_size > 1000
    assert set(json.loads((tmp_path / "out" / "summary.json").read_text())["methods"]) == {"prompt-lookup", "suffix"}


def short_questions(number: int, token_count: Any) -> list[Any]:
    """Questions for a context of 256."""
    picture = Image.new("RGB", (32, 32), "red")
    qa = SimpleNamespace(question="what is it?", answer="a red bar of 12", spans=[(2, 5, "image"), (13, 15, "image")])
    return [SimpleNamespace(image=picture, prompt=qa.question, qa=qa)] * number


@pytest.mark.parametrize("command", ["dependence", "ablations"])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--drafters", ""], "name at least one drafter"),  # an empty list is no default
        (["--threads", "-1"], "threads=-1 is not valid"),
    ],
)
def test_bad_options_are_one_clear_error(command: str, arguments: list[str], message: str) -> None:
    refused = CliRunner().invoke(app, ["bench", command, *arguments])
    assert isinstance(refused.exception, InputError)
    assert message in str(refused.exception)
