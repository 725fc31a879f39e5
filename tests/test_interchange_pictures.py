"""Published heads of EAGLE and EAGLE-3 behind pictures: what they say is what their tensors say of the embeddings and
the positions that they were trained with, in every round of a batch."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import published
import pytest
import tiny
import tiny_families
import torch
import toys
from published import Sample, Text
from test_drafters import Watched, Watching
from test_families import Oracle, hf
from test_interchange import double, heard_after
from tiny_vision import PICTURES, TEXTS
from torch import Tensor

import mmspec
from mmspec.checkpoints import load_drafter, save_drafter
from mmspec.contract import Draft, Kind, State
from mmspec.drafters.children import Choice
from mmspec.engine.engine import Engine
from mmspec.errors import CheckpointError, MismatchError
from mmspec.interchange.export import export
from mmspec.registry import resolve
from mmspec.sampling import Sampler

AS_TOKENS = "image_slots_hold_tokens"
NEIGHBOURS = {"rope_scaling": {"type": "mrope", "mrope_section": [1, 1, 2]}}
TURNS = {"rope_scaling": {"rope_type": "default", "mrope_interleaved": True, "mrope_section": [2, 1, 1]}}
LEVELS, BUDGET, SEED = 2, 10, 1


@cache
def plain(family: str) -> mmspec.Pipeline:
    """Six layers, so that the usual taps of EAGLE-3 are those of a deep target; weights that write no image slot, which
    transformers would take for one of the prompt's."""
    model, processor = tiny_families.MAKERS[family](SEED, num_hidden_layers=6)
    return mmspec.load(model, "none", processor=processor)


@dataclass
class Seen(Text):
    """A text behind a prompt with pictures, read by transformers: what entered every layer, and where slots stand.

    inputs: of the prompt alone. pictures: whether slots hold them. axes: of each frequency of the head; None for plain
    slot numbers.
    """

    inputs: dict[str, Tensor]
    pictures: bool = False
    axes: tuple[int, ...] | None = None

    def on_axes(self, length: int) -> Tensor:
        """[3, length] the target's positions, by transformers for the prompt, and on from the largest of them."""
        told = {name: self.inputs[name] for name in ("mm_token_type_ids", "image_grid_thw") if name in self.inputs}
        prompt = self.inputs["input_ids"]
        if "image_grid_thw" not in told:
            return torch.arange(length).expand(3, -1)
        found, _ = self.target.model.model.get_rope_index(prompt, **told)
        after = torch.arange(length - prompt.shape[1]) + found.max() + 1
        return torch.cat([found[:, 0], after.expand(3, -1)], 1)

    @cached_property
    def read(self) -> tuple[list[Tensor], Tensor]:
        """[T, H] what enters each layer and, at last, the head, of the text but its pending token."""
        ids = torch.tensor([self.ids[:-1]])
        given = {**self.inputs, "input_ids": ids, "attention_mask": torch.ones_like(ids)}
        if given.pop("mm_token_type_ids", None) is not None:
            given["position_ids"] = self.on_axes(ids.shape[1])[:, None]
        entered: list[Tensor] = []
        language = self.target.model.model.language_model
        hooks = [
            layer.register_forward_pre_hook(lambda _, given: entered.append(given[0][0])) for layer in language.layers
        ]
        try:
            out = self.target.model(**given, output_hidden_states=True)
        finally:
            for hook in hooks:
                hook.remove()
        return [*entered, out.hidden_states[-1][0]], entered[0]

    def states(self, whole: bool = False) -> list[Tensor]:
        return self.read[0]

    def held(self, drafted: int) -> Tensor:
        words = super().held(drafted)
        if self.pictures:
            words[: len(self.ids) - 2] = self.read[1][1:]
        return words

    def places(self, slots: int) -> Tensor:
        """Slot t holds x_{t+1}, and stands where x_t stands."""
        if self.axes is None:
            return super().places(slots)
        return self.on_axes(slots)[list(self.axes)].T


