"""The GPU benchmark in its small mode on the CPU: floors, synthetic acceptance, stages; a killed run goes on."""

import json
import math
from collections.abc import Callable
from dataclasses import asdict
from functools import partialmethod
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

import mmspec
from mmspec.benchmarks.gpu import attention, ceilings, clock, real, rounds, sweep
from mmspec.benchmarks.gpu import bench as bench_module
from mmspec.benchmarks.gpu.bench import DECODING, Bench, Settings, ceilings_of, found_before, pipeline
from mmspec.benchmarks.gpu.book import Book, markdown
from mmspec.benchmarks.gpu.cli import STAGES, gpu
from mmspec.benchmarks.gpu.clock import Deadline, OutOfTime
from mmspec.benchmarks.gpu.equality import first_other
from mmspec.benchmarks.gpu.floors import H200, draft_seconds, step_seconds
from mmspec.benchmarks.gpu.models import build, names, spec_of
from mmspec.benchmarks.gpu.rounds import head_like
from mmspec.benchmarks.gpu.sweep import binary_tree
from mmspec.benchmarks.gpu.synthetic import TABLES, Synthetic, even_table, geometric, geometric_table
from mmspec.benchmarks.gpu.waiting import Waiting
from mmspec.contract import Draft, Needs
from mmspec.drafters.eagle import Eagle1
from mmspec.errors import InputError, UnknownNameError
from mmspec.sampling import Sampler, Sampling
from mmspec.stats import Stats
from mmspec.targets import CausalTarget

K = 1024
CPU = torch.device("cpu")


# Floors


@pytest.mark.parametrize(
    ("name", "gigabytes", "kv_kib", "kv_8k"),
    [
        ("llava-7b", 13.21, 512, 4.29),
        ("llava-13b", 25.70, 800, 6.71),
        ("pixtral-12b", 23.15, 160, 1.34),
        ("smolvlm-2b", 3.42, 192, 1.61),
        ("gemma3-12b", 23.53, 384, 0.87),  # beyond the window only every sixth layer's grows
        ("janus-pro-1b", 2.53, 192, 1.61),
        ("speech-0.5b", 0.73, 12, 0.10),
    ],
)
def test_bytes_of_a_step(name: str, gigabytes: float, kv_kib: int, kv_8k: float) -> None:
    dims = spec_of(name).dims
    assert dims.weight_bytes / 1e9 == pytest.approx(gigabytes, abs=0.006)
    assert dims.kv_bytes(1) == kv_kib * 1024
    assert dims.kv_bytes(8 * K) / 1e9 == pytest.approx(kv_8k, abs=0.006)


@pytest.mark.parametrize(
    ("name", "nodes", "length", "ms"),
    [
        ("llava-7b", 1, K, 3.20),
        ("llava-7b", 64, 8 * K, 4.07),  # as much as one node: weights and keys decide
        ("llava-13b", 32, 3 * K, 6.56),
        ("pixtral-12b", 1, 3 * K, 5.50),
        ("pixtral-12b", 64, 8 * K, 6.25),  # grouped heads: attention decides
        ("smolvlm-2b", 8, 3 * K, 0.94),
        ("gemma3-12b", 1, 8 * K, 5.68),
        ("janus-pro-7b", 1, K, 2.98),
        ("speech-0.5b", 64, 3 * K, 0.21),
    ],
)
def test_floor_of_a_step(name: str, nodes: int, length: int, ms: float) -> None:
    assert 1000 * step_seconds(spec_of(name).dims, nodes, length, H200) == pytest.approx(ms, abs=0.011)


def test_floor_of_a_batch() -> None:
    assert 1000 * step_seconds(spec_of("llava-7b").dims, 1, 3 * K, H200, rows=8) == pytest.approx(6.07, abs=0.011)
    busy = step_seconds(spec_of("llava-7b").dims, 64, K, H200, rows=8)  # 512 tokens: products decide
    assert busy > 8 * 64 * 2 * spec_of("llava-7b").dims.weights / H200.flops


