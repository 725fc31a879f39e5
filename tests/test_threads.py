"""Several threads at once: models that are loaded, first requests, and what transformers changes for all meanwhile."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from time import sleep
from typing import Any

import pytest
import taught
import tiny
import torch
from PIL import Image
from transformers import SmolVLMForConditionalGeneration

import mmspec
from mmspec import checkpoints, one_call
from mmspec.focus import _asking

RED, QUESTION = Image.new("RGB", (50, 40), "red"), "what is the value of the red bar?"
MANY = 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.tiny_smolvlm(tmp_path_factory.mktemp("threads"))


def at_once(work: Any) -> list[Any]:
    """What `work` gives in each of several threads that begin together."""
    together = Barrier(MANY)

    def one(_: int) -> Any:
        together.wait()
        return work()

    with ThreadPoolExecutor(MANY) as pool:
        return list(pool.map(one, range(MANY)))


def test_models_are_built_one_at_a_time(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers takes `tie_weights` out of all classes while it builds one, and two may never put it back."""
    inside, most = [], []
    build = SmolVLMForConditionalGeneration.from_pretrained

    def slowly(*given: Any, **how: Any) -> Any:
        inside.append(0)
        most.append(len(inside))
        sleep(0.05)
        made = build(*given, **how)
        inside.pop()
        return made

    monkeypatch.setattr(SmolVLMForConditionalGeneration, "from_pretrained", slowly)
    pipes = at_once(lambda: mmspec.load(folder, "none"))
    assert most == [1] * MANY
    assert len({pipe(RED, QUESTION, max_new_tokens=4).text for pipe in pipes}) == 1


def test_first_requests_that_come_at_once_read_the_model_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads, read = [], checkpoints.read_model
    monkeypatch.setattr("mmspec.loading.read_model", lambda *given: reads.append(given) or read(*given))
    one_call._pipelines.cache_clear()
    answers = at_once(lambda: mmspec.generate(RED, QUESTION, model=folder, drafter="none", max_new_tokens=4).text)
    assert len(reads) == 1
    assert len(set(answers)) == 1


@pytest.mark.parametrize("method", ["eagle2", "medusa"])
@pytest.mark.parametrize("rule", ["exact", "ratio"])
def test_a_request_keeps_its_float32_while_a_model_of_another_dtype_is_built(
    folder: Path, method: str, rule: str
) -> None:
    pipe = mmspec.load(folder, "none", dtype="float64")
    net = taught.network(method, pipe.target)
    pipe = pipe.with_drafter(taught.drafter(method, net), acceptance=rule)
    want = pipe(RED, QUESTION, max_new_tokens=6, temperature=1.0, seed=1)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        got = pipe(RED, QUESTION, max_new_tokens=6, temperature=1.0, seed=1)
    finally:
        torch.set_default_dtype(before)
    assert got.stats.accept_lengths
    assert got.token_ids == want.token_ids


def test_a_hook_of_another_thread_is_left_alone_however_it_is_called() -> None:
    """torch leaves out the named inputs where the hook went between its two looks at the list."""
    with ThreadPoolExecutor(1) as pool:
        hook = pool.submit(_asking, 0, lambda layer, weights: pytest.fail("not its thread")).result()
    hook(torch.nn.Identity(), (torch.zeros(1),), torch.zeros(1))
