"""Janus draws: the pictures of `generate`, with every drafter, rule, batch and guidance."""

import copy
from pathlib import Path
from typing import Any

import pytest
import tiny_images
import torch
import toys
from torch import Tensor
from transformers import PreTrainedTokenizerFast

import mmspec
from mmspec.acceptance.exact import Exact
from mmspec.acceptance.ratio import Ratio
from mmspec.contract import Drafter, Drafting
from mmspec.control import OWN, Auto, control_for
from mmspec.drafters.none import NoDrafter
from mmspec.drafters.suffix import Suffix
from mmspec.image_ar.jacobi import SJD, GumbelSharing, Jacobi, MaximalCoupling
from mmspec.image_ar.janus import Janus
from mmspec.sampling import Sampling
from mmspec.tree import chain

LENGTH = tiny_images.SIDE**2
SAMPLED = Sampling(temperature=1.0, seed=3)


class Replay(Drafter, Drafting):
    """Drafts a known answer; every `wrong`-th token of it is another one."""

    kinds = frozenset({"point"})
    needs = mmspec.contract.Needs()

    def __init__(self, rows: list[list[int]], wrong: int = 0, window: int = 5) -> None:
        self.rows = torch.tensor(rows)
        if wrong:
            self.rows[:, wrong - 1 :: wrong] = (self.rows[:, wrong - 1 :: wrong] + 1) % tiny_images.CODES
        self.window = window

    def bind(self, target: Any) -> None:
        """Fits every target."""

    def begin(self, state: Any, sampler: Any, kind: Any) -> "Replay":
        return self

    def propose(self, state: Any) -> Any:
        places = state.emitted[:, None] + torch.arange(min(self.window, state.room))
        guesses = self.rows.gather(1, places.clamp(max=self.rows.shape[1] - 1))
        return chain(torch.cat([state.pending[:, None], guesses], 1))

    def observe(self, *args: Any) -> None:
        """Nothing to learn."""


@pytest.fixture(scope="module")
def target() -> Janus:
    return Janus(tiny_images.janus_model(), tiny_images.tokenizer())


@pytest.fixture(scope="module")
def greedy(target: Janus) -> list[list[int]]:
    """What transformers draws for prompts of equal length."""
    inputs = tiny_images.prompts(3, 3)
    return target.model.generate(**inputs, generation_mode="image", do_sample=False, max_length=64).tolist()


def draw(target: Any, drafter: Any, inputs: dict[str, Any], sampling: Any = None, rule: Any = None) -> toys.Answer:
    return toys.answer(target, drafter, inputs, LENGTH, sampling, rule)


DRAFTERS = {
    "none": NoDrafter,
    "jacobi": lambda: Jacobi(5),
    "jacobi-left": lambda: Jacobi(3, "repeat-left"),
    "sjd": lambda: SJD(6, "repeat-above"),
    "scd-mc": lambda: MaximalCoupling(8, "sample-above"),
    "scd-gs": lambda: GumbelSharing(20, "sample-left"),
    "suffix": Suffix,
}


@pytest.mark.parametrize("name", DRAFTERS)
def test_greedy_pictures_equal_those_of_transformers(target: Janus, greedy: list[list[int]], name: str) -> None:
    got = draw(target, DRAFTERS[name](), tiny_images.prompts(3, 3))
    assert got.rows == greedy
    assert got.finish == ["length", "length"]
    if name.startswith("jacobi"):
        assert sum(got.accepted) > 0


@pytest.mark.parametrize("wrong", [0, 1, 3])
def test_drafts_that_are_all_right_all_wrong_or_mixed(target: Janus, greedy: list[list[int]], wrong: int) -> None:
    got = draw(target, Replay(greedy, wrong), tiny_images.prompts(3, 3))
    assert got.rows == greedy
    assert max(got.accepted) == {0: 5, 1: 0, 3: 2}[wrong]


def test_windows_whose_guesses_settle_keep_their_size() -> None:
    """`auto` takes a draft that fails for useless, and the first ones of such a window always fail."""
    assert control_for("auto", GumbelSharing()) is OWN
    assert isinstance(control_for("auto", Jacobi()), Auto)


def test_the_same_seed_gives_the_same_picture_with_every_drafter(target: Janus) -> None:
    inputs = tiny_images.prompts(3, 6, 1)
    want = draw(target, NoDrafter(), inputs, SAMPLED)
    assert len({tuple(row) for row in want.rows}) == 3
    for name, make in DRAFTERS.items():
        assert draw(target, make(), inputs, SAMPLED).rows == want.rows, name
    assert sum(draw(target, GumbelSharing(8), inputs, SAMPLED).accepted) > 0


