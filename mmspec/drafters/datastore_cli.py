"""`mmspec datastore build`: from a folder of texts to a folder that `--drafter` takes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    import numpy as np

EXAMPLES = """\b
Try, with a folder of .txt or .md files:
  mmspec datastore build my-texts --out my-store
  mmspec generate picture.png "Describe this picture in detail." --drafter my-store
"""

app = typer.Typer(
    help="Datastores: texts of your own from which drafts are copied.",
    epilog=EXAMPLES,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)

SUFFIXES = (".txt", ".md")


@app.callback()
def _group() -> None:
    """Keep `build` a sub-command, though it is the only one."""


@app.command()
def build(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Its .txt and .md files, also in folders below.")],
    out: Annotated[Path, typer.Option(help="Folder of the datastore.")],
    model: Annotated[str, typer.Option(help="Whose tokenizer: bundled name, folder or hub id.")] = "smolvlm-mini",
    max_tokens: Annotated[
        int, typer.Option(help="Refuse more tokens than this; 8 bytes are kept of each.")
    ] = 50_000_000,
) -> None:
    """Build a datastore from the texts that a target's answers may resemble. Written whole, or not at all.

    Example: mmspec datastore build my-texts --model smolvlm-mini --out my-store
    """
    from mmspec.drafters.datastore import Datastore
    from mmspec.drafters.retrieval import Retrieval

    tokenizer = read_tokenizer(model)
    documents = list(encoded(texts_of(folder), tokenizer, max_tokens))
    drafter = Retrieval(Datastore.build(documents))
    write(drafter, out, tokenizer)
    typer.echo(f"{out}: {len(drafter.datastore.tokens)} tokens of {len(documents)} files", err=True)


def read_tokenizer(model: str) -> Any:
    """The tokenizer of a checkpoint; its weights are neither fetched nor read."""
    from transformers import AutoTokenizer

    from mmspec.checkpoints import LIGHT, find_model
    from mmspec.errors import CheckpointError, one_line

    folder = find_model(model, LIGHT)
    try:
        return AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:  # noqa: BLE001  damaged files end in any exception of json, tokenizers, transformers
        raise CheckpointError(f"the tokenizer in {folder} cannot be loaded: {one_line(error)}") from error


def texts_of(folder: Path) -> list[Path]:
    """The text files in a folder and below. Raises InputError: there are none."""
    from mmspec.errors import InputError

    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder: pass one that holds {' or '.join(SUFFIXES)} files")
    found = sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file())
    if not found:
        raise InputError(f"{folder} holds no text: {' or '.join(SUFFIXES)} files are needed")
    return found


def encoded(files: list[Path], tokenizer: Any, max_tokens: int) -> Iterator[np.ndarray]:
    """The ids of each file, control tokens left as plain text.

    Raises: InputError: a file is not UTF-8 or cannot be read, or there are more tokens than allowed.
    """
    import numpy as np

    from mmspec.errors import InputError, one_line
    from mmspec.progress import progress

    count = 0
    for file in progress(files, desc="datastore", unit="file"):
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{file} cannot be read as UTF-8 text: {one_line(error)}") from error
        ids = tokenizer(text, add_special_tokens=False, split_special_tokens=True, verbose=False)["input_ids"]
        count += len(ids)
        if count > max_tokens:
            raise InputError(f"{file} is token {count}, --max-tokens is {max_tokens}: allow more, or give less text")
        yield np.array(ids, dtype=np.int32)


def write(drafter: Any, out: Path, tokenizer: Any) -> None:
    """The folder that `drafter=` takes."""
    from mmspec.checkpoints import vocabulary_hash, write_drafter, writing

    with writing(out) as draft:
        write_drafter(drafter, draft, {"tokenizer": vocabulary_hash(tokenizer)})
