"""Stage 2: the whole model learns to answer. One row holds a picture and, packed behind it, questions about it."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset, default_collate
from transformers import PreTrainedModel, PreTrainedTokenizerFast, ProcessorMixin
from transformers.modeling_outputs import BaseModelOutputWithPast

from mmspec.miniworld import sample
from mmspec.miniworld.facts import QA, Facts, Shapes
from mmspec.pretrain.places import place_loss
from mmspec.pretrain.pointing import Watch
from mmspec.vlm.pretrain.architecture import SIDE
from mmspec.vlm.pretrain.attention import NAME as PACKED
from mmspec.vlm.pretrain.drills import drill
from mmspec.vlm.pretrain.family import Family
from mmspec.vlm.pretrain.lessons import NOTHING, asked_about, lesson
from mmspec.vlm.pretrain.loop import StageTrainer
from mmspec.vlm.pretrain.named import names
from mmspec.vlm.pretrain.pointers import known_after, taught_layers, taught_loss
from mmspec.vlm.pretrain.slots import naming_loss, slot_words, slots_of_things

WIDTH = 160
NAMING_WEIGHT = 0.5
PLACE_WEIGHT = 0.3
TAUGHT_WEIGHT = 0.35  # per taught head
KNOWN_WEIGHT = 0.5  # of what the states between the layers are asked for
IGNORE = -1
FILL = {"targets": IGNORE, "sought": NOTHING, "read": NOTHING, "reasons": NOTHING, "weights": 0.0}
"""What a lesson says of the token that comes next, and what is said where none does."""


class PackedPictures(Dataset[dict[str, Tensor]]):
    """Pictures with their questions, and drills among them, first fit into the bins of a row.

    Items: pixels uint8, as the family's `pixels` makes them; words [slots, LABELS]; tokens, targets, sought, read,
    reasons and places int64, weights float, pictured bool [bins * WIDTH] (whether a token belongs to a question about
    the picture); counted bool [bins * WIDTH, 1 + slots] (where a number of things is decided, the first token and the
    slots of the things); segments [bins, WIDTH] (which question it belongs to, 0 for padding). The prefix is the same
    for all and added later.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerFast,
        seed: str,
        length: int,
        bins: int,
        pixels: Callable[[Image.Image], Tensor],
        drills: int = 0,
    ) -> None:
        self.tokenizer, self.seed, self.length, self.bins, self.pixels = tokenizer, seed, length, bins, pixels
        self.drills = drills

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        drawn = sample(self.seed, index)

        def filled(value: float) -> Tensor:
            return torch.full((self.bins, WIDTH), value)  # its type is that of the value: int64, float or bool

        packed = {name: filled(value) for name, value in FILL.items()}
        packed |= {"tokens": filled(self.tokenizer.pad_token_id), "pictured": filled(False), "places": filled(0)}
        segments = filled(0)
        counted = torch.zeros(self.bins, WIDTH, 1 + SIDE * SIDE, dtype=torch.bool)
        used = [0] * self.bins
        lies = slots_of_things(drawn.facts, drawn.marks) if isinstance(drawn.facts, Shapes) else {}
        rng = random.Random(f"{self.seed}/{index}/more")
        asked: list[tuple[QA, Facts | None, bool]] = [(qa, drawn.facts, False) for qa in asked_about(drawn, rng)]
        asked[1:1] = [(*drill(rng, names(drawn.facts)), True) for _ in range(self.drills)]
        for number, (qa, facts, told) in enumerate(asked, 1):
            taught = lesson(self.tokenizer, qa, facts, told)
            length = len(taught.ids)
            row = next((bin_ for bin_, start in enumerate(used) if start + length <= WIDTH), None)
            if row is None:
                continue
            start, end = used[row], used[row] + length
            packed["tokens"][row, start:end] = torch.tensor(taught.ids)
            # the token at t is asked for x_{t+1}; the last one (end of utterance) is asked for nothing
            for name in FILL:
                packed[name][row, start : end - 1] = torch.tensor(getattr(taught, name)[1:])
            packed["pictured"][row, start:end] = not told
            packed["places"][row, start:end] = torch.arange(length)
            segments[row, start:end] = number
            alike = [0, *(1 + lies[thing] for thing in taught.counted)]
            counted[row, start + torch.tensor(taught.counts[1:]).nonzero(), alike] = True
            used[row] = end
        return {
            "pixels": self.pixels(drawn.image),
            "words": slot_words(drawn.marks, self.tokenizer),
            "segments": segments,
            "counted": counted.flatten(0, 1),
            **{name: value.flatten() for name, value in packed.items()},
        }


@dataclass(frozen=True)
class Packed:
    """What the stock model makes of packed rows. images: [B, slots, D], the image tokens of the picture's squares;
    slots: [B, slots, D] and tokens: [B, bins * WIDTH, D]: last hidden states; between: those of the tokens after as
    many layers as were asked for, normalised as the last ones are."""

    images: Tensor
    slots: Tensor
    tokens: Tensor
    between: tuple[Tensor, ...]


def packed_states(
    family: Family, model: Any, prefix: Tensor, batch: dict[str, Tensor], depths: Sequence[int] = (), **more: Any
) -> Packed:
    """Runs the stock model on packed rows.

    Args: prefix: [1, P] ids. depths: the numbers of layers after which states are asked for. more: for the attention
        function, a `Watch` say.
    """
    images = model.model.get_image_features(**family.pictures(batch["pixels"])).pooler_output
    images = torch.stack(list(images))
    made = read_rows(family, model, prefix, batch, images, output_hidden_states=list(depths), **more)
    length, grid, states = prefix.shape[1], family.grid.to(prefix.device), made.last_hidden_state
    decoder = model.model.get_submodule(family.decoder)
    between = tuple(decoder.norm(made.hidden_states[depth][:, length:]) for depth in depths)
    images, places = images.to(states.dtype), image_places(model, prefix)
    return Packed(images[:, grid], states[:, places[grid]], states[:, length:], between)


