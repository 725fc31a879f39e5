"""EAGLE on both rows of guidance, as a tree and in a Jacobi window: what it drafts, its law, how it learns."""

import json
from collections import Counter
from collections.abc import Callable
from functools import cache
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tables
import tiny_images
import torch
import toys
from torch import Tensor
from typer.testing import CliRunner

import mmspec
from mmspec import cli
from mmspec.acceptance.ratio import Ratio
from mmspec.checkpoints import load_drafter, save_drafter
from mmspec.contract import Draft, Shape
from mmspec.drafters.none import NoDrafter
from mmspec.errors import InputError, MismatchError
from mmspec.image_ar.eagle import GuidedEagle, GuidedEagle1
from mmspec.image_ar.eagle_window import EagleSharing
from mmspec.image_ar.janus import Janus
from mmspec.image_ar.recipes import (
    Captions,
    EagleSharingRecipe,
    GuidedEagle1Recipe,
    GuidedEagleRecipe,
    GuidedFeatures,
    GuidedLoss,
)
from mmspec.image_ar.window import Redraw
from mmspec.sampling import Sampler, Sampling, warp
from mmspec.training.answers import Answered
from mmspec.training.data import open_data
from mmspec.training.drafter import find_recipe
from mmspec.training.muon import build_optimizer

LENGTH = tiny_images.SIDE**2
SAMPLED = Sampling(temperature=1.0, seed=3)
FALSE_ALARM = 1e-6


@cache
def target() -> Janus:
    return Janus(tiny_images.janus_model(), tiny_images.tokenizer())


def network(made: Any, seed: int = 3, noise: float = 0.15) -> Any:
    """A random head in the target's dtype."""
    net = GuidedEagleRecipe(seed=seed).build(made).to(made.model.dtype)
    torch.manual_seed(seed)
    with torch.no_grad():
        for weight in net.parameters():
            weight += noise * torch.randn_like(weight)
    return net.eval()


DRAFTERS: dict[str, Callable[[Any], Any]] = {
    "eagle": lambda net: GuidedEagle1(net, depth=3, total=8),
    "eagle2": lambda net: GuidedEagle(net, depth=4, total=12),
    "sjd-eagle": lambda net: EagleSharing(net, 6),
}


def draw(drafter: Any, inputs: dict[str, Any], sampling: Any = None, rule: Any = None, **more: Any) -> toys.Answer:
    return toys.answer(target(), drafter, inputs, LENGTH, sampling, rule, **more)


def row_of(inputs: dict[str, Tensor], row: int) -> list[int]:
    return inputs["input_ids"][row, inputs["attention_mask"][row].bool()].tolist()


@torch.no_grad()
def states_of(made: Janus, prompt: list[int], codes: list[int]) -> Tensor:
    """[1 + L, H] of the prompt's last token and of the codes, by the plain model without a cache."""
    words = made.model.get_input_embeddings()(torch.tensor([prompt]))
    whole = torch.cat([words, made.embed(torch.tensor([codes], dtype=torch.long))], 1)
    return made.model.model(inputs_embeds=whole).last_hidden_state[0, len(prompt) - 1 :]


@torch.no_grad()
def drafted_law(made: Janus, net: Any, told: list[int], codes: list[int], path: list[int], scale: float) -> Tensor:
    """[V] guided logits of what follows codes + path, from scratch: the target has read all codes but the last."""
    (free,) = made.unguided([told], {})
    rows = []
    for prompt in (told, free):
        features = states_of(made, prompt, codes[:-1])[None]
        tokens = torch.tensor([codes + path])
        for length in range(len(codes), tokens.shape[1] + 1):
            out = net(made.embed(tokens[:, :length]), features, torch.arange(length)[None], None)
            features = torch.cat([features, out[:, -1:]], 1)
        rows.append(made.head(features[0, -1]))
    return rows[1] + scale * (rows[0] - rows[1])


# What is drafted