@pytest.mark.parametrize(
    ("name", "vocabulary", "length", "us", "share", "efficiency"),
    [
        ("llava-7b", None, 3 * K, 183, 0.053, (0.86, 0.79, 0.73)),
        ("llava-13b", None, 3 * K, 263, 0.040, (0.89, 0.83, 0.78)),
        ("pixtral-12b", 32000, 3 * K, 230, 0.042, (0.88, 0.82, 0.77)),
        ("pixtral-12b", None, 3 * K, 466, 0.085, None),
        ("smolvlm-2b", None, 3 * K, 88, 0.094, (0.78, 0.68, 0.60)),
        ("gemma3-12b", None, 3 * K, 592, 0.106, None),
        ("speech-0.5b", None, K, 11, 0.061, None),
    ],
)
def test_draft_step_and_roofline_cap(
    name: str, vocabulary: int | None, length: int, us: float, share: float, efficiency: tuple[float, ...] | None
) -> None:
    dims = spec_of(name).dims
    taken, plain = draft_seconds(dims, length, H200, vocabulary), step_seconds(dims, 1, length, H200)
    assert 1e6 * taken == pytest.approx(us, abs=1.0)
    assert taken / plain == pytest.approx(share, abs=0.0011)
    for depth, expected in zip((3, 5, 7), efficiency or (), strict=False):
        cap = plain / (step_seconds(dims, 32, length, H200) + depth * taken)
        assert cap == pytest.approx(expected, abs=0.0101)


@pytest.mark.parametrize("name", names())
def test_dimensions_count_what_the_stock_class_multiplies(name: str) -> None:
    spec = spec_of(name, small=True)
    model = build(spec, CPU, torch.float32)
    products = [module.weight.numel() for module in model.modules() if isinstance(module, nn.Linear)]
    assert spec.dims.weights == sum(products)
    states = model(torch.ones(1, 40, dtype=torch.long), use_cache=True).past_key_values
    layer = states.layers[-1]  # in the mixed model the last one is full
    per_layer = 2 * layer.keys[..., :1, :].numel() * 2
    assert spec.dims.kv_bytes(1) == per_layer * spec.dims.layers
    assert spec.dims.kv_bytes(40) == per_layer * ((2 - spec.dims.sliding) * 40 + spec.dims.sliding * 16)


def test_a_cut_keeps_both_kinds_of_layers() -> None:
    model = build(spec_of("gemma3-12b", small=True), CPU, torch.float32, layers=2)
    assert model.config.layer_types == ["sliding_attention", "full_attention"]
    assert spec_of("gemma3-12b").config.layer_types[-2:] == ["sliding_attention", "full_attention"]


# Synthetic acceptance


@given(st.integers(1, 8), st.floats(0, 1, allow_subnormal=False))
def test_the_geometric_law_has_the_mean_that_was_asked(depth: int, share: float) -> None:
    tau = 1 + share * depth
    law = geometric(tau, depth)
    assert math.fsum(law) == pytest.approx(1)
    assert math.fsum(a * p for a, p in enumerate(law)) == pytest.approx(tau - 1, abs=1e-6)
    if 0.05 < share < 0.95:  # one ratio throughout, but for the last, which takes the tail
        assert law[1] / law[0] == pytest.approx(law[-1] / (law[-1] + law[-2]) if depth > 1 else law[1] / law[0])


@pytest.mark.parametrize("law", TABLES)
@pytest.mark.parametrize("tau", [1.0, 2.5, 3.78, 6.0])
def test_tables_have_the_mean_that_was_asked(law: str, tau: float) -> None:
    table = TABLES[law](tau, 5, 3)
    assert table.shape == (3, 1024)
    assert 0 <= int(table.min()) <= int(table.max()) <= 5
    assert torch.allclose(table.double().mean(1), torch.tensor(tau - 1, dtype=torch.float64), atol=5 / 1024)


def test_the_even_table_varies_as_little_as_possible() -> None:
    table = even_table(3.78, 7, 1)[0]
    assert set(table.tolist()) == {2, 3}
    for start in range(0, 1000, 50):  # also over a short stretch
        assert table[start : start + 50].double().mean() == pytest.approx(2.78, abs=0.021)


def test_geometric_rows_differ_and_repeat() -> None:
    table = geometric_table(3.0, 5, 2)
    assert not torch.equal(table[0], table[1])
    assert torch.equal(table, geometric_table(3.0, 5, 2))
    law = torch.tensor(geometric(3.0, 5))
    found = torch.bincount(table[0], minlength=6) / 1024
    assert (found - law).abs().max() <= 4 / 1024
    for start in range(0, 1000, 24):  # also over as few rounds as an answer has
        assert table[0, start : start + 24].double().mean() == pytest.approx(2, abs=0.25)


@pytest.mark.parametrize("tau", [0.5, 7.0, math.nan])
@pytest.mark.parametrize("law", TABLES)
def test_a_tau_that_no_draft_reaches_is_refused(law: str, tau: float) -> None:
    with pytest.raises(InputError, match=r"must lie in \[1, 6\]"):
        TABLES[law](tau, 5, 1)


