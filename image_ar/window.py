"""A Jacobi window: guesses for the next tokens, redrawn after every round from what the target said about them.

The target's forward over a window of guesses yields, after each guess, a law for the place behind it. Whatever was not
accepted is drawn again from these laws and verified in the next round; no other model drafts. The methods differ in how
they draw again (`mmspec.image_ar.jacobi`); here is what they share: shifting the window by what each row accepted,
first guesses for new places, and the law `q` that every guess was drawn from.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from mmspec import noise
from mmspec.contract import Accepted, Draft, Drafter, Drafting, Kind, Shape, State, Verified
from mmspec.errors import InputError
from mmspec.image_ar.guesses import RANDOM, Places, check_init, layout_for
from mmspec.image_ar.layout import UNKNOWN, Layout
from mmspec.sampling import Sampler
from mmspec.tree import chain, within_room

AGAIN, FIRST, REST, COINS, SIBLINGS = range(5)
"""What a drafter's noise is for; each use has counters of its own."""
WIDEST = 255
WINDOWS = (1, 2, 4, 8, 16, 32, 64, 128)


@dataclass
class Guesses:
    """Tokens [B, K] at places [B, K] and, where drafts are sampled, the laws [B, K, V] that they were drawn from."""

    tokens: Tensor
    q: Tensor | None


class JacobiDrafter(Drafter):
    """Base of the methods.

    Args: window: tokens drafted per round, 1 to 255. init: first guesses, see `mmspec.image_ar.guesses`.
    Raises: InputError: another window or initialisation.
    """

    own_window = 16

    def __init__(self, window: int | None = None, init: str = RANDOM) -> None:
        window = self.own_window if window is None else window
        if not isinstance(window, int) or not 1 <= window <= WIDEST:
            raise InputError(f"a Jacobi window of {window!r} is not valid: 1 to {WIDEST} tokens are possible")
        self.window, self.init = window, check_init(init)
        self.shapes = tuple(Shape(size) for size in (*(size for size in WINDOWS if size < window), window))
        self.layout: Layout | None = None
        self.vocab_size = 0

    def bind(self, target: Any) -> None:
        """Learn the vocabulary and the layout."""
        self.layout, self.vocab_size = layout_for(target, self.init), target.vocab_size

    def begin(self, state: State, sampler: Sampler, kind: Kind) -> Window:
        """Fill the window with first guesses."""
        return Window(self, state, sampler, kind)

    @abstractmethod
    def redraw(self, at: Redraw) -> Tensor:
        """[B, K] tokens for the window's next round."""


@dataclass
class Redraw:
    """What a method draws again from.

    scores: [B, K, V] warped log-scores of the target. old: the guesses that stood at the first of these places.
    places: [B, K]. round: [B] a counter that no other round has. first: these are first guesses, nothing stood there.
    column: where in the window they begin; it tells the noise of a place, which other rows must not change.
    """

    sampler: Sampler
    kind: Kind
    scores: Tensor
    places: Tensor
    round: Tensor
    old: Guesses | None = None
    first: bool = False
    column: int = 0

    def fresh(self, use: int) -> Tensor:
        """Gumbel noise [B, K, V] that is new in every round, from the drafter's own stream."""
        lanes = self.column + torch.arange(self.scores.shape[1], device=self.round.device)
        counters = self.round[:, None] * 2**16 + use * 2**8 + lanes
        return noise.gumbel(self.sampler.seeds, noise.DRAFT, counters, self.scores.shape[-1])

    def shared(self) -> Tensor:
        """Gumbel noise [B, K, V] that stays with a place: the target's own for coupled drafts, else the drafter's."""
        if self.kind == "coupled":
            return self.sampler.target_noise(self.places, self.scores.shape[-1])
        return noise.gumbel(self.sampler.seeds, noise.DRAFT, self.places, self.scores.shape[-1])

    def coins(self, count: int) -> Tensor:
        """Uniform numbers [B, count], new in every round."""
        counters = self.round[:, None] * 2**16 + COINS * 2**8 + torch.arange(count, device=self.round.device)
        return noise.uniform(self.sampler.seeds, noise.DRAFT, counters, 1)[..., 0]


