"""Every family with every drafter that needs no training: the output is that of transformers, and of our own AR loop.

The matrix is in the test ids, `family-drafter`. Drafters come from the registry by name, two more stand in for trained
ones with random weights, and `oracle` knows the answer, so that deep and sparse paths of a tree are accepted.
"""

import copy
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import test_commit
import test_drafters
import tiny_families as families
import torch
import toys
from tiny_vision import BLUE, PICTURES, RED, TEXTS, WIDE
from tokenizers.processors import TemplateProcessing
from torch import Tensor
from transformers import (
    Gemma3Config,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    LlavaConfig,
    LlavaNextConfig,
    Mistral3Config,
    MistralConfig,
    PreTrainedModel,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen3VLConfig,
)

import mmspec
from mmspec import registry
from mmspec.causal_lm import CausalLM
from mmspec.contract import Accepted, Draft, Drafter, Drafting, Kind, Needs, State, TrainedDrafter, Verified
from mmspec.drafters.datastore import Datastore
from mmspec.drafters.eagle import Eagle
from mmspec.drafters.independent import Independent
from mmspec.drafters.none import NoDrafter
from mmspec.drafters.retrieval import Retrieval
from mmspec.errors import InputError, UnsupportedError
from mmspec.grouped import NAME as GROUPED
from mmspec.loading import find_family
from mmspec.sampling import Sampler, Sampling
from mmspec.targets import CausalTarget
from mmspec.tree import chain
from mmspec.vlm.llava import Pixtral
from mmspec.vlm.small_vlm import SmallVLM

FAMILIES = list(families.EVERY)
CHOSEN = families.CHOSEN
BUDGET = 14
SAMPLED = {"temperature": 0.9, "seed": 3}


@dataclass
class Oracle(Drafter, Drafting):
    """Knows the answers: a tree whose right path, behind wrong siblings, is another number of levels long each round.

    answers: [B] lists of ids. wrong: added to a right id, modulo the vocabulary, to get a wrong one.
    """

    answers: list[list[int]]
    vocabulary: int
    wrong: int = 7
    kinds = frozenset({"point"})

    def bind(self, target: Any) -> None:
        """Fits every target."""

    def begin(self, state: State, sampler: Sampler, kind: Kind) -> "Oracle":
        return self

    def propose(self, state: State) -> Draft:
        levels = max(0, min(4, state.room))
        rows = []
        for row, answer in enumerate(self.answers):
            start = int(state.emitted[row])
            right, tokens = (start + row) % 5, [state.ids[row][-1]]
            for level in range(levels):
                token = answer[start + level] if level < right and start + level < len(answer) else 40 + level
                tokens += [(token + self.wrong) % self.vocabulary, token]
            rows.append(tokens)
        parents = [-1] + [above for level in range(levels) for above in (2 * level, 2 * level)]
        depth = [0] + [level + 1 for level in range(levels) for _ in range(2)]
        batch = len(rows)
        return Draft(torch.tensor(rows), torch.tensor([parents] * batch), torch.tensor([depth] * batch))

    def observe(self, state: State, draft: Draft, verified: Verified, accepted: Accepted) -> None:
        """Knows it already."""


def language_model(model: PreTrainedModel) -> PreTrainedModel:
    """A random language model with the family's vocabulary."""
    torch.manual_seed(1)
    shape = {"vocab_size": model.config.get_text_config().vocab_size, "max_position_embeddings": 256}
    return LlamaForCausalLM(LlamaConfig(**{**toys.SMALL, **shape})).double().eval()


ARGUMENTS: dict[str, Callable[[str, PreTrainedModel], Any]] = {
    "spd": lambda family, model: Independent(language_model(model), length=3),
    "eagle2": lambda family, model: Eagle(toys.eagle_head(model), depth=3, width=2, top_k=3, total=8),
    "small-vlm": lambda family, model: SmallVLM(toys.perturbed(model, 0.03), length=3),
    "retrieval": lambda family, model: Retrieval(Datastore.build(greedy(family))),
}
"""Drafters that take more than a name. The first two stand in for trained ones."""


