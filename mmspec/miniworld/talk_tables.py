"""What can be said and asked about tables of numbers."""

from dataclasses import replace

from mmspec.miniworld.facts import ORDINALS, Table
from mmspec.miniworld.phrases import Ask, Voice, mark, plural
from mmspec.miniworld.talk_charts import arithmetic

CELL = (
    "[{r} [has|shows|gets] {v} [for|in|under] {c}|[for|in|under] {c}, {r} [has|gets|shows] {v}"
    "|the [cell|entry|number] [of|for] {r} [and|under] {c} [is|reads|says] {v}|{v} [stands|is] [under|in] {c} for {r}]"
)


def describe(voice: Voice, table: Table) -> list[str]:
    """Sentences with the title, the size and every cell, row by row."""
    parts = [opening(voice, table)]
    rows = range(len(table.rows))
    order = list(rows) if voice.pick((True, False)) else voice.shuffled(rows)
    return parts + [voice.chain([whole_row(voice, table, row) for row in order])]


def opening(voice: Voice, table: Table) -> str:
    """One sentence with the title and the size."""
    return voice.say(
        "[[this|the picture|the image] [shows|is|presents] a table [with the title|titled|called|named] {t}"
        "|[in|on] [this|the] [picture|image] [we|you] [see|find] a table [titled|called|about] {t}"
        "|{t} is the [title|name|heading] of [this|the] table]"
        "[|, with {r} {rs} and {c} {cs}| [and|which] [has|counts] {r} {rs} and {c} {cs}].",
        t=mark(table.title),
        r=mark(len(table.rows)),
        rs=plural("row", len(table.rows)),
        c=mark(len(table.columns)),
        cs=plural("column", len(table.columns)),
    )


def cell(voice: Voice, table: Table, row: int, column: int) -> str:
    """A clause with one cell."""
    return voice.say(CELL, r=mark(table.rows[row]), c=mark(table.columns[column]), v=mark(table.cells[row][column]))


def whole_row(voice: Voice, table: Table, row: int) -> str:
    """A clause with all cells of a row."""
    if len(table.columns) == 1:
        return cell(voice, table, row, 0)
    columns = range(len(table.columns))
    order = list(columns) if voice.pick((True, False)) else voice.shuffled(columns)
    form = voice.say("{v} [for|in|under] {c}")
    items = [form.format(v=mark(table.cells[row][c]), c=mark(table.columns[c])) for c in order]
    lead = voice.say(
        "[{r} [has|shows|gets]|the row [of|for] {r} [has|reads|shows|contains]|for {r} [we|you|I] [see|read|find]]",
        r=mark(table.rows[row]),
    )
    return lead + " " + voice.join(items)


def best(table: Table, column: int, top: bool) -> int | None:
    """Row of the largest (or smallest) number of a column if it is unique."""
    values = [row[column] for row in table.cells]
    value = max(values) if top else min(values)
    return values.index(value) if values.count(value) == 1 else None


def remarks(voice: Voice, table: Table) -> list[str]:
    """True sentences, in random order, that make an answer longer."""
    out, rows, columns = [], len(table.rows), len(table.columns)
    for top in (True, False):
        column = voice.rng.randrange(columns)
        row = best(table, column, top)
        if row is not None:
            out.append(
                voice.say(
                    "[[in|under] {c}, the %s [number|value] [is|belongs to] {r}[|, with {v}]|{r} has the %s [number|value] [in|under] {c}]."
                    % (("[highest|largest]",) * 2 if top else ("[lowest|smallest]",) * 2),
                    c=mark(table.columns[column]),
                    r=mark(table.rows[row]),
                    v=mark(table.cells[row][column]),
                )
            )
    out.append(
        voice.say(
            "[the first|at the top, the first] [row|line] [is|belongs to] {r}[|, the last [one |]to {z}].",
            r=mark(table.rows[0]),
            z=mark(table.rows[-1]),
        )
    )
    spot = voice.rng.randrange(rows - 1)
    out.append(
        voice.say(
            "[[right |just |]below {a} [comes|follows|stands] {b}|{b} [comes|stands] [right |just |]below {a}].",
            a=mark(table.rows[spot]),
            b=mark(table.rows[spot + 1]),
        )
    )
    heads = voice.join([mark(c) for c in table.columns])
    out.append(
        voice.say(
            "[the [columns are|headings read] {h}|[on top|above], [we|you] [read|see] {h}]."
            if columns > 1
            else "[the only|its only|the single] column is {h}.",
            h=heads,
        )
    )
    out.append(voice.say("[the|its] [rows|names on the left] are {h}.", h=voice.join([mark(r) for r in table.rows])))
    out.append(
        voice.say(
            "[in [all|total]|altogether|all in all], [there are|we count|the table has] {n} numbers.",
            n=mark(rows * columns),
        )
    )
    for row in voice.rng.sample(range(rows), min(3, rows)):
        out.append(whole_row(voice, table, row) + ".")
    return voice.shuffled(out)