@dataclass
class Window(Drafting):
    """A Jacobi drafter on one request.

    guesses: for the W places behind the pending token. drafted: the draft that waits for its verification.
    spine: the nodes that hold the guesses, node 0 first, where the draft is a tree.
    """

    drafter: JacobiDrafter
    state: State
    sampler: Sampler
    kind: Kind
    guesses: Guesses = field(init=False)
    past: Places = field(init=False)
    drafted: Draft | None = None
    spine: Tensor | None = None

    def __post_init__(self) -> None:
        state, own = self.state, self.drafter
        assert state.pending is not None
        self.sampled = self.kind == "sampled" and not self.sampler.greedy
        layout = getattr(state, "layout", own.layout)  # the request's, where a target draws several sizes
        self.past = Places.start(own.init, layout, own.vocab_size, state.pending, own.window)
        self.guesses = self._first(self._places(state), state)

    def propose(self, state: State) -> Draft:
        """The pending token and the window, as a chain."""
        assert state.pending is not None
        size = min(state.levels(self.drafter.window), self.drafter.window)
        tokens = torch.cat([state.pending[:, None], self.guesses.tokens[:, :size]], 1)
        q = None
        if self.guesses.q is not None:
            q = torch.nn.functional.pad(self.guesses.q[:, :size], (0, 0, 0, 1))
        self.drafted = chain(tokens, self.kind, q)
        self.drafted.valid = within_room(self.drafted, state)
        return self.drafted

    def observe(self, state: State, draft: Draft, verified: Verified, accepted: Accepted) -> None:
        """Draw the window again, shift it by what each row accepted, and guess what is new."""
        if all(state.done):
            return
        own, self.drafted = draft is self.drafted, None
        spine, self.spine = self.spine if own else None, None
        before = state.emitted - accepted.count
        logits = verified.logits if spine is None else verified.logits[:, spine]
        self._remember(before, draft, logits, accepted, own)
        if own or draft.size == 1:
            self._slide(state, before, self._again(state, before, logits[:, 1:]), accepted)
        else:  # another drafter's: our guesses were not looked at, and no longer fit
            self.past.known = state.emitted - 1
            self.guesses = self._first(self._places(state), state)

    def _remember(self, before: Tensor, draft: Draft, logits: Tensor, accepted: Accepted, own: bool) -> None:
        """Tell what guesses look back at: which tokens were emitted, and the target's laws along a chain of ours."""
        if self.past.init == RANDOM:
            return
        assert accepted.next is not None
        run = torch.cat([draft.tokens.gather(1, accepted.path)[:, 1:], accepted.next[:, None]], 1)
        place = torch.arange(run.shape[1], device=run.device)
        ends = accepted.count[:, None] - 1  # the padding of shorter paths is overwritten by the token that follows
        run = torch.where(place < ends, run, accepted.next[:, None])
        self.past.note(before[:, None] + torch.minimum(place, ends), run)
        if self.past.laws is not None and (own or draft.size == 1):
            nodes = torch.arange(logits.shape[1], device=run.device)
            self.past.note_laws(before[:, None] + nodes, self.sampler.shape(logits))

    def _again(self, state: State, before: Tensor, logits: Tensor) -> Guesses:
        """Guesses for window places 1 and on: redrawn ones from `logits` [B, K, V], then those not verified."""
        size = logits.shape[1]
        tokens, q = self.guesses.tokens[:, 1:], None if self.guesses.q is None else self.guesses.q[:, 1:]
        if size == 0:
            return Guesses(tokens, q)
        places = before[:, None] + torch.arange(1, size + 1, device=before.device)
        old = Guesses(tokens[:, :size], None if q is None else q[:, :size])
        scores = self.sampler.shape(logits)
        again = self._draw(Redraw(self.sampler, self.kind, scores, places, state.emitted, old))
        return Guesses(
            torch.cat([again.tokens, tokens[:, size:]], 1),
            None if q is None or again.q is None else torch.cat([again.q, q[:, size:]], 1),
        )

    def _slide(self, state: State, before: Tensor, again: Guesses, accepted: Accepted) -> None:
        """The window behind each row's new pending token. `again` stands at the old window places 1 to `top`."""
        places, top = self._places(state), again.tokens.shape[1]
        self.past.known = before + (accepted.count - 1).clamp(min=top)
        start = max(0, top + 1 - max(map(len, accepted.paths)))  # every row knows its guesses before it
        if top == 0:
            self.guesses = self._first(places, state)
            return
        index = places - before[:, None]  # [B, W] in the old window
        known, index = index <= top, (index - 1).clamp(max=top - 1)
        tokens = again.tokens.gather(1, index)
        self.past.note(places, tokens)  # first guesses copy what was drawn again, and nothing of what lies behind it
        first = self._first(places[:, start:], state, start, torch.where(known, tokens, UNKNOWN))
        known = known[:, start:]
        tokens[:, start:] = torch.where(known, tokens[:, start:], first.tokens)
        q = None
        if again.q is not None and first.q is not None:
            q = again.q.gather(1, index[..., None].expand(-1, -1, again.q.shape[-1]))
            q[:, start:] = torch.where(known[..., None], q[:, start:], first.q)
        self.guesses = Guesses(tokens, q)
        self.past.note(places, tokens)

    def _places(self, state: State) -> Tensor:
        """[B, W] the places behind the pending token."""
        return state.emitted[:, None] + torch.arange(self.drafter.window, device=state.emitted.device)

    def _first(self, places: Tensor, state: State, column: int = 0, window: Tensor | None = None) -> Guesses:
        """First guesses for places [B, K], the window's from `column` on.

        Args: window: [B, W] what it holds already, UNKNOWN (below 0) where it holds nothing; None holds nothing at all.
        """
        scores = self.past.guess(places)
        at = Redraw(self.sampler, self.kind, scores, places, state.emitted, first=True, column=column)
        first = self._draw(at)
        self.past.note(places, first.tokens)
        return first

    def _draw(self, at: Redraw) -> Guesses:
        return Guesses(self.drafter.redraw(at), at.scores.softmax(-1) if self.sampled else None)
