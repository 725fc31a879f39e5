"""janus-mini can be trained: scenes and captions, both stages, going on where they stopped, and the finished folder."""

import math
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch.nn.functional import normalize, one_hot

import mmspec
from mmspec.errors import CheckpointError, InputError, MismatchError
from mmspec.image_ar.captions import WORD, Cell, Group, Kind, Said, kept, tell
from mmspec.image_ar.patches import NAME, Patches
from mmspec.image_ar.pretrain import read, train
from mmspec.image_ar.pretrain.architecture import (
    CODE_SIZE,
    PATCH,
    PIXELS,
    build_processor,
    build_tokenizer,
    janus_config,
)
from mmspec.image_ar.pretrain.codes import Autoencoder
from mmspec.image_ar.pretrain.contents import ANSWERS, UNTOLD, cells_of, content_loss, contents
from mmspec.image_ar.pretrain.draw import TOLD, Painter, weighed
from mmspec.image_ar.pretrain.sharpen import Sharpener, unlikeness
from mmspec.image_ar.pretrain.world import Scenes, collate, scene
from mmspec.image_ar.reader import Reader
from mmspec.pretrain.pixels import normalized
from mmspec.pretrain.places import place_loss


def painter() -> Painter:
    from transformers import JanusForConditionalGeneration

    tokenizer = build_tokenizer(scene("tokenizer", index).caption.text for index in range(200))
    torch.manual_seed(0)
    model = JanusForConditionalGeneration(janus_config(tokenizer, 4, 32))
    return Painter(model, Patches(PATCH, CODE_SIZE), tokenizer)


def test_a_scene_is_made_from_its_seed_and_keeps_what_its_caption_says() -> None:
    made = [scene("a", index) for index in range(60)]
    for index, one in enumerate(made):
        assert one.pixels.shape == (3, PIXELS, PIXELS)
        assert torch.equal(scene("a", index).pixels, one.pixels)
        assert scene("a", index).caption == one.caption
        assert all(kept(one.said, one.seen))
        for group in one.said.groups:
            assert f"{group.kind.color} {group.kind.shape}" in one.caption.text
            assert group.kind.shape in [one.seen[cell].shape for cell in group.cells]
    assert {one.said.side for one in made} > {None, "above", "to the left of"}
    assert len({one.caption.text for one in made}) == 60
    assert not torch.equal(scene("b", 0).pixels, made[0].pixels)


def test_the_grain_makes_two_patches_of_one_ground_differ() -> None:
    pixels = scene("a", 3).pixels.float()
    corner = pixels[:, :4, :4].mean((1, 2))
    spread = pixels.unfold(1, 4, 4).unfold(2, 4, 4).mean((3, 4)).std((1, 2))
    assert (spread > 4).all()
    assert (corner > 60).all()  # no shape in the corner itself


TWO = Said((Group(Kind("red", "circle"), ((0, 0),), False), Group(Kind("blue", "square"), ((2, 0), (2, 2)), False)),
           "above", "sky")  # fmt: skip


@pytest.mark.parametrize(
    ("seen", "facts"),
    [
        ({(0, 0): "red circle", (2, 0): "blue square", (2, 2): "blue square"}, (True, True, True, True)),
        ({(1, 1): "red circle", (2, 0): "blue square", (2, 1): "blue square"}, (True, True, True, True)),
        ({(2, 1): "red circle", (2, 0): "blue square", (1, 1): "blue square"}, (True, True, False, True)),
        ({(0, 0): "red circle", (2, 2): "blue square"}, (True, False, True, False)),
        ({(0, 0): "red square", (2, 0): "blue square", (2, 2): "blue square"}, (False, True, False, True)),
        ({}, (False, False, False, False)),
    ],
)
def test_a_picture_is_judged_by_what_its_caption_says(seen: dict[Cell, str], facts: tuple[bool, ...]) -> None:
    assert tuple(kept(TWO, {cell: Kind(*name.split()) for cell, name in seen.items()})) == facts


