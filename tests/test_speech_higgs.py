"""Higgs Audio v2: columns with delays and voices in prompts are those of transformers and of the loop with drafters."""

import copy
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import tiny_higgs
import torch
import toys
from tiny_higgs import BEGIN, CODEBOOKS, CODES, DELAY, END, OVER, RATE, SOUND, START, higgs
from torch import Tensor

import mmspec
from mmspec.contract import Accepted, Needs
from mmspec.errors import CheckpointError, InputError, MismatchError, UnsupportedError
from mmspec.loading import has_drafter
from mmspec.sampling import Sampling
from mmspec.speech.higgs import BEFORE, Higgs, HiggsSampler, SmallHiggs
from mmspec.tree import chain

TEXTS = ("two", "nine red", "The end.")


@pytest.fixture(scope="module")
def model() -> Any:
    return higgs()


@pytest.fixture(scope="module")
def processor() -> Any:
    return tiny_higgs.processor()


def pipeline(model: Any, processor: Any, drafter: Any = "none", **more: Any) -> Any:
    return mmspec.load(model, drafter, processor=processor, **more)


def asked(processor: Any, text: str, voice: bool = False) -> dict[str, Tensor]:
    """What the processor makes of a text, in the voice of a recording where `voice` says so."""
    chat: list[Any] = [{"role": role, "content": [{"type": "text", "text": said}]} for role, said in BEFORE]
    if voice:
        wave = torch.sin(torch.arange(10 * tiny_higgs.HOP) / (3 + len(text))).numpy()
        chat.append({"role": "user", "content": [{"type": "text", "text": "one"}]})
        chat.append({"role": "assistant", "content": [{"type": "audio", "audio": wave}]})
    chat.append({"role": "user", "content": [{"type": "text", "text": text}]})
    made = {"add_generation_prompt": True, "tokenize": True, "return_dict": True, "return_tensors": "pt"}
    return dict(processor.apply_chat_template(chat, **made, processor_kwargs={"sampling_rate": RATE}))


