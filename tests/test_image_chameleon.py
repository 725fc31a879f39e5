"""Chameleon, Anole and Lumina-mGPT draw: image tokens of a class that rules them out, sizes, line ends, pictures."""

import json
import logging
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import tiny_images
import torch
import toys
from safetensors.torch import load_file, save_file
from test_image_janus import Replay
from torch import Tensor
from transformers import (
    ChameleonConfig,
    ChameleonForConditionalGeneration,
    ChameleonImageProcessor,
    ChameleonProcessor,
)

import mmspec
from mmspec.acceptance.ratio import Ratio
from mmspec.drafters.none import NoDrafter
from mmspec.errors import CheckpointError, InputError, UnsupportedError
from mmspec.image_ar.chameleon import END, LINE, LUMINA_SETTING, START, TURN, UNITS, Chameleon, Lumina
from mmspec.image_ar.chameleon_pictures import PictureDecoder, read_decoder, save_decoder
from mmspec.image_ar.eagle import GuidedEagle
from mmspec.image_ar.eagle_window import EagleSharing
from mmspec.image_ar.jacobi import SJD, GumbelSharing, Jacobi, MaximalCoupling
from mmspec.image_ar.neighbours import Neighbours
from mmspec.image_ar.pac import Proactive
from mmspec.image_ar.recipes import GuidedEagleRecipe
from mmspec.sampling import Sampling

CODES, FIRST, SIDE = 32, 100, 4
ROWS, COLUMNS = 2, 4
LUMINA = "ChameleonXLLMXForConditionalGeneration"
SAMPLED = Sampling(temperature=1.0, seed=3)


def spelled(code: int) -> str:
    """The name of an image token: its number in letters."""
    return "IMGIMG" + "".join("ABCDEFGHIJ"[int(digit)] for digit in str(code)) + "Z"


NAMES = {START: 4, END: 5, "<image>": 6, TURN: 21, LINE: 22, **{UNITS.format(8800 + n): 22 + n for n in range(1, 4)}}
PICTURE: dict[str, Any] = {
    "num_embeddings": CODES,
    "embed_dim": 8,
    "latent_channels": 32,
    "base_channels": 32,
    "channel_multiplier": [1, 2],
    "num_res_blocks": 1,
    "resolution": 2 * SIDE,
    "attn_resolutions": [SIDE],
}


def chameleon(seed: int = 0, lumina: bool = False, named: int = CODES) -> ChameleonForConditionalGeneration:
    """A random one, float64. Ids of image tokens are no run, and not in the order of the codes."""
    config = ChameleonConfig(
        vocab_size=200,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=96,
        initializer_range=0.3,
        pad_token_id=0,
        vocabulary_map={**NAMES, **{spelled(code): FIRST + (7 * code) % 37 for code in range(named)}},
        vq_config=PICTURE,
        architectures=[LUMINA if lumina else "ChameleonForConditionalGeneration"],
    )
    torch.manual_seed(seed)
    model = ChameleonForConditionalGeneration(config).double().eval()
    with torch.no_grad():
        model.lm_head.weight.normal_(0, 0.4)
        model.model.vqmodel.quantize.embedding.weight.normal_()
    return model


@cache
def target(lumina: bool = False) -> Any:
    return (Lumina if lumina else Chameleon)(chameleon(lumina=lumina), tiny_images.tokenizer())


