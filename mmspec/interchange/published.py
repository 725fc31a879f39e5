"""A drafter as another project published it: a configuration and named tensors, which must be what the layout says.

Research code loads with missing and unknown names ignored, which hides mistakes; here every name is either read or
refused, and every shape is that of the target at hand.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import safe_open
from torch import Tensor, nn
from transformers import LlamaConfig, PreTrainedConfig

from mmspec.contract import Drafter
from mmspec.drafters.precision import placed
from mmspec.errors import CheckpointError, MismatchError, one_line, shorten
from mmspec.registry import entries, importable
from mmspec.safe_files import check_weights, read_json

logger = logging.getLogger(__name__)

CONFIG = "config.json"
CLOSE = 1e-2
"""How far two copies of a table may lie apart by rounding, relative to its largest entry."""
SIZES = ("hidden_size", "intermediate_size", "num_attention_heads")
PLAIN_ROPE = ("default", "linear", "dynamic", "yarn", "longrope", "llama3")
THREE_AXES = "mrope"
"""Positions in time, height and width, which are equal for text, all that a drafter writes: there they are plain."""
GRIDS = "image_grid_thw"
"""The model input of targets that have such positions."""


class Layout(Protocol):
    """What one project's drafters look like on disk."""

    @staticmethod
    def recognises(config: dict[str, Any], names: set[str]) -> bool:
        """Whether a folder with this configuration and tensors of these names is of this layout; one at most is."""

    @staticmethod
    def read(published: Published, target: Any) -> Drafter:
        """The drafter, not yet bound to the target."""


@dataclass
class Published:
    """The contents of a folder. Tensors are taken out one by one, so that what is left was not understood.

    folder: where it lies, for messages. config: the object in config.json. tensors: by their published names.
    """

    folder: Path
    config: dict[str, Any]
    tensors: dict[str, Tensor] = field(default_factory=dict)

    def take(self, name: str, *shape: int) -> Tensor:
        """The tensor of a name. Raises: CheckpointError: there is none. MismatchError: it has another shape."""
        if name not in self.tensors:
            raise CheckpointError(f"{self.folder} lacks the tensor {name}")
        found = self.tensors.pop(name)
        if tuple(found.shape) != shape:
            raise MismatchError(
                f"{name} in {self.folder} has the shape {list(found.shape)}, this target and the configuration need "
                f"{list(shape)}"
            )
        return found

    def fill(self, net: nn.Module, target: Any, names: Iterable[tuple[str, str]], zero: Sequence[str] = ()) -> Any:
        """The network with the published weights, on the target's device and in its dtype. No tensor may be left.

        Args: names: pairs of the published name and the network's, of every weight. zero: the network's names of biases
            that are zero where nothing is published for them.
        """
        net = placed(net, target.model.device, target.model.dtype)
        own = net.state_dict()
        weights = {}
        for theirs, ours in names:
            if ours in zero and theirs not in self.tensors:
                weights[ours] = torch.zeros_like(own[ours])
            else:
                weights[ours] = self.take(theirs, *own[ours].shape)
        for name in sorted(own.keys() - weights.keys()):
            raise CheckpointError(f"{self.folder / CONFIG} asks for {name}, of which its layout knows no tensor")
        net.load_state_dict(weights)
        if self.tensors:
            rest = sorted(self.tensors)
            raise CheckpointError(
                f"{self.folder} holds {len(rest)} tensors that its layout does not know, {rest[0]} among them"
            )
        return net.eval()

    def refuse(self, **expected: Any) -> None:
        """Raise MismatchError if a field of the configuration is there and says something else."""
        for name, value in expected.items():
            if self.config.get(name, value) != value:
                raise MismatchError(
                    f"{self.folder / CONFIG} says {name} = {shorten(self.config[name])}; only {value!r} is supported"
                )


def find_layout(folder: Path) -> Layout | None:
    """The layout of a published drafter's folder; None if it is of none, or holds no weights."""
    if not (folder / CONFIG).exists():
        return None
    config, names = read_json(folder / CONFIG), tensor_names(folder)
    layout: Layout
    for _, layout in importable("layouts", sorted(entries("layouts"))):
        if names and layout.recognises(config, names):
            return layout
    return None


def read_published(folder: Path) -> Published:
    """Configuration and tensors. Raises: CheckpointError: missing, pickled or damaged."""
    check_weights(folder)
    published = Published(folder, read_json(folder / CONFIG))
    for file in sorted(folder.glob("*.safetensors")):
        with _opened(file) as tensors:
            for name in tensors.keys():  # noqa: SIM118  not a dictionary
                published.tensors[name] = tensors.get_tensor(name)
    return published


