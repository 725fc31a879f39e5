"""The errors of mmspec. Each says in one line what was wrong and what would be right.

All derive from `Error`, and also from the built-in exception that a caller would expect. The CLI prints the line and
exits 2; anything else that escapes is a defect of mmspec.
"""

from collections.abc import Iterable
from difflib import get_close_matches
from importlib import import_module
from typing import Any


class Error(Exception):
    """Base of every error that mmspec raises on purpose."""


class InputError(Error, ValueError):
    """An image, a prompt or a sampling value that cannot be used."""


class UnknownNameError(Error, ValueError):
    """No target, drafter, rule, command or model has this name."""


class CheckpointError(Error, RuntimeError):
    """Weights or their configuration are missing, pickled, corrupt, or of another shape than the model."""


class MismatchError(Error, ValueError):
    """Two good parts that do not fit: a rule and a drafter, or a drafter and a target."""


class UnsupportedError(Error, RuntimeError):
    """A model, or a combination of options, that mmspec cannot serve."""


class MissingExtraError(Error, RuntimeError):
    """A package that is installed only with one of the extras."""


class NumericalError(Error, RuntimeError):
    """The model returned logits that are not finite."""


class OutOfMemoryError(Error, RuntimeError):
    """The device has too little memory for a request."""


NO_MEMORY = "DefaultCPUAllocator: can't allocate memory"
"""How torch says that a CPU has too little memory, in a plain RuntimeError."""


def out_of_memory(error: BaseException) -> bool:
    """Whether torch says by this that a device has too little memory."""
    return type(error).__name__ == "OutOfMemoryError" or NO_MEMORY in str(error)


def shorten(value: object, limit: int = 80) -> str:
    """`repr(value)` in at most `limit` characters, for use in a message."""
    text = repr(value)
    return text if len(text) <= limit else f"{text[: limit - 4]}...{text[-1]}"


def described(value: object) -> str:
    """The shape of a tensor, the name of a class, the type of anything else, for use in a message."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    shape = getattr(value, "shape", None)
    return type(value).__name__ if shape is None else str(list(shape))


def one_line(error: BaseException, limit: int = 300) -> str:
    """What an exception says, in one line, for use in a message."""
    return " ".join(str(error).split())[:limit] or type(error).__name__


def reason(error: BaseException) -> str:
    """What an exception says, in one line; of the system's errors what was wrong alone, where the message names the
    file."""
    told = getattr(error, "strerror", None)
    return told if isinstance(told, str) and told else one_line(error, 200)


def unknown_name(kind: str, name: object, known: Iterable[str], note: str = "") -> UnknownNameError:
    """The error for a name that is not known, with the names near it and all known ones.

    Args: kind: what was named, in the singular ("drafter"). known: the names that would be right.
        note: a further remark, appended.
    """
    known = sorted(set(known))
    lower = {right.lower(): right for right in known}
    near = [lower[match] for match in get_close_matches(str(name).lower()[:80], lower)]
    message = f"unknown {kind} {shorten(name)}"
    if near:
        message += f"; did you mean {' or '.join(map(repr, near))}?"
    if known:
        message += f"{'' if near else ';'} known: {', '.join(known)}"
    return UnknownNameError(f"{message}; {note}" if note else message)


def check_least(settings: object, *names: str, least: int = 1) -> None:
    """Raise InputError unless each of these settings that is given is at least so large."""
    for name in names:
        value = getattr(settings, name)
        if value is not None and value < least:
            raise InputError(f"{name}={value} is not valid: at least {least} is needed")


def require(module: str, extra: str) -> Any:
    """A module of a package that only an extra installs. Raises: MissingExtraError."""
    try:
        return import_module(module)
    except ImportError as error:
        raise missing_extra(module.partition(".")[0], extra) from error


def missing_extra(package: str, extra: str) -> MissingExtraError:
    """The error for `package` not being installed, naming the extra that brings it."""
    return MissingExtraError(f'{package} is not installed; it comes with: pip install "mmspec[{extra}]"')
