"""SPD: a small causal language model that sees only the text drafts for a multimodal target (arXiv 2404.08856).

Image slots are removed from its prompt, so it keeps its own positions and cache. One token per step; the children of a
node are one token each (a chain), drawn as the rule asks: coupled with the target's noise, sampled with noise of its
own, or the argmax. Pictures reach it only through the words that were already emitted.

Vocabularies may differ behind what they have in common, as where a VLM adds ids to those of its language model: what
the target does not know is cut from the drafter's law, what the drafter does not know has no chance there, is left
out of a prompt, and is read as another id once it was emitted.
"""

from __future__ import annotations

from dataclasses import dataclass
from os.path import commonprefix
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from mmspec.cache import RowCache
from mmspec.checkpoints import quiet, read_model
from mmspec.contract import Accepted, Draft, Drafting, Kind, State, TrainedDrafter, Verified
from mmspec.control import CHAINS
from mmspec.decoder import Decoder
from mmspec.drafters.vocabulary import first_difference
from mmspec.errors import InputError, MismatchError
from mmspec.grouped import use_grouped_attention
from mmspec.placeholders import forbid, words
from mmspec.sampling import Sampler
from mmspec.tree import chain

TOKENIZER = "tokenizer_config.json"
UNKNOWN = 0
"""What is read for an emitted id that the drafter does not know; in most vocabularies it is a control token."""


class Independent(TrainedDrafter):
    """Drafts with a language model that shares the target's vocabulary.

    Args: model: an HF causal LM. length: tokens drafted per round (gamma). tokenizer: the model's, which shows that its
        ids mean what the target's do.
    """

    kinds: frozenset[Kind] = frozenset({"point", "sampled", "coupled"})
    shapes = CHAINS
    method = "spd"
    source = "SPD for multimodal models, arXiv 2404.08856"
    fits: tuple[str, ...] = ("vocab_size", "tokenizer")
    model_class: ClassVar[Any] = AutoModelForCausalLM
    tokenizer: Any = None
    gap = 0
    """How many ids the target knows beyond the drafter's; negative, where the drafter knows more."""

    def __init__(self, model: PreTrainedModel, length: int = 4, tokenizer: Any = None) -> None:
        if length < 1:
            raise InputError(f"an independent drafter needs length >= 1, got {length}")
        self.decoder = Decoder(model)
        self.net: Any = model
        self.length, self.tokenizer = length, tokenizer
        self.vocab_size = model.get_output_embeddings().weight.shape[0]

    def bind(self, target: Any) -> None:
        """The vocabularies must be one, as far as both go."""
        self.gap = target.vocab_size - self.vocab_size
        theirs = getattr(target, "tokenizer", None)
        sizes = f"the drafter has a vocabulary of {self.vocab_size} ids, the target one of {target.vocab_size}"
        if self.tokenizer is not None and theirs is not None:
            other = first_difference(self.tokenizer, theirs, min(self.vocab_size, target.vocab_size))
            if other is not None:
                raise MismatchError(
                    f"{sizes}, and the id {other} is one word to the drafter's tokenizer and another to the target's: "
                    "an independent drafter must share the target's tokenizer"
                )
        elif self.gap:
            raise MismatchError(
                f"{sizes}, and without both tokenizers nobody knows whether the ids that they share mean the same: "
                "take a drafter with the target's vocabulary, or one whose folder holds its tokenizer"
            )
        self.placeholders = target.placeholders

    def save(self, folder: Path) -> dict[str, Any]:
        """Write the stock HF folder; returns what `drafter.json` must say beside it."""
        with quiet():
            self.decoder.model.save_pretrained(folder)
            if self.tokenizer is not None:
                self.tokenizer.save_pretrained(folder)
        return {"options": {"length": self.length}}

    @classmethod
    def load(cls, folder: Path, description: dict[str, Any], target: Any) -> Independent:
        """The counterpart of `save`, on the device and in the dtype of `target`."""
        model = read_model(cls.model_class, folder, target.model.dtype).to(target.model.device)
        use_grouped_attention(model)
        tokenizer = None
        if (folder / TOKENIZER).exists():
            tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        return cls(model, tokenizer=tokenizer, **description.get("options", {}))

    def known(self, tokens: Tensor) -> Tensor:
        """Ids [..] as the model reads them."""
        return tokens.masked_fill(tokens >= self.vocab_size, UNKNOWN) if self.gap > 0 else tokens

    def heard(self, ids: list[int]) -> list[int]:
        """What it reads of a prompt."""
        return words(ids, self.placeholders, self.vocab_size)

    def check_room(self, width: int, counted: str = "tokens") -> None:
        """Raise InputError unless something can follow a prompt of that many tokens, which messages call `counted`."""
        if width >= self.decoder.max_length:
            raise InputError(
                f"the prompt has {width} {counted}, the drafter's context is {self.decoder.max_length}: shorten it, or "
                "use another drafter"
            )

    def begin(self, state: State, sampler: Sampler, kind: Kind) -> Writing:
        """Read the prompts without their image slots; the pending tokens wait for the first proposal."""
        texts = [self.heard(ids[:-1]) or ids[-2:-1] for ids in state.ids]
        width = max(map(len, texts))
        self.check_room(width, "text tokens")
        device = self.decoder.device
        ids = torch.tensor([text + text[-1:] * (width - len(text)) for text in texts], device=device)
        cache, _ = self.decoder.read([{"input_ids": self.known(ids)}], [len(text) for text in texts])
        return Writing(self, sampler, kind, cache, [ids[-1:] for ids in state.ids])