def request(lumina: bool = False) -> dict[str, Any]:
    """Two prompts of several lengths, as `encode` ends them."""
    inputs = dict(tiny_images.prompts(3, 5))
    if not lumina:
        return inputs
    sizes = torch.tensor([[NAMES[UNITS.format(8800 + side // 2)] for side in (ROWS, COLUMNS)]] * 2)
    return {
        "input_ids": torch.cat([inputs["input_ids"], sizes], 1),
        "attention_mask": torch.nn.functional.pad(inputs["attention_mask"], (0, 2), value=1),
        "image_sizes": torch.tensor([[ROWS, COLUMNS]] * 2),
    }


def places(lumina: bool) -> list[int | None]:
    """The language model's id that must stand at each place of a picture, None where it is a code."""
    if not lumina:
        return [None] * SIDE**2 + [NAMES[END]]
    return ([None] * COLUMNS + [NAMES[LINE]]) * ROWS + [NAMES[END]]


@torch.no_grad()
def reference(model: Any, lumina: bool, scale: float) -> list[list[int]]:
    """Greedy pictures in the language model's ids, by whole forwards of the inner model and its whole head."""
    inputs, image = request(lumina), sorted(model.model.vocabulary_mapping.image_tokens)
    drawn = []
    for ids, mask in zip(inputs["input_ids"], inputs["attention_mask"], strict=True):
        told = ids[mask.bool()].tolist()
        free = told[-3:] if lumina else [0, NAMES[START]]
        out: list[int] = []
        for forced in places(lumina):
            both = [
                model.lm_head(model.model(input_ids=torch.tensor([row + out])).last_hidden_state[0, -1])
                for row in (told, free)
            ]
            guided = (both[1] + scale * (both[0] - both[1]))[image]
            out.append(image[int(guided.argmax())] if forced is None else forced)
        drawn.append(out)
    return drawn


def words_of(made: Any, rows: list[list[int]]) -> list[list[int]]:
    return [made.embed.words[torch.tensor(row)].tolist() for row in rows]


def draw(lumina: bool, drafter: Any, sampling: Any = None, rule: Any = None, **more: Any) -> toys.Answer:
    made = target(lumina)
    return toys.answer(made, drafter, {**request(lumina), **more}, len(places(lumina)), sampling, rule)


@pytest.mark.parametrize("lumina", [False, True])
@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_greedy_pictures_are_those_of_whole_forwards(lumina: bool, scale: float) -> None:
    want = reference(target(lumina).model, lumina, scale)
    got = draw(lumina, NoDrafter(), guidance=scale)
    assert words_of(target(lumina), got.rows) == want
    assert got.finish == ["length", "length"]


def test_the_stock_output_has_no_image_tokens() -> None:
    """Why the target reads hidden states: if this changes, it need not."""
    model = target().model
    logits = model(input_ids=torch.tensor([[1, 9, 4]])).logits[0, -1]
    assert set(logits[model.model.vocabulary_mapping.image_tokens].tolist()) == {torch.finfo(logits.dtype).min}


def network(made: Any) -> Any:
    net = GuidedEagleRecipe(seed=3).build(made).double()
    torch.manual_seed(3)
    with torch.no_grad():
        for weight in net.parameters():
            weight += 0.15 * torch.randn_like(weight)
    return net.eval()


def drafters(lumina: bool) -> dict[str, Any]:
    net = network(target(lumina))
    return {
        "jacobi": Jacobi(7, "repeat-left"),
        "sjd": SJD(6, "sample-above"),
        "scd-mc": MaximalCoupling(6),
        "scd-gs": GumbelSharing(9),
        "sjd-pac": Proactive(7, width=2, depth=3),
        "eagle2": GuidedEagle(net),
        "sjd-eagle": EagleSharing(net, 7),
    }


@pytest.mark.parametrize("lumina", [False, True])
def test_every_drafter_draws_the_same_and_keeps_the_layout(lumina: bool) -> None:
    """Windows of 7 and trees of 5 levels cross the ends of rows of 4 codes."""
    layout = [target(lumina).embed.words.tolist().index(word) if word else None for word in places(lumina)]
    for sampling in (None, SAMPLED):
        want = draw(lumina, NoDrafter(), sampling).rows
        for name, drafter in drafters(lumina).items():
            got = draw(lumina, drafter, sampling)
            assert got.rows == want, name
            if lumina and name != "jacobi":
                assert max(got.accepted) > 0, name  # a line end, at least
    for name in ("sjd", "scd-mc", "sjd-pac", "eagle2", "sjd-eagle"):
        for row in draw(lumina, drafters(lumina)[name], SAMPLED, Ratio()).rows:
            assert all(
                token < CODES if forced is None else token == forced for token, forced in zip(row, layout, strict=True)
            )


@pytest.mark.parametrize("lumina", [False, True])
@pytest.mark.parametrize("sampling", [None, SAMPLED], ids=["greedy", "sampled"])
def test_what_the_layout_forces_is_drafted_where_it_forces_it(
    lumina: bool, sampling: Sampling | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By windows, which are chains; trees have siblings beside what is forced."""
    made, seen = target(lumina), list[bool]()
    verify = made.verify

    def watched(state: Any, draft: Any) -> Any:
        at = state.emitted[:, None] - 1 + draft.depth
        must = state.layout.at(at)
        looked = (must >= 0) & (at < state.layout.length) & (draft.depth > 0)
        seen.extend((draft.tokens == must)[looked].tolist())
        return verify(state, draft)

    monkeypatch.setattr(made, "verify", watched)
    for name in ("jacobi", "sjd", "scd-mc", "scd-gs", "sjd-eagle"):
        seen.clear()
        draw(lumina, drafters(lumina)[name], sampling)
        assert seen, name
        assert all(seen), name


@pytest.mark.parametrize("wrong", [0, 1, 3])
def test_drafts_that_are_all_right_all_wrong_or_mixed(wrong: int) -> None:
    want = draw(True, NoDrafter()).rows
    got = draw(True, Replay(want, wrong))
    assert got.rows == want
    assert max(got.accepted) == {0: 5, 1: 0, 3: 2}[wrong]


# Pictures


def saved(folder: Path, lumina: bool = False, inside: bool = False, decoder: bool = True) -> Path:
    """A checkpoint's folder; inside: the picture decoder lies among the model's own weights."""
    model = chameleon(lumina=lumina)
    processor = ChameleonProcessor(ChameleonImageProcessor(), tiny_images.tokenizer(), image_seq_length=SIDE**2)
    tiny_images.save(folder, model, processor)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architectures": [LUMINA] if lumina else None}))
    torch.manual_seed(5)
    made = PictureDecoder(model.config.vq_config)
    if decoder and inside:
        weights = load_file(folder / "model.safetensors")
        weights |= {f"model.vqmodel.decoder.{name}": weight for name, weight in made.state_dict().items()}
        save_file(weights, folder / "model.safetensors", {"format": "pt"})
    elif decoder:
        published = {f"decoder.{name}": weight for name, weight in made.state_dict().items()}
        save_decoder({**published, "encoder.conv_in.weight": torch.zeros(1)}, folder, model.config.vq_config)
    return folder


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("lumina", [False, True])
def test_a_folder_draws_a_picture(tmp_path: Path, lumina: bool, inside: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mmspec.image_ar.chameleon.LUMINA_SIDE", SIDE)
    monkeypatch.setattr("mmspec.image_ar.chameleon.LUMINA_PROMPT", "{text}")
    pipe = mmspec.load(saved(tmp_path / "model", lumina, inside), drafter="scd-gs")
    assert type(pipe.target) is (Lumina if lumina else Chameleon)
    out = pipe(prompt="a red circle", temperature=1.0, seed=2)
    assert out.image.size == (2 * SIDE, 2 * SIDE)
    inputs = pipe.prepare(None, ["a red circle", "two blue square above"])
    opening = [NAMES[UNITS.format(8802)]] * 2 if lumina else []
    assert all(row[-2 - len(opening) :] == [TURN_ID, NAMES[START], *opening] for row in inputs["input_ids"].tolist())
    model = pipe.target.model.model
    codes = torch.tensor(pipe.target.layout.grid(out.token_ids)).view(1, SIDE, SIDE)
    vectors = model.vqmodel.quantize.embedding(codes).permute(0, 3, 1, 2)
    with torch.no_grad():
        colours = read_decoder(tmp_path / "model", model.config.vq_config)(model.vqmodel.post_quant_conv(vectors))
    want = ((colours[0] * 0.5 + 0.5) * 255).clamp(0, 255).to(torch.uint8).permute(1, 2, 0)
    assert out.image.tobytes() == want.numpy().tobytes()
    batch = pipe(prompt=["a red circle", "two blue square above"], temperature=1.0, seed=2)
    assert batch[0].token_ids == out.token_ids


TURN_ID = NAMES[TURN]


def test_a_lumina_draws_the_size_that_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mmspec.image_ar.chameleon.LUMINA_SIDE", SIDE)
    monkeypatch.setattr("mmspec.image_ar.chameleon.LUMINA_PROMPT", "{text}")
    folder = saved(tmp_path / "model", lumina=True)
    pipe = mmspec.load(folder, drafter="scd-gs")
    asked: dict[str, Any] = {"prompt": "a red circle", "temperature": 1.0, "seed": 2}
    width, height = 2 * COLUMNS, 2 * ROWS
    out = pipe(**asked, size=(width, height))
    assert out.image.size == (width, height)
    assert len(out.token_ids) == ROWS * (COLUMNS + 1) + 1
    made = pipe.prepare(None, ["a red circle", "two blue square above"], size=f"{width}x{height}")
    opening = [NAMES[UNITS.format(8800 + side // 2)] for side in (ROWS, COLUMNS)]
    assert [row[-3:] for row in made["input_ids"].tolist()] == [[NAMES[START], *opening]] * 2
    told = pipe.prepare(None, "a red circle", size=(width, height))
    assert pipe.generate(**told, temperature=1.0, seed=2).token_ids == out.token_ids
    both = pipe(**{**asked, "prompt": ["a red circle", "two blue square above"]}, size=(width, height))
    assert both[0].token_ids == out.token_ids
    monkeypatch.setattr("mmspec.image_ar.chameleon.LUMINA_PROMPT", "{width} {height} {text}")
    assert pipe.target.prompt("red", pipe.target._layout(ROWS, COLUMNS)) == f"{width} {height} red"


@pytest.mark.parametrize(
    ("size", "message"),
    [
        ("9x8", "size=9x8 is not valid: width and height must be multiples of 4 pixels"),
        ((6, 8), "size=6x8 is not valid: width and height must be multiples of 4 pixels"),
        ((4, 20), "only so far as its vocabulary has tokens"),
        ((8000, 8000), "a picture of 4000 x 4000 codes is not possible: the model's context is 96"),
        ("8", "size='8' is not valid: width and height in pixels are needed, as in 768x512"),
        ("8x8x8", "is not valid"),
        ((8,), "is not valid"),
        ((8, 0), "is not valid"),
        ((8.0, 8), "is not valid"),
        ((True, 8), "is not valid"),
        (8, "is not valid"),
    ],
)
def test_sizes_that_cannot_be_drawn_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: Any, message: str
) -> None:
    monkeypatch.setattr("mmspec.image_ar.chameleon.LUMINA_PROMPT", "{text}")
    pipe = mmspec.load(saved(tmp_path / "model", lumina=True, decoder=False), drafter="none")
    with pytest.raises(InputError, match=message):
        pipe(prompt="a red circle", size=size)


def test_a_size_is_for_models_that_draw_several(tmp_path: Path) -> None:
    pipe = mmspec.load(saved(tmp_path / "model", decoder=False), drafter="none")
    with pytest.raises(InputError, match="size is not an option of ChameleonForConditionalGeneration: leave it out"):
        pipe(prompt="a red circle", size=(8, 8))
    with pytest.raises(InputError, match="size is for prompts"):
        pipe.generate(**request(), size=(8, 8))


def test_the_decoder_mirrors_the_encoder() -> None:
    """Published names; the same blocks at every resolution, one more of them, attention where the encoder has it."""
    model = chameleon()
    made = PictureDecoder(model.config.vq_config)
    names = set(made.state_dict())
    assert {"up.1.block.1.norm1.weight", "up.1.attn.1.proj_out.bias", "up.1.upsample.conv.weight"} <= names
    assert {"up.0.block.0.nin_shortcut.weight", "mid.attn_1.q.weight", "norm_out.bias", "conv_out.bias"} <= names
    assert not any(name.startswith(("up.0.attn", "up.0.upsample", "up.2")) for name in names)
    mid = {name: value.shape for name, value in made.mid.state_dict().items()}
    assert mid == {name: value.shape for name, value in model.model.vqmodel.encoder.mid.state_dict().items()}
    assert made(torch.randn(2, 32, 3, 5)).shape == (2, 3, 6, 10)


def test_published_sizes_fit() -> None:
    """Those of the VQGAN that Chameleon was trained with, without allocating it."""
    with torch.device("meta"):
        made = PictureDecoder(ChameleonConfig().vq_config)
    shapes = {name: tuple(value.shape) for name, value in made.state_dict().items()}
    assert shapes["conv_in.weight"] == (512, 256, 3, 3)
    assert shapes["up.4.block.2.conv2.weight"] == (512, 512, 3, 3)
    assert shapes["up.3.block.0.nin_shortcut.weight"] == (256, 512, 1, 1)
    assert shapes["up.1.block.0.nin_shortcut.weight"] == (128, 256, 1, 1)
    assert shapes["conv_out.weight"] == (3, 128, 3, 3)
    assert not any(".attn." in name for name in shapes)


def test_without_a_picture_decoder_codes_are_drawn_and_a_warning_is_given(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        pipe = mmspec.load(saved(tmp_path / "model", decoder=False), drafter="none")
    assert "no picture decoder" in caplog.text
    assert pipe.target.codes_alone  # so `mmspec generate --out` and `mmspec bench images` refuse it
    out = pipe(prompt="a red circle")
    assert len(out.token_ids) == SIDE**2 + 1
    assert out.image is None
    with pytest.raises(UnsupportedError, match="no picture decoder"):
        pipe.target.picture(out.token_ids, pipe.target.layout)


def test_a_model_that_its_user_loaded_from_the_hub_finds_its_decoder_in_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    home = tmp_path / "models--org--anole"
    (home / "refs").mkdir(parents=True)
    (home / "refs" / "main").write_text("0" * 40)
    saved(home / "snapshots" / ("0" * 40), inside=True)
    model = ChameleonForConditionalGeneration.from_pretrained("org/anole", cache_dir=tmp_path)
    assert model.name_or_path == "org/anole"
    made = Chameleon(model, tiny_images.tokenizer())
    assert not made.codes_alone
    assert made.picture([0], made.layout).size == (2 * SIDE, 2 * SIDE)
    assert "no picture decoder" not in caplog.text
    for name, hint in (("org/another", True), ("--/--", True), ("", False)):
        caplog.clear()
        model.name_or_path = name
        assert Chameleon(model, tiny_images.tokenizer()).codes_alone
        assert (f"load it by its id: mmspec.load({name!r})" in caplog.text) is hint


def test_a_lumina_that_transformers_saved_again_is_one_still(tmp_path: Path) -> None:
    first = saved(tmp_path / "first", lumina=True, decoder=False)
    config = json.loads((first / "config.json").read_text())
    (first / "config.json").write_text(json.dumps({**config, LUMINA_SETTING: 0.0}))
    again = tiny_images.save(tmp_path / "again", mmspec.load(first).target.model, tiny_images.tokenizer())
    config = ChameleonConfig.from_pretrained(again)
    assert config.architectures == ["ChameleonForConditionalGeneration"]
    assert (Lumina.serves(config), Chameleon.serves(config)) == (True, False)
    assert (Lumina.serves(ChameleonConfig()), Chameleon.serves(ChameleonConfig())) == (False, True)


@pytest.mark.parametrize("what", ["missing", "shape", "nan", "unknown"])
def test_a_decoder_that_does_not_fit_is_refused(tmp_path: Path, what: str) -> None:
    config = chameleon().config.vq_config
    weights = {f"decoder.{name}": value.clone() for name, value in PictureDecoder(config).state_dict().items()}
    changed: dict[str, Tensor] = {
        "shape": {"decoder.conv_in.bias": torch.zeros(3)},
        "nan": {"decoder.conv_in.bias": torch.full((64,), torch.nan)},
        "unknown": {"decoder.up.7.weight": torch.zeros(1)},
        "missing": {},
    }[what]
    weights |= changed
    if what == "missing":
        del weights["decoder.conv_in.bias"]
    with pytest.raises(CheckpointError, match="up.7.weight" if what == "unknown" else "conv_in.bias"):
        save_decoder(weights, tmp_path, config)
    assert not list(tmp_path.iterdir())


# Mistakes


def test_a_codebook_of_another_size_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="names 31 image tokens, its codebook has 32 codes"):
        Chameleon(chameleon(named=CODES - 1))


def test_codes_are_compared_as_their_vectors_are_stored() -> None:
    made = target()
    stored = made.vqmodel.quantize.embedding.weight.detach()
    assert torch.equal(made.neighbours(3).nearest, Neighbours.of(stored, 3).nearest)
    assert not torch.equal(made.neighbours(3).nearest, Neighbours.of(made.vectors(unit=True), 3).nearest)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ([[3, 4]] * 2, "units of 2 codes"),
        ([[2, 40]] * 2, "only so far as its vocabulary has tokens"),
        ([[4, 4]] * 2, "not what the prompts ask for"),
        ([[2, 4], [4, 4]], "the same for every picture"),
        ([[0, 4]] * 2, "image_sizes"),
        ([2, 4], "rows and columns of codes are needed"),
        ([[2.0, 4.0]] * 2, "rows and columns of codes are needed"),
    ],
)
def test_sizes_that_the_layout_cannot_hold_are_named(sizes: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        draw(True, NoDrafter(), image_sizes=torch.tensor(sizes))


def test_a_size_beyond_the_context_is_refused_before_its_layout_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = target(True)
    monkeypatch.setattr(Lumina, "_layout", None)  # a list of so many places would fill the memory
    with pytest.raises(InputError, match="a picture of 90000 x 90000 codes is not possible"):
        asked.layout_of({"image_sizes": torch.tensor([[90_000, 90_000]])})


def test_prompts_that_do_not_tell_the_usual_size_are_named() -> None:
    made = Lumina(chameleon(lumina=True), tiny_images.tokenizer())
    made.layout = made._layout(ROWS, COLUMNS)
    told = {name: value for name, value in request(True).items() if name != "image_sizes"}
    assert made.layout_of(told) == made.layout
    told["input_ids"] = told["input_ids"].roll(1, 1)
    with pytest.raises(InputError, match="not what the prompts ask for"):
        made.layout_of(told)


@pytest.mark.parametrize("guidance", [0, -2.0, float("nan")])
def test_guidance_that_is_none_is_named(guidance: float) -> None:
    with pytest.raises(InputError, match="a number above 0"):
        draw(False, NoDrafter(), guidance=guidance)


def test_captions_that_are_too_long_or_not_known_are_named(tmp_path: Path) -> None:
    pipe = mmspec.load(saved(tmp_path / "model", decoder=False), drafter="none")
    with pytest.raises(InputError, match=r"the prompt has 8\d tokens and the picture 17, the model's context is 96"):
        pipe(prompt="a red circle " * 27)
    with pytest.raises(InputError, match="never told: .*zebra"):
        pipe(prompt="a red zebra")
    with pytest.raises(InputError, match="leave image out"):
        pipe(image=torch.zeros(8, 8, 3, dtype=torch.uint8).numpy(), prompt="a red circle")


@pytest.mark.parametrize(
    ("asked", "config", "drawn"), [({}, None, 2000), ({}, 7, 7), ({"top_k": 5}, 7, 5), ({"top_k": 0}, None, 0)]
)
def test_lumina_draws_of_its_likeliest_codes_where_nobody_says_how_many(
    asked: dict[str, Any], config: int | None, drawn: int
) -> None:
    made = target(True)
    made.model.generation_config.top_k = config
    assert made.sampling(asked).top_k == drawn
    assert target().sampling({}).top_k == 0
