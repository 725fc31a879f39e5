"""Emu3 draws: line ends inside windows, negative prompts of another length, sizes that a request chooses."""

from typing import Any

import pytest
import tiny_images
import torch
import toys
from test_image_janus import Replay
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import Emu3ImageProcessor, Emu3Processor, PreTrainedTokenizerFast

import mmspec
from mmspec.acceptance.ratio import Ratio
from mmspec.drafters.none import NoDrafter
from mmspec.errors import InputError, UnsupportedError
from mmspec.image_ar.emu3 import Emu3
from mmspec.image_ar.jacobi import SJD, GumbelSharing, Jacobi, MaximalCoupling
from mmspec.image_ar.pac import Proactive
from mmspec.sampling import Sampling

ROWS, COLUMNS = 3, 4
LENGTH = ROWS * (COLUMNS + 1) + 3
SCALE = 2.5


def request(batch: int = 2) -> dict[str, Any]:
    """Prompts of 6 words, and negative ones of 4."""
    ids = torch.randint(10, 90, (2, 6), generator=torch.Generator().manual_seed(2))[:batch]
    negative = torch.randint(10, 90, (1, 4), generator=torch.Generator().manual_seed(3)).repeat(batch, 1)
    return {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "image_sizes": torch.tensor([[ROWS, COLUMNS]] * batch),
        "negative_prompt_ids": negative,
        "negative_prompt_attention_mask": torch.ones_like(negative),
        "guidance": SCALE,
    }


def allowed(model: Any, start: int) -> Any:
    """What transformers may emit at each place, as its documentation constrains Emu3."""
    ends = [tiny_images.EMU3_ENDS[name] for name in ("<|extra_201|>", "<|image end|>")] + [2]

    def choose(row: int, ids: torch.Tensor) -> list[int]:
        place = len(ids) - start
        if place >= ROWS * (COLUMNS + 1):
            return [ends[min(place - ROWS * (COLUMNS + 1), 2)]]
        line_end = place % (COLUMNS + 1) == COLUMNS
        return [tiny_images.EMU3_ENDS["<|extra_200|>"]] if line_end else model.model.vocabulary_mapping.image_tokens

    return choose


def stock(model: Any, inputs: dict[str, Any]) -> list[list[int]]:
    """The ids of the language model that transformers emits, greedily, with guidance."""
    rest = {name: value for name, value in inputs.items() if name not in ("image_sizes", "guidance")}
    width = inputs["input_ids"].shape[1]
    out = model.generate(
        **rest,
        do_sample=False,
        guidance_scale=SCALE,
        max_new_tokens=LENGTH,
        prefix_allowed_tokens_fn=allowed(model, width),
    )
    return out[:, width:].tolist()


@pytest.fixture(scope="module")
def target() -> Emu3:
    return Emu3(tiny_images.emu3_model())


@pytest.fixture(scope="module")
def greedy(target: Emu3) -> list[list[int]]:
    return draw(target, NoDrafter()).rows


def draw(target: Emu3, drafter: Any, sampling: Any = None, rule: Any = None, batch: int = 2) -> toys.Answer:
    return toys.answer(target, drafter, request(batch), LENGTH, sampling, rule)


@pytest.mark.parametrize("scattered", [False, True])
def test_greedy_pictures_equal_those_of_transformers(scattered: bool) -> None:
    target = Emu3(tiny_images.emu3_model(scattered=scattered))
    words = target.embed.words.tolist()
    got = [[words[token] for token in row] for row in draw(target, NoDrafter()).rows]
    assert got == stock(target.model, request())


def test_a_drafter_learns_through_the_head_of_a_target_that_has_drawn(target: Emu3, greedy: list[list[int]]) -> None:
    """Drawing is done in inference mode; what the head keeps of it must not be of that mode."""
    states = torch.randn(2, target.hidden_size, dtype=torch.float64, requires_grad=True)
    target.head(states).sum().backward()
    rows = target.model.lm_head.weight[target.embed.words]
    assert torch.allclose(states.grad, rows.sum(0).expand(2, -1))


@pytest.mark.parametrize("window", [3, 7, 20])
def test_windows_that_cross_line_ends_draw_the_same(target: Emu3, greedy: list[list[int]], window: int) -> None:
    for drafter in (Jacobi(window, "repeat-left"), SJD(window, "repeat-above"), GumbelSharing(window, "sample-left")):
        got = draw(target, drafter)
        assert got.rows == greedy
        assert sum(got.accepted) >= 4  # what is forced is never guessed
    for wrong, most in ((0, 5), (1, 0)):
        assert max(draw(target, Replay(greedy, wrong)).accepted) == most


def test_the_layout_holds_and_seeds_decide_whatever_drafts(target: Emu3) -> None:
    sampled = Sampling(temperature=1.0, seed=5)
    want = draw(target, NoDrafter(), sampled).rows
    for drafter in (GumbelSharing(6), MaximalCoupling(9, "sample-above"), Proactive(8)):
        assert draw(target, drafter, sampled).rows == want
        rows = [*draw(target, drafter, sampled, Ratio()).rows, *want]
        for row in rows:
            assert row[COLUMNS :: COLUMNS + 1][:ROWS] == [32] * ROWS
            assert row[-3:] == [33, 34, 35]
            assert sum(token < 32 for token in row) == ROWS * COLUMNS


