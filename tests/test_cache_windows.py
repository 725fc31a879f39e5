"""Layers with a sliding window keep what may still be seen and no more, and nobody can tell by the numbers."""

from typing import Any

import pytest
import taught
import test_commit
import test_equality
import torch
import toys
from test_commit import check_nodes, close_of, fresh_logits, path_to, random_tree, take
from test_drafters import Watched
from torch import Tensor
from transformers import PreTrainedModel

from mmspec.cache import RowCache
from mmspec.contract import Draft, Needs, State, Verified
from mmspec.decoder import Decoder
from mmspec.sampling import Sampler, Sampling
from mmspec.targets import CausalTarget
from mmspec.tree import chain

CPU = torch.device("cpu")
SLIDING = {"mistral": {0, 1}, "qwen2": {1}, "gemma3": {0, 1}}
LENGTHS = (17, 9, 30, 11)
BUDGET = 50  # more than six windows


def kept(cache: RowCache) -> list[int]:
    """Slots of every layer."""
    return [layer.keys.shape[2] for layer in cache.hf.layers]


class Counting(CausalTarget):
    """Notes what the layers hold while a draft is verified, of which row lengths, and of how many nodes it is."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__(model)
        self.seen: list[tuple[list[int], list[int], int]] = []

    def verify(self, state: State, draft: Draft) -> Verified:
        found = super().verify(state, draft)
        self.seen.append((kept(state.cache), state.cache.lengths, draft.size))  # type: ignore[attr-defined]
        return found


@pytest.mark.dynamic("counts the slots of dynamic caches")
@pytest.mark.parametrize("drafter", ["none", "spd-perturbed"])
@pytest.mark.parametrize("lengths", [LENGTHS[:1], LENGTHS])
@pytest.mark.parametrize("name", SLIDING)
def test_a_long_answer_keeps_a_window_in_layers_with_one(name: str, lengths: tuple[int, ...], drafter: str) -> None:
    """And what lies between the shortest row and the longest; other layers keep everything."""
    model = toys.TEXT_MODELS[name]()
    target = Counting(model)
    toys.answer(target, toys.DRAFTERS[drafter](model), toys.prompts(*lengths), BUDGET)
    assert len(target.seen) > 12
    for held, rows, size in target.seen:
        for layer, count in enumerate(held):
            slides = layer in SLIDING[name]
            assert count == (toys.WINDOW - 1 + max(rows) - min(rows) if slides else max(rows)) + size


@pytest.mark.parametrize("pieces", [4096, 5])
@pytest.mark.parametrize("name", SLIDING)
def test_many_windows_equal_generate(name: str, pieces: int) -> None:
    """Rows of a batch, each against transformers with its own sliding cache; the prompt at once and in pieces."""
    model, target = test_equality.make(name)
    target.piece_size = pieces
    inputs = toys.prompts(*LENGTHS)
    want = [test_equality.hf(model, toys.row_of(inputs, row), BUDGET) for row in range(len(LENGTHS))]
    drafters = {maker: toys.DRAFTERS[maker](model) for maker in ("none", "prompt-lookup", "spd-perturbed")}
    for drafter, made in drafters.items():
        assert toys.answer(target, made, inputs, BUDGET).rows == want, drafter


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("name", SLIDING)
def test_commits_over_many_windows_equal_a_fresh_prefill(name: str, attention: str) -> None:
    """Random trees of which rows keep the root alone, some of it, or a whole chain, and one row nothing at all."""
    _, target = test_equality.make(name, attention)
    target.piece_size = 6
    inputs = toys.prompts(*LENGTHS)
    generator = torch.Generator().manual_seed(3)
    with torch.inference_mode():
        given = {**inputs, "max_new_tokens": 100}
        state = target.prefill(given, Needs(), Sampler(Sampling(), len(LENGTHS), CPU))
        for row, first in enumerate(state.pending.tolist()):
            state.ids[row].append(first)
        for step in range(12):
            draft = random_tree(4, 7, generator) if step % 3 else chain(torch.zeros(4, 7, dtype=torch.long) + 31 + step)
            draft.tokens[:, 0] = state.pending
            verified = target.verify(state, draft)
            check_nodes(draft, verified, state.ids, fresh_logits(target, inputs), close_of(attention))
            last = torch.tensor([0, 6, 6, 3])[torch.randperm(4, generator=generator)]
            accepted = path_to(draft, last, torch.randint(30, 90, (4,), generator=generator))
            before = [list(ids) for ids in state.ids]
            take(state.ids, draft, accepted)
            state.done[1] = step in (4, 5)  # this row waits, and what it sees must wait with it
            target.commit(state, draft, accepted)
            if state.done[1]:
                state.ids[1], state.done[1] = before[1], False
                state.pending[1] = before[1][-1]
    assert min(state.cache.lengths) > 3 * toys.WINDOW


@pytest.mark.parametrize("name", SLIDING)
def test_rows_that_are_taken_back_still_see_their_window(name: str) -> None:
    """As a drafter does that reads its own drafts: more than two windows of guesses, of which little stays."""
    decoder = Decoder(toys.TEXT_MODELS[name]())
    generator = torch.Generator().manual_seed(4)
    texts = [torch.randint(30, 90, (length,), generator=generator).tolist() for length in LENGTHS]
    width = max(LENGTHS)
    with torch.inference_mode():
        ids = torch.tensor([text + [0] * (width - len(text)) for text in texts])
        cache, _ = decoder.read([{"input_ids": ids}], list(LENGTHS))
        for _ in range(8):
            for guess in range(2 * toys.WINDOW + 3):
                tokens = torch.randint(30, 90, (4, 1), generator=generator)
                logits = step(decoder, cache, tokens)
                for row, token in enumerate(tokens[:, 0].tolist()):
                    texts[row].append(token)
                    if guess in (0, 2 * toys.WINDOW + 2):
                        assert torch.allclose(logits[row], fresh(decoder, texts[row]), atol=test_commit.TOLERANCE)
            left = torch.randint(1, 5, (4,), generator=generator).tolist()
            texts = [text[: len(text) - 2 * toys.WINDOW - 3 + count] for text, count in zip(texts, left, strict=True)]
            cache.fill([len(text) for text in texts])
    rows = cache.lengths
    for layer in SLIDING[name]:
        assert kept(cache)[layer] == toys.WINDOW - 1 + max(rows) - min(rows)


def step(decoder: Decoder, cache: RowCache, tokens: Tensor) -> Tensor:
    """[B, V] logits after tokens [B, 1], which are committed."""
    nodes = chain(tokens)
    logits = decoder.step(cache, tokens, nodes.depth, nodes.ancestors).logits[:, -1]
    cache.commit(1, [[0]] * len(tokens))
    return logits


def fresh(decoder: Decoder, text: list[int]) -> Tensor:
    """[V] logits after a text."""
    out: Any = decoder.model(torch.tensor([text]))
    return out.logits[0, -1]


@pytest.mark.dynamic("patches dynamic caches")
@pytest.mark.parametrize("drafter", ["kangaroo", "spd-perturbed"])
@pytest.mark.parametrize("name", SLIDING)
def test_drafts_are_those_of_caches_that_keep_everything(name: str, drafter: str, monkeypatch: Any) -> None:
    """Kangaroo drafts on layers that it shares with the target; a small model takes its own cache back every round."""
    target = CausalTarget(toys.TEXT_MODELS[name]())

    def drafts() -> list[Tensor]:
        net = taught.network("kangaroo", target)
        made = taught.drafter("kangaroo", net, depth=3, total=8) if drafter == "kangaroo" else None
        found: list[Tensor] = []
        watched = Watched(made or toys.DRAFTERS[drafter](target.model), lambda state, draft: found.append(draft.tokens))
        toys.answer(target, watched, toys.prompts(*LENGTHS[:3]), BUDGET)
        return found

    cut = drafts()
    monkeypatch.setattr(RowCache, "forget", lambda cache: None)
    whole = drafts()
    assert len(cut) == len(whole) > 12
    assert all(torch.equal(mine, other) for mine, other in zip(cut, whole, strict=True))