@pytest.mark.parametrize(("static", "scale"), [(False, 3.0), (True, 0.5)])
def test_drafting_with_a_cache_equals_a_full_forward_of_both_rows(static: bool, scale: float) -> None:
    made, inputs, seen = target(), tiny_images.prompts(2, 5), Counter[int]()
    net = network(made)

    class Checked(GuidedEagle):
        def tree(self, state: Any, choice: Any, expand: Any) -> Draft:
            paths: list[list[list[list[int]]]] = []  # level, row, node

            def checked(level: int, tokens: Tensor, origin: Tensor, above: Any) -> Tensor:
                logits = expand(level, tokens, origin, above)
                nodes = range(tokens.shape[1])
                here = [
                    [
                        [*paths[-1][row][int(origin[row, node])], int(tokens[row, node])] if level else []
                        for node in nodes
                    ]
                    for row in range(2)
                ]
                paths.append(here)
                some = [row for row in range(2) if len(state.ids[row]) % 3 == 1 and not state.done[row]]
                for row, node in product(some, nodes):
                    want = drafted_law(made, net, row_of(inputs, row), state.ids[row], here[row][node], scale)
                    assert torch.allclose(logits[row, node], want, atol=1e-8)
                    seen[level] += 1
                return logits

            return super().tree(state, choice, checked)

    drafter = Checked(net, depth=3, width=2, top_k=3, total=7)
    drafter.static = static  # type: ignore[misc]
    draw(drafter, {**inputs, "guidance": scale}, Sampling(temperature=1.0, seed=5))
    assert min(seen[level] for level in range(3)) > 4


@torch.no_grad()
def test_a_window_is_read_with_the_features_that_the_target_gave_for_it() -> None:
    """The law of the first new place of a window: true features for what was emitted, those of the last verification
    for what the window holds."""
    made, inputs = target(), tiny_images.prompts(4)
    net, told = network(made), row_of(inputs, 0)
    (free,) = made.unguided([told], {})
    news: list[tuple[int, Tensor]] = []
    columns: list[int] = []

    class Heard(EagleSharing):
        def redraw(self, at: Redraw) -> Tensor:
            if at.old is None:
                news.append((at.column, at.scores[0, 0]))
            return super().redraw(at)

        def begin(self, state: Any, sampler: Any, kind: Any) -> Any:
            window = super().begin(state, sampler, kind)
            observe = window.observe

            def observed(state: Any, draft: Draft, verified: Any, accepted: Any) -> None:
                news.clear()
                observe(state, draft, verified, accepted)
                if not news or draft.size < 6:  # the picture's end cuts drafts short
                    return
                now, count = state.ids[0], len(accepted.emitted[0])
                column, law = news[0]
                tokens = now + window.guesses.tokens[0, :column].tolist()
                looked = now[:-count] + draft.tokens[0, 1:].tolist()
                rows = []
                for prompt in (told, free):
                    true = states_of(made, prompt, now[:-1])
                    stale = states_of(made, prompt, looked)[len(now) :][:column]
                    features = torch.cat([true, stale])[None]
                    embedded = made.embed(torch.tensor([tokens]))
                    rows.append(made.head(net(embedded, features, torch.arange(len(tokens))[None], None)[0, -1]))
                assert torch.allclose(law, (rows[1] + 3.0 * (rows[0] - rows[1])).float(), atol=1e-4)
                columns.append(column)

            window.observe = observed
            return window

    draw(Heard(net, 5, fresh=0), inputs, Sampling(temperature=1.0, seed=1))  # which finds guesses before the end
    assert max(columns) > 1


@pytest.mark.parametrize("wide", [1, 4])
def test_new_places_of_a_window_are_those_of_a_plain_draft(wide: int) -> None:
    """Where all guesses are right, nothing of the window is kept."""
    made, inputs = target(), tiny_images.prompts(4)
    net, told = network(made), row_of(inputs, 0)
    right = draw(NoDrafter(), inputs).rows[0]
    laws: dict[int, Tensor] = {}

    class Knowing(EagleSharing):
        def redraw(self, at: Redraw) -> Tensor:
            if at.old is None:
                laws[int(at.places)] = at.scores[0, 0]
            return torch.tensor(right + [0] * 99)[at.places]

    got = draw(Knowing(net, wide, fresh=0), inputs)
    assert got.rows == [right]
    assert set(got.accepted[:-1]) == {wide}
    for place in (place for place in range(1, LENGTH) if place % (wide + 1)):
        looked = place // (wide + 1) * (wide + 1) + 1
        want = drafted_law(made, net, told, right[:looked], right[looked:place], 3.0)
        assert torch.allclose(laws[place], want.float(), atol=1e-5), place


