"""What it takes to serve: memory of stores, a crowd before the demo."""

from __future__ import annotations

from typing import Annotated

import typer

from mmspec.benchmarks.commands.options import Json, MaxNewTokens, OutOnce
from mmspec.benchmarks.commands.reading import kept_in, show
from mmspec.errors import InputError


def stores(
    model: Annotated[str, typer.Option(help="Whose tokenizer: bundled name, folder or hub id.")] = "smolvlm-mini",
    requests: Annotated[int, typer.Option(help="Questions and answers that are replayed.")] = 10_000,
    max_tokens: Annotated[int, typer.Option(help="Room of the store, and of the datastore, in tokens.")] = 1 << 16,
    points: Annotated[int, typer.Option(help="Lines of the table, for each store.")] = 10,
    seed: Annotated[int, typer.Option(help="Of the questions.")] = 0,
    out: OutOnce = None,
    as_json: Json = False,
) -> None:
    """Memory of the stores that suffix decoding and retrieval copy from, over many requests, against their bound.

    Example: mmspec bench stores --requests 10000 --out bench-stores
    """
    from mmspec.benchmarks.report import keep
    from mmspec.benchmarks.stores import StoreSettings, run_stores
    from mmspec.drafters.datastore_cli import read_tokenizer

    settings = StoreSettings(model, requests, max_tokens, points, seed)
    tokenizer = read_tokenizer(model)
    with kept_in(out) as folder:
        report = run_stores(settings, lambda text: tokenizer(text, add_special_tokens=False)["input_ids"])
        show(*keep(folder, report), as_json)


def load(
    model: Annotated[
        str, typer.Option(help="Bundled name, folder or hub id of a vision-language model.")
    ] = "smolvlm-mini",
    drafter: Annotated[str, typer.Option(help="Drafter of the demo. [default: the model's best]")] = "",
    at_once: Annotated[int, typer.Option(help="Visitors who ask at the same time, 1 to 32.")] = 20,
    requests: Annotated[int, typer.Option(help="Requests one after the other, 4 or more.")] = 200,
    max_new_tokens: MaxNewTokens = 32,
    patience: Annotated[float, typer.Option(help="Seconds that the start, or one answer, may take.")] = 600.0,
    out: OutOnce = None,
    as_json: Json = False,
) -> None:
    """What `mmspec demo` stands, on this computer: a crowd in its queue, then many requests, with its memory watched.

    It passes (else the exit status is 1) if everybody gets the same answer in the order of arrival, the page opens
    within 15 seconds, and memory is flat: its mean over the last quarter of the requests is at most 1.05 times that
    over the second quarter.

    Example: mmspec bench load --at-once 20 --requests 200 --out bench-load
    """
    from mmspec.benchmarks.load import LoadSettings, run_load
    from mmspec.benchmarks.report import keep
    from mmspec.loading import modality_of

    settings = LoadSettings(model, drafter, at_once, requests, max_new_tokens, patience)
    if modality_of(model) != "vlm":
        raise InputError(f"visitors ask about a picture, which {model} does not answer: name a vision-language model")
    with kept_in(out) as folder:
        report = run_load(settings)
        show(*keep(folder, report), as_json)
    if report.failures():
        raise typer.Exit(1)
