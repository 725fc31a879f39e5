"""MAR as target: pictures of continuous tokens, several of which are revealed in a step, in random order.

A prompt is a caption, in the words that the checkpoint was told, or the number or name of a class (published MARs).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

from mmspec.base_target import BaseTarget, check_served, unpad
from mmspec.contract import Accepted, Draft, Needs, State, Verified
from mmspec.errors import CheckpointError, InputError, missing_extra
from mmspec.finite import check_finite
from mmspec.image_ar.classes import EXAMPLES, Classes, class_numbers
from mmspec.image_ar.continuous import Proposal, Walk, normal
from mmspec.image_ar.mar_canvas import NOTHING, Canvas, CanvasStop, plan
from mmspec.image_ar.pictures import to_picture, to_pixels
from mmspec.image_ar.words import check_known
from mmspec.noise import TARGET
from mmspec.options import guidance_scale
from mmspec.sampling import Sampler, Sampling
from mmspec.stopping import Stop
from mmspec.templates import check_plain, padded

SCHEDULES = ("linear", "constant")
FOR_WORDS = ("top_k", "top_p", "min_p", "repetition_penalty", "ras_window")
"""Settings for laws over a vocabulary."""


class ContinuousSampler(Sampler):
    """The noise of a request. Temperature is the head's business, so nothing is warped here.

    Raises: InputError: temperature 0.
    """

    def __init__(self, sampling: Sampling, batch: int, device: torch.device) -> None:
        super().__init__(sampling, batch, device)
        if self.greedy:
            raise InputError(
                "temperature=0 is not valid: tokens are drawn from densities, it must be above 0 (usual: 1)"
            )

    def warp(self, draft: Any, logits: Tensor) -> Tensor:
        """What the rule needs, as it is."""
        return logits


class MarTarget(BaseTarget):
    """A folder of MAR. See `BaseTarget`."""

    modality = "image"
    makes = "picture"
    model_type = "mmspec-mar"
    usual_drafter = "none"
    trained_first = False  # on `mar-mini` its drafter takes three times as long as plain decoding
    emits = "values"
    noun = "MAR"
    settings = ("guidance", "steps")
    refuses = dict.fromkeys(FOR_WORDS, "whose tokens are continuous")
    applies = ("guidance_scale",)
    usual_guidance = 1.0
    rules = {"exact": "continuous-conditioned"}  # noqa: RUF012
    advised_rules = "'exact', 'continuous' or 'continuous-released'"
    advised_drafters = "'none', 'mar' where one lies beside the model, or the folder of a smaller MAR"

    def __init__(self, model: PreTrainedModel, tokenizer: Any = None) -> None:
        config: Any = model.config
        if not config.vae_config:
            raise CheckpointError("this MAR has no VAE: it can draft for another, but not draw")
        if config.guidance_schedule not in SCHEDULES:
            raise CheckpointError(
                f"guidance_schedule {config.guidance_schedule!r} is not served: {' or '.join(SCHEDULES)}"
            )
        super().__init__(model)  # no tokenizer: what is emitted are places, no words
        self.examples = () if config.captions else EXAMPLES
        self.vocab_size, self.hidden_size = config.classes, config.hidden_size
        self.num_layers = config.encoder_layers + config.decoder_layers

    @classmethod
    def model_class(cls, config: PreTrainedConfig) -> type[PreTrainedModel]:
        """The class of the model."""
        return mar_class()

    @classmethod
    def processor_class(cls, config: PreTrainedConfig) -> Any:
        """What reads captions, or the names of classes."""
        from transformers import PreTrainedTokenizerFast

        return PreTrainedTokenizerFast if getattr(config, "captions", False) else Classes

    @property
    def budget(self) -> int:
        """A whole picture."""
        return self.model.config.length

    def sampler(self, sampling: Sampling, batch: int) -> Sampler:
        """See `ContinuousSampler`."""
        return ContinuousSampler(sampling, batch, self.model.device)

    def stopping(self, budget: int, strings: Sequence[str], text_of: Callable[[list[int]], str]) -> Stop:
        """The canvas ends a row."""
        return CanvasStop(budget)

    def encode(self, processor: Any, texts: list[str], images: list[list[Image.Image]]) -> dict[str, Any]:
        """`input_ids` [B, T], words padded on the left with their `attention_mask`, or [B, 1] of classes."""
        config = self.model.config
        if not config.captions:
            return {"input_ids": torch.tensor([[number] for number in class_numbers(processor, texts, config.classes)])}
        check_plain(texts, processor)
        rows = [processor(text, add_special_tokens=False)["input_ids"] for text in texts]
        for text, row in zip(texts, rows, strict=True):
            check_known(text, row, processor)
        return padded(rows, 0)

    def prefill(self, inputs: dict[str, Any], needs: Needs, sampler: Sampler) -> Canvas:  # type: ignore[override]
        """An empty canvas; nothing is computed.

        Args: inputs: `input_ids` [B, T], `attention_mask`, `guidance`, `steps` (None for the usual ones),
        `max_new_tokens`. The canvas is left among them, so that `product_of` finds it.
        """
        config = self.model.config
        check_served(inputs, ("guidance", "steps"), "MAR is served without {}: leave it out")
        rows = unpad(inputs)
        longest, room = max(map(len, rows)), config.buffer if config.captions else 1
        if longest > room:
            raise InputError(f"the prompt has {longest} words, the model's context is {room}: shorten it")
        scale = guidance_scale(inputs.get("guidance"), self.model.generation_config, self.usual_guidance)
        size = config.length, config.channels
        asked = inputs.get("steps")
        stages = plan(config.length, config.reveal_steps if asked is None else asked)
        condition = self.model.slots(rows)
        dtype = torch.promote_types(self.model.dtype, torch.float32)  # of values and noise: densities need it
        budget = inputs["max_new_tokens"]
        canvas = Canvas.blank(condition, size, dtype, stages, budget, scale, config.guidance_schedule, sampler)
        inputs["canvas"] = canvas
        return canvas

    def verify(self, state: State, draft: Draft) -> Verified:
        """The target's walks at every node: one forward, with a canvas per group for aligned drafts."""
        assert isinstance(state, Canvas)
        assert isinstance(draft, Proposal)
        contexts = draft.groups if draft.kind == "aligned" else 1
        counts = state.after(torch.arange(contexts, device=state.known.device))
        index = draft.places[..., None].expand_as(draft.tokens)
        # in a row nearer to its end than others, a place without a draft may be one that is known
        drafted = torch.where(draft.filled[..., None], draft.tokens, state.values.gather(1, index))
        values = state.values.scatter(1, index, drafted)
        most = max(state.revealed) + (draft.places.shape[1] if contexts > 1 else 0)
        walk = walks(
            self.model, state, values, counts, most, draft.places, draft.depth, draft.depth.clamp(max=contexts - 1)
        )
        check_finite(walk.mean, f"token {max(state.revealed)}")
        return Verified(walk.pack())

    def commit(self, state: State, draft: Draft, accepted: Accepted) -> None:
        """Reveal what was accepted."""
        assert isinstance(state, Canvas)
        assert isinstance(draft, Proposal)
        state.write(draft, accepted)

    def product_of(self, inputs: dict[str, Any], row: int, ids: list[int]) -> dict[str, Any]:
        """The picture as far as the places `ids` tell it; the rest is grey."""
        return {"image": self.picture(inputs["canvas"].values[row], ids)}

    @torch.inference_mode()
    def reconstruct(self, picture: Image.Image) -> Image.Image:
        """What the likeliest continuous tokens of the VAE keep of a real picture."""
        vae, config = self.model.vae, self.model.config
        pixels = to_pixels(picture, config.grid * 2 ** (len(vae.config.block_out_channels) - 1))
        latents = vae.encode(pixels.to(self.model.device, self.model.dtype)).latent_dist.mode()
        tokens = latents.flatten(2).transpose(1, 2)[0] * config.latent_scale
        return self.picture(tokens, list(range(config.length)))

    @torch.inference_mode()
    def picture(self, values: Tensor, places: list[int]) -> Image.Image:
        """The picture of some places of a canvas [L, D]."""
        grid = self.model.config.grid
        known = torch.zeros(grid * grid, dtype=torch.bool, device=values.device)
        known[places] = True
        pixels = self.model.pixels(torch.where(known[:, None], values, 0.0)[None])[0]
        return to_picture(pixels, known.view(grid, grid))