@pytest.mark.parametrize("name", DRAFTERS)
def test_greedy_pictures_equal_those_of_transformers(name: str) -> None:
    inputs = tiny_images.prompts(3, 3)
    want = target().model.generate(**inputs, generation_mode="image", do_sample=False, max_length=64).tolist()
    for net in (network(target()), taught(0.0)):
        assert draw(DRAFTERS[name](net), inputs).rows == want


@pytest.mark.parametrize("name", DRAFTERS)
def test_the_same_seed_gives_the_same_picture(name: str) -> None:
    inputs = tiny_images.prompts(3, 6, 1)
    for more, net in (({}, taught(1.0)), ({"guidance": 1.0}, taught(1.0)), ({"guidance": 6.0}, network(target()))):
        want = draw(NoDrafter(), {**inputs, **more}, SAMPLED).rows
        assert draw(DRAFTERS[name](net), {**inputs, **more}, SAMPLED).rows == want


@pytest.mark.parametrize("name", DRAFTERS)
def test_rows_of_a_batch_draft_as_they_would_alone(name: str) -> None:
    inputs = tiny_images.prompts(3, 6, 1)
    got = draw(DRAFTERS[name](taught(1.0)), inputs, SAMPLED)
    rounds = [sum(1 for r in got.rounds[1:] if r.tokens[row]) for row in range(3)]
    for row in range(3):
        one = {key: value[row : row + 1] for key, value in inputs.items()}
        alone = draw(DRAFTERS[name](taught(1.0)), one, Sampling(temperature=1.0, seed=3 + row))
        assert alone.rows == [got.rows[row]]
        assert len(alone.rounds) - 1 == rounds[row]


@pytest.mark.parametrize("name", DRAFTERS)
def test_rounds_that_another_drafted_or_nobody_do_no_harm(name: str) -> None:
    class Moody:
        turn = 0

        def begin(self, *args: Any) -> "Moody":
            return self

        def choose(self, room: int) -> Any:
            self.turn += 1
            return [None, Shape(0), Shape(2), Shape(1)][self.turn % 4]

        def learn(self, *args: Any) -> None:
            pass

    inputs = tiny_images.prompts(3, 6)
    want = draw(NoDrafter(), inputs, SAMPLED).rows
    got = draw(DRAFTERS[name](taught(1.0)), inputs, SAMPLED, control=Moody())
    assert got.rows == want
    assert sum(got.accepted) > 0


@pytest.mark.parametrize("fresh", [0, 3])
@pytest.mark.parametrize("batch", [(4,), (3, 6)])
def test_the_head_runs_for_places_that_can_still_be_emitted_alone(batch: tuple[int, ...], fresh: int) -> None:
    """Once a round for what was emitted, then for every place of the window but the last; nothing is rejected here, so
    nothing is drafted anew."""
    made, inputs, runs = target(), tiny_images.prompts(*batch), Counter[str]()
    net, right = network(made), torch.tensor(draw(NoDrafter(), inputs).rows)
    net.register_forward_hook(lambda *_: runs.update(["head"]))

    class Knowing(EagleSharing):
        def redraw(self, at: Redraw) -> Tensor:
            return right.gather(1, at.places.clamp(max=LENGTH - 1))

    for budget, times in ((2, 1), (4, 3), (LENGTH, 3 * 4)):
        runs.clear()
        got = toys.answer(made, Knowing(net, 4, fresh=fresh), inputs, budget)
        assert got.rows == right[:, :budget].tolist()
        assert runs["head"] == times


# The law


@cache
def small() -> Janus:
    """Three codes in 2 x 2 places, so that all pictures can be listed; no law is near a point."""
    model = tiny_images.janus_model(seed=1, layers=1, side=2, codes=3).float()
    with torch.no_grad():
        for weight in model.model.generation_head.vision_head.parameters():
            weight *= 0.15
    return Janus(model, tiny_images.tokenizer())


