"""From what a user names to parts that fit: model and processor become a target, a name becomes a drafter or a rule."""

from __future__ import annotations

import logging
import os
from collections.abc import Container, Iterable
from contextlib import suppress
from copy import copy
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import CONFIG_MAPPING, AutoConfig, PreTrainedConfig, PreTrainedModel

from mmspec.base_target import BaseTarget
from mmspec.checkpoints import JUDGED, MTP, bundled, drafters_of, find_model, here, load_drafter, locate, read_model
from mmspec.contract import Drafter, Rule, TrainedDrafter
from mmspec.drafters.precision import lower
from mmspec.engine.attention import NAME as TREE_ATTENTION
from mmspec.errors import (
    CheckpointError,
    InputError,
    MismatchError,
    OutOfMemoryError,
    UnsupportedError,
    described,
    one_line,
    shorten,
)
from mmspec.grouped import NAME as GROUPED
from mmspec.grouped import use_grouped_attention
from mmspec.named import rule_named
from mmspec.registry import elsewhere, entries, importable, modalities, names, resolve
from mmspec.safe_files import read_json

logger = logging.getLogger(__name__)

Known = BaseTarget | type[BaseTarget]
"""A target, or its class, where what is asked is known of either."""

AUTO = "auto"
"""What says the same of a drafter as None."""
DTYPES = ("float64", "float32", "bfloat16", "float16", "auto")
ATTENTION = ("sdpa", "eager")
DEQUANTISED = ("mxfp4",)
"""Kinds of quantised weights of which transformers makes plain ones, where no kernels for them are installed."""


def read_target(folder: Path, processor: Any, dtype: Any, device: Any) -> tuple[BaseTarget, Any]:
    """The target and the processor of a checkpoint folder."""
    config = _read_config(folder)
    family = find_family(config)
    place = _device(device)
    model = read_model(family.model_class(config), folder, _dtype(dtype, place))
    if processor is None:
        processor = _read_processor(family.processor_class(config), folder)
    model = _moved(model, place, folder)
    use_grouped_attention(model)
    return build_target(family, model, processor), processor


def _moved(model: PreTrainedModel, place: torch.device, folder: Path) -> PreTrainedModel:
    """The model on a device. Raises: OutOfMemoryError: it is too large for it."""
    with suppress(torch.OutOfMemoryError):
        return model.to(place)
    size = model.get_memory_footprint() / 2**30
    raise OutOfMemoryError(
        f"{place} has too little free memory for {folder.name} ({size:.1f} GB): take a smaller dtype or model, or "
        "another device"
    )


def adopt_target(model: PreTrainedModel, folder: Path | None, processor: Any) -> tuple[BaseTarget, Any]:
    """The target on a model that the caller loaded, and its processor: the one given, or the one in its folder."""
    judged = copy(model.config)  # a class of the caller's own may derive from a stock one
    if judged.architectures:
        judged.architectures = [*judged.architectures, *(kind.__name__ for kind in type(model).__mro__)]
    family = find_family(judged)
    places = sorted({str(parameter.device) for parameter in model.parameters()})
    if len(places) > 1 or "meta" in places:
        raise UnsupportedError(
            f"the model's weights lie on {' and '.join(places)}: mmspec serves models that are on one device as a whole"
        )
    attention = attention_of(model)
    if attention not in (*ATTENTION, TREE_ATTENTION, GROUPED):
        raise UnsupportedError(
            f"the model runs {attention} attention, which takes no tree masks: load it with "
            f"attn_implementation={' or '.join(map(repr, ATTENTION))}"
        )
    if processor is None and folder is not None:
        processor = _read_processor(family.processor_class(model.config), folder)
    return build_target(family, model, processor), processor


def compile_target(target: BaseTarget, asked: bool | None, ours: bool) -> None:
    """Compile a target's verification if that is asked for, or if nobody says and it pays and can be done: on CUDA,
    under sdpa.

    Args: ours: whether the model was read by us; one that the caller made is changed only where that is asked for.
    Raises: UnsupportedError: it is asked for and cannot be done. InputError: neither True, False nor None.
    """
    if asked not in (True, False, None):
        raise InputError(f"compile={shorten(asked)} is not valid: True or False is needed, or None")
    pays = ours and target.compiles and target.model.device.type == "cuda" and attention_of(target.model) == "sdpa"
    if asked or (asked is None and pays):
        try:
            target.compile()
        except UnsupportedError as error:
            if asked:
                raise
            logger.warning("not compiled: %s", error)


def attention_of(model: PreTrainedModel) -> str:
    """The attention of its decoder."""
    return str(model.config.get_text_config(decoder=True)._attn_implementation)


def build_target(family: type[BaseTarget], model: PreTrainedModel, processor: Any) -> BaseTarget:
    """A target that knows its tokenizer (a processor's own, or the processor itself)."""
    if isinstance(processor, str | os.PathLike):
        raise InputError("processor must be a loaded processor or tokenizer, not its name or folder")
    target = family(model.eval(), getattr(processor, "tokenizer", processor))
    target.adopt(processor)
    return target


