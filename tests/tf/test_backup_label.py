"""Labels of copies, as text: what was not written whole is none."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticrun.core.tensorflow.ps_backup import Label, Piece, Slice
from elasticrun.tf import backup_label
from elasticrun.tf.backup_label import decode_label, encode_label, fingerprint

LABEL = Label(400, "/ckpt-400", "a", 3, 1, 2, "s1", 8, ("x", "y"))
TEXT = encode_label(LABEL).encode()


def test_a_label_is_read_as_it_was_written() -> None:
    assert decode_label(TEXT) == LABEL


@given(st.integers(0, len(TEXT) - 1))
def test_a_part_of_a_label_is_none(length: int) -> None:
    assert decode_label(TEXT[:length]) is None


@given(st.integers(0, len(TEXT) - 1), st.integers(0, 7))
def test_a_damaged_label_is_none(place: int, bit: int) -> None:
    damaged = bytearray(TEXT)
    damaged[place] ^= 1 << bit
    assert decode_label(bytes(damaged)) is None


def test_a_label_of_another_version_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backup_label, "_FORMAT", 2)
    assert decode_label(TEXT) is None


def test_fingerprints_tell_variables_apart() -> None:
    piece = Piece("v", "float32", (4, 2), 4)
    cut = [[Slice(0, (0, 2))], [Slice(0, (2, 4))]]
    others = [
        fingerprint([piece], cut),
        fingerprint([replace(piece, name="w")], cut),
        fingerprint([replace(piece, shape=(2, 4))], cut),
        fingerprint([replace(piece, dtype="int32")], cut),
        fingerprint([piece], [[Slice(0)]]),
        fingerprint([piece], [[Slice(0, (0, 2)), Slice(0, (2, 4))]]),
    ]
    assert len(set(others)) == len(others)
    assert fingerprint([piece], cut) == others[0]