@cache
@torch.no_grad()
def outcomes(sampling: Sampling) -> dict[tuple[int, ...], float]:
    """The exact law of all pictures of one prompt, by whole forwards."""
    made, told = small(), row_of(tiny_images.prompts(3), 0)
    (free,) = made.unguided([told], {})
    law = {}
    for codes in product(range(3), repeat=4):
        both = [made.head(states_of(made, prompt, list(codes[:-1]))) for prompt in (told, free)]
        scores = warp((both[1] + 3.0 * (both[0] - both[1])).float(), sampling).softmax(-1)
        law[codes] = float(torch.stack([scores[place, code] for place, code in enumerate(codes)]).prod())
    assert abs(sum(law.values()) - 1) < 1e-5
    return law


def p_value(drafter: Any, sampling: Sampling, rows: int = 2000) -> float:
    inputs = {name: value.expand(rows, -1) for name, value in tiny_images.prompts(3).items()}
    got = toys.answer(small(), drafter, inputs, 4, sampling, Ratio())
    assert len(set(got.accepted)) > 1
    return tables.p_value(Counter(map(tuple, got.rows)), outcomes(sampling))


LAWS: dict[str, Callable[[Any], Any]] = {
    "chain": lambda net: GuidedEagle(net, depth=3, total=4, top_k=1),
    "static": lambda net: GuidedEagle1(net, depth=2, total=8, top_k=3, shares=[[0.5, 0.3, 0.2]]),
    "dynamic": lambda net: GuidedEagle(net, depth=3, total=9, top_k=2, shares=[[0.6, 0.4]]),
    "window": lambda net: EagleSharing(net, 3, fresh=1),
    "kept window": lambda net: EagleSharing(net, 3, fresh=0),
}


@pytest.mark.parametrize("how", [Sampling(temperature=1.0, seed=100), Sampling(temperature=0.8, top_k=2, seed=7)])
@pytest.mark.parametrize("name", LAWS)
def test_the_ratio_rule_keeps_the_guided_law(name: str, how: Sampling) -> None:
    assert p_value(LAWS[name](network(small())), how) > FALSE_ALARM


