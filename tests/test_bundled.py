"""The bundled vision-language checkpoints: stock classes load them, they look at the picture, their drafters change
nothing but time."""

from typing import Any

import pytest
import torch
from transformers import AutoModelForImageTextToText, AutoProcessor

import mmspec
from mmspec.checkpoints import bundled
from mmspec.miniworld import sample
from mmspec.miniworld.scoring import final_value, relaxed_match

CLASSES = {
    "smolvlm-mini": "SmolVLMForConditionalGeneration",
    "llava-next-mini": "LlavaNextForConditionalGeneration",
    "pixtral-mini": "LlavaForConditionalGeneration",
    "gemma3-mini": "Gemma3ForConditionalGeneration",
}
EVERY = pytest.mark.parametrize("name", CLASSES)


@pytest.fixture(scope="module", params=CLASSES)
def plain(request: pytest.FixtureRequest) -> Any:
    return mmspec.load(request.param, "none")


def test_all_are_tested() -> None:
    assert sorted(CLASSES) == sorted(name for name, folder in bundled().items() if folder.parts[-3] == "vlm")


def test_together_they_stay_small() -> None:
    files = [file for folder in bundled().values() for file in folder.rglob("*") if file.is_file()]
    assert sum(file.stat().st_size for file in files) <= 160_000_000


def short_questions(count):
    found = []
    for index in range(count):
        drawn = sample("bundled-test", index)
        qa = next(qa for qa in drawn.qas if qa.form == "short")
        found.append((drawn.image, qa))
    return found


@EVERY
def test_files_are_safetensors_and_small(name):
    folder = bundled()[name]
    files = [file for file in folder.rglob("*") if file.is_file()]
    assert max(file.stat().st_size for file in files) <= 25_000_000
    assert not [file for file in files if file.suffix in (".bin", ".pt", ".pkl")]
    for part in (folder, *(folder / "drafters").iterdir()):
        assert list(part.glob("*.safetensors"))
        assert (part / "README.md").read_text().strip()


def test_stock_transformers_gives_the_same_answers(plain):
    model = AutoModelForImageTextToText.from_pretrained(plain.folder, dtype=torch.float32).eval()
    processor = AutoProcessor.from_pretrained(plain.folder)
    assert type(model).__name__ == CLASSES[plain.folder.name]
    for image, qa in short_questions(6):
        talk = [{"role": "user", "content": [{"type": "image", "image": image}, {"type": "text", "text": qa.question}]}]
        inputs = processor.apply_chat_template(
            talk, add_generation_prompt=True, tokenize=True, return_dict=True, return_tensors="pt"
        )
        ids = model.generate(**inputs, max_new_tokens=40, do_sample=False)[0, inputs["input_ids"].shape[1] :]
        ours = plain(image, qa.question, max_new_tokens=40, temperature=0)
        assert ours.token_ids == ids.tolist()
        assert ours.text.strip() == processor.decode(ids, skip_special_tokens=True).strip()


@pytest.mark.slow
def test_answers_depend_on_the_picture(plain):
    asked = short_questions(20)
    images, questions = [image for image, _ in asked], [qa.question for _, qa in asked]

    def right(pictures):
        replies = plain(pictures, questions, max_new_tokens=32, temperature=0)
        return sum(
            relaxed_match(final_value(reply.text), qa.gold) for reply, (_, qa) in zip(replies, asked, strict=True)
        )

    assert right(images) > right(images[1:] + images[:1]) + 5


@pytest.fixture(scope="module", params=[0.0, 1.0])
def told(request: pytest.FixtureRequest, plain: Any) -> tuple[Any, ...]:
    """A question, how it is asked, and what the model says to it without a drafter."""
    drawn = sample("bundled-test", 3, "bar")
    asked = drawn.image, next(qa for qa in drawn.qas if qa.form == "worked").question
    options = {"max_new_tokens": 48, "temperature": request.param, "seed": 5}
    return asked, options, plain(*asked, **options)


@pytest.mark.parametrize("drafter", ["eagle2", "spd"])
def test_drafters_change_nothing_but_time(plain, told, drafter):
    asked, options, expected = told
    found = plain.with_drafter(drafter)(*asked, **options)
    assert found.token_ids == expected.token_ids
    if drafter == "eagle2":
        always = plain.with_drafter(drafter, "own")(*asked, **options)
        assert always.token_ids == expected.token_ids
        assert always.stats.tau > 1.5
        assert always.stats.target_calls < expected.stats.target_calls
