"""Pictures from whatever a user has, as an RGB `PIL.Image`, or one clear `InputError`.

A file is untrusted: few formats, limits checked before anything is decoded, and nothing is ever fetched from a network.
"""

import os
import re
import stat
import struct
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from threading import Lock

import numpy as np
from PIL import Image, ImageOps

from mmspec.errors import InputError, reason, shorten
from mmspec.safe_files import check_goal, whole

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
ENDINGS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".webp": "WEBP", ".bmp": "BMP"}
"""What pictures are written as, by the ending of the file's name."""
MAX_PIXELS = 40_000_000
MAX_SIDE = 16_384  # pixels
MAX_ASPECT_RATIO = 200  # longer side / shorter side
MAX_FILE_BYTES = 64_000_000

_URL = re.compile(r"(?i:[a-z][a-z0-9+.-]+:/{1,2}|data:)")
# Decoders meet broken bytes with all of these.
_BROKEN = (
    OSError,
    SyntaxError,
    ValueError,
    EOFError,
    TypeError,
    LookupError,
    ArithmeticError,
    NotImplementedError,
    struct.error,
    zlib.error,
    Image.DecompressionBombError,
    Image.DecompressionBombWarning,
)

ImageSource = Image.Image | str | os.PathLike[str] | bytes | np.ndarray

_FILTERS = Lock()
"""Filters of warnings are the process's: threads that change them at the same time may leave them changed for good."""


def names_a_picture(word: str) -> bool:
    """Whether a word is the path of a file, an address, or ends as names of pictures do."""
    return os.path.isfile(word) or bool(_URL.match(word)) or os.path.splitext(word)[1].lower() in (*ENDINGS, ".gif")


def check_picture(file: str | os.PathLike[str]) -> Path:
    """The path of a picture to write. Raises: InputError: an ending that stands for no format, or no such folder."""
    return check_goal(file, ENDINGS, "a picture")


def save_image(image: Image.Image, path: str | os.PathLike[str]) -> Path:
    """Write a picture: whole, or not at all. Raises: InputError: another ending, or a place that cannot be written."""
    goal = check_picture(path)
    try:
        with whole(goal) as draft:
            image.save(draft, format=ENDINGS[goal.suffix.lower()])
    except OSError as error:
        raise InputError(f"{goal} cannot be written: {reason(error)}") from error
    return goal


def load_image(source: ImageSource) -> Image.Image:
    """A new 8-bit RGB image: first frame, turned upright as its EXIF data says, transparency laid on white.

    Args: source: a PIL image; the path of a PNG, JPEG, WEBP, GIF or BMP file; the bytes of one; or an array of shape
        [H, W], [H, W, 3] or [H, W, 4], uint8 or floating point in 0..1.
    Raises: InputError: the source is missing, not an image, broken, empty, or beyond the limits of this module.
    """
    if isinstance(source, Image.Image):
        return _decode(source, f"PIL image (mode {source.mode})")
    if isinstance(source, np.ndarray):
        name = f"array of shape {list(source.shape)} and dtype {source.dtype}"
        return _to_rgb(_from_array(source, name), name)
    if isinstance(source, bytes | bytearray | memoryview):
        return _open(bytes(source), "image bytes")
    if isinstance(source, str | os.PathLike):
        name = f"image {shorten(os.fspath(source))}"
        return _open(_read(source, name), name)
    raise InputError(
        f"an image must be a PIL image, a path, bytes or a numpy array, not {type(source).__name__} {shorten(source)}"
    )


