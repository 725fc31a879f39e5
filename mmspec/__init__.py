"""mmspec: speculative decoding for vision-language, image and speech models.

The public face is imported on first use, so that `import mmspec` loads neither torch nor transformers.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from mmspec.errors import Error
from mmspec.mkl import prepare

if TYPE_CHECKING:
    from mmspec.api import Pipeline, load
    from mmspec.contract import Shape
    from mmspec.one_call import generate
    from mmspec.registry import list_drafters

prepare()

__version__ = "0.1.0"
__all__ = ["Error", "Pipeline", "Shape", "__version__", "generate", "list_drafters", "load"]

_LAZY = {
    "Pipeline": "mmspec.api",
    "Shape": "mmspec.contract",
    "generate": "mmspec.one_call",
    "list_drafters": "mmspec.registry",
    "load": "mmspec.api",
}


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
