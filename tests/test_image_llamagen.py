"""LlamaGen, on our own module: rotations of rows and columns, published names, and the pictures of a plain loop."""

from pathlib import Path
from typing import Any

import pytest
import torch
import toys
from torch import Tensor
from transformers.models.glm.modeling_glm import apply_rotary_pos_emb

import mmspec
from mmspec.acceptance.ratio import Ratio
from mmspec.drafters.none import NoDrafter
from mmspec.errors import UnsupportedError
from mmspec.image_ar.jacobi import GumbelSharing, Jacobi, MaximalCoupling
from mmspec.image_ar.llamagen import LlamaGenTarget, convert, settings
from mmspec.image_ar.llamagen_model import LlamaGen, LlamaGenConfig, rotations
from mmspec.image_ar.pac import Proactive
from mmspec.options import sampling_for
from mmspec.sampling import Sampling

GRID, CODES, CLASSES = 4, 50, 9


def config() -> LlamaGenConfig:
    picture = {
        "num_embeddings": CODES,
        "latent_channels": 32,
        "base_channels": 32,
        "channel_multiplier": [1, 1],
        "num_res_blocks": 1,
        "num_patches": GRID,
    }
    return LlamaGenConfig(
        vq_config=picture,
        grid=GRID,
        classes=CLASSES,
        vocab_size=CODES,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1 + GRID * GRID,
    )


def model() -> LlamaGen:
    torch.manual_seed(0)
    made = LlamaGen(config()).double().eval()
    with torch.no_grad():
        for weight in made.model.parameters():
            weight.add_(0.25 * torch.randn_like(weight))
        made.lm_head.weight.normal_(0, 0.5)
    return made


@pytest.fixture(scope="module")
def target() -> LlamaGenTarget:
    return LlamaGenTarget(model())


def next_logits(made: LlamaGen, label: int, codes: list[int]) -> Tensor:
    """From a whole forward without a cache."""
    words = made.model.classes(torch.tensor([[label]]))
    drawn = made.model.codes(torch.tensor([codes], dtype=torch.long))
    return made.lm_head(made.model(inputs_embeds=torch.cat([words, drawn], 1)).last_hidden_state)[0, -1]


def test_greedy_pictures_are_those_of_whole_forwards_with_guidance(target: LlamaGenTarget) -> None:
    inputs = {"input_ids": torch.tensor([[3], [7]]), "guidance": 2.0}
    got = toys.answer(target, NoDrafter(), inputs, 16).rows
    for row, label in enumerate((3, 7)):
        for place in range(16):
            with torch.no_grad():
                told = next_logits(target.model, label, got[row][:place])
                free = next_logits(target.model, CLASSES, got[row][:place])
            assert int((free + 2 * (told - free)).argmax()) == got[row][place]
    assert got[0] != got[1]
    for drafter in (Jacobi(5, "repeat-left"), GumbelSharing(16), MaximalCoupling(4), Proactive(8)):
        assert toys.answer(target, drafter, inputs, 16).rows == got


def test_the_same_seed_gives_the_same_picture_with_every_drafter(target: LlamaGenTarget) -> None:
    inputs = {"input_ids": torch.tensor([[3], [7], [1]])}
    sampling = Sampling(temperature=1.0, seed=1)
    want = toys.answer(target, NoDrafter(), inputs, 16, sampling).rows
    for drafter in (GumbelSharing(6, "sample-above"), MaximalCoupling(4), Proactive(8)):
        assert toys.answer(target, drafter, inputs, 16, sampling).rows == want
    assert all(len(row) == 16 for row in toys.answer(target, Proactive(8), inputs, 16, sampling, Ratio()).rows)


def test_rotations_depend_on_the_distance_in_rows_and_in_columns_alone() -> None:
    turns = rotations(config())
    assert torch.equal(turns[0], torch.zeros(4, 2))
    q, k = torch.randn(2, 1, 1, 1, 8, generator=torch.Generator().manual_seed(0))

    def score(a: tuple[int, int], b: tuple[int, int]) -> float:
        one, other = (turned(x, turns[1 + r * GRID + c]) for x, (r, c) in ((q, a), (k, b)))
        return float((one * other).sum())

    def turned(x: Tensor, turn: Tensor) -> Tensor:
        return apply_rotary_pos_emb(x, x, *turn.repeat(2, 1)[None, None].unbind(-1))[0]

    assert score((0, 0), (1, 2)) == pytest.approx(score((2, 1), (3, 3)), abs=1e-5)
    assert score((0, 0), (1, 2)) != pytest.approx(score((0, 0), (2, 1)), abs=1e-3)


def test_what_a_configuration_leaves_out_fits_its_grid(tmp_path: Path) -> None:
    small = {name: value for name, value in config().to_dict().items() if name != "max_position_embeddings"}
    small["vq_config"].pop("num_patches")
    for grid in (GRID, GRID + 2):
        made = LlamaGenConfig(**{**small, "grid": grid})
        torch.manual_seed(0)
        LlamaGen(made).save_pretrained(tmp_path / str(grid))
        again = LlamaGenConfig.from_pretrained(tmp_path / str(grid))
        for one in (made, again, LlamaGenConfig(grid=grid)):
            assert one.vq_config.num_patches == grid
            assert one.max_position_embeddings == 1 + grid * grid
        drawn = mmspec.load(tmp_path / str(grid), drafter="none")(prompt="3")
        assert drawn.image.size == (2 * grid, 2 * grid)
    assert LlamaGenConfig(max_position_embeddings=300).max_position_embeddings == 300


