"""Agents' memories that copy parts to one another, and peers of theirs that fail, lie or are slow."""

from __future__ import annotations

import errno
import mmap
import os
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import pytest

from elasticrun.agent.memory import buffers, copies, sending, transfer
from elasticrun.agent.memory.buffers import make_buffer
from elasticrun.agent.memory.peering import Peering
from elasticrun.core.protocol.commits import MAX_PARTS, CommitId, Copy, Inlet, Sent
from tests.support.copy_peer import Receiver, Sender, Taker, part_of
from tests.support.memory_client import open_here, save
from tests.support.memory_host import DEADLINE, MemoryHost

STEP, LATER = CommitId(1, 7), CommitId(1, 8)
SENT = Sent(STEP, 1)
#: More than two kernels take in for a connection whose receiver reads nothing.
LARGE = 32 << 20


@pytest.fixture
def nodes() -> Iterator[tuple[MemoryHost, MemoryHost]]:
    """Two nodes of one worker each, of the same world."""
    with MemoryHost(nodes=2) as first, MemoryHost(nodes=2, rank=1) as second:
        yield first, second


@pytest.fixture
def node(nodes: tuple[MemoryHost, MemoryHost]) -> MemoryHost:
    return nodes[0]


def inlet(host: MemoryHost) -> Inlet:
    """Where a node takes copies in, as it tells once its worker has come."""
    host.connect().close()
    found = host.stock().inlet
    assert found is not None
    return found


def saved(host: MemoryHost, data: bytes, step: int = 7) -> None:
    memory = host.connect()
    save(memory, step, data)
    memory.close()
    assert host.stock().holdings[-1].commit.step == step


def saved_much(host: MemoryHost, step: int = 7) -> None:
    """Save ``LARGE`` bytes."""
    memory = host.connect()
    memory.begin(step, LARGE, LARGE, "")
    memory.end(step, LARGE, "digest", own=True)
    memory.close()
    assert host.stock().holdings[-1].commit.step == step


def ordered(sender: MemoryHost, *copies: Copy, commit: CommitId = STEP, number: int = 1) -> None:
    """The master tells a node to send these."""
    sender.judge(kept=commit, copying=commit, copies=copies, number=number)


def parts(host: MemoryHost) -> list[tuple[CommitId, int]]:
    """What a node tells next of the parts that it has."""
    told = [(each.commit, part.group_rank) for each in host.stock().holdings for part in each.parts]
    return sorted(told, key=lambda each: (each[0].age, each[1]))


# -- as it should be


def test_a_part_is_copied_and_restored_on_the_other_node(nodes: tuple[MemoryHost, MemoryHost]) -> None:
    first, second = nodes
    there, _ = inlet(second), inlet(first)
    saved(first, b"left")
    saved(second, b"right")
    ordered(first, Copy(0, "127.0.0.1", there))
    assert parts(second) == [(STEP, 0), (STEP, 1)]
    assert first.stock().copied == SENT
    second.begin(2, restore=STEP)
    memory = second.connect()
    found = {part.rank: bytes(part.memory[: part.length]) for part in memory.stored()}
    assert found == {0: b"left", 1: b"right"}
    memory.close()


def test_who_has_a_copy_sends_it_on(nodes: tuple[MemoryHost, MemoryHost]) -> None:
    first, second = nodes
    there, _ = inlet(second), inlet(first)
    saved(first, b"left")
    ordered(first, Copy(0, "127.0.0.1", there))
    assert parts(second) == [(STEP, 0)]
    with Receiver() as receiver:
        ordered(second, receiver.copy(0), receiver.copy(5))
        reception, offer = receiver.greet()
        assert (offer.part.group_rank, [piece.length for piece in offer.pieces]) == (0, [4])
        target = bytearray(4)
        reception.take([memoryview(target)])
        reception.confirm()
    assert target == b"left"
    assert second.stock().copied == Sent(STEP, 1, (1,)), "it does not have part 5"


def test_a_part_that_is_there_already_is_not_sent_again(nodes: tuple[MemoryHost, MemoryHost]) -> None:
    first, second = nodes
    there, _ = inlet(second), inlet(first)
    saved(first, b"left")
    copies = Copy(0, "127.0.0.1", there), Copy(0, "localhost", there)
    ordered(first, *copies)
    assert parts(second) == [(STEP, 0)]
    done = first.stock().copied
    assert done in [Sent(STEP, 1, missed) for missed in ((), (0,), (1,))], "twice at once is refused"
    ordered(first, *copies)
    assert first.has_told_all()
    assert second.has_told_all()


