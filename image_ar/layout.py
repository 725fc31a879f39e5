"""How the emitted tokens of a picture lie: rows of codes, and tokens that the layout forces between and after them.

Ids are those of the image vocabulary: codes 0 to `codes` - 1 of the codebook, then the layout's own tokens (line ends,
end of image). Places count emitted tokens, line ends included.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from mmspec.errors import InputError, shorten
from mmspec.options import picture_size

UNKNOWN = -1


def size_of(image_sizes: Any, context: int) -> tuple[int, int]:
    """Rows and columns of codes of a request's `image_sizes` [B, 2].

    Raises: InputError: no whole numbers from 1, not the same for every picture, or more codes than the context holds.
    """
    sizes = counts(image_sizes)
    if sizes is None or sizes.ndim != 2 or sizes.shape[1] != 2 or len(sizes.unique(dim=0)) != 1:
        raise InputError(
            f"image_sizes={shorten(as_lists(image_sizes))} is not valid: rows and columns of codes are needed, the "
            "same for every picture of a batch"
        )
    rows, columns = sizes[0].tolist()
    check_fits(rows, columns, context)
    return rows, columns


def grid_of(size: Any, side: int, context: int, unit: int = 1) -> tuple[int, int]:
    """Rows and columns of codes, each of `side` x `side` pixels, of a picture of that `size` (`picture_size`).

    Args: unit: of how many codes rows and columns are multiples.
    Raises: InputError: no whole number of units, or more codes than the context holds.
    """
    width, height = picture_size(size)
    step = side * unit
    if width % step or height % step:
        raise InputError(f"size={width}x{height} is not valid: width and height must be multiples of {step} pixels")
    rows, columns = height // side, width // side
    check_fits(rows, columns, context)
    return rows, columns


def counts(value: Any) -> Tensor | None:
    """What a request gave as whole numbers from 1, a tensor or lists; None where it holds anything else."""
    try:
        found = torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError):
        return None
    whole = not (found.is_floating_point() or found.is_complex() or found.dtype == torch.bool)
    return found if whole and found.numel() and int(found.min()) >= 1 else None


def as_lists(value: Any) -> Any:
    """The same for a message: tensors as lists."""
    return value.tolist() if isinstance(value, Tensor) else value


def check_fits(rows: int, columns: int, context: int) -> None:
    """Raise InputError for more codes than a context holds: a `Layout` of so many could fill the memory."""
    if rows * columns > context:
        raise InputError(
            f"a picture of {rows} x {columns} codes is not possible: the model's context is {context} tokens"
        )


@dataclass(frozen=True)
class Layout:
    """A grid of codes, row by row.

    rows, columns: of codes. codes: size of the codebook. newline: id that ends every row, or None. tail: ids after the
    last row. forced: [length] the id that must stand at each place, or -1 where a code is chosen.
    """

    rows: int
    columns: int
    codes: int
    newline: int | None = None
    tail: tuple[int, ...] = ()
    forced: Tensor = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        row = [UNKNOWN] * self.columns + ([] if self.newline is None else [self.newline])
        object.__setattr__(self, "forced", torch.tensor(row * self.rows + list(self.tail)))

    @property
    def width(self) -> int:
        """Places per row, the line end included."""
        return self.columns + (self.newline is not None)

    @property
    def length(self) -> int:
        """Tokens of a whole picture."""
        return self.rows * self.width + len(self.tail)

    @property
    def vocab_size(self) -> int:
        """Codes and layout tokens."""
        return 1 + max(self.codes - 1, *self.tail, -1 if self.newline is None else self.newline)

    def at(self, places: Tensor) -> Tensor:
        """The forced ids at places [..], -1 where a code is chosen; behind the end the last place counts."""
        return _forced(self, places.device)[places.clamp(max=self.length - 1)]

    def force(self, logits: Tensor, places: Tensor) -> Tensor:
        """Logits [B, N, V] of the tokens at places [B, N], with nothing but the forced id where there is one.

        Where a code is chosen, layout tokens are ruled out.
        """
        if self.vocab_size == self.codes:
            return logits
        forced = self.at(places)[..., None]
        ids = torch.arange(logits.shape[-1], device=logits.device)
        chosen = logits.masked_fill(ids >= self.codes, -torch.inf)
        point = torch.where(ids == forced, 0.0, -torch.inf).to(logits.dtype)
        return torch.where(forced < 0, chosen, point)

    def left(self, places: Tensor) -> Tensor:
        """The place of the code to the left, -1 in the first column."""
        return torch.where(places % self.width > 0, places - 1, UNKNOWN)

    def above(self, places: Tensor, known: Tensor) -> Tensor:
        """The nearest place above that is not behind `known`, below 0 if there is none."""
        rows = ((places - known + self.width - 1) // self.width).clamp(min=1)
        return places - rows * self.width

    def grid(self, ids: list[int]) -> list[int]:
        """The codes among emitted ids, in reading order."""
        return [token for token, forced in zip(ids, self.forced.tolist(), strict=False) if forced == UNKNOWN]


@lru_cache(maxsize=16)
def _forced(layout: Layout, device: torch.device) -> Tensor:
    """`Layout.forced`, copied to a device once."""
    return layout.forced.to(device)
