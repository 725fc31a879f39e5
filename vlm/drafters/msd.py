"""MSD: words and pictures enter the drafter by different doors (arXiv 2505.14260).

A word's slot holds fc([E(x_{t+1}); f_t]), as in EAGLE. An image slot holds the target's embedding of that piece of
the picture as it is, past the fc. The drafter reads all image slots.
"""

from __future__ import annotations

from typing import ClassVar

import torch

from mmspec.drafters.heads import HeadNet
from mmspec.vlm.drafters.sight import Seen, Sight, SightDrafter, SightHead


class MsdHead(SightHead):
    """Decoupled inputs. Its weights are those of an EAGLE head."""

    def see(self, sight: Sight) -> Seen:
        """See `SightHead`."""
        words = self.content(sight.embeddings, sight.features)
        content = torch.where(sight.image[..., None], sight.embeddings, words)
        return Seen(content, torch.ones_like(sight.image))


class Msd(SightDrafter):
    """Drafts a dynamic tree with an `MsdHead`."""

    method = "msd"
    source = "MSD, arXiv 2505.14260"
    noun = "MSD"
    net_class: ClassVar[type[HeadNet]] = MsdHead
