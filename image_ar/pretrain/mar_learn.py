"""What `mar-mini` learns: a VAE for pictures, then to reveal their tokens; its drafter learns what the target says.

The target is also taught where in the caption to look, words and tokens are asked for the thing that they speak of or
show, and tokens for their ground (`mmspec.pretrain.pointing`, `mmspec.image_ar.pretrain.contents`). A MAR that had
learnt from 35,000 pictures without drew the ground of a caption and nothing else of it; with tokens asked for things
alone, its colours in any place; with tokens not asked for the ground, things on a mean of all grounds.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from diffusers import AutoencoderKL
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

from mmspec.image_ar.captions import GROUNDS, NOBODY, Caption
from mmspec.image_ar.mar_canvas import NOTHING, plan
from mmspec.image_ar.mar_model import Mar
from mmspec.image_ar.pretrain.architecture import SIDE
from mmspec.image_ar.pretrain.codes import pixel_loss
from mmspec.image_ar.pretrain.contents import ANSWERS as OF_CODES
from mmspec.image_ar.pretrain.contents import UNTOLD, content_loss, own_cells
from mmspec.image_ar.pretrain.sharpen import LOOKS, Critic
from mmspec.image_ar.pretrain.world import Scenes, collate
from mmspec.image_ar.reader import Reader
from mmspec.pretrain.pixels import normalized
from mmspec.pretrain.pointing import pointing_loss

LATENT_WEIGHT = 0.01  # of the divergence of a latent from noise: sets how much noise latents carry
ANSWERS = (*OF_CODES[:2], len(GROUNDS))
"""How many answers each question has: shape and colour in a token's cell, and the ground."""
CONTENT_WEIGHT, READ_WEIGHT = 0.5, 0.5  # of what words and tokens are asked, and of where tokens look
FREE = 0.1  # share of captions that are hidden, so that guidance has a second row to compare with
WALKS = 4  # noises that each token is learnt with
MEASURED = 64


class Compressor(nn.Module):
    """A VAE in training: pixels to the loss of their reconstruction, as they are and as a frozen critic sees them."""

    def __init__(self, vae: AutoencoderKL, critic: Reader) -> None:
        super().__init__()
        self.vae, self.critic = vae, Critic(critic)

    def forward(self, pixels: Tensor, **_: Any) -> dict[str, Tensor]:
        """pixels: [B, 3, S, S] uint8. Returns the loss, and the reconstruction in [-1, 1]."""
        wanted = normalized(pixels)
        law = self.vae.encode(wanted).latent_dist
        made = self.vae.decode(law.sample()).sample
        divergence = law.kl().mean() / law.mean[0].numel()
        looks = LOOKS * self.critic(made, wanted)
        return {"loss": pixel_loss(made, wanted) + looks + LATENT_WEIGHT * divergence, "made": made}


@torch.no_grad()
def spread(vae: AutoencoderKL) -> tuple[float, float]:
    """Standard deviation of latents, and what share of it is noise."""
    scenes = Scenes("codes", MEASURED)
    pixels = collate([scenes[index] for index in range(MEASURED)])["pixels"].to(vae.device)
    law = vae.eval().encode(normalized(pixels)).latent_dist
    noise = float(law.var.mean())
    whole = float((law.var + law.mean.square()).mean() - law.mean.mean().square())
    return whole**0.5, (noise / whole) ** 0.5


