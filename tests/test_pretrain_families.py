"""The other bundled families: they see what the stock classes see, start from what is known, train, resume and ship."""

import json
import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.utils.data import default_collate
from transformers import AutoModelForImageTextToText, AutoProcessor, SmolVLMForConditionalGeneration

import mmspec
from mmspec.errors import InputError, MismatchError
from mmspec.miniworld import sample
from mmspec.registry import resolve
from mmspec.training.folders import claim
from mmspec.training.loop import stage_arguments
from mmspec.vlm.pretrain import train
from mmspec.vlm.pretrain.architecture import TokenIds
from mmspec.vlm.pretrain.attention import NAME as PACKED
from mmspec.vlm.pretrain.distilled import FollowingTrainer, TwiceSeen, begin_as, unexplained
from mmspec.vlm.pretrain.family import Family
from mmspec.vlm.pretrain.gemma3 import GEMMA3
from mmspec.vlm.pretrain.known import Known, adopt_decoder, adopt_tower, begun_from, read_known
from mmspec.vlm.pretrain.language import PackedPictures, packed_states
from mmspec.vlm.pretrain.lessons import asked_about, lesson
from mmspec.vlm.pretrain.llava_next import LLAVA_NEXT
from mmspec.vlm.pretrain.pixtral import PIXTRAL
from mmspec.vlm.pretrain.pointers import taught_layers
from mmspec.vlm.pretrain.smolvlm import SMOLVLM
from mmspec.vlm.pretrain.stages import Stage
from mmspec.vlm.pretrain.tokenizer import question_text, token_ids, train_tokenizer, with_tokens
from mmspec.vlm.pretrain.translated_layers import LayerTrainer
from mmspec.vlm.pretrain.vision import DenseProbe, LabelledPictures, Sight

SMALL = {"width": 32, "vision_width": 32, "vision_layers": 1}
ONE = Stage("joined", steps=2, batch=2, bins=1, rate=0.01, falling=1, layers=4)
FAMILIES = {
    "llava-next": replace(LLAVA_NEXT, **SMALL, stages=(ONE,)),
    "pixtral": replace(PIXTRAL, **SMALL, stages=(ONE,)),
    "gemma3": replace(GEMMA3, **SMALL, stages=(replace(ONE, name="layers"), ONE)),
}
LITTLE = replace(SMOLVLM, **SMALL, stages=(replace(ONE, name="shallow"), replace(ONE, name="deep", layers=8)))
EVERY = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny checkpoint of smolvlm-mini's kind."""
    folder = tmp_path_factory.mktemp("known") / "little"
    texts = (text for index in range(8) for qa in sample("t", index).qas for text in (qa.question, f" {qa.answer}"))
    processor = SMOLVLM.processor(train_tokenizer(texts, 600))
    torch.manual_seed(0)
    config = LITTLE.config(token_ids(processor.tokenizer), layers=4)
    model = SmolVLMForConditionalGeneration(config)
    loud(model.model.text_model)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def known(source: Path) -> Known:
    return read_known(str(source), FAMILIES["pixtral"])


def loud(module: torch.nn.Module, factor: float = 4.0) -> None:
    """Makes matrices large, so that what attention sees is heard."""
    with torch.no_grad():
        for weight in module.parameters():
            if weight.ndim == 2:
                weight.mul_(factor)


def made(family: Family, known: Known, layers: int = 4, **text: Any) -> tuple[Any, Any]:
    """A random model with its processor."""
    processor = family.processor(with_tokens(known.tokenizer, family.tokens))
    config = family.config(token_ids(processor.tokenizer), layers)
    for name, value in text.items():
        setattr(config.text_config, name, value)
    torch.manual_seed(1)
    return family.model(config).eval(), processor


