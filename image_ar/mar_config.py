"""The shape of a MAR. The defaults are those of the published MAR-B (arXiv 2406.11838)."""

from __future__ import annotations

from transformers import PreTrainedConfig


class MarConfig(PreTrainedConfig):
    """grid: rows and columns of tokens. channels: numbers of a token, those of the VAE's latents.

    classes: rows of the embedding of the condition, classes or words. captions: whether the condition is the words of a
        caption, one in each slot; else a class, which fills all of them. buffer: slots of the condition.
    encoder_layers, decoder_layers, head_layers, head_width: of the masked autoencoder, and of the MLP that denoises.
    reveal_steps: in how many steps plain decoding reveals the grid. guidance_schedule: "linear" (the published figures)
        or "constant".
    train_steps, diffusion_steps: of the noise schedule, and of those how many a token is drawn with. spacing: how they
        are chosen, as in diffusers. prediction: "epsilon" or "sample". least_variance: the lower end of the last step's
        learned range; 0 is that of the step before it, as published, so one diffusion step needs a number above 0.
    latent_scale: brings latents to unit variance. vae_config: of diffusers' `AutoencoderKL`; None for a drafter, which
        draws with its target's. dropout: in training.
    """

    model_type = "mmspec-mar"

    vae_config: dict | None = None
    grid: int = 16
    channels: int = 16
    classes: int = 1000
    captions: bool = False
    buffer: int = 64
    hidden_size: int = 768
    num_attention_heads: int = 12
    encoder_layers: int = 12
    decoder_layers: int = 12
    head_layers: int = 6
    head_width: int = 1024
    reveal_steps: int = 256
    guidance_schedule: str = "linear"
    train_steps: int = 1000
    diffusion_steps: int = 100
    spacing: str = "linspace"
    prediction: str = "epsilon"
    least_variance: float = 0.0
    latent_scale: float = 0.2325
    dropout: float = 0.0

    @property
    def length(self) -> int:
        """Tokens of a picture."""
        return self.grid * self.grid
