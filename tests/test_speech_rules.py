"""The lossy rules of speech: with the neutral knob an exact rule, bit for bit; otherwise the law that each one states.

Laws are checked on table targets: the first token after the pending one is enumerated and compared with 40 000 draws by
a chi-square test that raises a false alarm once in a million. That the check can fail is shown with wrong rules.
"""

import math
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
import tables
import torch
import toys
from torch import Tensor

import mmspec
from mmspec import noise
from mmspec.acceptance.exact import Exact
from mmspec.acceptance.ratio import Ratio, residual
from mmspec.contract import Draft, bound
from mmspec.errors import InputError, MismatchError
from mmspec.loading import find_rule
from mmspec.sampling import Sampler, Sampling
from mmspec.speech import groups as groups_module
from mmspec.speech import pcg as pcg_module
from mmspec.speech.beta import Beta
from mmspec.speech.csm import Csm
from mmspec.speech.groups import Groups, alike, by_size
from mmspec.speech.llasa import Llasa
from mmspec.speech.pcg import PCG, rest
from mmspec.speech.relaxed import MaxRatio, Relaxed, Tolerance, TopK, descend
from mmspec.speech.unverified import Unverified
from mmspec.speech.valle_target import ValleTarget
from mmspec.speech.whisper import Whisper
from mmspec.tree import chain

VOCAB, ROWS, FALSE_ALARM = 5, 40_000, 1e-6
TABLE, OTHER = tables.random_table(VOCAB, 1), tables.random_table(VOCAB, 2)
SAMPLING = Sampling(temperature=1.0, seed=17)
CPU = torch.device("cpu")


def draw(rule: Any, drafter: Any, rows: int = 300, budget: int = 12, sampling: Sampling = SAMPLING) -> toys.Answer:
    inputs = {"input_ids": torch.tensor([[1, 2]]).repeat(rows, 1)}
    return toys.answer(tables.TableTarget(TABLE), drafter, inputs, budget, sampling, rule, eos=[tables.END])


NEUTRAL = {"tolerance": Tolerance(1), "top-k": TopK(0), "max-ratio": MaxRatio(math.inf)}
TREES = {
    "chain": tables.TableDrafter(OTHER, (1, 1, 1)),
    "tree": tables.TableDrafter(OTHER, (3, 2, 1)),
    "dynamic": tables.TableDrafter(OTHER, (3, 2, 2), total=9),
}


@pytest.mark.parametrize("kind", ["coupled", "point"])
@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("name", NEUTRAL)
def test_the_neutral_knob_is_the_exact_rule_round_by_round(name: str, tree: str, kind: Any) -> None:
    rule, exact = NEUTRAL[name], Exact()
    assert rule.lossless
    assert rule.invariant
    rule.takes = exact.takes = (kind,)
    found, want = draw(rule, TREES[tree]), draw(exact, TREES[tree])
    assert found.rows == want.rows
    assert [r.drafted for r in found.rounds] == [r.drafted for r in want.rounds]


def pcg(groups: Groups, size: float = 0.004) -> PCG:
    """The rule, bound to a target that has these groups."""
    rule = PCG(size)
    rule.groups = groups
    return rule


@pytest.mark.parametrize("tree", ["chain", "tree"])
def test_beta_zero_and_groups_of_one_are_the_ratio_rule_round_by_round(tree: str) -> None:
    singles = alike(torch.eye(VOCAB), 0.5)
    rules = [Beta(0.0)] + ([pcg(singles, 0.0)] if tree == "chain" else [])
    want = draw(Ratio(), TREES[tree])
    for rule in rules:
        assert rule.lossless
        found = draw(rule, TREES[tree])
        assert found.rows == want.rows
        assert [r.drafted for r in found.rounds] == [r.drafted for r in want.rounds]


LOSSY = [Tolerance(3), TopK(2), MaxRatio(0.2), Beta(0.4), pcg(alike(torch.ones(VOCAB, 2), 0.5))]


