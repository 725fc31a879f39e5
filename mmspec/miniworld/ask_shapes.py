"""What can be asked about a scene of shapes."""

from functools import partial

from mmspec.miniworld.facts import COLORS, SHAPES, SIZES, TEXTURES, Shapes, Thing
from mmspec.miniworld.phrases import Ask, Voice, mark, plain, plural, there
from mmspec.miniworld.talk_shapes import PLACES, SIDES, full, identify, neighbor, place, sighting

VALUES = {"color": COLORS, "shape": SHAPES, "texture": TEXTURES, "size": SIZES}


def ask_count(voice: Voice, scene: Shapes) -> Ask:
    """The number of things, of all or of those with one attribute."""
    rng = voice.rng
    key = rng.choices(("all", "color", "shape", "texture", "size", "row"), (1, 3, 3, 2, 1, 1))[0]
    if key == "all":
        hits, noun, value = list(scene.things), "{shape}", "all"
    elif key == "row":
        value = rng.choice(("top", "middle", "bottom"))
        hits = [t for t in scene.things if ("top", "middle", "bottom")[t.row] == value]
        noun = "{shape} in the <" + value + "> row"
    else:
        value = getattr(rng.choice(scene.things), key) if rng.random() < 0.85 else rng.choice(VALUES[key])
        hits = [t for t in scene.things if getattr(t, key) == value]
        noun = "<{shape}>" if key == "shape" else f"<{value}> {{shape}}"
    word = value if key == "shape" else voice.say("[shape|thing|object]")
    gold, many = str(len(hits)), noun.replace("{shape}", plural(word, 2))
    question = voice.say(
        "[how many {s} [are there|can you see|does the picture show]?|what is the number of {s}?]", s=plain(many)
    )

    def named(number: str) -> str:
        return noun.replace("{shape}", plural(word, number))

    def steps() -> str:
        text = voice.say("[we|let us|I] go through the [picture|image|scene] [one by one|thing by thing|in order]. ")
        ordered = sorted(scene.things, key=lambda t: (t.row, t.column))
        text += voice.chain([_vote(voice, thing, thing in hits, key) for thing in ordered]) + " "
        return text + voice.say(
            "[in total|altogether|so|all in all], {there} {n} {s}.",
            there=there(gold),
            n=mark(gold),
            s=named(gold),
        )

    def claim(value: str) -> str:
        return voice.say(
            "[{there} {n} {s}|the number of {many} is {n}]",
            there=there(value[1:-1]),
            n=value,
            s=named(value[1:-1]),
            many=many,
        )

    wrong = tuple(str(n) for n in range(7) if str(n) != gold and abs(n - int(gold)) <= 3)
    return Ask("count", f"count {key} {value}", question, gold, claim, steps, wrong)


def _vote(voice: Voice, thing: Thing, counts: bool, key: str) -> str:
    """A clause that says whether a thing counts."""
    what = full(thing) if voice.pick((True, False)) else f"{mark(thing.color)} {mark(thing.shape)}"
    if key in ("texture", "size"):
        what = full(thing)
    verdict = "[<counts>|<fits>|<belongs> to them]" if counts else "[<does> <not> [count|fit]|<fails>|is <left> <out>]"
    return voice.say(f"the {{what}} at the {{place}} {verdict}", what=what, place=mark(place(thing)))


def ask_attribute(voice: Voice, scene: Shapes) -> Ask | None:
    """The colour, shape, texture or size of one thing that is named without it."""
    key = voice.rng.choices(("color", "shape", "texture", "size"), (4, 4, 3, 2))[0]
    thing = voice.rng.choice(scene.things)
    name, gold = identify(voice, scene, thing, hidden=key), getattr(thing, key)
    if name is None:
        return None
    question = voice.say(
        {
            "color": "[what color is {t}?|which color does {t} have?]",
            "shape": "[what shape is {t}?|which shape does {t} have?]",
            "texture": "[what [pattern|texture] does {t} have?|is {t} plain, striped, dotted or checked?]",
            "size": "[is {t} small or large?|what size is {t}?]",
        }[key],
        t=plain(name),
    )

    def claim(value: str) -> str:
        return voice.say(
            {
                "color": "[{t} is|its color is|the color of {t} is] {v}",
                "shape": "[{t} is a|its shape is a|it is a] {v}",
                "texture": "[{t} is|its [pattern|texture] is|it [looks|is]] {v}",
                "size": "[{t} is|it [looks|is]|its size is] {v}",
            }[key],
            t=name,
            v=value,
        )

    wrong = tuple(v for v in VALUES[key] if v != gold)
    steps = partial(_locate, voice, scene, thing, name)
    return Ask(key, f"{key} {place(thing)}", question, gold, claim, steps, wrong, about=(plain(name),))


