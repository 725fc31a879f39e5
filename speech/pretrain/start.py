"""Training that goes on from a finished speech model, also over a codec with other codes: what each code begins as.

A new code begins as the one in whose place it stands most often when both codecs hear the same speech. So over a finer
codec most codes begin with twins, and the model knows at once what they have in common.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.checkpoints import find_model, read_model, weights_digest
from mmspec.errors import MismatchError
from mmspec.safe_files import read_json
from mmspec.speech.codec import MelCodec, MelCodecConfig
from mmspec.speech.pretrain.valle_training import Size
from mmspec.speech.valle import Valle

SOUND = ("rate", "n_fft", "hop", "mels", "width", "latent", "codebooks")
"""What two codecs have in common."""


@dataclass(frozen=True)
class Start:
    """A finished model and its codec, both in float32. keeps_codec: whether the codec stays as it is."""

    model: Valle
    codec: MelCodec
    keeps_codec: bool = False

    @property
    def digest(self) -> str:
        """Tells these weights from others of the same name."""
        return f"{weights_digest(self.model)}-{weights_digest(self.codec)}"


def read_start(source: str, codec: MelCodecConfig, size: Size, keep_codec: bool = False) -> Start:
    """A finished checkpoint: a bundled name, a folder, a hub id.

    Args: codec: of the model that goes on from it; its codebooks may be larger or smaller. size: of that model.
        keep_codec: the codec will not be trained on; its codebooks have to be as large, then.
    Raises: MismatchError: it is of another class, or of other sizes. CheckpointError: its codec is not there.
    """
    folder = find_model(source)
    kind = read_json(folder / "config.json").get("model_type")
    if kind != Valle.config_class.model_type:
        raise MismatchError(f"valle-mini cannot go on from {folder}, a {kind} checkpoint: it needs a VALL-E-type one")
    found = Start(
        read_model(Valle, folder, torch.float32).eval(),
        read_model(MelCodec, folder / "codec", torch.float32).eval(),
        keep_codec,
    )
    here, there = size.deepest(), Size.of(found.model)
    differing = [name for name in SOUND if getattr(found.codec.config, name) != getattr(codec, name)]
    differing += [name for name in vars(here) if getattr(here, name) != getattr(there, name)]
    if found.codec.config.codebook_size != found.model.config.codebook_size:
        differing.append("codes of its own codec")
    if differing:
        told = ", ".join(differing)
        raise MismatchError(
            f"valle-mini cannot go on from {folder}, which differs in {told}: only the number of codes may"
        )
    if keep_codec and found.codec.config.codebook_size != codec.codebook_size:
        raise MismatchError(
            f"no updates of the codec are asked for, but the one of {folder} has {found.codec.config.codebook_size} "
            f"codes, and {codec.codebook_size} are asked for"
        )
    return found


def take_over_sound(codec: MelCodec, old: MelCodec) -> None:
    """Give a new codec what another one knows of sound; codebooks stay new."""
    codec.config.mean, codec.config.spread = old.config.mean, old.config.spread
    codec.encoder.load_state_dict(old.encoder.state_dict())
    codec.decoder.load_state_dict(old.decoder.state_dict())


def parents(pairs: Iterable[tuple[Tensor, Tensor]], old: int, new: int) -> Tensor:
    """[K, new] the old code in whose place each new one stands most often.

    Args: pairs: codes [K, F] of the same utterances by the old and by the new codec. old, new: codes of a codebook.
    """
    before, after = (torch.cat(codes, 1) for codes in zip(*pairs, strict=True))
    counts = torch.zeros(len(after), new, old, dtype=torch.long)
    for count, was, now in zip(counts, before, after, strict=True):
        count.index_put_((now, was), torch.ones_like(now), accumulate=True)
    return counts.argmax(-1)


@torch.no_grad()
def with_codes(model: Valle, fresh: Valle, origin: Tensor) -> Valle:
    """`fresh` with the weights of `model`, of the same sizes: new codes begin as their parents `origin` [K, codes]."""
    text = model.config.first_code
    grown = torch.cat([torch.arange(text), text + origin[0]])  # text and control tokens, then codes
    rows = {f"speaker.{name}.weight": grown for name in ("model.embed_tokens", "lm_head")}
    rows |= {f"refiner.codes.{k}.weight": codes for k, codes in enumerate(origin)}
    rows["refiner.text.weight"] = torch.arange(text)
    weights = {name: value[rows[name]] if name in rows else value for name, value in model.state_dict().items()}
    fresh.load_state_dict(weights)
    return fresh
