"""Relaxed rules: neutral knobs are the ratio rule bit for bit, and what is emitted is what is computed."""

import re
from collections import Counter
from functools import partial
from typing import Any

import pytest
import tables
import test_law
import tiny_images
import torch
import toys
from torch import Tensor

import mmspec
from mmspec.acceptance.ratio import Ratio
from mmspec.contract import Draft, Shape
from mmspec.contract import bound as repeats
from mmspec.control import OWN, Auto
from mmspec.decode import choose_kind
from mmspec.drafters.prompt_lookup import PromptLookup
from mmspec.errors import InputError
from mmspec.image_ar import relaxed
from mmspec.image_ar.clusters import CoolSD, Grouped
from mmspec.image_ar.jacobi import MaximalCoupling
from mmspec.image_ar.janus import Janus
from mmspec.image_ar.lantern import Lantern, LanternPlus
from mmspec.image_ar.neighbours import Neighbours
from mmspec.image_ar.pac import Proactive
from mmspec.named import rule_named
from mmspec.sampling import Sampler, Sampling
from mmspec.tree import chain

VOCAB = 12
CODEBOOK = torch.randn(VOCAB, 3, generator=torch.Generator().manual_seed(0))
TABLE = Neighbours.of(CODEBOOK, VOCAB)
SAMPLED = Sampling(temperature=1.0, seed=1)


class Coded(tables.TableTarget):
    """A table over a codebook."""

    codebook = CODEBOOK
    model = torch.nn.Linear(1, 1)
    model.device = torch.device("cpu")  # type: ignore[assignment]
    embed = torch.nn.Embedding.from_pretrained(CODEBOOK)

    def neighbours(self, count: int, unit: bool | None = None) -> Neighbours:
        return Neighbours.of(self.codebook, count)


TARGET = Coded(tables.random_table(VOCAB, 1))
NEUTRAL: dict[str, Any] = {
    "lantern k": lambda residual: Lantern(k=0, residual=residual),
    "lantern delta": lambda residual: Lantern(k=5, delta=0.0, residual=residual),
    "lantern++": lambda residual: LanternPlus(k=5, bound=1.0, residual=residual),
    "gsd": lambda residual: Grouped(size=1, residual=residual),
    "cool-sd": lambda residual: CoolSD(delta=1.0, residual=residual),
}
RELAXED: dict[str, Any] = {
    "lantern": lambda residual: Lantern(k=5, delta=0.3, residual=residual),
    "lantern++": lambda residual: LanternPlus(k=5, bound=3.0, residual=residual),
    "gsd": lambda residual: Grouped(size=5, near=0.5, distance=6.0, residual=residual),
    "cool-sd": lambda residual: CoolSD(delta=1.8, residual=residual),
}


def bound(rule: Any) -> Any:
    rule.bind(TARGET)
    return rule


def laws(count: int, spread: float = 1.5) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    p, q = (spread * torch.randn(2, count, VOCAB, generator=generator)).softmax(-1)
    p[0, :4], q[1, 3:7] = 0.0, 0.0
    return p / p.sum(-1, keepdim=True), q / q.sum(-1, keepdim=True)


def emitted(rule: Any, p: Tensor, q: Tensor) -> Tensor:
    """[B, V] the law of the token that a rule emits where one token is drafted from q [B, V] and p [B, V] is right."""
    depth = torch.zeros(len(p), dtype=torch.long)
    kept = rule.kept(p, q, depth)
    return kept + (1 - kept.sum(-1, keepdim=True)).clamp(min=0) * rule.rest(p, q, depth)


def drift(rule: Any, p: Tensor, q: Tensor) -> Tensor:
    """[B] total variation distance of that law from p."""
    return (emitted(rule, p, q) - p).abs().sum(-1) / 2


@pytest.mark.parametrize("residual", ["plain", "optimal"])
@pytest.mark.parametrize("name", NEUTRAL)
def test_at_its_neutral_knob_a_rule_is_the_ratio_rule_bit_for_bit(name: str, residual: str) -> None:
    rule, prompts = bound(NEUTRAL[name](residual)), {"input_ids": torch.tensor([[1, 2]]).repeat(200, 1)}
    for drafter in (tables.TableDrafter(tables.random_table(VOCAB, 2), (3, 2)), MaximalCoupling(4), Proactive(5)):
        want = toys.answer(TARGET, drafter, prompts, 12, SAMPLED, Ratio())
        got = toys.answer(TARGET, drafter, prompts, 12, SAMPLED, rule)
        assert got.rows == want.rows
        assert got.accepted == want.accepted
    p, q = laws(20)
    zeros, ids = torch.zeros(20, dtype=torch.long), torch.arange(VOCAB).expand(20, -1)
    granted, taken = rule.raised(p, q, ids, zeros)
    assert torch.equal(granted, p)
    assert torch.equal(taken, q)
    assert torch.equal(rule.rest(p, q, zeros), Ratio().rest(p, q, zeros))
    assert float(drift(rule, p, q).max()) < 1e-6


