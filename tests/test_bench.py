"""The benchmark: figures from hand-made numbers, samples that survive a kill, and whole runs on a tiny random model."""

import io
import json
import re
import subprocess
from collections import defaultdict
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from commands import succeeded
from PIL import Image
from tiny import tiny_llama, tiny_smolvlm
from transformers import (
    Gemma3ForConditionalGeneration,
    LlamaForCausalLM,
    Qwen2_5_VLForConditionalGeneration,
    SmolVLMForConditionalGeneration,
)
from typer.testing import CliRunner, Result

import mmspec
from mmspec.benchmarks import figures as fig
from mmspec.benchmarks import gauges, machine, memory, methods, questions, records, speed, tables
from mmspec.benchmarks.accuracy import judge
from mmspec.benchmarks.cli import app
from mmspec.benchmarks.commands.reading import taken
from mmspec.benchmarks.commands.speed import LENGTH, QUESTIONS, REPEATS
from mmspec.benchmarks.commands.tasks import TABLE_QUESTIONS, TASK_REPEATS
from mmspec.benchmarks.figures import score, scores
from mmspec.benchmarks.load import LoadReport, LoadSettings, Visit
from mmspec.benchmarks.plan import Plan
from mmspec.benchmarks.plot import plot, require_matplotlib, save_figure
from mmspec.benchmarks.records import Run, Sample, Store, conditions_of, sample_of
from mmspec.benchmarks.report import SpeedReport
from mmspec.benchmarks.speed import SpeedSettings, answer
from mmspec.benchmarks.stock import Stock
from mmspec.compare import compare
from mmspec.errors import CheckpointError, InputError, MissingExtraError
from mmspec.intervals import bootstrap, widening
from mmspec.miniworld import sample as world_sample
from mmspec.speech.unverified import Unverified
from mmspec.stats import Stats
from mmspec.targets import CausalTarget
from mmspec.training.course import Course
from mmspec.training.data import open_data
from mmspec.training.questions import Question

SETTINGS = {"model": "m", "seed": 0}


def run_of(tokens: int, decode: float, prefill: float = 1.0, rounds: int | None = None, **more: object) -> Run:
    """A reply of so many tokens with decoding and prefill times; without `rounds` one verification per token."""
    rounds = tokens - 1 if rounds is None else rounds
    return Run(list(range(tokens)), prefill + decode, prefill, rounds, tokens - 1, **more)  # type: ignore[arg-type]


def sample_with(question: int = 0, temperature: float = 0.0, **runs: Run) -> Sample:
    return Sample(question, temperature, 0, {name.replace("_", "-"): run for name, run in runs.items()})


@pytest.fixture
def two_samples() -> list[Sample]:
    """Baselines of 1.0 and 1.1 s per token; the method needs 10 and 14 rounds for 20 and 40 steps, in 8 and 16 s."""
    parts = {"draft_seconds": 1.0, "verify_seconds": 6.0, "other_seconds": 1.0}
    double = {"draft_seconds": 2.0, "verify_seconds": 12.0, "other_seconds": 2.0}
    first = run_of(21, 8.0, rounds=10, accept_lengths=[1] * 10, **parts)
    second = run_of(41, 16.0, rounds=14, accept_lengths=[2] * 12 + [1] * 2, **double)
    return [
        sample_with(0, none=run_of(21, 20.0), hf=run_of(21, 22.0), eagle2=first),
        sample_with(1, none=run_of(41, 40.0), hf=run_of(41, 44.0), eagle2=second),
    ]


# samples


def test_every_reply_has_a_seed_of_its_own_that_all_methods_share() -> None:
    settings, seeds = SpeedSettings("m", ("none",), repeats=3, seed=7), []

    def method(inputs: object, length: int, temperature: float, seed: int) -> Run:
        seeds.append(seed)
        return run_of(2, 1.0)

    for index in range(2):
        for repeat in range(3):
            answer({"none": method, "eagle2": method}, {}, (index, 1.0, repeat), settings)
    assert seeds == [seed for seed in range(7, 13) for _ in range(2)]
    seeds.clear()
    for index in range(3):
        answer({"none": method}, [{}, {}], (index, 1.0, 0), replace(settings, repeats=1, rows=2))
    assert seeds == [7, 9, 11]  # row 1 of a batch has the seed after that of row 0


def test_a_cache_of_another_size_is_compiled_before_it_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """And what remembers replies forgets that it has met the question."""
    asked, warm = [], Question(None, 20 * "x")
    read: list[int] = []

    def prepare(image: Any, prompt: str, voice: Any) -> dict[str, torch.Tensor]:
        read.append(len(prompt))
        return {"input_ids": torch.zeros(1, len(prompt))}

    monkeypatch.setattr(speed, "forget", lambda ready: asked.append("forget"))

    def method(inputs: Any, length: int, temperature: float, seed: int) -> Run:
        asked.append(inputs["input_ids"].shape[1])
        return run_of(2, 1.0)

    warmed = [20, 20, 20, "forget", 21]
    plain, compiled = [*warmed, 900, 900], [*warmed, 900, "forget", 900, 900]
    for compiles, expected in ((False, plain), (True, compiled)):
        settings = SpeedSettings("m", ("none",), temperatures=(0.0,))
        asked.clear()
        read.clear()
        pipe: Any = SimpleNamespace(target=SimpleNamespace(compiled=compiles), prepare=prepare)
        answered = speed.answering(pipe, lambda _: {"none": method}, speed.model_inputs, settings, warm)
        for number, length in enumerate((21, 900, 900)):
            answered(((number, 0.0, 0), Question(None, length * "x")))
        assert asked == expected
        assert read == [20, 21, 900, 900]  # pictures are not read again to tell how long a prompt is


def test_every_method_is_warm_at_every_temperature_before_it_is_timed() -> None:
    asked: list[tuple[str, float, int]] = []

    def method(name: str) -> Any:
        def reply(inputs: Any, length: int, temperature: float, seed: int) -> Run:
            asked.append((name, temperature, seed))
            return run_of(2, 1.0)

        return reply

    settings, pipe = SpeedSettings("m", ("none",)), SimpleNamespace(target=SimpleNamespace(compiled=False))
    ready = {name: method(name) for name in ("none", "eagle2")}
    told: Any = (pipe, lambda _: ready, lambda _, one: one, settings, "warm")
    speed.answering(*told)
    for name, temperature in product(ready, settings.temperatures):
        seeds = [seed for other, warmth, seed in asked if (other, warmth) == (name, temperature)]
        assert len(set(seeds)) == len(seeds) == speed.WARM_UPS == 3  # other draws each time: there is more to learn


# figures


def test_figures_of_hand_made_numbers(two_samples: list[Sample]) -> None:
    none, hf, eagle = fig.figures(two_samples)
    assert (none.method, hf.method, eagle.method) == ("none", "hf", "eagle2")
    assert eagle.baseline == "none"
    assert eagle.tau == pytest.approx(60 / 24)
    assert eagle.speedup == pytest.approx(60 / 24)  # 60 s against 24 s for the same 60 tokens
    assert eagle.end_to_end == pytest.approx(62 / 26)
    assert eagle.efficiency == pytest.approx(1.0)
    assert eagle.ms_per_token == pytest.approx(1000 * 24 / 60)
    assert (eagle.draft, eagle.verify, eagle.other) == pytest.approx((3 / 24, 18 / 24, 3 / 24))
    assert eagle.histogram == pytest.approx((0, 12 / 24, 12 / 24))
    assert eagle.bound == pytest.approx(2.5 * 1.0 / (18 / 24))
    assert (none.tau, none.speedup, none.efficiency) == pytest.approx((1, 1, 1))
    assert hf.speedup == pytest.approx(60 / 66)
    assert hf.verify is None
    assert none.histogram == ()


