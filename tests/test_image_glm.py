"""GLM-Image draws codes: a preview, then the picture, as the library's own `generate` does, whatever drafts."""

from typing import Any

import pytest
import torch
import toys
from test_image_janus import Replay
from transformers import GlmImageConfig, GlmImageForConditionalGeneration

import mmspec
from mmspec.acceptance.ratio import Ratio
from mmspec.drafters.none import NoDrafter
from mmspec.drafters.suffix import Suffix
from mmspec.errors import InputError
from mmspec.image_ar.glm_image import GlmImage, TwoGrids
from mmspec.image_ar.jacobi import SJD, GumbelSharing, Jacobi, MaximalCoupling
from mmspec.image_ar.pac import Proactive
from mmspec.sampling import Sampling

CODES, START, END = 32, 32, 33
SMALL, LARGE = (2, 3), (3, 4)
LENGTH = 6 + 12 + 1


def glm_model() -> GlmImageForConditionalGeneration:
    """Random weights, float64, 32 codes among 40 ids that it may emit."""
    text = {
        "vocab_size": 60,
        "vision_vocab_size": 40,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 96,
        "initializer_range": 0.3,
        "pad_token_id": 40,
        "eos_token_id": END,
        "rope_parameters": {"rope_type": "default", "rope_theta": 100.0, "mrope_section": [1, 2, 1]},
    }
    vision = {
        "depth": 1,
        "hidden_size": 16,
        "num_heads": 2,
        "intermediate_size": 16,
        "image_size": 32,
        "patch_size": 16,
    }
    codes = {"num_embeddings": CODES, "embed_dim": 8, "latent_channels": 16}
    config = GlmImageConfig(
        text_config=text,
        vision_config=vision,
        vq_config=codes,
        image_token_id=41,
        image_start_token_id=START,
        image_end_token_id=END,
    )
    torch.manual_seed(0)
    model = GlmImageForConditionalGeneration(config).double().eval()
    with torch.no_grad():
        model.lm_head.weight.normal_(0, 0.3)
    model.generation_config.eos_token_id, model.generation_config.pad_token_id = END, 40
    return model


def request(*lengths: int) -> dict[str, Any]:
    """Left-padded prompts of these many words, with the start of an image behind them, and the sizes."""
    width = max(lengths) + 1
    generator = torch.Generator().manual_seed(2)
    ids, mask = torch.full((len(lengths), width), 40), torch.zeros(len(lengths), width, dtype=torch.long)
    for row, length in enumerate(lengths):
        ids[row, width - length - 1 : -1] = torch.randint(42, 60, (length,), generator=generator)
        ids[row, -1] = START
        mask[row, width - length - 1 :] = 1
    return {
        "input_ids": ids,
        "attention_mask": mask,
        "image_grid_thw": torch.tensor([[1, *LARGE], [1, *SMALL]] * len(lengths)),
        "images_per_sample": torch.tensor([2] * len(lengths)),
    }


def stock(model: Any, inputs: dict[str, Any]) -> list[list[int]]:
    """What transformers draws greedily, when it may take codes alone until both grids are full."""
    width = inputs["input_ids"].shape[1]

    def allowed(row: int, ids: torch.Tensor) -> list[int]:
        return [END] if len(ids) - width == LENGTH - 1 else list(range(CODES))

    out = model.generate(**inputs, do_sample=False, max_new_tokens=LENGTH, prefix_allowed_tokens_fn=allowed)
    return out[:, width:].tolist()


@pytest.fixture(scope="module")
def target() -> GlmImage:
    return GlmImage(glm_model())


@pytest.fixture(scope="module")
def greedy(target: GlmImage) -> list[list[int]]:
    return stock(target.model, request(5, 3))


def draw(target: GlmImage, drafter: Any, sampling: Any = None, rule: Any = None, lengths: Any = (5, 3)) -> toys.Answer:
    return toys.answer(target, drafter, request(*lengths), LENGTH, sampling, rule)


def test_greedy_codes_equal_those_of_transformers(target: GlmImage, greedy: list[list[int]]) -> None:
    assert len({tuple(row) for row in greedy}) == 2
    for drafter in (
        NoDrafter(),
        Jacobi(4),
        SJD(7, "repeat-above"),
        MaximalCoupling(5, "sample-above"),
        GumbelSharing(20, "sample-left"),
        Suffix(),
    ):
        assert draw(target, drafter).rows == greedy, drafter
    assert all(row[-1] == END and max(row[:-1]) < CODES for row in greedy)


def test_drafts_that_are_all_right_all_wrong_or_mixed(target: GlmImage, greedy: list[list[int]]) -> None:
    """Windows of five go across the end of the preview, where positions start anew."""
    for wrong, most in ((0, 5), (1, 0), (3, 2)):
        replay = Replay(greedy)
        if wrong:
            replay.rows[:, wrong - 1 :: wrong] = (replay.rows[:, wrong - 1 :: wrong] + 1) % CODES
        got = draw(target, replay)
        assert got.rows == greedy
        assert max(got.accepted) == most


