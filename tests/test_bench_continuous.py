"""The run of continuous tokens: rows and steps, what is counted, what is kept on disk, and what it refuses."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import tiny_mar
import torch
from PIL import Image
from typer.testing import CliRunner

import mmspec
from mmspec.benchmarks.cli import app
from mmspec.benchmarks.commands.images import CONTINUOUS
from mmspec.benchmarks.drawing import canvas_run, images
from mmspec.benchmarks.drawing.images import run_images
from mmspec.benchmarks.drawing.quality import REAL, THROUGH
from mmspec.benchmarks.drawing.run import ImageSettings, drawing, steps_of
from mmspec.benchmarks.records import conditions_of, sample_of
from mmspec.benchmarks.speed import SpeedSettings
from mmspec.checkpoints import save_drafter
from mmspec.errors import InputError, UnknownNameError
from mmspec.image_ar.continuous import Continuous
from mmspec.image_ar.judge import Judge
from mmspec.image_ar.mar import MarTarget
from mmspec.image_ar.mar_drafter import MarDrafter
from mmspec.image_ar.pretrain.architecture import build_tokenizer
from mmspec.image_ar.pretrain.world import scene
from mmspec.image_ar.reader import Reader

LENGTH = tiny_mar.GRID**2
STEPS = 6


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny MAR that knows the words of the synthetic world, a drafter and an untrained reader beside it."""
    tokenizer = build_tokenizer(scene("tokenizer", index).caption.text for index in range(300))
    made = tiny_mar.model(captions=True, buffer=40, classes=len(tokenizer))
    place = tiny_mar.save(tmp_path_factory.mktemp("mar") / "tiny", made, tokenizer)
    helper = MarDrafter(tiny_mar.near(tiny_mar.without_vae(made), 0.02).float(), 2, alone=0.0)
    save_drafter(helper, place / "drafters" / "mar", MarTarget(made.float()))
    (place / "reader").mkdir()
    torch.manual_seed(0)
    Reader((8, 8, 16, 32)).write(place / "reader")
    return place


def bench(folder: Path, out: Path, *more: Any) -> dict[str, Any]:
    told = ["images", "--model", folder, "--batch", "1,2", "--questions", 2, "--captions", 3, "--out", out, *more]
    done = CliRunner().invoke(app, [*map(str, told)], catch_exceptions=True)
    if done.exception is not None:
        raise done.exception
    assert done.stdout == (out / "table.txt").read_text()
    return json.loads((out / "summary.json").read_text())


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("none", ("none", None)),
        ("none:steps=16", ("none", 16)),
        ("mar:shape=2:steps=8@continuous", ("mar:shape=2@continuous", 8)),
        ("mar:steps=8:shape=2", ("mar:shape=2", 8)),
    ],
)
def test_rows_may_name_their_steps(text: str, found: tuple[str, int | None]) -> None:
    assert steps_of(text) == found


