"""Whisper on its stock class: greedy texts equal those of transformers, with every drafter; a small one that drafts."""

import json
import string
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_speech
import torch
import toys
from one_drafter import train_drafter
from transformers import (
    LlamaConfig,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
    WhisperProcessor,
    WhisperTokenizer,
)
from typer.testing import CliRunner

import mmspec
from mmspec.acceptance.ratio import Ratio
from mmspec.benchmarks.cli import app
from mmspec.drafters.lookahead import Lookahead
from mmspec.drafters.medusa import Medusa, MedusaHeads
from mmspec.drafters.prompt_lookup import PromptLookup
from mmspec.drafters.recycling import Recycling
from mmspec.drafters.suffix import Suffix
from mmspec.errors import InputError, MismatchError
from mmspec.speech.specasr import Aligning, SpecASR, aligned, ragged
from mmspec.speech.whisper import LONGEST_S, HearingDecoder, Whisper
from mmspec.training.answers import AnswerOptions
from mmspec.training.course import Course
from mmspec.training.drafter import find_recipe

VOCABULARY, FRAMES, MELS, START, END = 97, 20, 8, 90, 91


def whisper(seed: int = 0, layers: int = 2, **changes: Any) -> Any:
    """Random weights, float64, large enough that words depend on the speech and on each other."""
    values: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "num_mel_bins": MELS,
        "d_model": 32,
        "encoder_layers": 1,
        "decoder_layers": layers,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
        "encoder_ffn_dim": 48,
        "decoder_ffn_dim": 48,
        "max_source_positions": FRAMES // 2,
        "max_target_positions": 64,
        "pad_token_id": 0,
        "bos_token_id": START,
        "eos_token_id": END,
        "decoder_start_token_id": START,
        "suppress_tokens": None,
        "begin_suppress_tokens": None,
    }
    torch.manual_seed(seed)
    model = WhisperForConditionalGeneration(WhisperConfig(**{**values, **changes})).double().eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.add_(0.2 * torch.randn_like(weight))
    model.generation_config.suppress_tokens = [5, 6]
    model.generation_config.begin_suppress_tokens = [7, END]
    model.generation_config.eos_token_id = END
    model.generation_config.pad_token_id = 0
    model.generation_config.decoder_start_token_id = START
    return model