@dataclass(frozen=True)
class Case:
    """A published head, what its configuration says, and what that means."""

    family: str
    make: Callable[[Any], Sample]
    told: dict[str, Any]
    pictures: bool = False
    axes: tuple[int, ...] | None = None


CASES = {
    "llava, eagle": Case("llava", published.eagle, {}, pictures=True),
    "llava, eagle, tokens": Case("llava", published.eagle, {AS_TOKENS: True}),
    "llava, eagle3": Case("llava", published.eagle3, {}),
    "llava, eagle3, pictures": Case("llava", published.eagle3, {AS_TOKENS: False}, pictures=True),
    "qwen2.5-vl, eagle": Case("qwen2.5-vl", published.eagle, {}, pictures=True),
    "qwen2.5-vl, eagle, axes": Case("qwen2.5-vl", published.eagle, NEIGHBOURS, pictures=True, axes=(0, 1, 2, 2)),
    "qwen2.5-vl, eagle3, axes": Case("qwen2.5-vl", published.eagle3, NEIGHBOURS, axes=(0, 1, 2, 2)),
    "qwen2.5-vl, eagle3, pictures, axes": Case(
        "qwen2.5-vl", published.eagle3, {**NEIGHBOURS, AS_TOKENS: False}, pictures=True, axes=(0, 1, 2, 2)
    ),
    "qwen3-vl, eagle3, axes": Case("qwen3-vl", published.eagle3, TURNS, axes=(0, 1, 2, 0)),
}


class Lent(Watched):
    """Its drafts are looked at, and others are verified."""

    def __init__(self, inner: Any, look: Callable[[State, Draft], None], other: Oracle) -> None:
        super().__init__(inner, look)
        self.other = other

    def begin(self, state: State, sampler: Sampler, kind: Kind) -> "Lending":
        return Lending(self, self.inner.begin(state, sampler, kind))


class Lending(Watching):
    drafter: Lent

    def propose(self, state: State) -> Draft:
        super().propose(state)
        return self.drafter.other.propose(state)


def row_of(pipe: Any, row: int) -> dict[str, Tensor]:
    """The model inputs of a prompt alone."""
    return pipe.prepare(PICTURES[row], TEXTS[row])


