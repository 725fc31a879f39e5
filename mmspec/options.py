"""The options of a request, and what holds where a request is silent: the checkpoint's generation config."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Collection, Mapping, Sequence
from numbers import Integral, Real
from typing import Any, TypedDict

from mmspec.errors import InputError, shorten, unknown_name
from mmspec.sampling import COLDEST, Sampling
from mmspec.stopping import Stop

logger = logging.getLogger(__name__)

MAX_NEW_TOKENS = 128
LONG = 4096
"""Tokens of a page that is written down, or of a thought and an answer."""
SUPPRESSED = "suppress_tokens"
WARPERS = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", SUPPRESSED, "ras_window", "ras_share")
UNSERVED: dict[str, tuple[Any, ...]] = {
    "bad_words_ids": ([],),
    "begin_suppress_tokens": ([],),
    "dola_layers": (),
    "encoder_no_repeat_ngram_size": (0,),
    "encoder_repetition_penalty": (1,),
    "epsilon_cutoff": (0,),
    "eta_cutoff": (0,),
    "exponential_decay_length_penalty": (),
    "force_words_ids": ([],),
    "forced_bos_token_id": (),
    "forced_eos_token_id": ([],),
    "guidance_scale": (1,),
    "max_time": (),
    "min_length": (0,),
    "min_new_tokens": (0,),
    "no_repeat_ngram_size": (0,),
    "num_beams": (1,),
    "num_return_sequences": (1,),
    "penalty_alpha": (0,),
    "sequence_bias": ([], {}),
    "stop_strings": ("", []),
    "suppress_tokens": ([],),
    "token_healing": (False,),
    "top_h": (),
    "typical_p": (1,),
    "watermarking_config": (),
}
"""Settings of a generation config that would change the output and that mmspec does not apply, each with the values
beside None with which they change nothing."""


class Options(TypedDict, total=False):
    """None is as good as not given.

    max_new_tokens: 1 or more; unless told, of words what the checkpoint's generation config says, or 128 (4096 of
        models that write pages down or can think, 3000 of models that hear, 448 of Whisper), a whole picture, 30
        seconds of speech.

    temperature: 0 is greedy. top_k, top_p, min_p, repetition_penalty: as in transformers. What is missing comes from
        the checkpoint's generation config; what that does not state is off, but for top_k of Lumina-mGPT, which is
        2000, and of Emu3, 2048, as published. Where neither says whether to sample, words are greedy, and pictures and
        sounds are sampled (temperature 1): a greedy picture is hardly one.
    suppress_tokens: a list of ids that are never emitted, as in transformers; [] for none, unless told those of the
        checkpoint's generation config. Not for models whose codes are numbered in their own way.
    seed: 0 unless told; the same seed gives the same output, whatever the drafter.
    stop: a string or several that end the answer.
    n: answers per prompt, 1 unless told. Above 1 a list of n stands in the place of each answer; answer i of prompt j
        has the seed `seed` + j n + i, so all differ unless decoding is greedy.
    guidance: image models; how strongly the prompt steers (classifier-free guidance), above 0, 1 is off.
    steps: MAR; in how many steps a picture is revealed: fewer are faster, and worse.
    size: Emu3 and Lumina-mGPT; width and height of the picture in pixels, (768, 512) or "768x512".
    voice: VALL-E type; who speaks: a voice's name, or about a second of speech as the path or bytes of a WAV file.
        Models that hear: the recording that the prompt asks about, or is to be written down ("transcribe en", say).
    thinking: models that can think before they answer: whether they do; without it the chat template decides.
    ras_window, ras_share: repetition-aware sampling, see `mmspec.sampling.Sampling`.
    """

    max_new_tokens: int | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repetition_penalty: float | None
    suppress_tokens: Collection[int] | None
    seed: int | None
    stop: str | Sequence[str] | None
    n: int | None
    guidance: float | None
    steps: int | None
    size: str | tuple[int, int] | None
    voice: Any
    thinking: bool | None
    ras_window: int | None
    ras_share: float | None


SPECIAL = ("guidance", "steps")
"""Options that only some models take, of those that `prefill` is told."""
SPOKEN = ("size", "voice", "thinking")
"""Options that only some models take, and that are part of the prompt: `encode` is told them."""


def check_options(options: Mapping[str, Any], target: Any) -> None:
    """Raise InputError for what is wrong with options, whatever the weights are.

    Args: options: the `given` ones. target: what is asked, or its class.
    """
    answer_count(options)
    Sampling(**{name: options[name] for name in (*WARPERS, "seed") if name in options})
    for name in (*SPECIAL, *SPOKEN, SUPPRESSED):
        if name in options and name not in (*target.settings, *target.applies):
            raise InputError(f"{name} is not an option of {_called(target)}: leave it out")
    guidance_scale(options.get("guidance"), None)
    if not isinstance(options.get("thinking", True), bool):
        raise InputError(f"thinking={shorten(options['thinking'])} is not valid: True or False is needed")
    if "size" in options:
        picture_size(options["size"])
    strings = stop_strings(options)
    if strings and target.makes != "text":
        raise InputError(f"this model makes a {target.makes}, and no text to stop at: leave stop out")
    Stop((), options.get("max_new_tokens", MAX_NEW_TOKENS), strings)


def check_pictures(pictures: Sequence[Sequence[Any]], target: Any) -> None:
    """Raise InputError for pictures in prompts of a model that sees none.

    Args: pictures: of every prompt. target: what is asked, or its class.
    """
    if any(pictures) and target.modality != "vlm":
        raise InputError(f"{_called(target)} does not see here: leave image out, or take a model that does")


def check_chats(prompts: Sequence[Any], target: Any) -> None:
    """Raise InputError for chats where a model takes one text. See `check_pictures`."""
    if not target.chats and not all(isinstance(prompt, str) for prompt in prompts):
        raise InputError(f"{_called(target)} takes a text, and no chat of several turns")


def _called(target: Any) -> str:
    """The name of the model, or of the target's class where there is none yet."""
    return (target if isinstance(target, type) else type(target.model)).__name__


