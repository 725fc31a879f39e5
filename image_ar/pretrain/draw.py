"""Stage 2: the language model learns to draw, code by code, what a caption says."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import JanusForConditionalGeneration, PreTrainedTokenizerFast

from mmspec.image_ar.pretrain.architecture import IMAGE_START, SIDE
from mmspec.image_ar.pretrain.world import normalized

FREE = 0.1  # share of captions that are hidden, so that guidance has a second row to compare with


class Painter(nn.Module):
    """Captions and pixels to the loss of the codes. The picture tokenizer and the stub of a vision tower are frozen."""

    def __init__(self, model: JanusForConditionalGeneration, tokenizer: PreTrainedTokenizerFast) -> None:
        super().__init__()
        self.model, self.tokenizer = model, tokenizer
        self.start = tokenizer.convert_tokens_to_ids(IMAGE_START)
        for part in (model.model.vqmodel, model.model.vision_model, model.model.aligner):
            part.requires_grad_(False)

    def forward(self, pixels: Tensor, captions: list[str]) -> dict[str, Tensor]:
        """pixels: [B, 3, S, S] uint8; captions: B texts. Returns the loss, and logits [B, codes, V]."""
        ids, mask = self.prompts(captions)
        if self.training:
            ids = torch.where(torch.rand(len(ids), 1, device=ids.device) < FREE, self.hidden(ids), ids)
        codes = self.codes(pixels)
        logits = self.logits(ids, mask, codes)
        return {"loss": cross_entropy(logits.flatten(0, 1), codes.flatten()), "logits": logits}

    def prompts(self, captions: list[str]) -> tuple[Tensor, Tensor]:
        """Ids and mask [B, T], padded on the left: start, words, start of the image."""
        first = self.tokenizer.bos_token_id
        rows = [[first, *self.tokenizer(text)["input_ids"], self.start] for text in captions]
        width = max(map(len, rows))
        padding = [width - len(row) for row in rows]
        ids = [[self.tokenizer.pad_token_id] * gap + row for gap, row in zip(padding, rows, strict=True)]
        mask = [[0] * gap + [1] * len(row) for gap, row in zip(padding, rows, strict=True)]
        device = self.model.device
        return torch.tensor(ids, device=device), torch.tensor(mask, device=device)

    def hidden(self, ids: Tensor) -> Tensor:
        """The prompts of guidance's second row: padding in the place of all words."""
        kept = (ids == self.tokenizer.bos_token_id) | (ids == self.start)
        return torch.where(kept, ids, self.tokenizer.pad_token_id)

    @torch.no_grad()
    def codes(self, pixels: Tensor) -> Tensor:
        """[B, side * side] codes of pictures."""
        return self.model.model.vqmodel.encode(normalized(pixels)).image_tokens.view(-1, SIDE * SIDE)

    def logits(self, ids: Tensor, mask: Tensor, codes: Tensor) -> Tensor:
        """[B, L, V] logits of every code, given those before it."""
        model = self.model
        words = model.get_input_embeddings()(ids)
        drawn = model.prepare_embeddings_for_image_generation(codes[:, :-1])
        seen = torch.cat([mask, torch.ones_like(codes[:, :-1])], 1)
        places = (seen.cumsum(-1) - 1).clamp(min=0)
        states: Any = model.model.language_model(
            inputs_embeds=torch.cat([words, drawn], 1), attention_mask=seen, position_ids=places, use_cache=False
        )
        return model.model.generation_head(states.last_hidden_state[:, ids.shape[1] - 1 :])

    @torch.no_grad()
    def certainty(self, pixels: Tensor, captions: list[str], guidance: float) -> float:
        """Mean probability of the best code under the guided law, teacher-forced: the gauge of a world that is not
        trivially predictable."""
        ids, mask = self.prompts(captions)
        codes = self.codes(pixels)
        told, free = self.logits(ids, mask, codes), self.logits(self.hidden(ids), mask, codes)
        return float((free + guidance * (told - free)).softmax(-1).amax(-1).mean())