def speech(batch: int = 1, seed: int = 0) -> torch.Tensor:
    return torch.randn(batch, MELS, FRAMES, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.fixture(scope="module")
def model() -> Any:
    return whisper()


def inputs_of(features: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"input_ids": torch.full((len(features), 1), START), "input_features": features}


def stock(model: Any, features: torch.Tensor, budget: int) -> list[list[int]]:
    """What transformers writes, without the prompt and up to the end token."""
    with torch.no_grad():
        ids = model.generate(features, do_sample=False, max_new_tokens=budget, num_beams=1)
    found = []
    for row in ids.tolist():
        row = row[1:] if row[0] == START else row
        found.append(row[: row.index(END) + 1] if END in row else row)
    return found


def heads(model: Any) -> Medusa:
    """Random multi-token heads on the last feature."""
    torch.manual_seed(3)
    config = LlamaConfig(hidden_size=32, intermediate_size=48, num_attention_heads=4, initializer_range=0.2)
    return Medusa(MedusaHeads(config, 3).double(), depth=3, total=8)


DRAFTERS = {
    "none": lambda model: "none",
    "prompt-lookup": lambda model: PromptLookup(length=4),
    "suffix": lambda model: Suffix(),
    "recycling": lambda model: Recycling(),
    "lookahead": lambda model: Lookahead(),
    "multi-token heads": heads,
    "specasr copy": lambda model: SpecASR(model, threshold=0.0, length=5),
    "specasr near": lambda model: SpecASR(toys.perturbed(model, 0.15), threshold=0.2),
    "specasr far": lambda model: SpecASR(whisper(9, layers=1), threshold=0.1, length=6),
}


@pytest.mark.parametrize("name", DRAFTERS)
def test_greedy_ids_equal_those_of_transformers(model: Any, name: str) -> None:
    pipe = mmspec.load(model, DRAFTERS[name](model))
    for seed in range(2):
        features = speech(seed=seed)
        out = pipe.generate(**inputs_of(features), temperature=0, max_new_tokens=30)
        assert out.token_ids == stock(model, features, 30)[0]
        assert not {5, 6} & set(out.token_ids)
        assert out.token_ids[0] not in (7, END)
    if name == "specasr copy":
        assert set(out.stats.accept_lengths[:-1]) == {5}


def test_what_is_suppressed_is_not_said() -> None:
    model = whisper(4)
    said = mmspec.load(model, "none").generate(**inputs_of(speech()), temperature=0, max_new_tokens=12).token_ids
    model.generation_config.begin_suppress_tokens = said[:1]
    model.generation_config.suppress_tokens = said[4:5]
    out = mmspec.load(model, "none").generate(**inputs_of(speech()), temperature=0, max_new_tokens=12)
    assert out.token_ids[0] != said[0]
    assert said[4] not in out.token_ids
    assert out.token_ids == stock(model, speech(), 12)[0]


def test_the_speech_matters(model: Any) -> None:
    pipe = mmspec.load(model, "none")
    texts = {
        tuple(pipe.generate(**inputs_of(speech(seed=i)), temperature=0, max_new_tokens=12).token_ids) for i in range(6)
    }
    assert len(texts) > 2


@pytest.mark.parametrize("name", ["prompt-lookup", "multi-token heads", "specasr near", "recycling"])
def test_rows_of_a_batch_are_those_of_single_calls_at_any_temperature(model: Any, name: str) -> None:
    features = speech(3, seed=4)
    for temperature in (0.0, 1.0):
        pipe = mmspec.load(model, DRAFTERS[name](model))
        together = pipe.generate(**inputs_of(features), temperature=temperature, seed=5, max_new_tokens=20)
        for row in range(3):
            alone = mmspec.load(model, "none").generate(
                **inputs_of(features[row : row + 1]), temperature=temperature, seed=5 + row, max_new_tokens=20
            )
            assert together[row].token_ids == alone.token_ids


def test_the_last_tap_is_what_the_head_reads(model: Any) -> None:
    target = Whisper(model)
    rows = [[START, 3, 9]]
    _, heard = target.read(inputs_of(speech()), rows, taps=(target.num_layers,))
    torch.testing.assert_close(
        target.allowed(target.head(heard.taps[target.num_layers][:, -1:]), first=True), heard.logits
    )


def test_a_tree_is_verified_as_its_branches_would_be(model: Any) -> None:
    """Siblings under a shared parent: each node's logits are those of its own path, read alone."""
    from mmspec.contract import Draft, Needs
    from mmspec.sampling import Sampler, Sampling

    target = Whisper(model)
    sampler = Sampler(Sampling(), 1, torch.device("cpu"))
    with torch.no_grad():
        state = target.prefill({**inputs_of(speech()), "max_new_tokens": 9}, Needs(), sampler)
        pending = int(state.pending[0])
        tokens = torch.tensor([[pending, 11, 12, 13, 14]])
        parents = torch.tensor([[-1, 0, 0, 1, 2]])
        found = target.verify(state, Draft(tokens, parents, torch.tensor([[0, 1, 1, 2, 2]]))).logits[0]
        for node, path in {3: [11, 13], 4: [12, 14], 2: [12]}.items():
            _, alone = target.read(inputs_of(speech()), [[START, pending, *path]])
            both = torch.stack([found[node], alone.logits[0, 0]])
            allowed = both.isfinite().all(0)
            torch.testing.assert_close(both[0, allowed], both[1, allowed])


def test_a_rejected_draft_is_used_again(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert aligned([1, 2, 3, 4, 5], 1, 3, 3) == [4, 5]  # the draft had a token too many
    assert aligned([1, 2, 3, 4], 2, 2, 3) == [3, 4]  # one too few
    assert aligned([1, 2, 3, 2, 9], 2, 2, 3) in ([3, 2, 9], [9])
    assert aligned([1, 2, 3, 4, 5], 0, 4, 3) == [5]  # as far away as it may be
    assert aligned([4, 1, 2, 5], 3, 4, 3) == [1, 2, 5]
    assert aligned([1, 2, 3, 4, 5], 0, 5, 3) == aligned([5, 1, 2, 3, 4], 4, 5, 3) == []  # too far away
    assert aligned([1, 2, 3], 1, 2, 0) == []
    assert aligned([1, 2], 2, 7, 3) == []
    assert aligned([1, 2, 1, 3], 4, 1, 3) == []  # nothing was rejected
    draft = ragged(torch.tensor([8, 9]), [[1, 2], []])
    assert draft.tokens.tolist() == [[8, 1, 2], [9, 0, 0]]
    assert draft.valid is not None
    assert draft.valid.tolist() == [[True, True, True], [True, False, False]]
    calls = {"read": 0, "reused": 0}
    step, propose = HearingDecoder.step, Aligning.propose

    def counted(*given: Any, **more: Any) -> Any:
        calls["read"] += given[0] is drafter.decoder
        return step(*given, **more)

    def watched(drafting: Aligning, state: Any) -> Any:
        before = calls["read"]
        draft = propose(drafting, state)
        calls["reused"] += draft.size > 1 and calls["read"] == before
        return draft

    monkeypatch.setattr(HearingDecoder, "step", counted)
    monkeypatch.setattr(Aligning, "propose", watched)
    reused = []
    for reach, seeds in ((3, 6), (0, 3)):
        drafter = SpecASR(toys.perturbed(model, 0.1), threshold=0.0, length=8, reach=reach)
        calls["reused"] = 0
        for seed in range(seeds):
            before = calls["read"]
            out = mmspec.load(model, drafter).generate(**inputs_of(speech(seed=seed)), temperature=0, max_new_tokens=40)
            reused.append(8 * len(out.stats.accept_lengths) - (calls["read"] - before))
        assert (calls["reused"] > 0) == (reach > 0), "in some round the small model was not asked"
    assert max(reused[:6]) > 8


def test_a_sure_threshold_makes_drafts_shorter(model: Any) -> None:
    sizes = []
    for threshold in (0.0, 0.9):
        pipe = mmspec.load(model, SpecASR(model, threshold=threshold, length=6))
        out = pipe.generate(**inputs_of(speech()), temperature=0, max_new_tokens=30)
        sizes.append(np.mean(out.stats.accept_lengths))
    assert sizes[1] < sizes[0]


def test_a_folder_of_a_smaller_whisper_drafts(model: Any, tmp_path: Path) -> None:
    whisper(1, layers=1).save_pretrained(tmp_path / "small")
    pipe = mmspec.load(model, tmp_path / "small")
    assert isinstance(pipe.drafter, SpecASR)
    out = pipe.generate(**inputs_of(speech()), temperature=0, max_new_tokens=12)
    assert out.token_ids == stock(model, speech(), 12)[0]


@pytest.mark.parametrize("same", [True, False])
def test_speech_is_heard_once_where_both_have_the_same_encoder(
    model: Any, same: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = whisper(9, layers=1)
    small.get_encoder().load_state_dict((model if same else small).get_encoder().state_dict())
    pipe = mmspec.load(model, SpecASR(small, threshold=0.1, length=6))
    assert pipe.drafter.hears_alike is same  # type: ignore[attr-defined]
    heard: list[int] = []
    forward = small.get_encoder().forward
    monkeypatch.setattr(small.get_encoder(), "forward", lambda *told, **more: heard.append(1) or forward(*told, **more))
    out = pipe.generate(**inputs_of(speech(2)), temperature=0, max_new_tokens=20)
    assert [one.token_ids for one in out] == stock(model, speech(2), 20)
    assert len(heard) == (0 if same else 1)
    pipe.drafter.hears_alike = False  # type: ignore[attr-defined]
    again = pipe.generate(**inputs_of(speech(2)), temperature=0, max_new_tokens=20)
    assert [one.stats.accept_lengths for one in again] == [one.stats.accept_lengths for one in out]


class Features:
    """A feature extractor of the right shape."""

    sampling_rate = tiny_speech.RATE

    def __call__(self, samples: list[Any], sampling_rate: int, return_tensors: str) -> dict[str, torch.Tensor]:
        assert sampling_rate == self.sampling_rate
        return {"input_features": torch.stack([torch.full((MELS, FRAMES), float(abs(one).mean())) for one in samples])}


class Words:
    """A tokenizer of letters with Whisper's prefix."""

    def set_prefix_tokens(self, language: str | None, task: str | None, predict_timestamps: bool) -> None:
        self.task = task or self.task  # as transformers does
        if language not in (None, "en", "yue"):
            raise ValueError(f"unsupported language {language}")
        ids = {"en": 92, "yue": 94}  # counted from the first one, as transformers does
        self.prefix_tokens = [START, ids[language]] if language else [START]

    def get_vocab(self) -> dict[str, int]:
        return {chr(40 + i): i for i in range(VOCABULARY)}

    def decode(self, ids: list[int], **_: Any) -> str:
        return "".join(chr(40 + i) for i in ids)


def test_the_prompt_is_one_that_the_checkpoint_was_trained_with(model: Any, tmp_path: Path) -> None:
    """English checkpoints know no task; others are told the language, which transformers would detect."""
    file, words = str(tiny_speech.voice().save(tmp_path / "speech.wav")), Words()
    try:
        model.generation_config.is_multilingual = False
        pipe = mmspec.load(model, "none", processor=Processor())
        pipe.target.prompt(words, "transcribe")
        assert words.task is None
        with pytest.raises(InputError, match="English alone"):
            pipe(prompt="translate", voice=file)
        model.generation_config.is_multilingual = True
        with pytest.raises(InputError, match="as in 'transcribe en'"):
            pipe(prompt="transcribe", voice=file)
        pipe.target.prompt(words, "translate en")
        assert words.task == "translate"
        model.generation_config.lang_to_id = {"<|en|>": 92, "<|de|>": 93}
        assert pipe.target.prompt(words, "transcribe en") == [START, 92]
        with pytest.raises(InputError, match="does not know the language of 'transcribe yue'"):
            pipe.target.prompt(words, "transcribe yue")
    finally:
        del model.generation_config.is_multilingual
        model.generation_config.__dict__.pop("lang_to_id", None)


class Processor:
    tokenizer, feature_extractor = Words(), Features()


@pytest.mark.parametrize("method", ["eagle2", "spd"])
def test_drafters_are_trained_for_it(method: str, tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    lines = [{"prompt": "transcribe", "voice": f"{i}.wav"} for i in range(6)]
    for i, line in enumerate(lines):
        tiny_speech.voice(pitch=90.0 + 20 * i).save(tmp_path / line["voice"])
    (tmp_path / "speech.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    model = whisper().float()
    pipe = mmspec.load(model, "none", processor=Processor())
    recipe: Any = find_recipe(method)(steps=2, batch=2, **({"warm_steps": 0} if method == "spd" else {}))
    options = AnswerOptions(max_new_tokens=12, batch=4)
    course = Course(data=str(tmp_path), questions=4, held_out=2, answers=options)
    figures = train_drafter(pipe, recipe, course, tmp_path / "out", tmp_path / "run", "tiny")
    assert figures["tau_t1"] >= 1
    out = pipe.with_drafter(tmp_path / "out")(prompt="transcribe", voice=str(tmp_path / "0.wav"), max_new_tokens=12)
    assert out.token_ids == pipe(prompt="transcribe", voice=str(tmp_path / "0.wav"), max_new_tokens=12).token_ids


def checkpoint(folder: Path) -> Path:
    """A folder with a random model that hears one second, and its processor."""
    characters = string.ascii_letters + string.digits + "Ġ!?.,"
    controls = ["endoftext", "startoftranscript", "en", "transcribe", "translate", "notimestamps"]
    vocabulary = {token: place for place, token in enumerate([*characters, *(f"<|{name}|>" for name in controls)])}
    marks = dict.fromkeys(("unk_token", "eos_token", "bos_token"), "<|endoftext|>")
    tokenizer = WhisperTokenizer(vocab=vocabulary, merges=[], **marks)
    listening = WhisperFeatureExtractor(feature_size=MELS, chunk_length=1)
    WhisperProcessor(listening, tokenizer).save_pretrained(folder)
    end, start = (vocabulary[f"<|{name}|>"] for name in controls[:2])
    ids = {"bos_token_id": end, "eos_token_id": end, "decoder_start_token_id": start}
    model = whisper(vocab_size=len(vocabulary), max_source_positions=50, **ids)
    model.generation_config.eos_token_id, model.generation_config.decoder_start_token_id = end, start
    model.generation_config.begin_suppress_tokens = [end]
    model.float().save_pretrained(folder)
    return folder


def test_it_is_measured_on_speech_of_one_s_own(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    for i in range(5):
        tiny_speech.voice(0.9, pitch=90.0 + 20 * i).save(data / f"{i}.wav")
    lines = [json.dumps({"prompt": "transcribe", "voice": f"{i}.wav"}) + "\n" for i in range(5)]
    (data / "speech.jsonl").write_text("".join(lines))
    told = ["--model", str(checkpoint(tmp_path / "model")), "--drafters", "none,prompt-lookup", "--no-memory", "--json"]
    sizes = ["--max-new-tokens", "12", "--min-tokens", "2", "--questions", "4", "--repeats", "1"]
    done = CliRunner().invoke(app, [*told, *sizes, "--data", str(data)])
    assert done.exit_code == 0, repr(done.exception)
    found = json.loads(done.stdout)
    assert {each["method"] for each in found["figures"]} == {"none", "prompt-lookup"}
    assert [each["equal_ours"] for each in found["figures"]] == [None, 1, None, 1]
    assert all(each["speedup"] > 0 for each in found["figures"])
    assert (found["samples"], found["gauges"]) == (8, [])
    assert "S is against our AR loop alone" in CliRunner().invoke(app, [*told[:-1], *sizes, "--data", str(data)]).stdout
    with pytest.raises(InputError, match="hears, .*: take mmspec bench --data FOLDER"):
        CliRunner().invoke(app, [*told, *sizes], catch_exceptions=False)


def test_speech_files_are_transcribed_and_mistakes_are_told(model: Any, tmp_path: Path) -> None:
    pipe = mmspec.load(model, "none", processor=Processor())
    file = tiny_speech.voice().save(tmp_path / "speech.wav")
    out = pipe(prompt="transcribe", voice=str(file), temperature=0, max_new_tokens=6)
    assert out.text
    assert (
        out.token_ids == pipe(prompt="transcribe", voice=tiny_speech.voice(), temperature=0, max_new_tokens=6).token_ids
    )
    two = pipe(prompt=["transcribe en"] * 2, voice=[str(file)] * 2, temperature=0, max_new_tokens=6)
    assert two[0].token_ids == two[1].token_ids
    with pytest.raises(InputError, match="transcribe or translate"):
        pipe(prompt="what is said?", voice=str(file))
    with pytest.raises(InputError, match="language"):
        pipe(prompt="transcribe klingon", voice=str(file))
    with pytest.raises(InputError, match="pass voice="):
        pipe(prompt="transcribe")
    with pytest.raises(InputError, match="no audio file"):
        pipe(prompt="transcribe", voice="nowhere.wav")
    with pytest.raises(InputError, match="heard at most"):
        pipe(prompt="transcribe", voice=tiny_speech.voice(LONGEST_S + 1))
    with pytest.raises(InputError, match="input_features is missing"):
        pipe.generate(input_ids=torch.tensor([[START]]))
    right = torch.zeros(1, MELS, FRAMES)
    for wrong in (right[..., 1:], right.tolist(), right.expand(2, -1, -1), right[0]):
        with pytest.raises(InputError, match=r"input_features are mel frames \[1, 8, 20\]"):
            pipe.generate(input_ids=torch.tensor([[START]]), input_features=wrong)
    with pytest.raises(InputError, match=r"mel frames \[2, 8, 20\]"):
        pipe.generate(input_ids=torch.tensor([[START], [START]]), input_features=right)
    with pytest.raises(InputError, match="needs a WhisperProcessor"):
        mmspec.load(model, "none", processor=tiny_speech.processor().tokenizer)
    with pytest.raises(MismatchError, match="mel bands"):
        mmspec.load(model, SpecASR(whisper(1, num_mel_bins=4)))
    with pytest.raises(MismatchError, match="vocabulary"):
        mmspec.load(model, SpecASR(whisper(1, vocab_size=99)))
    with pytest.raises(MismatchError):
        mmspec.load(model, SpecASR(model), acceptance=Ratio())
    with pytest.raises(InputError, match="threshold"):
        SpecASR(model, threshold=1.0)
