"""The command line: `mmspec generate | models | drafters | rules | info | bench | convert | datastore | demo | export |
train`.

Results go to stdout, everything else to stderr. A user's mistake ends in one line and exit status 2. Commands import
what they need when they run, so that help is fast; those from `bench` on, and what other distributions add, are found
by name in the registry.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable
from pathlib import Path
from shlex import join
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

import mmspec
from mmspec.errors import Error, InputError, UnsupportedError
from mmspec.registry import names, resolve

if TYPE_CHECKING:
    from mmspec.api import Pipeline
    from mmspec.compare import Comparison
    from mmspec.options import Options
    from mmspec.results import Generation, Stream
    from mmspec.stats import Stats

HELP = ["-h", "--help"]
"""What asks for help, of every command."""

EXAMPLES = """\b
Try, in this repository:
  mmspec generate vlm/samples/chart.png "Describe this picture in detail." --compare
  mmspec train drafter --target smolvlm-mini --out my-drafter
  mmspec bench --questions 8 --repeats 1 --no-memory
"""

app = typer.Typer(
    name="mmspec",
    help="Speculative decoding for models that see, draw and speak: the same answer, sooner.",
    epilog=EXAMPLES,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": HELP},
)

DELEGATED = {
    "train": "Train drafters, or a bundled model.",
    "datastore": "Build a datastore that drafts are copied from.",
    "convert": "Unpickle a published drafter.",
    "export": "Write a drafter as vLLM reads it.",
    "demo": "Show speculative decoding in a browser.",
    "bench": "Measure drafters: tau, speed-up, equality.",
}

TELLING = 30
"""Tokens of an answer from which on its S says something."""
WRITTEN = {"picture": "picture.png", "sound": "speech.wav"}
"""What goes to a file, with the name of one."""
SOUNDS = (".wav", ".mp3", ".flac", ".ogg", ".m4a")
"""Ends of names of sounds."""

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def main() -> None:
    """Run the command line."""
    try:
        app()
    except Error as error:
        typer.echo(f"error: {' '.join(str(error).split())}", err=True)
        sys.exit(2)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"mmspec {mmspec.__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None:
    """What holds for every command."""


@app.command()
def generate(
    images: Annotated[list[Path] | None, typer.Argument(metavar="IMAGE", help="What the prompt asks about.")] = None,
    prompt: Annotated[str, typer.Argument(metavar="PROMPT", help="A question; - reads it from standard input.")] = "",
    model: Annotated[str, typer.Option(help="Bundled name (mmspec models), folder or hub id.")] = "smolvlm-mini",
    drafter: Annotated[
        str | None,
        typer.Option(help="Method (mmspec drafters), folder or hub id. [default: auto, the best that the model has]"),
    ] = None,
    acceptance: Annotated[
        str, typer.Option(help="Rule (mmspec rules), perhaps with a setting, as in tolerance=4; some are lossy.")
    ] = "exact",
    shape: Annotated[
        str,
        typer.Option(
            help="Size of drafts: auto, own, a depth (4), depth x width x nodes (5x4x16), or with the least confidence "
            "of a path (5x4x16x0.1)."
        ),
    ] = "auto",
    max_new_tokens: Annotated[
        int | None,
        typer.Option(
            help="Most tokens to emit. [default: 128 of a text, more of pages, thoughts and recordings, unless the "
            "checkpoint says; a whole picture; 30 seconds of speech]"
        ),
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(help="0 takes the likeliest token each time. [default: the model's own]")
    ] = None,
    top_k: Annotated[
        int | None, typer.Option(help="Sample from the k best tokens; 0 is off. [default: the model's own]")
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(help="Sample from this share of the mass, above 0 to 1. [default: the model's own]"),
    ] = None,
    min_p: Annotated[
        float | None,
        typer.Option(help="Least share of the best token's probability, 0 to 1. [default: the model's own]"),
    ] = None,
    repetition_penalty: Annotated[
        float | None, typer.Option(help="Above 1 discourages repetition. [default: the model's own]")
    ] = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same answer, whatever the drafter.")] = 0,
    stop: Annotated[list[str] | None, typer.Option(help="String that ends the answer; repeatable.")] = None,
    thinking: Annotated[
        bool | None,
        typer.Option(
            "--thinking/--no-thinking",
            help="Whether to think first; thoughts go to standard error. [default: as the chat template says]",
        ),
    ] = None,
    system: Annotated[str | None, typer.Option(help="System prompt, for models with a chat template.")] = None,
    n: Annotated[int, typer.Option("--n", help="Answers, decoded together; files are numbered: picture-1.png ...")] = 1,
    guidance: Annotated[
        float | None,
        typer.Option(help="Image models: how strongly the prompt steers; 1 is off. [default: the model's own]"),
    ] = None,
    steps: Annotated[
        int | None, typer.Option(help="MAR: in how many steps a picture is revealed. [default: the model's own]")
    ] = None,
    size: Annotated[
        str | None,
        typer.Option(help="Lumina-mGPT, Emu3: width x height in pixels. [default: 768x768 of Lumina, 720x720 of Emu3]"),
    ] = None,
    voice: Annotated[
        str | None,
        typer.Option(
            help="VALL-E type: a voice's name, or a WAV file of a second [default: the first voice]; models that "
            "hear: the recording."
        ),
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="Such as cpu or cuda. [default: a CUDA device if there is one]")
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(help="Of the model's weights, such as bfloat16. [default: float32 on a CPU, else as stored]"),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="File of what was drawn (.png) or said (.wav).")] = None,
    compile: Annotated[
        bool | None,
        typer.Option(
            "--compile/--no-compile",
            help="Verify with compiled forwards; the first answer waits for them. [default: on CUDA]",
        ),
    ] = None,
    drafter_dtype: Annotated[
        str | None,
        typer.Option(help="Of the drafter's weights: int8, bfloat16, float16 or float32. [default: as the model's]"),
    ] = None,
    compare: Annotated[
        bool, typer.Option("--compare", help="Decode one token at a time, too; check and time.")
    ] = False,
    stream: Annotated[bool | None, typer.Option(help="Print words as they come. [default: on a terminal]")] = None,
    as_json: AsJson = False,
) -> None:
    """Answer a question about pictures, or about none; draw, or say, what the prompt tells.

    The bundled models know the synthetic world that they were trained on, and nothing else: for photos name a model of
    your own, a folder or a hub id.

    \b
    Examples: a bundled model, one of your own, a picture, speech
      mmspec generate vlm/samples/chart.png "Describe this picture in detail." --compare
      mmspec generate photo.jpg "What is this?" --model HuggingFaceTB/SmolVLM2-2.2B-Instruct --drafter recycling
      mmspec generate "two green stars on sky" --model janus-mini --out picture.png
      mmspec generate "the red bar is the tallest." --model valle-mini --voice bella --out speech.wav
    """
    words, last_is_file = list(map(str, images or ())), os.path.isfile(prompt)  # Path's raises for names too long
    _refuse_sounds([*words, prompt] if last_is_file else words)
    if last_is_file:
        from mmspec.loading import family_of

        if not family_of(model).wordless:  # a picture needs words
            raise InputError(_without_prompt(words, prompt))
        images, prompt = [*(images or ()), Path(prompt)], ""
    from mmspec.media import load_image, names_a_picture

    if not any(map(str.isspace, prompt)) and names_a_picture(prompt):
        raise InputError(f"PROMPT is missing (there is no file {prompt!r} either)")
    if compare and n != 1:
        raise InputError("--compare checks one answer: leave --n out")
    from mmspec.checkpoints import JUDGED, find_model

    folder = find_model(model, JUDGED)  # a wrong name is told in a moment, before torch is imported
    pictures = [load_image(path) for path in images or ()]  # so is a wrong picture
    from mmspec.api import check_request
    from mmspec.control import read_shape
    from mmspec.loading import family_of
    from mmspec.options import given
    from mmspec.prompts import messages_of, read_prompts

    family = family_of(folder)
    product = family.makes
    if out is not None:
        _check_out(out, product)
    elif product in WRITTEN and not (compare or as_json):
        raise InputError(f"this model makes a {product}: say where to, such as --out {WRITTEN[product]}")
    asked: Any = _read_prompt() if prompt == "-" else prompt
    seen: Any = pictures
    if system and not family.chats:
        raise InputError("--system is for models that read chats, and this one reads a text alone: leave it out")
    if system:
        read_prompts(asked, pictures, family.wordless)  # an empty one is told as what it is
        asked, seen = [{"role": "system", "content": system}, *messages_of(asked, pictures)], None
    options: Options = {
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "repetition_penalty": repetition_penalty,
        "seed": seed,
        "stop": stop or None,
        "max_new_tokens": max_new_tokens,
        "n": n,
        "guidance": guidance,
        "steps": steps,
        "size": size,
        "voice": voice,
        "thinking": thinking,
    }
    check_request(family, seen, asked, given(options))
    pipe = mmspec.load(
        model,
        drafter,
        acceptance,
        shape=read_shape(shape),
        dtype=dtype,
        device=device,
        compile=compile,
        drafter_dtype=drafter_dtype,
    )
    if out is not None:
        _check_codec(pipe.target)
    if compare:
        from mmspec.compare import compare as run

        result = run(pipe, seen, asked, **options)
        written = _write(result.speculative, out)
        _show_comparison(result, as_json)
        if not written:
            raise typer.Exit(2)
        return
    answers = pipe.stream(seen, asked, **options)
    live = product == "text" and not as_json and n == 1 and (sys.stdout.isatty() if stream is None else stream)
    if live:
        _show_pieces(answers)
    made = answers.finish()
    several = [made] if n == 1 else made
    if product == "text" and not (live or as_json):
        for place, answer in enumerate(several):
            _show_answer(answer, apart=bool(place))
    files = [out if out is None or n == 1 else out.with_stem(f"{out.stem}-{place}") for place in range(1, n + 1)]
    written = all([_write(answer, file) for answer, file in zip(several, files, strict=True)])  # a list: every one
    if as_json:
        _print_json([answer.as_dict() for answer in several] if n > 1 else made.as_dict())
    else:
        for answer in several:
            typer.echo(_summary(answer, pipe), err=True)
    if not written:
        raise typer.Exit(2)


def _refuse_sounds(words: list[str]) -> None:
    """Say where a sound belongs that stands in a picture's place."""
    for word in words:
        if word.lower().endswith(SOUNDS):
            raise InputError(f"{word!r} is a sound: pass it as --voice")


