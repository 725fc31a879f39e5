"""Making the bundled speech checkpoint, with tones instead of espeak-ng: splits, losses, resuming, the result."""

import json
import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import mmspec
from mmspec.errors import CheckpointError, InputError, MismatchError, MissingExtraError
from mmspec.speech import texts as texts_module
from mmspec.speech.audio import Audio, read_audio
from mmspec.speech.codec import MelCodec, MelCodecConfig
from mmspec.speech.pretrain import corpus as corpus_module
from mmspec.speech.pretrain import espeak, train
from mmspec.speech.pretrain.codec_training import CodecLearner, mel_distance, scale
from mmspec.speech.pretrain.corpus import ByLength, Coded, Utterance, coded, record
from mmspec.speech.pretrain.espeak import VOICES, Speaker, anyone, usual
from mmspec.speech.pretrain.export import export
from mmspec.speech.pretrain.living import REST_S, drifting, without_rest
from mmspec.speech.pretrain.start import parents, read_start, take_over_sound, with_codes
from mmspec.speech.pretrain.valle_training import WARPERS, Size, ValleLoss, gauge, new_model
from mmspec.speech.processing import SpeechProcessor
from mmspec.speech.text import make_tokenizer, spoken
from mmspec.speech.texts import LONGEST, sentences
from mmspec.training.muon import build_optimizer

RATE = 4000
TINY = {
    "rate": RATE,
    "n_fft": 256,
    "hop": 64,
    "mels": 16,
    "width": 16,
    "latent": 6,
    "codebooks": 2,
    "codebook_size": 12,
}
SIZE = Size(layers=2, deep=4, width=32, heads=4, refiner_layers=1, context=256)


def tones(text: str, speaker: Speaker) -> Audio:
    """A letter is a tone, at another rate than the codec's: something to learn, said by nobody."""
    time = np.arange(400) / 8000
    parts = [np.sin(2 * np.pi * (200 + 40 * (ord(letter) - 96) + speaker.pitch) * time) for letter in text]
    return Audio((0.3 * np.concatenate(parts)).astype(np.float32), 8000)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> list[Utterance]:
    return record(sentences("train", 40), RATE, tmp_path_factory.mktemp("speech"), speak=tones)


def test_sentences_are_short_pronounceable_and_in_one_split_only() -> None:
    splits = {name: sentences(name, 60) for name in ("train", "dev", "test")}
    assert splits["train"] == sentences("train", 60)
    for name, lines in splits.items():
        assert len(set(lines)) == 60
        assert all(spoken(line) == line and len(line) <= LONGEST for line in lines), name
    assert not set(splits["train"]) & (set(splits["dev"]) | set(splits["test"]))
    assert not set(splits["dev"]) & set(splits["test"])


