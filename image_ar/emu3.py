"""Emu3 as target (arXiv 2409.18869), on the stock class: one vocabulary, pictures of several sizes, a line end per row.

The second row of guidance reads a negative prompt, of another length than the first. A picture is `rows` lines of
`columns` codes and a line end, then end of frame, end of image and end of sequence.
"""

from __future__ import annotations

from typing import Any

from PIL import Image
from torch import Tensor
from transformers import PreTrainedModel

from mmspec.base_target import unpad
from mmspec.errors import InputError, UnsupportedError
from mmspec.image_ar.layout import Layout, grid_of, size_of
from mmspec.image_ar.target import ImageTarget
from mmspec.image_ar.words import ImageLogits, ImageWords
from mmspec.templates import asking, check_plain

NEGATIVE = (
    "lowres, bad anatomy, bad hands, text, error, missing fingers, extra digit, fewer digits, cropped, worst quality, "
    "low quality, normal quality, jpeg artifacts, signature, watermark, username, blurry."
)
"""The negative prompt that Emu3's authors give."""
USUAL_SIDE = 90


class Emu3(ImageTarget):
    """An Emu3 checkpoint that draws. See `CausalTarget`.

    Beside `input_ids`, a request may have `image_sizes` [B, 2], rows and columns of codes, the same for all, and
    `negative_prompt_ids` [B, T'] with `negative_prompt_attention_mask`, which guidance needs.
    """

    hf = ("Emu3ForConditionalGeneration", "Emu3Processor")
    model_type = "emu3"
    usual_guidance = 3.0
    usual_top_k = 2048
    extra_inputs = ("image_sizes", "negative_prompt_ids", "negative_prompt_attention_mask")
    any_size = True
    settings = ("guidance", "size")

    def __init__(self, model: PreTrainedModel, tokenizer: Any = None) -> None:
        self.mapping = model.model.vocabulary_mapping
        names, known, size = self.mapping.vocab_map, self.mapping.img2bpe, model.config.vq_config.codebook_size
        ends = [names.get(name) for name in ("<|extra_200|>", "<|extra_201|>", "<|image end|>")]
        if None in ends or sorted(known) != list(range(size)):
            raise UnsupportedError(
                f"the checkpoint's vocabulary_map names {len(known)} visual tokens, its codebook has {size} codes; "
                "each code needs one, and line ends, end of frame and of image are needed"
            )
        codes = [known[code] for code in range(size)]
        last = model.config.text_config.eos_token_id
        words = [*codes, *ends, last if isinstance(last, int) else last[0]]
        self.codes = len(codes)
        embed, head = ImageWords(model.get_input_embeddings(), words), ImageLogits(model.lm_head, words)
        super().__init__(model, embed, head, self._layout(USUAL_SIDE, USUAL_SIDE))

    def _layout(self, rows: int, columns: int) -> Layout:
        end = self.codes
        return Layout(rows, columns, self.codes, newline=end, tail=(end + 1, end + 2, end + 3))

    def layout_of(self, inputs: dict[str, Any]) -> Layout:
        """The size that the request asks for, or the usual one."""
        if inputs.get("image_sizes") is None:
            return self.layout
        return self._layout(*size_of(inputs["image_sizes"], self.decoder.max_length))

    def encode(
        self, processor: Any, texts: list[str], images: list[list[Image.Image]], size: Any = None
    ) -> dict[str, Any]:
        """Model inputs of a batch of captions and of the negative prompt, padded on the left. size: of the pictures."""
        check_plain(texts, processor.tokenizer)
        how = {"return_for_image_generation": True, "return_tensors": "pt", "padding_side": "left"}
        if size is not None:
            rows, columns = grid_of(size, self.side, self.decoder.max_length)
            how |= {"ratio": f"{columns}:{rows}", "image_area": rows * columns * processor.downsample_ratio**2}
        with asking(processor):
            inputs = self.read_by(processor(text=texts, padding=len(texts) > 1, **how))
            negative = processor(text=[NEGATIVE] * len(texts), **how)
        return {
            **inputs,
            "negative_prompt_ids": negative["input_ids"],
            "negative_prompt_attention_mask": negative["attention_mask"],
        }

    def unguided(self, rows: list[list[int]], inputs: dict[str, Any]) -> list[list[int]]:
        """The negative prompts."""
        ids, mask = inputs.get("negative_prompt_ids"), inputs.get("negative_prompt_attention_mask")
        if not isinstance(ids, Tensor) or len(ids) != len(rows):
            raise InputError(
                f"guidance needs negative_prompt_ids for {len(rows)} prompts: pass a tensor, or guidance=1 to "
                "draw without"
            )
        return unpad({"input_ids": ids, "attention_mask": mask})

    def pixels(self, codes: Tensor) -> Tensor:
        """See `ImageTarget.pixels`."""
        return self.vqmodel.decode(codes)[0]