def test_a_thing_whose_place_is_said_must_be_there() -> None:
    said = Said((Group(Kind("red", "star"), ((1, 2),), True),), None, None)
    assert kept(said, {(1, 2): Kind("red", "star")}) == [True, True]
    assert kept(said, {(1, 1): Kind("red", "star")}) == [False, True]


def test_every_word_has_an_owner_and_patches_know_theirs() -> None:
    caption = tell(TWO, random.Random(1))
    words = WORD.findall(caption.text)
    assert len(words) == len(caption.owners)
    of = {owner: {word for word, mine in zip(words, caption.owners, strict=True) if mine == owner} for owner in (0, 1)}
    assert of[0] >= {"red", "circle"}
    assert of[1] >= {"above", "two", "blue", "squares"}

    one = next(made for index in range(99) if (made := scene("a", index)).said.groups[0].placed)
    (row, column), side = one.said.groups[0].cells[0], one.owners.shape[0]
    middle = one.owners[int((row + 0.5) * side / 3), int((column + 0.5) * side / 3)]
    assert middle == 0
    model = painter()
    ids, _ = model.prompts([one.caption.text, "draw a very long caption of nothing at all , nothing at all , nothing"])
    right = model.words_of([one.caption], one.owners[None], ids.shape[1])
    told = [
        model.tokenizer.convert_ids_to_tokens(int(token)) for token in ids[0][right[0][one.owners.flatten() == 0][0]]
    ]
    assert {one.said.groups[0].kind.color, one.said.groups[0].kind.shape} <= set(told)


def test_heads_are_taught_in_training_only() -> None:
    model = painter()
    batch = collate([Scenes("a", 4)[index] for index in range(2)])
    plain = model.eval()(**batch)
    model.train()
    torch.manual_seed(0)  # with this seed, no caption is hidden
    taught = model(**batch)
    assert torch.allclose(taught["logits"], plain["logits"], atol=1e-5)
    assert taught["loss"] > plain["loss"] + 0.1
    loss = taught["loss"] - plain["loss"].detach()
    loss.backward()
    queries = model.model.model.language_model.layers[1].self_attn.q_proj.weight.grad
    assert queries is not None
    assert queries[:32].abs().sum() > 0


