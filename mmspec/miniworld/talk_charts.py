"""What can be said and asked about bar, line and pie charts."""

from collections.abc import Callable

from mmspec.miniworld.facts import COLORS, ORDINALS, Chart
from mmspec.miniworld.phrases import Ask, Voice, mark, plural, there

NOUNS = {"bar": "bar", "line": "point", "pie": "slice"}
HIGHEST = {"bar": "[highest|tallest|longest]", "line": "[highest|top|upper]", "pie": "[largest|biggest|widest]"}
LOWEST = {
    "bar": "[lowest|shortest|smallest]",
    "line": "[lowest|bottom|deepest]",
    "pie": "[smallest|thinnest|narrowest]",
}
HIGHER = {"bar": "[higher|taller|longer]", "line": "[higher|further up|larger]", "pie": "[larger|bigger|wider]"}
READINGS = {
    "bar": "[{c} [reaches|has|shows] {v}|the [bar|column|value] [of|for|at] {c} [is|reaches|ends at|shows] {v}"
    "|for {c} [we|I|you] [read|see|find] {v}|{v} [belongs|goes] to {c}|at {c} [there is|we see|stands] {v}]",
    "line": "[{c} [lies|is|stands] at {v}|the [point|value|line] [for|of|at] {c} [is|reaches|lies at] {v}"
    "|for {c} [we|I|you] [read|see|find] {v}|at {c} [there is|we see|stands] {v}|{v} [belongs|goes] to {c}]",
    "pie": "[{c} [takes|has|covers|fills] {v} percent|the [slice|part|share] [of|for] {c} [is|takes|measures] {v}"
    " percent|for {c} [we|I|you] [read|see|find] {v} percent|{v} percent [belong|go] to {c}]",
}


def describe(voice: Voice, chart: Chart) -> list[str]:
    """Sentences that name the kind, the title, every value and the extremes."""
    parts = [opening(voice, chart)]
    order = range(len(chart.values)) if voice.pick((True, False)) else voice.shuffled(range(len(chart.values)))
    parts.append(listing(voice, chart, list(order)))
    extremes = [extreme(voice, chart, True), extreme(voice, chart, False)]
    parts += voice.shuffled([text for text in extremes if text])
    return parts


def opening(voice: Voice, chart: Chart) -> str:
    """One sentence with the kind and the title."""
    template = (
        "[[this|the picture|the image] [shows|is|presents] a {kind} chart [with the title|titled|called|named] {title}"
        "|[in|on] [this|the] [picture|image] [we|you] [see|find] a {kind} chart [titled|called|about] {title}"
        "|{title} is the [title|name|heading] of [this|the] {kind} chart]"
        "[|, [with|made of|built from] {n} {nouns}| [and|which] [has|counts|holds] {n} {nouns}]."
    )
    count = len(chart.values)
    noun = plural(NOUNS[chart.kind], count)
    return voice.say(template, kind=mark(chart.kind), title=mark(chart.title), n=mark(count), nouns=noun)


def reading(voice: Voice, chart: Chart, index: int) -> str:
    """A clause with the value of one category."""
    return voice.say(READINGS[chart.kind], c=mark(chart.categories[index]), v=mark(chart.values[index]))


def listing(voice: Voice, chart: Chart, order: list[int]) -> str:
    """Sentences with the values of the given categories."""
    if voice.pick((True, False)):
        return voice.chain([reading(voice, chart, index) for index in order])
    form = voice.pick(("{v} for {c}", "{c} with {v}", "{c} at {v}", "{v} at {c}"))
    items = [form.format(c=mark(chart.categories[i]), v=mark(chart.values[i])) for i in order]
    lead = voice.say(
        "[the [values|numbers|figures] [are|read]|[we|you|I] [find|read|see|get]|here [we|you] [have|see]]"
    )
    return lead + " " + voice.join(items) + "."


def best(chart: Chart, top: bool) -> int | None:
    """Index of the highest (or lowest) value if it is unique."""
    value = max(chart.values) if top else min(chart.values)
    return chart.values.index(value) if chart.values.count(value) == 1 else None


