"""Benchmark tasks: loaders for official files, prompts, and scoring rules against cases worked out by hand."""

import base64
import csv
import json
from io import BytesIO
from pathlib import Path

import pytest
from PIL import Image

from mmspec.benchmarks.tasks.choices import bracketed_letter, first_letter, leading_letter, named_letter
from mmspec.benchmarks.tasks.stated import phrase, stated
from mmspec.benchmarks.tasks.task import STYLES, TASKS, Item, choose, find_task
from mmspec.edits import distance
from mmspec.errors import InputError, MissingExtraError, UnknownNameError

VISION = [name for name in TASKS if name != "spec-bench"]
OPTIONS = ("red", "blue", "green", "dark blue")


def picture(size: tuple[int, int] = (8, 6)) -> bytes:
    data = BytesIO()
    Image.new("RGB", size, "red").save(data, "PNG")
    return data.getvalue()


def encoded() -> str:
    return base64.b64encode(picture()).decode()


def item(answer: str = "", choices: tuple[str, ...] = (), **facts: object) -> Item:
    return Item("1", "q", (answer,), choices=choices, facts=facts)


# scoring rules: what the official evaluations do is said above the cases that were worked out from it by hand


# ChartQA (its paper, section 5, and the evaluation that later papers share): if both texts are numbers, and the target
# is not zero, the answer may be off by 5 percent of the target, the edge included; a percent sign at the end divides by
# 100. Everything else must be the same text, in either case. Years are numbers; units, currencies and thousands
# separators make a text of a number.


@pytest.mark.parametrize(
    ("reply", "label", "right"),
    [
        ("105", "100", True),  # 5 percent, inclusive
        ("95", "100", True),
        ("105.1", "100", False),
        ("94.9", "100", False),
        ("-10.5", "-10", True),
        ("10", "-10", False),
        ("5%", "0.05", True),
        ("5%", "5", False),  # 0.05 against 5
        ("5", "5%", False),
        ("52%", "50%", True),
        ("0", "0", True),
        ("0.0", "0", False),  # a target of zero is compared as text
        ("1,000", "1000", False),  # no number to the official rule
        ("2014", "2100", True),  # years are numbers like any others
        ("2014", "1900", False),
        ("1990", "2015", True),
        ("12 kg", "12", False),
        ("12 kg", "12 KG", True),
        ("$12", "12", False),
        ("12.", "12", True),  # a number may end with a point
        ("12,5", "12.5", False),
        ("-5%", "-0.05", True),
        ("5 %", "0.05", True),  # with a space before the sign
        ("47.6%", "50%", True),
        ("47.5%", "50%", False),  # on the edge, but 0.475 and 0.5 differ by a little more in binary; officially, too
        ("1e2", "100", True),
        ("Blue", "blue", True),
        ("blue.", "blue", False),
        ("dark blue", "blue", False),
        (" 12\n", "12", True),
        ("Yes", "yes", True),
        ("nan", "3", False),
    ],
)
def test_chartqa_relaxed_accuracy(reply: str, label: str, right: bool) -> None:
    assert find_task("chartqa").mark(item(label), reply, "score").right is right


def test_chartqa_takes_the_best_of_several_labels() -> None:
    asked = Item("1", "q", ("grey", "gray"))
    assert find_task("chartqa").mark(asked, "gray", "score").right


# The speed style has no official rule: an explanation is searched for what it says the answer is.
@pytest.mark.parametrize(
    ("reply", "value"),
    [
        ("The red bar shows 40 and the blue one 12, so the answer is 28.", "28"),
        ("The answer is 1,250 units, since 3 are missing.", "1250"),
        ("Answer: Blue. It is the tallest of 4 bars.", "Blue"),
        ('The answer is "Dark Blue".', "Dark Blue"),
        ("We see 3 bars, of 10, 20 and 45.5%", "45.5%"),
        ("It fell to -3.", "-3"),
        ("At first the answer is 12. Counted again, the answer is 15, for 3 are hidden.", "15"),
        ("From 2010-2014 it rose", "2014"),
        ("Red.", "Red"),
        ("", ""),
        ("The answer is **12**.", "12"),
        ("**Answer:** 12", "12"),
        ("**Answer**: Blue", "Blue"),
        ("### Answer:\n\n`12`", "12"),
        ("The final answer is: 12, of 3 bars.", "12"),
        ("Answer: $12 million, for 7 of them", "12"),
        (r"The answer is \$12.", "12"),
        (r"So it is $\boxed{12}$", "12"),
        ("US$12 in all", "12"),
        ("The area is 6*7.", "7"),
        ("It is 12*3", "3"),
        ("Yes, the sum of 20 and 30 is greater than 40.", "Yes"),
        ("**No**. The result is 50, which is above 40.", "No"),
        ("The answer is Yes, because 20 is less than 30", "Yes"),
        ("The answer is yes: 20 < 30", "yes"),
        ("No. 5 is the tallest", "5"),  # which denies nothing
        ("No bar is above 40.", "40"),
        ("Yes and no", "Yes and no"),
        ("The answer is Yes, or no.", "Yes, or no"),
        ("No, wait. Yes, it is 40", "40"),  # both are said
        ("The answer is **Blue**, which is at 20.", "Blue"),
        ("The answer is Blue because it is at 20.", "Blue"),
        ("The answer is Blue, or Red.", "Blue, or Red"),  # no answer ends in front of another one
        ("The answer is Blue, Red and Green.", "Blue, Red and Green"),
        ("The answer is not Blue, for 20 are more.", "not Blue"),
        ("The answer is approximately 14.", "14"),
        ("The answer is therefore 1,250, of 3.", "1250"),
        ("The answer is about half of 30", "half of 30"),
        ("The answer is not 14.", "not 14"),
    ],
)
def test_the_value_of_an_explanation(reply: str, value: str) -> None:
    assert stated(reply) == value


