"""Static caches in every family that has them, four rows at once; and tests of the dynamic path that pass with them.

`pytest --engine static` runs all others so (`fixed.py`). Here is the part of it that every run of the tests holds: a
tree and a chain per family, none, some and all of it accepted, and a test per kind of promise.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import test_commit
import test_equality
import test_image_chameleon
import test_image_emu3
import test_image_llamagen
import test_trained_drafters
import tiny_families
import tiny_images
import tiny_speech
import tiny_vision
import torch
import toys
from fixed import static_caches
from test_families import Oracle
from test_speech_llasa import LlasaProcessor
from test_speech_llasa import codec as llasa_codec
from test_speech_llasa import model as llasa_model
from test_speech_llasa import tokenizer as llasa_tokenizer
from torch._dynamo.utils import counters

import mmspec
from mmspec.contract import Draft, Needs, State
from mmspec.drafters.none import NoDrafter
from mmspec.engine.cache import StaticRows
from mmspec.engine.engine import Engine
from mmspec.image_ar.chameleon import Chameleon, Lumina
from mmspec.image_ar.emu3 import Emu3
from mmspec.image_ar.janus import Janus
from mmspec.image_ar.llamagen import LlamaGenTarget
from mmspec.sampling import Sampler, Sampling
from mmspec.tree import chain

PICTURES = (*tiny_vision.PICTURES, [tiny_vision.BLUE])
TEXTS = (*tiny_vision.TEXTS, "what is blue?")
BUDGET = 12


class Branches(Oracle):
    """The oracle, for vocabularies of any size."""

    def propose(self, state: State) -> Draft:
        tree = super().propose(state)
        tree.tokens %= self.vocabulary
        return tree


class Line(Branches):
    """The same without siblings: a chain that is right for another number of tokens each round."""

    def propose(self, state: State) -> Draft:
        tree = super().propose(state)
        right = [level for level in range(1, tree.size) if level % 2 == 0]
        return chain(tree.tokens[:, [0, *right]], "point")


@dataclass
class Case:
    """make: the target on a model that is made once. inputs, others: of four rows each. budget: most tokens emitted."""

    make: Callable[[], Any]
    inputs: dict[str, Any]
    others: dict[str, Any]
    budget: int = BUDGET


def seeing(name: str) -> Case:
    model, processor = tiny_families.build(name)
    load = partial(mmspec.load, model, "none", processor=processor)
    longer = [text + " " + text for text in reversed(TEXTS)]
    inputs = load().prepare(PICTURES, TEXTS), load().prepare(PICTURES[::-1], longer)
    return Case(lambda: load().target, *inputs, budget=60 if name == "gemma3" else BUDGET)


def speaking(model: Any, processor: Any) -> Case:
    load = partial(mmspec.load, model.double(), "none", processor=processor)
    longer = [text + " " + text for text in TEXTS]
    return Case(lambda: load().target, load().prepare(None, list(TEXTS)), load().prepare(None, longer))


def writing(name: str) -> Case:
    model, target = test_equality.make(name)
    inputs = (test_equality.inputs_for(target, *lengths) for lengths in ((17, 9, 14, 11), (3, 23, 8, 12)))
    return Case(lambda: type(target)(model), *inputs)


def emu3() -> Case:
    model, two = tiny_images.emu3_model(), test_image_emu3.request(2)
    four, others = (doubled(two, order) for order in ([0, 1, 1, 0], [1, 1, 0, 0]))
    return Case(lambda: Emu3(model), four, others, test_image_emu3.LENGTH)


def chameleon(lumina: bool) -> Case:
    model, two = test_image_chameleon.chameleon(lumina=lumina), test_image_chameleon.request(lumina)
    four, others = (doubled({**two, "guidance": 3.0}, order) for order in ([0, 1, 1, 0], [1, 1, 0, 0]))
    kind: Any = Lumina if lumina else Chameleon
    return Case(lambda: kind(model, tiny_images.tokenizer()), four, others)


def doubled(inputs: dict[str, Any], order: list[int]) -> dict[str, Any]:
    """Rows of a batch in another order, some of them twice."""
    return {name: value[order] if isinstance(value, torch.Tensor) else value for name, value in inputs.items()}


def janus() -> Case:
    model = tiny_images.janus_model()
    inputs = ({**tiny_images.prompts(*lengths), "guidance": 3.0} for lengths in ((3, 6, 1, 4), (7, 2, 5, 9)))
    return Case(lambda: Janus(model, tiny_images.tokenizer()), *inputs)


def llamagen() -> Case:
    model = test_image_llamagen.model()
    inputs = ({"input_ids": torch.tensor(labels)[:, None], "guidance": 2.0} for labels in ([3, 7, 1, 2], [5, 5, 0, 6]))
    return Case(lambda: LlamaGenTarget(model), *inputs)


CASES: dict[str, Callable[[], Case]] = {
    **{name: partial(writing, name) for name in ("llama", "mistral", "qwen2")},
    **{name: partial(seeing, name) for name in tiny_families.CHOSEN},
    "janus": janus,
    "emu3": emu3,
    "chameleon": partial(chameleon, False),
    "lumina": partial(chameleon, True),
    "llamagen": llamagen,
    "valle": lambda: speaking(tiny_speech.valle(), tiny_speech.processor()),
    "llasa": lambda: speaking(llasa_model(), LlasaProcessor(llasa_tokenizer(), llasa_codec())),
}


@pytest.mark.dynamic("compares both paths")
@pytest.mark.parametrize("name", CASES)
def test_four_rows_say_what_they_say_on_dynamic_caches(name: str) -> None:
    """Greedy by a tree and sampled by a chain; rows accept different lengths, none and all of a draft among them."""
    case = CASES[name]()
    plain = case.make()
    with static_caches():
        target = case.make()
    for sampling, kind in (Sampling(), Branches), (Sampling(temperature=0.9, seed=3), Line):
        want = toys.answer(plain, NoDrafter(), case.inputs, case.budget, sampling).rows
        got = toys.answer(target, kind(want, target.vocab_size), case.inputs, case.budget, sampling)
        assert got.rows == want
        assert {0, 1, 4} <= set(got.accepted)
        assert any(len(set(r.drafted)) > 1 for r in got.rounds)


@pytest.mark.dynamic("compares both paths")
@pytest.mark.parametrize("name", CASES)
def test_the_switch_reaches_targets_of_every_family_and_lets_go_of_them(name: str) -> None:
    case = CASES[name]()
    with static_caches():
        target = case.make()
    assert case.make().decoder.engine is None
    with torch.inference_mode():
        sampler = Sampler(Sampling(), 4, torch.device("cpu"))
        state = target.prefill({**case.inputs, "max_new_tokens": case.budget}, Needs(), sampler)
    assert isinstance(state.cache, StaticRows)


QUICK = ("gemma3", "qwen2.5-vl", "janus", "llasa")
ALIKE = ("llama", "mistral", "smolvlm", "llava", "gemma3n", "lumina")
"""Whose graph another one holds, or that `test_engine.py` compiles."""
COMPILED = [
    name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in CASES if name not in ALIKE
]


@pytest.mark.dynamic("compares both paths")
@pytest.mark.parametrize("name", COMPILED)
def test_nothing_is_compiled_after_the_prompt(name: str) -> None:
    """Counted: other prompts, rows that end early, two requests at once, several windows of Gemma3; and never a graph
    that breaks."""
    case = CASES[name]()
    plain, target = case.make(), case.make()
    target.decoder.engine = Engine(target.decoder, "eager", (16,))
    want = toys.answer(plain, NoDrafter(), case.inputs, case.budget).rows
    ends = [want[0][3], want[2][7]]
    short = toys.answer(plain, NoDrafter(), case.inputs, case.budget, eos=ends)
    assert len(set(map(len, short.rows))) > 1
    other = toys.answer(plain, NoDrafter(), case.others, case.budget).rows
    counters.clear()
    with torch.inference_mode():
        sampler = Sampler(Sampling(), 4, torch.device("cpu"))
        held = target.prefill({**case.inputs, "max_new_tokens": case.budget}, Needs(), sampler)
    assert counters["stats"]["unique_graphs"] == 1
    knowing = Branches(want, target.vocab_size)
    assert toys.answer(target, knowing, case.inputs, case.budget).rows == want
    del held
    assert toys.answer(target, Branches(other, target.vocab_size), case.others, case.budget).rows == other
    assert toys.answer(target, knowing, case.inputs, case.budget, eos=ends).rows == short.rows
    assert counters["stats"]["unique_graphs"] == 1
    assert not counters["graph_break"]


OTHERS: dict[str, Callable[[], None]] = {
    "commit": lambda: test_commit.test_commit_then_continue_equals_a_fresh_prefill("qwen2", "sdpa"),
    "ends": test_equality.test_rows_of_a_batch_accept_different_lengths_and_end_at_different_rounds,
    "context": lambda: test_equality.test_the_answer_ends_where_the_context_does("eagle-copying"),
    **{
        method: partial(test_trained_drafters.test_drafting_with_a_cache_equals_a_full_forward, method, "qwen2")
        for method in ("eagle", "kangaroo")
    },
}


@pytest.mark.dynamic("runs them already")
@pytest.mark.parametrize("name", OTHERS)
def test_what_holds_for_dynamic_caches_holds_for_static_ones(name: str) -> None:
    with static_caches():
        OTHERS[name]()
