"""Drafters trained here, written as other programs read them, or small.

    speculators   of vllm-project/speculators, which vLLM serves: EAGLE-3 and DFlash
    eagle         of SafeAILab/EAGLE, which vLLM and SGLang read, too: EAGLE, EAGLE-2, HASS, EAGLE-3
    int8          of mmspec itself, in half the room (`mmspec.drafters.eight_bits`): all heads on the target's features

Hidden states are numbered by the layer that they enter in both, as here. The last one is an exception: here it stands
behind the target's last norm, there before it, so a drafter that taps it is refused.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file
from torch import Tensor, nn

from mmspec.checkpoints import WEIGHTS, save_drafter, writing
from mmspec.errors import MismatchError, UnsupportedError
from mmspec.interchange import dflash, eagle, eagle3
from mmspec.interchange.published import CLOSE, CONFIG, all_embeddings

logger = logging.getLogger(__name__)

VERSION = "0.9.0"
"""The release of speculators whose configuration this is."""
EIGHT_BITS = "int8"
IN_EIGHT_BITS = """
## Eight bits

Since they were trained, the weights were rounded to eight bits with a scale per row (`mmspec export --format int8`).
The figures above are those of the weights before that.
"""
"""What is added to the card."""
Written = tuple[dict[str, Any], dict[str, Tensor]]
"""A configuration, and tensors by their published names."""


def export(
    drafter: Any,
    target: Any,
    name: str,
    form: str | None,
    folder: str | os.PathLike[str],
    card: str | None = None,
) -> Path:
    """Write a drafter that is bound to its target; the folder appears whole, or stays as it was.

    Args: name: of the target, as the other program will find it; EIGHT_BITS has no place for it. form: one of FORMS, or
        EIGHT_BITS; None for the first of FORMS that has such a drafter. card: that of the drafter, which goes along
        with EIGHT_BITS.
    Raises: UnsupportedError: the form has no such drafter. MismatchError: it cannot say what this drafter is.
        CheckpointError: it has no weights of its own, or rounded ones.
    """
    if form == EIGHT_BITS:
        if card is not None and "eight bits" not in card.lower():  # not packed before
            card += IN_EIGHT_BITS
        return save_drafter(drafter, folder, target, packed=True, card=card)
    if target.makes != "text":
        raise UnsupportedError(
            f"no other program drafts for {type(target.model).__name__}, which makes a {target.makes}: there is "
            f"{EIGHT_BITS} alone"
        )
    method = drafter.method or type(drafter).__name__
    fitting = [each for each, methods in FORMS.items() if method in methods and form in (None, each)]
    if not fitting:
        can = "; ".join(f"{each}: {', '.join(methods)}" for each, methods in FORMS.items())
        where = f"in the format {form!r}" if form else "for other programs"
        raise UnsupportedError(
            f"the drafter {method!r} cannot be written {where}; there are {can}; {EIGHT_BITS}: all heads"
        )
    writer = FORMS[fitting[0]][method]
    config, tensors = writer(drafter, target, name)
    with writing(folder) as draft:
        save_file({key: value.detach().contiguous().clone() for key, value in tensors.items()}, draft / WEIGHTS)
        (draft / CONFIG).write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    return Path(folder)


def speculators_eagle3(drafter: Any, target: Any, name: str) -> Written:
    """EAGLE-3 for speculators."""
    net = drafter.net
    taps = before_the_norm(net.settings["taps"], target)
    config = {
        **speculators("eagle3", "Eagle3Speculator", net, target, name, drafter.depth),
        "draft_vocab_size": net.settings["words"],
        eagle3.TAPS: taps,
        "embed_requires_grad": False,
        "fc_norm": False,
        "norm_before_fc": False,
        "norm_before_residual": net.settings["normed_residual"],
        "norm_output": False,
        "target_hidden_size": None,
        **slots_of(net),
    }
    return config, {**eagle3_tensors(net, "layers.0."), **own_embeddings(target)}


def speculators_dflash(drafter: Any, target: Any, name: str) -> Written:
    """DFlash for speculators, with a table of embeddings whose row of the mask is the trained one.

    speculators 0.9.0 puts the target's own table in its place when it loads a drafter, and says so to nobody.
    """
    net, mask = drafter.net, unused_id(target)
    block = net.settings["block"]
    config = {
        **speculators("dflash", "DFlashSpeculator", net, target, name, block - 1),
        "aux_hidden_state_layer_ids": before_the_norm(net.settings["taps"], target),
        "block_size": block,
        "draft_vocab_size": target.vocab_size,
        "mask_token_id": mask,
        "sample_from_anchor": False,
        "sliding_window_non_causal": False,
        "target_hidden_size": None,
    }
    weights = net.state_dict()
    table = all_embeddings(target)
    if not torch.allclose(table[mask], weights["mask"], rtol=CLOSE, atol=1e-6):
        logger.warning(
            "the drafter learnt what stands in a masked slot; a program that shares the target's embeddings instead of "
            "reading the drafter's (as speculators does) puts the embedding of token %d there, and drafts worse",
            mask,
        )
    table[mask] = weights["mask"]
    tensors = {theirs: weights[ours] for theirs, ours in dflash.pairs(net) if ours != "mask"}
    return config, {**tensors, dflash.EMBEDDINGS: table, dflash.HEAD: target.head.weight}


def research_config(net: Any) -> dict[str, Any]:
    """The shape of a head's layer, its rotary positions also under the names of the authors' programs, which know no
    others and would take the base 10000."""
    config = shape_of(net)
    scaling = dict(config["rope_parameters"])
    theta = scaling.pop("rope_theta")
    return {**config, "rope_theta": theta, "rope_scaling": None if scaling == {"rope_type": "default"} else scaling}


def shape_of(net: Any) -> dict[str, Any]:
    """The shape of a net's layers, with the sections of its rotary positions where they have three axes."""
    config = {**net.config.to_diff_dict(), "rope_parameters": {"rope_type": "default", **net.config.rope_parameters}}
    if axes := net.settings.get("axes"):
        sections = {"mrope_section": [axes.count(axis) for axis in range(3)]}
        config["rope_parameters"] |= {**sections, "mrope_interleaved": axes != sorted(axes)}
    return config