@pytest.mark.parametrize(
    ("name", "most"),
    [
        *((name, 7) for name in CASES),
        *((name, 2048) for name in ("llava, eagle", "qwen2.5-vl, eagle3, pictures, axes")),
    ],
)
def test_a_head_says_behind_pictures_what_it_was_trained_to_say_in_every_round(
    name: str, most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows with other pictures, and one with none, after rounds that kept nothing, some, or all of a draft; prompts are
    read in portions, or at once."""
    monkeypatch.setattr("mmspec.drafters.slots.at_once", lambda batch: most)
    case = CASES[name]
    pipe, sample = plain(case.family), case.make(plain(case.family).target)
    drafter = pipe.with_drafter(sample.write(tmp_path / "published", **case.told)).drafter
    drafter.depth, drafter.width, drafter.top_k, drafter.total = LEVELS, 1, 1, 1 + LEVELS
    said: list[Tensor] = []

    class Recorded(Choice):
        def standings(self, logits: Any, *others: Any) -> Any:
            said.append(logits[:, 0].clone())
            return super().standings(logits, *others)

    drafter.choice = lambda sampler, kind: Recorded(sampler, kind, pipe.target.placeholders)
    weights, config = double(sample.tensors), {**sample.config, **case.told}
    rows = [row_of(pipe, row) for row in range(len(TEXTS))]
    looked = 0

    def look(state: State, draft: Draft) -> None:
        nonlocal looked
        for row in (row for row, done in enumerate(state.done) if not done):
            path = draft.tokens[row, 1:].tolist()
            text = Seen(pipe.target, state.ids[row], [], rows[row], case.pictures, case.axes)
            for level, logits in enumerate(said):
                text.path = path[:level]
                with torch.no_grad():
                    expected = sample.says(text, weights, config)
                torch.testing.assert_close(logits[row], expected, rtol=1e-6, atol=1e-6)
                looked += 1
        said.clear()

    answers = [hf(pipe.target.model, inputs, BUDGET)[0] for inputs in rows]
    lent = Lent(drafter, look, Oracle(answers, pipe.target.vocab_size))
    got = toys.answer(pipe.target, lent, pipe.prepare(PICTURES, TEXTS), BUDGET)
    assert got.rows == answers
    assert looked > 2 * LEVELS * len(TEXTS)
    assert {0, 1, 2} <= set(got.accepted)


@pytest.mark.parametrize("name", ["llava, eagle", "qwen2.5-vl, eagle3, pictures, axes", "qwen3-vl, eagle3, axes"])
def test_its_own_drafts_change_no_answer(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    pipe = plain(case.family)
    fast = pipe.with_drafter(case.make(pipe.target).write(tmp_path / "published", **case.told), shape="own")
    answers = fast(PICTURES, list(TEXTS), max_new_tokens=BUDGET)
    assert [one.token_ids for one in answers] == [hf(pipe.target.model, row_of(pipe, r), BUDGET)[0] for r in range(3)]
    drawn = [one(PICTURES, list(TEXTS), max_new_tokens=BUDGET, temperature=1.0, seed=5) for one in (pipe, fast)]
    assert [one.token_ids for one in drawn[0]] == [one.token_ids for one in drawn[1]]
    short = [one.generate(input_ids=torch.tensor([[40]]), max_new_tokens=BUDGET).token_ids for one in (pipe, fast)]
    assert short[0] == short[1]


def first(pipe: Any, folder: Path, row: int) -> Tensor:
    """[V] what the drafter in a folder says of the first token that is drafted."""
    return heard_after(pipe, load_drafter(folder, pipe.target), row_of(pipe, row))[2][0]


@pytest.mark.parametrize(
    "told", [{AS_TOKENS: False}, {**NEIGHBOURS, AS_TOKENS: True}, {**NEIGHBOURS, AS_TOKENS: False}]
)
@pytest.mark.parametrize("make", [published.eagle, published.eagle3])
def test_what_a_head_saw_matters_behind_pictures_alone(make: Any, told: dict[str, Any], tmp_path: Path) -> None:
    pipe = plain("qwen2.5-vl")
    sample = make(pipe.target)
    blind = sample.write(tmp_path / "blind", **{AS_TOKENS: True})
    seeing = sample.write(tmp_path / "seeing", **told)
    assert not torch.allclose(first(pipe, blind, 0), first(pipe, seeing, 0), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(first(pipe, blind, 1), first(pipe, seeing, 1), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["qwen2.5-vl, eagle, axes", "qwen3-vl, eagle3, axes"])
def test_it_is_saved_with_what_it_saw(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    pipe = plain(case.family)
    folder = case.make(pipe.target).write(tmp_path / "published", **case.told)
    drafter = pipe.with_drafter(folder).drafter
    save_drafter(drafter, tmp_path / "saved", pipe.target)
    back = load_drafter(tmp_path / "saved", pipe.target)
    assert back.net.settings == drafter.net.settings
    assert back.net.settings["axes"] == list(case.axes or ())
    assert back.net.settings.get("pictures", False) == case.pictures
    torch.testing.assert_close(first(pipe, folder, 0), first(pipe, tmp_path / "saved", 0), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("qwen2.5-vl, eagle, axes", "eagle"),
        ("qwen3-vl, eagle3, axes", "eagle"),
        ("qwen3-vl, eagle3, axes", "speculators"),
    ],
)
def test_what_goes_out_says_what_it_saw(name: str, form: str, tmp_path: Path) -> None:
    case = CASES[name]
    model, processor = tiny_families.MAKERS[case.family](SEED, num_hidden_layers=8)  # with three different taps
    pipe = mmspec.load(model, "none", processor=processor)
    drafter = pipe.with_drafter(case.make(pipe.target).write(tmp_path / "published", **case.told)).drafter
    out = export(drafter, pipe.target, "some/target", form, tmp_path / "out")
    back = pipe.with_drafter(out).drafter
    assert back.net.settings == drafter.net.settings
    torch.testing.assert_close(first(pipe, tmp_path / "published", 0), first(pipe, out, 0), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["qwen2.5-vl, eagle, axes", "qwen3-vl, eagle3, axes"])
def test_training_goes_on_with_tokens_in_one_row_and_says_so(name: str, tmp_path: Path, caplog: Any) -> None:
    case = CASES[name]
    pipe = plain(case.family)
    drafter = pipe.with_drafter(case.make(pipe.target).write(tmp_path / "published", **case.told)).drafter
    recipe: Any = resolve("recipes", "eagle3" if "eagle3" in name else "eagle2", "vlm")
    net = recipe().begin(drafter, pipe.target)
    assert "it learns on with tokens in one row" in caplog.text
    assert not {"axes", "pictures"} & net.settings.keys()


@pytest.mark.parametrize("family", ["llava", "qwen2.5-vl"])
def test_compiled_steps_read_the_same_prompt(family: str, tmp_path: Path) -> None:
    """Plain calls of what would be compiled, on static caches."""
    told = {AS_TOKENS: False, **(NEIGHBOURS if family == "qwen2.5-vl" else {})}
    pipe = plain(family)
    target = type(pipe.target)(pipe.target.model, pipe.target.tokenizer)
    folder = published.eagle3(target).write(tmp_path / "published", **told)
    drafts: list[list[list[int]]] = []
    for engine in (None, Engine(target.decoder, None, (1, 8), early=True)):
        target.decoder.engine = engine
        drafter, seen = load_drafter(folder, target), []
        drafter.depth, drafter.width, drafter.top_k, drafter.total = 3, 2, 2, 6

        def look(state: State, draft: Draft, seen: list[list[int]] = seen) -> None:
            seen += draft.tokens.tolist()

        toys.answer(target, Watched(drafter, look), pipe.prepare(PICTURES, TEXTS), BUDGET)
        drafts.append(seen)
    alike = [
        pair for pair in zip(*drafts, strict=True) if len(pair[0]) == len(pair[1])
    ]  # at the end there is less room
    assert len(alike) > 2 * len(TEXTS)
    assert all(one == other for one, other in alike)


def test_axes_must_be_stated_and_fit(tmp_path: Path) -> None:
    pipe = plain("qwen2.5-vl")
    sample = published.eagle3(pipe.target)
    with pytest.raises(CheckpointError, match="three axes and states no mrope_section"):
        pipe.with_drafter(sample.write(tmp_path / "silent", rope_scaling={"type": "mrope"}))
    with pytest.raises(MismatchError, match=r"mrope_section = \[16, 24, 24\], a head has 4 frequencies"):
        pipe.with_drafter(sample.write(tmp_path / "large", rope_scaling={"mrope_section": [16, 24, 24]}))


def test_targets_that_do_not_see_are_asked_for_nothing_more(tmp_path: Path) -> None:
    text = mmspec.load(tiny.llama_model(layers=6).double(), drafter="none", processor=tiny.tokenizer())
    for make in (published.eagle, published.eagle3):
        folder = make(text.target).write(tmp_path / make.__name__, **NEIGHBOURS, **{AS_TOKENS: False})
        drafter = text.with_drafter(folder).drafter
        assert drafter.needs == replace(drafter.needs, embeddings=False, inputs=False)
        assert not {"pictures", "axes"} & set(drafter.net.settings)
