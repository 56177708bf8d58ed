"""Claims: of one user one process has it, and nobody else can keep it from him."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator

import pytest

from elasticrun.rpc.claims import ClaimedError, claim

_SQUAT = """\
import os, socket, sys
os.setuid(65534)
held = []
for number in range(int(sys.argv[2])):
    it = socket.socket(socket.AF_UNIX)
    it.bind(f"\\0elasticrun.{sys.argv[1]}.{number}")
    if sys.argv[3] == "listens":
        it.listen()
    held.append(it)
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def what() -> Iterator[str]:
    yield f"test.{uuid.uuid4().hex}"


def test_one_process_has_it_until_it_lets_go(what: str) -> None:
    with claim(what), pytest.raises(ClaimedError):
        claim(what)
    claim(what).close()


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be two users")
@pytest.mark.parametrize("number", [1, 8])
@pytest.mark.parametrize("how", ["listens", "is silent"])
def test_a_stranger_who_takes_the_name_keeps_nobody_out(what: str, number: int, how: str) -> None:
    """Before, the master of the right port was told that another program has it."""
    with subprocess.Popen(
        [sys.executable, "-c", _SQUAT, what, str(number), how],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as squatter:
        assert squatter.stdout is not None and squatter.stdout.readline() == b"ready\n"
        with claim(what):
            if number == 1:
                with pytest.raises(ClaimedError):
                    claim(what)
            else:
                claim(what).close()  # the port itself decides
        squatter.communicate()


def test_who_cannot_say_who_he_is_is_nobody(what: str) -> None:
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(f"\0elasticrun.{what}.0")
        claim(what).close()
