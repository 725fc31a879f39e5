"""Notes how large the tensors are that operators make, so that a test can see that nothing large is copied."""

from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Made(TorchDispatchMode):
    """sizes: elements of every new tensor; views are none."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **kwargs or {})
        if not any(given.alias_info for given in func._schema.returns):
            self.sizes += [tensor.numel() for tensor in tree_leaves(out)]
        return out
