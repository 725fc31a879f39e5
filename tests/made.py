"""Notes what tensors operators make, so that a test can see that nothing large is copied."""

from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Made(TorchDispatchMode):
    """made: of every new tensor what made it, and how many elements it has; views are none."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[tuple[str, int]] = []

    @property
    def sizes(self) -> list[int]:
        """The numbers of elements alone."""
        return [size for _, size in self.made]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **kwargs or {})
        if not any(given.alias_info for given in func._schema.returns):
            self.made += [(func.name(), tensor.numel()) for tensor in tree_leaves(out)]
        return out