@pytest.mark.parametrize("count", [0, -3])
def test_no_sentences_are_refused_instead_of_looked_for_without_end(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(texts_module, "_all", lambda seed: iter(["two red circles"]))
    with pytest.raises(InputError, match=f"{count} sentences are asked for: 1 or more are needed"):
        sentences("train", count)


def test_speech_is_kept_in_shards_and_never_made_twice(tmp_path: Path) -> None:
    said = []

    def counting(text: str, speaker: Speaker) -> Audio:
        said.append(text)
        return tones(text, speaker)

    texts = ["one two", "two", "a red bar"]
    first = record(texts, RATE, tmp_path, speak=counting)
    again = record(texts, RATE, tmp_path, speak=counting)
    assert said == texts
    for one, other in zip(first, again, strict=True):
        assert (one.text, one.speaker) == (other.text, other.speaker)
        assert torch.equal(one.pcm, other.pcm)
    assert [len(one.pcm) for one in first] == [len(text) * 200 for text in texts]
    assert [one.text for one in record(texts[:2], RATE, tmp_path, speak=counting)] == texts[:2]
    assert said == texts
    assert [one.text for one in record([*texts, "four"], RATE, tmp_path, speak=counting)] == [*texts, "four"]
    assert said == [*texts, *texts, "four"]  # its shard is spoken anew
    with pytest.raises(MismatchError, match="differs in seed"):
        record(texts, RATE, tmp_path, seed=1, speak=counting)


def test_other_sentences_speakers_and_shards_of_before_are_spoken_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []

    def counting(text: str, speaker: Speaker) -> Audio:
        said.append(text)
        return tones(text, speaker)

    def heard(texts: list[str]) -> list[str]:
        said.clear()
        assert [one.text for one in record(texts, RATE, tmp_path, speak=counting)] == texts
        return said

    assert heard(["one two", "a red bar"]) == ["one two", "a red bar"]
    assert heard(["one two", "a red car"]) == ["one two", "a red car"]
    assert heard(["one two", "a red car"]) == []
    monkeypatch.setattr(corpus_module, "anyone", lambda rng: replace(usual("adam"), mood=rng.randrange(9)))
    assert heard(["one two", "a red car"]) == ["one two", "a red car"]
    monkeypatch.setattr(corpus_module, "anyone", lambda rng: replace(usual("adam"), mood=9 + rng.randrange(9)))
    assert heard(["one two", "a red car"]) == ["one two", "a red car"]
    file = tmp_path / "0000.npz"
    pcm, ends = corpus_module.read_shard(file)
    np.savez(file, pcm=pcm.numpy(), ends=np.array(ends))  # as shards were before they said of what they are
    assert heard(["one two", "a red car"]) == ["one two", "a red car"]


def test_kept_codes_are_those_of_these_recordings_and_of_this_codec(
    corpus: list[Utterance], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    codec, other = (MelCodec(MelCodecConfig(**TINY)) for _ in range(2))
    file = tmp_path / "codes.safetensors"

    def equal(codec: MelCodec, heard: list[Utterance]) -> bool:
        kept = train.codes_of(codec, heard, file)
        return all(torch.equal(a.codes, b.codes) for a, b in zip(kept, coded(codec, heard), strict=True))

    for net, heard in ((codec, corpus[:3]), (codec, corpus[3:6]), (codec, corpus[:2]), (other, corpus[:2])):
        assert equal(net, heard)
    monkeypatch.setattr(train, "coded", lambda *_: pytest.fail("the same codes were made again"))
    assert equal(other, corpus[:2])


def test_every_speaker_is_heard(corpus: list[Utterance]) -> None:
    assert {one.speaker for one in corpus} == set(range(len(VOICES)))


def test_the_codec_learns_and_uses_its_codebooks(corpus: list[Utterance]) -> None:
    torch.manual_seed(0)
    codec = MelCodec(MelCodecConfig(**TINY))
    scale(codec, corpus)
    values = torch.cat([codec.log_mel(one.samples[None]).flatten() for one in corpus])
    assert abs(float(values.mean())) < 0.2
    assert abs(float(values.std()) - 1) < 0.2
    learner, before = CodecLearner(codec), mel_distance(codec, corpus[:8])
    optimizer = build_optimizer(learner, 0.05)
    for step in range(150):
        optimizer.zero_grad()
        learner.loss(torch.arange(8) + 8 * step, corpus[8 * (step % 5) :][:8]).backward()
        optimizer.step()
    codec.eval()
    assert mel_distance(codec, corpus[:8]) < 0.65 * before
    used = {int(code) for one in coded(codec, corpus) for code in one.codes[0]}
    assert len(used) >= 8


def corpus_of_codes() -> list[Coded]:
    """Each letter has its code, three frames long; the second codebook is the first one's reverse."""
    texts = [line for line in sentences("train", 30) if len(line) < 40]
    found = []
    for place, text in enumerate(texts):
        codes = torch.tensor([ord(letter) % 12 for letter in text for _ in range(2)])
        found.append(Coded(text, place % 2, torch.stack([codes, 11 - codes])))
    return found


def test_both_parts_of_the_model_learn() -> None:
    corpus, tokenizer = corpus_of_codes(), make_tokenizer(12)
    model = new_model(tokenizer, 2, 12, SIZE)
    loss = ValleLoss(model, tokenizer, corpus, frames=8)
    optimizer = build_optimizer(model, 0.02)
    first = None
    for step in range(60):
        rows = corpus[8 * (step % 2) :][:8]
        optimizer.zero_grad()
        value = loss(torch.arange(8) + 8 * step, rows)
        value.backward()
        optimizer.step()
        first = first or value.item()
    rows = corpus[:8]
    voices = [loss.voice(row, 1) for row in rows]
    texts = [torch.tensor(tokenizer(row.text, add_special_tokens=False)["input_ids"]) for row in rows]
    with torch.no_grad():
        assert float(loss.refined(texts, voices, rows, 1)) < 0.3  # a plain reversal
        assert float(loss.spoken(texts, voices, rows)) < 0.6 * first


def test_a_batch_holds_utterances_of_about_one_length() -> None:
    corpus = [Coded("", 0, torch.zeros(2, length)) for length in torch.randperm(200).tolist()]
    samples = ByLength(corpus, 400, seed=1, batch=5)
    lengths = [samples[place][1].codes.shape[1] for place in range(400)]
    for epoch in (lengths[:200], lengths[200:]):
        assert sorted(epoch) == list(range(200))
        batches = [epoch[start : start + 5] for start in range(0, 200, 5)]
        assert sum(max(batch) - min(batch) for batch in batches) / 40 < 15
        assert [min(batch) for batch in batches] != sorted(min(batch) for batch in batches)
    assert lengths[:200] != lengths[200:]


def test_a_short_batch_leaves_those_after_it_whole() -> None:
    torch.manual_seed(0)
    corpus = [Coded("", 0, torch.zeros(2, length)) for length in torch.randperm(203).tolist()]
    samples = ByLength(corpus, 812, seed=1, batch=5)
    lengths = [samples[place][1].codes.shape[1] for place in range(812)]
    for start in range(0, 812, 203):
        assert sorted(lengths[start : start + 203]) == list(range(203))
    batches = [lengths[start : start + 5] for start in range(0, 812, 5)]
    assert sum(max(batch) - min(batch) > 40 for batch in batches) <= 4  # where one epoch ends and another begins


def test_padding_changes_nothing_for_a_shorter_row() -> None:
    corpus, tokenizer = corpus_of_codes(), make_tokenizer(12)
    model = new_model(tokenizer, 2, 12, SIZE).double().eval()
    loss = ValleLoss(model, tokenizer, corpus, frames=8)
    rows = sorted(corpus[:2], key=lambda row: len(row.text))
    assert len(rows[0].text) < len(rows[1].text)
    voices = [loss.voice(row, 3) for row in rows]
    texts = [torch.tensor(tokenizer(row.text, add_special_tokens=False)["input_ids"]) for row in rows]
    counts = [row.codes.shape[1] for row in rows]
    for part in (loss.refined, lambda *given: loss.spoken(*given[:3])):
        with torch.no_grad():
            alone = [float(part([t], [v], [r], 1)) for t, v, r in zip(texts, voices, rows, strict=True)]
            together = float(part(texts, voices, rows, 1))
        weights = counts if part == loss.refined else [n + 1 for n in counts]
        want = sum(a * w for a, w in zip(alone, weights, strict=True)) / sum(weights)
        assert together == pytest.approx(want, abs=1e-9)


def test_a_voice_is_of_the_same_speaker_and_of_another_utterance() -> None:
    corpus = corpus_of_codes()
    loss = ValleLoss(new_model(make_tokenizer(12), 2, 12, SIZE), make_tokenizer(12), corpus, frames=8)
    mine = corpus[0]
    for place in range(40):
        voice = loss.voice(mine, place)
        assert voice.shape == (2, 8)
        windows = [
            one.codes[:, start : start + 8].tolist()
            for one in corpus
            if one.speaker == mine.speaker and one is not mine
            for start in range(one.codes.shape[1] - 7)
        ]
        assert voice.tolist() in windows


def options(tmp_path: Path, **changes: Any) -> Any:
    names = ["--out", str(tmp_path / "valle-mini"), "--run", str(tmp_path / "run"), "--no-bf16"]
    values = {"sentences": 24, "held-out": 4, "codec-steps": 3, "steps": 3, "deep-steps": 3, "batch": 4, **changes}
    return train.parser().parse_args(names + [f"--{name}={value}" for name, value in values.items()])


def told_by(card: str) -> list[str]:
    """The options of the command on a card."""
    return card.split("mmspec train target valle-mini ")[1].split("\n\n")[0].replace("\\\n", " ").split()


@pytest.mark.parametrize("name", ["sentences", "held-out"])
def test_a_run_without_sentences_is_refused_before_it_takes_its_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="0 sentences are asked for"):
        train.run(options(tmp_path, **{name: 0}), MelCodecConfig(**TINY), SIZE, tones)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["codec-steps", "steps", "deep-steps", "batch"])