def _read(path: str | os.PathLike[str], name: str) -> bytes:
    if not os.fspath(path):
        raise InputError(f"{name} is an empty path: pass None for no picture")
    if _URL.match(os.fspath(path)):
        raise InputError(f"{name}: URLs are not fetched; download the file and pass its path")
    try:
        status = Path(path).stat()
        if stat.S_ISDIR(status.st_mode):
            raise InputError(f"{name} is a directory; pass the path of an image file")
        if not stat.S_ISREG(status.st_mode):
            raise InputError(f"{name} is not a regular file")
        _check_bytes(status.st_size, name)
        with Path(path).open("rb") as file:
            return file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        raise InputError(f"{name} does not exist") from None
    except InputError:
        raise
    except (OSError, ValueError, TypeError) as error:  # no permission, name too long, null byte, bytes path
        raise InputError(f"{name} cannot be read: {reason(error)}") from error


def _open(data: bytes, name: str) -> Image.Image:
    if not data:
        raise InputError(f"{name}: empty (0 bytes)")
    _check_bytes(len(data), name)
    try:
        with _strict():
            image = Image.open(BytesIO(data), formats=FORMATS)
    except Image.UnidentifiedImageError:
        raise InputError(f"{name} is not a readable image; formats: {', '.join(FORMATS)}") from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise InputError(f"{name} is too large: more than {MAX_PIXELS} pixels") from error
    except _BROKEN as error:
        raise InputError(f"{name} is truncated or broken: {reason(error)}") from error
    with image:
        return _decode(image, name)


def _decode(image: Image.Image, name: str) -> Image.Image:
    _check_size(*image.size, name)
    try:
        image.load()
        with _strict():
            upright = ImageOps.exif_transpose(image)
    except _BROKEN as error:
        raise InputError(f"{name} is truncated or broken: {reason(error)}") from error
    return _to_rgb(upright, name)


@contextmanager
def _strict() -> Iterator[None]:
    """A bomb is an error already where Pillow warns; EXIF data that cannot be read is no reason to say anything."""
    with _FILTERS, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        yield


def _to_rgb(image: Image.Image, name: str) -> Image.Image:
    if image.mode.startswith("I;16"):
        # Pillow's own conversion clips at 255 instead of scaling.
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.mode in ("I", "F"):
        image = _from_array(np.asarray(image), name)
    try:
        if image.has_transparency_data:
            rgba = image.convert("RGBA")
            image = Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba)
        return image.convert("RGB")
    except ValueError as error:
        raise InputError(f"{name} cannot be converted to RGB: {reason(error)}") from error


def _from_array(array: np.ndarray, name: str) -> Image.Image:
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (3, 4)):
        raise InputError(f"{name}: an image array has shape [H, W], [H, W, 3] or [H, W, 4]")
    _check_size(array.shape[1], array.shape[0], name)
    if np.issubdtype(array.dtype, np.floating):
        low, high = float(array.min()), float(array.max())
        if not (low >= -1e-3 and high <= 1.001):  # false for NaN too; interpolation overshoots a little
            raise InputError(f"{name} has values {low:g} to {high:g}; floating-point images lie in 0..1, without NaN")
        array = (array.astype(np.float32).clip(0, 1) * 255).round().astype(np.uint8)
    if array.dtype != np.uint8:
        raise InputError(f"{name}: an image array is uint8, or floating point in 0..1")
    return Image.fromarray(np.ascontiguousarray(array))


def _check_bytes(count: int, name: str) -> None:
    if count > MAX_FILE_BYTES:
        raise InputError(f"{name} is too large: more than {MAX_FILE_BYTES // 1_000_000} MB")


def _check_size(width: int, height: int, name: str) -> None:
    size = f"{width}x{height} pixels"
    if width < 1 or height < 1:
        raise InputError(f"{name} is empty: {size}")
    if max(width, height) > MAX_SIDE:
        raise InputError(f"{name} is too large: {size}; the limit is {MAX_SIDE} pixels a side")
    if width * height > MAX_PIXELS:
        raise InputError(f"{name} is too large: {size}; the limit is {MAX_PIXELS} pixels in all")
    if max(width, height) > MAX_ASPECT_RATIO * min(width, height):
        raise InputError(f"{name} is too narrow: {size}; the limit is {MAX_ASPECT_RATIO} to 1")
