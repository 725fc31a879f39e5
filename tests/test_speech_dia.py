"""Dia: columns with delays, ending by themselves, are those of transformers and of the loop with every drafter."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import toys
from tiny_dia import AFTER, CODES, DELAYS, END, START, Processor, dia
from transformers import DiaProcessor, GenerationConfig
from transformers.generation.logits_process import DiaClassifierFreeGuidanceLogitsProcessor

import mmspec
from mmspec.errors import InputError, MismatchError
from mmspec.speech.dia import Dia, SmallDia

TEXTS = ("[S1] two red", "[S2] is it?", "nine", "a", "the end", "[S1] no. [S2] yes.")
SLOWEST = max(DELAYS)


@pytest.fixture(scope="module")
def model() -> Any:
    return dia()


@pytest.fixture(scope="module")
def processor() -> Processor:
    return Processor()


def pipeline(model: Any, processor: Any, drafter: Any = "none", **more: Any) -> Any:
    return mmspec.load(model, drafter, processor=processor, **more)


def stock(model: Any, text: str, guidance: float, columns: int, **more: Any) -> list[tuple[int, ...]]:
    """What `generate` of transformers makes, greedily."""
    inputs = Processor().tokenizer(text, return_tensors="pt")
    start = torch.full((1, 1 + SLOWEST, len(DELAYS)), AFTER)
    start[:, 0] = START
    places = DiaProcessor.build_indices(1, 1 + SLOWEST, len(DELAYS), DELAYS)
    start = DiaProcessor.apply_audio_delay(start, AFTER, START, places)
    made = model.generate(
        input_ids=inputs["input_ids"],
        attention_mask=inputs["attention_mask"],
        decoder_input_ids=start,
        decoder_attention_mask=torch.ones(start.shape[:2], dtype=torch.long),
        do_sample=False,
        guidance_scale=guidance,
        max_new_tokens=columns,
        **more,
    )
    return [tuple(column) for column in made[0, 1:].tolist()]


@pytest.mark.parametrize("guidance", [1.0, 3.0])
@pytest.mark.parametrize("endless", [False, True])
def test_greedy_columns_equal_those_of_transformers(processor: Processor, guidance: float, endless: bool) -> None:
    model = dia(endless=endless)
    asked: dict[str, Any] = {"temperature": 0, "guidance": guidance, "max_new_tokens": 24}
    finish = set()
    for text in TEXTS:
        want = stock(model, text, guidance, 24)
        for noise in (None, 0.02, 5.0):
            drafter = "none" if noise is None else SmallDia(toys.perturbed(model, noise), length=3)
            out = pipeline(model, processor, drafter)(prompt=text, **asked)
            assert out.token_ids == want, (text, noise)
        finish.add(out.finish)
    assert finish == {"length"} if endless else "stop" in finish


@pytest.mark.parametrize("top_k", [1, 2, 9])
def test_guidance_keeps_as_much_as_the_request_says(model: Any, processor: Processor, top_k: int) -> None:
    """Not as much as the checkpoint's own top_k does."""
    asked: dict[str, Any] = {"temperature": 0, "guidance": 3.0, "max_new_tokens": 20}
    found = [pipeline(model, processor)(prompt=text, top_k=top_k, **asked).token_ids for text in TEXTS]
    assert found == [stock(model, text, 3.0, 20, top_k=top_k) for text in TEXTS]
    assert found != [pipeline(model, processor)(prompt=text, **asked).token_ids for text in TEXTS]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
@pytest.mark.parametrize("top_k", [0, 1, 20])
def test_guided_logits_equal_those_of_transformers(model: Any, top_k: int, dtype: torch.dtype) -> None:
    """50 are kept where nothing says how many; laws are those of the row that sees the text."""
    logits = (5 * torch.randn(2, 4, 3, 90, generator=torch.Generator().manual_seed(1))).to(dtype)
    told = logits if dtype == torch.float64 else logits.float()  # as `generate` hands them over
    usual = GenerationConfig()._get_default_generation_params()["top_k"]
    process = DiaClassifierFreeGuidanceLogitsProcessor(3.0, top_k or usual)
    want = process(torch.zeros(12, 1), told.flatten(0, 2)).unflatten(0, (4, 3))
    assert torch.equal(Dia(model).mixed(logits, 3.0, top_k), want)


DRAFTERS = {"copy": 0.0, "near": 0.05, "far": 5.0}


@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("guidance", [1.0, 2.0])
def test_the_same_seed_gives_the_same_columns_with_every_drafter(
    model: Any, processor: Processor, name: str, guidance: float
) -> None:
    asked: dict[str, Any] = {"temperature": 1.0, "guidance": guidance, "max_new_tokens": 24}
    drafted: list[int] = []
    for seed in range(4):
        plain = pipeline(model, processor)(prompt="two red", seed=seed, **asked)
        drafter = SmallDia(toys.perturbed(model, DRAFTERS[name]), length=3)
        out = pipeline(model, processor, drafter)(prompt="two red", seed=seed, **asked)
        assert out.token_ids == plain.token_ids
        assert (out.finish, out.stats.lossless) == (plain.finish, True)
        drafted += out.stats.accept_lengths[:-1]
    if name == "copy" and guidance == 1:
        assert set(drafted) == {3}
    if name == "near":
        assert {0, 3} < {*drafted, 0, 3} or len({*drafted}) > 1
    if name == "far":
        assert sum(drafted) < len(drafted)


