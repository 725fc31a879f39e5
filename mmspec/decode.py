"""The decode loop. One loop for every modality and method.

draft    = what may come next, a tree of tokens
verified = what the target says after every node, in one forward
accepted = the path that the rule keeps, and the token that follows it

A round ends when the host has read what was accepted. Where target and drafter need not know it, the next round starts
before (`early` of `State` and of `Drafting`): then a GPU never waits for the host. The last such round may be in vain.
A target that can `play` a round verifies, judges and commits it in one launch.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor

from mmspec.contract import Accepted, Draft, Drafter, Kind, PlayingTarget, Round, Rule, Target, Verified
from mmspec.control import NO_DRAFT, OWN, Control, Fixed, Plan
from mmspec.errors import MismatchError, OutOfMemoryError, out_of_memory
from mmspec.registry import name_of
from mmspec.sampling import Sampler
from mmspec.stopping import Stop
from mmspec.tree import trunk


class Reading:
    """The values of a tensor, on their way to the host while it goes on; on CUDA into pinned memory, behind all work
    queued before."""

    def __init__(self, tensor: Tensor) -> None:
        self.host = tensor.to("cpu", non_blocking=tensor.is_cuda)
        self.arrived: Any = torch.cuda.current_stream(tensor.device).record_event() if tensor.is_cuda else None

    def values(self) -> list[Any]:
        """The values as lists; waits until they are there."""
        if self.arrived is not None:
            self.arrived.synchronize()
        found: list[Any] = self.host.tolist()
        return found


@dataclass
class Started:
    """A round of which the host has not read what was accepted; `round` has its times so far."""

    draft: Draft
    verified: Verified
    accepted: Accepted
    read: Reading
    round: Round


class Clock:
    """Tells the seconds since it was last asked."""

    def __init__(self) -> None:
        self.last = time.perf_counter()

    def lap(self) -> float:
        """Those seconds; the next ones count from now."""
        before, self.last = self.last, time.perf_counter()
        return self.last - before


def choose_kind(rule: Rule, drafter: Drafter) -> Kind:
    """The best kind of proposal that both take. Raises MismatchError if there is none."""
    biased = drafter.reuses and rule.looks_ahead
    kinds = [kind for kind in rule.takes if kind in drafter.kinds]
    if kinds and not biased:
        return kinds[0]
    said, made = name_of("rules", rule), name_of("drafters", drafter)
    if biased:
        raise MismatchError(
            f"the rule {said!r} looks at every drafted token, and the drafter {made!r} drafts rejected ones again, "
            "which would bias them; the rules 'ratio' and 'exact' stop at the first one"
        )
    raise MismatchError(
        f"the rule {said!r} takes proposals of kind {' or '.join(rule.takes)}, the drafter {made!r} makes "
        f"{' or '.join(sorted(drafter.kinds))}; the rule 'exact' takes every kind"
    )


def expected(plan: Plan, drafter: Drafter) -> tuple[int, ...]:
    """How many nodes drafts will have, for `Needs.nodes`: of plain steps, and of the shapes that a plan chooses from.
    How large a drafter's own are, the first one shows."""
    shapes = [plan.shape] if isinstance(plan, Fixed) else drafter.shapes
    return 1, *(shape.total for shape in shapes if shape is not None)


@torch.inference_mode()  # entered and left around every yield
def decode(
    target: Target,
    drafter: Drafter,
    rule: Rule,
    inputs: dict[str, Any],
    sampler: Sampler,
    stop: Stop,
    control: Control = OWN,
) -> Generator[Round]:
    """Generate with `target`, drafting with `drafter`, accepting by `rule`; yields every round, the prefill first.

    control: chooses how large each draft should be; by default the drafter does.
    """
    kind = choose_kind(rule, drafter)
    plan = control.begin(len(sampler.seeds), sampler, rule)
    clock = Clock()
    state = target.prefill(inputs, replace(drafter.needs, nodes=expected(plan, drafter)), sampler)
    state.chains |= rule.chains and not sampler.greedy
    prefill_s = clock.lap()
    first = stop.start(state)
    drafting: Any = None if all(state.done) else drafter.begin(state, sampler, kind)
    state.forget_prompt()
    state.steady = isinstance(plan, Fixed)
    early = state.early and drafting is not None and drafting.early
    plays = early and state.plays and rule.on_device
    yield Round(first, [0] * len(first), verify_s=prefill_s, other_s=clock.lap(), prefill=True)

    def start() -> Started:
        """Draft, verify and judge."""
        draft = state.undrafted() if state.shape == NO_DRAFT else drafting.propose(state)
        if state.chains:
            draft = trunk(draft)
        draft_s = clock.lap()
        if plays:
            verified, accepted = cast(PlayingTarget, target).play(state, draft, rule)
            verify_s = clock.lap()
        else:
            verified = target.verify(state, draft)
            verify_s = clock.lap()
            scores = sampler.warp(draft, verified.logits)
            accepted = rule(draft, scores, sampler, state.emitted)
            accepted.running = [not done for done in state.done]
        read = Reading(stop.ask(state, draft, accepted))
        proposed = draft.size - (accepted.next is not None)
        return Started(draft, verified, accepted, read, Round([], [], proposed, draft_s, verify_s, clock.lap()))

    def keep(one: Started) -> None:
        """Tell target and drafter what was accepted."""
        clock.lap()
        if not plays:
            target.commit(state, one.draft, one.accepted)
        one.round.other_s += clock.lap()
        drafting.observe(state, one.draft, one.verified, one.accepted)
        one.round.draft_s += clock.lap()

    def finish(one: Started) -> Round:
        """Read what was accepted."""
        clock.lap()
        stop.cut(state, one.draft, one.accepted, one.read.values())
        one.round.tokens, one.round.drafted = one.accepted.emitted, one.accepted.drafted
        one.round.offered = one.accepted.offered
        one.round.other_s += clock.lap()
        if not early:
            keep(one)
        if all(state.done):  # the time of one in vain is this answer's, too
            one.round.other_s += sum(vain.round.seconds for vain in started)
        clock.lap()
        plan.learn(one.draft, one.accepted, one.round)
        one.round.other_s += clock.lap()
        return one.round

    started: deque[Started] = deque()
    while not all(state.done):
        clock.lap()
        state.shape = plan.choose(state.room - len(started))
        if started and (state.room < 1 or not (state.shape == NO_DRAFT or drafting.ahead(state))):
            yield finish(started.popleft())
            if all(state.done):
                return
            clock.lap()
        try:
            started.append(start())
            if early:
                keep(started[-1])
        except RuntimeError:  # out of memory, say: what was verified has its tokens all the same, and may be the end
            while started and not all(state.done):
                yield finish(started.popleft())
            if all(state.done):
                return
            raise
        if not early or len(started) > 1:
            yield finish(started.popleft())


def within_memory(rounds: Generator[Round], target: Any, inputs: dict[str, Any]) -> Generator[Round]:
    """The rounds of a request, as `decode` yields them.

    Raises: OutOfMemoryError: too little memory. Nothing of the request is kept, so a smaller one can follow.
    """
    try:
        yield from rounds
        return
    except RuntimeError as error:
        # Raised below instead: in here our error would keep that one, and with it the request's tensors.
        if not out_of_memory(error):
            raise
    model, rows = target.model, len(inputs["input_ids"])
    raise OutOfMemoryError(
        f"{model.device} ran out of memory with a batch of {rows}, max_new_tokens={inputs['max_new_tokens']} and "
        f"{model.dtype}: take a smaller batch, a shorter prompt, fewer tokens, a smaller shape or a smaller dtype"
    )
