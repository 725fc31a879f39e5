"""CSM: depth-axis speculation changes no code, and saves passes of the depth decoder."""

from collections import Counter
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tables
import tiny
import torch
import toys
from transformers import CsmConfig, CsmForConditionalGeneration, DynamicCache

import mmspec
from mmspec.acceptance import ratio
from mmspec.acceptance.block import Block
from mmspec.acceptance.exact import Exact
from mmspec.acceptance.match import Match
from mmspec.acceptance.ratio import Ratio
from mmspec.contract import Draft, State
from mmspec.demos.recorder import Recorder
from mmspec.drafters.none import NoDrafter
from mmspec.drafters.prompt_lookup import PromptLookup
from mmspec.drafters.suffix import Suffix
from mmspec.errors import InputError, MismatchError
from mmspec.loading import has_drafter
from mmspec.registry import names
from mmspec.sampling import Sampling
from mmspec.speech.beta import Beta
from mmspec.speech.csm import Csm, Frame, FrameStop
from mmspec.speech.depth import Depth
from mmspec.speech.joint import JointRecipe
from mmspec.speech.recipes import SsdRecipe
from mmspec.speech.relaxed import MaxRatio, Tolerance, TopK
from mmspec.stopping import Stop
from mmspec.training.eagle import EagleRecipe
from mmspec.tree import chain

CODEBOOKS, CODES = 6, 20
SAMPLED = Sampling(temperature=1.0, top_p=0.95, seed=3)
MIMI = {
    "model_type": "mimi", "hidden_size": 16, "num_filters": 4, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 16, "codebook_size": 16, "codebook_dim": 8,
    "num_quantizers": CODEBOOKS, "num_semantic_quantizers": 1, "vector_quantization_hidden_dimension": 8,
    "upsampling_ratios": [4, 2], "upsample_groups": 16,
}  # fmt: skip


def model(
    change: float = 0.15, codebooks: int = CODEBOOKS, vocabulary: int = CODES, seed: int = 0
) -> CsmForConditionalGeneration:
    """Random; `change` is how much the depth decoder's state changes from code to code: little makes drafts good."""
    shape: dict[str, Any] = {
        "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "initializer_range": 0.3, "num_codebooks": codebooks, "vocab_size": vocabulary,
    }  # fmt: skip
    depth = {**shape, "backbone_hidden_size": 32, "max_position_embeddings": codebooks + 1}
    config = CsmConfig(
        **shape,
        text_vocab_size=300,
        max_position_embeddings=128,
        depth_decoder_config=depth,
        codec_config={**MIMI, "num_quantizers": codebooks},
        codebook_pad_token_id=vocabulary - 1,
        codebook_eos_token_id=0,
        pad_token_id=0,
        audio_token_id=298,
        audio_eos_token_id=299,
        bos_token_id=1,
    )
    torch.manual_seed(seed)
    made = CsmForConditionalGeneration(config).eval()
    with torch.no_grad():
        made.depth_decoder.codebooks_head.weight.normal_(std=0.3)
        for layer in made.depth_decoder.model.layers:
            layer.self_attn.o_proj.weight *= change
            layer.mlp.down_proj.weight *= change
        codes = made.depth_decoder.model.embed_tokens.weight
        codes.copy_(codes[:1] + change * codes)
        quantizer = made.codec_model.quantizer
        for part in (quantizer.semantic_residual_vector_quantizer, quantizer.acoustic_residual_vector_quantizer):
            for layer in part.layers:
                layer.codebook.embed_sum.normal_()  # made of zeros, it gives all codes the same sound
    return made.double()


@pytest.fixture(scope="module")
def target() -> Csm:
    return Csm(model())


class Counting(Csm):
    """Counts passes of the two decoders."""

    def __init__(self, made: Any) -> None:
        super().__init__(made)
        self.depth_passes = self.backbone_passes = 0

    def _depth(self, frame: Any, tokens: Any) -> Any:
        self.depth_passes += 1
        return super()._depth(frame, tokens)

    def _backbone(self, ids: Any, cache: Any) -> Any:
        self.backbone_passes += 1
        return super()._backbone(ids, cache)


