"""`python -m mmspec.benchmarks.gpu --stage ceilings`."""

from mmspec.benchmarks.gpu.cli import main

main()