@pytest.mark.parametrize("residual", ["plain", "optimal"])
def test_rules_say_that_they_keep_the_law_at_their_neutral_knob_alone(residual: str) -> None:
    assert {name: make(residual).lossless for name, make in NEUTRAL.items()} == dict.fromkeys(NEUTRAL, True)
    assert {name: make(residual).lossless for name, make in RELAXED.items()} == dict.fromkeys(RELAXED, False)
    for make in NEUTRAL.values():
        assert repeats(make(residual), greedy=True)


@pytest.mark.parametrize("make", [Lantern, LanternPlus])
def test_lantern_takes_likeliest_children_as_published_where_it_is_asked_to_or_nothing_else_is_made(make: Any) -> None:
    both = tables.TableDrafter(tables.random_table(VOCAB, 2), (3, 2))
    assert choose_kind(make(), both) == "sampled"
    assert choose_kind(make(plain=True), both) == "point"
    assert choose_kind(make(), PromptLookup()) == "point"


def test_lantern_is_told_by_name_which_children_to_take() -> None:
    assert rule_named("lantern:plain=true", Janus).takes[0] == "point"
    assert rule_named("lantern++=2:plain=1", Janus).takes[0] == "point"
    assert rule_named("lantern:plain=false", Janus).takes[0] == "sampled"
    assert rule_named("lantern:unit=true", Janus).unit is True
    with pytest.raises(InputError, match="plain=3.7 of the rule lantern is not valid: true or false"):
        rule_named("lantern:plain=3.7", Janus)


@pytest.mark.parametrize("residual", ["plain", "optimal"])
@pytest.mark.parametrize("make", [partial(Lantern, delta=0.0), partial(LanternPlus, bound=1.0)])
def test_with_likeliest_children_the_neutral_knob_keeps_the_targets_law(make: Any, residual: str) -> None:
    rule, sampling = make(k=2, plain=True, residual=residual), test_law.SAMPLINGS["plain"]
    rule.neighbours = Neighbours.of(CODEBOOK[: test_law.VOCAB], 2)
    rule.bind = lambda target: None
    for branching in ((1, 1), (2, 2), (4, 1)):
        rows = test_law.draw(tables.TableDrafter(test_law.OTHER, branching), rule, sampling)
        assert test_law.p_value(rows, sampling) > test_law.FALSE_ALARM


@pytest.mark.parametrize("residual", ["plain", "optimal"])
@pytest.mark.parametrize("make", [partial(Lantern, 0.2), partial(LanternPlus, 4.0)])
def test_likeliest_children_are_kept_with_their_probability_and_what_they_borrow(make: Any, residual: str) -> None:
    """Two siblings, the second under what the first one's rejection leaves."""
    rows, rule = 40_000, bound(make(k=4, plain=True, residual=residual))
    p = laws(3)[0][2:3]
    first, second = p[0].topk(4).indices[[1, 3]].tolist()
    zero = torch.zeros(1, dtype=torch.long)
    law, left, expected = p, 1.0, torch.zeros(VOCAB)
    for token in (first, second):
        q = torch.eye(VOCAB)[token][None]
        kept = min(1.0, float(rule.raised(law, q, torch.tensor([[token]]), zero)[0]))
        expected[token] += left * kept
        law, left = rule.rest(law, q, zero), left * (1 - kept)
    expected += left * law[0]
    tokens = torch.tensor([[0, first, second]]).expand(rows, -1)
    draft = Draft(tokens, torch.tensor([[-1, 0, 0]]).expand(rows, -1), torch.tensor([[0, 1, 1]]).expand(rows, -1))
    scores = p.log().expand(rows, 3, -1)
    sampler = Sampler(SAMPLED, rows, torch.device("cpu"))
    accepted = rule(draft, scores, sampler, torch.ones(rows, dtype=torch.long))
    child = tokens.gather(1, accepted.path.gather(1, accepted.count[:, None] - 1))[:, 0]
    emitted_first = torch.where(accepted.count > 1, child, accepted.next)
    assert torch.allclose(torch.bincount(emitted_first, minlength=VOCAB) / rows, expected, atol=0.012)
    assert float((expected - p[0]).abs().sum()) > 0.1


