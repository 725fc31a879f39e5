"""`mmspec convert` and `mmspec export`: published drafters in, trained ones out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

convert_app = typer.Typer(add_completion=False, rich_markup_mode=None)
export_app = typer.Typer(add_completion=False, rich_markup_mode=None)


@convert_app.command()
def convert(
    source: Annotated[
        str, typer.Argument(help="Folder or hub id of a drafter with pickled weights and a config.json.")
    ],
    out: Annotated[Path, typer.Option(help="Folder to write.")],
    exit_layer: Annotated[
        int | None, typer.Option(help="Kangaroo: after which layer of the target it drafts; written to config.json.")
    ] = None,
) -> None:
    """Rewrite published weights that are pickled (*.bin, *.pt) as safetensors, which is all that mmspec loads.

    Example: mmspec convert yuhuili/EAGLE-Vicuna-7B-v1.3 --out eagle-vicuna
    """
    from mmspec.interchange.pickles import convert as rewrite

    typer.echo(rewrite(source, out, exit_layer=exit_layer))


@export_app.command()
def export(
    drafter: Annotated[str, typer.Argument(help="Folder, hub id or bundled name of a trained drafter.")],
    target: Annotated[str, typer.Option(help="Bundled name, folder or hub id of the model that it drafts for.")],
    out: Annotated[Path, typer.Option(help="Folder to write.")],
    form: Annotated[
        str | None,
        typer.Option(
            "--format",
            help="speculators (eagle3, dflash), eagle (eagle, eagle2, hass, eagle3), or, where it is asked for, int8 "
            "(any head, for mmspec, in half the room). [default: the first of the two that fits]",
        ),
    ] = None,
    verifier: Annotated[
        str | None,
        typer.Option(help="Name of the target where the drafter will be served (not for int8). [default: --target]"),
    ] = None,
) -> None:
    """Write a trained drafter in the format of another program: eagle3 and dflash for vLLM (speculators), eagle,
    eagle2, hass and eagle3 as those of EAGLE. Or any head for mmspec, with its weights in eight bits; the card of a
    folder goes along.

    Example: mmspec export my-eagle3 --target Qwen/Qwen3-0.6B --out my-speculator
    """
    import mmspec
    from mmspec.checkpoints import CARD, drafters_of
    from mmspec.interchange.export import export as write

    pipe = mmspec.load(target, drafter, dtype="auto", compile=False)
    beside = {} if pipe.folder is None else drafters_of(pipe.folder)
    card = beside.get(drafter, Path(drafter)) / CARD
    told = card.read_text(encoding="utf-8", errors="replace") if card.is_file() else None
    typer.echo(write(pipe.drafter, pipe.target, verifier or target, form, out, told))
