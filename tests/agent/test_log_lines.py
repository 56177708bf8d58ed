"""Lines from bytes that come in any pieces."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from elasticrun.agent.logs.lines import (
    LineSplitter,
    Tail,
    line_prefix,
    matching_lines,
    prefix_lines,
    tail_text,
)

PIECES = st.lists(st.text(alphabet="ab\n\r", max_size=6).map(str.encode), max_size=12)


def split_all(pieces: list[bytes], limit: int = 1000) -> bytes:
    splitter = LineSplitter(limit)
    return b"".join([*map(splitter.feed, pieces), splitter.flush()])


@given(PIECES)
def test_lines_do_not_depend_on_how_the_bytes_arrive(pieces: list[bytes]) -> None:
    whole = b"".join(pieces)
    assert split_all(pieces) == split_all([whole])
    # The same lines that Python's universal newlines (torchrun's tee) would give.
    assert split_all(pieces).splitlines() == whole.splitlines()


@given(PIECES)
def test_a_block_is_whole_lines(pieces: list[bytes]) -> None:
    splitter = LineSplitter()
    for piece in pieces:
        block = splitter.feed(piece)
        assert block == b"" or block.endswith(b"\n")
        assert b"\r" not in block


@given(st.lists(st.binary(max_size=50), max_size=20))
def test_an_endless_line_is_broken_and_not_kept(pieces: list[bytes]) -> None:
    pieces = [piece.replace(b"\n", b".").replace(b"\r", b".") for piece in pieces]
    splitter = LineSplitter(limit=64)
    shown = b""
    for piece in pieces:
        shown += splitter.feed(piece)
        assert len(splitter._held) < 64
    assert (shown + splitter.flush()).replace(b"\n", b"") == b"".join(pieces)


def test_every_line_gets_the_prefix() -> None:
    assert prefix_lines(b"a\n\nb\n", b"[x]:") == b"[x]:a\n[x]:\n[x]:b\n"
    assert prefix_lines(b"", b"[x]:") == b""


def test_matching_lines() -> None:
    lines = b"an apple\na pear\nan \xff orange\n"
    assert matching_lines(lines, [b"apple", b"orange"]) == b"an apple\nan \xff orange\n"
    assert matching_lines(lines, [b"plum"]) == b""


def test_prefix_template() -> None:
    assert line_prefix(None, "trainer", rank=5, local_rank=1, host="h") == b"[trainer1]:"
    assert line_prefix("", "trainer", rank=5, local_rank=1, host="h") == b"[trainer1]:"
    template = "${role_name}/$rank/${local_rank}/${hostname}/${unknown}$: "
    assert line_prefix(template, "trainer", rank=5, local_rank=1, host="h") == b"trainer/5/1/h/${unknown}$: "


@given(st.lists(st.binary(max_size=300), max_size=30))
def test_a_tail_is_the_end_and_bounded(pieces: list[bytes]) -> None:
    tail = Tail(limit=100)
    for piece in pieces:
        tail.add(piece)
        assert len(tail._kept) <= 202
    assert tail.text() == tail_text(b"".join(pieces), 100)


def test_a_tail_starts_with_a_whole_line() -> None:
    assert tail_text(b"first\nsecond\n", 100) == "first\nsecond\n"
    assert tail_text(b"first\nsecond\n", 9) == "second\n"
    assert tail_text(b"one line that is cut\n", 5) == " cut\n"[-5:]
    assert tail_text(b"\xff\n", 100) == "\N{REPLACEMENT CHARACTER}\n"
