"""ChartQA (arXiv 2203.10244): questions about charts, judged by relaxed accuracy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from mmspec.benchmarks.tasks.choices import explained
from mmspec.benchmarks.tasks.pictures import Picture, inside, pictured_rows, pictures
from mmspec.benchmarks.tasks.rows import Row, find_files
from mmspec.benchmarks.tasks.stated import marked_number, phrase, stated
from mmspec.benchmarks.tasks.task import EXPLAINED, PUBLISHED, Item, Mark, Style
from mmspec.benchmarks.tasks.world import CHARTS, asked, save_json, save_picture
from mmspec.errors import InputError
from mmspec.miniworld.scoring import relaxed_match

FILES = (
    ("test_human.json", "test_augmented.json"),
    ("test*.parquet",),
    ("ChartQA_TEST.tsv",),
    ("test_human.json",),
    ("test_augmented.json",),
)


class ChartQA:
    """The official JSON files with their `png` folder, the parquet mirrors, or VLMEvalKit's TSV."""

    name = "chartqa"
    title = "ChartQA"
    metric, scored = "relaxed accuracy", PUBLISHED
    short = "ChartQA"
    files = FILES
    lengths: Mapping[Style, int] = {"score": 16, "speed": EXPLAINED}
    note = ""

    def items(self, path: Path) -> Iterator[Item]:
        """See `Task`."""
        for file in find_files(path, self.files):
            for number, row in enumerate(pictured_rows(file), 1):
                yield Item(
                    id=f"{file.stem}/{number}",
                    question=row.text("query", "question"),
                    answers=row.listed("label", "answer"),
                    pictures=_pictures(row),
                    groups={"split": _split(row)},
                )

    def prompt(self, item: Item, style: Style) -> str:
        """See `Task`."""
        if style == "speed":
            return explained(item.question)
        return f"{item.question}\nAnswer the question with a single word."

    def mark(self, item: Item, reply: str, style: Style) -> Mark:
        """A number may be off by 5 percent of a target that is not zero; else equal, ignoring case.

        In the speed style percent signs and final full stops may be left out on either side, a name may hold what else
        ends an answer, and a number behind "answer is" counts beside a yes or no ahead of it.
        """
        if style == "score":
            value = reply.strip()
            return Mark(value, any(relaxed_match(value, answer) for answer in item.answers))
        values = (stated(reply), phrase(reply), marked_number(reply))
        right = next((value for value in values if value and any(_match(value, each) for each in item.answers)), None)
        return Mark(values[0] if right is None else right, right is not None)

    def fixture(self, folder: Path, number: int, seed: str) -> Path:
        """Charts of the miniworld; shares of pies are percentages, as official labels are."""
        rows: dict[str, list[dict[str, str]]] = {"human": [], "augmented": []}
        for index, found in enumerate(asked(number, seed, CHARTS, choices=2)):
            save_picture(found.image, folder / "png" / f"{index}.png")
            share = found.facts.family == "pie" and found.topic == "value"
            label = f"{found.gold}%" if share else found.gold
            row = {"imgname": f"{index}.png", "query": found.question, "label": label}
            rows["augmented" if index % 2 else "human"].append(row)
        for split, found_rows in rows.items():
            if found_rows:
                save_json(found_rows, folder / f"test_{split}.json")
        return folder


def _match(value: str, answer: str) -> bool:
    """Relaxed, with percent signs or without them: a chart often has the sign on its axis alone. Final full stops, too:
    that of a name ("Inc.") cannot be told from the sentence's."""
    return relaxed_match(value, answer) or relaxed_match(value.rstrip("%."), answer.rstrip("%."))


def _pictures(row: Row) -> tuple[Picture, ...]:
    name, root = row.get("imgname"), row.file.parent
    if name is None:
        row.need("image", "imgname")
        return pictures(row, "image")
    try:
        folder = "png" if inside(root, f"png/{name}").is_file() or not inside(root, str(name)).is_file() else "."
    except InputError as error:
        raise row.error(f"column 'imgname': {error}") from error
    return (Picture(row, "imgname", Path(folder, str(name))),)


def _split(row: Row) -> str:
    """Human or augmented: the official files tell by their name, the mirrors by a column (TSV: "test_human")."""
    kind = row.get("human_or_machine", "type", "split")
    if kind is None:
        return "human" if "human" in row.file.stem else "augmented"
    return "human" if kind == 0 or "human" in str(kind) else "augmented"
