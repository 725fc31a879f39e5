"""Chameleon, Anole and Lumina-mGPT as targets (arXiv 2405.09818, 2407.06135, 2408.02657), on the stock Chameleon class.

The stock model rules every image token out of its output. What does that is its last step, so the target reads the
hidden states, which the class offers, and applies the output head's rows of the image tokens itself.

Chameleon and Anole draw one size, codes row by row, then the end of the image. Lumina-mGPT is told the size before the
first code, by two tokens that count units of 32 pixels, and ends every row with a token of its own.
"""

from __future__ import annotations

import logging
import os
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

from mmspec.base_target import unpad
from mmspec.checkpoints import HUB_ID
from mmspec.errors import InputError, UnsupportedError
from mmspec.image_ar.chameleon_pictures import FILE, PictureDecoder, folder_of, read_decoder
from mmspec.image_ar.layout import Layout, grid_of, size_of
from mmspec.image_ar.target import ImageTarget
from mmspec.image_ar.words import ImageLogits, ImageWords, check_known
from mmspec.templates import check_plain, padded

logger = logging.getLogger(__name__)

START, END, TURN = "<racm3:break>", "<eoss>", "<reserved08706>"
LINE = "<reserved08799>"
UNITS = "<reserved{:05d}>"
FIRST_UNIT, CODES_PER_UNIT = 8800, 2
LUMINA_SIDE = 48
LUMINA_SETTING = "z_loss_weight"
"""Of the training, in every configuration of Lumina-mGPT's own class. transformers keeps it when it saves the model
again, and writes the stock class in the place of Lumina-mGPT's."""
LUMINA_PROMPT = "Generate an image of {width}x{height} according to the following prompt:\n{text}"
"""How captions were put to Lumina-mGPT when it was trained."""


class Chameleon(ImageTarget):
    """A Chameleon that draws. See `CausalTarget`."""

    hf = ("ChameleonForConditionalGeneration", "ChameleonProcessor")
    usual_guidance = 3.0

    def __init__(self, model: PreTrainedModel, tokenizer: Any = None) -> None:
        config: Any = model.config.vq_config
        self.names: dict[str, int] = model.model.vocabulary_mapping.vocab_map or {}
        known = model.model.vocabulary_mapping.img2bpe
        if sorted(known) != list(range(config.num_embeddings)) or not {START, END} <= set(self.names):
            raise UnsupportedError(
                f"the checkpoint's vocabulary_map names {len(known)} image tokens, its codebook has "
                f"{config.num_embeddings} codes; start and end of an image are needed, too"
            )
        self.codes = len(known)
        words = [*(known[code] for code in range(self.codes)), *self.ends_of_lines()]
        embed, head = ImageWords(model.get_input_embeddings(), words), ImageLogits(model.lm_head, words)
        super().__init__(model, embed, head, self.usual_layout(config.resolution >> len(config.channel_multiplier) - 1))
        self.painter = self._painter(config)
        self.codes_alone = self.painter is None

    def _painter(self, config: Any) -> PictureDecoder | None:
        name = self.model.name_or_path
        folder = folder_of(name)
        found = None if folder is None else read_decoder(folder, config)
        if found is None:
            on_hub = HUB_ID.fullmatch(name) and not os.path.isdir(name)
            logger.warning(
                "the checkpoint has no picture decoder (%s in its folder, see mmspec.image_ar.chameleon_pictures): "
                "codes are drawn, and no picture is made of them%s",
                FILE,
                f"; if the hub has one, load it by its id: mmspec.load({name!r})" if on_hub else "",
            )
            return None
        return found.to(self.model.device, self.model.dtype)

    @classmethod
    def serves(cls, config: PreTrainedConfig) -> bool:
        """Whether the configuration is one of Chameleon or Anole."""
        return config.model_type == "chameleon" and not of_lumina(config)

    def ends_of_lines(self) -> list[int]:
        """The language model's ids of the layout's own tokens, in the order in which the layout numbers them."""
        return [self.names[END]]

    def usual_layout(self, side: int) -> Layout:
        """How a picture lies. side: codes per row of the pictures that the picture tokenizer was made for."""
        return Layout(side, side, self.codes, tail=(self.codes,))

    def encode(self, processor: Any, texts: list[str], images: list[list[Image.Image]]) -> dict[str, Any]:
        """Model inputs of a batch of captions, each with the start of an image behind it, padded on the left."""
        return self.opened(processor, texts, self.layout)

    def opened(self, processor: Any, texts: list[str], layout: Layout) -> dict[str, Any]:
        """The same for pictures that lie so."""
        check_plain(texts, processor.tokenizer)
        asked = [self.prompt(text, layout) for text in texts]
        rows = [processor.tokenizer(text)["input_ids"] for text in asked]
        for text, row in zip(asked, rows, strict=True):
            check_known(text, row, processor.tokenizer)
        opening = [self.names[name] for name in (TURN, START) if name in self.names] + self.size_tokens(layout)
        return padded([row + opening for row in rows], self.filler)

    def prompt(self, text: str, layout: Layout) -> str:
        """What is asked for a caption."""
        return text

    def size_tokens(self, layout: Layout) -> list[int]:
        """The ids that tell a picture's size, behind the start of an image."""
        return []

    @property
    def filler(self) -> int:
        """The id that stands for nothing."""
        config = self.model.config
        return next((token for token in (config.pad_token_id, config.bos_token_id) if token is not None), 0)

    def unguided(self, rows: list[list[int]], inputs: dict[str, Any]) -> list[list[int]]:
        """The start of an image, of nothing."""
        return [[self.filler, self.names[START]]] * len(rows)

    def pixels(self, codes: Tensor) -> Tensor:
        """See `ImageTarget.pixels`."""
        if self.painter is None:
            raise UnsupportedError(f"the checkpoint has no picture decoder: {FILE} is not in its folder")
        vectors = self.vqmodel.quantize.embedding(codes).permute(0, 3, 1, 2)
        return self.painter(self.vqmodel.post_quant_conv(vectors))[0]


