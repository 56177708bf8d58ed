"""A master in a process of its own, as its agent would have started it."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from elasticrun.config import Endpoint, JobConfig, SecurityConfig
from elasticrun.master.service import MasterConfig
from elasticrun.rpc.records import to_json

ROOT = Path(__file__).parent.parent.parent
JOB = JobConfig(job_id="job", min_nodes=1, max_nodes=2, last_call_timeout=0.0)


@dataclass(frozen=True)
class Master:
    """A master process, as its agent would have started it."""

    process: subprocess.Popen[bytes]
    endpoint: Endpoint

    def memory(self) -> int:
        """Resident bytes."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def descriptors(self) -> int:
        """How many files and sockets it has open."""
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))  # noqa: PTH208


@contextmanager
def master_process(
    directory: Path, security: SecurityConfig, descriptors: int | None = None, job: JobConfig = JOB
) -> Iterator[Master]:
    """A master of job "job" on the loopback; it must not write the token or very much.

    ``descriptors`` is the limit that it starts with.
    """
    settings = to_json(MasterConfig(job, "127.0.0.1", 0, str(directory), security=security))
    log = directory / "log"
    with log.open("wb") as stderr:
        command = [sys.executable, "-m", "elasticrun.cli.master"]
        env = {**os.environ, "GRPC_VERBOSITY": "NONE"}
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, cwd=ROOT, env=env
        )
        assert process.stdin is not None and process.stdout is not None
        if descriptors is not None:
            _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (descriptors, hard))
        try:
            process.stdin.write(json.dumps(settings).encode() + b"\n")
            process.stdin.flush()
            port = json.loads(process.stdout.readline())["port"]
            yield Master(process, Endpoint("127.0.0.1", port))
        finally:
            process.kill()
            process.communicate()
    words = log.read_text()
    assert "Traceback" not in words and (security.token is None or security.token not in words), words
    assert len(words.splitlines()) < 100, "an attacker must not fill the log"
