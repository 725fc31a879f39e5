"""The command line: what it prints where, and with which exit status."""

import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
import test_families
import tiny
import typer
from PIL import Image
from tiny_vision import RED

import mmspec
from mmspec import checkpoints, cli, registry, thoughts
from mmspec.checkpoints import save_drafter
from mmspec.compare import Comparison
from mmspec.drafters.independent import Independent
from mmspec.results import Generation
from mmspec.stats import Stats

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with a drafter beside it, laid out like a bundled one."""
    folder = tiny.tiny_smolvlm(tmp_path_factory.mktemp("package") / "vlm" / "checkpoints" / "tiny-model")
    drafter = Independent(tiny.llama_model(1), length=2)
    save_drafter(drafter, folder / "drafters" / "spd", mmspec.load(folder, "none").target)
    Image.new("RGB", (50, 40), "red").save(folder.parent / "red.png")
    return folder


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["mmspec", *map(str, arguments)])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        return (caught.value.code, *capfd.readouterr())

    return call


def generate(run: Run, model: Path, *more: object) -> tuple[int, str, str]:
    picture = model.parent / "red.png"
    return run("generate", picture, "why", "--model", model, "--max-new-tokens", 12, *more)


def test_the_answer_goes_to_stdout_and_the_summary_to_stderr(run: Run, model: Path) -> None:
    status, out, err = generate(run, model, "--shape", "own")
    answer = mmspec.load(model, shape="own")(model.parent / "red.png", "why", max_new_tokens=12)
    assert status == 0
    assert out == answer.text.strip() + "\n"
    assert err.count("\n") == 1
    assert "12 tokens" in err
    assert f"tau {answer.stats.tau:.2f}" in err
    assert "spd, exact (lossless), ended by length" in err


def test_json_holds_the_answer_and_its_statistics(run: Run, model: Path) -> None:
    status, out, _ = generate(run, model, "--json", "--drafter", "none", "--temperature", 1, "--seed", 3)
    answer = mmspec.load(model)(model.parent / "red.png", "why", max_new_tokens=12, temperature=1.0, seed=3)
    result = json.loads(out)
    assert status == 0
    assert result["token_ids"] == answer.token_ids
    assert result["text"] == answer.text
    assert result["stats"]["tau"] == 1
    assert result["stats"]["accept_lengths"] == [0] * 11
    assert result["stats"]["lossless"] is True
    assert json.loads(generate(run, model, "--json", "--max-new-tokens", 1)[1])["stats"]["tau"] is None


def test_several_answers_stand_apart_and_each_has_its_summary(run: Run, model: Path) -> None:
    sampled = ("--temperature", 1, "--seed", 3, "--n", 2)
    status, out, err = generate(run, model, *sampled, "--stream")
    answers = mmspec.load(model)(model.parent / "red.png", "why", max_new_tokens=12, temperature=1.0, seed=3, n=2)
    assert status == 0
    assert out == "\n\n".join(answer.text.strip() for answer in answers) + "\n"
    assert err.count("12 tokens") == 2
    told = json.loads(generate(run, model, *sampled, "--json")[1])
    assert [one["token_ids"] for one in told] == [answer.token_ids for answer in answers]
    for more, message in ((("--n", 0), "n=0 is not valid"), (("--n", 2, "--compare"), "leave --n out")):
        status, out, err = generate(run, model, *more)
        assert (status, out) == (2, "")
        assert message in err


def test_streaming_prints_the_same_text(run: Run, model: Path) -> None:
    whole, streamed = generate(run, model, "--no-stream")[1], generate(run, model, "--stream")[1]
    assert streamed.strip() == whole.strip()


@pytest.mark.parametrize("how", ["--no-stream", "--stream", "--compare", "--n"])
def test_a_thought_goes_to_stderr(run: Run, model: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    text = mmspec.load(model)(model.parent / "red.png", "why", max_new_tokens=12).text
    mark = text.strip()[2]
    thought, _, answer = text.partition(mark)
    monkeypatch.setattr(thoughts, "MARKS", [("Assistant:", mark)])  # as if the template opened a thought
    _, out, err = generate(run, model, *({"--n": ["--n", 2]}.get(how, [how])))
    assert err.startswith(f"{thought.strip()}\n\n")
    assert out.startswith(f"{answer.strip()}\n")
    if how == "--n":
        assert out == f"{answer.strip()}\n\n{answer.strip()}\n"
        assert err.count(thought.strip()) == 2
    told = json.loads(generate(run, model, "--json")[1])
    assert (told["thought"], told["answer"]) == (thought.strip(), answer.strip())


def test_several_pictures_no_picture_and_a_prompt_from_stdin(
    run: Run, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    picture = model.parent / "red.png"
    pipe = mmspec.load(model)
    options = ("--model", model, "--max-new-tokens", 6, "--json")
    two = json.loads(run("generate", picture, picture, "why", *options)[1])
    assert two["token_ids"] == pipe([picture, picture], "why", max_new_tokens=6).token_ids
    none = json.loads(run("generate", "why", *options)[1])
    assert none["token_ids"] == pipe(prompt="why", max_new_tokens=6).token_ids
    monkeypatch.setattr(sys, "stdin", io.StringIO("why\n"))  # as `echo` writes it
    assert json.loads(run("generate", "-", *options)[1])["token_ids"] == none["token_ids"]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"why \xff\xfe"), "utf-8"))
    status, out, err = run("generate", "-", *options)
    assert (status, out) == (2, "")
    assert err == "error: the prompt on standard input is not utf-8 text: invalid start byte\n"


def test_a_system_prompt_stands_before_the_question(run: Run, model: Path) -> None:
    picture = model.parent / "red.png"
    told = json.loads(generate(run, model, "--json", "--system", "be brief")[1])
    parts = [{"type": "image", "path": str(picture)}, {"type": "text", "text": "why"}]
    chat = [{"role": "system", "content": "be brief"}, {"role": "user", "content": parts}]
    assert told["token_ids"] == mmspec.load(model)(prompt=chat, max_new_tokens=12).token_ids
    assert told["token_ids"] != json.loads(generate(run, model, "--json")[1])["token_ids"]
    assert generate(run, model, "--system", "be brief", "--compare")[0] == 0


def test_a_page_needs_no_prompt_where_the_model_was_taught_so(run: Run, tmp_path: Path) -> None:
    base = test_families.plain("lighton-ocr")
    base.target.model.save_pretrained(tmp_path / "model")
    base.processor.save_pretrained(tmp_path / "model")
    RED.save(tmp_path / "page.png")
    options = ("--model", tmp_path / "model", "--max-new-tokens", 4, "--json")
    told = json.loads(run("generate", tmp_path / "page.png", *options)[1])
    assert told["token_ids"] == mmspec.load(tmp_path / "model")(RED, "", max_new_tokens=4).token_ids
    assert run("generate", tmp_path / "page.png", "", *options, "--system", "be brief")[0] == 0


def test_a_picture_without_a_prompt_says_what_is_missing(run: Run, model: Path) -> None:
    picture = model.parent / "red.png"
    for pictures in ([picture], [picture, picture]):
        status, out, err = run("generate", *pictures, "--model", model)
        assert (status, out) == (2, "")
        assert err.startswith("error: PROMPT is missing")
        assert f"mmspec generate {' '.join(map(str, pictures))} 'What" in err


def test_a_prompt_before_the_pictures_is_told_where_it_belongs(
    run: Run, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("red.png", "my chart.png"):
        Image.new("RGB", (5, 4), "red").save(name)
    for given, right in (
        (["What is this?", "red.png"], "red.png 'What is this?'"),
        (["my chart.png", "Which one?", "red.png"], "'my chart.png' red.png 'Which one?'"),
        (["What", "is", "this?", "red.png"], "red.png 'What is this?'"),
        (["my chart.png"], "'my chart.png' 'What is shown?'"),
        (["gone.jpg", "red.png"], "gone.jpg red.png 'What is shown?'"),
    ):
        status, out, err = run("generate", *given, "--model", model)
        assert (status, out) == (2, "")
        assert err.endswith(f"is a file): mmspec generate {right}\n")


def test_a_sound_in_the_place_of_a_picture_is_told_where_it_belongs(
    run: Run, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("talk.wav").write_bytes(b"RIFF")
    Image.new("RGB", (5, 4), "red").save("red.png")
    for given in (
        ["talk.wav", "transcribe en"],
        ["transcribe en", "talk.wav"],
        ["red.png", "talk.wav", "transcribe en"],
        ["talk.wav"],
        ["talk.wav", "red.png"],
    ):
        status, out, err = run("generate", *given, "--model", model)
        assert (status, out, err) == (2, "", "error: 'talk.wav' is a sound: pass it as --voice\n")
    assert "'gone.MP3' is a sound" in run("generate", "gone.MP3", "transcribe en", "--model", model)[2]
    options = ("--model", model, "--max-new-tokens", 2)
    assert run("generate", "What is in talk.wav", *options)[0] == 0  # words, and no path


def test_compare_checks_both_decodings(run: Run, model: Path) -> None:
    status, out, _ = generate(run, model, "--compare")
    assert status == 0
    assert "Both decodings agree on all 12 tokens." in out
    assert "S " in out
    assert "accepted per round: " in out
    result = json.loads(generate(run, model, "--compare", "--json", "--temperature", 1)[1])
    assert result["agree"] is True
    assert result["must_agree"] is True
    slow, fast = result["autoregressive"]["stats"], result["speculative"]["stats"]
    assert slow["target_calls"] == 12
    assert fast["tau"] == result["tau"]
    assert result["S"] == pytest.approx(slow["decode_seconds"] / fast["decode_seconds"])
    assert result["S_end_to_end"] == pytest.approx(slow["seconds"] / fast["seconds"])


def test_s_is_of_the_tokens_that_were_decoded_which_the_first_was_not() -> None:
    def answer(tokens: int, seconds: float) -> Generation:
        stats = Stats(True, new_tokens=tokens, accept_lengths=[0], prefill_seconds=8.0, verify_seconds=seconds)
        return Generation("", [0] * tokens, 1, "stop", stats)

    result = Comparison(answer(11, 10.0), answer(5, 2.0), bound=False, dtype="float32")  # as a lossy rule may end
    assert result.speedup == pytest.approx(2)  # 1 and 0.5 s per token
    assert result.speedup_end_to_end == pytest.approx((18 / 11) / (10 / 5))


def test_compare_fails_if_a_rule_breaks_its_word(run: Run, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mmspec.acceptance import exact

    choices = exact.choices
    monkeypatch.setattr(exact, "choices", lambda draft, *rest: (choices(draft, *rest) + (draft.size > 1)) % 300)
    status, out, _ = generate(run, model, "--compare", "--shape", "own")
    assert status == 1
    assert "The decodings DIFFER" in out


def test_compare_blames_rounding_where_it_may_be_that(run: Run, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mmspec.compare.Comparison.agree", False)
    status, out, _ = generate(run, model, "--compare", "--dtype", "bfloat16")
    assert status == 0
    assert "The decodings differ, as they may in bfloat16" in out
    assert generate(run, model, "--compare", "--dtype", "float32")[0] == 1
    lossy = generate(run, model, "--compare", "--dtype", "bfloat16", "--acceptance", "typical", "--temperature", 1)
    assert "this rule is lossy" in lossy[1]


def test_compare_lets_a_rule_with_its_own_noise_differ(run: Run, model: Path) -> None:
    status, out, _ = generate(run, model, "--compare", "--acceptance", "ratio", "--temperature", 1.5)
    assert status == 0
    assert "The decodings differ, as they may" in out


def test_models_lists_the_bundled_checkpoints(run: Run, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mmspec.inventory.bundled", lambda: {"tiny-model": model})
    entry = {
        "name": "tiny-model",
        "path": str(model),
        "modality": "vlm",
        "model_type": "smolvlm",
        "bytes": (model / "model.safetensors").stat().st_size,
        "drafters": ["spd"],
    }
    assert json.loads(run("models", "--json")[1]) == [entry]
    assert "tiny-model" in run("models")[1]


def test_drafters_lists_the_methods(run: Run) -> None:
    found = {entry["name"]: entry for entry in json.loads(run("drafters", "--json")[1])}
    assert {"none", "prompt-lookup", "spd", "eagle2"} <= set(found)
    for entry in found.values():
        assert set(entry) == {"name", "modalities", "takes", "trained", "lossless", "source"}
        assert entry["lossless"] is True
    assert found["eagle2"]["trained"] is True
    assert found["none"]["trained"] is False
    takes = {name: found[name]["takes"] for name in ("none", "suffix", "eagle2", "retrieval", "small-vlm")}
    assert list(takes.values()) == ["nothing", "nothing", "training", "a folder", "a folder"]
    assert "2406.16858" in found["eagle2"]["source"]
    assert "eagle2" in run("drafters")[1]


def test_rules_lists_the_rules_with_their_settings(run: Run) -> None:
    found = {entry["name"]: entry for entry in json.loads(run("rules", "--json")[1])}
    assert {name for name, entry in found.items() if "any" in entry["modalities"]} == {
        "block", "exact", "match", "ratio", "typical",
    }  # fmt: skip
    assert found["exact"]["lossless"] is True
    assert found["lantern"]["lossless"] is False
    assert {"k", "delta"} <= set(found["lantern"]["settings"])
    line = next(line for line in run("rules")[1].splitlines() if line.startswith("lantern "))
    assert "lossy" in line
    assert f"k={found['lantern']['settings']['k']}" in line


def test_device_and_dtype_are_handed_on(run: Run, model: Path) -> None:
    assert generate(run, model, "--dtype", "bfloat16", "--device", "cpu")[0] == 0
    assert "dtype='small' is not valid" in generate(run, model, "--dtype", "small")[2]
    assert "device='moon' cannot be used" in generate(run, model, "--device", "moon")[2]


def test_info_names_versions_device_and_threads(run: Run) -> None:
    found = json.loads(run("info", "--json")[1])
    assert found["mmspec"] == mmspec.__version__
    assert found["packages"]["torch"].startswith("2.11")
    assert found["threads"] >= 1
    assert set(found["checkpoints"]) == set(checkpoints.bundled())
    assert "transformers" in run("info")[1]
    assert run("--version")[:2] == (0, f"mmspec {mmspec.__version__}\n")


def test_unknown_commands_and_options_are_usage_errors(run: Run) -> None:
    assert run("generat")[0] == 2
    assert "No such option" in run("generate", "--temprature", "1", "why")[2]


def every_command() -> list[list[str]]:
    """The words of every command and sub-command; `bench speed` is `bench` itself, whose example it shows."""
    found: list[list[str]] = [[], ["generate"], ["models"], ["drafters"], ["rules"], ["info"]]
    for name in registry.names("commands"):
        group = typer.main.get_command(cast("typer.Typer", registry.resolve("commands", name)))
        found += [[name], *([name, part] for part in getattr(group, "commands", ()) if part != "speed")]
    return [*found, ["train", "target", "smolvlm-mini"]]


@pytest.mark.parametrize("command", every_command(), ids=lambda command: " ".join(["mmspec", *command]))
def test_help_teaches_by_example(run: Run, command: list[str]) -> None:
    status, out, _ = run(*command, "--help")
    assert status == 0
    assert " ".join(["mmspec", *(command or ["generate"])]) in " ".join(out.partition("\n")[2].split())


def test_examples_stand_on_lines_of_their_own(run: Run) -> None:
    lines = [line.strip() for line in run("generate", "--help")[1].splitlines()]
    assert 'mmspec generate vlm/samples/chart.png "Describe this picture in detail." --compare' in lines
    assert sum(line.startswith("mmspec generate ") for line in lines) == 4
    assert (Path(__file__).parents[1] / "vlm" / "samples" / "chart.png").is_file()


def test_help_on_a_target_tells_defaults(run: Run) -> None:
    out = " ".join(run("train", "target", "valle-mini", "--help")[1].split())
    assert "CPU threads [default: 2]" in out
    assert "bfloat16 autocast [default: True]" in out
    assert "None" not in out
    assert "(default:" not in out


def test_commands_of_other_distributions_get_their_arguments(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in registry.names("commands"):
        monkeypatch.setitem(registry.BUILTIN["commands"], f"any/{name}", "mmspec.cli:app")
    registry.entries.cache_clear()
    assert "--max-new-tokens" in run("bench", "generate", "--help")[1]
    assert run("train", "drafters", "--json")[0] == 0
    registry.entries.cache_clear()


@pytest.mark.parametrize("name", registry.names("commands"))
def test_no_command_offers_completion(run: Run, name: str) -> None:
    status, out, _ = run(name, "--help")
    assert status == 0
    assert "completion" not in out


@pytest.mark.parametrize(
    "command",
    [
        *([name] for name in registry.names("commands")),
        ["bench", "speech"],
        ["train", "drafter"],
        ["train", "target"],
        ["train", "target", "smolvlm-mini"],
        ["datastore", "build"],
    ],
    ids=" ".join,
)
def test_h_asks_every_command_for_help(run: Run, command: list[str]) -> None:
    short, long = run(*command, "-h"), run(*command, "--help")
    assert short == long
    assert short[0] == 0
    assert "usage: mmspec " + " ".join(command) in short[1].replace("Usage", "usage")


def test_help_does_not_import_torch() -> None:
    code = (
        "import sys, mmspec.cli\n"
        "sys.argv = ['mmspec', '--help']\n"
        "try: mmspec.cli.main()\n"
        "finally: print({'torch', 'transformers', 'numpy', 'PIL'} & set(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stderr.strip() == "set()"


def test_the_module_runs_as_a_program() -> None:
    command = [sys.executable, "-m", "mmspec", "generate", __file__]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error: PROMPT is missing")


def test_help_on_training_names_every_bundled_target(run: Run) -> None:
    status, out, _ = run("train", "target", "--help")
    assert status == 0
    assert all(name in out for name in ("smolvlm-mini", "janus-mini", "valle-mini"))
    status, _, err = run("train", "target", "janus-mimi", "--help")
    assert status == 2
    assert "did you mean 'janus-mini'?" in err


@pytest.mark.parametrize("words", [["photo.png"], ["missing/photo.JPG"], ["red.png", "nothere.webp"]])
def test_the_name_of_a_picture_that_is_not_there_is_no_prompt(run: Run, model: Path, words: list[str]) -> None:
    status, out, err = run("generate", *words, "--model", model)
    assert (status, out) == (2, "")
    assert err == f"error: PROMPT is missing (there is no file {words[-1]!r} either)\n"


def test_a_crowd_asks_only_models_that_answer(run: Run) -> None:
    for name in ("janus-mini", "valle-mini", "mar-mini"):
        status, _, err = run("bench", "load", "--model", name)
        assert status == 2
        assert f"a picture, which {name} does not answer" in err
    assert "visitors at once are not valid" in run("bench", "load", "--model", "nowhere", "--at-once", "0")[2]


def test_a_style_is_of_tasks(run: Run) -> None:
    status, _, err = run("bench", "--style", "score")
    assert (status, err) == (2, "error: --style belongs to a task: add --task chartqa\n")
