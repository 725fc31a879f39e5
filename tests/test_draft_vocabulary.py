"""A smaller draft vocabulary: its words alone are drafted, the output stays what it is, and q says which law was drawn
from."""

from pathlib import Path
from typing import Any

import pytest
import sights
import taught
import test_drafters
import test_equality
import test_training
import tiny
import tiny_images
import torch
import toys
from safetensors.torch import load_file, save_file
from taught import METHODS
from test_drafters import Watched
from torch import Tensor, nn

import mmspec
from mmspec.acceptance.ratio import Ratio, without
from mmspec.checkpoints import load_drafter, save_drafter
from mmspec.contract import Draft, State
from mmspec.drafters.eagle import Eagle
from mmspec.drafters.none import NoDrafter
from mmspec.drafters.vocabulary import NarrowHead
from mmspec.errors import CheckpointError, InputError, MismatchError
from mmspec.image_ar.janus import Janus
from mmspec.sampling import Sampler, Sampling
from mmspec.targets import CausalTarget
from mmspec.training.answers import Answered

IDS = torch.tensor([31, 33, 40, 44, 45, 52, 58, 60, 61, 62, 70, 77, 81, 83, 90, 95])
LENGTHS = (17, 9, 14)
WARM = Sampling(temperature=1.0, seed=5)


def narrow(method: str, target: CausalTarget, ids: Tensor = IDS) -> Any:
    """A random network that drafts these words alone."""
    net = (sights if method in sights.METHODS else taught).network(method, target)
    if method == "eagle3":
        net = taught.recipe_of(method, draft_vocabulary=len(ids)).build(target).double()
        net.ids.copy_(ids)
    else:
        net.draft_ids = ids
    return net


# What is drafted


def test_a_narrow_head_is_the_head_for_its_words_and_rules_out_the_others() -> None:
    for bias in (False, True):
        torch.manual_seed(0)
        head = nn.Linear(32, 97, bias=bias).double()
        features = torch.randn(2, 3, 32, dtype=torch.float64)
        logits = NarrowHead(head, IDS)(features)
        others = [token for token in range(97) if token not in IDS]
        assert torch.allclose(logits[..., IDS], head(features)[..., IDS])
        assert logits[..., others].eq(-torch.inf).all()