@pytest.mark.parametrize("rule", LOSSY, ids=lambda rule: type(rule).__name__)
def test_a_tolerant_rule_says_that_it_is_lossy_and_accepts_more(rule: Any) -> None:
    assert not rule.lossless
    assert not rule.invariant
    strict = draw(Ratio() if rule.takes[0] == "sampled" else Exact(), TREES["chain"])
    assert sum(draw(rule, TREES["chain"]).accepted) > 1.1 * sum(strict.accepted)


@pytest.mark.parametrize("rule", [*NEUTRAL.values(), *LOSSY], ids=lambda rule: type(rule).__name__)
def test_at_temperature_zero_every_rule_is_the_greedy_comparison(rule: Any) -> None:
    greedy = Sampling()
    assert (
        draw(rule, TREES["chain"], rows=2, sampling=greedy).rows
        == draw(Exact(), TREES["chain"], 2, sampling=greedy).rows
    )


def test_only_the_unverified_rule_depends_on_the_draft_at_temperature_zero() -> None:
    assert not bound(Unverified(), greedy=True)
    assert all(bound(rule, greedy=True) for rule in LOSSY)
    assert not any(bound(rule, greedy=False) for rule in LOSSY)


def second_tokens(rule: Any, drafter: Any, sampling: Sampling = SAMPLING) -> dict[int, Counter]:
    """First token -> how often each token came second. Only the second is drafted."""
    found: dict[int, Counter] = {}
    for row in draw(rule, drafter, ROWS, 2, sampling).rows:
        if row[0] != tables.END:
            found.setdefault(row[0], Counter())[(row[1],)] += 1
    return found


def worst(found: dict[int, Counter], law_after: Any) -> float:
    """The least p-value over first tokens. law_after: logits of target and drafter -> law of the second token."""
    values = []
    for first, counts in found.items():
        p, q = TABLE[2, first].softmax(-1), OTHER[2, first].softmax(-1)
        value = tables.p_value(counts, {(t,): float(x) for t, x in enumerate(law_after(p, q))})
        values.append(1.0 if math.isnan(value) else value)  # one outcome that is certain leaves nothing to test
    return min(values)


def tolerance_law(draws: int) -> Any:
    def law(p: Tensor, q: Tensor) -> Tensor:
        child = int(q.argmax())
        out = p * (1 - p[child]) ** (draws - 1)
        out[child] = 1 - (1 - p[child]) ** draws
        return out

    return law


def test_a_node_is_compared_with_the_draws_of_its_parents_position() -> None:
    parents, depth = torch.tensor([[-1, 0, 0, 1, 1]]), torch.tensor([[0, 1, 1, 2, 2]])
    draft = Draft(torch.tensor([[0, 1, 2, 1, 3]]).expand(50, -1), parents.expand(50, -1), depth.expand(50, -1))
    sampler, emitted = Sampler(SAMPLING, 50, CPU), torch.arange(50)
    scores = torch.randn(50, 5, VOCAB, generator=torch.Generator().manual_seed(0))
    found = Tolerance(4).plausible(draft, scores, sampler, emitted)
    want = torch.full_like(found, math.inf)
    for draw_ in (3, 2, 1):
        for node in range(1, 5):
            above = int(parents[0, node])
            counter = (emitted[:, None] + int(depth[0, above])) * 256 + draw_
            g = noise.gumbel(sampler.seeds, noise.ACCEPT, counter, VOCAB)[:, 0]
            want[(scores[:, above] + g).argmax(-1) == draft.tokens[:, node], node] = draw_
    assert torch.equal(found[:, 1:], want[:, 1:])  # node 0 has no parent to be plausible under
    assert len(found[:, 1:].unique()) == 4


ONE = tables.TableDrafter(OTHER, (1,))


def with_kind(rule: Any, kind: str) -> Any:
    rule.takes = (kind,)
    return rule


@pytest.mark.parametrize("draws", [2, 5])
def test_tolerance_keeps_a_child_that_is_among_its_draws(draws: int) -> None:
    found = second_tokens(with_kind(Tolerance(draws), "point"), ONE)
    assert worst(found, tolerance_law(draws)) > FALSE_ALARM
    assert worst(found, tolerance_law(draws + 1)) < FALSE_ALARM


