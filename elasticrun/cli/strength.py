"""How hard a token is to guess, estimated from its text alone.

A text does not show how it was made, so this is a rule of thumb. It is meant to accept what a random
generator made with 128 bits or more, all but one in 400,000, and to refuse what people type:

- each character counts log2 of the size of the smallest usual alphabet that holds them all (decimal, hex,
  letters and digits, base64, printable), so 32 hex digits or 22 characters of base64 are just enough;
- a text that repeats itself counts once, and of a sequence (``3456789``, ``aaaa``) only the first character;
- letters of one case without a digit, as many of them vowels as in words, count 2.5 bits each.
"""

from __future__ import annotations

import itertools
import math
import string
from collections import Counter

#: Bits that a token must have: too many combinations to try.
ENOUGH = 128
HOW_TO_MAKE = "make one with: elastic-ctl token create"

_ALPHABETS = (
    string.digits,
    string.digits + "abcdef",
    string.digits + "ABCDEF",
    string.digits + string.ascii_lowercase,
    string.digits + string.ascii_uppercase,
    string.digits + string.ascii_letters,
    string.digits + string.ascii_letters + "+/",
    string.digits + string.ascii_letters + "-_",
)
_PRINTABLE = 94  # ASCII; other letters count no more
_FEW_DIFFERENT = 6
_BITS_OF_A_LETTER = 2.5  # in words
_BETWEEN_WORDS = str.maketrans(dict.fromkeys(" -_.,"))
_VOWELS_IN_WORDS = 0.28  # a share: languages have more, random letters have 0.19


def bits(token: str) -> int:
    """The estimated bits of randomness in the token, rounded down."""
    text = _unformatted(token)
    different = len(set(text))
    if different <= 1:
        return 0
    length = min(_period(text), _unforeseen(text))
    if different < _FEW_DIFFERENT:
        return int(length * math.log2(different))
    letters = text.translate(_BETWEEN_WORDS)
    if _looks_like_words(letters):
        return int(min(length, len(letters)) * _BITS_OF_A_LETTER)
    alphabet = next((len(each) for each in _ALPHABETS if set(text) <= set(each)), _PRINTABLE)
    return int(length * math.log2(alphabet))


def is_weak(token: str) -> bool:
    """Whether the token could be guessed."""
    return bits(token) < ENOUGH


def _unformatted(token: str) -> str:
    """The token without formatting: the padding of base64, the dashes of a UUID."""
    text = token.rstrip("=")
    digits = text.replace("-", "")
    return digits if digits and set(digits) <= set(string.hexdigits) else text


def _period(text: str) -> int:
    """The length of the part that is repeated; of the whole text if none is."""
    half = range(1, len(text) // 2 + 1)
    return next((size for size in half if text.startswith(text[size:])), len(text))


def _unforeseen(text: str) -> int:
    """How many characters do not merely continue a sequence that makes up most of the text."""
    steps = Counter(ord(after) - ord(before) for before, after in itertools.pairwise(text))
    most = max(steps.values())
    return len(text) - most if 2 * most > len(text) else len(text)


def _looks_like_words(letters: str) -> bool:
    is_one_case = letters.isalpha() and letters in (letters.lower(), letters.upper())
    return is_one_case and sum(map(letters.lower().count, "aeiou")) >= _VOWELS_IN_WORDS * len(letters)
