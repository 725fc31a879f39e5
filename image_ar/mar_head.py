"""The head of a MAR: a small MLP that draws one token by denoising (arXiv 2406.11838, section 3; 2102.09672 for the
learned variances).

A walk starts at noise x_T and takes steps x_{t-1} = mean_t + std_t n_t. All of its noise, the last step's n_1 included,
is given, so that a drafter and a target can walk with the same (trajectory alignment, arXiv 2411.11925). What is
returned is the last step's Gaussian: given the noise before it, x_0 is distributed as N(mean, std^2). The published
sampler leaves out n_1; here it stays, because drafts are judged by that density. Its std is small: 0.006 for
100 steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import torch
from diffusers import DDPMScheduler
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from mmspec.errors import CheckpointError
from mmspec.image_ar.continuous import Walk

if TYPE_CHECKING:
    from mmspec.image_ar.mar_config import MarConfig

SPACINGS = ("linspace", "leading", "trailing")
PREDICTIONS = ("epsilon", "sample")
Teacher = Callable[[Tensor, Tensor], Tensor]

FREQUENCIES = 256
NORM_EPS = 1e-6


class Times(nn.Module):
    """Embeds time steps: [M] -> [M, W]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(FREQUENCIES, width), nn.SiLU(), nn.Linear(width, width))

    def forward(self, times: Tensor) -> Tensor:
        """See the class."""
        half = FREQUENCIES // 2
        rates = torch.exp(-math.log(10000) / half * torch.arange(half, device=times.device))
        angles = times[:, None].float() * rates
        waves = torch.cat([angles.cos(), angles.sin()], -1)
        return self.mlp(waves.to(next(self.mlp.parameters()).dtype))


class Block(nn.Module):
    """A residual MLP whose norm is shifted, scaled and gated by the condition."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.in_ln = nn.LayerNorm(width, eps=NORM_EPS)
        self.mlp = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 3 * width))

    def forward(self, states: Tensor, condition: Tensor) -> Tensor:
        """states, condition: [M, W]."""
        shift, scale, gate = self.adaLN_modulation(condition).chunk(3, -1)
        return states + gate * self.mlp(self.in_ln(states) * (1 + scale) + shift)


class Last(nn.Module):
    """The output, behind a norm that has no weights of its own."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.norm_final = nn.LayerNorm(width, eps=NORM_EPS, elementwise_affine=False)
        self.linear = nn.Linear(width, out)
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 2 * width))

    def forward(self, states: Tensor, condition: Tensor) -> Tensor:
        """states, condition: [M, W]."""
        shift, scale = self.adaLN_modulation(condition).chunk(2, -1)
        return self.linear(self.norm_final(states) * (1 + scale) + shift)


