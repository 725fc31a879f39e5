"""MAR: the published computation, names and sizes; pictures from folders; drafters beside them; what is refused."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import tiny_images
import tiny_mar
import torch
from torch import Tensor
from torch.nn.functional import conv2d, group_norm, interpolate, silu

import mmspec
from mmspec.checkpoints import save_drafter
from mmspec.compare import compare
from mmspec.drafters.none import NoDrafter
from mmspec.errors import CheckpointError, InputError, MismatchError
from mmspec.image_ar.continuous import Conditioned, Released
from mmspec.image_ar.mar import MarTarget, walk_noise
from mmspec.image_ar.mar_canvas import plan
from mmspec.image_ar.mar_config import MarConfig
from mmspec.image_ar.mar_convert import SIZES, convert, published, settings
from mmspec.image_ar.mar_drafter import MarDrafter
from mmspec.image_ar.mar_head import Diffusion
from mmspec.image_ar.mar_model import Mar
from mmspec.training.drafter import find_recipe

LENGTH = tiny_mar.GRID**2


@pytest.fixture(scope="module")
def made() -> Mar:
    return tiny_mar.model()


# The model ---------------------------------------------------------------------------------------------------------


def states_of_one(made: Mar, words: list[int], values: Tensor, known: list[int]) -> Tensor:
    """[L, H] of one row, without padding or masks. words: the class of every slot, -1 for none."""
    slots = [made.fake_latent[0] if word < 0 else made.class_emb.weight[word] for word in words]
    count = len(slots)
    whole = torch.cat([torch.stack(slots), made.z_proj(values)]) + made.encoder_pos_embed_learned[0]
    seen = [*range(count), *(count + place for place in sorted(known))]
    states = made.z_proj_ln(whole)[None, seen]
    for block in made.encoder_blocks:
        states = block(states)
    states = made.decoder_embed(made.encoder_norm(states))
    canvas = made.mask_token[0].repeat(len(whole), 1)
    canvas[seen] = states[0]
    states = (canvas + made.decoder_pos_embed_learned[0])[None]
    for block in made.decoder_blocks:
        states = block(states)
    return made.decoder_norm(states)[0, count:] + made.diffusion_pos_embed_learned[0]


def test_pictures_are_decoded_without_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    target = MarTarget(tiny_mar.model())
    pixels = target.model.pixels
    seen: list[bool] = []

    def watched(values: Tensor) -> Tensor:
        seen.append(torch.is_inference_mode_enabled())
        return pixels(values)

    monkeypatch.setattr(target.model, "pixels", watched)
    target.picture(torch.zeros(LENGTH, tiny_mar.SIZE).double(), [0, 1])
    assert seen == [True]


@torch.no_grad()
def test_rows_that_know_different_places_are_what_each_is_alone(made: Mar) -> None:
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(4, LENGTH, tiny_mar.SIZE, generator=generator).double()
    known = torch.zeros(4, LENGTH, dtype=torch.bool)
    sets: list[list[int]] = [[], [3], [0, 5, 7, 15], list(range(LENGTH))]
    for row, places in enumerate(sets):
        known[row, places] = True
    words = [[2, 2, 2], [-1, -1, -1], [8, -1, 0], [1, 4, 4]]
    for most in (LENGTH, LENGTH + 5):
        got = made.states(values, known, torch.tensor(words), most)
        for row, places in enumerate(sets):
            want = states_of_one(made, words[row], values[row], places)
            assert torch.allclose(got[row], want, atol=1e-9)
    hidden = torch.where(known[..., None], values, 7.0)
    assert torch.allclose(made.states(hidden, known, torch.tensor(words), LENGTH), got, atol=1e-9)


def test_the_plan_is_the_published_cosine() -> None:
    assert plan(256, 256) == list(range(257))
    for length, steps in ((256, 64), (64, 24), (16, 6), (5, 1)):
        made = plan(length, steps)
        assert len(made) == steps + 1
        assert all(a < b for a, b in zip(made, made[1:], strict=False))
        assert made[-1] == length
    assert plan(256, 64)[32] == 256 - math.floor(256 * math.cos(math.pi / 4))
    for steps in (0, 17):
        with pytest.raises(InputError, match=f"steps={steps} is not valid for 16 tokens"):
            plan(16, steps)


@pytest.mark.parametrize("shape", [{}, {"diffusion_steps": 4, "prediction": "sample", "spacing": "trailing"}])
def test_steps_are_those_of_diffusers(shape: dict[str, Any]) -> None:
    from diffusers import DDPMScheduler

    config = MarConfig(**shape)
    ours = Diffusion(config)
    theirs = DDPMScheduler(
        beta_schedule="squaredcos_cap_v2",
        prediction_type=config.prediction,
        timestep_spacing=config.spacing,
        variance_type="learned_range",
        clip_sample=False,
    )
    theirs.set_timesteps(config.diffusion_steps)
    assert [step.time for step in reversed(ours.steps)] == theirs.timesteps.tolist()
    noisy = torch.randn(5, 16, generator=torch.Generator().manual_seed(1))
    out = torch.randn(5, 32, generator=torch.Generator().manual_seed(2)) * 0.3
    for step in ours.steps[:: max(1, len(ours.steps) // 7)]:
        last = step is ours.steps[0]
        said = (
            torch.cat([out[:, :16], torch.full((5, 16), -1.0)], -1) if last else out
        )  # diffusers' last step adds none
        mean, log_variance = ours.gaussian(step, said, noisy)
        drawn = theirs.step(said, step.time, noisy, generator=torch.Generator().manual_seed(3)).prev_sample
        n = torch.randn(5, 16, generator=torch.Generator().manual_seed(3))
        wanted = mean if last else mean + (0.5 * log_variance).exp() * n
        assert torch.allclose(drawn, wanted, atol=2e-4 * float(mean.abs().max()), rtol=2e-3)
    with pytest.raises(CheckpointError, match="one diffusion step needs a least_variance above 0"):
        Diffusion(MarConfig(diffusion_steps=1))
    with pytest.raises(CheckpointError, match="prediction 'v' is not served"):
        Diffusion(MarConfig(prediction="v"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prediction": "v"}, "prediction 'v' is not served"),
        ({"spacing": "even"}, "spacing 'even' is not served: 'linspace' or 'leading' or 'trailing'"),
        ({"diffusion_steps": 0}, "diffusion_steps 0 is not possible: from 1 to train_steps, which is 1000"),
        ({"diffusion_steps": 1001}, "diffusion_steps 1001 is not possible"),
        ({"diffusion_steps": 1, "least_variance": 0.0}, "one diffusion step needs a least_variance above 0"),
        ({"least_variance": -0.1}, "least_variance -0.1 is not possible"),
    ],
)
def test_a_schedule_that_cannot_be_walked_is_named_when_the_model_is_made(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(CheckpointError, match=message):
        Mar(tiny_mar.config(**changes))
    tiny_mar.model().float().save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, **changes}))
    with pytest.raises(CheckpointError, match=message):
        mmspec.load(tmp_path)


@torch.no_grad()
@pytest.mark.parametrize("guidance", [1.0, 2.5])
def test_plain_decoding_is_the_published_loop(made: Mar, guidance: float) -> None:
    """Row by row and token by token, with the same noise; a batch is its single calls."""
    target = MarTarget(made)
    canvas, rounds = tiny_mar.draw(target, NoDrafter(), Conditioned(), 3, seed=4, guidance=guidance, temperature=0.9)
    assert len(rounds) - 1 == made.config.reveal_steps
    diffusion, net = made.diffusion, made.diffloss.net
    for row in range(3):
        order, values = canvas.order[row].tolist(), torch.zeros(LENGTH, tiny_mar.SIZE).double()
        for start, end in zip(canvas.stages, canvas.stages[1:], strict=False):
            known = values.clone()
            told = states_of_one(made, [row] * 3, known, order[:start])
            free = states_of_one(made, [-1] * 3, known, order[:start])
            hidden = max(1, LENGTH - end)  # as it is there, in the last step, too
            scale = 1 + (guidance - 1) * (LENGTH - hidden) / LENGTH
            for place in order[start:end]:
                noise = walk_noise(canvas.sampler.seeds[row : row + 1], torch.tensor([[place]]), made.config)[0, 0]
                x = noise[-1].double()
                for index in reversed(range(3)):
                    step = diffusion.steps[index]
                    time = torch.tensor([step.time])
                    a, b = (net(x[None], time, net.cond_embed(z[None, place]))[0] for z in (told, free))
                    guess = b[:4] + scale * (a[:4] - b[:4])
                    mean, log_variance = diffusion.gaussian(step, torch.cat([guess, a[4:]]), x)
                    x = mean + 0.9 * (0.5 * log_variance).exp() * noise[index]
                values[place] = x
        assert torch.allclose(values, canvas.values[row], atol=1e-8)
    alone, _ = tiny_mar.draw(target, NoDrafter(), Conditioned(), 1, seed=4, guidance=guidance, temperature=0.9)
    assert torch.allclose(alone.values[0], canvas.values[0], atol=1e-9)


def test_a_budget_ends_a_picture_early_and_drafts_end_with_it(made: Mar) -> None:
    target = MarTarget(made)
    whole, _ = tiny_mar.draw(target, NoDrafter(), Conditioned(), 2, seed=1)
    for drafter in (NoDrafter(), MarDrafter(made, 3, alone=0.0)):
        part, rounds = tiny_mar.draw(target, drafter, Conditioned(), 2, 7, seed=1)
        assert sum(len(done.tokens[0]) for done in rounds) == 7
        known = part.order[:, :7, None].expand(-1, -1, tiny_mar.SIZE)
        assert torch.allclose(part.values.gather(1, known), whole.values.gather(1, known), atol=1e-9)
        assert (part.values != 0).any(-1).sum(-1).tolist() == [7, 7]


def test_rows_of_a_batch_are_those_of_single_calls(made: Mar) -> None:
    """Also where they are out of step: a row leaves its last group to the target, whatever room slower rows have."""
    target, drafter, apart = MarTarget(made), MarDrafter(tiny_mar.near(made, 0.02), 3, alone=0.0), False
    for seed in (4, 14, 24):
        together, rounds = tiny_mar.draw(target, drafter, Conditioned(), 4, seed=seed)
        apart |= any(len({len(places) for places in done.tokens}) > 1 for done in rounds)
        for row in range(4):
            alone, _ = tiny_mar.draw(target, drafter, Conditioned(), 1, seed=seed + row, first=row)
            assert torch.allclose(alone.values[0], together.values[row], atol=1e-9)
    assert apart


def test_the_target_takes_the_first_steps_alone(made: Mar) -> None:
    rounds = tiny_mar.draw(MarTarget(made), MarDrafter(made, 2, alone=0.4), Conditioned(), 2)[1]
    assert [done.drafted[0] for done in rounds[1:4]] == [0, 0, 0]
    assert rounds[4].drafted[0] > 0


# Published weights -------------------------------------------------------------------------------------------------


def test_published_sizes_have_the_published_numbers_of_parameters() -> None:
    counts = {}
    for size in SIZES:
        with torch.device("meta"):
            made = Mar(published(size))
        weights = {name: weight for name, weight in made.state_dict().items() if not name.startswith("vae.")}
        counts[size] = sum(weight.numel() for weight in weights.values())
        assert settings(size).guidance_scale > 2.5
        if size == "base":
            assert weights["encoder_pos_embed_learned"].shape == (1, 320, 768)
            assert weights["fake_latent"].shape == (1, 768)
            assert weights["encoder_blocks.11.attn.qkv.weight"].shape == (2304, 768)
            assert weights["diffloss.net.res_blocks.5.adaLN_modulation.1.weight"].shape == (3072, 1024)
            assert weights["diffloss.net.final_layer.linear.weight"].shape == (32, 1024)
            assert weights["diffloss.net.time_embed.mlp.0.weight"].shape == (1024, 256)
            assert "diffloss.net.final_layer.norm_final.weight" not in weights
    assert {size: math.ceil(count / 1e6) for size, count in counts.items()} == {"base": 208, "large": 479, "huge": 943}
    with pytest.raises(mmspec.Error, match="unknown size 'bse'; did you mean 'base'"):
        published("bse")


def published_vae(widths: tuple[int, ...], latent: int, blocks: int = 1) -> dict[str, Tensor]:
    """Random weights of a KL-VAE under the names of latent diffusion; attention on the way down at the last size."""
    made: dict[str, Tensor] = {}
    generator = torch.Generator().manual_seed(7)

    def put(name: str, *shape: int) -> None:
        made[f"{name}.weight"] = 0.2 * torch.randn(*shape, generator=generator) + (len(shape) == 1)
        made[f"{name}.bias"] = 0.1 * torch.randn(shape[0], generator=generator)

    def block(name: str, wide: int, out: int) -> None:
        put(f"{name}.norm1", wide)
        put(f"{name}.conv1", out, wide, 3, 3)
        put(f"{name}.norm2", out)
        put(f"{name}.conv2", out, out, 3, 3)
        if wide != out:
            put(f"{name}.nin_shortcut", out, wide, 1, 1)

    def attention(name: str, wide: int) -> None:
        put(f"{name}.norm", wide)
        for part in ("q", "k", "v", "proj_out"):
            put(f"{name}.{part}", wide, wide, 1, 1)

    last = len(widths) - 1
    put("encoder.conv_in", widths[0], 3, 3, 3)
    wide = widths[0]
    for level, out in enumerate(widths):
        for index in range(blocks):
            block(f"encoder.down.{level}.block.{index}", wide, out)
            wide = out
            if level == last:
                attention(f"encoder.down.{level}.attn.{index}", out)
        if level < last:
            put(f"encoder.down.{level}.downsample.conv", out, out, 3, 3)
    put("decoder.conv_in", widths[-1], latent, 3, 3)
    for side in ("encoder", "decoder"):
        block(f"{side}.mid.block_1", widths[-1], widths[-1])
        attention(f"{side}.mid.attn_1", widths[-1])
        block(f"{side}.mid.block_2", widths[-1], widths[-1])
    for level in reversed(range(len(widths))):
        for index in range(blocks + 1):
            block(f"decoder.up.{level}.block.{index}", wide, widths[level])
            wide = widths[level]
        if level:
            put(f"decoder.up.{level}.upsample.conv", wide, wide, 3, 3)
    put("encoder.norm_out", widths[-1])
    put("encoder.conv_out", 2 * latent, widths[-1], 3, 3)
    put("decoder.norm_out", widths[0])
    put("decoder.conv_out", 3, widths[0], 3, 3)
    put("quant_conv", 2 * latent, 2 * latent, 1, 1)
    put("post_quant_conv", latent, latent, 1, 1)
    made["loss.logvar"] = torch.zeros(1)
    return made


def decoded(weights: dict[str, Tensor], latents: Tensor, levels: int, groups: int, blocks: int = 1) -> Tensor:
    """What the published decoder makes of latents, by its own names."""

    def norm(name: str, x: Tensor) -> Tensor:
        return group_norm(x, groups, weights[f"{name}.weight"], weights[f"{name}.bias"], 1e-6)

    def conv(name: str, x: Tensor) -> Tensor:
        weight = weights[f"{name}.weight"]
        return conv2d(x, weight, weights[f"{name}.bias"], padding=weight.shape[-1] // 2)

    def block(name: str, x: Tensor) -> Tensor:
        inner = conv(
            f"{name}.conv2", silu(norm(f"{name}.norm2", conv(f"{name}.conv1", silu(norm(f"{name}.norm1", x)))))
        )
        return inner + (conv(f"{name}.nin_shortcut", x) if f"{name}.nin_shortcut.weight" in weights else x)

    def attention(name: str, x: Tensor) -> Tensor:
        q, k, v = (conv(f"{name}.{part}", norm(f"{name}.norm", x)).flatten(2) for part in "qkv")
        shares = (q.transpose(1, 2) @ k / x.shape[1] ** 0.5).softmax(-1)
        return x + conv(f"{name}.proj_out", (v @ shares.transpose(1, 2)).view_as(x))

    x = conv("decoder.conv_in", conv("post_quant_conv", latents))
    x = block("decoder.mid.block_2", attention("decoder.mid.attn_1", block("decoder.mid.block_1", x)))
    for level in reversed(range(levels)):
        for index in range(blocks + 1):
            x = block(f"decoder.up.{level}.block.{index}", x)
        if level:
            x = conv(f"decoder.up.{level}.upsample.conv", interpolate(x, scale_factor=2.0))
    return conv("decoder.conv_out", silu(norm("decoder.norm_out", x)))


@torch.no_grad()
def test_published_weights_find_their_places() -> None:
    widths = (8, 8, 16)
    shape = {
        "block_out_channels": widths,
        "down_block_types": ("DownEncoderBlock2D",) * 2 + ("AttnDownEncoderBlock2D",),
        "up_block_types": ("UpDecoderBlock2D",) * 3,
        "latent_channels": tiny_mar.SIZE,
        "norm_num_groups": 4,
    }
    old = tiny_mar.model(vae_config=shape).float()
    model = {name: weight.clone() for name, weight in old.state_dict().items() if not name.startswith("vae.")}
    picture = published_vae(widths, tiny_mar.SIZE)
    new = tiny_mar.model(3, vae_config=shape).float()
    new.load_state_dict(convert(model, picture))
    for name, weight in model.items():
        assert torch.equal(new.state_dict()[name], weight), name
    tokens = torch.randn(2, LENGTH, tiny_mar.SIZE, generator=torch.Generator().manual_seed(1))
    latents = tokens.transpose(1, 2).reshape(2, tiny_mar.SIZE, 4, 4) / new.config.latent_scale
    assert torch.allclose(new.pixels(tokens), decoded(picture, latents, 3, 4), atol=1e-3)
    assert new.pixels(tokens).shape == (2, 3, 16, 16)
    with pytest.raises(CheckpointError, match="'head.weight' is no weight of a MAR"):
        convert({"head.weight": torch.zeros(1)}, {})
    with pytest.raises(CheckpointError, match="'model.conv.weight' is no weight of the VAE"):
        convert({}, {"model.conv.weight": torch.zeros(1)})


# Folders -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Captions as conditions, with a drafter beside it."""
    place = tmp_path_factory.mktemp("mar") / "tiny"
    tiny_mar.save(place, tiny_mar.captioned(), tiny_images.tokenizer())
    helper = MarDrafter(tiny_mar.near(tiny_mar.without_vae(tiny_mar.captioned()), 0.02).float(), 2, alone=0.2)
    save_drafter(helper, place / "drafters" / "mar", MarTarget(tiny_mar.captioned().float()))
    return place


