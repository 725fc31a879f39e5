"""GLM-Image's autoregressive part as target, on the stock class: a small picture, then the picture, on one grid each.

The class emits codes in the order in which its `generate` does: all of a preview, all of the picture, the end of the
image. Positions have three axes, time x height x width, and start anew with each of the two, so what goes with a token
depends on how many were emitted. There is no guidance. A picture is made of the codes by a diffusion transformer that
belongs to diffusers (`GlmImagePipeline`, which takes `GlmImage.prior` as `prior_token_ids`), not to the class.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from math import sqrt
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from transformers import PreTrainedModel

from mmspec.contract import Needs
from mmspec.errors import InputError, UnsupportedError, shorten
from mmspec.image_ar.layout import UNKNOWN, Layout, as_lists, check_fits, counts
from mmspec.image_ar.target import CodeDecoder, GuidedState, ImageTarget
from mmspec.image_ar.words import ImageLogits, check_known
from mmspec.sampling import Sampler
from mmspec.templates import asking, check_plain

logger = logging.getLogger(__name__)

USUAL = 36, 24
"""Rows and columns of codes of the picture that the processor asks for unless told otherwise."""
PREVIEW_SIDE = 16
"""Side of a square preview."""


@dataclass(frozen=True)
class TwoGrids(Layout):
    """A preview of `small` rows and columns before the picture."""

    small: tuple[int, int] = (0, 0)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "forced", torch.cat([self.forced.new_full((self.before,), UNKNOWN), self.forced]))

    @property
    def before(self) -> int:
        """Codes of the preview."""
        return self.small[0] * self.small[1]

    @property
    def length(self) -> int:
        """Tokens of both."""
        return len(self.forced)

    @property
    def width(self) -> int:
        """Places per row of the wider one."""
        return max(self.columns, self.small[1])

    def left(self, places: Tensor) -> Tensor:
        """See `Layout`."""
        start, width = self._own(places)
        return torch.where((places - start) % width > 0, places - 1, UNKNOWN)

    def above(self, places: Tensor, known: Tensor) -> Tensor:
        """See `Layout`."""
        start, width = self._own(places)
        source = places - ((places - known + width - 1) // width).clamp(min=1) * width
        return torch.where(source < start, UNKNOWN, source)

    def _own(self, places: Tensor) -> tuple[Tensor, Tensor]:
        """Where the grid of each place starts, and how wide it is."""
        first = places < self.before
        return torch.where(first, 0, self.before), torch.where(first, self.small[1], self.columns)

    def grid(self, ids: list[int]) -> list[int]:
        """The codes of the picture, in reading order; the preview is not part of it."""
        return super().grid(ids)[self.before :]

    def positions(self) -> Tensor:
        """[3, length] where each token stands behind the prompt, by time, height and width."""
        parts, start = [], 0
        for rows, columns in (self.small, (self.rows, self.columns)):
            row, column = torch.arange(rows)[:, None].expand(rows, columns), torch.arange(columns).expand(rows, columns)
            parts.append(start + torch.stack([torch.zeros(rows, columns).long(), row, column]).flatten(1))
            start += max(rows, columns)
        return torch.cat([*parts, torch.full((3, len(self.tail)), start)], 1)


class GridDecoder(CodeDecoder):
    """A code decoder whose cache knows the positions of the tokens behind the prompt (`RowCache.beside` [3, length]);
    its shift is minus the prompt's length."""

    def placed(self, cache: Any, tokens: Tensor, depth: Tensor, ancestors: Tensor) -> dict[str, Any]:
        """See `Decoder`."""
        inputs = super().placed(cache, tokens, depth, ancestors)
        table = cache.beside
        places = inputs["position_ids"].clamp(max=table.shape[1] - 1)  # no node past the end is ever kept
        return {**inputs, "position_ids": table[:, places] - cache.shift}


