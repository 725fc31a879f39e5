"""Stage 2: the whole model learns to answer. One row holds a picture and, packed behind it, questions about it."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset, default_collate
from transformers import PreTrainedTokenizerFast, ProcessorMixin, SmolVLMForConditionalGeneration

from mmspec.miniworld import sample
from mmspec.miniworld.facts import QA
from mmspec.vlm.pretrain.attention import NAME as PACKED
from mmspec.vlm.pretrain.loop import StageTrainer
from mmspec.vlm.pretrain.pixels import normalized, shrunk
from mmspec.vlm.pretrain.slots import naming_loss, slot_words
from mmspec.vlm.pretrain.tokenizer import PREFIX, answer_text, question_text

WIDTH = 160
IMAGE_WEIGHT = 2.0  # loss of words that only the picture determines, template words have 1
NAMING_WEIGHT = 0.5
IGNORE = -1


def encode(tokenizer: PreTrainedTokenizerFast, qa: QA) -> tuple[list[int], list[float]]:
    """The ids of a question with its answer, and for each the weight of its loss (0 for the question)."""
    question = tokenizer(question_text(qa.question), add_special_tokens=False)["input_ids"]
    answer = tokenizer(answer_text(qa.answer), add_special_tokens=False, return_offsets_mapping=True)
    seen = [(start + 1, end + 1) for start, end, kind in qa.spans if kind == "image"]  # the answer begins with a space
    weights = []
    for start, end in answer["offset_mapping"]:
        inside = any(start < high and end > low for low, high in seen)
        weights.append(IMAGE_WEIGHT if inside else 1.0)
    return question + answer["input_ids"], [0.0] * len(question) + weights


class PackedPictures(Dataset[dict[str, Tensor]]):
    """Pictures with their questions, first fit into the bins of a row.

    Items: pixels uint8 [3, S, S]; words [slots, LABELS]; tokens, targets, places int64 and weights float
    [bins * WIDTH]; segments [bins, WIDTH] (which question a token belongs to, 0 for padding). The prefix is the same
    for all and added later.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast, seed: str, length: int, bins: int) -> None:
        self.tokenizer, self.seed, self.length, self.bins = tokenizer, seed, length, bins

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        drawn = sample(self.seed, index)
        tokens = torch.full((self.bins, WIDTH), self.tokenizer.pad_token_id)
        targets = torch.full((self.bins, WIDTH), IGNORE)
        weights = torch.zeros(self.bins, WIDTH)
        places = torch.zeros(self.bins, WIDTH, dtype=torch.long)
        segments = torch.zeros(self.bins, WIDTH, dtype=torch.long)
        filled = [0] * self.bins
        for number, qa in enumerate(drawn.qas, 1):
            ids, losses = encode(self.tokenizer, qa)
            free = [bin_ for bin_ in range(self.bins) if filled[bin_] + len(ids) <= WIDTH]
            if not free:
                continue
            row, start = free[0], filled[free[0]]
            end = start + len(ids)
            tokens[row, start:end] = torch.tensor(ids)
            # the token at t is asked for x_{t+1}; the last one (end of utterance) is asked for nothing
            targets[row, start : end - 1] = torch.tensor(ids[1:])
            weights[row, start : end - 1] = torch.tensor(losses[1:])
            places[row, start:end] = torch.arange(len(ids))
            segments[row, start:end] = number
            filled[row] = end
        packed = {"tokens": tokens, "targets": targets, "weights": weights, "places": places}
        return {
            "pixels": shrunk(drawn.image),
            "words": slot_words(drawn.marks, self.tokenizer),
            "segments": segments,
            **{name: value.flatten() for name, value in packed.items()},
        }