def test_a_model_without_a_drafter_beside_it_says_where_one_comes_from(tmp_path: Path) -> None:
    tiny_mar.save(tmp_path / "alone", tiny_mar.captioned(), tiny_images.tokenizer())
    with pytest.raises(CheckpointError, match="mmspec train target mar-mini"):
        mmspec.load(tmp_path / "alone", "mar")


def test_a_folder_draws_captions_with_the_drafter_beside_it_if_asked(folder: Path) -> None:
    assert isinstance(mmspec.load(folder).drafter, NoDrafter)
    pipe = mmspec.load(folder, "mar")
    assert isinstance(pipe.drafter, MarDrafter)
    assert (pipe.drafter.length, pipe.drafter.alone) == (2, 0.2)
    assert isinstance(pipe.rule, Conditioned)  # the exact rule of continuous tokens
    out = pipe(prompt="a red circle", seed=3)
    assert out.image.size == (8, 8)
    assert sorted(out.token_ids) == list(range(LENGTH))
    assert 0 < sum(out.stats.accept_lengths) < LENGTH
    assert (out.text, out.finish, out.stats.lossless, out.prompt_tokens) == ("", "length", True, 3)
    assert out.stats.tau == LENGTH / out.stats.target_calls
    again = pipe(prompt="a red circle", seed=3)
    assert again.image.tobytes() == out.image.tobytes()
    assert pipe(prompt="a blue circle", seed=3).image.tobytes() != out.image.tobytes()
    both = pipe(prompt=["a red circle", "two blue square"], seed=3)
    assert [one.image.tobytes() == out.image.tobytes() for one in both] == [True, False]
    plain = pipe.with_drafter("none")(prompt="a red circle", seed=3)
    assert plain.stats.accept_lengths == [0] * 6
    face = mmspec.generate(prompt="a red circle", model=folder, drafter="none", seed=3)
    assert face.image.tobytes() == plain.image.tobytes()
    guided = pipe(prompt="a red circle", seed=3, guidance=3.0, temperature=0.8)
    assert guided.image.tobytes() != out.image.tobytes()


