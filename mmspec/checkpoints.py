"""Checkpoints on disk: where they are found, which are refused, and how a drafter is saved and loaded again.

A drafter's folder holds `drafter.json` (method, options, the target that it was trained for) and safetensors weights.
Nothing is ever unpickled, no code comes from a checkpoint, and a folder is written whole or not at all.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from threading import Lock, RLock
from typing import Any

from mmspec.contract import TrainedDrafter
from mmspec.errors import (
    CheckpointError,
    Error,
    InputError,
    MismatchError,
    UnknownNameError,
    UnsupportedError,
    one_line,
    shorten,
    unknown_name,
)
from mmspec.mtp_weights import find_layer
from mmspec.registry import names, resolve
from mmspec.replacing import take_place, tidy
from mmspec.safe_files import check_weights, read_json

logger = logging.getLogger(__name__)

FORMAT = 1
DESCRIPTION, CARD, WEIGHTS = "drafter.json", "README.md", "model.safetensors"
FILES = ["*.json", "*.safetensors", "*.jinja", "*.txt", "*.model"]
"""What is taken from a hub: configurations, weights, chat template, vocabulary."""
LIGHT = [pattern for pattern in FILES if pattern != "*.safetensors"]
"""The same without the weights."""
JUDGED = ["config.json", "drafters/*.json"]
"""What tells which target serves a model, and which drafters lie beside it."""
TWICE = ["consolidated*", "original/*"]
"""The same weights in another format, as some models have them on the hub beside those of transformers."""

MODALITIES = {"vlm": "vlm", "image_ar": "image", "speech": "speech"}
"""Packages of mmspec that bring checkpoints, located without being imported, and the modality of each."""
OURS = "mmspec-"
"""How the model types of classes begin that are not in transformers."""
METHODS = {
    "musicgen": "small-musicgen",
    "dia": "small-dia",
    "higgs_audio_v2": "small-higgs",
    "mmspec-mar": "mar",
    "whisper": "specasr",
}
"""How models of some types draft for larger ones of their kind, where their folder does not say."""
PREFERRED = ("dspark", "dflash", "eagle2", "spd", "mar", "vadusa")
"""The trained drafters that lie beside a model are named in this order, best first."""
MTP = "mtp"
"""The drafter that lies in the model's own folder."""
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")

_QUIETING = Lock()
_BUILDING = RLock()
_loud: list[tuple[bool, int]] = []
"""What each `quiet` that is at work found: whether there were progress bars, and the verbosity."""


def bundled() -> dict[str, Path]:
    """The checkpoints that come with mmspec: {name: folder}."""
    found = {}
    for package in MODALITIES:
        spec = find_spec(f"mmspec.{package}")
        for root in (spec.submodule_search_locations or ()) if spec else ():
            configs = sorted(Path(root, "checkpoints").glob("*/config.json"))
            found.update({config.parent.name: config.parent for config in configs})
    return found


def find_model(name: str | os.PathLike[str], files: Sequence[str] = FILES) -> Path:
    """The folder of a bundled name, a local folder or a hub id.

    Args: files: what is downloaded of a hub's model, by patterns.
    """
    known = bundled()
    if isinstance(name, str) and name in known:
        if "*.safetensors" in files and _hides(known[name], name):  # said once, where the model is loaded
            logger.warning("%s is the model that comes with mmspec; the folder here is %s", name, here(name))
        return known[name]
    if isinstance(name, str) and name in _models() and not os.path.isdir(name):
        raise CheckpointError(
            f"{name} is not in this installation, which has {', '.join(sorted(known))}. It lies in the project's "
            f"repository: pip install -e FOLDER of a copy; or train one, with mmspec train target {name} --out {name}, "
            "and pass its folder"
        )
    return locate("model", name, sorted(known), files)


def shown_name(source: str) -> str:
    """A name or a hub id as it is; of a folder its last part, for where it lies is nobody's business."""
    of_a_hub = HUB_ID.fullmatch(source) and not os.path.isdir(source)
    return source if of_a_hub else os.path.basename(os.path.abspath(source))


