"""Name tables: lookup by modality, near names, entry points, and nothing imported before it is asked for."""

import logging
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
import tiny
from transformers import LlamaConfig

import mmspec
from mmspec import inventory, registry
from mmspec.errors import Error, InputError, UnknownNameError, UnsupportedError, missing_extra, unknown_name
from mmspec.interchange.published import find_layout
from mmspec.loading import find_family, has_drafter
from mmspec.named import made, settings_of


@pytest.fixture
def plugins(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[EntryPoint]]:
    """Entry points that other distributions would declare; a test appends its own."""
    points: list[EntryPoint] = []
    monkeypatch.setattr(registry, "entry_points", lambda group: [point for point in points if point.group == group])
    registry.entries.cache_clear()
    yield points
    registry.entries.cache_clear()


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch, plugins: list[EntryPoint]) -> dict[str, str]:
    """A drafters table of a few classes."""
    table = {
        "any/none": "mmspec.drafters.none:NoDrafter",
        "vlm/eagle": "mmspec.drafters.eagle:Eagle1",
        "any/eagle": "mmspec.drafters.eagle:Hass",
        "speech/vadusa": "collections:deque",
        "any/broken": "no_such_module:Thing",
        "any/lacking": "collections:Thing",
    }
    monkeypatch.setitem(registry.BUILTIN, "drafters", table)
    return table


def test_the_modality_comes_before_any(table: dict[str, str]) -> None:
    assert registry.resolve("drafters", "eagle", "vlm").__name__ == "Eagle1"
    assert registry.resolve("drafters", "eagle", "speech").__name__ == "Hass"
    assert registry.resolve("drafters", "none", "vlm").__name__ == "NoDrafter"


def test_names_are_those_of_the_modality(table: dict[str, str]) -> None:
    assert registry.names("drafters", "vlm") == ["broken", "eagle", "lacking", "none"]
    assert registry.names("drafters") == ["broken", "eagle", "lacking", "none", "vadusa"]


def test_unknown_name_suggests_near_ones(table: dict[str, str]) -> None:
    with pytest.raises(UnknownNameError) as caught:
        registry.resolve("drafters", "egle", "vlm")
    assert str(caught.value) == "unknown drafter 'egle'; did you mean 'eagle'? known: broken, eagle, lacking, none"


def test_name_of_another_modality_says_where_it_exists(table: dict[str, str]) -> None:
    with pytest.raises(UnknownNameError, match="'vadusa' exists for: speech"):
        registry.resolve("drafters", "vadusa", "vlm")


@pytest.mark.parametrize("name", ["", "any/eagle", "../eagle", "x" * 10_000, "\n"])
def test_odd_names_are_unknown_in_one_short_line(name: str) -> None:
    with pytest.raises(UnknownNameError) as caught:
        registry.resolve("drafters", name, "vlm")
    assert len(str(caught.value)) < 1000
    assert "\n" not in str(caught.value)


def test_unknown_kind() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'drafters'"):
        registry.entries("drafter")


@pytest.mark.parametrize("name", ["broken", "lacking"])
def test_entry_that_cannot_be_imported_names_itself(name: str, table: dict[str, str]) -> None:
    with pytest.raises(UnsupportedError, match=f"'{name}' is registered as"):
        registry.resolve("drafters", name)


def test_entry_points_add_names(plugins: list[EntryPoint]) -> None:
    plugins.append(EntryPoint("vlm/mine", "mmspec.drafters.suffix:Suffix", "mmspec.drafters"))
    plugins.append(EntryPoint("everywhere", "mmspec.acceptance.match:Match", "mmspec.rules"))
    assert registry.resolve("drafters", "mine", "vlm").__name__ == "Suffix"
    assert "mine" not in registry.names("drafters", "speech")
    assert registry.resolve("rules", "everywhere", "speech").__name__ == "Match"


def test_entry_points_do_not_replace_built_in_names(
    plugins: list[EntryPoint], caplog: pytest.LogCaptureFixture
) -> None:
    plugins.append(EntryPoint("any/exact", "fractions:Fraction", "mmspec.rules"))
    with caplog.at_level(logging.WARNING):
        assert registry.entries("rules")["any/exact"] == "mmspec.acceptance.exact:Exact"
    assert "fractions:Fraction" in caplog.text


