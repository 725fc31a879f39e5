"""The benchmark of image models: measures from hand-made numbers, rows with settings, whole runs on a tiny model."""

import json
import shutil
from collections import Counter
from dataclasses import replace
from functools import wraps
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import test_image_llamagen
import timm
import tiny
import tiny_images
import torch
import toys
from PIL import Image
from timm.models import save_for_hf
from transformers import CLIPConfig, CLIPImageProcessor, CLIPModel, CLIPProcessor, JanusImageProcessor, JanusProcessor
from typer.testing import CliRunner, Result

import mmspec
from mmspec.benchmarks import cli, rows
from mmspec.benchmarks import figures as fig
from mmspec.benchmarks.clip import Clip
from mmspec.benchmarks.commands import speed
from mmspec.benchmarks.commands.images import DIVERGED, IMAGES
from mmspec.benchmarks.drawing import laws, measures, plots
from mmspec.benchmarks.drawing import report as image_report
from mmspec.benchmarks.drawing.laws import surprise
from mmspec.benchmarks.drawing.quality import REAL, THROUGH, Drawn, Quality, eyes, marks
from mmspec.benchmarks.drawing.run import (
    AGAIN,
    Captions,
    Drawing,
    ImageSettings,
    StockJanus,
    curve_rows,
    fitted,
    methods,
    run_batch,
)
from mmspec.benchmarks.figures import score
from mmspec.benchmarks.records import Run, Sample, conditions_of
from mmspec.benchmarks.speed import SpeedSettings, prompt_size
from mmspec.checkpoints import bundled
from mmspec.image_ar.captions import Kind
from mmspec.image_ar.clusters import Grouped
from mmspec.image_ar.jacobi import SJD, MaximalCoupling
from mmspec.image_ar.judge import Asked, Judge
from mmspec.image_ar.lantern import Lantern
from mmspec.image_ar.pretrain.architecture import build_tokenizer
from mmspec.image_ar.pretrain.world import scene
from mmspec.image_ar.reader import Reader, Seen

