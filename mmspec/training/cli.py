"""`mmspec train`: drafters for a target, and the bundled targets themselves.

What is not given stays as the recipe has it; a setting that the recipe does not know is refused.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(
    help="Train drafters, and the bundled models again.",
    epilog="Try: mmspec train drafter --target smolvlm-mini --out my-drafter",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)


@app.command()
def drafter(
    # what to learn from
    target: Annotated[
        str, typer.Option(help="Bundled name, folder or hub id of the model to draft for.")
    ] = "smolvlm-mini",
    method: Annotated[
        str,
        typer.Option(
            help="eagle, eagle2, eagle3, hass, medusa, hydra, hydra++, kangaroo, dflash, dspark or spd; for models "
            "that see also msd, vispec, hivis, dream, specvlm, massv, spec-llava, ibed or tabed; for models that draw "
            "eagle, eagle2 or sjd-eagle; for models that speak also vadusa, vadusa-joint, mtp-viterbi or ssd. "
            "Several, as in eagle2,medusa, learn from the same forwards of the target (spd, ssd, massv, spec-llava, "
            "ibed and tabed learn alone)."
        ),
    ] = "eagle2",
    data: Annotated[
        str,
        typer.Option(
            help="Questions to learn from. miniworld is the synthetic world that the bundled models know; a target "
            "that is not bundled wants questions of its own: a folder with *.jsonl files of lines "
            '{"image": "a.png", "prompt": "..."} (of several pictures a list; of speech {"prompt": "...", "voice": '
            '"..."}), or a data set of the hub, owner/name, owner/name:split or owner/name/config:split (of one in a '
            "folder FOLDER, FOLDER:split or FOLDER:config:split). A line or a row may hold a conversation, as "
            '{"messages": [{"role": .., "content": ..}]} of transformers or LLaVA\'s {"image": .., "conversations": '
            "[..]}: it is one question, the last turn of the user, with all before it as context; an assistant's turn "
            "behind that is the answer."
        ),
    ] = "miniworld",
    questions: Annotated[
        int | None,
        typer.Option(
            help="How many of them, from the first one on. No more are answered than the updates read (steps x batch x "
            "accumulate, up to a whole answer batch); of other data than miniworld these come from all over it. "
            "[default: 3000 of miniworld, else all]"
        ),
    ] = None,
    held_out: Annotated[
        int, typer.Option(help="Questions kept apart, on which the drafter is measured; with others a run begins anew.")
    ] = 16,
    answers: Annotated[
        str, typer.Option(help='Whose answers: "target" (what the target itself says) or "data" (the data\'s own).')
    ] = "target",
    sampled: Annotated[
        float | None,
        typer.Option(
            help="Share of the target's answers that are sampled, at temperature 1, of pictures and speech as the "
            "checkpoint samples; the others are greedy. [default: 0.5; 1 of pictures and speech]"
        ),
    ] = None,
    max_new_tokens: Annotated[
        int | None,
        typer.Option(help="Where an answer of the target is cut. [default: 160; 256 of speech; whole pictures]"),
    ] = None,
    answer_batch: Annotated[
        int,
        typer.Option(
            help="Questions that the target answers together; fewer of little data, for the share of --sampled."
        ),
    ] = 32,
    # the run
    out: Annotated[
        Path | None,
        typer.Option(help="Folder of the drafter; of several, folder of their folders. [default: RUN/METHOD-drafter]"),
    ] = None,
    run: Annotated[
        Path | None, typer.Option(help="Folder of answers and checkpoints; reused. [default: runs/drafters/TARGET]")
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(
            help="Begin with this drafter, a folder or hub id; of several methods a folder of their folders. It may be "
            "that of another target of the same shape or a published one, for dspark one of dflash, for spd a small "
            "language model; it keeps its form. [default: new weights]"
        ),
    ] = None,
    validate_every: Annotated[
        int, typer.Option(help="Updates between measurements of tau, the tokens per forward of the target.")
    ] = 100,
    save_every: Annotated[int, typer.Option(help="Updates between checkpoints.")] = 50,
    patience: Annotated[
        int,
        typer.Option(
            help="Measurements without a better tau before training stops; the best weights are kept. 0: never."
        ),
    ] = 0,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, ... [default: a CUDA device if there is one]")] = None,
    bf16: Annotated[bool, typer.Option("--bf16", help="Train in mixed precision.")] = False,
    memory: Annotated[
        float,
        typer.Option(
            help="GB of the target's hidden states that each process keeps in the computer's memory, not the GPU's."
        ),
    ] = 4.0,
    disk: Annotated[
        float, typer.Option(help="GB of them that all processes together keep on disk, in the run's folder.")
    ] = 0.0,
    ray: Annotated[
        str | None,
        typer.Option(
            help="Let the target answer on a Ray cluster: its address (auto, or HOST:PORT), or local for workers on "
            "this machine; training itself stays here. Needs the extra `ray`."
        ),
    ] = None,
    workers: Annotated[
        int, typer.Option(help="Workers on Ray, each with the target. 0: one per GPU, without GPUs two.")
    ] = 0,
    accumulate: Annotated[int, typer.Option(help="Batches per update.")] = 1,
    # settings of recipes
    steps: Annotated[int | None, typer.Option(help="Updates.")] = None,
    batch: Annotated[int | None, typer.Option(help="Answers per batch.")] = None,
    rate: Annotated[float | None, typer.Option(help="Peak learning rate of matrices.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of weights, data, noise and answers. [default: 0]")] = None,
    decay: Annotated[
        float | None, typer.Option(help="Weight of each further token of a draft, relative to the one before.")
    ] = None,
    draft_vocabulary: Annotated[
        int | None, typer.Option(help="Draft the N words alone that the answers use most; for models of words.")
    ] = None,
    intermediate: Annotated[int | None, typer.Option(help="Width of the MLP.")] = None,
    levels: Annotated[int | None, typer.Option(help="How many heads, one per token ahead.")] = None,
    layers: Annotated[int | None, typer.Option(help="Layers of the drafter, or of each head.")] = None,
    block: Annotated[int | None, typer.Option(help="Slots of a block, drafted in one pass.")] = None,
    alone: Annotated[
        bool | None,
        typer.Option("--alone/--no-alone", help="The head of dspark learns alone; then the weights serve dflash, too."),
    ] = None,
    untold: Annotated[
        float | None,
        typer.Option(help="Weight of the loss of slots told nothing; above 0 weights of dspark serve dflash, too."),
    ] = None,
    warm_steps: Annotated[
        int | None,
        typer.Option(help="First updates, on the data's own answers. With --start none unless this says so."),
    ] = None,
    warm_questions: Annotated[int | None, typer.Option(help="Questions of that warm-up.")] = None,
    more: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Any setting of the method; repeatable. --set help lists all, with their defaults and what they mean.",
        ),
    ] = None,
) -> None:
    """Train drafters. Each goes, with a model card, to a folder; the same command goes on where it was interrupted.
    With several GPUs: accelerate launch -m mmspec train drafter ...

    The options say what to learn from, then where and how to run, then how the method learns: these are the settings
    that are changed most, and a method refuses those that it lacks. --set gives any other, as in --set unroll=3, and
    --method dspark --set help lists all those of dspark, with their defaults.

    \b
    Examples: nine minutes on two cores; a model and pictures of your own; begun with the drafter of another model
      mmspec train drafter --target smolvlm-mini --questions 1200 --steps 220 --out my-drafter
      mmspec train drafter --target HuggingFaceTB/SmolVLM2-2.2B-Instruct --data my-pictures --out my-eagle
      mmspec train drafter --target llava-next-mini --start vlm/checkpoints/smolvlm-mini/drafters/eagle2 --out other
    """
    from mmspec.training.loop import require_training

    require_training()
    import logging

    import torch

    import mmspec
    from mmspec.checkpoints import quiet, shown_name
    from mmspec.errors import InputError
    from mmspec.loading import modality_of
    from mmspec.spread import read_where, spread_over
    from mmspec.training.answers import AnswerOptions, served
    from mmspec.training.course import Course
    from mmspec.training.drafter import find_recipe, train_drafters
    from mmspec.training.processes import check_device, group
    from mmspec.training.settings import fitting, listed

    check_device(device)
    where = read_where(ray, workers)
    if where is not None and group().num_processes > 1:
        raise InputError("--ray and several training processes both share out the answers: take one of them")
    methods = [name.strip() for name in method.split(",")]
    for name in methods:
        find_recipe(name)  # a wrong name is found before anything is fetched
    modality = modality_of(target)
    chosen = [find_recipe(name, modality) for name in methods]
    if "help" in (more or []):
        typer.echo(listed(chosen))
        return
    given: dict[str, Any] = dict(
        steps=steps, batch=batch, rate=rate, seed=seed, decay=decay, draft_vocabulary=draft_vocabulary
    )
    given |= dict(intermediate=intermediate, levels=levels, layers=layers, block=block, alone=alone, untold=untold)
    given |= dict(warm_steps=warm_steps, warm_questions=warm_questions)
    settings = fitting(chosen, given, more or [])
    usual = {} if start is None else {"warm_steps": 0}  # a start has learnt words before
    recipes = [recipe.asking(**usual | own) for recipe, own in zip(chosen, settings, strict=True)]
    if group().num_processes > 1:
        device = device or (str(group().device) if torch.cuda.is_available() else "cpu")  # each process has its own
    load = partial(mmspec.load, target, drafter="none", device=device, compile=False)
    pipe = load()
    told: dict[str, Any] = {"sampled": sampled, "max_new_tokens": max_new_tokens}
    told = {
        **pipe.target.answers,
        **recipes[0].answers,
        **{name: value for name, value in told.items() if value is not None},
    }
    how = AnswerOptions(author=answers, batch=answer_batch, seed=recipes[0].seed, **told)
    course = Course(
        data,
        questions,
        held_out,
        validate_every,
        save_every,
        patience,
        accumulate,
        bf16,
        memory,
        disk,
        start,
        answers=how,
    )
    name = shown_name(target)
    home = run or Path("runs/drafters") / Path(name).name
    folders = [home / f"{recipe.method}-drafter" if out is None else out / recipe.method for recipe in recipes]
    if out is not None and len(recipes) == 1:
        folders = [out]
    torch.set_flush_denormal(True)  # see `mmspec.pretrain.command.parsed`
    if group().is_main_process:
        logging.basicConfig(format="%(message)s")
        logging.getLogger("mmspec").setLevel(logging.INFO)
    with quiet():  # the Trainer shows its own progress
        figures = train_drafters(pipe, recipes, course, folders, home, name, spread_over(where, pipe, load))
    always = served(pipe.target)
    for recipe, folder in zip(recipes, folders if group().is_main_process else [], strict=False):
        names = {"tau_t0": "greedy", "tau_t1": "sampled as its checkpoint says" if always else "at temperature 1"}
        taus = [f"{value:.2f} {names[name]}" for name, value in figures[recipe.method].items() if name in names]
        typer.echo(f"{folder}: tau {', '.join(taus)}", err=True)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []})
def target(context: typer.Context, name: Annotated[str, typer.Argument(help="Bundled name.")]) -> None:
    """Train a bundled model again. smolvlm-mini, janus-mini, mar-mini and valle-mini learn from nothing;
    llava-next-mini, pixtral-mini and gemma3-mini begin with the decoder and the words of smolvlm-mini (gemma3-mini with
    its matrices, translated) and, but for pixtral-mini, its vision tower. With --start a finished model of one's own
    learns on. janus-reader and valle-listener judge pictures and speech.

    What a model's options are: mmspec train target smolvlm-mini --help

    Example: mmspec train target smolvlm-mini --out my-mini
    """
    from mmspec.errors import unknown_name
    from mmspec.registry import modalities, resolve
    from mmspec.training.loop import require_training

    known = modalities("trainers")
    if name in ("-h", "--help"):
        typer.echo(f"{context.get_help()}\n\nBundled names: {', '.join(known)}")
        return
    if name not in known:
        raise unknown_name("trainer", name, known)
    require_training()
    trainer: Any = resolve("trainers", name, known[name][0])
    trainer(context.args)