def same_weights(mine: dict[str, Tensor], theirs: dict[str, Tensor]) -> bool:
    """Whether a part of two models has the same weights, on the same device and in the same dtype."""
    return mine.keys() == theirs.keys() and all(
        (weight.device, weight.dtype) == (theirs[name].device, theirs[name].dtype) and weight.equal(theirs[name])
        for name, weight in mine.items()
    )


@dataclass
class Writing(Drafting):
    """An independent drafter on one request.

    unread: per row, the tokens that its cache has not seen yet, the pending one last; none, where the row is done.
    drafted: the draft that waits for its verification; the cache holds all of it but the last token.
    """

    drafter: Independent
    sampler: Sampler
    kind: Kind
    cache: RowCache
    unread: list[list[int]]
    drafted: Draft | None = None

    def propose(self, state: State) -> Draft:
        """A chain of `length` tokens, shorter near the budget."""
        assert state.pending is not None
        length = state.levels(self.drafter.length)
        tokens: list[Tensor] = [state.pending]
        laws: list[Tensor] = []
        for step in range(length):
            logits = self._catch_up() if step == 0 else self._step(tokens[-1])
            token, law = self._pick(logits, state.emitted, torch.stack(tokens, 1), length)
            tokens.append(token)
            if law is not None:
                laws.append(law)
        q = torch.stack([*laws, laws[-1]], 1) if laws else None  # the leaf has no children; its row is never read
        self.drafted = chain(torch.stack(tokens, 1), self.kind, q)
        return self.drafted

    def _catch_up(self) -> Tensor:
        """Read the unread tokens of every row; returns logits [B, V] after each row's pending token."""
        width = max(map(len, self.unread))
        device = self.cache.device
        tokens = torch.tensor([row + [0] * (width - len(row)) for row in self.unread], device=device)
        counts = [len(row) for row in self.unread]
        self.unread = [[] for _ in self.unread]
        logits = self._read(tokens, counts)
        self.cache.mark()
        return logits

    def _read(self, tokens: Tensor, counts: list[int]) -> Tensor:
        """Read tokens [B, M] of which the first `counts` are real; returns logits [B, V] after each row's last one."""
        places = [max(count - 1, 0) for count in counts]
        more: dict[str, Any] = {}
        if self.drafter.decoder.keeps_logits:  # of a hundred tokens all logits would take hundreds of megabytes
            wanted = sorted({*places})
            more["logits_to_keep"] = torch.tensor(wanted, device=tokens.device)
            places = [wanted.index(place) for place in places]
        logits = self._extend(tokens, **more)
        self.cache.commit(tokens.shape[1], [list(range(count)) for count in counts])
        return logits[torch.arange(len(counts), device=tokens.device), torch.tensor(places, device=tokens.device)]

    def _step(self, token: Tensor) -> Tensor:
        """Read one drafted token [B] per row; it stays in the cache until the round is judged."""
        logits = self._extend(token[:, None])[:, 0]
        self.cache.commit(1, [[0]] * len(self.cache.lengths))
        return logits

    def _extend(self, tokens: Tensor, **more: Any) -> Tensor:
        """Logits [B, M, V] over the target's vocabulary after tokens [B, M]. more: further inputs of the model."""
        steps, drafter = chain(tokens), self.drafter
        logits = drafter.decoder.step(self.cache, drafter.known(tokens), steps.depth, steps.ancestors, **more).logits
        return pad(logits, (0, drafter.gap), value=-torch.inf) if drafter.gap else logits  # cut, where it is negative

    def _pick(self, logits: Tensor, emitted: Tensor, path: Tensor, length: int) -> tuple[Tensor, Tensor | None]:
        """The token [B] after a chain `path` [B, L], never an image placeholder; its law [B, V] if it is sampled.

        Args: length: tokens that will be drafted.
        """
        step = path.shape[1] - 1
        scores = self._scores(logits, path)
        if self.kind == "sampled" and not self.sampler.greedy:
            g = self.sampler.draft_noise(emitted, step, 1, scores.shape[-1])[:, 0]
            return (scores + g).argmax(-1), scores.softmax(-1)
        if self.kind == "coupled":
            depth = torch.full_like(emitted, step)[:, None]
            return self.sampler.draw_ahead(scores[:, None], emitted, depth, length)[:, 0], None
        return scores.argmax(-1), None

    def _scores(self, logits: Tensor, path: Tensor) -> Tensor:
        """Warped log-scores [B, V] after a chain `path` [B, L]."""
        return self.sampler.after(path, forbid(logits, self.drafter.placeholders))

    def observe(self, state: State, draft: Draft, verified: Verified, accepted: Accepted) -> None:
        """Forget the rejected tokens; what was emitted and not read yet waits for the next proposal.

        The verified draft may be another's: then this drafter's own chain, if it made one, is compared with the text.
        """
        own, self.drafted = self.drafted, None
        read = 0 if own is None else max(own.size - 2, 0)
        if own is draft or not read:
            agreed = [min(len(path) - 1, read) for path in accepted.paths]
        else:
            assert own is not None
            chains = zip(own.tokens[:, 1:-1].tolist(), accepted.emitted, strict=True)
            agreed = [min(len(commonprefix(pair)), max(len(pair[1]) - 1, 0)) for pair in chains]
        if self.drafter.decoder.running:  # which goes back to where it was marked: what was kept is read once more
            agreed = [0] * len(agreed)
        moved = []
        for row, (count, emitted) in enumerate(zip(agreed, accepted.emitted, strict=True)):
            kept = count if emitted else 0
            moved.append(kept - read)
            self.unread[row] = [] if state.done[row] else self.unread[row] + emitted[kept:]
        self._move(moved)

    def _move(self, by: list[int]) -> None:
        """Take each row's cache back by some tokens (negative numbers), or not at all."""
        self.cache.fill([length + change for length, change in zip(self.cache.lengths, by, strict=True)])
