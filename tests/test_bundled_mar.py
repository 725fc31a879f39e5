"""The bundled model of continuous tokens: captions matter, drafts save forwards, and say what they did to the law."""

from pathlib import Path

import pytest

import mmspec
from mmspec.checkpoints import bundled
from mmspec.image_ar.judge import Judge

NAME = "mar-mini"
STEPS = 32  # in which it reveals its tokens


@pytest.fixture(scope="module")
def folder() -> Path:
    return bundled()[NAME]


@pytest.fixture(scope="module")
def pipe() -> mmspec.Pipeline:
    return mmspec.load(NAME)


def test_files_are_safetensors_and_small(folder: Path) -> None:
    files = [file for file in folder.rglob("*") if file.is_file()]
    assert max(file.stat().st_size for file in files) <= 25_000_000
    assert not [file for file in files if file.suffix in (".bin", ".pt", ".pkl")]
    for place in (folder, *(folder / "drafters").iterdir()):
        assert list(place.glob("*.safetensors"))
    assert (folder / "README.md").read_text().strip()


@pytest.mark.parametrize(("rule", "lossless"), [("continuous-conditioned", True), ("continuous", False)])
def test_drafts_save_forwards(pipe: mmspec.Pipeline, rule: str, lossless: bool) -> None:
    drafting = pipe.with_drafter(pipe.drafter, acceptance=rule)
    drawn = drafting(prompt=["two green stars on sky", "a red circle at the top left"], seed=5)
    plain = pipe.with_drafter("none")(prompt="two green stars on sky", seed=5)
    assert plain.stats.target_calls == STEPS
    assert all(one.stats.target_calls < STEPS for one in drawn)
    assert all(one.stats.lossless == lossless for one in drawn)
    assert drawn[0].image.size == plain.image.size


def test_pictures_follow_their_captions(pipe: mmspec.Pipeline) -> None:
    judge = Judge.find(bundled()["janus-mini"])
    assert judge is not None
    asked = judge.captions(16)
    pictures = [one.image for one in pipe(prompt=[one.prompt for one in asked], seed=1)]

    def share(captions: list) -> float:
        facts = judge.facts(captions, pictures)
        return sum(sum(each) / len(each) for each in facts) / len(facts)

    assert share(asked) > share([*asked[1:], asked[0]]) + 0.15
