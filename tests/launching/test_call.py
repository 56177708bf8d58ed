"""The files between a caller and its workers."""

from __future__ import annotations

import os

import pytest

from elasticrun.launching.call import Call
from elasticrun.worker import target


def test_a_late_worker_leaves_no_answer_with_another_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """The files of the next call have the same numbers."""
    monkeypatch.setenv(target.RANK, "0")
    ended = Call(print, (), 1, 1000)
    place = ended.place
    late = target.Call(place)
    ended.close()
    call = Call(print, (), 1, 1000)
    assert call.place.split(":")[:2] == place.split(":")[:2]
    with pytest.raises(ValueError, match="is not /memfd"):
        late.answer(target.RETURNED, "too late")
    assert call.answers() == {}
    target.Call(call.place).answer(target.RETURNED, "in time")
    assert call.answers()[0].value == "in time"
    call.close()


def test_a_worker_of_an_earlier_round_leaves_a_newer_answer_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is cut off goes on, and may end after the one that the job has in its place."""
    monkeypatch.setenv(target.RANK, "0")
    call = Call(print, (), 1, 1000)
    workers = []
    for number in range(3):
        monkeypatch.setenv(target.ROUND, str(number))
        workers.append(target.Call(call.place))
    for number in (1, 0, 2):
        workers[number].answer(target.RETURNED, number)
        answer = call.answers()[0]
        assert (answer.round, answer.value) == (max(number, 1), max(number, 1))
    call.close()


def test_answers_that_nobody_hears_yet_hold_up_no_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe holds a few thousand words, and a test may have more ranks and restarts than that."""
    monkeypatch.setenv(target.RANK, "0")
    call = Call(print, (), 1, 1000)
    os.write(call._pipes[1], bytes(1 << 16))
    worker = target.Call(call.place)
    worker.answer(target.RETURNED, "at once")
    assert call.answers()[0].value == "at once"
    call.close()
