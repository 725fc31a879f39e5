"""Drafters of speech models: equal to the loop under exact rules, true to their formulas, and the same after saving."""

import itertools
import json
import math
from pathlib import Path
from typing import Any

import pytest
import tiny_speech as tiny
import torch
import toys
from safetensors.torch import load_file, save_file
from test_drafters import surprise

import mmspec
from mmspec.acceptance.exact import Exact
from mmspec.acceptance.match import Match
from mmspec.acceptance.ratio import Ratio, without
from mmspec.checkpoints import load_drafter, save_drafter
from mmspec.contract import Draft, Kind
from mmspec.drafters.layer import head_config
from mmspec.drafters.medusa import MedusaHeads
from mmspec.drafters.none import NoDrafter
from mmspec.errors import CheckpointError, InputError, MismatchError
from mmspec.sampling import Sampler, Sampling
from mmspec.speech.recipes import SsdRecipe, VadusaRecipe, ViterbiRecipe
from mmspec.speech.ssd import SSD, own_weights, shortened, upper_layers
from mmspec.speech.unverified import Unverified
from mmspec.speech.vadusa import Vadusa
from mmspec.speech.viterbi import PairedHeads, Viterbi, best_path
from mmspec.training.answers import Answered
from mmspec.training.drafter import find_recipe

SAMPLED = Sampling(temperature=1.0, top_p=0.9, ras_window=6, seed=3)


@pytest.fixture(scope="module")
def target() -> Any:
    pipe = mmspec.load(tiny.valle(layers=3).double(), drafter="none", processor=tiny.processor())
    return pipe.target


def noisy(net: Any, amount: float = 0.2) -> Any:
    """Heads begin as copies of the target's: give them weights."""
    torch.manual_seed(4)
    with torch.no_grad():
        for weight in net.parameters():
            weight += amount * torch.randn_like(weight)
    return net.double()


def vadusa(target: Any, **options: Any) -> Vadusa:
    return Vadusa(noisy(MedusaHeads(head_config(target), levels=4)), **options)


def paired(target: Any) -> PairedHeads:
    net = PairedHeads(head_config(target), 3, target.vocab_size, kept=12)
    generator = torch.Generator().manual_seed(1)
    codes = torch.tensor(target.code_ids())
    net.count([codes[torch.randint(0, 8, (30,), generator=generator)].tolist() for _ in range(4)])
    return noisy(net)


def viterbi(target: Any, **options: Any) -> Viterbi:
    return Viterbi(paired(target), **options)


def ssd(target: Any, noise: float = 0.0, **options: Any) -> SSD:
    model = shortened(target.speaker, 1, [1, 2])
    if noise:
        torch.manual_seed(2)
        with torch.no_grad():
            for weight in own_weights(model).values():
                weight += noise * weight.std() * torch.randn_like(weight)
    return SSD(model, **options)


MAKE = {
    "vadusa": vadusa,
    "vadusa chain": lambda target: vadusa(target, total=5, width=1, top_k=1),
    "viterbi": viterbi,
    "ssd": ssd,
    "ssd noisy": lambda target: ssd(target, 0.2),
}


def inputs_of(target: Any, *texts: str) -> dict[str, Any]:
    return target.encode(target.processor, list(texts), [[] for _ in texts])


