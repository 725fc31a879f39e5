"""OCRBench (arXiv 2305.07895): reading text, judged by whether the reply contains it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from mmspec.benchmarks.tasks.choices import explained
from mmspec.benchmarks.tasks.pictures import Picture, pictured_rows, pictures
from mmspec.benchmarks.tasks.rows import Row, find_files
from mmspec.benchmarks.tasks.task import EXPLAINED, PUBLISHED, Item, Mark, Style
from mmspec.benchmarks.tasks.world import Asked, asked, save_json, save_picture
from mmspec.miniworld.facts import Chart, Sign

FILES = (("OCRBench.json",), ("test*.parquet",), ("OCRBench.tsv",))
IMAGES = "OCRBench_Images"
"""The picture folder; it lies beside the JSON file, or, in the official repository, beside the folder of that."""
FORMULAS, FORMULA = "HME100k", "Handwritten Mathematical Expression Recognition"
"""The data set of formulas and their type; TSV files tell the type alone."""
RECOGNITION = "Text Recognition"
RECOGNISED = (
    "Regular Text Recognition",
    "Irregular Text Recognition",
    "Artistic Text Recognition",
    "Handwriting Recognition",
    "Digit String Recognition",
    "Non-Semantic Text Recognition",
)
"""Types that the official report sums up as text recognition."""


class OCRBench:
    """`OCRBench.json` with its picture folder, the parquet mirror, or VLMEvalKit's TSV."""

    name = "ocrbench"
    title = "OCRBench"
    metric, scored = "containment", PUBLISHED
    short = "OCRBench"
    files = FILES
    lengths: Mapping[Style, int] = {"score": 128, "speed": EXPLAINED}
    note = ""

    def items(self, path: Path) -> Iterator[Item]:
        """See `Task`."""
        for file in find_files(path, self.files):
            for number, row in enumerate(pictured_rows(file), 1):
                kind = row.note("type", "question_type", "category") or "other"
                yield Item(
                    id=_id(row) or f"{file.stem}/{number}",
                    question=row.text("question"),
                    answers=_answers(row),
                    pictures=_pictures(row),
                    groups={"type": RECOGNITION if kind in RECOGNISED else kind},
                    facts={"formula": kind == FORMULA or row.note("dataset_name", "dataset") == FORMULAS},
                )

    def prompt(self, item: Item, style: Style) -> str:
        """See `Task`."""
        return explained(item.question) if style == "speed" else item.question

    def mark(self, item: Item, reply: str, style: Style) -> Mark:
        """An answer stands in the reply: formulas without spaces and in their own case, all else in lower case.

        What is found in a wrong reply is the whole of it.
        """
        formula = item.facts["formula"]
        text = folded(reply, formula)
        found = next((answer for answer in item.answers if folded(answer, formula) in text), None)
        return Mark(reply.strip() if found is None else found, found is not None)

    def fixture(self, folder: Path, number: int, seed: str) -> Path:
        """Signs and charts of the miniworld; answers as a text or a list, and sums as formulas in turn."""
        entries: list[dict[str, object]] = []
        for index, found in enumerate(asked(number, seed, ("text", "bar", "table"), choices=1)):
            entry = _stand_in(found, index)
            own = sum(each["dataset_name"] == entry["dataset_name"] for each in entries)
            path = f"{entry['dataset_name']}/{own}.png"
            save_picture(found.image, folder / IMAGES / path)
            entries.append({"id": own, "image_path": path, **entry})
        save_json(entries, folder / "OCRBench" / "OCRBench.json")
        return folder


def folded(text: str, formula: bool) -> str:
    """What is compared of a text."""
    if formula:
        return text.strip().replace("\n", "").replace(" ", "")
    return text.lower().strip().replace("\n", " ")


def _id(row: Row) -> str:
    """Official ids count within each data set that the questions were taken from; "" if there is none."""
    own, source = row.note("id"), row.note("dataset_name", "dataset")
    return f"{source}/{own}" if own and source else own or row.note("index")


def _answers(row: Row) -> tuple[str, ...]:
    """One answer or several; an empty one would stand in every reply."""
    answers = tuple(answer for answer in row.listed("answers", "answer") if answer.strip())
    if not answers:
        raise row.error("column 'answers' is empty")
    return answers


def _pictures(row: Row) -> tuple[Picture, ...]:
    path = row.get("image_path")
    if path is None or row.get("image") is not None:
        row.need("image", "image_path")
        return pictures(row, "image")
    beside = row.file.parent
    return (Picture(row, "image_path", path, (beside / IMAGES, beside.parent / IMAGES)),)


def _stand_in(found: Asked, index: int) -> dict[str, object]:
    facts = found.facts
    if isinstance(facts, Sign):
        text = " ".join(facts.lines)
        return {"dataset_name": "miniworld", "type": RECOGNISED[index % 6], "question": "What is written in the image?",
                "answers": text if index % 2 else [text, *facts.lines]}  # fmt: skip
    if isinstance(facts, Chart):
        formula = " + ".join(map(str, facts.values[:2]))
        return {"dataset_name": FORMULAS, "type": FORMULA,
                "question": "Write the first two values as a sum.", "answers": [formula]}  # fmt: skip
    return {"dataset_name": "miniworld", "type": "Scene Text-centric VQA", "question": found.question,
            "answers": found.gold}  # fmt: skip
