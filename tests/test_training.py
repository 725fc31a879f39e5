"""Training of drafters, on tiny random targets: answers, losses, resuming, the folder that comes out, bad input."""

import copy
import importlib.util
import itertools
import json
import math
import re
import sys
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tiny
import torch
from one_drafter import train_drafter
from PIL import Image
from tokenizers import Tokenizer, decoders, models, normalizers
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

import mmspec
from mmspec import cli
from mmspec.checkpoints import fingerprint, load_drafter, save_drafter, weights_digest
from mmspec.contract import State
from mmspec.drafters.dflash import DFlash
from mmspec.drafters.eagle import Eagle
from mmspec.drafters.eagle3 import Eagle3, Eagle3Head
from mmspec.drafters.hydra import Hydra, HydraHeads
from mmspec.drafters.independent import Independent
from mmspec.drafters.layer import head_config
from mmspec.drafters.medusa import Medusa, MedusaHeads
from mmspec.drafters.none import NoDrafter
from mmspec.errors import CheckpointError, InputError, MismatchError, MissingExtraError, UnknownNameError
from mmspec.sampling import Sampler, Sampling
from mmspec.training import answers
from mmspec.training.answers import Answered, AnswerOptions, collect
from mmspec.training.asking import check_faults, held_out_batches, prepare
from mmspec.training.course import Course
from mmspec.training.data import Lines, Miniworld, as_many_as_read, has_answers, open_data
from mmspec.training.dflash import DFlashRecipe
from mmspec.training.drafter import train_drafters
from mmspec.training.eagle import EagleLoss, EagleRecipe
from mmspec.training.eagle3 import Eagle3Recipe
from mmspec.training.features import Features, head_law
from mmspec.training.folders import claim, made_once
from mmspec.training.loop import Epochs, collate, last_checkpoint, require_training
from mmspec.training.medusa import HydraRecipe, MedusaRecipe
from mmspec.training.muon import build_optimizer, orthogonalized
from mmspec.training.questions import Question, without_slots
from mmspec.training.recipe import Recipe
from mmspec.training.spd import SpdRecipe
from mmspec.training.start import begin, digest, shaped, words_of
from mmspec.training.steps import drafted_slots
from mmspec.training.store import Store
from mmspec.training.unroll import unroll
from mmspec.training.validation import measure
from mmspec.training.written import own_answer