def test_a_commit_is_sent_to_another_node_later_and_what_is_under_way_not_twice(
    nodes: tuple[MemoryHost, MemoryHost],
) -> None:
    """The members of the next world may be others than those that have copies."""
    first, second = nodes
    there, _ = inlet(second), inlet(first)
    saved(first, b"left")
    with Receiver() as receiver:
        ordered(first, receiver.copy(0))
        reception, _ = receiver.greet()
        ordered(first, receiver.copy(0), Copy(0, "127.0.0.1", there), number=2)
        assert parts(second) == [(STEP, 0)], "nobody waits for the first one to arrive"
        reception.take([memoryview(bytearray(4))])
        reception.confirm()
    assert first.stock().copied == Sent(STEP, 2)
    assert first.has_told_all()


def test_the_same_order_for_another_commit_is_another_order(nodes: tuple[MemoryHost, MemoryHost]) -> None:
    """A master that was started anew counts its orders from the beginning."""
    first, second = nodes
    there, _ = inlet(second), inlet(first)
    for commit in (STEP, LATER):
        saved(first, b"left", commit.step)
        ordered(first, Copy(0, "127.0.0.1", there), commit=commit)
        assert (commit, 0) in parts(second)
        while first.stock().copied != Sent(commit, 1):
            pass  # it tells of what it holds as well


def test_alone_or_without_copies_nobody_listens() -> None:
    for nodes in (1, 2):
        with MemoryHost(nodes=nodes) as host:
            host.gate._peering = None
            saved(host, b"here")
            ordered(host)
    with MemoryHost() as host:
        saved(host, b"here")


def test_who_trains_alone_listens_if_others_may_join() -> None:
    """Else it could not send its shards when it is asked to leave."""
    alone = MemoryHost()
    alone.peering = Peering("127.0.0.1")
    with alone as host:
        assert inlet(host).port


def test_a_node_that_cannot_listen_says_so_and_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(socket, "create_server", fail)
    with MemoryHost(nodes=2) as host:
        saved(host, b"here")
        assert "no socket can be made (Too many open files)" in caplog.text


@pytest.mark.parametrize("host", ["", "localhost", "no.such.host", "192.0.2.1"])
def test_a_name_or_an_address_of_somebody_else_means_all_addresses(host: str) -> None:
    listener = copies._listen(host)
    with listener, socket.create_connection(("127.0.0.1", port(listener))):
        pass


def test_an_address_of_this_host_is_the_only_one() -> None:
    listener = copies._listen("127.0.0.2")
    with listener, pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port(listener)))


def port(listener: socket.socket) -> int:
    found: int = listener.getsockname()[1]
    return found


# -- senders that fail


def test_a_part_that_is_cut_off_in_the_middle_is_not_kept(node: MemoryHost) -> None:
    there = inlet(node)
    with Sender(there) as sender:
        assert sender.offer(part_of(STEP, 1, b"0123456789")) == {"taken": True}
        sender.channel.sendall(b"01234")
        sender.channel.shutdown(socket.SHUT_WR)
        assert sender.is_hung_up
    with Sender(there) as sender:
        assert sender.offer(part_of(STEP, 1, b"0123456789")) == {"taken": True}
        sender.channel.sendall(b"0123456789")
        sender.prove(b"0123456789")
        assert parts(node) == [(STEP, 1)]
        assert sender.hear() == {"stored": True}


def test_who_sends_more_than_it_said_is_not_believed(node: MemoryHost) -> None:
    with Sender(inlet(node)) as sender:
        sender.offer(part_of(STEP, 1, b"0123456789"))
        sender.channel.sendall(b"0123456789 and more")
        sender.prove(b"0123456789 and more")
        assert sender.is_hung_up
    assert node.has_told_all()


def test_a_byte_that_changes_on_the_way_is_found(node: MemoryHost) -> None:
    with Sender(inlet(node)) as sender:
        sender.offer(part_of(STEP, 1, b"0123456789"))
        sender.channel.sendall(b"012345678!")
        sender.prove(b"0123456789")
        assert sender.is_hung_up
    assert node.has_told_all()


def test_a_stranger_sends_nothing(node: MemoryHost) -> None:
    with Sender(inlet(node), key=b"x" * 32) as stranger, pytest.raises(ConnectionError):
        stranger.offer(part_of(STEP, 1, b"data"))
    assert node.has_told_all()