def _numbers(table: Table, gold: int) -> tuple[str, ...]:
    pool = {value for row in table.cells for value in row} | {gold + 1, gold + 10, abs(gold - 3)}
    return tuple(str(value) for value in sorted(pool - {gold}))


def ask_cell(voice: Voice, table: Table) -> Ask:
    """One cell."""
    row, column = voice.rng.randrange(len(table.rows)), voice.rng.randrange(len(table.columns))
    r, c, gold = table.rows[row], table.columns[column], table.cells[row][column]
    question = voice.say(
        "[what [number|value] does {r} have [for|in|under] {c}?|what is the [number|value] of {r} [for|in|under] {c}?|which number stands in row {r}, column {c}?]",
        r=r, c=c,
    )  # fmt: skip

    def steps() -> str:
        text = voice.say(
            "[first|to begin|to start], [we|I|you] [look for|search for|find] the row of {r}. [it|this] is the {k} [row|one]. ",
            r=mark(r),
            k=mark(ORDINALS[row]),
        )
        text += voice.say(
            "[next|then|now] [we|I|you] [need|take|go to] the column {c}, [which is|and that is] the {k} one. ",
            c=mark(c),
            k=mark(ORDINALS[column]),
        )
        others = voice.shuffled(i for i in range(len(table.rows)) if i != row)[:2]
        text += voice.chain([whole_row(voice, table, other) for other in others]) + " "
        return text + voice.say("[finally|now|at last], ") + whole_row(voice, table, row) + "."

    def claim(value: str) -> str:
        return voice.say(
            "[[for|in|under] {c}, {r} has|the number of {r} [for|in|under] {c} is|{r} and {c} meet at] {v}",
            c=mark(c),
            r=mark(r),
            v=value,
        )

    return Ask("value", f"cell {r} {c}", question, str(gold), claim, steps, _numbers(table, gold))


def ask_extreme(voice: Voice, table: Table) -> Ask | None:
    """The row with the largest or smallest number of a column."""
    top, column = voice.rng.random() < 0.5, voice.rng.randrange(len(table.columns))
    row = best(table, column, top)
    if row is None:
        return None
    c, gold = table.columns[column], table.rows[row]
    words = "[highest|largest|biggest]" if top else "[lowest|smallest|least]"
    question = voice.say(
        f"[which row has the {words} [number|value] [for|in|under] {{c}}?|[in|under] {{c}}, which row has the {words} [number|value]?]",
        c=c,
    )

    def steps() -> str:
        text = voice.say(
            "[first|to begin|to start], [we|I|you] [read|list|collect] the [numbers|values] [in|under] {c}. ", c=mark(c)
        )
        rows = voice.shuffled(range(len(table.rows)))
        text += voice.chain([cell(voice, table, r, column) for r in rows]) + " "
        return text + voice.say(
            "[of these|among them|comparing them], {v} is the %s [value|number|one], and [it|this] [belongs|goes] to {r}." % words,
            v=mark(table.cells[row][column]), r=mark(gold),
        )  # fmt: skip

    def claim(value: str) -> str:
        return voice.say(
            "[[in|under] {c}, the %s [number|value] [is that of|belongs to]|the %s [one|number] [is that of|belongs to]] {v}"
            % (words, words),
            c=mark(c),
            v=value,
        )

    return Ask(
        "max" if top else "min",
        f"extreme {top} {c}",
        question,
        gold,
        claim,
        steps,
        tuple(r for r in table.rows if r != gold),
        about=(c,),
    )


