"""Training of the bundled checkpoints: what is asked and taught, labels that name what is there, the optimizer."""

import copy
import random
import re
from collections import Counter
from dataclasses import replace

import pytest
import torch
from transformers import SmolVLMForConditionalGeneration

from mmspec.errors import InputError
from mmspec.miniworld import sample
from mmspec.miniworld.facts import QA, Sign, Table
from mmspec.miniworld.words import CATEGORY_SETS
from mmspec.pretrain import growth
from mmspec.pretrain.growth import deepened, regrown
from mmspec.pretrain.pointing import Watch, pointing_loss
from mmspec.training.muon import build_optimizer, orthogonalized
from mmspec.vlm.pretrain.attention import packed_attention
from mmspec.vlm.pretrain.drills import drill
from mmspec.vlm.pretrain.language import PackedPictures
from mmspec.vlm.pretrain.lessons import (
    CLOSED,
    GOLD_WEIGHT,
    IMAGE_WEIGHT,
    LONG,
    NOTHING,
    PRACTICE,
    SHORT_WEIGHT,
    asked_about,
    lesson,
    practice,
    priority,
)
from mmspec.vlm.pretrain.named import counted, names, values_named
from mmspec.vlm.pretrain.pointers import Taught, counting_loss, known_after, meant, shown, taught_layers, taught_loss
from mmspec.vlm.pretrain.slots import NONE, slot_words, slots_of_things
from mmspec.vlm.pretrain.smolvlm import SMOLVLM
from mmspec.vlm.pretrain.tokenizer import question_text, token_ids, train_tokenizer
from mmspec.vlm.pretrain.vision import dense_labels

ANY = Sign(("STOP",), "red", "black")
"""Facts without names."""


def processor():
    texts = (text for index in range(8) for qa in sample("tok", index).qas for text in (qa.question, f" {qa.answer}"))
    return SMOLVLM.processor(train_tokenizer(texts, 700))


STACK = "model.text_model.layers"


def tiny(tokenizer):
    torch.manual_seed(0)
    config = replace(SMOLVLM, width=32, vision_layers=1).config(token_ids(tokenizer), layers=2)
    return SmolVLMForConditionalGeneration(config).eval()


