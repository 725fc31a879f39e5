"""`mmspec demo`: see drafts being accepted, in a browser."""

from __future__ import annotations

import socket
from typing import Annotated

import typer

app = typer.Typer(add_completion=False, rich_markup_mode=None)

SHOWN = ("smolvlm-mini", "janus-mini", "valle-mini")
"""Bundled models that have a tab where none is named."""


@app.command(epilog="Try: mmspec demo --open   Then click on an example, and on Race.")
def demo(
    model: Annotated[
        str,
        typer.Option(
            help="Bundled names (mmspec models), folders or hub ids, separated by commas; a tab each. [default: "
            "smolvlm-mini, janus-mini, valle-mini]"
        ),
    ] = "",
    drafters: Annotated[
        str, typer.Option(help="Drafters of the first model, separated by commas. [default: those that fit it]")
    ] = "",
    host: Annotated[
        str, typer.Option(help="Address to listen on. 0.0.0.0 lets other computers in; there is no login.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port, 1 to 65535; 0 takes a free one from 7860 on.")] = 0,
    open_browser: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Show speculative decoding in a browser (needs the extra `demo`).

    A question about a picture is answered (a caption drawn, a sentence said) one token at a time and with drafts,
    then both are replayed side by side on one clock: accepted draft tokens are underlined, corrected ones marked, tau
    and speed count along, and the tree of every round can be looked at. The last tab measures drafters over a few
    questions.

    Nothing is sent anywhere: no telemetry, no public link, uploads of at most 10 MB that are deleted after ten
    minutes, one answer at a time with at most 32 waiting.
    """
    from mmspec.checkpoints import bundled, find_model
    from mmspec.errors import InputError

    models = [name.strip() for name in model.split(",") if name.strip()]
    for name in models:
        find_model(name)  # a wrong one is told in a moment, before torch and gradio are imported
    from mmspec.demos.app import LAUNCH, page, require_gradio, studio_of

    if not 0 <= port < 2**16:
        raise InputError(f"port {port} is not valid: 1 to 65535, or 0 for a free one")
    require_gradio()
    check_free(host, port)
    names = [name.strip() for name in drafters.split(",") if name.strip()]
    first, *others = models or [name for name in SHOWN if name in bundled() or name == SHOWN[0]]
    absent = [name for name in SHOWN if not models and name != first and name not in others]
    if absent:
        typer.echo(
            f"no tab for {', '.join(absent)}: not in this installation. Train one: mmspec train target {absent[0]} "
            f"--out {absent[0]}; then show both: mmspec demo --model {first},{absent[0]}",
            err=True,
        )
    blocks = page(studio_of(first, names or None), *map(studio_of, others))
    how = {"quiet": True, "prevent_thread_lock": True}  # its own words speak of public links
    try:
        blocks.launch(server_name=host, server_port=port or None, inbrowser=open_browser, **how, **LAUNCH)
    except OSError as error:
        raise InputError(f"cannot listen on {host}, port {port or '7860 to 7959'}: {error}") from error
    typer.echo(f"The page is at {blocks.local_url} until Ctrl-C.")
    blocks.block_thread()


def check_free(host: str, port: int) -> None:
    """Raise InputError for an address that nothing can listen on: gradio would try a hundred ports of it, and slowly.

    Args: port: 0 asks for the host alone.
    """
    from mmspec.errors import InputError, reason

    try:
        bare = host.removeprefix("[").removesuffix("]")  # as IPv6 addresses stand in URLs
        family, kind, protocol, _, address = socket.getaddrinfo(bare, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as gradio's own server does
            tried.bind(address)
    except (OSError, UnicodeError) as error:  # the second for names that no computer can have
        place = f"{host}, port {port}" if port else host
        raise InputError(f"cannot listen on {place}: {reason(error)}") from error