SHORT = AnswerOptions(max_new_tokens=16, batch=4)
COURSE = Course(questions=12, held_out=2, validate_every=6, save_every=4, answers=SHORT)
SMALL: dict[str, Recipe] = {
    "eagle2": EagleRecipe(steps=12, batch=4),
    "spd": SpdRecipe(steps=12, batch=4, warm_steps=3, warm_questions=8, width=32),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.tiny_smolvlm(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def pipe(folder: Path) -> Any:
    return mmspec.load(folder, drafter="none")


@pytest.fixture(scope="module")
def text_pipe() -> Any:
    return mmspec.load(tiny.llama_model().double(), drafter="none", processor=tiny.tokenizer())


class Given(Features):
    """Features that a test made up: row.index -> [T, H]."""

    def __init__(self, features: dict[int, Tensor]) -> None:
        self.kept, self.last, self.free, self.taps = features, {}, 0, (0,)
        self.kept = {index: states[:, None] for index, states in features.items()}
        self.device = torch.device("cpu")


class Written:
    """Questions that a test wrote down."""

    name = "written"

    def __init__(self, *questions: Question) -> None:
        self.questions = questions

    def __len__(self) -> int:
        return len(self.questions)

    def __getitem__(self, index: int) -> Question:
        return self.questions[index]


def made_up(prompt: int, answer: int, index: int = 0, hidden: int = 32) -> tuple[Answered, Tensor]:
    torch.manual_seed(index)
    ids = torch.randint(10, 300, (prompt + answer,)).tolist()
    return Answered(index, ids[:prompt], ids[prompt:], 0.0), torch.randn(prompt + answer, hidden)


# Questions and answers


def test_world_questions_are_long_repeatable_and_not_those_held_out() -> None:
    train, held_out = open_data("miniworld", 9, 4, 0)
    again, _ = open_data("miniworld", 9, 4, 0)
    with pytest.raises(InputError, match="the target reads text only: name a folder with prompts"):
        open_data("miniworld", 9, 4, 0, "text")
    assert len(train) == 9
    assert len(held_out) == 4
    asked = [train[index] for index in range(9)]
    assert [q.prompt for q in asked] == [again[index].prompt for index in range(9)]
    assert all(len(q.answer.split()) > 35 for q in asked if q.answer)
    assert not {q.prompt for q in asked} & {held_out[index].prompt for index in range(4)} - {asked[0].prompt}
    with pytest.raises(IndexError):
        train[9]


def test_answers_are_those_of_single_calls_with_their_own_seed(pipe: Any, tmp_path: Path) -> None:
    questions = Miniworld("test", 8)
    options = AnswerOptions(max_new_tokens=12, batch=2, sampled=0.5, seed=5)
    rows = {row.index: row for row in collect(pipe, questions, options, tmp_path, "it")}
    assert {row.temperature for row in rows.values()} == {0.0, 1.0}
    for row in rows.values():
        asked = questions[row.index]
        alone = pipe(asked.image, asked.prompt, max_new_tokens=12, temperature=row.temperature, seed=5 + row.index)
        assert row.answer == alone.token_ids


def test_answers_follow_the_target_s_own_law_not_its_sampling_defaults(tmp_path: Path) -> None:
    model = tiny.llama_model()
    pipe = mmspec.load(model, drafter="none", processor=tiny.tokenizer())
    options = AnswerOptions(max_new_tokens=8, batch=2, sampled=1)
    questions = Written(Question(None, "What is it?"), Question(None, "Which one?"))
    before = collect(pipe, questions, options, tmp_path / "a", "it")
    model.generation_config.update(do_sample=True, top_k=1, repetition_penalty=3.0)
    assert collect(pipe, questions, options, tmp_path / "b", "it") == before


def test_share_of_sampled_answers(pipe: Any, tmp_path: Path) -> None:
    for share, expected in ((0.0, {0.0}), (1.0, {1.0})):
        options = AnswerOptions(max_new_tokens=4, batch=2, sampled=share)
        rows = collect(pipe, Miniworld("test", 4), options, tmp_path / str(share), "it")
        assert {row.temperature for row in rows} == expected


def test_the_share_of_sampled_answers_is_true_of_few_questions_too(text_pipe: Any, tmp_path: Path) -> None:
    """A longer run on the same source keeps the answers, and large sources keep their batches."""
    lines = Written(*(Question(None, f"Which {n}?") for n in range(10)))
    rows = collect(text_pipe, lines, AnswerOptions(max_new_tokens=4), tmp_path / "all", "it")
    assert sum(row.temperature == 1 for row in rows) == 4
    few = collect(text_pipe, as_many_as_read(lines, 5, None), AnswerOptions(max_new_tokens=4), tmp_path / "few", "it")
    assert few == [row for row in rows if row.index < 5]
    for count, share in itertools.product((20, 40, 100, 250), (0.05, 0.25, 0.5, 0.65, 0.9)):
        options = AnswerOptions(sampled=share)
        size = answers._size(options, Miniworld("test", count))
        sampled = sum(answers._temperature(index // size, options) or 0 for index in range(count))
        assert 0 < sampled < count
        assert sampled / count == pytest.approx(share, abs=0.15)
    for count, options in (
        (640, AnswerOptions(sampled=0.65)),
        (128, AnswerOptions()),
        (9, AnswerOptions(sampled=1)),
        (9, AnswerOptions("data")),
    ):
        assert answers._size(options, Miniworld("test", count)) == 32


def test_answers_with_too_little_to_draft_are_left_out(text_pipe: Any) -> None:
    rows = [Answered(length, [5, 6], [20] * length, 0.0) for length in range(5)]
    assert answers._usable(rows, Written(), text_pipe.target) == rows[3:]


def test_interrupted_answers_go_on_where_they_stopped(
    pipe: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    questions, options = Miniworld("test", 10), AnswerOptions(max_new_tokens=8, batch=4, sampled=0)
    whole = collect(pipe, questions, options, tmp_path / "whole", "it")
    generate, calls = pipe.generate, []

    def counted(**inputs: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return generate(**inputs)

    monkeypatch.setattr(pipe, "generate", counted)
    with pytest.raises(KeyboardInterrupt):
        collect(pipe, questions, options, tmp_path / "cut", "it")
    assert len(list((tmp_path / "cut").glob("*.jsonl"))) == 1
    (tmp_path / "cut" / "00001.jsonl").write_text(
        '{"index": 4, "pro'
    )  # as a system without atomic writes might leave it
    assert collect(pipe, questions, options, tmp_path / "cut", "it") == whole
    assert len(calls) == 4  # one before, one that broke, the two that were missing


def test_more_questions_continue_a_folder_and_other_settings_do_not(pipe: Any, tmp_path: Path) -> None:
    options = AnswerOptions(max_new_tokens=8, batch=4, sampled=0)
    few = collect(pipe, Miniworld("test", 3), options, tmp_path, "it")
    more = collect(pipe, Miniworld("test", 8), options, tmp_path, "it")
    assert more[: len(few)] == few
    assert {row.index for row in more} > {3, 4}  # the shard that was not full was made again
    with pytest.raises(MismatchError, match="differs in target"):
        collect(pipe, Miniworld("test", 4), options, tmp_path, "another")
    with pytest.raises(MismatchError, match="differs in max_new_tokens"):
        collect(pipe, Miniworld("test", 4), replace(options, max_new_tokens=9), tmp_path, "it")


def test_own_answers_are_what_the_template_writes(pipe: Any, text_pipe: Any, tmp_path: Path) -> None:
    image = Image.new("RGB", (32, 32), "red")
    questions = Written(Question(image, "Which bar?", "The red one."), Question(None, "Which?", "Blue."))
    rows = collect(pipe, questions, AnswerOptions(author="data"), tmp_path / "a", "it")
    decode = pipe.processor.tokenizer.decode
    assert [decode(row.answer) for row in rows] == [" The red one.<end_of_utterance>", " Blue.<end_of_utterance>"]
    assert decode(rows[1].prompt).endswith("Assistant:")
    assert pipe.target.placeholders[0] in rows[0].prompt
    (plain,) = collect(
        text_pipe, Written(Question(None, "Which?", "Blue.")), AnswerOptions(author="data"), tmp_path, "it"
    )
    assert decode(plain.ids) == "Which?Blue.<end_of_utterance>"


def test_own_answers_end_where_the_target_s_turn_does() -> None:
    """As in Gemma3, whose turns do not end with the tokenizer's last token of a text."""
    pipe = mmspec.load(tiny.smolvlm_model(), drafter="none", processor=tiny.processor())
    question = Question(None, "Which?", "Blue.")
    whole = own_answer(pipe, question)
    turn = whole[-2]  # some token ends the turn
    pipe.target.model.generation_config.eos_token_id = [turn, whole[-1]]
    assert own_answer(pipe, question) == whole[:-1]


def llama_tokenizer() -> PreTrainedTokenizerFast:
    """As Llama's in LLaVA's checkpoints: what is encoded gets a space in front, and so gets two where it begins with
    one."""
    words = ["<unk>", "<s>", "</s>", "<image>", "▁", "▁I", "▁It", *map(chr, range(32, 127))]
    vocabulary = {word: number for number, word in enumerate(words)}
    made = Tokenizer(models.BPE(vocabulary, [("▁", "I"), ("▁I", "t")], unk_token="<unk>"))
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse()])
    return PreTrainedTokenizerFast(
        tokenizer_object=made, unk_token="<unk>", bos_token="<s>", eos_token="</s>", extra_special_tokens=["<image>"]
    )


def templated(tokenizer: Any, template: str) -> Any:
    """What `own_answer` asks of a pipeline, with this chat template."""
    processor = copy.deepcopy(tiny.processor())
    processor.tokenizer, processor.chat_template = tokenizer, template
    target = SimpleNamespace(makes="text", ends=lambda: [tokenizer.eos_token_id])
    return SimpleNamespace(processor=processor, target=target)


PARTS = "{% for part in message['content'] %}{{ part['text'] + ' ' if 'text' in part else '<image>' }}{% endfor %}"
LLAVA = "{% for message in messages %}{{ message['role'] | upper }}: " + PARTS + "{% endfor %}"
LLAVA += "{% if add_generation_prompt %}ASSISTANT:{% endif %}"
LLAVA_MISTRAL = LLAVA.replace("+ ' ' if", "+ (' ' if message['role'] == 'user' else '<\\\\s> ') if")
"""The template of LLaVA-1.6 with Mistral ends a turn with what is no token."""


@pytest.mark.parametrize("template", [LLAVA, LLAVA_MISTRAL])
@pytest.mark.parametrize("answer", ["It is red.", "It is red.\n"])
def test_own_answers_end_where_the_template_writes_no_end_and_begin_as_the_target_would(
    template: str, answer: str
) -> None:
    """LLaVA's."""
    tokenizer = llama_tokenizer()
    ids = own_answer(templated(tokenizer, template), Question(Image.new("RGB", (8, 8)), "Which?", answer))
    assert tokenizer.convert_ids_to_tokens(ids) == ["▁It", "▁", *"is", "▁", *"red.", "</s>"]


def test_own_answers_of_nothing_are_an_end_alone() -> None:
    tokenizer = llama_tokenizer()
    assert own_answer(templated(tokenizer, LLAVA), Question(None, "Which?", " ")) == [tokenizer.eos_token_id]


def test_own_answers_begin_as_the_target_would_where_the_template_ends_them_too() -> None:
    tokenizer, template = llama_tokenizer(), LLAVA.replace("{% endfor %}{% if", "</s>{% endfor %}{% if")
    ids = own_answer(templated(tokenizer, template), Question(None, "Which?", "It is red."))
    assert tokenizer.convert_ids_to_tokens(ids) == ["▁It", "▁", *"is", "▁", *"red.", "▁", "</s>"]


MISTRAL = "<|im_start|>{% for message in messages %}{% if message['role'] == 'user' %}[INST]" + PARTS + "[/INST]"
MISTRAL += "{% else %}{{ ANSWER + '<end_of_utterance>' }}{% endif %}{% endfor %}"


@pytest.mark.parametrize("written", ["message['content']", "message['content'].strip()"])
def test_own_answers_are_plain_texts_where_a_template_takes_no_others(written: str) -> None:
    """As those of Mistral and Pixtral."""
    pipe = templated(tiny.tokenizer(), MISTRAL.replace("ANSWER", written))
    ids = own_answer(pipe, Question(Image.new("RGB", (8, 8)), "Which?", "Blue."))
    assert tiny.tokenizer().decode(ids) == "Blue.<end_of_utterance>"


def test_a_template_that_takes_no_answers_at_all_is_one_clear_error() -> None:
    pipe = templated(tiny.tokenizer(), MISTRAL.replace("ANSWER", "message['content'] + 1"))
    with pytest.raises(InputError, match="SmolVLMProcessor refuses the prompt: "):
        own_answer(pipe, Question(None, "Which?", "Blue."))


def test_data_without_answers_cannot_be_learnt_from(pipe: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no answer in the data: use the target's \(--answers target\)$"):
        collect(pipe, Written(Question(None, "Which?")), AnswerOptions(author="data"), tmp_path, "it")


def test_a_first_lesson_from_the_data_s_own_answers_is_refused_where_it_has_none(
    text_pipe: Any, tmp_path: Path
) -> None:
    """Before the target has answered anything."""
    lines = [{"prompt": f"Which {n}?"} for n in range(10)]
    course = replace(COURSE, data=str(write(tmp_path / "data", *lines)), questions=8)
    with pytest.raises(InputError, match="has none: give --warm-steps 0"):
        train_drafter(text_pipe, SMALL["spd"], course, tmp_path / "out", tmp_path / "run", "it")
    write(tmp_path / "data", {**lines[0], "answer": "This."}, *lines[1:])  # the first alone has one
    with pytest.raises(InputError, match=r"the warm-up .* \(--warm-steps 0 leaves it out\): 7 of 8 questions of "):
        train_drafter(text_pipe, SMALL["spd"], course, tmp_path / "out", tmp_path / "run", "it")
    assert not list(tmp_path.glob("run/answers-target*"))


def test_only_the_first_process_forgets_what_a_folder_was_for(
    text_pipe: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others may come when the first answers are still to be made, and would take the file from under each other."""
    settings, options = tmp_path / "settings.json", AnswerOptions(author="data")
    settings.write_text("{}")
    monkeypatch.setattr(answers, "group", lambda: SimpleNamespace(is_main_process=False, process_index=1))
    with pytest.raises(MismatchError):
        collect(text_pipe, Written(Question(None, "Which?", "Blue.")), options, tmp_path, "it")
    assert settings.read_text() == "{}"


def test_a_place_that_cannot_be_a_run_s_folder_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot write to"):
        claim(tmp_path / "file" / "run", {})
    (tmp_path / "settings.json").write_text("[1]")
    with pytest.raises(MismatchError, match="differs in a"):
        claim(tmp_path, {"a": 1})


def test_what_a_run_makes_once_is_kept_whole_or_not_at_all(tmp_path: Path) -> None:
    made: list[str] = []

    class Note:
        def __init__(self, breaks: bool = False) -> None:
            made.append("a note")
            self.breaks = breaks

        def save_pretrained(self, folder: Path) -> None:
            (folder / "config.json").write_text("{}")
            if self.breaks:
                raise MemoryError

        @staticmethod
        def from_pretrained(folder: Path, **how: Any) -> Any:
            return [path.name for path in folder.iterdir()], how

    with pytest.raises(MemoryError):
        made_once(tmp_path / "note", lambda: Note(breaks=True), Note)
    assert not list(tmp_path.iterdir())
    for _ in range(2):
        assert made_once(tmp_path / "note", Note, Note, dtype=4) == (["config.json"], {"dtype": 4})
    assert len(made) == 2  # the one that broke, and one that was kept


LONG = "What is it, and why? " * 16  # the whole context


@pytest.mark.parametrize("batch", [2, 4])
@pytest.mark.parametrize("author", ["target", "data"])
def test_questions_that_do_not_fit_are_left_out(
    author: str, batch: int, text_pipe: Any, tmp_path: Path, caplog: Any
) -> None:
    """The others get the answers that they would have got, at temperatures 0 and 1 (in batches of two)."""
    context = text_pipe.target.decoder.max_length
    asked = [Question(None, f"Which one of the {n}?", "It is the red one.") for n in range(4)]
    options = AnswerOptions(author=author, max_new_tokens=8, batch=batch)
    want = collect(text_pipe, Written(*asked), options, tmp_path / "short", "it")
    assert not caplog.records
    mixed = Written(replace(asked[0], prompt=LONG), asked[1], asked[2], replace(asked[3], prompt=LONG + "It"))
    assert collect(text_pipe, mixed, options, tmp_path / "mixed", "it") == [row for row in want if row.index in (1, 2)]
    assert [record.getMessage() for record in caplog.records] == [
        f"2 of 4 prompts fill the model's context of {context} tokens: left out"
    ]
    assert [len(batch["input_ids"]) for batch in held_out_batches(text_pipe, mixed, 2)[0]] == [1, 1]
    with pytest.raises(InputError, match=rf"no prompt of written fits: .* the model's context is {context}"):
        collect(text_pipe, Written(mixed[0], mixed[3]), options, tmp_path / "long", "it")
    with pytest.raises(InputError, match="no held-out prompt fits"):
        held_out_batches(text_pipe, Written(mixed[0]), 2)


def test_features_are_those_of_prefill_whatever_is_kept(pipe: Any, tmp_path: Path) -> None:
    questions = Miniworld("test", 4)
    rows = collect(pipe, questions, AnswerOptions(max_new_tokens=8, batch=4), tmp_path, "it")
    keeping, forgetting = Features(pipe, questions), Features(pipe, questions, memory=0)
    first = keeping(rows)
    assert len(keeping.kept) == len(rows)
    assert keeping.size(rows) == sum(states.nbytes for states in keeping.kept.values())
    assert not forgetting.kept
    torch.testing.assert_close(keeping(rows[::-1]), first.flip(0))
    torch.testing.assert_close(forgetting(rows[:1]), first[:1, : len(rows[0].ids)])
    greedy = pipe.target.head(first[0])[rows[0].start - 1 : len(rows[0].ids) - 1].argmax(-1)
    assert rows[0].temperature == 0
    assert greedy.tolist() == rows[0].answer


def test_several_states_stand_side_by_side_in_the_order_that_is_asked_for(pipe: Any, tmp_path: Path) -> None:
    questions = Miniworld("test", 2)
    rows = collect(pipe, questions, AnswerOptions(max_new_tokens=8, batch=2), tmp_path, "it")
    features = Features(pipe, questions, (0, 1))
    for taps in ((0, 1), (1, 0)):
        assert torch.equal(features(rows, taps), torch.cat([features(rows, (tap,)) for tap in taps], -1))


@pytest.mark.parametrize(("sharers", "kept"), [(1, 2), (2, 1), (3, 0)])
def test_a_store_leaves_room_for_what_other_processes_put_there(sharers: int, kept: int, tmp_path: Path) -> None:
    store = Store(tmp_path, 10_000, sharers)
    for name in "abc":
        store.put(name, {"states": torch.zeros(1000)})
    assert sum(store.get(name) is not None for name in "abc") == kept


def test_a_large_batch_is_read_a_few_answers_at_a_time(pipe: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    questions, ids = Miniworld("test", 20), []
    asked = [prepare(pipe, [questions[index]])["input_ids"][0].tolist() for index in range(20)]
    rows = [Answered(index, prompt, [20, 21, 22], 0.0) for index, prompt in enumerate(asked)]
    read = pipe.target.read
    monkeypatch.setattr(pipe.target, "read", lambda *told: ids.append(len(told[1])) or read(*told))
    whole = Features(pipe, questions)(rows)
    assert sum(ids) == 20
    assert max(ids) <= 8
    torch.testing.assert_close(whole[13:14, : len(rows[13].ids)], Features(pipe, questions)([rows[13]]))


def test_kept_states_lie_in_the_computer_s_memory_and_go_where_they_are_used(pipe: Any, tmp_path: Path) -> None:
    questions = Miniworld("test", 4)
    rows = collect(pipe, questions, AnswerOptions(max_new_tokens=8, batch=4), tmp_path, "it")
    features = Features(pipe, questions)
    first = features(rows)
    kept, last = ({states.data_ptr() for states in some.values()} for some in (features.kept, features.last))
    assert kept == last  # on a CPU nothing is copied
    features.last, features.device = {}, torch.device("meta")  # in place of a GPU
    assert features(rows).device.type == "meta"
    assert features(rows).shape == first.shape
    assert {states.device.type for states in features.kept.values()} == {"cpu"}

    class Elsewhere(Features):
        def _compute(self, rows: list[Answered]) -> list[Tensor]:
            return [states.to("meta") for states in super()._compute(rows)]

    keeping, forgetting = Elsewhere(pipe, questions), Elsewhere(pipe, questions, memory=0)
    keeping.device = forgetting.device = torch.device("meta")
    assert forgetting(rows).device.type == "meta"
    with pytest.raises(NotImplementedError, match="meta"):  # it wants them on the CPU, where these cannot go
        keeping(rows)


def test_the_target_keeps_its_precision_while_the_drafter_s_is_mixed(pipe: Any, tmp_path: Path) -> None:
    questions, (row, states) = Miniworld("test", 4), made_up(5, 8)
    rows = collect(pipe, questions, AnswerOptions(max_new_tokens=8, batch=4), tmp_path, "it")
    recipe, net = EagleRecipe(), EagleRecipe().build(pipe.target)
    laws: list[Tensor] = []

    class Noted(EagleLoss):
        def judge(self, estimate: Tensor, goal: Tensor, law: Tensor) -> Tensor:
            laws.append(law)
            return super().judge(estimate, goal, law)

    def computed() -> list[Tensor]:
        laws.clear()
        Noted(net, pipe.target, Given({0: states}), recipe)(torch.zeros(1), [row])
        return [Features(pipe, questions)(rows), head_law(pipe.target, states), *laws]

    plain = computed()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = computed()
    assert len(mixed) == 2 + recipe.unroll
    for one, other in zip(plain, mixed, strict=True):
        torch.testing.assert_close(other, one, rtol=0, atol=0)


# The losses


def test_slots_that_draft_are_those_whose_token_lies_in_the_answer() -> None:
    rows = [made_up(5, 6)[0], made_up(3, 4, 1)[0]]
    first, slots = 2, 9
    for step in range(4):
        drafted = drafted_slots(rows, first, slots, step)
        for row, slot in itertools.product(range(2), range(first, slots)):
            root = slot - step  # holds the token root + 1, which must have been emitted: it lies in the answer
            token = slot + 2
            expected = root + 1 >= rows[row].start and token < len(rows[row].ids)
            assert bool(drafted[row, slot - first]) == expected, (step, row, slot)


@pytest.mark.dynamic("counts the drafter's forwards, and a static one reads the prompt apart")
@pytest.mark.parametrize("seed", [0, 1])
def test_unroll_equals_drafting_with_the_cache(text_pipe: Any, seed: int) -> None:
    """The estimates of a chain that the drafter grows are those of the training forward, step by step."""
    target = text_pipe.target
    heads = EagleRecipe(seed=seed).build(target).double()
    seen: list[Tensor] = []

    class Recorded(Eagle):
        def __init__(self) -> None:
            super().__init__(heads, depth=4, width=1, top_k=1, total=5)
            heads.register_forward_hook(lambda net, inputs, output: seen.append(output))

    drafter = Recorded()
    drafter.bind(target)
    inputs = text_pipe.prepare(None, ["what is the value of the red bar?", "there are four"])
    sampler = Sampler(Sampling(), 2, target.model.device)
    with torch.inference_mode():
        state: State = target.prefill({**inputs, "max_new_tokens": 20}, drafter.needs, sampler)
        assert state.pending is not None
        for row, token in zip(state.ids, state.pending.tolist(), strict=True):
            row.append(token)
        draft = drafter.begin(state, sampler, "point").propose(state)
    assert len(seen) == 4
    for row, ids in enumerate(state.ids):
        root = len(ids) - 2  # the slot of the pending token
        tokens = torch.tensor([ids[1:] + draft.tokens[row, 1:].tolist()])
        features = torch.randn(1, tokens.shape[1], 32, dtype=torch.float64)  # what comes after the root is never read
        features[0, : root + 1] = state.prompt_taps[target.num_layers][row, : root + 1]
        with torch.no_grad():
            estimates = unroll(heads, target.embed(tokens), features, 3, 4)
        for step, estimate in enumerate(estimates):
            drafted = seen[step][row, root] if step == 0 else seen[step][row, 0]
            torch.testing.assert_close(estimate[0, root + step - 3], drafted)
            with torch.no_grad():
                assert target.head(estimate[0, root + step - 3]).argmax() == draft.tokens[row, step + 1]


def test_eagle_loss_of_a_batch_is_that_of_its_rows(pipe: Any) -> None:
    """Padding, the common window and other rows do not leak into the loss."""
    rows, features = zip(*(made_up(*size, index) for index, size in enumerate([(6, 9), (4, 5), (9, 7)])), strict=True)
    given = Given(dict(enumerate(features)))
    recipe = EagleRecipe(noise=0.0, decay=1.0, unroll=1, feature_weight=0.3)
    loss = EagleLoss(recipe.build(pipe.target), pipe.target, given, recipe)
    drafted = [len(row.answer) - 1 for row in rows]
    alone = [loss(torch.zeros(1), [row]) * count for row, count in zip(rows, drafted, strict=True)]
    together = loss(torch.zeros(1), list(rows))
    torch.testing.assert_close(together, sum(alone) / sum(drafted))


def test_eagle_loss_of_a_perfect_head_is_the_entropy_of_the_target(pipe: Any) -> None:
    row, features = made_up(5, 8)

    class Perfect(nn.Module):
        def forward(self, embeddings: Tensor, seen: Tensor, positions: Tensor, mask: Any, cache: Any) -> Tensor:
            return features[positions[0] + 1][None]

    recipe = EagleRecipe(unroll=3, feature_weight=1.0)
    loss = EagleLoss(Perfect(), pipe.target, Given({0: features}), recipe)(torch.zeros(1), [row])  # type: ignore[arg-type]
    # Law of the tokens 1 .. 7 of the answer in step 0, of one fewer at its start in each further step.
    entropy = torch.distributions.Categorical(logits=pipe.target.head(features[5:12])).entropy()
    steps = [recipe.decay**step * entropy[step:].mean() for step in range(3)]
    torch.testing.assert_close(loss, sum(steps) / sum(recipe.decay**step for step in range(3)))


def test_noise_depends_on_the_place_in_the_run_only(pipe: Any) -> None:
    row, features = made_up(5, 8)
    recipe = EagleRecipe()
    loss = EagleLoss(recipe.build(pipe.target), pipe.target, Given({0: features}), recipe)
    values = []
    for place in (3, 4, 3):
        torch.rand(7)  # somebody else uses the global generator
        values.append(float(loss(torch.tensor([place]), [row]).detach()))
    assert values[0] == values[2] != values[1]


def test_noise_is_as_large_beside_a_longer_answer(pipe: Any) -> None:
    """It is relative to the features, of which padding is none."""
    recipe = EagleRecipe(noise=0.25)
    loss = EagleLoss(recipe.build(pipe.target), pipe.target, Given({}), recipe)
    torch.manual_seed(0)
    short, long = torch.randn(40, 32), torch.randn(400, 32)
    batch = torch.nn.utils.rnn.pad_sequence([short, short, short, long], batch_first=True)
    widths = [float(loss._noise(3, features).abs().max()) for features in (short[None], batch)]
    assert widths == pytest.approx([0.25, 0.25], rel=0.05)
    # where nothing is padded it is what it was
    drawn = torch.rand(1, 40, 32, generator=torch.Generator().manual_seed(3)) - 0.5
    assert torch.equal(loss._noise(3, short[None]), drawn * (0.5 * short[None].square().mean().sqrt()))


def test_spd_never_sees_image_slots_and_learns_answers_only(pipe: Any) -> None:
    slot = pipe.target.placeholders[0]
    row, _ = made_up(4, 5)
    filled = Answered(0, [row.prompt[0], slot, slot, *row.prompt[1:]], row.answer, 0.0)
    recipe = SpdRecipe(width=32)
    loss = recipe.loss(recipe.build(pipe.target), pipe.target, None)
    value = loss(position=torch.zeros(1), rows=[filled])
    torch.testing.assert_close(value, loss(position=torch.zeros(1), rows=[row]))
    ids = torch.tensor([row.ids])
    logits = loss.model(input_ids=ids).logits[0, row.start - 1 : -1]  # type: ignore[attr-defined]
    torch.testing.assert_close(value, nn.functional.cross_entropy(logits, torch.tensor(row.answer)))


def test_spd_law_is_read_at_the_answers_positions(pipe: Any) -> None:
    rows, features = zip(*(made_up(*size, index) for index, size in enumerate([(6, 9), (4, 5)])), strict=True)
    recipe = SpdRecipe(width=32, token_weight=0.0)
    net = recipe.build(pipe.target)
    value = recipe.loss(net, pipe.target, Given(dict(enumerate(features))))(position=torch.zeros(1), rows=list(rows))
    total = 0.0
    for row, feature in zip(rows, features, strict=True):
        for place in range(row.start, len(row.ids)):
            q = net(input_ids=torch.tensor([row.ids[:place]])).logits[0, -1].log_softmax(-1)
            total -= float((pipe.target.head(feature[place - 1]).softmax(-1) * q).sum().detach())
    assert float(value.detach()) == pytest.approx(total / 14, rel=1e-4)


@pytest.mark.parametrize("method", SMALL)
def test_a_few_steps_lower_the_loss(method: str, pipe: Any) -> None:
    rows, features = zip(*(made_up(6, 8, index) for index in range(4)), strict=True)
    recipe = SMALL[method]
    net = recipe.build(pipe.target)
    loss = recipe.loss(net, pipe.target, Given(dict(enumerate(features))))
    optimizer = build_optimizer(net, 0.02)
    values = []
    for _ in range(40):
        value = loss(position=torch.zeros(1), rows=list(rows))
        values.append(float(value.detach()))
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
    assert values[-1] < values[0] - 0.5


def test_muon_makes_updates_orthogonal_and_keeps_tables_out() -> None:
    torch.manual_seed(0)
    values = torch.linalg.svdvals(orthogonalized(torch.randn(2, 12, 8)))
    assert values.min() > 0.5
    assert values.max() < 1.5
    net = SpdRecipe(width=32).build(mmspec.load(tiny.llama_model(), drafter="none", processor=tiny.tokenizer()).target)
    matrices, rest = build_optimizer(net, 0.01).param_groups
    assert net.get_input_embeddings().weight not in set(matrices["params"])
    assert len(matrices["params"]) == 2 * 7
    assert len(matrices["params"]) + len(rest["params"]) == len(list(net.parameters()))


def test_output_heads_of_a_start_s_own_learn_as_tables(pipe: Any) -> None:
    def tables(net: nn.Module) -> set[int]:
        _, rest = build_optimizer(net, 0.01).param_groups
        return {id(weight) for weight in rest["params"]}

    target = mmspec.load(tiny.llama_model(), drafter="none", processor=tiny.tokenizer()).target
    untied = tiny.llama_model(hidden=16)
    assert not untied.config.tie_word_embeddings
    begun = SpdRecipe().begin(Independent(untied), target)
    assert id(begun.lm_head.weight) in tables(begun)
    for recipe, made in (
        (MedusaRecipe(), Medusa(MedusaHeads(head_config(target), 2, projected=True))),
        (HydraRecipe(), Hydra(HydraHeads(head_config(target), 2, projected=True))),
    ):
        begun = recipe.begin(made, target)
        assert {id(one.weight) for one in begun.projections} <= tables(begun)
        assert not tables(begun) & {id(weight) for weight in begun.heads.parameters() if weight.ndim == 2}


# Runs


def test_tau_without_drafts_is_one(pipe: Any) -> None:
    inputs = pipe.prepare(None, ["what is the value?", "there are four bars"])
    assert measure(pipe, NoDrafter(), [inputs], 12, 0) == {"tau_t0": 1.0, "tau_t1": 1.0}


class Drawn:
    """A pipeline whose answers are made up, and that notes the seed of every row. input_ids: tokens and rounds."""

    target = SimpleNamespace(makes="text")

    def __init__(self) -> None:
        self.seeds: list[int] = []

    def with_drafter(self, drafter: Any) -> "Drawn":
        return self

    def generate(self, input_ids: list[tuple[int, int]], seed: int, **how: Any) -> Any:
        self.seeds += range(seed, seed + len(input_ids))
        stats = [SimpleNamespace(new_tokens=1 + tokens, accept_lengths=[1] * rounds) for tokens, rounds in input_ids]
        made = [SimpleNamespace(stats=one) for one in stats]
        return made if len(made) > 1 else made[0]


def test_tau_of_several_batches_is_that_of_one() -> None:
    rows = [(6, 2), (9, 9), (4, 1)]
    whole, parts = Drawn(), Drawn()
    want = {"tau_t0": 19 / 12, "tau_t1": 19 / 12}
    assert measure(whole, NoDrafter(), [{"input_ids": rows}], 12, 5) == want
    assert measure(parts, NoDrafter(), [{"input_ids": rows[:2]}, {"input_ids": rows[2:]}], 12, 5) == want
    assert whole.seeds == parts.seeds == [5, 6, 7] * 2


def checkpoint_of(run: Path, method: str) -> Path:
    (folder,) = run.glob(f"{method}-*")
    checkpoint = last_checkpoint(folder)
    assert checkpoint is not None
    return Path(checkpoint)


def losses(run: Path, method: str) -> list[tuple[int, float]]:
    checkpoint = checkpoint_of(run, method)
    history = json.loads((checkpoint / "trainer_state.json").read_text())["log_history"]
    return [(entry["step"], float(entry["loss"])) for entry in history if "loss" in entry]


@pytest.mark.parametrize("method", SMALL)
def test_a_killed_run_resumes_to_the_same_losses_and_drafter(
    method: str, pipe: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = SMALL[method]
    kind = type(recipe.loss(recipe.build(pipe.target), pipe.target, Given({})))
    call, calls, places = kind.__call__, itertools.count(1), []

    def noted(self: Any, **batch: Any) -> Tensor:
        places.extend(batch["position"].tolist())
        return call(self, **batch)

    monkeypatch.setattr(kind, "__call__", noted)
    figures = train_drafter(pipe, recipe, COURSE, tmp_path / "whole", tmp_path / "run", "tiny")
    assert places == [*range(4 * recipe.warm_steps), *range(4 * recipe.steps)]

    def killed(self: Any, **batch: Any) -> Tensor:
        if next(calls) == 11:
            raise KeyboardInterrupt
        return call(self, **batch)

    monkeypatch.setattr(kind, "__call__", killed)
    with pytest.raises(KeyboardInterrupt):
        train_drafter(pipe, recipe, COURSE, tmp_path / "cut", tmp_path / "again", "tiny")
    monkeypatch.undo()
    assert not (tmp_path / "cut").exists()
    left = checkpoint_of(tmp_path / "again", method)
    half = left.with_name("checkpoint-10")  # killed while it was written
    half.mkdir()
    (half / "model.safetensors").write_bytes(b"\x08")
    assert checkpoint_of(tmp_path / "again", method) == left

    places.clear()
    monkeypatch.setattr(kind, "__call__", noted)
    assert train_drafter(pipe, recipe, COURSE, tmp_path / "cut", tmp_path / "again", "tiny") == pytest.approx(figures)
    assert places == list(range(4 * int(left.name.split("-")[1]), 4 * recipe.steps))
    unbroken, resumed = losses(tmp_path / "run", method), losses(tmp_path / "again", method)
    assert [step for step, _ in unbroken] == list(range(1, 13))
    assert [step for step, _ in resumed] == [step for step, _ in unbroken]
    for (_, one), (_, other) in zip(unbroken, resumed, strict=True):
        assert one == pytest.approx(other, abs=1e-6)
    whole = mmspec.load(pipe.target.model, tmp_path / "whole", processor=pipe.processor)
    cut = mmspec.load(pipe.target.model, tmp_path / "cut", processor=pipe.processor)
    for one, other in zip(_net(whole).parameters(), _net(cut).parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-2, atol=1e-4)  # stored in bfloat16


def _net(pipe: Any) -> nn.Module:
    return pipe.drafter.net


@pytest.mark.parametrize("method", SMALL)
def test_a_finished_run_only_writes_its_drafter_again(method: str, pipe: Any, tmp_path: Path) -> None:
    recipe = SMALL[method]
    first = train_drafter(pipe, recipe, COURSE, tmp_path / "one", tmp_path / "run", "tiny")
    assert train_drafter(pipe, recipe, COURSE, tmp_path / "two", tmp_path / "run", "tiny") == first
    assert (tmp_path / "one" / "model.safetensors").read_bytes() == (
        tmp_path / "two" / "model.safetensors"
    ).read_bytes()
    assert (tmp_path / "one" / "README.md").read_text() == (tmp_path / "two" / "README.md").read_text()


def test_the_drafter_drafts_losslessly_and_its_card_holds_the_run_s_figures(
    folder: Path, pipe: Any, tmp_path: Path
) -> None:
    out = tmp_path / "drafter"
    pipe.target.model.zero_grad()
    figures = train_drafter(pipe, SMALL["eagle2"], COURSE, out, tmp_path / "run", "tiny-target")
    assert all(parameter.grad is None and parameter.requires_grad for parameter in pipe.target.model.parameters())
    card = (out / "README.md").read_text()
    assert f"| 12 | {figures['tau_t0']:.2f} | {figures['tau_t1']:.2f} |" in card
    assert f"Loss at step 12: {losses(tmp_path / 'run', 'eagle2')[-1][1]:.4f}." in card
    assert "| steps | 12 |" in card
    assert "tiny-target" in card
    assert str(tmp_path) not in card
    fast = mmspec.load(folder, drafter=out)
    question = "what is the value of the red bar?"
    picture = Image.new("RGB", (40, 30), "blue")
    for temperature in (0.0, 1.0):
        options = {"max_new_tokens": 24, "temperature": temperature}
        assert fast(picture, question, **options).token_ids == pipe(picture, question, **options).token_ids
    other = mmspec.load(tiny.llama_model(hidden=64), drafter="none", processor=tiny.tokenizer())
    with pytest.raises(MismatchError):
        other.with_drafter(out)


def test_training_helps(text_pipe: Any, tmp_path: Path) -> None:
    """A head that is trained on a few questions drafts better on them than a new one."""
    pipe = mmspec.load(tiny.llama_model(), drafter="none", processor=tiny.tokenizer())
    lines = [{"prompt": f"what is the value of bar {number}?"} for number in range(4)] * 2
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.jsonl").write_text("\n".join(map(json.dumps, lines)))
    course = Course(
        str(tmp_path / "data"), held_out=4, validate_every=1000, answers=AnswerOptions(max_new_tokens=24, sampled=0)
    )
    small = train_drafter(pipe, EagleRecipe(steps=1, batch=4), course, tmp_path / "a", tmp_path / "run-a", "tiny")
    large = train_drafter(pipe, EagleRecipe(steps=60, batch=4), course, tmp_path / "b", tmp_path / "run-b", "tiny")
    assert large["tau_t0"] > small["tau_t0"] + 1
    begun = replace(course, start=str(tmp_path / "b"))
    again = train_drafter(pipe, EagleRecipe(steps=1, batch=4), begun, tmp_path / "c", tmp_path / "run-a", "tiny")
    assert again["tau_t0"] > small["tau_t0"] + 1
    with pytest.raises(MismatchError, match="of medusa cannot start with that drafter: .*missing"):
        train_drafter(pipe, MedusaRecipe(steps=1, batch=4), begun, tmp_path / "d", tmp_path / "run-a", "tiny")
    nowhere = replace(course, start=str(tmp_path / "nowhere"))
    with pytest.raises(UnknownNameError, match="nowhere"):  # before anything is answered
        train_drafter(pipe, EagleRecipe(steps=1, batch=4), nowhere, tmp_path / "e", tmp_path / "run-e", "tiny")
    assert not list((tmp_path / "run-e").rglob("*.jsonl"))


def test_training_begins_with_a_drafter_of_another_target_of_the_same_shape(
    pipe: Any, text_pipe: Any, tmp_path: Path
) -> None:
    recipe = EagleRecipe(steps=1, batch=1)
    net = recipe.build(pipe.target)
    save_drafter(recipe.drafter(net), tmp_path / "eagle2", pipe.target)
    with pytest.raises(MismatchError, match="another target"):
        load_drafter(tmp_path / "eagle2", text_pipe.target)
    medusa = MedusaRecipe(steps=1, batch=1)
    save_drafter(medusa.drafter(medusa.build(pipe.target)), tmp_path / "medusa", pipe.target)
    found = begin(str(tmp_path), ["eagle2", "medusa"], text_pipe.target)
    assert list(found) == ["eagle2", "medusa"]
    assert len(begin(str(tmp_path / "medusa"), ["medusa"], text_pipe.target)) == 1
    new = EagleRecipe(steps=1, batch=1, seed=5).begin(found["eagle2"], text_pipe.target)
    assert all(torch.equal(value, net.state_dict()[name]) for name, value in new.state_dict().items())


def test_a_drafter_learns_on_in_its_own_form(pipe: Any, tmp_path: Path) -> None:
    """Other layers that it listens to, another attention, another MLP, fewer words: nothing of it is the recipe's."""
    recipe = DFlashRecipe(steps=1, batch=1, intermediate=24)
    net = recipe.build(pipe.target)
    net.settings["taps"] = [0]
    net.config.rope_parameters = {"rope_type": "default", "rope_theta": 1e6}
    net.draft_ids = torch.arange(9, 30)
    save_drafter(recipe.drafter(net), tmp_path, pipe.target)
    (start,) = begin(str(tmp_path), ["dflash"], pipe.target).values()
    longer = DFlashRecipe(steps=1, batch=1, block=12, seed=5)
    learnt = longer.suit(longer.begin(start, pipe.target), pipe.target, [])
    assert learnt.settings == {"taps": [0], "block": 12}
    assert learnt.config.rope_parameters["rope_theta"] == 1e6
    assert torch.equal(learnt.draft_ids, net.draft_ids)
    assert all(torch.equal(value, net.state_dict()[name]) for name, value in learnt.state_dict().items())
    assert shaped(longer, learnt).intermediate == 24
    other = DFlashRecipe(steps=1, batch=1, intermediate=48)
    with pytest.raises(MismatchError, match="dflash starts with a drafter whose intermediate is 24, and not 48: leave"):
        other.begin(start, pipe.target)
    fewer = DFlashRecipe(steps=1, batch=1, draft_vocabulary=12)
    assert len(fewer.suit(learnt, pipe.target, []).draft_ids) == 12


def test_what_is_asked_for_holds_though_it_is_the_default(pipe: Any) -> None:
    block = DFlashRecipe().block
    start = DFlash(DFlashRecipe(block=16).build(pipe.target))
    for recipe, size in ((DFlashRecipe(), 16), (DFlashRecipe.asking(block=block), block)):
        net = recipe.begin(start, pipe.target)
        assert net.settings["block"] == shaped(recipe, net).block == size
        start.net.settings["block"] = 16
    levels = MedusaRecipe().levels
    heads = Medusa(MedusaHeads(head_config(pipe.target), 3))
    assert shaped(MedusaRecipe(), heads.net).levels == 3
    with pytest.raises(MismatchError, match=f"whose levels is 3, and not {levels}: leave that setting out"):
        MedusaRecipe.asking(levels=levels).begin(heads, pipe.target)
    asked = EagleRecipe.asking(steps=500, seed=0)
    assert (asked, fields(asked)) == (EagleRecipe(), fields(EagleRecipe()))


def test_the_command_knows_which_defaults_are_asked_for(
    folder: Path, pipe: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    save_drafter(Medusa(MedusaHeads(head_config(pipe.target), 3)), tmp_path / "three", pipe.target)
    few = "--questions 4 --held-out 1 --max-new-tokens 8 --method medusa --start three --levels 5"
    assert command(monkeypatch, "drafter", "--target", str(folder), *few.split()) == 2
    assert "starts with a drafter whose levels is 3, and not 5: leave that setting out" in capfd.readouterr().err


@pytest.mark.parametrize("last", [299, 300])
def test_words_that_the_target_lacks_are_no_start(last: int, pipe: Any) -> None:
    target = mmspec.load(tiny.llama_model(), drafter="none", processor=tiny.tokenizer()).target
    net = Eagle3Head(head_config(target), [0, 1, 2], 8)
    net.config.vocab_size = 400
    net.ids.copy_(torch.arange(last - 7, last + 1))
    if last < target.vocab_size:
        assert torch.equal(Eagle3Recipe().begin(Eagle3(net), target).ids, net.ids)
        return
    with pytest.raises(MismatchError, match="eagle3 cannot start .* ids up to 300, the target has 300"):
        Eagle3Recipe().begin(Eagle3(net), target)


@pytest.mark.parametrize("recipe", [Eagle3Recipe(words=8), EagleRecipe(), EagleRecipe(draft_vocabulary=9)])
def test_words_of_another_tokenizer_are_chosen_anew(recipe: Any, pipe: Any, tmp_path: Path) -> None:
    """By the answers to learn from; what their rows had learnt is of other words."""
    net = replace(recipe, seed=5).build(pipe.target)
    if isinstance(recipe, EagleRecipe):
        net.draft_ids = torch.arange(20, 28)
    else:
        net.words.weight.data.zero_()
    save_drafter(recipe.drafter(net), tmp_path, pipe.target)
    rows = [Answered(0, [1, 2], list(range(40, 49)), 0.0)]

    def begun() -> tuple[Any, str]:
        (start,) = begin(str(tmp_path), [recipe.method], pipe.target).values()
        made = recipe.begin(start, pipe.target)
        mark = digest(made)
        return recipe.suit(made, pipe.target, rows), mark

    asked_for = getattr(recipe, "draft_vocabulary", None)
    (same, mine), told = begun(), tmp_path / "drafter.json"
    if asked_for is None:
        assert torch.equal(words_of(same), words_of(net))
    told.write_text(told.read_text().replace(fingerprint(pipe.target)["tokenizer"], "0" * 64))
    other, theirs = begun()
    count = asked_for or 8
    assert words_of(other).tolist() == list(range(40, 40 + count))
    assert mine != theirs  # an earlier run that took the ids for its own is another one
    if isinstance(recipe, Eagle3Recipe):
        assert torch.equal(other.words.weight, pipe.target.head.weight[40:48])
    layers = [name for name in net.state_dict() if not name.startswith(("words", "ids"))]
    assert all(torch.equal(other.state_dict()[name], net.state_dict()[name]) for name in layers)


def test_a_small_language_model_of_another_shape_learns_to_draft(text_pipe: Any, tmp_path: Path) -> None:
    """It knows fewer words than the target, and keeps its tokenizer, by which it is known again."""
    pipe = mmspec.load(tiny.llama_model(), drafter="none", processor=tiny.tokenizer())
    small = tiny.llama_model(hidden=16, layers=1)
    small.resize_token_embeddings(pipe.target.vocab_size - 8)
    small.save_pretrained(tmp_path / "small")
    tiny.tokenizer().save_pretrained(tmp_path / "small")
    course = Course(str(asked(tmp_path, 8)), held_out=2, validate_every=9, start=str(tmp_path / "small"), answers=SHORT)
    recipe = SpdRecipe(steps=2, batch=4, warm_steps=0)
    train_drafter(pipe, recipe, course, tmp_path / "out", tmp_path / "run", "tiny")
    made = load_drafter(tmp_path / "out", pipe.target)
    assert (made.vocab_size, made.net.config.hidden_size) == (pipe.target.vocab_size - 8, 16)
    assert "| width | 16 |" in (tmp_path / "out" / "README.md").read_text()
    wider = SpdRecipe(steps=2, batch=4, warm_steps=0, width=32)
    with pytest.raises(MismatchError, match="spd starts with a drafter whose width is 16, and not 32: leave that"):
        train_drafter(pipe, wider, course, tmp_path / "out", tmp_path / "run", "tiny")
    eagle = EagleRecipe(steps=2, batch=4)
    with pytest.raises(MismatchError, match="of eagle2 cannot start with that drafter: it is one of spd"):
        train_drafter(pipe, eagle, course, tmp_path / "other", tmp_path / "run", "tiny")


def asked(folder: Path, count: int) -> Path:
    """Data of that many questions."""
    return write(folder / "data", *({"prompt": f"what is the value of bar {number}?"} for number in range(count)))


def test_training_that_starts_with_other_weights_is_another_run(pipe: Any, tmp_path: Path) -> None:
    """Though they lie in the same folder, which may be the one that is written to."""
    out, recipe = tmp_path / "out", EagleRecipe(steps=2, batch=4)
    train_drafter(pipe, recipe, COURSE, out, tmp_path / "run", "tiny")
    begun, seen = replace(COURSE, start=str(out)), []
    for _ in range(3):
        seen.append(digest(load_drafter(out, pipe.target).net))
        train_drafter(pipe, recipe, begun, out, tmp_path / "run", "tiny")
    assert len(set(seen)) == 3
    assert len(list((tmp_path / "run").glob("eagle2-*"))) == 4


def test_another_recipe_is_another_run_on_the_same_answers_and_another_target_is_refused(
    pipe: Any, tmp_path: Path
) -> None:
    short = EagleRecipe(steps=2, batch=3)  # it reads six answers, and four shards of two are made
    train_drafter(pipe, short, COURSE, tmp_path / "out", tmp_path / "run", "tiny")
    shards = {file: file.stat().st_mtime_ns for file in tmp_path.glob("run/answers-target/*")}
    assert len(shards) == 5  # with the settings
    train_drafter(pipe, EagleRecipe(steps=3, batch=3), COURSE, tmp_path / "out", tmp_path / "run", "tiny")
    assert len(list(tmp_path.glob("run/eagle2-*"))) == 2
    after = {file: file.stat().st_mtime_ns for file in tmp_path.glob("run/answers-target/*")}
    assert len(after) == 7
    assert shards.items() <= after.items()  # a longer run adds to them
    train_drafter(pipe, short, COURSE, tmp_path / "out", tmp_path / "run", "tiny")
    assert after == {file: file.stat().st_mtime_ns for file in tmp_path.glob("run/answers-target/*")}
    other = mmspec.load(tiny.smolvlm_model(seed=1), drafter="none", processor=pipe.processor)
    assert weights_digest(other.target.model) != weights_digest(pipe.target.model)
    with pytest.raises(MismatchError, match="target"):
        train_drafter(other, short, COURSE, tmp_path / "out", tmp_path / "run", "tiny")


def test_epochs_go_through_all_samples_in_repeatable_orders() -> None:
    samples = list("abcdefgh")
    epochs = Epochs(samples, 24, seed=3)
    seen = [epochs[position] for position in range(24)]
    assert [position for position, _ in seen] == list(range(24))
    rounds = ["".join(sample for _, sample in seen[start : start + 8]) for start in (0, 8, 16)]
    assert rounds[0] == "abcdefgh"
    assert len(set(rounds)) == 3
    assert all(sorted(order) == samples for order in rounds)
    fresh = Epochs(samples, 24, seed=3)
    assert [fresh[position] for position in (23, 2, 9)] == [seen[23], seen[2], seen[9]]
    batch = collate(seen[4:6])
    assert batch["position"].tolist() == [4, 5]
    assert batch["rows"] == ["e", "f"]


# Bad input


def write(folder: Path, *lines: Any) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "data.jsonl").write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return folder


def test_lines_of_a_folder(tmp_path: Path) -> None:
    Image.new("RGB", (8, 8), "red").save(tmp_path / "a.png")
    good = {"image": "a.png", "prompt": "Which?", "answer": "This."}
    lines = Lines(write(tmp_path, good, "", {"prompt": "What?"}))
    assert len(lines) == 2
    assert lines[0].answer == "This."
    assert lines[1] == Question(None, "What?")
    train, held_out = open_data(str(tmp_path), None, 1, 0)
    assert (train[0].prompt, held_out[0].prompt) == ("Which?", "What?")


def test_a_line_may_have_several_pictures_or_say_that_there_is_none(pipe: Any, tmp_path: Path) -> None:
    for name, color in (("a.png", "red"), ("b.png", "blue")):
        Image.new("RGB", (8, 8), color).save(tmp_path / name)
    said = {"prompt": "Which?", "answer": None}
    lines = Lines(write(tmp_path, *({**said, "image": image} for image in (["a.png", "b.png"], ["b.png"], [], None))))
    assert [one.getpixel((3, 3)) for one in lines[0].image] == [(255, 0, 0), (0, 0, 255)]
    assert lines[1].image.getpixel((3, 3)) == (0, 0, 255)
    assert lines[2] == lines[3] == Question(None, "Which?")
    counts = [prepare(pipe, [lines[place]])["input_ids"].eq(pipe.target.slot).sum() for place in range(4)]
    assert counts[0] == 2 * counts[1] > counts[2] == counts[3] == 0


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("Compare <image> and <image> please", "Compare and please"),
        ("<image>\n<image>Which is larger?", "Which is larger?"),
        ("Which is larger?\n<image><image>\n", "Which is larger?"),
        ("Look.<image>Which?\n", "Look. Which?\n"),
        (" Which? ", " Which? "),
        ("<image> <image>", ""),
    ],
)
def test_words_stay_apart_where_a_picture_stood_between_them(written: str, text: str) -> None:
    assert without_slots(written) == text


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "line 2: not JSON"),
        ('["prompt"]', "line 2: 'list': a line is an object"),
        ({"prompt": "a", "picture": "b"}, "line 2: 'picture': a line is an object with the keys image, prompt"),
        ({"prompt": 3}, "line 2: prompt must be one text, not 3"),
        ({"prompt": "a", "image": 3}, "line 2: image must be one text or a list of them, not 3"),
        ({"prompt": "a", "image": ["../a.png", None]}, "line 2: image must be one text or a list of them, not None"),
        ({"prompt": "a", "image": ["../a.png"]}, "'../a.png' is not a file inside"),
        ({"prompt": "<image>"}, "line 2: the prompt is missing or empty"),
        ({"prompt": " "}, "line 2: the prompt is missing or empty"),
        ({"image": "a.png"}, "line 2: the prompt is missing or empty"),
        ({"prompt": "a", "image": "a\0.png"}, "is not a file inside"),
        ({"prompt": "a", "image": "../a.png"}, "'../a.png' is not a file inside"),
        ({"prompt": "a", "voice": "../a.wav"}, "the voice '../a.wav' is not a file inside"),
        ({"prompt": "a", "voice": str(Path(__file__).resolve())}, "the voice '.*' is not a file inside"),
    ],
)
def test_a_bad_line_is_named(line: Any, words: str, tmp_path: Path) -> None:
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    (tmp_path / "a.wav").write_bytes(b"RIFF")
    with pytest.raises(InputError, match=words):
        Lines(write(tmp_path / "data", {"prompt": "good"}, line))


def test_a_line_whose_file_is_not_there_cannot_be_asked_and_the_others_can(tmp_path: Path, caplog: Any) -> None:
    names = [("image", "no.png"), ("image", "iVBOR" * 1000), ("image", "."), ("voice", "no.wav")]  # base64 is no name
    with caplog.at_level("INFO", "mmspec"):
        lines = Lines(write(tmp_path, {"prompt": "good"}, *({"prompt": "a", key: name} for key, name in names)))
    (told,) = caplog.messages
    first = f"data.jsonl, line 2: the image 'no.png' is not a file inside {tmp_path}"
    assert told == f"{tmp_path}: 4 of 5 lines name files that are not there; the first: {first}"
    assert lines[0].prompt == "good"
    for number, (key, name) in enumerate(names, 1):
        with pytest.raises(InputError, match=f"^data.jsonl, line {number + 1}: the {key} '{name[:20]}.* is not a file"):
            lines[number]
    Image.new("RGB", (8, 8)).save(tmp_path / "no.png")
    assert lines[1].image
    assert Lines(tmp_path).name != lines.name


def test_a_folder_must_hold_enough_lines(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no data at"):
        open_data(str(tmp_path / "none"), None, 1, 0)
    with pytest.raises(InputError, match="holds no lines"):
        open_data(str(tmp_path), None, 1, 0)
    with pytest.raises(InputError, match=r"2 are held out for validation \(--held-out\), so 0 are left"):
        open_data(str(write(tmp_path, {"prompt": "a"}, {"prompt": "b"})), None, 2, 0)


def warned(caplog: Any) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.name in ("mmspec.training.answers", "mmspec.training.asking")
    ]


@pytest.mark.parametrize("bad", ["damaged.png", "gone.png"])
def test_lines_that_cannot_be_asked_are_named_and_left_out(
    bad: str, pipe: Any, tmp_path: Path, caplog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are found when their turn comes. The others of their batches get the answers that they would have got."""
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    (tmp_path / "damaged.png").write_bytes((tmp_path / "a.png").read_bytes()[:40])
    good = {"image": "a.png", "prompt": "<image>\nWhich?"}
    damaged, control = {**good, "image": bad}, {"prompt": f"What {pipe.processor.video_token} then?"}
    options = AnswerOptions(max_new_tokens=8, batch=2)  # greedy, then at temperature 1
    want = collect(pipe, Lines(write(tmp_path, *[good] * 4)), options, tmp_path / "want", "it")
    assert not warned(caplog)
    lines = Lines(write(tmp_path, damaged, good, control, good))
    assert lines[1].prompt == "Which?"
    found = collect(pipe, lines, options, tmp_path / "found", "it")
    assert found == [row for row in want if row.index in (1, 3)]
    assert found
    picture, token, all_told = warned(caplog)
    assert re.match("question 0 is left out: data.jsonl, line 1: (the )?image .* is ", picture)
    assert token.startswith("question 2 is left out: data.jsonl, line 3: the prompt holds the control token")
    assert all_told == "2 of 4 questions cannot be asked: left out"
    caplog.clear()
    batches, left_out = held_out_batches(pipe, lines, 3)
    assert [len(batch["input_ids"]) for batch in batches] == [1, 1]
    assert left_out == [0, 2]
    held_out_told = "2 of 4 held-out questions cannot be asked: left out"
    assert warned(caplog) == [f"held-out {picture}", f"held-out {token}", held_out_told]
    caplog.clear()
    monkeypatch.setattr(pipe, "generate", None)
    assert collect(pipe, lines, options, tmp_path / "found", "it") == found
    assert warned(caplog) == [all_told]


class Away(Written):
    """Questions, some of whose pictures lie on a disk that is away."""

    away = range(4, 12)

    def __getitem__(self, index: int) -> Question:
        if index in self.away:
            raise InputError(f"picture {index} is away")
        return super().__getitem__(index)


def test_data_too_much_of_which_cannot_be_asked_is_refused(
    text_pipe: Any, tmp_path: Path, caplog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few are named. When the cause is mended, what failed is asked again, and nothing else."""
    questions = Away(*(Question(None, f"Which {n}?") for n in range(12)))
    options = AnswerOptions(max_new_tokens=8, batch=2)
    generate, calls = text_pipe.generate, []
    monkeypatch.setattr(text_pipe, "generate", lambda **inputs: calls.append(1) or generate(**inputs))
    with pytest.raises(InputError, match="6 of 12 questions of written cannot be asked; the first: picture 4 is away$"):
        collect(text_pipe, questions, options, tmp_path / "run", "it")
    assert warned(caplog) == [f"question {index} is left out: picture {index} is away" for index in (4, 5, 6)]
    assert sorted(file.name for file in (tmp_path / "run").glob("*.jsonl")) == ["00000.jsonl", "00001.jsonl"]
    caplog.clear()
    with pytest.raises(InputError, match="8 of 12 questions of written cannot be asked"):
        held_out_batches(text_pipe, questions, 5)
    assert not warned(caplog)  # the error says the first reason
    questions.away = range(0)
    assert len(calls) == 2
    rows = collect(text_pipe, questions, options, tmp_path / "run", "it")
    assert len(calls) == 6
    assert rows == collect(text_pipe, questions, options, tmp_path / "fresh", "it")


def test_what_cannot_be_asked_is_said_of_the_folder_alone(tmp_path: Path) -> None:
    data = tmp_path / "my data, 2 [a]"
    data.mkdir()
    (data / "a.jsonl").write_text("".join(json.dumps({"prompt": str(n)}) + "\n" for n in range(9)))
    questions, held_out = open_data(str(data), None, 3, 0)
    spoken, _ = open_data(str(data), None, 3, 0, voices=["bella", "adam"])
    few = as_many_as_read(questions, 3, 0)
    for each in (Lines(data), questions, held_out, spoken, few, as_many_as_read(spoken, 3, 0)):
        assert each.name.startswith(f"{data} ")
        with pytest.raises(InputError, match=f"^3 of 3 questions of {re.escape(str(data))} cannot be asked; the first"):
            check_faults(["why"] * 3, 3, each.name)


def test_of_more_data_than_a_run_reads_some_from_all_over_it_is_answered() -> None:
    lines = Written(*(Question(None, str(n)) for n in range(100)))

    def numbers(found: Any) -> list[int]:
        return [int(found[index].prompt) for index in range(len(found))]

    few, more = as_many_as_read(lines, 20, 0), as_many_as_read(lines, 50, 0)
    assert len(set(numbers(few))) == 20
    assert min(numbers(few)) < 50 < max(numbers(few))
    assert numbers(more)[:20] == numbers(few)  # a longer run goes on with the answers of a shorter one
    every = as_many_as_read(lines, 200, 0, ["", few.name])
    assert numbers(every)[:50] == numbers(more)
    assert few.name == more.name == every.name != lines.name
    with pytest.raises(IndexError):
        few[20]
    whole = as_many_as_read(lines, 100, 0)
    assert (numbers(whole), whole.name) == (list(range(100)), lines.name)
    for first in (as_many_as_read(lines, 20, 0, [lines.name, ""]), as_many_as_read(lines, 20, None)):
        assert (numbers(first), first.name) == (list(range(20)), lines.name)  # begun so, and of the synthetic world


def test_whether_data_has_answers_is_told_by_what_can_be_read() -> None:
    with_answers, without = (Away(*[Question(None, "Which?", said)] * 3) for said in ("This.", None))
    for away in (range(0), range(2)):
        with_answers.away = without.away = away
        assert has_answers(with_answers)
        assert not has_answers(without)


def test_a_run_answers_no_more_than_it_reads(pipe: Any, tmp_path: Path, caplog: Any) -> None:
    data = write(tmp_path / "data", *({"prompt": f"what is the value of bar {number}?"} for number in range(14)))
    options = AnswerOptions(max_new_tokens=8, batch=4)
    course = Course(str(data), held_out=2, validate_every=9, accumulate=2, answers=options)
    with caplog.at_level("INFO", "mmspec"):
        train_drafter(pipe, EagleRecipe(steps=1, batch=2), course, tmp_path / "out", tmp_path / "run", "tiny")
    assert "4 of 12 questions are answered, from all over them: the run reads no others" in caplog.messages
    rows = [json.loads(line) for file in tmp_path.glob("run/answers-target-12/*.jsonl") for line in file.open()]
    assert len(rows) == 4
    used = [row for row in rows if len(row["answer"]) > 2 and not {*row["answer"]} & {*pipe.target.placeholders}]
    assert f"\n{len(used)} questions of `" in (tmp_path / "out" / "README.md").read_text()


def test_more_or_fewer_questions_of_which_some_are_answered_begin_anew(pipe: Any, tmp_path: Path) -> None:
    """They are mixed otherwise. Nothing is refused, and what was begun is gone on with."""
    data = write(tmp_path / "data", *({"prompt": f"what is the value of bar {number}?"} for number in range(14)))
    options = AnswerOptions(max_new_tokens=8, batch=4, sampled=0)
    course = Course(str(data), held_out=2, validate_every=9, answers=options)
    shards: dict[Path, int] = {}
    for changed in (course, replace(course, held_out=3), replace(course, questions=10), course):
        train_drafter(pipe, EagleRecipe(steps=1, batch=4), changed, tmp_path / "out", tmp_path / "run", "tiny")
        found = {file: file.stat().st_mtime_ns for file in tmp_path.glob("run/answers-target*/*.jsonl")}
        assert shards.items() <= found.items()
        shards = found
    assert {file.parent.name for file in shards} == {f"answers-target-{count}" for count in (10, 11, 12)}
    assert len(shards) == len(list(tmp_path.glob("run/eagle2-*"))) == 3


def test_equal_ids_of_a_shard_are_one_object(tmp_path: Path) -> None:
    """A prompt may have thousands, and every process holds all of them; shards of earlier versions are read, too."""
    file = tmp_path / "00000.jsonl"
    file.write_text('{"index": 0, "prompt": [1000, 1000], "answer": [1000, 2000], "temperature": null}\n')
    (row,) = answers._read(file) or []
    assert row == Answered(0, [1000, 1000], [1000, 2000], None)
    assert row.prompt[0] is row.prompt[1] is row.answer[0]


def test_a_folder_that_will_not_be_written_is_told_before_anything_is_done(pipe: Any, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("all of it")
    with pytest.raises(CheckpointError, match="holds something that is not a checkpoint"):
        train_drafter(pipe, SMALL["eagle2"], COURSE, tmp_path / "out", tmp_path / "run", "tiny")
    medusa = MedusaRecipe(steps=1, batch=1)
    save_drafter(medusa.drafter(medusa.build(pipe.target)), tmp_path / "medusa", pipe.target)
    with pytest.raises(CheckpointError, match="holds a drafter of the method medusa: choose another folder"):
        train_drafter(pipe, SMALL["eagle2"], COURSE, tmp_path / "medusa", tmp_path / "run", "tiny")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("inside", ["", "drafters/vadusa"])
def test_a_drafter_of_another_target_is_not_replaced(inside: str, pipe: Any, tmp_path: Path) -> None:
    """Nor one beside a model, as some methods save theirs; one of several methods is enough."""
    recipes = [MedusaRecipe(steps=1, batch=2), EagleRecipe(steps=1, batch=2)]
    outs = [tmp_path / "out" / recipe.method for recipe in recipes]
    there = save_drafter(recipes[1].drafter(recipes[1].build(pipe.target)), outs[1] / inside, pipe.target)
    described = json.loads((there / "drafter.json").read_text())
    size = described["target"]["hidden_size"]
    described["target"]["hidden_size"] = 7
    (there / "drafter.json").write_text(json.dumps(described))
    held = f"eagle2 holds a drafter of the method eagle2 for another target .its hidden_size is 7, .* {size}.: choose"
    if inside:
        (outs[1] / "config.json").write_text("{}")
    with pytest.raises(MismatchError, match=held):
        train_drafters(pipe, recipes, COURSE, outs, tmp_path / "run", "tiny")
    assert not (tmp_path / "run").exists()


def test_a_drafter_of_the_same_target_is_replaced_and_may_be_the_start(pipe: Any, tmp_path: Path) -> None:
    out, course = tmp_path / "out", replace(COURSE, questions=4, held_out=1, validate_every=9)
    recipe, kept = EagleRecipe(steps=4, batch=2), []
    for start in (None, None, str(out)):
        train_drafter(pipe, recipe, replace(course, start=start), out, tmp_path / "run", "tiny")
        kept.append((out / "model.safetensors").read_bytes())
    assert kept[0] == kept[1] != kept[2]


@pytest.mark.parametrize(
    "make",
    [
        lambda: EagleRecipe(steps=0),
        lambda: EagleRecipe(batch=-1),
        lambda: EagleRecipe(rate=0),
        lambda: EagleRecipe(rate=math.nan),
        lambda: EagleRecipe(unroll=0),
        lambda: EagleRecipe(decay=0),
        lambda: EagleRecipe(feature_weight=0, law_weight=0),
        lambda: EagleRecipe(noise=-1),
        lambda: EagleRecipe(intermediate=0),
        lambda: SpdRecipe(width=30),
        lambda: SpdRecipe(layers=0),
        lambda: SpdRecipe(warm_steps=5, warm_questions=0),
        lambda: SpdRecipe(token_weight=0, law_weight=0),
        lambda: AnswerOptions(author="me"),
        lambda: AnswerOptions(sampled=1.5),
        lambda: AnswerOptions(sampled=math.nan),
        lambda: AnswerOptions(batch=0),
        lambda: Course(questions=0),
        lambda: Course(held_out=0),
    ],
)
def test_settings_out_of_range_are_refused(make: Any) -> None:
    with pytest.raises(InputError):
        make()


def command(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["mmspec", "train", *arguments])
    with pytest.raises(SystemExit) as end:
        cli.main()
    return int(end.value.code or 0)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--method", "eagel2"], "did you mean 'eagle2'"),
        (["--target", "no-such-model"], "no-such-model"),
        (["--data", "no-such-folder"], "no-such-folder"),
        (["--layers", "3"], "--layers"),
        (["--steps", "0"], "steps=0"),
        (["--answers", "mine"], "'mine'"),
        (["--sampled", "2"], "sampled"),
    ],
)
def test_the_command_refuses_bad_input_in_one_line(
    arguments: list[str], words: str, folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    given = [] if "--target" in arguments else ["--target", str(folder)]
    assert command(monkeypatch, "drafter", *given, *arguments) == 2
    error = capfd.readouterr().err
    assert words in error
    assert error.startswith("error: ")
    assert error.count("\n") == 1


def test_too_little_memory_for_an_update_is_one_line(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    def full(self: Any, **batch: Any) -> Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr(EagleLoss, "__call__", full)
    monkeypatch.chdir(tmp_path)
    small = "--questions 4 --steps 2 --batch 4 --held-out 1 --max-new-tokens 8 --answer-batch 4 --set unroll=2"
    assert command(monkeypatch, "drafter", "--target", str(folder), *small.split()) == 2
    said = capfd.readouterr().err
    assert "too little memory to train with 4 answers per batch: give a smaller --batch, with --accumulate" in said
    assert "Traceback" not in said


def test_the_command_trains_and_names_the_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    small = "--questions 4 --steps 2 --batch 2 --held-out 1 --max-new-tokens 8 --answer-batch 2 --set unroll=2"
    assert command(monkeypatch, "drafter", "--target", str(folder), "--out", "mine", *small.split()) == 0
    assert "mine: tau " in capfd.readouterr().err
    assert mmspec.load(folder, drafter="mine").drafter.method == "eagle2"
    assert {path.name for path in tmp_path.iterdir()} == {"mine", "runs"}


def test_the_target_s_trainer_gets_its_own_arguments(monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    assert command(monkeypatch, "target", "smolvlm-mini", "--help") == 0
    assert "--vision-steps" in capfd.readouterr().out
    assert command(monkeypatch, "target", "nothing") == 2


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr("mmspec.training.loop.find_spec", lambda name: None if name == "accelerate" else find(name))
    with pytest.raises(MissingExtraError, match=r"mmspec\[train\]"):
        require_training()
