"""The bundled image checkpoint: stock classes draw the same codes, captions matter, drafters change only time."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import JanusForConditionalGeneration

import mmspec
from mmspec.checkpoints import bundled
from mmspec.image_ar.jacobi import GumbelSharing
from mmspec.image_ar.judge import Judge

NAME = "janus-mini"


@pytest.fixture(scope="module")
def folder() -> Path:
    return bundled()[NAME]


@pytest.fixture(scope="module")
def plain() -> mmspec.Pipeline:
    return mmspec.load(NAME, "none")


def test_files_are_safetensors_and_small(folder: Path) -> None:
    files = [file for file in folder.rglob("*") if file.is_file()]
    assert max(file.stat().st_size for file in files) <= 25_000_000
    assert not [file for file in files if file.suffix in (".bin", ".pt", ".pkl")]
    for place in (folder, folder / "reader"):
        assert list(place.glob("*.safetensors"))
        assert (place / "README.md").read_text().strip()


def test_stock_transformers_draws_the_same_codes(plain: mmspec.Pipeline, folder: Path) -> None:
    model = JanusForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
    caption = "a red circle at the top left"
    inputs = plain.prepare(None, caption)
    codes = model.generate(**inputs, generation_mode="image", do_sample=False)[0]
    assert plain(prompt=caption, temperature=0).token_ids == codes.tolist()


@pytest.fixture(scope="module")
def stars(plain: mmspec.Pipeline) -> Any:
    """A picture that is drawn without a drafter."""
    return plain(prompt="two green stars on sky", seed=5)


@pytest.mark.parametrize("drafter", ["scd-gs", "eagle2", "sjd-eagle"])
def test_drafters_change_nothing_but_time(plain: mmspec.Pipeline, stars: Any, drafter: str) -> None:
    want, got = stars, plain.with_drafter(drafter, "own")(prompt="two green stars on sky", seed=5)
    assert got.token_ids == want.token_ids
    assert got.image.tobytes() == want.image.tobytes()
    assert got.stats.tau > 1.1


def test_pictures_follow_their_captions(plain: mmspec.Pipeline, folder: Path) -> None:
    judge = Judge.find(folder)
    assert judge is not None
    asked = judge.captions(8)
    pictures = [one.image for one in plain(prompt=[one.prompt for one in asked], seed=1)]

    def share(captions: list) -> float:
        facts = judge.facts(captions, pictures)
        return sum(sum(each) / len(each) for each in facts) / len(facts)

    assert share(asked) > share([*asked[1:], asked[0]]) + 0.4
    assert sum(map(all, judge.facts(asked, pictures))) >= 5  # 7 are to be expected


def test_pictures_are_drafted_by_coupling_though_a_trained_drafter_is_there(folder: Path) -> None:
    assert type(mmspec.load(folder).drafter) is GumbelSharing


def test_codes_leave_of_real_pictures_what_captions_say(plain: mmspec.Pipeline, folder: Path) -> None:
    judge = Judge.find(folder)
    assert judge is not None
    asked = judge.captions(40)
    facts = judge.facts(asked, [plain.target.reconstruct(one.picture) for one in asked])
    assert sum(map(all, facts)) >= 32