def test_hard_questions_find_room_before_others():
    asked = [asked_about(sample("x", index, "bar"), random.Random(index)) for index in range(20)]
    high, low, topics = [], [], set()
    for index, found in enumerate(asked):
        assert all(qa in found for qa in sample("x", index, "bar").qas)
        assert len(found) >= 3 * 8
        assert found[0].form in LONG
        kinds = [qa.form in LONG for qa in found[1:]]
        assert kinds == sorted(kinds)
        practised = practice(sample("x", index, "bar").facts, random.Random(index))
        assert {qa.form for qa in practised} <= {"short", *CLOSED}
        topics |= {qa.topic for qa in practised}
        short = [priority(qa) for qa in found[1 + PRACTICE :] if qa.form not in LONG]
        high += short[: len(short) // 2]
        low += short[len(short) // 2 :]
    assert topics == {"sum", "difference", "above"}  # bars have no trend
    assert sum(high) > 1.4 * sum(low)  # in random order they would be alike


def test_drills_are_asked_behind_the_first_long_answer():
    made = processor()

    def questions(drills):
        item = PackedPictures(made.tokenizer, "x", 1, 9, lambda image: torch.zeros(1), drills)[0]
        tokens, segments = item["tokens"], item["segments"].flatten()
        found = [made.tokenizer.decode(tokens[segments == number]) for number in range(1, int(segments.max()) + 1)]
        return [text.split("<end")[0] for text in found if text]

    plain, drilled = questions(0), questions(2)
    assert len(plain) > 8
    assert plain[0] == drilled[0]
    assert 1 <= len(set(drilled[1:3]) - set(plain)) <= 2
    assert all(re.search(r"\d|there", text) for text in set(drilled) - set(plain))


def test_only_answers_are_learnt_and_words_of_the_picture_weigh_more():
    made = processor()
    for qa in sample("weights", 0).qas:
        taught = lesson(made.tokenizer, qa, None)
        question = len(made.tokenizer(question_text(qa.question), add_special_tokens=False)["input_ids"])
        assert len(taught.ids) == len(taught.weights) == len(taught.sought)
        assert taught.targets == taught.ids
        assert not any(taught.weights[:question])
        assert all(taught.weights[question:])
        pairs = list(zip(taught.ids, taught.weights, strict=True))
        said = "".join(made.tokenizer.decode([token]) for token, weight in pairs if weight > 1)
        wanted = "".join(qa.answer[start:end] for start, end, kind in qa.spans if kind == "image")
        assert said.replace(" ", "") == wanted.replace(" ", "")
        golden = {weight for _, weight in pairs if weight > IMAGE_WEIGHT}
        assert golden == (set() if qa.form == "describe" else {GOLD_WEIGHT})


def test_a_short_answer_about_a_picture_weighs_more_than_the_words_of_a_worked_one():
    made = processor()
    drawn = sample("weights", 0)
    heaviest = {qa.form: max(lesson(made.tokenizer, qa, drawn.facts).weights) for qa in drawn.qas}
    assert heaviest.pop("describe") == IMAGE_WEIGHT
    assert heaviest.pop("worked") == GOLD_WEIGHT
    assert set(heaviest.values()) == {SHORT_WEIGHT}


def is_sum(qa):
    """Whether a drill is one without things that are told of."""
    told = {name.lower() for group in CATEGORY_SETS for name in group}
    return qa.topic != "count" and not told & set(re.findall(r"\w+", qa.question.lower()))


def test_drills_are_sums_of_numbers_or_ask_about_what_is_told():
    tokenizer = processor().tokenizer
    forms = Counter()
    for index in range(400):
        qa, facts = drill(random.Random(index))
        assert (facts is None) == is_sum(qa)
        taught = lesson(tokenizer, qa, facts, told=True)
        heavy = [place for place, weight in enumerate(taught.weights) if weight == GOLD_WEIGHT]
        assert heavy
        if facts is None:
            assert set(taught.sought[place] for place in heavy) == {NOTHING}
        several = len(qa.gold.split()) > 1
        if several:
            said = "".join(tokenizer.decode([taught.ids[place]]) for place in heavy)
            assert said == qa.gold.replace(" ", "")
        for x, sign, y, _, told in re.findall(r"(\d+) (plus|minus) (\d+) (is|makes|gives|leaves) (\d+)", qa.answer):
            assert int(told) == int(x) + int(y) * (1 if sign == "plus" else -1)
            assert qa.form == "worked" or f"{x} {sign} {y}" in qa.question
        kind = "bare" if is_sum(qa) else qa.topic
        forms[kind, "few" if several else qa.form] += 1
        if kind == "bare" and qa.form == "short" and not several:
            x, y = (int(number) for number in re.findall(r"\d+", qa.question))
            assert int(qa.gold) == (x + y if qa.topic == "sum" else abs(x - y))
    assert {form for kind, form in forms if kind == "bare"} == {"few", "short", "yesno", "choice"}
    assert "trend" in {topic for topic, _ in forms}
    for kind in ("above", "compare", "count"):
        assert {form for topic, form in forms if topic == kind} == {"worked", "short", "yesno", "choice"}


def test_the_answers_about_what_is_told_follow_from_it():
    checked = 0
    for index in range(400):
        qa, facts = drill(random.Random(index), ("Ann", "Mon"))
        if facts is None:
            continue
        assert not re.search(r"\b(Ann|Mon)\b", qa.question)
        asked = re.search(r"(above|below) (\d+)( percent)?\?", qa.question)
        if qa.topic == "above" and asked is not None and qa.form in ("short", "worked"):
            told = qa.question[: re.search(r"How many", qa.question).start()].replace("100", "99.5")
            values = [float(number) for number in re.findall(r"\b\d+(?:\.5)?\b", told)]
            limit = int(asked[2])
            hits = [value for value in values if (value > limit if asked[1] == "above" else value < limit)]
            assert int(qa.gold) == len(hits), qa
            checked += 1
    assert checked > 10


def test_names_in_a_question_are_asked_what_they_stand_for():
    tokenizer = processor().tokenizer
    bars = sample("names", 0, "bar").facts
    a, b = bars.categories[:2]
    x, y = (str(value) for value in bars.values[:2])
    table = Table("Rain", ("Ann", "Ben"), ("Sales", "Goals"), ((7, 31), (100, 4)))

    def told(question, facts):
        taught = lesson(tokenizer, QA(question, "9", "short", "sum", "9", ((0, 1, "image"),)), facts)
        end = tokenizer(question_text(question), add_special_tokens=False)["input_ids"]
        heavy = [place for place in range(len(end)) if taught.weights[place]]
        assert all(taught.weights[place] == IMAGE_WEIGHT for place in heavy)
        assert all(taught.targets[place] == taught.sought[place] for place in heavy)
        assert all(taught.targets[p] == taught.ids[p] for p in range(len(taught.ids)) if p not in heavy)
        return "".join(tokenizer.decode([taught.targets[place]]) for place in heavy)

    assert told(f"How much are {a} and {b} together?", bars) == x + y
    assert told(f"How much are {a} and {b} together?", None) == ""
    assert told("Which has more for Sales, Ann or Ben?", table) == "7100"
    assert told("What is the number of Ben under Goals?", table) == "4"
    assert told("Which row has the highest number in Goals?", table) == ""
    assert names(bars) == set(bars.categories)
    assert names(table) == {"Ann", "Ben", "Sales", "Goals"}
    assert names(sample("names", 0, "shapes").facts) == names(sample("names", 0, "text").facts) == set()


def test_names_that_are_told_of_stand_for_values_once_these_are_told():
    tokenizer = processor().tokenizer
    bars = sample("names", 0, "bar").facts
    a, b = bars.categories[:2]
    x, y = (str(value) for value in bars.values[:2])
    question = f"{a} has {x}, and {y} belongs to {b}. Which is higher, {b} or {a}?"
    named = [(question[:end].split()[-1], value) for end, value in values_named(bars, question, told=True)]
    assert named == [(b, y), (a, x)]
    qa = QA(question, a, "short", "compare", a, ((0, len(a), "image"),))
    taught = lesson(tokenizer, qa, bars, told=True)
    asked = [place for place, weight in enumerate(taught.weights) if weight == IMAGE_WEIGHT]
    assert "".join(tokenizer.decode([taught.targets[place]]) for place in asked) == y + x
    assert GOLD_WEIGHT in taught.weights
    assert SHORT_WEIGHT not in taught.weights


def test_what_is_counted_is_what_the_question_asks_for():
    asked = Counter()
    for index in range(60):
        drawn = sample("counted", index, "shapes")
        for qa in (*drawn.qas, *practice(drawn.facts, random.Random(index))):
            if qa.topic == "count":
                number = int(qa.reason or qa.gold)
                assert len(counted(drawn.facts, qa.question)) == number
                asked[number] += 1
    assert {0, 1, 2, 3, 4} <= set(asked)


def test_a_number_of_things_is_decided_where_it_is_said_and_by_the_slots_of_the_things():
    tokenizer = processor().tokenizer
    seen = Counter()
    for index in range(6):
        drawn = sample("counts", index, "shapes")
        named = slot_words(drawn.marks, tokenizer)
        lies = slots_of_things(drawn.facts, drawn.marks)
        for thing in drawn.facts.things:
            for word in (thing.color, thing.shape, thing.size):
                ids = tokenizer(f" {word}", add_special_tokens=False)["input_ids"]
                assert len(ids) > 1 or ids[0] in named[lies[thing]]  # slots show words of one token
        item = PackedPictures(tokenizer, "counts", 6, 9, lambda image: torch.zeros(1), 2)[index]
        where = item["counted"].any(-1)
        assert item["counted"][where, 0].all()
        assert item["pictured"][where].all()
        for place in where.nonzero()[:, 0].tolist():
            said = tokenizer.decode([int(item["targets"][place])]).strip().lower()
            seen[said if said in ("yes", "no") else said.isdigit()] += 1
            if said.isdigit():
                assert int(item["counted"][place, 1:].sum()) == int(said)
    assert seen[True] > 20
    assert seen["yes"]
    assert seen["no"]


def test_counting_is_cheapest_where_all_that_counts_gets_as_much():
    counts = torch.tensor([[True, True, True, False], [True, False, False, False]])
    even, uneven, beside = torch.full((2, 4), -20.0), torch.full((2, 4), -20.0), torch.zeros(2, 4)
    even[counts] = 0.0
    uneven[:, 0], uneven[0, 1] = 0.0, 2.0
    best = torch.log(torch.tensor(3.0)) / 2  # of the first, nothing of the second
    torch.testing.assert_close(counting_loss(even, counts), best)
    assert counting_loss(uneven, counts) > best + 1
    assert counting_loss(beside, counts) > best + 0.5
    assert counting_loss(even[:0], counts[:0]) == 0


def test_early_is_asked_what_others_hang_on():
    made = processor()
    item = PackedPictures(made.tokenizer, "x", 1, 9, lambda image: torch.zeros(1), 2)[0]
    read, sought, weights = item["read"], item["sought"], item["weights"]
    early = (read != NOTHING) & (weights > 1)
    torch.testing.assert_close(read[early], sought[early])
    said = item["targets"] == torch.cat([item["tokens"][1:], item["tokens"][:1]])
    assert not early[said & (weights == IMAGE_WEIGHT)].any()  # words of long answers
    assert early[~said & (weights == IMAGE_WEIGHT)].any()  # the values of names
    assert early[weights > IMAGE_WEIGHT].any()


def test_drills_are_sought_in_no_picture():
    made = processor()
    item = PackedPictures(made.tokenizer, "x", 1, 9, lambda image: torch.zeros(1), 2)[0]
    segments, pictured, sought = item["segments"].flatten(), item["pictured"], item["sought"]
    asked = set(segments.tolist()) - {0}
    told = {number for number in asked if not pictured[segments == number].any()}
    assert told == {2, 3}
    assert all(pictured[segments == number].all() for number in asked - told)
    assert not pictured[segments == 0].any()
    assert (sought[segments == 1] >= 0).any()


def test_taught_heads_are_asked_about_the_picture_alone():
    made = processor()
    item = PackedPictures(made.tokenizer, "counts", 1, 9, lambda image: torch.zeros(1), 2)[0]
    batch = {name: value[None] for name, value in item.items()}
    scores = {layer: torch.zeros(batch["counted"].shape, requires_grad=True) for layer in range(4)}
    taught_loss(Taught(0, (1, 2), 3), scores, batch).backward()
    moved = {layer: (each.grad != 0).any(-1) for layer, each in scores.items()}
    told, decided = ~batch["pictured"], batch["weights"] > 1
    for layer in (1, 2):  # they read for what the picture decides, and not for drills
        assert moved[layer][decided & batch["pictured"]].any()
        assert not moved[layer][told | ~decided].any()
    torch.testing.assert_close(moved[3], batch["counted"].any(-1))
    assert moved[0][batch["weights"] == 0].any()  # words of questions are looked up, too
    assert not moved[0][batch["segments"].flatten(1) == 0].any()


def test_the_value_of_a_name_is_learnt_where_the_name_stands():
    made = processor()
    seen = 0
    for index in range(12):
        drawn = sample("x", index)
        item = PackedPictures(made.tokenizer, "x", 12, 9, lambda image: torch.zeros(1))[index]
        tokens, targets, weights = item["tokens"], item["targets"], item["weights"]
        segments = item["segments"].flatten()
        for number in range(1, int(segments.max()) + 1):
            row = tokens[segments == number].tolist()
            if not row:
                continue
            text = made.tokenizer.decode(row).split("<end")[0]
            for end, value in values_named(drawn.facts, text):
                place = len(made.tokenizer(text[:end], add_special_tokens=False)["input_ids"]) - 1
                first = made.tokenizer.decode([int(targets[segments == number][place])])
                assert first == value[0]
                assert weights[segments == number][place] == IMAGE_WEIGHT
                seen += 1
    assert seen > 20


def test_the_last_step_of_a_worked_answer_weighs_as_the_answer_does():
    tokenizer = processor().tokenizer
    answer = "Kim has 7 and Gus 20. Only Gus is above 8, which makes 1. Answer: 1."
    spans = tuple((m.start(), m.end(), "image") for m in re.finditer(r"Kim|Gus|\d+", answer))

    def heavy(form):
        taught = lesson(tokenizer, QA("How many?", answer, form, "above", "1", spans), None)
        pairs = zip(taught.ids, taught.weights, strict=True)
        return "".join(tokenizer.decode([one]) for one, weight in pairs if weight == GOLD_WEIGHT).replace(" ", "")

    assert heavy("worked") == "Gus811"
    assert heavy("describe") == ""
    assert heavy("short") == "Kim7Gus20Gus811"


def test_the_verdicts_of_a_count_weigh_as_the_answer_does():
    tokenizer = processor().tokenizer
    answer = "The star counts, and the cross at the left does not count. There is 1 star. So the answer is 1."
    spans = tuple((m.start(), m.end(), "image") for m in re.finditer(r"star|counts|cross|left|does|not|1", answer))

    def heavy(topic):
        taught = lesson(tokenizer, QA("How many?", answer, "worked", topic, "1", spans), None)
        pairs = zip(taught.ids, taught.weights, strict=True)
        return "".join(tokenizer.decode([one]) for one, weight in pairs if weight == GOLD_WEIGHT).replace(" ", "")

    assert heavy("count") == "countsdoesnot1star1"
    assert heavy("value") == "1star1"


def test_what_is_sought_is_what_the_picture_shows():
    tokenizer = processor().tokenizer

    def sought(answer, form, topic, gold, reason=None):
        spans = tuple((m.start(), m.end(), "image") for m in re.finditer(r"Yes|No|\bB\b|\d+", answer))
        taught = lesson(tokenizer, QA("What?", answer, form, topic, gold, spans, reason), ANY)
        changed = zip(taught.ids, taught.sought, strict=True)
        return [(tokenizer.decode([one]).strip(), other) for one, other in changed if one != other]

    (digit,) = tokenizer("4", add_special_tokens=False)["input_ids"]
    for said in ("Yes", "Yes.", "Yes, it is.", "No, it is 42."):  # the value is said, or stands in the question
        changed = sought(said, "yesno", "value", said[:2].strip(",.").lower(), "42")
        assert {other for _, other in changed} == {digit}
        assert "".join(one for one, _ in changed) == re.match(r"\w+", said)[0]
    assert sought("(B) 42", "choice", "value", "42", "42") == [("B", digit)]
    assert sought("42", "choice", "value", "42", "42") == []
    assert sought("It is 42.", "short", "value", "42") == []
    assert sought("It is 42.", "short", "sum", "42") == [("4", NOTHING), ("2", NOTHING)]
    assert {other for _, other in sought("No, it is 42.", "yesno", "sum", "no", "42")} == {NOTHING}

    def reasons(answer, form, topic, reason=None):
        spans = tuple((m.start(), m.end(), "image") for m in re.finditer(r"Yes|No|\bB\b|\d+", answer))
        taught = lesson(tokenizer, QA("What?", answer, form, topic, "42", spans, reason), ANY)
        return [
            tokenizer.decode([one]).strip() for one, why in zip(taught.ids, taught.reasons, strict=True) if why == digit
        ]

    assert "".join(reasons("No, it is 42.", "yesno", "sum", "42")) == "No"
    assert reasons("(B) 42", "choice", "value", "42") == ["B"]
    assert reasons("It is 42.", "short", "value") == []
    worked = "Kim has 42. We add 30 and 12. 30 plus 12 makes 42."
    assert sought(worked, "worked", "sum", "42") == [("4", NOTHING), ("2", NOTHING)]  # Kim's stands in the picture
    assert not shown(torch.tensor([[NOTHING]]), torch.tensor([[[NONE, digit]]])).any()


def test_every_yes_no_and_letter_hangs_on_a_value():
    made = processor()
    closed = [qa for index in range(30) for qa in sample("closed", index).qas if qa.form in CLOSED]
    forms = Counter()
    for qa in closed:
        taught = lesson(made.tokenizer, qa, ANY)
        first = next(place for place, weight in enumerate(taught.weights) if weight > 1)
        moved = taught.sought[first] != taught.ids[first]
        forms[qa.form, qa.gold if qa.form == "yesno" else "", moved] += 1
    assert forms["yesno", "yes", False] == forms["yesno", "no", False] == 0
    assert forms["yesno", "yes", True] > 3
    assert forms["yesno", "no", True] > 3
    assert forms["choice", "", True] > forms["choice", "", False] > 0  # some choices are answered by the value


def test_dense_labels_find_the_characters():
    drawn = sample("labels", 0, "table")
    characters, attributes = dense_labels(drawn.marks)
    written = [mark for mark in drawn.marks if mark.kind == "char"]
    assert 0 < (characters > 0).sum() <= len(written)
    assert attributes.shape[:2] == (16, 16)


def test_orthogonalized_matrices_have_singular_values_near_one():
    torch.manual_seed(0)
    for shape in ((2, 24, 24), (2, 12, 30), (2, 30, 12)):
        values = torch.linalg.svdvals(orthogonalized(torch.randn(shape), steps=8))
        assert values.min() > 0.5
        assert values.max() < 1.4


def test_the_optimizer_lowers_a_loss_and_its_state_survives_saving():
    torch.manual_seed(0)
    model = tiny(processor().tokenizer)
    ids = torch.randint(0, 90, (2, 12))
    optimizer = build_optimizer(model, 0.02)

    def step():
        loss = model(input_ids=ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    losses = [step() for _ in range(25)]
    assert losses[-1] < 0.85 * losses[0]
    state, weights = (
        copy.deepcopy(optimizer.state_dict()),
        {name: value.clone() for name, value in model.state_dict().items()},
    )
    expected = [step() for _ in range(3)]
    model.load_state_dict(weights)
    optimizer = build_optimizer(model, 0.02)
    optimizer.load_state_dict(state)
    assert [step() for _ in range(3)] == expected


def test_a_deepened_model_repeats_its_layers_quietly(monkeypatch):
    model = tiny(processor().tokenizer)
    ids = torch.randint(10, 90, (2, 9))
    deep = deepened(model, 5, STACK).eval()
    assert len(deep.model.text_model.layers) == deep.config.text_config.num_hidden_layers == 5
    expected = {name: value.clone() for name, value in model.get_submodule(f"{STACK}.1").state_dict().items()}
    for name in ("self_attn.o_proj.weight", "mlp.down_proj.weight"):
        expected[name] *= growth.ECHO
    # slots 0, 1 and 2 have the first layer, 3 and 4 the second
    torch.testing.assert_close(dict(deep.get_submodule(f"{STACK}.4").state_dict()), expected)
    with torch.no_grad():
        assert (deep(input_ids=ids).logits - model(input_ids=ids).logits).abs().max() > 1e-4
        monkeypatch.setattr(growth, "ECHO", 0.0)
        silent = deepened(model, 5, STACK).eval()
        torch.testing.assert_close(silent(input_ids=ids).logits, model(input_ids=ids).logits)


def test_a_model_grows_again_from_the_layers_that_add_most():
    model = deepened(tiny(processor().tokenizer), 6, STACK)
    layers = model.get_submodule(STACK)
    with torch.no_grad():
        for index, layer in enumerate(layers):
            for matrix in (layer.self_attn.o_proj, layer.mlp.down_proj):
                matrix.weight.normal_(std=0.5 if index in (2, 3, 5) else 0.01)
    grown = regrown(model, 3, STACK).get_submodule(STACK)
    for slot, source in enumerate((2, 2, 3, 3, 5, 5)):
        torch.testing.assert_close(grown[slot].mlp.up_proj.weight, layers[source].mlp.up_proj.weight)
        share = growth.ECHO if slot % 2 else 1.0
        torch.testing.assert_close(grown[slot].mlp.down_proj.weight, share * layers[source].mlp.down_proj.weight)
    for busy in (0, 6, 7):
        with pytest.raises(InputError, match="the decoder has 6"):
            regrown(model, busy, STACK)


def test_taught_layers_stay_taught_in_a_deeper_model():
    (look, read, count), (deep_look, deep_read, deep_count) = taught_layers(8), taught_layers(24)
    assert (look, *read, count) == tuple(slot * 8 // 24 for slot in (deep_look, *deep_read, deep_count))
    assert len({deep_look, *deep_read, deep_count}) == 4  # one head of a layer is taught


@pytest.mark.parametrize("layers", [2, 4, 8, 24])
def test_what_decides_a_word_is_known_before_the_last_layer(layers):
    (first, second), (_, read, _) = known_after(layers), taught_layers(layers)
    assert 0 < first <= second < layers
    assert layers < 8 or (first > read[0] + 1 and second > read[1] + 1)  # behind the heads that read it


def test_slots_name_kerned_words_and_what_belongs_to_them():
    made = processor()
    drawn = next(each for index in range(50) if "Kyiv" in (each := sample("slots", index, "bar")).facts.categories)
    named = slot_words(drawn.marks, made.tokenizer)
    (kyiv,) = made.tokenizer(" Kyiv", add_special_tokens=False)["input_ids"]
    value = str(drawn.facts.values[drawn.facts.categories.index("Kyiv")])
    digits = made.tokenizer(value, add_special_tokens=False)["input_ids"]
    slots = (named == kyiv).any(-1).nonzero()[:, 0].tolist()
    assert len(slots) >= 2  # under the bar, and where it ends
    for slot in (slots[0], slots[-1]):
        assert set(digits) <= set(named[slot].tolist())


def test_pointing_is_cheap_only_on_the_right_slots():
    right = torch.tensor([[False, True, False, True], [False] * 4])  # the second token asks for nothing
    good, bad = torch.full((2, 4), -20.0), torch.full((2, 4), -20.0)
    good[:, 3] = 20.0
    bad[:, 2] = 20.0
    assert pointing_loss(good, right) < 1e-3
    assert pointing_loss(bad, right) > 30
    assert pointing_loss(good[1:], right[1:]) == 0


def test_the_slot_is_meant_that_shows_what_was_said_before():
    tue, wed, two = 5, 6, 7
    words = torch.full((1, 3, 8), -1)
    words[0, 0, :2] = torch.tensor([tue, two])
    words[0, 1, :2] = torch.tensor([wed, two])
    said = torch.tensor([[tue, 1, wed, 1, tue]])
    ahead = torch.tensor([[two, two, two, two, two]])
    segments = torch.tensor([[1, 1, 1, 1, 2]])  # the last token begins another question
    found = meant(shown(ahead, words), shown(said, words), segments)[0]
    assert found.tolist() == [[True, False, False]] * 2 + [[False, True, False]] * 2 + [[True, False, False]]


def test_a_watch_sees_the_weights_that_attention_uses():
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 1, 2, 9, 4)  # 5 prefix tokens, one bin of 4
    watch = Watch((6,), slice(1, 4), 5)
    module = torch.nn.Module()
    module.layer_idx = 6
    packed_attention(module, query, key, value, torch.zeros(1, 1, 4, 9), 0.5, watch=watch)
    expected = query[:, 0, 5:] @ key[:, 0, 1:4].transpose(1, 2) * 0.5
    torch.testing.assert_close(watch.scores[6], expected)
