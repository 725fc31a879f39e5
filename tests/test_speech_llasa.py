"""Llasa: a stock Llama that speaks codes of X-codec 2, told apart from a Llama that writes."""

import copy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tiny
import torch
import toys
from transformers import LlamaConfig, LlamaForCausalLM, Xcodec2Config, Xcodec2Model

import mmspec
from mmspec.acceptance.ratio import Ratio
from mmspec.causal_lm import CausalLM
from mmspec.drafters.independent import Independent
from mmspec.errors import InputError, UnsupportedError
from mmspec.loading import find_family
from mmspec.sampling import Sampling
from mmspec.speech.llasa import SPEECH, SPEECH_END, TEXT, TEXT_END, VOCABULARY, Llasa, LlasaProcessor
from mmspec.speech.pcg import PCG
from mmspec.speech.placing import place_codec
from mmspec.speech.ssd import SSD, shortened
from mmspec.speech.text import code_token

CODES = 16
TEMPLATE = "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}"


def tokenizer() -> Any:
    made = copy.deepcopy(tiny.tokenizer())
    made.add_tokens([TEXT, TEXT_END, SPEECH, SPEECH_END, *map(code_token, range(CODES))])  # as published, none special
    made.chat_template = TEMPLATE
    return made


def codec() -> Xcodec2Model:
    semantic = {"model_type": "wav2vec2-bert", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
                "intermediate_size": 32, "feature_projection_input_dim": 16}  # fmt: skip
    torch.manual_seed(1)
    return Xcodec2Model(
        Xcodec2Config(
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=2,
            head_dim=16,
            encoder_hidden_size=4,
            quantization_dim=48,
            quantization_levels=[4, 4],
            semantic_model_config=semantic,
            sampling_rate=16000,
        )
    ).eval()


def model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(**{**tiny.text_config(), "vocab_size": len(tokenizer()), "speech_codes": CODES})
    made = LlamaForCausalLM(config).eval()
    first = tokenizer().convert_tokens_to_ids(code_token(0))
    with torch.no_grad():  # a model that was trained to speak seldom writes
        made.lm_head.weight[first:] *= 3
    made.generation_config.eos_token_id = tokenizer().eos_token_id
    return made


@pytest.fixture(scope="module")
def pipe() -> Any:
    return mmspec.load(model().double(), drafter="none", processor=LlasaProcessor(tokenizer(), codec()))


def test_a_llama_that_speaks_is_told_from_one_that_writes() -> None:
    small = {**tiny.text_config(), "hidden_size": 32}
    assert find_family(LlamaConfig(**small)) is CausalLM
    assert find_family(LlamaConfig(**{**small, "vocab_size": VOCABULARY})) is Llasa
    assert find_family(LlamaConfig(**small, speech_codes=16)) is Llasa


def test_a_prompt_asks_as_the_checkpoint_was_taught(pipe: Any) -> None:
    ids = pipe.prepare(None, "two red  circles")["input_ids"][0].tolist()
    text = pipe.target.tokenizer.decode(ids).replace(" ", "")
    want = f"<user>Convert the text to speech:{TEXT}two red circles{TEXT_END}<assistant>{SPEECH}"
    assert text == want.replace(" ", "")
    assert ids[-1] == pipe.target.tokenizer.convert_tokens_to_ids(SPEECH)


@pytest.mark.parametrize("options", [{}, {"temperature": 1.0, "top_p": 0.9, "ras_window": 8}])
def test_every_drafter_gives_the_sound_of_the_loop(pipe: Any, options: Any) -> None:
    prompts = ["two red circles", "is it nine?"]
    want = pipe(prompt=prompts, max_new_tokens=30, seed=2, **options)
    drafters = [
        Independent(toys.perturbed(pipe.target.model, 0.1)),
        SSD(shortened(pipe.target.speaker, 1, [1])),
        "suffix",
        "recycling",
    ]
    for drafter in drafters:
        got = pipe.with_drafter(drafter)(prompt=prompts, max_new_tokens=30, seed=2, **options)
        for one, other in zip(got, want, strict=True):
            assert one.token_ids == other.token_ids
            assert (one.audio is None) == (other.audio is None)
            if one.audio is not None:
                assert np.array_equal(one.audio.samples, other.audio.samples)
    assert any(one.audio is not None for one in want)


def test_codes_are_decoded_and_nothing_else(pipe: Any) -> None:
    target, rate = pipe.target, pipe.processor.codec.config.sampling_rate
    first = target.first_code
    ids = [first + 3, 7, first + 15, target.end]
    assert target.codes(ids) == [3, 15]
    audio = target.product_of({"input_ids": torch.tensor([[1]])}, 0, ids)["audio"]
    assert audio.rate == rate
    assert len(audio.samples) == round(2 * rate / pipe.processor.frames_per_second)
    assert target.ends() == sorted({tokenizer().eos_token_id, target.end})


def test_a_stream_plays_the_codes(pipe: Any) -> None:
    stream = pipe.stream(prompt="two red circles", max_new_tokens=60, temperature=1.0, seed=1)
    played = sum(len(piece.audio.samples) for piece in stream if piece.audio is not None)
    codes = pipe.target.codes(stream.finish().token_ids)
    assert played == len(codes) * pipe.processor.codec.hop_length