@pytest.mark.parametrize("name", ["static", "window"])
def test_the_check_finds_another_q_than_the_one_drawn_from(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Children are drawn from the guided law, and a flatter one is declared."""
    drafter = LAWS[name](network(small()))
    begin = type(drafter).begin

    def wrong(self: Any, state: Any, sampler: Any, kind: Any) -> Any:
        made = begin(self, state, sampler, kind)
        propose = made.propose

        def proposed(now: Any) -> Draft:
            draft = propose(now)
            if draft.q is not None:
                draft.q = draft.q.clamp(min=1e-4) ** 0.5
                draft.q /= draft.q.sum(-1, keepdim=True)
            return draft

        made.propose = proposed
        return made

    monkeypatch.setattr(type(drafter), "begin", wrong)
    assert p_value(drafter, Sampling(temperature=1.0, seed=100)) < FALSE_ALARM


@pytest.mark.parametrize("name", LAWS)
@torch.no_grad()
def test_the_declared_q_is_the_law_that_children_are_drawn_from(name: str) -> None:
    made, rows = small(), 2000
    drafter = LAWS[name](network(made))
    drafter.bind(made)
    inputs = {key: value.expand(rows, -1) for key, value in tiny_images.prompts(3).items()}
    sampler = Sampler(Sampling(temperature=1.0, seed=9), rows, torch.device("cpu"))
    state = made.prefill({**inputs, "max_new_tokens": 4}, drafter.needs, sampler)
    state.pending[:] = 1
    state.ids, state.emitted, state.room = [[1] for _ in range(rows)], torch.ones(rows, dtype=torch.long), 3
    draft = drafter.begin(state, sampler, "sampled").propose(state)
    assert draft.q is not None
    want = drafted_law(made, drafter.eagle.net if "window" in name else drafter.net, row_of(inputs, 0), [1], [], 3.0)
    law = want.float().softmax(-1)
    assert law.min() > 0.01
    assert torch.allclose(draft.q[:, 0], law.expand(rows, -1), atol=1e-4)
    first = Counter((token,) for token in draft.tokens[:, 1].tolist())
    assert tables.p_value(first, {(token,): float(p) for token, p in enumerate(law)}) > FALSE_ALARM


# Learning


class Asked(GuidedFeatures):
    """Of given model inputs, without a processor."""

    def __init__(self, made: Any, inputs: dict[str, Tensor]) -> None:
        self.made, self.inputs = made, inputs
        super().__init__(type("Pipe", (), {"target": made})(), None)  # type: ignore[arg-type]

    def _inputs(self, rows: list[Answered]) -> dict[str, Tensor]:
        return {name: value[[row.index for row in rows]] for name, value in self.inputs.items()}


@cache
def taught(temperature: float, steps: int = 45) -> Any:
    """A head that learnt by heart what the target draws for the tests' prompts."""
    made, inputs = target(), tiny_images.prompts(3, 6, 1, 3)
    drawn = draw(NoDrafter(), inputs, Sampling(temperature=temperature, seed=3)).rows
    rows = [Answered(row, row_of(inputs, row), codes, temperature) for row, codes in enumerate(drawn)]
    recipe = GuidedEagleRecipe(seed=1)
    net = recipe.build(made)
    made.model.requires_grad_(False)
    loss = GuidedLoss(net, made, Asked(made, inputs), recipe)
    optimizer = build_optimizer(net, 0.02)
    for step in range(steps):
        value = loss(position=torch.tensor([step]), rows=rows)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
    return net.double().eval()


def lesson() -> tuple[list[Answered], Asked]:
    """Two pictures of prompts of several lengths, and their features."""
    inputs = tiny_images.prompts(3, 6)
    drawn = draw(NoDrafter(), inputs, SAMPLED).rows
    return [Answered(row, row_of(inputs, row), codes, 1.0) for row, codes in enumerate(drawn)], Asked(target(), inputs)


def test_features_are_those_of_whole_forwards_of_both_rows() -> None:
    rows, features = lesson()
    found = features(rows)
    for row, states in zip(rows, found, strict=True):
        (free,) = target().unguided([row.prompt], {})
        want = torch.cat([states_of(target(), prompt, row.answer) for prompt in (row.prompt, free)], -1)
        assert torch.allclose(states, want.float(), atol=1e-5)


@pytest.mark.dynamic("compiled forwards end in logits")
def test_features_are_made_without_the_logits_of_whole_pictures() -> None:
    """Those of large pictures over a large codebook fill gigabytes."""
    rows, features = lesson()
    read: list[int] = []
    watch = target().head.register_forward_hook(lambda head, given, out: read.append(out.shape[1]))
    features(rows)
    watch.remove()
    assert 0 < max(read) < LENGTH


@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_what_is_said_of_the_room_that_features_take_is_what_they_take(
    scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With guidance and without, whatever the lengths of the prompts."""
    monkeypatch.setattr(target().model.generation_config, "guidance_scale", scale)
    rows, features = lesson()
    features(rows)
    assert features.size(rows) == sum(states.nbytes for states in features.kept.values())


def test_what_a_loss_estimates_is_what_drafting_estimates() -> None:
    """Every step's guided mix, at every place, and the target's law that it is judged by."""
    rows, features = lesson()
    recipe = GuidedEagleRecipe(noise=0.0, unroll=3)
    net = network(target()).float()
    judged: list[tuple[Tensor, Tensor]] = []

    class Heard(GuidedLoss):
        def judge(self, estimate: Tensor, goal: Tensor, law: Tensor) -> Tensor:
            judged.append((self.target_logits(estimate).detach(), law))
            return super().judge(estimate, goal, law)

    loss = Heard(net, target(), features, recipe)(position=torch.tensor([0]), rows=rows)
    assert loss.item() > 0
    net = net.double()
    for step, (logits, laws) in enumerate(judged):
        found = zip(logits, laws, strict=True)
        for row in rows:
            (free,) = target().unguided([row.prompt], {})
            both = [target().head(states_of(target(), prompt, row.answer)) for prompt in (row.prompt, free)]
            whole = both[1] + 3.0 * (both[0] - both[1])
            for slot in range(max(1, step), LENGTH - 1):  # it holds code number slot, and drafts the one behind it
                codes, path = row.answer[: slot + 1 - step], row.answer[slot + 1 - step : slot + 1]
                mine, law = next(found)
                assert torch.allclose(mine, drafted_law(target(), net, row.prompt, codes, path, 3.0).float(), atol=1e-4)
                assert torch.allclose(law, whole[slot + 1].softmax(-1).float(), atol=1e-5)
        assert next(found, None) is None
    assert len(judged) == 3


def test_a_head_that_learnt_is_accepted_partly_and_wholly() -> None:
    inputs = tiny_images.prompts(3, 6, 1, 3)
    kept = {}
    for name, make in DRAFTERS.items():
        got = draw(make(taught(1.0)), inputs, SAMPLED)
        kept[name] = sum(got.accepted) / len(got.accepted)
        assert len(set(got.accepted)) > 1, name
        assert kept[name] > 2 * sum(draw(make(network(target())), inputs, SAMPLED).accepted) / len(got.accepted), name
    assert kept["sjd-eagle"] > sum(accepted_by_plain_window(inputs)) / len(accepted_by_plain_window(inputs))


def accepted_by_plain_window(inputs: dict[str, Tensor]) -> list[int]:
    from mmspec.image_ar.jacobi import GumbelSharing

    return draw(GumbelSharing(6), inputs, SAMPLED).accepted


@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("what", ["features", "free row"])
def test_without_what_makes_the_method_less_is_accepted(name: str, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = tiny_images.prompts(3, 6, 1, 3)

    def tokens_per_round() -> float:
        accepted = draw(DRAFTERS[name](taught(1.0)), inputs, SAMPLED).accepted
        return sum(accepted) / len(accepted)

    whole = tokens_per_round()
    net = taught(1.0)
    forward, logits = net.forward, net.logits

    def blind(embeddings: Tensor, features: Tensor, *args: Any) -> Tensor:
        return forward(embeddings, torch.zeros_like(features), *args)

    def told_twice(features: Tensor, head: Any) -> Tensor:
        half = len(features) // 2
        return logits(torch.cat([features[:half]] * 2), head)

    if what == "features":
        monkeypatch.setattr(net, "forward", blind)
    else:
        monkeypatch.setattr(net, "logits", told_twice)
    assert tokens_per_round() < 0.8 * whole


# From the command to a picture


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, and a drafter beside it that the command trained on captions."""
    home = tmp_path_factory.mktemp("janus")
    tiny_images.save(home / "model", tiny_images.janus_model(), tiny_images.janus_processor())
    words = ["a red circle", "two blue square", "a big circle above a small square", "three circle and two square"]
    lines = "".join(f'{{"prompt": "{words[index % 4]} {"left of a " * (index // 4)}circle"}}\n' for index in range(10))
    (home / "captions").mkdir()
    (home / "captions" / "some.jsonl").write_text(lines)
    command = f"train drafter --target {home / 'model'} --method eagle,eagle2,sjd-eagle --data {home / 'captions'}"
    command += f" --out {home / 'made'} --run {home / 'run'} --steps 2 --batch 4 --held-out 2 --answer-batch 4"
    done = CliRunner().invoke(cli.app, command.split(), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    (home / "model" / "drafters").mkdir()
    (home / "made" / "eagle2").rename(home / "model" / "drafters" / "eagle2")
    return home


def test_the_command_trains_drafters_that_draw(folder: Path) -> None:
    prompt = "a big red circle above two square"
    plain = mmspec.load(folder / "model", drafter="none")
    want = plain(prompt=prompt, temperature=1.0, seed=4)
    kinds = {"eagle": GuidedEagle1, "sjd-eagle": EagleSharing}
    for method, kind in kinds.items():
        pipe = mmspec.load(folder / "model", drafter=folder / "made" / method)
        assert type(pipe.drafter) is kind
        got = pipe(prompt=prompt, temperature=1.0, seed=4)
        assert got.token_ids == want.token_ids
        assert got.image.tobytes() == want.image.tobytes()
        text = (folder / "made" / method / "README.md").read_text()
        assert "generate CAPTION --out picture.png" in text
        assert "0 of them greedy and 8 sampled" in text
    shares = mmspec.load(folder / "model", drafter=folder / "made" / "eagle").drafter.shares
    assert len(shares) == 5  # measured, level by level


def test_weights_beside_a_model_serve_every_method_that_drafts_with_them(folder: Path) -> None:
    for name, kind in (("eagle", GuidedEagle1), ("eagle2", GuidedEagle), ("sjd-eagle", EagleSharing)):
        pipe = mmspec.load(folder / "model", drafter=name)
        assert type(pipe.drafter) is kind
        ratio = mmspec.load(folder / "model", drafter=name, acceptance="ratio")
        assert ratio(prompt="a red circle", temperature=1.0).stats.lossless


def test_answers_are_whole_pictures_and_are_drawn_by_chance(folder: Path) -> None:
    shards = list((folder / "run" / "answers-target").glob("*.jsonl"))
    rows = [json.loads(line) for shard in shards for line in shard.read_text().splitlines()]
    assert len(rows) == 8
    assert {len(row["answer"]) for row in rows} == {LENGTH}
    assert {row["temperature"] for row in rows} == {1.0}


def test_a_saved_drafter_is_the_same_and_fits_its_target_only(tmp_path: Path) -> None:
    made, inputs = target(), tiny_images.prompts(3, 6)
    for name, make in DRAFTERS.items():
        drafter = make(network(made))
        drafter.bind(made)
        saved = save_drafter(drafter, tmp_path / name, made)
        again = load_drafter(saved, made)
        assert type(again) is type(drafter)
        assert draw(again, inputs, SAMPLED).accepted == draw(drafter, inputs, SAMPLED).accepted
        other = Janus(tiny_images.janus_model(codes=32), tiny_images.tokenizer())
        with pytest.raises(MismatchError, match="vocab_size is 61, this target's is 32"):
            load_drafter(saved, other)


def test_targets_that_do_not_draw_are_refused() -> None:
    text = toys.target_of(toys.llama())
    for make in DRAFTERS.values():
        with pytest.raises(MismatchError, match="made for models that draw"):
            make(network(target())).bind(text)


def test_a_number_of_places_that_is_none_is_refused() -> None:
    for wrong in (-1, 1.5):
        with pytest.raises(InputError, match="0 or more"):
            EagleSharing(network(target()), fresh=wrong)  # type: ignore[arg-type]


def test_what_the_head_drafts_anew_is_kept_more_often() -> None:
    """A target whose law depends on every token: what it said behind a rejected one is worth nothing."""
    inputs = tiny_images.prompts(3, 6, 1, 3)
    rates = []
    for fresh in (0, 3):
        accepted = draw(EagleSharing(taught(1.0), 6, fresh), inputs, SAMPLED).accepted
        rates.append(sum(accepted) / len(accepted))
    assert rates[1] > 3 * rates[0]


def test_methods_are_found_by_the_modality_of_their_target() -> None:
    assert find_recipe("eagle2", "image") is GuidedEagleRecipe
    assert find_recipe("eagle", "image") is GuidedEagle1Recipe
    assert find_recipe("sjd-eagle") is EagleSharingRecipe
    assert find_recipe("eagle2", "vlm").drafter_class is not GuidedEagle
    assert mmspec.registry.resolve("drafters", "eagle2", "image") is GuidedEagle


def test_captions_are_repeatable_and_not_those_held_out() -> None:
    train, held_out = open_data("miniworld", 40, 20, 0, "image")
    again, _ = open_data("miniworld", 5, 20, 0, "image")
    assert isinstance(train, Captions)
    assert [train[index] for index in range(5)] == [again[index] for index in range(5)]
    assert train[0].image is None
    assert len({train[index].prompt for index in range(40)}) > 30
    assert {train[index].prompt for index in range(40)} != {held_out[index].prompt for index in range(20)}
    with pytest.raises(IndexError):
        train[40]


def test_methods_that_read_prompts_with_the_vocabulary_of_codes_are_refused(folder: Path) -> None:
    command = f"train drafter --target {folder / 'model'} --method medusa --data {folder / 'captions'} --held-out 2"
    done = CliRunner().invoke(cli.app, f"{command} --run {folder / 'none'}".split())
    assert isinstance(done.exception, MismatchError)
    assert "methods for it are: eagle, eagle2, sjd-eagle" in str(done.exception)
    columns: Any = SimpleNamespace(modality="speech", model=None, prompt_vocab_size=90, vocab_size=64)
    with pytest.raises(MismatchError, match="methods for it are: none so far"):
        find_recipe("eagle2", "speech")().check(columns)


def test_pictures_of_the_data_s_own_are_no_answers(folder: Path) -> None:
    command = f"train drafter --target {folder / 'model'} --method eagle --data {folder / 'captions'} --answers data"
    done = CliRunner().invoke(cli.app, f"{command} --run {folder / 'other'} --held-out 2".split())
    assert isinstance(done.exception, InputError)
    assert "are texts, and this model makes none" in str(done.exception)
