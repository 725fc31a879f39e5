"""What each image slot shows, as words: the bridge between the picture and the words of the answers.

While the model learns to answer, every slot is asked to name what it sees, through the model's own output head: the
words and digits that end in it, the shapes, colours, textures and sizes that cover it, and what belongs to these: the
name and value of a bar, the row and column of a number. An answer then finds its words where the picture has them.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import log_softmax
from transformers import PreTrainedTokenizerFast

from mmspec.miniworld.facts import Mark, Shapes, Thing
from mmspec.vlm.pretrain.architecture import CANVAS, SIDE

EDGE = CANVAS / SIDE
LABELS = 8  # most words per slot
NONE = -1


def slot_words(marks: tuple[Mark, ...], tokenizer: PreTrainedTokenizerFast) -> Tensor:
    """[SIDE * SIDE, LABELS] int64 ids of the words each slot shows, padded with NONE."""
    found: list[list[int]] = [[] for _ in range(SIDE * SIDE)]

    def put(slot: tuple[int, int], text: str) -> None:
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        place = found[slot[0] * SIDE + slot[1]]
        if len(ids) == 1 and len(place) < LABELS and ids[0] not in place:
            place.append(ids[0])

    word, last = "", None
    for mark in marks:
        if mark.kind == "fact":
            for slot in _covered(mark):
                for text in mark.value if mark.value.isdigit() else (f" {mark.value}",):
                    put(slot, text)
        elif mark.kind == "char":
            joined = last is not None and _follows(mark, last) and not (word + mark.value)[-2:].isdigit()
            if not joined:
                _close(word, last, put)
                word = ""
            word, last = word + mark.value, mark
        else:
            for slot in _covered(mark):
                put(slot, f" {mark.value}")
    _close(word, last, put)
    rows = [ids + [NONE] * (LABELS - len(ids)) for ids in found]
    return torch.tensor(rows)


def slots_of_things(scene: Shapes, marks: tuple[Mark, ...]) -> dict[Thing, int]:
    """The slot in the middle of each thing of a scene; things are drawn, and so marked, in their order."""
    middles = [_slot(mark) for mark in marks if mark.kind == "shape"]
    return {thing: row * SIDE + column for thing, (row, column) in zip(scene.things, middles, strict=True)}


def _follows(mark: Mark, last: Mark) -> bool:
    """Whether a glyph stands right behind another in its line; kerning lets them overlap."""
    level = mark.box[1] < last.box[3] and last.box[1] < mark.box[3]
    return level and -5 < mark.box[0] - last.box[2] < 1


def _close(word: str, last: Mark | None, put: Callable[[tuple[int, int], str], None]) -> None:
    if word and last is not None:
        put(_slot(last), word if word.isdigit() else f" {word}")


def _slot(mark: Mark) -> tuple[int, int]:
    left, top, right, bottom = mark.box
    row, column = int((top + bottom) / 2 / EDGE), int((left + right) / 2 / EDGE)
    return min(max(row, 0), SIDE - 1), min(max(column, 0), SIDE - 1)


def _covered(mark: Mark) -> list[tuple[int, int]]:
    """The slots of which a quarter lies in the box, and the one in its middle."""
    left, top, right, bottom = mark.box
    slots = {_slot(mark)}
    for row in range(SIDE):
        for column in range(SIDE):
            across = min(right, (column + 1) * EDGE) - max(left, column * EDGE)
            down = min(bottom, (row + 1) * EDGE) - max(top, row * EDGE)
            if across > 0 and down > 0 and across * down > 0.25 * EDGE**2:
                slots.add((row, column))
    return sorted(slots)


def naming_loss(logits: Tensor, words: Tensor) -> Tensor:
    """Cross-entropy of the words of each slot. logits: [B, slots, V]; words: [B, slots, LABELS]."""
    named = words != NONE
    chances = log_softmax(logits, -1).gather(-1, words.clamp(min=0))
    return -chances[named].mean()
