"""What `mmspec train drafter` can tell a recipe: options and what their help says of them, and `--set`."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, fields
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, ClassVar, cast

import pytest
import test_training
import tiny
import typer

from mmspec import registry
from mmspec.errors import InputError, UnknownNameError
from mmspec.training import cli
from mmspec.training.eagle import EagleRecipe
from mmspec.training.medusa import MedusaRecipe
from mmspec.training.recipe import Recipe
from mmspec.training.settings import fitting


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


# --set --------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("registered")
def test_a_recipe_of_another_package_is_given_its_own_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tiny.tiny_smolvlm(tmp_path / "target")
    small = "--questions 4 --steps 1 --batch 2 --held-out 1 --max-new-tokens 8 --answer-batch 2 --unroll 2"
    given = "--method mine --set window=16 --set pull=1 --set deep=1 --set most=none --set memory=3 --memory 1"
    assert test_training.command(monkeypatch, "drafter", "--target", str(folder), *given.split(), *small.split()) == 0
    (noted,) = tmp_path.glob("runs/drafters/target/mine-*/settings.json")
    recipe = json.loads(noted.read_text())["recipe"]
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
        ("--set windwo=3", "unknown setting of the method mine 'windwo'; did you mean 'window'? known: deep, memory, "),
        ("--set parts=3", "unknown setting of the method mine 'parts'"),
        ("--set held_out=3", "unknown setting of the method mine 'held_out'"),
        ("--set window=3.5", "--set 'window=3.5' is not valid: a whole number is needed"),
        ("--set window=none", "--set 'window=none' is not valid: a whole number is needed"),
        ("--set window=wide", "--set 'window=wide' is not valid: a whole number is needed"),
        ("--set pull=hard", "--set 'pull=hard' is not valid: a finite number is needed"),
        ("--set pull=inf", "--set 'pull=inf' is not valid: a finite number is needed"),
        (f"--set pull={'9' * 400}", "is not valid: a finite number is needed"),
        ("--set deep=2", "--set 'deep=2' is not valid: 0 or 1 is needed"),
        ("--set most=many", "--set 'most=many' is not valid: a whole number or none is needed"),
        ("--set window", "--set 'window' is not valid: write it as in --set window=16"),
        ("--set window=", "--set 'window=' is not valid: write it as in"),
        ("--set =3", "--set '=3' is not valid: write it as in"),
        ("--set window=3 --set window=4", "--set 'window=4' is not valid: that setting is given twice"),
        ("--set unroll=3", "--set unroll=.. is not valid: there is an option for it, --unroll"),
        ("--unroll 3 --set unroll=3", "--set unroll=.. is not valid: there is an option for it, --unroll"),
        ("--set feature_weight=1", "there is an option for it, --feature-weight"),
        ("--set seed=3", "there is an option for it, --seed"),
        ("--levels 3 --set window=3", "--levels: not an option of the method mine"),
        ("--warm-steps 3 --warm-questions 4", "mine learns from the target's features: it has no warm-up"),
        ("--noise -1", "its noise are 0 or more"),
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


def test_a_method_all_of_whose_settings_have_options_says_so() -> None:
    options = dict.fromkeys(field.name for field in fields(EagleRecipe))
    with pytest.raises(UnknownNameError, match=r"method eagle2 'depth'; for others there are options \(mmspec train"):
        fitting([EagleRecipe], options, ["depth=3"])


# The help -----------------------------------------------------------------------------------------------------------

RECIPES: dict[tuple[str, str], type[Recipe]] = {
    (method, modality): cast("type[Recipe]", registry.resolve("recipes", method, modality))
    for modality, _, method in (key.partition("/") for key in registry.BUILTIN["recipes"])
}
METHODS = {method for method, _ in RECIPES}
COMMAND: Any = cast("Any", typer.main.get_command(cli.app)).commands["drafter"]
HELPS = {each.name: each.help for each in COMMAND.params if each.name not in cli.NOT_OF_RECIPES}
DRAWING, OTHERS = "of models that draw", "other heads"
WORDS = DRAWING, OTHERS, "the others", "with --start"
NAME = "|".join(re.escape(name) for name in sorted([*METHODS, *WORDS], key=len, reverse=True))
NAMES = rf"(?:{NAME})(?:, (?:{NAME}))*"


def named(text: str) -> set[str]:
    """The methods that the help of an option says to have it: those before a colon, all others of "All but ..", or
    all."""
    lists = re.findall(rf"(?:^|; )({NAMES}): ", text)
    if lists:
        return {method for one in lists for method in one.split(", ")}
    without = re.match(rf"All but ({NAMES}) and ({NAME})\b", text)
    return METHODS - {*without[1].split(", "), without[2]} if without else METHODS


def written(text: str, method: str, modality: str) -> str:
    """The default that the help of an option writes down for a method: what stands behind its name, or else first."""
    found = re.search(r"\[default: (.*)\]$", text)
    assert found is not None
    told: dict[str, str] = {}
    for clause in found[1].split("; "):
        parts = re.fullmatch(rf"(?:({NAMES}) )?(.+?)(?:, {DRAWING} (.+))?", clause)
        assert parts is not None
        names = (parts[1] or OTHERS).replace("the others", OTHERS).split(", ")
        told |= dict.fromkeys(names, parts[2])
        told |= {f"{name} {DRAWING}": parts[3] for name in names if parts[3]}
    drawn = [f"{method} {DRAWING}", DRAWING] if modality == "image" else []
    return next(told[name] for name in (*drawn, method, OTHERS) if name in told)


def meant(text: str, name: str) -> Any:
    """A default as a recipe has it. What is told in words depends on the target: nothing is set."""
    option = name.replace("_", "-")
    if text in (option, f"no-{option}"):
        return text == option
    return float(text) if re.fullmatch(r"[\d.]+", text) else None


def test_defaults_are_read_as_they_are_meant() -> None:
    """The tests below would pass by themselves if these read nothing."""
    text = "eagle, hydra++: how much; ssd: how many. [default: 0.1; hydra, hydra++ 2; eagle 1, of models that draw 3]"
    assert named(text) == {"eagle", "hydra++", "ssd"}
    assert named("All but spd, ibed and ssd, of words: it.") == METHODS - {"spd", "ibed", "ssd"}
    told = [("eagle", "any"), ("eagle", "image"), ("hydra++", "any"), ("ssd", "speech")]
    assert [meant(written(text, *one), "it") for one in told] == [1, 3, 2, 0.1]
    assert meant(written("It. [default: 5; of models that draw 7]", "eagle", "image"), "it") == 7
    assert [meant(each, "in_it") for each in ("in-it", "no-in-it", "all words")] == [True, False, None]
    assert len(HELPS) > 30


@pytest.mark.parametrize("name", sorted(HELPS.keys() - {"seed"}))
def test_the_help_writes_down_the_defaults_of_the_recipes(name: str) -> None:
    text = HELPS[name]
    for (method, modality), recipe in RECIPES.items():
        if method in named(text):
            default = next(field.default for field in fields(recipe) if field.name == name)
            assert meant(written(text, method, modality), name) == default, (method, modality)


@pytest.mark.parametrize("name", sorted(HELPS))
def test_methods_that_the_help_does_not_name_refuse_a_setting(name: str) -> None:
    options = dict.fromkeys(HELPS)
    for (method, _), recipe in RECIPES.items():
        if method not in named(HELPS[name]):
            with pytest.raises(
                InputError, match="not an option of the method|has no warm-up|of its target: leave them out"
            ):
                recipe.asking(**fitting([recipe], {**options, name: 8})[0])
