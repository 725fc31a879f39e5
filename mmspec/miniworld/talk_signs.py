"""What can be said and asked about signs with text."""

from dataclasses import replace

from mmspec.miniworld.facts import COLORS, ORDINALS, Sign
from mmspec.miniworld.phrases import Ask, Voice, mark, plural
from mmspec.miniworld.words import SIGN_WORDS


def quote(text: str) -> str:
    """The text in quotation marks, marked up."""
    return f'"{mark(text)}"'


def describe(voice: Voice, sign: Sign) -> list[str]:
    """Sentences with the colours and every line."""
    return [opening(voice, sign), reading(voice, sign)]


def opening(voice: Voice, sign: Sign) -> str:
    """One sentence with the colours of board and frame."""
    return voice.say(
        "[[this|the picture|the image] [shows|is|presents] a [sign|board] in {b}[, with a| that has a] {f} [frame|border|edge]"
        "|[in|on] [this|the] [picture|image] [we|you] [see|find] a {b} [sign|board] [with|inside] a {f} [frame|border]"
        "|a {f} [frame|border] [runs|goes] around [this|the] {b} [sign|board]].",
        b=mark(sign.board),
        f=mark(sign.frame),
    )


def line_clause(voice: Voice, sign: Sign, index: int) -> str:
    """A clause with the text of one line."""
    where = "[it|the sign|its only line]" if len(sign.lines) == 1 else "[the|its] {k} line"
    return voice.say(
        "[%s [says|reads|shows] {t}|[on|in] the {k} line [we|you|I] [read|see|find] {t}|{t} [stands|is written] [on|in] the {k} line]" % where,
        k=mark(ORDINALS[index]), t=quote(sign.lines[index]),
    )  # fmt: skip


def reading(voice: Voice, sign: Sign) -> str:
    """Sentences with all lines, from top to bottom."""
    return voice.chain([line_clause(voice, sign, index) for index in range(len(sign.lines))])


def words_of(sign: Sign) -> list[str]:
    """All words and numbers of the sign in reading order."""
    return [word for line in sign.lines for word in line.split()]


def spelling(voice: Voice, word: str) -> str:
    """A sentence that spells a word."""
    noun = "number" if word.isdigit() else "word"
    unit = "digit" if word.isdigit() else "letter"
    return voice.say(
        "[the {w} {t} is [written|spelled] {letters}|[spelled|written] out, {t} [is|reads] {letters}"
        "|{t} [has|consists of] {n} {u}[, namely|:] {letters}].",
        w=noun, t=quote(word), letters=", ".join(mark(c) for c in word), n=mark(len(word)), u=plural(unit, len(word)),
    )  # fmt: skip


def longest(sign: Sign) -> int | None:
    """Index of the line with most letters and digits if it is unique."""
    sizes = [len(line.replace(" ", "")) for line in sign.lines]
    return sizes.index(max(sizes)) if len(sizes) > 1 and sizes.count(max(sizes)) == 1 else None