def without_training() -> list[str]:
    """The registry's drafters that need no training."""
    names = registry.names("drafters", "vlm")
    kinds = {name: registry.resolve("drafters", name, "vlm") for name in names}
    return [name for name, kind in kinds.items() if kind.advice or not issubclass(kind, TrainedDrafter)]


DRAFTERS = sorted({*without_training(), *ARGUMENTS})
KIN_MEET = ["eagle2", "oracle", "recycling", "small-vlm"]
MATRIX = [
    *((family, drafter) for family in families.MAKERS for drafter in [*DRAFTERS, "oracle"]),
    *((family, drafter) for family in families.KIN for drafter in KIN_MEET),
]


def drafting_with(base: mmspec.Pipeline, drafter: str, family: str) -> mmspec.Pipeline:
    """The family with a drafter that always drafts."""
    made = ARGUMENTS[drafter](family, base.target.model) if drafter in ARGUMENTS else drafter
    return base.with_drafter(made, "own")


@cache
def plain(family: str, attention: str = "sdpa") -> mmspec.Pipeline:
    """The family on our AR loop."""
    model, processor = families.build(family, attention=attention)
    return mmspec.load(model, "none", processor=processor)


def hf(model: PreTrainedModel, inputs: dict[str, Tensor], budget: int = BUDGET) -> list[list[int]]:
    inputs = {name: value.to(model.dtype) if value.is_floating_point() else value for name, value in inputs.items()}
    with torch.no_grad():
        out = model.generate(**inputs, max_new_tokens=budget, do_sample=False)
    return out[:, inputs["input_ids"].shape[1] :].tolist()


@cache
def greedy(family: str, attention: str = "sdpa", budget: int = BUDGET) -> list[list[int]]:
    """What transformers says to each prompt alone."""
    pipe = plain(family, attention)
    prompts = zip(PICTURES, TEXTS, strict=True)
    return [hf(pipe.target.model, pipe.prepare(*prompt), budget)[0] for prompt in prompts]


@cache
def sampled(family: str) -> list[list[int]]:
    """What our AR loop says to each prompt alone, at the seed that its row has in a batch."""
    prompts = enumerate(zip(PICTURES, TEXTS, strict=True))
    return [
        plain(family)(*prompt, max_new_tokens=BUDGET, **{**SAMPLED, "seed": 3 + row}).token_ids
        for row, prompt in prompts
    ]


def in_turns(family: str, drafters: Iterable[Any]) -> Iterator[tuple[Any, dict[str, Any], list[list[int]]]]:
    """Each drafter with options and the answers to them, greedy and sampled in turns; every second family begins with
    the other, so that every drafter is asked in both ways.
    """
    ways: Any = ({}, greedy(family)), (SAMPLED, sampled(family))
    for place, drafter in enumerate(drafters, FAMILIES.index(family)):
        yield drafter, *ways[place % 2]


@pytest.mark.parametrize(("family", "drafter"), MATRIX, ids=[f"{family}-{drafter}" for family, drafter in MATRIX])
def test_output_is_that_of_autoregressive_decoding(family: str, drafter: str) -> None:
    """In a left-padded batch with and without pictures, the oracle also alone, as all are where an image token is
    emitted. Greedy: as transformers. Sampled: as our AR loop."""
    base = plain(family)
    for options, want in ({}, greedy(family)), (SAMPLED, sampled(family)):
        oracle = Oracle(want, base.target.vocab_size)
        pipe = base.with_drafter(oracle) if drafter == "oracle" else drafting_with(base, drafter, family)
        batch = pipe(PICTURES, TEXTS, max_new_tokens=BUDGET, **options)
        assert [answer.token_ids for answer in batch] == want
        if drafter == "oracle":
            oracle.answers = want[:1]
            assert max(n for answer in batch for n in answer.stats.accept_lengths) >= 3
            alone = pipe(PICTURES[0], TEXTS[0], max_new_tokens=BUDGET, **options)
            assert alone.token_ids == want[0]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_left_padded_batch_of_generate_says_the_same(family: str) -> None:
    pipe = plain(family)
    assert hf(pipe.target.model, pipe.prepare(PICTURES, TEXTS)) == greedy(family)


