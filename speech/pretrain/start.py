"""Training that goes on from a finished speech model, also over a codec with other codes: what each code begins as.

Codes are counted, not compared: a new code begins as the one in whose place it stands most often when both codecs hear
the same speech. So a finer codec begins with several twins of every code, and the model knows at once what they have in
common.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.checkpoints import find_model, read_model
from mmspec.errors import MismatchError
from mmspec.safe_files import read_json
from mmspec.speech.codec import MelCodec
from mmspec.speech.processing import SpeechProcessor
from mmspec.speech.valle import Valle


@dataclass(frozen=True)
class Start:
    """A finished model and its codec, both in float32."""

    model: Valle
    codec: MelCodec


def read_start(source: str) -> Start:
    """A finished checkpoint: a bundled name, a folder, a hub id.

    Raises: MismatchError: it is of another class. CheckpointError: its codec is not there.
    """
    folder = find_model(source)
    kind = read_json(folder / "config.json").get("model_type")
    if kind != Valle.config_class.model_type:
        raise MismatchError(f"valle-mini cannot go on from {folder}, a {kind} checkpoint: it needs a VALL-E-type one")
    return Start(read_model(Valle, folder, torch.float32), SpeechProcessor.from_pretrained(folder).codec)


def take_over_sound(codec: MelCodec, old: MelCodec) -> None:
    """Give a new codec what another one knows of sound; codebooks stay new.

    Raises: MismatchError: they differ in more than their codebooks.
    """
    codec.config.mean, codec.config.spread = old.config.mean, old.config.spread
    for name in ("encoder", "decoder"):
        here, there = (getattr(one, name).state_dict() for one in (codec, old))
        if {key: value.shape for key, value in here.items()} != {key: value.shape for key, value in there.items()}:
            raise MismatchError(f"the codec cannot go on from one whose {name} has other shapes")
        getattr(codec, name).load_state_dict(there)


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
    """`fresh` with the weights of `model`: new codes have the embeddings of their parents `origin` [K, codes].

    Raises: MismatchError: the two differ in more than the number of codes and of layers of the decoder.
    """
    text = model.config.first_code
    grown = torch.cat([torch.arange(text), text + origin[0]])  # text and control tokens, then codes
    rows = {f"speaker.{name}.weight": grown for name in ("model.embed_tokens", "lm_head")}
    rows |= {f"refiner.codes.{k}.weight": codes for k, codes in enumerate(origin)}
    rows["refiner.text.weight"] = torch.arange(text)
    weights = {name: value[rows[name]] if name in rows else value for name, value in model.state_dict().items()}
    wanted = {name: value.shape for name, value in fresh.state_dict().items()}
    if wanted != {name: value.shape for name, value in weights.items()}:
        raise MismatchError("the model cannot go on from one of other sizes: only its codes may be others")
    fresh.load_state_dict(weights)
    return fresh