def test_pictures_that_differ_do_not_agree(folder: Path) -> None:
    """Tokens of continuous pictures are places: they are the same in any case."""
    result = compare(mmspec.load(folder, drafter="mar"), None, "a circle", temperature=1.0, seed=3)
    assert result.autoregressive.token_ids == result.speculative.token_ids
    assert not result.agree
    assert not result.must_agree
    assert "draws with noise of its own" in result.verdict
    assert compare(mmspec.load(folder, drafter="none"), None, "a circle", temperature=1.0, seed=3).agree


def test_no_head_is_trained_for_it(folder: Path) -> None:
    target = mmspec.load(folder).target
    for method in ("eagle2", "medusa"):
        with pytest.raises(MismatchError, match="does not write token by token"):
            find_recipe(method, "image")().check(target)


def test_a_request_may_ask_for_other_steps(folder: Path) -> None:
    pipe = mmspec.load(folder, drafter="none")
    usual, fewer = (pipe(prompt="a red circle", seed=3, steps=steps) for steps in (6, 2))
    assert usual.image.tobytes() == pipe(prompt="a red circle", seed=3).image.tobytes()
    assert (usual.stats.target_calls, fewer.stats.target_calls) == (6, 2)
    assert sorted(fewer.token_ids) == list(range(LENGTH))
    assert fewer.image.tobytes() != usual.image.tobytes()
    drafted = mmspec.load(folder, "mar")(prompt="a red circle", seed=3, steps=2)
    assert drafted.stats.target_calls <= 2