def test_a_name_may_hold_what_else_ends_an_answer() -> None:
    assert phrase("The answer is **Korea, the Republic**. It is at 20.") == "Korea, the Republic"
    assert phrase("18-29 years.") == "18-29 years"


@pytest.mark.parametrize(
    ("reply", "label", "right"),
    [
        ("In 2014 the share was 25%.", "25", True),
        ("In 2014 the share was 25%.", "0.25", True),
        ("In 2014 the share was 25.", "25%", True),
        ("In 2014 the share was 25.", "0.25", False),
        ("In 2014 the share was 35%.", "25", False),
        ("Yes, the sum of 20 and 30 is greater than 40.", "Yes", True),
        ("Yes, the sum of 20 and 30 is greater than 40.", "No", False),
        ("The answer is Korea, the Republic.", "Korea, the Republic", True),
        ("The answer is Korea, the largest one.", "Korea", True),
        ("The answer is Blue, or Red.", "Blue", False),
        ("18-29 years.", "18-29 years", True),
        ("The answer is not 14.", "14", False),
        ("The answer is Red, not Blue.", "Blue", False),
        ("I cannot say.", "Yes", False),
        ("No, it fell. The answer is 1,200.", "1200", True),
        ("No, it fell. The answer is 1,200.", "No", True),
        ("U.S.", "U.S.", True),
        ("The answer is U.S., which is at 20.", "U.S.", True),
        ("The answer is **Jack in the Box Inc.**", "Jack in the Box Inc.", True),
        ("Jack in the Box Inc.", "Jack in the Box Inc", True),
        ("The answer is U.K.", "U.S.", False),
    ],
)
def test_chartqa_marks_explanations(reply: str, label: str, right: bool) -> None:
    assert find_task("chartqa").mark(item(label), reply, "speed").right is right


# MMT-Bench in lmms-eval, which took it from MMMU: punctuation at both ends goes; then "(B)" anywhere, else a B between
# spaces, else "B."; of several the one that stands between spaces last. It draws lots where nothing is found; here that
# is wrong.
@pytest.mark.parametrize(
    ("reply", "letter"),
    [
        ("B", "B"),
        ("B.", "B"),
        ("Answer:\n(D)", "D"),
        ("'B'", "B"),
        ("**B**", ""),  # stars are no punctuation to it
        ("Not A but C", "C"),
        ("C: green", ""),  # neither between spaces nor before a full stop
        ("It is C.", "C"),
        ("(B)", "B"),
        ("The answer is (C), not A ", "C"),  # brackets go first
        ("I think B is right", "B"),
        ("Either A or B fits", "B"),  # alone, the last one
        ("(A) or (B)", "A"),  # neither stands alone: the first one
        ("B. blue", "B"),
        ("blue", ""),
        ("E", ""),
        ("b", ""),
    ],
)
def test_mmt_bench_letters(reply: str, letter: str) -> None:
    assert bracketed_letter(reply, OPTIONS) == letter


# SEED-Bench-2 in lmms-eval: the first character of the reply, in its own case.
@pytest.mark.parametrize(
    ("reply", "letter"), [("B", "B"), (" B. blue", "B"), ("Blue", "B"), ("The answer is B", ""), ("", ""), ("E", "")]
)
def test_seed_bench_letters(reply: str, letter: str) -> None:
    assert first_letter(reply, OPTIONS) == letter


# ScienceQA in lmms-eval: the reply is the letter in either case, or starts with the letter, in upper case, and a stop.
@pytest.mark.parametrize(
    ("reply", "letter"),
    [("B", "B"), ("b", "B"), ("B. blue", "B"), ("b. blue", ""), ("B) blue", ""), ("Blue", ""), ("E.", ""), ("", "")],
)
def test_scienceqa_letters(reply: str, letter: str) -> None:
    assert leading_letter(reply, OPTIONS) == letter


@pytest.mark.parametrize(
    ("reply", "letter"),
    [
        ("It is not (A), for the sky is above it: (B).", "B"),
        ("A bar is tall, so the answer is B.", "B"),
        ("The correct answer: option C, I think", "C"),
        ("At first the answer is A. After all the answer is B.", "B"),
        ("The tallest is the one called B", "B"),
        ("B and then many, many other words follow here", ""),  # too early to be a conclusion
        ("The bar of B and of others is tall", ""),  # so is the sixth word from the end
        ("The bar of B and others is tall", "B"),
        ("Red is small. The tallest is green.", "C"),
        ("Red, and blue, and green.", ""),
        ("It is dark blue.", ""),  # both blue and dark blue stand in it
        ("Reddish, I would say", ""),
        ("Answer: C. A bar is higher than B.", "C"),  # as a head, too
        ("**B**", "B"),
        ("A: small. B: large. So B", ""),  # both stand alone
        ("I choose [D]", "D"),
        ("The answer is (E).", ""),  # no such option
        ("The correct answer is (B), not (A).", "B"),
        ("The answer is B. Option (A) is wrong", "B"),
        ("**Answer**: C. A bar is higher than B.", "C"),
        ("The answer is A bar of blue, which is option (C).", "C"),
        ("The answer is A.", "A"),
        ("", ""),
    ],
)
def test_letters_of_explanations(reply: str, letter: str) -> None:
    assert named_letter(reply, OPTIONS) == letter


