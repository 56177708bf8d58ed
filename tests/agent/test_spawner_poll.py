"""The spawner's poll: a number that is closed and used again is another descriptor."""

from __future__ import annotations

import os

from elasticrun.agent.spawner.poll import Poller


def test_a_number_that_is_used_again_by_an_earlier_handler_was_not_ready() -> None:
    poller = Poller()
    pipes = [os.pipe() for _ in range(3)]
    first, second, idle = (reader for reader, _ in pipes)
    called = []

    def replace(closed: int) -> None:
        poller.unwatch(first)
        poller.unwatch(second)
        os.dup2(idle, closed)
        poller.watch(closed, lambda: called.append("new"))

    poller.watch(first, lambda: replace(second))
    poller.watch(second, lambda: replace(first))
    for _, writer in pipes[:2]:
        os.write(writer, b"!")
    poller.wait(0.0)
    assert called == []
    os.write(pipes[2][1], b"!")
    poller.wait(0.0)
    assert called == ["new"]
    for ends in pipes:
        os.closerange(min(ends), min(ends) + 1)
        os.closerange(max(ends), max(ends) + 1)