class GlmImage(ImageTarget):
    """A GLM-Image checkpoint that draws codes. See `CausalTarget`.

    Beside `input_ids`, a request may have `image_grid_thw` [2 B, 3] and `images_per_sample`, as the processor gives
    them: rows and columns of each picture and of its preview, the same for all.
    """

    hf = ("GlmImageForConditionalGeneration", "GlmImageProcessor")
    model_type = "glm_image"
    settings = ()
    applies = ()
    extra_inputs = ("image_grid_thw", "images_per_sample")
    any_size = True
    unit_codes = True
    codes_alone = True
    compiles = False

    def __init__(self, model: PreTrainedModel, tokenizer: Any = None) -> None:
        config: Any = model.config
        self.codes, self.end = config.vq_config.num_embeddings, config.image_end_token_id
        words = config.text_config.vision_vocab_size
        if not self.codes <= self.end < words:
            raise UnsupportedError(
                f"the checkpoint has {self.codes} codes, ends images with {self.end} and emits {words} ids: the codes "
                "must come first, and the end among the others"
            )
        head = ImageLogits(model.lm_head, range(self.end + 1))
        super().__init__(model, model.get_input_embeddings(), head, self._layout(*USUAL))
        self.decoder = GridDecoder(model, self.embed, head)
        logger.warning(
            "GLM-Image draws codes here, and no picture is made of them: that is done by GlmImagePipeline of diffusers"
        )

    def _layout(self, rows: int, columns: int, small: tuple[int, int] | None = None) -> TwoGrids:
        ratio = rows / columns
        preview = small or (int(sqrt(ratio) * PREVIEW_SIDE), int(sqrt(1 / ratio) * PREVIEW_SIDE))
        return TwoGrids(rows, columns, self.codes, tail=(self.end,), small=preview)

    def layout_of(self, inputs: dict[str, Any]) -> Layout:
        """The sizes that the request asks for, or the usual ones."""
        if inputs.get("image_grid_thw") is None:
            return self.layout
        asked, batch = inputs["image_grid_thw"], len(inputs["input_ids"])
        grids = counts(asked)
        pairs = grids.view(-1, 2, 3) if grids is not None and grids.shape == (2 * batch, 3) else None
        if pairs is None or len(pairs.unique(dim=0)) != 1:
            raise InputError(
                f"image_grid_thw={shorten(as_lists(asked))} is not valid for {batch} prompts: two rows (1, rows, "
                "columns) are needed for each, of the picture and of its preview, the same for all; pictures as input "
                "are not read"
            )
        (_, rows, columns), (_, *small) = pairs[0].tolist()
        check_fits(rows, columns, self.decoder.max_length)
        check_fits(small[0], small[1], self.decoder.max_length)
        return self._layout(rows, columns, (small[0], small[1]))

    def guidance(self, asked: Any = None) -> float:
        """There is none."""
        return 1.0

    def prefill(self, inputs: dict[str, Any], needs: Needs, sampler: Sampler) -> GuidedState:
        """See `ImageTarget.prefill`."""
        state = super().prefill(inputs, needs, sampler)
        assert isinstance(state.layout, TwoGrids)
        state.cache.shift = -state.cache.positions()
        state.cache.beside = state.layout.positions().to(self.decoder.device)
        return state

    def encode(self, processor: Any, texts: list[str], images: list[list[Image.Image]]) -> dict[str, Any]:
        """Model inputs of a batch of captions, each with the sizes and the start of an image, padded on the left."""
        check_plain(texts, processor.tokenizer)
        how: dict[str, Any] = {"padding": len(texts) > 1, "return_tensors": "pt"}
        with asking(processor):
            if processor.chat_template:
                chats = [[{"role": "user", "content": [{"type": "text", "text": text}]}] for text in texts]
                inputs = self.read_by(processor.apply_chat_template(chats, tokenize=True, return_dict=True, **how))
            else:
                inputs = self.read_by(processor(text=texts, **how))
        for text, ids in zip(texts, inputs["input_ids"].tolist(), strict=True):
            check_known(text, ids, processor.tokenizer)
        return inputs

    def prior(self, ids: list[int], layout: Layout | None = None) -> Tensor:
        """[1, 4 rows columns] the picture's codes, each four times, as the pipeline of diffusers takes them.

        Args: ids: of a whole answer. layout: of the request, where it is not the usual one (`layout_of`).
        """
        layout = layout or self.layout
        codes, whole = torch.tensor(layout.grid(ids)), layout.rows * layout.columns
        if len(codes) != whole:
            raise InputError(f"the answer has {len(codes)} of the picture's {whole} codes: draw it to its end")
        codes = codes.view(layout.rows, layout.columns)
        return codes.repeat_interleave(2, 0).repeat_interleave(2, 1).view(1, -1)
