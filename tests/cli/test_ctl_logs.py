"""``elastic-ctl logs`` and ``stacks``: what is asked, how it is shown, and their schemas."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import pytest
from click.testing import CliRunner, Result

from elasticrun import control, follower
from elasticrun.cli import asking, ctl_events, ctl_top, log_reader
from elasticrun.cli.ctl import group
from elasticrun.cli.documents import DOCUMENTS, FOLDER, schema_text
from elasticrun.cli.log_reader import Pace, Plain
from elasticrun.cli.secrets import TOKEN_VARIABLE
from elasticrun.control import LogPiece, LogPlace, LogStream
from elasticrun.core.protocol.chronicle import JobEnded, LogEntry
from elasticrun.core.protocol.orders import Watched
from elasticrun.core.protocol.questions import MAX_LOG_WAIT, RankRange
from elasticrun.errors import (
    ElasticRunError,
    MasterUnreachableError,
    OrderDeclinedError,
    UnauthenticatedError,
)
from elasticrun.rpc.event_lines import to_line
from elasticrun.rpc.line import JobLine
from elasticrun.rpc.security.limits import Limits
from tests.support.orders import TOKEN
from tests.support.schema import misfits

OUT, ERR = LogStream
ENDED = MasterUnreachableError("the job on this host has ended")
OVER = Watched("1:9", (to_line(LogEntry(9, 9.0, 9.0, JobEnded("succeeded", "all workers ended with 0"))),))


class FakeJob:
    """A job that has an answer for each question, in order; then it has ended."""

    def __init__(self) -> None:
        self.ranges: tuple[RankRange, ...] = (RankRange(0, 2),)
        self.pieces: dict[int, list[list[LogPiece] | ElasticRunError]] = {}
        self.texts: dict[int, str | ElasticRunError] = {}
        self.asked: list[tuple[int, tuple[LogPlace, ...], int, float]] = []
        self.watched: list[str] = []
        self.news: list[Watched | ElasticRunError] = []
        self.last: Watched | ElasticRunError = ENDED
        self.is_over = asyncio.Event()
        self.ends_at = 0  # when it was asked so often; 0: when it has no more answers
        self.saved = 0

    async def ranks(self) -> tuple[RankRange, ...]:
        return self.ranges

    async def log(
        self, rank: int, places: Sequence[LogPlace], lines: int, wait: float
    ) -> tuple[LogPiece, ...]:
        self.asked.append((rank, tuple(places), lines, wait))
        if len(self.asked) == self.ends_at:
            self.is_over.set()
        if not (found := self.pieces.get(rank)):
            self.is_over.set()
            raise ENDED
        if isinstance(answer := found.pop(0), ElasticRunError):
            raise answer
        return tuple(answer)

    async def stacks_of(self, rank: int) -> str:
        if isinstance(found := self.texts[rank], ElasticRunError):
            raise found
        return found

    async def stacks(self) -> str:
        self.saved += 1
        return "2 nodes save the stacks"

    async def watch(self, after: str, wait: float) -> Watched:
        self.watched.append(after)
        if not self.news:
            await self.is_over.wait()
        found = self.news.pop(0) if self.news else self.last
        if isinstance(found, ElasticRunError):
            raise found
        return found

    @property
    def following(self) -> FakeJob:
        return self

    async def follow(self, after: str, wait: float) -> Watched:
        return await self.watch(after, wait)

    def close(self) -> None:
        pass


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> FakeJob:
    made = FakeJob()

    async def found(*_: object) -> FakeJob:
        return made

    monkeypatch.setattr(control.JobControl, "on_this_host", found)
    for name in ("AWAY", "RETRY", "PATIENCE"):
        monkeypatch.setattr(log_reader, name, 0.0)
    monkeypatch.delenv("ELASTICRUN_ENDPOINT", raising=False)
    return made


def piece(data: bytes = b"", stream: LogStream = OUT, **changes: Any) -> LogPiece:
    values: dict[str, Any] = {"place": f"p{len(data)}", "round": 0} | changes
    return LogPiece(stream, data=data, **values)


def ctl(*arguments: str, code: int = 0) -> Result:
    done = CliRunner().invoke(group, arguments)
    assert done.exit_code == code, (done.output, done.exception)
    return done


def test_one_rank_is_shown_as_it_is(job: FakeJob) -> None:
    job.pieces[3] = [[piece(b"a\x1b[1m\nno end", begins=True), piece(b"err\n", ERR, begins=True)]]
    assert ctl("logs", "3", "-n", "7").stdout_bytes == b"a\x1b[1m\nno enderr\n"
    assert job.asked == [(3, (LogPlace(OUT), LogPlace(ERR)), 7, 0.0)]


@pytest.mark.parametrize(
    ("options", "streams"),
    [
        ((), [OUT, ERR]),
        (("--stdout",), [OUT]),
        (("--stderr",), [ERR]),
        (("--stdout", "--stderr"), [OUT, ERR]),
    ],
)
def test_streams_can_be_chosen(job: FakeJob, options: tuple[str, ...], streams: list[LogStream]) -> None:
    job.pieces[0] = [[]]
    ctl("logs", "0", *options)
    assert [place.stream for place in job.asked[0][1]] == streams


def test_all_there_is_is_read_from_place_to_place(job: FakeJob) -> None:
    job.pieces[0] = [[piece(b"one\n", place="a", more=True)], [piece(b"two\n", place="b")]]
    assert ctl("logs", "0", "--stdout").stdout == "one\ntwo\n"
    assert [asked[1] for asked in job.asked] == [(LogPlace(OUT),), (LogPlace(OUT, "a"),)]


def test_a_worker_that_prints_for_ever_is_not_read_for_ever(
    job: FakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_reader, "_MOST_READS", 3)
    job.pieces[0] = [[piece(b"x\n", more=True)] for _ in range(9)]
    assert ctl("logs", "0").stdout == "x\n" * 3


def test_lines_of_all_ranks_begin_with_their_rank(job: FakeJob) -> None:
    job.pieces = {
        0: [[piece(b"one\nhalf", more=True)], [piece(b" line\n")]],
        1: [[piece(b"bar 1%\rbar 2%\r", begins=True)]],
    }
    lines = ctl("logs").stdout.splitlines()
    assert [line for line in lines if "rank0" in line] == ["[rank0] one", "[rank0] half line"]
    assert [line for line in lines if "rank1" in line] == ["[rank1] bar 1%", "[rank1] bar 2%"]


def test_of_all_ranks_those_that_answer_are_shown(job: FakeJob) -> None:
    job.pieces = {0: [OrderDeclinedError("rank 0 is on n: gone")], 1: [[piece(b"here\n")]]}
    done = ctl("logs")
    assert (done.stdout, done.stderr) == ("[rank1] here\n", "elastic-ctl: rank 0: rank 0 is on n: gone\n")


def test_control_characters_are_escaped_for_a_terminal(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    show = Plain(is_escaped=True, is_named=False)
    show.output(0, piece("a\x1b[31mb\u202ec\n".encode() + b"\xff\n"))
    show.output(0, piece(b"unfinished\x07"))
    show.finish()
    assert capfdbinary.readouterr().out.decode() == "a?[31mb?c\n\ufffd\nunfinished?\n"


def test_notes_are_said_once_and_not_among_the_output(job: FakeJob) -> None:
    job.pieces[0] = [
        [piece(note="nothing is kept", more=True), piece(b"x", ERR, begins=True)],
        [piece(note="nothing is kept", more=True), piece(b"y", ERR, begins=True, missed=True, round=2)],
        [piece(b"z", ERR, begins=True, round=2, attempt=1)],
    ]
    done = ctl("logs", "0")
    assert done.stdout == "xyz"
    assert done.stderr.splitlines() == [
        "elastic-ctl: rank 0: nothing is kept",
        "elastic-ctl: rank 0: started again: from here on this is round 2",
        "elastic-ctl: rank 0: some of its stderr before this was not kept",
        "elastic-ctl: rank 0: started again: from here on this is round 2, attempt 1",
    ]


def test_each_line_is_an_object_that_fits_its_schema(job: FakeJob) -> None:
    job.pieces[1] = [
        [piece(b"one\nha", begins=True, more=True), piece(note="nothing is kept", stream=ERR, round=-1)],
        [piece(b"lf\ncut", more=True)],
        [piece(b"two\xff\n", begins=True, round=1)],
    ]
    done = [json.loads(line) for line in ctl("logs", "1", "--json").stdout.splitlines()]
    schema = json.loads((FOLDER / "logs.json").read_text())
    assert [misfits(each, schema) for each in done] == [[]] * len(done)
    assert [(it["kind"], it["stream"], it["round"], it["text"]) for it in done] == [
        ("line", "stdout", 0, "one"),
        ("note", "stderr", -1, "nothing is kept"),
        ("line", "stdout", 0, "half"),
        ("note", "stdout", 1, "started again: from here on this is round 1"),
        ("line", "stdout", 0, "cut"),
        ("line", "stdout", 1, "two\ufffd"),
    ]


def test_an_unfinished_line_is_shown_at_the_end(job: FakeJob) -> None:
    job.pieces[0] = [[piece(b"no end")]]
    assert json.loads(ctl("logs", "0", "--json").stdout)["text"] == "no end"
    job.pieces[0] = [[piece(b"no end")]]
    job.ranges = (RankRange(0, 1),)
    assert ctl("logs").stdout == "[rank0] no end\n"


def test_following_goes_on_until_the_job_is_lost(job: FakeJob) -> None:
    job.pieces[0] = [[piece(b"one\n")], [piece()], [piece(b"two\n", round=1, begins=True)]]
    done = ctl("logs", "0", "--follow", "--stdout", code=4)
    assert done.stdout == "one\ntwo\n"
    assert done.stderr.endswith("elastic-ctl: error: the job on this host has ended\n")
    assert [asked[3] for asked in job.asked][:4] == [0.0, MAX_LOG_WAIT, MAX_LOG_WAIT, MAX_LOG_WAIT]


def test_many_chatty_ranks_leave_connections_for_agents_of_this_address() -> None:
    """32 ranks that print all the time have news 320 times a second, and a master takes 200 connections."""
    assert Limits().joins_per_second > log_reader.QUESTIONS_PER_SECOND
    pace, now, asked = Pace(0.0), 0.0, 0
    while now < 100.0:
        for _ in range(32):
            delay = pace.delay(now)
            asked += 1
        now += max(0.1, delay)
    most = log_reader.QUESTIONS_AT_ONCE + 100 * log_reader.QUESTIONS_PER_SECOND
    assert most - 100 < asked < most + 100


def test_a_pause_makes_up_for_no_more_than_the_questions_at_once() -> None:
    pace = Pace(0.0)
    assert [pace.delay(1e6) for _ in range(501)] == [0.0] * 500 + [1 / 150]


def test_following_says_why_the_job_has_ended(job: FakeJob) -> None:
    job.pieces[0], job.last = [[piece(b"one\n")]], OVER
    done = ctl("logs", "0", "--follow", "--stdout")
    assert done.stdout == "one\n"
    assert done.stderr == "elastic-ctl: the job has ended: all workers ended with 0\n"


def test_following_goes_on_with_the_next_master(job: FakeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says once that it waits, though both streams and the events are lost."""
    monkeypatch.setattr(log_reader, "PATIENCE", 60.0)
    monkeypatch.setattr(follower, "RETRY", 0.0)
    lost = MasterUnreachableError("the job on this host ended before it answered")
    job.pieces = {0: [[piece(b"one\n")], *[lost] * 4, [piece(b"two\n")], lost], 1: [[piece()], *[lost] * 5]}
    job.news, job.last = [lost, Watched("1:1"), lost, Watched("2:0")], OVER
    done = ctl("logs", "-f", "--stdout")
    assert done.stdout == "[rank0] one\n[rank0] two\n"
    told = f"elastic-ctl: {lost}; trying again"
    assert told in done.stderr.splitlines()
    assert done.stderr.endswith("the job has ended: all workers ended with 0\n")


