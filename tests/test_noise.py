"""Counter-based noise: a pure function of its counters, uniform, and without visible relation between counters.

Seeds are fixed, so nothing here is flaky; the bounds are those of a false-alarm rate under 1e-6.
"""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from mmspec import noise

INT64 = st.integers(-(2**63), 2**63 - 1)


def seeds(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.long)


@given(st.lists(INT64, min_size=1, max_size=4), st.lists(st.integers(0, 10**6), min_size=1, max_size=4))
def test_a_number_depends_on_nothing_but_its_counters(rows: list[int], positions: list[int]) -> None:
    grid = torch.tensor(positions).expand(len(rows), -1)
    whole = noise.uniform(seeds(*rows), noise.TARGET, grid, 9)
    assert whole.dtype == torch.float32
    assert bool(((whole > 0) & (whole < 1)).all())
    for row, seed in enumerate(rows):
        for index, position in enumerate(positions):
            alone = noise.uniform(seeds(seed), noise.TARGET, torch.tensor([[position]]), 5)
            assert torch.equal(alone[0, 0], whole[row, index, :5])


@given(st.lists(INT64, min_size=1, max_size=4), st.lists(st.integers(0, 999), min_size=1, max_size=7))
def test_numbers_of_some_indices_are_those_that_all_have(rows: list[int], some: list[int]) -> None:
    positions = torch.tensor([[0, 5, 2**40]]).expand(len(rows), -1)
    indices = torch.tensor(some) + torch.arange(3)[:, None]  # others at each position
    indices = indices.expand(len(rows), -1, -1)
    for numbers in (noise.uniform, noise.gumbel):
        whole = numbers(seeds(*rows), noise.TARGET, positions, 1002)
        assert torch.equal(numbers(seeds(*rows), noise.TARGET, positions, indices), whole.gather(-1, indices))


def chi_square(x: Tensor, cells: int) -> float:
    counts = torch.bincount((x.double() * cells).long().flatten(), minlength=cells).double()
    expected = x.numel() / cells
    statistic = ((counts - expected) ** 2).sum() / expected
    return float(torch.special.gammaincc(torch.tensor((cells - 1) / 2, dtype=torch.float64), statistic / 2))


@pytest.mark.parametrize("counter", ["seed", "high seed", "position", "high position", "index"])
def test_numbers_are_uniform_and_neighbours_independent_along_every_counter(counter: str) -> None:
    n = 200_000
    count, one = torch.arange(n), torch.zeros(1, 1, dtype=torch.long)
    if counter == "seed":
        x = noise.uniform(count, noise.TARGET, one.expand(n, 1), 1)
    elif counter == "high seed":
        x = noise.uniform(count << 32, noise.TARGET, one.expand(n, 1), 1)
    elif counter == "position":
        x = noise.uniform(seeds(3), noise.TARGET, count[None], 1)
    elif counter == "high position":
        x = noise.uniform(seeds(3), noise.TARGET, count[None] << 32, 1)
    else:
        x = noise.uniform(seeds(3), noise.TARGET, one, n)
    x = x.flatten()
    assert chi_square(x, 64) > 1e-6
    pairs = (x[:-1].double() * 16).long() * 16 + (x[1:].double() * 16).long()
    assert chi_square((pairs[::2].double() + 0.5) / 256, 256) > 1e-6
    assert abs(float(torch.corrcoef(torch.stack([x[:-1], x[1:]]))[0, 1])) < 5 / n**0.5


def test_streams_rows_and_positions_are_unrelated() -> None:
    positions = torch.arange(100_000)[None]
    base = noise.uniform(seeds(1), noise.TARGET, positions, 1).flatten()
    others = [
        noise.uniform(seeds(1), noise.DRAFT, positions, 1),
        noise.uniform(seeds(1), noise.ACCEPT, positions, 1),
        noise.uniform(seeds(2), noise.TARGET, positions, 1),
        noise.uniform(seeds(1), noise.TARGET, positions + 1, 1),
        noise.uniform(seeds(1), noise.TARGET, positions, 2)[..., 1],
    ]
    for other in others:
        assert abs(float(torch.corrcoef(torch.stack([base, other.flatten()]))[0, 1])) < 5 / 100_000**0.5


def test_the_uniformity_check_finds_a_bad_hash() -> None:
    x = noise.uniform(seeds(3), noise.TARGET, torch.arange(200_000)[None], 1)
    assert chi_square(x**1.02, 64) < 1e-6


def test_compiled_code_makes_the_same_numbers() -> None:
    """Products of 32 bits wrap in it, too, in the rest that fills no vector as well."""
    compiled = torch.compile(noise.uniform, fullgraph=True)
    positions = torch.tensor([[0, 7, 2**40]]).expand(2, -1)
    for width in (3, 1003):
        want = noise.uniform(seeds(5, -(2**63)), noise.DRAFT, positions, width)
        assert torch.equal(compiled(seeds(5, -(2**63)), noise.DRAFT, positions, width), want)


def test_known_values_do_not_change() -> None:
    """A saved seed must give the same answer in every version."""
    got = noise.uniform(seeds(0, 123), noise.TARGET, torch.tensor([[0, 1], [0, 1]]), 2)
    want = [961141, 10507043, 16109361, 3789709, 16290221, 15183135, 12939297, 11710755]
    assert got.flatten().mul(2**24).long().tolist() == want


def test_gumbel_noise_draws_from_a_law() -> None:
    p = torch.tensor([0.5, 0.3, 0.15, 0.05])
    drawn = (
        p.log() + noise.gumbel(torch.arange(100_000), noise.TARGET, torch.zeros(100_000, 1).long(), 4)[:, 0]
    ).argmax(-1)
    counts = torch.bincount(drawn, minlength=4).double()
    statistic = ((counts - 100_000 * p) ** 2 / (100_000 * p)).sum()
    assert float(torch.special.gammaincc(torch.tensor(1.5, dtype=torch.float64), statistic / 2)) > 1e-6


def test_what_recorded_rounds_read_stays_where_it_is() -> None:
    """A graph has its address, and does not ask for it again."""
    place = torch.tensor([[0]])
    noise.uniform(seeds(3), noise.TARGET, place, 97)
    first = noise._indices(97, place.device)
    for width in range(200, 260):
        noise.uniform(seeds(3), noise.TARGET, place, width)
    assert noise._indices(97, place.device) is first