def test_a_batch_of_prompts_of_several_lengths_equals_single_calls(target: Janus) -> None:
    inputs = tiny_images.prompts(3, 6, 1)
    for rule, drafter in ((Exact(), GumbelSharing(6)), (Ratio(), MaximalCoupling(6)), (Ratio(), SJD(4, "sample-left"))):
        batch = draw(target, drafter, inputs, SAMPLED, rule).rows
        for row in range(3):
            alone = Sampling(temperature=1.0, seed=3 + row)
            assert draw(target, drafter, toys.row_of(inputs, row), alone, rule).rows == [batch[row]]


def guided(model: Any, ids: Tensor, codes: list[int], scale: float) -> Tensor:
    """Next-code logits, from whole forwards of the two rows."""

    def said(prompt: Tensor) -> Tensor:
        words = model.get_input_embeddings()(prompt)
        drawn = model.prepare_embeddings_for_image_generation(torch.tensor([codes], dtype=torch.long))
        states = model.model.language_model(inputs_embeds=torch.cat([words, drawn], 1)).last_hidden_state
        return model.model.generation_head(states[0, -1])

    free = ids.clone()
    free[(ids != 1) & (ids != 4)] = 0
    told, untold = said(ids), said(free)
    return untold + scale * (told - untold) if scale != 1 else told


@pytest.mark.parametrize("scale", [1.0, 0.5, 7.5])
def test_guidance_is_that_of_two_whole_forwards(target: Janus, scale: float) -> None:
    inputs = tiny_images.prompts(4)
    got = draw(target, GumbelSharing(5), {**inputs, "guidance": scale}).rows[0]
    for place in (0, 1, 7, LENGTH - 1):
        with torch.no_grad():
            assert int(guided(target.model, inputs["input_ids"], got[:place], scale).argmax()) == got[place]


def test_a_folder_draws_and_decodes_as_the_stock_class_does(tmp_path: Path) -> None:
    folder = tiny_images.save(tmp_path / "janus", tiny_images.janus_model(), tiny_images.janus_processor())
    pipe = mmspec.load(folder)
    out = pipe(prompt="a red circle above two blue square", temperature=1.0, seed=5)
    assert type(pipe.drafter) is GumbelSharing
    assert len(out.token_ids) == LENGTH
    assert out.text == ""
    assert out.image.size == (8, 8)
    stock = pipe.target.model
    with torch.no_grad():
        pixels = stock.decode_image_tokens(torch.tensor([out.token_ids]))
    want = ((pixels[0].numpy() * 0.5 + 0.5) * 255).clip(0, 255).astype("uint8")  # mean and deviation of the processor
    assert out.image.tobytes() == want.tobytes()
    assert "image" not in out.as_dict()
    again = mmspec.generate(prompt="a red circle above two blue square", model=folder, temperature=1.0, seed=5)
    assert again.image.tobytes() == want.tobytes()
    plain = mmspec.load(folder, drafter="none")(prompt=["a circle", "a red square"], temperature=1.0)
    quick = pipe(prompt=["a circle", "a red square"], temperature=1.0)
    assert [one.token_ids for one in plain] == [one.token_ids for one in quick]
    cut = pipe(prompt="a red circle above two blue square", temperature=1.0, seed=5, max_new_tokens=6)
    assert cut.token_ids == out.token_ids[:6]
    assert cut.image.getpixel((7, 7)) == (127, 127, 127)
    assert cut.image.getpixel((0, 0)) != (127, 127, 127)


def test_pictures_are_sampled_where_the_checkpoint_does_not_say(target: Janus, greedy: list[list[int]]) -> None:
    config = target.model.generation_config
    assert config.do_sample is None
    pipe, asked = mmspec.load(target.model, drafter="jacobi"), tiny_images.prompts(3, 3)
    drawn = [[one.token_ids for one in pipe.generate(**asked, seed=seed)] for seed in (0, 9)]
    assert drawn[0] == [one.token_ids for one in pipe.generate(**asked, temperature=1.0, seed=0)]
    assert drawn[0] != drawn[1]
    config.do_sample = False
    try:
        assert [one.token_ids for one in pipe.generate(**asked, seed=9)] == greedy
    finally:
        config.do_sample = None