def test_the_rule_takes_a_path_of_the_tree_and_no_deeper_than_it_goes() -> None:
    #       0 -> 1 -> 3, 0 -> 2 -> 4 -> 5 in row 0; a bush of depth 1 in row 1; padding in row 2
    parents = torch.tensor([[-1, 0, 0, 1, 2, 4], [-1, 0, 0, 0, 0, 0], [-1, 0, 1, 2, 3, 4]])
    depth = torch.tensor([[0, 1, 1, 2, 2, 3], [0, 1, 1, 1, 1, 1], [0, 1, 2, 3, 4, 5]])
    valid = torch.tensor([[True] * 6, [True] * 6, [True, True, True, False, False, False]])
    draft = Draft(torch.arange(18).reshape(3, 6), parents, depth, valid=valid)
    rule = Synthetic(torch.tensor([[3, 2, 0], [3, 1, 0], [9, 1, 0]]))
    sampler = Sampler(Sampling(), 3, CPU)
    scores = torch.randn(3, 6, 20, generator=torch.Generator().manual_seed(0))
    rounds = [rule(draft, scores, sampler, torch.zeros(3, dtype=torch.long)) for _ in range(4)]
    assert [each.count.tolist() for each in rounds] == [[4, 2, 3], [3, 2, 2], [1, 1, 1], [4, 2, 3]]
    assert rounds[0].path[0].tolist()[:4] == [0, 2, 4, 5]
    assert rounds[1].path[0].tolist()[:3] == [0, 1, 3]
    assert rounds[0].path[2].tolist()[:3] == [0, 1, 2]


@pytest.mark.parametrize("law", TABLES)
def test_rounds_of_a_model_reach_the_tau_that_was_asked(law: str) -> None:
    """The whole loop, with an EAGLE head of random weights, which would hardly be accepted otherwise."""
    model = build(spec_of("llava-7b", small=True), CPU, torch.float32)
    drafter = Eagle1(head_like(model), depth=4, width=4, top_k=4, total=16)
    ids = torch.arange(1, 9)[None].repeat(2, 1)
    own = mmspec.load(model, drafter, shape="own", compile=False).generate(input_ids=ids, max_new_tokens=60)
    assert max(out.stats.tau for out in own) < 1.5
    pipe = mmspec.load(model, drafter, Synthetic(TABLES[law](3.5, 4, 2)), shape="own", compile=False)
    for out in pipe.generate(input_ids=ids, max_new_tokens=400):
        assert not out.stats.lossless
        assert out.stats.tau == pytest.approx(3.5, abs=0.02 if law == "even" else 0.5)
    assert {len(out.token_ids) for out in own} == {60}


# Time


def bench_of(folder: Path, stage: str = "stage", **settings: Any) -> Bench:
    told = Settings(**{"small": True, "device": "cpu", "dtype": "float32", **settings})
    return Bench(stage, told, folder, ("llava-7b",), Deadline(None), "", lambda _: [])


