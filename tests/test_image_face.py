"""How pictures are asked for: files on the command line, several per prompt, and pictures while they are drawn."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny
import tiny_images
from commands import generate
from PIL import Image

import mmspec
from mmspec.media import save_image

PROMPT = "a red circle above two blue square"
LENGTH = tiny_images.SIDE**2


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("face") / "janus"
    return tiny_images.save(place, tiny_images.janus_model(), tiny_images.janus_processor())


@pytest.fixture(scope="module")
def pipe(folder: Path) -> mmspec.Pipeline:
    return mmspec.load(folder)


@pytest.fixture
def decoded(pipe: mmspec.Pipeline, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """One entry per call of the picture decoder."""
    calls: list[int] = []
    pixels = pipe.target.pixels

    def counted(codes: Any) -> Any:
        calls.append(codes.numel())
        return pixels(codes)

    monkeypatch.setattr(pipe.target, "pixels", counted)
    return iter([calls])


# several per prompt


def test_n_pictures_are_those_of_successive_seeds(pipe: mmspec.Pipeline) -> None:
    three = pipe(prompt=PROMPT, n=3, temperature=1.0, seed=5)
    alone = [pipe(prompt=PROMPT, temperature=1.0, seed=5 + i) for i in range(3)]
    assert [one.token_ids for one in three] == [one.token_ids for one in alone]
    assert len({tuple(one.token_ids) for one in three}) == 3
    assert [one.image.tobytes() for one in three] == [one.image.tobytes() for one in alone]


def test_rows_of_a_batch_have_accept_lengths_of_their_own(pipe: mmspec.Pipeline) -> None:
    rows = pipe.with_drafter("scd-gs", "own")(prompt=PROMPT, n=4, temperature=1.0, seed=1)
    lengths = [one.stats.accept_lengths for one in rows]
    assert len({tuple(row) for row in lengths}) > 1
    for one, row in zip(rows, lengths, strict=True):
        assert 1 + sum(row) + len(row) == len(one.token_ids) == LENGTH


def test_n_with_a_batch_of_prompts_gives_lists_in_lists(pipe: mmspec.Pipeline) -> None:
    prompts = ["a circle", PROMPT]
    both = pipe(prompt=prompts, n=2, temperature=1.0, seed=7)
    assert [len(row) for row in both] == [2, 2]
    for j, prompt in enumerate(prompts):
        for i in range(2):
            alone = pipe(prompt=prompt, temperature=1.0, seed=7 + 2 * j + i)
            assert both[j][i].token_ids == alone.token_ids
            assert both[j][i].prompt_tokens == alone.prompt_tokens
    assert [[len(piece.tokens) for piece in row] for row in next(pipe.stream(prompt=prompts, n=2))] == [[1, 1]] * 2
    assert [one.token_ids for one in mmspec.generate(prompt=PROMPT, model=pipe.folder, n=2, temperature=1.0, seed=5)]
    assert pipe(prompt=PROMPT, n=1, seed=5).token_ids == pipe(prompt=PROMPT, seed=5).token_ids


@pytest.mark.parametrize("n", [0, -1, 1.5, True, "2"])
def test_a_count_that_is_none_is_refused(pipe: mmspec.Pipeline, n: Any) -> None:
    with pytest.raises(mmspec.Error, match="n=.* is not valid: it must be a whole number, 1 or more"):
        pipe(prompt=PROMPT, n=n)


def test_n_is_not_for_tensors(pipe: mmspec.Pipeline) -> None:
    with pytest.raises(mmspec.Error, match="repeat the rows"):
        pipe.generate(**tiny_images.prompts(3), n=2)


# while it is drawn


def test_a_stream_shows_what_is_drawn_so_far(pipe: mmspec.Pipeline, decoded: Iterator[list[int]]) -> None:
    calls = next(decoded)
    whole = pipe(prompt=PROMPT, temperature=1.0, seed=2)
    before = len(calls)
    stream = pipe.stream(prompt=PROMPT, temperature=1.0, seed=2)
    pieces = list(stream)
    assert len(pieces) > 2
    assert len(calls) == before  # nothing is decoded that nobody looks at
    counts = [sum(len(piece.tokens) for piece in pieces[: i + 1]) for i in range(len(pieces))]
    grey = (127, 127, 127)
    for piece, known in zip(pieces, counts, strict=True):
        seen = [piece.image.getpixel((2 * (i % 4), 2 * (i // 4))) != grey for i in range(LENGTH)]
        assert seen == [i < known for i in range(LENGTH)]
    assert pieces[0].image is pieces[0].image  # decoded once
    assert len(calls) == before + len(pieces)
    assert pieces[-1].image.tobytes() == whole.image.tobytes() == stream.finish().image.tobytes()
    cut = pipe(prompt=PROMPT, temperature=1.0, seed=2, max_new_tokens=counts[1])
    assert pieces[1].image.tobytes() == cut.image.tobytes()


def test_each_picture_of_a_stream_is_its_own_row(pipe: mmspec.Pipeline) -> None:
    rows = pipe(prompt=PROMPT, n=2, temperature=1.0, seed=4)
    stream = pipe.stream(prompt=PROMPT, n=2, temperature=1.0, seed=4)
    last = list(stream)[-1]
    assert [piece.image.tobytes() for piece in last] == [one.image.tobytes() for one in rows]


def test_pieces_of_text_have_no_picture() -> None:
    import toys

    pipe = mmspec.load(toys.llama().float())
    stream = pipe._start(toys.prompts(5), {"max_new_tokens": 3}, True, 1)
    assert [piece.image for piece in stream] == [None] * len(stream.stats[0].accept_lengths + [0])


# the command line


def test_a_prompt_becomes_a_picture(folder: Path, pipe: mmspec.Pipeline, tmp_path: Path) -> None:
    file = tmp_path / "picture.png"
    done = generate(PROMPT, "--model", folder, "--temperature", 1, "--seed", 3, "--guidance", 2, "--out", file)
    assert done.exit_code == 0, done.output
    assert done.stdout == ""
    assert "8 x 8 pixels" in done.stderr
    assert "exact (lossless)" in done.stderr
    want = pipe(prompt=PROMPT, temperature=1.0, seed=3, guidance=2.0).image
    assert Image.open(file).tobytes() == want.tobytes()
    assert pipe(prompt=PROMPT, temperature=1.0, seed=3).image.tobytes() != want.tobytes()
    assert list(tmp_path.iterdir()) == [file]


def test_several_pictures_become_numbered_files(folder: Path, pipe: mmspec.Pipeline, tmp_path: Path) -> None:
    done = generate(PROMPT, "--model", folder, "--temperature", 1, "--n", 2, "--out", tmp_path / "picture.png")
    assert done.exit_code == 0, done.output
    for place, want in enumerate(pipe(prompt=PROMPT, temperature=1.0, n=2), 1):
        assert Image.open(tmp_path / f"picture-{place}.png").tobytes() == want.image.tobytes()
    assert len(list(tmp_path.iterdir())) == 2


def test_pictures_go_with_json_and_with_a_comparison(folder: Path, tmp_path: Path) -> None:
    for more in ("--json", "--compare"):
        file = tmp_path / f"{more}.webp"
        done = generate(PROMPT, "--model", folder, "--out", file, more)
        assert done.exit_code == 0, done.output
        assert Image.open(file).size == (8, 8)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "this model makes a picture: say where to, such as --out picture.png"),
        (("--out", "picture.xyz"), "picture.xyz has the ending '.xyz'"),
        (("--out", "no/such/folder/picture.png"), "cannot be written"),
        (("--out", "p.png", "--guidance", "0"), "guidance=0.0 is not valid"),
        (("--out", "p.png", "--voice", "high"), "voice is not an option of Janus"),
        (("--out", "p.png", "--size", "8x8"), "size is not an option of Janus"),
        (("--out", "p.png", "--stop", "x"), "this model makes a picture, and no text to stop at: leave stop out"),
        (("--out", "p.png", "--drafter", "eagle2"), "pass its folder, or use 'scd-gs'"),
    ],
)
def test_mistakes_end_in_one_line(
    folder: Path, arguments: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = generate(PROMPT, "--model", folder, *arguments)
    assert isinstance(done.exception, mmspec.Error)
    assert message in str(done.exception)
    assert not list(tmp_path.iterdir())


def test_a_model_that_writes_has_no_picture(tmp_path: Path) -> None:
    done = generate("hello", "--model", tiny.tiny_llama(tmp_path / "llama"), "--out", tmp_path / "x.png")
    assert isinstance(done.exception, mmspec.Error)
    assert "no picture and no sound to write" in str(done.exception)


def test_a_picture_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    file = save_image(Image.new("RGB", (3, 2), "red"), tmp_path / "a.PNG")
    assert Image.open(file).getpixel((2, 1)) == (255, 0, 0)

    class Broken(Image.Image):
        def save(self, fp: Any, format: str | None = None, **more: Any) -> None:
            Path(fp).write_bytes(b"half")
            raise OSError("disk full")

    with pytest.raises(mmspec.Error, match="disk full"):
        save_image(Broken(), file)
    with pytest.raises(mmspec.Error, match=f"a.png cannot be written: there is no folder {tmp_path / 'no'}$"):
        save_image(Broken(), tmp_path / "no" / "a.png")
    with pytest.raises(mmspec.Error, match="a.mp3 has the ending '.mp3': a picture is written as .png, .jpg"):
        save_image(Broken(), tmp_path / "a.mp3")
    assert Image.open(file).size == (3, 2)
    assert list(tmp_path.iterdir()) == [file]
