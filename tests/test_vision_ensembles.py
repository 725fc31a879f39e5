"""Small language models that see with the target's eyes: chains, trees, and ensembles whose law is their mixture."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import test_drafters
import test_equality
import test_families
import tiny
import torch
import toys
from sights import LENGTHS
from test_drafters import Watched
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

import mmspec
from mmspec.acceptance.block import Block
from mmspec.acceptance.ratio import Ratio
from mmspec.checkpoints import load_drafter, save_drafter
from mmspec.contract import Draft, State
from mmspec.drafters.none import NoDrafter
from mmspec.errors import CheckpointError, InputError, MismatchError
from mmspec.sampling import Sampler, Sampling
from mmspec.targets import CausalTarget
from mmspec.training.muon import build_optimizer
from mmspec.vlm.drafters.branching import SpecLlava
from mmspec.vlm.drafters.ensemble import MEMBERS, Ibed, Search, Tabed, grid
from mmspec.vlm.drafters.eyes import Grafted, OwnEyes, pooled
from mmspec.vlm.drafters.grafted import Massv
from mmspec.vlm.drafters.grafted_recipe import MassvRecipe

SEEING: dict[str, Any] = {"massv": Massv, "spec-llava": SpecLlava, "ibed": Ibed, "tabed": Tabed}
WARM = Sampling(temperature=1.0, seed=5)


def grafted(target: Any, seed: int = 3, width: int = 16, bright: float = 6.0) -> Grafted:
    """A random model, float64. Weights are large, so that what it says depends on what it sees."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=target.vocab_size,
        hidden_size=width,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=256,
        initializer_range=0.5,
        eos_token_id=None,
    )
    net = Grafted(LlamaForCausalLM(config), target.hidden_size).double().eval()
    with torch.no_grad():
        net.projector[2].weight.mul_(bright)
    return net


@torch.no_grad()
def said(net: Grafted, target: Any, states: Tensor, ids: list[int], prompt: int, member: str = "multimodal") -> Tensor:
    """[V] logits after a text, from scratch, for a member; states: [T, H] the target's embeddings of the prompt."""
    parts, slots = [], []
    for place, token in enumerate(ids):
        if place < prompt and token in target.placeholders:
            slots.append(net.projector(states[place]))
            continue
        if slots and member == "multimodal":
            parts += slots
        elif slots and member == "pooled":  # four slots, two by two
            parts.append(torch.stack(slots).mean(0))
        slots = []
        parts.append(net.speaker.model.embed_tokens.weight[token])
    return net.speaker(inputs_embeds=torch.stack(parts)[None]).logits[0, -1]


def embeddings_of(target: Any, inputs: dict[str, Tensor], row: int) -> Tensor:
    single = toys.row_of(inputs, row)
    with torch.no_grad():
        return target.model(**single, output_hidden_states=True).hidden_states[0][0]


# What is drafted


@pytest.mark.parametrize("method", SEEING)
def test_drafting_with_a_cache_equals_a_full_forward(method: str) -> None:
    """The laws that are declared, in a batch whose rows accept different lengths; of an ensemble the mixture."""
    _, target = test_equality.make("smolvlm")
    net = grafted(target)
    inputs = test_equality.inputs_for(target, *LENGTHS)
    sampler = Sampler(test_drafters.SAMPLING, 3, torch.device("cpu"))
    states = [embeddings_of(target, inputs, row) for row in range(3)]
    begun: list[Any] = []
    apart: list[float] = []
    looked = 0

    def look(state: State, draft: Draft) -> None:
        nonlocal looked
        for row in range(3):
            if state.done[row] or draft.q is None or looked > 40:
                continue
            for node in test_drafters.parents_in(draft):
                text = state.ids[row] + draft.tokens[row, draft.ancestors[row, node].nonzero()[1:, 0]].tolist()
                members = made.members if isinstance(made, Ibed) else ("multimodal",)
                laws = [
                    test_drafters.law_of(sampler, target, said(net, target, states[row], text, LENGTHS[row], member))
                    for member in members
                ]
                weights = begun[0].weights[row].tolist() if isinstance(made, Ibed) else [1.0]
                q = sum(weight * law for weight, law in zip(weights, laws, strict=True))
                assert (draft.q[row, node] - q).abs().max() < 1e-5, (row, node)
                apart.append(max(float((draft.q[row, node] - law).abs().max()) for law in laws))
                looked += 1

    made = SEEING[method](net, weights=(3, 1, 1)) if method == "ibed" else SEEING[method](net)
    begin = made.begin
    made.begin = lambda *given: begun.append(begin(*given)) or begun[-1]
    result = toys.answer(target, Watched(made, look), inputs, 16, test_drafters.SAMPLING, Ratio())
    assert looked > 40
    if isinstance(made, Ibed):
        assert sum(each > 1e-3 for each in apart) > 20  # with the law of one member this test would fail
    assert any(len(set(done.drafted)) > 1 for done in result.rounds[1:])


