"""Draft trees: what the tensor code does equals a plain walk in Python."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from mmspec.ancestry import ancestors
from mmspec.contract import Draft, State
from mmspec.tree import best, chain, children, follow, path_to, within_room


@st.composite
def trees(draw: st.DrawFn, vocab: int = 3) -> Draft:
    """One to three rows of trees of one size, parents before children, some nodes invalid and all below them."""
    batch, size = draw(st.integers(1, 3)), draw(st.integers(1, 9))
    parents = [[-1] + [draw(st.integers(0, node - 1)) for node in range(1, size)] for _ in range(batch)]
    depth = [[0] * size for _ in range(batch)]
    valid = [[True] * size for _ in range(batch)]
    for row in range(batch):
        for node in range(1, size):
            depth[row][node] = depth[row][parents[row][node]] + 1
            valid[row][node] = valid[row][parents[row][node]] and draw(st.integers(0, 4)) > 0
    tokens = draw(
        st.lists(st.lists(st.integers(0, vocab - 1), min_size=size, max_size=size), min_size=batch, max_size=batch)
    )
    draft = Draft(torch.tensor(tokens), torch.tensor(parents), torch.tensor(depth))
    draft.valid = torch.tensor(valid) if draw(st.booleans()) else None
    return draft


def path_of(draft: Draft, row: int, node: int) -> list[int]:
    above = draft.parents[row].tolist()
    path = [node]
    while above[path[0]] >= 0:
        path.insert(0, above[path[0]])
    return path


@given(trees())
def test_ancestors_are_the_nodes_on_the_way_up(draft: Draft) -> None:
    for row in range(draft.tokens.shape[0]):
        for node in range(draft.size):
            assert draft.ancestors[row, node].nonzero()[:, 0].tolist() == path_of(draft, row, node)


@given(trees(), st.data())
def test_follow_is_a_walk_down_the_targets_choices(draft: Draft, data: st.DataObject) -> None:
    batch, size = draft.tokens.shape
    choice = torch.tensor([[data.draw(st.integers(0, 2)) for _ in range(size)] for _ in range(batch)])
    accepted = follow(draft, choice)

    def deepest(row: int, node: int) -> int:
        """How many nodes one can descend from here. Twins (same parent, same token) are both open."""
        below = [
            child
            for child in range(1, size)
            if draft.parents[row, child] == node
            and draft.tokens[row, child] == choice[row, node]
            and (draft.valid is None or draft.valid[row, child])
        ]
        return max((1 + deepest(row, child) for child in below), default=0)

    for row in range(batch):
        count = int(accepted.count[row])
        path = accepted.path[row, :count].tolist()
        assert count == 1 + deepest(row, 0)
        assert path == path_of(draft, row, path[-1])
        assert all(draft.tokens[row, child] == choice[row, above] for above, child in zip(path, path[1:], strict=False))
        assert accepted.next[row] == choice[row, path[-1]]
        assert accepted.path[row, count:].tolist() == [0] * (size - count)


@given(trees(), st.data())
def test_a_path_leads_from_node_0_to_its_node(draft: Draft, data: st.DataObject) -> None:
    batch, size = draft.tokens.shape
    last = torch.tensor([data.draw(st.integers(0, size - 1)) for _ in range(batch)])
    accepted = path_to(draft, last, last)
    for row in range(batch):
        assert accepted.path[row, : accepted.count[row]].tolist() == path_of(draft, row, int(last[row]))


@given(trees())
def test_children_are_listed_in_order(draft: Draft) -> None:
    table = children(draft)
    for row in range(draft.tokens.shape[0]):
        for node in range(draft.size):
            valid = [True] * draft.size if draft.valid is None else draft.valid[row].tolist()
            want = [child for child in range(draft.size) if draft.parents[row, child] == node and valid[child]]
            listed = table[row, node].tolist()
            assert [child for child in listed if child >= 0] == want
            assert listed[len(want) :] == [-1] * (len(listed) - len(want))


@given(st.data(), st.integers(1, 10), st.integers(2, 8))
def test_best_keeps_the_highest_scores_and_never_orphans_a_node(data: st.DataObject, count: int, total: int) -> None:
    """Scores are sums of few levels, so that ties between parent and child, and between siblings, are common."""
    parents = [-1 if node == 0 else data.draw(st.integers(-1, node - 1)) for node in range(count)]
    loss = [data.draw(st.sampled_from([0.0, 0.0, -1.0, -2.0])) for _ in range(count)]
    scores, depth = [], []
    for node, above in enumerate(parents):
        scores.append(loss[node] + (scores[above] if above >= 0 else 0.0))
        depth.append(1 + (depth[above] if above >= 0 else 0))
    tokens = list(range(100, 100 + count))
    draft = best(*(torch.tensor([x]) for x in (tokens, parents, scores, depth)), torch.tensor([7]), total, "point")
    kept = [token - 100 for token in draft.tokens[0, 1:].tolist()]
    assert draft.tokens[0, 0] == 7
    assert len(kept) == min(count, total - 1)
    assert kept == sorted(kept)
    assert sorted((scores[node] for node in kept), reverse=True) == sorted(scores, reverse=True)[: len(kept)]
    for position, node in enumerate(kept, start=1):
        above = int(draft.parents[0, position])
        assert (kept[above - 1] if above else -1) == parents[node]
        assert above < position
        assert draft.depth[0, position] == depth[node]


@given(st.integers(1, 3), st.integers(1, 7))
def test_a_chain_is_a_tree(batch: int, size: int) -> None:
    draft = chain(torch.arange(batch * size).view(batch, size))
    assert draft.parents.tolist() == [list(range(-1, size - 1))] * batch
    assert draft.depth.tolist() == [list(range(size))] * batch
    assert torch.equal(draft.ancestors, ancestors(draft.parents))


def test_a_row_of_a_batch_has_the_levels_that_it_has_room_for() -> None:
    """And node 0 in any case. A row that is alone is not padded."""
    draft = chain(torch.zeros(4, 4, dtype=torch.long))
    emitted = torch.tensor([1, 7, 9, 10])
    state = State([[5]] * 4, [False] * 4, emitted, torch.ones(4, dtype=torch.long), [10] * 4)
    valid = within_room(draft, state)
    assert valid is not None
    assert valid.sum(1).tolist() == [4, 3, 1, 1]
    state.ids = state.ids[:1]
    assert within_room(draft, state) is None


def test_the_empty_draft_is_the_pending_token() -> None:
    draft = Draft.root(torch.tensor([4, 5]))
    assert draft.tokens.tolist() == [[4], [5]]
    accepted = follow(draft, torch.tensor([[8], [9]]))
    assert accepted.count.tolist() == [1, 1]
    assert accepted.next.tolist() == [8, 9]
