"""What a drafter's own layer has read of the text: a cache of true slots, and those that wait to be read.

Slot t holds the token x_{t+1} and features of the position t, which the target gave when it read x_t. The prompt fills
slots, and every verification adds those of the accepted nodes, whoever drafted them; they are read together with the
next proposal. Draft nodes are forwarded on top and forgotten afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mmspec.cache import Past, RowCache
from mmspec.contract import Accepted, Draft, State
from mmspec.tree import at_end, chain

if TYPE_CHECKING:
    from mmspec.drafters.growing import Above
    from mmspec.engine.steps import Steps

Forward = Callable[[Tensor, Tensor, Tensor, Tensor, Any], Tensor]
"""forward(tokens [B, M], features [B, M, H], positions [B, M], mask [B, 1, M, K], cache) -> [B, M, H]."""


AT_ONCE, LEAST_AT_ONCE = 2048, 128
"""Slots of all prompts that are read in one step, and of each: the mask of a whole prompt would be as large as its
square."""


def at_once(batch: int) -> int:
    """How many slots of each row are read in one step, so that their mask does not grow with the batch."""
    return max(LEAST_AT_ONCE, AT_ONCE // batch)


def unfused(heard: Tensor) -> Tensor:
    """Features that are what was heard of the target."""
    return heard


@dataclass
class Slots:
    """The slots of one request.

    waiting: from the prompt and from every round since the last reading: tokens [B, M], what was heard of the target
        [B, M, T], and how many are real in each row. most: how many slots are read in one step; None: see `at_once`.
    fuse: [B, M, T] -> [B, M, H], the features of what was heard; asked when slots are read, since no round should cost
        anything while nothing is drafted.
    masked: see `causal`.
    """

    cache: RowCache
    waiting: list[tuple[Tensor, Tensor, list[int]]]
    most: int | None = None
    fuse: Callable[[Tensor], Tensor] = unfused
    masked: bool = True

    @classmethod
    def of_prompt(
        cls, state: State, heard: Tensor, fuse: Callable[[Tensor], Tensor] = unfused, masked: bool = True
    ) -> Slots:
        """The slots of a prefilled request; heard: [B, N, T] of the prompt."""
        lengths = [len(ids) - 1 for ids in state.ids]
        width = max(lengths)
        device = heard.device
        following = torch.tensor(
            [ids[1:] + [0] * (width - n) for ids, n in zip(state.ids, lengths, strict=True)], device=device
        )
        return cls(RowCache(len(lengths), device), [(following, heard, lengths)], fuse=fuse, masked=masked)

    def observe(self, draft: Draft, heard: Tensor, accepted: Accepted) -> None:
        """Queue the accepted nodes of rows that emitted something; heard: [P * B, N, T] of all nodes of the draft.

        P is 1, or how many rows of slots go with every row of the draft; those of one kind stand side by side.
        """
        assert accepted.next is not None
        rows = torch.arange(accepted.path.shape[0], device=accepted.path.device)
        counts = [len(path) if run else 0 for path, run in zip(accepted.paths, accepted.emitted, strict=True)]
        path = accepted.path[:, : max(counts)]
        tokens = following(draft.tokens, path, accepted.count, accepted.next)
        pairs = len(heard) // len(rows)
        every = torch.arange(len(heard), device=rows.device)[:, None]
        self.waiting.append((tokens.repeat(pairs, 1), heard[every, path.repeat(pairs, 1)], counts * pairs))

    def read(self, forward: Forward) -> Tensor:
        """Forward the waiting slots and keep them; returns [B, H], the output at each row's last one."""
        tokens, heard, counts = joined(self.waiting)
        features, device = self.fuse(heard), tokens.device
        parts = []
        for here, real in portions(tokens.shape[1], counts, self.most or at_once(len(counts))):
            parts.append(self._keep(forward, tokens[:, here], features[:, here], real))
        self.waiting = []
        return torch.cat(parts, 1)[torch.arange(len(counts), device=device), torch.tensor(counts, device=device) - 1]

    def _keep(self, forward: Forward, tokens: Tensor, features: Tensor, counts: list[int]) -> Tensor:
        """Forward slots [B, M] behind the true ones, the first `counts` of which become true; returns [B, M, H]."""
        out = causal(forward, self.cache, tokens, features, self.masked)
        self.cache.commit(tokens.shape[1], [list(range(count)) for count in counts])
        return out

    def read_prompt(self, forward: Forward, held: Tensor | None = None) -> None:
        """Read the prompt at once, all but the pending token's slot, which goes on waiting.

        Args: held: [B, M, H] what `forward` is given in place of the tokens, where slots hold something else.
        """
        ((tokens, heard, counts),) = self.waiting
        self.waiting = [(tokens if held is None else held, heard, [count - 1 for count in counts])]
        self.read(forward)
        rows = torch.arange(len(counts), device=tokens.device)
        last = torch.tensor(counts, device=tokens.device) - 1
        self.waiting = [(tokens[rows, last][:, None], heard[rows, last][:, None], [1] * len(counts))]

    def settle(self, steps: Steps, budget: int) -> None:
        """Read the prompt, if nobody has, and go on with the cache that compiled steps take.

        Args: budget: how many tokens may follow.
        """
        if not self.cache.hf.layers:
            self.read_prompt(steps)
        ((_, heard, _),) = self.waiting
        self.cache, self.most = steps.settle(self.cache, self.fuse(heard), budget), steps.most

    def forget(self) -> None:
        """Drop everything that was forwarded after the true slots."""
        self.cache.commit(self.cache.width - max(self.cache.lengths), [[]] * len(self.cache.lengths))


