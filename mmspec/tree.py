"""Draft trees: walks and the few ways to build one. See `mmspec.contract.Draft` for the layout."""

import torch
from torch import Tensor

from mmspec.ancestry import in_line
from mmspec.contract import Accepted, Draft, Kind, State


def chain(tokens: Tensor, kind: Kind = "point", q: Tensor | None = None) -> Draft:
    """A chain draft from tokens [B, N] or columns of codes [B, N, K], pending one first; q [B, N, .., V] if they were
    sampled."""
    batch, size = tokens.shape[:2]
    depth = torch.arange(size, device=tokens.device).expand(batch, size)
    return Draft(tokens, depth - 1, depth, kind, q, _ancestors=in_line(batch, size, tokens.device), _levels=size - 1)


def is_chain(draft: Draft) -> bool:
    """Whether every node stands under the one before."""
    above = torch.arange(-1, draft.size - 1, device=draft.parents.device)
    return torch.equal(draft.parents, above.expand_as(draft.parents))


def trunk(draft: Draft) -> Draft:
    """The deepest path of every row, the first of equals: a chain, as long as the longest of them."""
    if is_chain(draft):
        return draft
    kept = path_to(draft, deepest(draft, torch.ones_like(draft.tokens, dtype=torch.bool)), draft.tokens[:, 0])
    path = kept.path[:, : int(kept.count.max())]
    rows = torch.arange(len(path), device=path.device)[:, None]
    line = chain(draft.tokens[rows, path], draft.kind, None if draft.q is None else draft.q[rows, path])
    line.valid = line.depth < kept.count[:, None]
    return line


def within_room(draft: Draft, state: State) -> Tensor | None:
    """[B, N] bool, what is `valid` of a draft without padding: a row of a batch that is nearly full drafts as it would
    alone. None, all of it, of a row that is alone: `State.levels` knows its room."""
    if len(state.ids) == 1:
        return None
    rooms = torch.tensor(state.limits, device=draft.depth.device) - state.emitted - 1
    return draft.depth <= rooms.clamp(min=0)[:, None]


def follow(draft: Draft, choice: Tensor) -> Accepted:
    """Walk down from node 0 as long as the target's choice is among the children.

    Args: choice: [B, N] int64, the target's token after each node.
    Returns: the deepest path on which every node is the choice of its parent; `next` is the choice after its last node.
    """
    last = reached(draft, choice)
    return path_to(draft, last, choice.gather(1, last[:, None])[:, 0])


def reached(draft: Draft, choice: Tensor) -> Tensor:
    """[B] the node at which such a walk ends."""
    return deepest(draft, draft.tokens == choice.gather(1, draft.parents.clamp(min=0)))


def deepest(draft: Draft, taken: Tensor) -> Tensor:
    """[B] the deepest node whose whole path is taken. taken: see `wholly`."""
    return ((draft.depth + 1) * wholly(draft, taken)).argmax(-1)  # the first of equals, so twins cannot matter


def wholly(draft: Draft, taken: Tensor) -> Tensor:
    """[B, N] bool: whether all of the path from node 0 to a node is taken.

    Args: taken: [B, N] bool of the nodes by themselves, which is changed: node 0 always is, padding never.
    """
    if draft.valid is not None:
        taken &= draft.valid
    taken[:, :1].fill_(True)
    return (draft.ancestors <= taken[:, None, :]).all(-1)


def path_to(draft: Draft, last: Tensor, following: Tensor) -> Accepted:
    """The path from node 0 to node `last` [B], with the next pending token `following` [B]."""
    count = draft.depth.gather(1, last[:, None])[:, 0] + 1
    on_path = draft.ancestors.gather(1, last[:, None, None].expand(-1, -1, draft.size))[:, 0]
    nodes = on_path * torch.arange(draft.size, device=last.device)
    path = nodes.new_zeros(len(last), draft.longest).scatter_add_(1, draft.depth, nodes)  # one node of every depth
    return Accepted(path, count, following)


def at_end(values: Tensor, accepted: Accepted) -> Tensor:
    """[B, ..] what `values` [B, N, ..] say of the last accepted node."""
    last = accepted.path.gather(1, accepted.count[:, None] - 1)[:, 0]
    return values[torch.arange(len(last), device=last.device), last]


def children(draft: Draft) -> Tensor:
    """[B, N, K] node indices of every node's children in order, padded with -1; K the largest number of children."""
    batch, size = draft.parents.shape
    is_child = draft.parents[:, None, :] == torch.arange(size, device=draft.parents.device)[None, :, None]
    if draft.valid is not None:
        is_child &= draft.valid[:, None, :]
    order = torch.where(is_child, torch.arange(size, device=draft.parents.device), size).sort(-1).values
    width = max(int(is_child.sum(-1).max()), 1)
    kept = order[..., :width]
    return torch.where(kept < size, kept, -1)


def best(
    tokens: Tensor, parents: Tensor, scores: Tensor, depth: Tensor, pending: Tensor, total: int, kind: Kind
) -> Draft:
    """The tree of the `total - 1` best candidates under the pending token (EAGLE-2's re-ranking, arXiv 2406.16858).

    Args:
        tokens, parents, depth: [B, C] candidates, parents first; a parent is a candidate's index or -1 for node 0.
        scores: [B, C] cumulative log-confidence; a child's never exceeds its parent's.
        pending: [B] node 0. total: nodes of the result, node 0 included.

    The sort is stable and parents stand first, so a tie can never select a child without its parent.
    """
    batch, count = tokens.shape
    keep = scores.sort(dim=-1, descending=True, stable=True).indices[:, : total - 1].sort(-1).values
    # [B, C + 1] the node of each candidate that is kept; the last column is node 0
    place = torch.zeros(batch, count + 1, dtype=torch.long, device=tokens.device)
    place.scatter_(1, keep, torch.arange(1, keep.shape[1] + 1, device=tokens.device).expand(batch, -1))
    above = parents.gather(1, keep)
    zero = torch.zeros(batch, 1, dtype=torch.long, device=tokens.device)
    return Draft(
        tokens=torch.cat([pending[:, None], tokens.gather(1, keep)], 1),
        parents=torch.cat([zero - 1, place.gather(1, torch.where(above < 0, count, above))], 1),
        depth=torch.cat([zero, depth.gather(1, keep)], 1),
        kind=kind,
    )
