"""SVG drawings of the demos: the tree of a draft, and how much of each draft was accepted. Plain text, no library."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from mmspec.demos import cells
from mmspec.demos.trace import Node

COLUMN, LINE = 104, 26  # pixels per level and per leaf
LETTERS = 11
"""Letters of a token that fit into its box."""


def tree(nodes: Sequence[Node]) -> str:
    """The draft of a round: levels from left to right, accepted tokens green and framed, rejected ones struck out."""
    if not nodes:
        return "<p>No draft in this round: the target decoded one token on its own.</p>"
    rows = places(nodes)
    width, height = COLUMN * (1 + max(node.depth for node in nodes)), LINE * (1 + int(max(rows)))
    lines = [
        f'<path d="{curve(nodes, rows, place)}" fill="none" stroke="{"#2a8a3e" if node.kept else "#9999"}" '
        f'stroke-width="{2 if node.kept else 1}"/>'
        for place, node in enumerate(nodes)
        if node.parent >= 0
    ]
    boxes = [box(node, rows[place]) for place, node in enumerate(nodes)]
    kept = sum(node.kept for node in nodes) - 1
    label = f"Draft of {len(nodes) - 1} tokens, {kept} accepted"
    return drawing(width, height, label, [*lines, *boxes])


def places(nodes: Sequence[Node]) -> list[float]:
    """The line of every node: leaves one below the other, a parent in the middle of its children."""
    below: list[list[int]] = [[] for _ in nodes]
    for place, node in enumerate(nodes):
        if node.parent >= 0:
            below[node.parent].append(place)
    rows, free = [0.0] * len(nodes), 0
    order, waiting = [], [0]
    while waiting:  # depth first, so that a subtree's leaves are neighbours
        place = waiting.pop()
        order.append(place)
        waiting += reversed(below[place])
    for place in order:
        if not below[place]:
            rows[place], free = float(free), free + 1
    for place in reversed(order):
        if below[place]:
            rows[place] = (rows[below[place][0]] + rows[below[place][-1]]) / 2
    return rows


def curve(nodes: Sequence[Node], rows: Sequence[float], place: int) -> str:
    """The line from a node's parent to it."""
    node = nodes[place]
    left, right = COLUMN * node.depth - 14, COLUMN * node.depth
    above, here = (LINE * rows[each] + LINE / 2 for each in (node.parent, place))
    return f"M{left} {above} C{left + 10} {above} {right - 10} {here} {right} {here}"


def box(node: Node, row: float) -> str:
    """A token in its box."""
    left, top = COLUMN * node.depth, LINE * row
    fill, stroke = ("#cdeccf", "#2a8a3e") if node.kept else ("#f2f2f2", "#999")
    size = f'width="{COLUMN - 14}" height="{LINE - 6}" rx="5"'
    strike = "" if node.kept else ' text-decoration="line-through"'
    return (
        f"<g><title>{escape(node.text)}: {'accepted' if node.kept else 'rejected'}</title>"
        f'<rect x="{left}" y="{top + 3}" {size} fill="{fill}" stroke="{stroke}"/>'
        f'<text x="{left + 6}" y="{top + LINE / 2 + 4}" font-size="12" font-family="monospace" fill="#222"{strike}>'
        f"{escape(visible(node.text))}</text></g>"
    )


def visible(text: str) -> str:
    """A token's text so that spaces can be seen and it fits."""
    shown = text.replace(" ", "\u00b7").replace("\n", "\u21b5") or "\u2205"
    return shown if len(shown) <= LETTERS else f"{shown[: LETTERS - 1]}\u2026"


def bars(accepted: Sequence[int], verb: str = "accepted") -> str:
    """A bar for every round, as high as the number of drafted tokens it accepted. verb: what it did with them."""
    if not accepted:
        return "<p>Nothing was verified: the answer ended with its first token.</p>"
    most, wide = max(*accepted, 1), max(4, min(14, 800 // len(accepted)))  # a hundred rounds fit on a screen
    height, bottom = 90, 106
    parts = [
        f"<g><title>round {number}: {count} {verb}</title>"
        f'<rect x="{34 + wide * (number - 1)}" y="{bottom - max(height * count / most, 1)}" width="{wide - wide // 4}" '
        f'height="{max(height * count / most, 1)}" fill="{"#2a8a3e" if count else "#b34700"}"/></g>'
        for number, count in enumerate(accepted, 1)
    ]
    pale = 'font-size="12" fill="currentColor" opacity="0.8"'
    for count in (0, most):
        parts.append(f'<text x="4" y="{bottom - height * count / most + 4}" {pale}>{count}</text>')
    text = f"{sum(accepted)} of the drafted tokens were {verb} in {len(accepted)} rounds"
    return f"{drawing(40 + wide * len(accepted), bottom + 6, text, parts)}<p>{text}</p>"


def drawing(width: int, height: int, label: str, parts: Sequence[str]) -> str:
    """An SVG element that scrolls where it is wider than the page."""
    return f'<div class="mm-drawing">{cells.picture(width, height, label, "".join(parts))}</div>'