def extreme(voice: Voice, chart: Chart, top: bool) -> str:
    """A sentence about the highest or lowest value; empty if it is shared."""
    index = best(chart, top)
    if index is None:
        return ""
    words = voice.say(HIGHEST[chart.kind] if top else LOWEST[chart.kind])
    return voice.say(
        "[[the|its] {words} {noun} [is|belongs to] {c}[|, with {v}|, at {v}]|[clearly|overall|in total], {c} [is|has] the"
        " {words} [{noun}|one]|[{c} has|at {c} there is] the {words} {noun}[| of all| here]].",
        words=words,
        noun=NOUNS[chart.kind],
        c=mark(chart.categories[index]),
        v=mark(chart.values[index]),
    )


def remarks(voice: Voice, chart: Chart) -> list[str]:
    """True sentences, in random order, that make an answer longer."""
    noun, count = NOUNS[chart.kind], len(chart.values)
    pick = voice.rng.sample(range(count), 2)
    out = [
        voice.say(
            "[in [all|total]|altogether|all in all], [there are|we count|the chart has] {n} {s}.",
            n=mark(count),
            s=plural(noun, count),
        )
    ]
    low, high = sorted(pick, key=lambda i: chart.values[i])
    if chart.values[low] < chart.values[high]:
        out.append(
            voice.say(
                "[{a} is [clearly |somewhat |]%s than {b}|[compared with|next to] {b}, {a} is %s|{a} [beats|exceeds|tops] {b}]."
                % (HIGHER[chart.kind], HIGHER[chart.kind]),
                a=mark(chart.categories[high]),
                b=mark(chart.categories[low]),
            )
        )
    if chart.kind != "pie":
        out.append(
            voice.say(
                "[the|its] [axis|scale] [goes|runs|reaches] [up |]to {top}[|, with [lines|marks] every {step}|, in steps of {step}].",
                top=mark(chart.axis_max),
                step=mark(chart.step),
            )
        )
        spot = voice.rng.randrange(count - 1)
        pair = {"a": mark(chart.categories[spot]), "b": mark(chart.categories[spot + 1])}
        out.append(
            voice.say(
                "[[right |just |]after {a} [comes|follows|stands] {b}|{a} [comes|stands] [right |just |]before {b}].",
                **pair,
            )
        )
        out.append(
            voice.say(
                "[the first|on the left, the first|going from the left, the first] [name|label] is {c}.",
                c=mark(chart.categories[0]),
            )
        )
    if chart.kind == "line":
        out.append(voice.say("[the|its] [line|curve] is [drawn|painted|shown] in {c}.", c=mark(chart.colors[0])))
    else:
        clauses = [
            voice.say(
                "[the {s} [of|for] {c} is [|drawn in |painted |colored ]{color}|{c} [has|uses] [the color |]{color}"
                "|{color} is the color [of|for] {c}]",
                s=noun,
                c=mark(chart.categories[index]),
                color=mark(chart.colors[index]),
            )
            for index in pick
        ]
        out.append(voice.chain(clauses))
    for size in (2, 3):
        some = voice.rng.sample(range(count), min(size, count))
        out.append(listing(voice, chart, some))
    return voice.shuffled(out)


def ask_value(voice: Voice, chart: Chart) -> Ask:
    """The value of a category."""
    index = voice.rng.randrange(len(chart.values))
    name, gold = chart.categories[index], str(chart.values[index])
    question = voice.say(
        "[what [percentage|share in percent] does {c} [have|take]?|how many percent [belong to|has] {c}?]"
        if chart.kind == "pie"
        else "[what is the value [of|for] {c}?|[which|what] value does {c} [have|show]?|how [high|much] is {c}?]",
        c=name,
    )

    def steps() -> str:
        noun = NOUNS[chart.kind]
        where = voice.say(
            "[first|to start], [we|I|you] [look for|search for|find] the {noun} [of|for] {c}[| in the chart].",
            noun=noun,
            c=mark(name),
        )
        if chart.kind != "pie":
            where += " " + voice.say(
                "[it|this] is the {k} {noun} [from|counted from] the left.", k=mark(ORDINALS[index]), noun=noun
            )
        around = [i for i in range(len(chart.values)) if i != index]
        others = voice.shuffled(around)[:2]
        middle = voice.say("[for [comparison|reference]|around it|elsewhere], ") + voice.chain(
            [reading(voice, chart, i) for i in others]
        )
        last = voice.say("[finally|now|at last], ") + reading(voice, chart, index) + "."
        return f"{where} {middle} {last}"

    return Ask(
        "value",
        f"value {name}",
        question,
        gold,
        lambda v: _value_claim(voice, chart, name, v),
        steps,
        _others(voice, chart, gold),
    )


