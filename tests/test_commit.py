"""Commit and roll-back: after any accepted path, the cache is what reading the text afresh would have left."""

from collections.abc import Callable

import pytest
import test_equality
import torch
import toys
from torch import Tensor

from mmspec.cache import RowCache
from mmspec.contract import Accepted, Draft, Drafting, Kind, Needs, State, Verified
from mmspec.decoder import Decoder
from mmspec.drafters.none import NoDrafter
from mmspec.grouped import NAME as GROUPED
from mmspec.sampling import Sampler, Sampling
from mmspec.targets import CausalTarget
from mmspec.tree import path_to

TOLERANCE = 1e-9  # of float64 logits of size one; eager attention works its softmax out in float32
LOOSE = 2e-5


def random_tree(batch: int, size: int, generator: torch.Generator) -> Draft:
    """Any tree: the parent of a node is any node before it."""
    parents = torch.stack([torch.randint(0, max(node, 1), (batch,), generator=generator) for node in range(size)], 1)
    parents[:, 0] = -1
    depth = torch.zeros(batch, size, dtype=torch.long)
    for node in range(1, size):
        depth[:, node] = depth.gather(1, parents[:, node : node + 1])[:, 0] + 1
    return Draft(torch.randint(30, 90, (batch, size), generator=generator), parents, depth)


def close_of(attention: str) -> float:
    """How near logits of two forwards are."""
    return LOOSE if attention == "eager" else TOLERANCE


class Fresh:
    """Called with a row and its whole text: [V] logits after it, from one forward of the plain model, which serves the
    beginnings of that text, too. forward(row, ids): [T, V] by the plain model.
    """

    def __init__(self, forward: Callable[[int, list[int]], Tensor]) -> None:
        self.forward, self.row, self.ids = forward, -1, [0]

    def __call__(self, row: int, ids: list[int]) -> Tensor:
        if row != self.row or ids != self.ids[: len(ids)]:
            self.row, self.ids, self.logits = row, ids, self.forward(row, ids)
        return self.logits[len(ids) - 1]


def fresh_logits(target: CausalTarget, inputs: dict[str, Tensor]) -> Fresh:
    """Of a target's plain model."""

    @torch.no_grad()
    def forward(row: int, ids: list[int]) -> Tensor:
        return target.model(**{**toys.row_of(inputs, row), "input_ids": torch.tensor([ids])}).logits[0]

    return Fresh(forward)


def check_nodes(
    draft: Draft, verified: Verified, texts: list[list[int]], fresh: Callable[[int, list[int]], Tensor], close: float
) -> None:
    """Logits of some nodes are those after the row's text down to them. texts: with the pending token. fresh(row, ids):
    [V] from one forward of the plain model; it is asked for the deepest node first."""
    for row, text in enumerate(texts):
        for node in sorted((0, 3, 6), key=draft.depth[row].tolist().__getitem__, reverse=True):
            above = draft.ancestors[row, node].nonzero()[:, 0]
            ids = text[:-1] + draft.tokens[row, above].tolist()
            assert (verified.logits[row, node] - fresh(row, ids)).abs().max() < close


@pytest.mark.parametrize("attention", ["sdpa", "eager", GROUPED])
@pytest.mark.parametrize("name", test_equality.MODELS)
def test_commit_then_continue_equals_a_fresh_prefill(name: str, attention: str) -> None:
    """Four rows, random trees, every row accepts another random path, one row accepts nothing for a while."""
    _, target = test_equality.make(name, attention)
    inputs = test_equality.inputs_for(target, 17, 9, 14, 11)
    generator = torch.Generator().manual_seed(1)
    sampler = Sampler(Sampling(), 4, torch.device("cpu"))
    with torch.inference_mode():
        state = target.prefill({**inputs, "max_new_tokens": 100}, Needs(taps=(0, target.num_layers)), sampler)
        for row, first in enumerate(state.pending.tolist()):
            state.ids[row].append(first)
        for step in range(4):
            draft = random_tree(4, 7, generator)
            draft.tokens[:, 0] = state.pending
            verified = target.verify(state, draft)
            check_nodes(draft, verified, state.ids, fresh_logits(target, inputs), close_of(attention))
            assert torch.equal(verified.taps[0], target.embed(draft.tokens))
            assert torch.allclose(target.head(verified.taps[target.num_layers]), verified.logits, atol=1e-9) or (
                name == "gemma3"  # caps or scales after the head
            )
            last = torch.randint(0, 7, (4,), generator=generator)
            last[0] = 0
            accepted = path_to(draft, last, torch.randint(30, 90, (4,), generator=generator))
            take(state.ids, draft, accepted)
            state.done[1] = step == 1  # a finished row keeps its cache as it is
            before = state.cache.lengths[1]
            target.commit(state, draft, accepted)
            assert state.cache.width == max(state.cache.lengths)
            if state.done[1]:
                assert state.cache.lengths[1] == before
                state.ids[1] = state.ids[1][: before + 1]
                state.pending[1] = state.ids[1][-1]
                state.done[1] = False
            assert [len(ids) - 1 for ids in state.ids] == state.cache.lengths