LENGTH = tiny_images.SIDE**2


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Janus that knows the words of the synthetic world, with an untrained reader beside it."""
    tokenizer = build_tokenizer(scene("tokenizer", index).caption.text for index in range(300))
    images = JanusImageProcessor(size={"height": 16, "width": 16}, min_size=4)
    model = tiny_images.janus_model()
    torch.manual_seed(0)
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    model.generation_config._from_model_config = False  # else loading forgets where an image begins
    place = tmp_path_factory.mktemp("bench") / "janus"
    tiny_images.save(place, model, JanusProcessor(images, tokenizer, num_image_tokens=LENGTH))
    (place / "reader").mkdir()
    torch.manual_seed(0)
    Reader((8, 8, 16, 32)).write(place / "reader")
    return place


@pytest.fixture(scope="module")
def pipe(folder: Path) -> mmspec.Pipeline:
    return mmspec.load(folder, "none")


def bench(*arguments: Any) -> Result:
    return CliRunner().invoke(cli.app, [*map(str, arguments)], catch_exceptions=True)


# measures


def test_frechet_distance_of_gaussians_is_the_closed_one() -> None:
    torch.manual_seed(0)
    one = torch.randn(4000, 3, dtype=torch.double)
    assert measures.frechet(one, one) == pytest.approx(0, abs=1e-9)
    assert measures.frechet(one, one + 2) == pytest.approx(12)  # only the means differ, by 2 in each of 3 directions
    scaled = one * torch.tensor([1.0, 2.0, 3.0])
    spread = torch.cov(one.T).diagonal().sqrt()
    want = sum((spread[i] * i) ** 2 for i in range(3))  # nearly diagonal: sum of squared differences of deviations
    assert measures.frechet(one, scaled) == pytest.approx(
        float(want) + float((scaled - one).mean(0).square().sum()), rel=0.02
    )
    assert measures.frechet(scaled, one) == pytest.approx(measures.frechet(one, scaled))
    turn = torch.linalg.qr(torch.randn(3, 3, dtype=torch.double)).Q
    assert measures.frechet(one @ turn, scaled @ turn) == pytest.approx(measures.frechet(one, scaled))


def test_code_distances_of_hand_made_codes() -> None:
    one, other = torch.tensor([[0, 1], [0, 1]]), torch.tensor([[1, 0], [1, 0]])
    assert measures.marginal_distance(one, one, 4) == 0
    assert measures.marginal_distance(one, other, 4) == 0  # the same codes at other places
    assert measures.marginal_distance(one, torch.tensor([[0, 2], [0, 3]]), 4) == pytest.approx(0.5)
    assert measures.position_divergence(one, one, 4) == 0
    p, q = torch.tensor([3, 1, 1, 1]) / 6, torch.tensor([1, 3, 1, 1]) / 6
    want = float((p * (p / q).log()).sum())
    assert measures.position_divergence(one, other, 4) == pytest.approx(want)
    half = torch.tensor([[0, 0], [0, 0]])
    assert measures.position_divergence(one, half, 4) == pytest.approx(want / 2)  # an average over places


@pytest.mark.parametrize("spread", [1, 2, 4])
def test_a_divergence_is_told_where_it_tells_laws_apart(spread: int) -> None:
    """Of laws that are even over a part of the codes, equal or without a common code."""
    vocab = 256
    pictures = int(measures.PER_CODE * vocab)
    torch.manual_seed(0)
    one, same, other = (torch.randint(vocab // 2 // spread, (pictures, 16)) for _ in range(3))
    near = measures.position_divergence(one, same, vocab)
    far = measures.position_divergence(one, other + vocab // 2, vocab)
    assert near is not None
    assert far is not None
    assert far > 2 * near
    assert measures.position_divergence(one[1:], same, vocab) is None
    assert measures.position_divergence(one, same[1:], vocab) is None
    assert measures.position_divergence(one[:1], one[:1], 2**60) is None  # no table of that size is made


def test_a_change_is_told_with_its_interval() -> None:
    better, worse = [True] * 30 + [False] * 10, [True] * 20 + [False] * 20
    mean, low, high = measures.change(better, worse)
    assert mean == pytest.approx(0.25)
    assert 0.05 < low < mean < high < 0.45
    assert measures.change(better, better) == (0, 0, 0)
    up, down = [True, False] * 20, [False, True] * 20
    _, low, high = measures.change(up, down)
    assert low < 0 < high


def test_surprise_is_that_of_whole_forwards(pipe: mmspec.Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    captions = ["a red circle", "two blue stars on gray"]
    drawn = pipe(prompt=captions, temperature=1.0, seed=3)
    codes = [one.token_ids for one in drawn]
    got = surprise(pipe, captions, codes, 1.0, 2.0)
    costs = []
    model = pipe.target.model
    for caption, row in zip(captions, codes, strict=True):
        ids = pipe.prepare(None, caption)["input_ids"]
        free = torch.where((ids == 1) | (ids == 4), ids, 0)
        for place in range(1, LENGTH):
            with torch.no_grad():
                words = [model.get_input_embeddings()(each) for each in (ids, free)]
                seen = model.prepare_embeddings_for_image_generation(torch.tensor([row[:place]]))
                told, untold = (
                    model.model.generation_head(
                        model.model.language_model(inputs_embeds=torch.cat([each, seen], 1)).last_hidden_state[0, -1]
                    )
                    for each in words
                )
            costs.append(-float((untold + 2.0 * (told - untold)).log_softmax(-1)[row[place]]))
    assert got == pytest.approx(sum(costs) / len(costs), rel=1e-4)
    assert surprise(pipe, captions, codes, 5.0, 2.0) != pytest.approx(got, rel=1e-2)
    verify, sizes = type(pipe.target).verify, []

    def counted(target: Any, state: Any, draft: Any) -> Any:
        sizes.append(len(draft.tokens))
        return verify(target, state, draft)

    monkeypatch.setattr(type(pipe.target), "verify", counted)
    monkeypatch.setattr(laws, "MOST", 1)  # large pictures are read one by one
    assert surprise(pipe, captions, codes, 1.0, 2.0) == pytest.approx(got, rel=1e-6)
    assert sizes == [1, 1]


def test_surprise_leaves_out_what_the_layout_forces() -> None:
    from test_image_emu3 import request

    pipe = mmspec.load(tiny_images.emu3_model().float(), drafter="none")
    codes = pipe.generate(**request(1), temperature=1.0, seed=1).token_ids
    asked = SimpleNamespace(target=pipe.target, prepare=lambda image, captions: request(len(captions)))
    got = surprise(asked, ["a"], [codes], 1.0, None)  # type: ignore[arg-type]
    chosen = pipe.target.layout_of(request(1)).forced[1:] < 0
    assert 0 < int(chosen.sum()) < len(chosen)
    assert 0 < got < 50  # a forced token at the place of a chosen one would cost everything


def test_forwards_per_picture_count_the_prefill() -> None:
    runs = {"x": Run(list(range(32)), 9.0, 1.0, 10, 30), "y": Run(list(range(32)), 9.0, 1.0, 30, 30)}
    found = {each.method: each for each in fig.figures([Sample(0, 1.0, 0, runs)])}  # two pictures of 16 codes
    assert image_report.nfe(found["x"], 16) == 6
    assert image_report.compression(found["x"], 16) == pytest.approx(16 / 6)
    assert image_report.compression(found["y"], 16) == 1
    assert found["x"].tau == 3


# rows


def test_rows_with_settings_make_what_they_say(pipe: mmspec.Pipeline) -> None:
    made = rows.row(pipe, "sjd:window=5:init=repeat-left@lantern:delta=0.2:k=7")
    assert isinstance(made.drafter, SJD)
    assert (made.drafter.window, made.drafter.init) == (5, "repeat-left")
    assert isinstance(made.rule, Lantern)
    assert (made.rule.k, made.rule.delta) == (7, 0.2)
    plain = rows.row(pipe, "scd-mc@gsd=9")
    assert isinstance(plain.drafter, MaximalCoupling)
    assert isinstance(plain.rule, Grouped)
    assert (plain.rule.size, plain.rule.distance) == (9, 0.5)
    assert rows.row(pipe, "scd-mc@gsd:distance=none").rule.distance is None  # type: ignore[attr-defined]
    assert rows.row(pipe, "scd-gs:shape=4").control.shape == mmspec.contract.Shape(4)  # type: ignore[attr-defined]
    assert rows.row(pipe, "scd-gs").rule.lossless


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("eagle2:width=3", "the drafter eagle2 keeps the settings it was saved with"),
        ("sjd:size=3@ratio", "unknown setting of the drafter sjd 'size'"),
        ("sjd@lantern:lambda=3", "unknown setting of the rule lantern 'lambda'"),
        ("sjd:window@ratio", "the setting 'window' of 'sjd:window' is not valid"),
        ("sjd@lantern:delta=high", "the rule 'lantern' cannot be set to delta=high"),
        ("sjd:window=0@ratio", "a Jacobi window of 0 is not valid"),
        ("sjd@nothing", "unknown rule 'nothing'"),
        ("nobody", "unknown drafter 'nobody'"),
    ],
)
def test_rows_that_are_none_are_named(pipe: mmspec.Pipeline, text: str, message: str) -> None:
    with pytest.raises(mmspec.Error, match=message):
        rows.row(pipe, text)


def test_rows_split_into_drafter_rule_and_knob(pipe: mmspec.Pipeline) -> None:
    assert rows.split("sjd") == ("sjd", "exact", None)
    assert rows.split("sjd:window=4@ratio") == ("sjd:window=4", "ratio", None)
    assert rows.split("sjd@gsd=14") == ("sjd", "gsd", 14.0)
    assert rows.split("sjd@lantern:residual=optimal") == ("sjd", "lantern", None)
    assert rows.split("sjd@gsd:distance=none") == ("sjd", "gsd", None)
    assert rows.split("sjd@lantern:delta=0.1:k=5") == ("sjd", "lantern", 0.1)
    for text in curve_rows():
        knob = rows.split(text)[2]
        assert knob is not None
        assert not rows.row(pipe, text).rule.lossless
    grouped = [rows.row(pipe, text).rule for text in (*curve_rows(), *IMAGES.split(",")) if "gsd" in text]
    assert [rule.distance for rule in grouped] == [None] * 6  # type: ignore[attr-defined]


# methods


def test_a_batch_counts_its_rows_one_by_one(pipe: mmspec.Pipeline) -> None:
    captions = ["a red circle", "two blue stars", "a green heart"]
    drawing = Drawing(pipe.with_drafter("scd-gs", "own"))
    run = drawing(captions, LENGTH, 1.0, 5)
    alone = [drawing([caption], LENGTH, 1.0, 5 + index) for index, caption in enumerate(captions)]
    assert run.tokens == [token for each in alone for token in each.tokens]
    assert run.accept_lengths == [length for each in alone for length in each.accept_lengths]
    assert run.verifications == sum(each.verifications for each in alone)
    assert run.verified_tokens == 3 * (LENGTH - 1) == sum(run.accept_lengths) + run.verifications
    assert run.more == {"pictures": 3, "forwards": 1 + max(each.verifications for each in alone)}
    parts = run.draft_seconds + run.verify_seconds + run.other_seconds
    assert run.seconds == pytest.approx(run.prefill_seconds + parts)


def test_transformers_draw_the_same_at_temperature_0(pipe: mmspec.Pipeline) -> None:
    captions = ["a red circle", "a blue star"]
    stock = StockJanus(pipe, 3.0)(captions, LENGTH, 0.0, 0)
    ours = Drawing(pipe, 3.0)(captions, LENGTH, 0.0, 0)
    assert stock.tokens == ours.tokens
    assert stock.more == ours.more == {"pictures": 2, "forwards": LENGTH}
    assert 0 < stock.prefill_seconds < stock.seconds
    sampled = StockJanus(pipe, 3.0)(captions, LENGTH, 1.0, 1)
    assert sampled.tokens != stock.tokens
    assert sampled.tokens == StockJanus(pipe, 3.0)(captions, LENGTH, 1.0, 1).tokens


@pytest.mark.parametrize(
    "asked",
    [{"num_beams": 3}, {"no_repeat_ngram_size": 2, "suppress_tokens": [*range(8)]}, {"num_return_sequences": 2}],
)
def test_transformers_draw_with_nothing_of_the_checkpoint_that_ours_does_not_apply(
    folder: Path, asked: dict[str, Any]
) -> None:
    pipe = mmspec.load(folder, "none")
    drawn = [StockJanus(pipe, 3.0)(["a red circle"], LENGTH, warmth, 0).tokens for warmth in (0.0, 1.0)]
    own = pipe.target.model.generation_config
    for name, value in asked.items():
        setattr(own, name, value)
    assert [StockJanus(pipe, 3.0)(["a red circle"], LENGTH, warmth, 0).tokens for warmth in (0.0, 1.0)] == drawn
    assert pipe.target.model.generation_config is own


def test_transformers_draw_where_only_ours_reads_the_start_of_an_image(folder: Path, tmp_path: Path) -> None:
    """They look for it in `generation_kwargs` alone."""
    shutil.copytree(folder, tmp_path / "model")
    settings = json.loads((folder / "generation_config.json").read_text())
    settings |= settings.pop("generation_kwargs")
    (tmp_path / "model" / "generation_config.json").write_text(json.dumps(settings))
    pipe = mmspec.load(tmp_path / "model", "none")
    stock = StockJanus(pipe, 3.0)(["a red circle", "a blue star"], LENGTH, 0.0, 0)
    assert stock.tokens == Drawing(pipe, 3.0)(["a red circle", "a blue star"], LENGTH, 0.0, 0).tokens
    assert not hasattr(pipe.target.model.generation_config, "generation_kwargs")


@pytest.mark.parametrize("guidance", [3.0, 1.0, 0.5])
def test_transformers_stand_only_beside_guided_pictures(pipe: mmspec.Pipeline, guidance: float) -> None:
    settings = ImageSettings(SpeedSettings("m", ("none",), temperatures=(1.0,)), guidance=guidance)
    for method in methods(pipe, settings).values():
        assert len(method(["a red circle"], LENGTH, 1.0, 1).tokens) == LENGTH
    assert (fig.HF in methods(pipe, settings)) == (guidance > 1)


# the judge


class Parrot:
    """A reader that says what it was told beforehand. Pictures are told apart by their colour."""

    figures = {"right_cells": 1.0}

    def __init__(self, answers: list[Seen]) -> None:
        self.answers = answers

    def read(self, pictures: Any) -> list[Seen]:
        return [self.answers[picture.getpixel((0, 0))[0]] for picture in pictures]


def test_fidelity_is_strict_and_falls_with_other_captions() -> None:
    asked = Judge.captions(12)
    own = [scene("test", index) for index in range(12)]
    assert [one.prompt for one in asked] == [made.caption.text for made in own]
    seen = [Seen(made.seen, made.said.ground or "sky") for made in own]
    judge = Judge(Parrot(seen))  # type: ignore[arg-type]
    pictures = [Image.new("RGB", (2, 2), (index, 0, 0)) for index in range(12)]
    told = marks(judge, asked, pictures, None)
    assert told["fidelity"] == score("fidelity", [True] * 12)
    assert told["facts"] == 1
    counts = Counter(made.said.manner for made in own)
    assert set(counts) == {"placed", "related", "counted"}
    assert told["manners"] == dict.fromkeys(counts, 1.0)
    assert told["shuffled"] < 0.2
    cell = next(cell for cell in ((0, 0), (0, 1), (0, 2), (1, 0)) if cell not in own[0].seen)
    seen[0] = Seen({**own[0].seen, cell: Kind("black", "cross")}, seen[0].ground)  # one thing too many: one fact fails
    broken = marks(judge, asked, pictures, [[True]] * 12)
    assert broken["fidelity"].accuracy == pytest.approx(11 / 12)
    assert broken["change"][0] == pytest.approx(-1 / 12)
    assert 11 / 12 < broken["facts"] < 1
    manner = own[0].said.manner
    assert broken["manners"] == told["manners"] | {manner: 1 - 1 / counts[manner]}
    file_captions = [Asked("a dog")] * 2
    assert marks(judge, file_captions, pictures[:2], None) == {}
    assert marks(None, asked, pictures, None) == {}


def test_real_pictures_go_through_the_stock_tokenizer(pipe: mmspec.Pipeline) -> None:
    real = Judge.captions(1)[0].picture
    assert real is not None
    vq, small = pipe.target.model.model.vqmodel, real.resize((8, 8), Image.Resampling.BOX)
    pixels = torch.frombuffer(bytearray(small.tobytes()), dtype=torch.uint8).view(1, 8, 8, 3).permute(0, 3, 1, 2)
    with torch.no_grad():
        made = vq.decode(vq.encode(pixels / 127.5 - 1).image_tokens.view(1, -1))[0]
    want = ((made * 0.5 + 0.5) * 255).clamp(0, 255).to(torch.uint8).permute(1, 2, 0)
    assert pipe.target.reconstruct(real).tobytes() == want.numpy().tobytes()


def test_captions_come_from_a_file_and_successive_sets_differ(tmp_path: Path) -> None:
    file = tmp_path / "captions.txt"
    file.write_text("a dog\n\n two cats \n")
    assert [one.prompt for one in Judge.captions(2, file)] == ["a dog", "two cats"]
    with pytest.raises(mmspec.Error, match="holds 2 captions, one a line; 3 are asked for"):
        Judge.captions(3, file)
    with pytest.raises(mmspec.Error, match="cannot be read as text"):
        Judge.captions(1, tmp_path / "none.txt")
    assert [one.prompt for one in Judge.captions(2, None, 3)] == [one.prompt for one in Judge.captions(5)[3:]]


def test_a_reader_is_found_beside_the_model_or_where_one_says(folder: Path, tmp_path: Path) -> None:
    assert Judge.find(folder) is not None
    assert Judge.find(tmp_path) is None
    assert Judge.find(None) is None
    assert Judge.find(None, folder / "reader") is not None
    with pytest.raises(mmspec.Error):
        Judge.find(folder, tmp_path)
    shipped = bundled()["mar-mini"]
    assert not (shipped / "reader").exists()
    assert Judge.find(shipped) is not None
    (tmp_path / "linked").symlink_to(shipped)
    assert Judge.find(tmp_path / "linked") is not None


# plots


def quality(name: str, lossless: bool | None, kept: int = 10, **more: Any) -> Quality:
    return Quality(name, lossless, 20, score("fidelity", [index < kept for index in range(20)]), surprise=3.0, **more)


def test_the_sheet_shows_ours_then_exact_then_lossy() -> None:
    exact = [quality(f"e{index}", True) for index in range(9)]
    lossy = [quality(f"l{index}", False) for index in range(9)]
    found = [quality("real pictures", None), quality("none", True), *exact, *lossy, quality(AGAIN, None)]
    assert plots.sheet_rows(found) == ["none", "e0", "e1", "e2", "e3", "l0", "l1", "l2"]
    assert plots.sheet_rows([*exact[:2], *lossy]) == ["e0", "e1", "l0", "l1", "l2", "l3", "l4", "l5"]
    assert plots.sheet_rows(exact) == [f"e{index}" for index in range(8)]
    pictures = {name: [Image.new("RGB", (8, 8), color)] * 2 for name, color in (("none", "red"), ("l0", "blue"))}
    sheet = plots.contact_sheet(Drawn([Asked("a"), Asked("b")], {}, pictures), ["none", "l0"])
    assert sheet.getpixel((plots.GAP + 5, sheet.height - 20)) == (255, 0, 0)
    assert sheet.getpixel((plots.GAP + plots.CELL + plots.GAP + 5, sheet.height - 20)) == (0, 0, 255)


def test_the_curve_is_a_png_with_or_without_a_reader(tmp_path: Path) -> None:
    runs = {name: Run(list(range(17)), 9.0 - index, 1.0, 8, 16, lossless="gsd" not in name)
            for index, name in enumerate(("none", "hf", "sjd@gsd=4", "sjd@gsd=14", "scd-gs"))}  # fmt: skip
    found = fig.figures([Sample(0, 1.0, 0, runs)])
    points = [quality("none", True), quality("sjd@gsd=4", False), quality("sjd@gsd=14", False), quality("scd-gs", True)]
    for case in (points, [replace(point, fidelity=None) for point in points]):
        plots.draw_curve(case, found, "title", tmp_path / "curve.png")
        assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
    nothing = [replace(point, fidelity=None, surprise=None) for point in points]  # as of continuous tokens
    plots.draw_curve(nothing, found, "title", tmp_path / "nothing.png")
    assert [file.name for file in tmp_path.iterdir()] == ["curve.png"]


def test_only_settings_that_are_told_stand_at_the_curve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relaxed rule without one has its own: 0 would be the exact rule."""
    names = ("none", "sjd@lantern=0.1", "sjd@lantern")
    runs = {name: Run(list(range(17)), 9.0 - index, 1.0, 8, 16, lossless=name == "none")
            for index, name in enumerate(names)}  # fmt: skip
    drawn: list[Any] = []
    monkeypatch.setattr(plots, "save_figure", lambda figure, path: drawn.append(figure))
    points = [quality(name, name == "none") for name in names]
    plots.draw_curve(points, fig.figures([Sample(0, 1.0, 0, runs)]), "title", tmp_path)
    (figure,) = drawn
    assert [text.get_text() for text in figure.axes[0].texts] == ["0.1"]
    plots.require_matplotlib().close(figure)


