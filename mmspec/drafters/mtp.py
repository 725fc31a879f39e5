"""MTP: the layer for multi-token prediction that a checkpoint brings beside the model's weights (arXiv 2412.19437).

As in EAGLE, slot t holds the token x_{t+1} and h_t, what enters the target's head. fc([norm(E(x_{t+1})); norm(h_t)])
goes through one full-attention layer of the target's own kind and a norm; the target's head turns that into the law of
x_{t+2}, and while drafting it takes the place of h. Slots of a prompt hold what the target read, pictures included, and
stand where the target's x_t stands.

This is what transformers (`MtpLayer`, in modeling_layers.py), vLLM (models/qwen3_5_mtp.py, models/glm_ocr_mtp.py) and
SGLang (models/qwen3_5_mtp.py, models/deepseek_nextn.py) compute. They differ where it makes no output wrong: positions
of transformers are those of x_{t+1}, which matters behind pictures alone; of DeepSeek's form vLLM takes what the last
norm reads for the next h, and leaves out the first embedding. Where a checkpoint has several such layers, one for each
step, the first drafts all of them.

The layer and its norms are a model of the target's decoder class with this one layer, so all that a family does in its
own way (gates, norms that add one to their weights, axes of positions, experts) is that of transformers.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.conversion_mapping import get_checkpoint_conversion_mapping

from mmspec.checkpoints import building
from mmspec.drafters.eagle import Eagle
from mmspec.drafters.heads import HeadNet
from mmspec.errors import CheckpointError, MismatchError
from mmspec.mtp_weights import read_layer
from mmspec.targets import CausalTarget

FULL = "full_attention"
BODY = "body."


class MtpNet(HeadNet):
    """The layer and what is around it. body: a decoder of one layer, whose embeddings are not asked."""

    def __init__(self, body: PreTrainedModel) -> None:
        super().__init__(body.config)
        size = body.config.hidden_size
        self.fc = nn.Linear(2 * size, size, bias=False, dtype=body.dtype)
        self.embedding_norm, self.feature_norm = copy.deepcopy(body.norm), copy.deepcopy(body.norm)
        self.body = body

    def forward(
        self, embeddings: Tensor, features: Tensor, positions: Tensor, mask: Tensor | None, cache: Any = None
    ) -> Tensor:
        """The next features [B, N, H]; arguments as for `mmspec.drafters.eagle.EagleHead`, positions [3, B, N] where
        the target has three axes."""
        pair = torch.cat([self.embedding_norm(embeddings), self.feature_norm(features)], -1)
        out: Tensor = self.body(
            inputs_embeds=self.fc(pair),
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=cache is not None,
        ).last_hidden_state
        return out

    def logits(self, features: Tensor, head: nn.Module) -> Tensor:
        """[.., V] of estimates [.., H], with the target's output head."""
        return head(features)


class Mtp(Eagle):
    """Drafts a dynamic tree, or a chain where the target takes no trees, with its checkpoint's own layer."""

    method = "mtp"
    source = "DeepSeek-V3, arXiv 2412.19437"
    part = "a layer for multi-token prediction beside the model's weights"
    packs = False
    measured = False
    noun = "MTP"
    net_class: ClassVar[type[HeadNet]] = MtpNet

    def bind(self, target: Any) -> None:
        """See `Eagle`. Prompts are read as the target read them."""
        super().bind(target)
        grids = "image_grid_thw" in target.extra_inputs  # of targets whose positions have three axes
        self.needs = replace(self.needs, embeddings=bool(target.placeholders), inputs=grids)

    def save(self, folder: Path) -> dict[str, Any]:
        """Raises: CheckpointError: always, for it lies in its target's folder."""
        raise CheckpointError("the weights of 'mtp' are part of the model's own checkpoint: pass its name instead")

    @classmethod
    def load(cls, folder: Path, description: dict[str, Any], target: Any) -> Self:
        """The layer in a target's folder, on the device and in the dtype of `target`.

        Raises: MismatchError: it is not of the kind of the target's own layers.
        """
        if not isinstance(target, CausalTarget):
            raise MismatchError(f"MTP drafts for a causal HF model, not for {type(target).__name__}")
        weights = read_layer(folder)
        body = {name.removeprefix(BODY): weights.pop(name) for name in list(weights) if name.startswith(BODY)}
        net = MtpNet(body_of(target, body))
        net.load_state_dict({**net.state_dict(), **weights})
        return cls(net.to(target.model.device))


def body_of(target: Any, weights: dict[str, Tensor]) -> Any:
    """A decoder of the target's class with one layer. weights: those of the layer and the norm behind it.

    Raises: MismatchError: the target has no such layer, or other weights belong to one.
    """
    decoder = target.model.get_decoder()
    config = one_layer(decoder.config)
    if not get_checkpoint_conversion_mapping(config.model_type):  # how experts are stored is noted of the whole model
        config.model_type = target.model.config.model_type
    given = {**weights, "embed_tokens.weight": torch.zeros(config.vocab_size, config.hidden_size)}
    with building():
        made, report = type(decoder).from_pretrained(
            None, config=config, state_dict=given, dtype=target.model.dtype, output_loading_info=True
        )
    for problem in ("missing_keys", "unexpected_keys"):
        if report[problem]:
            raise MismatchError(
                f"the MTP layer of this checkpoint is no layer of {type(decoder).__name__}: {min(report[problem])} is "
                f"among its {problem.replace('_keys', ' weights')}"
            )
    return made


def one_layer(config: PreTrainedConfig) -> Any:
    """The configuration of a decoder with the last layer of full attention alone, and no vocabulary."""
    config = copy.deepcopy(config)
    kinds = getattr(config, "layer_types", None)
    if kinds and FULL not in kinds:
        raise MismatchError(
            f"an MTP layer has full attention, and this target has layers of {sorted(set(kinds))} alone"
        )
    last = max(layer for layer, kind in enumerate(kinds) if kind == FULL) if kinds else -1
    for name in ("layer_types", "mlp_layer_types"):
        if getattr(config, name, None):
            setattr(config, name, [getattr(config, name)[last]])
    for name, value in {"first_k_dense_replace": 0, "mlp_only_layers": [], "decoder_sparse_step": 1}.items():
        if hasattr(config, name):
            setattr(config, name, value)
    config.num_hidden_layers, config.vocab_size, config.pad_token_id = 1, 1, None
    return config
