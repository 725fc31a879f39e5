"""What `load` and `Pipeline` ask of a model: the base of all targets, however they decode."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar

import transformers
from PIL import Image
from transformers import PreTrainedConfig, PreTrainedModel

from mmspec.contract import UNITS, Accepted, Draft, Needs, Rule, State, Unit, Verified
from mmspec.errors import InputError, MismatchError, UnsupportedError
from mmspec.options import LONG, MAX_NEW_TOKENS, SUPPRESSED, check_suppressed, end_tokens, sampling_for
from mmspec.registry import name_of
from mmspec.sampling import Sampler, Sampling
from mmspec.stopping import Stop
from mmspec.templates import THINKING, template_of
from mmspec.thoughts import MARKS

PROMPT = ("input_ids", "attention_mask")
"""Inputs that every target reads, beside its own and `max_new_tokens`."""


class BaseTarget(ABC):
    """A model as target. A family says here what it serves, reads and makes, and decodes as `mmspec.contract.Target`
    asks: those that read from left to right derive from `mmspec.targets.CausalTarget`, which does it."""

    hf: ClassVar[tuple[str, str]]
    """Names in transformers of the stock classes, of the model and of the processor, which are imported when asked for.
    A family with other classes overrides `model_class` and `processor_class`."""
    model_type: ClassVar[str]
    """Of the configurations that it serves. A family that judges them otherwise overrides `serves`."""
    modality = "text"
    makes = "text"
    """What an answer is: a text, a picture, a sound."""
    emits: Unit = "ids"
    """What a step emits, and so what rules must judge, and drafters draft."""
    noun = "the model"
    """What messages call it."""
    examples: tuple[str, ...] = ()
    """Prompts to show it with, where those of the synthetic world are none for it."""
    least = 0
    """Tokens that an answer needs at least to be a whole one."""
    chats = False
    """Whether prompts may be chats of several turns (`mmspec.prompts.Chat`)."""
    wordless = False
    """Whether a picture may be asked about without a word."""
    usual_budget = MAX_NEW_TOKENS
    """How many tokens are emitted at most where neither a request nor the checkpoint says."""
    placeholders: tuple[int, ...] = ()
    extra_inputs: tuple[str, ...] = ()
    """Names of the model inputs beside ids and mask: what holds pictures or sound, their sizes."""
    usual_drafter = "prompt-lookup"
    """What `drafter=None` takes where no trained drafter lies beside the model."""
    trained_first = True
    """Whether it takes a trained drafter beside the model before that."""
    settings: tuple[str, ...] = ()
    """Options that only some models take, of `mmspec.options.Options`: those that it does not name are refused before
    its weights are read. `encode` is told those of `mmspec.options.SPOKEN`, where they are given."""
    refuses: Mapping[str, str] = {}
    """Settings of `Sampling` that mean nothing here, and why: a clause behind `noun`."""
    chains: bool = False
    """Whether drafts are chains, whatever a drafter makes: of a tree the longest path is verified."""
    applies: tuple[str, ...] = (SUPPRESSED,)
    """Settings of a generation config that only some targets apply, and that this one does."""
    answers: Mapping[str, Any] = {}
    """Settings of `mmspec.training.answers.AnswerOptions` that suit what it emits better than their defaults."""
    rules: Mapping[str, str] = {}
    """Rules that stand for another's name here, as for "exact" one that is exact for other tokens."""
    advised_rules = "'exact'"
    """What messages propose instead of a rule that judges something else."""
    advised_drafters = "'none' or 'prompt-lookup'"
    """And instead of a drafter that drafts something else."""
    processor: Any = None
    compiles = False
    """Whether verification is a forward of one HF decoder, which `mmspec.engine` can compile."""
    vocab_size: int
    hidden_size: int
    num_layers: int

    def __init__(self, model: PreTrainedModel, tokenizer: Any = None) -> None:
        self.model, self.tokenizer = model, tokenizer

    @abstractmethod
    def prefill(self, inputs: dict[str, Any], needs: Needs, sampler: Sampler) -> State:
        """Read the prompt; draw the first token where there is a pending one.

        Args: inputs: what `encode` made, and `max_new_tokens`; perhaps `n`, above 1 where the rows are n times one
            prompt (`one_of`), which may then be read once.
        """

    @abstractmethod
    def verify(self, state: State, draft: Draft) -> Verified:
        """What follows every node of a draft."""

    @abstractmethod
    def commit(self, state: State, draft: Draft, accepted: Accepted) -> None:
        """Keep the accepted path, forget every other node, take over the new pending tokens."""

    @classmethod
    def serves(cls, config: PreTrainedConfig) -> bool:
        """Whether this class is the one for a checkpoint, judged by its configuration: by its type and by the class of
        the model, if it says of which (others may have the same type)."""
        if config.model_type != cls.model_type:
            return False
        return not config.architectures or cls.model_class(config).__name__ in config.architectures

    @classmethod
    def model_class(cls, config: PreTrainedConfig) -> type[PreTrainedModel]:
        """The class of the model."""
        return getattr(transformers, cls.hf[0])

    @classmethod
    def processor_class(cls, config: PreTrainedConfig) -> Any:
        """The class of the processor or tokenizer, or what reads one from a folder."""
        return getattr(transformers, cls.hf[1])

    @property
    def codes_alone(self) -> bool:
        """Whether codes are all that comes of an answer where a picture or a sound was asked for: what decodes them is
        missing, or belongs to another library."""
        return False

    def check_codec(self) -> None:
        """Raise UnsupportedError for a model whose answers are codes alone."""
        if self.codes_alone:
            raise UnsupportedError(
                f"no {self.makes} is made here of the codes of this {type(self.model).__name__}: what decodes them is "
                "missing, or belongs to another library"
            )

    def encode(self, processor: Any, texts: list[Any], images: list[list[Image.Image]]) -> dict[str, Any]:
        """Model inputs of a batch of prompts with their pictures, padded on the left.

        Prompts are texts, or chats where `chats` says so, whose pictures are in `images`, too. Pictures come to a
        target of the modality "vlm" alone, see `mmspec.options.check_pictures`.
        """
        raise NotImplementedError

    @property
    def prompt_vocab_size(self) -> int:
        """How many ids a prompt may use."""
        return self.vocab_size

    def adopt(self, processor: Any) -> None:
        """Take over what the checkpoint's processor class read, or the caller gave (None for nothing)."""
        self.processor = processor

    @property
    def budget(self) -> int:
        """How many tokens are emitted at most where a request does not say."""
        template = str(template_of(self.processor))
        thinks = self.chats and any(mark in template for mark in (THINKING, *dict(MARKS)))
        usual = LONG if thinks else self.usual_budget
        return self.model.generation_config.max_new_tokens or usual

    @property
    def compiled(self) -> bool:
        """Whether verification is compiled."""
        return False

    def compile(self, backend: str = "inductor") -> None:
        """From now on verify with compiled forwards on a cache of fixed size (`mmspec.engine`).

        Args: backend: of `torch.compile`.
        Raises: UnsupportedError: this target works in another way, or its decoder in one that cannot be compiled.
        """
        raise uncompiled(self, "its rounds are not one forward over a tree")

    def sampling(self, options: Mapping[str, Any]) -> Sampling:
        """How tokens are drawn, by the options of a request, then by the checkpoint's generation config.

        Raises: InputError: one of `refuses` is on, or ids are suppressed that the model does not have.
        """
        if SUPPRESSED not in self.applies:
            options = {**options, SUPPRESSED: ()}  # whatever the config says: codes are numbered otherwise
        drawn, off = sampling_for(options, self.model.generation_config, sampled=self.makes != "text"), Sampling()
        if SUPPRESSED in options and drawn.suppress_tokens:
            check_suppressed(drawn.suppress_tokens, self.vocab_size)
        for name, why in self.refuses.items():
            if getattr(drawn, name) != (neutral := getattr(off, name)):
                raise InputError(
                    f"{name} means nothing to {self.noun}, {why}: leave it out, or set it to {neutral} where the "
                    "checkpoint's generation config asks for it"
                )
        return drawn

    def sampler(self, sampling: Sampling, batch: int) -> Sampler:
        """What warps the laws of a request and makes its noise."""
        return Sampler(sampling, batch, self.model.device)

    def check_rule(self, rule: Rule) -> None:
        """Raise MismatchError for a rule that cannot judge what this target emits."""
        if rule.judges != self.emits:
            raise MismatchError(
                f"the rule {name_of('rules', rule, self.modality)!r} judges {UNITS[rule.judges]}, and {self.noun} "
                f"emits {UNITS[self.emits]}: use {self.advised_rules}"
            )

    @classmethod
    def check_drafter(cls, drafter: Any) -> None:
        """Raise MismatchError for a drafter, or a class of drafters, that cannot draft what this target emits."""
        if drafter.drafts not in (None, cls.emits):
            raise MismatchError(
                f"the drafter {name_of('drafters', drafter, cls.modality)!r} drafts {UNITS[drafter.drafts]}, and "
                f"{cls.noun} emits {UNITS[cls.emits]}: use {cls.advised_drafters}"
            )

    def ends(self) -> list[int]:
        """The ids that end an answer."""
        return end_tokens(self.model.generation_config)

    def stopping(self, budget: int, strings: Sequence[str], text_of: Callable[[list[int]], str]) -> Stop:
        """What ends the rows of a request."""
        return Stop(self.ends(), budget, strings, text_of)

    def sounding(self, inputs: dict[str, Any], row: int) -> Any:
        """What makes sound of a row while it is emitted (`add(ids, last)`), or None for targets that do not speak."""
        return None

    def product_of(self, inputs: dict[str, Any], row: int, ids: list[int]) -> dict[str, Any]:
        """What the emitted ids of a row make beside text: further fields of `mmspec.results.Generation`.

        Args: inputs: what `prefill` was given.
        """
        return {}