def test_the_plots_are_of_the_smallest_batch_wherever_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[tuple[Any, str]] = []
    monkeypatch.setattr(image_report, "plot", lambda found, title, path: drawn.append((found, title)))
    monkeypatch.setattr(image_report, "draw_curve", lambda _, found, title, path: drawn.append((found, title)))
    sizes = {}
    for size in (8, 1):
        runs = {"none": Run(list(range(size * LENGTH)), 9.0, 1.0, 8, 16)}
        sizes[size] = fig.figures([Sample(0, 1.0, 0, runs)])
    settings = ImageSettings(SpeedSettings("m", ("none",), temperatures=(1.0,)), batches=(8, 1))
    image_report.ImageReport(settings, LENGTH, sizes, [], None, Drawn([], {}, {}), None).draw(tmp_path)
    assert drawn == [(sizes[1], "m, batch 1")] * 2


def test_the_divergence_has_a_column_where_there_is_one() -> None:
    settings = ImageSettings(SpeedSettings("m", ("none",), temperatures=(1.0,)))
    base, other = quality("none", True), replace(quality("sjd@gsd=4", False), marginal=0.25)

    def told(*found: Quality) -> tuple[list[str], str]:
        block = image_report.ImageReport(settings, LENGTH, {}, [*found], None, Drawn([], {}, {}), None).quality_block()
        return block.splitlines()[1].split(), block

    head, block = told(base, other)
    assert head[-3:] == ["CLIP", "TV", "nats"]
    assert "0.250" in block
    assert "KL" not in block
    head, block = told(base, replace(other, divergence=0.5))
    assert head[-4:] == ["CLIP", "TV", "KL", "nats"]
    assert "0.5000" in block
    assert "TV, KL: codes against" in block


