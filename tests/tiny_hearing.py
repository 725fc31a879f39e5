"""Tiny random language models that hear, with their stock processors, built offline.

`build(name)` gives a model and a processor that fit. Windows are two seconds long instead of thirty, mel bands few.
"""

import base64
import json
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import tiny_speech
import tiny_vision
from transformers import (
    AudioFlamingo3Config,
    AudioFlamingo3ForConditionalGeneration,
    AudioFlamingo3Processor,
    GlmAsrConfig,
    GlmAsrForConditionalGeneration,
    GlmAsrProcessor,
    PreTrainedModel,
    Qwen2AudioConfig,
    Qwen2AudioForConditionalGeneration,
    Qwen2AudioProcessor,
    Qwen3ASRConfig,
    Qwen3ASRFeatureExtractor,
    Qwen3ASRForConditionalGeneration,
    Qwen3ASRProcessor,
    VoxtralConfig,
    VoxtralForConditionalGeneration,
    VoxtralProcessor,
    WhisperFeatureExtractor,
)

from mmspec.speech.audio import Audio

RATE, WINDOW_S, MELS = 16_000, 2, 8
KEPT = TemporaryDirectory()  # mistral-common copies the file that a tokenizer came from where that is saved
WINDOW = {"feature_size": MELS, "chunk_length": WINDOW_S}
TOWER = {"num_mel_bins": MELS, "num_hidden_layers": 1, "num_attention_heads": 2}

LOW, HIGH, LONG = (
    tiny_speech.voice(seconds, rate=RATE, pitch=pitch) for seconds, pitch in ((1.2, 90.0), (0.7, 300.0), (1.9, 170.0))
)
SOUNDS: list[Audio] = [LOW, HIGH, LONG]


finish = partial(tiny_vision.finish, parts=("audio_tower", "projector"))
"""See `tiny_vision.finish`: every recording is another to the model."""


def decoder(words: Any, model_type: str, **changes: Any) -> dict[str, Any]:
    """The configuration of a decoder over these tokens, with room for recordings."""
    return tiny_vision.text(words, model_type, max_position_embeddings=512, **changes)


def template(slot: str, first: str = "") -> str:
    """A chat template in which a recording is `slot` where it stands, and a turn with any has `first` before its texts;
    an answer may have begun."""
    return (
        "<|im_start|>{% for message in messages %}{% if message['role'] == 'assistant' %}Assistant:{% else %}User:"
        "{% endif %}{% if message['content'] | selectattr('type', 'equalto', 'audio') | list %}"
        f"{first}{{% endif %}}{{% for part in message['content'] %}}"
        f"{{% if part['type'] == 'audio' %}}{slot}{{% else %}}{{{{ part['text'] }}}}{{% endif %}}"
        "{% endfor %}{% if message['role'] != 'assistant' %}<end_of_utterance>\n{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}Assistant:{% endif %}"
    )


NAMES = (
    "<unk> <s> </s> [INST] [/INST] [AVAILABLE_TOOLS] [/AVAILABLE_TOOLS] [TOOL_RESULTS] [/TOOL_RESULTS] [TOOL_CALLS] "
    "[IMG] <pad> [IMG_BREAK] [IMG_END] [PREFIX] [MIDDLE] [SUFFIX] [SYSTEM_PROMPT] [/SYSTEM_PROMPT] [TOOL_CONTENT] "
    "<20> <21> <22> <23> [AUDIO] [BEGIN_AUDIO] <26> <27> <28> <29> <30> <31> [ARGS] [CALL_ID] [TRANSCRIBE]"
)
CONTROL = NAMES.split()
"""The first tokens of a Voxtral checkpoint; bytes come next."""


