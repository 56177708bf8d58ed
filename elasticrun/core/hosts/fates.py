"""What the end of a host's process means: for the host, or for the whole job."""

from __future__ import annotations

from enum import Enum

from elasticrun.core.hosts.events import Ended
from elasticrun.dataclass import dataclass
from elasticrun.errors import EXIT_CODE_MEANING, ExitCode

SIGINT, SIGTERM = 2, 15
#: What ssh ends with if it could not connect, or lost the connection; stands for an ssh that was killed too.
LOST = 255

#: Codes with which a launcher says how the whole job ended.
_OF_JOB = frozenset(
    {
        ExitCode.OK,
        ExitCode.JOB_FAILED,
        ExitCode.RENDEZVOUS_TIMEOUT,
        ExitCode.REPEATED_ERROR,
        ExitCode.UNHEALTHY,
    }
)
#: Codes that a next try on the master's host would only repeat.
_HOPELESS = frozenset(
    {
        ExitCode.USAGE,
        ExitCode.ENDPOINT_TAKEN,
        ExitCode.WRONG_JOB,
        ExitCode.WRONG_VERSION,
        ExitCode.UNAUTHENTICATED,
    }
)


@dataclass(frozen=True, slots=True)
class Terms:
    """What the user may choose. Times are in seconds."""

    min_nodes: int
    is_fixed: bool = False  # the list never changes
    grace: float = 15.0  # a host is missing at least so long before it is drained
    cooldown: tuple[float, float] = (5.0, 300.0)  # for which a host that failed is left out: first, longest
    tries: int = 3  # failures in a row after which nobody waits for a host
    healthy_after: float = 60.0  # a host that ran so long has no failures behind it
    start_timeout: float = 60.0
    drain_timeout: float = 180.0
    stop_timeout: float = 60.0
    over_timeout: float = 90.0  # for the launchers of a job that is over to end

    def pause(self, failures: int) -> float:
        """For how long a host is left out after so many failures in a row."""
        first, longest = self.cooldown
        return min(longest, first * 2.0 ** min(failures - 1, 50))


class Fate(Enum):
    """What the end of a process means."""

    FAILED = "failed"  # the host is tried again
    JOB_OVER = "job over"
    DISMISSED = "dismissed"  # somebody else has let it go
    HOPELESS = "hopeless"  # the launch ends


def is_of_job(event: Ended, up_since: float | None) -> bool:
    """Whether a launcher says with its end that the job has ended."""
    return up_since is not None and event.code in _OF_JOB


def judge(event: Ended, was_up: bool, is_first: bool) -> tuple[Fate, str]:
    """What an end that nobody asked for means, and what to say after the host's name."""
    code = event.code
    if not was_up:
        cause = f"ssh ended with {code}" if code == LOST else f"exit status {code}"
        return Fate.FAILED, f"cannot be started: {event.said or 'it said nothing'} ({cause})"
    if code in _OF_JOB:
        return Fate.JOB_OVER, ""
    if code == ExitCode.DRAINED:
        return Fate.DISMISSED, "was told to leave by somebody else"
    if code == ExitCode.EXCLUDED:
        return Fate.DISMISSED, "was excluded from the job, as it is faulty"
    if is_first and code in _HOPELESS:
        return Fate.HOPELESS, _ended(code)
    return Fate.FAILED, _ended(code)


def status_of(event: Ended, was_up: bool) -> int:
    """The exit status of a launch that gives up because of this end."""
    if not was_up or event.code == LOST:
        return ExitCode.MASTER_UNREACHABLE
    return event.code


def _ended(code: int) -> str:
    if code == LOST:
        return "is lost: the connection has ended"
    known = {each.value: each for each in ExitCode}
    meaning = f": {EXIT_CODE_MEANING[known[code]]}" if code in known else ""
    return f"ended with {code}{meaning}"
