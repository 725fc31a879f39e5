"""Sound in files and in codes: WAV files of every width, text as it is spoken, the codec's shapes and its alignment."""

import struct
import wave
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import tiny_speech as tiny
import torch
from hypothesis import given
from hypothesis import strategies as st

from mmspec.errors import InputError
from mmspec.speech import audio as audio_module
from mmspec.speech import codec as codec_module
from mmspec.speech.audio import Audio, read_audio, resampled
from mmspec.speech.chunks import AFTER, BEFORE, FIRST, SIZE, Chunks
from mmspec.speech.codec import MelCodec, MelCodecConfig
from mmspec.speech.text import CHARACTERS, make_tokenizer, spoken


def wav_bytes(samples: np.ndarray, width: int, channels: int = 1, rate: int = 8000) -> bytes:
    whole = np.round(samples * (2 ** (8 * width - 1) - 1)).astype(np.int64)
    if width == 1:
        data = (whole + 128).astype(np.uint8).tobytes()
    else:
        data = b"".join(struct.pack("<q", value)[:width] for value in whole.tolist())
    file = BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(channels)
        out.setsampwidth(width)
        out.setframerate(rate)
        out.writeframes(data)
    return file.getvalue()


def wide(width: int) -> bytes:
    """A header that declares samples of `width` bytes, which `wave` reads and does not write."""
    data = bytearray(wav_bytes(np.zeros(40), 4))
    data[32:36] = struct.pack("<HH", width, 8 * width)
    return bytes(data)


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_every_width_of_sample_is_read(width: int) -> None:
    samples = np.linspace(-0.9, 0.9, 101)
    read = read_audio(wav_bytes(samples, width))
    assert read.rate == 8000
    assert np.abs(read.samples - samples).max() <= 1.5 / 2 ** (8 * width - 1) + 1e-6


def test_channels_are_averaged() -> None:
    samples = np.array([0.5, -0.5, 0.25, 0.75])
    assert np.allclose(read_audio(wav_bytes(samples, 2, channels=2)).samples, [0.0, 0.5], atol=1e-4)


def test_a_file_gives_back_what_was_saved(tmp_path: Path) -> None:
    audio = tiny.voice(0.5)
    read = read_audio(audio.save(tmp_path / "a.wav"))
    assert read.rate == audio.rate
    assert np.abs(read.samples - audio.samples).max() < 1e-4
    assert [path.name for path in tmp_path.iterdir()] == ["a.wav"]


def test_what_is_too_loud_is_cut_not_wrapped() -> None:
    read = read_audio(Audio(np.array([3.0, -3.0, 0.0], np.float32), 8000).wav())
    assert np.allclose(read.samples, [1, -1, 0], atol=1e-3)


