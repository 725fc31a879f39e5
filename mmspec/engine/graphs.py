"""A function of tensors at constant addresses, captured in a CUDA graph: one launch instead of hundreds.

Without CUDA it is called as it is, so that everything around it is the same everywhere.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from threading import Lock, RLock
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

WARM = 3
"""Calls before the capture: kernels are compiled and chosen, workspaces allocated."""
CAPTURING = RLock()
"""Held by who captures, and by who may compile: torch takes one capture at a time in a process, and a compiler that
measures kernels waits for the whole card, which breaks a capture. Taken before the lock of a `Place`."""
LARGE = 1 << 14
"""Numbers of a tensor from which on a launch of its own copies it: together with others a few blocks of the card would
have to do it all."""
_FAILED: list[Any] = []
"""Graphs whose capture could not be ended. They are kept for good, since the allocator of host memory goes on asking
them."""


class Place:
    """Where graphs are captured that share the memory of their results, since they never run at the same time.

    lock: held while one of them is captured, or runs until its results are copied. pool, stream: of all captures;
    memory is shared only by those of one stream. used: streams on which work was done here, the last one at the end.
    """

    def __init__(self, device: torch.device) -> None:
        self.device, self.lock = device, Lock()
        self.cuda = device.type == "cuda"
        self.used: list[Any] = []
        self.pool: Any = None
        self.stream: Any = None
        self._renew()

    def _renew(self) -> None:
        if self.cuda:
            self.pool, self.stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream(self.device)

    def take_turn(self) -> None:
        """Let the current stream wait for the last one that worked here: what shares memory may not overlap."""
        if not self.cuda:
            return
        here = torch.cuda.current_stream(self.device)
        if self.used and self.used[-1] == here:
            return
        if self.used:
            here.wait_stream(self.used[-1])
        self.used = [*(other for other in self.used if other != here), here]

    def hand_back(self) -> None:
        """Let all streams that worked here wait for the last one: memory goes back to the one it was made on."""
        for other in self.used[:-1]:
            other.wait_stream(self.used[-1])

    def abandon(self, failed: torch.cuda.CUDAGraph) -> None:
        """Go on with another pool and stream: the capture of a graph failed, and may have left these unusable."""
        index = torch.cuda.current_device()
        with suppress(RuntimeError):  # where torch could end the capture, it has ended this, too
            torch._C._cuda_endAllocateToPool(index, self.pool)
            _FAILED.append(failed)
            torch._C._cuda_releasePool(index, self.pool)
        self._renew()


class Graph:
    """Runs `run()` again and again. What it reads, the caller has written into the same tensors as ever.

    Args: run: gives tensors, or tuples of them; may change tensors in place, but a repetition must do no harm.
    """

    def __init__(self, run: Callable[[], Any], place: Place) -> None:
        self.run, self.place = run, place
        self.captured: torch.cuda.CUDAGraph | None = None
        if place.cuda:
            # streams and captures are those of the current device
            with CAPTURING, place.lock, torch.cuda.device(place.device):
                self._capture()

    def _capture(self) -> None:
        from torch._inductor.cudagraph_trees import clear_cublas_manager

        place, here = self.place, torch.cuda.current_stream()
        place.take_turn()
        place.stream.wait_stream(here)
        try:
            with torch.cuda.stream(place.stream):
                for _ in range(WARM):
                    self.run()
        finally:  # what failed may still be at work on memory that is given back now
            here.wait_stream(place.stream)
        captured = torch.cuda.CUDAGraph()
        # What cuBLAS works in comes from the pool, whose graphs never overlap: what it keeps by stream is freed when a
        # graph of the stream goes, or torch records one (pytorch issue 193402). Other threads may allocate meanwhile.
        capture = torch.cuda.graph(captured, pool=place.pool, stream=place.stream, capture_error_mode="thread_local")
        try:
            # On its stream already: where a capture cannot be ended, torch would leave the thread there.
            with torch.cuda.stream(place.stream), _uncollected(), clear_cublas_manager(), capture:
                self.results = self.run()
        except BaseException:
            place.abandon(captured)
            raise
        self.captured = captured

    def __call__(self) -> Any:
        """What `run()` gives. It is the caller's own: the next replay does not change it."""
        if self.captured is None:
            return self.run()
        with self.place.lock:
            self.place.take_turn()
            self.captured.replay()
            return copied(self.results)


class Recorded:
    """A function of tensors with inputs at addresses of its own: whatever is given is copied there.

    Args: function: see `Graph`; it is first run on zeros, and then must change nothing that counts. inputs: tensors of
        the largest shapes that will come; those that are given may have fewer columns (dimension 1), the others keep
        what they held.
    """

    @torch.inference_mode(False)  # they outlive a request
    def __init__(self, function: Callable[..., Any], inputs: Sequence[Tensor], place: Place) -> None:
        self.inputs = [torch.zeros(given.shape, dtype=given.dtype, device=place.device) for given in inputs]
        with torch.inference_mode():
            self.graph = Graph(lambda: function(*self.inputs), place)

    def __call__(self, *given: Tensor) -> Any:
        """What the function gives for these. Tensors may lie on the host."""
        held = zip(self.inputs, given, strict=True)
        copy_all([static if new.shape == static.shape else static[:, : new.shape[1]] for static, new in held], given)
        return self.graph()


@contextmanager
def _uncollected() -> Iterator[None]:
    """No garbage collection: it may destroy other graphs, which CUDA allows no thread that captures one."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def copied(results: Any) -> Any:
    """The same tree with copies in the place of its tensors."""
    leaves, form = tree_flatten(results)
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    copies = [torch.empty_like(tensor) for tensor in tensors]
    copy_all(copies, tensors)
    left = iter(copies)
    return tree_unflatten([next(left) if isinstance(leaf, Tensor) else leaf for leaf in leaves], form)


def copy_all(into: Sequence[Tensor], given: Sequence[Tensor]) -> None:
    """Copy tensors into others of their shapes, small ones of one kind in one launch. They may come from the host."""
    kinds: dict[Any, tuple[list[Tensor], list[Tensor]]] = {}
    for place, (static, new) in enumerate(zip(into, given, strict=True)):
        if not static.numel():
            continue
        alone = place if static.numel() >= LARGE else None
        alike = static.stride() == new.stride()  # others are copied one by one
        kind = static.dtype, new.dtype, new.device, alike, alone
        some, others = kinds.setdefault(kind, ([], []))
        some.append(static)
        others.append(new)
    for some, others in kinds.values():
        if len(some) == 1:  # many blocks of the card copy it, not one
            some[0].copy_(others[0], non_blocking=True)
        else:
            torch._foreach_copy_(some, others, non_blocking=True)


def renewed(recorded: dict[Any, Any], key: Any) -> bool:
    """Whether something is recorded under a key; it is the newest then."""
    if key not in recorded:
        return False
    recorded[key] = recorded.pop(key)
    return True


def make_room(recorded: dict[Any, Any], keys: Sequence[Any], most: int) -> None:
    """Forget the oldest of what is recorded under these keys, so that with one more there are at most `most`."""
    for old in keys[: max(0, len(keys) + 1 - most)]:
        del recorded[old]