@pytest.mark.parametrize("family", CHOSEN)
def test_eager_attention_says_what_generate_says(family: str) -> None:
    base = plain(family, "eager")
    want = greedy(family, "eager")
    for pipe in (base.with_drafter(Oracle(want, base.target.vocab_size)), drafting_with(base, "eagle2", family)):
        answers = pipe(PICTURES, TEXTS, max_new_tokens=BUDGET)
        assert [answer.token_ids for answer in answers] == want


def texts_of(target: CausalTarget, inputs: dict[str, Tensor], row: list[int]) -> dict[str, Tensor]:
    """The inputs of a prompt alone, with further ids."""
    more = len(row) - inputs["input_ids"].shape[1]
    longer = {
        name: torch.nn.functional.pad(value, (0, more))
        for name, value in inputs.items()
        if name in ("token_type_ids", "mm_token_type_ids")
    }
    kept = {
        name: value.double() if value.is_floating_point() else value
        for name, value in inputs.items()
        if name != "attention_mask"
    }
    return {**kept, **longer, "input_ids": torch.tensor([row])}


@pytest.mark.parametrize(
    ("family", "attention"),
    [*((family, "sdpa") for family in FAMILIES), *((family, how) for family in CHOSEN for how in ("eager", GROUPED))],
)
def test_commit_then_continue_equals_a_fresh_prefill(family: str, attention: str) -> None:
    """Random trees, or chains where a family takes no others, in which every row accepts another random path; nodes
    against the plain model on the whole text."""
    pipe = plain(family, attention)
    target: CausalTarget = pipe.target
    singles = [pipe.prepare(*prompt) for prompt in zip(PICTURES, TEXTS, strict=True)]
    sampler = Sampler(Sampling(), 3, torch.device("cpu"))
    generator = torch.Generator().manual_seed(1)

    def forward(row: int, ids: list[int]) -> Tensor:
        logits: Tensor = target.model(**texts_of(target, singles[row], ids)).logits
        return logits[0]

    fresh = test_commit.Fresh(forward)
    with torch.inference_mode():
        state = target.prefill({**pipe.prepare(PICTURES, TEXTS), "max_new_tokens": 100}, Needs(), sampler)
        for row, first in enumerate(state.pending.tolist()):
            state.ids[row].append(first)
        for _ in range(4):
            draft = test_commit.random_tree(3, 7, generator)
            draft.tokens[:, 0] = state.pending
            close = test_commit.close_of(attention)
            if state.chains:  # and linear attention sums up in float32
                draft, close = chain(draft.tokens), 1e-3
            verified = target.verify(state, draft)
            test_commit.check_nodes(draft, verified, state.ids, fresh, close)
            last = torch.randint(0, 7, (3,), generator=generator)
            accepted = test_commit.path_to(draft, last, torch.randint(30, 90, (3,), generator=generator))
            test_commit.take(state.ids, draft, accepted)
            target.commit(state, draft, accepted)


def test_gemma3_past_several_windows() -> None:
    """60 tokens with windows of 8, alone and in a batch; transformers drops what has left the window, we mask it."""
    base = plain("gemma3")
    want = greedy("gemma3", budget=60)
    known = [drafting_with(base, drafter, "gemma3") for drafter in ("eagle2", "suffix", "small-vlm")]
    for pipe in (base.with_drafter(Oracle(want, base.target.vocab_size)), *known):
        answers = pipe(PICTURES, TEXTS, max_new_tokens=60)
        assert [answer.token_ids for answer in answers] == want


def talkative(family: str) -> mmspec.Pipeline:
    """The family with a head that emits the image token where it would say the third word of an answer."""
    base = plain(family)
    word = base(RED, TEXTS[0], max_new_tokens=3).token_ids[2]
    model = copy.deepcopy(base.target.model)
    with torch.no_grad():
        model.lm_head.weight[base.target.slot] = 1.5 * model.lm_head.weight[word]
    return mmspec.load(model, "none", processor=base.processor)


