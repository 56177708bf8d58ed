"""JSON objects that are compressed if they are long."""

from __future__ import annotations

import binascii
import json
import zlib
from typing import Any

import pytest

from elasticrun.rpc.packing import LONG, MAX_UNPACKED, packed, unpacked


def pack(data: object) -> str:
    return squeezed(json.dumps(data).encode())


def squeezed(text: bytes) -> str:
    return binascii.b2a_base64(zlib.compress(text), newline=False).decode()


@pytest.mark.parametrize(("data", "is_long"), [({}, False), ({"a": 1}, False), ({"a": "x" * LONG}, True)])
def test_there_and_back(data: dict[str, Any], is_long: bool) -> None:
    assert unpacked(packed(data)) == data
    assert isinstance(packed(data), str) == is_long


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("!", "it is cut off"),
        ("abc", "padding"),
        ("YWJj", "it cannot be unpacked"),
        (pack("x" * MAX_UNPACKED), f"has more than {MAX_UNPACKED} bytes"),
        (pack([1]), "it is no JSON object"),
        (squeezed(b"[" * 100_000), "it is nested too deeply"),
    ],
)
def test_what_is_no_such_text(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        unpacked(text)