def test_codes_are_no_text(pipe: Any) -> None:
    stream = pipe.stream(prompt="two red circles", max_new_tokens=20, temperature=1.0, seed=1)
    pieces = list(stream)
    assert pipe.target.codes([token for piece in pieces for token in piece.tokens])
    assert {piece.text for piece in pieces} == {""}
    assert stream.finish().text == pipe(prompt="two red circles", max_new_tokens=20).as_dict()["text"] == ""


def test_groups_are_made_of_codes_only(pipe: Any) -> None:
    rule = PCG(0.3)
    other = SimpleNamespace(code_ids=lambda: [1, 2, 3], vocab_size=5, embed=torch.nn.Embedding(5, 4))
    for target in (other, pipe.target):  # groups that nobody gave are made for each model
        rule.bind(target)
        assert len(rule.groups) == target.vocab_size
    codes = set(pipe.target.code_ids())
    sizes = rule.groups.sizes
    assert {int(size) for token, size in enumerate(sizes) if token not in codes} == {1}
    assert float(sizes[sorted(codes)].float().mean()) > 1.5
    drafter = Independent(toys.perturbed(pipe.target.model, 0.3))
    sampling, inputs = Sampling(temperature=1.0, seed=3), pipe.prepare(None, ["two red circles"] * 8)
    strict = toys.answer(pipe.target, drafter, inputs, 24, sampling, Ratio(), eos=pipe.target.ends())
    loose = toys.answer(pipe.target, drafter, inputs, 24, sampling, rule, eos=pipe.target.ends())
    assert strict.rows != loose.rows


def test_without_a_codec_there_are_codes_and_a_warning(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    model().save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    pipe = mmspec.load(tmp_path, drafter="none")
    assert "no codec" in caplog.text
    out = pipe(prompt="two red circles", max_new_tokens=8)
    assert out.audio is None
    assert len(out.token_ids) == 8
    codec().save_pretrained(tmp_path / "codec")
    assert mmspec.load(tmp_path, drafter="none")(prompt="two red circles", max_new_tokens=8).audio is not None


def test_the_codec_goes_where_the_model_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no card here, so the model says that it lies on the meta device."""
    model().save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    codec().save_pretrained(tmp_path / "codec")
    made = LlamaForCausalLM.from_pretrained(str(tmp_path))
    monkeypatch.setattr(LlamaForCausalLM, "device", torch.device("meta"))
    assert mmspec.load(made, "none").processor.codec.device.type == "meta"


def test_a_codec_that_does_not_fit_beside_its_model_stays_on_the_cpu_and_a_warning_is_given(
    caplog: pytest.LogCaptureFixture,
) -> None:
    places: list[str] = []

    def move(place: Any) -> None:
        places.append(str(place))
        if len(places) == 1:
            raise torch.OutOfMemoryError("CUDA out of memory")

    place_codec(SimpleNamespace(to=move), SimpleNamespace(device=torch.device("cuda:0")))
    assert places == ["cuda:0", "cpu"]
    assert "cuda:0 has too little free memory for the codec" in caplog.text


def test_without_a_codec_an_utterance_is_cut_after_as_many_seconds_as_with_one(pipe: Any) -> None:
    bare = mmspec.load(model(), drafter="none", processor=tokenizer())
    assert bare.target.budget == 30 * 50
    assert pipe.target.budget == int(30 * pipe.processor.frames_per_second)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ({"prompt": "?!"}, "nothing to pronounce"),
        ({"prompt": f"a {SPEECH} b"}, "control token"),
        ({"prompt": "two <|s_5|> circles"}, r"control token '<\|s_5\|>'"),
        ({"prompt": ["one", "a <|SPEECH_UNDERSTANDING_START|> b"]}, "control token '<.SPEECH_UNDERSTANDING_START.>'"),
        ({"prompt": "a", "voice": "low"}, "voice is not an option of LlamaForCausalLM: leave it out"),
        ({"prompt": "a", "image": np.zeros((8, 8, 3), np.uint8)}, "does not see"),
    ],
)
def test_a_mistake_ends_in_one_clear_error(pipe: Any, call: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        pipe(**call)


def test_a_tokenizer_without_codes_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="not Llasa's"):
        mmspec.load(model(), drafter="none", processor=tiny.tokenizer())
    endless = copy.deepcopy(tiny.tokenizer())
    endless.add_tokens([*map(code_token, range(CODES))])
    endless.unk_token = endless.convert_ids_to_tokens(3)  # which every name stands for that there is not
    with pytest.raises(UnsupportedError, match="not Llasa's"):
        mmspec.load(model(), drafter="none", processor=endless)


def test_without_a_tokenizer_nobody_knows_the_codes() -> None:
    """Else words would be taken for codes, and nothing would end speech."""
    with pytest.raises(InputError, match="which ids are codes and what ends speech: pass processor="):
        mmspec.load(model(), drafter="none")
    with pytest.raises(InputError, match="which ids are codes"):
        mmspec.load(model(), drafter="none", processor=LlasaProcessor(None, codec()))
