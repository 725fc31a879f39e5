"""Training of the bundled checkpoints: packed rows compute what the stock model computes, labels name what is there."""

import copy

import torch
from torch.utils.data import default_collate
from transformers import SmolVLMForConditionalGeneration

from mmspec.miniworld import sample
from mmspec.training.muon import build_optimizer, orthogonalized
from mmspec.vlm.pretrain.architecture import smolvlm_config
from mmspec.vlm.pretrain.attention import NAME as PACKED
from mmspec.vlm.pretrain.language import IMAGE_WEIGHT, PackedPictures, encode, packed_logits
from mmspec.vlm.pretrain.tokenizer import (
    PREFIX,
    build_processor,
    question_text,
    token_ids,
    train_tokenizer,
)
from mmspec.vlm.pretrain.vision import dense_labels


def processor():
    texts = (text for index in range(8) for qa in sample("tok", index).qas for text in (qa.question, f" {qa.answer}"))
    return build_processor(train_tokenizer(texts, 700))


def tiny(tokenizer):
    torch.manual_seed(0)
    config = smolvlm_config(token_ids(tokenizer), layers=2, width=32, vision_layers=1)
    return SmolVLMForConditionalGeneration(config).eval()


def test_packed_rows_give_the_logits_of_the_stock_model():
    made = processor()
    model = tiny(made.tokenizer)
    rows = PackedPictures(made.tokenizer, "x", 2, 5)
    batch = default_collate([rows[0], rows[1]])
    drawn = sample("x", 1)
    talk = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": drawn.qas[0].question}]}]
    inputs = made(
        text=made.apply_chat_template(talk, add_generation_prompt=True), images=[drawn.image], return_tensors="pt"
    )
    prefix = made.tokenizer(PREFIX, add_special_tokens=False)["input_ids"]
    asked = made.tokenizer(question_text(drawn.qas[0].question), add_special_tokens=False)["input_ids"]
    assert inputs["input_ids"][0].tolist() == prefix + asked  # training text is the chat template's
    ids, _ = encode(made.tokenizer, drawn.qas[0])
    inputs["input_ids"] = torch.tensor([prefix + ids])
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    with torch.no_grad():
        stock = model(**inputs).logits[0, len(prefix) :]
        model.model.text_model.config._attn_implementation = PACKED
        _, packed = packed_logits(model, torch.tensor([prefix]), batch)
    first = batch["segments"][1].flatten() == 1
    torch.testing.assert_close(packed[1][first], stock, atol=1e-4, rtol=1e-4)


def test_only_answers_are_learnt_and_words_of_the_picture_weigh_more():
    made = processor()
    for qa in sample("weights", 0).qas:
        ids, weights = encode(made.tokenizer, qa)
        question = len(made.tokenizer(question_text(qa.question), add_special_tokens=False)["input_ids"])
        assert len(ids) == len(weights)
        assert not any(weights[:question])
        assert all(weights[question:])
        said = "".join(
            made.tokenizer.decode([token]) for token, weight in zip(ids, weights, strict=True) if weight == IMAGE_WEIGHT
        )
        wanted = "".join(qa.answer[start:end] for start, end, kind in qa.spans if kind == "image")
        assert said.replace(" ", "") == wanted.replace(" ", "")


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