def walks(
    model: Any,
    canvas: Canvas,
    values: Tensor,
    counts: Tensor,
    most: int,
    places: Tensor,
    depth: Tensor,
    context: Tensor,
) -> Walk:
    """Where a model, target or drafter, stands before the last step at some places, in either of two rows if guided.

    Args: values: [B, L, D], drafted ones included. counts: [B, C] how many tokens, in the order of revelation, each
        context knows; most: a number that none exceeds. places: [B, N]. depth: [B, N] groups between what is known and
        a place's own. context: [B, N] which of the C a place is drawn from.
    """
    rows, contexts = counts.shape
    known = canvas.rank[:, None] < counts[:, :, None]
    values = torch.where(known[..., None], values[:, None], 0.0).flatten(0, 1)
    condition = canvas.condition[:, None].expand(-1, contexts, -1).flatten(0, 1)
    known = known.flatten(0, 1)
    if canvas.scale != 1:
        values, known = values.repeat(2, 1, 1), known.repeat(2, 1)
        condition = torch.cat([condition, torch.full_like(condition, NOTHING)])
    states = model.states(values, known, condition, most).unflatten(0, (-1, rows, contexts))
    every = torch.arange(rows, device=places.device)[:, None]
    told, *free = states[:, every, context, places].unbind(0)
    scale = torch.full(places.shape, canvas.scale, device=places.device, dtype=values.dtype)
    if canvas.schedule == "linear":
        # the published loop counts one token as hidden still when it reveals the last ones
        after = canvas.after(depth + 1).clamp(max=canvas.length - 1).to(values.dtype)
        scale = 1 + (scale - 1) * after / canvas.length
    noise = walk_noise(canvas.sampler.seeds, places, model.config).to(values.dtype)
    return model.walk(told, noise, canvas.sampler.sampling.temperature, free[0] if free else None, scale)


def walk_noise(seeds: Tensor, places: Tensor, config: Any) -> Tensor:
    """[B, N, T + 1, D] the noise of a place's walk, the same in every round and for every model."""
    count, size = config.diffusion_steps + 1, config.channels
    return normal(seeds, TARGET, places, count * size).unflatten(-1, (count, size))


def mar_class() -> Any:
    """The class of the model. Raises MissingExtraError."""
    for package in ("timm", "diffusers"):
        if find_spec(package) is None:
            raise missing_extra(package, "image")
    from mmspec.image_ar.mar_model import Mar

    return Mar