def test_model_inputs_may_come_from_the_processor(target: Janus, greedy: list[list[int]]) -> None:
    pipe = mmspec.load(target.model, processor=tiny_images.janus_processor(), drafter="jacobi")
    assert [one.token_ids for one in pipe.generate(**tiny_images.prompts(3, 3), temperature=0)] == greedy


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"guidance": 0}, "guidance=0 is not valid: a number above 0"),
        ({"guidance": -2.0}, "guidance=-2.0 is not valid"),
        ({"guidance": float("nan")}, "guidance=nan is not valid"),
        ({"prompt": "a " * 90}, "the prompt has 91 tokens and the picture 16, the model's context is 96"),
        ({"prompt": "a <boi> b"}, "control token '<boi>'"),
        ({"prompt": ""}, "the prompt is empty"),
        ({"image": "tests/none.png"}, "none.png"),
    ],
)
def test_bad_requests_are_named(target: Janus, options: dict[str, Any], message: str) -> None:
    pipe = mmspec.load(target.model, processor=tiny_images.janus_processor())
    with pytest.raises(mmspec.Error, match=message):
        pipe(**{"prompt": "a circle", **options})


def test_inputs_that_would_not_be_read_are_refused(target: Janus) -> None:
    pipe = mmspec.load(target.model, processor=tiny_images.janus_processor())
    with pytest.raises(mmspec.Error, match="draws from a text here: leave pixel_values out"):
        pipe.generate(**tiny_images.prompts(3), pixel_values=torch.zeros(1, 3, 9, 9))


def test_what_a_processor_adds_of_its_own_is_no_mistake_of_the_user_s(target: Janus) -> None:
    processor = copy.deepcopy(tiny_images.janus_processor())
    processor.tokenizer.model_input_names = ["input_ids", "token_type_ids", "attention_mask"]
    pipe = mmspec.load(target.model, processor=processor)
    usual = mmspec.load(target.model, processor=tiny_images.janus_processor())
    assert pipe(prompt="a circle", seed=2).token_ids == usual(prompt="a circle", seed=2).token_ids


def test_a_batch_that_the_tokenizer_cannot_pad_is_an_error_of_ours(target: Janus) -> None:
    processor = copy.deepcopy(tiny_images.janus_processor())
    processor.tokenizer.pad_token = None
    with pytest.raises(mmspec.Error, match="JanusProcessor refuses the prompt: .*padding token"):
        mmspec.load(target.model, processor=processor)(prompt=["a circle", "a red circle"])


def test_guidance_is_refused_where_nothing_is_drawn() -> None:
    pipe = mmspec.load(toys.llama().float())
    with pytest.raises(mmspec.Error, match="guidance is not an option of LlamaForCausalLM"):
        pipe.generate(**toys.prompts(5), guidance=2.0)


@pytest.mark.parametrize("make", [lambda: SJD(0), lambda: SJD(300), lambda: Jacobi(4, "diagonal")])
def test_bad_drafters_are_named(make: Any) -> None:
    with pytest.raises(mmspec.Error, match="is not valid"):
        make()


def test_guidance_without_the_start_of_an_image_is_refused() -> None:
    """It would be taken for a part of the caption, and padded over."""
    model = tiny_images.janus_model()
    model.generation_config.generation_kwargs = {}
    plain = tiny_images.tokenizer()
    nameless = PreTrainedTokenizerFast(tokenizer_object=plain.backend_tokenizer)
    for made in (Janus(model), Janus(model, nameless)):
        with pytest.raises(mmspec.Error, match="guidance needs the start of an image: boi_token_id"):
            draw(made, NoDrafter(), tiny_images.prompts(3))
        assert len(draw(made, NoDrafter(), {**tiny_images.prompts(3), "guidance": 1.0}).rows[0]) == LENGTH
    want = draw(Janus(tiny_images.janus_model()), NoDrafter(), tiny_images.prompts(3)).rows
    assert draw(Janus(model, plain), NoDrafter(), tiny_images.prompts(3)).rows == want
    model.generation_config.boi_token_id = 4  # as some checkpoints have it
    assert draw(Janus(model, nameless), NoDrafter(), tiny_images.prompts(3)).rows == want


def test_neighbours_need_a_picture() -> None:
    with pytest.raises(mmspec.Error, match="looks at neighbours in a picture"):
        Jacobi(4, "repeat-left").bind(toys.target_of(toys.llama()))
