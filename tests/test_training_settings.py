"""What `mmspec train drafter` can tell a recipe, by `--set` and by options."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, ClassVar, cast

import pytest
import test_training
import tiny

from mmspec import registry
from mmspec.training.eagle import EagleRecipe
from mmspec.training.eagle3 import Eagle3Recipe
from mmspec.training.medusa import MedusaRecipe
from mmspec.training.recipe import Recipe
from mmspec.training.settings import fitting, listed
from mmspec.training.spd import SpdRecipe


@dataclass(frozen=True, kw_only=True)
class Mine(EagleRecipe):
    """A recipe of another package. memory: of the name of an option that is no recipe's."""

    window: int = 4
    pull: float = 0.5
    deep: bool = False
    way: str = "up"
    most: int | None = None
    memory: int = 2
    parts: tuple[int, ...] = ()

    method: ClassVar[str] = "mine"


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The entry point that the other package would declare."""
    point = EntryPoint("mine", f"{__name__}:Mine", "mmspec.recipes")
    monkeypatch.setattr(registry, "entry_points", lambda group: [point] if point.group == group else [])
    registry.entries.cache_clear()
    yield
    registry.entries.cache_clear()


@pytest.mark.usefixtures("registered")
def test_a_recipe_of_another_package_is_given_its_own_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tiny.tiny_smolvlm(tmp_path / "target")
    small = "--questions 4 --steps 1 --batch 2 --held-out 1 --max-new-tokens 8 --answer-batch 2 --set unroll=2"
    given = "--method mine --set window=16 --set pull=1 --set deep=1 --set most=none --set memory=3 --set seed=7"
    assert test_training.command(monkeypatch, "drafter", "--target", str(folder), *given.split(), *small.split()) == 0
    (noted,) = tmp_path.glob("runs/drafters/target/mine-*/settings.json")
    run = json.loads(noted.read_text())
    recipe = run["recipe"]
    assert (recipe["seed"], run["answers"]["seed"]) == (7, 7)
    assert [recipe[name] for name in ("window", "pull", "deep", "most", "memory")] == [16, 1.0, True, None, 3]
    assert (recipe["way"], recipe["unroll"], recipe["steps"]) == ("up", 2, 1)


def test_settings_are_read_by_their_types_and_go_to_the_recipes_that_have_them() -> None:
    told = ["window=3", "pull=2", "deep=0", "way=7", "most=5"]
    options = {"seed": 1, "levels": 2, "unroll": None}
    mine, other = fitting([Mine, MedusaRecipe], options, told)
    assert mine == {"seed": 1, "window": 3, "pull": 2.0, "deep": False, "way": "7", "most": 5}
    assert list(map(type, mine.values())) == [int, int, float, bool, str, int]
    assert other == {"seed": 1, "levels": 2}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--set windwo=3", "unknown setting of the method mine 'windwo'; did you mean 'window'? known: batch, decay, "),
        ("--set windwo=3", "; --set help says what they mean"),
        ("--set parts=3", "unknown setting of the method mine 'parts'"),
        ("--set held_out=3", "unknown setting of the method mine 'held_out'"),
        ("--set window=3.5", "--set 'window=3.5' is not valid: a whole number is needed"),
        ("--set window=true", "--set 'window=true' is not valid: a whole number is needed"),
        ("--set pull=true", "--set 'pull=true' is not valid: a finite number is needed"),
        ("--set window=none", "--set 'window=none' is not valid: a whole number is needed"),
        ("--set window=wide", "--set 'window=wide' is not valid: a whole number is needed"),
        ("--set pull=hard", "--set 'pull=hard' is not valid: a finite number is needed"),
        ("--set pull=inf", "--set 'pull=inf' is not valid: a finite number is needed"),
        (f"--set pull={'9' * 400}", "is not valid: a finite number is needed"),
        ("--set deep=2", "--set 'deep=2' is not valid: true or false is needed"),
        ("--set most=many", "--set 'most=many' is not valid: a whole number or none is needed"),
        ("--set window", "--set 'window' is not valid: write it as in --set window=16"),
        ("--set window=", "--set 'window=' is not valid: write it as in"),
        ("--set =3", "--set '=3' is not valid: write it as in"),
        ("--set window=3 --set window=4", "--set 'window=4' is not valid: that setting is given twice"),
        ("--set warm-steps=3 --set warm_steps=3", "that setting is given twice"),
        ("--decay 1 --set decay=1", "--set 'decay=1' is not valid: that setting is given twice"),
        ("--seed 0 --set seed=3", "--set 'seed=3' is not valid: that setting is given twice"),
        ("--levels 3 --set window=3", "--levels: not an option of the method mine"),
        ("--warm-steps 3 --warm-questions 4", "mine learns from the target's features: it has no warm-up"),
        ("--set noise=-1", "its noise are 0 or more"),
        ("--set seed=-1", "seed -1 is not valid: it lies in 0 to 4294967295"),
    ],
)
@pytest.mark.usefixtures("registered")
def test_what_a_recipe_cannot_be_told_is_one_line_before_anything_is_read(
    arguments: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    monkeypatch.setattr("mmspec.load", None)
    (tmp_path / "config.json").write_text(tiny.smolvlm_model().config.to_json_string())
    assert (
        test_training.command(monkeypatch, "drafter", "--target", str(tmp_path), "--method", "mine", *arguments.split())
        == 2
    )
    error = capfd.readouterr().err
    assert error.startswith("error: ")
    assert words in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("given", "warm_steps"),
    [
        ("", SpdRecipe.warm_steps),
        ("--start there", 0),
        ("--start there --warm-steps 5", 5),
        ("--start there --set warm_steps=5", 5),
    ],
)
def test_a_start_learns_no_words_first_unless_it_is_told_to(
    given: str, warm_steps: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[Any] = []

    def trained(_: Any, recipes: list[Any], *rest: Any) -> dict[str, Any]:
        found.extend(recipes)
        return {"spd": {}}

    monkeypatch.setattr("mmspec.training.drafter.train_drafters", trained)
    arguments = ["drafter", "--target", str(tiny.tiny_smolvlm(tmp_path / "target")), "--method", "spd", *given.split()]
    assert test_training.command(monkeypatch, *arguments) == 0
    assert [recipe.warm_steps for recipe in found] == [warm_steps]


def test_every_setting_of_every_recipe_is_listed_and_can_be_set() -> None:
    for modality, _, method in (key.partition("/") for key in registry.BUILTIN["recipes"]):
        recipe = cast("type[Recipe]", registry.resolve("recipes", method, modality))
        head, *lines = listed([recipe]).splitlines()
        told, meanings = zip(*(line.split(maxsplit=1) for line in lines), strict=True)
        assert head == f"{method}:"
        assert all(meanings)
        (settings,) = fitting([recipe], {}, told)
        assert settings == {field.name: field.default for field in fields(recipe)}
        assert asdict(recipe(**settings)) == asdict(recipe())


def test_what_a_recipe_says_of_a_setting_anew_goes_before_what_others_say() -> None:
    assert "draft_vocabulary=none   how many words, in the place of" in listed([Eagle3Recipe])
    assert "draft_vocabulary=none   how many words are drafted" in listed([EagleRecipe])


@pytest.mark.usefixtures("registered")
def test_the_command_lists_settings_and_reads_no_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    monkeypatch.setattr("mmspec.load", None)
    (tmp_path / "config.json").write_text(tiny.smolvlm_model().config.to_json_string())
    arguments = ["drafter", "--target", str(tmp_path), "--method", "medusa,mine", "--set", "help"]
    assert test_training.command(monkeypatch, *arguments) == 0
    said = capfd.readouterr().out
    assert said.startswith("medusa:\n  steps=500               updates\n")
    assert "\nmine:\n" in said
    assert "\n  window=4\n" in said  # it says nothing of what that means
    assert "parts" not in said
