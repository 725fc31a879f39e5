"""SEED-Bench-2 (arXiv 2311.17092): multiple choice over one picture, several, or frames of a video.

The official score ranks the options by likelihood; here, as in lmms-eval, the model answers. Dimensions whose options
are pictures (image generation) are left out, and their number is told.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path

from mmspec.benchmarks.tasks.choices import Lettered, checked_letter, explained, first_letter, options
from mmspec.benchmarks.tasks.pictures import Picture, pictured_rows, pictures
from mmspec.benchmarks.tasks.rows import Row, find_files
from mmspec.benchmarks.tasks.task import EXPLAINED, Item, Style
from mmspec.benchmarks.tasks.world import asked, save_json, save_picture

logger = logging.getLogger(__name__)

FILES = (("SEED-Bench_v2_level1_2_3.json",), ("test*.parquet",), ("SEEDBench2.tsv",))
ROOTS = {"cc3m": "cc3m-image", "SEED-Bench v2": "SEED-Bench-2-image"}
"""data_source -> the folder of its pictures, as the official archives unpack."""
DRAWN = ("Image Generation", "Image & Text Generation")


class SeedBench2(Lettered):
    """The official JSON file with the picture folders beside it, the parquet mirror, or VLMEvalKit's TSV."""

    name = "seed-bench-2"
    title = "SEED-Bench-2"
    scored = "as in lmms-eval, where the model answers; the published one ranks the options by likelihood"
    short = "SEED"
    files = FILES
    lengths: Mapping[Style, int] = {"score": 16, "speed": EXPLAINED}
    note = ""
    rule = staticmethod(first_letter)

    def items(self, path: Path) -> Iterator[Item]:
        """See `Task`."""
        for file in find_files(path, self.files):
            skipped = 0
            for row in pictured_rows(file, at="questions"):
                if row.note("data_type") in DRAWN:
                    skipped += 1
                else:
                    yield _item(row)
            if skipped:
                logger.warning("%s: %d questions whose options are pictures are left out", file, skipped)

    def prompt(self, item: Item, style: Style) -> str:
        """See `Task`."""
        if style == "speed":
            return explained(item.question, item.choices)
        told = options(item.choices, "{letter}. {text}")
        return f"{item.question}\n{told}\nAnswer with the option's letter from the given choices directly."

    def fixture(self, folder: Path, number: int, seed: str) -> Path:
        """Every third question shows two pictures."""
        questions = []
        before = ""
        for index, found in enumerate(asked(number, seed)):
            name = f"task/{index}.png"
            save_picture(found.image, folder / ROOTS["SEED-Bench v2"] / name)
            several = index % 3 == 2
            questions.append({
                "answer": "ABCD"[found.options.index(found.gold)],
                **{f"choice_{letter}": text for letter, text in zip("abcd", found.options, strict=True)},
                "data_id": [name, before] if several else name, "data_source": "SEED-Bench v2",
                "data_type": "Multiple Images" if several else "Single Image", "level": "L1",
                "question": found.question, "question_id": f"{1 + several}_{index}", "question_type_id": 1 + several,
                "subpart": "Multiple-Images" if several else "Single-Image", "version": "v2",
            })  # fmt: skip
            before = name
        whole = {"questions": questions, "question_type": {"Scene Understanding": 1, "Instance Identity": 2}}
        save_json(whole, folder / "SEED-Bench_v2_level1_2_3.json")
        return folder


def _item(row: Row) -> Item:
    # TSV files name the options A to D
    choices = tuple(row.text(f"choice_{letter.lower()}", letter) for letter in "ABCD")
    kind, dimension = row.note("data_type"), row.note("question_type_id", "category")
    groups = {"data type": kind, "dimension": dimension}
    return Item(
        id=row.text("question_id", "index"),
        question=row.text("question"),
        answers=(checked_letter(row, row.text("answer"), choices),),
        pictures=_pictures(row),
        choices=choices,
        groups={name: value for name, value in groups.items() if value},
    )


def _pictures(row: Row) -> tuple[Picture, ...]:
    if row.get("image") is not None:
        return pictures(row, "image")
    names = row.texts("data_id", "image")
    source = row.text("data_source")
    if source not in ROOTS:
        raise row.error(f"data_source {source!r} is none of {', '.join(ROOTS)}")
    return tuple(Picture(row, "data_id", Path(ROOTS[source], name)) for name in names)
