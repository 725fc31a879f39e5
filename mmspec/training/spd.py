"""Training of a language-only drafter (SPD, arXiv 2404.08856): a small Llama that learns to say what the target says.

It never sees the picture: image slots are cut from its prompts, as they are while it drafts. First it learns the
language from the data's own answers, which cost nothing; then it is aligned on the target's answers, by the
cross-entropy to the target's law after every token and, with a small weight, to the tokens themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from mmspec.drafters.independent import UNKNOWN, Independent
from mmspec.errors import InputError
from mmspec.head import head_of
from mmspec.placeholders import words
from mmspec.training.answers import Answered
from mmspec.training.chunks import in_chunks
from mmspec.training.features import Features, head_law
from mmspec.training.recipe import Recipe, setting
from mmspec.training.start import as_tables, other_kind

FOREIGN = -100
"""A token that no loss counts, to torch."""


@dataclass(frozen=True, kw_only=True)
class SpdRecipe(Recipe):
    """Shape and loss of a language-only drafter. The weights are of the target's answers; in the warm-up only tokens
    count."""

    steps: int = 600
    batch: int = 64
    rate: float = 0.02
    warm_steps: int = 300
    warm_questions: int = 8000
    layers: int = setting("layers of the small Llama that drafts", 2)
    width: int = setting("its width; that of its MLPs is 8/3 of it", 128)
    heads: int = setting("its attention heads", 4)
    token_weight: float = setting("weight of the cross-entropy to the answers' tokens", 0.1)
    law_weight: float = setting("weight of the cross-entropy to the target's law", 1.0)

    method: ClassVar[str] = "spd"
    about: ClassVar[str] = (
        "A language-only drafter: a small Llama with the target's vocabulary that drafts from the words alone "
        "(arXiv 2404.08856)."
    )
    context: ClassVar[bool] = False
    drafter_class: ClassVar[type[Independent]] = Independent

    def __post_init__(self) -> None:
        super().__post_init__()
        if min(self.layers, self.width, self.heads) < 1 or self.width % (2 * self.heads):
            raise InputError(
                "a language-only drafter needs layers, width and heads >= 1 and a width that is a multiple of twice "
                f"the heads, got {self.layers}, {self.width}, {self.heads}"
            )
        if min(self.token_weight, self.law_weight) < 0 or self.token_weight + self.law_weight == 0:
            raise InputError("token_weight and law_weight are 0 or more, and one of them is positive")

    def build(self, target: Any, rows: Sequence[Answered] = ()) -> LlamaForCausalLM:
        """A Llama with new weights, over the target's vocabulary and context."""
        text = target.decoder.config
        config = LlamaConfig(
            vocab_size=target.vocab_size,
            hidden_size=self.width,
            intermediate_size=(self.width * 8 // 3 + 7) // 8 * 8,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.heads,
            max_position_embeddings=target.decoder.max_length,
            initializer_range=0.04,
            tie_word_embeddings=True,
            bos_token_id=getattr(text, "bos_token_id", None),
            eos_token_id=getattr(text, "eos_token_id", None),
            pad_token_id=None,
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            return LlamaForCausalLM(config)

    def shape(self, net: Any) -> dict[str, Any]:
        """See `Recipe`."""
        config = net.config
        return {
            "layers": config.num_hidden_layers,
            "width": config.hidden_size,
            "heads": config.num_attention_heads,
        }

    def begin(self, start: Any, target: Any) -> Any:
        """See `Recipe`; any small language model with the target's vocabulary, as far as both go."""
        if type(start) is not self.drafter_class:
            raise other_kind(self.method, start)
        net: Any = start.net.float().cpu()
        net.tokenizer = start.tokenizer
        as_tables([net.get_output_embeddings()])
        return net

    def loss(self, net: Any, target: Any, features: Features | None) -> Any:
        """Distillation; without features plain language modelling."""
        return SpdLoss(net, target, features, self)

    def drafter(self, net: Any) -> Independent:
        """See `Recipe`. A model that was there keeps its tokenizer."""
        made: Independent = super().drafter(net)
        made.tokenizer = getattr(net, "tokenizer", None)
        return made


class SpdLoss:
    """The loss of a batch.

    Args: model: to be trained. target: for its head and its image ids. features: of the target; None: learn from
    tokens alone.
    """

    def __init__(self, model: PreTrainedModel, target: Any, features: Features | None, recipe: SpdRecipe) -> None:
        self.model, self.target, self.features = model, target, features
        self.recipe = recipe
        self.head: Any = head_of(model)

    def __call__(self, position: Tensor, rows: list[Answered]) -> Tensor:
        """A scalar. position: [B] of the samples in the training run; nothing here is random, so it is not read."""
        known = len(self.head.weight)
        prompts = [words(row.prompt, self.target.placeholders, known) or row.prompt[-1:] for row in rows]
        texts = [
            torch.tensor(prompt + row.answer, device=position.device) for prompt, row in zip(prompts, rows, strict=True)
        ]
        read = pad_sequence([text.where(text < known, UNKNOWN) for text in texts], batch_first=True)
        hidden = self.model.base_model(input_ids=read[:, :-1], use_cache=False).last_hidden_state
        starts = [len(prompt) for prompt in prompts]
        told = [row[start - 1 : len(text) - 1] for row, start, text in zip(hidden, starts, texts, strict=True)]
        answers = [text[start:] for text, start in zip(texts, starts, strict=True)]
        judged = [torch.cat(told), torch.cat(answers)]  # one row for every token of an answer
        if self.features is not None:
            judged.append(self._heard(self.features(rows), rows))
        return in_chunks(self._judged, self.target.vocab_size, *judged).mean()

    def _judged(self, told: Tensor, tokens: Tensor, heard: Tensor | None = None) -> Tensor:
        """The losses [M] of states [M, D] that tell tokens [M]; heard: the target's features of these [M, H]. Of ids
        that the model or the target does not know there is nothing to learn."""
        logits = self.head(told)[:, : self.target.vocab_size]
        words = logits.shape[-1]
        by_token = cross_entropy(logits, tokens.masked_fill(tokens >= words, FOREIGN), reduction="none")
        if heard is None:
            return by_token
        by_law = cross_entropy(logits, head_law(self.target, heard)[:, :words], reduction="none")
        return self.recipe.token_weight * by_token + self.recipe.law_weight * by_law

    @staticmethod
    def _heard(features: Tensor, rows: list[Answered]) -> Tensor:
        """[M, H] the target's features, [B, T, H], of the answers' tokens."""
        return torch.cat([row[one.start - 1 : len(one.ids) - 1] for row, one in zip(features, rows, strict=True)])