def test_a_file_that_ends_early_is_read_as_far_as_it_goes() -> None:
    whole = wav_bytes(np.linspace(-0.5, 0.5, 1000), 2)
    assert 480 <= len(read_audio(whole[:1045]).samples) <= 501


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (b"", "not a WAV file"),
        (b"\x00" * 500, "not a WAV file"),
        ("nowhere.wav", "no audio file"),
        (3, "not int"),
        (Audio(np.zeros(0, np.float32), 8000), "holds no sound"),
        (Audio(np.zeros((2, 5), np.float32), 8000), "one channel"),
        (Audio(np.zeros(5, np.int16), 8000), "floating-point"),
        (Audio(np.zeros(5, np.float32), 8000.5), "rate 8000.5"),  # type: ignore[arg-type]
        (wav_bytes(np.zeros(0), 2), "holds no sound"),
        (wav_bytes(np.zeros(9), 2, rate=300_000), "300000 samples per second"),
        (wide(5), "samples of 40 bits; 8, 16, 24 or 32 are read"),
        (wide(8), "samples of 64 bits"),
    ],
    ids=str,
)
def test_what_is_no_sound_is_refused(source: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_audio(source)


@pytest.mark.parametrize("told", [0xFFFFFFFF, 0x7FFFF000], ids=["ffmpeg", "sox"])
def test_a_header_that_was_written_before_the_length_was_known_is_not_believed(told: int, tmp_path: Path) -> None:
    samples = np.linspace(-0.5, 0.5, 100)
    data = bytearray(wav_bytes(samples, 2))
    data[40:44] = struct.pack("<I", told)
    data[4:8] = struct.pack("<I", min(told + 36, 0xFFFFFFFF))
    (tmp_path / "piped.wav").write_bytes(data)
    for source in (bytes(data), tmp_path / "piped.wav"):
        assert np.abs(read_audio(source).samples - samples).max() < 1e-4


def test_of_a_file_that_is_too_long_no_more_is_read_than_may_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    read = wave.Wave_read.readframes
    monkeypatch.setattr(wave.Wave_read, "readframes", lambda file, count: asked.append(count) or read(file, count))
    monkeypatch.setattr(audio_module, "LONGEST_S", 1)
    with pytest.raises(InputError, match="too long: at most 1 s are read"):
        read_audio(wav_bytes(np.zeros(9000), 2))
    assert asked == [8001]
    assert read_audio(wav_bytes(np.zeros(8000), 2)).seconds == 1


def test_a_file_of_another_kind_than_plain_pcm_is_refused_with_a_way_out() -> None:
    floats = bytearray(wav_bytes(np.zeros(100), 4))
    floats[20:22] = struct.pack("<H", 3)
    with pytest.raises(InputError, match="PCM is needed, as ffmpeg -c:a pcm_s16le writes it"):
        read_audio(bytes(floats))


def test_an_unwritable_place_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "taken.wav").mkdir()
    for name, message in (
        ("no/a.wav", f"no/a.wav cannot be written: there is no folder {tmp_path / 'no'}$"),
        ("taken.wav", "taken.wav cannot be written: [A-Z][a-z ]+$"),
        ("a.mp3", "a.mp3 has the ending '.mp3': speech is written as .wav$"),
        ("a", "a has the ending ''"),
    ):
        with pytest.raises(InputError, match=message):
            tiny.voice(0.1).save(tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == ["taken.wav"]


def test_resampling_keeps_the_tone() -> None:
    low = resampled(tiny.voice(1.0, 8000, 200.0), 4000)
    assert len(low) == 4000
    spectrum = torch.fft.rfft(low).abs()
    assert abs(int(spectrum.argmax()) - 200) <= 1


@pytest.mark.parametrize("rate", [8000, 11025, 22050, 32000, 44100, 48000, 88200, 96000, 176400, 192000])
@pytest.mark.parametrize("goal", [16000, 24000])
def test_usual_rates_are_brought_to_those_of_codecs(rate: int, goal: int) -> None:
    assert len(resampled(tiny.voice(0.2, rate), goal)) == goal // 5


@pytest.mark.parametrize("rate", [191_999, 47_999])
def test_rates_whose_filter_would_fill_the_memory_are_refused(rate: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audio_module, "torchaudio", lambda: pytest.fail("it was tried"))
    with pytest.raises(InputError, match=f"{rate} samples per second cannot be brought to 16000"):
        resampled(read_audio(wav_bytes(np.zeros(100), 2, rate=rate)), 16_000)


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("Two RED circles.", "two red circles."),
        ("It is 42% of 7", "it is forty-two percent of seven"),
        ("  a \n b ", "a b"),
        ("value: 3.5!", "value: three point five!"),
        ("\u201cquoted\u201d (and more)", "quoted,and more,"),
        ("R&D", "r and d"),
        ("1,000 bars", "one thousand bars"),
        ("12,345.5", "twelve thousand, three hundred and forty-five point five"),
        (
            "3.14159265358979323",
            "three point one four one five nine two six five three five eight nine seven nine three two three",
        ),
        ("1,2 and 1,0000", "one,two and one,zero"),
    ],
)
def test_text_is_spoken_as_words(text: str, want: str) -> None:
    assert spoken(text).replace(" ,", ",").replace(", ", ",") == want.replace(", ", ",")


@pytest.mark.parametrize("text", ["", "...", "- -", "caf\u00e9", "\u4e2d", "a\x00b", "a@b"])
def test_text_that_nobody_can_pronounce_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="pronounce"):
        spoken(text)


@given(st.text(alphabet=CHARACTERS + "0123456789ABC%&", min_size=1, max_size=40))
def test_spoken_text_is_in_the_alphabet_and_stays_as_it_is(text: str) -> None:
    try:
        plain = spoken(text)
    except InputError:
        return
    assert set(plain) <= set(CHARACTERS)
    assert spoken(plain) == plain


def test_a_character_is_a_token_and_codes_are_no_text() -> None:
    tokenizer = make_tokenizer(4)
    ids = tokenizer("two's", add_special_tokens=False)["input_ids"]
    assert [tokenizer.convert_ids_to_tokens(i) for i in ids] == list("two's")
    codes = tokenizer.convert_tokens_to_ids(["<|s_0|>", "<|s_3|>"])
    assert codes == [len(tokenizer) - 4, len(tokenizer) - 1]
    assert tokenizer.decode([*ids, *codes], skip_special_tokens=True).replace(" ", "") == "two's"