@pytest.mark.parametrize(
    ("reply", "letter"),
    [
        ("B. blue\n\nThe bar is blue, not red.", "B"),
        ("**B. blue** - The bar is blue, not red.", "B"),
        ("(B) blue. The others, red and green, are shorter.", "B"),
        ("B\nThe bar is blue; red is shorter.", "B"),
        ("A. red\n\nIt is taller than blue.", "A"),  # whatever the truth is
        ("The correct option is B because the bar is blue, while the others are red and green.", "B"),
        ("The best choice is (C), since green is above red.", "C"),
        ("The answer is A because it is red and not blue.", "A"),  # no article
        ("Option B is correct. The bar is not red but blue.", "B"),
        ("Option B, because the bar is blue, and neither red nor green.", "B"),
        ("B. blue. A is not as tall, and green neither.", "B"),  # others are denied
        ("B. blue\n\nOption A is incorrect, since red is short.", "B"),
        ("It is C rather than B.", "C"),
        ("The bar is not red but blue.", "B"),
        ("The answer is B, C is too short.", "B"),
        ("B. A bar that is blue", "B"),
        ("B. blue. A bar next to option A is actually blue.", "B"),  # the last sentence says it again
        ("A, I think.", "A"),
        ("A. red\nB. blue\nC. green\nD. yellow", ""),  # all options again
        ("A. red. Looking again, I take B", ""),
        ("A... no wait, it is the other one", ""),
        ("A. Actually, it must be the other bar, which is taller by far.", ""),
        ("Option A shows red and option B blue, which are both possible, as far as I can see", ""),
        ("A or B", ""),
        ("B/C", ""),
        ("(A) or (B)", ""),
        ("A, B, or C", ""),
        ("The answer is either B or C.", ""),
        ("It could be blue or green.", ""),
        ("Not B", ""),
        ("The answer is not B.", ""),
        ("The answer is not B. C is next to it, and what it shows is unclear", ""),
        ("It is not (B).", ""),
        ("It cannot be B.", ""),
        ("Option B is wrong.", ""),
        ("Option B is not correct.", ""),
        ("The incorrect answer is B.", ""),
        ("Neither A nor B is correct.", ""),
        ("It is not blue.", ""),
        ("It isn't blue.", ""),
        ("The other option is B, and red is not shown, nor is green, as was said", ""),
        ("B is right of A, and far away from all of the others.", ""),
    ],
)
def test_letters_that_a_reader_would_take(reply: str, letter: str) -> None:
    assert named_letter(reply, ("red", "blue", "green", "yellow")) == letter


@pytest.mark.parametrize(
    ("reply", "letter"),
    [
        ("The answer is Solution A.", "B"),
        ("Solution A", "B"),
        ("**Answer:** solution B", "C"),
        ("Solution B has the higher concentration of particles.", "C"),
        ("The other one is weaker. The answer is Solution A", "B"),
        ("Solution A is correct.", "B"),
        ("Option A, because Solution A and Solution B are alike.", "A"),
        ("B. Solution A\n\nIt has more particles than Solution B.", "B"),
        ("The answer is (C), since there are more particles in solution B.", "C"),
        ("The answer is C. Solution A has fewer particles.", "C"),
        ("B", "B"),
        ("Both are in flask A. The answer is Solution B.", "C"),
        ("Both are in flask A. So it must be Solution B.", "C"),
        ("The answer is Solution A, because Solution B has fewer particles.", "B"),
        ("The correct answer is Solution B, since A has less.", "C"),
        ("The answer is B, Solution A.", "B"),
        ("The answer is C, Solution A has fewer particles.", "C"),
        ("The answer is Solution A or Solution B.", ""),
        ("Solution A or Solution B", ""),
        ("It is not Solution A.", ""),
    ],
)
def test_a_letter_within_the_text_of_an_option_is_none(reply: str, letter: str) -> None:
    assert named_letter(reply, ("neither; they are the same", "Solution A", "Solution B")) == letter


@pytest.mark.parametrize(
    ("reply", "letter"),
    [("The answer is 8.5.", "C"), ("The answer is 8.", "B"), ("It costs 7.5", "A"), ("8, not 7.5", "B"), ("1.8", "")],
)
def test_a_number_within_a_number_is_none(reply: str, letter: str) -> None:
    assert named_letter(reply, ("7.5", "8", "8.5", "17")) == letter


def test_options_beyond_the_alphabet_have_no_letter() -> None:
    assert named_letter("It is 12", tuple(map(str, range(11, 41)))) == "B"
    assert named_letter("It is 40", tuple(map(str, range(11, 41)))) == ""