def test_top_k_keeps_a_child_among_the_likeliest() -> None:
    def law(p: Tensor, q: Tensor) -> Tensor:
        child = int(q.argmax())
        return torch.nn.functional.one_hot(torch.tensor(child), VOCAB).float() if (p > p[child]).sum() < 2 else p

    assert worst(second_tokens(with_kind(TopK(2), "point"), ONE), law) > FALSE_ALARM


def test_max_ratio_keeps_a_child_that_is_likely_enough() -> None:
    def law(rho: float) -> Any:
        def inner(p: Tensor, q: Tensor) -> Tensor:
            child = int(q.argmax())
            return torch.nn.functional.one_hot(torch.tensor(child), VOCAB).float() if p[child] >= rho * p.max() else p

        return inner

    ratios = sorted(
        float(TABLE[2, t].softmax(-1)[OTHER[2, t].argmax()] / TABLE[2, t].softmax(-1).max()) for t in range(1, 5)
    )
    rho = (ratios[1] + ratios[2]) / 2  # two of the four first tokens have a child that passes
    assert worst(second_tokens(with_kind(MaxRatio(rho), "point"), ONE), law(rho)) > FALSE_ALARM


def beta_law(beta: float, after: Any = residual) -> Any:
    def law(p: Tensor, q: Tensor) -> Tensor:
        keep = ((p / q).clamp(max=1) + beta).clamp(max=1)
        return q * keep + (q * (1 - keep)).sum() * after(p, q)

    return law


@pytest.mark.parametrize("beta", [0.0, 0.2, 0.4])
def test_beta_keeps_a_draft_with_the_papers_chance(beta: float) -> None:
    found = second_tokens(Beta(beta), ONE)
    assert worst(found, beta_law(beta)) > FALSE_ALARM
    assert worst(found, beta_law(beta + 0.1)) < FALSE_ALARM
    assert worst(found, beta_law(beta, lambda p, q: p)) < FALSE_ALARM  # a residual that is not one


def test_beta_never_keeps_what_the_sampling_rules_out() -> None:
    narrow = Sampling(temperature=1.0, top_k=2, seed=3)
    rows = draw(Beta(1.0), tables.TableDrafter(-TABLE, (1,)), 2000, 2, narrow).rows  # drafts the least likely ones
    for first, second in (row for row in rows if len(row) == 2):
        assert second in TABLE[2, first].topk(2).indices.tolist()


PAIRS = torch.tensor([(0, 0), (1, 1), (1, 2), (2, 1), (2, 2), (2, 3), (3, 2), (3, 3), (4, 4)])
GROUPS = Groups.of(PAIRS, VOCAB)
"""Overlapping: tokens 1 to 3 sound alike, 0 and 4 are alone."""


def owners(token: int) -> list[int]:
    return GROUPS[token].tolist()


def laws() -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(9)
    pairs = [torch.randn(2, VOCAB, generator=generator).softmax(-1) for _ in range(4)]
    one_hot = torch.tensor([[0.0, 1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0, 0.0]])
    apart = torch.tensor([[0.5, 0.0, 0.0, 0.0, 0.5], [0.0, 0.3, 0.3, 0.4, 0.0]])
    same = torch.full((2, VOCAB), 0.2)
    return [(pair[0].double(), pair[1].double()) for pair in (*pairs, one_hot, apart, same)]


def group_law(p: Tensor, q: Tensor, after: Any) -> Tensor:
    """The law of the emitted token's group (its drawn owner), by enumeration of drafts, owners and coins.

    after: what follows a rejection: a law of groups.
    """
    ahead, drafted = masses(p), masses(q)
    law, refused = torch.zeros(VOCAB).double(), 0.0
    for token in range(VOCAB):
        for group in owners(token):
            reach = float(q[token]) / len(owners(token))
            keep = min(1.0, float(ahead[group] / drafted[group])) if reach else 0.0
            law[group] += reach * keep
            refused += reach * (1 - keep)
    return law + refused * after(ahead, drafted)