def uncompiled(target: BaseTarget, why: str) -> UnsupportedError:
    """The error for a target that cannot be compiled."""
    return UnsupportedError(f"{type(target.model).__name__} cannot be compiled here: {why}; load it with compile=False")


def check_served(inputs: Mapping[str, Any], own: Collection[str], told: str) -> None:
    """Raise InputError for an input that would not be read.

    Args: own: those of the target beside `PROMPT`. told: the message, {} for the input's name.
    """
    strange = inputs.keys() - {*PROMPT, "max_new_tokens", "n", *own}
    if strange:
        raise InputError(told.format(min(strange)))


def one_of(inputs: dict[str, Any], n: int) -> dict[str, Any]:
    """The inputs of a prompt that stands n times among them: of tensors that were repeated as a whole, the first."""
    return inputs if n == 1 else {name: value[: len(value) // n] for name, value in inputs.items()}


def unpad(inputs: dict[str, Any], name: str = "input_ids") -> list[list[int]]:
    """The values of each row of an input [B, T] at real tokens, wherever `attention_mask` says the padding is."""
    values, mask = inputs[name], inputs.get("attention_mask")
    if mask is None:
        rows = values.tolist()
    else:
        rows = [row[keep.bool()].tolist() for row, keep in zip(values, mask, strict=True)]
    if not all(rows):
        raise InputError("a prompt is empty: give every row at least one token")
    return rows