@pytest.mark.parametrize(
    ("family", "factor", "limit"),
    [(LITTLE, 1, 1e-4), *((family, 4, 1e-3) for family in FAMILIES.values())],  # loud weights make rounding loud
    ids=["smolvlm", *FAMILIES],
)
def test_packed_rows_give_the_logits_of_the_stock_model(
    family: Family, factor: float, limit: float, known: Known
) -> None:
    window = {"sliding_window": 40} if isinstance(family, type(GEMMA3)) else {}  # shorter than the prefix
    model, processor = made(family, known, 6, **window)
    loud(model.model.get_submodule(family.decoder), factor)
    rows = PackedPictures(processor.tokenizer, "x", 2, 5, family.pixels)
    batch = default_collate([rows[0], rows[1]])
    drawn = sample("x", 1)
    asked = asked_about(drawn, random.Random("x/1/more"))[0]
    talk = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": asked.question}]}]
    inputs = processor(
        text=processor.apply_chat_template(talk, add_generation_prompt=True), images=[drawn.image], return_tensors="pt"
    )
    prefix = processor.tokenizer(family.prefix, add_special_tokens=False)["input_ids"]
    question = processor.tokenizer(question_text(asked.question), add_special_tokens=False)["input_ids"]
    assert inputs["input_ids"][0].tolist() == prefix + question  # training text is the chat template's
    ids = lesson(processor.tokenizer, asked, None).ids
    inputs["input_ids"] = torch.tensor([prefix + ids])
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    if "token_type_ids" in inputs:
        inputs["token_type_ids"] = (inputs["input_ids"] == model.config.image_token_id).long()
    with torch.no_grad():
        stock = model(**inputs).logits[0, len(prefix) :]
        model.model.get_submodule(family.decoder).config._attn_implementation = PACKED
        states = packed_states(family, model, torch.tensor([prefix]), batch, (2, 4))
        packed = model.lm_head(states.tokens)
        decoder = model.model.get_submodule(family.decoder)
        early = decoder.layers[2:]
        decoder.layers = decoder.layers[:2]  # what is between is what a model of so many layers would say
        shallow = packed_states(family, model, torch.tensor([prefix]), batch).tokens
        decoder.layers.extend(early)
    torch.testing.assert_close(states.between[0], shallow, atol=limit, rtol=limit)
    assert not torch.allclose(states.between[1], shallow, atol=0.1)
    first = batch["segments"][1].flatten() == 1
    torch.testing.assert_close(packed[1][first], stock, atol=limit, rtol=limit)


def layer_trainer(family: Family, known: Known, model: Any, processor: Any, folder: Path) -> LayerTrainer:
    arguments = stage_arguments(folder, 2, 2, rate=0.01, seed=0, falling=1)
    return LayerTrainer(family, known, model=model, processor=processor, args=arguments)


@pytest.mark.parametrize("layer", range(4))
def test_a_layer_is_asked_for_what_the_known_one_does_and_for_no_fault_of_another(
    layer: int, source: Path, known: Known, tmp_path: Path
) -> None:
    processor = LITTLE.processor_class.from_pretrained(source)
    model = read_known(str(source), FAMILIES["pixtral"]).model
    trainer = layer_trainer(LITTLE, known, model, processor, tmp_path)
    rows = PackedPictures(processor.tokenizer, "layers", 2, 2, LITTLE.pixels)
    batch = default_collate([rows[0], rows[1]])
    assert float(trainer.compute_loss(model, batch)) < 1e-8
    wrong = model.model.text_model.layers[layer]
    with torch.no_grad():
        wrong.self_attn.o_proj.weight.zero_()
        wrong.mlp.down_proj.weight.zero_()
    losses = trainer.layer_losses(batch)
    # it adds nothing, so that all that its counterpart adds is missed: its variance once, and its mean besides
    states = trainer.known_states(batch)[1]
    read = torch.cat([torch.ones(2, 64, dtype=torch.bool), batch["segments"].flatten(1) > 0], 1)
    added = (states[layer + 1] - states[layer])[read]
    expected = added.square().mean() / (added - added.mean(0)).square().mean()
    torch.testing.assert_close(losses[layer], expected)
    assert losses[:layer].sum() < 1e-8
    assert losses[layer + 1 :].sum() < 0.2 * expected  # the tokens before the picture alone tell the next of it