def masses(law: Tensor) -> Tensor:
    """The definition, token by token."""
    out = torch.zeros(VOCAB).double()
    for token in range(VOCAB):
        for group in owners(token):
            out[group] += law[token] / len(owners(token))
    return out


@pytest.mark.parametrize("pair", range(7))
def test_groups_are_emitted_with_exactly_the_targets_law(pair: int) -> None:
    p, q = laws()[pair]
    assert torch.allclose(group_law(p, q, residual), masses(p), atol=1e-9)
    if not torch.allclose(masses(p), masses(q)) and pair < 4:
        assert not torch.allclose(group_law(p, q, lambda ahead, drafted: ahead), masses(p), atol=1e-6)
    for law in (p, q):
        assert torch.allclose(GROUPS.masses(law), masses(law))
        for group in range(VOCAB):
            assert torch.allclose(GROUPS.mass(law[None], torch.tensor([group])), masses(law)[group])


@pytest.mark.parametrize("pair", range(7))
def test_the_token_after_a_rejection_has_the_residual_groups_law(pair: int) -> None:
    p, q = laws()[pair]
    groups = residual(masses(p), masses(q))
    want = torch.zeros(VOCAB).double()
    for token in range(VOCAB):
        for group in owners(token):
            if masses(p)[group] > 0:
                want[token] += groups[group] * p[token] / len(owners(token)) / masses(p)[group]
    assert torch.allclose(rest(GROUPS, p[None], q[None])[0], want, atol=1e-9)
    assert torch.allclose(want.sum(), torch.tensor(1.0).double())


def pcg_law(p: Tensor, q: Tensor) -> Tensor:
    ahead, drafted = masses(p), masses(q)
    law, refused = torch.zeros(VOCAB).double(), 0.0
    for token in range(VOCAB):
        for group in owners(token):
            reach = float(q[token]) / len(owners(token))
            keep = min(1.0, float(ahead[group] / drafted[group]))
            law[token] += reach * keep
            refused += reach * (1 - keep)
    return law + refused * rest(GROUPS, p[None].double(), q[None].double())[0]