def following(tokens: Tensor, path: Tensor, count: Tensor, pending: Tensor) -> Tensor:
    """[B, A] the token after each node of accepted paths: tokens [B, N] of the draft, path [B, A], count [B], and the
    new pending token [B] after the last."""
    after = tokens.gather(1, path).roll(-1, 1)
    rows = torch.arange(len(path), device=path.device)
    after[rows, (count - 1).clamp(max=path.shape[1] - 1)] = pending  # a row that is done may have a longer path
    return after


def causal(forward: Forward, past: Past, tokens: Tensor, features: Tensor, masked: bool) -> Tensor:
    """[B, M, H] the output at slots [B, M] that stand behind the true ones, one after the other.

    Args: masked: whether the step looks at any slots; one that does not gets a mask [1, 1, 1, 1] that hides nothing,
        since that of a long text is large.
    """
    steps = chain(tokens)
    positions = past.positions() + past.shift + steps.depth
    mask = features.new_zeros(1, 1, 1, 1)
    if masked:
        mask = past.mask(steps.ancestors, steps.depth, features.dtype)
    return forward(tokens, features, positions, mask, past.hf)


def beyond(past: Past, offset: int, seen: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Positions [B, F] and mask of nodes in the slot that follows the true ones, or `offset` behind it.

    Args: seen: [B, F, M] bool, which of the M nodes forwarded since then each of them sees; they are the last F.
    """
    positions = (past.positions() + past.shift + offset).expand(seen.shape[:2])
    return positions, past.mask(seen, positions, dtype)


def below(
    forward: Forward, past: Past, states: Tensor, level: int, tokens: Tensor, origin: Tensor, above: Above
) -> Tensor:
    """The outputs [B, F, H] at nodes of a level from 1 on, whose features are the outputs `states` [B, P, H] at those
    of the level before. tokens, origin, above: see `mmspec.drafters.growing.Expand`."""
    features = states[torch.arange(len(tokens), device=tokens.device)[:, None], origin]
    positions, mask = beyond(past, level - 1, above(), features.dtype)
    return forward(tokens, features, positions, mask, past.hf)


@dataclass
class Last:
    """The features of the last true slot, for drafters without a layer of their own over the text. As `Slots`, but
    nothing before it is kept.

    features: [B, H] of the last position that the target has read.
    """

    features: Tensor
    cache: Any = None

    @classmethod
    def of_prompt(cls, state: State, features: Tensor, *reading: Any) -> Last:
        """That of a prefilled request; features: [B, T, H] of the prompt. reading: how slots would be read."""
        last = torch.tensor([len(ids) - 2 for ids in state.ids], device=features.device)
        return cls(features[torch.arange(len(last), device=last.device), last])

    def observe(self, draft: Draft, features: Tensor, accepted: Accepted) -> None:
        """Move on to the last accepted node; features: [B, N, H] of all nodes of the draft."""
        self.features = at_end(features, accepted)

    def read(self, forward: Forward) -> Tensor:
        """[B, H]; there is nothing to forward."""
        return self.features

    def forget(self) -> None:
        """Nothing was forwarded."""


def portions(width: int, counts: list[int], most: int) -> Iterator[tuple[slice, list[int]]]:
    """Slots [B, width] in portions of at most `most` columns, and how many of each row's real slots are in each."""
    for start in range(0, width, most):
        yield slice(start, start + most), [min(max(count - start, 0), most) for count in counts]


def joined(waiting: list[tuple[Tensor, Tensor, list[int]]]) -> tuple[Tensor, Tensor, list[int]]:
    """Several rounds' slots as one: tokens [B, M], what was heard [B, M, T], counts; each row's real slots, no gaps."""
    if len(waiting) == 1:
        return waiting[0]
    tokens, heard = (torch.cat(part, 1) for part in list(zip(*waiting, strict=True))[:2])
    device = tokens.device
    real = torch.cat(
        [
            torch.arange(part.shape[1], device=device) < torch.tensor(n, device=device)[:, None]
            for part, _, n in waiting
        ],
        1,
    )
    counts = [sum(some) for some in zip(*(n for _, _, n in waiting), strict=True)]
    order = real.to(torch.uint8).argsort(dim=1, descending=True, stable=True)[:, : max(counts)]
    return tokens.gather(1, order), heard.gather(1, order[..., None].expand(-1, -1, heard.shape[-1])), counts