def bin_mask(segments: Tensor, prefix: int) -> Tensor:
    """Additive mask [B * bins, 1, WIDTH, prefix + WIDTH] from segments [B, bins, WIDTH]."""
    flat = segments.flatten(0, 1)
    same = flat[:, :, None] == flat[:, None, :]
    inside = same & torch.ones(WIDTH, WIDTH, dtype=torch.bool, device=flat.device).tril()
    seen = torch.cat([inside.new_ones(*flat.shape, prefix), inside], -1)
    return torch.zeros_like(seen, dtype=torch.float32).masked_fill_(~seen, torch.finfo(torch.float32).min)[:, None]


def packed_logits(
    model: SmolVLMForConditionalGeneration, prefix: Tensor, batch: dict[str, Tensor]
) -> tuple[Tensor, Tensor]:
    """Logits of the stock model for packed rows: those of the image slots, and those after each token.

    Args: prefix: [1, P] ids. Returns: [B, slots, V] and [B, bins * WIDTH, V].
    """
    tokens, length = batch["tokens"], prefix.shape[1]
    rows, inner = tokens.shape[0], model.model
    images = inner.get_image_features(normalized(batch["pixels"])[:, None]).pooler_output
    embeddings = inner.get_input_embeddings()(torch.cat([prefix.expand(rows, -1), tokens], 1))
    slots = (prefix[0] == model.config.image_token_id).nonzero()[:, 0]
    embeddings = embeddings.index_copy(1, slots, torch.stack(list(images)))
    before = torch.arange(length, device=tokens.device).expand(rows, -1)
    states = inner.text_model(
        inputs_embeds=embeddings,
        attention_mask=bin_mask(batch["segments"], length),
        position_ids=torch.cat([before, batch["places"] + length], 1),
        use_cache=False,
    ).last_hidden_state
    return model.lm_head(states[:, slots]), model.lm_head(states[:, length:])


class AnswerTrainer(StageTrainer):
    """Trains the stock model on packed rows; its checkpoints load with `from_pretrained`."""

    rest_share = 0.3
    vision_share = 0.5  # the tower comes pretrained

    def __init__(self, model: SmolVLMForConditionalGeneration, processor: ProcessorMixin, **more: Any) -> None:
        super().__init__(model=model, processing_class=processor, data_collator=default_collate, **more)
        model.model.text_model.config._attn_implementation = PACKED
        self.prefix = processor.tokenizer(PREFIX, add_special_tokens=False, return_tensors="pt")["input_ids"]

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Tensor],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """The weighted cross-entropy of the answers, and a share of that of the image slots."""
        named, logits = packed_logits(model, self.prefix.to(inputs["tokens"].device), inputs)
        weights = inputs["weights"]
        asked = weights > 0
        losses = cross_entropy(logits[asked], inputs["targets"][asked], reduction="none")
        loss = (losses * weights[asked]).sum() / weights[asked].sum()
        loss = loss + NAMING_WEIGHT * naming_loss(named, inputs["words"])
        return (loss, {"logits": logits}) if return_outputs else loss

    @torch.no_grad()
    def evaluate(self, *arguments: Any, **more: Any) -> dict[str, float]:
        """Teacher-forced accuracy on words that the picture determines, and the plain loss of the others."""
        self.model.eval()
        right = seen = 0
        template = count = naming = 0.0
        for batch in DataLoader(self.eval_dataset, batch_size=self.args.per_device_train_batch_size):
            batch = self._prepare_inputs(batch)
            named, logits = packed_logits(self.model, self.prefix.to(batch["tokens"].device), batch)
            naming += float(naming_loss(named, batch["words"])) * len(named)
            image, other = batch["weights"] == IMAGE_WEIGHT, batch["weights"] == 1.0
            right += int((logits[image].argmax(-1) == batch["targets"][image]).sum())
            seen += int(image.sum())
            template += float(cross_entropy(logits[other], batch["targets"][other], reduction="sum"))
            count += float(other.sum())
        self.model.train()
        metrics = {
            "eval_image_words": right / seen,
            "eval_template_loss": template / count,
            "eval_naming": naming / len(self.eval_dataset),
        }
        self.log(metrics)
        return metrics