@pytest.mark.parametrize(("captured", "refused"), [(False, False), (True, False), (True, True)])
def test_what_is_captured_is_timed_by_replays_and_what_refuses_by_calls(
    captured: bool, refused: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The card is at work when the clock starts."""
    done: list[str] = []

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            pass

        def record(self) -> None:
            done.append("|")

        def synchronize(self) -> None:
            pass

        def elapsed_time(self, end: object) -> float:
            return 12.0

    def graph(run: Callable[[], None], place: object) -> SimpleNamespace:
        if refused:
            raise RuntimeError("no capture here")
        return SimpleNamespace(captured=SimpleNamespace(replay=lambda: done.append("replay")))

    monkeypatch.setattr(clock, "Graph", graph)
    monkeypatch.setattr(clock, "Place", lambda device: device)
    monkeypatch.setattr(clock, "wait", lambda device: done.clear())
    monkeypatch.setattr(torch.cuda, "Event", Event)
    taken = clock.seconds(lambda: done.append("call"), torch.device("cuda"), 2, 3, captured=captured)
    assert taken == pytest.approx(0.004)
    once = ["replay", "|", "replay", "|"] if captured and not refused else ["|", "call", "call", "call", "|"]
    assert done == 2 * once
    assert ("no capture here" in caplog.text) is refused


def test_small_kernels_are_timed_in_graphs_and_launches_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, bool]] = []

    def seconds(call: object, device: object, repeats: int, inner: int = 1, *, captured: bool = False) -> float:
        asked.append((inner, captured))
        return 1.0

    for module in (ceilings, attention):
        monkeypatch.setattr(module, "seconds", seconds)
    bench = bench_of(tmp_path)
    ceilings.card(bench)
    assert asked == [(4, False), (4, False), (1, False)]
    asked.clear()
    ceilings.linear(bench, (8, 4))
    attention.measured(bench, (4, 2, 16), 1, 60, 96, False)
    assert set(asked) == {(8, True), (attention.INNER, True)}


def test_many_verifications_are_timed_at_once_when_all_is_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[Any] = []
    monkeypatch.setattr(sweep, "lasts", lambda call, device: done.append("compiled"))
    monkeypatch.setattr(sweep, "settle", lambda device: done.append("settled"))
    monkeypatch.setattr(sweep, "seconds", lambda call, device, repeats, inner: done.append(inner) or 0.001)
    spec = spec_of("llava-7b", small=True)
    target = pipeline(build(spec, CPU, torch.float32)).target
    assert sweep.verify_ms(bench_of(tmp_path, small=False, tokens=8), spec, target, 4, Needs())[1] == 1.0
    assert done == ["compiled", "settled", 32]


class Answering:
    """Stands for a pipeline. seconds: of its answers, of ten tokens in three rounds."""

    def __init__(self, name: str, seconds: list[float], done: list[str]) -> None:
        self.name, self.seconds, self.done = name, seconds, done
        self.target = SimpleNamespace(compiled=False)

    def generate(self, **inputs: Any) -> SimpleNamespace:
        self.done.append(self.name)
        return SimpleNamespace(stats=Stats(True, 10, [2, 2, 2], draft_seconds=self.seconds.pop(0)))


def test_answers_take_turns_and_their_median_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of as many as `--repeats` says, after one that compiles and a card that is busy again."""
    done: list[str] = []
    monkeypatch.setattr(rounds, "settle", lambda device: done.append("settled"))
    bench, spec = bench_of(tmp_path, repeats=3), spec_of("llava-7b", small=True)
    pipes = {name: Answering(name, times, done) for name, times in {
        "a": [100.0, 0.9, 1.8, 90.0], "b": [100.0, 0.6, 0.3, 0.9]}.items()}  # fmt: skip
    found = rounds.plain_ms(bench, spec, lambda: pipes, {"HF": {"median": 5.0}})  # type: ignore[arg-type, return-value]
    assert found == pytest.approx({"HF (baselines)": 5.0, "a": 200.0, "b": 200.0 / 3})
    assert done == ["a", "b", "settled", *"ababab"]
    each = [Stats(True, 10, [2, 2, 2], verify_seconds=taken) for taken in (0.3, 9.0, 0.6)]
    assert rounds.per_round(each, "verify") == rounds.per_round(each, "decode") == pytest.approx(200.0)


def test_what_an_answer_takes_once_is_told_from_its_rounds() -> None:
    """Rounds of 2 ms, and 30 ms more for every answer; one that was disturbed does not count."""

    def answers(*counts: tuple[int, float]) -> list[Stats]:
        return [
            Stats(True, 1 + 3 * count, [2] * count, draft_seconds=0.03, verify_seconds=0.002 * count + late)
            for count, late in counts
        ]

    found = rounds.apart(answers((85, 0.0), (85, 5.0), (84, 0.0)), answers((21, 0.0), (21, 0.0), (20, 0.0)))
    assert found == pytest.approx((2.0, 30.0))
    assert rounds.apart(answers((2, 0.0)), answers((2, 0.0))) == (None, None)


def test_parts_of_real_rounds_are_those_of_answers_that_wait(tmp_path: Path) -> None:
    """Speed and replies are those of answers that do not; each is the second of its kind."""

    class Asked:
        target = SimpleNamespace(compiled=False)

        def __init__(self, drafter: Any) -> None:
            self.drafter, self.asked = drafter, 0

        def with_drafter(self, drafter: Any, shape: str) -> "Asked":
            return Asked(drafter)

        def __call__(self, image: Any, prompt: str, **options: Any) -> SimpleNamespace:
            self.asked += 1
            waits = isinstance(self.drafter, Waiting)
            ms = 1e-3 * (1000 if self.asked % 2 else 1)  # the first one compiles
            parts = (2 * ms, 4 * ms, 6 * ms) if waits else (0.0, 0.0, 9 * ms)
            return SimpleNamespace(stats=Stats(True, 7, [2, 2], 0.0, *parts), token_ids=[int(waits)])

    drafter = SimpleNamespace(kinds=frozenset(), needs=Needs())
    asked = [SimpleNamespace(image=None, prompt="?")] * 3
    found = real.measured(
        bench_of(tmp_path, "real"),
        "a",
        lambda: Asked(drafter),
        drafter,
        False,
        lambda: asked,  # type: ignore[arg-type, return-value]
    )
    assert (found["tau"], found["replies"]) == (3.0, [[0]] * 3)
    assert found["ms_per_token"] == pytest.approx(1.5)
    assert [found[f"{part}_ms"] for part in ("draft", "verify", "other")] == pytest.approx([1.0, 2.0, 3.0])


@pytest.mark.parametrize("gated", [True, False])
def test_the_card_is_busy_again_when_all_is_compiled(
    gated: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settled: list[torch.device] = []
    monkeypatch.setattr(bench_module, "settle", settled.append)
    bench = bench_of(tmp_path)
    if gated:
        bench.gate = tmp_path / "turn"
        bench.gate.touch()
    bench.turn()
    assert settled == [CPU]


def test_a_checkpoint_is_loaded_once_for_its_drafters_and_the_best_come_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads, played = [], []

    def load(name: str, **where: Any) -> tuple[str, bool]:
        loads.append((name, where["compiled"]))
        return loads[-1]

    def measured(bench: Bench, name: str, loaded: Any, drafter: str, compiled: bool, asked: Any) -> dict:
        assert loaded() == (name, compiled)
        played.append((name, drafter, compiled))
        return {}

    monkeypatch.setattr(real, "pipeline", load)
    monkeypatch.setattr(real, "measured", measured)
    monkeypatch.setattr(real, "drafters_of", lambda folder: ("dspark", "dflash", "eagle2"))
    bench = bench_of(tmp_path, "real", small=False)
    real.run(bench)
    some = list(dict.fromkeys(name for name, *_ in played))
    assert len(some) == 4
    turns = [(name, turn, compiled) for turn in (("none", "dspark"), ("dflash", "eagle2")) for name in some
             for compiled in (False, True)]  # fmt: skip
    assert loads == [(name, compiled) for name, _, compiled in turns]
    assert played == [(name, drafter, compiled) for name, turn, compiled in turns for drafter in turn]
    real.run(bench)
    assert len(loads) == len(turns)  # what is there needs no model


# Models and trees


def test_the_sweep_s_tree_is_binary() -> None:
    draft = binary_tree(torch.tensor([7, 8]), 9)
    assert draft.parents[1].tolist() == [-1, 0, 0, 1, 1, 2, 2, 3, 3]
    assert draft.depth[0].tolist() == [0, 1, 1, 2, 2, 2, 2, 3, 3]
    assert torch.equal(draft.ancestors.sum(-1) - 1, draft.depth)


def test_the_sweep_is_relative_to_its_fewest_nodes() -> None:
    record = {"ms": {"8": 2.0, "16": 3.0}, "floor_ms": {"8": 1.0, "16": 1.0}}
    tables = dict(sweep.tables({"a model, plain": record}))
    assert tables["Times verify(8)"][1] == ["a model, plain", 1.0, 1.5]


def test_the_first_other_token_is_counted_in_its_row() -> None:
    def answers(*rows: list[int]) -> list[SimpleNamespace]:
        return [SimpleNamespace(token_ids=row) for row in rows]

    right = answers([1, 2, 3], [4, 5, 6])
    assert first_other(answers([1, 2, 3], [4, 5, 6]), right) is True
    assert first_other(answers([1, 2, 3], [4, 9, 6]), right) == 1
    assert first_other(answers([1, 2, 9], [9, 5, 6]), right) == 0


def test_an_unknown_model_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="llava-7b"):
        spec_of("llava-7")


# Records


def book(folder: Path, **settings: object) -> Book:
    def tables(records: dict) -> list:
        return [("Figures", [["key", "value"], *([key, record["value"]] for key, record in records.items())])]

    return Book(folder, "stage", {"small": False, **settings}, "What it is.", tables, {"cuda": None, "cudnn": 9})


def test_results_are_whole_after_every_record_and_go_on(tmp_path: Path) -> None:
    first = book(tmp_path)
    first.add("a", {"value": 1.5})
    assert json.loads((tmp_path / "stage.json").read_text())["records"]["a"]["value"] == 1.5
    assert "| a | 1.5 |" in (tmp_path / "stage.md").read_text()
    (tmp_path / ".stage.json.1.tmp").write_text('{"half')  # what a kill may leave behind
    again = book(tmp_path)
    assert again.has("a")
    again.add("b", {"error": "no memory"})
    assert not book(tmp_path).has("b")
    text = (tmp_path / "stage.md").read_text()
    assert "- b: no memory" in text
    assert "| b |" not in text
    assert {"date", "hardware", "versions", "card"} <= again.records["a"].keys()


def test_results_of_other_settings_are_not_mixed(tmp_path: Path) -> None:
    book(tmp_path, repeats=5).add("a", {"value": 1.0})
    with pytest.raises(InputError, match="other settings"):
        book(tmp_path, repeats=6)


def test_only_small_results_say_that_they_are_no_measurement(tmp_path: Path) -> None:
    assert "No figure here is a measurement" in book(tmp_path, small=True).text()
    assert "No figure here is a measurement" not in book(tmp_path).text()


def test_tables_are_markdown() -> None:
    assert markdown([["a", "b"], [1234.56, None]]) == "| a | b |\n|---|---|\n| 1235 | - |"


def test_floors_use_what_the_stage_ceilings_found(tmp_path: Path) -> None:
    settings = Settings(rows=4)
    assert ceilings_of(tmp_path, settings) is H200
    ceilings = Book(tmp_path, "ceilings", asdict(Settings()), "", lambda records: [], {})
    ceilings.add("card", {"copy_gb_s": 4000.0, "matmul_tflops": 700.0})
    found = ceilings_of(tmp_path, settings)
    assert (found.bandwidth, found.flops) == (4e12, 7e14)


@pytest.mark.parametrize("other", [{"dtype": "float32"}, {"device": "cpu"}, {"small": True}, {"rows": 8}], ids=str)
def test_what_another_stage_found_otherwise_is_not_used(
    other: dict, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made, asked = Settings(), Settings(**other)
    Book(tmp_path, "baselines", asdict(made), "", lambda records: [], {}).add("llava-7b", {"ms": {}})
    assert found_before("baselines", tmp_path, made, DECODING).keys() == {"llava-7b"}
    assert not caplog.text
    assert found_before("baselines", tmp_path, asked, DECODING) == {}
    (name,) = other
    assert f"baselines.json is not used, since it is of {name} " in caplog.text
    Book(tmp_path, "ceilings", asdict(made), "", lambda records: [], {}).add(
        "card", {"copy_gb_s": 1.0, "matmul_tflops": 1.0}
    )
    assert (ceilings_of(tmp_path, asked) is H200) == (name != "rows")


@pytest.mark.parametrize(("rows", "base"), [(1, "our loop (baselines)"), (8, "our loop")])
def test_a_plain_step_of_another_batch_is_none_of_these_rounds(tmp_path: Path, rows: int, base: str) -> None:
    made = Settings(small=True, device="cpu", dtype="float32", rows=rows)
    before = Book(tmp_path, "baselines", asdict(made), "", lambda records: [], {})
    before.add("speech-0.5b", {"ms": {"our loop": {"median": 1e-6}}})
    gpu(stage="rounds", small=True, out=tmp_path, models="speech-0.5b")
    lines = [record for record in results(tmp_path, "rounds").values() if "base" in record]
    assert {record["base"] for record in lines} == {base}


def test_a_run_with_a_gate_waits_for_it(tmp_path: Path) -> None:
    """It says when all is compiled, and does not wait for ever."""
    where = Settings(small=True, device="cpu"), tmp_path, ("llava-7b",)
    gate = tmp_path / "turn"
    with pytest.raises(OutOfTime):
        Bench("stage", *where, Deadline(0), "", lambda _: [], gate).turn()
    assert (tmp_path / "turn.ready").exists()
    gate.touch()
    Bench("stage", *where, Deadline(0), "", lambda _: [], gate).turn()
    Bench("stage", *where, Deadline(0), "", lambda _: []).turn()


def test_what_fails_is_noted_and_the_run_goes_on(tmp_path: Path) -> None:
    def run(bench: Bench) -> None:
        def short() -> dict:
            raise torch.OutOfMemoryError("no memory left")

        bench.record("a", short)
        bench.record("b", lambda: {"value": 1})

    at = Bench("stage", Settings(small=True, device="cpu"), tmp_path, ("llava-7b",), Deadline(None), "", lambda _: [])
    run(at)
    assert "no memory left" in at.book.records["a"]["error"]
    assert at.book.records["b"]["value"] == 1


# Stages

MODELS = "gemma3-12b,speech-0.5b"


def results(folder: Path, stage: str) -> dict:
    return json.loads((folder / f"{stage}.json").read_text())["records"]


@pytest.mark.filterwarnings("ignore:flex_attention called without")  # compiling it is for cards
@pytest.mark.parametrize("stage", STAGES)
def test_every_stage_runs_small_and_is_not_run_twice(
    stage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gpu(stage=stage, small=True, out=tmp_path, models=MODELS)
    found = results(tmp_path, stage)
    assert found
    assert not [record["error"] for record in found.values() if "error" in record]
    assert "No figure here is a measurement" in capsys.readouterr().out
    check = CHECKS[stage]
    check(found)
    monkeypatch.setattr(bench_module.Book, "add", lambda *_: pytest.fail("a figure was made again"))
    gpu(stage=stage, small=True, out=tmp_path, models=MODELS)
    assert results(tmp_path, stage) == found


def check_ceilings(found: dict) -> None:
    assert found["card"]["copy_gb_s"] > 0
    assert found["card"]["matmul_tflops"] > 0
    assert found["gemma3-12b/head"]["shape"] == [199, 64]
    assert len(found) == 1 + 2 * 6


def check_attention(found: dict) -> None:
    scenes = [record for record in found.values() if "us" in record]
    for record in scenes:
        assert {"twin", "sdpa, torch's choice", "sdpa, keys repeated", "sdpa math"} <= record["us"].keys()
        assert max(record["difference"].values()) < 1e-5
        assert not record["refused"]
    assert len(scenes) == 4
    assert ["flex" in record["us"] for record in scenes] == [False, True] * 2
    assert len(found["new length"]["first_ms"]) == 4


def check_baselines(found: dict) -> None:
    assert found.keys() == {"gemma3-12b", "speech-0.5b"}
    for record in found.values():
        assert record["ms"].keys() == {"HF generate", "HF generate, static cache", "our loop"}
        assert record["unseen_ms"].keys() == {"HF generate", "our loop"}
        assert record["floor_ms"] > 0


def check_sweep(found: dict) -> None:
    assert found.keys() == {"gemma3-12b, plain", "speech-0.5b, plain"}
    for record in found.values():
        assert record["ms"].keys() == record["floor_ms"].keys() == {"1", "2", "5"}


def check_equality(found: dict) -> None:
    assert found.keys() <= set(MODELS.split(","))
    for record in found.values():
        assert all(same is True for same in record["equal"].values())
        assert record["tau"]["the target itself, greedy"] > 3
        assert record["tau"]["EAGLE, random, greedy"] < 2


def check_rounds(found: dict) -> None:
    lines = {key: record for key, record in found.items() if key.startswith("synthetic: ")}
    traces = {key: record for key, record in found.items() if key.startswith("trace: ")}
    assert (len(lines), len(traces)) == (4, 4)
    for record in lines.values():
        assert record["efficiency"] == pytest.approx(record["base_ms"] / record["round_ms"])
        assert record["drafted_words"] == {"gemma3-12b": 64, "speech-0.5b": None}[record["model"]]
        assert record["speedup"]["3"] == pytest.approx(3 * record["efficiency"])
        assert min(record["draft_ms"], record["verify_ms"], record["other_ms"]) > 0
        assert record["cap"] == pytest.approx(record["plain_floor_ms"] / record["floor_ms"])
        assert record["share_of_cap"] == pytest.approx(record["efficiency"] / record["cap"])
        assert record["further_ms"] is not None
        assert record["answer_ms"] is not None
    for record in traces.values():
        assert record["lasts_ms"] > 0
        taken = [milliseconds for milliseconds, _ in record["longest"].values()]
        assert taken == sorted(taken, reverse=True)
        # all products of a step are seen: seven in each of two layers, and the head's
        assert sum(times for name, (_, times) in record["longest"].items() if name.endswith("mm")) >= 2 * 7 + 1
    plain, drafted = (found[f"trace: speech-0.5b, {kind}"]["kernels"] for kind in ("plain step", "depth 3"))
    assert drafted > plain > 10


def check_real(found: dict) -> None:
    plain, drafted = found.values()
    assert (plain["tau"], plain["drafter"]) == (1.0, "none")
    assert drafted["tau"] > 1
    assert drafted["replies"] == plain["replies"]


CHECKS: dict[str, Callable[[dict], None]] = {
    "ceilings": check_ceilings,
    "attention": check_attention,
    "baselines": check_baselines,
    "sweep": check_sweep,
    "equality": check_equality,
    "rounds": check_rounds,
    "real": check_real,
}


@pytest.mark.slow
def test_the_static_engine_is_measured_beside_plain_forwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Traced and run plainly instead of compiled by inductor, which takes minutes."""
    monkeypatch.setattr(CausalTarget, "compile", partialmethod(CausalTarget.compile, backend="eager"))
    gpu(stage="sweep,equality,rounds", small=True, out=tmp_path, models="speech-0.5b", compile=True, rows=2)
    swept, same, played = (results(tmp_path, stage) for stage in ("sweep", "equality", "rounds"))
    assert not [record for record in (*swept.values(), *same.values(), *played.values()) if "error" in record]
    assert swept.keys() == {"speech-0.5b, plain", "speech-0.5b, compiled"}
    check_equality(same)
    line = played["synthetic: speech-0.5b, depth 3, even"]
    assert line["plain_ms"].keys() == {"our loop", "our loop, compiled"}
    assert line["rows"] == 2


def test_equality_has_the_plain_loop_also_where_it_is_not_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CausalTarget, "compile", lambda target: None)
    gpu(stage="equality", small=True, out=tmp_path, models="speech-0.5b", compile=True, plain=False)
    found = results(tmp_path, "equality")
    assert not [record["error"] for record in found.values() if "error" in record]
    check_equality(found)


def test_a_run_without_time_left_ends_cleanly(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gpu(stage="ceilings,sweep", small=True, out=tmp_path, models=MODELS, minutes=0)
    assert "the 0 minutes are over" in capsys.readouterr().err
    assert not list(tmp_path.glob("*.json"))


def test_a_killed_run_keeps_what_it_has_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured, made = sweep.measured, []

    def killed(*given: object) -> dict:
        if made:
            raise KeyboardInterrupt
        made.append(measured(*given))
        return made[0]

    monkeypatch.setattr(sweep, "measured", killed)
    with pytest.raises(KeyboardInterrupt):
        gpu(stage="sweep", small=True, out=tmp_path, models=MODELS)
    kept = results(tmp_path, "sweep")
    assert list(kept) == ["gemma3-12b, plain"]
    monkeypatch.undo()
    gpu(stage="sweep", small=True, out=tmp_path, models=MODELS)
    whole = results(tmp_path, "sweep")
    assert list(whole) == ["gemma3-12b, plain", "speech-0.5b, plain"]
    assert whole["gemma3-12b, plain"] == kept["gemma3-12b, plain"]


def test_mistakes_are_told(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'rounds'"):
        gpu(stage="round", small=True, out=tmp_path)
    with pytest.raises(InputError, match="dtype"):
        gpu(stage="ceilings", small=True, out=tmp_path, dtype="int8")
    with pytest.raises(InputError, match="tokens=1"):
        gpu(stage="ceilings", small=True, out=tmp_path, tokens=1)
    with pytest.raises(InputError, match="nodes='1,x' is not valid: whole numbers from 1 on"):
        gpu(stage="sweep", small=True, out=tmp_path, nodes="1,x")
    with pytest.raises(InputError, match="depths='0' is not valid"):
        gpu(stage="rounds", small=True, out=tmp_path, depths="0")
    with pytest.raises(InputError, match="device='gpu' is not valid"):
        gpu(stage="ceilings", small=True, out=tmp_path, device="gpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_card_the_full_mode_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--small"):
        gpu(stage="ceilings", out=tmp_path)


def test_a_head_has_the_shape_of_the_model_s_layers() -> None:
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=50, hidden_size=32, intermediate_size=48, num_attention_heads=4, head_dim=16, num_hidden_layers=1
        )
    )
    head = head_like(model)
    assert head.layer.mlp.up_proj.weight.shape == (48, 32)
    assert head.layer.self_attn.q_proj.weight.shape == (64, 32)
    assert head.draft_ids is None
    assert head_like(model, 7).draft_ids.tolist() == [*range(7)]


def test_forwards_without_the_engine_can_be_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CausalTarget, "compile", partialmethod(CausalTarget.compile, backend="eager"))
    gpu(stage="sweep,rounds", small=True, out=tmp_path, models="speech-0.5b", compile=True, plain=False)
    assert json.loads((tmp_path / "sweep.json").read_text())["records"].keys() == {"speech-0.5b, compiled"}
    records = json.loads((tmp_path / "rounds.json").read_text())["records"]
    assert {tuple(record["plain_ms"]) for record in records.values() if "plain_ms" in record} == {
        ("our loop, compiled",)
    }
    with pytest.raises(InputError, match="--compile"):
        gpu(stage="sweep", small=True, out=tmp_path, plain=False)
