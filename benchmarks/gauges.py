"""How predictable the task is: a speed-up on text that anything can guess means little, so these stand beside every S.

The law is the target's own after temperature (at temperature 0, where it would be one point, the plain softmax), taken
on the replies of autoregressive decoding, read in one piece.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmspec import Pipeline
from mmspec.benchmarks.figures import reply
from mmspec.benchmarks.questions import Question, closed_share
from mmspec.benchmarks.records import Sample
from mmspec.benchmarks.speed import Prompt, model_inputs, tokenizer_of
from mmspec.benchmarks.token_classes import kinds_of

SURE = 0.9
LIMITS = {
    "unsure": (0.25, 1.0),
    "image_share": (0.2, 1.0),
    "lookup_speedup": (0.0, 1.7),
    "closed_share": (0.0, 0.15),
}
"""Where the gauges of an honest task lie."""


@dataclass(frozen=True)
class Gauges:
    """Gauges of one temperature, all but the last shares in [0, 1].

    unsure: emitted tokens with a top probability under 0.9. top: mean top-1 probability of the emitted positions.
    image_share: tokens of the reference answers that only the picture determines. closed_share: yes/no and
    multiple-choice questions among all. lookup_speedup: S of prompt lookup, None where it did not run.
    """

    temperature: float
    unsure: float
    top: float
    image_share: float
    closed_share: float
    lookup_speedup: float | None


def gauges(
    pipe: Pipeline, samples: Sequence[Sample], lookup: dict[float, float | None], questions: Sequence[Prompt]
) -> list[Gauges]:
    """Gauges of every temperature; none for questions of one's own, since LIMITS are those of the synthetic world.

    Args: lookup: temperature -> S of prompt lookup. questions: what was asked.
    """
    worldly = [question.qa for question in questions if isinstance(question, Question)]
    if not worldly:
        return []
    shown, closed = image_share(worldly, tokenizer_of(pipe)), closed_share()
    found = []
    for temperature in dict.fromkeys(sample.temperature for sample in samples):
        chosen = [sample for sample in samples if sample.temperature == temperature]
        tops = torch.cat([top_probabilities(pipe, questions[s.question], reply(s), temperature) for s in chosen])
        unsure = float((tops < SURE).float().mean())
        found.append(Gauges(temperature, unsure, float(tops.mean()), shown, closed, lookup.get(temperature)))
    return found


@torch.inference_mode()
def top_probabilities(pipe: Pipeline, question: Prompt, tokens: list[int], temperature: float) -> Tensor:
    """[n] largest probability at each of the reply's n positions."""
    model = pipe.target.model
    inputs = {name: value.to(model.device) for name, value in model_inputs(pipe, question).items()}
    last = {"logits_to_keep": 1} if pipe.target.decoder.keeps_logits else {}  # those of a whole prompt are many
    heard = model(**inputs, **last, use_cache=True)
    logits = heard.logits[0, -1:]
    if len(tokens) > 1:
        # apart from the prompt, because an image slot that was emitted is not a picture
        said = torch.tensor([tokens[:-1]], device=model.device)
        mask = torch.cat([inputs["attention_mask"], torch.ones_like(said)], 1)
        following = model(input_ids=said, attention_mask=mask, past_key_values=heard.past_key_values)
        logits = torch.cat([logits, following.logits[0]])
    return (logits.float() / (temperature or 1.0)).softmax(-1).amax(-1).cpu()


def image_share(qas: Sequence[Any], tokenizer: Any) -> float:
    """Share of the reference answers' tokens that overlap a span which only the picture determines."""
    kinds: list[str] = []
    for qa in qas:
        found = tokenizer(qa.answer, add_special_tokens=False, return_offsets_mapping=True)
        kinds += kinds_of(found["offset_mapping"], qa.spans)
    return kinds.count("image") / len(kinds) if kinds else 0.0
