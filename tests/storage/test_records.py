"""What describes a commit is checked before anybody relies on it, also if its digest is right."""

from __future__ import annotations

import json
from typing import Any

import pytest

from elasticrun.core.protocol.commits import CommitId
from elasticrun.storage.errors import DamagedError
from elasticrun.storage.records import METADATA, CommitName, Marker, PartIndex, StoredItem, digest

NAME = CommitName(CommitId(2, 5), "a")
MARKER = Marker(NAME, 3, 1, 2, 100, 5.5, {METADATA: "x", "part-0.json": "y"})
ITEM = StoredItem("weight", 1, 10, 20, "c", "float32", (5,), (0,), (5,))
INDEX = PartIndex(NAME, 0, 30, {0: "d", 1: "e"}, {"weight": ("weight",)}, (ITEM,), (("bias", (0,)),))


def changed(data: bytes, **fields: Any) -> bytes:
    """These bytes with other fields, and with the digest of these; None: a field is missing."""
    body = json.loads(data.partition(b"\n")[2]) | fields
    text = json.dumps({name: value for name, value in body.items() if value is not None}).encode()
    return digest(text).encode() + b"\n" + text + b"\n"


def test_what_was_written_is_read() -> None:
    assert Marker.decode(MARKER.encode(), "x") == MARKER
    assert PartIndex.decode(INDEX.encode(), "x") == INDEX
    assert Marker.decode(changed(MARKER.encode(), more=5), "x") == MARKER


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("finished", 1e30),
        ("finished", float("nan")),
        ("finished", float("inf")),
        ("finished", "x"),
        ("finished", []),
        ("nodes", 10**12),
        ("nodes", 0),
        ("nodes", "x"),
        ("nodes", True),
        ("nodes", 1.0),
        ("checks", {}),
        ("checks", []),
        ("checks", {METADATA: "x", "part-7.json": "y"}),
        ("checks", {"other": "x", "part-0.json": "y"}),
        ("checks", {METADATA: "x", "part-0.json": 5}),
        ("number", "x"),
        ("number", -1),
        ("number", 10**30),
        ("number", None),
        ("length", "x"),
        ("world_size", []),
        ("run", 5),
        ("step", "x"),
        ("format", None),
    ],
    ids=str,
)
def test_a_marker_with_odd_fields_is_damaged(field: str, value: object) -> None:
    with pytest.raises(DamagedError, match=r"^x is damaged: "):
        Marker.decode(changed(MARKER.encode(), **{field: value}), "x")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("group_rank", "x"),
        ("length", 29),
        ("length", None),
        ("ranks", [[0]]),
        ("ranks", [["x", "d"]]),
        ("ranks", 5),
        ("mappings", []),
        ("mappings", {"weight": 5}),
        ("items", [[]]),
        ("items", [["weight", 1, -10, 20, "c", "float32", [5], [0], [5], ""]]),
        ("items", [["weight", 1, 10, 20, "c", "float32", ["x"], [0], [5], ""]]),
        ("items", [[5, 1, 10, 20, "c", "float32", [5], [0], [5], ""]]),
        ("left", [["bias"]]),
    ],
    ids=str,
)
def test_an_index_with_odd_fields_is_damaged(field: str, value: object) -> None:
    with pytest.raises(DamagedError, match=r"^x is damaged: "):
        PartIndex.decode(changed(INDEX.encode(), **{field: value}), "x")


@pytest.mark.parametrize("text", [b"[]", b"5", b"{", b"", b"\xff", b"[" * 100_000])
def test_what_is_no_record_is_damaged(text: bytes) -> None:
    with pytest.raises(DamagedError, match=r"^x is damaged: "):
        Marker.decode(digest(text).encode() + b"\n" + text + b"\n", "x")
