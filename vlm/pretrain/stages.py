"""The stages in which a model learns to answer, once its vision tower is pretrained."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Stage:
    """A stage of question answering.

    bins: questions per picture, in rows of `mmspec.vlm.pretrain.language.WIDTH` tokens. falling: last steps, over which
    the learning rate falls to zero.
    """

    name: str
    steps: int
    batch: int
    bins: int
    rate: float
    falling: int


LANGUAGE = Stage("language", steps=300, batch=4, bins=5, rate=0.006, falling=0)
"""Many questions on few pictures: cheap, and enough to learn how answers are put."""
PICTURES = Stage("pictures", steps=1000, batch=12, bins=1, rate=0.005, falling=600)
"""Few questions on many pictures: what the answers say has to come from the picture."""
