"""What a drafter with a layer of its own sees of a prompt with pictures, and the base of the methods that differ in
it.

As in EAGLE (`mmspec.drafters.eagle`), slot t of the shifted frame holds the token x_{t+1} and the target's feature
f_t. Where x_{t+1} is an image slot, its embedding is what the target made of a piece of the picture. A method says
which slots its layers read and what stands in them; the slots that it leaves out keep their positions, so that it
makes no difference whether they are cut, as while drafting, or hidden by a mask, as in training.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from mmspec.ancestry import in_line
from mmspec.cache import RowCache
from mmspec.contract import Kind, Needs, State
from mmspec.drafters.children import Judged
from mmspec.drafters.eagle import Eagle, OneLayer
from mmspec.drafters.growing import Above, Expand, Guess
from mmspec.drafters.heads import HeadNet
from mmspec.drafters.on_slots import OnSlots
from mmspec.drafters.slots import Forward, Slots, at_once, portions
from mmspec.errors import MismatchError
from mmspec.sampling import Sampler


def check_sees(target: Any, name: str) -> None:
    """Raise MismatchError for a target that a drafter called `name` would look at in vain."""
    if not target.placeholders:
        raise MismatchError(f"{name} drafts for models that see, and {type(target).__name__} has no image slots")


def most(focus: Tensor, image: Tensor, share: float) -> Tensor:
    """[B, T] bool: the share of each row's image slots (rounded up) with the most focus; the earlier one of
    equals."""
    rank = focus.masked_fill(~image, -torch.inf).argsort(dim=1, descending=True, stable=True).argsort(1)
    wanted = (image.sum(1, keepdim=True) * share).ceil()
    return image & (rank < wanted)


@dataclass(frozen=True)
class Sight:
    """Slots of a text, as the target read it.

    embeddings, features: [B, T, H] of x_{t+1}, pictures in place, and f_t. image: [B, T] bool, whether x_{t+1} is an
    image slot. prompt: [B] slots that belong to the prompt. focus: [B, T] how much attention x_{t+1} gets
    (`mmspec.focus`), for networks that ask for it.
    """

    embeddings: Tensor
    features: Tensor
    image: Tensor
    prompt: Tensor
    focus: Tensor | None = None


@dataclass(frozen=True)
class Seen:
    """What a network makes of a `Sight`.

    content: [B, T, C] of all slots. kept: [B, T] bool, those that are read. context: [B, 1, H] what the slots behind
    the text are told, or None. ahead: how many slots stand before slot 0, and come first in content and kept.
    """

    content: Tensor
    kept: Tensor
    context: Tensor | None = None
    ahead: int = 0


class SightHead(OneLayer):
    """fc and one decoder layer, as in an EAGLE head; subclasses say what is read of pictures.

    Args: config: the shape of the layer (`hidden_size` is the target's).
    """

    focuses: bool = False
    """Whether `see` asks for the focus."""

    def see(self, sight: Sight) -> Seen:
        """What is read of a text. Here: all of its words and nothing of its pictures."""
        return Seen(self.content(sight.embeddings, sight.features), ~sight.image)

    def content(self, embeddings: Tensor, features: Tensor, context: Tensor | None = None, step: int = 0) -> Tensor:
        """[B, N, C] of slots that hold words.

        Args: embeddings, features: [B, N, H]. context: of `Seen`. step: 0 for true features, else the level of the
            draft that the estimates stand in.
        """
        return self.fc(torch.cat([embeddings, features], -1))

    def forward(self, content: Tensor, positions: Tensor, mask: Tensor | None, cache: Any = None) -> Tensor:
        """The next features [B, N, H] of slots with contents [B, N, C]; see `OneLayer.estimate`."""
        return self.estimate(content, positions, mask, cache)


class SightDrafter(Eagle):
    """Drafts a dynamic tree with a `SightHead`."""

    net_class: ClassVar[type[HeadNet]] = SightHead

    def bind(self, target: Any) -> None:
        """Share the target's embeddings and head; ask for the prompt's embeddings, pictures included."""
        check_sees(target, self.noun)
        super().bind(target)
        self.forwards, self.steps = (), None  # a request makes its own, which knows what is seen
        self.needs = Needs(taps=self.needs.taps, embeddings=True, focus=self.net.focuses)

    def begin(self, state: State, sampler: Sampler, kind: Kind) -> Looking:
        """Read the prompt, all but the slot of the pending token, which waits for the first proposal."""
        heard = self.heard(state.prompt_taps)
        seen = self.see(state, self.net.fuse(heard))
        slots = read(self.net, seen, [len(ids) - 2 for ids in state.ids])
        assert state.pending is not None
        rows = torch.arange(len(state.ids), device=heard.device)
        last = heard[rows, [len(ids) - 2 for ids in state.ids]][:, None]
        slots.waiting.append((state.pending[:, None], last, [1] * len(rows)))
        return Looking(self, self.choice(sampler, kind), slots, context=seen.context)

    def see(self, state: State, features: Tensor) -> Seen:
        """What is read of a prefilled prompt, whose features are [B, T, H]."""
        return self.net.see(sight_of(state, features, self.target.placeholders))


@dataclass
class Looking(OnSlots):
    """A head that sees and runs on its own estimates, on one request. context: see `Seen`. step: the level at hand."""

    context: Tensor | None = None
    step: int = 0

    @property
    def forwards(self) -> tuple[Forward, ...]:
        """One that knows what is seen."""

        def forward(tokens: Tensor, features: Tensor, positions: Tensor, mask: Tensor, cache: Any) -> Tensor:
            net = self.drafter.net
            content = net.content(self.drafter.target.embed(tokens), features, self.context, self.step)
            estimates: Tensor = net(content, positions, mask, cache)
            return estimates

        return (forward,)

    def expansion(self, pending: Tensor) -> Expand:
        """Notes the level at hand."""
        expand = super().expansion(pending)
        assert not isinstance(expand, Guess)

        def at(level: int, tokens: Tensor, origin: Tensor, above: Above) -> Tensor | Judged:
            self.step = level
            return expand(level, tokens, origin, above)

        return at


def sight_of(state: State, features: Tensor, placeholders: tuple[int, ...]) -> Sight:
    """The slots of a prefilled request, but for the pending token's; features: [B, T, H] of the prompt."""
    assert state.prompt_embeddings is not None
    width = features.shape[1]
    texts = [ids[:-1] for ids in state.ids]
    image = torch.tensor(
        [[token in placeholders for token in text] + [False] * (width - len(text)) for text in texts],
        device=features.device,
    )
    focus = None if state.prompt_focus is None else state.prompt_focus[:, 1:]
    prompt = state.prompt_length - 1
    return Sight(state.prompt_embeddings[:, 1:], features[:, :-1], image[:, 1:], prompt, focus)


def read(net: SightHead, seen: Seen, lengths: list[int]) -> Slots:
    """A cache that holds the kept ones among the first `lengths` slots of each row (and of those ahead of them), and
    nothing that waits."""
    batch, width = seen.kept.shape
    device, dtype = seen.content.device, seen.content.dtype
    slots = torch.arange(width, device=device)
    kept = seen.kept & (slots < seen.ahead + torch.tensor(lengths, device=device)[:, None])
    counts = kept.sum(-1).tolist()
    cache = RowCache(batch, device)
    order = kept.to(torch.uint8).argsort(dim=1, descending=True, stable=True)[:, : max(counts)]
    content = seen.content.gather(1, order[..., None].expand(-1, -1, seen.content.shape[-1]))
    for here, real in portions(order.shape[1], counts, at_once(batch)):
        place = order[:, here]
        most = place.shape[1]
        causal = in_line(batch, most, device)
        net(content[:, here], place - seen.ahead, cache.mask(causal, place, dtype), cache.hf)
        cache.commit(most, [list(range(count)) for count in real])
    cut = [length - count for length, count in zip(lengths, counts, strict=True)]
    cache.shift = torch.tensor(cut, device=device)[:, None]
    return Slots(cache, [], fuse=net.fuse)
