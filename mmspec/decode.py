"""The decode loop. One loop for every modality and method.

draft    = what may come next, a tree of tokens
verified = what the target says after every node, in one forward
accepted = the path that the rule keeps, and the token that follows it
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Protocol

import torch

from mmspec.contract import Accepted, Draft, Drafter, Kind, Round, Rule, State, Target
from mmspec.control import NO_DRAFT, OWN, Control
from mmspec.errors import MismatchError, OutOfMemoryError, out_of_memory
from mmspec.sampling import Sampler


class Stop(Protocol):
    """Decides where each row ends; fills the host side of `accepted`, with one copy from the device."""

    def start(self, state: State) -> list[list[int]]:
        """Take over the first tokens; returns what each row has emitted so far."""

    def cut(self, state: State, draft: Draft, accepted: Accepted) -> None:
        """Truncate what a row emits at its first stop, mark rows that are done."""


def choose_kind(rule: Rule, drafter: Drafter) -> Kind:
    """The best kind of proposal that both take. Raises MismatchError if there is none."""
    if getattr(drafter, "reuses", False) and getattr(rule, "looks_ahead", False):
        raise MismatchError(
            f"the rule {type(rule).__name__} looks at every drafted token, and the drafter {type(drafter).__name__} "
            "drafts rejected ones again, which would bias them; the rules 'ratio' and 'exact' stop at the first one"
        )
    for kind in rule.takes:
        if kind in drafter.kinds:
            return kind
    raise MismatchError(
        f"the rule {type(rule).__name__} takes proposals of kind {' or '.join(rule.takes)}, the drafter "
        f"{type(drafter).__name__} makes {' or '.join(sorted(drafter.kinds))}; the rule 'exact' takes every kind"
    )


@torch.inference_mode()  # entered and left around every yield
def decode(
    target: Target,
    drafter: Drafter,
    rule: Rule,
    inputs: dict[str, Any],
    sampler: Sampler,
    stop: Stop,
    control: Control = OWN,
) -> Iterator[Round]:
    """Generate with `target`, drafting with `drafter`, accepting by `rule`; yields every round, the prefill first.

    control: chooses how large each draft should be; by default the drafter does.
    """
    clock = time.perf_counter
    kind = choose_kind(rule, drafter)
    started = clock()
    state = target.prefill(inputs, drafter.needs, sampler)
    state.chains = getattr(rule, "chains", False) and not sampler.greedy
    prefilled = clock()
    first = stop.start(state)
    drafting = drafter.begin(state, sampler, kind)
    state.forget_prompt()
    plan = control.begin(len(first), sampler, rule)
    yield Round(first, [0] * len(first), verify_s=prefilled - started, other_s=clock() - prefilled, prefill=True)

    while not all(state.done):
        begun = clock()
        state.shape = plan.choose(state.room)
        draft = state.undrafted() if state.shape == NO_DRAFT else drafting.propose(state)
        drafted = clock()
        verified = target.verify(state, draft)
        checked = clock()
        scores = sampler.warp(draft, verified.logits)
        accepted = rule(draft, scores, sampler, state.emitted)
        stop.cut(state, draft, accepted)
        target.commit(state, draft, accepted)
        decided = clock()
        drafting.observe(state, draft, verified, accepted)
        ended = clock()
        done = Round(
            accepted.emitted,
            accepted.drafted,
            proposed=draft.size - (accepted.next is not None),
            draft_s=drafted - begun + ended - decided,
            verify_s=checked - drafted,
            other_s=decided - checked,
        )
        plan.learn(draft, accepted, done)
        yield done


def within_memory(rounds: Iterator[Round], target: Any, inputs: dict[str, Any]) -> Iterator[Round]:
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