def _value_claim(voice: Voice, chart: Chart, name: str, value: str) -> str:
    unit = " percent" if chart.kind == "pie" else ""
    template = "[{c} [has|reaches|shows]|the [value|%s] [of|for] {c} [is|reaches|shows]] {v}" % NOUNS[chart.kind]
    return voice.say(template, c=mark(name), v=value) + unit


def _others(voice: Voice, chart: Chart, gold: str) -> tuple[str, ...]:
    """Numbers that are not the gold one: other values first, then near ones."""
    number = int(gold)
    pool = {str(value) for value in chart.values} | {
        str(number + chart.step),
        str(max(number - chart.step, 0)),
        str(number + 2),
    }
    return tuple(sorted(pool - {gold}))


def ask_extreme(voice: Voice, chart: Chart) -> Ask | None:
    """The category with the highest or lowest value."""
    top = voice.rng.random() < 0.5
    index = best(chart, top)
    if index is None:
        return None
    noun, words = NOUNS[chart.kind], HIGHEST[chart.kind] if top else LOWEST[chart.kind]
    gold = chart.categories[index]
    question = voice.say(
        f"[[which|what] [category|name] has the {words} {noun}?|where is the {words} {noun}?|whose {noun} is [the |]{words}?]"
    )

    def steps() -> str:
        text = voice.say("[first|to begin|to start], [we|I|you] [read|list|collect] [all |]the values. ")
        text += listing(voice, chart, voice.shuffled(range(len(chart.values)))) + " "
        return text + voice.say(
            "[of these|among them|comparing them], {v} is the %s [value|number|one], and [it|this] [belongs|goes] to {c}."
            % ("[highest|largest]" if top else "[lowest|smallest]"),
            v=mark(chart.values[index]),
            c=mark(gold),
        )

    def claim(value: str) -> str:
        return voice.say("[the %s %s [is|belongs to] {v}|{v} has the %s %s]" % (words, noun, words, noun), v=value)

    return Ask(
        "max" if top else "min",
        f"extreme {top}",
        question,
        gold,
        claim,
        steps,
        tuple(c for c in chart.categories if c != gold),
    )


def ask_compare(voice: Voice, chart: Chart) -> Ask | None:
    """Which of two categories is higher or lower."""
    first, second = voice.rng.sample(range(len(chart.values)), 2)
    if chart.values[first] == chart.values[second]:
        return None
    up = voice.rng.random() < 0.6
    winner, loser = (first, second) if (chart.values[first] > chart.values[second]) == up else (second, first)
    word = "higher" if up else "lower"
    a, b, gold = chart.categories[first], chart.categories[second], chart.categories[winner]
    question = voice.say(
        "[which [one |]is {w}, {a} or {b}?|which has the {w} value, {a} or {b}?|between {a} and {b}, which is {w}?]",
        w=word,
        a=a,
        b=b,
    )

    def steps() -> str:
        text = voice.say(
            "[we|I|you] [need to|must|have to] [compare|check|look at] {a} and {b}. ", a=mark(a), b=mark(b)
        )
        text += voice.chain([reading(voice, chart, i) for i in voice.shuffled([first, second])]) + " "
        return text + voice.say(
            "[since|because|as] {x} is [more|greater|larger] than {y}, {hi} is [the |]higher [one |]and {lo} is [the |]lower[| one].",
            x=mark(max(chart.values[first], chart.values[second])),
            y=mark(min(chart.values[first], chart.values[second])),
            hi=mark(chart.categories[winner if up else loser]),
            lo=mark(chart.categories[loser if up else winner]),
        )

    def claim(value: str) -> str:
        return voice.say("[the {w} [one|value] [is|belongs to] {v}|{v} is {w}|{v} has the {w} value]", w=word, v=value)

    key = f"compare {min(a, b)} {max(a, b)} {up}"
    return Ask("compare", key, question, gold, claim, steps, (chart.categories[loser],), about=(a, b))


def ask_arithmetic(voice: Voice, chart: Chart) -> Ask | None:
    """The sum or difference of two values of at most 20."""
    fit = [i for i, value in enumerate(chart.values) if value <= 20]
    if len(fit) < 2:
        return None
    first, second = voice.rng.sample(fit, 2)
    return arithmetic(
        voice, chart.categories[first], chart.categories[second], chart.values[first], chart.values[second],
        lambda: voice.chain([reading(voice, chart, i) for i in voice.shuffled([first, second])]),
    )  # fmt: skip