def test_places_are_asked_row_by_row() -> None:
    squares = torch.arange(16)
    right = torch.cat([one_hot(squares // 4, 4), one_hot(squares % 4, 4), torch.zeros(16, 2)], 1).float()
    assert float(place_loss(right[None])) < 0.02
    assert float(place_loss(torch.zeros(1, 16, 10))) == pytest.approx(2 * math.log(4), abs=1e-4)
    assert float(place_loss(right.roll(1, 0)[None])) > 5.0  # what stands for a square tells the place of another one


def test_the_first_and_the_third_quarter_of_the_layers_are_asked() -> None:
    model, batch = painter().train(), collate([scene("a", 0)])
    ids, mask = model.prompts([batch["captions"][0].text])
    _, early, late = model.read(ids, mask, model.codes(batch["pixels"]))
    assert early.shape == late.shape == (1, 256, 32)
    layers = model.model.model.language_model.layers
    for asked, last in ((early, 0), (late, 2)):
        model.zero_grad()
        place_loss(asked).backward(retain_graph=True)
        assert layers[last].mlp.down_proj.weight.grad.abs().sum() > 0
        assert layers[last + 1].mlp.down_proj.weight.grad is None


def test_a_cell_is_what_the_middles_of_its_codes_lie_in() -> None:
    cells = cells_of(16).view(16, 16)
    assert [int((cells[0] == column).sum()) for column in range(3)] == [5, 6, 5]
    assert cells[8].tolist() == [3] * 5 + [4] * 6 + [5] * 5
    assert torch.equal(cells.T, cells_of(16).view(16, 16) % 3 * 3 + cells_of(16).view(16, 16) // 3)


def answers(labels: torch.Tensor) -> list[torch.Tensor]:
    """Features that answer each question as its labels do, and colour 0 where nothing is asked."""
    return [one_hot(label.clamp(min=0), count).float() for label, count in zip(labels, ANSWERS, strict=True)]


def test_codes_are_asked_for_what_stands_in_their_cell_and_for_what_is_to_come() -> None:
    one = scene("a", 0)
    parts, told = answers(one.questions), one.questions[None]
    right = torch.cat(parts, 1)[None]
    assert float(content_loss(right, told)) < 1.0
    assert float(content_loss(right.roll(5, 1), told)) > 2.0  # what stands in another column
    for question in range(len(parts)):
        wrong = [part.roll(1, 1) if place == question else part for place, part in enumerate(parts)]
        assert float(content_loss(torch.cat(wrong, 1)[None], told)) > 2.0
    flat = sum(map(math.log, ANSWERS))
    assert float(content_loss(torch.zeros(1, 256, sum(ANSWERS)), told)) == pytest.approx(flat, abs=1e-4)
    assert float(content_loss(torch.randn(1, 256, 40), torch.full_like(told, UNTOLD))) == 0.0


def test_the_questions_know_the_scene() -> None:
    for index in range(20):
        one = scene("a", index)
        shape, color, coming, next_shape, next_color = (labels.view(16, 16) for labels in one.questions)
        assert int(coming[0, 0]) == len(one.seen)
        assert int(coming[15, 15]) == 0
        assert int(coming.flatten().diff().max()) == 0
        assert torch.equal(next_color == UNTOLD, coming == 0)
        assert torch.equal(next_shape == UNTOLD, coming == 0)
        shapes, colors = contents(one.seen)
        assert torch.equal(shape[2::6, 2::6].flatten(), shapes)
        assert torch.equal(color[2::6, 2::6].flatten(), colors)
        steps = (coming.flatten().diff() != 0).nonzero().flatten().tolist()  # the last codes of first rows
        for place in steps:
            assert next_shape.flatten()[place] == shape.flatten()[place] - 1
            assert next_color.flatten()[place] == color.flatten()[place]
        for group, known in enumerate(one.said.groups):
            if known.placed:
                first = (one.owners.flatten() == group).nonzero()[0]
                assert int(coming.flatten()[first + 5]) < int(coming.flatten()[first])  # things are five codes wide


def test_hidden_captions_are_not_asked_for_what_they_would_have_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mmspec.image_ar.pretrain.draw.FREE", 1.1)
    model, batch = painter().train(), collate([scene("a", index) for index in range(4)])
    assert int((batch["questions"] != UNTOLD).sum()) > 0
    untold = {"questions": torch.full_like(batch["questions"], UNTOLD)}
    with torch.no_grad():
        hidden, other = model(**batch)["loss"], model(**{**batch, **untold})["loss"]
    assert float(hidden) == pytest.approx(float(other))
    assert math.isfinite(hidden)


def test_codes_that_the_caption_decides_count_more() -> None:
    each, told = torch.tensor([[1.0, 2.0, 6.0]]), torch.tensor([[False, True, False]])
    assert float(weighed(each, told, TOLD)) == pytest.approx((1 + TOLD * 2 + 6) / (2 + TOLD))
    assert float(weighed(each, torch.zeros_like(told), TOLD)) == pytest.approx(3.0)
    assert float(weighed(each, told, 1.0)) == pytest.approx(3.0)


def test_the_loss_is_that_of_the_drawing_target() -> None:
    """Teacher-forced logits of a padded batch equal those that the target says at every place."""
    model = painter().double().eval()
    captions = [scene("a", index).caption.text for index in range(2)]
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
    batch = collate([scene("a", index) for index in range(2)])
    assert 3 < model.float()(**batch)["loss"].item() < 12


def test_both_stages_learn_a_batch_by_heart() -> None:
    model = painter()
    batch = collate([Scenes("a", 4)[index] for index in range(2)])
    coder = Autoencoder(model.model.model.vqmodel).train()
    optimizer = torch.optim.Adam(coder.parameters(), 2e-3)
    losses = []
    for _ in range(10):
        loss = coder(pixels=batch["pixels"][:, :, :32, :32])["loss"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]
    finished = coder.finish().requires_grad_(False)
    lengths = finished.quantize.embedding.weight.norm(dim=-1)
    assert torch.allclose(lengths, torch.ones_like(lengths), atol=1e-5)
    ours = coder.eval()(**batch)["made"]
    codes = coder.patches.codes(normalized(batch["pixels"]), finished.quantize.embedding.weight)
    assert torch.allclose(finished.decode(codes), ours, atol=1e-4)  # the stock decoding

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


def test_a_code_says_nothing_of_other_patches() -> None:
    torch.manual_seed(0)
    patches = Patches(PATCH, CODE_SIZE).double()
    one, other = (normalized(scene("a", index).pixels[None]).double() for index in (0, 1))
    mixed = other.clone()
    mixed[:, :, 20:40, 8:24] = one[:, :, 20:40, 8:24]  # patches of 4 x 4 pixels
    states, others, both = (patches(seen)[0] for seen in (one, other, mixed))
    inside = torch.zeros(16, 16, 1, dtype=torch.bool)
    inside[5:10, 2:6] = True
    assert torch.allclose(both, torch.where(inside, states, others), atol=1e-12)
    assert not torch.allclose(states[5:10, 2:6], others[5:10, 2:6], atol=1e-3)


def test_what_finds_the_codes_lies_beside_the_checkpoint(tmp_path: Path) -> None:
    patches, pixels, book = Patches(PATCH, CODE_SIZE), normalized(scene("a", 0).pixels[None]), torch.randn(512, 8)
    with pytest.raises(CheckpointError, match=r"has no patches.safetensors that fits, which makes the codes"):
        Patches.read(tmp_path)
    patches.write(tmp_path)
    assert torch.equal(Patches.read(tmp_path).codes(pixels, book), patches.codes(pixels, book))
    (tmp_path / NAME).write_bytes(b"no weights")
    with pytest.raises(CheckpointError, match=r"patches.safetensors"):
        Patches.read(tmp_path)


def test_training_goes_on_when_a_code_is_moved() -> None:
    coder = Autoencoder(painter().model.model.vqmodel).train()
    coder.use[:] = 0.0
    loss = coder(pixels=collate([scene("a", 0)])["pixels"][:, :, :32, :32])["loss"]
    loss.backward()
    assert (coder.use > 0).all()


def test_unused_codes_are_moved_to_where_pictures_are() -> None:
    coder = Autoencoder(painter().model.model.vqmodel)
    coder.use[:] = 0.0
    coder.use[0] = 1.0
    states = normalize(torch.randn(30, 8), dim=-1)
    before = coder.vq.quantize.embedding.weight[0].clone()
    coder._tend(torch.zeros(30, dtype=torch.long), states)
    weight = coder.vq.quantize.embedding.weight
    assert torch.equal(weight[0], before)
    assert all((row == states).all(-1).any() for row in weight[1:20])


def test_a_sharpened_decoder_draws_the_same_codes_and_nothing_else_learns() -> None:
    vq = painter().model.model.vqmodel
    sharpener = Sharpener(vq, Patches(PATCH, CODE_SIZE), Reader((8, 8, 8, 8))).train()
    learning = {name for name, weight in sharpener.named_parameters() if weight.requires_grad}
    assert learning == {f"vq.{name}" for name, _ in vq.named_parameters() if name.startswith(("decoder", "post_"))}
    before = {name: value.clone() for name, value in sharpener.state_dict().items()}
    pixels = collate([scene("a", 0), scene("a", 1)])["pixels"]
    optimizer = torch.optim.Adam([w for w in sharpener.parameters() if w.requires_grad], 2e-3)
    losses = []
    for _ in range(8):
        loss = sharpener(pixels=pixels)["loss"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.9 * losses[0]
    moved = {name for name, value in sharpener.state_dict().items() if not torch.equal(value, before[name])}
    assert moved == learning  # not the critic's running means either


def test_pictures_are_unlike_by_the_directions_of_their_features() -> None:
    maps = torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    critic: Any = SimpleNamespace(stages=lambda pixels: [pixels, 2 * pixels])
    assert unlikeness(critic, 5 * maps, maps).item() == pytest.approx(0, abs=1e-6)
    assert unlikeness(critic, -maps, maps).item() == pytest.approx(4 + 4, abs=1e-4)


@pytest.mark.parametrize(
    ("trainer", "option", "count"),
    [(train, "--batch", 0), (train, "--deep-steps", -1), (train, "--width", 16), (read, "--held-out", 0)],
)
def test_counts_that_teach_nothing_are_refused_first(trainer: Any, option: str, count: int, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"{option} {count} is not valid: at least"):
        trainer.main([option, str(count), "--out", str(tmp_path / "out"), "--run", str(tmp_path / "run")])
    assert not list(tmp_path.iterdir())


def test_a_critic_begins_alike_whatever_was_drawn_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a run goes on: finished stages draw nothing."""
    monkeypatch.setattr(train, "train_stage", lambda *stage, **more: None)
    torch.manual_seed(1)
    first = train.learnt_critic(tmp_path, 2, 5)
    second = train.learnt_critic(tmp_path, 2, 5)
    for one, other in zip(first.state_dict().values(), second.state_dict().values(), strict=True):
        assert torch.equal(one, other)
    assert not torch.equal(first.shapes.weight, train.learnt_critic(tmp_path, 2, 6).shapes.weight)


@pytest.mark.slow
def test_the_command_trains_goes_on_and_writes_a_folder_that_draws(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, out = tmp_path / "run", tmp_path / "janus-mini"
    small = [
        "--picture-batch",
        "2",
        "--batch",
        "2",
        "--layers",
        "4",
        "--shallow",
        "2",
        "--width",
        "32",
        "--threads",
        "1",
    ]
    steps = ["--picture-steps", "2", "--critic-steps", "1", "--sharp-steps", "1", "--steps", "2"]
    command = [*small, *steps, "--deep-steps", "2", "--even-steps", "2", "--out", str(out), "--run", str(run)]

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
    card = (out / "README.md").read_text()
    assert [line.split(":")[0] for line in card.splitlines() if line.startswith("- ")] == [
        "- codes", "- critic", "- sharp", "- shallow", "- deep", "- even",
    ]  # fmt: skip
    pipe = mmspec.load(out)
    drawn = pipe(prompt="a red circle at the top left", seed=1)
    assert drawn.image.size == (PIXELS, PIXELS)
    assert len(drawn.token_ids) == 256
    assert pipe.with_drafter("none")(prompt="a red circle at the top left", seed=1).token_ids == drawn.token_ids
    with pytest.raises(InputError, match=r"words that the model was never told: \['unicorn'\]"):
        pipe(prompt="a red unicorn")
    assert build_processor(pipe.processor.tokenizer).num_image_tokens == 256

    with pytest.raises(MismatchError, match=r"cannot go on from .*smolvlm-mini, a smolvlm checkpoint"):
        train.read_start("smolvlm-mini")
    with pytest.raises(mmspec.Error, match="janus-mini"):
        train.read_start("janus-minni")
    further = tmp_path / "further"
    more = ["--sharp-steps", "0", "--deep-steps", "2", "--even-steps", "2", "--seed", "7"]
    train.main([*small, *more, "--start", str(out), "--out", str(further), "--run", str(tmp_path / "more")])
    assert "(this one with `--start`, from a finished `janus-mini`)" in (further / "README.md").read_text()
    assert "- more-7: the decoder of the start" in (further / "README.md").read_text()
    old, new = (load_file(folder / "model.safetensors") for folder in (out, further))
    moved = {name.split(".")[1] for name in old if not torch.equal(old[name], new[name])}
    assert moved <= {"language_model", "generation_embeddings", "generation_aligner", "generation_head"}
    assert "language_model" in moved
