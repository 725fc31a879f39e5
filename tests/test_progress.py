"""Bars on a terminal, now and then a line elsewhere."""

import io
import sys

import pytest

from mmspec import progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_has_a_bar_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())
    with progress.progress(desc="drawing", total=4, initial=1) as bar:
        assert "drawing:  25%" in sys.stderr.getvalue()
        bar.update(3)
    assert "drawing: 100%" in sys.stderr.getvalue()


def test_a_log_has_nothing_of_what_is_short_and_lines_of_what_is_long(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert list(progress.progress(range(3), desc="short")) == [0, 1, 2]
    assert capsys.readouterr().err == ""
    now = [100.0]
    monkeypatch.setattr("tqdm.std.time", lambda: now[0])
    for _ in progress.progress(range(90), desc="long"):
        now[0] += 1.0
    told = capsys.readouterr().err
    assert "long:  22%" in told
    assert "long: 100%" in told
    assert told.count("it/s") == 5