# MathVista's own script, after the answer was extracted: choices by their letter, else the nearest text by edit
# distance; whole numbers are cut, not rounded; others are rounded to the places that the question asks for and compared
# as texts, so that 1.30 is none of its answers; lists must be the same text. Extraction is by rules here, and by a
# model officially.
@pytest.mark.parametrize(
    ("reply", "answer", "kind", "precision", "right"),
    [
        ("It happened in 2014", "2014", "integer", None, True),
        ("2014", "2015", "integer", None, False),  # no 5 percent here
        ("-3.7", "-3", "integer", None, True),
        ("The result is 2.675", "2.67", "float", 2, True),  # which is a little below 2.675 in binary
        ("3", "3.0", "float", 2, True),
        ("3.14159", "3.14", "float", 2, True),
        ("3.14159", "3.1", "float", 2, False),
        ("0.96", "1.0", "float", 1, True),
        ("The price is $4.50", "4.5", "float", 1, True),
        ("Step 1: 3 + 4. The value is 7", "7", "integer", None, True),
        ("The answer is **12** (7 + 5).", "12", "integer", None, True),
        ("7.9", "7", "integer", None, True),  # cut, not rounded
        ("45%", "45", "integer", None, True),
        ("The answer is 1. As in images/454.jpg, there are 7", "1", "integer", None, True),
        ("Answer: 2. More than 7 people stand there", "2", "integer", None, True),
        ("The answer is not clear, perhaps 7", "7", "integer", None, True),
        ("1,250", "1250", "integer", None, True),
        ("none", "7", "integer", None, False),
        ("It is 1.25", "1.2", "float", 1, True),  # round half to even, as Python does
        ("It is 1.26", "1.3", "float", 1, True),
        ("It is 1.26", "1.26", "float", 2, True),
        ("1.3", "1.30", "float", 2, False),  # texts are compared
        ("2", "2.0", "float", 1, True),
        ("They are [1, 2] and then [3, 4]", "[3, 4]", "list", None, True),
        ("[3,4]", "[3, 4]", "list", None, False),
        ("The answer is (B)", "blue", "text", None, True),
        ("B", "blue", "text", None, True),
        ("bleu", "blue", "text", None, True),  # the nearest option
        ("red", "red", "text", None, True),
        ('The answer is "green".', "green", "text", None, True),
        ("I have no idea which of all these colours it may be, sorry", "blue", "text", None, False),
    ],
)
def test_mathvista_rules(reply: str, answer: str, kind: str, precision: int | None, right: bool) -> None:
    asked = item(answer, OPTIONS if kind == "text" else (), answer_type=kind, precision=precision)
    assert find_task("mathvista").mark(asked, reply, "score").right is right


@pytest.mark.parametrize(
    ("reply", "unit", "value"),
    [
        ("The rope is 7cm long", "cm", "7"),
        ("The rope is 7 cm long", "cm", "7"),
        ("It is 7mm", "m", ""),  # another unit
        ("12% of them", "%", "12"),
        ("In 3s, so 4m/s", "m/s", "4"),
    ],
)
def test_a_unit_may_stick_to_its_number(reply: str, unit: str, value: str) -> None:
    asked = item("7", answer_type="integer", precision=None, unit=unit)
    assert find_task("mathvista").mark(asked, reply, "score").value == value


def test_options_may_hold_what_is_markup_elsewhere() -> None:
    assert named_letter("It costs $10.", ("$5", "$10")) == "B"


def test_edit_distance() -> None:
    pairs = {("", "abc"): 3, ("abc", "abc"): 0, ("kitten", "sitting"): 3, ("ab", "ba"): 2}
    assert {pair: distance(*pair) for pair in pairs} == pairs


# OCRBench: an answer is somewhere in the reply, both in lower case, with spaces for line breaks; of handwritten
# formulas (HME100k) all spaces and line breaks go, and upper and lower case differ. Parts of words count as well.
@pytest.mark.parametrize(
    ("reply", "answer", "formula", "right"),
    [
        ("Reopened", "open", False, True),
        ("5 kg", "5kg", False, False),
        ("It weighs 15kg.", "5kg", False, True),
        ("\\frac { 1 } { 2 }", "\\frac{1}{2}", True, True),
        ("The sign says OPEN today", "open", False, True),
        ("op\nen", "op en", False, True),  # a line break counts as a space
        ("op en", "open", False, False),
        ("x ^ 2 + 1", "x^2+1", True, True),
        ("X^2", "x^2", True, False),
        ("a\n+ b", "a+b", True, True),
        ("", "open", False, False),
    ],
)
def test_ocrbench_containment(reply: str, answer: str, formula: bool, right: bool) -> None:
    assert find_task("ocrbench").mark(item(answer, formula=formula), reply, "score").right is right


def test_a_wrong_word_is_no_silence() -> None:
    replies = ("The sign says OPEN.", "  \n", "the exit")
    marks = [find_task("ocrbench").mark(item("exit", formula=False), reply, "speed") for reply in replies]
    assert [(mark.value, mark.right) for mark in marks] == [("The sign says OPEN.", False), ("", False), ("exit", True)]


# stand-ins and official files


