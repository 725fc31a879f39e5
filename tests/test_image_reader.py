"""The reader of drawn pictures: what it learns, what it says, what it refuses; and how captions are judged by it."""

from pathlib import Path

import pytest
import torch
from PIL import Image

from mmspec.errors import CheckpointError
from mmspec.image_ar.captions import CELLS, GROUNDS, INKS, Group, Kind, Said
from mmspec.image_ar.pretrain import read
from mmspec.image_ar.pretrain.world import scene
from mmspec.image_ar.reader import Reader, Seen, held, pixels_of
from mmspec.miniworld.facts import SHAPES

RED, BLUE = Kind("red", "circle"), Kind("blue", "star")
SMALL = (8, 8, 16, 32)


def said(*groups: Group, side: str | None = None, ground: str | None = None) -> Said:
    return Said(groups, side, ground)


ABOVE = said(Group(RED, ((0, 0),), False), Group(BLUE, ((2, 0), (2, 2)), False), side="above", ground="gray")


@pytest.mark.parametrize(
    ("caption", "things", "ground", "want"),
    [
        (ABOVE, {(0, 0): RED, (2, 0): BLUE, (2, 2): BLUE}, "gray", [True, True, True, True, True]),
        (ABOVE, {(1, 2): RED, (2, 0): BLUE, (2, 2): BLUE}, "mint", [True, True, True, True, False]),
        (ABOVE, {(2, 1): RED, (0, 0): BLUE, (0, 2): BLUE}, "gray", [True, True, False, True, True]),
        (ABOVE, {(0, 0): RED, (2, 0): BLUE}, "gray", [True, False, True, False, True]),
        (ABOVE, {(0, 0): RED, (2, 0): BLUE, (2, 2): BLUE, (1, 1): BLUE}, "gray", [True, False, True, False, True]),
        (ABOVE, {}, "gray", [False, False, False, False, True]),
        (said(Group(RED, ((1, 1),), True)), {(1, 1): RED}, "sky", [True, True]),
        (said(Group(RED, ((1, 1),), True)), {(1, 2): RED}, "sky", [False, True]),
        (said(Group(RED, ((1, 1),), True)), {(1, 1): Kind("red", "star")}, "sky", [False, True]),
        (said(Group(RED, ((1, 1),), True)), {(1, 1): RED, (0, 0): BLUE}, "sky", [True, False]),
    ],
)
def test_facts_of_a_caption_are_judged_one_by_one(
    caption: Said, things: dict[tuple[int, int], Kind], ground: str, want: list[bool]
) -> None:
    assert held(caption, Seen(things, ground)) == want


def test_every_scene_keeps_its_own_caption_and_few_keep_another() -> None:
    made = [scene("judge", index) for index in range(30)]
    seen = [Seen(one.seen, one.said.ground or GROUNDS[0]) for one in made]
    assert all(all(held(one.said, own)) for one, own in zip(made, seen, strict=True))
    assert sum(all(held(one.said, other)) for one, other in zip(made, seen[1:] + seen[:1], strict=True)) <= 1


def test_labels_say_what_the_scene_shows() -> None:
    shapes, colors = SHAPES, INKS
    told = 0
    for index, item in enumerate(read.Labelled("labels", 12)[i] for i in range(12)):
        made = scene("labels", index)
        for cell, shape, color in zip(CELLS, item["shapes"].tolist(), item["colors"].tolist(), strict=True):
            kind = made.seen.get(cell)
            assert (kind is None) == (shape == 0) == (color == read.UNTOLD)
            assert kind is None or (kind.shape, kind.color) == (shapes[shape - 1], colors[color])
        ground = int(item["ground"])
        assert made.said.ground == (None if ground == read.UNTOLD else GROUNDS[ground])
        told += ground != read.UNTOLD
        assert torch.equal(pixels_of([made.picture])[0], made.pixels / 127.5 - 1)
    assert 0 < told < 12