def remarks(voice: Voice, sign: Sign) -> list[str]:
    """True sentences, in random order, that make an answer longer."""
    words, lines = words_of(sign), len(sign.lines)
    out = [
        voice.say(
            "[in [all|total]|altogether|all in all], [there {be}|we count|the sign has] {n} {s}.",
            be="is" if lines == 1 else "are",
            n=mark(lines),
            s=plural("line", lines),
        )
    ]
    out += [spelling(voice, word) for word in voice.rng.sample(words, min(4, len(words)))]
    row = longest(sign)
    if row is not None:
        out.append(
            voice.say(
                "[the longest line is the {k} one|the {k} line is the longest[| one]|of all lines, the {k} is the longest].",
                k=mark(ORDINALS[row]),
            )
        )
    for index in range(lines):
        count = len(sign.lines[index].split())
        out.append(
            voice.say(
                "[the {k} line [has|holds|contains] {n} {s}|{n} {s} [stand|stands] [on|in] the {k} line]." if count == 2 else "[the {k} line [has|holds] [only|just] {n} {s}|{n} {s} [makes|fills] the {k} line].",
                k=mark(ORDINALS[index]), n=mark(count), s=plural("piece", count),
            ).replace("stands", "stand")
        )  # fmt: skip
    if len(words) > 1:
        out.append(
            voice.say(
                "[the [sign|text] [starts|begins|opens] with {a} and [ends|closes|finishes] with {b}|the last [piece|thing] is {b}, the first[| one is] {a}].",
                a=quote(words[0]),
                b=quote(words[-1]),
            )
        )
    numbers = [word for word in words if word.isdigit()]
    if numbers:
        out.append(
            voice.say("[there is|it [has|shows]|we find] the [number|figure] {n}[| on it| too].", n=mark(numbers[0]))
        )
    else:
        out.append(
            voice.say("[there are|it has|we see] {no} [numbers|figures|digits] on [it|the sign].", no=mark("no"))
        )
    out.append(
        voice.say(
            "[the|its] [board|ground|surface] is {b}, [and|while] the [frame|border|edge] is {f}.",
            b=mark(sign.board),
            f=mark(sign.frame),
        )
    )
    word = voice.rng.choice([w for w in words if not w.isdigit()] or words)
    out.append(
        voice.say(
            "[{t} [starts|begins] with {a}[| and ends with {z}]|the first [letter|character] of {t} is {a}[|, the last is {z}]].",
            t=quote(word),
            a=quote(word[0]),
            z=quote(word[-1]),
        )
    )
    return voice.shuffled(out)


def _text_ask(voice: Voice, sign: Sign, topic: str, key: str, question: str, gold: str, lead: str) -> Ask:
    """An ask whose answer is a text of the sign, stated after a lead such as "the first line says"."""

    def steps() -> str:
        text = (
            voice.say("[we|let us|I] [read|go through|follow] the sign from top to bottom. ")
            + reading(voice, sign)
            + " "
        )
        text += " ".join(spelling(voice, word) for word in voice.shuffled(gold.split())[:2])
        return text + " " + voice.say(lead) + f" {quote(gold)}."

    words = words_of(sign)
    wrong = tuple(w for w in words if w != gold and gold in words)
    if len(wrong) < 3 and gold in SIGN_WORDS:
        wrong += tuple(voice.rng.sample([w for w in SIGN_WORDS if w not in words], 3))
    return Ask(topic, key, question, gold, lambda v: voice.say(lead) + f' "{v}"', steps, wrong, quoted=True)


def ask_line(voice: Voice, sign: Sign) -> Ask:
    """The text of one line."""
    index = voice.rng.randrange(len(sign.lines))
    k = ORDINALS[index]
    question = voice.say(
        "[what does the {k} line say?|what is [written|printed] on the {k} line?|read the {k} line: what does it say?]",
        k=k,
    )
    lead = f"[the <{k}> line [says|reads]|[it|this line] [says|reads]|on the <{k}> line [we|you] read]"
    ask = _text_ask(voice, sign, "line", f"line {k}", question, sign.lines[index], lead)
    return replace(ask, about=(k,))


def ask_whole(voice: Voice, sign: Sign) -> Ask:
    """The text of the whole sign."""
    question = voice.say(
        "[what does the [whole |]sign say?|what is [written|printed] on the sign?|what is the full text?]"
    )
    lead = "[the [whole |]sign [says|reads]|[the|its] [full |]text is|it [says|reads]]"
    return _text_ask(voice, sign, "whole", "whole", question, " ".join(sign.lines), lead)


