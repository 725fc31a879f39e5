"""janus-mini can be trained: scenes and captions, both stages, going on where they stopped, and the finished folder."""

from pathlib import Path

import pytest
import torch

import mmspec
from mmspec.errors import InputError
from mmspec.image_ar.pretrain import train
from mmspec.image_ar.pretrain.architecture import PIXELS, build_processor, build_tokenizer, janus_config
from mmspec.image_ar.pretrain.codes import Autoencoder
from mmspec.image_ar.pretrain.draw import Painter
from mmspec.image_ar.pretrain.world import Scenes, collate, scene

COLOURS = ("red", "green", "blue", "yellow", "orange", "purple", "black")


def painter() -> Painter:
    from transformers import JanusForConditionalGeneration

    tokenizer = build_tokenizer(scene("tokenizer", index).caption for index in range(200))
    torch.manual_seed(0)
    return Painter(JanusForConditionalGeneration(janus_config(tokenizer, 1, 32)), tokenizer)


def test_a_scene_is_made_from_its_seed_and_says_what_it_shows() -> None:
    made = [scene("a", index) for index in range(40)]
    for index, one in enumerate(made):
        assert one.pixels.shape == (3, PIXELS, PIXELS)
        assert torch.equal(scene("a", index).pixels, one.pixels)
        assert scene("a", index).caption == one.caption
        assert 1 <= len(one.facts.things) <= 3
        for thing in one.facts.things:
            assert f"{thing.color} {thing.shape} at the" in one.caption
        said = sum(one.caption.count(f"{colour} ") for colour in COLOURS)
        assert said == len(one.facts.things)
    assert len({one.caption for one in made}) == 40
    assert not torch.equal(scene("b", 0).pixels, made[0].pixels)


def test_the_loss_is_that_of_the_drawing_target() -> None:
    """Teacher-forced logits of a padded batch equal those that the target says at every place."""
    model = painter().double().eval()
    pixels = torch.stack([scene("a", index).pixels for index in range(2)])
    captions = [scene("a", index).caption for index in range(2)]
    ids, mask = model.prompts(captions)
    codes = torch.randint(0, 512, (2, 256), generator=torch.Generator().manual_seed(0))
    from mmspec.image_ar.janus import Janus

    model.model.generation_config.generation_kwargs = {"boi_token_id": model.start}
    target = Janus(model.model, model.tokenizer)
    told, free = model.logits(ids, mask, codes), model.logits(model.hidden(ids), mask, codes)
    from mmspec.contract import Needs
    from mmspec.sampling import Sampler, Sampling
    from mmspec.tree import chain

    inputs = {"input_ids": ids, "attention_mask": mask, "guidance": 3.0, "max_new_tokens": 256}
    with torch.no_grad():
        state = target.prefill(inputs, Needs(), Sampler(Sampling(), 2, torch.device("cpu")))
        state.emitted = torch.ones_like(state.emitted)
        verified = target.verify(state, chain(codes[:, :20]))
    assert torch.allclose(verified.logits, (free + 3 * (told - free))[:, 1:21], atol=1e-9)
    assert 3 < model.float()(pixels, captions)["loss"].item() < 12


def test_both_stages_learn_a_batch_by_heart() -> None:
    model = painter()
    batch = collate([Scenes("a", 4)[index] for index in range(2)])
    coder = Autoencoder(model.model.model.vqmodel).train()
    optimizer = torch.optim.Adam(coder.parameters(), 2e-3)
    losses = []
    for _ in range(10):
        loss = coder(batch["pixels"][:, :, :32, :32])["loss"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]
    finished = coder.finish().requires_grad_(False)
    lengths = finished.quantize.embedding.weight.norm(dim=-1)
    assert torch.allclose(lengths, torch.ones_like(lengths), atol=1e-5)
    ours = coder(**batch)["made"]
    assert torch.allclose(finished(batch["pixels"].float() / 127.5 - 1)[0], ours, atol=1e-4)  # the stock decoding

    model.eval()
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.Adam(trained, 3e-3)
    losses = []
    for _ in range(10):
        loss = model(**batch)["loss"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.9 * losses[0]


def test_unused_codes_are_moved_to_where_pictures_are() -> None:
    coder = Autoencoder(painter().model.model.vqmodel)
    coder.use[:] = 0.0
    coder.use[0] = 1.0
    states = torch.nn.functional.normalize(torch.randn(30, 8), dim=-1)
    before = coder.vq.quantize.embedding.weight[0].clone()
    coder._tend(torch.zeros(30, dtype=torch.long), states)
    weight = coder.vq.quantize.embedding.weight
    assert torch.equal(weight[0], before)
    assert all((row == states).all(-1).any() for row in weight[1:20])


def test_the_command_trains_goes_on_and_writes_a_folder_that_draws(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, out = tmp_path / "run", tmp_path / "janus-mini"
    small = ["--picture-steps", "2", "--picture-batch", "2", "--steps", "2", "--batch", "2", "--layers", "1"]
    command = [*small, "--width", "32", "--threads", "1", "--out", str(out), "--run", str(run)]

    def stopped(*args: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(train, "Painter", stopped)
        with pytest.raises(KeyboardInterrupt):
            train.main(command)
    first = (run / "codes.safetensors").stat().st_mtime_ns
    assert not out.exists()
    train.main(command)
    assert (run / "codes.safetensors").stat().st_mtime_ns == first
    assert "Held-out losses: picture tokenizer" in (out / "README.md").read_text()
    pipe = mmspec.load(out)
    drawn = pipe(prompt="a large red circle at the top left", seed=1)
    assert drawn.image.size == (PIXELS, PIXELS)
    assert len(drawn.token_ids) == 256
    assert pipe.with_drafter("none")(prompt="a large red circle at the top left", seed=1).token_ids == drawn.token_ids
    with pytest.raises(InputError, match=r"words that the model was never told: \['unicorn'\]"):
        pipe(prompt="a red unicorn")
    assert build_processor(pipe.processor.tokenizer).num_image_tokens == 256
