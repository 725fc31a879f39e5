"""A VALL-E-type model (arXiv 2301.02111): text and a voice go in, codes of speech come out.

Codes have K codebooks. An autoregressive decoder writes the first one, token by token, after the prompt

    START text VOICE codes-of-the-voice SPEAK

and ends with END; text, control tokens and codes share one vocabulary, so it is a causal language model (a Llama) and
everything that drafts for language models drafts for it. The other codebooks follow one by one, each in a single
non-causal pass that sees the text, the voice and all codebooks before it: given the first codebook they are fixed.
What differs from the paper: a voice is a second of speech without its transcript, positions are rotary, the stage
enters as an added embedding, and the codes taken are not the likeliest but those nearest to the mean of the law.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationMixin, LlamaConfig, LlamaForCausalLM, LlamaModel, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

from mmspec.speech.codec import MelCodec


class ValleConfig(PreTrainedConfig):
    """text_config: the autoregressive Llama, whose vocabulary ends with the codes. refiner_config: the other one,
        whose vocabulary is the text.

    codebooks: K. codebook_size: codes of each. first_code: id of code 0; END stands right before it, and what comes
        earlier is text. voice_token_id, speak_token_id: ids of VOICE and SPEAK.
    """

    model_type = "mmspec-valle"
    sub_configs_defaults = {"text_config": LlamaConfig, "refiner_config": LlamaConfig}  # noqa: RUF012

    text_config: dict | PreTrainedConfig | None = None
    refiner_config: dict | PreTrainedConfig | None = None
    codebooks: int = 4
    codebook_size: int = 256
    first_code: int = 40
    voice_token_id: int = 2
    speak_token_id: int = 3


class Refiner(nn.Module):
    """Codebook k from the text, the voice and codebooks 0 to k - 1, all frames at once."""

    def __init__(self, config: ValleConfig) -> None:
        super().__init__()
        inner: Any = config.refiner_config
        self.codebooks = config.codebooks
        self.text = nn.Embedding(inner.vocab_size, inner.hidden_size)
        self.codes = nn.ModuleList(
            nn.Embedding(config.codebook_size, inner.hidden_size) for _ in range(config.codebooks)
        )
        self.stage = nn.Embedding(config.codebooks, inner.hidden_size)
        self.layers = LlamaModel(inner)
        self.layers.embed_tokens = nn.Identity()  # it is given embeddings

    def forward(self, text: Tensor, voice: Tensor, codes: Tensor, stage: int, real: Tensor | None = None) -> Tensor:
        """Logits of codebook `stage` for every frame.

        Args: text: [B, T] ids. voice: [B, K, P] codes of the voice. codes: [B, stage or more, F]. stage: 1 to K - 1.
            real: [B, T + P + F] bool, False for padding, which nothing sees and which takes no position.
        Returns: [B, F, codebook_size]; the output weights are the codebook's own embeddings.
        """
        heard = sum(book(voice[:, k]) for k, book in enumerate(self.codes))
        known = sum(book(codes[:, k]) for k, book in enumerate(self.codes[:stage]))
        parts = torch.cat([self.text(text), heard, known], 1) + self.stage.weight[stage]
        if real is None:
            real = torch.ones(parts.shape[:2], dtype=torch.bool, device=parts.device)
        mask = parts.new_zeros(len(parts), 1, parts.shape[1], parts.shape[1])  # nothing real is hidden from anything
        mask = mask.masked_fill(~real[:, None, None, :], torch.finfo(parts.dtype).min)
        places = (real.cumsum(-1) - 1).clamp(min=0)
        out = self.layers(
            inputs_embeds=parts, attention_mask=mask, position_ids=places, use_cache=False
        ).last_hidden_state
        return out[:, -codes.shape[-1] :] @ self.codes[stage].weight.T


class Valle(PreTrainedModel, GenerationMixin):
    """The autoregressive decoder behind the usual interface of a causal language model, and the refiner."""

    config_class = ValleConfig
    _supports_sdpa = True

    def __init__(self, config: ValleConfig) -> None:
        super().__init__(config)
        self.speaker = LlamaForCausalLM(config.text_config)
        self.refiner = Refiner(config)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        """Of the autoregressive decoder."""
        return self.speaker.get_input_embeddings()

    def get_output_embeddings(self) -> nn.Module:
        """Of the autoregressive decoder."""
        return self.speaker.get_output_embeddings()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Any = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """Next-token logits of the first codebook, arguments as for `LlamaForCausalLM`; only codes and END follow."""
        out = self.speaker(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            logits_to_keep=logits_to_keep,
            **kwargs,
        )
        written = torch.arange(out.logits.shape[-1], device=out.logits.device) < self.config.first_code - 1
        out.logits = out.logits.masked_fill(written, -torch.inf)
        return out

    @torch.no_grad()
    def refine(
        self, text: Tensor, voice: Tensor, first: Tensor, codec: MelCodec, known: Tensor | None = None
    ) -> Tensor:
        """All codebooks of one utterance, given the first.

        Args: text: [T] ids. voice: [K, P]. first: [F] codes of codebook 0. codec: says how near codes are.
            known: [K, G] frames that are settled already, G <= F: they stay, and the others follow them.
        Returns: [K, F].
        """
        codes = first[None, None]  # [1, 1, F]
        for stage in range(1, self.config.codebooks):
            law = self.refiner(text[None], voice[None], codes, stage).softmax(-1)
            following = codec.middle(stage, law).to(codes.device)
            if known is not None:
                following[:, : known.shape[1]] = known[stage]
            codes = torch.cat([codes, following[:, None]], 1)
        return codes[0]
