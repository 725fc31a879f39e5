"""LlamaGen (arXiv 2406.06525), class-conditional: a Llama over codes with two-dimensional rotary positions.

Half of a head's dimensions turn with the row of a code, half with its column. The class takes one slot before the
codes, whose queries and keys are set to zero, as the published weights were trained. The picture decoder is the VQ
model that Janus took over from it, on the stock class.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import silu
from transformers import GenerationMixin, JanusVQVAEConfig, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPast
from transformers.models.glm.modeling_glm import GlmAttention
from transformers.models.janus.modeling_janus import JanusVQVAE


class LlamaGenConfig(PreTrainedConfig):
    """grid: rows and columns of codes. classes: of the condition, the empty one not counted. vq_config: the picture
    decoder, of `JanusVQVAE`; its `num_patches` is `grid` where it does not say. The other names are those of a Llama;
    the context, where nothing is said, is the class and a picture.
    """

    model_type = "mmspec-llamagen"
    sub_configs_defaults = {"vq_config": JanusVQVAEConfig}  # noqa: RUF012

    vq_config: dict | PreTrainedConfig | None = None
    grid: int = 16
    classes: int = 1000
    vocab_size: int = 16384
    hidden_size: int = 768
    intermediate_size: int = 2048
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    num_key_value_heads: int = 12
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10000.0
    max_position_embeddings: int | None = None
    attention_bias: bool = False
    attention_dropout: float = 0.0

    def __post_init__(self, **kwargs: Any) -> None:
        if self.vq_config is None or isinstance(self.vq_config, dict):
            self.vq_config = {"num_patches": self.grid, **(self.vq_config or {})}
        if self.max_position_embeddings is None:
            self.max_position_embeddings = 1 + self.grid * self.grid
        super().__post_init__(**kwargs)


def rotations(config: LlamaGenConfig) -> Tensor:
    """[1 + grid * grid, head size / 2, 2] cosines and sines: zeros for the class, then the codes in reading order."""
    half = config.hidden_size // config.num_attention_heads // 2
    rates = config.rope_theta ** -(torch.arange(0, half, 2).float() / half)
    angles = torch.arange(config.grid).float()[:, None] * rates  # [grid, half / 2]
    side = config.grid
    both = torch.cat([angles[:, None].expand(-1, side, -1), angles[None].expand(side, -1, -1)], -1).flatten(0, 1)
    return torch.cat([torch.zeros(1, half, 2), torch.stack([both.cos(), both.sin()], -1)])


class Layer(nn.Module):
    """Attention, whose rotations turn neighbouring dimensions as in GLM, and a gated MLP, each behind a norm."""

    def __init__(self, config: LlamaGenConfig, index: int) -> None:
        super().__init__()
        size, inner = config.hidden_size, config.intermediate_size
        self.self_attn = GlmAttention(config, index)
        self.gate_proj = nn.Linear(size, inner, bias=False)
        self.up_proj = nn.Linear(size, inner, bias=False)
        self.down_proj = nn.Linear(inner, size, bias=False)
        self.input_norm = nn.RMSNorm(size, config.rms_norm_eps)
        self.output_norm = nn.RMSNorm(size, config.rms_norm_eps)

    def forward(
        self, states: Tensor, turns: tuple[Tensor, Tensor], mask: Tensor | None, cache: Any, **told: Any
    ) -> Tensor:
        """states: [B, N, H]. turns: cosines and sines, [B, N, head size]. mask: additive [B, 1, N, past + N]; None is
        causal. told: what the attention function takes beside."""
        states = states + self.self_attn(self.input_norm(states), turns, mask, cache, **told)[0]
        inner = self.output_norm(states)
        return states + self.down_proj(silu(self.gate_proj(inner)) * self.up_proj(inner))


class LlamaGenModel(nn.Module):
    """The decoder: `input_ids` are classes, `inputs_embeds` are embedded codes."""

    def __init__(self, config: LlamaGenConfig) -> None:
        super().__init__()
        self.classes = nn.Embedding(config.classes + 1, config.hidden_size)
        self.codes = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config, index) for index in range(config.num_hidden_layers))
        self.norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.register_buffer("turns", rotations(config), persistent=False)
        self.turns: Tensor

    def forward(
        self,
        input_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Any = None,
        output_hidden_states: Any = (),
        **kwargs: Any,
    ) -> BaseModelOutputWithPast:
        """Hidden states [B, N, H] of a class or of codes. position_ids: [B, N], 0 the class; None goes on from there.

        attention_mask: additive [B, 1, N, past + N].
        """
        states = self.classes(input_ids) if inputs_embeds is None else inputs_embeds
        assert states is not None
        if position_ids is None:
            start = 0 if past_key_values is None else past_key_values.get_seq_length()
            position_ids = start + torch.arange(states.shape[1], device=states.device)[None]
        turns = self.turns[position_ids.clamp(max=len(self.turns) - 1)].expand(len(states), -1, -1, -1)
        turns = turns.to(states.dtype).repeat(1, 1, 2, 1)  # GLM reads the first half, and takes its length
        seen = [states]
        for layer in self.layers:
            states = layer(states, turns.unbind(-1), attention_mask, past_key_values, **kwargs)
            seen.append(states)
        states = self.norm(states)
        hidden = (*seen[:-1], states) if output_hidden_states else None
        return BaseModelOutputWithPast(last_hidden_state=states, past_key_values=past_key_values, hidden_states=hidden)


class LlamaGen(PreTrainedModel, GenerationMixin):
    """Decoder, output head and picture decoder."""

    config_class = LlamaGenConfig
    _supports_sdpa = True

    def __init__(self, config: LlamaGenConfig) -> None:
        super().__init__(config)
        self.model = LlamaGenModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.vqmodel = JanusVQVAE(config.vq_config)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
        elif isinstance(module, LlamaGenModel):
            module.turns.copy_(rotations(self.config))  # not stored, so it must be made anew after loading

    def get_input_embeddings(self) -> nn.Module:
        """Classes: what a prompt holds."""
        return self.model.classes

    def get_output_embeddings(self) -> nn.Module:
        """The output head."""
        return self.lm_head

    def forward(self, input_ids: Tensor | None = None, position_ids: Tensor | None = None, **kwargs: Any) -> Any:
        """Logits [B, N, V] of the next codes, see `LlamaGenModel.forward`."""
        out = self.model(input_ids=input_ids, position_ids=position_ids, **kwargs)
        return BaseModelOutputWithPast(
            last_hidden_state=self.lm_head(out.last_hidden_state), past_key_values=out.past_key_values
        )
