"""Memory: the peak of each method, in a process of its own so that no other's peak hides it, and drafters' weights.

`python -m mmspec.benchmarks.memory` reads a JSON object from standard input and prints one; `peaks` starts it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mmspec import Pipeline
from mmspec.benchmarks.rows import in_dtype
from mmspec.benchmarks.speed import SpeedSettings
from mmspec.drafters.precision import weight_bytes
from mmspec.errors import Error, UnsupportedError


def peaks(settings: SpeedSettings) -> dict[str, int]:
    """Peak bytes of our loop with every drafter, answering one question: resident, on CUDA allocated. One that cannot
    be measured, as where memory does not hold the model twice, is told and left out."""
    found = {}
    for name in settings.drafters:
        try:
            found[name] = peak(settings, name)
        except UnsupportedError as error:
            print(error, file=sys.stderr)
    return found


def peak(settings: SpeedSettings, drafter: str) -> int:
    """Those of one method, in a fresh process."""
    names = (
        "model", "acceptance", "max_new_tokens", "threads", "dtype", "device", "compile", "shape", "data", "questions",
    )  # fmt: skip
    request = {"drafter": drafter, **{name: getattr(settings, name) for name in names}}
    command = [sys.executable, "-m", "mmspec.benchmarks.memory"]
    done = subprocess.run(command, input=json.dumps(request), capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or ["no message"]
        raise UnsupportedError(f"the memory of {drafter!r} could not be measured: {last[0]}")
    return json.loads(done.stdout.splitlines()[-1])["peak_bytes"]


def draft_weights(pipe: Pipeline, drafters: Sequence[str]) -> dict[str, int]:
    """Bytes of the networks of those drafters that have one; what they borrow from the target is not theirs."""
    found = {}
    for name in drafters:
        drafter, dtype = in_dtype(name)
        net = pipe.with_drafter(drafter, drafter_dtype=dtype).drafter.net
        if net is not None:
            found[name] = weight_bytes(net)
    return found


def answer_once(request: dict[str, Any]) -> int:
    """Load, answer one question, and say the peak."""
    import torch

    import mmspec
    from mmspec.benchmarks.figures import OURS
    from mmspec.benchmarks.speed import model_inputs, warm_question
    from mmspec.control import read_shape

    if request["threads"]:
        torch.set_num_threads(request["threads"])
    chosen = {name: request[name] for name in ("model", "acceptance", "dtype", "device", "compile")}
    drafter, dtype = in_dtype(request["drafter"])
    shape = read_shape(request["shape"]) if request["shape"] and drafter != OURS else None
    pipe = mmspec.load(drafter=drafter, drafter_dtype=dtype, shape=shape, **chosen)
    inputs = model_inputs(pipe, warm_question(pipe, request["data"], request["questions"]))
    pipe.generate(**inputs, max_new_tokens=request["max_new_tokens"], temperature=0.0)
    device = pipe.target.model.device
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else resident_peak()


def resident_peak() -> int:
    """The largest resident size of this process so far, in bytes."""
    status = Path("/proc/self/status")
    if status.exists():
        # not getrusage: on Linux a child starts there with its parent's peak
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes on macOS


def main() -> None:
    """Entry point of the child process."""
    try:
        print(json.dumps({"peak_bytes": answer_once(json.load(sys.stdin))}))
    except Error as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
