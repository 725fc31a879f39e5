"""What is spoken, as characters: numbers become words, and what nobody can pronounce is refused.

The vocabulary holds control tokens, the characters, END and the codes of the first codebook, in this order: one model
reads and writes all of them. A character is a token; `<|s_7|>` is code 7.
"""

from __future__ import annotations

import re

from num2words import num2words
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from mmspec.errors import InputError, shorten

START, VOICE, SPEAK, END, PADDING = "<|start|>", "<|voice|>", "<|speak|>", "<|end|>", "<|padding|>"
"""A prompt is START text VOICE codes SPEAK; then the model writes codes and END."""
CHARACTERS = " abcdefghijklmnopqrstuvwxyz'.,?!-:;"
_SAME = str.maketrans(
    {
        "\u2019": "'",
        "\u2018": "'",
        "\u201c": " ",
        "\u201d": " ",
        '"': " ",
        "\u2013": "-",
        "\u2014": "-",
        "(": ",",
        ")": ",",
    }
)
_NUMBER = re.compile(r"(?:(?<![\d,])\d{1,3}(?:,\d{3})+(?![\d,])|\d+)(?:\.\d+)?")
_SIGNS = {"%": " percent", "&": " and ", "+": " plus ", "=": " equals ", "/": " over "}


def spoken(text: str) -> str:
    """The text in the characters that the model reads. Raises InputError for what it cannot pronounce."""
    plain = " ".join(text.split()).translate(_SAME)
    for sign, word in _SIGNS.items():
        plain = plain.replace(sign, word)
    plain = _NUMBER.sub(lambda found: f" {_in_words(found.group())} ", plain).lower()
    plain = re.sub(r" +([.,?!:;])", r"\1", " ".join(plain.split()))
    strange = sorted(set(plain) - set(CHARACTERS))
    if strange:
        raise InputError(
            f"the text holds {shorten(''.join(strange))}, which the model cannot pronounce: it reads English letters, "
            "numbers and simple punctuation"
        )
    if not any(character.isalpha() for character in plain):
        raise InputError(f"the text {shorten(text)} has nothing to pronounce: write a word or a number")
    return plain


def _in_words(number: str) -> str:
    number = number.replace(",", "")
    if len(number) > 15:
        return " ".join("point" if digit == "." else num2words(int(digit)) for digit in number)
    return num2words(float(number) if "." in number else int(number))


def code_token(code: int) -> str:
    """The token of a code of the first codebook."""
    return f"<|s_{code}|>"


def make_tokenizer(codes: int) -> PreTrainedTokenizerFast:
    """The tokenizer of a model with `codes` codes in its first codebook. Control tokens and codes are special."""
    words = [PADDING, START, VOICE, SPEAK, *CHARACTERS, END, *map(code_token, range(codes))]
    core = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token=PADDING))
    core.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, pad_token=PADDING, bos_token=START, eos_token=END)
    tokenizer.add_special_tokens({"additional_special_tokens": [VOICE, SPEAK, *map(code_token, range(codes))]})
    return tokenizer
