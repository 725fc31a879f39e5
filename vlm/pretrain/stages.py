"""The stages in which a model learns to answer, once its vision tower is pretrained."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Stage:
    """A stage of question answering.

    batch: pictures per update. bins: rows of `mmspec.vlm.pretrain.language.WIDTH` tokens for the questions about each
    picture. falling: last steps, over which the learning rate falls to zero. layers: depth of the decoder. about: what
    is updated, for the command line. how: it learns otherwise than from answers, for the model card.
    """

    name: str
    steps: int
    batch: int
    bins: int
    rate: float
    falling: int
    layers: int
    about: str = field(default="", repr=False)
    how: str = field(default="", repr=False)

    @property
    def told(self) -> str:
        """The stage in words, for a model card."""
        falling = f", which falls to zero in the last {self.falling}" if self.falling else ""
        return (
            f"{self.name}: {self.steps} updates of {self.batch} pictures with {self.bins} rows of questions each; "
            f"{self.layers} decoder layers{self.how}; rate of their matrices {self.rate}{falling}"
        )


SHALLOW = Stage(
    "shallow", steps=1200, batch=24, bins=2, rate=0.005, falling=0, layers=8, about="updates of the shallow decoder"
)
"""A shallow decoder learns where to look, at a third of the cost."""
DEEP = Stage(
    "deep", steps=300, batch=24, bins=2, rate=0.004, falling=290, layers=24, about="updates of the deepened decoder"
)
"""It is deepened, and trained on while the rate falls."""
LAYERS = Stage(
    "layers",
    steps=200,
    batch=8,
    bins=4,
    rate=0.01,
    falling=120,
    layers=24,
    about="updates of the translated layers",
    how=", each of which learns by itself, in place of all that, what the known one makes of the states before it",
)
"""The layers of a translated decoder learn, each by itself, what those of the known one do."""
JOINED = Stage(
    "joined", steps=400, batch=12, bins=4, rate=0.002, falling=300, layers=24, about="updates of the joined model"
)
"""A decoder that can answer gets a tower which gives nearly the image tokens that it knows."""
MORE = Stage(
    "more",
    steps=900,
    batch=12,
    bins=4,
    rate=0.002,
    falling=600,
    layers=24,
    about="updates from --start on",
)
"""A finished model, whatever its depth, is trained on: fewer pictures, and more questions about each."""
