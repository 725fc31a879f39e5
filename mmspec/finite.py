"""Whether a model's numbers are still numbers: NaN would repeat one token for ever."""

from math import inf

from torch import Tensor

from mmspec.errors import NumericalError


def finite(logits: Tensor) -> Tensor:
    """[] bool, on the device: whether all logits [.., V] have a finite maximum. NaN and +inf win every maximum; -inf
    everywhere is one, too."""
    return (logits.amax(-1).abs() < inf).all()


def not_finite(where: str) -> NumericalError:
    """What to raise where they have none."""
    return NumericalError(
        f"the target's logits are not finite at {where}: the weights are damaged or overflow in this dtype "
        "(try dtype=torch.float32)"
    )


def check_finite(logits: Tensor, where: str) -> None:
    """Raise NumericalError if some logits [.., V] have no finite maximum; waits for the device."""
    if not finite(logits):
        raise not_finite(where)