@pytest.mark.parametrize("name", TASKS)
def test_stand_in_has_the_official_schema_and_can_be_answered(name: str, tmp_path: Path) -> None:
    task = find_task(name)
    items = list(task.items(task.fixture(tmp_path / "a", 6, "s")))
    assert len(items) == len({each.id for each in items}) == 6
    for each in items:
        prompts = {style: task.prompt(each, style) for style in STYLES}
        assert all(each.question in prompt for prompt in prompts.values())
        assert [found.load().mode for found in each.pictures] == ["RGB"] * len(each.pictures)
        if each.choices:
            assert set(each.answers) < {*"ABCDE", *each.choices}
            assert all(choice in prompt for prompt in prompts.values() for choice in each.choices)
    again = task.items(task.fixture(tmp_path / "b", 6, "s"))
    assert [(a.id, a.question, a.answers) for a in items] == [(b.id, b.question, b.answers) for b in again]


@pytest.mark.parametrize("name", VISION)
def test_right_answers_of_a_stand_in_are_right_and_others_are_not(name: str, tmp_path: Path) -> None:
    task = find_task(name)
    for each in task.items(task.fixture(tmp_path, 8, "s")):
        for style in STYLES:
            assert task.mark(each, each.answers[0], style).right, (each, style)
            assert not task.mark(each, "I cannot say", style).right


def test_stand_ins_cover_what_the_official_files_hold(tmp_path: Path) -> None:
    names = ("mmt-bench", "seed-bench-2", "scienceqa", "ocrbench", "chartqa", "mathvista", "spec-bench")
    found = {name: list(find_task(name).items(find_task(name).fixture(tmp_path / name, 24, "s"))) for name in names}
    assert {len(each.pictures) for each in found["mmt-bench"]} == {1, 2}
    assert found["mmt-bench"][3].pictures[0].load().tobytes() == found["mmt-bench"][2].pictures[0].load().tobytes()
    assert {len(each.pictures) for each in found["seed-bench-2"]} == {1, 2}
    assert {len(each.pictures) for each in found["scienceqa"]} == {0, 1}
    assert {len(each.choices) for each in found["scienceqa"]} == {2, 3, 4, 5}
    assert {each.facts["formula"] for each in found["ocrbench"]} == {True, False}
    assert {len(each.answers) > 1 for each in found["ocrbench"]} == {True, False}
    assert any(each.answers[0].endswith("%") for each in found["chartqa"])
    assert {each.groups["split"] for each in found["chartqa"]} == {"human", "augmented"}
    kinds = {(each.facts["answer_type"], each.facts["precision"]) for each in found["mathvista"]}
    assert kinds == {("text", None), ("integer", None), ("float", 1), ("float", 2), ("list", None)}
    assert len({each.groups["category"] for each in found["spec-bench"]}) == 6


def parquet(path: Path, rows: list[dict]) -> Path:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet as files

    files.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


def tsv(path: Path, rows: list[dict]) -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), delimiter="\t")
        writer.writeheader()
        writer.writerows(rows)
    return path