def read_rows(
    family: Family, model: Any, prefix: Tensor, batch: dict[str, Tensor], images: Tensor, **more: Any
) -> BaseModelOutputWithPast:
    """What the decoder makes of packed rows.

    Args: images: [B, image slots, D], the image tokens. prefix, more: see `packed_states`.
    """
    tokens, length = batch["tokens"], prefix.shape[1]
    rows, inner = tokens.shape[0], model.model
    embeddings = inner.get_input_embeddings()(torch.cat([prefix.expand(rows, -1), tokens], 1))
    images = images.to(embeddings.dtype)  # with autocast, a linear layer may have made them bfloat16
    before = torch.arange(length, device=tokens.device).expand(rows, -1)
    return inner.get_submodule(family.decoder)(
        inputs_embeds=embeddings.index_copy(1, image_places(model, prefix), images),
        **family.masks(model, prefix, batch),
        position_ids=torch.cat([before, batch["places"] + length], 1),
        use_cache=False,
        **more,
    )


def prefix_ids(family: Family, tokenizer: PreTrainedTokenizerFast) -> Tensor:
    """[1, P], the ids of what lies in front of a question about one picture."""
    ids: Tensor = tokenizer(family.prefix, add_special_tokens=False, return_tensors="pt")["input_ids"]
    return ids


def image_places(model: PreTrainedModel, prefix: Tensor) -> Tensor:
    """Where the image slots lie in the prefix: [slots]."""
    return (prefix[0] == model.config.image_token_id).nonzero()[:, 0]


class AnswerTrainer(StageTrainer):
    """Trains the stock model on packed rows; its checkpoints load with `from_pretrained`."""

    rest_share = 0.3
    vision_share = 0.5  # the tower comes pretrained

    def __init__(self, family: Family, model: PreTrainedModel, processor: ProcessorMixin, **more: Any) -> None:
        super().__init__(family, model=model, processing_class=processor, data_collator=default_collate, **more)
        model.model.get_submodule(family.decoder).config._attn_implementation = PACKED
        self.prefix = prefix_ids(family, processor.tokenizer)
        self.taught = taught_layers(model.config.text_config.num_hidden_layers)
        self.known = known_after(model.config.text_config.num_hidden_layers)

    def compute_loss(self, model: nn.Module, inputs: dict[str, Tensor], *args: Any, **kwargs: Any) -> Tensor:
        """The weighted cross-entropy of the answers, and shares of what the slots and the taught heads are asked."""
        prefix = self.prefix.to(inputs["tokens"].device)
        places = image_places(self.model, prefix)
        squares = places[self.family.grid.to(places.device)]
        keys = torch.cat([squares.new_zeros(1), squares])
        taught = self.taught.looking, *self.taught.reading, self.taught.counting
        watch = Watch(taught, keys, prefix.shape[1])
        with self.accelerator.autocast():
            packed = packed_states(self.family, self.model, prefix, inputs, self.known, watch=watch)
        weights, words = inputs["weights"], inputs["words"]
        asked, seen = weights > 0, weights > 1
        logits = self.model.lm_head(packed.tokens[asked])
        losses = cross_entropy(logits, inputs["targets"][asked], reduction="none")
        loss = (losses * weights[asked]).sum() / weights[asked].sum()
        loss = loss + NAMING_WEIGHT * naming_loss(self.model.lm_head(packed.slots), words)
        loss = loss + PLACE_WEIGHT * place_loss(self.family.views(packed.images))
        loss = loss + TAUGHT_WEIGHT * taught_loss(self.taught, watch.scores, inputs)
        for states, known in zip(packed.between, (inputs["read"], inputs["reasons"]), strict=True):
            here = seen & (known >= 0)
            losses = cross_entropy(self.model.lm_head(states[here]), known[here], reduction="sum")
            loss = loss + KNOWN_WEIGHT * losses / here.sum().clamp(min=1)
        return loss

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        """Weights of a checkpoint. Files of LLaVA and Gemma3 have other names than the model: the Trainer, which does
        not translate them, would go on with the weights at hand."""
        stored = type(self.model).from_pretrained(resume_from_checkpoint, dtype=torch.float32)
        (self.model if model is None else model).load_state_dict(stored.state_dict())

    @torch.no_grad()
    def evaluate(self, *arguments: Any, **more: Any) -> dict[str, float]:
        """Teacher-forced accuracy on words that the picture determines, and the plain loss of the others."""
        self.model.eval()
        right = seen = 0
        template = count = naming = 0.0
        for batch in DataLoader(self.eval_dataset, batch_size=self.args.per_device_train_batch_size):
            batch = self._prepare_inputs(batch)
            packed = packed_states(self.family, self.model, self.prefix.to(batch["tokens"].device), batch)
            naming += float(naming_loss(self.model.lm_head(packed.slots), batch["words"])) * len(batch["words"])
            image, other = batch["weights"] > 1.0, batch["weights"] == 1.0
            right += int((self.model.lm_head(packed.tokens[image]).argmax(-1) == batch["targets"][image]).sum())
            seen += int(image.sum())
            guess = self.model.lm_head(packed.tokens[other])
            template += float(cross_entropy(guess, batch["targets"][other], reduction="sum"))
            count += float(other.sum())
        self.model.train()
        metrics = {
            "eval_image_words": right / seen,
            "eval_template_loss": template / count,
            "eval_naming": naming / len(self.eval_dataset),
        }
        self.log(metrics)
        return metrics