def together(inputs: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """A batch of them: words are padded on the left, sound on the right."""
    wide = max(each["input_ids"].shape[1] for each in inputs)
    long = max(each["audio_input_ids"].shape[1] for each in inputs if "audio_input_ids" in each)
    ids, mask = torch.zeros(2, len(inputs), wide, dtype=torch.long)
    sound = torch.full((len(inputs), long, CODEBOOKS), END)
    real = torch.zeros(len(inputs), long, dtype=torch.bool)
    for row, each in enumerate(inputs):
        words = each["input_ids"][0]
        ids[row, -len(words) :], mask[row, -len(words) :] = words, 1
        if "audio_input_ids" in each:
            columns = each["audio_input_ids"][0]
            sound[row, : len(columns)], real[row, : len(columns)] = columns, True
    return {"input_ids": ids, "attention_mask": mask, "audio_input_ids": sound, "audio_input_ids_mask": real}


@pytest.mark.parametrize("endless", [False, True])
@pytest.mark.parametrize("voice", [False, True])
def test_greedy_columns_and_their_sound_equal_those_of_transformers(processor: Any, endless: bool, voice: bool) -> None:
    """There column 0, the start in all codebooks, is counted and returned."""
    model = higgs(endless=endless)
    accepted, finish = set(), set()
    for text in TEXTS:
        inputs = asked(processor, text, voice)
        heard = model.generate(**inputs, do_sample=False, max_new_tokens=25)
        start = inputs["audio_input_ids"].shape[1] if voice else 0
        sound = processor.batch_decode(heard)[0].clamp(-1, 1)
        for noise in (None, 0.0, 0.05, 5.0):
            drafter = "none" if noise is None else SmallHiggs(toys.perturbed(model, noise), length=3)
            out = pipeline(model, processor, drafter).generate(**inputs, temperature=0, max_new_tokens=24)
            assert heard[0, start].tolist() == [START] * CODEBOOKS
            assert out.token_ids == [tuple(column) for column in heard[0, start + 1 :].tolist()], (text, noise)
            accepted.update(out.stats.accept_lengths if noise else [])
        assert out.audio.rate == RATE
        assert abs(out.audio.samples - sound.numpy()).max() < 1e-6
        assert sound.abs().max() > 1e-4
        finish.add(out.finish)
    assert accepted == {0, 1, 2, 3}
    assert finish == {"length"} if endless else "stop" in finish


def test_a_prompt_is_the_chat_that_the_processor_makes(model: Any, processor: Any) -> None:
    made = pipeline(model, processor).prepare(None, list(TEXTS))
    for row, text in enumerate(TEXTS):
        want = asked(processor, text)["input_ids"][0]
        assert made["input_ids"][row][made["attention_mask"][row].bool()].tolist() == want.tolist()
    out = pipeline(model, processor)(prompt="two", temperature=0, max_new_tokens=9)
    told = pipeline(model, processor).generate(**asked(processor, "two"), temperature=0, max_new_tokens=9)
    assert out.token_ids == told.token_ids
    voiced = asked(processor, "two", voice=True)
    told = pipeline(model, processor).generate(**voiced, temperature=0, max_new_tokens=9)
    del voiced["audio_input_ids_mask"]  # all of it is real
    assert told.token_ids == pipeline(model, processor).generate(**voiced, temperature=0, max_new_tokens=9).token_ids


def test_every_code_of_the_tiny_codec_is_heard(processor: Any) -> None:
    codes = torch.zeros(1, CODEBOOKS, 9, dtype=torch.long)
    sounds = []
    for k in range(CODEBOOKS):
        for code in range(CODES):
            changed = codes.clone()
            changed[0, k, 4] = code
            sounds.append(processor.audio_tokenizer.decode(changed).audio_values.detach().flatten())
    different = torch.stack(sounds).unique(dim=0)
    assert len(different) == CODEBOOKS * (CODES - 1) + 1


DRAFTERS = {"copy": 0.0, "near": 0.05, "far": 5.0}


@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("window", [0, 5])
def test_the_same_seed_gives_the_same_columns_with_every_drafter(
    model: Any, processor: Any, name: str, window: int
) -> None:
    told: dict[str, Any] = {
        "temperature": 0.8,
        "top_k": 4,
        "ras_window": window,
        "ras_share": 0.4,
        "max_new_tokens": 24,
    }
    drafted: list[int] = []
    for seed in range(3):
        inputs = asked(processor, "two red", voice=seed == 1)
        plain = pipeline(model, processor).generate(**inputs, seed=seed, **told)
        drafter = SmallHiggs(toys.perturbed(model, DRAFTERS[name]), length=3)
        out = pipeline(model, processor, drafter).generate(**inputs, seed=seed, **told)
        assert out.token_ids == plain.token_ids
        assert (out.finish, out.stats.lossless) == (plain.finish, True)
        drafted += out.stats.accept_lengths[:-1]
    if name == "copy" and not window:
        assert set(drafted) == {3}
    if name == "near":
        assert len({*drafted}) > 1
    if name == "far":
        assert sum(drafted) < len(drafted)


@pytest.mark.parametrize("rule", ["ratio", "columns-joint"])
def test_ratio_rules_keep_every_column_of_an_equal_drafter(processor: Any, rule: str) -> None:
    model = higgs(endless=True)
    pipe = pipeline(model, processor, SmallHiggs(model, length=3), acceptance=rule)
    out = pipe(prompt="two red", temperature=0.5, top_k=3, max_new_tokens=22, seed=5)
    assert len(out.stats.accept_lengths) > 3
    assert set(out.stats.accept_lengths[:-1]) == {3}
    assert out.stats.lossless


def test_rows_of_a_batch_are_those_of_single_calls(processor: Any) -> None:
    """With and without a voice, and where the context ends rows at different lengths."""
    model = higgs(endless=True)
    rows = [asked(processor, "two red circles", voice=True), asked(processor, "no"), asked(processor, "is", voice=True)]
    longest = max(each["input_ids"].shape[1] for each in rows)
    short = copy.deepcopy(model)
    short.config.max_position_embeddings = longest + 9
    lengths = set()
    for each in (higgs(), model, short):
        pipe = pipeline(each, processor, SmallHiggs(toys.perturbed(each, 0.05), length=2))
        for temperature in (0, 1.0):
            told: dict[str, Any] = {"temperature": temperature, "top_k": 4, "max_new_tokens": 20}
            found = pipe.generate(**together(rows), seed=3, **told)
            for row, inputs in enumerate(rows):
                alone = pipe.generate(**inputs, seed=3 + row, **told)
                assert (found[row].token_ids, found[row].finish) == (alone.token_ids, alone.finish)
                lengths.add((len(alone.token_ids), alone.finish))
    assert {(9, "length"), (20, "length")} < lengths
    assert "stop" in dict(lengths).values()


def test_what_was_committed_is_what_a_fresh_prompt_would_read(model: Any, processor: Any) -> None:
    """After whole, partly kept and refused drafts the logits are those of a track that read the columns at once."""
    target = Higgs(model)
    inputs = asked(processor, "two", voice=True)
    sampler = target.sampler(Sampling(), 1)
    state = target.prefill({**inputs, "max_new_tokens": 40}, Needs(), sampler)
    known = [[START] * CODEBOOKS, *state.pending.tolist()]
    for kept in (0, 2, 3, 1):
        drafted = torch.tensor([[[1, 2, 3], [END, 4, 5], [6, 7, 0]]])
        draft = chain(torch.cat([state.pending[:, None], drafted], 1))
        found = target.verify(state, draft).logits[0]
        fresh = target.track(target.told(inputs)[0], 40, 1.0)
        want = target.hear(fresh, torch.tensor([*known, *drafted[0].tolist()]))[-4:]
        torch.testing.assert_close(found, want)
        after = torch.tensor([[3, kept, 5]])
        done = Accepted(torch.arange(4)[None], torch.tensor([kept + 1]), after, paths=[list(range(kept + 1))])
        run = [*drafted[0, :kept].tolist(), after[0].tolist()]
        done.emitted = [[tuple(column) for column in run]]  # type: ignore[misc]
        target.commit(state, draft, done)
        known += run
        assert state.tracks[0].read == len(known) - 1


@pytest.mark.parametrize("columns", [CODEBOOKS, 9, 24])
def test_every_codebook_starts_late_and_ends_behind_the_first_end(processor: Any, columns: int) -> None:
    finish = set()
    for seed in range(8):
        out = pipeline(higgs(), processor)(prompt="two", temperature=1.5, seed=seed, max_new_tokens=columns)
        rows = out.token_ids
        first = next((place for place, column in enumerate(rows) if END in column), len(rows))
        for place, column in enumerate(rows):
            for k, code in enumerate(column):
                if place < k:
                    assert code == START
                if place > first + k:
                    assert code == END
        over = [place for place, column in enumerate(rows) if column == (END,) * CODEBOOKS]
        assert over == ([len(rows) - 1] if out.finish == "stop" else [])
        frames = len(rows) - len(over) - CODEBOOKS + 1
        assert (out.audio is None) == (frames < 1)
        assert out.audio is None or out.audio.samples.shape == (frames * tiny_higgs.HOP,)
        finish.add(out.finish)
    assert finish >= {"length"} if columns == CODEBOOKS else "stop" in finish


def repeating(rows: int) -> dict[str, Tensor]:
    """Prompts whose sound says few codes again and again."""
    ids = {word: index for index, word in enumerate(tiny_higgs.CONTROL)}
    sound = torch.tensor([[4, 5, 0]] * 5 + [[2, START, 0], [END, 3, 1], [END, END, 1]])
    words = [20, ids[BEGIN], *[ids[SOUND]] * 6, *[ids[DELAY]] * 2, ids[OVER], 20, 21, 22, ids[BEGIN]]
    return {
        "input_ids": torch.tensor([words] * rows),
        "audio_input_ids": sound.expand(rows, -1, -1),
        "audio_input_ids_mask": torch.ones(rows, len(sound), dtype=torch.bool),
    }


def test_repeated_codes_are_drawn_again_as_in_transformers(model: Any) -> None:
    """The law of the first column that is drawn; of codebook 0, since the others still start."""
    rows, checkpoint = 8_000, copy.deepcopy(model).float()
    own = checkpoint.generation_config
    own.do_sample, own.temperature, own.top_k, own.ras_win_len, own.ras_win_max_num_repeat = True, 0.5, 3, 7, 2
    target = Higgs(checkpoint)
    sampler = target.sampler(target.sampling({}), 1)
    seen: list[Tensor] = []
    draw = sampler.draw
    sampler.draw = lambda scores, places: seen.append(scores) or draw(scores, places)  # type: ignore
    target.prefill({**repeating(1), "max_new_tokens": 9}, Needs(), sampler)
    law = seen[0][0, 0, 0].exp()
    plain = target.sampler(target.sampling({"ras_window": 0}), 1).shape(target_logits(target)).softmax(-1)
    torch.manual_seed(0)
    made = checkpoint.generate(**repeating(rows), max_new_tokens=2)[:, -1, 0]
    share = torch.bincount(made, minlength=len(law)) / rows
    assert float(law.sum()) == pytest.approx(1)
    assert float((law - plain).abs().sum() / 2) > 0.1
    assert float((law - share).abs().sum() / 2) < 0.02


def target_logits(target: Higgs) -> Tensor:
    """[V] of codebook 0 in the first column."""
    track = target.track(target.told(repeating(1))[0], 9, 1.0)
    return target.hear(track, torch.full((1, CODEBOOKS), START))[0, 0]


def test_codes_of_every_column_are_drawn_by_their_own_window(model: Any, processor: Any) -> None:
    """Worked out again from the columns alone, one by one."""
    window, share, seed, target = 5, 0.4, 2, Higgs(model)
    inputs = asked(processor, "two", voice=True)
    told: dict[str, Any] = {"temperature": 0.7, "top_k": 4, "ras_window": window, "ras_share": share, "seed": seed}
    drafter = SmallHiggs(toys.perturbed(model, 0.02), length=3)
    out = pipeline(model, processor, drafter).generate(**inputs, max_new_tokens=30, **told)
    sound = [*inputs["audio_input_ids"][0].tolist(), [START] * CODEBOOKS]
    columns = [[START] * CODEBOOKS, *map(list, out.token_ids)]
    raw = target.hear(target.track(target.told(inputs)[0], 30, 1.0), torch.tensor(columns[:-1])).float()
    sampler = HiggsSampler(Sampling(temperature=0.7, top_k=4, seed=seed), 1, torch.device("cpu"), [START, END])
    replaced = 0
    for place, logits in enumerate(raw):
        law = sampler.shape(logits).softmax(-1)
        last = [*sound, *columns[1 : place + 1]][-window:]
        for k in range(CODEBOOKS):
            often = [code for code in range(CODES) if sum(column[k] == code for column in last) >= window * share]
            again = law[k, often].sum()
            law[k, often] = 0
            law[k] += again * logits[k].softmax(-1)
            replaced += bool(again > 0.01)
        drawn = sampler.draw(law.log()[None, None], torch.tensor([[place]]))[0, 0]
        assert drawn.tolist() == columns[place + 1]
    assert replaced > 5


def test_as_many_repetitions_count_as_the_checkpoint_says() -> None:
    """Whatever the share of the window is rounded to. Starts and ends never count."""
    column: Any = (1, 2, START)
    other: Any = (3, 3, START)
    for window, most in itertools.product(range(1, 60), repeat=2):
        if most > window:
            continue
        sampling = Sampling(temperature=1.0, ras_window=window, ras_share=most / window)
        sampler = HiggsSampler(sampling, 1, torch.device("cpu"), [START, END])
        for count in (most - 1, most):
            sampler.recent = [([other] * window + [column] * count)[-window:]]
            found = sampler.repeated(chain(torch.tensor([[column]])), CODES + 2)[0, 0]
            assert bool(found[0, 1]) == (count == most), (window, most)
            assert not found[2].any()


def test_a_folder_and_its_processor_are_read(model: Any, processor: Any, tmp_path: Path) -> None:
    place = tmp_path / "higgs"
    speaks = tiny_higgs.processor()
    speaks.audio_tokenizer.save_pretrained(tmp_path / "codec")
    speaks.audio_tokenizer.name_or_path = str(tmp_path / "codec")
    model.save_pretrained(place)
    speaks.save_pretrained(place)
    pipe = mmspec.load(place, "none", dtype="float64")
    out = pipe(prompt="nine red", temperature=0, max_new_tokens=20)
    want = pipeline(model, processor)(prompt="nine red", temperature=0, max_new_tokens=20)
    assert out.token_ids == want.token_ids
    assert abs(out.audio.samples - want.audio.samples).max() < 1e-6
    json.dumps(out.as_dict())


def test_a_stream_plays_its_sound_at_the_end(model: Any, processor: Any) -> None:
    stream = pipeline(model, processor).stream(prompt="two red", max_new_tokens=20, temperature=1.0, seed=3)
    *before, last = stream
    assert before
    assert all(piece.audio is None for piece in before)
    assert last.audio is not None
    assert last.audio is stream.finish().audio


def test_the_codec_goes_where_the_model_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no card here, so the model says that it lies on the meta device."""
    made = higgs()
    monkeypatch.setattr(type(made), "device", torch.device("meta"))
    target = Higgs(made)
    assert target.codes_alone
    target.adopt(tiny_higgs.processor())
    assert target.codec.device.type == "meta"
    assert not target.codes_alone


def test_a_tokenizer_alone_gives_codes_alone(model: Any, processor: Any) -> None:
    tokenizer = copy.deepcopy(processor.tokenizer)
    tokenizer.chat_template = processor.chat_template
    out = pipeline(model, tokenizer)(prompt="nine red", temperature=0, max_new_tokens=20)
    assert out.token_ids == pipeline(model, processor)(prompt="nine red", temperature=0, max_new_tokens=20).token_ids
    assert out.audio is None


def test_mistakes_are_told(model: Any, processor: Any) -> None:
    pipe, inputs = pipeline(model, processor), asked(processor, "two", voice=True)
    told: dict[str, Any] = {"max_new_tokens": 9, "temperature": 0}
    with pytest.raises(InputError, match="too few for a delay pattern of 3 codebooks: 3 or more"):
        pipe(prompt="two", max_new_tokens=2)
    with pytest.raises(InputError, match="the prompt holds the control token '<.AUDIO_OUT.>'"):
        pipe(prompt=f"two {SOUND}", max_new_tokens=9)
    with pytest.raises(InputError, match="the prompt has 4.. ids, the model's context is 256"):
        pipe(prompt="two " * 80, max_new_tokens=9)
    with pytest.raises(InputError, match="repetition_penalty means nothing to Higgs Audio, whose codebooks share"):
        pipe(prompt="two", repetition_penalty=1.2, max_new_tokens=9)
    with pytest.raises(InputError, match="guidance is not an option"):
        pipe(prompt="two", guidance=2.0, max_new_tokens=9)
    with pytest.raises(InputError, match="Higgs Audio is served without audio_labels: leave it out"):
        pipe.generate(**inputs, audio_labels=inputs["audio_input_ids"], **told)
    with pytest.raises(InputError, match="must end with the id 8, with which sound begins"):
        pipe.generate(inputs["input_ids"][:, :-1], **told)
    with pytest.raises(InputError, match="and no other sound may begin or end within its last 3 ids"):
        pipe.generate(torch.cat([inputs["input_ids"], torch.tensor([[10, 8]])], 1), **told)
    with pytest.raises(InputError, match="a prompt has 15 slots of sound, and audio_input_ids fill 0: pass on all"):
        pipe.generate(inputs["input_ids"], **told)
    fewer = torch.arange(15)[None] < 14
    with pytest.raises(InputError, match="a prompt has 15 slots of sound, and audio_input_ids fill 14"):
        pipe.generate(**{**inputs, "audio_input_ids_mask": fewer}, **told)
    with pytest.raises(InputError, match=r"audio_input_ids are codes \[1, F, 3\], not \[1, 15, 2\]"):
        pipe.generate(**{**inputs, "audio_input_ids": inputs["audio_input_ids"][..., :2]}, **told)
    with pytest.raises(InputError, match=r"audio_input_ids_mask is a mask \[1, 15\], not \[1, 14\]"):
        pipe.generate(**{**inputs, "audio_input_ids_mask": fewer[:, :14]}, **told)
    with pytest.raises(InputError, match=r"audio_input_ids hold .* to 10: the model knows codes 0 to 9"):
        pipe.generate(**{**inputs, "audio_input_ids": inputs["audio_input_ids"] + 1}, **told)
    untaught = pipeline(model, copy.deepcopy(processor.tokenizer))
    with pytest.raises(InputError, match="refuses the prompt"):
        untaught(prompt="two", max_new_tokens=9)
    with pytest.raises(CheckpointError, match="the codec has 3 codebooks, the model speaks 4"):
        pipeline(higgs(codebooks=4), processor)


def test_a_folder_of_a_smaller_model_drafts(model: Any, processor: Any, tmp_path: Path) -> None:
    toys.perturbed(model, 0.05).save_pretrained(tmp_path)
    told: dict[str, Any] = {"temperature": 1.0, "seed": 7, "max_new_tokens": 12}
    pipe = pipeline(model, processor, tmp_path)
    assert isinstance(pipe.drafter, SmallHiggs)
    out = pipe(prompt="two red", **told)
    assert out.token_ids == pipeline(model, processor)(prompt="two red", **told).token_ids
    assert any(out.stats.accept_lengths)


def test_what_does_not_fit_is_refused(model: Any, processor: Any) -> None:
    with pytest.raises(MismatchError, match="Higgs Audio emits columns of codes"):
        pipeline(model, processor, acceptance="block")
    with pytest.raises(MismatchError, match="'prompt-lookup' drafts single ids, and Higgs Audio emits columns"):
        pipeline(model, processor, "prompt-lookup")
    with pytest.raises(MismatchError, match="the drafter has codebooks 2, the target 3"):
        pipeline(model, processor, SmallHiggs(higgs(1, codebooks=2)))
    with pytest.raises(CheckpointError, match="pass the folder or the hub id of a smaller Higgs"):
        pipeline(model, processor, "small-higgs")
    with pytest.raises(UnsupportedError, match="cannot be compiled here: .* compile=False"):
        pipeline(model, processor, compile=True)
    target = pipeline(model, processor).target
    assert [has_drafter(name, target, None) for name in ("none", "suffix", "small-higgs")] == [True, False, False]