def murmur(codes: torch.Tensor) -> Audio:
    """Frames of five samples that depend on as many frames before and after as chunks are decoded with."""
    sums = torch.nn.functional.pad(codes[0].float(), (BEFORE, AFTER)).unfold(0, BEFORE + 1 + AFTER, 1).sum(-1)
    return Audio(sums.repeat_interleave(5).numpy(), 100)


def test_chunks_are_the_whole_sound_into_which_the_end_of_the_one_before_fades() -> None:
    codes = torch.randint(100, (70,), generator=torch.Generator().manual_seed(0)).tolist()
    chunks = Chunks(lambda ids: ids, lambda first, known: torch.tensor([first]), murmur)
    made = [chunks.add([code], last=place == len(codes)) for place, code in enumerate(codes, 1)]
    want = murmur(torch.tensor([codes])).samples
    for end in (FIRST, FIRST + SIZE, FIRST + 2 * SIZE):
        joint = slice(5 * end, 5 * end + 5)
        before = murmur(torch.tensor([codes[: end + AFTER]])).samples[joint]
        weight = np.linspace(0, 1, 5)
        want[joint] = (1 - weight) * before + weight * want[joint]
    assert np.allclose(np.concatenate([audio.samples for audio in made if audio is not None]), want)


def codec(**changes: int) -> MelCodec:
    torch.manual_seed(0)
    values = {"rate": 4000, "n_fft": 256, "hop": 64, "mels": 20, "width": 16, "latent": 6, "codebooks": 3}
    return MelCodec(MelCodecConfig(**{**values, "codebook_size": 16, "iterations": 40, **changes})).eval()


@pytest.mark.parametrize("samples", [1, 127, 128, 129, 4000])
def test_codes_and_samples_have_the_stated_sizes(samples: int) -> None:
    model = codec()
    codes = model.encode(0.1 * torch.randn(2, samples))
    assert codes.shape == (2, 3, -(-samples // 128))
    assert model.decode(codes).shape == (2, codes.shape[-1] * 128)


def test_the_usual_codec_is_as_large_as_its_header_says() -> None:
    size = sum(weight.numel() for weight in MelCodec(MelCodecConfig()).parameters())
    assert f"{size / 1e6:.1f} M parameters" in (codec_module.__doc__ or "")


def test_decoding_is_repeatable() -> None:
    codes = torch.randint(0, 16, (1, 3, 9))
    assert torch.equal(codec().decode(codes), codec().decode(codes))


def test_each_codebook_takes_the_nearest_of_what_is_left() -> None:
    model = codec()
    latent = torch.randn(1, 6, 7)
    codes, sums = model.quantise(latent)
    rest = latent[0].T
    for k, book in enumerate(model.books):
        distance = ((rest[:, None] - book.weight[None]) ** 2).sum(-1)
        assert torch.equal(distance.argmin(-1), codes[0, k])
        rest = rest - book.weight[codes[0, k]]
    assert torch.allclose(latent[0] - sums[0, -1], rest.T, atol=1e-5)


def test_the_middle_of_a_law_is_the_code_of_least_squared_error() -> None:
    codec = tiny.processor().codec
    law = torch.rand(2, 5, codec.config.codebook_size, generator=torch.Generator().manual_seed(1)).pow(4)
    law = law / law.sum(-1, keepdim=True)
    distance = torch.cdist(codec.books[1].weight, codec.books[1].weight).square()
    assert torch.equal(codec.middle(1, law), (law @ distance).argmin(-1))
    assert not torch.equal(codec.middle(1, law), law.argmax(-1))
    certain = torch.eye(codec.config.codebook_size)[None]
    assert codec.middle(1, certain)[0].tolist() == list(range(codec.config.codebook_size))


def test_a_click_comes_back_where_it_was() -> None:
    """Frames and samples are aligned: phases are invented, but the place of the energy is not."""
    model = codec(mels=60)
    samples = torch.zeros(1, 4096)
    samples[0, 2000:2100] = torch.sin(torch.arange(100) * 0.9)
    heard = model.speak(model.log_mel(samples))[0]
    energy = heard.square().cumsum(0) / heard.square().sum()
    middle = int((energy < 0.5).sum())
    assert abs(middle - 2050) < 40
    assert heard.shape == (4096,)