class Denoiser(nn.Module):
    """The MLP: noisy tokens [M, D], a time and a condition to [M, 2 D], a guess and where its variance lies."""

    def __init__(self, config: MarConfig) -> None:
        super().__init__()
        width = config.head_width
        self.time_embed = Times(width)
        self.cond_embed = nn.Linear(config.hidden_size, width)
        self.input_proj = nn.Linear(config.channels, width)
        self.res_blocks = nn.ModuleList(Block(width) for _ in range(config.head_layers))
        self.final_layer = Last(width, 2 * config.channels)

    def forward(self, tokens: Tensor, times: Tensor, told: Tensor) -> Tensor:
        """tokens: [M, D]. times: [M], or [1] of all. told: [M, W], `cond_embed` of the decoder's states."""
        condition = self.time_embed(times) + told
        states = self.input_proj(tokens.to(told.dtype))
        for block in self.res_blocks:
            states = block(states, condition)
        return self.final_layer(states, condition)

    def quiet(self) -> None:
        """The published start: every block passes its input on, the output is zero."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)
        for part in (self.time_embed.mlp[0], self.time_embed.mlp[2]):
            nn.init.normal_(part.weight, std=0.02)  # type: ignore[arg-type]  # a Linear
        modulations = [part.adaLN_modulation[-1] for part in (*self.res_blocks, self.final_layer)]  # type: ignore[union-attr, index]
        for part in (*modulations, self.final_layer.linear):
            nn.init.zeros_(part.weight)  # type: ignore[arg-type]
            nn.init.zeros_(part.bias)  # type: ignore[arg-type]


class Step(NamedTuple):
    """One step of the walk: x_{t-1} = clean_part * x_0 + noisy_part * x_t + noise.

    kept: share of the signal's variance that is left at t. low, high: log-variances between which the head chooses.
    variance: of the true step, given x_0; 0 for the last one.
    """

    time: int
    kept: float
    clean_part: float
    noisy_part: float
    low: float
    high: float
    variance: float


def check_schedule(config: MarConfig) -> None:
    """Raise CheckpointError for a configuration by which no token can be drawn."""
    for name, known in (("prediction", PREDICTIONS), ("spacing", SPACINGS)):
        if getattr(config, name) not in known:
            raise CheckpointError(f"{name} {getattr(config, name)!r} is not served: {' or '.join(map(repr, known))}")
    if not 1 <= config.diffusion_steps <= config.train_steps:
        raise CheckpointError(
            f"diffusion_steps {config.diffusion_steps} is not possible: from 1 to train_steps, which is "
            f"{config.train_steps}"
        )
    if not (config.least_variance > 0 or (config.least_variance == 0 and config.diffusion_steps > 1)):
        raise CheckpointError(
            f"least_variance {config.least_variance} is not possible: a MAR with one diffusion step needs a "
            "least_variance above 0 in its configuration, others one of 0 or more"
        )


class Diffusion:
    """The steps of a configuration, the last one (the least noise) first. Raises: see `check_schedule`."""

    def __init__(self, config: MarConfig) -> None:
        check_schedule(config)
        scheduler = DDPMScheduler(
            num_train_timesteps=config.train_steps,
            beta_schedule="squaredcos_cap_v2",
            prediction_type=config.prediction,
            timestep_spacing=config.spacing,
            variance_type="learned_range",
            clip_sample=False,
        )
        scheduler.set_timesteps(config.diffusion_steps)
        times = scheduler.timesteps.flip(0)
        kept = (1 - scheduler.betas.double()).cumprod(0)[times]  # not alphas_cumprod, whose first float32 are coarse
        before = torch.cat([torch.ones(1, dtype=torch.double), kept[:-1]])
        beta = 1 - kept / before
        true = beta * (1 - before) / (1 - kept)
        low = true.clone()
        low[0] = config.least_variance or float(true[1])
        columns = (
            times,
            kept,
            beta * before.sqrt() / (1 - kept),
            (1 - before) * (1 - beta).sqrt() / (1 - kept),
            low.log(),
            torch.maximum(beta, low).log(),
            true,
        )
        self.steps = [Step(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]
        self.epsilon = config.prediction == "epsilon"

    def gaussian(self, step: Step, out: Tensor, noisy: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log-variance [.., D] of a step, from what the denoiser says [.., 2 D] of `noisy` [.., D]."""
        guess, spread = out.chunk(2, -1)
        clean = (noisy - (1 - step.kept) ** 0.5 * guess) / step.kept**0.5 if self.epsilon else guess
        share = (spread + 1) / 2
        return step.clean_part * clean + step.noisy_part * noisy, share * step.high + (1 - share) * step.low

    def walk(
        self, net: Denoiser, told: Tensor, noise: Tensor, temperature: float, free: Tensor | None, scale: Tensor
    ) -> Walk:
        """The last step's Gaussian of tokens that are drawn with this noise.

        Args: told: [M, H] the decoder's states. noise: [M, T + 1, D], item t - 1 for n_t, the last for x_T.
            temperature: multiplies every std. free: [M, H] the states without a condition, or None for no guidance.
            scale: [M] of the guidance, which mixes guesses alone; variances are those of the told row.
        """
        condition = net.cond_embed(told if free is None else torch.cat([told, free]))
        noisy, trail = noise[:, -1], noise.new_zeros(len(noise))
        for index in range(len(self.steps) - 1, -1, -1):
            step = self.steps[index]
            rows = noisy if free is None else torch.cat([noisy, noisy])
            times = torch.full((1,), step.time, dtype=torch.float32, device=noisy.device)  # that of all rows
            out = net(rows, times, condition).to(noisy.dtype)
            if free is not None:
                out, other = out.chunk(2)
                (guess, spread), (plain, _) = out.chunk(2, -1), other.chunk(2, -1)
                out = torch.cat([plain + scale[:, None] * (guess - plain), spread], -1)
            mean, log_variance = self.gaussian(step, out, noisy)
            log_std = 0.5 * log_variance + math.log(temperature)
            if index:
                trail = trail + log_std.sum(-1)
                noisy = mean + log_std.exp() * noise[:, index]
        return Walk(mean, log_std, trail)

    def loss(self, net: Denoiser, told: Tensor, tokens: Tensor, teacher: Teacher | None = None) -> Tensor:
        """The published loss, on the very steps that drawing takes: squared error of the guess, and for the variance
        the bound of the step, in which the mean is held fixed.

        Args: told: [M, H]. tokens: [M, D] what is to be drawn. teacher: noisy tokens [M, D] and times [M] -> what a
            larger model says of them; its guesses and variances are then learnt in place of the data's.
        Returns: [M].
        """
        chosen = torch.randint(len(self.steps), (len(tokens),), device=tokens.device)
        table = torch.tensor(self.steps, device=tokens.device)[chosen]  # [M, 7]
        time, kept, clean_part, noisy_part, low, high, variance = table[:, :, None].unbind(1)
        noise = torch.randn_like(tokens)
        noisy = kept.sqrt() * tokens + (1 - kept).sqrt() * noise
        guess, spread = net(noisy, time[:, 0], net.cond_embed(told)).float().chunk(2, -1)
        log_variance = (spread + 1) / 2 * high + (1 - spread) / 2 * low
        wanted = noise if self.epsilon else tokens
        if teacher is not None:
            wanted, share = teacher(noisy, time[:, 0]).float().chunk(2, -1)
            variance = ((share + 1) / 2 * high + (1 - share) / 2 * low).exp()
        error = (wanted - guess).detach()  # of the guess; of the mean it is a part
        off = clean_part * error * ((1 - kept) / kept).sqrt() if self.epsilon else clean_part * error
        # Kullback-Leibler divergence of the step from the true one; of the last one, a point, minus log-density
        bound = 0.5 * (log_variance + (variance + off**2) / log_variance.exp())
        bound = torch.where(variance > 0, bound - 0.5 * (variance.clamp(min=1e-20).log() + 1), bound)
        return (mse_loss(guess, wanted, reduction="none") + bound).mean(-1)
