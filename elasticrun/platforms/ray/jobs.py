"""Ray's job server: drivers that it runs in the cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from elasticrun.core.protocol.plain import one_line, plain
from elasticrun.dataclass import dataclass
from elasticrun.errors import ExitCode
from elasticrun.platforms.protocol import PlatformError

_LONGEST = 300


@dataclass(frozen=True, slots=True)
class Submission:
    """A job that Ray has accepted."""

    name: str
    client: Any


def submit(address: str, entrypoint: str, working_dir: str | None, name: str | None) -> Submission:
    """Have it run. Raises PlatformError if the server cannot be reached, or refuses."""
    from ray.job_submission import JobSubmissionClient

    runtime = {"working_dir": working_dir} if working_dir is not None else {}
    try:
        client = JobSubmissionClient(address)
        return Submission(
            client.submit_job(entrypoint=entrypoint, submission_id=name, runtime_env=runtime), client
        )
    except Exception as error:  # noqa: BLE001 Ray raises what comes: ConnectionError, RuntimeError, ValueError
        raise _failed(address, error) from None


def follow(submission: Submission, show: Callable[[str], None]) -> int:
    """Show what the job prints until it ends; returns its exit status. Raises PlatformError."""
    try:
        asyncio.run(_show(submission, show))
        info = submission.client.get_job_info(submission.name)
    except Exception as error:  # noqa: BLE001 as above
        raise _failed(submission.name, error) from None
    if not info.status.is_terminal():
        raise PlatformError(f"Ray's job server has ended the connection; {submission.name} goes on")
    code = getattr(info, "driver_exit_code", None)
    if str(info.status) == "SUCCEEDED":
        return ExitCode.OK
    return code if isinstance(code, int) and code > 0 else ExitCode.JOB_FAILED


async def _show(submission: Submission, show: Callable[[str], None]) -> None:
    async for text in submission.client.tail_job_logs(submission.name):
        show(text)


def _failed(what: str, error: Exception) -> PlatformError:
    return PlatformError(f"Ray's job server, {what}: {plain(one_line(str(error)))[:_LONGEST]}")