def find_family(config: PreTrainedConfig) -> type[BaseTarget]:
    """The target class that serves a configuration; those of a modality are asked before those of any."""
    table = sorted(entries("targets"), key=lambda key: key.startswith("any/"))
    for _, family in importable("targets", table):
        if family.serves(config):
            return family
    kind = (config.architectures or [config.model_type])[0]
    if config.architectures and not hasattr(transformers, kind):
        raise UnsupportedError(
            f"the model is of {kind}, not of transformers: look for a copy for transformers, often called ...-hf"
        )
    known = ", ".join(key.partition("/")[2] for key in table)
    raise UnsupportedError(f"no target serves a model of type {kind}; there are targets for: {known}")


def family_of(name: str | os.PathLike[str]) -> type[BaseTarget]:
    """The target class of a model, judged by its configuration alone."""
    return find_family(_read_config(find_model(name, JUDGED)))


def check_names(drafter: Any, rule: Any, folder: Path) -> type[BaseTarget]:
    """What is wrong with the name of a drafter or a rule, or with the kind of a model, said before weights are fetched
    and read.

    Args: folder: the model's, perhaps without its weights.
    Returns: the target class of the model.
    Raises: what `read_target`, `find_drafter` and `find_rule` would.
    """
    family = find_family(_read_config(folder))
    if isinstance(drafter, str | os.PathLike) and drafter != AUTO:
        _place_of(drafter, family, drafters_of(folder))
    if isinstance(rule, str):
        rule_named(rule, family)
    return family


def modality_of(name: str | os.PathLike[str]) -> str:
    """The modality of a model, judged by its configuration alone."""
    return family_of(name).modality


def find_drafter(drafter: Any, target: BaseTarget, folder: Path | None, dtype: torch.dtype | None = None) -> Drafter:
    """A drafter that is bound to the target.

    Args: drafter: None or `AUTO` for the `default_drafter`; a method's name, which may take the weights of its `kin`
        beside the model; a folder or hub id; or a drafter. folder: the model's folder, if it has one. dtype: of the
        drafter's linear layers (`mmspec.drafters.precision`); None leaves them in the target's.
    """
    if dtype is not None and not isinstance(drafter, str | os.PathLike | None):
        raise InputError("drafter_dtype is for drafters that load() reads: name one, or pass a folder or a hub id")
    found = _bound_drafter(drafter, target, folder)
    target.check_drafter(found)
    if dtype is not None:
        lower(found, target, dtype)
    return found


def default_drafter(family: Known, beside: Iterable[str]) -> str:
    """The drafter to take where none is named. beside: the trained ones that lie beside the model, best first."""
    return next(iter(beside if family.trained_first else ()), family.usual_drafter)


def _bound_drafter(drafter: Any, target: BaseTarget, folder: Path | None) -> Drafter:
    if not isinstance(drafter, str | os.PathLike | None):
        if not isinstance(drafter, Drafter):
            hint = ": save the model and pass its folder" if isinstance(drafter, PreTrainedModel) else ""
            raise InputError(
                "drafter must be a name, a folder, a hub id or an object of a class that derives from "
                f"mmspec.contract.Drafter, not {described(drafter)}{hint}"
            )
        target.check_drafter(drafter)
        drafter.bind(target)
        return drafter
    beside = drafters_of(folder) if folder else {}
    if drafter in (None, AUTO):
        drafter = default_drafter(target, beside)
        if drafter == MTP:
            try:
                return load_drafter(beside[MTP], target, MTP)
            except (CheckpointError, MismatchError) as error:  # nobody asked for it
                drafter = target.usual_drafter
                logger.warning(
                    "%s drafts, since the layer that the checkpoint has for it does not fit: %s", drafter, error
                )
    place = _place_of(drafter, target, beside)
    if isinstance(drafter, str) and os.path.isdir(drafter) and not (place and place.samefile(drafter)):
        logger.warning("%s is the drafter that is known by this name; the folder here is %s", drafter, here(drafter))
    if place is not None:
        return load_drafter(place, target, str(drafter) if drafter in beside and place == folder else None)
    kind: Any = resolve("drafters", str(drafter), target.modality)
    if kind.advice:
        raise CheckpointError(f"the drafter {drafter!r} is more than a method: {kind.advice}")
    if issubclass(kind, TrainedDrafter):
        target.check_drafter(kind)  # before anything is said of training one
        kin = _kin(kind, beside)
        if kin:
            return load_drafter(beside[kin], target, str(drafter))
        if kind.part:
            where = folder or "this model, whose folder is not known: load it by the path of one"
            raise MismatchError(f"the drafter {drafter!r} is {kind.part}, and there is none in {where}")
        there = f"beside it: {', '.join(beside)}" if beside else "none lies beside it"
        raise CheckpointError(
            f"the drafter {drafter!r} is trained, and there is no such one for this model ({there}); train one "
            f"({kind.command} --help) and pass its folder, or use {_ready(target, beside)!r}"
        )
    made = kind()
    made.bind(target)
    return made


