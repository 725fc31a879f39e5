"""Answers of transformers alone: the stock class and processor, and `generate`. Nothing of mmspec takes part."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor


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
        ids = self.model.generate(**inputs, max_new_tokens=max_new_tokens, do_sample=False)
        texts = self.processor.batch_decode(ids[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
        return [text.strip() for text in texts]
