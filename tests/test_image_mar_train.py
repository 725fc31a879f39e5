"""mar-mini can be trained: what its losses are least for; a run goes on where it stopped and ends in a folder."""

import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tiny_mar
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import mmspec
from mmspec.image_ar.captions import GROUND, GROUNDS, INKS, NOBODY, Caption
from mmspec.image_ar.mar_drafter import MarDrafter
from mmspec.image_ar.mar_head import Diffusion
from mmspec.image_ar.pretrain import mar_learn, mar_train
from mmspec.image_ar.pretrain.architecture import PIXELS, build_tokenizer
from mmspec.image_ar.pretrain.contents import UNTOLD, own_cells
from mmspec.image_ar.pretrain.mar_learn import Compressor, Revealer, first_head, outputs_of, spoken, spread
from mmspec.image_ar.pretrain.mar_shapes import SLOTS, TARGET, mar_config
from mmspec.image_ar.pretrain.mar_start import placed_by_waves
from mmspec.image_ar.pretrain.world import Scenes, collate, learnt_words, scene
from mmspec.image_ar.reader import Reader
from mmspec.miniworld.facts import SHAPES


class Fixed(nn.Module):
    """Says the same of every noisy token: a guess and a spread."""

    def __init__(self, guess: float, spread: float) -> None:
        super().__init__()
        self.said = nn.Parameter(torch.tensor([guess, spread]))
        self.cond_embed = nn.Identity()

    def forward(self, noisy: Tensor, times: Tensor, told: Tensor) -> Tensor:
        return self.said[:, None].expand(-1, noisy.shape[-1]).flatten().expand(len(noisy), -1)


def learnt(diffusion: Diffusion, net: nn.Module, tokens: Tensor, teacher: Any = None) -> tuple[float, float]:
    """What a `Fixed` says when it has learnt."""
    optimizer = torch.optim.Adam(net.parameters(), 0.05)
    for step in range(300):
        optimizer.param_groups[0]["lr"] = 0.05 * (1 - step / 300)
        optimizer.zero_grad()
        diffusion.loss(net, torch.zeros(len(tokens), 1), tokens, teacher).mean().backward()  # type: ignore[arg-type]
        optimizer.step()
    guess, spread = next(net.parameters()).tolist()
    return guess, spread


def test_the_loss_is_least_for_the_mean_and_the_variance_of_the_tokens() -> None:
    torch.manual_seed(0)
    one = tiny_mar.config(diffusion_steps=1, least_variance=0.01)
    tokens = 0.7 + 0.4 * torch.randn(400, 3)
    guess, spread = learnt(Diffusion(one), Fixed(0.0, 0.0), tokens)
    step = Diffusion(one).steps[0]
    variance = torch.tensor((spread + 1) / 2 * step.high + (1 - spread) / 2 * step.low).exp()
    assert guess == pytest.approx(0.7, abs=0.03)
    assert float(variance) == pytest.approx(0.16, rel=0.1)
    taught = learnt(Diffusion(one), Fixed(0.0, 0.0), tokens, lambda noisy, times: Fixed(-0.5, 0.3)(noisy, times, noisy))
    assert taught == pytest.approx((-0.5, 0.3), abs=0.03)


def test_the_bound_is_the_divergence_from_the_true_step() -> None:
    """With the tokens themselves as guess, it is zero where the head chooses the true variance."""
    diffusion = Diffusion(tiny_mar.config(diffusion_steps=6, least_variance=0.0))
    tokens = torch.ones(500, 2)
    torch.manual_seed(1)
    losses = diffusion.loss(Fixed(1.0, -1.0), torch.zeros(500, 1), tokens)  # type: ignore[arg-type]
    last = diffusion.steps[0]
    found = {round(value, 4) for value in losses.tolist()}
    assert len(found) == 2
    assert min(found, key=abs) == pytest.approx(0, abs=1e-3)
    assert any(value == pytest.approx(0.5 * last.low, abs=1e-3) for value in found)


