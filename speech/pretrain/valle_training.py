"""Training of the VALL-E-type model: the first codebook autoregressively, one other codebook per batch without order.

The voice of an utterance is a second of another one by the same speaker, so that nothing of what is said leaks.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import LlamaConfig, PreTrainedTokenizerFast

from mmspec.speech.pretrain.corpus import Coded
from mmspec.speech.text import END, PADDING, SPEAK, START, VOICE
from mmspec.speech.valle import Valle, ValleConfig

IGNORED = -100


@dataclass(frozen=True)
class Size:
    """Layers and widths of the two parts. context: most tokens of a prompt and its codes together."""

    layers: int = 16
    width: int = 192
    heads: int = 6
    refiner_layers: int = 3
    context: int = 1024


def new_model(tokenizer: PreTrainedTokenizerFast, codebooks: int, codes: int, size: Size, seed: int = 0) -> Valle:
    """A model with new weights."""
    ids = {token: tokenizer.convert_tokens_to_ids(token) for token in (PADDING, START, VOICE, SPEAK, END)}

    def llama(layers: int) -> LlamaConfig:
        return LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=size.width,
            intermediate_size=(size.width * 8 // 3 + 7) // 8 * 8,
            num_hidden_layers=layers,
            num_attention_heads=size.heads,
            num_key_value_heads=size.heads,
            max_position_embeddings=size.context,
            initializer_range=0.04,
            tie_word_embeddings=False,
            bos_token_id=ids[START],
            eos_token_id=ids[END],
            pad_token_id=ids[PADDING],
        )

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Valle(
            ValleConfig(
                text_config=llama(size.layers),
                refiner_config=llama(size.refiner_layers),
                codebooks=codebooks,
                codebook_size=codes,
                first_code=ids[END] + 1,
                voice_token_id=ids[VOICE],
                speak_token_id=ids[SPEAK],
            )
        )
        with torch.no_grad():
            for layer in (*model.speaker.model.layers, *model.refiner.layers.layers):  # as deep, as quiet at first
                for weight in (layer.self_attn.o_proj.weight, layer.mlp.down_proj.weight):
                    weight.mul_((2 * size.layers) ** -0.5)
    model.generation_config.eos_token_id, model.generation_config.pad_token_id = ids[END], ids[PADDING]
    return model


class ValleLoss:
    """The loss of a batch: AR cross-entropy plus that of one refined codebook.

    Args: corpus: for the voices. frames: of a voice.
    """

    def __init__(self, model: Valle, tokenizer: PreTrainedTokenizerFast, corpus: list[Coded], frames: int) -> None:
        self.model, self.tokenizer, self.frames = model, tokenizer, frames
        self.by_speaker: dict[int, list[Coded]] = {}
        for one in corpus:
            if one.codes.shape[1] >= frames:
                self.by_speaker.setdefault(one.speaker, []).append(one)

    def __call__(self, position: Tensor, rows: list[Coded]) -> Tensor:
        """A scalar. position: [B] of the samples in the run, the source of all that is random here."""
        voices = [self.voice(row, int(place)) for row, place in zip(rows, position, strict=True)]
        texts = [torch.tensor(self.tokenizer(row.text, add_special_tokens=False)["input_ids"]) for row in rows]
        stage = random.Random(f"stage/{int(position[0])}").randrange(1, self.model.config.codebooks)
        return self.spoken(texts, voices, rows) + self.refined(texts, voices, rows, stage)

    def voice(self, row: Coded, position: int) -> Tensor:
        """[K, frames] of another utterance by the same speaker (of the same one, if there is no other)."""
        rng = random.Random(f"voice/{position}")
        others = self.by_speaker.get(row.speaker) or [row]
        chosen = rng.choice(others)
        if chosen is row and len(others) > 1:
            chosen = others[(others.index(row) + 1) % len(others)]
        start = rng.randrange(max(1, chosen.codes.shape[1] - self.frames + 1))
        return chosen.codes[:, start : start + self.frames]

    def spoken(self, texts: list[Tensor], voices: list[Tensor], rows: list[Coded]) -> Tensor:
        """Cross-entropy of the first codebook and END, over the whole vocabulary: text learns never to be said."""
        config = self.model.config
        start = config.text_config.bos_token_id
        inputs, labels = [], []
        for text, voice, row in zip(texts, voices, rows, strict=True):
            prompt = [
                torch.tensor([start]), text, torch.tensor([config.voice_token_id]),
                config.first_code + voice[0], torch.tensor([config.speak_token_id]),
            ]  # fmt: skip
            answer = torch.cat([config.first_code + row.codes[0], torch.tensor([config.first_code - 1])])
            whole = torch.cat([*prompt, answer])
            inputs.append(whole[:-1])
            labels.append(torch.where(torch.arange(len(whole) - 1) >= len(whole) - 1 - len(answer), whole[1:], IGNORED))
        logits = self.model.speaker(input_ids=pad_sequence(inputs, batch_first=True), use_cache=False).logits
        return F.cross_entropy(
            logits.flatten(0, 1), pad_sequence(labels, True, IGNORED).flatten(), ignore_index=IGNORED
        )

    def refined(self, texts: list[Tensor], voices: list[Tensor], rows: list[Coded], stage: int) -> Tensor:
        """Cross-entropy of codebook `stage`, given the true ones before it."""
        text, voice = pad_sequence(texts, batch_first=True), torch.stack(voices)
        codes = pad_sequence([row.codes.T for row in rows], batch_first=True).transpose(1, 2)  # [B, K, F]
        lengths = torch.tensor([row.codes.shape[1] for row in rows])
        known = torch.arange(codes.shape[2]) < lengths[:, None]
        written = torch.arange(text.shape[1]) < torch.tensor([len(one) for one in texts])[:, None]
        real = torch.cat([written, torch.ones(len(rows), voice.shape[2], dtype=torch.bool), known], 1)
        logits = self.model.refiner(text, voice, codes, stage, real)
        return F.cross_entropy(logits[known], codes[:, stage][known])


@torch.no_grad()
def gauge(model: Valle, loss: ValleLoss, held_out: list[Coded]) -> dict[str, float]:
    """What the model knows of held-out utterances: nats per code, and the mean probability of the likeliest code.

    The second is the gauge of how predictable this little world is: real models have about 0.25.
    """
    nats, tops, total = 0.0, 0.0, 0
    config = model.config
    for place, row in enumerate(held_out):
        voice = loss.voice(row, place)
        text = torch.tensor(loss.tokenizer(row.text, add_special_tokens=False)["input_ids"])
        answer = config.first_code + row.codes[0]
        prompt = [torch.tensor([config.text_config.bos_token_id]), text, torch.tensor([config.voice_token_id]),
                  config.first_code + voice[0], torch.tensor([config.speak_token_id])]  # fmt: skip
        logits = model(input_ids=torch.cat([*prompt, answer])[None, :-1], use_cache=False).logits[0, -len(answer) :]
        law = logits.float().softmax(-1)
        nats -= float(law.gather(1, answer[:, None]).clamp(min=1e-30).log().sum())
        tops += float(law.amax(-1).sum())
        total += len(answer)
    return {"nats_per_code": nats / total, "mean_top_probability": tops / total}
