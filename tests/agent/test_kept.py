"""What can be read again of the workers' output: memory, files, and places in both."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from elasticrun.agent.logs.files import LogFile
from elasticrun.agent.logs.kept import (
    KEPT_ATTEMPTS,
    SCAN_BYTES,
    TAIL_BYTES,
    FileOutput,
    KeptOutput,
    MemoryTail,
    Nothing,
)
from elasticrun.core.protocol.questions import MAX_PIECE, LogPiece, LogStream

OUT = LogStream.OUT


def remembering(*parts: bytes, limit: int = TAIL_BYTES) -> MemoryTail:
    tail = MemoryTail(limit)
    for part in parts:
        tail.add(part)
    return tail


def shelf(*tails: MemoryTail | FileOutput | Nothing) -> KeptOutput:
    kept = KeptOutput()
    for number, tail in enumerate(tails):
        kept.open(0, OUT, (number, 0), tail)
    return kept


def read(kept: KeptOutput, after: str = "", lines: int = 10) -> LogPiece:
    return kept.read(0, OUT, after, lines)


# -- one attempt's output


def test_a_tail_holds_the_newest_bytes() -> None:
    tail = remembering(b"abc", b"defg", limit=5)
    assert (tail.span(), tail.read(2, 10), tail.read(3, 2)) == ((2, 7), b"cdefg", b"de")
    for _ in range(20):
        tail.add(b"x")
    assert (tail.span(), tail.read(22, 9), tail.note, tail.path) == ((22, 27), b"xxxxx", "", "")
    tail.add(b"0123456789")
    assert (tail.span(), tail.read(32, 9)) == ((32, 37), b"56789")


def test_what_one_write_adds_is_bounded() -> None:
    tail = remembering(b"y" * 1_000_000, limit=10)
    assert len(tail._kept) <= 20
    assert tail.span() == (999_990, 1_000_000)


def opened(path: Path, is_told: bool = True) -> tuple[LogFile, FileOutput]:
    file = LogFile(str(path), print)
    return file, FileOutput(str(path), file.fd, is_told)


def test_a_file_is_read_from_where_it_was_when_the_attempt_began(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"before")
    file, output = opened(path)
    assert output.span() == (6, 6)
    file.write(b"after")
    file.close()
    assert (output.span(), output.read(6, 100), output.read(8, 2)) == ((6, 11), b"after", b"te")


def test_an_attempt_that_is_over_does_not_grow(tmp_path: Path) -> None:
    file, output = opened(tmp_path / "log")
    file.write(b"one")
    output.finish()
    file.write(b"two")
    assert (output.span(), output.read(0, 100)) == ((0, 3), b"one")
    file.close()


def test_another_file_of_the_name_is_nobodys_log(tmp_path: Path) -> None:
    path, secret = tmp_path / "log", tmp_path / "secret"
    secret.write_bytes(b"secret")
    file, output = opened(path)
    file.write(b"text")
    path.unlink()
    assert (output.span(), output.read(0, 9)) == ((0, 0), b""), "it has gone"
    path.symlink_to(secret)
    assert (output.span(), output.read(0, 9)) == ((0, 0), b""), "a link is not followed"
    path.unlink()
    os.link(secret, path)
    assert (output.span(), output.read(0, 9)) == ((0, 0), b""), "nor is it the file that was opened"
    path.unlink()
    os.mkfifo(path)
    assert output.span() == (0, 0), "and a pipe does not block"
    file.close()


def test_a_file_that_shrank_gives_what_is_there(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"12345")
    file, output = opened(path)
    path.open("wb").close()
    assert output.span() == (0, 0)
    file.close()


def test_who_has_to_look_at_a_file_is_told_its_path(tmp_path: Path) -> None:
    told, output = opened(tmp_path / "a")
    alone, other = opened(tmp_path / "b", is_told=False)
    kept = shelf(output, other)
    assert kept.path_to_watch(0, OUT) == str(tmp_path / "b")
    assert kept.path_to_watch(1, OUT) == ""
    assert shelf(output).path_to_watch(0, OUT) == ""
    told.close()
    alone.close()


# -- reading


@pytest.mark.parametrize(
    ("printed", "lines", "newest"),
    [
        (b"", 10, b""),
        (b"a\nb\nc\n", 2, b"b\nc\n"),
        (b"a\nb\nc", 2, b"b\nc"),
        (b"a\nb\nc\n", 3, b"a\nb\nc\n"),
        (b"a\nb\nc\n", 9, b"a\nb\nc\n"),
        (b"a\n\n\n", 2, b"\n\n"),
        (b"\n", 1, b"\n"),
        (b"a\nb\n", 0, b""),
        (b"no end", 1, b"no end"),
    ],
)
def test_the_newest_lines_come_first(printed: bytes, lines: int, newest: bytes) -> None:
    piece = read(shelf(remembering(printed)), lines=lines)
    assert (piece.data, piece.round, piece.begins, piece.missed, piece.more) == (
        newest,
        0,
        True,
        False,
        False,
    )


def test_reading_goes_on_where_it_was() -> None:
    tail = remembering(b"one\n")
    kept = shelf(tail)
    first = read(kept)
    assert read(kept, first.place) == LogPiece(OUT, first.place, round=0)
    tail.add(b"two\n")
    second = read(kept, first.place)
    assert (second.data, second.begins, second.missed) == (b"two\n", False, False)


def test_the_end_of_an_attempt_comes_before_the_beginning_of_the_next() -> None:
    tail = remembering(b"one\n")
    kept = shelf(tail)
    place = read(kept).place
    tail.add(b"last words\n")
    kept.open(0, OUT, (7, 0), remembering(b"new\n"))
    last = read(kept, place)
    assert (last.data, last.round, last.begins, last.more) == (b"last words\n", 0, False, True)
    new = read(kept, last.place)
    assert (new.data, new.round, new.begins, new.more) == (b"new\n", 7, True, False)
    kept.open(0, OUT, (7, 1), remembering(b""))
    again = read(kept, new.place)
    assert (again.data, again.round, again.attempt, again.begins) == (b"", 7, 1, True)
    assert read(kept, again.place).begins is False


def test_a_worker_that_has_just_started_again_shows_what_it_said_before() -> None:
    kept = shelf(remembering(b"why it failed\n"), remembering(b""))
    piece = read(kept)
    assert (piece.data, piece.round, piece.more) == (b"why it failed\n", 0, True)
    assert read(kept, piece.place).round == 1


def test_what_was_dropped_in_between_is_missed() -> None:
    tail = remembering(b"abc", limit=4)
    kept = shelf(tail)
    place = read(kept).place
    tail.add(b"d" * 10)
    piece = read(kept, place)
    assert (piece.data, piece.missed) == (b"dddd", True)
    assert read(kept, piece.place).missed is False


@pytest.mark.parametrize("place", ["", "x", "other:0.0:3", "{own}:5.0:3", "{own}:0.0:-1", "{own}:0.0:", "::"])
def test_a_place_that_is_not_known_begins_anew(place: str) -> None:
    kept = shelf(remembering(b"abc"))
    piece = read(kept, place.format(own=kept._name))
    assert (piece.data, piece.begins, piece.missed) == (b"abc", True, place != "")


def test_a_place_beyond_the_end_is_the_end() -> None:
    kept = shelf(remembering(b"abc"))
    piece = read(kept, f"{kept._name}:0.0:{'9' * 400}")
    assert (piece.data, piece.missed, piece.place) == (b"", False, f"{kept._name}:0.0:3")


def test_only_so_many_attempts_are_remembered() -> None:
    kept = shelf(*(remembering(b"%d" % number) for number in range(KEPT_ATTEMPTS + 2)))
    assert len(kept._shelves[0, OUT]) == KEPT_ATTEMPTS
    assert read(kept, f"{kept._name}:0.0:1").missed


def test_a_piece_is_bounded_and_says_that_there_is_more(tmp_path: Path) -> None:
    file, output = opened(tmp_path / "log")
    file.write(b"x" * 99 + b"\n" + b"y" * (2 * MAX_PIECE))
    kept = shelf(output)
    sizes, place, more = [], "", True
    while more:
        piece = read(kept, place, lines=2)
        place, more = piece.place, piece.more
        sizes.append(len(piece.data))
    assert sizes == [MAX_PIECE, MAX_PIECE, 100]
    file.close()


def test_lines_are_not_looked_for_without_end(tmp_path: Path) -> None:
    file, output = opened(tmp_path / "log")
    file.write(b"x" * (SCAN_BYTES + 5000))
    assert read(shelf(output), lines=1).place.endswith(f":{5000 + MAX_PIECE}")
    file.close()


def test_what_is_not_kept_says_why() -> None:
    piece = read(shelf(Nothing("it goes elsewhere")))
    assert (piece.data, piece.note, piece.more) == (b"", "it goes elsewhere", False)
    assert KeptOutput().read(0, OUT, "", 1).note == "it has not started yet"


def test_who_listens_hears_of_news_until_it_stops() -> None:
    kept, heard = KeptOutput(), list[str]()

    def hear() -> None:
        heard.append("news")

    kept.listen(hear)
    kept.tell()
    kept.open(0, OUT, (0, 0), remembering(b""))
    kept.unlisten(hear)
    kept.tell()
    assert (heard, kept.local_ranks) == (["news"] * 2, frozenset({0}))