@pytest.mark.parametrize("residual", ["plain", "optimal"])
@pytest.mark.parametrize("name", RELAXED)
def test_what_a_rule_emits_is_what_is_computed(name: str, residual: str) -> None:
    rows, rule = 20_000, bound(RELAXED[name](residual))
    p, q = (law[2:3] for law in laws(3))
    tokens = q.repeat(rows, 1).multinomial(1, generator=torch.Generator().manual_seed(0))
    draft = chain(torch.cat([torch.zeros_like(tokens), tokens], 1), "sampled", q.repeat(rows, 2, 1).view(rows, 2, -1))
    sampler = Sampler(SAMPLED, rows, torch.device("cpu"))
    accepted = rule(draft, p.log().repeat(rows, 2).view(rows, 2, -1), sampler, torch.ones(rows, dtype=torch.long))
    first = torch.where(accepted.count > 1, tokens[:, 0], accepted.next)
    law = {(token,): float(mass) for token, mass in enumerate(emitted(rule, p, q)[0])}
    assert tables.p_value(Counter((token,) for token in first.tolist()), law) > 1e-6
    exact = {(token,): float(mass) for token, mass in enumerate(p[0])}
    assert tables.p_value(Counter((token,) for token in first.tolist()), exact) < 1e-6  # lossy indeed


@pytest.mark.parametrize("name", RELAXED)
def test_relaxing_accepts_more_and_the_optimal_residual_stays_closest(name: str) -> None:
    p, q = laws(50)
    zeros = torch.zeros(50, dtype=torch.long)
    plain, optimal = bound(RELAXED[name]("plain")), bound(RELAXED[name]("optimal"))
    least = torch.minimum(p, q)
    assert not plain.lossless
    assert plain.kept(p, q, zeros).sum() > least.sum()
    assert drift(optimal, p, q).sum() <= drift(plain, p, q).sum() + 1e-6
    if name != "gsd":  # clusters overlap, so a token that the ratio rule would keep may fall with its cluster
        assert (plain.kept(p, q, zeros) >= least - 1e-6).all()
        assert (drift(optimal, p, q) <= drift(plain, p, q) + 1e-6).all()
    assert float(drift(plain, p, q).max()) > 0.01


def test_acceptance_grows_with_every_knob() -> None:
    p, q = laws(50)
    zeros = torch.zeros(50, dtype=torch.long)

    def kept(rule: Any) -> float:
        return float(bound(rule).kept(p, q, zeros).sum())

    for make, knobs in (
        (lambda delta: Lantern(delta, 5), (0.0, 0.1, 0.3, 1.0)),
        (lambda k: Lantern(0.4, k), (0, 1, 3, 11)),
        (lambda times: LanternPlus(times, 5), (1.0, 1.5, 3.0, 8.0)),
        (CoolSD, (1.0, 1.2, 2.0)),
    ):
        masses = [kept(make(knob)) for knob in knobs]
        assert masses == sorted(masses)
        assert masses[0] < masses[-1]


def test_what_neighbours_lend_is_within_the_bound() -> None:
    """The distance of the raised vector from p is what is borrowed: TV(p, p') = c_m <= delta."""
    p, _ = laws(30)
    ids = torch.arange(VOCAB).expand(30, -1)
    own = p.gather(1, ids)
    for rule, most in ((Lantern(0.2, 7), torch.full_like(own, 0.2)), (LanternPlus(2.5, 7), 1.5 * own)):
        mass, near, lends = bound(rule).borrowed(p, ids, own)
        assert (mass <= most + 1e-6).all()
        assert (mass > 0).any()
        assert torch.equal(lends, lends.cumprod(-1).bool())  # the nearest ones, without a gap
        assert torch.allclose(mass, (p.gather(1, near.flatten(1)).view(near.shape) * lends).sum(-1))


def test_no_more_neighbours_lend_than_may() -> None:
    """A target keeps the widest table that it was asked for."""
    target = Janus(tiny_images.janus_model())
    law, ids = torch.full((1, tiny_images.CODES), 0.01), torch.arange(tiny_images.CODES)[None]
    for k in (7, 2):
        rule = Lantern(delta=1.0, k=k)
        rule.bind(target)
        assert torch.allclose(rule.borrowed(law, ids, law)[0], torch.full_like(law, 0.01 * k))