def test_what_another_distribution_broke_stops_nobody(
    plugins: list[EntryPoint], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plugins.append(EntryPoint("vlm/aa-broken", "no_such_module:Thing", "mmspec.targets"))
    (tmp_path / "module_that_raises.py").write_text("raise RuntimeError('no such card')")
    monkeypatch.syspath_prepend(tmp_path)
    plugins.append(EntryPoint("any/aa-broken", "module_that_raises:Thing", "mmspec.drafters"))
    plugins.append(EntryPoint("any/aa-broken", "fractions:Fraction", "mmspec.rules"))
    with caplog.at_level(logging.WARNING):
        assert find_family(LlamaConfig()).__name__ == "CausalLM"
        assert "spd" in {entry["name"] for entry in inventory.drafters()}
        assert "exact" in {entry["name"] for entry in inventory.rules()}
    assert caplog.text.count("aa-broken") == 3
    assert "does not derive from mmspec.contract.Rule" in caplog.text
    plugins.append(EntryPoint("any/aa-broken", "no_such_module:Thing", "mmspec.layouts"))
    registry.entries.cache_clear()
    tiny.tiny_llama(tmp_path / "model")
    assert find_layout(tmp_path / "model") is None
    monkeypatch.setitem(registry.BUILTIN["drafters"], "any/bb-broken", "no_such_module:Thing")
    registry.entries.cache_clear()
    with pytest.raises(UnsupportedError, match="bb-broken"):
        inventory.drafters()


def test_nothing_is_imported_before_it_is_resolved(plugins: list[EntryPoint]) -> None:
    plugins.append(EntryPoint("any/late", "this:s", "mmspec.drafters"))
    sys.modules.pop("this", None)
    assert "late" in registry.names("drafters")
    assert "this" not in sys.modules


@pytest.mark.parametrize("kind", registry.BUILTIN)
def test_entries_are_well_formed(kind: str) -> None:
    for key, value in registry.BUILTIN[kind].items():
        modality, _, name = key.partition("/")
        assert modality in {"any", "text", "vlm", "image", "speech"}
        assert name
        module, _, attribute = value.partition(":")
        assert module.startswith("mmspec.")
        assert attribute.isidentifier()


@pytest.mark.parametrize(
    ("kind", "key"), [(kind, key) for kind, table in registry.BUILTIN.items() for key in sorted(table)]
)
def test_every_built_in_name_resolves(kind: str, key: str) -> None:
    modality, _, name = key.partition("/")
    assert registry.resolve(kind, name, modality) is not None


@pytest.mark.parametrize(
    ("kind", "key"), [(kind, key) for kind in ("drafters", "rules") for key in registry.BUILTIN[kind]]
)
def test_an_object_is_called_by_its_name(kind: str, key: str) -> None:
    modality, name = key.split("/")
    found: Any = registry.resolve(kind, name, modality)
    assert registry.name_of(kind, found.__new__(found), modality) == name


def test_an_object_of_nobody_is_called_by_its_class() -> None:
    assert registry.name_of("drafters", Path("."), "vlm") == type(Path(".")).__qualname__


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("prompt-lookup:length=2.5", "a whole number"),
        ("suffix:longest=none", "a whole number"),
        ("recycling:width=some", "a whole number"),
        ("suffix:factor=nan", "a finite number"),
        ("suffix:factor=inf", "a finite number"),
    ],
)
def test_a_setting_is_a_number_of_its_kind(text: str, wanted: str) -> None:
    with pytest.raises(InputError, match=f"of the drafter [a-z-]+ is not valid: {wanted} is needed"):
        made("drafter", *settings_of(text), "vlm")
    assert made("drafter", *settings_of("suffix:factor=3:longest=9"), "vlm").factor == 3
    assert made("rule", *settings_of("max-ratio:rho=inf"), "speech").rho == float("inf")


def test_list_drafters_is_public() -> None:
    assert "prompt-lookup" in mmspec.list_drafters()
    assert mmspec.list_drafters("vlm") == registry.names("drafters", "vlm")


def test_errors_say_what_to_do() -> None:
    assert "mmspec[bench]" in str(missing_extra("matplotlib", "bench"))
    assert str(unknown_name("model", 3, [])) == "unknown model 3"
    assert "did you mean 'Ab'" in str(unknown_name("model", "ab", ["Ab", "zz"]))


def test_every_error_is_also_a_builtin_one() -> None:
    for kind in Error.__subclasses__():
        assert issubclass(kind, ValueError | TypeError | RuntimeError), kind


def test_only_modalities_have_drafters() -> None:
    assert "vispec" in mmspec.list_drafters("vlm")
    assert "vispec" not in mmspec.list_drafters("text")
    with pytest.raises(UnknownNameError, match="unknown modality 'vision'"):
        mmspec.list_drafters("vision")


def test_whether_a_family_takes_a_drafter_is_known_of_the_classes_alone() -> None:
    """No model is read, so no object is made: what is asked stands on the classes."""
    takes: dict[str, set[str]] = {}
    for name, family in registry.importable("targets", registry.entries("targets")):
        own = registry.names("drafters", family.modality)
        takes[name] = {drafter for drafter in own if has_drafter(drafter, family, None)}
    copies = {"none", "prompt-lookup", "suffix", "recycling", "lookahead", "hybrid"}
    assert takes["smolvlm"] == takes["valle"] == takes["whisper"] == copies
    assert takes["janus"] == copies | {"jacobi", "sjd", "scd-mc", "scd-gs", "sjd-pac"}
    assert takes["mar"] == takes["musicgen"] == takes["dia"] == {"none"}
    assert takes["csm"] == {"none", "prompt-lookup", "depth"}