def test_seeds_decide_whatever_drafts(target: GlmImage) -> None:
    sampled = Sampling(temperature=1.0, seed=5)
    want = draw(target, NoDrafter(), sampled).rows
    assert want != draw(target, NoDrafter(), Sampling(temperature=1.0, seed=6)).rows
    for drafter in (GumbelSharing(6, "sample-left"), MaximalCoupling(9, "sample-above"), Proactive(8)):
        assert draw(target, drafter, sampled).rows == want
        rows = draw(target, drafter, sampled, Ratio()).rows
        assert all(row[-1] == END and max(row[:-1]) < CODES for row in rows)
    alone = draw(target, NoDrafter(), Sampling(temperature=1.0, seed=6), lengths=(3,))
    assert len(alone.rows[0]) == LENGTH


def test_places_look_at_their_own_grid() -> None:
    layout = TwoGrids(2, 4, CODES, tail=(END,), small=(2, 3))
    places = torch.arange(layout.length - 1)
    left = layout.left(places).tolist()
    assert [place for place, beside in enumerate(left) if beside < 0] == [0, 3, 6, 10]
    assert all(beside == place - 1 for place, beside in enumerate(left) if beside >= 0)
    above = layout.above(places[None], torch.tensor([[99]]))[0].tolist()
    assert above == [-1, -1, -1, 0, 1, 2, -1, -1, -1, -1, 6, 7, 8, 9]
    assert layout.above(torch.tensor([[12]]), torch.tensor([[7]])).tolist() == [[-1]]  # row above is not known yet
    assert layout.grid(list(range(15))) == list(range(6, 14))
    assert layout.positions()[:, [0, 4, 6, 13, 14]].T.tolist() == [
        [0, 0, 0],
        [0, 1, 1],
        [3, 3, 3],
        [3, 4, 6],
        [7, 7, 7],
    ]


def test_the_codes_are_handed_on_as_the_pipeline_takes_them(target: GlmImage, greedy: list[list[int]]) -> None:
    pipe = mmspec.load(target.model, drafter="scd-gs")
    out = pipe.generate(**request(5), temperature=0)
    assert out.token_ids == greedy[0]
    assert out.image is None
    assert pipe.target.usual_guidance == 1
    layout = target.layout_of(request(5))
    whole = torch.tensor(greedy[0][6:18]).view(1, 1, *LARGE).double()
    want = torch.nn.functional.interpolate(whole, scale_factor=2, mode="nearest").long().view(1, -1)
    assert torch.equal(target.prior(greedy[0], layout), want)
    with pytest.raises(InputError, match="the answer has 11 of the picture's 12 codes"):
        target.prior(greedy[0][:17], layout)
    usual = target.layout_of({"input_ids": torch.ones(1, 4)})
    assert isinstance(usual, TwoGrids)
    assert (usual.rows, usual.columns, usual.small) == (36, 24, (19, 13))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"image_grid_thw": torch.tensor([[1, 3, 4]] * 2)}, "two rows .1, rows, columns. are needed for each"),
        ({"image_grid_thw": torch.tensor([[1, 3, 4], [1, 2, 3], [1, 3, 4], [1, 2, 2]])}, "the same for all"),
        ({"image_grid_thw": torch.tensor([[1.0, 3.0, 4.0]] * 4)}, "two rows .1, rows, columns. are needed for each"),
        ({"image_grid_thw": "large"}, "image_grid_thw='large' is not valid for 2 prompts"),
        ({"image_grid_thw": None}, "the picture 1112, the model's context is 96"),
        ({"guidance": 3.0}, "guidance"),
    ],
)
def test_bad_requests_are_named(target: GlmImage, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(mmspec.Error, match=message):
        mmspec.load(target.model).generate(**{**request(5, 3), **changes})


@pytest.mark.parametrize("sides", [(90_000, 90_000, 2, 3), (3, 4, 90_000, 90_000)])
def test_a_size_beyond_the_context_is_refused_before_its_layout_is_made(
    target: GlmImage, monkeypatch: pytest.MonkeyPatch, sides: tuple[int, ...]
) -> None:
    monkeypatch.setattr(GlmImage, "_layout", None)  # a list of so many places would fill the memory
    told = {"image_grid_thw": torch.tensor([[1, *sides[:2]], [1, *sides[2:]]])}
    with pytest.raises(InputError, match="a picture of 90000 x 90000 codes is not possible"):
        target.layout_of({**request(5), **told})


def test_a_checkpoint_whose_codes_do_not_come_first_is_refused() -> None:
    model = glm_model()
    model.config.image_end_token_id = 7
    with pytest.raises(mmspec.Error, match="ends images with 7"):
        GlmImage(model)