@pytest.mark.parametrize(("codes", "lending"), [(16384, 1000), (8192, 1000), (512, 64), (61, 7)])
def test_where_nobody_says_how_many_may_lend_they_are_1000_or_an_eighth_of_the_codebook(
    codes: int, lending: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = Coded(TARGET.table)
    target.codebook = torch.zeros(codes, 3)
    table = Neighbours((torch.arange(2000, dtype=torch.int32) % codes).expand(codes, -1))
    monkeypatch.setattr(target, "neighbours", lambda count, unit: table)  # wide, as another rule asked for it
    law = torch.full((1, codes), 1 / codes)
    ids = torch.tensor([[codes - 1]])
    for rule in (Lantern(1.0), LanternPlus(1e9)):
        rule.bind(target)
        assert rule.neighbours is not None
        assert torch.equal(rule.neighbours.nearest, table.nearest[:, :lending])
        assert torch.allclose(rule.borrowed(law, ids, law.gather(1, ids))[0], torch.tensor(lending / codes))


def test_layout_tokens_look_like_no_code() -> None:
    law, ids = torch.full((1, VOCAB + 2), 0.01), torch.arange(VOCAB + 2)[None]
    for rule in (Lantern(1.0, 5), LanternPlus(9.0, 5)):
        mass, _, lends = bound(rule).borrowed(law, ids, law)
        assert torch.allclose(mass, torch.where(ids < VOCAB, 0.05, 0.0))
        assert torch.equal(lends.any(-1), ids < VOCAB)


def test_cool_sd_weights_fall_along_the_draft() -> None:
    p, q = laws(3)
    chances = [
        CoolSD(2.0, 0.7).raised(p, q, torch.arange(VOCAB).expand(3, -1), torch.full((3,), i))[0] for i in (0, 1, 9)
    ]
    assert torch.allclose(chances[0], 2 * p)
    assert (chances[0] >= chances[1]).all()
    assert torch.allclose(chances[2], p, rtol=0.01)


def test_clusters_of_the_likeliest_and_the_least_likely_token_are_whole() -> None:
    """The window of ranks is shifted, not cut, at both ends."""
    p = torch.tensor([[0.4, 0.3, 0.2, 0.06, 0.04]])
    q = torch.full((1, 5), 0.2)
    for size, masses in ((3, [0.9, 0.9, 0.56, 0.3, 0.3]), (4, [0.96, 0.96, 0.6, 0.6, 0.6])):  # an even one reaches down
        rule = Grouped(size=size, near=1.0, distance=None)
        granted, taken = rule.raised(p, q, torch.arange(5)[None], torch.zeros(1, dtype=torch.long))
        assert torch.allclose(granted, torch.tensor([masses]))
        assert torch.allclose(taken, torch.full((1, 5), 0.2 * size))
    alone = Grouped(size=3, near=0.01, distance=None)
    assert torch.equal(alone.raised(p, q, torch.arange(5)[None], torch.zeros(1, dtype=torch.long))[0], p)


@pytest.mark.parametrize(("distance", "members"), [(0.6, 1), (0.7, 2)])
def test_the_distance_of_a_cluster_is_squared(distance: float, members: int) -> None:
    """Codes 0.8 apart, and one that is far."""
    target = Coded(tables.random_table(3, 1))
    target.embed = torch.nn.Embedding.from_pretrained(torch.tensor([[0.0], [0.8], [9.0]]))
    rule, even = Grouped(size=3, near=1.0, distance=distance), torch.full((1, 3), 1 / 3)
    rule.bind(target)
    granted, _ = rule.raised(even, even, torch.arange(3)[None], torch.zeros(1, dtype=torch.long))
    assert torch.allclose(granted, torch.tensor([[members, members, 1.0]]) / 3)


def test_laws_are_ranked_once_for_all_of_their_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    (p, q), zeros = laws(3), torch.zeros(3, dtype=torch.long)
    rule, sort, sorts = bound(RELAXED["gsd"]("optimal")), Tensor.sort, []
    want = rule.kept(p, q, zeros)

    def counted(law: Tensor, *given: Any, **named: Any) -> Any:
        sorts.append(1)
        return sort(law, *given, **named)

    monkeypatch.setattr(Tensor, "sort", counted)
    monkeypatch.setattr(relaxed, "CHUNK", 5)
    assert torch.allclose(rule.kept(p, q, zeros), want)
    assert len(sorts) == 1


class Spaced(Coded):
    """The same codes, nearer to each other or further apart."""

    def __init__(self, scale: float) -> None:
        super().__init__(tables.random_table(VOCAB, 1))
        self.embed = torch.nn.Embedding.from_pretrained(scale * CODEBOOK)


def test_gsd_differs_from_ratio_where_codes_are_close_and_warns_where_none_are(caplog: Any) -> None:
    """With the defaults of its authors. Clusters of one are the ratio rule bit for bit, and are said to be that."""
    p, q = laws(50, 0.5)
    zeros, ids = torch.zeros(50, dtype=torch.long), torch.arange(VOCAB).expand(50, -1)
    close, far = Grouped(), Grouped()
    close.bind(Spaced(0.15))
    assert not caplog.records
    granted, taken = close.raised(p, q, ids, zeros)
    assert (granted > p + 1e-3).float().mean() > 0.5
    assert (taken > q + 1e-3).float().mean() > 0.5
    assert float(close.kept(p, q, zeros).sum()) > float(torch.minimum(p, q).sum()) + 1
    far.bind(Spaced(5.0))
    assert "gsd with distance=0.5 is the ratio rule on this model" in caplog.text
    granted, taken = far.raised(p, q, ids, zeros)
    assert torch.equal(granted, p)
    assert torch.equal(taken, q)
    told = float(re.search(r"lies (\S+) to", caplog.text)[1])  # type: ignore[index]
    apart = torch.cdist(5 * CODEBOOK, 5 * CODEBOOK).square().fill_diagonal_(torch.inf)
    assert told == pytest.approx(float(apart.min()), rel=0.05)
    caplog.clear()
    helped = Grouped(distance=2 * told)
    helped.bind(Spaced(5.0))
    assert not caplog.records
    assert not torch.equal(helped.raised(p, q, ids, zeros)[0], p)


def greedy(rule: Any, draft: Draft, scores: Tensor) -> list[int]:
    sampler = Sampler(Sampling(), len(scores), torch.device("cpu"))
    accepted = rule(draft, scores, sampler, torch.ones(len(scores), dtype=torch.long))
    return [int(accepted.count[0]), int(accepted.next[0])]


def test_at_temperature_0_a_code_is_kept_if_what_it_borrows_makes_it_the_best() -> None:
    near = int(TABLE.nearest[3, 0])
    p = torch.full((VOCAB,), 0.01)
    p[3], p[near], p[(near + 1) % VOCAB if (near + 1) % VOCAB != 3 else (near + 2) % VOCAB] = 0.2, 0.25, 0.3
    scores = (p / p.sum()).log().repeat(1, 2, 1)
    scores[:, 1] = scores[:, 1].roll(1)  # after the drafted code another one is the best
    draft = chain(torch.tensor([[0, 3]]))
    best, after = scores[0].argmax(-1).tolist()
    assert greedy(bound(Lantern(k=1, delta=0.5)), draft, scores) == [2, after]
    assert greedy(bound(Lantern(k=1, delta=0.1)), draft, scores) == [1, best]
    assert greedy(bound(LanternPlus(k=1, bound=3.0)), draft, scores) == [2, after]
    lent = p.clone()
    lent[3], lent[near], lent[best] = 0.0, 0.4, 0.3  # all that it has is what the best code lends
    assert greedy(bound(Lantern(k=1, delta=0.6)), draft, lent.log().repeat(1, 2, 1))[0] == 2
    for name in NEUTRAL:
        assert greedy(bound(NEUTRAL[name]("plain")), draft, scores) == greedy(Ratio(), draft, scores) == [1, best]


def test_rules_that_borrow_at_temperature_0_do_not_say_that_the_draft_is_all_the_same() -> None:
    for rule in (Lantern(), LanternPlus()):
        assert not repeats(rule, greedy=True)
        assert Auto((Shape(1, 1, 2),)).begin(1, Sampler(Sampling(), 1, torch.device("cpu")), rule) is OWN
    assert repeats(Ratio(), greedy=True)
    assert not repeats(Ratio(), greedy=False)


def test_neighbours_are_the_nearest_others_in_the_codebook_at_hand() -> None:
    distance = (CODEBOOK[:, None] - CODEBOOK).norm(dim=-1).fill_diagonal_(torch.inf)
    assert torch.equal(TABLE.nearest, distance.argsort(-1)[:, :-1].int())
    few = Neighbours.of(CODEBOOK, 3)
    assert torch.equal(few.nearest, TABLE.nearest[:, :3])
    shared, other = Lantern(k=2), Coded(TARGET.table)
    other.codebook = CODEBOOK.flip(0)
    for target in (TARGET, other, TARGET):  # each model has its own table
        shared.bind(target)
        assert torch.equal(shared.neighbours.nearest, Neighbours.of(target.codebook, 2).nearest)
    with pytest.raises(mmspec.Error, match="must be finite vectors"):
        Neighbours.of(CODEBOOK.log(), 2)
    with pytest.raises(mmspec.Error, match="needs a codebook of images"):
        Lantern().bind(tables.TableTarget(TARGET.table))


def test_neighbours_that_are_equally_far_stand_in_the_order_of_their_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever the table ends, and without sorting what it does not keep."""
    corners = torch.cartesian_prod(*[torch.arange(3.0)] * 4)  # 81 codes, whose distances are few
    distance = (corners[:, None] - corners).norm(dim=-1).fill_diagonal_(torch.inf)
    want = distance.sort(dim=-1, stable=True).indices[:, :-1].int()
    monkeypatch.setattr("mmspec.image_ar.neighbours.CHUNK", 30)
    monkeypatch.setattr(Tensor, "sort", None)
    for count in (0, 1, 5, 40, 80, 100):
        assert torch.equal(Neighbours.of(corners, count).nearest, want[:, :count])


def test_neighbours_may_be_those_of_the_vectors_as_they_are_stored() -> None:
    """As in the released LANTERN, whose models take them at unit length."""
    target = Janus(tiny_images.janus_model())
    stored = target.vqmodel.quantize.embedding.weight
    raw, usual = Neighbours.of(stored.detach(), 5), Neighbours.of(target.codebook, 5)
    assert not torch.equal(raw.nearest, usual.nearest)
    assert not torch.allclose(stored.norm(dim=-1), torch.ones(1, dtype=stored.dtype))
    for make in (Lantern, LanternPlus):
        for unit, table in ((False, raw), (True, usual), (None, usual), (False, raw)):
            rule = make(k=5, unit=unit)
            rule.bind(target)
            assert torch.equal(rule.neighbours.nearest, table.nearest)


def test_what_stands_behind_a_rule_s_name_is_its_knob() -> None:
    assert rule_named("lantern=0.25", Janus).delta == 0.25
    assert rule_named("lantern++=3", Janus).times == 3
    with pytest.raises(mmspec.Error, match=r"delta in \[0, 1\], got None and 3"):
        rule_named("lantern=3", Janus)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Lantern(k=-1),
        lambda: Lantern(delta=1.5),
        lambda: LanternPlus(bound=0.5),
        lambda: LanternPlus(bound=float("nan")),
        lambda: Grouped(size=0),
        lambda: Grouped(near=0),
        lambda: CoolSD(delta=0.9),
        lambda: CoolSD(decay=-1),
        lambda: Lantern(residual="best"),
    ],
)
def test_bad_knobs_are_named(make: Any) -> None:
    with pytest.raises(mmspec.Error):
        make()


@pytest.mark.parametrize("make", [lambda: Lantern(0.3, k=20), lambda: Grouped(distance=3.0)])
def test_a_rule_serves_several_pipelines(make: Any) -> None:
    """Each has what it is bound to for itself."""
    rule, one, other = make(), tiny_images.janus_model(), tiny_images.janus_model(seed=1, codes=tiny_images.CODES + 9)
    processor = tiny_images.janus_processor()
    load = partial(mmspec.load, drafter="scd-mc", processor=processor)
    asked: dict[str, Any] = {"prompt": "a red circle", "temperature": 1.0, "seed": 2}
    first = load(one, acceptance=rule)
    want = first(**asked).token_ids
    second = load(other, acceptance=rule)
    assert first(**asked).token_ids == want == load(one, acceptance=make())(**asked).token_ids
    assert second(**asked).token_ids == load(other, acceptance=make())(**asked).token_ids


def test_rules_are_found_by_name_and_say_that_they_are_lossy() -> None:
    model, processor = tiny_images.janus_model(), tiny_images.janus_processor()
    for name in ("lantern", "lantern++", "gsd", "cool-sd"):
        pipe = mmspec.load(model, drafter="scd-mc", acceptance=name, processor=processor)
        out = pipe(prompt="a red circle", temperature=1.0)
        assert len(out.token_ids) == 16
        assert out.stats.lossless is False
    target = Janus(model)
    assert target.neighbours(5) is target.neighbours(3)
    assert len(target.neighbours(100).nearest[0]) == tiny_images.CODES - 1
