"""Training of the VALL-E-type model: the first codebook autoregressively, the others without order.

The voice of an utterance is a second of another one by the same speaker, so that nothing of what is said leaks.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import LlamaConfig, PreTrainedTokenizerFast

from mmspec.pretrain.growth import quiet
from mmspec.pretrain.pointing import NAME as WATCHED
from mmspec.pretrain.pointing import Watch, pointing_loss, reading_layers
from mmspec.sampling import Sampling, warp
from mmspec.speech.pretrain.corpus import Coded
from mmspec.speech.text import END, PADDING, SPEAK, START, VOICE
from mmspec.speech.valle import Valle, ValleConfig

IGNORED = -100
WARPERS: dict[str, Any] = {"temperature": 1.0, "top_k": 50, "top_p": 0.94}
"""How a finished model samples unless it is told otherwise."""
READ_WEIGHT = 0.2
NEAR = 0.04
"""Share of a text on either side of where a code is taught to look: speech is about even."""


@dataclass(frozen=True)
class Size:
    """Layers and widths of the two parts. deep: layers of the decoder in the end, after it started with `layers`.
    context: most tokens of a prompt and its codes together."""

    layers: int = 8
    deep: int = 16
    width: int = 192
    heads: int = 6
    refiner_layers: int = 3
    context: int = 1024

    @classmethod
    def of(cls, model: Valle) -> Size:
        """Of a finished model."""
        text = model.config.text_config
        return cls(
            text.num_hidden_layers,
            text.num_hidden_layers,
            text.hidden_size,
            text.num_attention_heads,
            model.config.refiner_config.num_hidden_layers,
            text.max_position_embeddings,
        )

    def deepest(self) -> Size:
        """Of the model in the end."""
        return replace(self, layers=self.deep)


def new_model(tokenizer: PreTrainedTokenizerFast, codebooks: int, codes: int, size: Size, seed: int = 0) -> Valle:
    """A model with new weights."""
    ids = {token: tokenizer.convert_tokens_to_ids(token) for token in (PADDING, START, VOICE, SPEAK, END)}

    def llama(layers: int, words: int) -> LlamaConfig:
        return LlamaConfig(
            vocab_size=words,
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
                text_config=llama(size.layers, len(tokenizer)),
                refiner_config=llama(size.refiner_layers, ids[END] + 1),  # codes have embeddings of their own there
                codebooks=codebooks,
                codebook_size=codes,
                first_code=ids[END] + 1,
                voice_token_id=ids[VOICE],
                speak_token_id=ids[SPEAK],
            )
        )
        quiet(model.speaker.model.layers, size.deep)
        quiet(model.refiner.layers.layers, size.refiner_layers)
    model.generation_config.eos_token_id, model.generation_config.pad_token_id = ids[END], ids[PADDING]
    return model


class ValleLoss:
    """The loss of a batch: AR cross-entropy plus the mean of that of the refined codebooks.

    Args: corpus: for the voices. frames: of a voice.
    """

    def __init__(self, model: Valle, tokenizer: PreTrainedTokenizerFast, corpus: list[Coded], frames: int) -> None:
        self.model, self.tokenizer, self.frames = model, tokenizer, frames
        model.speaker.set_attn_implementation(WATCHED)
        self.by_speaker: dict[int, list[Coded]] = {}
        for one in corpus:
            if one.codes.shape[1] >= frames:
                self.by_speaker.setdefault(one.speaker, []).append(one)

    def __call__(self, position: Tensor, rows: list[Coded]) -> Tensor:
        """A scalar. position: [B] of the samples in the run, the source of all that is random here."""
        voices = [self.voice(row, int(place)) for row, place in zip(rows, position, strict=True)]
        texts = [torch.tensor(self.tokenizer(row.text, add_special_tokens=False)["input_ids"]) for row in rows]
        return self.decoded(texts, voices, rows) + self.completed(texts, voices, rows)

    def decoded(self, texts: list[Tensor], voices: list[Tensor], rows: list[Coded]) -> Tensor:
        """Of the decoder: cross-entropy, and that its taught heads look at what is being spoken."""
        layers = reading_layers(self.model.config.text_config.num_hidden_layers)
        watch = Watch(layers, slice(1, 1 + max(map(len, texts))), 0)  # the text comes after START
        loss = self.spoken(texts, voices, rows, watch)
        right = self.about(texts, rows)
        read = torch.arange(right.shape[2]) < torch.tensor([len(text) for text in texts])[:, None, None]
        for scores in watch.scores.values():
            loss = loss + READ_WEIGHT * pointing_loss(scores.masked_fill(~read, -torch.inf), right)
        return loss

    def completed(self, texts: list[Tensor], voices: list[Tensor], rows: list[Coded]) -> Tensor:
        """Of the refiner: the mean over its codebooks."""
        stages = range(1, self.model.config.codebooks)
        return torch.stack([self.refined(texts, voices, rows, stage) for stage in stages]).mean()

    def about(self, texts: list[Tensor], rows: list[Coded]) -> Tensor:
        """Which characters are being spoken when a code is about to be: [B, tokens, characters] bool, true for some
        around the same share of the text as of the speech. END, and what is not spoken, has none."""
        ends = [self._answer(text, row) for text, row in zip(texts, rows, strict=True)]
        found = torch.zeros(len(rows), max(end for _, end in ends), max(map(len, texts)), dtype=torch.bool)
        for mine, text, (start, end) in zip(found, texts, ends, strict=True):
            spoken = torch.linspace(0, len(text) - 1, end - start - 1)[:, None]
            near = (spoken - torch.arange(len(text))).abs() <= max(1.5, NEAR * len(text))
            mine[start : end - 1, : len(text)] = near
        return found

    def _answer(self, text: Tensor, row: Coded) -> tuple[int, int]:
        """Where the inputs lie that are followed by the codes and END of a row."""
        start = len(text) + self.frames + 2
        return start, start + row.codes.shape[1] + 1

    def voice(self, row: Coded, position: int) -> Tensor:
        """[K, frames] of another utterance by the same speaker (of the same one, if there is no other)."""
        rng = random.Random(f"voice/{position}")
        others = self.by_speaker.get(row.speaker) or [row]
        chosen = rng.choice(others)
        if chosen is row and len(others) > 1:
            chosen = others[(others.index(row) + 1) % len(others)]
        start = rng.randrange(max(1, chosen.codes.shape[1] - self.frames + 1))
        return chosen.codes[:, start : start + self.frames]

    def prompt(self, text: Tensor, voice: Tensor) -> Tensor:
        """What the decoder is told before the codes of an utterance: its text, and a voice [K, frames]."""
        config = self.model.config
        ids = (config.text_config.bos_token_id, config.voice_token_id, config.speak_token_id)
        start, voiced, speak = (torch.tensor([token]) for token in ids)
        return torch.cat([start, text, voiced, config.first_code + voice[0], speak])

    def spoken(
        self, texts: list[Tensor], voices: list[Tensor], rows: list[Coded], watch: Watch | None = None
    ) -> Tensor:
        """Cross-entropy of the first codebook and END, over the whole vocabulary: text learns never to be said.

        watch: is shown who attends to what.
        """
        first = self.model.config.first_code
        inputs, labels = [], []
        for text, voice, row in zip(texts, voices, rows, strict=True):
            answer = torch.cat([first + row.codes[0], torch.tensor([first - 1])])
            whole = torch.cat([self.prompt(text, voice), answer])
            inputs.append(whole[:-1])
            labels.append(torch.where(torch.arange(len(whole) - 1) >= len(whole) - 1 - len(answer), whole[1:], IGNORED))
        ids = pad_sequence(inputs, batch_first=True)
        logits = self.model.speaker(input_ids=ids, use_cache=False, watch=watch).logits
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
    """What the model knows of held-out utterances: nats per code, and the mean probability of the likeliest code under
    the law that it samples from.

    The second is the gauge of how predictable this little world is: real models have about 0.25.
    """
    nats, tops, total, sampling = 0.0, 0.0, 0, Sampling(**WARPERS)
    for place, row in enumerate(held_out):
        text = torch.tensor(loss.tokenizer(row.text, add_special_tokens=False)["input_ids"])
        prompt, answer = loss.prompt(text, loss.voice(row, place)), model.config.first_code + row.codes[0]
        logits = model(input_ids=torch.cat([prompt, answer])[None, :-1], use_cache=False).logits[0, -len(answer) :]
        nats += float(F.cross_entropy(logits.float(), answer, reduction="sum"))
        tops += float(warp(logits.float(), sampling).softmax(-1).amax(-1).sum())
        total += len(answer)
    return {"nats_per_code": nats / total, "mean_top_probability": tops / total}