def _without_prompt(words: list[str], file: str) -> str:
    """What is wrong with a call whose last word is a file, and a call that works. words: those before it."""
    from mmspec.media import names_a_picture

    pictures = [word for word in words if names_a_picture(word)]
    told = " ".join(word for word in words if word not in pictures)
    problem = "PROMPT must come last" if told else "PROMPT is missing"
    return f"{problem} ({file!r} is a file): mmspec generate {join([*pictures, file, told or 'What is shown?'])}"


def _read_prompt() -> str:
    """The prompt on standard input, without the line end that `echo` puts behind it."""
    try:
        return sys.stdin.read().removesuffix("\n")
    except UnicodeDecodeError as error:
        raise InputError(f"the prompt on standard input is not {error.encoding} text: {error.reason}") from error


def _check_out(out: Path, product: str) -> None:
    """Mistakes that would waste the time it takes to draw or to speak."""
    from mmspec.media import check_picture
    from mmspec.safe_files import check_sound

    if product not in WRITTEN:
        raise InputError("there is no picture and no sound to write: --out is for models that draw or speak")
    (check_picture if product == "picture" else check_sound)(out)


def _check_codec(target: Any) -> None:
    """See `BaseTarget.check_codec`: who wants a file would wait in vain."""
    try:
        target.check_codec()
    except UnsupportedError as error:
        raise UnsupportedError(f"{error}. For the codes themselves put --json in the place of --out") from error


