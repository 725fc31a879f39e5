"""Stage 3: the language model learns to draw, code by code, what a caption says."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import JanusForConditionalGeneration, PreTrainedTokenizerFast

from mmspec.image_ar.captions import NOBODY, Caption
from mmspec.image_ar.patches import Patches
from mmspec.image_ar.pretrain.architecture import IMAGE_START
from mmspec.image_ar.pretrain.contents import UNTOLD, content_loss
from mmspec.pretrain.pixels import normalized
from mmspec.pretrain.places import place_loss
from mmspec.pretrain.pointing import NAME as WATCHED
from mmspec.pretrain.pointing import Watch, pointing_loss, reading_layers
from mmspec.templates import padded

FREE = 0.1  # share of captions that are hidden, so that guidance has a second row to compare with
READ_WEIGHT = 0.2
PLACE_WEIGHT = 0.3  # without it, a linear probe finds the column of the code at hand in two of three cases
CONTENT_WEIGHT = 0.5
TOLD = 4.0
"""Weight of a code that shows what the caption tells: most are rough ground, which teaches little. Such a loss is least
where shapes begin too often (the odds of a shape times four), so training must end with all codes counted alike."""


class Painter(nn.Module):
    """Captions and pixels to the loss of the codes. The picture tokenizer and the stub of a vision tower are frozen.

    Args: told: how often codes count that show what the caption tells, `TOLD` say.
    """

    def __init__(
        self,
        model: JanusForConditionalGeneration,
        patches: Patches,
        tokenizer: PreTrainedTokenizerFast,
        told: float = 1.0,
    ) -> None:
        super().__init__()
        self.model, self.tokenizer, self.told = model, tokenizer, told
        self.patches = patches.requires_grad_(False)
        self.start = tokenizer.convert_tokens_to_ids(IMAGE_START)
        for part in (model.model.vqmodel, model.model.vision_model, model.model.aligner):
            part.requires_grad_(False)
        model.model.language_model.set_attn_implementation(WATCHED)

    def forward(self, pixels: Tensor, captions: list[Caption], owners: Tensor, questions: Tensor) -> dict[str, Tensor]:
        """pixels: [B, 3, S, S] uint8; owners: [B, side, side] and questions: [B, questions, side * side], as in
        `Scene`. Returns the loss, and logits [B, codes, V]."""
        ids, mask = self.prompts([caption.text for caption in captions])
        right = self.words_of(captions, owners, ids.shape[1])
        if self.training:
            free = torch.rand(len(ids), 1, device=ids.device) < FREE
            ids, right = torch.where(free, self.hidden(ids), ids), right & ~free[:, None]
            questions = questions.masked_fill(free[:, None], UNTOLD)
        codes = self.codes(pixels)
        width, layers = ids.shape[1], self.model.config.text_config.num_hidden_layers
        watch = Watch(reading_layers(layers) if self.training else (), slice(0, width), width - 1)
        logits, early, late = self.read(ids, mask, codes, watch)
        each = cross_entropy(logits.transpose(1, 2), codes, reduction="none")
        told = (owners.flatten(1) >= 0) & right.any(-1)
        loss = weighed(each, told, self.told) if self.training else each.mean()
        if self.training:
            loss = loss + PLACE_WEIGHT * place_loss(early)
            loss = loss + CONTENT_WEIGHT * content_loss(late, questions)
        for scores in watch.scores.values():
            loss = loss + READ_WEIGHT * pointing_loss(scores.masked_fill(mask[:, None] == 0, -torch.inf), right)
        return {"loss": loss, "logits": logits}

    def prompts(self, captions: list[str]) -> tuple[Tensor, Tensor]:
        """Ids and mask [B, T], padded on the left: start, words, start of the image."""
        first = self.tokenizer.bos_token_id
        rows = [[first, *self.tokenizer(text)["input_ids"], self.start] for text in captions]
        inputs, device = padded(rows, self.tokenizer.pad_token_id), self.model.device
        return inputs["input_ids"].to(device), inputs["attention_mask"].to(device)

    def words_of(self, captions: list[Caption], owners: Tensor, width: int) -> Tensor:
        """Which words tell what a patch is: [B, codes, width] bool."""
        rows = [[NOBODY] * (width - 1 - len(one.owners)) + [*one.owners, NOBODY] for one in captions]
        words, patches = torch.tensor(rows, device=owners.device)[:, None], owners.flatten(1)[:, :, None]
        return (words == patches) & (patches != NOBODY)

    def hidden(self, ids: Tensor) -> Tensor:
        """The prompts of guidance's second row: padding in the place of all words."""
        kept = (ids == self.tokenizer.bos_token_id) | (ids == self.start)
        return torch.where(kept, ids, self.tokenizer.pad_token_id)

    @torch.no_grad()
    def codes(self, pixels: Tensor) -> Tensor:
        """[B, side * side] codes of pictures."""
        return self.patches.codes(normalized(pixels), self.model.model.vqmodel.quantize.embedding.weight)

    def logits(self, ids: Tensor, mask: Tensor, codes: Tensor) -> Tensor:
        """[B, L, V] logits of every code, given those before it."""
        return self.read(ids, mask, codes)[0]

    def read(
        self, ids: Tensor, mask: Tensor, codes: Tensor, watch: Watch | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Of every code, given those before it: logits [B, L, V], and what leaves the first quarter of the layers and
        the third one, [B, L, H] each. watch: is shown who attends to what."""
        model = self.model
        words = model.get_input_embeddings()(ids)
        drawn = model.prepare_embeddings_for_image_generation(codes[:, :-1])
        seen = torch.cat([mask, torch.ones_like(codes[:, :-1])], 1)
        places = (seen.cumsum(-1) - 1).clamp(min=0)
        quarter = model.config.text_config.num_hidden_layers // 4
        asked = (quarter, 3 * quarter)
        states: Any = model.model.language_model(
            inputs_embeds=torch.cat([words, drawn], 1),
            attention_mask=seen,
            position_ids=places,
            use_cache=False,
            output_hidden_states=list(asked),
            watch=watch,
        )
        first = ids.shape[1] - 1
        logits = model.model.generation_head(states.last_hidden_state[:, first:])
        early, late = (states.hidden_states[layer][:, first:] for layer in asked)
        return logits, early, late

    @torch.no_grad()
    def certainty(self, pixels: Tensor, captions: list[str], guidance: float) -> float:
        """Mean probability of the best code under the guided law, teacher-forced: the gauge of a world that is not
        trivially predictable."""
        ids, mask = self.prompts(captions)
        codes = self.codes(pixels.to(ids.device))
        told, free = self.logits(ids, mask, codes), self.logits(self.hidden(ids), mask, codes)
        return float((free + guidance * (told - free)).softmax(-1).amax(-1).mean())


def weighed(each: Tensor, told: Tensor, times: float) -> Tensor:
    """The mean loss of codes, those that a caption tells counted several times. Both: [B, codes]."""
    weight = 1 + (times - 1) * told
    return (weight * each).sum() / weight.sum()