def test_a_tree_of_a_small_vlm_is_a_chain_where_the_rule_takes_chains() -> None:
    _, target = test_equality.make("smolvlm")
    inputs = test_equality.inputs_for(target, 14)
    rule = Block()
    rule.chains = True
    got = toys.answer(target, SpecLlava(grafted(target), depth=3), inputs, 16, WARM, rule)
    assert [done.proposed for done in got.rounds[1:4]] == [3] * 3


def emitted_law(p: Tensor, drawn: Tensor, q: Tensor) -> Tensor:
    """[V] the law of the token that comes out if one is drawn from `drawn`, kept with min(1, p / q), else corrected."""
    kept = (p / q).clamp(max=1.0).nan_to_num(1.0)
    left = (p - q).clamp(min=0)
    return drawn * kept + (1 - (drawn * kept).sum()) * left / left.sum()


def test_the_ratio_rule_is_exact_with_the_mixture_and_with_no_member() -> None:
    """By enumeration of the first drafted token: p comes out if the declared q is the law of the draws."""
    _, target = test_equality.make("smolvlm")
    net = grafted(target)
    inputs = test_equality.inputs_for(target, 17)
    sampler = Sampler(WARM, 1, torch.device("cpu"))
    states, looked = embeddings_of(target, inputs, 0), 0

    def look(state: State, draft: Draft) -> None:
        nonlocal looked
        if draft.q is None or looked == 4:
            return
        single = {**toys.row_of(inputs, 0), "input_ids": torch.tensor([state.ids[0]])}
        with torch.no_grad():
            p = target.model(**single).logits[0, -1].softmax(-1)
        laws = [
            test_drafters.law_of(sampler, target, said(net, target, states, state.ids[0], 17, member)).double()
            for member in ("multimodal", "pooled", "text")
        ]
        mixture = sum(laws) / 3
        assert (emitted_law(p, mixture, draft.q[0, 0].double()) - p).abs().max() < 1e-5
        for law in laws:
            assert (emitted_law(p, mixture, law) - p).abs().sum() > 1e-3
        looked += 1

    toys.answer(target, Watched(Ibed(net), look), inputs, 12, WARM, Ratio())
    assert looked == 4


@pytest.mark.parametrize("kind", [Ibed, Tabed])
def test_an_ensemble_costs_one_forward_per_step(kind: Any) -> None:
    """However many members; and one for all of their prompts."""
    _, target = test_equality.make("smolvlm")
    net = grafted(target)
    calls: list[Any] = []

    def counted(module: Any, given: Any, named: dict[str, Any], out: Any) -> None:
        fed = named.get("input_ids")
        calls.append(tuple((named["inputs_embeds"] if fed is None else fed).shape[:2]))

    net.speaker.register_forward_hook(counted, with_kwargs=True)
    for members in (("multimodal", "text"), ("multimodal", "pooled", "text")):
        calls.clear()
        made = kind(net, length=3, members=members)
        result = toys.answer(target, made, test_equality.inputs_for(target, *LENGTHS), 10)
        assert {rows for rows, _ in calls} == {3 * len(members)}
        assert len(calls) == 1 + sum(done.proposed for done in result.rounds)


def test_a_caption_stands_where_the_picture_was() -> None:
    base = test_families.plain("smolvlm")
    target, net = base.target, grafted(base.target)
    made = Ibed(net, members=("multimodal", "caption"))
    made.bind(target)
    first, slots = target.placeholders[0], torch.randn(8, 16, dtype=torch.float64)
    ids = [7, first, first, first, first, 9, first, first, first, first, 8]

    def told(member: str, caption: tuple[int, ...] = ()) -> Tensor:
        return net.prompt(ids, slots, target.placeholders, member, caption)

    assert torch.equal(told("caption", (50, 51)), net.words([7, 50, 51, 9, 8]))
    assert torch.equal(told("text"), net.words([7, 9, 8]))
    whole = torch.cat([net.words([7]), slots[:4], net.words([9]), slots[4:], net.words([8])])
    assert torch.equal(told("multimodal"), whole)
    assert len(told("pooled")) == 5
    with torch.no_grad():
        captions = made.captions([ids, [7, 8]], [slots, slots[:0]])
    assert 0 < len(captions[0]) <= 24
    assert captions[1] == []
    assert not {*captions[0]} & {*target.placeholders}
    again = torch.cat([net.prompt(ids[:-1], slots, target.placeholders), asked(made)])
    for token in captions[0]:
        logits = net.speaker(inputs_embeds=again[None]).logits[0, -1]
        logits[list(target.placeholders)] = -torch.inf
        assert int(logits.argmax()) == token
        again = torch.cat([again, net.words([token])])
    with pytest.raises(MismatchError, match="chat template"):
        made.bind(test_equality.make("smolvlm")[1])