DRAFTERS = {"depth": Depth(3), "long": Depth(8), "short": Depth(1), "prompt-lookup": PromptLookup(length=3)}
PROMPTS = toys.prompts(5, 9, vocab=250)


@pytest.mark.parametrize("sampling", [Sampling(), SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("rule", [Exact, Match])
def test_the_codes_are_those_of_the_loop(target: Csm, name: str, rule: Any, sampling: Sampling) -> None:
    inputs = toys.row_of(PROMPTS, 0)
    want = toys.answer(target, NoDrafter(), inputs, 36, sampling)
    found = toys.answer(target, DRAFTERS[name], inputs, 36, sampling, rule())
    assert found.rows == want.rows
    if name == "depth" and rule is Exact:
        assert sum(found.accepted) > 3


@pytest.mark.parametrize(
    ("name", "rule"),
    [*product(DRAFTERS, [Exact]), *product(["depth", "long", "short"], [Ratio, Block])],  # copies have no law
)
def test_rows_of_a_batch_are_those_of_single_calls(target: Csm, name: str, rule: Any) -> None:
    """Also where they are out of step: a row at the border of a frame lets the others draft as they would alone."""
    counting, single = Counting(target.model), Counting(target.model)
    together = toys.answer(counting, DRAFTERS[name], PROMPTS, 36, SAMPLED, rule())
    for row in range(2):
        alone = Sampling(temperature=1.0, top_p=0.95, seed=3 + row)
        found = toys.answer(single, DRAFTERS[name], toys.row_of(PROMPTS, row), 36, alone, rule())
        assert found.rows[0] == together.rows[row]
        if rule is Exact:
            assert found.rows == toys.answer(target, NoDrafter(), toys.row_of(PROMPTS, row), 36, alone).rows
    assert (counting.depth_passes, counting.backbone_passes) == (single.depth_passes, single.backbone_passes)
    steps = [[len(tokens) for tokens in r.tokens] for r in together.rounds]
    assert any(one != other for one, other in steps)


def test_a_long_prompt_leaves_the_other_rows_their_room(target: Csm) -> None:
    long, short = torch.arange(1, 119)[None], torch.tensor([[5, 9, 30]])
    ids = torch.cat([long, torch.nn.functional.pad(short, (long.shape[1] - short.shape[1], 0))])
    inputs = {"input_ids": ids, "attention_mask": torch.cat([torch.ones_like(long), (ids[1:] > 0).long()])}
    sampler = toys.Sampler(Sampling(), 2, torch.device("cpu"))
    state = target.prefill({**inputs, "max_new_tokens": 600}, NoDrafter.needs, sampler)
    assert state.limits == [(128 - 118) * CODEBOOKS, 600]


def test_words_of_the_prompt_are_never_drafted_as_codes(target: Csm) -> None:
    """Every code is also the id of a word, and after each stands one that no code has."""
    words = [word for code in range(CODES) for word in (code, 200 + code)]
    pipe = mmspec.load(target.model, "prompt-lookup")
    out = pipe.generate(input_ids=torch.tensor([words]), max_new_tokens=30, temperature=1.0, seed=1)
    plain = pipe.with_drafter("none").generate(
        input_ids=torch.tensor([words]), max_new_tokens=30, temperature=1.0, seed=1
    )
    assert out.token_ids == plain.token_ids


def test_a_prompt_may_have_every_word_and_no_other_id(target: Csm) -> None:
    pipe = mmspec.load(target.model, "none")
    assert len(pipe.generate(input_ids=torch.tensor([[5, 290]]), max_new_tokens=2).token_ids) == 2
    with pytest.raises(InputError, match="knows ids 0 to 299"):
        pipe.generate(input_ids=torch.tensor([[5, 300]]))
    with pytest.raises(MismatchError, match="another one for what it emits"):
        EagleRecipe().check(pipe.target)


def test_sound_before_the_prompt_and_stop_strings_are_refused_instead_of_ignored(target: Csm) -> None:
    pipe = mmspec.load(target.model, "none", processor=SimpleNamespace(tokenizer=tiny.tokenizer()))
    sound = {"input_values": torch.zeros(1, 1, 64), "input_values_cutoffs": torch.tensor([[0, 64]])}
    with pytest.raises(InputError, match="CSM is served with texts alone: leave input_values out"):
        pipe.generate(input_ids=torch.tensor([[5, 298]]), max_new_tokens=2, **sound)
    with pytest.raises(InputError, match="leave stop out"):
        pipe(prompt="two red circles", max_new_tokens=2, stop="circle")


@pytest.mark.parametrize("rule", [Tolerance(4), TopK(CODES), MaxRatio(1e-9), Beta(1.0)])
def test_no_tolerance_ends_an_utterance(target: Csm, rule: Any) -> None:
    """The end is drafted in every place, and stays only where it is the target's own draw."""
    rule.bind(target)
    scores = torch.zeros(400, 2, CODES).log_softmax(-1)
    draft = chain(torch.tensor([[1, target.model.config.codebook_eos_token_id]]).repeat(400, 1))
    strict: Any = Exact()
    if isinstance(rule, Beta):
        draft.kind, draft.q, strict = "sampled", torch.full((400, 2, CODES), 1 / CODES), Ratio()
        draft.q[:, 0] = torch.nn.functional.one_hot(torch.tensor(0), CODES)
    sampler, emitted = toys.Sampler(SAMPLED, 400, torch.device("cpu")), torch.zeros(400, dtype=torch.long)
    own = strict(draft, scores, sampler, emitted).count
    assert (own == 1).any()
    assert torch.equal(rule(draft, scores, sampler, emitted).count, own)


def test_settings_of_the_depth_decoder_that_are_not_applied_are_told(caplog: pytest.LogCaptureFixture) -> None:
    made = model()
    made.generation_config.update(do_sample=True, temperature=0.9, top_k=50)
    made.depth_decoder.generation_config.update(do_sample=True, temperature=0.9, top_k=50)
    mmspec.load(made, processor=SimpleNamespace(tokenizer=tiny.tokenizer()))
    assert not caplog.records
    made.depth_decoder.generation_config.update(temperature=0.7, top_k=None)
    mmspec.load(made, processor=SimpleNamespace(tokenizer=tiny.tokenizer()))
    assert [record.getMessage().split(": ")[1] for record in caplog.records] == ["temperature=0.7, top_k=0"]


def test_a_row_that_has_ended_lets_the_others_go_on(target: Csm) -> None:
    """The others may draft further than its frame would reach, so it is not read any more."""
    whole = toys.answer(target, NoDrafter(), PROMPTS, 36, SAMPLED).rows
    end = next(code for code in whole[0] if code not in whole[1])
    counting = Counting(target.model)
    found = toys.answer(counting, Depth(3), PROMPTS, 36, SAMPLED, eos=[end])
    assert found.rows == [whole[0][: whole[0].index(end) + 1], whole[1]]
    assert len(found.rows[0]) < 30
    assert any(r.proposed > 2 and not r.tokens[0] for r in found.rounds)
    read = sum(bool(tokens) for r in found.rounds[1:] for tokens in r.tokens)
    assert counting.depth_passes + counting.backbone_passes == len(PROMPTS["input_ids"]) + read


def test_greedy_codes_equal_those_of_transformers(target: Csm) -> None:
    inputs = toys.row_of(PROMPTS, 1)
    generated = target.model.generate(
        input_ids=inputs["input_ids"], do_sample=False, depth_decoder_do_sample=False, max_new_tokens=5,
        output_audio=False,
    )  # fmt: skip
    codes = generated[0] if isinstance(generated, list) else generated
    found = toys.answer(target, Depth(3), inputs, 5 * CODEBOOKS, Sampling())
    want = codes.reshape(-1).tolist()
    assert found.rows[0][: len(want)] == want
    assert len(want) >= CODEBOOKS


def test_drafting_saves_passes_of_the_depth_decoder_alone() -> None:
    counts = {}
    for name, drafter in (("none", NoDrafter()), ("depth", Depth(3))):
        counting = Counting(model())
        rows = toys.answer(counting, drafter, toys.row_of(PROMPTS, 0), 8 * CODEBOOKS, SAMPLED).rows
        assert len(rows[0]) == 8 * CODEBOOKS
        counts[name] = (counting.depth_passes, counting.backbone_passes)
    assert counts["none"] == (8 * (CODEBOOKS - 1), 8)
    assert counts["depth"][1] == 8
    assert counts["depth"][0] < 0.85 * counts["none"][0]


def test_no_draft_reaches_beyond_the_last_code_but_one(target: Csm) -> None:
    seen = []

    class Watching(Csm):
        def verify(self, state: Any, draft: Draft) -> Any:
            seen.append((len(state.frames[0].codes), draft.size))
            return super().verify(state, draft)

    toys.answer(Watching(target.model), Depth(8), toys.row_of(PROMPTS, 0), 30, SAMPLED)
    assert all(codes + size <= CODEBOOKS - 1 for codes, size in seen if codes < CODEBOOKS - 1)
    assert all(size == 1 for codes, size in seen if codes in (0, CODEBOOKS - 1))
    assert max(size for _, size in seen) > 2


def test_a_sampled_draft_declares_the_law_of_the_heads_it_used(target: Csm) -> None:
    """The ratio rule accepts by that law; it must be the head of the right code on the state of the last pass."""
    laws = []

    class Watching(Csm):
        def verify(self, state: Any, draft: Draft) -> Any:
            if draft.q is not None:
                laws.append((len(state.frames[0].codes), draft.q[0]))
            verified = super().verify(state, draft)
            states.append(verified.taps[0][0])
            return verified

    states: list[Any] = []
    toys.answer(
        Watching(target.model), Depth(2), toys.row_of(PROMPTS, 0), 18, Sampling(temperature=1.0, seed=2), Ratio()
    )
    assert laws
    code, q = laws[0]
    for level in range(len(q) - 1):
        with torch.inference_mode():
            want = target.head_at(states[0][-1:], code + 1 + level).float().softmax(-1)[0]
        assert torch.allclose(q[level], want, atol=1e-6)


def law_of_a_frame(target: Csm, prompt: torch.Tensor) -> dict[tuple[int, ...], float]:
    """The chance of every frame of codes, the depth decoder read anew for each."""
    law, heads, vocabulary = {}, target.codebooks - 1, target.model.config.vocab_size
    with torch.inference_mode():
        logits, hidden = target._backbone(prompt, DynamicCache())
        for codes in product(range(vocabulary), repeat=heads):
            states = target._depth(Frame(DynamicCache(), hidden), torch.tensor(codes))
            laws = [logits[0], *(target.head_at(states[i : i + 1], i + 1)[0] for i in range(heads))]
            chances = torch.stack(laws).softmax(-1)
            before = chances[range(heads), codes].prod()
            law |= {(*codes, last): float(before * chances[heads, last]) for last in range(vocabulary)}
    return law


@pytest.mark.parametrize("right", [True, False])
def test_ratio_keeps_the_law_of_whole_frames(right: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """400 frames of 5 codes out of 2; a rule that draws from p after a rejection is found out."""
    if not right:
        monkeypatch.setattr(ratio, "residual", lambda p, q: p)
    small = Csm(model(2.5, codebooks=5, vocabulary=2, seed=2))  # its drafts are far off
    prompt = toys.row_of(PROMPTS, 0)["input_ids"]
    sampling = Sampling(temperature=1.0, seed=5)
    found = toys.answer(small, Depth(3), {"input_ids": prompt.repeat(400, 1)}, 5, sampling, Ratio())
    assert sum(found.accepted) > 50
    law = law_of_a_frame(small, prompt)
    assert sum(law.values()) == pytest.approx(1)
    assert (tables.p_value(Counter(map(tuple, found.rows)), law) > 1e-6) == right


def test_a_committed_frame_leaves_the_caches_as_a_fresh_reading_would(target: Csm) -> None:
    """Codes after a rejection are those of the model that never saw the rejected ones."""
    worse = Csm(model(change=1.0))
    found = toys.answer(worse, Depth(4), toys.row_of(PROMPTS, 0), 30, SAMPLED)
    assert any(n < r.proposed for r, n in zip(found.rounds[1:], found.accepted, strict=True))
    assert found.rows == toys.answer(worse, NoDrafter(), toys.row_of(PROMPTS, 0), 30, SAMPLED).rows


def test_a_frame_of_end_codes_ends_the_utterance() -> None:
    state = State(
        ids=[[1]], done=[False], emitted=torch.zeros(1), prompt_length=torch.ones(1), limits=[99],
        pending=torch.tensor([0]),
    )  # fmt: skip
    stop = FrameStop(3, 0, 30)
    assert stop.start(state) == [[0]]
    assert stop._emit(state, 0, [0, 5, 7]) == [0, 5]
    assert stop.finish == ["stop"]
    assert stop.outputs == [[0, 0, 5]]
    other = State(ids=[[1]], done=[False], emitted=torch.zeros(1), prompt_length=torch.ones(1), limits=[99],
                  pending=torch.tensor([4]))  # fmt: skip
    stop = FrameStop(3, 0, 30)
    stop.start(other)
    assert stop._emit(other, 0, [0, 0, 0, 0]) == [0, 0, 0, 0]  # zeros across two frames
    assert stop.finish == [""]
    assert isinstance(stop, Stop)


def test_whole_frames_become_sound() -> None:
    made = model().float()

    class Tokens:
        tokenizer = tiny.tokenizer()

    pipe = mmspec.load(made, processor=Tokens())
    assert isinstance(pipe.drafter, Depth)
    out = pipe(prompt="two red circles", max_new_tokens=4 * CODEBOOKS + 2, temperature=1.0, seed=1)
    plain = pipe.with_drafter("none")(
        prompt="two red circles", max_new_tokens=4 * CODEBOOKS + 2, temperature=1.0, seed=1
    )
    assert out.token_ids == plain.token_ids
    assert np.array_equal(out.audio.samples, plain.audio.samples)
    assert out.audio.rate == made.config.codec_config.sampling_rate
    assert np.isfinite(out.audio.samples).all()
    end = pipe.target.product_of({}, 0, [0] * CODEBOOKS)
    assert end == {"audio": None}
    with pytest.raises(InputError, match="voice is not an option of Csm"):
        pipe(prompt="a", voice="low")
    with pytest.raises(InputError, match=r"ras_window means nothing to the model, .* leave it out, or set it to 0 "):
        pipe(prompt="a", temperature=1.0, ras_window=4)


def test_of_the_last_frames_only_one_that_ends_the_utterance_is_silent(target: Csm) -> None:
    def heard(*frames: list[int]) -> Any:
        return target.product_of({}, 0, [code for frame in frames for code in frame])["audio"].samples

    first, last = [3, 9, 1, 4, 7, 2], [0, 5, 8, 6, 2, 3]  # which begins with the code of the end
    alone, both = heard(first), heard(first, last)
    assert len(both) == 2 * len(alone)
    assert not np.array_equal(both, heard(first, [0, 5, 8, 6, 2, 4]))  # every code is heard
    assert np.array_equal(heard(first, [0] * 5 + [7]), alone)


def test_what_does_not_fit_is_refused(target: Csm) -> None:
    with pytest.raises(MismatchError, match="depth decoder"):
        Depth().bind(toys.target_of(toys.llama()))
    with pytest.raises(InputError, match="length >= 1"):
        Depth(0)
    parents = torch.tensor([[-1, 0, 0]])
    tree = Draft(torch.zeros_like(parents), parents, torch.tensor([[0, 1, 1]]))
    with pytest.raises(MismatchError, match="takes chains"):
        target.verify(
            target.prefill(
                {**toys.row_of(PROMPTS, 0), "max_new_tokens": 4},
                NoDrafter.needs,
                toys.Sampler(Sampling(), 1, torch.device("cpu")),
            ),
            tree,
        )


NAMED = ["suffix", "recycling", "lookahead", "hybrid", "spd", "eagle2", "medusa", "vadusa", "mtp-viterbi", "ssd"]


class OfHeads(Suffix):
    """One that borrows the target's head, as those on its features do."""

    def bind(self, target: Any) -> None:
        self.head = target.head


@pytest.mark.parametrize("drafter", [*NAMED, Suffix(), OfHeads()])
def test_drafters_of_trees_and_trained_ones_are_refused_before_a_request(target: Csm, drafter: Any) -> None:
    """Else a tree ends a request in the middle, and training is advised that recipes refuse."""
    with pytest.raises(MismatchError, match="does not draft for CSM, .*: use 'depth', 'prompt-lookup' or 'none'"):
        mmspec.load(target.model, drafter)


def test_what_menus_offer_drafts_whole_utterances(target: Csm) -> None:
    """Menus ask the class, before a model is read."""
    family: Any = Csm
    for one in (family, target):
        offered = {name for name in names("drafters", "speech") if has_drafter(name, one, None)}
        assert offered == {"none", "depth", "prompt-lookup"}
    pipe, asked = mmspec.load(target.model, "none"), {"max_new_tokens": 4 * CODEBOOKS, "temperature": 1.0, "seed": 1}
    want = pipe.generate(**toys.row_of(PROMPTS, 0), **asked).token_ids
    for name in offered:
        assert pipe.with_drafter(name).generate(**toys.row_of(PROMPTS, 0), **asked).token_ids == want


def test_a_drafter_that_nobody_registered_drafts_chains(target: Csm) -> None:
    """A demo wraps those that it shows."""
    pipe, recorder = mmspec.load(target.model, "none"), Recorder(Depth(3))
    inputs: dict[str, Any] = {**toys.row_of(PROMPTS, 0), "max_new_tokens": 2 * CODEBOOKS}
    assert pipe.with_drafter(recorder).generate(**inputs).token_ids == pipe.generate(**inputs).token_ids
    assert any(len(each.tokens) > 1 for each in recorder.rounds)


@pytest.mark.parametrize("recipe", [SsdRecipe, JointRecipe])
def test_what_is_trained_from_a_speaking_llama_refuses_a_model_that_has_none(target: Csm, recipe: Any) -> None:
    with pytest.raises(MismatchError, match="needs a target that speaks with a Llama, not a CsmForConditional"):
        recipe().check(target)


class Reader:
    """Reads prompts, and must not be asked to write."""

    pad_token_id = 0
    added_tokens_decoder: dict[int, Any] = {}  # noqa: RUF012

    def __call__(self, text: str) -> Any:
        return tiny.tokenizer()(text)

    def decode(self, *_: Any, **__: Any) -> str:
        raise AssertionError("codes were read as words")


def test_a_control_token_in_a_text_is_refused(target: Csm) -> None:
    pipe = mmspec.load(target.model, "none", processor=SimpleNamespace(tokenizer=tiny.tokenizer()))
    with pytest.raises(InputError, match="the prompt holds the control token '<end_of_utterance>'"):
        pipe(prompt="two <end_of_utterance> circles", max_new_tokens=2)


def test_a_head_reads_its_own_weight_in_place(target: Csm, monkeypatch: pytest.MonkeyPatch) -> None:
    heads = target.model.depth_decoder.codebooks_head
    hidden = torch.randn(3, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    want = [heads(hidden[:, None], torch.tensor([code]))[:, 0] for code in range(1, CODEBOOKS)]
    monkeypatch.setattr(heads, "forward", lambda *_: pytest.fail("it copies the weight"))
    assert all(torch.equal(target.head_at(hidden, code), want[code - 1]) for code in range(1, CODEBOOKS))


def test_the_last_piece_of_a_row_has_all_of_its_sound_which_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    pipe = mmspec.load(model().float(), processor=SimpleNamespace(tokenizer=tiny.tokenizer()))
    product_of = pipe.target.product_of
    monkeypatch.setattr(pipe.target, "product_of", lambda *told: made.append(told[1]) or product_of(*told))
    texts, asked = ["two red circles", "one"], {"temperature": 1.0, "seed": 1}
    stream = pipe.stream(prompt=texts, max_new_tokens=4 * CODEBOOKS + 2, **asked)
    played = [[piece.audio for piece in row if piece.audio is not None] for row in zip(*stream, strict=True)]
    assert [len(row) for row in played] == [1, 1]
    assert stream.first_audio_seconds > 0
    for (heard,), answer in zip(played, stream.finish(), strict=True):
        assert answer.audio is heard
    assert sorted(made) == [0, 1]


def test_codes_are_never_read_as_words() -> None:
    pipe = mmspec.load(model().float(), processor=Reader())
    stream = pipe.stream(prompt=["two red circles", "one"], max_new_tokens=2 * CODEBOOKS, temperature=1.0, seed=1)
    pieces = [piece for pair in stream for piece in pair]
    assert {piece.text for piece in pieces} == {""}
    assert [answer.text for answer in stream.finish()] == ["", ""]
