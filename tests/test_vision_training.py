"""How drafters that see are trained: what is shown when, what the target is asked about its attention, and whole
runs."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sights
import test_training
import tiny
import torch
from one_drafter import train_drafter
from test_training import COURSE
from test_training_runs import told
from torch import Tensor
from torch.nn.functional import cross_entropy, smooth_l1_loss

import mmspec
from mmspec.checkpoints import save_drafter
from mmspec.errors import MismatchError
from mmspec.focus import watching
from mmspec.training import chunks
from mmspec.training.answers import Answered, AnswerOptions, collect
from mmspec.training.card import Trained, model_card
from mmspec.training.data import Miniworld
from mmspec.training.drafter import find_recipe, train_drafters
from mmspec.training.features import Features, head_law
from mmspec.training.start import begin, shaped
from mmspec.training.store import Store
from mmspec.vlm.drafters.eyes import Grafted, pooled
from mmspec.vlm.drafters.grafted import Massv
from mmspec.vlm.drafters.grafted_recipe import IbedRecipe, MassvRecipe
from mmspec.vlm.drafters.insights import Insight, Insights, Sharpness, early
from mmspec.vlm.drafters.lessons import image_slots
from mmspec.vlm.drafters.msd import MsdHead
from mmspec.vlm.drafters.recipes import MsdLoss, shows

SMALL = {"steps": 4, "batch": 3}
GRAFTED = {**SMALL, "width": 32, "warm_steps": 2, "warm_questions": 4}


@pytest.fixture(scope="module")
def pipe() -> Any:
    return mmspec.load(tiny.smolvlm_model(layers=5), drafter="none", processor=tiny.processor())


@pytest.fixture(scope="module")
def rows(pipe: Any, tmp_path_factory: Any) -> list[Answered]:
    options = AnswerOptions(max_new_tokens=8, batch=3)
    return collect(pipe, Miniworld("test", 3), options, tmp_path_factory.mktemp("answers"), "it")


# What is shown


def test_pictures_come_after_words_and_then_more_and_more_often() -> None:
    shown = [shows(place, 1000, 0.5, 0) for place in range(1000)]
    assert not any(shown[:500])
    share = [sum(shown[start : start + 100]) for start in range(500, 1000, 100)]
    assert all(
        low < count < high for count, low, high in zip(share, (2, 18, 36, 56, 78), (22, 42, 64, 84, 99), strict=True)
    )
    assert all(shows(place, 1000, 0.5, 0) for place in range(2000, 2100))
    assert all(shows(place, 1000, 0.0, 0) for place in range(100))
    assert not any(shows(place, 1000, 1.0, 0) for place in range(1000))


def test_msd_s_first_stage_does_not_depend_on_pictures(pipe: Any, rows: list[Answered]) -> None:
    features = Features(pipe, Miniworld("test", 3), (0,))
    features(rows)
    recipe = sights.recipe_of("msd", noise=0.0, **SMALL)
    loss = recipe.loss(recipe.build(pipe.target), pipe.target, features)
    before = [float(loss(torch.tensor([place]), rows)) for place in (0, 10**6)]
    slots = image_slots(rows, pipe.target.placeholders, max(len(row.ids) for row in rows) - 2)
    assert slots.sum(1).tolist() == [tiny.IMAGE_TOKENS] * len(rows)
    for row, one in enumerate(rows):
        features.kept[one.index][1:][: slots.shape[1]][slots[row][: len(one.ids) - 1], 0] += 1.0
    after = [float(loss(torch.tensor([place]), rows)) for place in (0, 10**6)]
    assert after[0] == before[0]
    assert abs(after[1] - before[1]) > 1e-4


# What the target is asked about its attention


def test_insights_are_what_eager_attention_says(pipe: Any, rows: list[Answered]) -> None:
    """The focus of the prompt alone, and the early layer of least entropy over the whole text."""
    questions = Miniworld("test", 3)
    features = Features(pipe, questions)
    insights = Insights(features, sharpest=True)
    found = insights(rows)
    eager = tiny.smolvlm_model(layers=5)
    eager.set_attn_implementation("eager")
    assert early(5) == 2
    for row, insight in zip(rows, found, strict=True):
        inputs = pipe.prepare([questions[row.index].image], [questions[row.index].prompt])
        with torch.no_grad():
            out = eager(
                input_ids=torch.tensor([row.ids]),
                pixel_values=inputs["pixel_values"],
                output_attentions=True,
                output_hidden_states=True,
            )
        entropies = [
            -torch.special.xlogy(out.attentions[layer], out.attentions[layer]).sum(-1).mean() for layer in (0, 1)
        ]
        assert insight.layer == 1 + int(torch.stack(entropies).argmin())
        torch.testing.assert_close(insight.middle, out.hidden_states[insight.layer][0], rtol=1e-4, atol=1e-4)
        want = out.attentions[4][0, :, : row.start].mean((0, 1))
        torch.testing.assert_close(insight.focus, want, rtol=1e-4, atol=1e-5)


def test_every_row_s_middle_is_that_of_its_own_sharpest_layer(
    pipe: Any, rows: list[Answered], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Sharpness, "sharpest", lambda self: [0, 1, 0])
    features = Features(pipe, Miniworld("test", 3), (1, 2))
    found = Insights(features, sharpest=True)(rows)
    assert [insight.layer for insight in found] == [1, 2, 1]
    for row, insight in zip(rows, found, strict=True):
        torch.testing.assert_close(insight.middle, features([row], (insight.layer,))[0], rtol=1e-4, atol=1e-4)


def test_dream_learns_the_middle_states_of_the_tokens_in_its_slots(pipe: Any, rows: list[Answered]) -> None:
    """Slot t holds token t + 1; those count that draft a token of the answer."""
    features, values = Features(pipe, Miniworld("test", 3), (0,)), []
    torch.manual_seed(0)
    known = {row.index: Insight(torch.rand(len(row.ids)), 1, torch.randn(len(row.ids), 32)) for row in rows}
    for weight in (1.0, 0.0):
        recipe = sights.recipe_of("dream", noise=0.0, middle_weight=weight)
        loss = sights.loss_of(recipe, recipe.build(pipe.target), pipe.target, features, known)
        values.append(loss(torch.tensor([0]), rows))
    said = torch.cat([loss.middle[place, row.start - 1 : len(row.ids) - 2] for place, row in enumerate(rows)])
    goal = torch.cat([known[row.index].middle[row.start : -1] for row in rows])
    torch.testing.assert_close(values[0] - values[1], smooth_l1_loss(said, goal))


def test_insights_are_kept_as_far_as_memory_goes(pipe: Any, rows: list[Answered], monkeypatch: Any) -> None:
    read, calls = pipe.target.read, []
    monkeypatch.setattr(pipe.target, "read", lambda *given: calls.append(len(given[1])) or read(*given))
    one = len(rows[0].ids) * (1 + pipe.target.hidden_size) * 4
    features = Features(pipe, Miniworld("test", 3), memory=one)
    insights = Insights(features, sharpest=True)
    for _ in range(2):  # within an update
        assert len(insights(rows)) == len(rows)
    assert calls == [len(rows)]
    insights(rows[:1])
    assert len(insights(rows)) == len(rows)
    assert calls == [len(rows), len(rows) - 1]
    assert features.free == 0


@pytest.mark.parametrize("method", ["dream", "specvlm"])
def test_a_store_keeps_what_the_target_looks_at(
    method: str, pipe: Any, rows: list[Answered], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is read once, however many epochs follow, and counts in what all of it takes."""
    recipe, questions, read, calls = sights.recipe_of(method), Miniworld("test", 3), pipe.target.read, []
    monkeypatch.setattr(pipe.target, "read", lambda *given: calls.append(len(given[1])) or read(*given))
    found = []
    for _ in range(3):
        features = Features(pipe, questions, (0,), memory=0, store=Store(tmp_path, 10**9))
        loss = recipe.loss(recipe.build(pipe.target), pipe.target, features)
        features(rows)
        found.append(loss.insights(rows))
    assert calls == [len(rows)] * 2  # the states, and what is looked at
    for one, other in zip(found[0], found[2], strict=True):
        assert one.layer == other.layer
        assert torch.equal(one.focus, other.focus)
        assert torch.equal(one.middle, other.middle)
    seen = recipe.beside(pipe.target) * sum(len(row.ids) for row in rows)
    assert seen == sum(insight.nbytes for insight in found[0])