def tekken(folder: Path, window_s: float = WINDOW_S) -> None:
    """Write the tokenizer of a Voxtral checkpoint that knows no words, with its control tokens at their places."""
    upper, lower, marks = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]", r"[^\r\n\p{L}\p{N}]?"
    runs = [rf"{marks}{upper}*{lower}+", rf"{marks}{upper}+{lower}*", r"\p{N}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*"]
    sizes = {"num_vocab_tokens": 256, "default_vocab_size": len(CONTROL) + 256}
    sizes["default_num_special_tokens"] = len(CONTROL)
    told = {
        "config": {"pattern": "|".join([*runs, r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"]), "version": "v7", **sizes},
        "vocab": [
            {"rank": rank, "token_bytes": base64.b64encode(bytes([rank])).decode(), "token_str": None}
            for rank in range(256)
        ],
        "special_tokens": [
            {"rank": rank, "token_str": token, "is_control": True} for rank, token in enumerate(CONTROL)
        ],
        "audio": {
            "sampling_rate": RATE,
            "frame_rate": 12.5,
            "audio_encoding_config": {"num_mel_bins": MELS, "hop_length": 160, "window_size": 400},
            "chunk_length_s": window_s,
        },
    }
    (folder / "tekken.json").write_text(json.dumps(told))


def voxtral(seed: int) -> tuple[PreTrainedModel, Any]:
    """25 slots for each window."""
    tower = {**TOWER, "model_type": "voxtral_encoder", "hidden_size": 32, "intermediate_size": 128}
    tekken(Path(KEPT.name))
    WhisperFeatureExtractor(**WINDOW).save_pretrained(KEPT.name)
    VoxtralConfig(audio_token_id=24).save_pretrained(KEPT.name)
    processor = VoxtralProcessor.from_pretrained(KEPT.name)
    config = VoxtralConfig(
        audio_config={**tower, "max_source_positions": 50 * WINDOW_S},
        text_config={**decoder(range(len(CONTROL) + 256), "llama"), "bos_token_id": 1, "pad_token_id": 11},
        audio_token_id=24,
    )
    return finish(VoxtralForConditionalGeneration, config, seed), processor


def qwen2_audio(seed: int) -> tuple[PreTrainedModel, Any]:
    """As many slots as there is sound, up to 50; the processor's own chat template."""
    words = tiny_vision.tokenizer(
        audio_token="<|AUDIO|>", audio_bos_token="<|audio_bos|>", audio_eos_token="<|audio_eos|>"
    )
    tower = {"model_type": "qwen2_audio_encoder", "num_mel_bins": MELS, "encoder_layers": 1, "d_model": 32}
    config = Qwen2AudioConfig(
        audio_config={**tower, "encoder_attention_heads": 2, "encoder_ffn_dim": 64, "max_source_positions": 100},
        text_config=decoder(words, "qwen2"),
        audio_token_index=words.audio_token_id,
    )
    processor = Qwen2AudioProcessor(WhisperFeatureExtractor(**WINDOW), words)
    return finish(Qwen2AudioForConditionalGeneration, config, seed), processor


def qwen3_asr(seed: int) -> tuple[PreTrainedModel, Any]:
    """13 slots for each second; attention in the encoder over two of them."""
    marks = {"audio_token": "<|audio_pad|>", "audio_bos_token": "<|audio_start|>", "audio_eos_token": "<|audio_end|>"}
    words = tiny_vision.tokenizer(**marks)
    tower = {"model_type": "qwen3_asr_encoder", "num_mel_bins": MELS, "encoder_layers": 1, "d_model": 32}
    tower |= {"encoder_attention_heads": 2, "encoder_ffn_dim": 64, "n_window_infer": 200}
    config = Qwen3ASRConfig(
        audio_config={**tower, "downsample_hidden_size": 8, "output_dim": 32},
        text_config=decoder(words, "qwen3", head_dim=8),
        audio_token_id=words.audio_token_id,
        pad_token_id=words.pad_token_id,
        tie_word_embeddings=False,
    )
    slot = "<|audio_start|><|audio_pad|><|audio_end|>"
    listening = Qwen3ASRFeatureExtractor(feature_size=MELS, min_length=800)
    processor = Qwen3ASRProcessor(listening, words, chat_template=template(slot))
    return finish(Qwen3ASRForConditionalGeneration, config, seed), processor


def audio_flamingo(seed: int) -> tuple[PreTrainedModel, Any]:
    """As many slots as there is sound, up to 50 for each window; as published, a recording comes first in its turn."""
    words = tiny_vision.tokenizer(audio_token="<sound>")
    tower = {**TOWER, "model_type": "audioflamingo3_encoder", "hidden_size": 32, "intermediate_size": 64}
    config = AudioFlamingo3Config(
        audio_config={**tower, "max_source_positions": 50 * WINDOW_S},
        text_config=decoder(words, "qwen2"),
        audio_token_id=words.audio_token_id,
    )
    listening = WhisperFeatureExtractor(**WINDOW)
    processor = AudioFlamingo3Processor(listening, words, chat_template=template("", "<sound>"), max_audio_len=5)
    return finish(AudioFlamingo3ForConditionalGeneration, config, seed), processor


def glm_asr(seed: int) -> tuple[PreTrainedModel, Any]:
    """As many slots as there is sound, up to 25 for each window; rotary positions in the encoder."""
    words = tiny_vision.tokenizer(audio_token="<|pad|>")
    tower = {**TOWER, "model_type": "glmasr_encoder", "hidden_size": 32, "intermediate_size": 128}
    config = GlmAsrConfig(
        audio_config=tower,
        text_config=decoder(words, "llama"),
        audio_token_id=words.audio_token_id,
        tie_word_embeddings=False,
    )
    listening = WhisperFeatureExtractor(**WINDOW)
    processor = GlmAsrProcessor(listening, words, chat_template=template("<|pad|>"), max_audio_len=5)
    return finish(GlmAsrForConditionalGeneration, config, seed), processor


MAKERS: dict[str, Callable[[int], tuple[PreTrainedModel, Any]]] = {
    "voxtral": voxtral,
    "qwen2-audio": qwen2_audio,
    "qwen3-asr": qwen3_asr,
    "audio-flamingo-3": audio_flamingo,
    "glm-asr": glm_asr,
}


@cache
def build(name: str) -> tuple[PreTrainedModel, Any]:
    """The model of a family, float64, and its processor. They are shared: leave them as they are."""
    return MAKERS[name](0)
