"""Which decoders can be compiled, judged before one is."""

from __future__ import annotations

from transformers import PreTrainedConfig


def misfit(config: PreTrainedConfig) -> str:
    """Why a decoder of this configuration cannot be compiled; "" if nothing speaks against it.

    The static cache is one tensor for all layers, keys and values, and what is compiled asks the device for nothing,
    as frequencies do that follow the length of the text.
    """
    latent = getattr(config, "kv_lora_rank", None)  # keys are longer than values, as in DeepSeek-V2
    wide, usual = (getattr(config, name, None) for name in ("global_head_dim", "head_dim"))  # Gemma 4
    if latent or (wide is not None and wide != usual):
        return "its layers keep keys and values of different shapes"
    rope = getattr(config, "rope_parameters", None) or {}
    sets = [one for one in rope.values() if isinstance(one, dict)] or [rope]
    if any(one.get("rope_type") == "dynamic" and not one.get("alpha") for one in sets):
        return "its rotary frequencies follow the length of the text (dynamic scaling)"
    return ""