def tensor_names(folder: Path) -> set[str]:
    """The names of all tensors in a folder's safetensors files."""
    found: set[str] = set()
    for file in sorted(folder.glob("*.safetensors")):
        with _opened(file) as tensors:
            found.update(tensors.keys())
    return found


def _opened(file: Path) -> Any:
    try:
        return safe_open(file, framework="pt")
    except Exception as error:  # noqa: BLE001  safetensors raises errors of its own for damaged files
        raise CheckpointError(f"{file} cannot be read: {one_line(error)}") from error


def layer_config(
    published: Published, config: dict[str, Any], target: Any, query: str, kind: type[PreTrainedConfig] = LlamaConfig
) -> PreTrainedConfig:
    """The shape of a published drafter's layers.

    Args: config: where it stands, the whole configuration or a part of it. query: name of a query projection, whose
        rows tell the size of a head that the configuration does not state.
    Raises: MismatchError: made for features of another size than the target's. CheckpointError: no size is stated.
    """
    for name in SIZES:
        if not isinstance(config.get(name), int):
            raise CheckpointError(f"{published.folder / CONFIG} does not state {name} as a whole number")
    if config["hidden_size"] != target.hidden_size:
        raise MismatchError(
            f"the drafter in {published.folder} was made for features of size {config['hidden_size']}, the target has "
            f"{target.hidden_size}"
        )
    if config.get("hidden_act", "silu") != "silu":
        raise MismatchError(
            f"{published.folder / CONFIG} says hidden_act = {config['hidden_act']!r}: only 'silu' is known"
        )
    heads = config["num_attention_heads"]
    rows = published.tensors[query].shape[0] if query in published.tensors else target.hidden_size
    biased = bool(config.get("qkv_bias") or config.get("attention_bias"))
    return kind(
        vocab_size=target.vocab_size,
        hidden_size=target.hidden_size,
        intermediate_size=config["intermediate_size"],
        num_hidden_layers=config.get("num_hidden_layers", 1),
        num_attention_heads=heads,
        num_key_value_heads=config.get("num_key_value_heads") or heads,
        head_dim=config.get("head_dim") or rows // heads,
        max_position_embeddings=config.get("max_position_embeddings", 2048),
        rms_norm_eps=config.get("rms_norm_eps", 1e-6),
        attention_bias=biased,
        **_rope(published, config),
    )


def stated_rope(config: dict[str, Any]) -> dict[str, Any]:
    """What a configuration says about rotary positions, under either of its names."""
    return config.get("rope_parameters") or config.get("rope_scaling") or {}


