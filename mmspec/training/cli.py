"""`mmspec train`: drafters for a target, and the bundled targets themselves.

What is not given stays as the recipe has it; an option that the recipe does not know is refused.
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

NOT_OF_RECIPES = (
    "target", "method", "data", "out", "run", "questions", "answers", "sampled", "max_new_tokens", "answer_batch",
    "start", "held_out", "validate_every", "save_every", "patience", "accumulate", "bf16", "memory", "disk", "device",
    "ray", "workers", "more",
)  # fmt: skip
"""Options of `mmspec train drafter` that say what to learn from, how often to look, and where, and `--set`; every other
one is a setting of recipes."""
EAGLES = "eagle, eagle2, hass, msd, vispec, hivis, dream, specvlm, sjd-eagle"
LLAMAS = "spd, massv, spec-llava, ibed, tabed"
HEADS = "medusa, hydra, hydra++, vadusa, vadusa-joint, mtp-viterbi"
"""Methods that have a setting in common, as its help names them."""


@app.command()
def drafter(
    context: typer.Context,
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
    answer_batch: Annotated[int, typer.Option(help="Questions that the target answers together.")] = 32,
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
    # what all methods have
    steps: Annotated[
        int | None,
        typer.Option(
            help=f"Updates. [default: 500; {LLAMAS}, ssd 600; msd, vispec, hivis, dream, specvlm 400; of models that "
            "draw 300]"
        ),
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option(help=f"Answers per batch. [default: 32; {LLAMAS}, ssd 64; of models that draw 8]"),
    ] = None,
    accumulate: Annotated[int, typer.Option(help="Batches per update.")] = 1,
    rate: Annotated[
        float | None, typer.Option(help="Peak learning rate of matrices. [default: 0.02; ssd 0.005]")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of weights, data, noise and answers.")] = 0,
    more: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="A setting of the method's recipe that has no option here, as those from other packages; repeatable.",
        ),
    ] = None,
    # what some methods have
    decay: Annotated[
        float | None,
        typer.Option(
            help=f"All but {LLAMAS} and ssd: weight of each further token of a draft beside the one before. [default: "
            "0.8; hass 1]"
        ),
    ] = None,
    draft_vocabulary: Annotated[
        int | None,
        typer.Option(
            help=f"All but {LLAMAS} and ssd, for models of words: draft the N words alone that the answers use most. "
            "[default: all words]"
        ),
    ] = None,
    unroll: Annotated[
        int | None,
        typer.Option(
            help=f"eagle3, {EAGLES}: steps on the head's own estimates. [default: eagle2, eagle3 5; eagle 1; hass, "
            "dream 3; msd, vispec, hivis, specvlm 4; of models that draw 3]"
        ),
    ] = None,
    intermediate: Annotated[
        int | None,
        typer.Option(help=f"eagle3, {EAGLES}, dflash, dspark: width of the MLP. [default: the target's]"),
    ] = None,
    feature_weight: Annotated[
        float | None,
        typer.Option(
            help=f"{EAGLES}: weight of the distance to the target's features. [default: 0.1; dream 0.2; hass 1; eagle "
            "1, of models that draw 0.1]"
        ),
    ] = None,
    law_weight: Annotated[
        float | None,
        typer.Option(
            help=f"{EAGLES}, {LLAMAS}, ssd: weight of the cross-entropy to the target's law, its probabilities of "
            "every token. [default: 1; hass 0.1; eagle 0.1, of models that draw 1]"
        ),
    ] = None,
    noise: Annotated[
        float | None,
        typer.Option(help=f"{EAGLES}: noise on the features, relative to their size. [default: 0.1]"),
    ] = None,
    words: Annotated[
        int | None, typer.Option(help="eagle3: size of its own draft vocabulary, of common words. [default: 32000]")
    ] = None,
    top: Annotated[
        int | None, typer.Option(help="hass: how many of the likeliest tokens count once more. [default: 10]")
    ] = None,
    top_weight: Annotated[float | None, typer.Option(help="hass: how much they count. [default: 1]")] = None,
    levels: Annotated[
        int | None,
        typer.Option(
            help=f"{HEADS}: how many heads, one per token ahead. [default: medusa, hydra, hydra++ 5; the others 4]"
        ),
    ] = None,
    layers: Annotated[
        int | None,
        typer.Option(
            help=f"{LLAMAS}, ssd, dflash, dspark: layers of the drafter; {HEADS}: layers of each head. [default: "
            f"{LLAMAS} 2; ssd 1; dflash, dspark one in eight of the target's, 1 to 5; hydra, hydra++ 2; other heads 1]"
        ),
    ] = None,
    exit_layer: Annotated[
        int | None,
        typer.Option(help="kangaroo: layers of the target that draft. [default: one in fifteen, at least one]"),
    ] = None,
    block: Annotated[
        int | None, typer.Option(help="dflash, dspark: slots of a block, drafted in one pass. [default: 8]")
    ] = None,
    anchors: Annotated[
        int | None, typer.Option(help="dflash, dspark: blocks per answer and update. [default: 16]")
    ] = None,
    alone: Annotated[
        bool | None,
        typer.Option(
            "--alone/--no-alone",
            help="dspark: its head learns alone; then the weights serve dflash, too. [default: no-alone]",
        ),
    ] = None,
    untold: Annotated[
        float | None,
        typer.Option(
            help="dspark: weight of the loss of slots told nothing; above 0 the weights serve dflash, too. [default: 0]"
        ),
    ] = None,
    warm_steps: Annotated[
        int | None,
        typer.Option(
            help=f"{LLAMAS}, ssd: first updates, on the data's own answers. [default: 300; ssd 0; with --start 0]"
        ),
    ] = None,
    warm_questions: Annotated[
        int | None, typer.Option(help=f"{LLAMAS}, ssd: questions of that warm-up. [default: 8000; ssd 0]")
    ] = None,
    token_weight: Annotated[
        float | None,
        typer.Option(help=f"{LLAMAS}, ssd: weight of the cross-entropy to the answers' tokens. [default: 0.1]"),
    ] = None,
    width: Annotated[
        int | None, typer.Option(help=f"{LLAMAS}: width of the small Llama that drafts. [default: 128]")
    ] = None,
    heads: Annotated[int | None, typer.Option(help=f"{LLAMAS}: its attention heads. [default: 4]")] = None,
    projector_share: Annotated[
        float | None,
        typer.Option(
            help="massv, spec-llava, ibed, tabed: share of the run in which the MLP that passes pictures on learns "
            "alone. [default: 0.15]"
        ),
    ] = None,
    text_share: Annotated[
        float | None,
        typer.Option(help="msd: share of the run that shows no pictures; 0 shows them from the start. [default: 0.5]"),
    ] = None,
    queries: Annotated[
        int | None,
        typer.Option(
            help="vispec, specvlm: vectors per picture; in vispec 0 leaves the adaptor out. [default: vispec 2; "
            "specvlm 4]"
        ),
    ] = None,
    global_feature: Annotated[
        bool | None,
        typer.Option(
            "--global-feature/--no-global-feature",
            help="vispec: tell one of these vectors to all later slots. [default: global-feature]",
        ),
    ] = None,
    ratio: Annotated[
        int | None, typer.Option(help="specvlm: image slots per vector of a compressed picture. [default: 4]")
    ] = None,
    keep: Annotated[
        float | None, typer.Option(help="dream: share of a prompt's image slots that it reads. [default: 0.75]")
    ] = None,
    middle_weight: Annotated[
        float | None,
        typer.Option(help="dream: weight of the distance to the sharpest early layer's hidden states. [default: 0.2]"),
    ] = None,
    head_weight: Annotated[
        float | None,
        typer.Option(help="vadusa-joint: weight of the heads' loss beside the target's own. [default: 0.6]"),
    ] = None,
    trunk_pace: Annotated[
        float | None,
        typer.Option(help="vadusa-joint: rate of the target relative to that of the heads. [default: 0.25]"),
    ] = None,
) -> None:
    """Train drafters. Each goes, with a model card, to a folder; the same command goes on where it was interrupted.
    With several GPUs: accelerate launch -m mmspec train drafter ...

    The options say what to learn from, then where and how to run, then what all methods have. Those at the end begin
    with the methods that have them; other methods refuse them.

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
    from mmspec.training.settings import fitting

    check_device(device)
    where = read_where(ray, workers)
    if where is not None and group().num_processes > 1:
        raise InputError("--ray and several training processes both share out the answers: take one of them")
    methods = [name.strip() for name in method.split(",")]
    for name in methods:
        find_recipe(name)  # a wrong name is found before anything is fetched
    modality = modality_of(target)
    chosen = [find_recipe(name, modality) for name in methods]
    given = {name: value for name, value in context.params.items() if name not in NOT_OF_RECIPES}
    if start is not None and warm_steps is None:
        given["warm_steps"] = 0  # a start has learnt words before
    settings = fitting(chosen, given, more or [])
    recipes = [recipe.asking(**own) for recipe, own in zip(chosen, settings, strict=True)]
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
    how = AnswerOptions(author=answers, batch=answer_batch, seed=seed, **told)
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
