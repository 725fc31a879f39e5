"""Peak memory of one method, measured in a process of its own so that no other method's peak hides it.

`python -m mmspec.benchmarks.memory` reads a JSON object from standard input and prints one; `peaks` starts it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from mmspec.benchmarks.speed import SpeedSettings
from mmspec.errors import Error, UnsupportedError


def peaks(settings: SpeedSettings) -> dict[str, int]:
    """Peak resident bytes of our loop with every drafter, answering one question."""
    return {name: peak(settings, name) for name in settings.drafters}


def peak(settings: SpeedSettings, drafter: str) -> int:
    """Peak resident bytes of one method in a fresh process."""
    names = ("model", "acceptance", "max_new_tokens", "threads", "dtype", "device")
    request = {"drafter": drafter, **{name: getattr(settings, name) for name in names}}
    command = [sys.executable, "-m", "mmspec.benchmarks.memory"]
    done = subprocess.run(command, input=json.dumps(request), capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or ["no message"]
        raise UnsupportedError(f"the memory of {drafter!r} could not be measured: {last[0]}")
    return json.loads(done.stdout.splitlines()[-1])["peak_bytes"]


def answer_once(request: dict[str, Any]) -> int:
    """Load, answer one question, and say the peak."""
    import torch

    import mmspec
    from mmspec.benchmarks.questions import long_questions
    from mmspec.benchmarks.speed import WARM_UP_SEED, token_counter

    if request["threads"]:
        torch.set_num_threads(request["threads"])
    chosen = {name: request[name] for name in ("model", "drafter", "acceptance", "dtype", "device")}
    pipe = mmspec.load(**chosen)
    question = long_questions(1, token_counter(pipe), WARM_UP_SEED)[0]
    inputs = pipe.prepare(question.image, question.qa.question)
    pipe.generate(**inputs, max_new_tokens=request["max_new_tokens"], temperature=0.0)
    return resident_peak()


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
