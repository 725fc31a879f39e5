"""What the commands that train bundled models have in common: `mmspec train target NAME`."""

from __future__ import annotations

from argparse import SUPPRESS, Action, ArgumentParser, HelpFormatter, Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from mmspec.errors import InputError
from mmspec.training.processes import check_alone


class TargetHelp(HelpFormatter):
    """Keeps paragraphs apart, and tells defaults as the other commands do."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        fill = super()._fill_text
        return "\n\n".join(fill(paragraph, width, indent) for paragraph in text.strip().split("\n\n"))

    def _get_help_string(self, action: Action) -> str | None:
        told = (action.help or "").removesuffix(" (default: %(default)s)")  # of flags with a --no- form
        silent = action.default is None or action.default is False or action.default is SUPPRESS
        return told if silent else f"{told} [default: %(default)s]"


def target_parser(
    name: str, about: str | None, made: str = "checkpoint", run: str = "folder of logs and checkpoints"
) -> ArgumentParser:
    """A parser that knows the options of them all.

    Args: name: of the model. about: the command's help. made: what it makes. run: what --run is.
    """
    parser = ArgumentParser(
        prog=f"mmspec train target {name}",
        description=about,
        epilog=f"Example: mmspec train target {name} --out my-{name}",
        formatter_class=TargetHelp,
    )
    parser.add_argument("--out", type=Path, required=True, help=f"folder of the finished {made}")
    parser.add_argument("--run", type=Path, default=Path("runs", name), help=run)
    parser.add_argument("--threads", type=int, default=2, help="CPU threads")
    parser.add_argument("--seed", type=int, default=0, help="of weights and data")
    return parser


def parsed(
    parser: ArgumentParser, arguments: Sequence[str] | None, check: Callable[[Namespace], None] | None = None
) -> Namespace:
    """The options; torch is set up for training on this many threads.

    Args: check: raises for options that are wrong, and torch stays as it is.
    Raises: InputError: no threads, or several processes.
    """
    options = parser.parse_args(arguments)
    if options.threads < 1:
        raise InputError(f"--threads {options.threads} is not valid: 1 or more are needed")
    if check is not None:
        check(options)
    check_alone()
    torch.set_num_threads(options.threads)
    torch.set_flush_denormal(True)  # denormal numbers slow a CPU down, and are nothing to a gradient
    return options


def run_settings(options: Namespace) -> dict[str, Any]:
    """The options that tell a run from others: all but where it is, where it writes, and on how many threads."""
    return {name: value for name, value in vars(options).items() if name not in ("out", "run", "threads")}


def check_counts(options: Namespace, **least: int) -> None:
    """Raise InputError for the first option that is smaller than it may be. least: name -> smallest number."""
    for name, smallest in least.items():
        if getattr(options, name) < smallest:
            raise InputError(
                f"--{name.replace('_', '-')} {getattr(options, name)} is not valid: at least {smallest} is needed"
            )
