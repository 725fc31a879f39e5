"""`mmspec datastore build`: what it fetches. See `test_free_drafters.py` for what it builds."""

import shutil
from fnmatch import fnmatch
from pathlib import Path

import pytest
import tiny

from mmspec.drafters.datastore_cli import read_tokenizer


def test_the_tokenizer_of_a_hub_s_model_is_read_without_fetching_its_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, fetched = tiny.tiny_llama(tmp_path / "model"), tmp_path / "fetched"
    fetched.mkdir()

    def snapshot(name: str, repo_type: str, allow_patterns: list[str], ignore_patterns: list[str]) -> str:
        for file in model.iterdir():
            if any(fnmatch(file.name, pattern) for pattern in allow_patterns):
                shutil.copy(file, fetched)
        return str(fetched)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)
    assert read_tokenizer("some/model").get_vocab() == tiny.tokenizer().get_vocab()
    assert not list(fetched.glob("*.safetensors"))
