"""Commands as a user gives them, run in this process."""

from typing import Any

from typer.testing import CliRunner, Result

from mmspec.cli import app


def generate(*arguments: Any) -> Result:
    """`mmspec generate`, whatever comes of it."""
    return CliRunner().invoke(app, ["generate", *map(str, arguments)], catch_exceptions=True)


def succeeded(result: Result) -> str:
    """What a command printed; its exception, if it had one."""
    if result.exception is not None:
        raise result.exception
    return result.output