def arithmetic(voice: Voice, a: str, b: str, x: int, y: int, readings: Callable[[], str]) -> Ask:
    """A question about the sum or the difference of two named values x and y (shared with tables)."""
    add = voice.rng.random() < 0.5
    gold = str(x + y if add else abs(x - y))
    question = voice.say(
        "[what is the [sum|total] of {a} and {b}?|how much [are|is] {a} and {b} together?|add {a} and {b}: what is the sum?]"
        if add
        else "[what is the [difference|gap|distance] between {a} and {b}?|by how much do {a} and {b} differ?|how far apart are {a} and {b}?]",
        a=a,
        b=b,
    )

    def steps() -> str:
        text = (
            voice.say("[first|to begin|to start], [we|I|you] [look up|read|find] [both|the two] [values|numbers]. ")
            + readings()
            + " "
        )
        if add:
            say = "[now|then|next] [we|I] [add|sum] [them|both|the two]: "
        else:
            say = "[now|then|next] [we|I] [subtract|take away] the [smaller|lesser] [one|number|value]: "
        return text + voice.say(say) + calculation(voice, x, y, add) + "."

    def claim(value: str) -> str:
        if add:
            return voice.say(
                "[{a} and {b} [together |]make|the [sum|total] is|together they [make|give]] {v}",
                a=mark(a),
                b=mark(b),
                v=value,
            )
        return voice.say(
            "[{a} and {b} differ by|the [difference|gap] is|they are apart by] {v}", a=mark(a), b=mark(b), v=value
        )

    wrong = tuple(str(w) for w in sorted({int(gold) + 1, int(gold) + 3, abs(int(gold) - 2), x, y} - {int(gold)}))
    topic = "sum" if add else "difference"
    return Ask(topic, f"{topic} {min(a, b)} {max(a, b)}", question, gold, claim, steps, wrong, about=(a, b))


def calculation(voice: Voice, x: int, y: int, add: bool) -> str:
    """A clause that adds two numbers, or takes the smaller from the larger."""
    if add:
        return voice.say("{x} plus {y} [makes|is|gives] {g}", x=mark(x), y=mark(y), g=mark(x + y))
    low, high = sorted((x, y))
    return voice.say("{x} minus {y} [is|leaves|gives] {g}", x=mark(high), y=mark(low), g=mark(high - low))


def ask_above(voice: Voice, chart: Chart) -> Ask:
    """How many values lie above (or below) a threshold."""
    up, limit = voice.rng.random() < 0.6, chart.step * voice.rng.randint(1, 4)
    word = "above" if up else "below"
    hits = [i for i, v in enumerate(chart.values) if (v > limit if up else v < limit)]
    noun, gold = NOUNS[chart.kind], str(len(hits))
    unit = " percent" if chart.kind == "pie" else ""
    question = voice.say("how many {s} [are|lie] {w} {n}{unit}?", s=plural(noun, 2), w=word, n=limit, unit=unit)

    def steps() -> str:
        text = voice.say("[we|I|let us] [go|walk] through the {s} [one by one|in turn]. ", s=plural(noun, 2))
        text += listing(voice, chart, list(range(len(chart.values)))) + " "
        found = voice.join([mark(chart.categories[i]) for i in hits]) if hits else mark("none")
        return text + voice.say(
            "[only|just|of these,] {found} {be} {w} {n}, [which|and that] [makes|gives] {g}.",
            found=found,
            be="are" if len(hits) > 1 else "is",
            w=word,
            n=mark(limit),
            g=mark(gold),
        )

    def claim(value: str) -> str:
        template = "[{w} {n}{unit} {there} {v} {s}|the number of {all} {w} {n}{unit} is {v}]"
        return voice.say(
            template,
            w=word,
            n=mark(limit),
            unit=unit,
            v=value,
            s=plural(noun, value[1:-1]),
            all=noun + "s",
            there=there(value[1:-1]),
        )

    wrong = tuple(str(n) for n in range(len(chart.values) + 1) if n != len(hits))
    return Ask("above", f"above {word} {limit}", question, gold, claim, steps, wrong)