def test_a_run_without_updates_is_refused_before_it_takes_its_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match=f"--{name} 0 is not valid: at least 1"):
        train.run(options(tmp_path, **{name: 0}), MelCodecConfig(**TINY), SIZE, tones)
    assert not list(tmp_path.iterdir())


def test_recordings_of_another_manner_are_not_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(sentences("train", 2), RATE, tmp_path / "speech", speak=tones)
    monkeypatch.setitem(corpus_module.MANNER, "louder_db", 9.0)
    with pytest.raises(MismatchError, match="differs in louder_db"):
        record(sentences("train", 2), RATE, tmp_path / "speech", speak=tones)


def test_a_run_in_one_precision_is_not_gone_on_with_in_the_other(tmp_path: Path) -> None:
    def killed(text: str, speaker: Speaker) -> Audio:
        raise KeyboardInterrupt

    plain, mixed = options(tmp_path), options(tmp_path)
    mixed.bf16 = True
    with pytest.raises(KeyboardInterrupt):
        train.run(mixed, MelCodecConfig(**TINY), SIZE, killed)
    with pytest.raises(MismatchError, match="differs in bf16"):
        train.run(plain, MelCodecConfig(**TINY), SIZE, tones)


@pytest.mark.parametrize("mixed", [True, False])
def test_the_command_on_a_card_trains_in_the_same_precision(mixed: bool, tmp_path: Path) -> None:
    asked = options(tmp_path)
    asked.bf16 = mixed
    processor = SpeechProcessor(make_tokenizer(12), MelCodec(MelCodecConfig(**TINY)), {})
    export(new_model(processor.tokenizer, 2, 12, SIZE), processor, asked.out, {}, vars(asked))
    again = train.parser().parse_args(told_by((asked.out / "README.md").read_text()))
    assert again.bf16 == mixed