class Lumina(Chameleon):
    """A Lumina-mGPT. See `CausalTarget`.

    Beside `input_ids`, a request may have `image_sizes` [B, 2], rows and columns of codes, the same for all; its
    prompts end with the start of an image and these sizes (`size_tokens`).
    """

    usual_top_k = 2000
    extra_inputs = ("image_sizes",)
    any_size = True
    settings = ("guidance", "size")

    @classmethod
    def serves(cls, config: PreTrainedConfig) -> bool:
        """Whether the configuration is one of Lumina-mGPT."""
        return config.model_type == "chameleon" and of_lumina(config)

    def ends_of_lines(self) -> list[int]:
        """Line end and end of image."""
        if LINE not in self.names:
            raise UnsupportedError(f"the checkpoint's vocabulary_map has no line end ({LINE}), which Lumina-mGPT needs")
        return [self.names[LINE], self.names[END]]

    def usual_layout(self, side: int) -> Layout:
        """768 x 768 pixels, whatever the picture tokenizer was made for."""
        return self._layout(LUMINA_SIDE, LUMINA_SIDE)

    def _layout(self, rows: int, columns: int) -> Layout:
        return Layout(rows, columns, self.codes, newline=self.codes, tail=(self.codes + 1,))

    def layout_of(self, inputs: dict[str, Any]) -> Layout:
        """The size that the request asks for, or the usual one."""
        sizes = inputs.get("image_sizes")
        layout = self.layout if sizes is None else self._layout(*size_of(sizes, self.decoder.max_length))
        if "input_ids" not in inputs:
            return layout
        opening = [self.names[START], *self.size_tokens(layout)]
        if any(row[-3:] != opening for row in unpad(inputs)):
            raise InputError(
                f"pictures of {layout.rows} x {layout.columns} codes are not what the prompts ask for: they would end "
                f"with the start of an image and the sizes, {opening}"
            )
        return layout

    def encode(
        self, processor: Any, texts: list[str], images: list[list[Image.Image]], size: Any = None
    ) -> dict[str, Any]:
        """See `Chameleon.encode`. size: of the pictures; None is the usual one."""
        if size is None:
            return super().encode(processor, texts, images)
        layout = self._layout(*grid_of(size, self.side, self.decoder.max_length, CODES_PER_UNIT))
        sizes = torch.tensor([[layout.rows, layout.columns]] * len(texts))
        return {**self.opened(processor, texts, layout), "image_sizes": sizes}

    def prompt(self, text: str, layout: Layout) -> str:
        """The caption with the size in pixels."""
        return LUMINA_PROMPT.format(width=layout.columns * self.side, height=layout.rows * self.side, text=text)

    def size_tokens(self, layout: Layout) -> list[int]:
        """Rows and columns, in units of two codes.

        Raises: InputError: the model has no tokens for this size.
        """
        names = [UNITS.format(FIRST_UNIT + side // CODES_PER_UNIT) for side in (layout.rows, layout.columns)]
        odd = layout.rows % CODES_PER_UNIT or layout.columns % CODES_PER_UNIT
        if odd or not set(names) <= set(self.names):
            raise InputError(
                f"a picture of {layout.rows} x {layout.columns} codes is not possible: Lumina-mGPT counts in units of "
                f"{CODES_PER_UNIT} codes, and only so far as its vocabulary has tokens for them"
            )
        return [self.names[name] for name in names]

    def unguided(self, rows: list[list[int]], inputs: dict[str, Any]) -> list[list[int]]:
        """What opens the image, without what comes before."""
        return [row[-3:] for row in rows]


def of_lumina(config: PreTrainedConfig) -> bool:
    """Whether a Chameleon configuration is that of a Lumina-mGPT, by the class that it names or by `LUMINA_SETTING`."""
    return any("XLLMX" in name for name in config.architectures or ()) or hasattr(config, LUMINA_SETTING)
