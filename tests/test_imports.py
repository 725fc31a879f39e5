"""What imports what: `import mmspec` is light, and arrows between the folders run one way."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import mmspec

ROOT = Path(__file__).parents[1]
MODALITIES = ("vlm", "image_ar", "speech")
FOLDERS = (*MODALITIES, "benchmarks", "demos")  # imported as mmspec.<folder>

FORBIDDEN = {
    "mmspec": FOLDERS,
    **{modality: tuple(folder for folder in FOLDERS if folder != modality) for modality in MODALITIES},
    "benchmarks": (*MODALITIES, "demos"),
    "demos": (*MODALITIES, "benchmarks"),
}


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def sources(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def package_of(path: Path) -> list[str]:
    """The package that the relative imports of a file start from."""
    parts = list(path.relative_to(ROOT).parent.parts)
    return parts if parts[0] == "mmspec" else ["mmspec", *parts]


def imported(path: Path) -> Iterator[str]:
    """The dotted name of everything that a file imports; `from a import b` gives a and a.b."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = package_of(path)
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


def within(module: str, package: str) -> bool:
    return f"{module}.".startswith(f"{package}.")


@pytest.mark.parametrize("module", ["mmspec", "mmspec.registry"])
def test_import_is_light(module: str) -> None:
    heavy = "{'torch', 'transformers', 'torchvision', 'numpy', 'PIL', 'gradio', 'diffusers', 'typer'}"
    assert run(f"import sys, {module}; print(sorted({heavy} & set(sys.modules)))") == "[]"


def test_import_takes_under_300_ms() -> None:
    # of the processor, not of the clock: what else runs on the computer does not count
    code = "import time; start = time.process_time(); import mmspec; print(time.process_time() - start)"
    assert min(float(run(code)) for _ in range(3)) < 0.3


def test_public_names_are_listed_and_others_are_attribute_errors() -> None:
    assert {"generate", "load", "Pipeline", "Error", "list_drafters", "__version__"} <= set(dir(mmspec))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = mmspec.nothing


@pytest.mark.parametrize("folder", [folder for folder in FOLDERS if (ROOT / folder).is_dir()])
def test_folders_are_subpackages(folder: str) -> None:
    file = run(f"import mmspec.{folder} as package; print(package.__file__)")
    assert Path(file) == ROOT / folder / "__init__.py"


@pytest.mark.parametrize("folder", FORBIDDEN)
def test_arrows_run_one_way(folder: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {module}"
        for path in sources(folder)
        for module in imported(path)
        if any(within(module, f"mmspec.{other}") for other in FORBIDDEN[folder])
    ]
    assert not wrong


def test_nothing_imports_a_top_level_folder() -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {module}"
        for folder in ("mmspec", "tests", *FOLDERS)
        for path in sources(folder)
        for module in imported(path)
        if any(within(module, folder) for folder in FOLDERS)
    ]
    assert not wrong


@pytest.mark.parametrize(
    ("file", "line", "expected"),
    [
        ("mmspec/tree.py", "import mmspec.vlm", "mmspec.vlm"),
        ("mmspec/tree.py", "from mmspec import vlm", "mmspec.vlm"),
        ("mmspec/tree.py", "from . import vlm", "mmspec.vlm"),
        ("mmspec/drafters/none.py", "from ..vlm import smolvlm", "mmspec.vlm.smolvlm"),
        ("vlm/smolvlm.py", "from ..speech import x", "mmspec.speech.x"),
        ("vlm/pretrain/run.py", "from .. import smolvlm", "mmspec.vlm.smolvlm"),
    ],
)
def test_the_scan_sees_every_form_of_import(
    file: str, line: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    path.write_text(line, encoding="utf-8")
    assert expected in list(imported(path))