def test_baseline_is_the_faster_of_the_two() -> None:
    slow, fast = run_of(11, 20.0), run_of(11, 10.0)
    assert fig.baseline([sample_with(none=slow, hf=fast)]) == "hf"
    assert fig.baseline([sample_with(none=fast, hf=slow)]) == "none"
    ours = fig.method_figures([sample_with(none=slow, hf=fast, x=run_of(11, 5.0))], "x")
    assert ours.speedup == pytest.approx(2.0)


@pytest.mark.parametrize("absent", ["none", "hf"])
def test_no_speedup_without_both_baselines(two_samples: list[Sample], absent: str) -> None:
    del two_samples[1].runs[absent]
    found = fig.method_figures(two_samples, "eagle2")
    assert found.tau is not None
    assert (found.speedup, found.speedup_low, found.end_to_end, found.efficiency) == (None,) * 4
    assert "S is not given" in tables.speed_table([found], {}, None)


def test_speedup_is_against_our_loop_where_nothing_else_can_run(two_samples: list[Sample]) -> None:
    """HF generate does not serve every model; then it is in no sample, and the table says so."""
    both = tables.speed_table(fig.figures(two_samples), {}, None)
    assert "our AR loop, the faster AR decoding" in both
    for sample in two_samples:
        del sample.runs["hf"]
    none, eagle = fig.figures(two_samples)
    assert (none.speedup, eagle.speedup, eagle.baseline) == (1, pytest.approx(60 / 24), "none")
    text = tables.speed_table([none, eagle], {}, None)
    assert "our AR loop alone: HF generate is not run on this model" in text
    assert "faster" not in text


def test_speedup_is_a_ratio_of_sums_not_a_mean_of_ratios() -> None:
    samples = [
        sample_with(0, none=run_of(2, 1.0), hf=run_of(2, 9.0), x=run_of(2, 0.1)),
        sample_with(1, none=run_of(101, 100.0), hf=run_of(101, 900.0), x=run_of(101, 100.0)),
    ]
    assert fig.method_figures(samples, "x").speedup == pytest.approx(101 / 100.1)


def test_replies_of_other_lengths_are_compared_per_token() -> None:
    sampled = sample_with(temperature=1.0, none=run_of(21, 20.0), hf=run_of(11, 11.0), x=run_of(41, 20.0))
    found = fig.method_figures([sampled], "x")
    assert found.speedup == pytest.approx(2.0)
    assert found.end_to_end == pytest.approx(41 / 21)  # 21 s with the prefill each, and here its token counts


def test_interval_contains_the_estimate_and_grows_with_disagreement() -> None:
    rng = np.random.default_rng(1)

    def spread(noise: float) -> tuple[float, float, float]:
        samples = [
            sample_with(i, none=run_of(61, 60.0), hf=run_of(61, 99.0), x=run_of(61, 30 * float(np.exp(noise * g))))
            for i, g in enumerate(rng.normal(size=20))
        ]
        found = fig.method_figures(samples, "x")
        assert found.speedup is not None
        assert found.speedup_low is not None
        assert found.speedup_high is not None
        return found.speedup_low, found.speedup, found.speedup_high

    narrow, wide = spread(0.05), spread(0.3)
    assert narrow[0] < narrow[1] < narrow[2]
    assert wide[0] < wide[1] < wide[2]
    assert wide[2] - wide[0] > 3 * (narrow[2] - narrow[0])
    expected = 2 * 1.96 * 2.0 * 0.3 / 20**0.5  # the mean of 20 draws of relative deviation 0.3 around 2
    assert 0.6 * expected < wide[2] - wide[0] < 1.6 * expected
    same = spread(0.0)
    assert same == pytest.approx((2.0, 2.0, 2.0))


@pytest.mark.parametrize("prompts", [4, 8, 24])
def test_intervals_of_few_prompts_hold_the_truth_as_often_as_they_say(prompts: int) -> None:
    """Costs of a method vary by a tenth around half of the baseline's: S is 2."""
    rng, held, runs = np.random.default_rng(1), 0, 400
    for _ in range(runs):
        costs = np.ones((prompts, 2))
        costs[:, 1] = 0.5 * rng.normal(1.0, 0.1, prompts)
        low, high = bootstrap(costs, lambda sums: sums[..., 0] / sums[..., 1])
        assert low is not None
        assert high is not None
        held += low <= 2 <= high
    assert 0.92 <= held / runs <= 0.98  # the percentiles alone: 0.81, 0.88, 0.94


def test_no_interval_reaches_below_what_a_value_can_be() -> None:
    """Ten words each, and errors in one of four replies alone: a stretched interval would go below 0."""
    low, high = bootstrap(np.array([[0, 10]] * 3 + [[4, 10]]), lambda sums: sums[..., 0] / sums[..., 1])
    assert high is not None
    assert low == 0 < 0.1 < high


def test_student_s_quantiles_are_those_of_the_tables() -> None:
    for units, quantile in ((4, 3.182), (6, 2.571), (12, 2.201), (31, 2.042)):
        t = widening(units) * 1.95996 * ((units - 1) / units) ** 0.5
        assert t == pytest.approx(quantile, rel=0.01)


def test_interval_resamples_prompts_not_replies() -> None:
    """Repetitions of one prompt are no new evidence: with prompts that are all alike there is nothing to resample."""
    samples = [
        Sample(question, 0.0, i, {"none": run_of(11, 10.0), "hf": run_of(11, 20.0), "x": run_of(11, 2.0 + i)})
        for question in range(4)
        for i in range(6)
    ]
    found = fig.method_figures(samples, "x")
    assert found.speedup_low == pytest.approx(found.speedup)
    assert found.speedup_high == pytest.approx(found.speedup)


@pytest.mark.parametrize("prompts", [2, 3, 4])
def test_few_prompts_have_no_interval(prompts: int) -> None:
    """The bootstrap of two is their range, which is no 95 % interval."""
    samples = [
        Sample(question, 0.0, i, {"none": run_of(11, 10.0), "hf": run_of(11, 20.0), "x": run_of(11, 2.0 + question)})
        for question in range(prompts)
        for i in range(3)
    ]
    found = fig.figures(samples)
    (x,) = [one for one in found if one.method == "x"]
    assert x.speedup is not None
    assert (x.speedup_low is None) == (x.speedup_high is None) == (prompts < 4)
    text = tables.speed_table(found, {}, None)
    assert ("No 95 % intervals: they take 4 prompts or more" in text) == (prompts < 4)
    assert tables.speed_cells(x)[2] == "-" or prompts == 4


@pytest.mark.filterwarnings("error")
def test_a_reply_that_the_prefill_gave_whole_leaves_the_interval_a_number() -> None:
    baselines = {"none": run_of(11, 10.0), "hf": run_of(11, 20.0)}
    samples = [
        sample_with(0, **baselines, x=run_of(11, 5.0)),
        sample_with(1, **baselines, x=run_of(1, 0.0)),
        sample_with(2, none=run_of(1, 0.0), hf=run_of(1, 0.0), x=run_of(1, 0.0)),
        sample_with(3, none=run_of(1, 0.0), hf=run_of(1, 0.0), x=run_of(1, 0.0)),
    ]
    found = fig.method_figures(samples, "x")
    assert found.speedup == pytest.approx(2)  # 10 steps in 5 s, against 20 in 20 s
    assert found.speedup_low == found.speedup_high == pytest.approx(2)


