"""Settings for every test: no network, few threads, repeatable property tests; `--engine static` (see `fixed.py`)."""

import gc
import os
from typing import Any

# Before torch, transformers or gradio are imported.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ["OMP_NUM_THREADS"] = "1"  # a worker per core
else:
    os.environ.setdefault("OMP_NUM_THREADS", "2")  # torch's threads, without importing torch here

import pytest
from hypothesis import settings

settings.register_profile("mmspec", deadline=None, derandomize=True)
settings.load_profile("mmspec")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--engine",
        choices=("dynamic", "static"),
        default="dynamic",
        help="what targets verify on: the caches of transformers, or those of mmspec.engine",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "dynamic(reason): says nothing where all targets have static caches")
    if config.getoption("engine") == "static":
        from fixed import static_caches

        switch = static_caches()
        switch.__enter__()
        config.add_cleanup(lambda: switch.__exit__(None, None, None))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)  # first, so that no worker has much left when the other is done
    for item in items if config.getoption("engine") == "static" else ():
        for mark in item.iter_markers("dynamic"):
            item.add_marker(pytest.mark.skip(reason=f"with --engine static: {mark.args[0]}"))


@pytest.fixture(scope="module")
def pipe() -> Any:
    """A tiny random SmolVLM in double precision, without drafts; some modules have another one of this name."""
    import tiny

    import mmspec

    return mmspec.load(tiny.smolvlm_model().double(), "none", processor=tiny.processor())


@pytest.fixture(scope="module", autouse=True)
def _frozen() -> None:
    """Keep Python from looking through all imported code, over and over, for what nobody holds: a tenth of the time."""
    gc.collect()
    gc.freeze()