def slots_of(net: Any) -> dict[str, bool]:
    """That image slots hold pictures, not tokens, where they do."""
    return {eagle.AS_TOKENS: False} if net.settings.get("pictures") else {}


def research_eagle(drafter: Any, target: Any, name: str) -> Written:
    """An EAGLE head as its authors publish it, with the target's embeddings."""
    net = drafter.net
    weights = net.state_dict()
    config = {**research_config(net), "architectures": ["LlamaForCausalLM"], "bias": True}
    behind = weights.get("layer.self_attn.o_proj.bias")
    if behind is not None and behind.any():
        raise MismatchError("the drafter has a bias behind its attention; this format knows none")
    biases = [part for part in eagle.BIASES if f"layer.{part}" in weights]
    config["qkv_bias"] = bool(biases)
    if target.placeholders:
        config |= {eagle.AS_TOKENS: True, **slots_of(net)}
    if weights["fc.bias"].any():
        config["eagle_fc_bias"] = True  # what older releases of vLLM ask for
        logger.warning(
            "the drafter learnt a bias behind fc; a program that does not read it (as releases of vLLM) drafts worse"
        )
    tensors = {f"layers.0.{part}": weights[f"layer.{part}"] for part in (*eagle.LAYER, *biases)}
    return config, {
        **tensors,
        "fc.weight": weights["fc.weight"],
        "fc.bias": weights["fc.bias"],
        eagle.EMBEDDINGS: all_embeddings(target),
    }


def research_eagle3(drafter: Any, target: Any, name: str) -> Written:
    """An EAGLE-3 head as its authors publish it."""
    net = drafter.net
    config = {
        **research_config(net),
        "architectures": ["LlamaForCausalLMEagle3"],
        "draft_vocab_size": net.settings["words"],
        eagle3.TAPS: before_the_norm(net.settings["taps"], target),
        "norm_before_residual": net.settings["normed_residual"],
        **slots_of(net),
    }
    return config, {**eagle3_tensors(net, "midlayer."), **own_embeddings(target)}


FORMS: dict[str, dict[str, Callable[[Any, Any, str], Written]]] = {
    "speculators": {"eagle3": speculators_eagle3, "dflash": speculators_dflash},
    "eagle": {
        "eagle": research_eagle,
        "eagle2": research_eagle,
        "hass": research_eagle,
        "eagle3": research_eagle3,
    },
}
"""Format -> method -> what writes it."""


def speculators(kind: str, architecture: str, net: Any, target: Any, name: str, tokens: int) -> dict[str, Any]:
    """The fields that all configurations of speculators have. tokens: per draft."""
    model = target.model
    return {
        "architectures": [architecture],
        "speculators_model_type": kind,
        "speculators_version": VERSION,
        "speculators_config": {
            "algorithm": kind,
            "default_proposal_method": "greedy",
            "proposal_methods": [
                {
                    "proposal_type": "greedy",
                    "speculative_tokens": tokens,
                    "verifier_accept_k": 1,
                    "accept_tolerance": 0.0,
                }
            ],
            "verifier": {
                "name_or_path": name,
                "architectures": list(model.config.architectures or [type(model).__name__]),
            },
        },
        "tie_word_embeddings": False,
        "transformer_layer_config": shape_of(net),
        "transformers_version": transformers.__version__,
    }


def eagle3_tensors(net: Any, prefix: str) -> dict[str, Tensor]:
    """The weights and, where it is smaller than the target's, the vocabulary."""
    weights, ids = net.state_dict(), net.ids
    tensors = {theirs: weights[ours] for theirs, ours in eagle3.pairs(prefix)}
    if len(ids) < net.config.vocab_size:
        kept = torch.zeros(net.config.vocab_size, dtype=torch.bool, device=ids.device)
        tensors |= {"d2t": ids - torch.arange(len(ids), device=ids.device), "t2d": kept.index_fill(0, ids, True)}
    return tensors


def before_the_norm(taps: Any, target: Any) -> list[int]:
    """Taps as other programs number them. Raises: MismatchError: one is there twice, or the last hidden state is."""
    if len(set(taps)) < len(taps):
        raise MismatchError(
            f"the drafter reads the target's hidden states {list(taps)}; this format wants different ones"
        )
    if max(taps) >= target.num_layers:
        raise MismatchError(
            f"the drafter reads the target's hidden states {list(taps)}; the last one, {target.num_layers}, is another "
            "tensor in this format (before the last norm), and a target of too few layers has no other in its place: "
            f"--format {EIGHT_BITS} takes such a drafter"
        )
    return list(taps)


def own_embeddings(target: Any) -> dict[str, Tensor]:
    """A table of embeddings, where the target does more with a token than to look it up."""
    return {} if type(target.embed) is nn.Embedding else {eagle.EMBEDDINGS: all_embeddings(target)}


def unused_id(target: Any) -> int:
    """An id that no answer holds: an image slot, else padding. Raises: MismatchError: there is none."""
    if target.placeholders:
        return target.placeholders[-1]
    padding, end = (getattr(target.tokenizer, name, None) for name in ("pad_token_id", "eos_token_id"))
    if padding is None or padding == end:
        raise MismatchError(
            "the format needs a token that stands for a masked slot, and the target has neither an image token nor a "
            "padding token of its own"
        )
    return padding
