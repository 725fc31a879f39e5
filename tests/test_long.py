"""Long and odd prompts: thousands of tokens, dozens of pictures, extreme shapes, prefill in pieces, full contexts."""

import copy
from functools import cache
from typing import Any

import pytest
import tiny_families as families
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from test_families import CHOSEN, FAMILIES, Oracle, hf, plain
from tiny_vision import BLUE, PICTURES, RED, TALL, TEXTS, WIDE

import mmspec
from mmspec.base_target import unpad
from mmspec.errors import InputError
from mmspec.pieces import spans

CONTEXT = 8192
MANY = [RED, BLUE, WIDE, TALL] * 6
SAGA = " ".join(f"the {index} bar is {index * 7 % 93} and the red one is taller than that" for index in range(95))


@given(
    st.lists(st.lists(st.booleans(), min_size=12, max_size=12), min_size=1, max_size=3),
    st.integers(1, 14),
)
def test_pieces_follow_each_other_and_split_no_run_of_slots(rows: list[list[bool]], size: int) -> None:
    """The first takes along a run that is longer than a piece and would be the next one."""
    slots = torch.tensor(rows)
    free = [cut for cut in range(1, 12) if not (slots[:, cut - 1] & slots[:, cut]).any()] + [12]
    pieces = spans(slots, size)
    assert [start for start, _ in pieces] == [0, *(end for _, end in pieces[:-1])]
    for start, end in pieces:
        near = [cut for cut in free if start < cut <= start + size]
        cut = max(near) if near else min(cut for cut in free if cut > start)
        behind = min((later for later in free if later > cut), default=cut)
        assert end == (behind if start == 0 and behind - cut > size else cut)
    assert pieces[-1][1] == 12


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("family", CHOSEN)
def test_a_prompt_read_in_pieces_leaves_the_same_behind(family: str, attention: str) -> None:
    """Logits, hidden states, keys and values, in a left-padded batch with and without pictures."""
    target = plain(family, attention).target
    inputs = plain(family, attention).prepare(PICTURES, TEXTS)
    rows, layers = unpad(inputs), target.num_layers
    with torch.inference_mode():
        whole, heard = target.read(inputs, rows, (1, layers))
        arranged = target.arrange(inputs, rows)
        slots = torch.isin(arranged["input_ids"], torch.tensor(target.placeholders))
        for size in (1, 6, 20):
            cuts = spans(slots, size)
            assert len(cuts) > 1
            pieces = [target.piece(arranged, start, end) for start, end in cuts]
            cache_, parts = target.decoder.read(pieces, [len(row) for row in rows], (1, layers))
            assert torch.allclose(parts.logits, heard.logits, atol=1e-5 if attention == "eager" else 1e-9)
            assert cache_.lengths == whole.lengths
            for row, length in enumerate(cache_.lengths):
                for tap in (1, layers):
                    assert torch.allclose(parts.taps[tap][row, :length], heard.taps[tap][row, :length], atol=1e-5)
                for mine, other in zip(cache_.hf.layers, whole.hf.layers, strict=True):
                    assert torch.allclose(mine.keys[row, :, :length], other.keys[row, :, :length], atol=1e-5)


def test_one_large_picture_is_read_without_a_mask_of_its_slots() -> None:
    """Such a mask grows with the square of their number."""
    pipe = plain("pixtral")
    target = copy.copy(pipe.target)
    target.piece_size = 16
    inputs = pipe.prepare(RED.resize((64, 64)), "why")  # 72 slots
    masks: list[Any] = []

    def note(module: torch.nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        masks.append(named["attention_mask"])

    attention = target.decoder.language().layers[0].self_attn
    with attention.register_forward_pre_hook(note, with_kwargs=True), torch.inference_mode():
        target.read(inputs, unpad(inputs))
    assert len(masks) > 1
    assert masks[0] is None
    assert all(mask is None or mask.shape[-2] <= 16 for mask in masks)


@cache
def long_pipe(family: str) -> mmspec.Pipeline:
    model, processor = families.EVERY[family](0, max_position_embeddings=CONTEXT)
    return mmspec.load(model, "prompt-lookup", processor=processor)


@pytest.mark.parametrize("family", CHOSEN)
def test_thousands_of_tokens_and_dozens_of_pictures(family: str) -> None:
    """Read in pieces, drafted with trees, in a batch with a short prompt; transformers reads it at once."""
    pipe = long_pipe(family)
    model = pipe.target.model
    inputs = pipe.prepare(MANY, SAGA)
    assert inputs["input_ids"].shape[1] > 2000
    want = [hf(model, inputs, 20)[0], hf(model, pipe.prepare(RED, "why"), 20)[0]]
    pipe.target.piece_size = 700
    oracle = pipe.with_drafter(Oracle(want, pipe.target.vocab_size))
    for answers in (
        pipe([MANY, RED], [SAGA, "why"], max_new_tokens=20),
        oracle([MANY, RED], [SAGA, "why"], max_new_tokens=20),
    ):
        assert [answer.token_ids for answer in answers] == want


@pytest.mark.parametrize("size", [(1, 1), (150, 1), (1, 150), (3, 5), (640, 7)])
@pytest.mark.parametrize("family", FAMILIES)
def test_pictures_of_extreme_shape(family: str, size: tuple[int, int]) -> None:
    pipe = plain(family)
    picture = Image.new("RGB", size, "red")
    inputs = pipe.prepare(picture, "why")
    if family == "mistral3" and int((inputs["input_ids"] == pipe.target.slot).sum()) == 1:
        with pytest.raises(InputError, match="the model cannot read pictures of these shapes"):  # nor does `generate`
            pipe(picture, "why")
        return
    want = hf(pipe.target.model, inputs, 4)[0]
    assert pipe(picture, "why", max_new_tokens=4).token_ids == want


@pytest.mark.parametrize("family", ["gemma3", "qwen3-vl"])
def test_the_answer_ends_where_the_context_does(family: str) -> None:
    """Trees there reach beyond the last position. Pictures fill the context by their slots, shared positions or not."""
    pipe = plain(family)
    length = pipe.prepare(PICTURES[0], TEXTS[0])["input_ids"].shape[1]
    model, processor = families.MAKERS[family](0, max_position_embeddings=length + 7)
    want = hf(model, pipe.prepare(PICTURES[0], TEXTS[0]), 7)
    short = mmspec.load(model, Oracle(want, pipe.target.vocab_size), processor=processor)
    answer = short(PICTURES[0], TEXTS[0], max_new_tokens=50)
    assert [answer.token_ids] == want
    assert answer.finish == "length"
    with pytest.raises(InputError, match=f"the model's context is {length + 7}"):
        short(MANY, TEXTS[0])