def _write(answer: Generation, out: Path | None) -> bool:
    """Write what was drawn or said. Returns: False, after a warning, where there is nothing to write."""
    if out is None:
        return True
    if answer.image is not None:
        from mmspec.media import save_image

        save_image(answer.image, out)
        typer.echo(f"{out}: {answer.image.width} x {answer.image.height} pixels", err=True)
    elif answer.audio is not None:
        answer.audio.save(out)
        typer.echo(f"{out}: {answer.audio.seconds:.2f} s of sound", err=True)
    else:
        typer.echo(f"{out}: nothing is written, since the answer has no picture and no sound", err=True)
        return False
    return True


def _show_answer(answer: Generation, apart: bool = False) -> None:
    """Print an answer, and before it the thought, which is no part of the result. apart: it is not the first one."""
    if apart:
        typer.echo()
    if answer.thought:
        typer.secho(f"{answer.thought}\n", err=True, dim=True)
    typer.echo(answer.answer.strip())


def _show_pieces(answers: Stream) -> None:
    """Print an answer while it comes; see `_show_answer`."""
    thought = answer = ""
    for _ in answers:
        now = answers.apart()
        if more := now.thought[len(thought) :]:
            typer.secho(more, err=True, dim=True, nl=False)
        if now.thought and now.answer and not answer:
            typer.echo("\n", err=True)
        shown = now.answer.lstrip()
        typer.echo(shown[len(answer) :], nl=False)
        thought, answer = now.thought, shown
    typer.echo(err=bool(thought and not answer))  # the thought was cut off