def test_speedup_above_what_verification_allows_is_flagged(two_samples: list[Sample]) -> None:
    assert not fig.method_figures(two_samples, "eagle2").suspicious
    for sample in two_samples:
        sample.runs["eagle2"].verify_seconds *= 2  # parts that do not fit into the whole
    found = fig.method_figures(two_samples, "eagle2")
    assert found.suspicious
    text = tables.speed_table([found], {}, None)
    assert "2.50!" in text
    assert "error of measurement" in text


def test_equality_compares_tokens_with_both_baselines(two_samples: list[Sample]) -> None:
    two_samples[1].runs["eagle2"].tokens[5] = 99
    none, hf, eagle = fig.figures(two_samples)
    assert (eagle.equal_ours, eagle.equal_hf) == (0.5, 0.5)
    assert (hf.equal_ours, hf.equal_hf) == (1.0, None)
    sampled = [Sample(s.question, 1.0, 0, s.runs) for s in two_samples]
    none, hf, eagle = fig.figures(sampled)
    assert (eagle.equal_ours, eagle.equal_hf, hf.equal_ours) == (0.5, None, None)


@pytest.mark.parametrize("name", fig.STOCK)
def test_methods_of_transformers_have_other_draws_and_are_not_held_against_ours(name: str) -> None:
    runs = {"none": run_of(21, 20.0), name: run_of(21, 10.0)}
    drawn, greedy = (fig.method_figures([Sample(0, warmth, 0, runs)], name) for warmth in (1.0, 0.0))
    assert (drawn.equal_ours, greedy.equal_ours) == (None, 1)


def test_100_percent_of_the_replies_are_all_of_them() -> None:
    told = [tables.whole_percent(equal / 256) for equal in (256, 255, 128, 0)]
    assert told == ["100%", "99%", "50%", "0%"]
    assert [tables.whole_percent(share) for share in (0.29, 0.996, None)] == ["29%", "99%", "-"]
    same = run_of(21, 20.0)
    samples = [sample_with(index, none=same, x=run_of(21 + (index == 0), 9.0)) for index in range(256)]
    assert tables.speed_cells(fig.method_figures(samples, "x"))[-2] == "99%"


def test_replies_that_must_be_ours_and_are_not_are_told(two_samples: list[Sample]) -> None:
    """Of a rule that is exact, in float32; elsewhere they may differ."""
    for must, differs in ((True, True), (True, False), (False, True)):
        for sample in two_samples:
            sample.runs["eagle2"].exact = must
        two_samples[1].runs["eagle2"].tokens[5] = 99 if differs else 5
        text = tables.speed_table(fig.figures(two_samples), {}, None)
        assert ("! eagle2: not every reply is that of our AR loop" in text) == (must and differs)


@pytest.mark.parametrize(
    ("rule", "dtype", "expected"),
    [
        ("exact", "float32", (True, True)),
        ("exact", "bfloat16", (False, False)),
        ("ratio", "float32", (True, False)),  # it has the law of ours above temperature 0, not its draws
        ("typical", "float32", (False, False)),
    ],
)
def test_an_exact_rule_in_float32_must_give_our_tokens(
    model: Path, rule: str, dtype: str, expected: tuple[bool, bool]
) -> None:
    pipe = mmspec.load(model, "none", rule, dtype=dtype)
    assert (methods.exact(pipe, 0.0), methods.exact(pipe, 1.0)) == expected
    inputs = pipe.prepare(None, "what?")
    assert methods.Ours(pipe)(inputs, 2, 1.0, 0).exact is expected[1]


def test_short_replies_do_not_count() -> None:
    short = sample_with(0, none=run_of(59, 1.0), x=run_of(90, 1.0))
    long = sample_with(1, none=run_of(60, 1.0), x=run_of(10, 1.0))
    assert fig.counted([short, long], 60) == [long]


def test_a_reply_of_one_token_breaks_nothing() -> None:
    one = run_of(1, 0.0)
    found = fig.method_figures([sample_with(none=one, hf=one, x=one)], "x")
    assert (found.tau, found.speedup, found.ms_per_token) == (None, None, None)


def test_lossy_and_peaks_are_shown(two_samples: list[Sample]) -> None:
    two_samples[0].runs["eagle2"].lossless = False
    text = tables.speed_table(fig.figures(two_samples), {"none": 100 * 2**20, "eagle2": 120 * 2**20}, 100 * 2**20)
    row = next(line for line in text.splitlines() if line.startswith("eagle2"))
    assert "(lossy)" in row
    assert row.split()[-2:] == ["120", "1.20"]


