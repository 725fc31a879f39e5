"""The synthetic world: repeatable, truthful, rich, and never a picture or an answer that contradicts the facts."""

import re
import string
from collections import Counter

import numpy as np
import pytest

from mmspec.miniworld import sample
from mmspec.miniworld.facts import COLORS, COLUMNS, ORDINALS, ROWS, SHAPES, SIZES, TEXTURES, Chart
from mmspec.miniworld.scoring import final_value, relaxed_match
from mmspec.miniworld.words import CATEGORY_SETS, TITLES

FAMILIES = ("shapes", "bar", "line", "pie", "table", "text")
PICTURES = 250


@pytest.fixture(scope="module")
def samples():
    return [sample("test", index) for index in range(PICTURES)]


def words(text):
    return list(re.finditer(r"\d|[^\W\d]+|[^\w\s]", text))


def test_a_sample_is_made_from_seed_and_index_alone():
    first, again, other = sample("a", 3), sample("a", 3), sample("b", 3)
    assert np.array_equal(np.asarray(first.image), np.asarray(again.image))
    assert (first.facts, first.marks, first.qas) == (again.facts, again.marks, again.qas)
    assert first.facts != other.facts


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_can_be_asked_for(family):
    drawn = sample("family", 1, family)
    assert drawn.facts.family == family
    assert drawn.image.size == (320, 320)
    assert drawn.image.mode == "RGB"


def test_all_families_occur(samples):
    counts = Counter(drawn.facts.family for drawn in samples)
    assert set(counts) == set(FAMILIES)
    assert min(counts.values()) > PICTURES * 0.04


def test_the_answer_states_its_gold_value(samples):
    wrong = [
        (qa.question, qa.answer, qa.gold)
        for drawn in samples
        for qa in drawn.qas
        if qa.gold is not None and not relaxed_match(final_value(qa.answer), qa.gold)
    ]
    assert wrong == []


def test_spans_lie_inside_the_answer_and_name_whole_words(samples):
    for drawn in samples:
        for qa in drawn.qas:
            end = 0
            for start, stop, kind in qa.spans:
                assert end <= start < stop <= len(qa.answer)
                assert kind in ("image", "copy")
                assert qa.answer[start:stop].strip() == qa.answer[start:stop]
                end = stop


def test_copied_words_stand_in_the_question(samples):
    for drawn in samples:
        for qa in drawn.qas:
            for start, stop, kind in qa.spans:
                if kind == "copy":
                    assert qa.answer[start:stop].lower() in qa.question.lower()


def test_long_answers_are_long_and_hang_on_the_picture(samples):
    total = seen = 0
    for drawn in samples:
        for qa in drawn.qas:
            if qa.form not in ("describe", "worked"):
                continue
            found = words(qa.answer)
            assert 50 <= len(found) <= 130
            total += len(found)
            seen += sum(
                any(start <= word.start() and word.end() <= stop for start, stop, kind in qa.spans if kind == "image")
                for word in found
            )
    assert seen / total >= 0.2


def test_few_questions_offer_a_guess(samples):
    forms = Counter(qa.form for drawn in samples for qa in drawn.qas)
    assert (forms["yesno"] + forms["choice"]) / forms.total() <= 0.15
    assert forms["worked"] + forms["describe"] > 0.25 * forms.total()


def test_a_yes_or_no_can_be_told_from_the_question_and_the_picture(samples):
    found = [(drawn.facts, qa) for drawn in samples for qa in drawn.qas if qa.form == "yesno"]
    about_two = [(facts, qa) for facts, qa in found if qa.topic in ("compare", "sum", "difference")]
    assert len(about_two) > 10
    for facts, qa in about_two:
        names = facts.categories if isinstance(facts, Chart) else facts.rows
        assert len({name for name in names if re.search(rf"\b{name}\b", qa.question)}) >= 2, qa.question
    whose = [
        qa.question
        for facts, qa in found
        if facts.family in ("shapes", "bar", "pie") and qa.topic in ("color", "shape", "texture", "size", "position")
        if re.search(r"\b(its|it)\b", qa.question.split("that", 1)[-1])
    ]
    assert len(whose) > 5
    assert all(question.count("?") == 2 for question in whose)
    assert any(qa.question.count("?") == 1 for _, qa in found)


def test_questions_are_phrased_in_many_ways(samples):
    templates = {re.sub(r"\d+|\"[^\"]*\"|\b[A-Z]\w+", "_", qa.question) for drawn in samples for qa in drawn.qas}
    assert len(templates) > 300


def test_half_of_the_bars_carry_no_number():
    charts = [sample("bars", index, "bar").facts for index in range(150)]
    printed = [shown for chart in charts if isinstance(chart, Chart) for shown in chart.printed]
    assert 0.3 < sum(printed) / len(printed) < 0.7


def test_marks_lie_in_the_picture_and_have_known_values(samples):
    known = {
        "char": set(string.printable),
        "color": set(COLORS),
        "shape": set(SHAPES),
        "texture": set(TEXTURES),
        "size": set(SIZES),
        "fact": {
            *COLORS,
            *ROWS,
            *COLUMNS,
            *ORDINALS,
            *(name for names in CATEGORY_SETS for name in names),
            *TITLES,
            *map(str, range(101)),
        },
    }
    for drawn in samples:
        for mark in drawn.marks:
            left, top, right, bottom = mark.box
            assert left < right
            assert top < bottom
            assert right > 0
            assert bottom > 0
            assert left < 320
            assert top < 320
            assert mark.value in known[mark.kind]


@pytest.mark.parametrize(
    ("said", "gold", "right"),
    [
        ("The value of Ann is 40.", "40", True),
        ("The value of Ann is 42.", "40", True),  # within five percent
        ("The value of Ann is 43.", "40", False),
        ("Answer: 0.", "0", True),
        ("1", "0", False),
        ("(B) green", "green", True),
        ("Yes, the one with more is Feb.", "yes", True),
        ('The first line says "STOP 12".', "STOP 12", True),
        ("The cross is at the top left.", "top left", True),
        ("It is red.", "blue", False),
        ("", "blue", False),
    ],
)
def test_scoring_follows_the_chartqa_rule(said, gold, right):
    assert relaxed_match(final_value(said), gold) is right