@pytest.mark.parametrize("family", FAMILIES)
def test_an_emitted_image_token_is_an_ordinary_one_and_no_drafter_proposes_it(family: str) -> None:
    base = talkative(family)
    target = base.target
    want = base(RED, TEXTS[0], max_new_tokens=BUDGET)
    assert want.token_ids == hf(target.model, base.prepare(RED, TEXTS[0]))[0]
    assert target.slot in want.token_ids
    for name in DRAFTERS if family in families.MAKERS else KIN_MEET[:1] + KIN_MEET[2:]:
        drafts: list[Tensor] = []
        drafter: Any = drafting_with(base, name, family).drafter
        watched = test_drafters.Watched(drafter, lambda state, draft, seen=drafts: seen.append(draft.tokens[:, 1:]))
        assert base.with_drafter(watched)(RED, TEXTS[0], max_new_tokens=BUDGET).token_ids == want.token_ids, name
        assert not any(bool(torch.isin(tokens, torch.tensor(target.placeholders)).any()) for tokens in drafts), name


@pytest.mark.parametrize("family", FAMILIES)
def test_the_answer_depends_on_the_pictures_and_their_order(family: str) -> None:
    pipe = plain(family)
    answers = [
        pipe(picture, "why", max_new_tokens=BUDGET).token_ids for picture in (RED, BLUE, [RED, BLUE], [BLUE, RED], None)
    ]
    assert len({tuple(ids) for ids in answers}) == 5