def test_it_learns_a_batch_by_heart_and_reads_it_in_any_order() -> None:
    torch.manual_seed(0)
    lesson = read.Lesson(Reader((16, 16, 32, 32)))
    scenes = [scene("heart", index) for index in range(6)]
    items = [read.Labelled("heart", 6)[index] for index in range(6)]
    batch = {name: torch.stack([item[name] for item in items]) for name in items[0]}
    optimizer = torch.optim.Adam(lesson.parameters(), 0.01)
    lesson.eval()  # the clean pictures, and statistics that do not move
    for _ in range(60):
        optimizer.zero_grad()
        loss = lesson(**batch)["loss"]
        loss.backward()
        optimizer.step()
    reader = lesson.reader
    pictures = [made.picture for made in scenes]
    seen = reader.read(pictures)
    assert [one.things for one in seen] == [made.seen for made in scenes]
    assert read.measure(reader, scenes) == dict.fromkeys(read.measure(reader, scenes), 1.0)
    assert [reader.read([p])[0] for p in reversed(pictures)] == seen[::-1]
    large = [picture.resize((128, 128), Image.Resampling.NEAREST) for picture in pictures]
    assert reader.read(large) == seen
    assert reader.features(pictures).shape == (6, 32)
    wrong = [scene("heart", (index + 1) % 6) for index in range(6)]
    figures = read.measure(reader, [made.__class__(**{**vars(made), "pixels": other.pixels})
                                    for made, other in zip(scenes, wrong, strict=True)])  # fmt: skip
    assert figures["captions_kept"] < 0.5


def test_a_loss_without_labels_is_none() -> None:
    law = torch.randn(2, 5)
    assert read.mean_loss(law, torch.full((2,), read.UNTOLD)) == 0
    one = read.mean_loss(law, torch.tensor([read.UNTOLD, 3]))
    assert torch.allclose(one, -law[1].log_softmax(-1)[3])


def test_spoilt_pictures_are_still_pictures() -> None:
    torch.manual_seed(0)
    clean = torch.rand(4, 3, 64, 64) * 2 - 1
    seen = read.spoilt(clean)
    assert seen.shape == clean.shape
    assert seen.abs().max() <= 1
    assert 0.01 < (seen - clean).abs().mean() < 0.5


def test_the_command_trains_goes_on_and_writes_a_small_folder(tmp_path: Path) -> None:
    run, out = tmp_path / "run", tmp_path / "reader"
    more = ["--batch", "2", "--held-out", "3", "--threads", "1", "--out", str(out), "--run", str(run)]
    read.main(["--steps", "1", *more])
    reader = Reader.load(out)
    assert set(reader.figures) == {"right_cells", "right_grids", "right_grounds", "captions_kept"}
    assert "Measured on 3 held-out scenes" in (out / "README.md").read_text()
    assert sum(file.stat().st_size for file in out.iterdir()) < 2_000_000
    assert sum(weight.numel() for weight in reader.parameters()) < 1_000_000
    scenes = [scene("reader-held-out", index) for index in range(3)]
    assert read.measure(reader, scenes) == reader.figures  # of the weights as they are on disk


def test_the_command_on_a_card_makes_the_same_reader_again(tmp_path: Path) -> None:
    told = ["--out", str(tmp_path / "reader"), "--steps", "3", "--batch", "2", "--rate", "0.005", "--seed", "4"]
    options = read.parser().parse_args([*told, "--held-out", "1"])
    read.export(Reader().eval(), options)
    card = (tmp_path / "reader" / "README.md").read_text()
    again = read.parser().parse_args(card.split("`mmspec train target janus-reader ")[1].split("`")[0].split())
    for name in ("steps", "batch", "rate", "seed"):
        assert getattr(again, name) == getattr(options, name)


def test_other_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError):
        Reader.load(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "janus"}')
    with pytest.raises(CheckpointError, match="holds no reader of pictures"):
        Reader.load(tmp_path)
    Reader(SMALL).write(tmp_path)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(CheckpointError, match="is damaged"):
        Reader.load(tmp_path)
