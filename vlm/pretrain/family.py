"""What differs between the bundled vision-language checkpoints; all else of their training is shared.

A family says how its stock model is built, how a picture becomes the model's input, and where among a picture's image
slots its 8 x 8 squares lie. What else a class puts among them (an overview, newlines) is trained, but not asked for.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from PIL import Image
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast, ProcessorMixin

from mmspec.vlm.pretrain.architecture import IMAGE_TOKENS, TokenIds
from mmspec.vlm.pretrain.attention import bin_mask
from mmspec.vlm.pretrain.pixels import shrunk
from mmspec.vlm.pretrain.stages import DEEP, SHALLOW, Stage


@dataclass(frozen=True, kw_only=True)
class Family(ABC):
    """Base of the families.

    width: of the decoder; vision_width, vision_layers: of the tower. Widths are multiples of 32. stages: how it learns
    to answer, once its tower is pretrained.
    """

    width: int = 160
    vision_width: int = 160
    vision_layers: int = 6
    stages: tuple[Stage, ...] = (SHALLOW, DEEP)

    name: ClassVar[str]
    model_class: ClassVar[type[PreTrainedModel]]
    processor_class: ClassVar[type[ProcessorMixin]]
    tower: ClassVar[str] = "vision_tower"
    """Where the parts lie in `model.model`."""
    connector: ClassVar[str] = "multi_modal_projector"
    decoder: ClassVar[str] = "language_model"
    patches: ClassVar[int] = 8
    """Patches per side of a picture, as the tower sees it."""
    tokens: ClassVar[dict[str, str]] = {}
    """Special tokens of the family's processor, {"image_token": "<image>"}."""
    sees: ClassVar[str]
    """What becomes of a picture, for the model card."""
    deepens: ClassVar[bool] = True
    """Whether a decoder with fewer layers than the stages ask for can be deepened."""
    known: ClassVar[str] = ""
    """What it has from the checkpoint that it starts from, for the model card."""

    @abstractmethod
    def config(self, ids: TokenIds, layers: int) -> PreTrainedConfig:
        """The configuration with a decoder of `layers` layers."""

    @abstractmethod
    def processor(self, tokenizer: PreTrainedTokenizerFast) -> ProcessorMixin:
        """The stock processor, with a tokenizer that has the family's tokens."""

    @property
    @abstractmethod
    def prefix(self) -> str:
        """What the chat template and the processor put in front of a question about one picture."""

    @abstractmethod
    def pictures(self, pixels: Tensor) -> dict[str, Tensor]:
        """What `get_image_features` takes, from a batch of what `pixels` made."""

    @abstractmethod
    def see(self, tower: nn.Module, pixels: Tensor) -> Tensor:
        """What the connector gets of a batch of pictures: [B, patches * patches, V], row by row."""

    @abstractmethod
    def last(self, connector: nn.Module) -> Iterable[Tensor]:
        """The weights in proportion to which image tokens are large."""

    @property
    def stack(self) -> str:
        """Where the layers of the decoder lie in its models."""
        return f"model.{self.decoder}.layers"

    def model(self, config: PreTrainedConfig) -> PreTrainedModel:
        """A new model."""
        return self.model_class(config)

    def pixels(self, image: Image.Image) -> Tensor:
        """A picture as training moves it about: uint8, [3, S, S] or a stack of such."""
        return shrunk(image)

    @property
    def grid(self) -> Tensor:
        """Which of a picture's image slots show its squares, row by row: [IMAGE_TOKENS]."""
        return torch.arange(IMAGE_TOKENS)

    def views(self, squares: Tensor) -> Tensor:
        """Image tokens of all squares, [B, IMAGE_TOKENS, D], as [N, n * n, D]: those that the tower sees together."""
        return squares

    def adopt_decoder(self, decoder: nn.Module, known: nn.Module, text: Callable[[], Tensor]) -> None:
        """Starts the decoder, but for its words, from a trained one of the same widths and depth.

        Args: text: gives [N, T] ids that the known one understands, to measure it on.
        """
        weights = {name: value for name, value in known.state_dict().items() if not name.startswith("embed_tokens.")}
        decoder.load_state_dict(weights, strict=False)

    def masks(self, model: Any, prefix: Tensor, batch: dict[str, Tensor]) -> dict[str, Any]:
        """What of a packed row sees what, as arguments of the decoder. prefix: [1, P]."""
        return {"attention_mask": bin_mask(batch["segments"], prefix.shape[1])}