@pytest.mark.parametrize("columns", [5, 9, 24])
def test_every_codebook_starts_and_ends_at_its_delay(processor: Processor, columns: int) -> None:
    for model in (dia(), dia(endless=True)):
        for seed in range(3):
            out = pipeline(model, processor)(prompt="two", temperature=1.5, seed=seed, max_new_tokens=columns)
            rows = out.token_ids
            ended = next(place for place, column in enumerate(rows) if column[0] == END)
            assert len(rows) == ended + SLOWEST + 1
            assert (out.finish == "length") == (len(rows) == columns)
            for place, column in enumerate(rows):
                for code, delay in zip(column, DELAYS, strict=True):
                    want = START if place < delay else END if place == ended + delay else AFTER
                    inside = delay <= place < ended + delay
                    assert code < CODES if inside else code == want
            assert out.audio.samples.shape[0] > 0 if ended else out.audio is None


def test_rows_of_a_batch_are_those_of_single_calls(model: Any, processor: Processor) -> None:
    pipe = pipeline(model, processor, SmallDia(toys.perturbed(model, 0.05), length=2))
    texts = ["[S1] two red circles", "is it?", "no"]
    together = pipe(prompt=texts, seed=3, temperature=1.0, max_new_tokens=20)
    for row, text in enumerate(texts):
        alone = pipe(prompt=text, seed=3 + row, temperature=1.0, max_new_tokens=20)
        assert together[row].token_ids == alone.token_ids
        assert together[row].finish == alone.finish


@pytest.mark.parametrize("rule", ["ratio", "columns-joint"])
def test_ratio_rules_keep_every_column_of_an_equal_drafter(processor: Processor, rule: str) -> None:
    model = dia(endless=True)
    pipe = pipeline(model, processor, SmallDia(model, length=3), acceptance=rule)
    out = pipe(prompt="two red", temperature=1.0, guidance=1.0, max_new_tokens=22, seed=5)
    assert set(out.stats.accept_lengths[:-1]) == {3}
    assert out.stats.lossless


def test_an_end_that_was_drafted_and_refused_is_forgotten(model: Any) -> None:
    """After it the columns are those of a track that never saw it."""
    target, text = Dia(model), Processor().tokenizer("two red")["input_ids"]
    known = torch.tensor([[START] * 3, [1, START, START]])
    wrong = torch.tensor([[END, START, START], [AFTER, 3, START]])
    fresh, used = target.track(text, 24, 1.0), target.track(text, 24, 1.0)
    target.hear(used, torch.cat([known, wrong]))
    assert used.ended == 2
    from mmspec.speech.delayed import forget

    forget(used, 2)
    assert used.ended is None
    target.hear(fresh, known)
    right = torch.tensor([[4, START, START]])
    torch.testing.assert_close(target.hear(used, right), target.hear(fresh, right))


def test_a_folder_of_a_smaller_model_drafts(model: Any, processor: Processor, tmp_path: Path) -> None:
    dia(1, layers=1).save_pretrained(tmp_path / "small")
    asked: dict[str, Any] = {"temperature": 1.0, "seed": 7, "max_new_tokens": 12}
    out = pipeline(model, processor, tmp_path / "small")(prompt="two red", **asked)
    assert out.token_ids == pipeline(model, processor)(prompt="two red", **asked).token_ids
    json.dumps(out.as_dict())


def test_the_codec_goes_where_the_model_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no card here, so the model says that it lies on the meta device."""
    made = dia()
    monkeypatch.setattr(type(made), "device", torch.device("meta"))
    target = Dia(made)
    assert target.codes_alone
    target.adopt(Processor())
    assert target.codec.device.type == "meta"
    assert not target.codes_alone


def test_a_stream_plays_its_sound_at_the_end(model: Any, processor: Processor) -> None:
    stream = pipeline(model, processor).stream(prompt="two red", max_new_tokens=20, temperature=1.0, seed=3)
    *before, last = stream
    assert before
    assert all(piece.audio is None for piece in before)
    assert last.audio is not None
    assert last.audio is stream.finish().audio


def test_tags_of_speakers_may_stand_in_a_text_and_control_tokens_not(model: Any, processor: Processor) -> None:
    pipe = pipeline(model, processor)
    assert pipe.prepare(None, "[S1] two [S2] no")["input_ids"][0].tolist()[0] == ord("\x01")
    with pytest.raises(InputError, match="the prompt holds the control token '<pad>'"):
        pipe(prompt="two <pad> red", max_new_tokens=9)


def test_mistakes_are_told(model: Any, processor: Processor) -> None:
    pipe = pipeline(model, processor)
    with pytest.raises(InputError, match="too few for a delay pattern"):
        pipe(prompt="two", max_new_tokens=4)
    with pytest.raises(InputError, match="the model reads 48"):
        pipe(prompt="two " * 20, max_new_tokens=9)
    with pytest.raises(InputError, match="makes a sound, and no text to stop at: leave stop out"):
        pipe(prompt="two", max_new_tokens=9, stop=["a"])
    with pytest.raises(InputError, match="voice is not an option of DiaForConditionalGeneration: leave it out"):
        pipe(prompt="two", voice="low", max_new_tokens=9)
    with pytest.raises(InputError, match="guidance=0"):
        pipe(prompt="two", guidance=0, max_new_tokens=9)
    with pytest.raises(MismatchError, match="Dia emits columns of codes"):
        pipeline(model, processor, acceptance="block")
    with pytest.raises(MismatchError, match="delays"):
        pipeline(model, processor, SmallDia(dia(1, delays=[0, 1, 2])))