def test_sizes_and_pictures(target: Emu3, greedy: list[list[int]]) -> None:
    pipe = mmspec.load(target.model, drafter="scd-gs")
    out = pipe.generate(**{**request(1), "image_sizes": [[2, 5]]}, temperature=0)
    assert len(out.token_ids) == 2 * 6 + 3
    assert out.image.size == (10, 4)
    whole = pipe.generate(**request(1), temperature=0)
    assert whole.token_ids == greedy[0]
    codes = torch.tensor([[token for token in whole.token_ids if token < 32]]).view(1, ROWS, COLUMNS)
    with torch.no_grad():
        pixels = target.model.model.vqmodel.decode(codes)[0]
    want = ((pixels.float() * 0.5 + 0.5) * 255).clamp(0, 255).to(torch.uint8).permute(1, 2, 0)
    assert whole.image.tobytes() == want.numpy().tobytes()


def test_a_prompt_asks_for_its_size(target: Emu3) -> None:
    """By the text of the stock processor, which counts in codes."""
    names = [
        "<pad>",
        "<s>",
        "</s>",
        "<unk>",
        "<image>",
        "<boi>",
        "<eoi>",
        "<image_wrapper>",
        "<eof>",
        "a",
        "red",
        "circle",
    ]
    inner = Tokenizer(models.WordLevel({name: place for place, name in enumerate([*names, "2*5", "*"])}, "<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    inner.add_special_tokens(names[:9])
    extra = {f"{name}_token": f"<{name}>" for name in ("image", "boi", "eoi", "image_wrapper", "eof")}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<pad>", bos_token="<s>", unk_token="<unk>", extra_special_tokens=extra
    )
    pipe = mmspec.load(target.model, drafter="scd-gs", processor=Emu3Processor(Emu3ImageProcessor(), tokenizer))
    asked = pipe.prepare(None, ["a red circle", "a circle"], size=(10, 4))
    assert asked["image_sizes"] == [[2, 5]] * 2
    told = tokenizer.convert_tokens_to_ids(["<boi>", "2*5", "<image_wrapper>"])
    for name in ("input_ids", "negative_prompt_ids"):
        assert all(row[-3:] == told for row in asked[name].tolist())
    assert pipe(prompt="a red circle", size="10x4", seed=1).image.size == (10, 4)
    with pytest.raises(InputError, match="the model's context is 96"):
        pipe(prompt="a red circle")  # the usual size


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"image_sizes": [[3, 4], [2, 5]]}, "the same for every picture"),
        ({"image_sizes": [[0, 4]] * 2}, "is not valid: rows and columns"),
        ({"image_sizes": [[4.0, 4.0]] * 2}, "is not valid: rows and columns"),
        ({"image_sizes": torch.zeros(0, 2, dtype=torch.long)}, "is not valid: rows and columns"),
        ({"image_sizes": "tall"}, "is not valid: rows and columns"),
        ({"image_sizes": [[3, 4], [3]]}, "is not valid: rows and columns"),
        ({"image_sizes": [[9, 9]] * 2}, "the picture 93, the model's context is 96"),
        ({"image_sizes": [[9, 40]] * 2}, "a picture of 9 x 40 codes is not possible: the model's context is 96"),
        ({"image_sizes": None}, "the picture 8193"),
        ({"negative_prompt_ids": None}, "guidance needs negative_prompt_ids for 2 prompts"),
        ({"negative_prompt_ids": [[1], [1]]}, "guidance needs negative_prompt_ids for 2 prompts: pass a tensor"),
    ],
)
def test_bad_requests_are_named(target: Emu3, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(mmspec.Error, match=message):
        mmspec.load(target.model).generate(**{**request(), **changes})


def test_a_size_beyond_the_context_is_refused_before_its_layout_is_made(
    target: Emu3, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Emu3, "_layout", None)  # a list of so many places would fill the memory
    with pytest.raises(InputError, match="a picture of 90000 x 90000 codes is not possible"):
        target.layout_of({"image_sizes": torch.tensor([[90_000, 90_000]])})


def test_without_guidance_no_negative_prompt_is_needed(target: Emu3) -> None:
    plain = {**request(), "guidance": 1, "negative_prompt_ids": None, "negative_prompt_attention_mask": None}
    assert all(len(out.token_ids) == LENGTH for out in mmspec.load(target.model).generate(**plain))


@pytest.mark.parametrize(
    ("asked", "config", "drawn"), [({}, None, 2048), ({}, 7, 7), ({"top_k": 5}, 7, 5), ({"top_k": 0}, None, 0)]
)
def test_codes_are_drawn_of_the_likeliest_2048_where_nobody_says_how_many(
    asked: dict[str, Any], config: int | None, drawn: int
) -> None:
    made = Emu3(tiny_images.emu3_model())
    assert made.model.generation_config.top_k is None
    made.model.generation_config.top_k = config
    assert made.sampling(asked) == Sampling(temperature=1.0, top_k=drawn)


def test_a_vocabulary_map_with_a_hole_is_refused() -> None:
    model = tiny_images.emu3_model()
    known = model.model.vocabulary_mapping.img2bpe
    del known[3]
    with pytest.raises(UnsupportedError, match="names 31 visual tokens, its codebook has 32 codes"):
        Emu3(model)