def test_strangers_that_say_nothing_keep_nobody_out(
    node: MemoryHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "STRANGERS", 8)
    there = inlet(node)
    silent = [Sender(there) for _ in range(12)]
    with Sender(there) as sender:
        assert sender.offer(part_of(STEP, 1, b"data")) == {"taken": True}
        sender.channel.sendall(b"data")
        sender.prove(b"data")
        assert parts(node) == [(STEP, 1)]
    assert [each.is_hung_up for each in silent[:5]] == [True] * 5, "the oldest make room"
    for each in silent:
        each.channel.close()


def test_a_stranger_that_says_nothing_is_left_after_a_while(
    node: MemoryHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "PATIENCE", 0.01)
    with Sender(inlet(node)) as silent:
        assert silent.is_hung_up


def test_a_peer_that_stops_in_the_middle_is_left_after_a_while(
    node: MemoryHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = inlet(node)
    with Sender(there) as sender:
        monkeypatch.setattr(transfer, "PATIENCE", 0.01)
        sender.offer(part_of(STEP, 1, b"0123456789"))
        assert sender.is_hung_up


def test_a_part_for_which_there_is_no_room_is_refused_with_the_reason(node: MemoryHost) -> None:
    there = inlet(node)
    with Sender(there) as sender:
        offer = part_of(STEP, 1, b"data")
        (piece,) = offer.pieces
        huge = type(offer)(offer.commit, offer.size, offer.part, (type(piece)(1, 2**53, "d"),))
        assert f"{2**53} bytes are needed" in sender.offer(huge)["refused"]
    with Sender(there) as sender:
        assert "round 9 has not begun here" in sender.offer(part_of(CommitId(9, 1), 1, b"data"))["refused"]


def test_many_parts_come_in_at_a_time_and_none_waits_for_another(node: MemoryHost) -> None:
    """Else a sender gives up while others take their time, and a node that leaves loses what only it has."""
    there = inlet(node)
    senders = [Sender(there) for _ in range(MAX_PARTS)]
    for rank, sender in enumerate(senders[:-1], 1):
        assert sender.offer(part_of(STEP, rank, b"data", size=99)) == {"taken": True}
    assert "refused" in senders[-1].offer(part_of(STEP, 50, b"data", size=99))
    for sender in reversed(senders[:-1]):
        sender.channel.sendall(b"data")
        sender.prove(b"data")
        assert sender.hear() == {"stored": True}
    for sender in senders:
        sender.channel.close()


@pytest.fixture
def may_go_on(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Until this is set no memory is made. Who waits for it is told so all the time."""
    event = threading.Event()

    def slow(size: int, is_wanted: Callable[[], bool]) -> int:
        event.wait(DEADLINE)
        return make_buffer(size, is_wanted)

    monkeypatch.setattr(buffers, "make_buffer", slow)
    monkeypatch.setattr(copies, "REMINDER", 0.01)
    return event


def test_who_waits_for_memory_hears_of_it(node: MemoryHost, may_go_on: threading.Event) -> None:
    """The kernel may take longer to clear it than a sender has patience."""
    with Sender(inlet(node)) as sender:
        assert sender.offer(part_of(STEP, 1, b"data")) == {"wait": True}
        assert sender.hear() == {"wait": True}
        may_go_on.set()
        assert decided(sender, sender.hear()) == {"taken": True}


def test_who_goes_while_memory_is_made_may_come_again(
    node: MemoryHost, may_go_on: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, reminders, is_over = inlet(node), threading.Semaphore(0), threading.Event()

    def remind(reception: transfer.Reception) -> bytes:
        reminders.release()
        return reception._said({"wait": True})

    monkeypatch.setattr(transfer.Reception, "wait", property(remind))
    monkeypatch.setattr(copies.logger, "info", lambda *_: is_over.set())
    with Sender(there) as sender:
        assert sender.offer(part_of(STEP, 1, b"data")) == {"wait": True}
    for _ in range(5):  # the kernel tells of it at the second one, or at the third
        assert reminders.acquire(timeout=DEADLINE)
    may_go_on.set()
    assert is_over.wait(DEADLINE)
    node.settle()
    with Sender(there) as sender:
        assert decided(sender, sender.offer(part_of(STEP, 1, b"data"))) == {"taken": True}


def decided(sender: Sender, answer: dict[str, Any]) -> dict[str, Any]:
    """The first answer from this one on that does not keep a sender waiting."""
    while answer == {"wait": True}:
        answer = sender.hear()
    return answer


# -- receivers that fail


def test_nobody_is_called_before_it_is_its_turn(node: MemoryHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is called and then hears nothing hangs up after a while."""
    monkeypatch.setattr(sending, "THREADS", 1)
    inlet(node)
    saved(node, b"data")
    with Receiver() as first, Receiver() as second:
        ordered(node, first.copy(0), second.copy(0))
        reception, _ = first.greet()
        node.settle()
        assert not second.is_called
        for receiver in (None, second):
            reception = reception if receiver is None else receiver.greet()[0]
            reception.take([memoryview(bytearray(4))])
            reception.confirm()
        assert node.stock().copied == SENT


def test_a_sender_is_cut_off_once_its_memory_may_be_written(node: MemoryHost) -> None:
    inlet(node)
    saved_much(node)
    with Receiver() as receiver:
        ordered(node, receiver.copy(0))
        reception, offer = receiver.greet()
        assert [piece.length for piece in offer.pieces] == [LARGE]
        reception.accept()
        node.judge(kept=LATER, copying=LATER)
        assert receiver.rest() < LARGE, "without the end nobody stores it"
    stock = node.stock()
    assert (stock.holdings, stock.copied) == ((), None), "nobody was told that it was sent"


@pytest.mark.parametrize("later", [LATER, None])
def test_a_sender_of_an_order_before_is_cut_off_as_well(node: MemoryHost, later: CommitId | None) -> None:
    """The newest order is done, but what an earlier one began still reads the memory."""
    inlet(node)
    saved_much(node)
    with Receiver() as slow, Receiver() as quick:
        ordered(node, slow.copy(0))
        reception, _ = slow.greet()
        reception.accept()
        ordered(node, quick.copy(5), number=2)
        assert node.stock().copied == Sent(STEP, 2, (0,)), "part 5 is not here"
        node.judge(kept=STEP, copying=STEP)
        node.judge(kept=STEP, copying=later)
        assert slow.rest() < LARGE, "without the end nobody stores it"


def test_what_was_cut_off_is_sent_anew_if_it_is_ordered_again(node: MemoryHost) -> None:
    inlet(node)
    saved_much(node)
    with Receiver() as receiver:
        ordered(node, receiver.copy(0))
        reception, _ = receiver.greet()
        reception.accept()
        node.judge(kept=STEP, safe=STEP)
        ordered(node, receiver.copy(0))
        assert receiver.rest() < LARGE
        receiver.hang_up()
        reception, _ = receiver.greet()
        reception.take([memoryview(bytearray(LARGE))])
        reception.confirm()
        assert node.stock().copied == SENT


def test_a_new_round_cuts_a_sender_off(node: MemoryHost) -> None:
    inlet(node)
    saved_much(node)
    with Receiver() as receiver:
        ordered(node, receiver.copy(0))
        reception, _ = receiver.greet()
        reception.accept()
        node.begin(2, restore=STEP)
        assert receiver.rest() < LARGE


def test_a_slow_receiver_holds_up_no_other_one(
    nodes: tuple[MemoryHost, MemoryHost], caplog: pytest.LogCaptureFixture
) -> None:
    first, second = nodes
    there, _ = inlet(second), inlet(first)
    saved_much(first)
    with Receiver() as slow:
        ordered(first, slow.copy(0), Copy(0, "127.0.0.1", there))
        reception, _ = slow.greet()
        reception.accept()
        assert parts(second) == [(STEP, 0)]
        assert first.has_told_all()
    assert first.stock().copied == Sent(STEP, 1, (0,)), "it is done with all that it could"
    assert "no copy of step 7 of round 1 could be sent to 127.0.0.1" in caplog.text


def test_a_receiver_that_says_nothing_is_left_after_a_while(
    node: MemoryHost, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    inlet(node)
    saved(node, b"data")
    monkeypatch.setattr(transfer, "PATIENCE", 0.01)
    with Receiver() as silent:
        ordered(node, silent.copy(0))
        assert node.stock().copied == Sent(STEP, 1, (0,))
    assert "nothing has moved for" in caplog.text


def test_a_receiver_that_refuses_is_named(node: MemoryHost, caplog: pytest.LogCaptureFixture) -> None:
    inlet(node)
    saved(node, b"data")
    with Receiver() as receiver:
        ordered(node, receiver.copy(0))
        reception, _ = receiver.greet()
        reception.refuse("no room", False)
        assert node.stock().copied == Sent(STEP, 1, (0,))
    assert "no copy of step 7 of round 1 could be sent to 127.0.0.1" in caplog.text
    assert "it refuses: no room" in caplog.text


def test_a_receiver_that_is_gone_is_named(node: MemoryHost, caplog: pytest.LogCaptureFixture) -> None:
    inlet(node)
    saved(node, b"data")
    with Receiver() as receiver:
        gone = receiver.copy(0)
    ordered(node, gone, Copy(0, "no.such.host.invalid", gone.inlet))
    assert node.stock().copied == Sent(STEP, 1, (0, 1))
    assert f"127.0.0.1 port {gone.inlet.port}: Connection refused" in caplog.text
    assert "no.such.host.invalid" in caplog.text


def test_no_state_is_sent_to_who_does_not_know_the_key(
    node: MemoryHost, caplog: pytest.LogCaptureFixture
) -> None:
    inlet(node)
    saved(node, b"data")
    with Receiver(key=b"x" * 32) as stranger:
        ordered(node, stranger.copy(0))
        with pytest.raises(transfer.TransferError):
            stranger.greet()
        assert stranger.channel is not None
        reception = Taker(stranger.channel, b"x" * 32)
        reception.accept()
        assert stranger.rest() == 0
        assert node.stock().copied == Sent(STEP, 1, (0,))
    assert "the peer does not belong to this job" in caplog.text


# -- a node without descriptors


def test_a_part_that_cannot_be_mapped_is_missed(
    node: MemoryHost, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> NoReturn:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    inlet(node)
    saved(node, b"data")
    with Receiver() as receiver:
        with monkeypatch.context() as full:
            full.setattr(mmap, "mmap", fail)
            ordered(node, receiver.copy(0))
            assert node.stock().copied == Sent(STEP, 1, (0,))
        assert "no copy of step 7 of round 1 could be sent to 127.0.0.1" in caplog.text
        assert "Too many open files" in caplog.text
        ordered(node, receiver.copy(0), number=2)
        reception, _ = receiver.greet()
        reception.take([memoryview(bytearray(4))])
        reception.confirm()
        assert node.stock().copied == Sent(STEP, 2)


class NoRoom:
    """A listener for whose connections there is no descriptor, so many times."""

    def __init__(self, listener: socket.socket, times: int) -> None:
        self._listener = listener
        self.left = times

    def __getattr__(self, name: str) -> Any:
        return getattr(self._listener, name)

    def accept(self) -> Any:
        if self.left:
            self.left -= 1
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return self._listener.accept()


def test_who_calls_while_there_is_no_descriptor_waits(
    node: MemoryHost, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(copies, "PAUSE", 0.01)
    there = inlet(node)
    assert node.gate._server is not None
    copies_there = node.gate._server._stock.copies
    assert copies_there is not None
    full = NoRoom(copies_there._listener, 3)
    monkeypatch.setattr(copies_there, "_listener", full)
    with Sender(there) as sender:  # it hears the challenge
        assert full.left == 0
        assert caplog.text.count("a node that sends a copy has to wait: Too many open files") == 3
        assert sender.offer(part_of(STEP, 1, b"data")) == {"taken": True}


def test_who_still_waits_at_the_end_is_left(node: MemoryHost, monkeypatch: pytest.MonkeyPatch) -> None:
    there = inlet(node)
    assert node.gate._server is not None
    copies_there = node.gate._server._stock.copies
    assert copies_there is not None
    full = NoRoom(copies_there._listener, 10**9)
    monkeypatch.setattr(copies_there, "_listener", full)
    with socket.create_connection(("127.0.0.1", there.port), DEADLINE):
        node.settle()
        assert full.left == 10**9 - 1, "nobody looks again and again"


# -- the end


@pytest.mark.parametrize("moment", ["greeted", "taking", "sending"])
def test_a_node_that_closes_in_the_middle_leaves_nothing_open(moment: str) -> None:
    before = open_here()
    with Receiver() as receiver:
        with MemoryHost(nodes=2) as host:
            there = inlet(host)
            sender = Sender(there)
            if moment == "taking":
                sender.offer(part_of(STEP, 1, b"data"))
            if moment == "sending":
                saved_much(host)
                ordered(host, receiver.copy(0))
                reception, _ = receiver.greet()
                reception.accept()
        assert sender.is_hung_up
        sender.channel.close()
        if moment == "sending":
            assert receiver.rest() < LARGE
    for thread in threading.enumerate():  # the agent's end does not wait for them
        if thread.name.startswith("elasticrun-copy"):
            thread.join(DEADLINE)
    assert open_here() <= before