def test_a_prompt_of_pictures_alone_keeps_its_last_token_where_nothing_stands_for_them() -> None:
    _, target = test_equality.make("smolvlm")
    net, slots = grafted(target), torch.randn(4, 16, dtype=torch.float64)
    ids = [target.placeholders[0]] * 4
    for member in ("text", "caption"):  # a caption that ended at once
        assert torch.equal(net.prompt(ids, slots, target.placeholders, member), net.words(ids[-1:]))
    assert torch.equal(net.prompt(ids, slots, target.placeholders, "caption", [50]), net.words([50]))
    assert torch.equal(net.prompt(ids, slots, target.placeholders), slots)
    inputs = test_equality.inputs_for(target, 17)
    inputs |= {name: inputs[name][:, 1:5] for name in ("input_ids", "attention_mask")}
    assert inputs["input_ids"].tolist() == [ids]
    want = toys.answer(target, NoDrafter(), inputs, 5).rows
    assert toys.answer(target, Ibed(net, members=("multimodal", "text")), inputs, 5).rows == want


def asked(made: Any) -> Tensor:
    """What the drafter is asked for a caption, as the chat template would end it."""
    from mmspec.vlm.drafters.ensemble import REQUEST

    tokenizer = made.target.processor.tokenizer
    text = REQUEST + "<end_of_utterance>\nAssistant:"
    return made.net.words(tokenizer(text, add_special_tokens=False)["input_ids"])


# Weights at test time


def test_the_search_finds_the_weights_of_a_history() -> None:
    """Against a direct count over all positions and all points; ties go to the mixture that is closest to the
    target."""
    generator = torch.Generator().manual_seed(0)
    points = grid(3)
    assert len(points) == 66
    assert torch.allclose(points.sum(1), torch.ones(66))
    search = Search(points, 2)
    before = torch.full((2, 3), 1 / 3)
    assert torch.equal(search.best(before), before)
    hits, apart = torch.zeros(2, 66), torch.zeros(2, 66)
    for _ in range(5):
        p = (2 * torch.randn(2, 4, 11, generator=generator)).softmax(-1)
        noise = 2 * torch.randn(3, 2, 4, 11, generator=generator)
        noise[1] *= 0.3
        laws = (p.log() + noise).softmax(-1)
        reached = torch.tensor([[True, True, False, False], [True, True, True, True]])
        search.see(p, laws, reached)
        for row in range(2):
            for place in reached[row].nonzero()[:, 0].tolist():
                mixed = points @ laws[:, row, place]
                hits[row] += mixed.argmax(-1) == p[row, place].argmax()
                apart[row] += (p[row, place] * (p[row, place] / mixed).log()).sum(-1)
    for row, chosen in enumerate(search.best(before)):
        best = max(range(66), key=lambda g: (float(hits[row, g]), -float(apart[row, g])))
        assert torch.allclose(chosen, points[best])
        assert int((hits[row] == hits[row].max()).sum()) > 1  # ties there were


def test_weights_move_to_the_member_that_is_right() -> None:
    """A target whose law a member has; the other one says something else."""
    search = Search(grid(2), 1)
    p = torch.tensor([[[0.7, 0.2, 0.1]]])
    laws = torch.stack([p.flip(-1), p])
    for _ in range(3):
        search.see(p, laws, torch.ones(1, 1, dtype=torch.bool))
    assert search.best(torch.full((1, 2), 0.5)).tolist() == [[0.0, 1.0]]


