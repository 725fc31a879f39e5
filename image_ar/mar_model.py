"""MAR (arXiv 2406.11838): a masked autoencoder over continuous tokens, with blocks of timm, and a VAE of diffusers.

The encoder reads the condition's slots and the known tokens; the decoder makes a state for every place of the grid,
from which the head draws a token. Nothing is causal, so there is no cache. Rows may know different numbers of tokens:
the encoder's input is as wide as the longest row, and its mask hides what is behind the others' ends.
"""

from __future__ import annotations

from functools import cached_property, partial
from typing import Any

import torch
from diffusers import AutoencoderKL
from timm.models.vision_transformer import Block
from torch import Tensor, nn
from transformers import GenerationMixin, PreTrainedModel

from mmspec.image_ar.continuous import Walk
from mmspec.image_ar.mar_canvas import NOTHING
from mmspec.image_ar.mar_config import MarConfig
from mmspec.image_ar.mar_head import NORM_EPS, Denoiser, Diffusion, check_schedule


class Head(nn.Module):
    """Holds the denoiser under its published name."""

    def __init__(self, config: MarConfig) -> None:
        super().__init__()
        self.net = Denoiser(config)


class Mar(PreTrainedModel, GenerationMixin):
    """The model, with weights under their published names, and the VAE as `vae` (None for a drafter).

    Raises: CheckpointError: a noise schedule by which no token can be drawn.
    """

    config_class = MarConfig
    _supports_sdpa = True

    def __init__(self, config: MarConfig) -> None:
        check_schedule(config)
        super().__init__(config)
        size, places = config.hidden_size, config.buffer + config.length
        norm: Any = partial(nn.LayerNorm, eps=NORM_EPS)
        block = partial(
            Block,
            size,
            config.num_attention_heads,
            qkv_bias=True,
            norm_layer=norm,
            proj_drop=config.dropout,
            attn_drop=config.dropout,
        )
        self.class_emb = nn.Embedding(config.classes, size)
        self.fake_latent = nn.Parameter(torch.zeros(1, size))
        self.z_proj = nn.Linear(config.channels, size)
        self.z_proj_ln = norm(size)
        self.encoder_pos_embed_learned = nn.Parameter(torch.zeros(1, places, size))
        self.encoder_blocks = nn.ModuleList(block() for _ in range(config.encoder_layers))
        self.encoder_norm = norm(size)
        self.decoder_embed = nn.Linear(size, size)
        self.mask_token = nn.Parameter(torch.zeros(1, 1, size))
        self.decoder_pos_embed_learned = nn.Parameter(torch.zeros(1, places, size))
        self.decoder_blocks = nn.ModuleList(block() for _ in range(config.decoder_layers))
        self.decoder_norm = norm(size)
        self.diffusion_pos_embed_learned = nn.Parameter(torch.zeros(1, config.length, size))
        self.diffloss = Head(config)
        self.vae = AutoencoderKL(**config.vae_config) if config.vae_config else None
        self.post_init()

    @cached_property
    def diffusion(self) -> Diffusion:
        """The steps of the walk. Not made in `__init__`, where tensors may have no storage."""
        return Diffusion(self.config)

    def _init_weights(self, module: nn.Module) -> None:
        """The published start."""
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, Mar):
            for weight in (module.fake_latent, module.mask_token, module.encoder_pos_embed_learned):
                nn.init.normal_(weight, std=0.02)
            for weight in (module.decoder_pos_embed_learned, module.diffusion_pos_embed_learned):
                nn.init.normal_(weight, std=0.02)
            nn.init.normal_(module.class_emb.weight, std=0.02)
            module.diffloss.net.quiet()

    def get_input_embeddings(self) -> nn.Module:
        """Of the condition."""
        return self.class_emb

    def slots(self, rows: list[list[int]]) -> Tensor:
        """[B, buffer] the condition: a class in every slot, or a caption's words in the first ones."""
        count = self.config.buffer
        filled = [row * count if not self.config.captions else row + [NOTHING] * (count - len(row)) for row in rows]
        return torch.tensor(filled, device=self.device)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """States [B, places, H] of an empty canvas. See `states`."""
        real = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        rows = [ids[keep.bool()].tolist() for ids, keep in zip(input_ids, real, strict=True)]
        values = torch.zeros(len(rows), self.config.length, self.config.channels, device=self.device, dtype=self.dtype)
        known = torch.zeros(values.shape[:2], dtype=torch.bool, device=self.device)
        return self.states(values, known, self.slots(rows), 0)

    def states(self, values: Tensor, known: Tensor, condition: Tensor, most: int) -> Tensor:
        """States [R, places, H] from which the head draws.

        Args: values: [R, places, D], read where `known` [R, places] is True. condition: `slots`. most: a number that no
        row knows more tokens than.
        """
        words = torch.where((condition == NOTHING)[..., None], self.fake_latent, self.class_emb(condition.clamp(min=0)))
        states = torch.cat([words, self.z_proj(values.to(words.dtype))], 1)
        states = self.z_proj_ln(states + self.encoder_pos_embed_learned)
        seen = torch.cat([torch.ones_like(condition, dtype=torch.bool), known], 1)
        width = condition.shape[1] + most
        index = (~seen).to(torch.uint8).sort(dim=-1, stable=True).indices[:, :width]  # what is seen first, in order
        real = seen.gather(1, index)
        index = index[..., None].expand(-1, -1, states.shape[-1])
        states, hidden = states.gather(1, index), torch.zeros_like(real, dtype=states.dtype)
        mask = hidden.masked_fill(~real, torch.finfo(states.dtype).min)[:, None, None]
        for block in self.encoder_blocks:
            states = block(states, attn_mask=mask)
        states = self.decoder_embed(self.encoder_norm(states))
        states = torch.where(real[..., None], states, self.mask_token)
        everywhere = self.mask_token.expand(len(seen), seen.shape[1], -1).scatter(1, index, states)
        states = everywhere + self.decoder_pos_embed_learned
        for block in self.decoder_blocks:
            states = block(states)
        return self.decoder_norm(states)[:, condition.shape[1] :] + self.diffusion_pos_embed_learned

    def walk(self, told: Tensor, noise: Tensor, temperature: float, free: Tensor | None, scale: Tensor) -> Walk:
        """The last step's Gaussian for nodes [B, N], see `Diffusion.walk`; every argument but the temperature has those
        two dimensions first."""
        shape = told.shape[:2]
        flat = [None if x is None else x.flatten(0, 1) for x in (told, noise, free, scale)]
        told, noise, free, scale = flat  # type: ignore[assignment]
        walk = self.diffusion.walk(self.diffloss.net, told, noise, temperature, free, scale)
        return Walk(*(part.unflatten(0, shape) for part in (walk.mean, walk.log_std, walk.trail)))

    def pixels(self, tokens: Tensor) -> Tensor:
        """Tokens [B, places, D] -> [B, 3, S, S] colours in [-1, 1]."""
        grid = self.config.grid
        latents = tokens.transpose(1, 2).unflatten(2, (grid, grid)) / self.config.latent_scale
        assert self.vae is not None
        made: Any = self.vae.decode(latents.to(self.dtype), return_dict=False)
        return made[0]