def ask_edge_word(voice: Voice, sign: Sign) -> Ask:
    """The first or last word of the sign."""
    word, index = voice.rng.choice((("first", 0), ("last", -1)))
    question = voice.say(
        "[what is the {w} [word|thing] on the sign?|which word or number comes {w}[| on the sign]?]", w=word
    )
    lead = (
        f"[the {word} [one|word] is|the sign [begins|starts] with|it [begins|starts] with]"
        if index == 0
        else f"[the {word} one is|the sign [ends|closes] with|it [ends|closes] with]"
    )
    return _text_ask(voice, sign, "edge", f"edge {word}", question, words_of(sign)[index], lead)


def ask_number(voice: Voice, sign: Sign) -> Ask | None:
    """The only number on the sign."""
    numbers = [word for word in words_of(sign) if word.isdigit()]
    if len(numbers) != 1:
        return None
    question = voice.say("[which|what] number [is|stands|can you see] on the sign?")
    ask = _text_ask(voice, sign, "number", "number", question, numbers[0], "[the number is|it shows|we read]")
    near = (str(int(numbers[0]) + 1), str(int(numbers[0]) + 10), str(int(numbers[0]) + 5))
    return replace(
        ask, claim=lambda v: voice.say("[the number is|it shows|we read] {v}", v=v), wrong=near, quoted=False
    )


def ask_color(voice: Voice, sign: Sign) -> Ask:
    """The colour of the board or of the frame."""
    part, gold, word = voice.rng.choice(
        (("board", sign.board, "[board|sign]"), ("frame", sign.frame, "[frame|border]"))
    )
    name = voice.say(word)
    question = voice.say("[what color is the {p}?|which color does the {p} have?]", p=name)
    lead = "[the {p} is|its color is|the color of the {p} is] {v}"
    return Ask(
        "color",
        f"color {part}",
        question,
        gold,
        lambda v: voice.say(lead, p=name, v=v),
        None,
        tuple(c for c in COLORS if c != gold),
        about=(name,),
    )


def ask_count(voice: Voice, sign: Sign) -> Ask:
    """The number of lines, of words and numbers, or of the letters of a word."""
    words = words_of(sign)
    kind = voice.rng.choices(("line", "piece", "letter"), (2, 2, 2))[0]
    if kind == "letter":
        word = voice.rng.choice(words)
        unit = "digit" if word.isdigit() else "letter"
        gold, what, of = len(word), unit, f" does {word} have"
        marked = f" in {quote(word)}"
    else:
        gold, what, of = (len(sign.lines), "line", "") if kind == "line" else (len(words), "word", "")
        marked = ""
        word = ""
    noun = "words and numbers" if what == "word" else what + "s"
    question = voice.say(
        "how many {n}{of}?", n=noun, of=of or voice.say(" [are on the sign|does the sign have|are there]")
    )

    def steps() -> str:
        text = (
            voice.say("[first|to begin|to start], [we|I] [read|go through|look at] the sign. ")
            + reading(voice, sign)
            + " "
        )
        parts = list(word) if word else list(sign.lines) if kind == "line" else words
        listed = ", ".join((mark(p) if word else quote(p)) + f" ({mark(i + 1)})" for i, p in enumerate(parts))
        return text + voice.say("[now|then|next] [we|I] count [them|the {n}]: ", n=noun) + listed + "."

    def claim(value: str) -> str:
        one = value[1:-1] == "1"
        be = "is" if one else "are"
        name = plural(what, value[1:-1]) if what != "word" else "word or number" if one else noun
        if word:
            return voice.say("[{m} has|there {be}|we count] {v} {s}", m=quote(word), be=be, v=value, s=name)
        return voice.say("[there {be}|the sign has|we count] {v} {s}{m}", be=be, v=value, s=name, m=marked)

    wrong = tuple(str(n) for n in range(1, 9) if n != gold and abs(n - gold) <= 3)
    return Ask("count", f"count {kind} {word}", question, str(gold), claim, steps, wrong, about=(word,))


TOPICS = {ask_line: 3, ask_whole: 2, ask_edge_word: 2, ask_number: 2, ask_color: 3, ask_count: 3}
