"""Compiled verification: an HF model's forward over drafts of a few fixed sizes, on a cache of fixed size.

A draft is padded to the next size with nodes that nobody sees. For every size, number of rows and size of the cache the
forward is compiled once (`torch.compile`, whole graph, no dynamic shapes): for sizes that a request expects with its
prompt, for others when they come. What runs in one launch on CUDA, the forward alone, commits, whole drafts and rounds,
is captured when the first of its size comes: rounds that are played whole never ask for a forward alone. The prompt
itself is read by plain calls: its length is never the same.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import replace
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedConfig

from mmspec.cache import RowCache
from mmspec.causal_state import CausalState
from mmspec.contract import Accepted, Draft, Rule
from mmspec.decoder import Decoder, Heard
from mmspec.engine.attention import NAME as TREE_ATTENTION
from mmspec.engine.attention import TreeSlots, use_masked_attention, use_tree_attention
from mmspec.engine.cache import FRONT, KEPT, OVER, Slab, Slabs, StaticRows
from mmspec.engine.compiled import Compiled
from mmspec.engine.fusing import fuse
from mmspec.engine.graphs import Graph, make_room, renewed
from mmspec.engine.judging import judge_round
from mmspec.engine.lane import Lane, Taps
from mmspec.engine.sizes import padded
from mmspec.engine.steps import WIDTHS, Steps
from mmspec.running import KINDS
from mmspec.sampling import Sampler

SIZES = (1, 8, 16, 32, FRONT)
"""Nodes of a draft, node 0 included, for which a target is compiled."""

MOST_KEPT = 16
"""Recorded rounds of different laws and rules on the same addresses."""


class Engine:
    """Runs the verifications of a `mmspec.decoder.Decoder`.

    Args: decoder: what is compiled. backend: of `torch.compile`; None for plain calls, with static caches all the same.
        sizes: numbers of nodes to which drafts are padded, ascending; larger ones are padded to a power of two.
        early: see `mmspec.contract.State`; by default where there is CUDA: elsewhere the round in vain at the end of a
        request is all that would come of it.
    Raises: UnsupportedError, with the first request: the model's forward is none that can be compiled whole.
    """

    def __init__(
        self,
        decoder: Decoder,
        backend: str | None = "inductor",
        sizes: tuple[int, ...] = SIZES,
        early: bool | None = None,
    ) -> None:
        self.decoder, self.sizes = decoder, sizes
        self.early = decoder.device.type == "cuda" if early is None else early
        self.slabs = Slabs()
        self.backend = backend
        use_tree_attention(decoder.model)
        if backend is not None:
            fuse(decoder.language())
        self.compiled = Compiled(self._step, backend, type(decoder.model).__name__)
        self.judging = Compiled(judge_round, backend, "an acceptance rule")

    def steps(
        self, net: nn.Module, forward: Callable[..., Tensor], name: str, widths: tuple[int, ...] = WIDTHS
    ) -> Steps:
        """The same for a drafter's own layers, those of `net`. Arguments as for `Steps`."""
        use_masked_attention(net)
        if self.backend is not None:
            fix_frequencies(net)
            fuse(net)
        return Steps(forward, self.backend, name, widths)

    def settle(self, cache: RowCache, budget: int, taps: Taps = (), nodes: tuple[int, ...] | None = None) -> StaticRows:
        """The static cache of a prefilled request. See `mmspec.decoder.Decoder.settle`."""
        room = min(max(cache.lengths) + budget, self.decoder.max_length) + OVER * self.early
        expected = self.sizes if nodes is None else sorted({self.padded(count) for count in nodes})
        rows = StaticRows(cache, self.slabs, room, max(FRONT, *self.sizes, *expected))
        for size in expected:
            self._compile(rows.slab, size, taps)
        return rows

    def extend(self, cache: RowCache, tokens: Tensor, depth: Tensor, ancestors: Tensor, taps: Taps = ()) -> Heard:
        """Forward nodes after the committed tokens. See `mmspec.decoder.Decoder.extend`."""
        assert isinstance(cache, StaticRows)
        nodes = tokens.shape[1]
        size = self.padded(nodes)
        if size > cache.slab.front:
            cache.grow(size, cache.slab.room)
        graph = self._graph(cache.slab, size, taps)
        cache.slab.lanes[size].load(tokens, depth, ancestors)
        logits, states = graph()
        return Heard(logits[:, :nodes], {tap: found[:, :nodes] for tap, found in states.items()})

    def play(self, state: CausalState, draft: Draft, rule: Rule) -> tuple[Heard, Accepted, Tensor]:
        """Verify a draft, judge it and commit what was accepted, on CUDA in one launch.

        Args: state: one that is `early`; nothing is kept of rows that have ended, as far as the host knows. rule: one
            that is `on_device`.
        Returns: the taps of the nodes (and no logits, [B, 0, V]), what was accepted of them and is committed, and how
            many tokens each row has emitted then, [B] int64.
        Raises: UnsupportedError: the rule cannot be compiled.
        """
        cache, sampler = state.cache, state.sampler
        assert isinstance(cache, StaticRows)
        size = self.padded(draft.size)
        room = cache.most + draft.levels + 1
        if size > cache.slab.front or room > cache.slab.room:
            cache.grow(size, room)
        longest, often = padded(draft.levels + 1, KEPT), state.often(sampler)
        graph = self._round(cache.slab, size, longest, state.taps, rule, sampler, often)
        running = [not done for done in state.done]
        cache.slab.lanes[size].load_round(draft, state.emitted, sampler.seeds, running)
        nothing, states, path, count, following, reported, after = graph()
        accepted = Accepted(path, count, following, running=running, report=reported)
        cache.note(draft, accepted)
        return Heard(nothing, {tap: found[:, : draft.size] for tap, found in states.items()}), accepted, after

    def padded(self, nodes: int) -> int:
        """The size at which a draft of that many nodes is forwarded."""
        return padded(nodes, self.sizes)

    def _step(
        self, slab: Slab, tokens: Tensor, depth: Tensor, ancestors: Tensor, taps: Taps
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """What is compiled. An attention function of our own is told where the tree stands, and reads no mask."""
        more: dict[str, Any] = {}
        if self.decoder.config._attn_implementation == TREE_ATTENTION:
            more["tree"] = TreeSlots(tokens.shape[1], slab.front, slab.lengths, ancestors, depth)
        heard = self.decoder.step(slab, tokens, depth, ancestors, taps, **more)
        return heard.logits, heard.taps

    def _lane(self, slab: Slab, size: int) -> Lane:
        if size not in slab.lanes:
            slab.lanes[size] = Lane.of(slab.form.rows, size, slab.form.device)
        lane: Lane = slab.lanes[size]
        return lane

    def _round(
        self, slab: Slab, size: int, longest: int, taps: Taps, rule: Rule, sampler: Sampler, often: bool
    ) -> Graph:
        """What plays a round with the nodes of a lane, whose paths have at most `longest` nodes; recorded if it is not
        there yet."""
        lane = self._lane(slab, size)
        # what is recorded keeps its rule, so no other one has its id
        key = longest, taps, id(rule), replace(sampler.sampling, seed=0), often
        if not renewed(lane.rounds, key):
            self._compile(slab, size, taps)  # not while it is recorded, when other requests wait
            sampler = copy(sampler)
            judged: Any = self.judging if often else judge_round
            inputs = slab, lane.tokens, lane.depth, lane.ancestors, taps
            told, running = lane.told, lane.running  # no part of a lane holds the lane: see `Slab.drop`

            def run() -> Any:
                """Keeps what is accepted in rows that are running. Nobody asks for logits: they are large."""
                logits, states = self.compiled(*inputs)
                source, goal, kept, path, count, *more = judged(slab, running, logits, *told, rule, sampler, longest)
                slab.move(source, goal, kept)
                return logits.new_empty(len(logits), 0, logits.shape[-1]), states, path, count, *more

            running.zero_()  # while it is recorded
            lane.going = None
            lane.depth.zero_()  # what was there may have been deeper
            make_room(lane.rounds, list(lane.rounds), MOST_KEPT)
            lane.rounds[key] = Graph(run, self.compiled.place(slab.form.device))
        return lane.rounds[key]

    def _compile(self, slab: Slab, size: int, taps: Taps) -> None:
        """See to it that the forward is compiled for a lane."""
        lane = self._lane(slab, size)
        if taps not in lane.ready:
            self.compiled.compile(slab, lane.tokens, lane.depth, lane.ancestors, taps)
            lane.ready.add(taps)

    def _graph(self, slab: Slab, size: int, taps: Taps) -> Graph:
        """What forwards the nodes of a lane; made, and for new shapes compiled, if it is not there yet."""
        lane = self._lane(slab, size)
        if taps not in lane.graphs:
            inputs = slab, lane.tokens, lane.depth, lane.ancestors, taps
            lane.graphs[taps] = self.compiled.graph(slab.form.device, *inputs)
        return lane.graphs[taps]


def misfit(config: PreTrainedConfig) -> str:
    """Why a decoder of this configuration cannot be compiled; "" if nothing speaks against it.

    The static cache holds keys and values of a layer in one tensor, and what is compiled asks the device for nothing,
    as frequencies do that follow the length of the text, unless `fix_frequencies` can help.
    """
    if getattr(config, "kv_lora_rank", None):  # DeepSeek-V2
        return "its layers keep keys that are longer than their values"
    if KINDS & set(getattr(config, "layer_types", None) or ()):
        return "some of its layers keep a running state"
    sets = [one for one in (getattr(config, "rope_parameters", None) or {}).values() if isinstance(one, dict)]
    if any(one.get("rope_type") == "dynamic" for one in sets):  # one set per kind of layer
        return "its rotary frequencies follow the length of the text (dynamic scaling)"
    return ""


def fix_frequencies(model: Any) -> None:
    """Let rotary frequencies that follow the length of the text (dynamic scaling) be the usual ones. They are, as far
    as a model is served (`mmspec.decoder.context_of`), but every forward asks the device for that length."""
    for module in model.modules():
        if getattr(module, "rope_type", None) == "dynamic":
            module.inv_freq.copy_(module.original_inv_freq)  # a longer text may have been read before
            module.rope_type = "default"