def test_events_are_heard_before_more_output_is_shown(job: FakeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job may end as soon as somebody has seen that output."""
    for name in ("AWAY", "PATIENCE"):
        monkeypatch.setattr(log_reader, name, 60.0)
    monkeypatch.setattr(follower, "RETRY", 2.0)
    lost = MasterUnreachableError("nothing answers")
    job.pieces[0] = [[piece(b"one\n")], lost, [piece(b"two\n")]]
    job.news, job.last = [lost, Watched("1:1")], OVER
    seen: list[tuple[bytes, int]] = []
    monkeypatch.setattr(log_reader, "_write", lambda data: seen.append((data, len(job.news))))
    ctl("logs", "0", "-f", "--stdout")
    assert seen == [(b"one\n", 1), (b"two\n", 0)]


def test_following_goes_on_while_a_rank_is_away(job: FakeJob) -> None:
    gone = OrderDeclinedError("rank 0 is on n: gone")
    job.pieces[0], job.last = [[piece(b"one\n")], gone, gone, [piece(b"two\n")]], OVER
    done = ctl("logs", "0", "-f")
    assert (done.stdout, done.stderr.count("gone")) == ("one\ntwo\n", 1)


def test_following_ends_if_the_job_does_while_a_rank_is_away(job: FakeJob) -> None:
    gone = OrderDeclinedError("rank 0 is on n: gone")
    job.pieces[0], job.last, job.ends_at = [[piece(b"one\n")], *[gone] * 99], OVER, 3
    assert "the job has ended" in ctl("logs", "0", "-f").stderr


def test_what_is_wrong_from_the_start_is_an_error(job: FakeJob) -> None:
    job.pieces[7] = [OrderDeclinedError("there is no rank 7 now; there are ranks 0 to 1")] * 2
    for options in ((), ("--follow",)):
        done = ctl("logs", "7", *options, code=1)
        assert (done.stdout, done.stderr) == ("", "there is no rank 7 now; there are ranks 0 to 1\n")
    assert ctl("logs", "0", code=4).stderr == "elastic-ctl: error: the job on this host has ended\n"
    job.ranges = ()
    assert "no rank runs now" in ctl("logs", code=1).stderr


def test_too_many_ranks_are_not_followed_at_once(job: FakeJob) -> None:
    job.ranges = (RankRange(5, 20), RankRange(30, 20))
    done = ctl("logs", "-f", code=2)
    assert "40 ranks are too many to follow at once: name one, such as logs 5 --follow" in done.stderr


@pytest.mark.parametrize(
    "arguments", [("logs", "-1"), ("logs", "x"), ("logs", "0", "-n", "-1"), ("stacks", "x")]
)
def test_what_is_no_rank_or_number_is_wrong_usage(job: FakeJob, arguments: tuple[str, ...]) -> None:
    ctl(*arguments, code=2)


@pytest.mark.parametrize(
    ("module", "words"),
    [(asking, ("logs", "0", "-f")), (ctl_events, ("events", "-f")), (ctl_top, ("top", "--once"))],
)
def test_an_interrupt_ends_every_verb_quietly(
    module: ModuleType, words: tuple[str, ...], job: FakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "run_lean", interrupted)
    assert ctl(*words, code=130).output == ""


@pytest.mark.parametrize("words", [("logs", "0"), ("events",), ("top", "--once")])
def test_every_verb_says_from_where_a_wrong_token_is(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuses(*_: object) -> None:
        raise UnauthenticatedError("the token is wrong")

    monkeypatch.setattr(JobLine, "give", refuses)
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
    said = ctl(*words, "--endpoint", "h:1", code=15).stderr
    assert said.startswith("elastic-ctl: error: the token is wrong (the token was read from ")


# -- stacks


def test_stacks_are_saved_by_default(job: FakeJob) -> None:
    assert ctl("stacks").stdout == "2 nodes save the stacks\n"
    assert job.saved == 1


def test_the_stacks_of_a_rank_are_printed(job: FakeJob) -> None:
    job.texts[3] = "Thread 1\x1b\n  File x\n"
    assert ctl("stacks", "3").stdout == "Thread 1?\n  File x\n"
    assert job.saved == 0


def test_all_stacks_are_printed_on_request(job: FakeJob) -> None:
    job.texts = {0: "Thread 1\n", 1: OrderDeclinedError("rank 1 is on n: it does not run now")}
    assert ctl("stacks", "--print").stdout == (
        "2 nodes save the stacks\n\nrank 0:\nThread 1\n\nrank 1:\nrank 1 is on n: it does not run now\n"
    )


def test_stacks_fit_their_schema(job: FakeJob) -> None:
    job.texts = {0: "Thread 1\n", 1: OrderDeclinedError("it does not run now")}
    schema = json.loads((FOLDER / "stacks.json").read_text())
    for arguments, ranks in ((("stacks", "--json"), [0, 1]), (("stacks", "0", "--json"), [0])):
        found = json.loads(ctl(*arguments).stdout)
        assert misfits(found, schema) == []
        assert [each["rank"] for each in found["ranks"]] == ranks
    assert ctl("stacks", "1", "--json", code=1).stderr == "it does not run now\n"


@pytest.mark.parametrize("name", sorted(DOCUMENTS))
def test_the_schema_of_each_document_is_the_one_that_is_shipped(name: str) -> None:
    assert schema_text(name) == (FOLDER / f"{name}.json").read_text()