def test_a_picture_decoder_of_another_size_is_refused() -> None:
    made = model()
    made.config.vq_config.num_patches = GRID + 1
    with pytest.raises(UnsupportedError, match="takes 5 x 5 codes, the model draws 4 x 4"):
        LlamaGenTarget(made)


def published(made: LlamaGen) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The same weights under the names of the published checkpoints."""
    old = made.state_dict()
    decoder = {
        "tok_embeddings.weight": old["model.codes.weight"],
        "cls_embedding.embedding_table.weight": old["model.classes.weight"],
        "norm.weight": old["model.norm.weight"],
        "output.weight": old["lm_head.weight"],
        "freqs_cis": torch.zeros(1),
    }
    for n in range(2):
        ours = f"model.layers.{n}."
        joint = torch.cat([old[f"{ours}self_attn.{part}_proj.weight"] for part in "qkv"])
        decoder |= {
            f"layers.{n}.attention.wqkv.weight": joint,
            f"layers.{n}.attention.wo.weight": old[f"{ours}self_attn.o_proj.weight"],
            f"layers.{n}.feed_forward.w1.weight": old[f"{ours}gate_proj.weight"],
            f"layers.{n}.feed_forward.w2.weight": old[f"{ours}down_proj.weight"],
            f"layers.{n}.feed_forward.w3.weight": old[f"{ours}up_proj.weight"],
            f"layers.{n}.attention_norm.weight": old[f"{ours}input_norm.weight"],
            f"layers.{n}.ffn_norm.weight": old[f"{ours}output_norm.weight"],
        }
    picture = {"quantize.codebook_used": torch.zeros(1)}
    for name, weight in old.items():
        if name.startswith("vqmodel."):
            short = (
                name.removeprefix("vqmodel.").replace(".mid.block_1.", ".mid.0.").replace(".mid.block_2.", ".mid.2.")
            )
            short = short.replace(".mid.attn_1.", ".mid.1.").replace("encoder.down.", "encoder.conv_blocks.")
            picture[short.replace("decoder.up.", "decoder.conv_blocks.").replace(".block.", ".res.")] = weight
    return decoder, picture


def test_published_weights_find_their_places(tmp_path: Path) -> None:
    made = model()
    decoder, picture = published(made)
    assert any(name.startswith("decoder.conv_blocks.0.res.0.norm1") for name in picture)
    other = LlamaGen(config()).double()
    other.load_state_dict(convert(decoder, picture, config()))
    for name, weight in made.state_dict().items():
        assert torch.equal(other.state_dict()[name], weight), name
    with pytest.raises(mmspec.Error, match="'head.weight' is no weight of a class-conditional LlamaGen"):
        convert({"head.weight": torch.zeros(1)}, {}, config())


def test_a_converted_model_draws_as_its_demo_does(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made = model().float()
    made.generation_config = settings()
    made.save_pretrained(tmp_path)
    pipe = mmspec.load(tmp_path, drafter="none")
    assert sampling_for({}, pipe.target.model.generation_config) == Sampling(temperature=1.0, top_k=2000)
    assert pipe.target.guidance() == 4.0
    assert not caplog.records
    drawn = pipe(prompt="3", seed=2).token_ids
    assert drawn == pipe(prompt="3", seed=2, temperature=1.0, top_k=2000, guidance=4.0).token_ids
    assert drawn != pipe(prompt="3", seed=2, temperature=0).token_ids


def test_a_folder_draws_classes_by_number_and_name(tmp_path: Path) -> None:
    made = model().float()
    made.config.id2label = {3: "goldfish", 7: "great white shark"}
    made.save_pretrained(tmp_path)
    pipe = mmspec.load(tmp_path, drafter="scd-gs")
    options: dict[str, Any] = {"temperature": 1.0, "seed": 2}
    fish = pipe(prompt="Goldfish", **options)
    assert fish.image.size == (8, 8)
    assert fish.token_ids == pipe(prompt="3", **options).token_ids
    assert fish.token_ids != pipe(prompt="7", **options).token_ids
    assert fish.token_ids == mmspec.load(tmp_path, drafter="none")(prompt="3", **options).token_ids
    for prompt, message in (("goldfisch", "did you mean 'goldfish'"), ("9", "is no class of this model")):
        with pytest.raises(mmspec.Error, match=message):
            pipe(prompt=prompt)


def test_a_name_of_several_classes_is_none(tmp_path: Path) -> None:
    """ImageNet has two cranes, a bird and a machine."""
    made = model().float()
    made.config.id2label = {1: "Crane", 3: "goldfish", 7: "crane"}
    made.save_pretrained(tmp_path)
    pipe = mmspec.load(tmp_path, drafter="none")
    with pytest.raises(mmspec.Error, match="'crane' names several classes: give a number, 1 or 7"):
        pipe(prompt="crane")
    assert pipe(prompt="goldfish", seed=2).token_ids == pipe(prompt="3", seed=2).token_ids
    assert pipe(prompt="7", seed=2).token_ids != pipe(prompt="1", seed=2).token_ids