@pytest.mark.parametrize("tries", [0, 1, pcg_module.TRIES])
def test_the_rule_emits_the_enumerated_law(tries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the token after a rejection is drawn from the law itself, by trying, or by the one after the other."""
    monkeypatch.setattr(pcg_module, "TRIES", tries)
    assert worst(second_tokens(pcg(GROUPS), ONE), pcg_law) > FALSE_ALARM


def drawn(law: Any) -> Any:
    """In the place of `thinned`: tokens of another law."""

    def inner(groups: Groups, p: Tensor, q: Tensor, coins: Tensor) -> Tensor:
        below = law(p, q).cumsum(-1)
        return torch.searchsorted(below, coins[:, 0, :1] * below[:, -1:])[:, 0]

    return inner


WRONG = {
    "resamples from p": ("rest", lambda groups, p, q: p),
    "resamples from the residual of tokens": ("rest", lambda groups, p, q: residual(p, q)),
    "tries until something of p is there": ("thinned", drawn(lambda p, q: p)),
    "tries tokens, and not groups": ("thinned", drawn(residual)),
    "always takes the first owner": (
        "owner_of",
        lambda groups, token, coin: groups.items[groups.starts[token]],
    ),
}


@pytest.mark.parametrize("how", WRONG)
def test_the_check_finds_a_wrong_group_rule(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pcg_module, *WRONG[how])
    if WRONG[how][0] == "rest":
        monkeypatch.setattr(pcg_module, "TRIES", 0)
    assert worst(second_tokens(pcg(GROUPS), ONE), pcg_law) < FALSE_ALARM


def test_a_rejection_looks_at_single_groups_and_its_draw_repeats(monkeypatch: pytest.MonkeyPatch) -> None:
    """The law of all groups, four passes over all pairs, is not asked for; each row of a batch draws as it does alone,
    whatever the others have tried."""
    monkeypatch.setattr(Groups, "masses", lambda *_: pytest.fail("a pass over all pairs"))
    rule, drafter = pcg(GROUPS), TREES["chain"]
    whole = draw(rule, drafter, rows=12)
    assert min(whole.accepted) == 0  # where something was refused
    for row, said in enumerate(whole.rows):
        assert draw(rule, drafter, rows=1, sampling=replace(SAMPLING, seed=SAMPLING.seed + row)).rows == [said]


def test_a_try_tells_tokens_apart_within_one_step_of_a_uniform_number() -> None:
    """Laws of 65,536 codes have probabilities of a few such steps."""
    p, singles = torch.tensor([[0.3, 0.7]]), alike(torch.eye(2), 0.5)
    edge = float(p[0, 0].double() / p.double().sum()) * 2**23  # in steps
    step, within = divmod(edge, 1.0)
    for beside, token in ((-0.05, 0), (0.05, 1)):
        coins = torch.tensor([[[(step + 0.5) / 2**23, within + beside, 0.0, 0.0]]])
        assert pcg_module.thinned(singles, p, torch.zeros(1, 2), coins).tolist() == [token]


def test_groups_are_what_cosines_say() -> None:
    vectors = torch.randn(30, 4, generator=torch.Generator().manual_seed(2))
    groups = alike(vectors, 0.6, alone=(0, 7))
    cosine = torch.nn.functional.cosine_similarity(vectors[:, None], vectors[None], dim=-1)
    for k in range(30):
        want = {t for t in range(30) if cosine[k, t] > 0.6 and not {k, t} & {0, 7}} | {k}
        assert groups[k].tolist() == sorted(want)
    assert alike(torch.eye(4), 0.0).mean_size == 1  # what is at theta is not above it
    law = torch.rand(3, 30).softmax(-1)
    assert torch.allclose(groups.masses(law).sum(-1), torch.ones(3))


def test_one_group_that_holds_every_token_costs_only_its_own_pairs() -> None:
    """Token 0 is like all others, which are like none but it: a table as wide as its group would be V x V."""
    count = 200
    vectors = 0.6 * torch.eye(count)
    vectors[:, 0] = 0.8  # token 0 points along it, the others 37 degrees away, and 50 from each other
    groups = alike(vectors, 0.7)
    assert sum(part.numel() for part in vars(groups).values()) <= 4 * count
    held = torch.eye(count)
    held[0] = held[:, 0] = 1.0
    law, other = torch.rand(2, 3, count, generator=torch.Generator().manual_seed(6)).double()
    shares, held = held.sum(0), held.double()
    assert torch.allclose(groups.masses(law), law / shares @ held.T)
    for group in (0, 7):
        assert torch.allclose(groups.mass(law, torch.full((3,), group)), (law / shares @ held.T)[:, group])
    assert torch.allclose(groups.spread(law, other), law / shares * (other / (law / shares @ held.T) @ held))
    assert groups.masses(law[:0]).shape == (0, count)
    assert torch.allclose(groups.masses(law[None]), groups.masses(law)[None])


@pytest.mark.parametrize("size", [1, 3, 8.5, 20])
def test_groups_are_made_of_the_wanted_size(size: float) -> None:
    groups = by_size(torch.randn(60, 5, generator=torch.Generator().manual_seed(4)), size)
    assert abs(groups.mean_size - size) < 0.15 * size
    assert groups.mean_size == 1 or size > 1


def test_only_tokens_that_may_have_company_are_compared_and_pairs_are_listed_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Real vocabularies have 10^10 pairs: those below the final theta must never be listed."""
    listed, compared = [], []
    make, blocks = groups_module.alike, groups_module.blocks
    monkeypatch.setattr(groups_module, "alike", lambda *given: listed.append(given) or make(*given))
    monkeypatch.setattr(groups_module, "blocks", lambda vectors: compared.append(len(vectors)) or blocks(vectors))
    assert sum(int(cosines.isfinite().sum()) for _, cosines in blocks(torch.randn(600, 5))) == 600 * 599 // 2
    vectors = torch.randn(600, 5, generator=torch.Generator().manual_seed(4))
    groups = by_size(vectors, 2.5, alone=range(300))
    assert (len(listed), compared) == (1, [300, 300])
    assert 2.49 < groups.mean_size <= 2.5
    assert (groups.sizes[:300] == 1).all()
    assert groups.sizes is groups.sizes


def test_what_follows_a_rejection_is_computed_for_rejected_rows_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(pcg_module, "rest", lambda groups, p, q: asked.append(len(p)) or rest(groups, p, q))
    monkeypatch.setattr(pcg_module, "TRIES", 0)
    same = draw(pcg(GROUPS), tables.TableDrafter(TABLE, (1,)), budget=3)
    assert sum(same.accepted) == len(same.accepted)
    assert sum(asked) == 0
    other = draw(pcg(GROUPS), ONE, budget=3)
    assert 0 < max(asked) < len(other.rows)


def test_groups_are_made_once_for_each_target_and_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[float] = []
    make = pcg_module.by_size
    monkeypatch.setattr(pcg_module, "by_size", lambda *given: made.append(given[1]) or make(*given))

    class Speaker:
        vocab_size = 40

        def __init__(self) -> None:
            self.embed = torch.nn.Embedding(40, 4)

        def code_ids(self) -> range:
            return range(1, 40)

    def groups_of(target: Any, size: float) -> Groups:
        rule = PCG(size)
        rule.bind(target)
        assert rule.groups is not None
        return rule.groups

    one, other = cast("Any", Speaker()), Speaker()
    first = groups_of(one, 0.1)
    assert groups_of(one, 0.1) is first
    assert groups_of(one, 0.2) is not first
    assert groups_of(other, 0.1) is not first
    assert groups_of(one, 0.1) is first
    assert len(made) == 3
    for size in (0.3, 0.4, 0.5, 0.6):  # no more are kept than there is room for
        groups_of(one, size)
    assert len(one.groups_of_codes) == pcg_module.KEPT
    assert groups_of(one, 0.1) is not first


def test_the_size_of_a_group_is_a_share_of_the_codes_however_many_words_there_are() -> None:
    target = SimpleNamespace(vocab_size=400, embed=torch.nn.Embedding(400, 4), code_ids=lambda: range(100, 140))
    torch.nn.init.normal_(target.embed.weight, generator=torch.Generator().manual_seed(0))
    rule = PCG(0.2)
    rule.bind(target)
    assert 7.5 < float(rule.groups.sizes[100:140].double().mean()) <= 8
    assert rule.groups.mean_size < 2


def one_node_laws(*rows: list[float]) -> Tensor:
    return torch.tensor([rows]).log()


def test_what_ends_an_utterance_is_kept_only_as_the_targets_own_draw() -> None:
    """Token 0 ends. It is likely and drafted every time; a tolerant rule may not keep it more often than p does."""
    scores = torch.tensor([0.6, 0.2, 0.2]).log().expand(4000, 2, 3)
    draft = chain(torch.tensor([[1, 0]]).repeat(4000, 1))
    sampler, emitted = Sampler(SAMPLING, 4000, CPU), torch.zeros(4000, dtype=torch.long)
    target = SimpleNamespace(ends=lambda: [0])
    exact = Exact()(draft, scores, sampler, emitted).count
    for rule in (Tolerance(4), TopK(3), MaxRatio(0.1)):
        assert (rule(draft, scores, sampler, emitted).count > exact).any()
        rule.bind(target)
        assert torch.equal(rule(draft, scores, sampler, emitted).count, exact)
    draft.kind, draft.q = "sampled", torch.tensor([0.9, 0.05, 0.05]).expand(4000, 2, 3)
    beta = Beta(0.4)
    assert (beta(draft, scores, sampler, emitted).count > Ratio()(draft, scores, sampler, emitted).count).any()
    beta.bind(target)
    assert torch.equal(beta(draft, scores, sampler, emitted).count, Ratio()(draft, scores, sampler, emitted).count)


def test_the_unverified_rule_goes_on_with_what_the_target_draws_behind_the_draft() -> None:
    scores = torch.randn(20, 4, VOCAB, generator=torch.Generator().manual_seed(0))
    draft, emitted = chain(torch.ones(20, 4, dtype=torch.long)), torch.arange(20)
    draft.valid = draft.depth < 4 - torch.arange(20)[:, None] % 2  # of every other row, one less
    sampler, last = Sampler(SAMPLING, 20, CPU), draft.valid.sum(-1) - 1
    done = Unverified()(draft, scores, sampler, emitted)
    assert done.next is not None
    assert torch.equal(done.count, last + 1)
    own = sampler.draw(scores, emitted[:, None] + torch.arange(4))
    assert torch.equal(done.next, own.gather(1, last[:, None])[:, 0])


def test_the_path_goes_to_the_best_child_at_every_node() -> None:
    parents = torch.tensor([[-1, 0, 0, 1, 2, 2, 4]])
    depth = torch.tensor([[0, 1, 1, 2, 2, 2, 3]])
    draft = Draft(torch.zeros_like(parents), parents, depth)
    inf = math.inf
    for rank, last in (
        ([inf, 2, 1, 0, 3, 2, 0], 5),  # the better child at each step, though another path is longer
        ([inf, inf, 1, 0, 3, inf, 0], 6),
        ([inf, 1, 1, inf, 0, 0, 0], 1),  # the first of equals
        ([inf, inf, inf, 0, 0, 0, 0], 0),
    ):
        assert descend(draft, torch.tensor([rank]).float()).tolist() == [last]
    draft.valid = torch.tensor([[True, True, False, True, True, True, True]])
    assert descend(draft, torch.tensor([[inf, 2, 1, 0, 3, 2, 0]]).float()).tolist() == [3]


def test_the_rules_refuse_drafts_that_break_their_law() -> None:
    scores, sampler, emitted = torch.zeros(1, 3, VOCAB), Sampler(SAMPLING, 1, CPU), torch.zeros(1, dtype=torch.long)
    point = chain(torch.tensor([[1, 2, 3]]))
    for rule in (Beta(0.4), pcg(GROUPS)):
        with pytest.raises(MismatchError, match="needs"):
            rule(point, scores, sampler, emitted)
    tree = chain(torch.tensor([[1, 2, 3]]), "sampled", torch.full((1, 3, VOCAB), 1 / VOCAB))
    tree.parents = torch.tensor([[-1, 0, 0]])
    with pytest.raises(MismatchError, match="the pcg rule needs chains"):
        pcg(GROUPS)(tree, scores, sampler, emitted)


def test_heads_that_draw_trees_draw_chains_for_groups() -> None:
    """Where trees would be refused in the first round."""
    pipe = mmspec.load("valle-mini", "eagle2", acceptance="pcg", shape="own")
    stats = pipe(prompt="two red circles.", max_new_tokens=12, seed=1).stats
    assert stats.tau > 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Tolerance(0), "got 0"),
        (lambda: Tolerance(1.5), "got 1.5"),  # type: ignore[arg-type]
        (lambda: TopK(-1), "got -1"),
        (lambda: MaxRatio(0.0), "got 0.0"),
        (lambda: MaxRatio(2.0), "got 2.0"),
        (lambda: Beta(1.1), "got 1.1"),
        (lambda: PCG(1.0), "got 1.0"),
        (lambda: by_size(torch.eye(4), 5), "groups of 5"),
    ],
)
def test_knobs_out_of_range_are_refused(make: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()


def test_groups_of_a_model_that_has_no_codes_among_its_words_are_refused() -> None:
    for target in (SimpleNamespace(vocab_size=7), object.__new__(Csm), object.__new__(Whisper)):
        with pytest.raises(MismatchError, match="pcg acceptance groups the codes"):
            PCG().bind(target)


@pytest.mark.parametrize("name", ["columns", "columns-ratio", "columns-joint"])
@pytest.mark.parametrize("kind", [ValleTarget, Csm, Whisper, Llasa])
def test_rules_for_columns_judge_no_single_tokens(kind: Any, name: str) -> None:
    with pytest.raises(MismatchError, match="judges columns of codes, and the model emits single ids: use 'exact'"):
        find_rule(name, object.__new__(kind))


def test_every_relaxed_rule_is_one_of_these() -> None:
    assert {kind.__name__ for kind in Relaxed.__subclasses__()} == {"Tolerance", "TopK", "MaxRatio"}
