"""load_image: every odd but good picture becomes RGB, every bad one a single clear line."""

import contextlib
import os
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from itertools import count
from pathlib import Path
from threading import Event

import numpy as np
import pytest
from PIL import Image
from tiny import png_header

from mmspec import media
from mmspec.errors import Error, InputError
from mmspec.media import load_image

RED = (255, 0, 0)


def encode(image: Image.Image, form: str = "PNG", **options: object) -> bytes:
    buffer = BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


def noise(width: int = 64, height: int = 48) -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8))


def refused(source: object, *words: str) -> str:
    with pytest.raises(InputError) as caught:
        load_image(source)
    message = str(caught.value)
    assert isinstance(caught.value, Error)
    assert isinstance(caught.value, ValueError)
    assert "\n" not in message
    for word in words:
        assert word in message
    return message


# Good pictures


def test_path_bytes_array_and_image_give_the_same_pixels(tmp_path: Path) -> None:
    picture = noise()
    file = tmp_path / "a.png"
    picture.save(file)
    for source in (picture, file, str(file), file.read_bytes(), np.asarray(picture)):
        loaded = load_image(source)
        assert loaded.mode == "RGB"
        assert loaded.tobytes() == picture.tobytes()


@pytest.mark.parametrize("form", media.FORMATS)
def test_every_format_is_read_whatever_its_file_name(form: str, tmp_path: Path) -> None:
    file = tmp_path / "picture.txt"
    file.write_bytes(encode(Image.new("RGB", (20, 10), RED), form))
    loaded = load_image(file)
    assert (loaded.mode, loaded.size) == ("RGB", (20, 10))
    assert np.abs(np.asarray(loaded, dtype=int) - RED).max() <= 8


@pytest.mark.parametrize("mode", ["1", "L", "P", "LA", "PA", "RGBA", "RGBX", "CMYK", "YCbCr", "HSV", "F", "I;16"])
def test_every_mode_becomes_rgb(mode: str) -> None:
    loaded = load_image(Image.new(mode, (5, 4)))
    assert (loaded.mode, loaded.size) == ("RGB", (5, 4))


def test_alpha_is_laid_on_white() -> None:
    picture = Image.new("RGBA", (2, 1), (255, 0, 0, 0))
    picture.putpixel((1, 0), (255, 0, 0, 255))
    for source in (picture, encode(picture), np.asarray(picture)):
        loaded = load_image(source)
        assert [loaded.getpixel((x, 0)) for x in range(2)] == [(255, 255, 255), RED]


def test_transparent_palette_entry_is_laid_on_white() -> None:
    picture = Image.new("P", (2, 1))
    picture.putpalette([0, 0, 0, 255, 0, 0])
    picture.putpixel((1, 0), 1)
    loaded = load_image(encode(picture, transparency=0))
    assert [loaded.getpixel((x, 0)) for x in range(2)] == [(255, 255, 255), RED]


def test_cmyk_jpeg() -> None:
    loaded = load_image(encode(Image.new("CMYK", (16, 16), (0, 255, 255, 0)), "JPEG"))
    assert np.abs(np.asarray(loaded, dtype=int) - RED).max() <= 8


def test_16_bit_grey_is_scaled_not_clipped() -> None:
    ramp = np.linspace(0, 65535, 256).astype(np.uint16).reshape(16, 16)
    loaded = load_image(encode(Image.fromarray(ramp)))
    assert np.array_equal(np.asarray(loaded)[..., 0], ramp >> 8)


def test_exif_orientation_is_applied_once(tmp_path: Path) -> None:
    picture = Image.new("RGB", (4, 2), "white")
    picture.putpixel((0, 0), RED)
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 90 degrees clockwise
    file = tmp_path / "photo.png"
    picture.save(file, exif=exif)
    upright = load_image(file)
    assert upright.size == (2, 4)
    assert upright.getpixel((1, 0)) == RED
    assert load_image(upright).tobytes() == upright.tobytes()
    with Image.open(file) as opened:
        assert load_image(opened).tobytes() == upright.tobytes()