def _locate(voice: Voice, scene: Shapes, thing: Thing, name: str) -> str:
    """Steps that find a thing among the others."""
    others = voice.shuffled([t for t in scene.things if t != thing])[:3]
    text = voice.say("[first|to start|to begin], [we|I|you] [look for|search for|must find] {t}. ", t=name)
    if others:
        text += (
            voice.say("[elsewhere|around it|apart from it], ") + voice.chain([sighting(voice, t) for t in others]) + " "
        )
    return text + voice.say(
        "[the one|what] [we|I] [want|need|look for] [is|sits|stands] at the {p}, and it is a {full}.",
        p=mark(place(thing)),
        full=full(thing),
    )


def ask_place(voice: Voice, scene: Shapes) -> Ask | None:
    """Where a thing is."""
    thing = voice.rng.choice(scene.things)
    name, gold = identify(voice, scene, thing, hidden="place"), place(thing)
    if name is None:
        return None
    question = voice.say(
        "[where is {t}?|[at|in] which [place|position] is {t}?|in which part of the picture is {t}?]", t=plain(name)
    )

    def claim(value: str) -> str:
        return voice.say(
            "[{t} [is|sits|stands] [at|in]|it [is|sits|stands] [at|in]|you find it [at|in]] the {v}", t=name, v=value
        )

    wrong = tuple(p for row in PLACES for p in row if p != gold)
    steps = partial(_locate, voice, scene, thing, name)
    return Ask("position", f"place {gold}", question, gold, claim, steps, wrong, about=(plain(name),))


def ask_neighbor(voice: Voice, scene: Shapes) -> Ask | None:
    """The shape, colour or texture of the nearest thing on one side in the same row or column."""
    pairs = [(t, side, u) for t in scene.things for side in SIDES if (u := neighbor(scene, t, side))]
    if not pairs:
        return None
    thing, side, other = voice.rng.choice(pairs)
    key = voice.rng.choices(("shape", "color", "texture"), (3, 3, 1))[0]
    name, gold = identify(voice, scene, thing), getattr(other, key)
    if name is None:
        return None
    line = "column" if side in ("above", "below") else "row"
    question = voice.say(
        "[in the same {line}, what {key} is [the thing |]next {side} {t}?|what {key} is the nearest thing {side} {t} in [its|the same] {line}?]",
        line=line, key=key, side=side, t=plain(name),
    )  # fmt: skip

    def steps() -> str:
        text = voice.say("[first|to start|to begin], [we|I|you] [look for|search for|must find] {t}. ", t=name)
        text += voice.say("[it|this one] is a {full} [at|in] the {p}. ", full=full(thing), p=mark(place(thing)))
        return text + voice.say(
            "[now|then|next] [we|I|you] [look|move|go] [along|through] the {line}: {side} it, at the {p}, [there is|we see|stands] a {full}.",
            line=line, side=mark(side), p=mark(place(other)), full=full(other),
        )  # fmt: skip

    def claim(value: str) -> str:
        article = "a " if key == "shape" else ""
        return voice.say(
            "[the {key} [next |]{side} it is|the thing {side} {t} is|{side} {t}, the {key} is] {v}",
            key=key, side=mark(side), t=name, v=article + value,
        )  # fmt: skip

    wrong = tuple(v for v in VALUES[key] if v != gold)
    spot = f"relation {place(thing)} {side} {key}"
    return Ask("relation", spot, question, gold, claim, steps, wrong, about=(plain(name),))


TOPICS = {ask_count: 5, ask_attribute: 6, ask_place: 2, ask_neighbor: 3}