class Revealer(nn.Module):
    """A MAR in training: captions and pixels to the loss of the tokens that are hidden, and of its lessons.

    Args: vae: frozen. teacher: a target in the same latents; the model then learns its guesses in place of the data's.
    """

    def __init__(
        self, model: Mar, vae: AutoencoderKL, tokenizer: PreTrainedTokenizerFast, teacher: Mar | None = None
    ) -> None:
        super().__init__()
        self.model, self.vae, self.tokenizer, self.teacher = model, vae, tokenizer, teacher
        for part in (vae, model.vae, teacher):
            if part is not None:
                part.requires_grad_(False)
        self.stages = plan(model.config.length, model.config.reveal_steps)

    def train(self, mode: bool = True) -> Revealer:
        """What is frozen stays as it is in use."""
        super().train(mode)
        for part in (self.vae, self.teacher):
            if part is not None:
                part.eval()
        return self

    def forward(self, pixels: Tensor, captions: list[Caption], owners: Tensor, questions: Tensor) -> dict[str, Tensor]:
        """pixels: [B, 3, S, S] uint8; owners, questions: as in `Scene`. Every picture is cut at a step of its own, in
        an order of its own."""
        tokens = self.tokens(pixels)
        rows = [self.tokenizer(one.text, add_special_tokens=False)["input_ids"] for one in captions]
        condition = self.model.slots(rows)
        if self.training:
            free = torch.rand(len(rows), 1, device=tokens.device) < FREE
            condition = condition.masked_fill(free, NOTHING)
        cuts = torch.randint(len(self.stages) - 1, (len(rows),))
        counts = torch.tensor(self.stages)[cuts].to(tokens.device)
        rank = torch.rand(tokens.shape[:2], device=tokens.device).argsort(-1).argsort(-1)
        known = rank < counts[:, None]
        hidden = ~known
        most = int(counts.max())
        with outputs_of(*self.asked) as answers, outputs_of(*(attention.qkv for attention in self.looking)) as read:
            told = self.model.states(tokens, known, condition, most)[hidden].repeat(WALKS, 1)
        wanted = tokens[hidden].repeat(WALKS, 1)
        teacher = self.taught(tokens, known, condition, most) if self.teacher else None
        loss = self.model.diffusion.loss(self.model.diffloss.net, told, wanted, teacher).mean()
        if self.training:
            shown = self.shown(owners)
            right = self.words_of(captions, shown, condition)
            labels = torch.cat([own_cells(questions, self.model.config.grid), self.grounds(captions)], 1)
            labels = labels.masked_fill(free[..., None], UNTOLD)
            loss = loss + self.lessons(answers, read, labels, right, shown >= 0, hidden)
        return {"loss": loss}

    def lessons(
        self, answers: list[Tensor], read: list[Tensor], labels: Tensor, right: Tensor, things: Tensor, hidden: Tensor
    ) -> Tensor:
        """What words and hidden tokens are asked, and where these should look.

        Args: answers: what `asked` returned. read: what `qkv` of `looking` returned. labels: [B, 3, L], see
            `own_cells` and `grounds`. right: see `words_of`. things: [B, L] which tokens show one. hidden: [B, L].
        """
        slots, (words, *places) = right.shape[-1], answers
        loss = content_loss(words[:, :slots], spoken(labels[:, :2], right & things[..., None]), ANSWERS)
        for states in places:
            loss = loss + content_loss(states[:, slots:], labels.masked_fill(~hidden[:, None], UNTOLD), ANSWERS)
        loss = CONTENT_WEIGHT * loss
        for attention, qkv in zip(self.looking, read, strict=True):
            scores = first_head(qkv, attention.head_dim, slots)
            loss = loss + READ_WEIGHT * pointing_loss(scores, right & hidden[..., None])
        return loss

    @property
    def asked(self) -> tuple[nn.Module, ...]:
        """The blocks whose states are asked: the encoder's last one, in which every word has read the others; of the
        decoder one that comes after `looking`, and the last one, which the head reads, if that is another."""
        decoder: Any = self.model.decoder_blocks
        late = sorted({len(decoder) * 3 // 4, len(decoder) - 1})
        return self.model.encoder_blocks[-1], *(decoder[layer] for layer in late)

    @property
    def looking(self) -> list[Any]:
        """The attentions of the decoder whose first head is taught where to look: early, so that others can use it."""
        decoder: Any = self.model.decoder_blocks
        return [decoder[layer].attn for layer in sorted({len(decoder) // 4, len(decoder) // 2})]

    def grounds(self, captions: list[Caption]) -> Tensor:
        """[B, 1, L] the ground that a caption tells, of every token, or UNTOLD."""
        told = [UNTOLD if one.ground is None else GROUNDS.index(one.ground) for one in captions]
        return torch.tensor(told, device=self.model.device)[:, None, None].expand(-1, -1, self.model.config.length)

    def shown(self, owners: Tensor) -> Tensor:
        """[B, L] what every token shows, from the owners of smaller patches: see `Scene`."""
        step = SIDE // self.model.config.grid
        return owners[:, step // 2 :: step, step // 2 :: step].flatten(1)

    def words_of(self, captions: list[Caption], shown: Tensor, condition: Tensor) -> Tensor:
        """Which slots hold words that tell what thing, or which ground, a token shows: [B, L, slots] bool; none of a
        hidden caption."""
        slots = condition.shape[1]
        rows = [[*one.owners] + [NOBODY] * (slots - len(one.owners)) for one in captions]
        words = torch.tensor(rows, device=shown.device).masked_fill(condition == NOTHING, NOBODY)[:, None]
        tokens = shown[..., None]
        return (words == tokens) & (tokens != NOBODY)

    def taught(self, tokens: Tensor, known: Tensor, condition: Tensor, most: int) -> Any:
        """What the teacher says of noisy tokens at the hidden places."""
        assert self.teacher is not None
        net = self.teacher.diffloss.net
        with torch.no_grad():
            states = self.teacher.states(tokens, known, condition, most)[~known]
            told = net.cond_embed(states.repeat(WALKS, 1))

        @torch.no_grad()
        def say(noisy: Tensor, times: Tensor) -> Tensor:
            return net(noisy, times, told)

        return say

    @torch.no_grad()
    def tokens(self, pixels: Tensor) -> Tensor:
        """[B, L, D] tokens of pictures, drawn from the VAE's law."""
        latents = self.vae.encode(normalized(pixels)).latent_dist.sample()
        return latents.flatten(2).transpose(1, 2) * self.model.config.latent_scale


def spoken(labels: Tensor, right: Tensor) -> Tensor:
    """What words speak of: [B, Q, slots], from labels [B, Q, L] of tokens and `right` [B, L, slots], which words tell
    of the thing that a token shows. UNTOLD for words that speak of no thing."""
    # of the last token of a thing: the first one can lie in another cell by its middle, where things start early
    last = right.shape[1] - 1 - right.flip(1).to(torch.uint8).argmax(1)
    return labels.gather(-1, last[:, None].expand(-1, labels.shape[1], -1)).masked_fill(~right.any(1)[:, None], UNTOLD)


def first_head(qkv: Tensor, size: int, slots: int) -> Tensor:
    """[B, L, slots] attention logits of the first head of a block of timm, from what its `qkv` gave, [B, slots + L,
    3 H]."""
    query, key, _ = qkv.chunk(3, -1)
    return query[:, slots:, :size] @ key[:, :slots, :size].mT * size**-0.5


@contextmanager
def outputs_of(*modules: nn.Module) -> Iterator[list[Tensor]]:
    """What modules return while this lasts."""
    seen: list[Tensor] = []
    handles = [module.register_forward_hook(lambda _module, _inputs, output: seen.append(output)) for module in modules]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()
