"""What an agent passes on of its workers' asks about shared data, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest

from elasticrun.agent.memory.relay import DataRelay
from elasticrun.core.protocol.data import (
    MAX_PIECES,
    AskData,
    DataAnswer,
    DataReader,
    OpenData,
    ShardProgress,
)
from elasticrun.rpc.packing import packed
from elasticrun.rpc.records import RecordError, misfit, to_json

READER = DataReader(0, 0, "data", "one", 0)
WORKER = (3, 1)  # round and local rank


def body(call: int = 1, instance: str = "one", **what: Any) -> dict[str, Any]:
    found = to_json(AskData("-", DataReader(9, 9, "data", instance, 0), call, **what))
    del found["incarnation"]
    return dict(found)


class Desk:
    """A relay, what it has sent, and what workers have heard."""

    def __init__(self) -> None:
        self.sent: list[OpenData | AskData] = []
        self.heard: list[DataAnswer] = []
        self.relay = DataRelay("me", self.sent.append)

    def ask(self, connection: int = 1, **what: Any) -> None:
        self.relay.ask("AskData", body(**what), WORKER, connection, self.heard.append)


def test_an_ask_goes_to_the_master_in_the_name_of_its_worker() -> None:
    desk = Desk()
    desk.ask(wanted=2)
    assert desk.sent == [AskData("me", DataReader(3, 1, "data", "one", 0), 1, wanted=2)]


def test_an_answer_goes_to_who_waits_for_it_once() -> None:
    desk = Desk()
    desk.ask()
    answer = DataAnswer(1, 3, "one", 1)
    for other in (
        DataAnswer(1, 3, "other", 1),
        DataAnswer(1, 2, "one", 1),
        DataAnswer(1, 3, "one", 0),
        *[answer] * 2,
    ):
        desk.relay.answered(other)
    assert desk.heard == [answer]


def test_what_has_no_answer_is_sent_again_over_a_new_stream() -> None:
    desk = Desk()
    desk.ask(instance="one")
    desk.ask(2, instance="two")
    desk.relay.answered(DataAnswer(1, 3, "one", 1))
    desk.relay.attached()
    assert [each.reader.instance for each in desk.sent] == ["one", "two", "two"]
    desk.relay.forget(1)
    desk.relay.attached()
    desk.relay.forget(2)
    desk.relay.attached()
    assert [each.reader.instance for each in desk.sent[2:]] == ["two", "two"]


@pytest.mark.parametrize(
    ("kind", "given", "said"),
    [
        ("Hello", body(), "it asks for nothing that is known: 'Hello'"),
        ("AskData", {}, "AskData has the fields"),
        ("AskData", body(call=-1), "-1 is not between"),
        ("AskData", body(wanted=257), "257 is not between"),
        ("AskData", body(instance=""), "reader.instance must not be empty"),
        ("AskData", body(progress=(ShardProgress(1, 1),) * 1025), "a list must have at most 1024 entries"),
    ],
)
def test_what_the_master_would_refuse_is_refused_here(kind: str, given: Any, said: str) -> None:
    desk = Desk()
    with pytest.raises(ValueError, match=said):
        desk.relay.ask(kind, given, WORKER, 1, desk.heard.append)
    assert desk.sent == []


def test_an_instance_has_one_connection() -> None:
    desk = Desk()
    desk.ask(2, instance="theirs")
    with pytest.raises(ValueError, match="another connection reads under the same instance"):
        desk.ask(1, instance="theirs")
    desk.ask(1, instance="ours")


def test_a_connection_asks_again_once_it_has_its_answer() -> None:
    """To read an ask takes the agent some time, so who asks waits for the answer."""
    desk = Desk()
    desk.ask(call=1)
    for what in ({"call": 2}, {"call": 1, "wanted": 2}, {"call": 1, "instance": "two"}):
        with pytest.raises(ValueError, match="it asks before it has the answer to what it asked before"):
            desk.ask(**what)
    assert len(desk.sent) == 1
    desk.relay.answered(DataAnswer(1, 3, "one", 1))
    desk.ask(call=2)
    assert [each.call for each in desk.sent] == [1, 2]


def test_what_a_worker_repeats_is_the_same_ask() -> None:
    desk = Desk()
    desk.ask()
    desk.ask()
    assert len(desk.sent) == 1, "it comes to the master as it is, over each new stream"
    desk.relay.answered(DataAnswer(1, 3, "one", 1))
    assert len(desk.heard) == 1


def test_a_list_that_is_too_long_is_refused_before_its_entries_are_read() -> None:
    desk = Desk()
    left = {"epoch": 0, "place": 0, "free": [None] * (MAX_PIECES + 1), "failed": []}
    opened = to_json(OpenData("-", READER, 1, "p", 1, 1, 1.0))
    del opened["incarnation"]
    with pytest.raises(ValueError, match=f"a list must have at most {MAX_PIECES} entries"):
        desk.relay.ask("OpenData", packed({**opened, "left": left}), WORKER, 1, desk.heard.append)


def test_a_misfit_is_found_wherever_it_is() -> None:
    asked = AskData("i", READER, 1, progress=(ShardProgress(1, 1), ShardProgress(1, -1)))
    assert misfit(asked).startswith("progress.upto must be between 0")
    assert misfit(AskData("i", READER, 1)) == ""
    assert misfit(OpenData("i", READER, 1, "p", 1, 1, 1.0)) == ""
    assert issubclass(RecordError, ValueError)
