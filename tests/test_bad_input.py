"""A user's mistake ends in one clear error, through the API and through the command line."""

import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

import mmspec
from mmspec import cli
from mmspec.api import check_request
from mmspec.checkpoints import bundled, fingerprint, save_drafter
from mmspec.drafters.independent import Independent
from mmspec.errors import (
    CheckpointError,
    Error,
    InputError,
    MismatchError,
    NumericalError,
    OutOfMemoryError,
    UnknownNameError,
    UnsupportedError,
)
from mmspec.options import guidance_scale
from mmspec.registry import BUILTIN, resolve

RED = Image.new("RGB", (50, 40), "red")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A good picture and a good model, and everything that may be wrong with them."""
    root = tmp_path_factory.mktemp("files")
    RED.save(root / "red.png")
    (root / "notes.png").write_text("no picture")
    (root / "empty.png").write_bytes(b"")
    RED.resize((400, 400), Image.Resampling.BICUBIC).save(root / "whole.jpg")
    (root / "cut.jpg").write_bytes((root / "whole.jpg").read_bytes()[:700])
    (root / "bomb.png").write_bytes(tiny.png_header(60_000, 60_000))
    (root / "zero.png").write_bytes(tiny.png_header(0, 5))

    model = tiny.tiny_smolvlm(root / "model")
    good = mmspec.load(model)
    folder = save_drafter(Independent(tiny.llama_model(1)), root / "other-drafter", good.target)
    text = (folder / "drafter.json").read_text()
    (folder / "drafter.json").write_text(text.replace(fingerprint(good.target)["tokenizer"], "0" * 64))

    wrong = "no-weights", "pickled", "no-config", "odd-config", "own-code", "no-processor", "cut", "lacking", "nan"
    for name in wrong:
        shutil.copytree(model, root / name)
    (root / "no-weights" / "model.safetensors").unlink()
    (tiny.tiny_llama(root / "no-weights-text") / "model.safetensors").unlink()
    (root / "pickled" / "model.safetensors").rename(root / "pickled" / "pytorch_model.bin")
    (root / "no-config" / "config.json").unlink()
    (root / "odd-config" / "config.json").write_text('{"model_type": "nothing-known"}')
    own = {"model_type": "internvl_chat", "auto_map": {"AutoConfig": "configuration_internvl_chat.InternVLChatConfig"}}
    (root / "own-code" / "config.json").write_text(json.dumps(own))
    (root / "no-processor" / "tokenizer.json").unlink()
    weights = root / "cut" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:5000])
    tensors = load_file(root / "lacking" / "model.safetensors")
    save_file(
        {k: v for k, v in tensors.items() if "lm_head" not in k},
        root / "lacking" / "model.safetensors",
        {"format": "pt"},
    )
    broken = {k: v * torch.nan if "lm_head" in k else v for k, v in tensors.items()}
    save_file(broken, root / "nan" / "model.safetensors", {"format": "pt"})
    return root


CASES: list[tuple[str, list[str], type[Error], str]] = [
    ("missing file", ["@gone.png", "why"], InputError, "'.*gone.png' does not exist"),
    ("address", ["https://example.com/red.png", "why"], InputError, "URLs are not fetched"),
    ("no picture", ["@notes.png", "why"], InputError, "not a readable image"),
    ("empty file", ["@empty.png", "why"], InputError, "empty"),
    ("truncated", ["@cut.jpg", "why"], InputError, "truncated"),
    ("bomb", ["@bomb.png", "why"], InputError, "too large"),
    ("zero size", ["@zero.png", "why"], InputError, "zero.png"),
    ("directory", ["@model", "why"], InputError, "is a directory"),
    ("empty prompt", ["@red.png", " \n"], InputError, "the prompt is empty"),
    ("long prompt", ["@red.png", "why " * 300], InputError, "the prompt has .* tokens, the model's context is 256"),
    ("huge prompt", ["@red.png", "x" * 100_000], InputError, "context is 256"),
    ("control token", ["@red.png", "<image>"], InputError, "control token '<image>'"),
    ("unknown model", ["@red.png", "why", "--model", "smolvlm-mni"], UnknownNameError, "unknown model 'smolvlm-mni'"),
    ("odd model", ["@red.png", "why", "--model", "x" * 9000], UnknownNameError, "unknown model"),
    ("unreachable", ["@red.png", "why", "--model", "nobody/nothing"], CheckpointError, "the hub cannot be reached"),
    ("file as model", ["@red.png", "why", "--model", "@red.png"], InputError, "is a file: pass the folder"),
    ("unknown drafter", ["@red.png", "why", "--drafter", "promt-lookup"], UnknownNameError, "mean 'prompt-lookup'"),
    ("other modality", ["@red.png", "why", "--drafter", "jacobi"], UnknownNameError, "'jacobi' exists for: image; a"),
    ("no folder of a model", ["@red.png", "why", "--model", "@gone"], UnknownNameError, "gone': there is no such fo"),
    ("no folder of a drafter", ["@red.png", "why", "--drafter", "./no/x"], UnknownNameError, "'./no/x': there is"),
    ("no folder above", ["@red.png", "why", "--drafter", "../no"], UnknownNameError, "'../no': there is no such"),
    ("no folder of a user", ["@red.png", "why", "--drafter", "~nobody"], UnknownNameError, "there is no such folder$"),
    ("no folder far below", ["@red.png", "why", "--drafter", "a/b/c"], UnknownNameError, "'a/b/c': there is no"),
    ("untrained drafter", ["@red.png", "why", "--drafter", "eagle2"], CheckpointError, "is trained, and there is no"),
    ("unknown rule", ["@red.png", "why", "--acceptance", "exat"], UnknownNameError, "did you mean 'exact'"),
    (
        "rule and drafter",
        ["@red.png", "why", "--acceptance", "ratio"],
        MismatchError,
        "takes proposals of kind sampled",
    ),
    ("other target", ["@red.png", "why", "--drafter", "@other-drafter"], MismatchError, "trained for another target"),
    ("no weights", ["@red.png", "why", "--model", "@no-weights"], CheckpointError, "holds no weights"),
    ("pickled", ["@red.png", "why", "--model", "@pickled"], CheckpointError, "only pickled weights .*refused"),
    ("no config", ["@red.png", "why", "--model", "@no-config"], CheckpointError, "holds no config.json"),
    ("odd config", ["@red.png", "why", "--model", "@odd-config"], UnsupportedError, "cannot be used"),
    ("own code", ["@red.png", "why", "--model", "@own-code"], UnsupportedError, r"of its own \(auto_map\), which mm"),
    ("no processor", ["@red.png", "why", "--model", "@no-processor"], CheckpointError, "tokenizer or processor"),
    ("cut weights", ["@red.png", "why", "--model", "@cut"], CheckpointError, "cannot be loaded"),
    ("lacking weights", ["@red.png", "why", "--model", "@lacking"], CheckpointError, "lacks 1 of the model's weights"),
    ("nan weights", ["@red.png", "why", "--model", "@nan"], NumericalError, "not finite at the prompt"),
    ("negative", ["@red.png", "why", "--temperature", "-1"], InputError, "temperature=-1.0 is not valid"),
    ("nan", ["@red.png", "why", "--temperature", "nan"], InputError, "temperature=nan is not valid"),
    ("infinite", ["@red.png", "why", "--repetition-penalty", "inf"], InputError, "repetition_penalty=inf is not valid"),
    ("top-k", ["@red.png", "why", "--top-k", "-3"], InputError, "top_k=-3 is not valid"),
    ("top-p", ["@red.png", "why", "--top-p", "1.5"], InputError, "top_p=1.5 is not valid"),
    ("min-p", ["@red.png", "why", "--min-p", "-0.1"], InputError, "min_p=-0.1 is not valid"),
    ("no tokens", ["@red.png", "why", "--max-new-tokens", "0"], InputError, "max_new_tokens=0 is not valid"),
    ("empty stop", ["@red.png", "why", "--stop", ""], InputError, "stop"),
]


def _places(files: Path, arguments: list[str]) -> list[str]:
    """The paths of files of the fixture, which are marked with @; the good model unless another is named."""
    placed = [str(files / word[1:]) if word.startswith("@") else word for word in arguments]
    return placed if "--model" in arguments else [*placed, "--model", str(files / "model")]


@pytest.mark.parametrize(
    ("arguments", "kind", "message"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_the_command_line_prints_one_line_and_exits_2(
    files: Path,
    arguments: list[str],
    kind: type[Error],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["mmspec", "generate", *_places(files, arguments)])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    out, err = capfd.readouterr()
    assert caught.value.code == 2
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert len(err) < 1000


@pytest.mark.parametrize(
    ("arguments", "kind", "message"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_the_api_raises_an_error_that_says_what_was_wrong(
    files: Path, arguments: list[str], kind: type[Error], message: str
) -> None:
    image, prompt, *pairs = _places(files, arguments)
    named = {pairs[i][2:].replace("-", "_"): pairs[i + 1] for i in range(0, len(pairs), 2)}
    parts = {name: named.pop(name) for name in ("model", "drafter", "acceptance") if name in named}
    options: Any = {
        name: int(value) if name in ("top_k", "max_new_tokens") else value if name == "stop" else float(value)
        for name, value in named.items()
    }
    with pytest.raises(kind, match=message) as caught:
        mmspec.load(**parts)(image, prompt, **options)
    assert "\n" not in str(caught.value)


CALLS: dict[str, tuple[Callable[[mmspec.Pipeline], Any], str]] = {
    "prompt type": (lambda pipe: pipe(RED, 7), "prompt must be a text, a chat or a list of them, not int"),
    "no prompt": (lambda pipe: pipe(RED), "the prompt is empty"),
    "no prompts": (lambda pipe: pipe(RED, []), "the list of prompts is empty"),
    "empty in a list": (lambda pipe: pipe(None, ["why", ""]), "prompt 1 is empty"),
    "surrogate": (lambda pipe: pipe(RED, "\ud800"), "not valid Unicode"),
    "one image, two prompts": (lambda pipe: pipe(RED, ["a", "b"]), "image must be a list of 2 items"),
    "three images, two prompts": (lambda pipe: pipe([RED] * 3, ["a", "b"]), "2 prompts came with 3 images"),
    "image type": (lambda pipe: pipe(3.5, "why"), "an image must be"),
    "unknown option": (lambda pipe: pipe(RED, "why", temprature=1), "did you mean 'temperature'"),
    "unknown keyword of load": (
        lambda pipe: mmspec.load(pipe.folder, revision="x"),  # type: ignore[call-arg]
        "^unknown option 'revision'; known: acceptance, .*, shape$",
    ),
    "option of a call": (
        lambda pipe: mmspec.load(pipe.folder, temperature=1.0),  # type: ignore[call-arg]
        "unknown option 'temperature'.*; temperature belongs to the call: pipe",
    ),
    "misspelt": (lambda pipe: mmspec.load("no-model", draftr="none"), "mean 'drafter'"),  # type: ignore[call-arg]
    "unknown keyword of generate": (lambda _: mmspec.generate(RED, "why", model="gone", sed=1), "did you mean 'seed'"),
    "keyword of load": (
        lambda _: mmspec.generate(RED, "why", model="gone", dtype="float32"),
        "unknown option 'dtype'.*; dtype belongs to load",
    ),
    "seed": (lambda pipe: pipe(RED, "why", seed=1.5), "seed=1.5 is not valid"),
    "huge": (lambda pipe: pipe(RED, "why", temperature=10**400), "temperature=10+[.]+0 is not valid"),
    "huge guidance": (lambda pipe: guidance_scale(10**400, None), "guidance=10+[.]+0 is not valid"),
    "huge draft": (lambda pipe: mmspec.Shape(8, 8, 20_000), "of 20000 nodes is not possible: 4096 are the most"),
    "budget type": (lambda pipe: pipe(RED, "why", max_new_tokens=2.0), "max_new_tokens=2.0 is not valid"),
    "stop type": (lambda pipe: pipe(RED, "why", stop=5), "stop=5 is not valid"),
    "no ids": (lambda pipe: pipe.generate(max_new_tokens=3), r"input_ids must be a tensor \[B, T\]"),
    "list of ids": (lambda pipe: pipe.generate(input_ids=[[1, 2]]), r"input_ids must be a tensor \[B, T\]"),
    "unknown id": (lambda pipe: pipe.generate(input_ids=torch.tensor([[1, 300]])), "the model knows ids 0 to 299"),
    "negative id": (lambda pipe: pipe.generate(input_ids=torch.tensor([[-1]])), "input_ids hold -1"),
    "hf option": (
        lambda pipe: pipe.generate(input_ids=torch.ones(1, 3).long(), num_beams=2),
        "unknown input 'num_beams'",
    ),
    "do_sample": (
        lambda pipe: pipe.generate(input_ids=torch.ones(1, 3).long(), do_sample=False),
        "unknown input 'do_sample'.*temperature=0 is greedy",
    ),
    "own input": (lambda pipe: pipe.generate(input_ids=torch.ones(1, 3).long(), use_cache=False), "unknown input"),
    "mask": (
        lambda pipe: pipe.generate(input_ids=torch.ones(1, 3).long(), attention_mask=torch.ones(1, 2)),
        "attention_mask must be",
    ),
    "empty row": (
        lambda pipe: pipe.generate(input_ids=torch.ones(1, 3).long(), attention_mask=torch.zeros(1, 3)),
        "a prompt is empty",
    ),
    "voice of tensors": (
        lambda pipe: pipe.generate(input_ids=torch.ones(1, 3).long(), voice="high"),
        "voice is for prompts",
    ),
    "drafter type": (lambda pipe: pipe.with_drafter(5), "drafter must be a name"),
    "drafter model": (
        lambda pipe: pipe.with_drafter(pipe.target.model),
        "not SmolVLMForConditionalGeneration: save the model and pass its folder",
    ),
    "drafter of another family": (lambda pipe: pipe.with_drafter("gemma3-mini"), "has a vocabulary of 1548 ids"),
    "drafter class": (lambda pipe: pipe.with_drafter(Independent), "drafter must be a name.*not the class Independent"),
    "model type": (lambda _: mmspec.load(5), "model must be a name"),
    "no head": (lambda pipe: mmspec.load(pipe.target.model.model, processor=pipe.processor), "no language-model head"),
    "tokenizer": (
        lambda pipe: mmspec.load(pipe.target.model, processor=pipe.processor.tokenizer),
        "sees: pass its processor",
    ),
    "processor's name": (
        lambda pipe: mmspec.load(pipe.target.model, processor="some/where"),
        "a loaded processor or tokenizer, not its name",
    ),
    "meta": (lambda pipe: mmspec.load(pipe.target.model.to("meta"), processor=pipe.processor), "weights lie on meta"),
    "device without numbers": (lambda pipe: mmspec.load(pipe.folder, device="meta"), "device='meta' cannot be used"),
    "truth values": (lambda pipe: pipe.generate(torch.ones(1, 3).bool()), r"input_ids must be a tensor \[B, T\]"),
    "complex ids": (lambda pipe: pipe.generate(torch.ones(1, 3) * 1j), r"input_ids must be a tensor \[B, T\]"),
    "unsigned ids": (lambda pipe: pipe.generate(torch.ones(1, 3).to(torch.uint16)), "input_ids must be a tensor"),
    "sparse ids": (lambda pipe: pipe.generate(torch.ones(1, 3).long().to_sparse()), "input_ids must be a tensor"),
    "ids without numbers": (lambda pipe: pipe.generate(torch.ones(1, 3, dtype=int, device="meta")), "input_ids must"),
    "dtype": (lambda pipe: mmspec.load(pipe.folder, dtype="float31"), "dtype='float31' is not valid"),
    "device": (lambda pipe: mmspec.load(pipe.folder, device="abacus"), "device='abacus' cannot be used"),
}


@pytest.mark.parametrize(("call", "message"), CALLS.values(), ids=CALLS)
def test_a_wrong_call_is_one_error(files: Path, call: Callable[[mmspec.Pipeline], Any], message: str) -> None:
    with pytest.raises(Error, match=message) as caught:
        call(mmspec.load(files / "model"))
    assert "\n" not in str(caught.value)


EARLY: dict[str, tuple[str, list[str], dict[str, Any], str]] = {
    "empty prompt": ("no-weights", ["@red.png", " "], {}, "the prompt is empty"),
    "missing picture": ("no-weights", ["@gone.png", "why"], {}, "gone.png' does not exist"),
    "temperature": ("no-weights", ["@red.png", "why"], {"temperature": -1.0}, "temperature=-1.0 is not valid"),
    "budget": ("no-weights", ["@red.png", "why"], {"max_new_tokens": 0}, "max_new_tokens=0 is not valid"),
    "answers": ("no-weights", ["@red.png", "why"], {"n": 0}, "n=0 is not valid"),
    "guidance": ("no-weights", ["@red.png", "why"], {"guidance": 2.0}, "guidance is not an option of SmolVLM"),
    "voice": ("no-weights", ["@red.png", "why"], {"voice": "low"}, "voice is not an option of SmolVLM: leave it out"),
    "picture of a text model": ("no-weights-text", ["@red.png", "why"], {}, "does not see here: leave image out"),
}


@pytest.mark.parametrize(("model", "words", "options", "message"), EARLY.values(), ids=EARLY)
def test_a_wrong_request_is_told_before_the_weights_are_looked_for(
    files: Path,
    model: str,
    words: list[str],
    options: dict[str, Any],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    image, prompt, *_ = _places(files, words)
    with pytest.raises(InputError, match=message):
        mmspec.generate(image, prompt, model=files / model, **options)
    told = [text for name, value in options.items() for text in (f"--{name.replace('_', '-')}", str(value))]
    monkeypatch.setattr(sys, "argv", ["mmspec", "generate", image, prompt, "--model", str(files / model), *told])
    with pytest.raises(SystemExit):
        cli.main()
    assert re.search(message, capfd.readouterr().err)


VOICED = {
    f"speech/{name}"
    for name in ("valle", "whisper", "voxtral", "qwen2-audio", "qwen3-asr", "audio-flamingo-3", "glm-asr")
}


@pytest.mark.parametrize("key", BUILTIN["targets"])
def test_pictures_and_voices_are_refused_by_the_class_alone_where_none_are_taken(key: str) -> None:
    """So a request is wrong before weights are fetched, and no family has to say so itself."""
    modality, _, name = key.partition("/")
    family: Any = resolve("targets", name, modality)
    if modality == "vlm":
        assert check_request(family, RED, "why", {}) == ([RED], "why")
    else:
        with pytest.raises(InputError, match=f"{family.__name__} does not see here: leave image out"):
            check_request(family, RED, "why", {})
    if key in VOICED:
        check_request(family, None, "why", {"voice": "low"})
    else:
        with pytest.raises(InputError, match=f"voice is not an option of {family.__name__}: leave it out"):
            check_request(family, None, "why", {"voice": "low"})


@pytest.mark.parametrize("place", [(), ("text_config",)])
@pytest.mark.parametrize("method", ["awq", "bitsandbytes", "compressed-tensors", "fp8", None])
def test_quantised_weights_are_refused_by_the_configuration_alone(
    files: Path, method: str | None, place: tuple[str, ...], tmp_path: Path
) -> None:
    config = json.loads((files / "model" / "config.json").read_text())
    part = config[place[0]] if place else config
    part["quantization_config"] = {"quant_method": method} if method else {"load_in_4bit": True}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedError, match=rf"quantised weights \({method or '.*'}\), which are not served: take"):
        mmspec.load(tmp_path)
    part["quantization_config"] = {"quant_method": "mxfp4"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="holds no weights"):  # transformers makes plain ones of these
        mmspec.load(tmp_path)


def test_none_is_as_good_as_not_given(files: Path) -> None:
    pipe = mmspec.load(files / "model")
    some = pipe(RED, "why", max_new_tokens=4, seed=None, stop=None, n=None, temperature=None, guidance=None)
    assert some.token_ids == pipe(RED, "why", max_new_tokens=4).token_ids
    assert len(pipe(RED, "why", max_new_tokens=None).token_ids) > 4


def test_a_pipeline_works_on_after_an_error(files: Path) -> None:
    pipe = mmspec.load(files / "model")
    before = pipe(RED, "why", max_new_tokens=4).token_ids
    with pytest.raises(InputError):
        pipe(RED, "why " * 300)
    assert pipe(RED, "why", max_new_tokens=4).token_ids == before


def fill_gpu() -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


def fill_cpu() -> None:
    torch.empty(10**15)


def test_a_model_that_the_device_cannot_hold_is_one_error(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transformers.PreTrainedModel.to", lambda *_: fill_gpu())
    with pytest.raises(OutOfMemoryError, match=r"cpu has too little free memory for model \(0.0 GB\)"):
        mmspec.load(files / "model")


@pytest.mark.parametrize("exhaust", [fill_gpu, fill_cpu])
@pytest.mark.parametrize("forwards", [1, 3], ids=["prefill", "round"])
def test_a_request_that_ran_out_of_memory_is_one_error_and_the_next_one_works(
    files: Path, forwards: int, exhaust: Callable[[], None]
) -> None:
    """A target whose forward raises what torch raises, once. A stream that ended so is not taken for an answer."""
    pipe, left = mmspec.load(files / "model", "none"), forwards

    def fill(*_: Any) -> None:
        nonlocal left
        left -= 1
        if not left:
            exhaust()

    before = pipe(RED, "why", max_new_tokens=6).token_ids
    hook = pipe.target.model.register_forward_pre_hook(fill)
    stream = pipe.stream(RED, "why", max_new_tokens=6)
    for ask in (lambda: list(stream), stream.finish, lambda: next(stream)):
        message = r"cpu ran out of memory with a batch of 1, max_new_tokens=6 and torch.float32: take a smaller batch"
        with pytest.raises(OutOfMemoryError, match=message) as caught:
            ask()
        assert caught.value.__context__ is None  # which would keep the request's tensors
    assert pipe(RED, "why", max_new_tokens=6).token_ids == before
    hook.remove()


def test_another_failure_of_a_forward_is_not_taken_for_too_little_memory(files: Path) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("shapes do not fit")

    pipe = mmspec.load(files / "model", "none")
    hook = pipe.target.model.register_forward_pre_hook(fail)
    with pytest.raises(RuntimeError, match="shapes do not fit") as caught:
        pipe(RED, "why", max_new_tokens=2)
    assert not isinstance(caught.value, Error)
    hook.remove()


@pytest.fixture(scope="module")
def pipe(files: Path) -> Any:
    """What can be asked."""
    return mmspec.load(files / "model")


@pytest.mark.parametrize("name", ["valle-mini", "mar-mini"])
def test_a_model_of_another_kind_is_no_drafter(files: Path, name: str) -> None:
    with pytest.raises(MismatchError, match=f"holds a mmspec-{name[:-5]} model, which cannot draft for SmolVLM"):
        mmspec.load(files / "model", bundled()[name])


def test_a_shape_may_be_a_text(pipe: Any) -> None:
    told = mmspec.load(pipe.target.model, "prompt-lookup", shape="3", processor=pipe.processor)
    assert (
        told.control
        == mmspec.load(pipe.target.model, "prompt-lookup", shape=mmspec.Shape(3), processor=pipe.processor).control
    )
    with pytest.raises(InputError, match="shape 'wide' is not valid"):
        mmspec.load(pipe.target.model, "prompt-lookup", shape="wide", processor=pipe.processor)


def test_numbers_of_numpy_are_numbers(pipe: Any) -> None:
    plain = pipe(prompt="red", seed=3, temperature=0.5, top_k=5, max_new_tokens=4, n=2)
    asked: Any = {"seed": np.int64(3), "temperature": np.float32(0.5), "top_k": np.int32(5),
                  "max_new_tokens": np.int64(4), "n": np.uint8(2)}  # fmt: skip
    assert [one.token_ids for one in pipe(prompt="red", **asked)] == [one.token_ids for one in plain]
    with pytest.raises(InputError, match="top_k"):
        pipe(prompt="red", top_k=np.float32(5))
    with pytest.raises(InputError, match="seed"):
        pipe(prompt="red", seed=True)


def test_a_text_in_the_place_of_the_picture_is_told_so(pipe: Any) -> None:
    with pytest.raises(InputError, match="pictures come first: pass prompt='What is shown\\?'"):
        pipe("What is shown?")
    for image in ("photo.png", "https://example.com/photo", ""):
        with pytest.raises(InputError, match="the prompt is empty"):
            pipe(image)


@pytest.mark.parametrize(
    ("option", "told"),
    [
        ({"do_sample": True}, "temperature=0 is greedy"),
        ({"max_length": 9}, "max_new_tokens counts the new tokens alone"),
        ({"drafter": "eagle2"}, "drafter belongs to load"),
        ({"shape": "own"}, r"shape belongs to load: load\(model, shape=...\)"),
        ({"audio": "a.wav"}, "voice takes it"),
    ],
)
def test_options_of_elsewhere_are_told_where_they_belong(pipe: Any, option: dict[str, Any], told: str) -> None:
    with pytest.raises(UnknownNameError, match=told):
        pipe(prompt="red", **option)
