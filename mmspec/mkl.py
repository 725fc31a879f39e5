"""What Intel's MKL, which multiplies matrices in torch's wheels for CPUs, is told about a processor before its first
product, when it asks."""

import os
from pathlib import Path

SETTING = "MKL_CBWR"
CPUS = Path("/proc/cpuinfo")
AMD = "AuthenticAMD"


def prepare() -> None:
    """On AMD processors ask for the code whose results do not depend on where matrices lie in memory.

    It also multiplies 16 to 32 rows, which is what a verification does, in six to eight tenths of the time of MKL's
    other code; a plain step's single row takes as long as before. What the user has set stays.
    """
    if SETTING not in os.environ and _vendor() == AMD:
        os.environ[SETTING] = "AUTO"


def _vendor() -> str:
    """Who made the processor, as Linux tells; "" elsewhere."""
    try:
        with CPUS.open(encoding="utf-8") as file:
            found = next((line for line in file if line.startswith("vendor_id")), "")
    except OSError:
        return ""
    return found.partition(":")[2].strip()
