"""Where an answer ends, inside an accepted run: as if the tokens had come one at a time."""

from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from mmspec.contract import State
from mmspec.errors import InputError
from mmspec.stopping import Stop
from mmspec.tree import chain, path_to

LETTERS = "abc"


def spell(ids: list[int]) -> str:
    return "".join(LETTERS[i] for i in ids)


def feed(stop: Stop, runs: list[list[int]], prompt: list[int], limit: int = 99) -> tuple[list[int], list[int]]:
    """Give a row its first token and then runs of accepted tokens; returns what was emitted, and the drafted counts."""
    pending = torch.tensor([runs[0][0]])
    state = State([list(prompt)], [False], torch.zeros(1), torch.tensor([1]), [limit], pending)
    emitted = list(stop.start(state)[0])
    drafted = []
    for run in [runs[0][1:], *runs[1:]]:
        if not run:
            continue
        draft = chain(torch.tensor([[0, *run[:-1]]]))
        accepted = path_to(draft, torch.tensor([len(run) - 1]), torch.tensor([run[-1]]))
        stop.cut(state, draft, accepted, stop.ask(state, draft, accepted).tolist())
        assert accepted.paths == [list(range(len(run)))]
        emitted += accepted.emitted[0]
        drafted += accepted.drafted
    assert state.ids[0] == prompt + emitted
    assert state.done[0] == bool(stop.finish[0])
    return emitted, drafted


runs = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=5), min_size=1, max_size=6)


@given(
    runs, st.sets(st.integers(0, 2)), st.integers(1, 12), st.lists(st.text(LETTERS, min_size=1, max_size=3), max_size=2)
)
@example([[2], [0, 0]], set(), 12, ["b"])  # which the prompt has, and which is over
def test_runs_end_where_single_tokens_would(
    chunks: list[list[int]], eos: set[int], budget: int, strings: list[str]
) -> None:
    flat = [token for run in chunks for token in run]

    def stop() -> Stop:
        return Stop(list(eos), budget, strings, spell)

    whole, single = stop(), stop()
    prompt = [0, 1]
    assert feed(whole, chunks, prompt)[0] == feed(single, [[token] for token in flat], prompt)[0]
    assert whole.finish == single.finish

    def over(n: int) -> bool:
        """By the words of the documentation: the first n tokens are the answer."""
        text, start = spell(prompt + flat[:n]), len(prompt) + n
        return n >= budget or flat[n - 1] in eos or any(text[:start].endswith(string) for string in strings)

    want = next((n for n in range(1, len(flat) + 1) if over(n)), len(flat))
    assert whole.outputs == [flat[:want]]


def test_tokens_after_the_end_count_as_neither_emitted_nor_drafted() -> None:
    emitted, drafted = feed(Stop([2], 99), [[0], [1, 2, 1, 1], [1, 1]], [0])
    assert emitted == [0, 1, 2]
    assert drafted == [2, 0]
    emitted, drafted = feed(Stop([], 3), [[0], [1, 1, 1, 1]], [0])
    assert emitted == [0, 1, 1]
    assert drafted == [2]


@pytest.mark.parametrize(("eos", "want"), [([0], "stop"), ([], "length")])
def test_the_first_token_can_be_the_last(eos: list[int], want: str) -> None:
    stop = Stop(eos, 1)
    assert feed(stop, [[0]], [1])[0] == [0]
    assert stop.finish == [want]


def test_the_context_ends_an_answer_before_its_budget() -> None:
    stop = Stop([], 10)
    assert feed(stop, [[0], [1, 1, 1, 1]], [1], limit=3)[0] == [0, 1, 1]
    assert stop.finish == ["length"]


def test_a_stop_string_may_be_made_of_parts_of_characters() -> None:
    """Bytes of one character in several tokens: the text before the last byte is no prefix of the text after it."""
    data = list("aあいb".encode())

    def text_of(ids: list[int]) -> str:
        return bytes(ids).decode(errors="replace")

    for string, length in (("あ", 4), ("あい", 7), ("い", 7), ("ab", 8)):
        stop = Stop([], 99, [string], text_of)
        assert feed(stop, [data], [])[0] == data[:length]
    long = "😀😁😂😃"  # four tokens each
    stop = Stop([], 99, [long], text_of)
    assert feed(stop, [list(f"{long}x".encode())], [])[0] == list(long.encode())


@pytest.mark.parametrize("budget", [0, -3, 1.5, None, True, "8"])
def test_a_budget_that_is_no_positive_whole_number_is_refused(budget: Any) -> None:
    with pytest.raises(InputError, match="max_new_tokens=.* is not valid: it must be a whole number, 1 or more"):
        Stop([], budget)


@pytest.mark.parametrize("strings", [[""], ["a", 3]])
def test_a_stop_string_without_text_is_refused(strings: Any) -> None:
    with pytest.raises(InputError, match="stop=.* is not valid"):
        Stop([], 5, strings, spell)
