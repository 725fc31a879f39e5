"""HiViS: the drafter reads no image slot at all (arXiv 2509.23928).

The target's features of the words have seen the picture already, so slots of words are enough, and the drafter's
prompt is as short as a text. Words keep their positions. Every step of a draft adds a small learned correction of
its own to the estimate that it starts from (the step-aware residuals of the method's later version), zero before
training.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn
from transformers import LlamaConfig

from mmspec.drafters.heads import HeadNet
from mmspec.vlm.drafters.sight import SightDrafter, SightHead


class HiVisHead(SightHead):
    """An EAGLE head over words. corrections: steps with one of their own; later steps share the last one."""

    def __init__(self, config: LlamaConfig, corrections: int = 7) -> None:
        super().__init__(config, corrections=corrections)
        self.corrections = nn.Parameter(torch.zeros(corrections, config.hidden_size))

    def content(self, embeddings: Tensor, features: Tensor, context: Tensor | None = None, step: int = 0) -> Tensor:
        """See `SightHead`."""
        if step:
            features = features + self.corrections[min(step, len(self.corrections)) - 1]
        return super().content(embeddings, features)


class HiVis(SightDrafter):
    """Drafts a dynamic tree with a `HiVisHead`."""

    method = "hivis"
    source = "HiViS, arXiv 2509.23928"
    noun = "HiViS"
    net_class: ClassVar[type[HeadNet]] = HiVisHead