def ask_count(voice: Voice, chart: Chart) -> Ask:
    """The number of bars, points or slices."""
    noun, gold = NOUNS[chart.kind], str(len(chart.values))
    question = voice.say(
        "[how many {s} [are there|can you see|does the chart have]?|what is the number of {s}?]", s=noun + "s"
    )

    def steps() -> str:
        order = voice.join([mark(c) for c in chart.categories])
        text = (
            voice.say("[let us|we|I] count the {s}[| with care| slowly]. [there are|we have|I see] ", s=noun + "s")
            + order
            + ". "
        )
        numbers = ", ".join(mark(i + 1) for i in range(len(chart.values)))
        return text + voice.say("[counting|numbering] [them|these] [gives|yields]: {numbers}.", numbers=numbers)

    def claim(value: str) -> str:
        return voice.say("[there are|the chart [has|shows]|we count] {v} {s}", v=value, s=noun + "s")

    wrong = tuple(str(n) for n in range(2, 10) if str(n) != gold and abs(n - int(gold)) < 4)
    return Ask("count", "count", question, gold, claim, steps, wrong)


def ask_trend(voice: Voice, chart: Chart) -> Ask | None:
    """Whether a line rises or falls between two neighbours."""
    spot = voice.rng.randrange(len(chart.values) - 1)
    x, y = chart.values[spot : spot + 2]
    if chart.kind != "line" or x == y:
        return None
    gold, bad = ("rising", "falling") if y > x else ("falling", "rising")
    a, b = chart.categories[spot], chart.categories[spot + 1]
    question = voice.say(
        "[is the line rising or falling from {a} to {b}?|between {a} and {b}, is the line rising or falling?]", a=a, b=b
    )

    def steps() -> str:
        text = voice.say("[we|I|you] [follow|trace] the line from {a} to {b}. ", a=mark(a), b=mark(b))
        text += voice.chain([reading(voice, chart, spot), reading(voice, chart, spot + 1)]) + " "
        return text + voice.say(
            "[since|because|as] {y} is {w} than {x}, the [line|curve] is {g} [here|there].",
            x=mark(x), y=mark(y), w=mark("more" if y > x else "less"), g=mark(gold),
        )  # fmt: skip

    def claim(value: str) -> str:
        return voice.say(
            "[from {a} to {b} the line is|between {a} and {b} the line is|there it is] {v}",
            a=mark(a),
            b=mark(b),
            v=value,
        )

    return Ask("trend", f"trend {a}", question, gold, claim, steps, (bad,), about=(a, b))


def ask_color(voice: Voice, chart: Chart) -> Ask:
    """The colour of a bar or slice, or of the line."""
    index = voice.rng.randrange(len(chart.values))
    name, gold, noun = chart.categories[index], chart.colors[index], NOUNS[chart.kind]
    if chart.kind == "line":
        what, key = "line", "color"
    else:
        what, key = f"{noun} of {name}", f"color {name}"
    question = voice.say("[what color is the {what}?|which color does the {what} have?]", what=what)
    marked = what if chart.kind == "line" else f"{noun} of {mark(name)}"

    def claim(value: str) -> str:
        return voice.say("[the {what} is [|drawn in |painted ]{v}|its color is {v}|it is {v}]", what=marked, v=value)

    return Ask("color", key, question, gold, claim, None, tuple(c for c in COLORS if c != gold), about=(what,))


def ask_owner(voice: Voice, chart: Chart) -> Ask | None:
    """The category of the bar or slice of a colour that occurs once."""
    index = voice.rng.randrange(len(chart.values))
    color, gold, noun = chart.colors[index], chart.categories[index], NOUNS[chart.kind]
    if chart.kind == "line" or chart.colors.count(color) > 1:
        return None
    question = voice.say(
        "[which [category|name] has the {c} {s}?|[what|who] does the {c} {s} [stand for|belong to]?]", c=color, s=noun
    )

    def claim(value: str) -> str:
        return voice.say(
            "[the {c} {s} [belongs to|is for]|it [belongs to|stands for]] {v}", c=mark(color), s=noun, v=value
        )

    wrong = tuple(c for c in chart.categories if c != gold)
    return Ask("owner", f"owner {color}", question, gold, claim, None, wrong, about=(color,))


TOPICS = {
    ask_value: 4, ask_extreme: 3, ask_compare: 3, ask_arithmetic: 2, ask_above: 2, ask_count: 1, ask_trend: 3, ask_color: 2,
    ask_owner: 1,
}  # fmt: skip
