"""SmolVLM-class targets on tiny random checkpoints: prompts with pictures, and equality with HF `generate`."""

import re
from pathlib import Path

import pytest
import tiny
import torch
from PIL import Image
from transformers import (
    Idefics3Config,
    Idefics3ForConditionalGeneration,
    Idefics3ImageProcessor,
    Idefics3Processor,
    LlamaConfig,
    LlavaConfig,
    SmolVLMConfig,
    SmolVLMForConditionalGeneration,
)

import mmspec
from mmspec.errors import InputError
from mmspec.vlm.smolvlm import SmolVLM

RED, BLUE, WIDE = (
    Image.new("RGB", size, color) for size, color in [((50, 40), "red"), ((20, 40), "blue"), ((90, 30), "green")]
)
TEXTS = ["what is the value of the red bar?", "why", "is it taller than the blue one?", "the blue one"]
PICTURES = [[RED, BLUE], [BLUE], [], [WIDE]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.tiny_smolvlm(tmp_path_factory.mktemp("smolvlm"))


@pytest.fixture(scope="module")
def pipe(folder: Path) -> mmspec.Pipeline:
    return mmspec.load(folder, "none", dtype="float64")


def hf_answer(model: torch.nn.Module, inputs: dict[str, torch.Tensor], **options: object) -> list[list[int]]:
    inputs = {name: value.to(model.dtype) if value.is_floating_point() else value for name, value in inputs.items()}
    out = model.generate(**inputs, do_sample=False, **options)[:, inputs["input_ids"].shape[1] :].tolist()
    end = model.generation_config.eos_token_id
    return [row[: row.index(end) + 1] if end in row else row for row in out]


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("drafter", ["none", "prompt-lookup"])
def test_greedy_tokens_equal_those_of_generate(folder: Path, attention: str, drafter: str) -> None:
    model = SmolVLMForConditionalGeneration.from_pretrained(
        folder, dtype=torch.float64, attn_implementation=attention, use_safetensors=True
    )
    ours = mmspec.load(model, drafter)
    answers = ours(PICTURES, TEXTS, max_new_tokens=24)
    # one by one: in float64, eager attention of transformers makes NaN of padding
    prompts = [ours.prepare(*prompt) for prompt in zip(PICTURES, TEXTS, strict=True)]
    expected = [hf_answer(model, inputs, max_new_tokens=24)[0] for inputs in prompts]
    assert [answer.token_ids for answer in answers] == expected
    assert len({tuple(ids) for ids in expected}) == len(TEXTS)


def test_rows_of_a_batch_equal_single_calls(pipe: mmspec.Pipeline) -> None:
    together = pipe.with_drafter("prompt-lookup")(PICTURES, TEXTS, max_new_tokens=24, temperature=1.0, seed=5)
    for row, (pictures, text) in enumerate(zip(PICTURES, TEXTS, strict=True)):
        alone = pipe(pictures, text, max_new_tokens=24, temperature=1.0, seed=5 + row)
        assert together[row].token_ids == alone.token_ids
        assert together[row].prompt_tokens == alone.prompt_tokens


def test_the_answer_depends_on_the_picture_and_on_their_order(pipe: mmspec.Pipeline) -> None:
    answers = [
        pipe(picture, "why", max_new_tokens=12).token_ids for picture in (RED, BLUE, [RED, BLUE], [BLUE, RED], None)
    ]
    assert len({tuple(ids) for ids in answers}) == 5


def test_pictures_take_slots_and_a_prompt_cannot_make_any(pipe: mmspec.Pipeline) -> None:
    ids = pipe.prepare([RED, BLUE], "what is it")["input_ids"][0].tolist()
    assert ids.count(pipe.target.placeholders[0]) == 2 * tiny.IMAGE_TOKENS
    for token in ("<image>", "<video>"):
        with pytest.raises(InputError, match=f"control token '{re.escape(token)}'"):
            pipe(RED, f"what {token} is it")


def test_prompts_are_padded_on_the_left_and_pictures_with_empty_tiles(pipe: mmspec.Pipeline) -> None:
    inputs = pipe.prepare(PICTURES, TEXTS)
    mask = inputs["attention_mask"]
    assert mask[:, -1].all()
    assert (mask.diff(dim=1) >= 0).all()
    assert inputs["pixel_values"].shape == (4, 2, 3, tiny.IMAGE_SIZE, tiny.IMAGE_SIZE)
    assert inputs["pixel_attention_mask"].any(-1).any(-1).sum(-1).tolist() == [2, 1, 0, 1]


def test_pictures_cut_into_several_tiles(folder: Path) -> None:
    processor = tiny.processor()
    processor.image_processor.do_image_splitting = True
    processor.image_processor.size = {"longest_edge": 2 * tiny.IMAGE_SIZE}
    pipe = mmspec.load(folder, "none", processor=processor, dtype="float64")
    pictures, texts = [[WIDE], [RED]], ["why", "what is the value?"]
    inputs = pipe.prepare(pictures, texts)
    assert (inputs["input_ids"] == pipe.target.placeholders[0]).sum(1).tolist() == [
        3 * tiny.IMAGE_TOKENS,
        5 * tiny.IMAGE_TOKENS,
    ]
    answers = pipe(pictures, texts, max_new_tokens=12)
    assert [answer.token_ids for answer in answers] == hf_answer(pipe.target.model, inputs, max_new_tokens=12)


def test_pixels_are_read_once(pipe: mmspec.Pipeline) -> None:
    reads = []
    hook = pipe.target.model.model.vision_model.register_forward_hook(lambda *_: reads.append(1))
    pipe(RED, "why", max_new_tokens=8)
    hook.remove()
    assert len(reads) == 1


def test_pictures_that_do_not_fit_the_slots(pipe: mmspec.Pipeline) -> None:
    inputs = pipe.prepare([RED], "why")
    two = pipe.prepare([RED, BLUE], "why")
    with pytest.raises(InputError, match="do not fit the prompt's image slots"):
        pipe.generate(**{**two, "input_ids": inputs["input_ids"], "attention_mask": inputs["attention_mask"]})


@pytest.mark.parametrize("size", [(1, 1), (1, 190), (190, 1), (3, 5)])
def test_pictures_of_odd_size(pipe: mmspec.Pipeline, size: tuple[int, int]) -> None:
    assert pipe(Image.new("RGB", size, "red"), "why", max_new_tokens=2).token_ids


def test_idefics3_is_served(tmp_path: Path) -> None:
    small = tiny.smolvlm_model().config
    config = Idefics3Config(
        text_config=tiny.text_config(),
        vision_config={**small.vision_config.to_dict(), "model_type": "idefics3_vision"},
        image_token_id=small.image_token_id,
        scale_factor=tiny.SCALE,
        tie_word_embeddings=False,
        pad_token_id=small.pad_token_id,
        eos_token_id=small.eos_token_id,
    )
    torch.manual_seed(0)
    model = Idefics3ForConditionalGeneration(config).eval()
    model.generation_config.eos_token_id = small.eos_token_id
    edge = {"longest_edge": tiny.IMAGE_SIZE}
    images = Idefics3ImageProcessor(do_image_splitting=False, size=edge, max_image_size=edge, resample=3)
    template = tiny.processor().chat_template
    processor = Idefics3Processor(images, tiny.tokenizer(), image_seq_len=tiny.IMAGE_TOKENS, chat_template=template)
    model.save_pretrained(tmp_path)
    processor.save_pretrained(tmp_path)
    pipe = mmspec.load(tmp_path, dtype="float64")
    assert isinstance(pipe.target, SmolVLM)
    pictures, texts = [[RED, BLUE], None], ["why", "what is it"]
    answers = pipe(pictures, texts, max_new_tokens=12)
    expected = hf_answer(pipe.target.model, pipe.prepare(pictures, texts), max_new_tokens=12)
    assert [answer.token_ids for answer in answers] == expected


def test_other_configurations_are_not_served() -> None:
    assert SmolVLM.serves(SmolVLMConfig())
    assert SmolVLM.serves(Idefics3Config(architectures=["Idefics3ForConditionalGeneration"]))
    assert not SmolVLM.serves(SmolVLMConfig(architectures=["SmolVLMModel"]))
    assert not SmolVLM.serves(LlamaConfig())
    assert not SmolVLM.serves(LlavaConfig())