def _tau(tau: float) -> str:
    """tau in two digits; "-" where nothing was verified."""
    return "-" if math.isnan(tau) else f"{tau:.2f}"


def _summary(answer: Generation, pipe: Pipeline) -> str:
    stats = answer.stats
    drafter, rule = pipe.names
    lossless = "lossless" if stats.lossless else "LOSSY"
    return (
        f"{stats.new_tokens} tokens in {stats.seconds:.2f} s, tau {_tau(stats.tau)}, {drafter}, {rule} ({lossless}), "
        f"ended by {answer.finish}"
    )


def _told_of_drafts(stats: Stats) -> str:
    kept, rate = sum(stats.accept_lengths), stats.acceptance_rate
    share = "" if math.isnan(rate) else f"; {kept} of {stats.drafted_tokens} drafted tokens ({rate:.0%})"
    return f"accepted per round: {' '.join(map(str, stats.accept_lengths))}{share}"


def _show_comparison(result: Comparison, as_json: bool) -> None:
    if as_json:
        _print_json(result.as_dict())
    else:
        _show_answer(result.speculative)
        typer.echo()
        for name, answer in (("autoregressive", result.autoregressive), ("speculative", result.speculative)):
            stats = answer.stats
            typer.echo(
                f"{name:<14}  {stats.new_tokens:4} tokens  {stats.seconds:7.3f} s  {stats.target_calls:4} target calls"
            )
        typer.echo(result.verdict)
        if result.speedup is not None:
            typer.echo(
                f"tau {_tau(result.speculative.stats.tau)}, S {result.speedup:.2f} "
                f"({result.speedup_end_to_end:.2f} with the prefill)"
            )
            if result.speculative.stats.new_tokens < TELLING:
                typer.echo(f"(S of an answer this short is mostly noise: ask for {TELLING} tokens or more)")
            typer.echo(_told_of_drafts(result.speculative.stats))
    if result.must_agree and not result.agree:
        raise typer.Exit(1)


@app.command()
def models(as_json: AsJson = False) -> None:
    """List the bundled checkpoints. Example: mmspec models --json"""
    from mmspec import inventory

    found = inventory.models()
    if as_json:
        _print_json(found)
        return
    for entry in found:
        size = f"{entry['bytes'] / 1e6:.1f} MB"
        typer.echo(
            f"{entry['name']:<16} {entry['model_type']:<12} {size:>8}  drafters: {' '.join(entry['drafters']) or '-'}"
        )
    if not found:
        typer.echo("no checkpoint is bundled with this installation", err=True)


@app.command()
def drafters(as_json: AsJson = False) -> None:
    """List the drafting methods. Example: mmspec drafters --json"""
    from mmspec import inventory

    found = inventory.drafters()
    if as_json:
        _print_json(found)
        return
    for entry in found:
        typer.echo(
            f"{entry['name']:<16} takes {entry['takes']:<9} {' '.join(entry['modalities']):<8} {entry['source']}"
        )


@app.command()
def rules(as_json: AsJson = False) -> None:
    """List the acceptance rules, with their settings. Example: mmspec rules --json"""
    from mmspec import inventory

    found = inventory.rules()
    if as_json:
        _print_json(found)
        return
    for entry in found:
        kind = "lossless" if entry["lossless"] else "lossy"
        settings = " ".join(f"{name}={value}" for name, value in entry["settings"].items())
        typer.echo(f"{entry['name']:<22} {kind:<9} {' '.join(entry['modalities']):<7} {settings}".rstrip())


@app.command()
def info(as_json: AsJson = False) -> None:
    """Show versions, device, threads and checkpoints. Example: mmspec info --json"""
    from mmspec import inventory

    found = inventory.info()
    if as_json:
        _print_json(found)
        return
    for key, value in found.items():
        text = ", ".join(f"{name} {part}" for name, part in value.items()) if isinstance(value, dict) else value
        typer.echo(f"{key:<12} {text}")


def _delegate(name: str) -> Callable[[typer.Context], None]:
    def run(context: typer.Context) -> None:
        command = typer.main.get_command(cast("typer.Typer", resolve("commands", name)))
        command(args=context.args, prog_name=f"mmspec {name}", help_option_names=HELP)

    return run


for _name in names("commands"):
    app.command(
        _name,
        help=DELEGATED.get(_name, "From another distribution."),
        add_help_option=False,  # the command's own
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    )(_delegate(_name))


def _print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


if __name__ == "__main__":
    main()