def test_the_help_says_how_many_captions_a_divergence_takes() -> None:
    assert measures.PER_CODE == 0.5
    codes = mmspec.load("janus-mini", "none").target.vocab_size
    assert f"half as many captions on as there are codes: {codes // 2} of janus-mini" in DIVERGED


# whole runs


SMALL = ("--questions", 2, "--captions", 4, "--batch", "1,2", "--threads", 1)


def test_a_run_measures_and_goes_on_where_it_stopped(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    asked = ("images", "--model", folder, "--methods", "none,scd-gs,sjd@gsd=14", *SMALL, "--out", out)
    done = bench(*asked)
    assert done.exit_code == 0, done.exception
    names = ["batch-1", "batch-2", "curve.png", "pictures", "plot.png", "sheet.png", "summary.json", "table.txt"]
    assert sorted(file.name for file in out.iterdir()) == names
    summary = json.loads((out / "summary.json").read_text())
    assert summary["date"] == conditions_of([out / name for name in names[:2]])["date"]
    speeds = {(each["batch"], each["method"]): each for each in summary["speed"]}
    assert set(speeds) == {(size, name) for size in (1, 2) for name in ("none", "hf", "scd-gs", "sjd@gsd=14")}
    for size in (1, 2):
        assert speeds[size, "none"]["compression"] == speeds[size, "hf"]["compression"] == 1
        assert speeds[size, "scd-gs"]["equal_ours"] == 1
        assert speeds[size, "scd-gs"]["speedup"] is not None
        assert speeds[size, "sjd@gsd=14"]["nfe"] < LENGTH
        assert not speeds[size, "sjd@gsd=14"]["lossless"]
    told = {each["row"]: each for each in summary["quality"]}
    assert list(told) == [REAL, THROUGH, "none", "scd-gs", "sjd@gsd=14", AGAIN]
    assert told[REAL]["frechet"] != told[THROUGH]["frechet"]
    assert told["scd-gs"]["marginal"] == 0  # the same pictures, code by code
    assert told["scd-gs"]["divergence"] is None  # 4 pictures say nothing of 61 codes at a place
    assert told["scd-gs"]["change"] == [0, 0, 0]
    assert told["scd-gs"]["frechet"] == told["none"]["frechet"]
    assert told[AGAIN]["marginal"] > 0
    assert told["sjd@gsd=14"]["marginal"] > 0
    assert 0 < summary["mean_top_probability"] < 1
    text = (out / "table.txt").read_text()
    assert text.strip() == done.stdout.strip()
    assert "sjd@gsd=14 (lossy)" in text
    assert " TV " in text
    assert "KL" not in text  # of which there is none
    assert "The reader itself, on real pictures" in text

    lines = {file: file.read_text().splitlines() for file in out.rglob("samples.jsonl")}
    drawn = next(file for file in lines if file.parent.name == "pictures")
    drawn.write_text("\n".join(lines[drawn][:7]) + "\n" + lines[drawn][7][:20])  # a kill in the middle of a batch
    again = bench(*asked)
    assert again.exit_code == 0, again.exception
    assert sorted(drawn.read_text().splitlines()) == sorted(lines[drawn])
    assert all(file.read_text().splitlines() == kept for file, kept in lines.items() if file != drawn)
    assert "captions=5" not in again.output
    other = bench(*asked[:-2], "--out", out, "--captions", 5)
    assert isinstance(other.exception, mmspec.Error)
    assert "choose another folder" in str(other.exception)


def test_a_compiled_model_is_timed_with_captions(
    pipe: mmspec.Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which are no model inputs: what a batch's cache has to hold is asked of the processor."""
    monkeypatch.setattr(type(pipe.target), "compiled", True)
    speed = SpeedSettings("m", ("none",), temperatures=(1.0,), questions=2, repeats=1)
    samples = run_batch(pipe, fitted(pipe, ImageSettings(speed)), 2, tmp_path)
    assert [len(sample.runs["none"].tokens) for sample in samples] == [2 * LENGTH] * 2
    short, long = "a red circle", "two blue stars on gray"
    both, one, other = (prompt_size(pipe, Captions(batch)) for batch in ([short, long], [long], [short]))
    assert both == one > other


def test_bench_of_an_image_model_is_that_of_images(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[dict[str, Any]] = []

    @wraps(cli.images)
    def images(**given: Any) -> None:
        calls.append(given)

    monkeypatch.setitem(speed.OTHERS, "image", images)
    done = bench("--model", folder, "--drafters", "none,scd-mc@ratio", "--questions", 1, "--temperature", "0", "--json")
    assert done.exit_code == 0, done.exception
    told = {"questions": 1, "temperature": "0", "as_json": True}
    assert calls == [{"model": str(folder), "methods": "none,scd-mc@ratio", **told}]
    wrong = bench("--model", folder, "--min-tokens", 5)
    assert "--min-tokens is not for this model: see mmspec bench images --help" in str(wrong.exception)


@pytest.mark.parametrize(("told", "kept"), [((), 0.7), (("--temperature", 1), 1.0)])
def test_pictures_are_drawn_at_the_checkpoint_s_own_temperature(
    told: tuple[Any, ...], kept: float, folder: Path, tmp_path: Path
) -> None:
    model = tmp_path / "model"
    shutil.copytree(folder, model)
    config = json.loads((model / "generation_config.json").read_text())
    (model / "generation_config.json").write_text(json.dumps(config | {"do_sample": True, "temperature": 0.7}))
    asked = ("images", "--model", model, "--methods", "none", *SMALL, "--no-plot", "--out", tmp_path / "out", *told)
    done = bench(*asked)
    assert done.exit_code == 0, done.exception
    assert f"temperature {kept:g}, " in done.stdout
    settings = [json.loads(file.read_text()) for file in (tmp_path / "out").rglob("settings.json")]
    assert [each["temperatures"] for each in settings] == [[kept]] * 3


def test_captions_of_a_file_have_no_fidelity(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "captions.txt"
    file.write_text("a red circle\ntwo blue stars\na green heart\na red star\na blue heart\ntwo red circles\n")
    done = bench("images", "--model", folder, "--methods", "none", *SMALL, "--prompts", file, "--json")
    assert done.exit_code == 0, done.exception
    told = json.loads(done.stdout)["quality"]
    assert [each["row"] for each in told] == ["none", AGAIN]
    assert [each["fidelity"] for each in told] == [None, None]
    assert all(each["surprise"] > 0 for each in told)


def test_a_file_of_few_captions_is_drawn_as_far_as_it_goes(folder: Path, tmp_path: Path) -> None:
    asked = ("images", "--model", folder, "--methods", "none", "--batch", "1,2", "--threads", 1, "--json", "--prompts")
    for lines in (["a red circle"], ["a red circle", "", "two blue stars", "a green heart"]):
        file, count = tmp_path / "captions.txt", len([*filter(None, lines)])
        file.write_text("\n".join(lines))
        done = bench(*asked, file)
        assert done.exit_code == 0, done.exception
        summary = json.loads(done.stdout)
        assert summary["settings"]["captions"] == summary["settings"]["speed"]["questions"] == count
        assert {each["pictures"] for each in summary["quality"]} == {count}
    for option in ("--captions", "--questions"):
        done = bench(*asked, file, option, 4)
        assert "holds 3 captions, one a line; 4 are asked for" in str(done.exception)


def test_a_model_of_classes_is_told_what_it_draws_by_a_file(tmp_path: Path) -> None:
    made = test_image_llamagen.model().float()
    made.save_pretrained(tmp_path / "model")
    asked = ("images", "--model", tmp_path / "model", "--methods", "none", *SMALL, "--json")
    done = bench(*asked)
    assert isinstance(done.exception, mmspec.Error)
    assert "LlamaGen draws none of the captions of the synthetic world" in str(done.exception)
    assert "by --prompts, one a line, such as 0" in str(done.exception)
    file = tmp_path / "classes.txt"
    file.write_text("0\n3\n7\n8\n")
    done = bench(*asked, "--prompts", file)
    assert done.exit_code == 0, done.exception
    assert [each["row"] for each in json.loads(done.stdout)["quality"]] == ["none", AGAIN]


@pytest.mark.parametrize("command", ["auto", "accuracy", "dependence", "ablations"])
def test_models_that_do_not_see_are_asked_nothing_about_pictures(
    folder: Path, tmp_path: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mmspec.load", None)  # it is said before anything large is read
    llama = tiny.tiny_llama(tmp_path / "llama")
    worded = "--data FOLDER, or --task spec-bench"
    for model, other in ((folder, "images"), ("mar-mini", "images"), ("valle-mini", "speech"), (llama, worded)):
        done = bench(command, "--model", model)
        assert isinstance(done.exception, mmspec.Error)
        assert str(done.exception).startswith(f"{model} ")
        assert str(done.exception).endswith(f"take mmspec bench {other}")


def test_clip_scores_come_from_the_users_model(tmp_path: Path) -> None:
    from transformers import CLIPTokenizer

    vocab = {word: index for index, word in enumerate(["<|startoftext|>", "<|endoftext|>", "a</w>", "b</w>", "a", "b"])}
    (tmp_path / "vocab.json").write_text(json.dumps(vocab))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    words = CLIPTokenizer(str(tmp_path / "vocab.json"), str(tmp_path / "merges.txt"))
    size = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    vision = {**size, "image_size": 16, "patch_size": 8}
    text = {**size, "vocab_size": len(vocab), "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}
    torch.manual_seed(0)
    config = CLIPConfig(text_config=text, vision_config=vision, projection_dim=8)
    model, folder = CLIPModel(config).eval(), tmp_path / "clip"
    images = CLIPImageProcessor(size={"shortest_edge": 16}, crop_size={"height": 16, "width": 16})
    model.save_pretrained(folder)
    CLIPProcessor(images, words).save_pretrained(folder)
    pictures = [Image.new("RGB", (20, 20), color) for color in ("red", "blue", "green")]
    scores = Clip(folder).scores(pictures, ["a", "b", "a b"])
    inputs = CLIPProcessor(images, words)(text=["a b"], images=[pictures[2]], return_tensors="pt")
    with torch.no_grad():
        out = model(**inputs)
    want = max(0.0, float((out.image_embeds @ out.text_embeds.T)[0, 0]) * 100)
    assert scores[2] == pytest.approx(want, abs=1e-3)
    assert all(0 <= each <= 100 for each in scores)
    with pytest.raises(mmspec.Error):
        Clip(tmp_path)


def test_the_distance_is_of_what_the_users_network_sees(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = timm.create_model("test_resnet").eval()
    save_for_hf(model, tmp_path / "net", safe_serialization=True)
    pictures = [Image.new("RGB", (20, 20), color) for color in ("red", "blue", "green")]
    settings = ImageSettings(SpeedSettings("x", ("none",), temperatures=(1.0,)), features=tmp_path / "net")
    seen = eyes(settings, None)(pictures)
    prepare = timm.data.create_transform(**timm.data.resolve_model_data_config(model))
    with torch.no_grad():
        want = model.forward_head(model.forward_features(prepare(pictures[1])[None]), pre_logits=True)
    assert seen.shape == (3, want.shape[1])
    assert seen.dtype == torch.float64
    assert seen[1].allclose(want[0].double(), atol=1e-5)
    assert not seen[0].allclose(seen[1], atol=1e-3)
    judge = SimpleNamespace(features=lambda those: torch.zeros(len(those), 2))
    assert eyes(settings, judge)(pictures).equal(seen)  # in the place of the reader
    assert eyes(replace(settings, features=None), judge)(pictures).equal(torch.zeros(3, 2))
    assert eyes(replace(settings, features=None), None) is None
    (tmp_path / "net" / "model.safetensors").rename(tmp_path / "net" / "pytorch_model.bin")
    with pytest.raises(mmspec.Error, match="only pickled weights"):
        eyes(settings, None)
    with pytest.raises(mmspec.Error, match=r"holds no config\.json"):
        eyes(replace(settings, features=tmp_path), None)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--captions", 1), "captions=1 is not valid"),
        (("--captions", 0), "captions=0 is not valid"),
        (("--batch", "1,0"), "batch='1,0' is not valid: whole numbers from 1 on"),
        (("--batch", "2.5"), "batch='2.5' is not valid"),
        (("--temperature", "0,1"), "at one temperature at a time"),
        (("--methods", "none,sjd@nothing"), "unknown rule 'nothing'"),
        (("--methods", "none,sjd:steps=4@ratio"), "unknown setting of the drafter sjd 'steps'"),
        (("--methods", "sjd@cool-sd=0.5"), "Cool-SD needs delta >= 1"),
        (("--guidance", "-1"), "guidance=-1.0 is not valid"),
        (("--reader", "tests"), "config.json"),
    ],
)
def test_mistakes_are_named_before_anything_is_drawn(folder: Path, arguments: tuple[Any, ...], message: str) -> None:
    done = bench("images", "--model", folder, *arguments)
    assert isinstance(done.exception, mmspec.Error), done.output
    assert message in str(done.exception)


def test_a_picture_is_as_long_as_its_layout(caplog: pytest.LogCaptureFixture) -> None:
    """Where a request decides on the size, the budget is the model's context."""
    from test_image_glm import glm_model

    settings = ImageSettings(SpeedSettings("m", ("none",), temperatures=(1.0,)))
    pipe = mmspec.load(tiny_images.emu3_model().float(), drafter="none")
    pipe.target.layout = pipe.target._layout(2, 3)
    told = fitted(pipe, settings).speed
    assert told.max_new_tokens == told.min_tokens == 2 * (3 + 1) + 3 < pipe.target.budget
    with pytest.raises(mmspec.Error, match="no picture is made here of the codes of this GlmImage"):
        fitted(mmspec.load(glm_model().float(), drafter="none"), settings)


def test_models_that_write_are_refused(tmp_path: Path) -> None:
    model = tiny.tiny_llama(tmp_path / "llama")
    done = bench("images", "--model", model, *SMALL)
    assert "does not draw" in str(done.exception)
    with pytest.raises(mmspec.Error, match="does not draw"):
        fitted(mmspec.load(toys.llama().float()), ImageSettings(SpeedSettings("m", ("none",), temperatures=(1.0,))))
