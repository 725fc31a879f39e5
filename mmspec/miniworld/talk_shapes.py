"""What can be said about a scene of shapes: how things are named, where they are, and the long description."""

from mmspec.miniworld.facts import Shapes, Thing
from mmspec.miniworld.phrases import Voice, mark, plural, there

PLACES = (
    ("top left", "top center", "top right"),
    ("middle left", "center", "middle right"),
    ("bottom left", "bottom center", "bottom right"),
)
ATTRIBUTES = ("size", "texture", "color", "shape")
SIDES = {"left of": (0, -1), "right of": (0, 1), "above": (-1, 0), "below": (1, 0)}


def place(thing: Thing) -> str:
    """Name of the thing's cell."""
    return PLACES[thing.row][thing.column]


def full(thing: Thing) -> str:
    """The thing with all its attributes, without article."""
    return " ".join(mark(getattr(thing, name)) for name in ATTRIBUTES)


def identify(voice: Voice, scene: Shapes, thing: Thing, hidden: str = "") -> str | None:
    """A short name that fits only this thing and does not tell the hidden attribute; None if there is none.

    The name is built from attributes, or from the place unless that is what is hidden.
    """
    sets = [
        ("color", "shape"),
        ("shape",),
        ("texture", "shape"),
        ("color",),
        ("size", "shape"),
        ("texture", "color", "shape"),
        ("texture",),
    ]
    names = []
    for keys in sets:
        same = [t for t in scene.things if all(getattr(t, k) == getattr(thing, k) for k in keys)]
        if hidden not in keys and len(same) == 1:
            words = " ".join(mark(getattr(thing, k)) for k in keys)
            names.append("the " + words + ("" if "shape" in keys else " [thing|shape|one]"))
    if hidden != "place":
        noun = "thing" if hidden == "shape" else mark(thing.shape) if voice.rng.random() < 0.5 else "thing"
        names.insert(min(1, len(names)), f"the {noun} at the {mark(place(thing))}")
    return voice.say(voice.pick(names[:5])) if names else None


def neighbor(scene: Shapes, thing: Thing, side: str) -> Thing | None:
    """The nearest thing on that side in the same row or column."""
    down, across = SIDES[side]
    cells = {(t.row, t.column): t for t in scene.things}
    for distance in (1, 2):
        found = cells.get((thing.row + distance * down, thing.column + distance * across))
        if found:
            return found
    return None


def ground(voice: Voice, scene: Shapes) -> str:
    """The background as a noun phrase with article."""
    return voice.say("[a|one] [|plain-looking |simple |calm ]{color} background", color=mark(scene.background))


def sighting(voice: Voice, thing: Thing) -> str:
    """A clause with everything about one thing."""
    return voice.say(
        "[[at|in] the {place} [there is|is|we see|you find|stands] a {full}|a {full} [is|sits|stands|appears] [at|in] the {place}"
        "|the {place} [holds|shows|contains] a {full}]",
        place=mark(place(thing)),
        full=full(thing),
    )


def describe(voice: Voice, scene: Shapes) -> list[str]:
    """Sentences with the background, the number of things and every thing."""
    ordered = sorted(scene.things, key=lambda t: (t.row, t.column))
    things = ordered if voice.pick((True, False)) else voice.shuffled(ordered)
    return [opening(voice, scene), voice.chain([sighting(voice, thing) for thing in things])]


def opening(voice: Voice, scene: Shapes) -> str:
    """One sentence with the number of things and the background."""
    count = len(scene.things)
    return voice.say(
        "[[the|this] [picture|image|scene] [shows|contains|has] {n} {s} on {ground}"
        "|[there {be}|we see|you can see] {n} {s} [on|in front of] {ground}"
        "|[on|over] {ground}, [we [see|find]|there {be}] {n} {s}].",
        n=mark(count),
        s=plural(voice.say("[shape|thing|object|figure]"), count),
        ground=ground(voice, scene),
        be=there(count).split()[1],
    )


def remarks(voice: Voice, scene: Shapes) -> list[str]:
    """True sentences, in random order, that make an answer longer."""
    rng = voice.rng
    out = [tally(voice, scene, key) for key in ("color", "shape", "texture", "size")]
    row = rng.randrange(3)
    number = sum(t.row == row for t in scene.things)
    out.append(
        voice.say(
            "[the {row} row [holds|has|contains] {n} {s}|[in|along] the {row} row {there} {n} {s}].",
            row=mark(("top", "middle", "bottom")[row]),
            n=mark(number),
            s=plural("thing", number),
            there=there(number),
        )
    )
    pairs = [(t, side, u) for t in scene.things for side in SIDES if (u := neighbor(scene, t, side))]
    for thing, side, other in rng.sample(pairs, min(2, len(pairs))):
        first, second = identify(voice, scene, thing), identify(voice, scene, other)
        template = "[{side} {a} [is|stands|comes] {b}|{b} [is|stands|lies] [directly|just|right] {side} {a}]."
        out.append(voice.say(template, side=mark(side), a=first, b=second))
    looks = (
        "[{what} is [quite |]{size}[, with|, and has] a {texture} [surface|filling|pattern]"
        "|[looking closely|in detail], {what} [is|appears] {texture} and {size}]."
    )
    for thing in rng.sample(scene.things, min(2, len(scene.things))):
        out.append(
            voice.say(looks, what=identify(voice, scene, thing), size=mark(thing.size), texture=mark(thing.texture))
        )
    empty = [PLACES[r][c] for r in range(3) for c in range(3) if all((t.row, t.column) != (r, c) for t in scene.things)]
    blank = "[the {p} is [empty|free|bare]|nothing [is|stands] [at|in] the {p}|there is nothing [at|in] the {p}]."
    out += [voice.say(blank, p=mark(spot)) for spot in rng.sample(empty, 2)]
    return voice.shuffled(out)


def tally(voice: Voice, scene: Shapes, key: str) -> str:
    """A sentence that counts the things with one value of an attribute."""
    value = getattr(voice.rng.choice(scene.things), key)
    number = sum(getattr(t, key) == value for t in scene.things)
    slots = {"n": mark(number), "v": mark(value), "there": there(number)}
    if key == "shape":
        template = "[{there} {n} {s}[| in it| here]|[we|you] [count|find|see] {n} {s}]."
        return voice.say(template, s=mark(plural(value, number)), **slots)
    template = (
        "[{there} {n} {v} {s}[| in it| here]|[we|you] [count|find|see] {n} {v} {s}|the number of {v} things is {n}]."
    )
    return voice.say(template, s=plural(voice.say("[thing|object|figure]"), number), **slots)