def test_rules_and_shapes_by_name(folder: Path) -> None:
    for name, lossless in (("continuous-conditioned", True), ("continuous", False), ("continuous-released", False)):
        out = mmspec.load(folder, "mar", acceptance=name)(prompt="a red circle", seed=3)
        assert out.stats.lossless is lossless
        assert len(out.token_ids) == LENGTH
    assert isinstance(mmspec.load(folder, acceptance=Released()).rule, Released)
    assert len(mmspec.load(folder, "mar", dtype="bfloat16")(prompt="a red circle").token_ids) == LENGTH
    pipe = mmspec.load(folder, "mar", shape=mmspec.Shape(1))
    assert len(pipe(prompt="a red circle").token_ids) == LENGTH


@pytest.mark.parametrize("name", ["ratio", "match", "block", "typical", "lantern", "gsd"])
def test_rules_for_ids_are_refused(folder: Path, name: str) -> None:
    with pytest.raises(MismatchError, match="judges single ids, and MAR emits continuous tokens: use 'exact'"):
        mmspec.load(folder, "none", name)


@pytest.mark.parametrize("name", ["eagle2", "prompt-lookup", "hybrid", "jacobi", "spd"])
def test_drafters_of_ids_are_refused(folder: Path, name: str) -> None:
    with pytest.raises(MismatchError, match="drafts single ids, and MAR emits continuous tokens: use 'none', 'mar'"):
        mmspec.load(folder, name)