def take(ids: list[list[int]], draft: Draft, accepted: Accepted) -> None:
    """What a stop rule does on the host."""
    rows = zip(accepted.path.tolist(), accepted.count.tolist(), accepted.next.tolist(), strict=True)
    for row, (path, count, following) in enumerate(rows):
        accepted.paths.append(path[:count])
        accepted.emitted.append([*draft.tokens[row, path[1:count]].tolist(), following])
        ids[row].extend(accepted.emitted[row])


def test_prompt_taps_are_the_hidden_states_of_the_prompt() -> None:
    model, target = test_equality.make("smolvlm")
    inputs = test_equality.inputs_for(target, 17, 9)
    sampler = Sampler(Sampling(), 2, torch.device("cpu"))
    with torch.inference_mode():
        state = target.prefill({**inputs, "max_new_tokens": 9}, Needs(taps=(0, 2)), sampler)
        for row, length in enumerate((17, 9)):
            states = model(**toys.row_of(inputs, row), output_hidden_states=True).hidden_states
            for tap in (0, 2):
                assert torch.allclose(state.prompt_taps[tap][row, :length], states[tap][0], atol=1e-12)


def test_what_was_asked_of_the_prompt_is_freed_once_the_drafter_has_begun() -> None:
    _, target = test_equality.make("smolvlm")
    seen = []

    class Curious(NoDrafter):
        needs = Needs(taps=(0,), inputs=True)

        def begin(self, state: State, sampler: Sampler, kind: Kind) -> Drafting:
            seen.append((state, bool(state.prompt_taps), bool(state.prompt_inputs)))
            return super().begin(state, sampler, kind)

    toys.answer(target, Curious(), test_equality.inputs_for(target, 9), 4)
    ((state, taps, inputs),) = seen
    assert taps
    assert inputs
    assert not state.prompt_taps
    assert not state.prompt_inputs
    assert state.prompt_features is None


def test_a_row_alone_is_not_moved_when_its_path_lies_in_place() -> None:
    cache = RowCache(1, torch.device("cpu"))
    cache.hf.update(torch.arange(5.0).view(1, 1, 5, 1), torch.arange(5.0).view(1, 1, 5, 1), 0)
    cache.fill([5])
    keys = cache.hf.layers[0].keys
    cache.hf.update(torch.arange(5.0, 8).view(1, 1, 3, 1), torch.zeros(1, 1, 3, 1), 0)
    cache.commit(3, [[0, 1]])
    assert cache.lengths == [7]
    assert cache.hf.layers[0].keys.flatten().tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert keys.shape[2] == 5


def test_the_mask_is_added_not_compared() -> None:
    """A bool mask is silently wrong under eager attention."""
    decoder = Decoder(toys.llama("eager"))
    cache = RowCache(1, torch.device("cpu"))
    mask = cache.mask(torch.ones(1, 2, 2, dtype=torch.bool).tril(), torch.zeros(1, 2), decoder.dtype)
    assert mask.dtype == torch.float64
    assert mask[0, 0].tolist() == [[0.0, torch.finfo(torch.float64).min], [0.0, 0.0]]
