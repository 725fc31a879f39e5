"""Answers of transformers alone: the stock class and processor, and `generate`. Nothing of mmspec takes part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor, GenerationConfig, PreTrainedModel

IDS = ("bos_token_id", "eos_token_id", "pad_token_id")


@contextmanager
def bare(model: PreTrainedModel, **settings: Any) -> Iterator[None]:
    """Meanwhile a model's generation config holds its special ids and these settings alone. `generate` takes what it is
    not told from there: beams, n-grams that must not come twice, and whatever else our loop does without."""
    own = model.generation_config
    model.generation_config = GenerationConfig(**{name: getattr(own, name) for name in IDS}, **settings)
    try:
        yield
    finally:
        model.generation_config = own


class Stock:
    """The checkpoint in `folder` as transformers loads it, in float32 on the CPU; greedy."""

    def __init__(self, folder: Path) -> None:
        self.model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()
        self.processor = AutoProcessor.from_pretrained(folder)

    def replies(self, images: Sequence[Image.Image], prompts: Sequence[str], max_new_tokens: int) -> list[str]:
        """One reply per picture and prompt, of at most `max_new_tokens` tokens."""
        talks = [
            [{"role": "user", "content": [{"type": "image", "image": image}, {"type": "text", "text": prompt}]}]
            for image, prompt in zip(images, prompts, strict=True)
        ]
        inputs = self.processor.apply_chat_template(
            talks,
            add_generation_prompt=True,
            tokenize=True,
            return_dict=True,
            return_tensors="pt",
            processor_kwargs={"padding": True, "padding_side": "left"},
        )
        with bare(self.model):
            ids = self.model.generate(**inputs, max_new_tokens=max_new_tokens, do_sample=False)
        texts = self.processor.batch_decode(ids[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
        return [text.strip() for text in texts]
