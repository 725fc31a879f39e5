"""Settings for every test: no network, few threads, repeatable property tests."""

import os

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

from hypothesis import settings

settings.register_profile("mmspec", deadline=None, derandomize=True)
settings.load_profile("mmspec")
