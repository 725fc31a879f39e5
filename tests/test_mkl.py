"""What MKL is told before its first product."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mmspec import mkl


@pytest.mark.parametrize(
    ("told", "set_before", "wanted"),
    [
        ("processor\t: 0\nvendor_id\t: AuthenticAMD\n", None, "AUTO"),
        ("processor\t: 0\nvendor_id\t: AuthenticAMD\n", "AVX2", "AVX2"),
        ("processor\t: 0\nvendor_id\t: AuthenticAMD\n", "", ""),
        ("processor\t: 0\nvendor_id\t: GenuineIntel\n", None, None),
        ("processor\t: 0\nBogoMIPS\t: 50\n", None, None),
        (None, None, None),
    ],
)
def test_mkl_is_asked_for_its_better_code_on_amd_alone(
    told: str | None, set_before: str | None, wanted: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if told is not None:
        (tmp_path / "cpuinfo").write_text(told)
    monkeypatch.setattr(mkl, "CPUS", tmp_path / "cpuinfo")
    monkeypatch.delenv(mkl.SETTING, raising=False)
    if set_before is not None:
        monkeypatch.setenv(mkl.SETTING, set_before)
    mkl.prepare()
    assert os.environ.get(mkl.SETTING) == wanted


def test_it_is_told_when_mmspec_is_imported() -> None:
    code = "import os; os.environ.pop('MKL_CBWR', None); import mmspec; print(os.environ.get('MKL_CBWR', 'nothing'))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == ("AUTO" if mkl._vendor() == mkl.AMD else "nothing")
