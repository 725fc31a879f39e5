"""Families whose image positions have three axes: where text goes on, and what must fit the grids of the pictures."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from test_families import hf, plain
from tiny_grids import MAKERS, glm46v
from tiny_vision import BLUE, RED, TEXTS, WIDE

import mmspec
from mmspec.base_target import unpad
from mmspec.drafters.none import NoDrafter
from mmspec.errors import InputError

BUDGET = 10
SEEN = ([RED, WIDE], [], [BLUE])


@pytest.mark.parametrize("family", MAKERS)
def test_text_goes_on_where_the_pictures_of_its_own_row_end(family: str) -> None:
    """In a batch with one row without pictures; transformers says where, of inputs that are padded on the left."""
    target, inputs = plain(family).target, plain(family).prepare(SEEN, TEXTS)
    told = {name: inputs[name] for name in ("mm_token_type_ids", "image_grid_thw", "attention_mask")}
    with torch.inference_mode():
        found, _ = target.read({**inputs}, unpad(inputs))
        _, wanted = target.model.model.get_rope_index(inputs["input_ids"], **told)
    assert found.shift.tolist() == wanted.tolist()
    assert len({shift for (shift,) in wanted.tolist()}) == len(SEEN)


@pytest.mark.parametrize("family", MAKERS)
def test_pictures_between_texts_and_nothing_of_them_in_the_next_request(family: str) -> None:
    """The model remembers where text went on; a text that is then read in pieces must not go on there."""
    pipe = plain(family)
    alone = pipe(None, TEXTS[2], max_new_tokens=BUDGET).token_ids
    parts: list[dict[str, Any]] = []
    for picture, text in ((WIDE, "what is"), (RED, "taller,"), (BLUE, "why")):
        parts += [{"type": "text", "text": text}, {"type": "image", "image": picture}]
    made = {"add_generation_prompt": True, "tokenize": True, "return_dict": True, "return_tensors": "pt"}
    chat = pipe.processor.apply_chat_template([{"role": "user", "content": parts}], **made)
    said = pipe.with_drafter("recycling").generate(**chat, max_new_tokens=BUDGET).token_ids
    assert said == hf(pipe.target.model, chat, BUDGET)[0]
    assert pipe.target.model.model.rope_deltas.item() < 0
    pieces = copy.copy(pipe.target)
    pieces.piece_size = 7
    again = mmspec.Pipeline(pieces, pipe.processor, NoDrafter(), pipe.rule)(None, TEXTS[2], max_new_tokens=BUDGET)
    assert again.token_ids == alone


@pytest.mark.parametrize("family", ["glm4v", "qwen3-vl-moe"])
def test_types_that_do_not_fit_the_grids_are_refused(family: str) -> None:
    """Slots of a video, one more picture than there are, and two without anything between them."""
    pipe = plain(family)
    inputs = pipe.prepare([RED, WIDE], "why")
    types = inputs["mm_token_type_ids"]
    more = types.clone()
    more[0, -2] = 1
    joined = (types.cumsum(1) > 0) & (types.flip(1).cumsum(1).flip(1) > 0)
    for wrong in (2 * types, more, joined.long()):
        with pytest.raises(InputError, match="mm_token_type_ids does not fit image_grid_thw"):
            pipe.generate(**{**inputs, "mm_token_type_ids": wrong})


@pytest.mark.parametrize("family", ["glm4v-moe", "qwen3-vl-moe"])
def test_a_mixture_is_loaded_in_float64(family: str, tmp_path: Path) -> None:
    """The usual product of all experts takes none. GLM-4.6V has GLM-4.5V's class, and a processor of its own."""
    pipe = plain(family)
    pipe.target.model.save_pretrained(tmp_path)
    (glm46v(0)[1] if family == "glm4v-moe" else pipe.processor).save_pretrained(tmp_path)
    loaded = mmspec.load(tmp_path, "recycling", dtype="float64")
    want = [hf(pipe.target.model, pipe.prepare(*asked), BUDGET)[0] for asked in zip(SEEN, TEXTS, strict=True)]
    assert [answer.token_ids for answer in loaded(SEEN, TEXTS, max_new_tokens=BUDGET)] == want