def test_captions_fit_and_both_models_learn_a_batch_by_heart() -> None:
    captions = [scene("tokenizer", index).caption.text for index in range(600)]
    tokenizer = build_tokenizer(captions)
    assert max(len(tokenizer(text)["input_ids"]) for text in captions) <= SLOTS
    torch.manual_seed(0)
    small = {**TARGET, "hidden_size": 32, "num_attention_heads": 2, "layers": 1, "head_layers": 1, "head_width": 32}
    made = mar_train.Mar(mar_config(len(tokenizer), 1.0, small, vae=True))
    compressor = Compressor(made.vae, Reader())
    batch = collate([Scenes("a", 2)[index] for index in range(2)])
    batch["pixels"] = batch["pixels"][:, :, :32, :32]
    losses = fitted(compressor, batch, 6)
    assert losses[-1] < 0.9 * losses[0]
    whole, noise = spread(compressor.vae)
    assert whole > 0
    assert 0 < noise < 1
    batch = collate([Scenes("a", 2)[index] for index in range(2)])
    revealer = Revealer(made, compressor.vae, tokenizer)
    assert revealer.tokens(batch["pixels"]).shape == (2, 64, 16)
    losses = fitted(revealer, batch, 8)
    assert min(losses[4:]) < losses[0]
    taught = Revealer(mar_train.Mar(mar_config(len(tokenizer), 1.0, small, vae=False)), compressor.vae, tokenizer, made)
    assert not any(weight.requires_grad for weight in made.parameters())
    losses = fitted(taught, batch, 8)
    assert min(losses[4:]) < losses[0]


@pytest.fixture(scope="module")
def revealer() -> Revealer:
    tokenizer = learnt_words()
    shape = {**TARGET, "hidden_size": 32, "num_attention_heads": 2, "layers": 5, "head_layers": 1, "head_width": 32}
    torch.manual_seed(0)
    return Revealer(mar_train.Mar(mar_config(len(tokenizer), 1.0, shape, vae=True)), Plain(), tokenizer)


