"""`python -m mmspec.benchmarks.gpu --stage ceilings`: the same as `mmspec bench gpu`."""

import sys

from mmspec.cli import main

sys.argv[1:1] = ["bench", "gpu"]
main()