def test_layers_of_gemma3_learn_and_the_tower_is_left_alone(known: Known, tmp_path: Path) -> None:
    family = FAMILIES["gemma3"]
    model, processor = made(family, known)
    adopt_decoder(family, model, known)
    trainer = layer_trainer(family, known, model, processor, tmp_path)
    rows = PackedPictures(processor.tokenizer, "layers", 2, 2, family.pixels)
    batch = default_collate([rows[0], rows[1]])
    optimizer, losses = trainer.create_optimizer(), []
    for _ in range(8):
        loss = trainer.compute_loss(model, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    assert losses[-1] < 0.8 * losses[0]
    assert all(weight.grad is None for weight in Sight(family, model).parameters())


@EVERY
def test_the_squares_are_those_of_the_stock_image_tokens(family: Family, known: Known) -> None:
    model, processor = made(family, known)
    image = sample("squares", 0).image
    pictures = family.pictures(family.pixels(image)[None])
    inputs = processor(text=getattr(processor, "boi_token", processor.image_token), images=[image], return_tensors="pt")
    difference = (pictures["pixel_values"].reshape(-1) - inputs["pixel_values"].reshape(-1)).abs()
    assert difference.max() < 1.01 / 127.5  # one of 256 levels, where the two libraries round differently
    assert (difference > 1e-3).float().mean() < 1e-3
    slots = int((inputs["input_ids"] == model.config.image_token_id).sum())
    assert slots <= 2 * 64
    with torch.no_grad():
        (stock,) = model.get_image_features(**pictures).pooler_output
        tower, connector = (model.model.get_submodule(part) for part in (family.tower, family.connector))
        patches = family.see(tower, family.pixels(image)[None])
        assert patches.shape[:2] == (1, family.patches**2)
        torch.testing.assert_close(connector(patches)[0], stock[family.grid])
    assert len(stock) == slots


def test_the_squares_of_a_quarter_are_seen_together() -> None:
    squares = torch.arange(64.0)[None, :, None]
    views = LLAVA_NEXT.views(squares)[..., 0]
    assert views.shape == (4, 16)
    assert views[0].tolist() == [0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27]
    assert views[1, 0] == 4
    assert views[2, 0] == 32
    assert LLAVA_NEXT.grid.tolist()[:9] == [*range(16, 24), 25]  # an overview of 16, a newline behind each row


@EVERY
def test_probes_learn_a_batch_by_heart(family: Family, known: Known) -> None:
    model, _ = made(family, known)
    probe = DenseProbe(family, model)
    rows = LabelledPictures("probe", 2, family.pixels)
    batch = default_collate([rows[0], rows[1]])
    optimizer = torch.optim.Adam(probe.parameters(), 0.01)
    losses = []
    for _ in range(6):
        loss = probe(**batch)["loss"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.9 * losses[0]
    tower = probe.sight.get_submodule(family.tower)
    assert all(weight.grad is not None for name, weight in tower.named_parameters() if "layers" in name)


@EVERY
def test_a_tower_learns_to_give_the_tokens_of_the_known_model(family: Family, known: Known, tmp_path: Path) -> None:
    model, _ = made(family, known)
    sight = Sight(family, model)
    rows = TwiceSeen("twice", 2, family)
    trainer = FollowingTrainer(
        family,
        known,
        model=sight,
        args=saving(tmp_path, 6, 2, 0.02, 0, falling=1, warmup_steps=0),
        train_dataset=[rows[index] for index in (0, 1) * 6],
        data_collator=default_collate,
    )
    batch = default_collate([rows[0], rows[1]])
    before = trainer.compute_loss(sight, batch).item()
    with torch.no_grad():
        theirs = torch.stack(
            list(known.model.model.get_image_features(**SMOLVLM.pictures(batch["known_pixels"])).pooler_output)
        )
        torch.testing.assert_close(torch.tensor(before), unexplained(sight(batch["pixels"]), theirs))
    kept = {name: weight.clone() for name, weight in known.model.state_dict().items()}
    trainer.train()
    assert trainer.compute_loss(sight, batch).item() < 0.8 * before
    assert all(torch.equal(weight, kept[name]) for name, weight in known.model.state_dict().items())


def test_the_card_tells_whose_tower_it_was(known: Known) -> None:
    finished = Known("elder", "0123456789abcdef", known.model, known.tokenizer)
    told = begun_from(PIXTRAL, known, finished)
    assert "from there. Its vision tower begins as that of elder (0123456789abcdef). Vision tower: it learns" in told


def test_what_is_unexplained_is_none_of_the_same_and_all_of_the_mean() -> None:
    tokens = torch.randn(3, 5, 7)
    assert unexplained(tokens, tokens) == 0
    torch.testing.assert_close(unexplained(tokens.mean((0, 1)).expand_as(tokens), tokens), torch.tensor(1.0))


@EVERY
def test_a_decoder_meets_words_and_image_tokens_in_the_proportion_it_knows(
    family: Family, known: Known, tmp_path: Path
) -> None:
    model, processor = made(family, known)
    sight = Sight(family, model)
    save_file({name: value.clone() for name, value in sight.state_dict().items()}, tmp_path / "vision")
    pixels = family.pixels(sample("scale", 0).image)[None]
    begun = train.new_model(processor, tmp_path / "vision", 4, family, known)
    words = torch.arange(20)
    with torch.no_grad():
        grown = begun.get_input_embeddings()(words).norm() / known.model.get_input_embeddings()(words).norm()
        torch.testing.assert_close(Sight(family, begun)(pixels), grown * sight(pixels), rtol=1e-4, atol=1e-5)
        other = Sight(family, made(family, known)[0])
        begin_as(other, Known("begun", "", begun, known.tokenizer))  # and back
        torch.testing.assert_close(other(pixels), sight(pixels), rtol=1e-4, atol=1e-5)
    narrow = made(replace(family, vision_layers=2), known)[0]
    with pytest.raises(MismatchError, match="begun has a vision tower of other shapes"):
        begin_as(Sight(family, narrow), Known("begun", "", begun, known.tokenizer))


def test_pictures_are_seen_alike_alone_and_among_others(known: Known) -> None:
    family = FAMILIES["pixtral"]
    sight = Sight(family, made(family, known)[0])
    pixels = torch.stack([family.pixels(sample("many", index).image) for index in range(6)])
    with torch.no_grad():
        together = sight(pixels)
        for picture, tokens in zip(pixels, together, strict=True):
            torch.testing.assert_close(sight(picture[None])[0], tokens)


@pytest.mark.parametrize("name", ["llava-next", "pixtral"])
def test_a_kept_decoder_gives_the_logits_of_the_known_model(name: str, known: Known) -> None:
    family = FAMILIES[name]
    model, _ = made(family, known)
    ids = torch.randint(6, len(known.tokenizer), (2, 12))
    with torch.no_grad():
        expected = known.model(input_ids=ids).logits
        assert not torch.allclose(model(input_ids=ids).logits[..., : expected.shape[-1]], expected, atol=1e-2)
        adopt_decoder(family, model, known)
        torch.testing.assert_close(model(input_ids=ids).logits[..., : expected.shape[-1]], expected)


def test_a_translated_decoder_says_nearly_what_the_known_model_says() -> None:
    known = read_known("smolvlm-mini", GEMMA3)
    model, _ = made(GEMMA3, known, 24)
    drawn = [qa for index in range(3) for qa in sample("said", index).qas if qa.form in ("worked", "describe")]
    rows = [known.tokenizer(f" {qa.answer}", add_special_tokens=False)["input_ids"][:48] for qa in drawn]
    ids = torch.tensor([row for row in rows if len(row) == 48])

    def agreement(decoder: Any) -> float:
        with torch.no_grad():
            said = model.lm_head(decoder(input_ids=ids).last_hidden_state)[..., : len(known.tokenizer)]
            return float((said.argmax(-1) == known.model(input_ids=ids).logits.argmax(-1)).float().mean())

    decoder = model.model.language_model
    assert agreement(decoder) < 0.1
    adopt_decoder(GEMMA3, model, known)
    near = agreement(decoder)
    assert near > 0.3
    with torch.no_grad():  # sizes count
        for layer in decoder.layers:
            layer.post_attention_layernorm.weight.zero_()
            layer.post_feedforward_layernorm.weight.zero_()
    assert agreement(decoder) < near * 2 / 3  # how much they count hangs on the weights that ship
    words = known.model.get_input_embeddings().weight
    torch.testing.assert_close(model.get_output_embeddings().weight[: len(words)], words)


@EVERY
def test_of_the_tower_all_is_taken_that_agrees(family: Family, known: Known) -> None:
    model, _ = made(family, known)
    taken = adopt_tower(family, model, known)
    theirs = known.model.model.vision_model
    if family is FAMILIES["gemma3"]:
        assert taken == set(theirs.state_dict())
        pixels = torch.rand(1, 3, 160, 160)
        with torch.no_grad():
            seen = model.model.vision_tower(pixels).last_hidden_state
            torch.testing.assert_close(seen, theirs(pixels).last_hidden_state)
    elif family is FAMILIES["llava-next"]:
        left = {name for name in theirs.state_dict() if name.startswith("embeddings.")}
        assert taken == set(theirs.state_dict()) - left | {"embeddings.patch_embedding.bias"}
    else:
        assert not taken


def test_one_layer_in_six_sees_all() -> None:
    kinds = GEMMA3.config(TokenIds(64, 3, 1, 2, 0), 24).text_config.layer_types
    assert kinds == (["sliding_attention"] * 5 + ["full_attention"]) * 4
    taught = taught_layers(24)
    assert {kinds[layer] for layer in (taught.looking, *taught.reading)} == {"full_attention"}


def saving(*args: Any, **more: Any) -> Any:
    """The arguments of a stage that saves after every update."""
    here = {"save_steps": 1, "logging_steps": 1, "dataloader_num_workers": 0}
    forked = {"dataloader_prefetch_factor": None, "dataloader_persistent_workers": False}
    return stage_arguments(*args, **{**more, **here, **forked})


@pytest.mark.parametrize("family", [*FAMILIES.values(), LITTLE], ids=[*FAMILIES, "smolvlm"])
@pytest.mark.slow
def test_the_command_trains_resumes_and_writes_a_folder_that_answers(
    family: Family, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train, "stage_arguments", lambda *args, **more: saving(*args, **{**more, "warmup_steps": 0}))
    monkeypatch.setattr(train, "VALIDATION", 2)
    run, out = tmp_path / "run", tmp_path / "mini"
    command = ["--out", str(out), "--run", str(run), "--vision-steps", "2", "--threads", "1"]
    if family.known:
        command += ["--source", str(source)]
    else:
        shutil.copytree(source, run / "processor")  # learning the words takes a while
    train.train(family, command)
    last = family.stages[-1].name
    losses, weights = said(run / last), load_file(run / f"{last}-done" / "model.safetensors")
    for lost in (run / f"{last}-done", run / last / "checkpoint-2", out):
        shutil.rmtree(lost)
    train.train(family, command)
    assert said(run / last) == pytest.approx(losses, rel=1e-4)
    for name, weight in load_file(run / f"{last}-done" / "model.safetensors").items():
        torch.testing.assert_close(weight, weights[name], msg=name, rtol=1e-4, atol=1e-6)

    card = (out / "README.md").read_text()
    if family.known:
        assert "--source little` trains" in card
        digest = read_known(str(source), family).digest
        assert f"It starts from little ({digest}): it has {family.known} from there. Vision tower" in card
    assert "Seeds: tokenizer, vision, " in card
    assert f"- {last}: 2 updates, " in card  # what it cost
    assert f"- {last}: 2 updates of 2 pictures" in card
    asked = " ".join(f"{train.STEPS[stage.name]} {stage.steps}" for stage in family.stages)
    assert f"--out FOLDER --vision-steps 2 {asked}" in card
    with pytest.raises(MismatchError, match="differs in seed"):
        train.train(family, [*command, "--seed", "1"])
    assert family.model_class.__name__ in card
    model = AutoModelForImageTextToText.from_pretrained(out, dtype=torch.float32)
    processor = AutoProcessor.from_pretrained(out)
    assert type(model) is family.model_class
    assert type(processor) is family.processor_class
    trained = family.model_class.from_pretrained(run / f"{last}-done", dtype=torch.float32)
    trained.load_state_dict({name: weight.bfloat16().float() for name, weight in trained.state_dict().items()})
    image, question = sample("ask", 0).image, "What is shown?"
    talk = [{"role": "user", "content": [{"type": "image", "image": image}, {"type": "text", "text": question}]}]
    inputs = processor.apply_chat_template(
        talk, add_generation_prompt=True, tokenize=True, return_dict=True, return_tensors="pt"
    )
    with torch.no_grad():
        torch.testing.assert_close(model(**inputs).logits, trained(**inputs).logits)
    stock = model.generate(**inputs, max_new_tokens=12, do_sample=False)[0, inputs["input_ids"].shape[1] :].tolist()
    plain, drafted = (mmspec.load(out, drafter=drafter) for drafter in ("none", "prompt-lookup"))
    assert plain(image, question, max_new_tokens=12).token_ids == stock
    for temperature in (0.0, 1.0):
        asked = {"max_new_tokens": 12, "temperature": temperature, "seed": 3}
        assert drafted(image, question, **asked).token_ids == plain(image, question, **asked).token_ids


def test_a_finished_model_is_trained_on(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train, "MORE", replace(ONE, name="more", layers=24))
    monkeypatch.setattr(train, "VALIDATION", 2)
    monkeypatch.setattr(train, "stage_arguments", saving)
    command = ["--start", str(source), "--threads", "1", "--more-steps", "3", "--seed", "4"]
    for name, more in (("exact", []), ("mixed", ["--bf16"])):
        run, out = tmp_path / name, tmp_path / f"{name}-out"
        again = [*command, *more, "--run", str(run), "--out", str(out)]
        train.train(LITTLE, again)
        weights = load_file(run / "more-done" / "model.safetensors")
        for lost in (run / "more-done", run / "more" / "checkpoint-3", out):
            shutil.rmtree(lost)
        train.train(LITTLE, again)
        for key, weight in load_file(run / "more-done" / "model.safetensors").items():
            torch.testing.assert_close(weight, weights[key], msg=key, rtol=1e-4, atol=1e-6)
    runs = (tmp_path / name / "more-done" for name in ("exact", "mixed"))  # in float32
    before, after, mixed = (load_file(folder / "model.safetensors") for folder in (source, *runs))
    assert before.keys() == after.keys() == mixed.keys()  # it stays as deep as it was
    moved = torch.cat([(after[name].float() - weight).flatten() for name, weight in before.items()])
    assert moved.abs().max() > 1e-3
    apart = torch.cat([(after[name].float() - mixed[name].float()).flatten() for name in before])
    assert 0 < apart.norm() < moved.norm()
    card = (tmp_path / "mixed-out" / "README.md").read_text()
    assert "It goes on from little (" in card
    assert "Seeds: more-4." in card
    assert "Vision tower" not in card
    assert f"--start {source.name} --more-steps 3 --seed 4 --bf16` trains one like it" in card
    with pytest.raises(MismatchError, match="differs in start"):
        train.train(
            LITTLE, [*command, "--start", str(tmp_path / "exact-out"), "--run", str(tmp_path / "exact"), "--out", "x"]
        )
    with pytest.raises(MismatchError, match="pixtral-mini cannot go on from .*, a smolvlm checkpoint"):
        train.train(FAMILIES["pixtral"], [*command, "--out", str(tmp_path / "no")])


def test_a_finished_model_grows_again_from_its_busy_layers(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train, "MORE", replace(ONE, name="more", layers=24))
    monkeypatch.setattr(train, "VALIDATION", 2)
    out = tmp_path / "out"
    command = ["--start", str(source), "--threads", "1", "--more-steps", "1", "--out", str(out)]
    begun: list[list[torch.Tensor]] = []
    answers = train.train_answers

    def watched(run: train.Run, stage: Stage, model: torch.nn.Module, *more: Any) -> Path:
        begun.append([layer.mlp.up_proj.weight.detach().clone() for layer in model.model.text_model.layers])
        return answers(run, stage, model, *more)

    monkeypatch.setattr(train, "train_answers", watched)
    train.train(LITTLE, [*command, "--busy-layers", "1", "--run", str(tmp_path / "run")])
    ((first, *echoes),) = begun
    assert len(echoes) == 3
    for echo in echoes:
        torch.testing.assert_close(echo, first)
    card = (out / "README.md").read_text()
    assert "), with its 1 busiest decoder layers repeated, with cross-entropy" in card
    assert f"--start {source.name} --busy-layers 1 --more-steps 1` trains one like it" in card
    with pytest.raises(InputError, match="99 busy layers are not possible"):
        train.train(LITTLE, [*command, "--busy-layers", "99", "--run", str(tmp_path / "other")])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--busy-layers", "8"], "--busy-layers needs --start"),
        (["--start", "smolvlm-mini", "--busy-layers", "0"], "--busy-layers 0 is not valid"),
        (["--more-steps", "3"], "--more-steps needs --start"),
        (["--start", "smolvlm-mini", "--vision-steps", "3"], "--vision-steps is for a new model: with --start, --more"),
        (["--start", "smolvlm-mini", "--source", "smolvlm-mini"], "--source is for a new model"),
        (["--start", "smolvlm-mini", "--tower", "pixtral-mini"], "--tower is for a new model"),
        (["--start", "smolvlm-mini", "--steps", "0"], "--steps is for a new model"),
        (["--start", "smolvlm-mini", "--more-steps", "0"], "--more-steps 0 is not valid"),
        (["--steps", "-1"], "--steps -1 is not valid"),
        (["--threads", "0"], "--threads 0 is not valid"),
    ],
)
def test_options_that_would_change_nothing_are_refused(options: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        train.train(LLAVA_NEXT, [*options, "--out", str(tmp_path / "out"), "--run", str(tmp_path / "run")])
    assert not (tmp_path / "run").exists()


def test_what_training_starts_from_is_not_replaced(source: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="where the model lies that training starts from"):
        train.train(LITTLE, ["--start", str(source), "--out", str(source), "--run", str(tmp_path / "run")])
    with pytest.raises(InputError, match="where the model lies that training starts from"):
        train.train(LLAVA_NEXT, ["--tower", str(source), "--out", str(source), "--run", str(tmp_path / "run")])


@pytest.mark.parametrize("begins", ["anew", "from a model"])
def test_nothing_is_written_into_the_folder_of_another_run(begins: str, source: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    claim(run, {"target": "another"})
    held = sorted(run.iterdir())
    start = ["--vision-steps", "1"] if begins == "anew" else ["--start", str(source), "--more-steps", "1"]
    with pytest.raises(MismatchError, match="holds a run that differs in .*target"):
        train.train(LITTLE, [*start, "--threads", "1", "--run", str(run), "--out", str(tmp_path / "out")])
    assert sorted(run.iterdir()) == held


def said(folder: Path) -> list[float]:
    """The losses of a stage."""
    state = json.loads((folder / "checkpoint-2" / "trainer_state.json").read_text())
    return [entry["loss"] for entry in state["log_history"] if "loss" in entry]


def test_what_cannot_be_started_from_is_refused(source: Path, tmp_path: Path) -> None:
    deep = replace(FAMILIES["gemma3"], stages=(replace(ONE, layers=8),))
    with pytest.raises(MismatchError, match="has 4 layers: it needs 8"):
        read_known(str(source), deep)
    with pytest.raises(MismatchError, match="of hidden size 160"):
        read_known(str(source), PIXTRAL)
    shutil.copytree(source, tmp_path / "other")
    config = json.loads((source / "config.json").read_text())
    (tmp_path / "other" / "config.json").write_text(json.dumps({**config, "model_type": "llava"}))
    with pytest.raises(MismatchError, match="a llava checkpoint"):
        read_known(str(tmp_path / "other"), FAMILIES["pixtral"])
    with pytest.raises(mmspec.Error, match="smolvlm-mini"):
        read_known("smolvlm-minni", PIXTRAL)


@pytest.mark.parametrize("name", ["smolvlm-mini", "llava-next-mini", "pixtral-mini", "gemma3-mini"])
def test_every_name_has_its_command_line(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    command: Any = resolve("trainers", name, "vlm")
    with pytest.raises(SystemExit) as ended:
        command(["--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert f"mmspec train target {name}" in shown
    assert ("--source" in shown) == (name != "smolvlm-mini")
    assert ("--deep-steps" in shown) == (name == "smolvlm-mini")
    assert "--steps" in shown