def test_lessons_are_of_told_things_at_hidden_places(revealer: Revealer, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = collate([scene("a", index) for index in range(3)])
    wrong = torch.where(batch["questions"] == UNTOLD, UNTOLD, (batch["questions"] + 1) % 4)
    nobody = torch.full_like(batch["owners"], NOBODY)

    def loss(**changes: Any) -> float:
        torch.manual_seed(3)
        return revealer.train()(**{**batch, **changes})["loss"].item()  # type: ignore[no-any-return]

    assert loss(questions=wrong) != loss()
    assert loss(owners=nobody) < loss()
    with monkeypatch.context() as patch:
        told = loss()
        patch.setattr(Caption, "ground", None)
        assert loss() < told
    revealer.eval()
    plain = []
    for changes in ({}, {"questions": wrong}, {"owners": nobody}):
        torch.manual_seed(3)
        plain.append(revealer(**{**batch, **changes})["loss"].item())
    assert len(set(plain)) == 1
    with monkeypatch.context() as patch:
        patch.setattr(mar_learn, "FREE", 1.1)  # every caption is hidden
        assert loss(questions=wrong) == loss() == loss(owners=nobody)
        hidden_ground = loss()
        patch.setattr(Caption, "ground", None)
        assert loss() == hidden_ground

    right = torch.zeros(3, 64, SLOTS, dtype=torch.bool)
    answers = [torch.randn(3, SLOTS, 32), *torch.randn(len(revealer.asked) - 1, 3, SLOTS + 64, 32)]
    read = [torch.randn(3, SLOTS + 64, 96) for _ in revealer.looking]
    labels = torch.cat([own_cells(batch["questions"], 8), revealer.grounds(batch["captions"])], 1)
    things, hidden = torch.rand(3, 64) < 0.5, torch.rand(3, 64) < 0.5
    at_known = torch.where(hidden[:, None], labels, torch.where(labels == UNTOLD, UNTOLD, (labels + 1) % 4))
    assert revealer.lessons(answers, read, labels, right, things, hidden).equal(
        revealer.lessons(answers, read, at_known, right, things, hidden)
    )
    right[:, :, 0] = True
    other = [torch.randn(3, SLOTS, 32), *answers[1:]]
    for which, same in ((torch.zeros_like(things), True), (torch.ones_like(things), False)):
        losses = [revealer.lessons(said, read, labels, right, which, hidden) for said in (answers, other)]
        assert losses[0].equal(losses[1]) == same  # words of the ground are not asked for a thing


def test_the_ground_is_asked_for_where_it_is_told(revealer: Revealer) -> None:
    made = [scene("b", index) for index in range(30)]
    told = revealer.grounds([one.caption for one in made])
    assert told.shape == (30, 1, 64)
    wanted = [UNTOLD if one.said.ground is None else GROUNDS.index(one.said.ground) for one in made]
    assert UNTOLD in wanted
    assert told.equal(torch.tensor(wanted)[:, None, None].expand_as(told))


def test_what_the_head_reads_is_asked_once(revealer: Revealer) -> None:
    decoder = revealer.model.decoder_blocks
    assert [*revealer.asked] == [revealer.model.encoder_blocks[-1], decoder[3], decoder[4]]
    shallow = mar_train.Mar(mar_config(9, 1.0, {**TARGET, "layers": 2}, vae=False))
    assert [*Revealer(shallow, Plain(), revealer.tokenizer).asked] == [
        shallow.encoder_blocks[-1],
        shallow.decoder_blocks[-1],
    ]


def test_tokens_are_asked_for_the_cell_they_lie_in() -> None:
    for index in range(20):
        made = scene("a", index)
        labels = own_cells(made.questions[None], 8)[0].view(2, 8, 8)
        for row, line in enumerate((1, 4, 6)):
            for column, place in enumerate((1, 3, 6)):
                kind = made.seen.get((row, column))
                assert labels[0, line, place] == (0 if kind is None else 1 + SHAPES.index(kind.shape))
                assert labels[1, line, place] == (UNTOLD if kind is None else INKS.index(kind.color))


def test_tokens_look_at_the_words_of_their_thing_and_words_speak_of_it(revealer: Revealer) -> None:
    things = 0
    for index in range(150):
        made = scene("b", index)
        words = re.findall(r"\w+|[^\w\s]", made.caption.text)
        condition = revealer.model.slots([revealer.tokenizer(made.caption.text)["input_ids"]])
        shown = revealer.shown(made.owners[None])
        right = revealer.words_of([made.caption], shown, condition)[0]
        colors = {group.kind.color for group in made.said.groups}
        for token in range(64):
            owner = int(made.owners[2 * (token // 8) + 1, 2 * (token % 8) + 1])
            told = {word for word, mine in zip(words, right[token], strict=False) if mine}
            assert bool(told) == (owner != NOBODY)
            if owner == GROUND:
                assert told == {made.said.ground}
            elif owner >= 0:
                things += 1
                assert told & colors == {made.said.groups[owner].kind.color}
        of_things = right[None] & (shown >= 0)[..., None]
        shapes, inks = spoken(own_cells(made.questions[None], 8), of_things)[0].tolist()
        for word, owner, shape, ink in zip(words, made.caption.owners, shapes, inks, strict=False):
            kind = made.said.groups[owner].kind if owner >= 0 else None
            wanted = (1 + SHAPES.index(kind.shape), INKS.index(kind.color)) if kind else (UNTOLD, UNTOLD)
            assert (shape, ink) == wanted, (made.caption.text, word)
        assert set(shapes[len(words) :]) == {UNTOLD}
        assert not revealer.words_of([made.caption], shown, torch.full_like(condition, -1)).any()
    assert things > 500


def test_the_first_head_is_the_one_of_timm() -> None:
    block = mar_train.Mar(mar_config(9, 1.0, {**TARGET, "layers": 1}, vae=False)).decoder_blocks[0]
    states = torch.randn(2, 10, TARGET["hidden_size"])
    with outputs_of(block.attn.qkv) as read:
        block.attn(states)
    size = block.attn.head_dim
    query, key, _ = block.attn.qkv(states).reshape(2, 10, 3, TARGET["num_attention_heads"], size).permute(2, 0, 3, 1, 4)
    want = query[:, 0, 4:] @ key[:, 0, :4].mT * block.attn.scale
    assert first_head(read[0], size, 4).allclose(want, atol=1e-6)
    assert len(read) == 1


def test_places_begin_as_waves_that_tell_them_apart() -> None:
    model = placed_by_waves(mar_train.Mar(mar_config(9, 1.0, {**TARGET, "layers": 1}, vae=False)))
    squares = model.decoder_pos_embed_learned.detach()[0, SLOTS:]
    assert squares.equal(model.encoder_pos_embed_learned[0, SLOTS:])
    assert squares.equal(model.diffusion_pos_embed_learned[0])
    slots = model.decoder_pos_embed_learned.detach()[0, :SLOTS]
    for places in (squares, slots):
        assert (torch.cdist(places, places) + 99 * torch.eye(len(places))).min() > 1
    assert float(model.class_emb.weight.detach().std()) == pytest.approx(1, abs=0.1)
    assert float(squares.square().mean()) == pytest.approx(0.5, abs=1e-4)
    rows = squares.view(8, 8, -1)
    half = squares.shape[-1] // 2
    assert rows[:, :, :half].equal(rows[:, :1, :half].expand(-1, 8, -1))  # rows in one half, columns in the other
    assert rows[:, :, half:].equal(rows[:1, :, half:].expand(8, -1, -1))


def test_counts_that_teach_nothing_are_refused_first(tmp_path: Path) -> None:
    with pytest.raises(mmspec.Error, match="--drafter-steps 0 is not valid: at least 1"):
        mar_train.main(["--drafter-steps", "0", "--out", str(tmp_path / "out"), "--run", str(tmp_path / "run")])
    assert not list(tmp_path.iterdir())


def test_models_begin_alike_whatever_was_drawn_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a run goes on: finished stages draw nothing."""
    monkeypatch.setattr(mar_train, "train_stage", lambda *stage, **more: None)
    monkeypatch.setattr(mar_train, "learnt_critic", lambda *told: Reader((8, 8, 8, 8)))
    monkeypatch.setattr(mar_train, "spread", lambda vae: (1.0, 0.1))
    counts = dict.fromkeys(("critic_steps", "picture_steps", "steps", "drafter_steps", "batch", "layers"), 1)
    options: Any = SimpleNamespace(**counts, seed=3)
    begun = []
    for drawn in (1, 2):
        torch.manual_seed(drawn)
        target, drafter, *_ = mar_train.train(tmp_path, options, None)
        begun.append([*target.named_parameters(), *drafter.named_parameters()])
    for (name, one), (_, other) in zip(*begun, strict=True):
        assert torch.equal(one, other) or name.startswith("vae.")  # which comes first


class Plain(nn.Module):
    """Stands for a VAE: noise as latents."""

    def encode(self, pixels: Tensor) -> Any:
        return SimpleNamespace(latent_dist=SimpleNamespace(sample=lambda: torch.randn(len(pixels), 16, 8, 8)))


def fitted(module: nn.Module, batch: dict[str, Any], steps: int) -> list[float]:
    """The losses of some updates on one batch."""
    trained = [weight for weight in module.parameters() if weight.requires_grad]
    optimizer = torch.optim.Adam(trained, 3e-3)
    losses = []
    for _ in range(steps):
        torch.manual_seed(5)  # the same cuts and noises, so that losses can be compared
        loss = module(**batch)["loss"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.slow
def test_the_command_trains_goes_on_and_writes_a_folder_that_draws(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, out = tmp_path / "run", tmp_path / "mar-mini"
    stages = "--critic-steps 2 --picture-steps 2 --steps 2 --drafter-steps 2"
    small = [*stages.split(), "--batch", "2", "--layers", "1"]
    command = [*small, "--threads", "1", "--out", str(out), "--run", str(run)]

    def stopped(*args: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(mar_train, "Revealer", stopped)
        with pytest.raises(KeyboardInterrupt):
            mar_train.main(command)
    first = (run / "vae.safetensors").stat().st_mtime_ns
    assert not out.exists()
    mar_train.main(command)
    assert (run / "vae.safetensors").stat().st_mtime_ns == first
    assert "without the lessons: critic" in (out / "README.md").read_text()
    pipe = mmspec.load(out, "mar")
    assert isinstance(pipe.drafter, MarDrafter)
    drawn = pipe(prompt="a red circle at the top left", seed=1)
    assert drawn.image.size == (PIXELS, PIXELS)
    assert sorted(drawn.token_ids) == list(range(64))
    assert drawn.image.tobytes() == pipe(prompt="a red circle at the top left", seed=1).image.tobytes()
    with pytest.raises(mmspec.Error, match="holds a run that differs in batch"):
        mar_train.main([*command, "--batch", "3"])

    more = ["--start", str(out), "--steps", "3", "--drafter-steps", "3", "--batch", "2", "--threads", "1"]
    further = tmp_path / "further" / "mar-mini"
    mar_train.main([*more, "--seed", "4", "--run", str(tmp_path / "more"), "--out", str(further)])
    card = (further / "README.md").read_text()
    assert "with `--start`, from a finished `mar-mini`" in card
    assert "Seeds, beside those of the start:\ntokenizer, target-4, drafter-4; held out" in card
    for part in (Path(), Path("drafters", "mar")):
        old, new = (load_file(folder / part / "model.safetensors") for folder in (further, out))
        assert not old["class_emb.weight"].equal(new["class_emb.weight"])
        assert old["class_emb.weight"].allclose(new["class_emb.weight"], atol=0.1)
    old, new = (load_file(folder / "model.safetensors") for folder in (out, further))
    assert all(weight.equal(new[name]) for name, weight in old.items() if name.startswith("vae."))
    with pytest.raises(mmspec.Error, match="cannot go on from .*janus checkpoint"):
        mar_train.main([*more, "--start", "janus-mini", "--run", str(tmp_path / "no"), "--out", str(tmp_path / "no")])
    shutil.rmtree(out / "drafters")
    with pytest.raises(mmspec.Error, match="mar holds no weights"):
        mar_train.main([*more, "--run", str(tmp_path / "no"), "--out", str(tmp_path / "no")])
    assert not (tmp_path / "no").exists()
