"""Columns of codes: the laws of the three rules by enumeration, MusicGen on its stock class, a smaller one drafting."""

import itertools
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import toys
from tiny_musicgen import CODEBOOKS, CODES, musicgen, tokenizer
from torch import Tensor

import mmspec
from mmspec import noise
from mmspec.acceptance.typical import Typical
from mmspec.errors import InputError, MismatchError
from mmspec.loading import has_drafter
from mmspec.sampling import Sampling
from mmspec.speech.columns import Columns, ColumnSampler, Joint, PerCode, kept_until, leading, thin
from mmspec.speech.delayed import Delayed, Track
from mmspec.speech.musicgen import Musicgen
from mmspec.speech.small_musicgen import Following, SmallMusicgen
from mmspec.tree import chain

K, V, ROWS = 2, 3, 40_000


def tables(seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """p1, q1 [K, V] of a first column, and p2, q2 [V^K, K, V] of a second one, which depend on the first."""
    generator = torch.Generator().manual_seed(seed)

    def law(*shape: int) -> Tensor:
        return (1.5 * torch.randn(*shape, V, generator=generator)).softmax(-1)

    return law(K), law(K), law(V**K, K), law(V**K, K)


def number(columns: Tensor) -> Tensor:
    """Columns [.., K] as one number each."""
    return columns @ torch.tensor([V**k for k in range(K)])


def joint(law: Tensor) -> Tensor:
    """[.., K, V] -> [.., V^K] of columns by their number."""
    cells = [[n // V**k % V for k in range(K)] for n in range(V**K)]
    return torch.stack([torch.stack([law[..., k, c] for k, c in enumerate(cell)]).prod(0) for cell in cells], -1)


def play(rule: Any, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Pairs of columns that one round (and, where it ended early, plain drawing) gives, and how many were kept."""
    p1, q1, p2, q2 = tables()
    sampler = ColumnSampler(Sampling(temperature=1.0, seed=seed), ROWS, torch.device("cpu"))
    emitted = torch.full((ROWS,), 5)

    def drafted(law: Tensor, level: int) -> Tensor:
        counters = emitted[:, None] * 2**8 + level
        return (law.log() + sampler.column_noise(noise.DRAFT, counters, K, V)[:, 0]).argmax(-1)

    one = drafted(q1.expand(ROWS, -1, -1), 0)
    two = drafted(q2[number(one)], 1)
    tokens = torch.stack([torch.zeros_like(one), one, two], 1)
    q = torch.stack([q1.expand(ROWS, -1, -1), q2[number(one)], q2[number(one)]], 1)
    p = torch.stack([p1.expand(ROWS, -1, -1), p2[number(one)], p1.expand(ROWS, -1, -1)], 1)
    done = rule(chain(tokens, "sampled", q), p.log(), sampler, emitted)
    first = torch.where((done.count == 1)[:, None], done.next, one)
    plain = sampler.draw(p2[number(first)].log()[:, None], emitted[:, None] + 1)[:, 0]
    second = torch.where((done.count == 1)[:, None], plain, torch.where((done.count == 2)[:, None], done.next, two))
    return torch.stack([number(first), number(second)], -1), done.count - 1


def distance_to_law(pairs: Tensor) -> float:
    """TV between the pairs that were seen and the target's law of them."""
    p1, _, p2, _ = tables()
    expected = joint(p1)[:, None] * joint(p2)
    seen = torch.zeros_like(expected)
    seen.index_put_((pairs[:, 0], pairs[:, 1]), torch.ones(len(pairs)), accumulate=True)
    return float((seen / len(pairs) - expected).abs().sum() / 2)


NOISE = 0.025
"""TV of as many true draws from the law: below 0.02 in 999 of 1000 cases."""


def redrawn(rule: Any) -> Any:
    """The rule made wrong: after a rejection a whole column from p, not from what is left of p."""

    def decide(draft: Any, scores: Tensor, sampler: Any, emitted: Tensor) -> Any:
        right = rule(draft, scores, sampler, emitted)
        failed = right.count < draft.size
        ends = emitted + right.count - 1
        law = scores[torch.arange(len(ends)), right.count - 1]
        drawn = sampler.draw(law[:, None], ends[:, None])[:, 0]
        return kept_until(draft, right.count - 1, torch.where(failed[:, None], drawn, right.next))

    return decide


@pytest.mark.parametrize("rule", [PerCode(), Joint()], ids=["per-code", "joint"])
def test_columns_have_the_targets_joint_law(rule: Any) -> None:
    pairs, _ = play(rule)
    assert distance_to_law(pairs) < NOISE


@pytest.mark.parametrize("rule", [PerCode(), Joint()], ids=["per-code", "joint"])
def test_a_wrong_residual_is_seen(rule: Any) -> None:
    assert distance_to_law(play(redrawn(rule))[0]) > 1.5 * NOISE


def test_a_smaller_musicgen_draws_with_noise_that_is_not_the_targets() -> None:
    """Sampled drafts: the pair of a drafted code and the target's own follows the product of their laws."""
    p, q = tables(4)[:2]
    sampler = ColumnSampler(Sampling(temperature=1.0, seed=3), ROWS, torch.device("cpu"))
    drafting: Any = Following(None, sampler, "sampled", [], [])  # type: ignore[arg-type]  # no forward is needed
    emitted, scores = torch.full((ROWS,), 5), q.log().expand(ROWS, -1, -1)
    for level in (0, 1):
        drafted = (scores + drafting._noise(emitted, level, scores)).argmax(-1)
        for place in range(5, 8):  # whatever the target draws there
            own = sampler.draw(p.log().expand(ROWS, 1, -1, -1), torch.full((ROWS, 1), place))[:, 0]
            for k in range(K):
                seen = torch.bincount(drafted[:, k] * V + own[:, k], minlength=V * V).view(V, V) / ROWS
                assert float((seen - q[k][:, None] * p[k]).abs().sum() / 2) < NOISE
        deeper = (scores + drafting._noise(emitted, level + 1, scores)).argmax(-1)
        again = float((drafted == deeper).float().mean())
        assert again == pytest.approx(float((q**2).sum(-1).mean()), abs=NOISE)


def test_how_often_a_column_goes_on() -> None:
    p1, q1, _, _ = tables()
    by_code = (1 - (p1 - q1).abs().sum(-1) / 2).prod()
    whole = 1 - (joint(p1) - joint(q1)).abs().sum() / 2
    assert whole > by_code + 0.02
    for rule, chance in ((PerCode(), by_code), (Joint(), whole)):
        share = (play(rule, seed=10**6)[1] > 0).float().mean()
        assert float(share) == pytest.approx(float(chance), abs=0.01)


def test_thinning_draws_from_what_p_has_above_q() -> None:
    p, q = tables(3)[:2]
    seeds, place = torch.arange(ROWS), torch.full((ROWS,), 7)
    found = number(thin(p.expand(ROWS, -1, -1), q.expand(ROWS, -1, -1), seeds, place))
    expected = (joint(p) - joint(q)).clamp(min=0)
    seen = torch.bincount(found, minlength=V**K) / ROWS
    assert float((seen - expected / expected.sum()).abs().sum() / 2) < NOISE


def test_thinning_ends_where_nothing_is_left_and_warns(caplog: pytest.LogCaptureFixture) -> None:
    p, q = tables()[:2]
    thin(p[None], q[None], torch.tensor([1]), torch.tensor([1]))
    assert not caplog.text
    found = thin(p.expand(2, -1, -1), p.expand(2, -1, -1), torch.tensor([1, 2]), torch.tensor([1, 2]))
    assert found.shape == (2, K)
    assert "2 columns were drawn from the target's own law instead of the residual" in caplog.text
    caplog.clear()
    assert thin(p[None][:0], p[None][:0], torch.arange(0), torch.arange(0)).shape == (0, K)
    assert not caplog.text


def test_the_coupled_rule_keeps_columns_that_are_the_targets_own() -> None:
    sampler = ColumnSampler(Sampling(temperature=1.0, seed=4), 1, torch.device("cpu"))
    emitted = torch.tensor([3])
    scores = torch.randn(1, 4, K, V, generator=torch.Generator().manual_seed(1))
    own = sampler.draw(scores, emitted[:, None] + torch.arange(4))  # after nodes 0 to 3
    for wrong in range(4):
        tokens = torch.cat([torch.zeros(1, 1, K, dtype=torch.long), own[:, :3]], 1)
        if wrong:
            tokens[0, wrong, 1] = (tokens[0, wrong, 1] + 1) % V  # one code of one column
        done = Columns()(chain(tokens, "coupled"), scores, sampler, emitted)
        kept = wrong - 1 if wrong else 3
        assert done.count.tolist() == [kept + 1]
        assert torch.equal(done.next, own[:, kept])
        assert done.path[0, : kept + 1].tolist() == list(range(kept + 1))


def test_leading() -> None:
    rows = torch.tensor(list(itertools.product([True, False], repeat=3)))
    assert leading(rows).tolist() == [3, 2, 1, 1, 0, 0, 0, 0]


# MusicGen


@pytest.fixture(scope="module")
def model() -> Any:
    return musicgen()


def pipeline(model: Any, drafter: Any = "none", **more: Any) -> Any:
    return mmspec.load(model, drafter, processor=tokenizer(), **more)


@pytest.mark.parametrize("guidance", [1.0, 8.0])
def test_greedy_sound_equals_that_of_transformers(model: Any, guidance: float) -> None:
    inputs = tokenizer()("loud drums", return_tensors="pt")
    with torch.no_grad():
        heard = model.generate(**inputs, do_sample=False, guidance_scale=guidance, max_new_tokens=30)
    small = SmallMusicgen(toys.perturbed(model, 0.05), length=3)
    for drafter in ("none", small):
        out = pipeline(model, drafter)(prompt="loud drums", temperature=0, guidance=guidance, max_new_tokens=30)
        assert len(out.token_ids) == 30
        frames = 30 - CODEBOOKS + 1
        assert out.audio.samples.shape == (frames * 8,)
        expected = heard[0, 0].float().clamp(-1, 1).numpy()
        assert abs(out.audio.samples - expected).max() < 1e-6
        assert abs(expected).max() > 1e-4


def test_both_channels_of_stereo_lag_alike() -> None:
    """Codebooks of the left and the right take turns; transformers gives both channels, mmspec their mean."""
    model = musicgen(codebooks=4, audio_channels=2)
    inputs = tokenizer()("loud drums", return_tensors="pt")
    with torch.no_grad():
        heard = model.generate(**inputs, do_sample=False, max_new_tokens=20)
    small = SmallMusicgen(toys.perturbed(model, 0.05), length=3)
    for drafter in ("none", small):
        out = pipeline(model, drafter)(prompt="loud drums", temperature=0, max_new_tokens=20)
        assert out.audio.samples.shape == ((20 - 1) * 8,)
        assert abs(out.audio.samples - heard[0].mean(0).float().clamp(-1, 1).numpy()).max() < 1e-6
    mono = SmallMusicgen(musicgen(codebooks=4), length=3)
    with pytest.raises(MismatchError, match="delays"):
        pipeline(model, mono)


@pytest.mark.parametrize("delays", [[0, 1, 2], [0, 0, 1, 1], [0, 2, 3]])
def test_a_code_of_a_frame_stands_as_many_columns_further_on_as_its_codebook_lags(delays: list[int]) -> None:
    columns = [[10 * step + k for k in range(len(delays))] for step in range(9)]
    family: Any = SimpleNamespace(delays=delays)
    want = [[10 * (frame + delay) + k for frame in range(4)] for k, delay in enumerate(delays)]
    assert Delayed.frames(family, columns, 4).tolist() == want


def test_every_code_of_the_tiny_codec_is_heard(model: Any) -> None:
    codes = torch.randint(CODES, (1, 1, CODEBOOKS, 9), generator=torch.Generator().manual_seed(0))
    sounds = [codes]
    for k in range(CODEBOOKS):
        sounds.append(codes.clone())
        sounds[-1][0, 0, k, 4] += 1
    with torch.no_grad():
        heard = [model.audio_encoder.decode(each, [None]).audio_values for each in sounds]
    assert all(not torch.equal(one, other) for one, other in itertools.combinations(heard, 2))


def test_guidance_leads_away_from_the_row_that_sees_no_text(model: Any) -> None:
    target, text = Musicgen(model), tokenizer()("loud drums")["input_ids"]
    columns = torch.tensor([[CODES] * CODEBOOKS, [3, CODES, CODES], [1, 2, CODES]])
    both, told = target.track(text, 20, 2.5), target.track(text, 20, 1.0)
    blind = Track(torch.zeros_like(told.text), torch.zeros_like(told.mask), 20, 1.0)
    with torch.no_grad():
        guided, seen, unseen = (target.hear(track, columns) for track in (both, told, blind))
    free = seen.isfinite() & (seen != 0)
    assert float((seen - unseen)[free].abs().max()) > 0.01
    torch.testing.assert_close(guided[free], (unseen + 2.5 * (seen - unseen))[free])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_guidance_rounds_no_more_than_the_model_did(model: Any, dtype: torch.dtype) -> None:
    told, free = (10 * torch.randn(2, 3, 2, 11, generator=torch.Generator().manual_seed(0))).to(dtype)
    got = Musicgen(model).mixed(torch.stack([told, free]), 7.5)
    assert got.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    want = free.double() + 7.5 * (told.double() - free.double())
    torch.testing.assert_close(got.double(), want, rtol=0, atol=1e-4)


def test_cells_outside_the_pattern_are_padding_and_others_never(model: Any) -> None:
    out = pipeline(model)(prompt="slow strings", temperature=1.5, max_new_tokens=9, seed=2)
    for step, column in enumerate(out.token_ids):
        for k, code in enumerate(column):
            inside = 0 <= step - k < 9 - CODEBOOKS + 1
            assert (code < CODES) == inside


DRAFTERS = {"copy": 0.0, "near": 0.3, "far": 5.0}


@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("guidance", [1.0, 2.0])
def test_the_same_seed_gives_the_same_columns_with_every_drafter(model: Any, name: str, guidance: float) -> None:
    asked: dict[str, Any] = {"temperature": 1.0, "seed": 7, "guidance": guidance, "max_new_tokens": 24, "top_k": 6}
    plain = pipeline(model)(prompt="loud drums", **asked)
    drafter = SmallMusicgen(toys.perturbed(model, DRAFTERS[name]), length=3)
    out = pipeline(model, drafter)(prompt="loud drums", **asked)
    assert out.token_ids == plain.token_ids
    assert out.stats.lossless
    assert len(plain.stats.accept_lengths) == 23
    if name == "copy" and guidance == 1:
        assert out.stats.tau > 3.5
        assert set(out.stats.accept_lengths[:-1]) == {3}
    if name == "near" and guidance == 1:
        assert 1.1 < out.stats.tau < 3.5
    if name == "far":
        assert out.stats.tau < 1.5


@pytest.mark.parametrize("rule", ["exact", "ratio", "columns-joint"])
@pytest.mark.parametrize("seed", range(3, 15, 3))
def test_rows_of_a_batch_are_those_of_single_calls(model: Any, rule: str, seed: int) -> None:
    """Also at their ends, where other rows have room for longer drafts."""
    drafter = SmallMusicgen(toys.perturbed(model, 0.2), length=3)
    pipe = pipeline(model, drafter, acceptance=rule)
    texts = ["loud drums", "a very slow song of strings"]
    asked: dict[str, Any] = {"temperature": 1.0, "guidance": 1.0, "max_new_tokens": 16}
    together = pipe(prompt=texts, seed=seed, **asked)
    for row, text in enumerate(texts):
        alone = pipe(prompt=text, seed=seed + row, **asked)
        assert together[row].token_ids == alone.token_ids
        assert together[row].stats.accept_lengths == alone.stats.accept_lengths


@pytest.mark.parametrize("rule", ["ratio", "columns-joint"])
def test_ratio_rules_keep_every_column_of_an_equal_drafter(model: Any, rule: str) -> None:
    drafter = SmallMusicgen(model, length=3)
    pipe = pipeline(model, drafter, acceptance=rule)
    out = pipe(prompt="loud drums", temperature=1.0, guidance=1.0, max_new_tokens=22, seed=5)
    assert set(out.stats.accept_lengths[:-1]) == {3}
    assert out.stats.lossless
    other = pipeline(model, SmallMusicgen(toys.perturbed(model, 5.0), length=3), acceptance=rule)
    assert other(prompt="loud drums", temperature=1.0, guidance=1.0, max_new_tokens=22, seed=5).stats.tau < 2.5


def test_drafting_with_a_cache_equals_drafting_without(model: Any) -> None:
    """What a drafter proposes after accepted, partly accepted and refused drafts is what a fresh one would."""
    drafter = SmallMusicgen(toys.perturbed(model, 0.05), length=3)
    pipe = pipeline(model, drafter)
    seen: list[tuple[int, Tensor]] = []
    begin = drafter.begin

    def watched(state: Any, sampler: Any, kind: Any) -> Any:
        drafting = begin(state, sampler, kind)
        propose = drafting.propose

        def noted(now: Any) -> Any:
            draft = propose(now)
            seen.append((int(now.emitted[0]), draft.tokens[0].clone()))
            return draft

        drafting.propose = noted
        return drafting

    drafter.begin = watched  # type: ignore[method-assign]
    out = pipe(prompt="loud drums", temperature=0, guidance=1.0, max_new_tokens=24)
    assert len({*out.stats.accept_lengths}) > 1
    columns = torch.tensor([[CODES] * CODEBOOKS, *out.token_ids])
    text = tokenizer()("loud drums")["input_ids"]
    for emitted, tokens in seen:
        track = drafter.inner.track(text, 24, 1.0)
        known = columns[: emitted + 1]
        for column in tokens[1:]:
            logits = drafter.inner.hear(track, known)[-1]
            assert logits.argmax(-1).tolist() == column.tolist()
            known, track = torch.cat([known, column[None]]), drafter.inner.track(text, 24, 1.0)


def test_a_stream_plays_its_sound_at_the_end(model: Any) -> None:
    stream = pipeline(model).stream(prompt="loud drums", temperature=1.0, max_new_tokens=12, seed=1)
    *before, last = stream
    assert all(piece.audio is None for piece in before)
    assert last.audio is not None
    assert last.audio is stream.finish().audio


def test_a_folder_of_a_smaller_model_drafts(model: Any, tmp_path: Path) -> None:
    musicgen(1, layers=1).save_pretrained(tmp_path / "small")
    asked: dict[str, Any] = {"temperature": 1.0, "seed": 7, "max_new_tokens": 12}
    pipe = pipeline(model, tmp_path / "small")
    out = pipe(prompt="loud drums", **asked)
    assert out.token_ids == pipeline(model)(prompt="loud drums", **asked).token_ids
    json.dumps(out.as_dict())


def test_a_prompt_may_have_every_word_and_no_other_id(model: Any) -> None:
    """Words are many more than codes."""
    words = {"input_ids": torch.tensor([[5, 63]]), "temperature": 0, "max_new_tokens": 9}
    assert len(pipeline(model).generate(**words).token_ids) == 9
    with pytest.raises(InputError, match="knows ids 0 to 63"):
        pipeline(model).generate(**{**words, "input_ids": torch.tensor([[64]])})


def test_a_text_longer_than_its_encoder_was_trained_on_is_refused(model: Any) -> None:
    with pytest.raises(InputError, match="the text has 513 tokens, the model reads 512: shorten it"):
        pipeline(model)(prompt="a" * 513, max_new_tokens=9)
    short = musicgen()
    short.config.text_encoder.n_positions = 6  # as published checkpoints say it
    assert len(pipeline(short)(prompt="drums.", max_new_tokens=9).token_ids) == 9
    with pytest.raises(InputError, match="the text has 7 tokens, the model reads 6"):
        pipeline(short)(prompt="drums..", max_new_tokens=9)


def test_mistakes_are_told(model: Any, tmp_path: Path) -> None:
    pipe = pipeline(model)
    with pytest.raises(InputError, match="too few for a delay pattern"):
        pipe(prompt="drums", max_new_tokens=3)
    with pytest.raises(InputError, match="guidance=0"):
        pipe(prompt="drums", guidance=0, max_new_tokens=9)
    with pytest.raises(InputError, match="holds the control token"):
        pipe(prompt="drums <|speak|>", max_new_tokens=9)
    with pytest.raises(InputError, match="prompt is empty"):
        pipe(prompt=" ", max_new_tokens=9)
    with pytest.raises(InputError, match="repetition_penalty means nothing to MusicGen, whose codebooks share"):
        pipe(prompt="drums", repetition_penalty=1.2, max_new_tokens=9)
    with pytest.raises(MismatchError, match="columns-joint"):
        pipeline(model, acceptance=Typical())
    with pytest.raises(MismatchError, match="needs the same codec|need the same codec"):
        pipeline(model, SmallMusicgen(musicgen(1, codebooks=2)))
    with pytest.raises(MismatchError):
        pipeline(model, SmallMusicgen(model), acceptance="block")
    with pytest.raises(
        MismatchError, match="the drafter 'prompt-lookup' drafts single ids, and MusicGen emits columns"
    ):
        pipeline(model, "prompt-lookup")
    target = pipeline(model).target
    assert [has_drafter(name, target, None) for name in ("none", "suffix", "small-musicgen")] == [True, False, False]