def test_the_gauge_is_taken_under_the_law_that_a_finished_model_samples_from(
    corpus: list[Utterance], monkeypatch: pytest.MonkeyPatch
) -> None:
    codec = MelCodec(MelCodecConfig(**TINY))
    heard, model = coded(codec, corpus[:3]), new_model(make_tokenizer(12), 2, 12, SIZE).eval()
    loss = ValleLoss(model, make_tokenizer(12), heard, 8)
    found = gauge(model, loss, heard)
    monkeypatch.setitem(WARPERS, "top_p", 1.0)
    plain = gauge(model, loss, heard)
    assert found["nats_per_code"] == plain["nats_per_code"]
    assert found["mean_top_probability"] > 1.05 * plain["mean_top_probability"]


@pytest.mark.slow
def test_a_run_makes_a_checkpoint_that_speaks_and_can_be_repeated(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    train.run(options(tmp_path), MelCodecConfig(**TINY), SIZE, tones)
    folder = tmp_path / "valle-mini"
    assert sorted(path.stem for path in (folder / "voices").iterdir()) == sorted(espeak.VOICES)
    card = (folder / "README.md").read_text()
    assert "24 sentences" in card
    again, before = train.parser().parse_args(told_by(card)), options(tmp_path)
    for name in ("sentences", "codec_steps", "steps", "deep_steps", "batch", "seed", "bf16"):
        assert getattr(again, name) == getattr(before, name)
    assert again.codes == 12
    pipe = mmspec.load(folder)
    config = pipe.target.model.generation_config
    assert (config.do_sample, config.top_p) == (True, 0.94)
    out = pipe(prompt="the red bar is the tallest", max_new_tokens=12, voice="bella")
    assert len(out.token_ids) <= 12
    figures = json.loads((tmp_path / "run" / "figures.json").read_text())
    assert 0 < figures["mean_top_probability"] <= 1
    assert figures["nats_per_code"] > 0
    lines = [json.loads(line) for line in (tmp_path / "run" / "texts" / "texts.jsonl").read_text().splitlines()]
    assert [line["prompt"] for line in lines] == sentences("train", 24)

    weights = (folder / "model.safetensors").read_bytes()
    shutil.rmtree(folder)

    def silent(text: str, speaker: Speaker) -> Audio:
        assert text == train.VOICE_LINE, "speech is read from the run's shards"
        return tones(text, speaker)

    train.run(options(tmp_path), MelCodecConfig(**TINY), SIZE, silent)
    assert (folder / "model.safetensors").read_bytes() == weights


def test_the_parent_of_a_code_is_the_one_whose_place_it_takes() -> None:
    old, new = (
        torch.tensor([[0, 0, 1, 1, 1, 2], [2, 2, 2, 1, 0, 0]]),
        torch.tensor([[3, 3, 0, 0, 1, 3], [0, 0, 1, 1, 3, 3]]),
    )
    again = torch.tensor([[1], [1]]), torch.tensor([[0], [1]])
    assert parents([(old, new), again], 3, 4).tolist() == [[1, 1, 0, 0], [2, 1, 0, 0]]  # a code unheard of: the first


def test_a_model_over_finer_codes_begins_with_what_it_knew_of_their_parents() -> None:
    model = new_model(make_tokenizer(12), 2, 12, SIZE).eval()
    origin = torch.stack([torch.arange(12).repeat_interleave(2), torch.arange(12).repeat(2)])
    finer = with_codes(model, new_model(make_tokenizer(24), 2, 24, SIZE, seed=1), origin).eval()
    assert finer.config.codebook_size == 24
    text, codes = torch.tensor([[1, 5, 9, 2]]), torch.tensor([[3, 11, 7]])
    first = model.config.first_code
    with torch.no_grad():
        old = model(torch.cat([text, first + codes], 1)).logits[..., first:].softmax(-1)
        new = finer(torch.cat([text, first + 2 * codes + 1], 1)).logits[..., first:].softmax(-1)
        torch.testing.assert_close(new.unflatten(-1, (12, 2)).sum(-1), old)
        voice = torch.tensor([[[1, 4], [8, 2]]])
        was = model.refiner(text, voice, codes[None], 1)
        now = finer.refiner(text, torch.stack([2 * voice[:, 0], 12 + voice[:, 1]], 1), 2 * codes[None], 1)
        torch.testing.assert_close(now, was.repeat(1, 1, 2))


def finished(folder: Path, codec: dict[str, Any] | None = None, size: Size = SIZE) -> Path:
    """A checkpoint with new weights, as a run leaves it. codec: what differs from TINY."""
    config = MelCodecConfig(**TINY | (codec or {}))
    model = new_model(make_tokenizer(config.codebook_size), config.codebooks, config.codebook_size, size.deepest())
    model.save_pretrained(folder)
    MelCodec(config).save_pretrained(folder / "codec")
    return folder


@pytest.mark.parametrize(
    ("codec", "size", "told"),
    [
        ({"hop": 32, "mels": 20}, SIZE, "hop, mels"),
        ({"codebooks": 3}, SIZE, "codebooks"),
        ({}, replace(SIZE, heads=2), "heads"),
        ({}, replace(SIZE, deep=5, refiner_layers=2), "layers, deep, refiner_layers"),
    ],
)
def test_a_start_of_other_sizes_is_refused(tmp_path: Path, codec: dict[str, int], size: Size, told: str) -> None:
    folder = finished(tmp_path / "other", codec, size)
    with pytest.raises(MismatchError, match=f"which differs in {told}: only the number of codes may"):
        read_start(str(folder), MelCodecConfig(**TINY), SIZE)


def test_what_is_no_start_is_refused_before_a_run_takes_its_folder(tmp_path: Path) -> None:
    folder = finished(tmp_path / "valle")
    assert read_start(str(folder), MelCodecConfig(**TINY), SIZE).digest != ""
    shutil.rmtree(folder / "codec")
    with pytest.raises(CheckpointError, match="codec"):
        train.run(options(tmp_path, start=folder), MelCodecConfig(**TINY), SIZE, tones)
    with pytest.raises(MismatchError, match="a smolvlm checkpoint: it needs a VALL-E-type one"):
        train.run(options(tmp_path, start="smolvlm-mini"), MelCodecConfig(**TINY), SIZE, tones)
    for codes in (0, -1, 1 << 15):
        with pytest.raises(InputError, match=f"a codebook has 1 to 32767 codes, got {codes}"):
            train.run(options(tmp_path, codes=codes), None, SIZE, tones)
    assert not (tmp_path / "run").exists()


def test_a_new_codec_takes_over_everything_but_the_codebooks() -> None:
    old, new = MelCodec(MelCodecConfig(**TINY)), MelCodec(MelCodecConfig(**TINY | {"codebook_size": 20}))
    old.config.mean, old.config.spread = 1.5, 0.5
    take_over_sound(new, old)
    assert (new.config.mean, new.config.spread) == (1.5, 0.5)
    here, there = new.state_dict(), old.state_dict()
    assert [name for name in here if not torch.equal(here[name], there[name])] == ["books.0.weight", "books.1.weight"]


def test_a_codec_that_is_to_be_kept_has_the_codes_that_are_asked_for(tmp_path: Path) -> None:
    folder = finished(tmp_path / "start")
    finer = MelCodecConfig(**TINY | {"codebook_size": 20})
    with pytest.raises(MismatchError, match="has 12 codes, and 20 are asked for"):
        train.run(options(tmp_path, start=folder, **{"codec-steps": 0}), finer, SIZE, tones)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_run_keeps_the_codec_of_a_start_if_it_is_not_to_be_trained(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    folder, config = finished(tmp_path / "start"), MelCodecConfig(**TINY)
    train.run(options(tmp_path, start=folder, **{"codec-steps": 0, "steps": 0, "deep-steps": 1}), config, SIZE, tones)
    made = read_start(str(tmp_path / "valle-mini"), config, SIZE)
    old = MelCodec.from_pretrained(folder / "codec").to(torch.bfloat16).state_dict()
    assert all(torch.equal(value.to(torch.bfloat16), old[name]) for name, value in made.codec.state_dict().items())
    assert (tmp_path / "run" / "codec-done" / "config.json").exists()  # for its listener
    mlp = "speaker.model.layers.3.mlp.up_proj.weight"
    begun = read_start(str(folder), config, SIZE).model.state_dict()[mlp]
    assert (made.model.state_dict()[mlp] - begun).norm() < 0.3 * begun.norm()
    assert "the codec as it was, 1 updates of the model" in " ".join(
        (tmp_path / "valle-mini" / "README.md").read_text().split()
    )


@pytest.mark.slow
def test_a_run_goes_on_from_a_finished_checkpoint_over_a_finer_codec(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    folder = finished(tmp_path / "start")
    shutil.copytree(folder, tmp_path / "other")

    def go_on(run: Any) -> None:
        train.run(run, MelCodecConfig(**TINY | {"codebook_size": 20}), SIZE, tones)

    go_on(options(tmp_path, start=folder, **{"deep-steps": 2}))
    finer = MelCodecConfig(**TINY | {"codebook_size": 20})
    assert not (tmp_path / "run" / "shallow-done").exists()
    old = read_start(str(folder), finer, SIZE)
    new = read_start(str(tmp_path / "valle-mini"), finer, SIZE)
    assert (new.codec.config.codebook_size, new.model.config.codebook_size) == (20, 20)
    assert (new.codec.config.mean, new.codec.config.spread) == (old.codec.config.mean, old.codec.config.spread)
    mlp = "speaker.model.layers.3.mlp.up_proj.weight"
    begun, ended, chance = (model.state_dict()[mlp] for model in (
        old.model, new.model, new_model(make_tokenizer(20), 2, 20, SIZE.deepest(), seed=1)
    ))  # fmt: skip
    assert (ended - begun).norm() < 0.3 * (ended - chance).norm()
    card = " ".join((tmp_path / "valle-mini" / "README.md").read_text().split())
    assert "went on from a finished one" in card
    assert str(tmp_path) not in card
    assert len(mmspec.load(tmp_path / "valle-mini")(prompt="a red bar", max_new_tokens=5).token_ids) <= 5

    weights = (tmp_path / "valle-mini" / "model.safetensors").read_bytes()
    again = options(tmp_path, start=tmp_path / "other", steps=9, **{"deep-steps": 2})
    go_on(again)  # the same weights elsewhere; the shallow decoder's updates do not matter
    assert (tmp_path / "valle-mini" / "model.safetensors").read_bytes() == weights
    changed = load_file(tmp_path / "other" / "model.safetensors")
    save_file({name: value + 1 for name, value in changed.items()}, tmp_path / "other" / "model.safetensors")
    with pytest.raises(MismatchError, match="differs in start"):
        go_on(again)


def test_without_espeak_the_command_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(espeak.shutil, "which", lambda program: None)
    with pytest.raises(MissingExtraError, match="apt-get install espeak-ng"):
        train.main(["--out", str(tmp_path / "x")])
    with pytest.raises(MissingExtraError, match="apt-get install espeak-ng"):
        espeak.say("one", usual("adam"))


def test_a_wav_from_a_pipe_gets_its_true_length() -> None:
    whole = Audio(np.linspace(-0.5, 0.5, 300).astype(np.float32), 8000).wav()
    start = whole.index(b"data") + 4
    piped = whole[:4] + b"\xff\xff\xff\x7f" + whole[8:start] + b"\xff\xff\xff\x7f" + whole[start + 4 :]
    assert espeak._sized(piped) == whole
    assert len(read_audio(espeak._sized(piped)).samples) == 300


def test_no_more_than_a_moment_of_the_silence_behind_a_sentence_is_left() -> None:
    sound = np.full(1000, 0.3, np.float32)
    said = without_rest(Audio(np.concatenate([sound, np.zeros(4000, np.float32)]), 8000))
    assert len(said.samples) == 1000 + int(REST_S * 8000)
    assert np.array_equal(said.samples[:1000], sound)
    assert len(without_rest(Audio(sound, 8000)).samples) == 1000
    assert len(without_rest(Audio(np.zeros(500, np.float32), 8000)).samples) == 500  # nothing but silence


def test_drifting_speech_is_the_same_speech_a_little_louder_softer_faster_slower() -> None:
    time = np.arange(32000) / 16000
    even = Audio((0.3 * np.sin(2 * np.pi * 200 * time)).astype(np.float32), 16000)
    one, same, other = (drifting(even, np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert np.array_equal(one.samples, same.samples)
    assert not np.array_equal(one.samples, other.samples)
    assert (one.samples.shape, one.samples.dtype) == (even.samples.shape, np.float32)
    loudness = np.abs(one.samples).reshape(-1, 320).max(1)  # of 20 ms, four periods
    assert 1.5 < loudness.max() / loudness.min() < 20
    ups = np.flatnonzero((one.samples[:-1] < 0) & (one.samples[1:] >= 0))
    pitches = 16000 / np.convolve(np.diff(ups), np.ones(20) / 20, "valid")  # Hz, over 0.1 s
    assert 200 * 1.01 < pitches.max() < 200 * 1.2
    assert 200 / 1.2 < pitches.min() < 200 / 1.01


@pytest.mark.skipif(shutil.which("espeak-ng") is None, reason="espeak-ng is needed for training only")
def test_espeak_speaks_with_every_voice() -> None:
    line = "the red bar is the tallest."
    assert all(0.8 < espeak.say(line, usual(name)).seconds < 5 for name in VOICES)
    said = [espeak.say(line, anyone(random.Random(seed))) for seed in (0, 0, 1, 2, 3)]
    assert np.array_equal(said[0].samples, said[1].samples)
    assert len({len(one.samples) for one in said}) == 4
    assert all(np.abs(one.samples[-2000:]).max() > 0.005 for one in said)  # no silence is left behind it