def _place_of(drafter: str | os.PathLike[str], family: Known, beside: dict[str, Path]) -> Path | None:
    """The folder that a drafter's name means; None for a method that no folder beside the model is of."""
    known = names("drafters", family.modality)
    if drafter in beside or drafter in known:
        return beside.get(str(drafter))
    own = bundled().get(drafter) if isinstance(drafter, str) else None
    return own or locate("drafter", drafter, known, note=elsewhere("drafters", drafter))


def has_drafter(name: str, target: Known, folder: Path | None) -> bool:
    """Whether a model has what a method's name stands for: it needs no training, or weights lie beside the model."""
    beside = drafters_of(folder) if folder else {}
    if name in beside or name not in names("drafters", target.modality):
        return name in beside
    kind: Any = resolve("drafters", name, target.modality)
    return serves_unread(kind, target) or _kin(kind, beside) is not None


def serves_unread(kind: Any, target: Known) -> bool:
    """Whether a drafter's class needs neither training nor files, and drafts what a target, or its class, emits."""
    try:
        target.check_drafter(kind)
        kind.check_target(target)
    except MismatchError:
        return False
    return not needs_files(kind)


def needs_files(kind: Any) -> bool:
    """Whether a drafter's class is nothing without training, or without files."""
    return bool(kind.advice) or issubclass(kind, TrainedDrafter)


def _ready(target: BaseTarget, beside: Iterable[str]) -> str:
    """A drafter that this model has: what it usually takes, if that drafts, else the best one beside it, else none."""
    usual = default_drafter(target, beside)
    return usual if usual != "none" else next(iter(beside), usual)


def _kin(kind: Any, beside: Container[str]) -> str | None:
    """The drafter beside a model whose weights serve a method of another name, too. That is not inherited: a class
    made of another has its own network, or is nothing but its training."""
    return next((name for name in vars(kind).get("kin", ()) if name in beside), None)


def find_rule(rule: Any, target: BaseTarget) -> Rule:
    """An acceptance rule from its name, perhaps with settings (`mmspec.named`), or a copy of the given one, bound to
    the target."""
    if isinstance(rule, str):
        rule = rule_named(rule, target)
    if not isinstance(rule, Rule):
        raise InputError(
            "acceptance must be the name of a rule or an object of a class that derives from mmspec.contract.Rule, not "
            f"{described(rule)}"
        )
    target.check_rule(rule)
    rule = copy(rule)  # another pipeline may have it, too, and what is bound is of one target alone
    rule.bind(target)
    return rule


def _read_config(folder: Path) -> PreTrainedConfig:
    settings = read_json(folder / "config.json")
    kind, own = str(settings.get("model_type")), modalities("configs")
    if "auto_map" in settings and kind not in own and kind not in CONFIG_MAPPING:
        # Said here, for transformers would advise trust_remote_code=True.
        raise UnsupportedError(
            f"the model in {folder} needs code of its own (auto_map), which mmspec does not run: look for a copy for "
            "transformers, often called ...-hf"
        )
    for part in (settings, settings.get("text_config")):
        packed = part.get("quantization_config") if isinstance(part, dict) else None
        method = packed.get("quant_method", "of an unnamed kind") if isinstance(packed, dict) else None
        if method not in (None, *DEQUANTISED):
            raise UnsupportedError(
                f"the model in {folder} has quantised weights ({method}), which are not served: take the unquantised "
                "checkpoint"
            )
    try:
        if kind in own:
            found: Any = resolve("configs", kind, own[kind][0])
            return found.from_pretrained(folder)
        return AutoConfig.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:  # noqa: BLE001  strict configurations raise exceptions of their own
        raise UnsupportedError(f"the configuration in {folder} cannot be used: {one_line(error)}") from error


def _read_processor(processor_class: Any, folder: Path) -> Any:
    try:
        return processor_class.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:  # noqa: BLE001  damaged files end in any exception of json, tokenizers, transformers
        raise CheckpointError(
            f"the tokenizer or processor in {folder} cannot be loaded (save it there, or pass processor=): "
            f"{one_line(error)}"
        ) from error


def _device(device: Any) -> torch.device:
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        place = torch.device(device)
        torch.empty(0, device=place)
        if place.type == "meta":
            raise NotImplementedError("tensors there hold no numbers")
    except (RuntimeError, TypeError, AssertionError, NotImplementedError) as error:
        raise InputError(f"device={shorten(device)} cannot be used: {one_line(error)}") from error
    return place


def _dtype(dtype: Any, device: torch.device) -> Any:
    if dtype is None:
        return torch.float32 if device.type == "cpu" else "auto"
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise InputError(f"dtype={shorten(dtype)} is not valid: {', '.join(DTYPES)}")
    return name if name == "auto" else getattr(torch, name)
