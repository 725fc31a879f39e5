"""A function of tensors, compiled for every combination of shapes that comes, and captured where there is CUDA."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from mmspec.engine.graphs import CAPTURING, Graph, Place
from mmspec.errors import UnsupportedError, one_line

MOST = 1 << 20
"""How often torch may compile a function: every combination of shapes counts."""


class Compiled:
    """A function and what it was compiled to.

    Args: function: what is compiled, whole. backend: of `torch.compile`; None for plain calls. name: for messages.
    """

    def __init__(self, function: Callable[..., Any], backend: str | None, name: str) -> None:
        self.name, self.function, self.backend = name, function, backend
        self.captures = torch.cuda.is_available()
        if backend is not None:
            # For the whole process, and for good: a thread that put them back would do so while another compiles.
            torch._dynamo.config.recompile_limit = torch._dynamo.config.accumulated_recompile_limit = MOST
            self.function = torch.compile(function, fullgraph=True, dynamic=False, backend=backend)
        self._places: dict[torch.device, Place] = {}

    def compile(self, *arguments: Any) -> None:
        """See to it that the function is compiled for these arguments; with plain calls there is nothing to do.

        Raises: UnsupportedError: the function cannot be compiled.
        """
        if self.backend is not None:
            self(*arguments)

    def graph(self, device: torch.device, *arguments: Any) -> Graph:
        """What calls the function on these arguments, tensors at addresses that stay; compiled now, if it has to be.

        Raises: UnsupportedError: the function cannot be compiled.
        """
        self.compile(*arguments)
        return Graph(lambda: self.function(*arguments), self.place(device))

    def place(self, device: torch.device) -> Place:
        """Where its graphs, and those of functions that call it, are captured."""
        return self._places.get(device) or self._places.setdefault(device, Place(device))

    def __call__(self, *arguments: Any) -> Any:
        """What the function gives, by a call that is not captured; compiled now, if it has to be.

        Raises: UnsupportedError: the function cannot be compiled.
        """
        if self.backend is None:
            return self.function(*arguments)
        turn: AbstractContextManager[Any] = CAPTURING if self.captures else nullcontext()
        try:
            with turn:
                return self.function(*arguments)
        except torch._dynamo.exc.TorchDynamoException as error:
            raise UnsupportedError(
                f"{self.name} cannot be compiled ({one_line(error)}): load the target with compile=False"
            ) from error