@pytest.mark.parametrize("family", FAMILIES)
def test_several_answers_read_their_pictures_once(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = plain(family)
    asked, encode = [], type(pipe.target).encode
    monkeypatch.setattr(type(pipe.target), "encode", lambda *given: asked.append(given[2]) or encode(*given))
    once = pipe.prepare([RED, BLUE], "why", n=3)
    thrice = pipe.prepare([[RED, BLUE]] * 3, ["why"] * 3)
    assert asked == [["why"], ["why"] * 3]
    assert once.keys() == thrice.keys()
    assert all(torch.equal(once[name], thrice[name]) for name in once)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_folder_is_loaded_with_its_own_classes(family: str, tmp_path: Path) -> None:
    base = plain(family)
    base.target.model.save_pretrained(tmp_path)
    base.processor.save_pretrained(tmp_path)
    pipe = mmspec.load(tmp_path, "prompt-lookup", dtype="float64")
    assert type(pipe.target) is type(base.target)
    assert type(pipe.processor) is type(base.processor)
    assert pipe.target.placeholders == base.target.placeholders
    answers = pipe(PICTURES, TEXTS, max_new_tokens=BUDGET)
    assert [answer.token_ids for answer in answers] == greedy(family)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_serves_its_own_configuration_alone(family: str) -> None:
    config = families.build(family)[0].config
    serving = [
        name
        for name in registry.names("targets", "vlm")
        if registry.resolve("targets", name, "vlm").serves(config)  # type: ignore[attr-defined]
    ]
    assert serving == [family]


def test_configurations_are_told_apart() -> None:
    assert find_family(Gemma3TextConfig()) is CausalLM
    assert find_family(MistralConfig()) is CausalLM
    found = [
        find_family(config).__name__
        for config in (
            LlavaConfig(),
            LlavaConfig(vision_config={"model_type": "pixtral"}),
            LlavaNextConfig(),
            Gemma3Config(),
            Qwen2_5_VLConfig(),
            Qwen3VLConfig(),
        )
    ]
    assert found == ["Llava", "Pixtral", "LlavaNext", "Gemma3", "Qwen25VL", "Qwen3VL"]


class Own(Qwen2_5_VLForConditionalGeneration):
    """A caller's class that derives from a stock one."""


def test_a_class_that_derives_from_a_stock_one_is_served_also_when_it_was_saved(tmp_path: Path) -> None:
    base = plain("qwen2.5-vl")
    own = Own(copy.deepcopy(base.target.model.config)).double().eval()
    own.load_state_dict(base.target.model.state_dict())
    own.save_pretrained(tmp_path)
    back = Own.from_pretrained(tmp_path, dtype=torch.float64)
    assert back.config.architectures == ["Own"]
    pipe = mmspec.load(back, "none", processor=base.processor)
    assert pipe(RED, "why", max_new_tokens=4).token_ids == base(RED, "why", max_new_tokens=4).token_ids
    assert back.config.architectures == ["Own"]


def test_lighton_ocr_is_known_as_it_is_published() -> None:
    """With the type of Mistral 3, whose checkpoints it does not take, and another spelling of its class."""
    published = Mistral3Config(architectures=["LightOnOCRForConditionalGeneration"])
    assert find_family(published).__name__ == "LightOnOcr"
    assert find_family(Mistral3Config()).__name__ == "Mistral3"
    assert find_family(Mistral3Config(architectures=["Mistral3ForConditionalGeneration"])).__name__ == "Mistral3"


def test_a_published_lighton_ocr_folder_is_loaded(tmp_path: Path) -> None:
    base = plain("lighton-ocr")
    base.target.model.save_pretrained(tmp_path)
    base.processor.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    told = {"model_type": "mistral3", "architectures": ["LightOnOCRForConditionalGeneration"]}
    (tmp_path / "config.json").write_text(json.dumps({**config, **told}))
    pipe = mmspec.load(tmp_path, "recycling", dtype="float64")
    assert pipe.target.budget == 4096
    assert pipe(PICTURES[0], TEXTS[0], max_new_tokens=BUDGET).token_ids == greedy("lighton-ocr")[0]


def test_a_checkpoint_in_the_format_of_its_authors_is_refused_by_its_configuration(tmp_path: Path) -> None:
    """Those of LLaVA say nothing of a vision tower that transformers reads."""
    told = {"model_type": "llava", "architectures": ["LlavaLlamaForCausalLM"], "mm_vision_tower": "openai/clip"}
    (tmp_path / "config.json").write_text(json.dumps(told))
    with pytest.raises(UnsupportedError, match="is of LlavaLlamaForCausalLM, not of transformers: look for a copy"):
        mmspec.load(tmp_path)
    for config in (LlavaConfig(vision_config={"model_type": "pixtral"}), LlavaNextConfig()):
        config.architectures = ["LlavaLlamaForCausalLM"]
        with pytest.raises(UnsupportedError, match="often called ...-hf"):
            find_family(config)
    assert find_family(LlamaConfig(architectures=["LLaMAForCausalLM"])) is CausalLM  # read by its kind alone


@pytest.mark.parametrize("family", FAMILIES)
def test_pictures_that_do_not_fit_the_slots(family: str) -> None:
    pipe = plain(family)
    one, three = pipe.prepare([RED], "why"), pipe.prepare([RED, BLUE, WIDE], "why")
    along = {name: one[name] for name in one if one[name].shape == one["input_ids"].shape}
    with pytest.raises(InputError, match="do not fit the prompt's image slots"):
        pipe.generate(**{**three, **along})


@pytest.mark.parametrize("family", FAMILIES)
def test_slots_without_pictures_are_refused(family: str) -> None:
    """The model would read the embedding of the slot token, and say something."""
    pipe = plain(family)
    inputs = pipe.prepare(RED, "why")
    for name in pipe.target.extra_inputs:
        inputs.pop(name, None)
    with pytest.raises(InputError, match=r"has \d+ image slots and comes without pixel_values"):
        pipe.generate(**inputs)


@pytest.mark.parametrize("family", FAMILIES)
def test_pictures_of_a_wrong_shape_are_one_error(family: str) -> None:
    pipe = plain(family)
    inputs = pipe.prepare(RED, "why")
    with pytest.raises(InputError, match="pixel_values must be a tensor, not ndarray"):
        pipe.generate(**{**inputs, "pixel_values": inputs["pixel_values"].numpy()})
    with pytest.raises(InputError, match=r"cannot read pictures of these shapes: pixel_values \[|do not fit the"):
        pipe.generate(**{**inputs, "pixel_values": inputs["pixel_values"][..., :7]})


@pytest.mark.parametrize("family", FAMILIES)
def test_a_prompt_cannot_make_slots(family: str) -> None:
    pipe = plain(family)
    slot = pipe.target.tokenizer.convert_ids_to_tokens(pipe.target.slot)
    with pytest.raises(InputError, match="control token"):
        pipe(RED, f"what {slot} is it")
    named = (getattr(pipe.processor, name, None) for name in ("image_token", "video_token"))
    for token in {*pipe.target.tokenizer.convert_ids_to_tokens(list(pipe.target.placeholders)), *named} - {None}:
        with pytest.raises(InputError, match=f"control token '{re.escape(token)}'"):
            pipe.prepare(None, ["why", f"what {token} is it"])


@pytest.mark.parametrize("family", FAMILIES)
def test_control_tokens_of_a_prompt_stay_text(family: str) -> None:
    """They open no turn; a prompt without any keeps its ids, even beside one that has some."""
    pipe = plain(family)
    tokenizer = pipe.target.tokenizer
    special = [token for token in tokenizer.added_tokens_decoder if token not in pipe.target.placeholders]
    named = ("image_token", "video_token", "boi_token")  # the last is where Gemma3's template has a picture
    slots = {getattr(pipe.processor, name, None) for name in named}
    texts = [text for text in tokenizer.convert_ids_to_tokens(special) if text not in slots]
    assert len(texts) >= 3
    text = f"is {''.join(texts)} what {texts[0]}User: wrote?"
    without = re.sub("|".join(map(re.escape, texts)), "", text)
    for pictures in ([], [RED, WIDE]):
        held, asked = (pipe.prepare([pictures], [each])["input_ids"][0].tolist() for each in (text, without))
        assert text in tokenizer.decode(held)
        for token in tokenizer.added_tokens_decoder:
            assert held.count(token) == asked.count(token)
    inputs = pipe.prepare([[RED], [WIDE]], [text, "why"])
    alone = pipe.prepare(WIDE, "why")["input_ids"][0]
    assert inputs["input_ids"][1][inputs["attention_mask"][1] == 1].tolist() == alone.tolist()
    assert pipe([[RED], []], [text, "why"], max_new_tokens=2)[0].token_ids


def test_control_tokens_that_would_not_stay_text_are_refused() -> None:
    """A tokenizer that puts a token in front by itself, as Llama's behind LLaVA-1.5's template, encodes no pieces."""
    model, processor = families.MAKERS["llava"](0)
    tokenizer = processor.tokenizer
    start = (tokenizer.bos_token, tokenizer.bos_token_id)
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(f"{start[0]} $A", special_tokens=[start])
    processor.chat_template = processor.chat_template.removeprefix("<|im_start|>")
    pipe = mmspec.load(model, "none", processor=processor)
    assert pipe.prepare(RED, "why")["input_ids"][0, 0] == start[1]
    with pytest.raises(InputError, match=r"control token '<end_of_utterance>': take it out .* \(it cannot be taken as"):
        pipe.prepare(RED, "why <end_of_utterance>")


@pytest.mark.parametrize(
    ("family", "missing"),
    [("llava-next", "image_sizes"), ("pixtral", "image_sizes")]
    + [(family, name) for family in ("qwen2.5-vl", "qwen3-vl") for name in ("image_grid_thw", "mm_token_type_ids")],
)
def test_what_goes_with_the_pictures_must_be_there(family: str, missing: str) -> None:
    pipe = plain(family)
    inputs = pipe.prepare(RED, "why")
    del inputs[missing]
    with pytest.raises(InputError, match=f"without {missing}: pass on all that the processor returns"):
        pipe.generate(**inputs)


def test_drafters_know_what_stands_for_pictures() -> None:
    """Pixtral's break and end tokens are embedded like text, yet belong to the picture; Qwen has slots for videos."""
    stands = {"pixtral": ["[IMG]", "[IMG_BREAK]", "[IMG_END]"], "qwen3-vl": ["<|image_pad|>", "<|video_pad|>"]}
    for family, tokens in stands.items():
        target = plain(family).target
        assert target.tokenizer.convert_ids_to_tokens(list(target.placeholders)) == tokens
    assert Pixtral(plain("pixtral").target.model).placeholders == (plain("pixtral").target.slot,)


def test_videos_are_refused() -> None:
    pipe = plain("qwen2.5-vl")
    with pytest.raises(InputError, match="is served without pixel_values_videos"):
        pipe.generate(**pipe.prepare(RED, "why"), pixel_values_videos=torch.zeros(4, 96))


def test_a_batch_needs_no_token_of_its_own_for_padding() -> None:
    """Pixtral's tokenizer names none."""
    model, processor = families.MAKERS["pixtral"](0)
    pipe = mmspec.load(model, "none", processor=processor)
    asked = [(RED, "why"), (None, TEXTS[0])]
    alone = [pipe(image, text, max_new_tokens=4).token_ids for image, text in asked]
    processor.tokenizer.pad_token = None
    images, texts = zip(*asked, strict=True)
    assert [answer.token_ids for answer in pipe(images, texts, max_new_tokens=4)] == alone
    assert processor.tokenizer.pad_token is None  # it is the caller's


def test_a_processor_that_cannot_write_the_prompt_is_refused() -> None:
    model, processor = families.MAKERS["llava"](0)
    processor.tokenizer.pad_token = processor.tokenizer.eos_token = None
    pipe = mmspec.load(model, "none", processor=processor)
    assert pipe(RED, "why", max_new_tokens=2).token_ids
    with pytest.raises(InputError, match="the tokenizer has neither pad_token nor eos_token"):
        pipe([RED, None], ["why", "what"], max_new_tokens=2)
    processor.chat_template = None
    with pytest.raises(InputError, match="LlavaProcessor has no chat template"):
        pipe(RED, "why", max_new_tokens=2)


@pytest.mark.parametrize("family", ["qwen2.5-vl", "qwen3-vl"])
def test_positions_do_not_depend_on_the_last_request(family: str) -> None:
    """The model remembers how far pictures shifted positions; a text that is read in pieces must not be shifted."""
    pipe = plain(family)
    want = pipe(None, TEXTS[2], max_new_tokens=BUDGET).token_ids
    hf(pipe.target.model, pipe.prepare(PICTURES[0], "why"), 2)
    assert pipe.target.model.model.rope_deltas.item() != 0
    pieces = copy.copy(pipe.target)
    pieces.piece_size = 7
    again = mmspec.Pipeline(pieces, pipe.processor, NoDrafter(), pipe.rule)(None, TEXTS[2], max_new_tokens=BUDGET)
    assert again.token_ids == want


@pytest.mark.parametrize("pieces", [4096, 7])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_tap_of_the_prompt_is_what_enters_its_layer(family: str, pieces: int) -> None:
    """Also where the model adds features of the pictures between two layers."""
    pipe = plain(family)
    target = copy.copy(pipe.target)
    target.piece_size = pieces
    layers = target.decoder.language().layers
    entered: dict[int, list[Tensor]] = {tap: [] for tap in range(len(layers))}

    def note(tap: int) -> Callable[..., None]:
        return lambda layer, given, named: entered[tap].append((given or (named["hidden_states"],))[0])

    hooks = [layer.register_forward_pre_hook(note(tap), with_kwargs=True) for tap, layer in enumerate(layers)]
    try:
        inputs = pipe.prepare(PICTURES[0], "why")
        with torch.inference_mode():
            taps = target.read(inputs, inputs["input_ids"].tolist(), tuple(entered))[1].taps
    finally:
        for hook in hooks:
            hook.remove()
    assert len(layers) > 1
    for tap, states in entered.items():
        first = [one[0] if one.ndim == 4 else one for one in states]  # of streams side by side
        assert torch.equal(taps[tap], torch.cat(first, 1)), tap