def test_plot_is_a_png(two_samples: list[Sample], tmp_path: Path) -> None:
    plot(fig.figures(two_samples), "title", tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    assert not list(tmp_path.glob("*.tmp"))


def test_a_plot_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    def full(path: Path, **how: Any) -> None:
        path.touch()
        raise OSError("no space left")

    figure = require_matplotlib().figure()
    figure.savefig = full
    (tmp_path / "plot.png").write_bytes(b"old")
    with pytest.raises(OSError, match="no space left"):
        save_figure(figure, tmp_path / "plot.png")
    assert [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == [("plot.png", b"old")]


def test_results_name_the_state_of_the_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("init", "add", "commit"):
        more = {"add": ["machine.py"], "commit": ["-qm", "first"]}.get(name, ["-q"])
        (tmp_path / "machine.py").touch()
        monkeypatch.setattr(machine, "__file__", str(tmp_path / "machine.py"))
        if name != "init":
            assert machine.commit() is None  # not of this repository, or of no state of it
        who = ["-c", "user.name=me", "-c", "user.email=me@example.org"]
        subprocess.run(["git", "-C", str(tmp_path), *who, name, *more], check=True)
    clean = machine.commit()
    assert clean
    (tmp_path / "machine.py").write_text("other")
    assert machine.commit() == f"{clean}-dirty"
    monkeypatch.setenv("PATH", "")  # without git
    assert machine.commit() is None


def test_missing_matplotlib_is_one_clear_error(model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    result = bench("--out", str(tmp_path / "out"), model=model)
    assert isinstance(result.exception, MissingExtraError)
    assert "mmspec[bench]" in str(result.exception)
    assert not (tmp_path / "out").exists()


# records


def test_a_run_counts_the_rounds_of_its_rows_and_shares_their_seconds() -> None:
    """A round of a rule that looks at no law is no verification, so that there is no tau."""
    first = Stats(True, 9, [2, 0, 3], prefill_seconds=1.0, draft_seconds=0.5, verify_seconds=2.0, other_seconds=0.25)
    longer = Stats(True, 8, [1, 1, 0, 2], 1.0, 0.5, 3.0, 0.25, first=0)
    run = Run.of(first, longer, tokens=[1, 2, 3], exact=True)
    assert (run.verifications, run.verified_tokens, run.accept_lengths) == (7, 8 + 8, [2, 0, 3, 1, 1, 0, 2])
    assert (run.seconds, run.prefill_seconds, run.verify_seconds) == (4.75, 1.0, 3.0)
    assert (run.tokens, run.lossless, run.exact) == ([1, 2, 3], True, True)
    unjudged = Run.of(Stats(False, 9, [2, 0, 3], verifies=False), tokens=[1], seconds=7.0)
    assert (unjudged.verifications, unjudged.verified_tokens, unjudged.accept_lengths) == (0, 0, [2, 0, 3])
    assert (unjudged.lossless, unjudged.seconds) == (False, 7.0)
    assert fig.mean_emitted([unjudged]) is None
    assert fig.mean_emitted([Run.of(first, tokens=[])]) == first.tau


def test_a_rule_that_verifies_nothing_has_no_tau_in_any_run(model: Path) -> None:
    pipe = mmspec.load(str(model), "prompt-lookup", acceptance=Unverified())
    question = questions.long_questions(1, len)[0]
    run = methods.Ours(pipe)(pipe.prepare(question.image, question.qa.question), 8, 0.0, 0)
    assert run.accept_lengths
    assert (run.verifications, run.verified_tokens, run.lossless) == (0, 0, False)


def test_samples_survive_the_round_trip_to_disk(two_samples: list[Sample], tmp_path: Path) -> None:
    store = Store(tmp_path, SETTINGS)
    for sample in two_samples:
        store.add({**asdict(sample), "text": "a\u0085b\u2028c"})  # which end a line for Python, not in JSON
    assert [sample_of(record) for record in Store(tmp_path, SETTINGS).load()] == two_samples


def test_a_line_that_a_kill_cut_short_is_made_again(two_samples: list[Sample], tmp_path: Path) -> None:
    store = Store(tmp_path, SETTINGS)
    for sample in two_samples:
        store.add(asdict(sample))
    whole = store.samples.read_bytes()
    for cut in (1, 30, len(whole) // 3):
        store.samples.write_bytes(whole[:-cut])
        assert [record["question"] for record in store.load()] == [0]
        store.add(asdict(two_samples[1]))
        assert store.samples.read_bytes() == whole


def test_other_settings_in_the_same_folder_are_refused(tmp_path: Path) -> None:
    Store(tmp_path, SETTINGS)
    with pytest.raises(InputError, match=r"seed=0 \(now 1\)"):
        Store(tmp_path, {**SETTINGS, "seed": 1})
    (tmp_path / "settings.json").write_text("{", encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"settings\.json is damaged"):
        Store(tmp_path, SETTINGS)


def test_how_long_a_reply_must_be_to_count_changes_no_sample(tmp_path: Path) -> None:
    Store(tmp_path, {**SETTINGS, "min_tokens": 60})
    Store(tmp_path, {**SETTINGS, "min_tokens": 20})
    Store(tmp_path, SETTINGS)


def test_a_run_says_when_and_where_it_began_and_is_not_gone_on_with_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = machine.placed(torch.nn.Linear(2, 2).half())
    assert here == {
        "device used": "cpu",
        "dtype used": "float16",
        "threads used": torch.get_num_threads(),
        "processor": machine.processor_name(),
    }
    old, new = tmp_path / "old", tmp_path / "new"
    Store(old, SETTINGS)  # as earlier versions wrote it
    Store(new, SETTINGS | here)
    began = conditions_of([new])
    assert set(began) == {"date", "versions", "hardware"}
    for name in machine.PLACED:
        with pytest.raises(InputError, match=f"holds a run with {name}="):
            Store(new, SETTINGS | here | {name: "another"})
    Store(old, SETTINGS | here | {"processor": "another"})
    monkeypatch.setattr(records, "conditions", lambda: began | {"date": "2999-01-01"})
    Store(new, SETTINGS | here)
    assert conditions_of([new]) == began  # not of the last call


def test_parts_of_a_run_that_began_elsewhere_are_named(tmp_path: Path) -> None:
    parts = []
    for number, (date, commit) in enumerate([("2026-03-02", "b"), ("2026-03-01", "a"), ("2026-03-03", "a")]):
        parts.append(tmp_path / str(number))
        parts[-1].mkdir()
        told = {"date": date, "versions": {"commit": commit}, "hardware": {"cores": 2}}
        (parts[-1] / "conditions.json").write_text(json.dumps(told))
    found = conditions_of([*parts, tmp_path / "none"])
    assert (found["date"], [one["versions"]["commit"] for one in found["others"]]) == ("2026-03-01", ["b"])
    assert "others" not in conditions_of(parts[1:])
    assert conditions_of([tmp_path / "none"]) == {}


def test_a_run_that_goes_on_with_other_code_says_so_and_names_both(
    two_samples: list[Sample], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = map(asdict, two_samples)

    def opened(torch: str, date: str) -> Store:
        told = {"date": date, "versions": {"torch": torch, "commit": "a"}, "hardware": {"cores": 2}}
        monkeypatch.setattr(records, "conditions", lambda: told)
        return Store(tmp_path, SETTINGS)

    def made_with() -> list[str]:
        found = conditions_of([tmp_path])
        return [one["versions"]["torch"] for one in (found, *found.get("others", []))]

    opened("0.9", "2026-03-01").go_on()  # and ended before there was a sample
    store = opened("1.0", "2026-03-02")
    store.go_on()
    store.add(first)
    opened("1.0", "2026-03-03").go_on()
    assert capsys.readouterr().err == ""
    assert made_with() == ["1.0"]
    store = opened("2.0", "2026-03-04")
    assert len(store.load()) == 1  # who only reads is told nothing
    assert capsys.readouterr().err == ""
    store.go_on()
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "holds samples made with torch='1.0' (now '2.0'): " in told
    assert made_with() == ["1.0"]  # nothing is mixed yet
    for _ in range(2):
        store.add(second)
    assert made_with() == ["1.0", "2.0"]
    opened("2.0", "2026-03-05").go_on()
    assert "torch='1.0' (now '2.0')" in capsys.readouterr().err  # the first ones are still there
    opened("2.0", "2026-03-05").add(second)
    assert made_with() == ["1.0", "2.0"]
    assert conditions_of([tmp_path])["date"] == "2026-03-02"


def test_a_folder_that_cannot_be_made_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="cannot write to"):
        Store(tmp_path / "file", SETTINGS)


# questions


def test_questions_are_the_same_every_time() -> None:
    first, second = (questions.long_questions(4, len) for _ in range(2))
    assert [(q.picture, q.qa) for q in first] == [(q.picture, q.qa) for q in second]
    assert [q.index for q in first] == [0, 1, 2, 3]
    assert {q.qa.form for q in questions.long_questions(12, len)} == {"describe", "worked"}
    assert len({q.picture for q in first}) == 4


def test_long_questions_have_long_references() -> None:
    def words(text: str) -> int:
        return len(text.split())

    found = questions.long_questions(5, words)
    assert min(words(q.qa.answer) for q in found) >= questions.LONG_REFERENCE


def test_shuffled_questions_keep_their_text_and_lose_their_picture() -> None:
    asked = questions.judged_questions(40)
    mixed = questions.shuffled(asked)
    assert [q.qa for q in mixed] == [q.qa for q in asked]
    own = {q.picture: q.image.tobytes() for q in asked}
    assert all(q.image.tobytes() != own[q.picture] for q in mixed)
    assert {q.image.tobytes() for q in mixed} == set(own.values())


def test_every_question_of_the_world_has_a_class_and_the_named_ones_occur() -> None:
    found = {questions.class_of(q.family, q.qa.form, q.qa.topic) for q in questions.judged_questions(500)}
    assert {
        "chart value", "chart compare", "count", "color", "position", "text", "table", "yes/no", "choice"
    } <= found  # fmt: skip
    assert not found & {"value", "max", "min", "compare", "cell"}


# accuracy


def test_scripted_answers_are_judged_by_relaxed_accuracy() -> None:
    asked = questions.judged_questions(250)
    for question in asked:
        assert judge(question, question.qa.answer).right, question.qa
        assert not judge(question, "I cannot say").right
    number = next(
        q for q in asked if q.qa.gold and q.qa.gold.isdigit() and int(q.qa.gold) >= 40 and q.qa.form == "short"
    )
    gold = int(number.qa.gold or 0)
    assert judge(number, str(gold + 1)).right
    assert not judge(number, str(gold + 5)).right


def test_scores_count_per_class_and_their_interval_contains_the_share() -> None:
    asked = questions.judged_questions(60)
    answers = [judge(q, q.qa.answer if q.index % 3 else "I cannot say") for q in asked]
    whole = score("all", [answer.right for answer in answers])
    assert whole.accuracy == pytest.approx(40 / 60)
    assert whole.low < whole.accuracy < whole.high
    classes = scores((each.kind, each.right, each.picture) for each in answers)
    assert sum(each.questions for each in classes) == 60
    assert sum(each.questions * each.accuracy for each in classes) == pytest.approx(40)
    assert (score("x", [True] * 5).high, score("x", [False] * 5).low) == (1.0, 0.0)
    eight_of_ten = score("x", [True] * 8 + [False] * 2)
    assert (eight_of_ten.low, eight_of_ten.high) == pytest.approx((0.490, 0.943), abs=5e-4)  # Wilson's
    assert "0.667" in tables.accuracy_table(answers)


def test_answers_that_belong_together_count_less() -> None:
    rights = [index % 3 > 0 for index in range(60)]
    alone = score("x", rights)
    assert score("x", rights, list(range(60))) == alone
    # four times the same reply is no more than one; four that differ as if by chance are four
    again = score("x", rights * 4, [*range(60)] * 4)
    assert again.questions == 240
    assert (again.low, again.high) == pytest.approx((alone.low, alone.high))
    mixed = score("x", rights * 4, [unit for unit in range(80) for _ in range(3)])
    apart = score("x", rights * 4)
    assert (mixed.low, mixed.high) == pytest.approx((apart.low, apart.high))
    sure = score("x", [True] * 8, [0, 0, 0, 0, 1, 1, 1, 1])
    assert sure.low == pytest.approx(score("x", [True] * 2).low)


@pytest.mark.parametrize(
    ("target", "assistant", "words", "can"),
    [
        (SmolVLMForConditionalGeneration, LlamaForCausalLM, 90, True),
        (SmolVLMForConditionalGeneration, LlamaForCausalLM, 91, False),
        (Gemma3ForConditionalGeneration, LlamaForCausalLM, 90, False),
        (Gemma3ForConditionalGeneration, Gemma3ForConditionalGeneration, 90, True),
        (Qwen2_5_VLForConditionalGeneration, LlamaForCausalLM, 90, False),
    ],
)
def test_transformers_pairs_models_of_one_vocabulary_and_hands_token_types_on(
    target: type, assistant: type, words: int, can: bool
) -> None:
    def model(kind: Any, words: int) -> Any:
        config = SimpleNamespace(get_text_config=lambda: SimpleNamespace(vocab_size=words))
        return SimpleNamespace(forward=kind.forward, config=config)

    pipe: Any = SimpleNamespace(
        target=SimpleNamespace(model=model(target, 90)), drafter=SimpleNamespace(net=model(assistant, words))
    )
    assert methods.can_be_assisted(pipe) == can


# whole runs


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_smolvlm(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def speaker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("drafter"), seed=1)


def bench(*arguments: str, model: Path) -> Result:
    small = ["--questions", "2", "--max-new-tokens", "8", "--min-tokens", "3", "--repeats", "1", "--no-memory"]
    return CliRunner().invoke(app, ["--model", str(model), *small, *arguments])


def test_speed_run_reports_what_its_samples_say(model: Path, speaker: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    text = succeeded(bench("--drafters", f"none,prompt-lookup,{speaker}", "--out", str(out), model=model))
    samples = [sample_of(json.loads(line)) for line in (out / "samples.jsonl").read_text().splitlines()]
    assert len({sample.key for sample in samples}) == len(samples) == 4
    names = ["none", "hf", "prompt-lookup", "hf-prompt-lookup", str(speaker), "hf-assisted"]
    assert all(list(sample.runs) == names for sample in samples)

    summary = json.loads((out / "summary.json").read_text())
    recomputed = fig.figures(fig.counted(samples, 3))
    assert summary["figures"] == json.loads(json.dumps([asdict(figures) for figures in recomputed]))
    for figures in recomputed:
        assert figures.speedup is not None
        assert figures.tau is not None
        assert figures.tau >= 1
        if not figures.method.startswith("hf"):
            assert figures.equal_ours == (None if figures.method == "none" else 1.0)
            assert figures.equal_hf == (None if figures.temperature else 1.0)
    assert {"settings", "date", "versions", "hardware", "gauges"} <= set(summary)
    assert summary["date"] == json.loads((out / "conditions.json").read_text())["date"]
    assert [entry["temperature"] for entry in summary["gauges"]] == [0, 1]
    assert (out / "table.txt").read_text() == text
    assert "hf-assisted" in text
    assert {"S of prompt lookup", "mean top-1 probability"} <= {line.split("  ")[0] for line in text.splitlines()}
    assert (out / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_a_drafter_that_remembers_replies_does_not_meet_its_own_again(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    # at temperature 0 a repetition says the same, so that what differs is what was remembered
    asked = ("--drafters", "recycling,hybrid", "--shape", "3x2x6", "--repeats", "2", "--temperature", "0", "--no-plot")
    succeeded(bench(*asked, "--max-new-tokens", "24", "--out", str(out), model=model))
    samples = [sample_of(json.loads(line)) for line in (out / "samples.jsonl").read_text().splitlines()]
    rounds = defaultdict(set)
    for sample in samples:
        for name in ("recycling", "hybrid"):
            rounds[sample.question, name].add(tuple(sample.runs[name].accept_lengths))
    assert len(samples) == 4
    assert all(len(found) == 1 for found in rounds.values())

    pipe = mmspec.load(model, "recycling", shape=mmspec.Shape(3, 2, 6))
    picture = Image.new("RGB", (40, 30), "red")
    fresh = pipe(picture, "what?", max_new_tokens=24)
    again = pipe(picture, "what?", max_new_tokens=24)
    assert sum(again.stats.accept_lengths) > sum(fresh.stats.accept_lengths)  # it does remember
    assert compare(pipe, picture, "what?", max_new_tokens=24).speculative.stats.accept_lengths == (
        fresh.stats.accept_lengths
    )


@pytest.mark.parametrize(
    "more",
    [
        ["--min-tokens", "3", "--repeats", "1", "--no-memory"],
        ["--task", "chartqa"],
        ["--table", "drafters", "--task", "chart", "--min-tokens", "1"],
    ],
)
def test_with_compile_our_loop_is_compiled_and_says_the_same(
    more: list[str], model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, engine = [], CausalTarget.compile

    def quick(target: CausalTarget) -> None:
        """Traced once, and run plainly: inductor takes minutes."""
        made.append(target)
        engine(target, backend="eager" if "--no-memory" in more else None)  # type: ignore[arg-type]

    monkeypatch.setattr(CausalTarget, "compile", quick)
    small = ["--drafters", "none,suffix", "--temperature", "0", "--limit", "1", "--max-new-tokens", "8", "--json"]
    text = succeeded(CliRunner().invoke(app, ["--model", str(model), *small, *more]))
    assert not made
    compiled = succeeded(CliRunner().invoke(app, ["--model", str(model), *small, *more, "--compile"]))
    assert len(made) == 1
    assert '"compile": true' not in text
    assert "--no-memory" not in more or '"compile": false' in text  # where nobody said it
    assert '"compile": true' in compiled


def test_resumed_run_doubles_nothing_and_keeps_what_it_had(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = ("--drafters", "none", "--temperature", "0", "--questions", "3", "--no-plot", "--out", str(out))
    succeeded(bench(*arguments, model=model))
    lines = (out / "samples.jsonl").read_text().splitlines(keepends=True)
    assert len(lines) == 3
    (out / "samples.jsonl").write_text(lines[0] + lines[1][:50])  # killed while it wrote the second
    succeeded(bench(*arguments, model=model))
    again = (out / "samples.jsonl").read_text().splitlines(keepends=True)
    assert again[0] == lines[0]
    assert [json.loads(line)["question"] for line in again] == [0, 1, 2]
    (out / "samples.jsonl").write_text("".join(again[::-1]))  # killed before what workers did was put in order
    succeeded(bench(*arguments, model=model))
    assert (out / "samples.jsonl").read_text() == "".join(again)
    refused = bench(*arguments, "--seed", "7", model=model)
    assert isinstance(refused.exception, InputError)

    begun = json.loads((out / "conditions.json").read_text())
    begun["versions"]["torch"] = "0.1"
    (out / "conditions.json").write_text(json.dumps(begun))
    whole = bench(*arguments, model=model)  # which any code may read
    (out / "samples.jsonl").write_text(again[0])
    mixed = bench(*arguments, model=model)
    assert ["made with torch='0.1' (now " in done.stderr for done in (whole, mixed)] == [False, True]
    summary = json.loads((out / "summary.json").read_text())
    assert [one["versions"]["torch"] for one in (summary, *summary["others"])] == ["0.1", torch.__version__]


def test_questions_of_one_s_own_are_measured(model: Path, speaker: Path, tmp_path: Path) -> None:
    world_sample("own", 0).image.save(tmp_path / "a.png")
    lines = [{"image": "a.png", "prompt": "What is this?"}, {"prompt": "Say something."}, {"prompt": "And more?"}]
    (tmp_path / "mine.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    arguments = ("--drafters", "none,suffix", "--temperature", "0", "--no-plot", "--data", str(tmp_path))
    text = succeeded(bench(*arguments, "--questions", "9", "--out", str(tmp_path / "out"), model=model))
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert (summary["settings"]["questions"], summary["samples"]) == (3, 3)
    assert summary["gauges"] == []  # their limits are those of the world's questions
    assert "suffix" in text
    assert "honest" not in text
    assert "The questions are the last 3 of the data. A training on it holds out the last 16" in text
    (tmp_path / "mine.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines[1:]))
    with pytest.raises(InputError, match="holds a run with asked="):
        succeeded(bench(*arguments, "--out", str(tmp_path / "out"), model=model))
    (tmp_path / "mine.jsonl").write_text(json.dumps(lines[1]) + "\n")
    assert "suffix" in succeeded(bench(*arguments, model=speaker))
    with pytest.raises(InputError, match="reads text alone, .*: take mmspec bench --data FOLDER"):
        succeeded(bench(*arguments[:-2], model=speaker))


def test_pictures_that_a_model_would_not_see_are_refused_before_it_is_loaded(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"prompt": datasets.Value("string"), "photo": datasets.Image()})
    row = {"prompt": "Which?", "photo": world_sample("own", 0).image}
    (tmp_path / "data").mkdir()
    datasets.Dataset.from_list([row] * 2, features=features).to_parquet(tmp_path / "data" / "train-0-of-1.parquet")
    monkeypatch.setattr("mmspec.benchmarks.commands.speed.loaded", lambda *given: pytest.fail("the model was loaded"))
    with pytest.raises(InputError, match="has pictures in photo, which nobody would see"):
        succeeded(bench("--drafters", "none", "--data", str(tmp_path), model=model))
    assert len(questions.own_questions(str(tmp_path), 2)) == 2  # who sees nothing misses nothing


def test_a_run_that_asked_other_rows_of_one_s_own_data_is_not_gone_on_with(model: Path, tmp_path: Path) -> None:
    """As one does that was begun when the first rows were asked, and not the last."""
    (tmp_path / "mine.jsonl").write_text("".join(json.dumps({"prompt": f"Say {word}."}) + "\n" for word in "abc"))
    out = tmp_path / "out"
    arguments = ("--drafters", "none", "--temperature", "0", "--no-plot", "--data", str(tmp_path), "--out", str(out))
    succeeded(bench(*arguments, model=model))  # two of three
    told = json.loads((out / "settings.json").read_text())
    assert told["asked"].endswith("[1:]")
    (out / "settings.json").write_text(json.dumps(told | {"asked": told["asked"].removesuffix("[1:]")}))
    with pytest.raises(InputError, match="holds a run with asked="):
        succeeded(bench(*arguments, model=model))


def test_of_questions_of_one_s_own_those_are_asked_that_training_holds_out(tmp_path: Path) -> None:
    lines = [json.dumps({"prompt": str(number)}) for number in range(8)]
    (tmp_path / "mine.jsonl").write_text("\n".join(lines))
    data = str(tmp_path)
    decoder = SimpleNamespace(max_length=9)
    pipe: Any = SimpleNamespace(
        target=SimpleNamespace(decoder=decoder), prepare=lambda image, prompt, voice: {"input_ids": torch.zeros(1, 8)}
    )
    _, held_out = open_data(data, None, 3, 0)
    for number, asked, warm in ((3, [held_out[index].prompt for index in range(3)], "4"), (8, [*"01234567"], "0")):
        settings = SpeedSettings("m", ("none",), questions=number, data=data)
        assert [question.prompt for question in speed.asked(pipe, settings)[0]] == asked
        assert speed.warm_question(pipe, data, number).prompt == warm


def test_questions_of_one_s_own_that_cannot_be_asked_are_told_and_the_others_measured(
    model: Path, tmp_path: Path
) -> None:
    """A damaged picture, which is also the one to warm up with, and a prompt without room for a reply."""
    (tmp_path / "bad.png").write_bytes(b"no picture")
    bad = {"image": "bad.png", "prompt": "What is this?"}
    lines = [bad, {"prompt": "Say something."}, {"prompt": "word " * 300}, {"prompt": "And more?"}, bad]
    (tmp_path / "mine.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    out = tmp_path / "out"
    arguments = ("--drafters", "none,suffix", "--temperature", "0", "--no-plot", "--data", str(tmp_path))
    for _ in range(2):  # the second time nothing is left to do
        text = succeeded(bench(*arguments, "--questions", "4", "--out", str(out), model=model))
    summary = json.loads((out / "summary.json").read_text())
    assert (summary["settings"]["questions"], summary["samples"]) == (4, 2)
    first, second = summary["refused"]
    assert re.match(r"mine.jsonl, line 3: the prompt has \d+ tokens, the model's context is 256", first)
    assert second.startswith("mine.jsonl, line 5: ")
    assert "The questions are the last 4 of the data." in text
    assert f"2 of them cannot be asked; the first: {first}" in text
    with pytest.raises(InputError, match=r"none of 1 questions of .* can be asked; the first: mine.jsonl, line 5"):
        succeeded(bench(*arguments, "--questions", "1", model=model))


def test_a_report_says_how_many_questions_a_training_may_have_read(two_samples: list[Sample]) -> None:
    settings = SpeedSettings("m", ("none",), questions=Course.held_out, data="mine")

    def text(**changes: Any) -> str:
        own = Course.held_out + 8
        return SpeedReport(replace(settings, **changes), 2, 2, fig.figures(two_samples), [], {}, own=own).text()

    assert text().endswith("by default, these among them.")
    more = Course.held_out + 4
    advice = f"train with --held-out {more} or more, or give bench other data"
    assert re.search(f"may have read the other 4: .* {advice}", text(questions=more))
    everything = text(questions=Course.held_out + 8)  # which no training can hold out
    assert re.search("may have read the other 8: .* has not read, give bench other data.$", everything)
    assert "training" not in text(data=None)


def test_a_run_is_not_resumed_with_weights_trained_since(tmp_path: Path) -> None:
    model, drafter, out = (tmp_path / name for name in ("model", "drafter", "out"))
    model.mkdir()
    drafter.mkdir()
    tiny_smolvlm(model)
    tiny_llama(drafter, seed=1)
    arguments = ("--drafters", f"none,{drafter}:dtype=int8", "--temperature", "0", "--no-plot", "--out", str(out))
    succeeded(bench(*arguments, model=model))
    kept = (out / "samples.jsonl").read_text()
    for folder, make, name in ((drafter, tiny_llama, f"weights of {drafter}="), (model, tiny_smolvlm, "weights=")):
        make(folder, seed=2)
        with pytest.raises(InputError, match=re.escape(f"holds a run with {name}")):
            succeeded(bench(*arguments, model=model))
        make(folder, seed={drafter: 1, model: 0}[folder])
        succeeded(bench(*arguments, model=model))
    assert (out / "samples.jsonl").read_text() == kept


def test_usual_drafters_that_a_model_lacks_are_left_out_and_named(model: Path, tmp_path: Path) -> None:
    done = bench("--temperature", "0", "--out", str(tmp_path), model=model)
    succeeded(done)
    assert "left out, since none is trained for this model: spd, eagle2, dspark" in done.stderr
    kept = json.loads((tmp_path / "summary.json").read_text())["settings"]["drafters"]
    assert kept == ["none", "prompt-lookup"]
    asked = bench("--drafters", "none,spd", model=model)
    assert "there is no such one for this model" in str(asked.exception)  # what is named is not left out


def test_speed_is_refused_without_an_autoregressive_baseline(model: Path) -> None:
    text = succeeded(bench("--drafters", "prompt-lookup", "--temperature", "0", model=model))
    assert "S is not given" in text
    summary = json.loads(succeeded(bench("--drafters", "prompt-lookup", "--temperature", "0", "--json", model=model)))
    assert all(entry["speedup"] is None for entry in summary["figures"])
    assert all(entry["lookup_speedup"] is None for entry in summary["gauges"])


def test_replies_that_are_too_short_are_one_clear_error(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mmspec.benchmarks.figures.counted", lambda samples, least: [])
    refused = bench("--drafters", "none", "--temperature", "0", model=model)
    assert isinstance(refused.exception, InputError)
    assert re.search(r"none of 2 replies has min_tokens=3 tokens, the longest has \d", str(refused.exception))
    assert "lower it (what --out keeps counts then, with the same command)" in str(refused.exception)


@pytest.mark.parametrize(
    ("questions", "before", "long", "told"),
    [(6, 0, (), [4]), (6, 0, (3,), []), (6, 0, (4,), [4]), (4, 0, (), []), (8, 6, (), [7]), (8, 6, (0,), [])],
)
def test_a_run_says_early_that_no_reply_is_long_enough(
    questions: int, before: int, long: tuple[int, ...], told: list[int], tmp_path: Path, capsys: Any
) -> None:
    """Once, and not where the run is over then. before: replies that an earlier call took; long: which count."""

    def method(inputs: Any, length: int, temperature: float, seed: int) -> Run:
        return run_of(60 if inputs in long else 5, 1.0)

    def take(number: int) -> None:
        settings = SpeedSettings("m", ("none",), temperatures=(0.0,), questions=number, repeats=1)
        store = Store(tmp_path, SETTINGS)
        asked: Any = list(range(number))
        told: Any = {"warm": lambda: -1, "prepare": lambda pipe, question: question}
        speed.run(pipe, settings, store, lambda: asked, lambda pipe: {"none": method}, **told)

    pipe: Any = SimpleNamespace(target=SimpleNamespace(compiled=False))
    if before:
        take(before)
        capsys.readouterr()
    take(questions)
    said = [line for line in capsys.readouterr().err.splitlines() if "none of" in line]
    assert [int(re.findall(r"none of (\d+) replies has min_tokens=60", line)[0]) for line in said] == told
    assert all("the longest has 5: " in line and "lower --min-tokens" in line for line in said)


def test_accuracy_run_scores_every_question_once(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    small = ["--questions", "25", "--batch", "8", "--max-new-tokens", "4", "--shuffle-images", "--out", str(out)]
    arguments = ["accuracy", "--model", str(model), *small]
    text = succeeded(CliRunner().invoke(app, arguments))
    records = [json.loads(line) for line in (out / "samples.jsonl").read_text().splitlines()]
    assert sorted(record["question"] for record in records) == list(range(25))
    summary = json.loads((out / "summary.json").read_text())
    assert summary["accuracy"]["questions"] == 25
    assert summary["accuracy"]["accuracy"] == sum(record["right"] for record in records) / 25
    assert "shuffled" in text
    before = (out / "samples.jsonl").read_text()
    (out / "samples.jsonl").write_text(before[: before.rindex('{"question"') + 9])
    succeeded(CliRunner().invoke(app, arguments))
    assert len((out / "samples.jsonl").read_text().splitlines()) == 25


def test_accuracy_run_compares_replies_with_transformers_alone(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = ["--questions", "9", "--batch", "4", "--max-new-tokens", "6", "--stock", "--dtype", "float32"]
    arguments = ["accuracy", "--model", str(model), *small]
    assert "transformers alone (float32): 9 of 9" in succeeded(CliRunner().invoke(app, arguments))
    honest = Stock.replies
    monkeypatch.setattr(Stock, "replies", lambda *given: ["other", *honest(*given)[1:]])
    assert "transformers alone (float32): 6 of 9" in succeeded(CliRunner().invoke(app, arguments))


def test_gauge_takes_the_probabilities_of_the_replys_own_positions(model: Path) -> None:
    """Greedy tokens are the most likely ones, so the probability of each token is the top one at its place."""
    import torch

    pipe = mmspec.load(str(model), "none")
    question = questions.long_questions(1, len)[0]
    inputs = pipe.prepare(question.image, question.qa.question)
    tokens = pipe.generate(**inputs, max_new_tokens=6, temperature=0.0).token_ids
    heads: list[int] = []
    hook = pipe.target.model.lm_head.register_forward_hook(lambda *given: heads.append(given[2].shape[1]))
    tops = gauges.top_probabilities(pipe, question, tokens, 0.0)
    hook.remove()
    assert heads == [1, 5]  # of the prompt the last position alone
    expected, ids = [], inputs["input_ids"]
    for token in tokens:
        mask = torch.ones_like(ids)
        with torch.inference_mode():
            logits = pipe.target.model(**{**inputs, "input_ids": ids, "attention_mask": mask}).logits[0, -1]
        expected.append(float(logits.softmax(-1)[token]))
        ids = torch.cat([ids, torch.tensor([[token]])], 1)
    assert tops.tolist() == pytest.approx(expected, abs=1e-5)


def test_image_share_counts_tokens_of_image_spans() -> None:
    def tokenizer(text: str, **_: object) -> dict[str, list[tuple[int, int]]]:
        starts = [0, *(i + 1 for i, char in enumerate(text) if char == " ")]
        return {"offset_mapping": [(start, start + len(text[start:].split(" ")[0])) for start in starts]}

    asked = (qa for i in range(9) for qa in world_sample("bench", i).qas if qa.form == "worked")
    qa = next(qa for qa in asked if {kind for _, _, kind in qa.spans} == {"image", "copy"})
    shown = {i for start, end, kind in qa.spans if kind == "image" for i in range(start, end)}
    words, place = [], 0
    for word in qa.answer.split(" "):
        words.append(any(i in shown for i in range(place, place + len(word))))
        place += len(word) + 1
    assert gauges.image_share([qa], tokenizer) == pytest.approx(sum(words) / len(words))


def test_hf_baselines_mean_the_same_as_ours(model: Path) -> None:
    pipe = mmspec.load(str(model), "none")
    question = questions.long_questions(1, len)[0]
    inputs = pipe.prepare(question.image, question.qa.question)
    ours = methods.Ours(pipe)(inputs, 8, 0.0, 0)
    theirs = methods.HuggingFace(pipe.target.model)(inputs, 8, 0.0, 0)
    assert theirs.tokens == ours.tokens
    assert (theirs.verifications, theirs.verified_tokens) == (ours.verifications, ours.verified_tokens)
    drafting = methods.partner_method(fig.HF_LOOKUP, pipe.with_drafter("prompt-lookup"))
    with methods.counted_forwards(pipe.target.model) as forwards:
        drafted = drafting(inputs, 8, 0.0, 0)
    assert drafted.tokens == ours.tokens
    # the prefill is timed by a call of its own; the first draft is verified together with the prompt
    assert (drafted.verifications, drafted.verified_tokens) == (len(forwards) - 1, len(ours.tokens))
    config = methods.generation_config(pipe.target.model, 8, 0.7)
    assert (config.do_sample, config.temperature, config.top_k, config.top_p) == (True, 0.7, 0, 1.0)


ASKED = {
    "num_beams": 3,
    "no_repeat_ngram_size": 1,
    "suppress_tokens": [*range(40)],
    "min_p": 0.9,
    "prompt_lookup_num_tokens": 4,
    "stop_strings": ["a"],
    "cache_implementation": "static",
    "repetition_penalty": 3.0,
    "max_time": 1e-9,
}


@pytest.mark.parametrize("asked", ASKED)
def test_hf_baselines_take_nothing_of_the_checkpoint_that_ours_do_not(model: Path, speaker: Path, asked: str) -> None:
    pipe = mmspec.load(str(model), "none")
    question = questions.long_questions(1, len)[0]
    inputs = pipe.prepare(question.image, question.qa.question)
    made = methods.methods(pipe, ["none", "prompt-lookup", str(speaker)])
    assisted: Any = made[fig.HF_ASSISTED]
    stock = Stock(model)
    models = [pipe.target.model, assisted.assistant, stock.model]

    def said() -> list[Any]:
        drawn = {
            (name, warmth): method(inputs, 8, warmth, 0).tokens
            for name, method in made.items()
            for warmth in (0.0, 1.0)
        }
        return [drawn, stock.replies([question.image], [question.qa.question], 8)]

    before = said()
    own = [each.generation_config for each in models]
    for config in own:
        setattr(config, asked, ASKED[asked])
    assert said() == before
    assert len({tuple(before[0][name, 0.0]) for name in made}) == 1
    assert all(each.generation_config is config for each, config in zip(models, own, strict=True))
    with pytest.raises(TypeError):  # nor is it lost after an error
        assisted({**inputs, "unknown": inputs["input_ids"]}, None, 0.0, 0)
    assert all(each.generation_config is config for each, config in zip(models, own, strict=True))


def test_hf_baselines_end_with_the_models_context_as_ours_do(model: Path) -> None:
    pipe = mmspec.load(str(model), "none")
    question = questions.long_questions(1, len)[0]
    inputs = pipe.prepare(question.image, question.qa.question)
    room = 5
    pipe.target.model.config.text_config.max_position_embeddings = inputs["input_ids"].shape[1] + room
    pipe.target.decoder.max_length = inputs["input_ids"].shape[1] + room
    assert len(methods.Ours(pipe)(inputs, 9, 0.0, 0).tokens) == room
    assert len(methods.HuggingFace(pipe.target.model)(inputs, 9, 0.0, 0).tokens) == room


def test_memory_is_measured_in_a_process_of_its_own(model: Path) -> None:
    settings = SpeedSettings(str(model), ("none",), max_new_tokens=4, min_tokens=1, threads=1)
    ballast = np.ones(150_000_000)  # 1.2 GB here must not count there
    peak = memory.peak(settings, "none")
    assert 50 * 2**20 < peak < ballast.nbytes


def test_memory_that_cannot_be_measured_is_told_and_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    request = {"model": str(tmp_path / "missing"), "drafter": "none", "acceptance": "exact", "threads": 0}
    request |= {"dtype": None, "device": None, "compile": False, "shape": None, "data": None, "questions": 1}
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(request)))
    with pytest.raises(SystemExit, match="there is no such folder"):
        memory.main()
    failed = subprocess.CompletedProcess("", returncode=1, stdout="", stderr="Traceback ...\nunknown model 'm'\n")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(mmspec.Error, match="memory of 'none' could not be measured: unknown model 'm'"):
        memory.peak(SpeedSettings("m", ("none",)), "none")
    assert memory.peaks(SpeedSettings("m", ("none", "suffix"))) == {}  # the other figures of a long run are not lost
    assert "memory of 'suffix' could not be measured" in capsys.readouterr().err


def test_the_help_tells_how_many_are_asked_wherever_nobody_says_it() -> None:
    asked, plan = SpeedSettings("m", ("none",)), Plan()
    assert (asked.questions, asked.repeats) == (QUESTIONS, REPEATS)
    assert (plan.questions, plan.repeats) == (QUESTIONS, TASK_REPEATS)
    told = " ".join(CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200"}).output.split())
    assert f"[default: {QUESTIONS}, of --table drafters {TABLE_QUESTIONS}]" in told
    assert f"[default: {REPEATS}, of tasks and tables {TASK_REPEATS}]" in told
    assert asked.max_new_tokens == LENGTH
    assert f"[default: {LENGTH}, of tasks with --data 8 to 2048, by task and style]" in told


def test_settings_take_the_options_of_their_names() -> None:
    options = {"model": "m", "drafters": "a,b", "seed": 3, "dtype": "float64", "out": None}
    assert taken(SpeedSettings, options, drafters=("a", "b")) == SpeedSettings("m", ("a", "b"), seed=3, dtype="float64")


def test_visitors_without_an_answer_have_not_been_answered_in_other_ways() -> None:
    crowd = [Visit([0], 1.0, "x"), Visit([1], 2.0, "", "no answer")]
    report = LoadReport(LoadSettings("m", at_once=2, requests=8), 5.0, crowd, [Visit(text="x")] * 8, [100] * 9)
    assert report.failures() == ["1 requests had no answer: no answer"]
    crowd.append(Visit([2], 3.0, "y"))
    assert "the same question was answered in different ways" in report.failures()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--temperature", "warm"], "numbers separated by commas"),
        (["--temperature", "0,0"], "each once"),
        (["--drafters", ","], "at least one"),
        (["--questions", "0"], "questions=0"),
        (["--min-tokens", "9"], "above max_new_tokens=8"),
        (["--threads", "-1"], "threads=-1"),
        (["dependence"], "--model stands before 'dependence'"),
    ],
)
def test_bad_options_are_one_clear_error(arguments: list[str], message: str, model: Path) -> None:
    result = bench(*arguments, model=model)
    assert isinstance(result.exception, InputError)
    assert message in str(result.exception)