def test_a_narrow_head_is_compiled_to_one_that_writes_no_list_of_words() -> None:
    """A vocabulary that is filled and then written to would take two kernels in every level. The numbers are the
    same, so equal ones are found in the same order."""
    ran: list[str] = []

    def noting(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        ran.extend(str(node.target) for node in graph.graph.nodes)
        return graph.forward

    torch.manual_seed(0)
    for bias in (False, True):
        head = NarrowHead(nn.Linear(32, 97, bias=bias), IDS)
        features = torch.randn(2, 3, 32)
        torch._dynamo.reset()
        with torch.inference_mode():
            assert torch.equal(torch.compile(head, fullgraph=True, backend=noting)(features), head(features))
    assert ran
    assert not [name for name in ran if "index_copy" in name or "new_full" in name]


@pytest.mark.parametrize("method", METHODS)
def test_the_law_is_that_of_the_whole_head_over_the_words(method: str) -> None:
    """Declared laws of static trees, rows of which accept different lengths, from scratch; nothing else is drafted."""
    _, target = test_equality.make("qwen2")
    net, inputs = narrow(method, target), toys.prompts(*LENGTHS)
    sampler = Sampler(test_drafters.SAMPLING, 3, torch.device("cpu"))
    looked, drafted = 0, set()

    def look(state: State, draft: Draft) -> None:
        nonlocal looked
        if draft.q is None:  # no room left: nothing was drafted
            return
        drafted.update(draft.tokens[:, 1:].flatten().tolist())
        for row in range(3):
            for node in test_drafters.parents_in(draft) if not state.done[row] and looked < 30 else ():
                path = draft.tokens[row, draft.ancestors[row, node].nonzero()[1:, 0]].tolist()
                logits = taught.expected(method, net, target, toys.row_of(inputs, row), state.ids[row], path)
                within = torch.full_like(logits, -torch.inf).index_copy(0, IDS, logits[IDS])
                q = test_drafters.law_of(sampler, target, within)
                assert (draft.q[row, node] - q).abs().max() < 1e-5
                looked += 1

    made = Watched(taught.drafter(method, net, depth=3, total=9), look)
    toys.answer(target, made, inputs, 16, test_drafters.SAMPLING, Ratio())
    assert looked >= 30
    assert drafted <= set(IDS.tolist())
    assert len(drafted) > 4


@pytest.mark.parametrize("method", ["eagle2", "eagle3", "medusa", "kangaroo", "dflash"])
def test_children_are_drawn_from_the_declared_law(method: str) -> None:
    """2000 rows; every child of every node, given those before it; six standard errors. The law over all words is found
    to be another one."""
    target = CausalTarget(toys.llama())
    made = taught.drafter(method, narrow(method, target), depth=3, total=8)
    draft, _, _ = test_drafters.first_draft(made, target, 2000, "sampled")
    assert draft.q is not None
    for node in test_drafters.parents_in(draft):
        left = draft.q[:, node]
        assert torch.allclose(left.sum(-1), torch.ones(2000), atol=1e-5)
        for child in (draft.parents[0] == node).nonzero()[:, 0]:
            assert test_drafters.surprise(draft.tokens[:, child], left) < 6
            left = without(left, draft.tokens[:, child])
    if method != "eagle3":
        made.net.draft_ids = None
        whole, _, _ = test_drafters.first_draft(made, target, 2000, "sampled")
        assert test_drafters.surprise(draft.tokens[:, 1], whole.q[:, 0]) > 6


@pytest.mark.parametrize("declared", ["narrow", "whole"])
def test_the_ratio_rule_emits_the_targets_law(declared: str) -> None:
    """4000 rows, their first round, with half of what the target says most; if a law over all words is declared in
    the place of the narrow one, the check finds it."""
    target = CausalTarget(toys.llama())
    net = narrow("eagle2", target)
    made = taught.drafter("eagle2", net, depth=1, total=4)
    likely = scores_of(target, *test_drafters.first_draft(made, target, 200, "sampled"))[:, 0].softmax(-1).mean(0)
    net.draft_ids = torch.cat([likely.topk(16).indices[::2], likely.topk(97).indices[-8:]]).sort().values
    draft, state, sampler = test_drafters.first_draft(made, target, 4000, "sampled")
    if declared == "whole":
        draft.q = draft.q / 2  # as if half of the mass lay on words that are never drafted
    scores = scores_of(target, draft, state, sampler)
    accepted = Ratio()(draft, scores, sampler, state.emitted)
    kept = accepted.count > 1
    child = draft.tokens.gather(1, accepted.path[:, 1:2])[:, 0]
    assert 0.05 < kept.double().mean() < 0.95
    emitted = torch.where(kept, child, accepted.next)
    assert (test_drafters.surprise(emitted, scores[:, 0].softmax(-1)) < 6) == (declared == "narrow")


def scores_of(target: CausalTarget, draft: Draft, state: State, sampler: Sampler) -> Tensor:
    """[B, N, V] what the rule is given."""
    with torch.inference_mode():
        return sampler.warp(draft, target.verify(state, draft).logits)


# What comes out


@pytest.mark.parametrize("method", [*METHODS, *sights.METHODS])
def test_the_output_is_that_of_the_loop_and_its_words_alone_are_drafted(method: str) -> None:
    """Greedy and sampled, in a batch."""
    _, target = test_equality.make("smolvlm")
    make = sights.drafter if method in sights.METHODS else taught.drafter
    inputs, drafted = test_equality.inputs_for(target, *LENGTHS), set()

    def look(state: State, draft: Draft) -> None:
        drafted.update(draft.tokens[:, 1:].flatten().tolist())

    for sampling in (Sampling(), WARM):
        want = toys.answer(target, NoDrafter(), inputs, 10, sampling).rows
        made = Watched(make(method, narrow(method, target), depth=3, total=8), look)
        assert toys.answer(target, made, inputs, 10, sampling).rows == want
    assert drafted <= set(IDS.tolist())
    assert len(drafted) > 4


@pytest.mark.parametrize("sampling", [Sampling(), WARM], ids=["T0", "T1"])
def test_drafts_are_rejected_kept_in_part_and_kept_whole(sampling: Sampling) -> None:
    """Chains of a head that is always right, trees of one that errs; with all words of the answers, and with half of
    them."""
    inputs = toys.prompts(17, 9, 14, 11)
    accepted = []
    for strength, noise, kept, sizes in (
        (0.0, 0.0, 1, {"depth": 3, "width": 1, "top_k": 1, "total": 4}),
        (0.3, 0.1, 1, {"depth": 3, "width": 3, "top_k": 4, "total": 12}),
        (0.3, 0.1, 2, {"depth": 3, "width": 3, "top_k": 4, "total": 12}),
    ):
        target = CausalTarget(toys.simple_llama(strength))
        want = toys.answer(target, NoDrafter(), inputs, 24, sampling).rows
        net = toys.copying_head(target.model, noise)
        net.draft_ids = torch.tensor(sorted({token for row in want for token in row})[::kept])
        made = Eagle(net, **sizes)
        made.trust = 1.0  # its law is the target's
        got = toys.answer(target, made, inputs, 24, sampling)
        assert got.rows == want
        accepted.append(got.accepted)
    assert accepted[0].count(3) > 0.7 * len(accepted[0])
    assert {0, 1} <= set(accepted[1])
    assert sum(accepted[2]) / len(accepted[2]) < sum(accepted[1]) / len(accepted[1])


# Saving and loading


@pytest.mark.parametrize("method", [*METHODS, "msd"])
def test_the_words_come_back_with_the_drafter(method: str, pipe: mmspec.Pipeline, tmp_path: Path) -> None:
    make = sights.drafter if method in sights.METHODS else taught.drafter
    made = make(method, narrow(method, pipe.target), depth=3, total=8)
    loaded = load_drafter(save_drafter(made, tmp_path / "drafter", pipe.target), pipe.target)
    own = "ids" if method == "eagle3" else "draft_ids"
    assert torch.equal(getattr(loaded.net, own), IDS)
    said = [pipe.with_drafter(one, "own")(None, "what is it?", max_new_tokens=10) for one in (made, loaded)]
    assert said[0].stats.accept_lengths == said[1].stats.accept_lengths


@pytest.mark.parametrize("ids", [[5, 300], [-1, 5], [7, 5], [5, 5], []])
def test_words_that_the_target_lacks_are_refused(ids: list[int], pipe: mmspec.Pipeline, tmp_path: Path) -> None:
    made = taught.drafter("eagle2", narrow("eagle2", pipe.target))
    folder = save_drafter(made, tmp_path / "drafter", pipe.target)
    weights = load_file(folder / "model.safetensors")
    save_file({**weights, "draft_ids": torch.tensor(ids, dtype=torch.int64)}, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match="draft vocabulary in .* is damaged"):
        load_drafter(folder, pipe.target)


# Training


@pytest.mark.parametrize("method", [*METHODS, "msd"])
def test_a_recipe_takes_the_words_that_answers_use_most(method: str) -> None:
    _, target = test_equality.make("smolvlm")
    rows = [Answered(0, [1, 2], [50, 60, 50, 70, 50, 60], 0.0)]
    recipe = (sights if method in sights.METHODS else taught).recipe_of(method, draft_vocabulary=8)
    net = recipe.build(target, rows)
    assert (net.ids if method == "eagle3" else net.draft_ids).tolist() == [0, 1, 2, 3, 4, 50, 60, 70]
    assert "draft_ids" not in net.state_dict()
    with pytest.raises(InputError, match="8 words or more, got 7"):
        taught.recipe_of("eagle2", draft_vocabulary=7)


def test_a_target_whose_codes_are_few_is_refused() -> None:
    recipe = mmspec.registry.resolve("recipes", "eagle2", "image")(draft_vocabulary=16)
    with pytest.raises(MismatchError, match="codes of a small vocabulary"):
        recipe.check(Janus(tiny_images.janus_model(), tiny_images.tokenizer()))


def test_the_command_makes_and_saves_it(tmp_path: Path, monkeypatch: Any, capfd: Any) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tiny.tiny_smolvlm(tmp_path / "target")
    small = "--questions 4 --steps 2 --batch 2 --held-out 1 --max-new-tokens 8 --answer-batch 2 --draft-vocabulary 40"
    given = ["drafter", "--target", str(folder), "--out", "mine", *small.split()]
    assert test_training.command(monkeypatch, *given, "--method", "eagle2, dflash") == 0
    for method in ("eagle2", "dflash"):
        ids = mmspec.load(folder, drafter=f"mine/{method}").drafter.net.draft_ids
        assert len(ids) == 40
        assert "| draft vocabulary | 40 |" in (tmp_path / "mine" / method / "README.md").read_text()
    capfd.readouterr()
    assert test_training.command(monkeypatch, *given, "--method", "spd") == 2
    assert "--draft-vocabulary: not an option of the method spd" in capfd.readouterr().err