def special_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The given ones among the options that `prefill` of some models is told."""
    return {name: options[name] for name in SPECIAL if name in options}


def answer_count(options: Mapping[str, Any]) -> int:
    """How many answers each prompt gets."""
    count = options.get("n", 1)
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise InputError(f"n={shorten(count)} is not valid: it must be a whole number, 1 or more")
    return count


def given(options: Mapping[str, Any], notes: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The options that are not None. Raises: UnknownNameError: one that does not exist.

    Args: notes: remarks on names that do not exist.
    """
    for name in options:
        if name not in Options.__annotations__:
            raise unknown_name("option", name, Options.__annotations__, (notes or {}).get(name, ""))
    return {name: _plain(value) for name, value in options.items() if value is not None}


def _plain(value: Any) -> Any:
    """Numbers of other libraries, such as those of numpy, as Python's own."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return value
    try:
        return int(value) if isinstance(value, Integral) else float(value)
    except OverflowError:
        return value  # refused where it is checked


def sampling_for(options: Mapping[str, Any], config: Any, sampled: bool = False) -> Sampling:
    """How tokens are drawn, by the options, then by the checkpoint's generation config.

    Args: sampled: what holds where neither says: sampling, or greedy decoding.
    """
    values: dict[str, Any] = {name: getattr(config, name, None) for name in WARPERS}
    if not (sampled if config.do_sample is None else config.do_sample):
        values["temperature"] = 0.0
    elif values["temperature"] is None:
        values["temperature"] = 1.0
    elif values["temperature"] <= COLDEST:
        values["temperature"] = 0.0  # meant to be greedy, as Qwen2.5-VL's 1e-6 is
    values.update({name: options[name] for name in WARPERS if name in options})
    return Sampling(**{name: value for name, value in values.items() if value is not None}, seed=options.get("seed", 0))


def check_suppressed(ids: Collection[int], vocab_size: int) -> None:
    """Raise InputError for ids that a model does not have, or for all that it has."""
    beyond = [each for each in ids if not 0 <= each < vocab_size]
    if beyond:
        raise InputError(f"suppress_tokens holds {beyond[0]}; the model knows ids 0 to {vocab_size - 1}")
    if len({*ids}) == vocab_size:
        raise InputError("suppress_tokens holds all ids of the model: leave it one to emit")


def stop_strings(options: Mapping[str, Any]) -> tuple[str, ...]:
    """The stop strings as a tuple."""
    stop = options.get("stop", ())
    if isinstance(stop, str):
        return (stop,)
    if not isinstance(stop, Sequence):
        raise InputError(f"stop={shorten(stop)} is not valid: give a text or a list of texts")
    return tuple(stop)


def guidance_scale(asked: Any, config: Any, usual: float = 1.0) -> float:
    """The scale of classifier-free guidance that is asked for, else that of a generation config, else the usual one.

    Raises: InputError: not a number above 0 (1 turns it off).
    """
    scale = asked if asked is not None else getattr(config, "guidance_scale", None)
    scale = usual if scale is None else scale
    number = isinstance(scale, int | float) and not isinstance(scale, bool)
    if not number or not 0 < scale <= sys.float_info.max:
        raise InputError(f"guidance={shorten(scale)} is not valid: a number above 0 is needed (1 turns it off)")
    return float(scale)


def picture_size(asked: Any) -> tuple[int, int]:
    """Width and height of a picture, in pixels. Args: asked: both, or a text such as "768x512".

    Raises: InputError: no two whole numbers from 1 on.
    """
    told = re.fullmatch(r"([0-9]{1,9})x([0-9]{1,9})", asked) if isinstance(asked, str) else None
    sides = [*map(int, told.groups())] if told else asked
    if not isinstance(sides, list | tuple) or len(sides) != 2 or not all(map(_is_length, sides)):
        raise InputError(f"size={shorten(asked)} is not valid: width and height in pixels are needed, as in 768x512")
    return int(sides[0]), int(sides[1])


def _is_length(side: Any) -> bool:
    return isinstance(side, Integral) and not isinstance(side, bool) and int(side) >= 1


def end_tokens(config: Any) -> list[int]:
    """The ids that end an answer."""
    ids = config.eos_token_id
    return [] if ids is None else [ids] if isinstance(ids, int) else list(ids)


def warn_unlike(config: Any, part: Any, name: str) -> None:
    """Say which settings of the sampling a part of the model would have otherwise; it gets those of the whole.

    Args: config, part: generation configs. name: of the part.
    """
    whole, own = sampling_for({}, config), sampling_for({}, part)
    unlike = [setting for setting in WARPERS if getattr(whole, setting) != getattr(own, setting)]
    if unlike:
        logger.warning(
            "mmspec does not apply these settings of the checkpoint's %s, which differ from the model's: %s",
            name,
            ", ".join(f"{setting}={getattr(own, setting)}" for setting in unlike),
        )


def warn_unserved(config: Any, applies: Sequence[str] = ()) -> None:
    """Say which settings of a generation config are not applied, but for those that the target applies itself."""
    unserved = {name: neutral for name, neutral in UNSERVED.items() if name not in applies}
    found = [name for name, neutral in unserved.items() if getattr(config, name, None) not in (None, *neutral)]
    if found:
        logger.warning(
            "mmspec does not apply these settings of the checkpoint's generation config: %s", ", ".join(found)
        )