CELL = {"bytes": picture(), "path": None}
MIRRORS = {
    "chartqa": [
        {"image": CELL, "query": "Höhe?", "label": ["12"], "human_or_machine": 1},
        {"image": CELL, "query": "which\tone?", "label": ["a", "b"], "human_or_machine": 0},
    ],
    "mmt-bench": [
        {"index": 7, "question": "q", "answer": "B", "A": "x", "B": "y", "C": None, "image": [CELL, CELL],
         "category": "c", "l2-category": "m", "split": "VAL"},
    ],
    "seed-bench-2": [
        {"question_id": "5_0", "question": "q", "answer": "D", "choice_a": "x", "choice_b": "y", "choice_c": "z",
         "choice_d": "w", "image": [CELL], "data_id": ["a.png"], "data_type": "Single Image", "question_type_id": 5},
    ],
    "scienceqa": [
        {"question": "q", "choices": ["x", "y"], "answer": 1, "hint": "", "image": None, "subject": "natural science",
         "grade": "grade8"},
    ],
    "ocrbench": [
        {"dataset": "HME100k", "question": "q", "question_type": "Digit String Recognition", "answer": ["1+1"],
         "image": CELL},
    ],
    "mathvista": [
        {"pid": "3", "question": "多少?", "image": "images/3.jpg", "decoded_image": CELL, "choices": None, "unit": None,
         "precision": 1.0, "answer": "1.2", "question_type": "free_form", "answer_type": "float",
         "metadata": {"task": "t", "category": "c", "language": "chinese"}},
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", MIRRORS)
def test_parquet_mirrors_are_read(name: str, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    file = {"mmt-bench": "val-0.parquet", "mathvista": "testmini-0.parquet"}.get(name, "test-00000-of-00001.parquet")
    parquet(tmp_path / "data" / file, MIRRORS[name])
    items = list(find_task(name).items(tmp_path))
    assert len(items) == len(MIRRORS[name])
    assert all(found.load().size == (8, 6) for each in items for found in each.pictures)
    first = items[0]
    expected = {
        "chartqa": (("12",), 1, {"split": "augmented"}),
        "mmt-bench": (("B",), 2, {"meta-task": "m", "subtask": "c"}),
        "seed-bench-2": (("D",), 1, {"data type": "Single Image", "dimension": "5"}),
        "scienceqa": (("B",), 0, {"context": "NO", "subject": "NAT", "grade": "7-12"}),
        "ocrbench": (("1+1",), 1, {"type": "Text Recognition"}),
        "mathvista": (("1.2",), 1, {"task": "t", "category": "c", "language": "chinese"}),
    }[name]
    assert (first.answers, len(first.pictures), dict(first.groups)) == expected


TABLES = {
    "chartqa": ("ChartQA_TEST.tsv", {"index": 0, "question": "q", "answer": "['a', 'b']"}, ("a", "b")),
    "seed-bench-2": (
        "SEEDBench2.tsv",
        {"index": 0, "question": "q", "answer": "C", "A": "x", "B": "y", "C": "z", "D": "w", "category": "c"},
        ("C",),
    ),
    "scienceqa": (
        "ScienceQA_TEST.tsv",
        {"index": 0, "question": "two\nlines", "hint": "h", "answer": "B", "A": "x", "B": "y", "C": ""},
        ("B",),
    ),
    "ocrbench": (
        "OCRBench.tsv",
        {"index": 0, "question": "q", "answer": "['CENTRE', 'center']", "category": "Regular Text Recognition"},
        ("CENTRE", "center"),
    ),
    "mathvista": (
        "MathVista_MINI.tsv",
        {"index": 0, "question": "Hint: Please answer.\nQuestion: q\nChoices:\n(A) x\n(B) y", "choices": "['x', 'y']",
         "answer": "y", "answer_option": "B", "unit": "",
         "question_type": "multi_choice", "answer_type": "text", "precision": ""},
        ("y",),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TABLES)
def test_tsv_files_are_read(name: str, tmp_path: Path) -> None:
    file, row, answers = TABLES[name]
    tsv(tmp_path / file, [{**row, "image": encoded()}])
    (only,) = find_task(name).items(tmp_path)
    assert only.answers == answers
    assert only.question == row["question"]
    assert only.pictures[0].load().size == (8, 6)


@pytest.mark.parametrize("name", TABLES)
def test_rows_of_tsv_files_share_pictures(name: str, tmp_path: Path) -> None:
    file, row, _ = TABLES[name]
    tsv(tmp_path / file, [{**row, "image": "7"}, {**row, "index": 7, "image": encoded()}])
    first, second = find_task(name).items(tmp_path)
    assert first.pictures[0].load().tobytes() == second.pictures[0].load().tobytes()
    tsv(tmp_path / file, [{**row, "image": "9"}])
    with pytest.raises(InputError, match="row 1: the picture is that of row index 9, which has none"):
        list(find_task(name).items(tmp_path))


def test_a_ready_prompt_is_asked_as_it_is(tmp_path: Path) -> None:
    file, row, _ = TABLES["mathvista"]
    tsv(tmp_path / file, [{**row, "image": encoded()}])
    task = find_task("mathvista")
    (only,) = task.items(tmp_path)
    assert task.prompt(only, "score") == row["question"]
    assert task.prompt(only, "speed") == f"{row['question']} Please answer with an explanation."
    assert task.mark(only, "(B)", "score").right


def test_formulas_of_a_tsv_file_are_told_by_their_type(tmp_path: Path) -> None:
    file, row, _ = TABLES["ocrbench"]
    kinds = ("Handwritten Mathematical Expression Recognition", "Doc-oriented VQA")
    rows = [{**row, "index": index, "answer": "['x ^ 2']", "category": kind} for index, kind in enumerate(kinds)]
    tsv(tmp_path / file, [{**each, "image": encoded()} for each in rows])
    task = find_task("ocrbench")
    assert [task.mark(each, "x^2", "score").right for each in task.items(tmp_path)] == [True, False]


@pytest.mark.parametrize("label", ["[Gambia, Niger]", "[Italy , 22]", "[2014, 2016]", "[oops"])
@pytest.mark.parametrize("file", ["test_human.json", "ChartQA_TEST.tsv"])
def test_chartqa_labels_in_brackets_are_texts(label: str, file: str, tmp_path: Path) -> None:
    if file.endswith(".tsv"):
        tsv(tmp_path / file, [{"index": 0, "question": "q", "answer": label, "image": encoded()}])
    else:
        (tmp_path / file).write_text(json.dumps([{"imgname": "a.png", "query": "q", "label": label}]))
    (only,) = find_task("chartqa").items(tmp_path)
    assert only.answers == (label,)
    assert not find_task("chartqa").mark(only, "2010", "score").right


def test_splits_of_chartqa_are_told_by_the_column_of_a_tsv_file(tmp_path: Path) -> None:
    row = {"question": "q", "answer": "1", "image": encoded()}
    tsv(tmp_path / "ChartQA_TEST.tsv", [{**row, "index": 0, "split": "test_human"},
                                        {**row, "index": 1, "split": "test_augmented"}])  # fmt: skip
    told = [each.groups["split"] for each in find_task("chartqa").items(tmp_path)]
    assert told == ["human", "augmented"]


def test_names_of_cc3m_pictures_have_no_ending(tmp_path: Path) -> None:
    name = "1454426_2591111986"
    (tmp_path / "cc3m-image").mkdir()
    (tmp_path / "cc3m-image" / name).write_bytes(picture())
    choices = {f"choice_{letter}": letter for letter in "abcd"}
    row = {"answer": "A", **choices, "data_id": name, "data_source": "cc3m", "data_type": "Single Image",
           "question": "q", "question_id": "1_0", "question_type_id": 1}  # fmt: skip
    (tmp_path / "SEED-Bench_v2_level1_2_3.json").write_text(json.dumps({"questions": [row]}))
    (only,) = find_task("seed-bench-2").items(tmp_path)
    assert only.pictures[0].load().size == (8, 6)


@pytest.mark.parametrize("images", [".", "data/OCRBench", "data/OCRBench_Images", "data/OCRBench/OCRBench_Images"])
def test_ids_of_ocrbench_count_within_a_data_set_and_pictures_lie_in_its_folder(images: str, tmp_path: Path) -> None:
    file = tmp_path / "data" / "OCRBench" / "OCRBench.json"
    rows = [
        {"dataset_name": name, "id": 211, "image_path": f"{name}/test/918_1.png", "question": "q", "answers": "a",
         "type": "Regular Text Recognition"}
        for name in ("IIIT5K", "svt")
    ]  # fmt: skip
    for row in rows:
        path = tmp_path / images / str(row["image_path"])
        path.parent.mkdir(parents=True)
        path.write_bytes(picture())
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(rows))
    chosen = choose(find_task("ocrbench").items(tmp_path / "data"), 2)
    assert [each.id for each in chosen] == ["IIIT5K/211", "svt/211"]
    for each in chosen:
        if images == ".":  # outside of the data
            with pytest.raises(InputError, match=r"OCRBench.json, row .: column 'image_path': .* does not exist"):
                each.pictures[0].load()
        else:
            assert each.pictures[0].load().size == (8, 6)


def test_names_of_pictures_lead_nowhere_else_in_any_folder(tmp_path: Path) -> None:
    row = {"dataset_name": "svt", "id": 1, "question": "q", "answers": "a", "type": "t"}
    paths = ["../../secret.png", f"{'a' * 300}.png"]
    (tmp_path / "OCRBench.json").write_text(json.dumps([{**row, "image_path": path} for path in paths]))
    outside, long = find_task("ocrbench").items(tmp_path)
    with pytest.raises(InputError, match="leaves the data folder"):
        outside.pictures[0].load()
    with pytest.raises(InputError, match="row 2: column 'image_path': .*cannot be read"):
        long.pictures[0].load()


# ScienceQA's own evaluation: TXT are the questions with a hint, IMG those with a picture, and NO those with neither.
def test_a_scienceqa_question_with_hint_and_picture_counts_in_both_groups(tmp_path: Path) -> None:
    cases = [("h", CELL), ("h", None), ("", CELL), ("", None)]
    row = MIRRORS["scienceqa"][0]
    parquet(tmp_path / "test-0.parquet", [{**row, "hint": hint, "image": image} for hint, image in cases])
    names = {"TXT", "IMG", "NO"}
    told = [names & {*each.groups.values()} for each in find_task("scienceqa").items(tmp_path)]
    assert told == [{"TXT", "IMG"}, {"TXT"}, {"IMG"}, {"NO"}]


def test_mathvista_prompt_is_the_official_one() -> None:
    task = find_task("mathvista")
    free = Item("1", "How long?", facts={"answer_type": "float", "precision": 2, "unit": "cm"})
    assert task.prompt(free, "score") == (
        "Hint: Please answer the question requiring a floating-point number with two decimal places and provide the "
        "final value, e.g., 1.23, 1.34, 1.45, at the end.\nQuestion: How long? (Unit: cm)"
    )
    choice = Item("1", "Which?", choices=("x", "y"), facts={"answer_type": "text", "precision": None, "unit": ""})
    assert task.prompt(choice, "score").splitlines()[1:] == ["Question: Which?", "Choices:", "(A) x", "(B) y"]
    assert task.prompt(choice, "speed").endswith("(B) y\nPlease answer with an explanation.")
    spaced = Item("1", "How many? ", facts={"answer_type": "integer", "precision": None, "unit": ""})
    assert task.prompt(spaced, "score").endswith("\nQuestion: How many?")


def test_choosing_is_repeatable_and_does_not_depend_on_the_order_of_the_file() -> None:
    items = [Item(str(number), "q") for number in range(50)]
    chosen = choose(iter(items), 10)
    assert len(chosen) == 10
    assert [int(each.id) for each in chosen] == sorted(int(each.id) for each in chosen)
    assert {each.id for each in chosen} == {each.id for each in choose(iter(items[::-1]), 10)}
    assert {each.id for each in chosen} != {each.id for each in choose(iter(items), 10, seed=1)}
    assert [each.id for each in choose(iter(items), 99)] == [each.id for each in items]
    with pytest.raises(InputError, match="'3' occurs twice"):
        choose(iter([items[3], items[3]]), 2)


# bad data


def chart(tmp_path: Path, **changes: object) -> Path:
    """Two rows of official ChartQA, the second one changed."""
    (tmp_path / "png").mkdir(exist_ok=True)
    (tmp_path / "png" / "a.png").write_bytes(picture())
    row = {"imgname": "a.png", "query": "q", "label": "1"}
    changed = {name: value for name, value in {**row, **changes}.items() if value is not ...}
    (tmp_path / "test_human.json").write_text(json.dumps([row, changed]))
    return tmp_path / "test_human.json"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"query": ...},
            r"test_human.json, row 2: column 'query' or 'question' is missing; columns found: imgname, label",
        ),
        ({"query": " "}, "row 2: column 'query' is empty"),
        ({"label": {"a": 1}}, "row 2: column 'label' must hold a text or a list of texts"),
        ({"label": []}, "row 2: column 'label' must hold"),
        ({"label": True}, "row 2: column 'label' must hold"),
        ({"imgname": ...}, "row 2: column 'image' or 'imgname' is missing"),
        ({"imgname": "../../secret.png"}, "leaves the data folder"),
    ],
)
def test_bad_rows_are_named(tmp_path: Path, changes: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        list(find_task("chartqa").items(chart(tmp_path, **changes)))


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ("iVBOR*w0KGgo", "row 1: column 'image': .* neither base64"),
        (base64.b64encode(b"no picture").decode(), "row 1: column 'image': .*not a readable image"),
        (base64.b64encode(picture()[:-30]).decode(), "row 1: column 'image': .*broken"),
    ],
)
def test_broken_pictures_are_named_when_they_are_opened(tmp_path: Path, cell: str, message: str) -> None:
    tsv(tmp_path / "ChartQA_TEST.tsv", [{"index": 0, "question": "q", "answer": "a", "image": cell}])
    (only,) = find_task("chartqa").items(tmp_path)
    with pytest.raises(InputError, match=message):
        only.pictures[0].load()


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("test_human.json", "[", "is not JSON"),
        ("test_human.json", "[]", "has no rows"),
        ("test_human.json", "3", "must hold a list or an object"),
        ("test_human.json", "[" * 100_000, "is not JSON"),
        ("test_human.json", '[{"query": 1' + "0" * 5000 + "}]", "is not JSON"),
        ("test_human.json", "[3]", "row 1: a record must have named columns"),
        ("test-0.parquet", "no parquet", "is not a parquet file"),
        ("ChartQA_TEST.tsv", "a\tb\n1\t2\t3\n", "row 1: more cells than columns"),
        ("other.json", "[]", "none of the official files: test_human.json and test_augmented.json"),
        ("rows.txt", "", "none of the official files"),
    ],
)
def test_bad_files_are_named(tmp_path: Path, file: str, content: str, message: str) -> None:
    (tmp_path / file).write_text(content)
    with pytest.raises(InputError, match=message):
        list(find_task("chartqa").items(tmp_path))


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ({"bytes": b"no picture", "path": None}, "not a readable image"),
        ({"bytes": None, "path": None}, "a picture must be a path, base64 or bytes"),
        ({"bytes": picture()[:-30], "path": None}, "broken"),
        ({"bytes": None, "path": "../a.png"}, "leaves the data folder"),
    ],
)
def test_broken_cells_of_parquet_files_are_named(tmp_path: Path, cell: dict, message: str) -> None:
    good, bad = ({"question": "q", "answer": ["a"], "question_type": "k", "image": each} for each in (CELL, cell))
    parquet(tmp_path / "test-0.parquet", [good, bad])
    first, second = find_task("ocrbench").items(tmp_path)
    assert first.pictures[0].load().size == (8, 6)
    with pytest.raises(InputError, match=rf"test-0.parquet, row 2: column 'image': .*{message}"):
        second.pictures[0].load()


