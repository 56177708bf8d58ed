"""A failure in one line."""

from __future__ import annotations

from dataclasses import replace

from elasticrun.core.protocol.messages import FailureKind
from tests.core.build import failure


def test_summary_says_who_and_how() -> None:
    exited = failure("a", rank=3, code=7)
    assert exited.summary == "rank 3 (local rank 0, pid 1, a) exited with 7"
    killed = failure("a", FailureKind.SIGNAL, code=-9)
    assert killed.summary == "rank 0 (local rank 0, pid 1, a) was killed by signal 9"
    explained = replace(killed, message="killed by SIGKILL (9): often the kernel\nand more")
    assert explained.summary.endswith("(local rank 0, pid 1, a) was killed by SIGKILL (9): often the kernel")
    told = replace(exited, message="ValueError: boom", traceback="Traceback ...")
    assert told.summary.endswith(" exited with 7: ValueError: boom")
    announced = replace(told, message="NameError: in user code:\n\n    File x\n    NameError: name 'y'\n")
    assert announced.summary.endswith(" exited with 7: NameError: in user code: NameError: name 'y'")
    slow = replace(exited, stopped=True, exit_code=-15)
    assert slow.summary.endswith(" was already failing when the launcher stopped it")
    assert replace(slow, message="E: x", error_file="e").summary.endswith(" stopped it: E: x")
    unborn = replace(failure("a", FailureKind.SPAWN), message="could not be started: no such file")
    assert unborn.summary == "rank 0 (local rank 0, pid 1, a) could not be started: no such file"