@pytest.mark.parametrize("sampling", [Sampling(), SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("name", MAKE)
@pytest.mark.parametrize("rule", [Exact, Match])
def test_exact_rules_give_the_tokens_of_the_loop(target: Any, name: str, rule: Any, sampling: Sampling) -> None:
    inputs = inputs_of(target, "two red circles", "is it nine?")
    want = toys.answer(target, NoDrafter(), inputs, 18, sampling, eos=target.ends())
    found = toys.answer(target, MAKE[name](target), inputs, 18, sampling, rule(), eos=target.ends())
    assert found.rows == want.rows
    assert any(r.proposed > 2 for r in found.rounds)


def test_a_draft_model_with_all_of_the_targets_layers_is_always_right(target: Any) -> None:
    inputs = inputs_of(target, "two red circles")
    sampling = Sampling(temperature=1.0, seed=5)
    found = toys.answer(target, ssd(target, length=4), inputs, 16, sampling)
    assert found.accepted == [4, 4, 4]
    noise = toys.answer(target, ssd(target, 3.0, length=4), inputs, 16, sampling)
    assert sum(noise.accepted) < sum(found.accepted)


KINDS: tuple[Kind, ...] = ("sampled", "coupled")


def first_draft(target: Any, drafter: Any, rows: int, kind: Kind = "sampled") -> Draft:
    """The first draft of many rows with the same prompt and different seeds."""
    drafter.bind(target)
    sampler = Sampler(Sampling(temperature=1.0, top_k=12, seed=1), rows, torch.device("cpu"))
    inputs = {name: value.repeat_interleave(rows, 0) for name, value in inputs_of(target, "two").items()}
    with torch.inference_mode():
        state = target.prefill({**inputs, "max_new_tokens": 20}, drafter.needs, sampler)
        for ids, token in zip(state.ids, state.pending.tolist(), strict=True):
            ids.append(token)
        state.emitted = torch.ones_like(state.pending)
        return drafter.begin(state, sampler, kind).propose(state)


@pytest.mark.parametrize("name", ["vadusa", "ssd noisy"])
def test_sampled_trees_declare_the_law_they_draw_from(target: Any, name: str) -> None:
    """600 rows; every child of every node, given those before it; six standard errors. The ratio rule runs on them; it
    refuses a draft without a law."""
    found = toys.answer(target, MAKE[name](target), inputs_of(target, "two red"), 16, SAMPLED, Ratio())
    assert len(found.rows[0]) == 16
    draft = first_draft(target, MAKE[name](target), 600)
    assert draft.q is not None
    for node in range(draft.size):
        left = draft.q[:, node]
        for child in (draft.parents[0] == node).nonzero()[:, 0]:
            assert surprise(draft.tokens[:, child], left) < 6
            left = without(left, draft.tokens[:, child])
    flat = draft.q[:, 0].sqrt() / draft.q[:, 0].sqrt().sum(-1, keepdim=True)
    assert surprise(draft.tokens[:, 1], flat) > 6
    with pytest.raises(MismatchError, match="'ratio' takes proposals of kind sampled"):
        toys.answer(target, viterbi(target), inputs_of(target, "two red"), 16, SAMPLED, Ratio())


def test_a_tree_is_made_of_what_is_likely_in_its_round_and_a_drawn_one_follows_the_measurement(target: Any) -> None:
    for sampling in (SAMPLED, Sampling(temperature=1.0, seed=3)):  # with a memory the tree is grown level by level
        found = toys.answer(target, vadusa(target), inputs_of(target, "two red circles"), 16, sampling)
        assert max(r.proposed for r in found.rounds) == 15
    shares = [[0.99, 0.01]] * 4
    drawn, coupled = (first_draft(target, vadusa(target, shares=shares, total=5), 40, kind) for kind in KINDS)
    assert drawn.parents.tolist() == [[-1, 0, 1, 2, 3]] * 40
    assert len(coupled.parents.unique(dim=0)) > 1


def brute_force(pending: int, tokens: Any, gains: Any, net: PairedHeads, pull: float) -> tuple[int, ...]:
    def score(path: tuple[int, ...]) -> float:
        total, before = 0.0, pending
        for level, place in enumerate(path):
            token = int(tokens[level][0, place])
            pair = net.pairs(torch.tensor([[before]]), torch.tensor([[token]]))
            total, before = total + float(gains[level][0, place]) + pull * float(pair), token
        return total

    best = max(itertools.product(range(tokens[0].shape[1]), repeat=len(tokens)), key=score)
    return tuple(int(tokens[level][0, place]) for level, place in enumerate(best))


@pytest.mark.parametrize("pull", [0.0, 0.3, 2.0])
def test_the_search_finds_the_best_path_of_all(target: Any, pull: float) -> None:
    net = paired(target)
    generator = torch.Generator().manual_seed(8)
    tokens = [torch.randperm(target.vocab_size, generator=generator)[None, :4] for _ in range(4)]
    gains = [torch.randn(1, 4, generator=generator) for _ in range(4)]
    pending = target.code_ids()[2]
    found = best_path(torch.tensor([pending]), tokens, gains, net, pull)
    assert tuple(found[0].tolist()) == brute_force(pending, tokens, gains, net, pull)


def test_without_the_table_the_path_is_each_heads_own_choice(target: Any) -> None:
    net = paired(target)
    tokens = [torch.tensor([[5, 6, 7]]), torch.tensor([[8, 9, 3]])]
    gains = [torch.tensor([[0.1, 0.9, 0.2]]), torch.tensor([[0.0, -1.0, 0.5]])]
    assert best_path(torch.tensor([41]), tokens, gains, net, 0.0).tolist() == [[6, 3]]
    codes = target.code_ids()
    follow = [torch.tensor([codes[:8]])] * 2
    even = [torch.zeros(1, 8)] * 2
    assert len({tuple(best_path(torch.tensor([t]), follow, even, net, 50.0)[0].tolist()) for t in codes[:8]}) > 1


def test_the_search_heeds_what_was_emitted(target: Any) -> None:
    drafter = viterbi(target, depth=1, pull=0.0)
    drafter.bind(target)
    sampler = Sampler(Sampling(repetition_penalty=50.0), 1, torch.device("cpu"))
    with torch.inference_mode():
        state = target.prefill({**inputs_of(target, "two"), "max_new_tokens": 20}, drafter.needs, sampler)
        search = drafter.begin(state, sampler, "point")
        first = int(search.propose(state).tokens[0, 1])
        sampler.see([[first]])
        assert int(search.propose(state).tokens[0, 1]) != first


def test_heads_that_know_the_targets_laws_draft_what_it_draws_next(target: Any) -> None:
    drafter = viterbi(target, depth=3, pull=0.0)
    drafter.bind(target)
    laws = torch.zeros(6, 3, target.vocab_size)  # all that decides is the noise of each place
    laws[..., : target.code_ids()[0]] = -math.inf
    sampler = Sampler(Sampling(temperature=1.0, seed=1), 6, torch.device("cpu"))
    with torch.inference_mode():
        state = target.prefill({**inputs_of(target, *["two"] * 6), "max_new_tokens": 20}, drafter.needs, sampler)
        search = drafter.begin(state, sampler, "coupled")
        drafter.net.guess = lambda features, head, levels: laws[:, :levels]  # type: ignore[method-assign]
        path = search.propose(state).tokens[:, 1:]
    assert torch.equal(path, sampler.draw(laws, state.emitted[:, None] + torch.arange(3)))


def test_the_table_holds_smoothed_counts() -> None:
    net = PairedHeads(head_config(mmspec.load(tiny.valle(), drafter="none").target), 1, 6, kept=3)
    net.count([[0, 1, 0, 1, 0, 2], [4, 4, 4]])
    law = net.pairs(torch.arange(6)[None], torch.arange(6)[None])[0].exp()
    want = torch.full((6, 6), 0.1)
    for before, after in ((0, 1), (1, 0), (0, 1), (1, 0), (0, 2), (4, 4), (4, 4)):
        want[before, after] += 1
    want /= want.sum(-1, keepdim=True)
    assert torch.allclose(law, want, atol=1e-6)
    assert torch.allclose(law.sum(-1), torch.ones(6), atol=1e-5)


def test_a_table_of_a_large_vocabulary_has_no_cell_for_every_pair() -> None:
    """A square of this side has 4 x 10^12 cells. Successors that never occurred share what is left."""
    vocabulary = 2_000_000
    net = PairedHeads(head_config(mmspec.load(tiny.valle(), drafter="none").target), 1, vocabulary, kept=2)
    net.count([[5, vocabulary - 1, 5, 7, 5, 7, 5, 6], [3]])
    law = net.pairs(torch.tensor([[5, 3]]), torch.tensor([[7, 6, vocabulary - 1, 8]]))[0].exp()
    total = 4 + 0.1 * vocabulary
    assert law[0, 0] == pytest.approx(2.1 / total, rel=1e-5)
    assert sorted(law[0, 1:3].tolist())[1] == pytest.approx(1.1 / total, rel=1e-5)
    rest = 1 - (2.1 + 1.1) / total
    assert law[0, 3] == pytest.approx(rest / (vocabulary - 2), rel=1e-5)
    assert law[1].tolist() == pytest.approx([1 / vocabulary] * 4, rel=1e-5)


def test_the_unverified_mode_emits_the_path_and_has_no_tau(target: Any) -> None:
    drafter = viterbi(target)
    pipe = mmspec.load(target.model, drafter=drafter, acceptance=Unverified(), processor=target.processor)
    out = pipe(prompt="two red circles", max_new_tokens=17, temperature=1.0, seed=1)
    stats = out.stats
    assert not stats.lossless
    assert math.isnan(stats.tau)
    assert stats.as_dict()["tau"] is None
    if out.finish == "length":
        assert stats.accept_lengths[:3] == [3, 3, 3]  # whole paths of three heads
    exact = mmspec.load(target.model, drafter=drafter, processor=target.processor)
    assert exact(prompt="two red circles", max_new_tokens=17, temperature=1.0, seed=1).token_ids != out.token_ids


@pytest.mark.parametrize("name", ["vadusa", "viterbi", "ssd noisy"])
def test_a_saved_drafter_drafts_the_same(target: Any, name: str, tmp_path: Path) -> None:
    made = MAKE[name](target)
    made.bind(target)
    read = load_drafter(save_drafter(made, tmp_path / "drafter", target), target)
    assert type(read) is type(made)
    inputs = inputs_of(target, "two red circles", "nine")
    first, second = (toys.answer(target, one, inputs, 14, SAMPLED) for one in (made, read))
    assert [r.drafted for r in first.rounds] == [r.drafted for r in second.rounds]
    assert first.rows == second.rows


def test_a_shortened_target_shares_memory_and_stores_only_its_own(target: Any, tmp_path: Path) -> None:
    model = shortened(target.speaker, 1, [2])
    layers = target.speaker.model.layers
    assert model.model.layers[1].mlp.up_proj.weight.data_ptr() == layers[2].mlp.up_proj.weight.data_ptr()
    assert model.model.embed_tokens.weight.data_ptr() == target.embed.weight.data_ptr()
    assert model.model.layers[0].mlp.up_proj.weight.data_ptr() != layers[0].mlp.up_proj.weight.data_ptr()
    assert model.lm_head.weight.data_ptr() != target.head.weight.data_ptr()
    learning = {name for name, weight in model.named_parameters() if weight.requires_grad}
    assert learning == own_weights(model).keys()
    saved = SSD(model).save(tmp_path)
    assert saved["layers"] == {"own": 1, "shared": [2]}
    assert upper_layers(24) == [18, 19, 20, 21, 22, 23]
    assert upper_layers(2) == [1]


@pytest.mark.parametrize(("own", "shared"), [(0, [1]), (4, []), (1, [3]), (1, [-1])])
def test_layers_that_do_not_exist_are_refused(target: Any, own: int, shared: list[int]) -> None:
    with pytest.raises(InputError, match="has 3 layers"):
        shortened(target.speaker, own, shared)


def test_damaged_weights_of_a_shortened_target_are_refused(target: Any, tmp_path: Path) -> None:
    made = ssd(target)
    made.bind(target)
    folder = save_drafter(made, tmp_path / "drafter", target)
    description = json.loads((folder / "drafter.json").read_text())
    description["layers"] = {"own": 2, "shared": [2]}
    (folder / "drafter.json").write_text(json.dumps(description))
    with pytest.raises(CheckpointError, match="incomplete"):
        load_drafter(folder, target)
    description["layers"] = {"own": 1, "shared": [2]}
    (folder / "drafter.json").write_text(json.dumps(description))
    load_drafter(folder, target)
    weights, words = load_file(folder / "model.safetensors"), target.embed.weight.clone()
    up = "model.layers.0.mlp.up_proj.weight"
    for change, message in (
        ({"model.embed_tokens.weight": torch.zeros_like(words)}, "incomplete, or not its own: model.embed_tokens"),
        ({up: weights[up][:1].clone()}, "cannot be loaded: .*up_proj"),
        ({up: weights[up] * math.nan}, "up_proj.weight is not finite"),
    ):
        save_file(weights | change, folder / "model.safetensors")
        with pytest.raises(CheckpointError, match=message):
            load_drafter(folder, target)
        assert torch.equal(target.embed.weight, words)  # whose memory it shares


def test_a_shortened_target_has_no_width_of_its_own() -> None:
    with pytest.raises(InputError, match="the width and the heads of its target: leave them out"):
        SsdRecipe(width=256)


def test_every_method_has_a_recipe_that_builds_it(target: Any) -> None:
    rows = [Answered(0, [1, 2, 3], target.code_ids()[:6], 1.0)]
    for method, recipe in (("vadusa", VadusaRecipe), ("mtp-viterbi", ViterbiRecipe), ("ssd", SsdRecipe)):
        assert find_recipe(method) is recipe
        made = recipe().drafter(recipe().build(target, rows))
        assert made.method == method
        assert "arXiv" in recipe.about
    net = ViterbiRecipe().build(target, rows)
    one, two = torch.tensor([target.code_ids()[:1]]), torch.tensor([target.code_ids()[1:2]])
    assert float(net.pairs(one, two)) > float(net.pairs(two, one))
    backwards = [Answered(0, [1, 2, 3], target.code_ids()[5::-1], 1.0)]
    net = ViterbiRecipe().suit(net, target, backwards)  # one that learns on counts what it learns from now
    assert float(net.pairs(one, two)) < float(net.pairs(two, one))


@pytest.mark.parametrize("method", ["vadusa", "mtp-viterbi", "ssd"])
def test_a_name_without_weights_is_refused(target: Any, method: str) -> None:
    with pytest.raises(CheckpointError, match="is trained"):
        mmspec.load(target.model, drafter=method, processor=target.processor)


def test_sizes_of_a_search_are_checked(target: Any) -> None:
    for options in ({"candidates": 0}, {"pull": -1.0}, {"pull": math.nan}):
        with pytest.raises(InputError, match="Viterbi"):
            viterbi(target, **options)