def sight(
    published: Published, told: dict[str, Any], layer: LlamaConfig, target: Any, pictures: bool
) -> dict[str, Any]:
    """The settings of a head that say how it read prompts with pictures (`mmspec.drafters.eagle.OneLayer`); none for a
    target that does not see.

    Args: told: where rotary positions are stated. layer: the shape of its layer. pictures: whether image slots hold
        what the target made of the pictures.
    Raises: CheckpointError: positions on three axes without their sections. MismatchError: sections of another size.
    """
    seen: dict[str, Any] = {"pictures": True} if pictures and target.modality == "vlm" else {}
    if not on_three_axes(stated_rope(told)) or GRIDS not in getattr(target, "extra_inputs", ()):
        warn_of_axes(published, told, target)
        return seen
    return {**seen, "axes": axes(published, stated_rope(told), layer.head_dim // 2)}


def axes(published: Published, rope: dict[str, Any], frequencies: int) -> list[int]:
    """[frequencies] the axis of each: sections of neighbours, as in Qwen2.5-VL, or, if `mrope_interleaved`, by turns as
    in Qwen3-VL, until the sections of height and width are used up."""
    section = rope.get("mrope_section")
    if not isinstance(section, list) or len(section) != 3:
        raise CheckpointError(
            f"{published.folder / CONFIG} places image slots on three axes and states no mrope_section of three numbers"
        )
    if sum(section) != frequencies:
        raise MismatchError(
            f"{published.folder / CONFIG} says mrope_section = {section}, a head has {frequencies} frequencies"
        )
    if not rope.get("mrope_interleaved"):
        return [axis for axis, count in enumerate(section) for _ in range(count)]
    return [at % 3 if at < 3 * section[at % 3] else 0 for at in range(frequencies)]


def on_three_axes(rope: dict[str, Any]) -> bool:
    """Whether rotary positions, as a configuration states them, have the axes of Qwen-VL."""
    return bool(rope.get("mrope_section")) or THREE_AXES in (rope.get("rope_type"), rope.get("type"))


def warn_of_axes(published: Published, config: dict[str, Any], target: Any) -> None:
    """Warn of a drafter that reads image slots and was taught to place them on three axes, as Qwen-VL does: here they
    stand one behind the other."""
    if on_three_axes(stated_rope(config)) and target.placeholders:
        logger.warning(
            "the drafter in %s places image slots on three axes, and reads them one after the other here: behind "
            "pictures it drafts worse than it could",
            published.folder,
        )


def _rope(published: Published, config: dict[str, Any]) -> dict[str, Any]:
    stated = stated_rope(config)
    scaling = {name: value for name, value in stated.items() if not name.startswith(THREE_AXES)}
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    kind = "default" if kind == THREE_AXES else kind
    if kind not in PLAIN_ROPE:
        raise MismatchError(
            f"{published.folder / CONFIG} says positions of type {kind!r}; only {', '.join(PLAIN_ROPE)} are supported"
        )
    theta = scaling.get("rope_theta", config.get("rope_theta", 10000.0))
    return {"rope_parameters": {**scaling, "rope_type": kind, "rope_theta": theta}}


def same_embeddings(
    published: Published, target: Any, name: str = "embed_tokens.weight", but: int | None = None
) -> float:
    """Take a table of embeddings that must be the target's own, which is used instead; there may be none.

    A target that scales what it looks up (Gemma3) has two: what it makes of each token, and the bare weights. Rows that
    only one of the tables has, at its end, are padding of the vocabulary.

    Args: but: a row that may hold anything.
    Returns: how many times larger than in this table what the target makes of a token is.
    Raises: MismatchError: they differ: made for another target, or trained further.
    """
    if name not in published.tensors:
        return 1.0
    found, bare = published.tensors.pop(name), target.embed.weight.detach()
    if type(target.embed) is nn.Embedding:
        _same_table(published, name, found, [bare], but)
        return 1.0
    made = all_embeddings(target)
    if _same_table(published, name, found, [made, bare], but) == 0:
        return 1.0
    scale = float(made.float().norm() / bare.float().norm())
    logger.warning(
        "%s in %s holds the target's weights, which the target multiplies by %.4g: the drafter reads the products, and "
        "drafts worse if it was trained on the bare weights",
        name,
        published.folder,
        scale,
    )
    return scale


@torch.no_grad()
def all_embeddings(target: Any) -> Tensor:
    """[V, H] what the target makes of every token, in memory of its own."""
    weight = target.embed.weight
    return target.embed(torch.arange(len(weight), device=weight.device)).clone()


def same_head(published: Published, target: Any, name: str, rows: Tensor | None = None) -> None:
    """Take an output head that must be the target's own, or those rows of it; there may be none."""
    if name in published.tensors:
        own = target.head.weight.detach()
        _same_table(published, name, published.tensors.pop(name), [own if rows is None else own[rows.to(own.device)]])


def _same_table(
    published: Published, name: str, found: Tensor, tables: Sequence[Tensor], but: int | None = None
) -> int:
    """Which of the target's tables, all of one shape, a table is, but for one row."""
    if found.shape[1:] != tables[0].shape[1:]:
        raise MismatchError(
            f"{name} in {published.folder} has the shape {list(found.shape)}, the target's {list(tables[0].shape)}"
        )
    common = min(len(found), len(tables[0]))
    apart = []
    for own in tables:
        here = own[:common].float().cpu()
        off = (found[:common].float() - here).abs()
        if but is not None:
            off[but : but + 1] = 0
        apart.append(float(off.max() / here.abs().max().clamp(min=1e-9)))
    if min(apart) > CLOSE:
        raise MismatchError(
            f"{name} in {published.folder} is not the target's: they lie apart by {min(apart):.2g} of its largest "
            f"entry, at most {CLOSE:g} is rounding; the drafter was made for another target, or trained a table of its "
            "own"
        )
    return apart.index(min(apart))


def same_vocabulary(published: Published, config: dict[str, Any], target: Any) -> None:
    """Raise MismatchError if the configuration states a vocabulary of another size than the target's."""
    stated = config.get("vocab_size", target.vocab_size)
    if stated != target.vocab_size:
        raise MismatchError(
            f"the drafter in {published.folder} was made for a vocabulary of {stated}, the target has "
            f"{target.vocab_size}"
        )
