"""A target whose law is a table: small enough to enumerate, batched enough to draw hundreds of thousands of outcomes.

The next token's logits depend on the last two tokens. Token 0 ends a sequence.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from mmspec.contract import Accepted, Draft, Drafter, Drafting, Kind, Needs, State, Verified
from mmspec.sampling import Sampler, Sampling, warp
from mmspec.tree import best

END = 0


def random_table(vocab: int, seed: int, spread: float = 1.5) -> Tensor:
    """[V, V, V] logits after (last but one, last)."""
    return spread * torch.randn(vocab, vocab, vocab, generator=torch.Generator().manual_seed(seed))


@dataclass
class TableState(State):
    """before: [B] the token before the pending one."""

    before: Tensor = field(kw_only=True)


def node_pairs(draft: Draft, before: Tensor) -> tuple[Tensor, Tensor]:
    """[B, N] the last two tokens at every node."""
    above = draft.tokens.gather(1, draft.parents.clamp(min=0))
    return torch.cat([before[:, None], above[:, 1:]], 1), draft.tokens


class TableTarget:
    """Samples from `table`. Prompts have two tokens."""

    modality = "text"
    placeholders: tuple[int, ...] = ()

    def __init__(self, table: Tensor) -> None:
        self.table = table
        self.vocab_size = table.shape[0]

    def prefill(self, inputs: dict[str, Any], needs: Needs, sampler: Sampler) -> TableState:
        prompt = inputs["input_ids"]
        batch = len(prompt)
        one = Draft(prompt[:, 1:], torch.full((batch, 1), -1), torch.zeros(batch, 1, dtype=torch.long))
        scores = sampler.warp(one, self.table[prompt[:, 0], prompt[:, 1]][:, None])
        zeros = torch.zeros(batch, dtype=torch.long)
        return TableState(
            ids=prompt.tolist(),
            done=[False] * batch,
            emitted=zeros,
            prompt_length=zeros + 2,
            limits=[1 << 30] * batch,
            pending=sampler.draw(scores, zeros[:, None])[:, 0],
            room=inputs["max_new_tokens"] - 2,
            before=prompt[:, 1],
        )

    def verify(self, state: State, draft: Draft) -> Verified:
        assert isinstance(state, TableState)
        return Verified(self.table[node_pairs(draft, state.before)])

    def commit(self, state: State, draft: Draft, accepted: Accepted) -> None:
        assert isinstance(state, TableState)
        assert accepted.next is not None
        last = accepted.path.gather(1, accepted.count[:, None] - 1)
        state.before = draft.tokens.gather(1, last)[:, 0]
        state.pending = accepted.next
        state.emitted = state.emitted + accepted.count


class TableDrafter(Drafter):
    """Drafts from another table: a full tree with `branching[d]` children at depth d.

    total: re-rank the candidates and keep that many nodes (a dynamic tree), or None for the full, static tree.
    """

    kinds = frozenset({"point", "sampled", "coupled"})

    def __init__(self, table: Tensor, branching: tuple[int, ...], total: int | None = None) -> None:
        self.table, self.branching, self.total = table, branching, total

    def bind(self, target: Any) -> None:
        assert target.vocab_size == self.table.shape[0]

    def begin(self, state: State, sampler: Sampler, kind: Kind) -> "TableDrafting":
        return TableDrafting(self, sampler, kind)


@dataclass
class TableDrafting(Drafting):
    drafter: TableDrafter
    sampler: Sampler
    kind: Kind

    def propose(self, state: State) -> Draft:
        assert isinstance(state, TableState)
        assert state.pending is not None
        vocab = self.drafter.table.shape[0]
        batch = len(state.pending)
        tokens, parents = state.pending[:, None], torch.full((batch, 1), -1)
        depth, score = torch.zeros_like(parents), torch.zeros(batch, 1)
        q = torch.zeros(batch, 1, vocab)
        frontier = slice(0, 1)
        for level, width in enumerate(self.drafter.branching):
            draft = Draft(tokens, parents, depth)
            scores = self.sampler.shape(self.drafter.table[node_pairs(draft, state.before)][:, frontier])  # [B, F, V]
            q[:, frontier] = scores.softmax(-1)
            children, confidence = self._children(scores, state.emitted, level, width)
            above = torch.arange(frontier.start, frontier.stop).repeat_interleave(width).expand(batch, -1)
            score = torch.cat([score, (score[:, frontier, None] + confidence).flatten(1)], 1)
            tokens = torch.cat([tokens, children.flatten(1)], 1)
            parents = torch.cat([parents, above], 1)
            depth = torch.cat([depth, torch.full_like(above, level + 1)], 1)
            q = torch.cat([q, torch.zeros(batch, above.shape[1], vocab)], 1)
            frontier = slice(frontier.stop, tokens.shape[1])
        if self.drafter.total is not None:
            assert self.kind != "sampled"
            return best(
                tokens[:, 1:],
                parents[:, 1:] - 1,
                score[:, 1:],
                depth[:, 1:],
                state.pending,
                self.drafter.total,
                self.kind,
            )
        return Draft(tokens, parents, depth, self.kind, q if self.kind == "sampled" else None)

    def _children(self, scores: Tensor, emitted: Tensor, level: int, width: int) -> tuple[Tensor, Tensor]:
        if self.kind == "sampled" and not self.sampler.greedy:
            g = self.sampler.draft_noise(emitted, level, scores.shape[1], scores.shape[-1])
        elif self.kind == "coupled" and not self.sampler.greedy:
            g = self.sampler.target_noise(emitted[:, None] + level, scores.shape[-1])
        else:
            g = torch.zeros(())
        confidence, children = (scores + g).log_softmax(-1).topk(width, dim=-1)
        return children, confidence

    def observe(self, state: State, draft: Draft, verified: Verified, accepted: Accepted) -> None:
        """Nothing to learn."""


def outcomes(
    table: Tensor, sampling: Sampling, budget: int, prompt: tuple[int, int] = (1, 2)
) -> dict[tuple[int, ...], float]:
    """The exact law of the answers: every sequence that ends with END or has `budget` tokens, with its probability."""

    def grow(pair: tuple[int, int], left: int) -> Iterator[tuple[tuple[int, ...], float]]:
        law = warp(table[pair], sampling).softmax(-1).tolist()
        for token, p in enumerate(law):
            if token == END or left == 1:
                yield (token,), p
            else:
                yield from ((((token, *rest)), p * r) for rest, r in grow((pair[1], token), left - 1))

    return dict(grow(prompt, budget))


def p_value(counts: dict[tuple[int, ...], int], law: dict[tuple[int, ...], float]) -> float:
    """Chi-square test that counts follow the law; cells expecting under 5 are pooled. 0 if the impossible happened."""
    total = sum(counts.values())
    if any(law.get(outcome, 0.0) == 0.0 for outcome in counts):
        return 0.0
    cells = [(counts.get(outcome, 0), total * p) for outcome, p in law.items()]
    rare = [cell for cell in cells if cell[1] < 5]
    cells = [cell for cell in cells if cell[1] >= 5]
    if sum(expected for _, expected in rare) >= 5:
        cells.append((sum(seen for seen, _ in rare), sum(expected for _, expected in rare)))
    statistic = sum((seen - expected) ** 2 / expected for seen, expected in cells)
    halves = torch.tensor([len(cells) - 1, statistic], dtype=torch.float64) / 2
    return float(torch.special.gammaincc(halves[0], halves[1]))