def test_animation_gives_its_first_frame() -> None:
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue", "green")]
    data = encode(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert load_image(data).getpixel((3, 3)) == RED


def test_float_array_is_scaled() -> None:
    array = np.array([[0.0, 0.5, 1.0]])
    for dtype in (np.float16, np.float32, np.float64):
        assert [load_image(array.astype(dtype)).getpixel((x, 0))[0] for x in range(3)] == [0, 128, 255]


def test_strided_array() -> None:
    array = np.asarray(noise())[::-2, ::2]
    assert np.array_equal(np.asarray(load_image(array)), array)


def test_single_pixel() -> None:
    assert load_image(encode(Image.new("RGB", (1, 1), RED))).getpixel((0, 0)) == RED


def test_result_is_independent_of_the_source() -> None:
    source = Image.new("RGB", (2, 2), RED)
    load_image(source).putpixel((0, 0), (0, 0, 0))
    assert source.getpixel((0, 0)) == RED


def test_threads_that_load_pictures_leave_filters_of_warnings_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing keeps it out, the second one comes before the first one has left, and leaves after it."""
    before, upright, numbers = list(warnings.filters), media.ImageOps.exif_transpose, count()
    first_in, second_in, first_out = Event(), Event(), Event()

    def watched(image: Image.Image) -> Image.Image:
        if next(numbers) == 0:
            first_in.set()
            second_in.wait(0.5)  # in vain, where the second one waits for its turn
        else:
            second_in.set()
            assert first_out.wait(60)
        return upright(image)

    monkeypatch.setattr(media.ImageOps, "exif_transpose", watched)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(load_image, noise())
        assert first_in.wait(60)
        second = pool.submit(load_image, noise())
        first.result()
        first_out.set()
        second.result()
    assert list(warnings.filters) == before


# Bad pictures


def test_missing_file(tmp_path: Path) -> None:
    refused(tmp_path / "no.png", "no.png", "does not exist")
    refused(str(tmp_path / "no.png"), "no.png", "does not exist")
    refused("", "''")


def test_directory(tmp_path: Path) -> None:
    refused(tmp_path, "is a directory")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_named_pipe_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    refused(tmp_path / "pipe", "not a regular file")


def test_empty_file(tmp_path: Path) -> None:
    file = tmp_path / "a.png"
    file.touch()
    refused(file, "a.png", "empty")
    refused(b"", "empty")


def test_not_an_image(tmp_path: Path) -> None:
    file = tmp_path / "notes.png"
    file.write_text("not a picture " * 100)
    refused(file, "notes.png", "not a readable image", "PNG, JPEG")


@pytest.mark.parametrize("form", ["TIFF", "PPM", "ICO", "TGA"])
def test_other_formats(form: str) -> None:
    refused(encode(Image.new("RGB", (32, 32)), form), "not a readable image")


@pytest.mark.parametrize("form", media.FORMATS)
@pytest.mark.parametrize("part", [0.02, 0.5, 0.9])
def test_truncated(form: str, part: float, tmp_path: Path) -> None:
    data = encode(noise(), form)
    file = tmp_path / "cut.img"
    file.write_bytes(data[: int(len(data) * part)])
    refused(file, "cut.img")


@pytest.mark.parametrize("form", media.FORMATS)
def test_flipped_bytes_give_an_image_or_an_input_error(form: str) -> None:
    rng = np.random.default_rng(1)
    data = np.frombuffer(encode(noise(24, 16), form), dtype=np.uint8)
    for _ in range(100):
        broken = data.copy()
        broken[rng.integers(0, min(len(data), 400), 3)] = rng.integers(0, 256, 3)
        with contextlib.suppress(InputError):
            assert load_image(broken.tobytes()).mode == "RGB"


@pytest.mark.parametrize(
    "url", ["http://a.example/x.png", "HTTPS://a.example/x.png", "file:///x.png", "data:image/png;,"]
)
def test_urls_are_not_fetched(url: str) -> None:
    refused(url, "URLs are not fetched")


@pytest.mark.parametrize("path", ["nul\0byte.png", "long" * 2000])
def test_impossible_path(path: str) -> None:
    assert len(refused(path, "cannot be read")) < 300


def test_decompression_bomb_is_refused_before_decoding_without_a_warning() -> None:
    for side in (10_000, 16_000, 60_000):  # within Pillow's limit, beyond its warning, beyond its error
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            refused(png_header(side, side), "too large")


@pytest.mark.parametrize(
    ("width", "height", "word"),
    [(16_385, 1_000, "16384"), (6_400, 6_400, "40000000"), (4_000, 10, "200 to 1"), (1, 4_000, "200 to 1")],
)
def test_limits_hold_for_files_arrays_and_images(width: int, height: int, word: str) -> None:
    refused(png_header(width, height), "image bytes", word)
    refused(np.broadcast_to(np.uint8(0), (height, width, 3)), "array", word)
    refused(Image.new("1", (width, height)), "PIL image", word)


def test_zero_size() -> None:
    refused(Image.new("RGB", (0, 0)), "0x0")
    refused(Image.new("RGB", (3, 0)), "3x0")
    refused(np.zeros((0, 4, 3), dtype=np.uint8), "4x0")
    refused(png_header(0, 5))


def test_large_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "large.png"
    noise().save(file)
    monkeypatch.setattr(media, "MAX_FILE_BYTES", 1000)
    refused(file, "large.png", "too large")
    refused(file.read_bytes(), "too large")


@pytest.mark.parametrize(
    "make",
    [
        lambda: np.zeros(5, dtype=np.uint8),
        lambda: np.zeros((2, 2, 2, 3), dtype=np.uint8),
        lambda: np.zeros((3, 8, 8), dtype=np.uint8),
        lambda: np.zeros((8, 8), dtype=np.int64),
        lambda: np.zeros((8, 8), dtype=bool),
        lambda: np.full((8, 8), "x"),
        lambda: np.full((8, 8), 255.0),
        lambda: np.full((8, 8), -0.5),
        lambda: np.full((8, 8), np.nan),
        lambda: np.array([[0.5, np.inf]]),
    ],
)
def test_bad_array(make: Callable[[], np.ndarray]) -> None:
    refused(make(), "array of shape")


def test_integer_mode_has_no_range() -> None:
    refused(Image.new("I", (4, 4)), "mode I")


def test_truncated_file_opened_by_the_caller() -> None:
    data = encode(noise())
    refused(Image.open(BytesIO(data[: len(data) // 2])), "PIL image", "truncated")


@pytest.mark.parametrize("source", [None, 3, ["a.png"], {"a": 1}, object()])
def test_other_types(source: object) -> None:
    refused(source, "must be a PIL image, a path, bytes or a numpy array", type(source).__name__)