def test_the_search_sees_the_first_rejected_position_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the target says there counts most: the mixture was wrong."""
    target, inputs, _ = lesson(0.0)
    see, seen = Search.see, []

    def noted(self: Search, p: Tensor, laws: Tensor, reached: Tensor) -> None:
        seen.append(reached.sum(1).tolist())
        see(self, p, laws, reached)

    monkeypatch.setattr(Search, "see", noted)
    got = toys.answer(target, Tabed(learnt(0.0, 15), 3), inputs, 20)
    drafted = [done for done in got.rounds[1:] if done.proposed]
    assert len(seen) == len(drafted) > 3
    for reached, done in zip(seen, drafted, strict=True):
        for count, kept, tokens in zip(reached, done.drafted, done.tokens, strict=True):
            assert not tokens or count == min(kept + 1, done.proposed)


def test_slots_are_pooled_two_by_two_or_four_in_a_row() -> None:
    slots = torch.arange(16.0)[:, None]
    assert pooled(slots)[:, 0].tolist() == [2.5, 4.5, 10.5, 12.5]
    assert pooled(slots[:6])[:, 0].tolist() == [1.5, 4.5]
    assert pooled(slots[:9])[:, 0].tolist() == [1.5, 5.5, 8.0]


# What comes out


@cache
def lesson(temperature: float) -> Any:
    _, target = test_equality.make("smolvlm")
    inputs = test_equality.inputs_for(target, *LENGTHS)
    sampling = Sampling(temperature=temperature, seed=5)
    return target, inputs, toys.answer(target, NoDrafter(), inputs, 20, sampling).rows


@cache
def learnt(temperature: float, steps: int) -> Grafted:
    """A model that learnt the answers, in each of the ways in which members read."""
    target, inputs, answers = lesson(temperature)
    net = grafted(target, width=32).float()
    optimizer = build_optimizer(net, 0.02)
    for step in range(steps):
        total = torch.zeros(())
        for row, answer in enumerate(answers):
            prompt = toys.row_of(inputs, row)["input_ids"][0].tolist()
            seen = net.projector(embeddings_of(target, inputs, row)[1 : 1 + tiny.IMAGE_TOKENS].float())
            shown = [seen, pooled(seen), seen[:0]][step % 3]
            text = torch.cat([net.words(prompt[:1]), shown, net.words(prompt[1 + tiny.IMAGE_TOKENS :] + answer)])
            logits = net.speaker(inputs_embeds=text[None, :-1]).logits[0, -len(answer) :]
            total = total + torch.nn.functional.cross_entropy(logits, torch.tensor(answer))
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
    return net.double().eval()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("method", SEEING)
def test_rejected_partial_and_full_acceptance_give_the_same_answer(method: str, temperature: float) -> None:
    target, inputs, want = lesson(temperature)
    sampling = Sampling(temperature=temperature, seed=5)
    accepted = []
    for net in (grafted(target), learnt(temperature, 15), learnt(temperature, 60)):
        got = toys.answer(target, SEEING[method](net, 3), inputs, 20, sampling)
        assert got.rows == want
        accepted.append(got.accepted)
    assert accepted[0].count(0) > 0.5 * len(accepted[0])
    assert len(set(accepted[1])) > 1
    assert accepted[2].count(3) > 0.5 * len(accepted[2])


@pytest.mark.parametrize("family", test_families.CHOSEN)
def test_every_family_says_what_it_says_alone(family: str) -> None:
    """Pictures of several sizes, several pictures, none; all members; greedy as transformers or sampled as our AR
    loop."""
    base = test_families.plain(family)
    net = grafted(base.target)
    drafters = Massv(net), SpecLlava(net), Tabed(net, members=MEMBERS)
    for made, options, want in test_families.in_turns(family, drafters):
        told = {"max_new_tokens": test_families.BUDGET, **options}
        answers = base.with_drafter(made, "own")(test_families.PICTURES, test_families.TEXTS, **told)
        assert [one.token_ids for one in answers] == want, made.method


@pytest.mark.parametrize("family", ["smolvlm", "llava", "llava-next", "pixtral", "gemma3"])
def test_a_small_vlm_drafts_trees_and_in_ensembles(family: str, tmp_path: Path) -> None:
    """One that is nearly the target itself, so that much is accepted; it comes back with its own eyes."""
    base = test_families.plain(family)
    eyes = OwnEyes(toys.perturbed(base.target.model, 0.003))
    want = test_families.greedy(family)
    for made in (SpecLlava(eyes, depth=3, width=2, total=6), Ibed(eyes, 3, ("multimodal", "text"), (9, 1))):
        answers = base.with_drafter(made, "own")(test_families.PICTURES, test_families.TEXTS, max_new_tokens=14)
        assert [one.token_ids for one in answers] == want, made.method
        if family != "gemma3":  # whose slots see each other only when it reads them itself
            assert sum(sum(one.stats.accept_lengths) for one in answers) > 15
    folder = save_drafter(made, tmp_path / "drafter", base.target)
    loaded = load_drafter(folder, base.target)
    assert isinstance(loaded.net, OwnEyes)
    assert loaded.members == ("multimodal", "text")


def test_small_vlms_of_another_family_are_refused() -> None:
    base = test_families.plain("qwen2.5-vl")
    for model in (base.target.model, test_families.plain("qwen3-vl").target.model):
        with pytest.raises(MismatchError, match="positions on one axis"):
            SpecLlava(OwnEyes(model)).bind(base.target)


def test_blind_members_lose_what_the_picture_decides() -> None:
    """Two requests of the same words whose answers differ by their pictures: only a drafter that sees knows both."""
    target, _, _ = lesson(0.0)
    net = grafted(target, width=32, bright=1.0).float()
    optimizer = build_optimizer(net, 0.02)
    torch.manual_seed(1)
    seen, words, answers = torch.randn(2, 4, 32), [40, 41, 42], torch.tensor([50, 60])

    def losses(sees: bool) -> Tensor:
        texts = [
            torch.cat([net.words([7]), net.projector(one) if sees else seen[0, :0], net.words(words)]) for one in seen
        ]
        return torch.nn.functional.cross_entropy(net.speaker(inputs_embeds=torch.stack(texts)).logits[:, -1], answers)

    for _ in range(40):
        loss = losses(True) + losses(False)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert float(losses(True).detach()) < 0.1
    assert float(losses(False).detach()) > 0.65  # a coin's, ln 2 at best


# Saving, loading, misfits


@pytest.mark.parametrize("method", SEEING)
def test_a_drafter_comes_back_as_it_was(method: str, pipe: mmspec.Pipeline, tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "massv": {"length": 3},
        "spec-llava": {"depth": 3, "width": 2, "total": 6},
        "ibed": {"length": 3, "members": ("text", "multimodal"), "weights": (1.0, 3.0)},
        "tabed": {"length": 3, "members": ("caption", "multimodal")},
    }[method]
    made = SEEING[method](grafted(pipe.target), **options)
    folder = save_drafter(made, tmp_path / "drafter", pipe.target)
    assert json.loads((folder / "drafter.json").read_text())["method"] == method
    loaded = load_drafter(folder, pipe.target)
    assert type(loaded) is type(made)
    ours, theirs = made.net.state_dict(), loaded.net.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert not any("vision" in name or "connector" in name for name in ours)  # the eyes are the target's
    if method in ("ibed", "tabed"):
        assert (loaded.members, loaded.weights) == (made.members, made.weights)
    for kin in SEEING:  # the same weights, in the others' way
        assert type(load_drafter(folder, pipe.target, kin)) is SEEING[kin]
    picture = test_families.RED
    drafted = [
        drafting(picture, "what is it?", max_new_tokens=10)
        for drafting in (pipe.with_drafter(made, "own"), pipe.with_drafter(folder, "own"))
    ]
    assert drafted[0].stats.accept_lengths == drafted[1].stats.accept_lengths


def test_damaged_or_foreign_drafters_are_refused(pipe: mmspec.Pipeline, tmp_path: Path) -> None:
    net = grafted(pipe.target)
    with torch.no_grad():
        net.projector[0].weight[0, 0] = float("nan")
    folder = save_drafter(Massv(net), tmp_path / "drafter", pipe.target)
    with pytest.raises(CheckpointError, match="is not finite"):
        load_drafter(folder, pipe.target)
    with pytest.raises(MismatchError, match="no image slots"):
        Massv(grafted(CausalTarget(toys.llama()))).bind(CausalTarget(toys.llama()))
    wide = Grafted(net.speaker, 48)
    with pytest.raises(MismatchError, match="of size 48, the target's have 32"):
        Massv(wide).bind(pipe.target)
    for members in (("text",), ("text", "text"), ("text", "sound")):
        with pytest.raises(InputError, match="two or more"):
            Ibed(net, members=members)
    for weights in ((1.0,), (1.0, 0.0, 1.0), (1.0, float("nan"), 1.0)):
        with pytest.raises(InputError, match="positive weights"):
            Ibed(net, weights=weights)
    with pytest.raises(InputError, match="depth and width"):
        SpecLlava(net, depth=0)
    with pytest.raises(MismatchError, match="no image slots"):
        MassvRecipe().check(CausalTarget(toys.llama()))
    with pytest.raises(InputError, match="a share"):
        MassvRecipe(projector_share=1.5)