def _hides(known: Path, name: str) -> bool:
    """Whether a name that stands for a folder of ours is that of another folder, too."""
    return os.path.isdir(name) and not known.samefile(name)


def here(name: str) -> str:
    """The path of a folder in the current one, written so that it is not taken for a name."""
    return os.path.join(".", name)


def _models() -> set[str]:
    """The names of models that can be trained; what else can be is for the judges of their products."""
    judges = tuple(f"-{name}" for name in names("judges"))  # janus-reader, valle-listener
    return {name for name in names("trainers") if not name.endswith(judges)}


def drafters_of(folder: Path) -> dict[str, Path]:
    """The trained drafters that lie beside a model: {name: folder}, the best first; at last its own layer for it."""
    found = {path.parent.name: path.parent for path in sorted(folder.glob(f"drafters/*/{DESCRIPTION}"))}
    own = {MTP: folder} if MTP not in found and find_layer(folder) else {}
    return {name: found[name] for name in dict.fromkeys([*PREFERRED, *found]) if name in found} | own


def locate(
    kind: str,
    source: str | os.PathLike[str],
    known: list[str],
    patterns: Sequence[str] = FILES,
    repo_type: str = "model",
    note: str = "",
) -> Path:
    """The folder that `source` means: a local folder, or a hub id ("owner/name"), which is downloaded.

    Args: kind: what is looked for, for messages ("model"). known: names that would have been right.
        patterns: of the files to download. repo_type: what the hub calls such a thing. note: a remark on a name that is
        not known.
    Raises: UnknownNameError: neither a folder nor a hub id. CheckpointError: the hub has no such thing or cannot be
        reached. InputError: a file where a folder is needed.
    """
    path = os.path.expanduser(source)
    if os.path.isdir(path):  # pathlib raises for names that are too long
        return Path(path)
    if os.path.isfile(path):
        raise InputError(f"{kind} {shorten(str(source))} is a file: pass the folder that holds config and weights")
    if _is_path(str(source)):
        raise UnknownNameError(f"{kind} {shorten(str(source))}: there is no such folder")
    if not isinstance(source, str):
        raise UnknownNameError(
            f"{kind} {shorten(str(source))}: there is no such folder; pass a name or a hub id as a text"
        )
    if not HUB_ID.fullmatch(source):
        also = "a local folder or a hub id (owner/name) will also do"
        raise unknown_name(kind, source, known, f"{note}; {also}" if note else also)
    return _download(kind, source, patterns, repo_type)


def _is_path(source: str) -> bool:
    """Whether this can be nothing but a path: no name, and no hub id."""
    return os.path.isabs(source) or source.startswith(("./", "../", "~")) or source.count("/") > 1