@pytest.mark.parametrize(("method", "layers"), [("dream", [0, 1, 4]), ("specvlm", [4])])
def test_a_loss_watches_the_layers_that_it_asks_about(
    method: str, layers: list[int], pipe: Any, rows: list[Answered], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every layer that is watched is forwarded once more; the focus is the same in any case."""
    features = Features(pipe, Miniworld("test", 3))
    whole = Insights(features, sharpest=True)(rows)
    watched: list[list[int]] = []
    tapped: list[tuple[int, ...]] = []
    read = pipe.target.read

    def noted(model: Any, layers: Any, note: Any) -> Any:
        watched.append(list(layers))
        return watching(model, layers, note)

    def told(inputs: Any, texts: Any, taps: tuple[int, ...] = ()) -> Any:
        tapped.append(taps)
        return read(inputs, texts, taps)

    monkeypatch.setattr("mmspec.vlm.drafters.insights.watching", noted)
    monkeypatch.setattr(pipe.target, "read", told)
    recipe = sights.recipe_of(method, **SMALL)
    found = recipe.loss(recipe.build(pipe.target), pipe.target, features).insights(rows)
    assert watched == [layers]
    assert tapped == [tuple(layer + 1 for layer in layers[:-1])]
    for one, other in zip(found, whole, strict=True):
        torch.testing.assert_close(one.focus, other.focus)
        assert bool(one.middle.numel()) is (method == "dream")


@pytest.mark.parametrize("method", sights.METHODS)
def test_room_is_kept_for_insights_where_a_loss_asks_for_any(method: str, pipe: Any) -> None:
    """Bytes per token: one number of focus, and the states of the sharpest layer."""
    states = pipe.target.hidden_size * 4
    assert sights.recipe_of(method).beside(pipe.target) == {"dream": 4 + states, "specvlm": 4}.get(method, 0)


def test_sharpness_weighs_every_position_of_a_row_once() -> None:
    flat, sharp = torch.full((1, 2, 2, 4), 0.25), torch.zeros(1, 2, 2, 4)
    sharp[..., 0] = 1.0
    found = Sharpness([3])
    for layer, weights in ((0, flat), (1, flat), (2, sharp)):
        found.note(layer, weights)
    found.note(0, sharp)
    found.note(1, flat)
    found.note(2, flat)
    assert found.sharpest() == [0 if found.entropy[0] <= found.entropy[2] else 2]
    ln = float(torch.tensor(4.0).log())
    assert [float(found.entropy[layer]) for layer in range(3)] == pytest.approx([4 * ln, 6 * ln, 2 * ln])
    assert found.sharpest() == [2]


# Models with the target's eyes


def test_what_is_learnt_from_is_what_is_read_while_drafting(pipe: Any, rows: list[Answered]) -> None:
    features = Features(pipe, Miniworld("test", 3), (0,))
    states = features(rows, (0,))
    recipe = MassvRecipe(**GRAFTED)
    net = recipe.build(pipe.target)
    made = Massv(net)
    made.bind(pipe.target)
    texts, starts = recipe.loss(net, pipe.target, features).texts(rows, states, 0)
    for row, text, start, here in zip(rows, texts, starts, states, strict=True):
        places = [place for place, token in enumerate(row.prompt) if token in pipe.target.placeholders]
        seen = net.projector(here[places])
        with torch.no_grad():
            want = net.words(row.ids)
            want[places] = seen
        assert start == row.start
        assert torch.equal(text, want)
        assert torch.equal(made.net.prompt(row.ids, seen, made.placeholders), want)


def test_every_token_of_an_answer_is_learnt_where_it_is_said(pipe: Any, rows: list[Answered]) -> None:
    """The loss of an answer by hand: after each token but the last, the next one and the target's law of it."""
    features = Features(pipe, Miniworld("test", 3), (0,))
    recipe = MassvRecipe(**GRAFTED, projector_share=0.0, token_weight=0.3, law_weight=0.7)
    net = recipe.build(pipe.target)
    loss = recipe.loss(net, pipe.target, features)
    row = rows[0]
    text, start = (found[0] for found in loss.texts([row], features([row], (0,)), 0))
    logits = net.speaker(inputs_embeds=text[None]).logits[0, start - 1 : -1]
    law = head_law(pipe.target, features([row])[0, row.start - 1 : -1])
    want = 0.3 * cross_entropy(logits, torch.tensor(row.answer)) + 0.7 * cross_entropy(logits, law)
    torch.testing.assert_close(loss(torch.tensor([0]), [row]), want)


def test_an_ensemble_learns_its_members_ways_in_turn(pipe: Any, rows: list[Answered]) -> None:
    features = Features(pipe, Miniworld("test", 3), (0,))
    states, recipe = features(rows, (0,)), IbedRecipe(**GRAFTED)
    net = recipe.build(pipe.target)
    loss = recipe.loss(net, pipe.target, features)
    lengths = [len(loss.texts(rows[:1], states[:1], step * 3)[0][0]) for step in range(4)]
    whole = len(rows[0].ids)
    assert lengths == [whole, whole - 3, whole - 4, whole]
    first = IbedRecipe(**{**GRAFTED, "steps": 100}, projector_share=1.0).loss(net, pipe.target, features)
    lengths = [len(first.texts(rows[:1], states[:1], step * 3)[0][0]) for step in range(4)]
    assert lengths == [whole, whole - 3] * 2  # while the MLP learns alone, it always has something to learn
    assert len(pooled(torch.zeros(4, 2))) == 1


def test_the_projector_does_not_learn_from_what_shows_no_picture(pipe: Any, rows: list[Answered]) -> None:
    """Zeros would still let momentum and decay change it."""
    features = Features(pipe, Miniworld("test", 3), (0,))
    recipe = IbedRecipe(**{**GRAFTED, "steps": 10}, projector_share=0.0)
    net: Grafted = recipe.build(pipe.target)
    loss = recipe.loss(net, pipe.target, features)
    for step, learns in enumerate((True, True, False)):
        net.zero_grad()
        loss(torch.tensor([step * recipe.batch]), rows).backward()
        assert all((weight.grad is not None) is learns for weight in net.projector.parameters())


def test_the_projector_learns_alone_at_first(pipe: Any, rows: list[Answered]) -> None:
    features = Features(pipe, Miniworld("test", 3), (0,))
    recipe = MassvRecipe(**{**GRAFTED, "steps": 10}, projector_share=0.5)
    net: Grafted = recipe.build(pipe.target)
    loss = recipe.loss(net, pipe.target, features)
    for place, learns in ((0, False), (14, False), (15, True), (29, True)):
        net.zero_grad()
        loss(torch.tensor([place]), rows).backward()
        assert all(weight.grad is not None for weight in net.projector.parameters())
        assert any(weight.grad is not None for weight in net.speaker.parameters()) == learns
    assert all(weight.requires_grad for weight in net.parameters())
    blind = [
        replace(row, prompt=[token for token in row.prompt if token not in pipe.target.placeholders]) for row in rows
    ]
    features.last = features.kept = {row.index: torch.randn(len(row.ids), 2, 32) for row in blind}
    net.zero_grad()
    loss(torch.tensor([0]), blind).backward()  # without a picture the words learn, else nothing would
    assert any(weight.grad is not None for weight in net.speaker.parameters())


# Runs


def test_drafters_that_see_learn_together_and_come_back(
    pipe: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    course = replace(
        COURSE,
        questions=4,
        held_out=1,
        validate_every=4,
        bf16=True,
        accumulate=2,
        answers=AnswerOptions(max_new_tokens=8, batch=4),
    )
    recipes = [sights.recipe_of(method, **SMALL, unroll=2) for method in sights.METHODS]
    outs = [tmp_path / method for method in sights.METHODS]
    places: list[tuple[int, int]] = []
    look = MsdLoss.look

    def noted(self: Any, sight: Any, batch: Any) -> Any:
        places.append((batch.position + len(batch.rows), self.recipe.steps * self.recipe.batch))
        return look(self, sight, batch)

    monkeypatch.setattr(MsdLoss, "look", noted)
    figures = train_drafters(pipe, recipes, course, outs, tmp_path / "run", "tiny")
    assert list(figures) == sights.METHODS
    assert max(stop for stop, _ in places) == {run for _, run in places}.pop()  # the curriculum spans all batches
    for recipe, out in zip(recipes, outs, strict=True):
        made = mmspec.load(pipe.target.model, out, processor=pipe.processor).drafter
        assert type(made) is recipe.drafter_class
        assert recipe.drafter_class.source.split("arXiv ")[1] in (out / "README.md").read_text()
    steps = test_training.losses(tmp_path / "run", "+".join(sights.METHODS))
    assert [step for step, _ in steps] == [1, 2, 3, 4]
    assert all(0 < loss < 100 for _, loss in steps)


@pytest.mark.parametrize("place", [0, 10**6])  # the MLP alone, both
@pytest.mark.parametrize("kind", [MassvRecipe, IbedRecipe])
def test_grafted_laws_that_are_too_large_are_judged_in_chunks(
    kind: type[MassvRecipe], place: int, pipe: Any, rows: list[Answered], monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = kind(**{**GRAFTED, "steps": 10}, projector_share=0.5)
    net = recipe.build(pipe.target)
    loss = recipe.loss(net, pipe.target, Features(pipe, Miniworld("test", 3), (0,)))

    def judged() -> list[Tensor | None]:
        net.zero_grad()
        value = loss(torch.tensor([place]), rows)
        value.backward()
        return [value.detach(), *(weight.grad for weight in net.parameters())]

    whole = judged()
    assert (net.speaker.lm_head.weight.grad is None) is (place == 0)
    sizes: list[int] = []
    hook = pipe.target.head.register_forward_hook(lambda _, given, made: sizes.append(len(made)))
    monkeypatch.setattr(chunks, "LOGITS", 3 * pipe.target.vocab_size)
    parts = judged()
    hook.remove()
    assert max(sizes) == 3
    for part, one in zip(parts, whole, strict=True):
        torch.testing.assert_close(part, one)


@pytest.mark.parametrize("method", ["massv", "tabed"])
def test_models_with_the_target_s_eyes_learn_and_come_back(method: str, pipe: Any, tmp_path: Path) -> None:
    course = replace(
        COURSE, questions=4, held_out=1, validate_every=4, answers=AnswerOptions(max_new_tokens=8, batch=4)
    )
    recipe = find_recipe(method)(**GRAFTED)
    figures = train_drafter(pipe, recipe, course, tmp_path / "out", tmp_path / "run", "tiny")
    assert figures["tau_t0"] >= 1
    made = mmspec.load(pipe.target.model, tmp_path / "out", processor=pipe.processor).drafter
    assert made.method == method
    described = json.loads((tmp_path / "out" / "drafter.json").read_text())
    assert described["target"]["hidden_size"] == pipe.target.hidden_size
    assert "projector share" in model_card(Trained("tiny", "vlm", recipe, course, [method], [], [], 7, 1))


def test_a_model_with_the_target_s_eyes_learns_on_for_a_kindred_method(pipe: Any, tmp_path: Path) -> None:
    made = find_recipe("massv")(**GRAFTED)
    net = made.build(pipe.target)
    save_drafter(made.drafter(net), tmp_path / "massv", pipe.target)
    start = begin(str(tmp_path / "massv"), ["tabed"], pipe.target)["tabed"]
    recipe = find_recipe("tabed")(steps=2)
    learnt = recipe.begin(start, pipe.target)
    assert shaped(recipe, learnt).width == 32
    assert all(torch.equal(value, net.state_dict()[name]) for name, value in learnt.state_dict().items())
    with pytest.raises(MismatchError, match="of spd cannot start with that drafter: it is one of massv"):
        find_recipe("spd")().begin(start, pipe.target)
    eagle = find_recipe("eagle2")()
    save_drafter(eagle.drafter(eagle.build(pipe.target)), tmp_path / "eagle2", pipe.target)
    start = begin(str(tmp_path / "eagle2"), ["msd"], pipe.target)["msd"]
    assert isinstance(find_recipe("msd")().begin(start, pipe.target), MsdHead)  # its weights are those of an EAGLE head
    with pytest.raises(MismatchError, match="of massv cannot start with that drafter: it is one of eagle2"):
        find_recipe("massv")().begin(start, pipe.target)


@pytest.mark.parametrize(("method", "changes"), [("massv", {**GRAFTED, "projector_share": 0.5}), ("msd", SMALL)])
def test_nothing_ends_a_run_while_it_prepares(
    method: str, changes: dict[str, Any], pipe: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is measured of a drafter that sees nothing yet, or does not learn, is neither the best nor the end."""
    recipe, course = find_recipe(method)(**{**changes, "steps": 8}), replace(COURSE, validate_every=1, patience=1)
    assert recipe.settled() == 4
    assert replace(recipe, **{"text_share" if method == "msd" else "projector_share": 1.0}).settled() == 7
    measured = told([9.0, 8.0, 7.0, 6.0, 1.5, 2.5, 2.0, 3.0], monkeypatch)
    figures = train_drafter(pipe, recipe, course, tmp_path / "out", tmp_path / "run", "tiny")
    assert len(measured) == 7
    assert (figures["step"], figures["tau_t0"]) == (6, 2.5)
    assert "The weights are those of step 6, the best." in (tmp_path / "out" / "README.md").read_text()
    assert train_drafter(pipe, recipe, course, tmp_path / "out", tmp_path / "run", "tiny") == figures
    assert len(measured) == 7


@pytest.mark.parametrize(
    "method", ["msd", "vispec", "hivis", "dream", "specvlm", "massv", "spec-llava", "ibed", "tabed"]
)
def test_a_few_steps_lower_the_loss(method: str, pipe: Any, rows: list[Answered]) -> None:
    changes: dict[str, Any] = {"text_share": 0.0} if method == "msd" else {}
    if method in ("massv", "spec-llava", "ibed", "tabed"):
        changes = {"width": 32, "projector_share": 0.0, "batch": 1}
    recipe = find_recipe(method)(**changes)
    features = Features(pipe, Miniworld("test", 3), (0,))
    net = recipe.build(pipe.target, rows)
    values: list[Tensor] = []
    loss = recipe.loss(net, pipe.target, features)
    for weight in pipe.target.model.parameters():
        weight.requires_grad_(False)
    optimizer = test_training.build_optimizer(net, 0.02)
    learnt: set[str] = set()
    for step in range(24):
        value = loss(position=torch.tensor([step]), rows=rows)
        values.append(value.detach())
        optimizer.zero_grad()
        value.backward()
        learnt |= {name for name, weight in net.named_parameters() if weight.grad is not None}
        optimizer.step()
    assert values[-3] < values[0] - 0.2  # both read the whole picture, in ensembles
    assert learnt == {name for name, _ in net.named_parameters()}


def test_the_command_takes_the_methods_own_options(tmp_path: Path, monkeypatch: Any, capfd: Any) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tiny.tiny_smolvlm(tmp_path / "target")
    small = "--questions 4 --steps 2 --batch 2 --held-out 1 --max-new-tokens 8 --answer-batch 2"
    own = "--set unroll=2 --set queries=1 --set keep=0.5 --set middle_weight=0.1"
    arguments = ["drafter", "--target", str(folder), "--method", "vispec,dream", "--out", "mine", *small.split()]
    assert test_training.command(monkeypatch, *arguments, *own.split()) == 0
    assert json.loads((tmp_path / "mine/vispec/drafter.json").read_text())["settings"]["queries"] == 1
    assert json.loads((tmp_path / "mine/dream/drafter.json").read_text())["settings"] == {"keep": 0.5, "opening": False}
    assert test_training.command(monkeypatch, *arguments[:3], "--method", "hivis", "--set", "keep=0.5") == 2
    assert "unknown setting of the method hivis 'keep'" in capfd.readouterr().err