def test_the_run_measures_every_row_and_goes_on_where_it_stopped(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = "none,none:steps=2,mar,mar@continuous-released"
    summary = bench(folder, tmp_path, "--methods", rows)
    assert summary["date"] == conditions_of([tmp_path / "batch-1"])["date"]
    assert [(each["batch"], each["method"]) for each in summary["speed"]] == [
        (size, name) for size in (1, 2) for name in rows.split(",")
    ]
    plain, fewer, mar, released = summary["speed"][:4]
    assert (plain["forwards"], fewer["forwards"]) == (STEPS, 2)
    assert plain["tau"] == pytest.approx(LENGTH / STEPS)
    assert fewer["tau"] == pytest.approx(LENGTH / 2)
    assert mar["forwards"] < STEPS
    assert plain["speedup"] == pytest.approx(1)
    assert plain["alpha"] is None
    assert 0 < mar["alpha"] < 1
    assert [each["lossless"] for each in (plain, fewer, mar, released)] == [True, False, True, False]
    assert [each["lossless"] for each in summary["quality"][2:]] == [True, False, True, False]
    assert {"plot.png", "curve.png", "sheet.png"} <= {file.name for file in tmp_path.iterdir()}
    table = (tmp_path / "table.txt").read_text()
    assert table.count("none:steps=2 (lossy)") == 3  # two batch sizes, quality
    assert "No 95 % intervals" in table
    assert [each["row"] for each in summary["quality"]] == [REAL, THROUGH, *rows.split(",")]
    assert all(each["fidelity"]["questions"] == 3 for each in summary["quality"])
    first = [sample_of(json.loads(line)) for line in (tmp_path / "batch-2" / "samples.jsonl").read_text().splitlines()]
    assert first[0].runs["none"].verified_tokens == 2 * LENGTH  # a canvas begins empty: no token is the prefill's

    monkeypatch.setattr(canvas_run, "_paint", None)  # would fail if anything were drawn again
    assert bench(folder, tmp_path, "--methods", rows)["quality"] == summary["quality"]
    (tmp_path / "pictures" / "samples.jsonl").write_text("")
    with pytest.raises(TypeError):
        bench(folder, tmp_path, "--methods", rows)


def test_bench_of_a_model_of_continuous_tokens_is_that_of_images(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With rows and batches of its own."""
    taken: list[ImageSettings] = []

    def run(pipe: Any, settings: ImageSettings, place: Path) -> Any:
        taken.append(settings)
        raise InputError("enough")

    monkeypatch.setattr(images, "run_images", run)
    for asked in (["--questions", "2"], ["--questions", "2", "--drafters", "none"]):
        done = CliRunner().invoke(app, ["--model", str(folder), *asked], catch_exceptions=True)
        assert str(done.exception) == "enough"
    assert [(each.speed.drafters, each.batches, each.speed.questions) for each in taken] == [
        (tuple(CONTINUOUS.split(",")), (1, 8, 32), 2),
        (("none",), (1, 8, 32), 2),
    ]


def test_pictures_are_drawn_at_the_checkpoint_s_own_temperature(folder: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(folder, model)
    config = json.loads((model / "generation_config.json").read_text())
    (model / "generation_config.json").write_text(json.dumps(config | {"temperature": 0.9}))
    bench(model, tmp_path / "out", "--methods", "none")
    settings = [json.loads(file.read_text()) for file in (tmp_path / "out").rglob("settings.json")]
    assert [each["temperatures"] for each in settings] == [[0.9]] * 3


def test_a_row_is_lossless_in_the_models_own_steps_alone(folder: Path) -> None:
    pipe = mmspec.load(folder, "none")
    rows = ("none", f"none:steps={STEPS}", "none:steps=2", "mar:steps=7")
    assert [drawing(pipe, text, None).own_steps for text in rows] == [True, True, False, False]


def test_pictures_are_timed_whole_whatever_length_replies_have_elsewhere(folder: Path, tmp_path: Path) -> None:
    speed = SpeedSettings("m", ("none",), temperatures=(1.0,), questions=2, max_new_tokens=8, min_tokens=8, repeats=1)
    report = run_images(mmspec.load(folder, "none"), ImageSettings(speed, captions=2, batches=(1,)), tmp_path)
    (plain,) = report.speeds[1]
    assert plain.new_tokens == 2 * LENGTH
    assert report.speed_more(plain)["forwards"] == STEPS


def test_pictures_of_one_run_are_not_taken_for_those_of_another(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They lie by the place of their row, so a run with other rows, or in another dtype, needs another folder."""
    monkeypatch.setattr(canvas_run, "_paint", lambda *given: (2, 1))
    monkeypatch.setattr(canvas_run, "_read", lambda path: path.parent.name)
    pipe, asked = mmspec.load(folder, "none"), Judge.captions(2)

    def painted(*drafters: str, **changes: Any) -> Any:
        speed = SpeedSettings("m", drafters, temperatures=(1.0,), **changes)
        return canvas_run.paint_all(pipe, ImageSettings(speed, captions=2), asked, tmp_path)

    found = {"none": ["row-0"] * 2, "mar": ["row-1"] * 2}, {"none": 0.5, "mar": 0.5}
    assert painted("none", "mar") == found
    assert painted("none", "mar") == found  # of the store
    for other, changes in ((("mar", "none"), {}), (("none", "mar"), {"dtype": "bfloat16"})):
        with pytest.raises(InputError, match="choose another folder"):
            painted(*other, **changes)
    next(pipe.target.model.parameters()).data += 1  # trained anew, under its old name
    with pytest.raises(InputError, match="choose another folder"):
        painted("none", "mar")


def test_real_pictures_go_through_the_vae(folder: Path) -> None:
    pipe = mmspec.load(folder)
    real = Judge.captions(1)[0].picture
    assert real is not None
    vae, side = pipe.target.model.vae, pipe.target.picture(torch.zeros(LENGTH, tiny_mar.SIZE), []).size[0]
    shrunk = real.resize((side, side), Image.Resampling.BOX)
    pixels = torch.frombuffer(bytearray(shrunk.tobytes()), dtype=torch.uint8).view(1, side, side, 3).permute(0, 3, 1, 2)
    with torch.no_grad():
        made = vae.decode(vae.encode(pixels / 127.5 - 1).latent_dist.mean).sample[0]
    want = ((made * 0.5 + 0.5) * 255).clamp(0, 255).to(torch.uint8).permute(1, 2, 0)
    found = torch.frombuffer(bytearray(pipe.target.reconstruct(real).tobytes()), dtype=torch.uint8).view(side, side, 3)
    assert (found.int() - want.int()).abs().max() <= 1


def test_what_is_counted_is_what_was_drafted_and_kept(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of each picture; places that the target fills by itself were not drafted."""
    seen: list[Any] = []
    judge = Continuous.__call__

    def watched(self: Any, draft: Any, *given: Any) -> Any:
        accepted = judge(self, draft, *given)
        seen.append((draft.filled.sum(-1), accepted.kept))
        return accepted

    monkeypatch.setattr(Continuous, "__call__", watched)
    pipe = mmspec.load(folder, "mar", shape="own")
    stats = [reply.stats for reply in pipe(prompt=["a red circle", "a blue square"], temperature=1.0, seed=1)]
    drafted, kept = (torch.stack(each).sum(0).tolist() for each in zip(*seen, strict=True))
    assert [each.drafted_tokens for each in stats] == drafted
    assert [sum(each.accept_lengths) for each in stats] == kept
    assert 0 < kept[0] < drafted[0] <= LENGTH * 3
    seen.clear()
    speed = SpeedSettings("m", ("mar",), temperatures=(1.0,), max_new_tokens=LENGTH, min_tokens=1)
    _, rates = canvas_run.paint_all(pipe, ImageSettings(speed, captions=2), Judge.captions(2), tmp_path)
    assert rates["mar"] == sum(int(part.sum()) for _, part in seen) / sum(int(part.sum()) for part, _ in seen)


def test_plain_decoding_drafts_nothing(folder: Path) -> None:
    stats = mmspec.load(folder, "none")(prompt="a red circle", temperature=1.0, seed=1).stats
    assert (stats.drafted_tokens, sum(stats.accept_lengths)) == (0, 0)
    assert math.isnan(stats.acceptance_rate)


def test_a_model_of_classes_draws_what_a_file_names(tmp_path: Path) -> None:
    model = tiny_mar.save(tmp_path / "classes", tiny_mar.model())
    with pytest.raises(InputError, match="draws none of the captions .* by --prompts, one a line, such as 0"):
        bench(model, tmp_path / "a", "--methods", "none")
    file = tmp_path / "prompts.txt"
    file.write_text("0\n7\n\n3\n")
    told = ["images", "--model", model, "--methods", "none", "--batch", "1,2", "--prompts", file, "--json"]
    done = CliRunner().invoke(app, [*map(str, told)], catch_exceptions=False)
    summary = json.loads(done.stdout)
    assert summary["settings"]["captions"] == summary["settings"]["speed"]["questions"] == 3  # all that it has
    (drawn,) = summary["quality"]
    assert (drawn["row"], drawn["pictures"], drawn["fidelity"]) == ("none", 3, None)
    with pytest.raises(InputError, match="holds 3 captions, one a line; 5 are asked for"):
        bench(model, tmp_path / "b", "--methods", "none", "--prompts", file, "--captions", 5)


def test_rows_and_options_that_do_not_fit_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'mar'"):
        bench(folder, tmp_path / "a", "--methods", "none,marr")
    with pytest.raises(InputError, match="steps=17 is not valid for 16 tokens"):
        bench(folder, tmp_path / "b", "--methods", "none:steps=17")
    with pytest.raises(InputError, match="--curve adds rules for codes, and this model draws continuous tokens"):
        bench(folder, tmp_path / "c", "--curve")
    with pytest.raises(InputError, match="guidance=-1.0 is not valid"):
        bench(folder, tmp_path / "d", "--methods", "none", "--guidance", -1)
    assert not (tmp_path / "d" / "batch-1").exists()  # it is said before anything is drawn