@pytest.mark.parametrize("answers", ["", [" "], []])
def test_an_answer_that_would_stand_in_every_reply_is_refused(tmp_path: Path, answers: object) -> None:
    task = find_task("ocrbench")
    task.fixture(tmp_path, 2, "s")
    file = tmp_path / "OCRBench" / "OCRBench.json"
    rows = json.loads(file.read_text())
    rows[1]["answers"] = answers
    file.write_text(json.dumps(rows))
    with pytest.raises(InputError, match="OCRBench.json, row 2: column 'answers' (is empty|must hold a text)"):
        list(task.items(tmp_path))


def test_other_mistakes_are_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'chartqa'"):
        find_task("chartqua")
    with pytest.raises(InputError, match="does not exist"):
        list(find_task("chartqa").items(tmp_path / "none"))
    (tmp_path / "rows.txt").write_text("x")
    with pytest.raises(InputError, match=r"endings: \.json"):
        list(find_task("chartqa").items(tmp_path / "rows.txt"))


def test_bad_answers_of_multiple_choice_are_named(tmp_path: Path) -> None:
    row = {"index": 0, "question": "q", "A": "x", "B": "y", "image": encoded()}
    tsv(tmp_path / "MMT-Bench_VAL.tsv", [{**row, "answer": "C"}])
    with pytest.raises(InputError, match="row 1: the answer 'C' is none of the 2 options A, B"):
        list(find_task("mmt-bench").items(tmp_path))
    tsv(tmp_path / "MMT-Bench_VAL.tsv", [{**row, "answer": "B", "image": "9"}])
    with pytest.raises(InputError, match="row 1: the picture is that of row index 9, which has none"):
        list(find_task("mmt-bench").items(tmp_path))
    (tmp_path / "problems.json").write_text(json.dumps({"4": {"question": "q", "choices": ["x", "y"], "answer": 2}}))
    with pytest.raises(InputError, match=r"pid_splits\.json must be there"):
        list(find_task("scienceqa").items(tmp_path))
    (tmp_path / "pid_splits.json").write_text(json.dumps({"test": ["4"]}))
    with pytest.raises(InputError, match="entry '4': the answer 2 is not the index of one of the 2 choices"):
        list(find_task("scienceqa").items(tmp_path))


def test_missing_pyarrow_is_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "test-0.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match=r"mmspec\[bench\]"):
        list(find_task("chartqa").items(tmp_path))