def _download(kind: str, name: str, patterns: Sequence[str], repo_type: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    twice = TWICE if repo_type == "model" else []
    try:
        return Path(snapshot_download(name, repo_type=repo_type, allow_patterns=list(patterns), ignore_patterns=twice))
    except HFValidationError as error:
        raise CheckpointError(f"{kind} {name!r} is not a folder, and not a valid hub id: {one_line(error)}") from error
    except LocalEntryNotFoundError as error:  # before its parent below: the hub did not answer
        raise CheckpointError(
            f"{kind} {name!r} is no folder here, and the hub cannot be reached (or HF_HUB_OFFLINE is set); "
            "pass the path of a folder"
        ) from error
    except HfHubHTTPError as error:
        raise CheckpointError(
            f"{kind} {name!r} is no folder here, and the hub refuses it: {one_line(error)}"
        ) from error
    except OSError as error:
        raise CheckpointError(f"{kind} {name!r} is no folder here and was not downloaded: {one_line(error)}") from error


def read_model(model_class: Any, folder: Path, dtype: Any) -> Any:
    """An HF model from safetensors weights; every weight must be there and fit.

    Args: model_class: a stock class or an Auto class. dtype: a torch dtype, or "auto" for the one of the weights.
    Raises: CheckpointError: weights missing, pickled, damaged, incomplete or of another shape than the configuration.
    """
    check_weights(folder)
    with building():
        try:
            model, report = model_class.from_pretrained(
                folder, dtype=dtype, use_safetensors=True, trust_remote_code=False, output_loading_info=True
            )
        except Exception as error:  # noqa: BLE001  damaged files end in any exception of json, safetensors, transformers
            raise CheckpointError(f"{folder} cannot be loaded: {one_line(error)}") from error
    missing = sorted(report["missing_keys"])
    if missing:
        raise CheckpointError(f"{folder} lacks {len(missing)} of the model's weights, {missing[0]} among them")
    return model


@contextmanager
def building() -> Iterator[None]:
    """Meanwhile one model is built, quietly: transformers patches its classes for as long as it builds one."""
    with quiet(), _BUILDING:
        yield


@contextmanager
def quiet() -> Iterator[None]:
    """No progress bars and no load report: what is wrong with a checkpoint is said in the error.

    Both are settings of the whole process: of threads at work at the same time, whoever leaves last puts back what the
    first one found.
    """
    from transformers.utils import logging

    with _QUIETING:
        _loud.append((logging.is_progress_bar_enabled(), logging.get_verbosity()))
        logging.disable_progress_bar()
        logging.set_verbosity_error()
    try:
        yield
    finally:
        with _QUIETING:
            bars, verbosity = _loud.pop()  # not its own, unless it is the last to leave
            logging.set_verbosity(verbosity)
            if bars:
                logging.enable_progress_bar()


def fingerprint(target: Any) -> dict[str, Any]:
    """What a drafter must find again in its target: the shape of the model, and a hash of the vocabulary."""
    return {
        "model_type": target.model.config.model_type,
        "hidden_size": target.hidden_size,
        "vocab_size": target.vocab_size,
        "num_layers": target.num_layers,
        "tokenizer": vocabulary_hash(target.tokenizer),
    }


def vocabulary_hash(tokenizer: Any) -> str | None:
    """SHA-256 of all tokens and their ids; None without a tokenizer."""
    if tokenizer is None:
        return None
    return hashlib.sha256(json.dumps(sorted(tokenizer.get_vocab().items())).encode()).hexdigest()


def weights_digest(net: Any) -> str:
    """A short hash that changes when a network's weights do: of values spread over every parameter, whatever the
    threads."""
    found = hashlib.sha256()
    for parameter in net.parameters():
        values = parameter.detach().flatten()
        found.update(values[:: max(1, len(values) // 4096)].float().cpu().numpy().tobytes())
    return found.hexdigest()[:16]


def save_drafter(
    drafter: Any, folder: str | os.PathLike[str], target: Any, packed: bool = False, card: str | None = None
) -> Path:
    """Write a trained drafter and the fingerprint of its target; the folder appears whole, or stays as it was.

    Args: packed: matrices in eight bits (`mmspec.drafters.eight_bits`). card: markdown that goes with it.
    Raises: CheckpointError: the method has no weights to save, they are rounded ones, or the folder cannot be written.
        UnsupportedError: weights that cannot be packed.
    """
    from mmspec.drafters.eight_bits import pack
    from mmspec.drafters.precision import is_lowered

    if not isinstance(drafter, TrainedDrafter):
        raise CheckpointError(f"the drafter {type(drafter).__name__} has no weights: pass its name instead")
    if is_lowered(drafter):
        raise CheckpointError(
            f"the weights of this {type(drafter).__name__} were rounded when it was loaded: load it without "
            "drafter_dtype to save it"
        )
    if packed and not drafter.packs:
        raise UnsupportedError(f"the weights of {drafter.method!r} cannot be stored in eight bits: only those of heads")
    with writing(folder) as draft:
        write_drafter(drafter, draft, fingerprint(target))
        if packed:
            pack(draft / WEIGHTS)
        if card is not None:
            (draft / CARD).write_text(card, encoding="utf-8")
    return Path(folder)


def write_drafter(drafter: Any, folder: Path, target: dict[str, Any]) -> None:
    """Write what a drafter consists of, and its description. target: what it must find again in its target."""
    description = {"format": FORMAT, "method": drafter.method, **drafter.save(folder), "target": target}
    (folder / DESCRIPTION).write_text(json.dumps(description, indent=2) + "\n", encoding="utf-8")


def load_drafter(source: str | os.PathLike[str], target: Any, method: str | None = None, *, own: bool = True) -> Any:
    """A drafter from a folder or a hub id, on the target's device and in its dtype, bound to the target.

    Args: method: another one that drafts with the same weights; None is the one that they were trained for. own: refuse
        what was made for another target.
    A folder without `drafter.json` is a drafter that another project published, if it is laid out like one
    (`mmspec.interchange`), else an HF model, which is an independent drafter: one that sees, if the model does.
    Raises: CheckpointError: missing, pickled or damaged files, weights that are not finite, or a method that has none.
        MismatchError: made for another target.
    """
    folder = locate("drafter", source, known=[])
    published = _read_published(folder, target)
    if published is not None:
        _check_finite(folder, published)
        published.bind(target)
        return published
    description = _describe(folder)
    check_weights(folder)
    wanted = method or description["method"]
    if "model_type" in description:  # an HF model, and no folder of ours
        _check_kind(folder, description["model_type"], wanted, target)
    drafter_class: Any = resolve("drafters", wanted, target.modality)
    if drafter_class.fits is None:
        raise CheckpointError(f"{folder / DESCRIPTION} is of {wanted!r}, which has no weights: pass its name instead")
    if own:
        _check_target(folder, description.get("target", {}), target, drafter_class.fits)
    with _reading(folder):
        drafter = drafter_class.load(folder, description, target)
    _check_finite(folder, drafter)
    drafter.bind(target)
    return drafter


@contextmanager
def _reading(folder: Path) -> Iterator[None]:
    """Whatever damaged files end in, of json, safetensors or transformers, as a CheckpointError."""
    try:
        yield
    except Error:
        raise
    except Exception as error:  # noqa: BLE001
        raise CheckpointError(f"the drafter in {folder} cannot be loaded: {one_line(error)}") from error


def _read_published(folder: Path, target: Any) -> Any:
    """The drafter, if another project published it; None otherwise."""
    from mmspec.interchange.published import find_layout, read_published

    if (folder / DESCRIPTION).exists():
        return None
    layout = find_layout(folder)
    if layout is None:
        return None
    with _reading(folder):
        return layout.read(read_published(folder), target)


def _describe(folder: Path) -> dict[str, Any]:
    if not (folder / DESCRIPTION).exists() and (folder / "config.json").exists():
        config = read_json(folder / "config.json")
        usual = "small-vlm" if "vision_config" in config else "spd"
        kind = str(config.get("model_type", ""))
        if "audio_config" in config and "vision_config" not in config and kind not in METHODS:
            raise MismatchError(f"{folder} holds a {kind} model, which hears, and drafts for no other")
        return {"format": FORMAT, "method": METHODS.get(kind, usual), "model_type": kind}
    description = read_json(folder / DESCRIPTION)
    if description.get("format") != FORMAT or not isinstance(description.get("method"), str):
        raise CheckpointError(
            f"{folder / DESCRIPTION} has format {shorten(description.get('format'))} and method "
            f"{shorten(description.get('method'))}; this version of mmspec reads format {FORMAT} and a method's name"
        )
    trained_for = description.get("target", {})
    if not isinstance(trained_for, dict):
        raise CheckpointError(f"{folder / DESCRIPTION} has the target {shorten(trained_for)}; a JSON object is needed")
    return description


def _check_kind(folder: Path, kind: str, method: str, target: Any) -> None:
    """Raise MismatchError unless an HF model of that type can draft as `method` does."""
    foreign = kind.startswith(OURS) and kind not in METHODS
    if foreign or method not in names("drafters", target.modality):
        raise MismatchError(f"{folder} holds a {kind} model, which cannot draft for {type(target.model).__name__}")


def _check_target(folder: Path, trained_for: dict[str, Any], target: Any, fields: tuple[str, ...]) -> None:
    other = _difference(trained_for, target, fields)
    if other:
        raise MismatchError(f"the drafter in {folder} was trained for another target: {other}")


def _difference(trained_for: dict[str, Any], target: Any, fields: Iterable[str]) -> str:
    """How the target that a drafter was trained for is unlike this one; "" where it is not, as far as it is told."""
    here = fingerprint(target)
    for name in fields:
        expected, found = trained_for.get(name), here[name]
        if None not in (expected, found) and expected != found:
            what = "vocabulary (hash)" if name == "tokenizer" else name
            return f"its {what} is {shorten(expected)[:20]}, this target's is {shorten(found)[:20]}"
    return ""


def other_target(folder: Path, target: Any, fields: Iterable[str]) -> str:
    """How the target of the drafter in a folder, if it says one, is unlike this one in `fields` of its `fingerprint`;
    else ""."""
    held = _describe(folder) if (folder / DESCRIPTION).exists() else {}
    return _difference(held.get("target", {}), target, fields)


def check_successor(folder: Path, target: Any) -> None:
    """Raise MismatchError where a drafter for this target, saved to `folder`, would replace one of another target: in
    `folder` itself, or beside a model there."""
    for place in (folder, *drafters_of(folder).values()):
        other = other_target(place, target, fingerprint(target))
        if other:
            raise MismatchError(
                f"{folder} holds a drafter of the method {_describe(place)['method']} for another target ({other}): "
                "choose another folder, or remove it"
            )


def _check_finite(folder: Path, drafter: Any) -> None:
    weights = {} if drafter.net is None else drafter.net.state_dict()
    for name, weight in weights.items():
        if not weight.isfinite().all():
            raise CheckpointError(
                f"the weights in {folder} are damaged, or too large for {weight.dtype}: {name} is not finite"
            )


@contextmanager
def writing(folder: str | os.PathLike[str]) -> Iterator[Path]:
    """A new, empty folder to write into, which takes the place of `folder` when the block ends without an error.

    What lay in `folder` is replaced as a whole, but only by something that has all its files, so that no drafters are
    lost with their target, and no model to a drafter; until then, and after any error, it is as it was. What a process
    that was killed left behind is removed.
    Raises: CheckpointError: the folder cannot be written, or it holds something that would be lost.
    """
    goal = replaceable(folder)
    draft = goal.with_name(f".{goal.name}.{os.getpid()}.tmp")
    try:
        tidy(goal)
        draft.mkdir(parents=True)
        yield draft
        shared = draft.stat().st_mode & 0o666  # safetensors makes files that nobody but their owner can read
        for path in [*draft.rglob("*"), draft]:
            if path.is_file():
                path.chmod(shared)
            _flush(path)
        _lose_nothing(goal, draft)
        take_place(draft, goal)
    except OSError as error:
        raise CheckpointError(f"{goal} was not saved, and is as it was before: {one_line(error)}") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def replaceable(folder: str | os.PathLike[str]) -> Path:
    """The absolute path of a folder that may be written. Raises CheckpointError: see `writing`."""
    try:
        goal = Path(folder).expanduser().absolute()
        is_file, holds = goal.is_file(), {path.name for path in goal.iterdir()} if goal.is_dir() else set()
    except (OSError, RuntimeError) as error:  # no permission, a name that is too long, ~ of a user that is not known
        raise CheckpointError(f"{shorten(str(folder))} cannot be written: {one_line(error)}") from error
    if is_file:
        raise CheckpointError(f"{goal} is a file: a checkpoint needs a folder")
    if holds and not holds & {DESCRIPTION, "config.json"}:
        raise CheckpointError(f"{goal} holds something that is not a checkpoint ({min(holds)}): choose another folder")
    return goal


def _lose_nothing(goal: Path, draft: Path) -> None:
    """Raises: CheckpointError: `goal` holds something, other than a card, that has no successor in `draft`."""
    lost = {path.name for path in goal.iterdir()} - {path.name for path in draft.iterdir()} if goal.is_dir() else set()
    if lost - {CARD}:
        raise CheckpointError(
            f"{goal} also holds {', '.join(sorted(lost - {CARD})[:3])}, which would be lost: choose another folder"
        )


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