def _two(voice: Voice, table: Table, limit: int) -> tuple[int, int, int] | None:
    """A column and two rows whose numbers there differ and are at most the limit."""
    found = [
        (c, a, b)
        for c in range(len(table.columns))
        for a in range(len(table.rows))
        for b in range(len(table.rows))
        if a != b and table.cells[a][c] != table.cells[b][c] and max(table.cells[a][c], table.cells[b][c]) <= limit
    ]
    return voice.rng.choice(found) if found else None


def ask_compare(voice: Voice, table: Table) -> Ask | None:
    """Which of two rows has the higher or lower number in a column."""
    two = _two(voice, table, 99)
    if two is None:
        return None
    column, first, second = two
    up = voice.rng.random() < 0.6
    winner, loser = (
        (first, second) if (table.cells[first][column] > table.cells[second][column]) == up else (second, first)
    )
    word, c, a, b, gold = (
        "more" if up else "less",
        table.columns[column],
        table.rows[first],
        table.rows[second],
        table.rows[winner],
    )
    question = voice.say(
        "[which has {w} [for|in|under] {c}, {a} or {b}?|[for|in|under] {c}, which row has {w}, {a} or {b}?]",
        w=word,
        a=a,
        b=b,
        c=c,
    )

    def steps() -> str:
        text = voice.say(
            "[we|I|you] [need to|must|have to] [compare|check|look at] {a} and {b} [in the|under the] column {c}. ",
            a=mark(a),
            b=mark(b),
            c=mark(c),
        )
        text += voice.chain([cell(voice, table, r, column) for r in voice.shuffled([first, second])]) + " "
        high, low = sorted((table.cells[first][column], table.cells[second][column]), reverse=True)
        return text + voice.say(
            "[since|because|as] {x} is [more|greater|larger] than {y}, {g} has {w}.",
            x=mark(high),
            y=mark(low),
            g=mark(gold),
            w=word,
        )

    def claim(value: str) -> str:
        return voice.say(
            "[{v} has {w}|[for|in|under] {c}, {v} has {w}|the one with {w} is {v}]", w=word, v=value, c=mark(c)
        )

    key = f"compare {c} {min(a, b)} {max(a, b)} {up}"
    return Ask("compare", key, question, gold, claim, steps, (table.rows[loser],), about=(a, b, c))


def ask_arithmetic(voice: Voice, table: Table) -> Ask | None:
    """The sum or difference of two numbers of a column, both at most 20."""
    two = _two(voice, table, 20)
    if two is None:
        return None
    column, first, second = two
    ask = arithmetic(
        voice, table.rows[first], table.rows[second], table.cells[first][column], table.cells[second][column],
        lambda: voice.chain([cell(voice, table, r, column) for r in voice.shuffled([first, second])]),
    )  # fmt: skip
    c = table.columns[column]
    question = voice.say("[in|under] [the column |]{c}, ", c=c) + ask.question
    return replace(ask, key=f"{ask.key} {c}", question=question, about=(*ask.about, c))


def ask_size(voice: Voice, table: Table) -> Ask:
    """The number of rows or columns."""
    noun, names = voice.rng.choice((("row", table.rows), ("column", table.columns)))
    gold = str(len(names))
    question = voice.say(
        "[how many {s} [are there|does the table have]?|what is the number of {s}[|, without the heading]?]",
        s=noun + "s",
    )

    def claim(value: str) -> str:
        return voice.say(
            "[there %s|the table has|we count] {v} {s}" % ("is" if value[1:-1] == "1" else "are"),
            v=value,
            s=plural(noun, value[1:-1]),
        )

    wrong = tuple(str(n) for n in range(1, 7) if str(n) != gold)
    return Ask("count", f"count {noun}", question, gold, claim, None, wrong)


def ask_title(voice: Voice, table: Table) -> Ask:
    """The title."""
    question = voice.say("[what is the title[| of the table]?|what is the table about?|how is the table called?]")
    return Ask(
        "title",
        "title",
        question,
        table.title,
        lambda v: voice.say("[the title is|the table is about|it is called] {v}", v=v),
        None,
        table.columns,
    )


TOPICS = {ask_cell: 5, ask_extreme: 3, ask_compare: 3, ask_arithmetic: 2, ask_size: 1, ask_title: 1}
