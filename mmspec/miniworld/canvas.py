"""A canvas that draws with Pillow and remembers what it drew where.

The marks (one per glyph, coloured region, shape) are dense supervision for a vision encoder. Only Pillow's bundled
font is used, so that pictures do not depend on the fonts of the machine.
"""

import functools
import random

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from mmspec.miniworld.facts import Mark

SIDE = 320
CAP_HEIGHT = 0.71  # of the bundled font, per unit of size
RGB = tuple[int, int, int]
Box = tuple[float, float, float, float]

INKS: dict[str, RGB] = {
    "red": (214, 40, 44),
    "green": (40, 150, 66),
    "blue": (40, 88, 210),
    "yellow": (244, 214, 36),
    "orange": (244, 134, 24),
    "purple": (136, 54, 172),
    "black": (28, 28, 30),
    "white": (246, 246, 246),
}
GROUNDS: dict[str, RGB] = {
    "white": (249, 249, 249),
    "gray": (204, 205, 207),
    "cream": (248, 239, 214),
    "sky": (205, 228, 247),
    "mint": (208, 240, 221),
}


class Canvas:
    """A square picture of SIDE pixels; `image` is what was drawn, `marks` where."""

    def __init__(self, rng: random.Random, ground: RGB) -> None:
        self.rng = rng
        self.image = _gradient(rng, ground)
        self.draw = ImageDraw.Draw(self.image)
        self.marks: list[Mark] = []

    def mark(self, kind: str, value: str, box: Box) -> None:
        """Remembers that `value` of this kind lies in `box` (pixels: left, top, right, bottom)."""
        left, top, right, bottom = (round(float(edge), 1) for edge in box)
        self.marks.append(Mark(kind, value, (left, top, right, bottom)))

    def tell(self, *facts: str) -> None:
        """Remembers what belongs to the thing marked last, drawn or not: the value of a bar, the place of a shape."""
        box = self.marks[-1].box
        for fact in facts:
            self.mark("fact", fact, box)

    def ink(self, color: str) -> RGB:
        """The named colour, slightly varied."""
        red, green, blue = (min(255, max(0, channel + self.rng.randint(-9, 9))) for channel in INKS[color])
        return red, green, blue

    def region(self, box: Box, color: str, fill: RGB | None = None, outline: RGB | None = None, width: int = 1) -> None:
        """A filled rectangle of a named colour, with its mark."""
        self.draw.rectangle(box, fill=fill or self.ink(color), outline=outline, width=width)
        self.mark("color", color, box)

    def text(
        self, x: float, y: float, text: str, size: int, fill: RGB, align: str = "m", halo: RGB | None = None
    ) -> None:
        """Writes `text` with the middle of its capitals at height y and one mark per glyph.

        Args: align: whether x is the left ("l"), the middle ("m") or the right ("r") of the text; halo: colour of an
            outline that sets the text off from lines behind it.
        """
        face = font(size)
        left = round(x - {"l": 0.0, "m": 0.5, "r": 1.0}[align] * text_width(text, size))
        base = round(y + CAP_HEIGHT * size / 2)
        if halo is not None:
            self.draw.text((left, base), text, font=face, fill=halo, anchor="ls", stroke_width=3, stroke_fill=halo)
        # Half a pixel of stroke: the bundled face is too thin to survive the reduction to 160 pixels.
        self.draw.text((left, base), text, font=face, fill=fill, anchor="ls", stroke_width=0.5)
        for index, glyph in enumerate(text):
            if glyph != " ":
                start = left + face.getlength(text[: index + 1]) - face.getlength(glyph)
                x0, y0, x1, y1 = glyph_box(glyph, size)
                self.mark("char", glyph, (start + x0, base + y0, start + x1, base + y1))

    def finish(self) -> tuple[Image.Image, tuple[Mark, ...]]:
        """The picture with faint noise, and its marks."""
        tile = _noise_tile()
        top, left = self.rng.randrange(len(tile) - SIDE), self.rng.randrange(len(tile) - SIDE)
        noise = tile[top : top + SIDE, left : left + SIDE] // self.rng.randint(1, 4)
        pixels = np.asarray(self.image, dtype=np.int16) + noise[:, :, None]
        return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)), tuple(self.marks)


def blend(color: RGB, other: RGB, share: float) -> RGB:
    """`color` with `share` (0 to 1) of `other` mixed in."""
    red, green, blue = (round(a + (b - a) * share) for a, b in zip(color, other, strict=True))
    return red, green, blue


def contrast(color: RGB) -> RGB:
    """Black or white, whichever is legible on `color`."""
    luminance = 0.299 * color[0] + 0.587 * color[1] + 0.114 * color[2]
    return (16, 16, 18) if luminance > 125 else (252, 252, 252)


@functools.cache
def font(size: int) -> ImageFont.FreeTypeFont:
    """Pillow's bundled font at `size` pixels."""
    face = ImageFont.load_default(size)
    assert isinstance(face, ImageFont.FreeTypeFont)  # Pillow was built with FreeType
    return face


@functools.cache
def glyph_box(glyph: str, size: int) -> Box:
    """Box of one glyph relative to the start of its baseline."""
    return font(size).getbbox(glyph, anchor="ls")


def text_width(text: str, size: int) -> float:
    """Width of `text` in pixels."""
    return font(size).getlength(text)


def fit(texts: tuple[str, ...], width: float, largest: int, smallest: int) -> int:
    """The largest font size from `smallest` to `largest` at which each text is at most `width` pixels wide."""
    widest = max(text_width(text, 100) for text in texts) / 100
    return max(smallest, min(largest, int(width / widest)))


def overlap(a: Box, b: Box) -> float:
    """Area shared by two boxes."""
    return max(0.0, min(a[2], b[2]) - max(a[0], b[0])) * max(0.0, min(a[3], b[3]) - max(a[1], b[1]))


def _gradient(rng: random.Random, ground: RGB) -> Image.Image:
    across, down = _ramps()
    shade = rng.uniform(-9, 9) * across + rng.uniform(-9, 9) * down
    pixels = np.array(ground, dtype=np.float32) + shade[:, :, None]
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


@functools.cache
def _ramps() -> tuple[np.ndarray, np.ndarray]:
    ramp = np.linspace(-1, 1, SIDE, dtype=np.float32)
    return ramp[None, :], ramp[:, None]


@functools.cache
def _noise_tile() -> np.ndarray:
    """One tile for all pictures: a random cut of it is as good as fresh noise, and much cheaper."""
    return np.random.default_rng(0).integers(-6, 7, (SIDE * 2, SIDE * 2), dtype=np.int16)
