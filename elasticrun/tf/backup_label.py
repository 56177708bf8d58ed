"""The label of a copy of variables, as the text of a file; needs no tensorflow.

The first line is the checksum of the rest. A label that was written only in part, is of another version, or
was emptied, does not count; nor does a copy without a label.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict

from elasticrun.core.tensorflow.ps_backup import Label, Piece, Slice

_FORMAT = 1


def encode_label(label: Label) -> str:
    """The text of a label's file."""
    body = json.dumps({"format": _FORMAT, **asdict(label)}, sort_keys=True)
    return f"{checksum(body.encode())}\n{body}"


def decode_label(text: bytes) -> Label | None:
    """What ``encode_label`` wrote; None for anything else, such as a part of it."""
    sum_, _, body = text.partition(b"\n")
    if not body or checksum(body).encode() != sum_:
        return None
    fields = json.loads(body)
    if fields.pop("format") != _FORMAT:
        return None
    return Label(**{**fields, "sums": tuple(fields["sums"])})


def checksum(data: bytes) -> str:
    """A cryptographic checksum, in hex."""
    return hashlib.sha256(data).hexdigest()


def fingerprint(pieces: Sequence[Piece], parts: Iterable[Iterable[Slice]]) -> str:
    """A checksum of the variables and of how they are cut."""
    keys = [[item.key for item in part] for part in parts]
    return checksum(json.dumps([[asdict(piece) for piece in pieces], keys]).encode())