@pytest.mark.parametrize("name", ["continuous", "continuous-conditioned", "continuous-released"])
def test_rules_for_continuous_tokens_judge_no_ids(name: str) -> None:
    janus = tiny_images.janus_model()
    with pytest.raises(MismatchError, match="judges continuous tokens, and the model emits single ids: use 'exact'"):
        mmspec.load(janus, "none", name, processor=tiny_images.janus_processor())


def test_a_stream_shows_what_is_drawn_so_far(folder: Path) -> None:
    pipe = mmspec.load(folder, drafter="none")
    pieces = list(pipe.stream(prompt="a red circle", seed=3))
    assert [len(piece.tokens) for piece in pieces] == [0, 1, 2, 2, 3, 4, 4]
    known: set[int] = set()
    for piece in pieces[:4]:
        known |= set(piece.tokens)
        seen = {at for at in range(LENGTH) if piece.image.getpixel((2 * (at % 4), 2 * (at // 4))) != (127, 127, 127)}
        assert seen == known


def test_classes_are_drawn_by_number_and_name(tmp_path: Path) -> None:
    made = tiny_mar.model()
    made.config.id2label = {3: "goldfish"}
    pipe = mmspec.load(tiny_mar.save(tmp_path, made))
    assert pipe(prompt="goldfish", seed=2).image.tobytes() == pipe(prompt="3", seed=2).image.tobytes()
    assert pipe(prompt="7", seed=2).image.tobytes() != pipe(prompt="3", seed=2).image.tobytes()
    loaded = mmspec.load(Mar.from_pretrained(tmp_path), processor=pipe.processor)
    assert loaded(prompt="3", seed=2).image.tobytes() == pipe(prompt="3", seed=2).image.tobytes()
    tensors = pipe.generate(input_ids=torch.tensor([[3]]), seed=2)
    assert tensors.image.tobytes() == pipe(prompt="3", seed=2).image.tobytes()
    with pytest.raises(mmspec.Error, match="did you mean 'goldfish'"):
        pipe(prompt="goldfisch")
    with pytest.raises(mmspec.Error, match="has 2 words, the model's context is 1"):
        pipe.generate(input_ids=torch.tensor([[3, 4]]))


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({"prompt": "a red unicorn"}, r"words that the model was never told: \['unicorn'\]"),
        ({"prompt": "a red circle above a blue square and two"}, "has 9 words, the model's context is 8: shorten it"),
        ({"prompt": "a", "temperature": 0}, "temperature=0 is not valid: tokens are drawn from densities"),
        ({"prompt": "a", "top_p": 0.9}, "top_p means nothing to MAR, whose tokens are continuous"),
        ({"prompt": "a", "guidance": 0}, "guidance=0 is not valid: a number above 0 is needed"),
        ({"prompt": "a", "steps": 17}, "steps=17 is not valid for 16 tokens: a whole number from 1 to 16"),
        ({"prompt": "a", "steps": 2.0}, "steps=2.0 is not valid"),
        ({"prompt": "a", "max_new_tokens": 0}, "max_new_tokens=0 is not valid"),
        ({"prompt": "a", "image": "vlm/samples/chart.png"}, "Mar does not see here: leave image out"),
    ],
)
def test_bad_requests_are_refused(folder: Path, request_: dict[str, Any], message: str) -> None:
    with pytest.raises(mmspec.Error, match=message):
        mmspec.load(folder, drafter="none")(**request_)


def test_drafters_that_do_not_fit_are_refused(folder: Path, tmp_path: Path, made: Mar) -> None:
    target = MarTarget(made)
    with pytest.raises(CheckpointError, match="this MAR has no VAE: it can draft for another, but not draw"):
        MarTarget(tiny_mar.model(vae_config=None))
    with pytest.raises(CheckpointError, match="guidance_schedule 'cosine' is not served: linear or constant"):
        MarTarget(tiny_mar.model(guidance_schedule="cosine"))
    for change, message in (
        ({"diffusion_steps": 2}, "the drafter has diffusion_steps 2, the target 3: they must be equal"),
        ({"buffer": 4}, "the drafter has buffer 4, the target 3"),
    ):
        with pytest.raises(mmspec.Error, match=message):
            MarDrafter(tiny_mar.model(**change)).bind(target)
    for wrong in ({"length": 0}, {"alone": 1.5}):
        with pytest.raises(InputError, match=f"{next(iter(wrong))}"):
            MarDrafter(made, **wrong)
    with pytest.raises(mmspec.Error, match="the drafter 'mar' is trained, and there is no such one for this model"):
        mmspec.load(tiny_mar.save(tmp_path / "a", tiny_mar.model()), drafter="mar")
    other = tiny_mar.save(tmp_path / "b", tiny_mar.near(tiny_mar.model()))
    assert len(mmspec.load(tmp_path / "a", drafter=other)(prompt="3").token_ids) == LENGTH
