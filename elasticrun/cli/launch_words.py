"""What ``elastic-run`` is told on each host of a launch.

Theory. The launch knows where the master is, how many nodes and workers there are, and which node is which.
So it gives these options itself, behind the user's, and refuses them there: two answers to one question would
be one too many. All other options are the user's, the same on every host.
"""

from __future__ import annotations

from typing import Any

from elasticrun.cli import options
from elasticrun.cli.arguments import Given, ShowText, read_arguments
from elasticrun.cli.option import Option
from elasticrun.cli.platform_options import PLATFORM
from elasticrun.config import Endpoint
from elasticrun.core.hosts.names import Host
from elasticrun.dataclass import dataclass
from elasticrun.errors import UsageError

#: Options of elastic-run that the launch gives, and what the user gives instead.
_OURS: tuple[tuple[Option[Any], str], ...] = (
    (options.NNODES, "--min-nodes and --max-nodes"),
    (options.RDZV_ENDPOINT, "--rdzv-endpoint before the --"),
    (options.MASTER_ADDR, "--rdzv-endpoint before the --"),
    (options.MASTER_PORT, "--rdzv-endpoint before the --"),
    (options.TOKEN_FILE, "--token-file before the --"),
    (options.RDZV_BACKEND, "nothing"),
    (options.NODE_RANK, "nothing"),
    (options.STANDALONE, "elastic-run itself"),
    (PLATFORM, "elastic-run itself, in a driver"),
    (options.NO_TOKEN, "nothing: hosts are drained with the token"),
)
_PROGRAM = "elastic-run"
#: Seconds beyond the grace of workers that a launcher may need for its end.
_MARGIN = 30.0


@dataclass(frozen=True, slots=True)
class LaunchWords:
    """The user's words, and how the hosts find one another."""

    given: Given
    options: tuple[str, ...]  # as the user wrote them
    job_id: str

    def argv(
        self, python: str, host: Host, rank: int, nodes: tuple[int, int], endpoint: Endpoint
    ) -> list[str]:
        """The command line on a host."""
        ours = {
            options.NNODES: f"{nodes[0]}:{nodes[1]}",
            options.RDZV_BACKEND: "static",
            options.RDZV_ENDPOINT: str(endpoint),
            options.RDZV_ID: self.job_id,
            options.RDZV_CONF: self._conf(rank),
            options.NODE_RANK: str(rank),
        }
        if host.slots or not self.given.has(options.NPROC_PER_NODE):
            ours[options.NPROC_PER_NODE] = host.slots or "1"
        words = [word for option, text in ours.items() for word in (option.flag, text)]
        return [python, "-m", "elasticrun", *self.options, *words, "--", *self.given.command]

    def _conf(self, rank: int) -> str:
        """Only the first host may have the master, even if others could listen at its address."""
        theirs = self.given.texts.get(options.RDZV_CONF.name)
        text = f"{theirs.text}," if theirs is not None else ""
        return f"{text}is_host={'true' if rank == 0 else 'false'}"

    @property
    def grace(self) -> float:
        """How long a launcher may take to stop."""
        grace = self.given.find(options.SHUTDOWN_TIMEOUT)
        return _MARGIN + (_MARGIN if grace is None else grace)


def read_words(argv: tuple[str, ...], new_id: str) -> LaunchWords:
    """Look through the words behind the ``--``. Raises UsageError for what the launch gives itself."""
    words = argv[1:] if argv[:1] == (_PROGRAM,) else argv
    try:
        given = read_arguments(words, {})
    except ShowText:
        raise UsageError(f"these words start a job and print nothing: ask {_PROGRAM} itself") from None
    for option, instead in _OURS:
        if given.has(option):
            raise UsageError(f"{option.flag} is given to each host by the launch: give {instead}")
    if not given.command and not given.on(options.HEALTH_CHECK_ONLY):
        raise UsageError("no training script given: give -- [options of elastic-run] script [its arguments]")
    for option in options.OPTIONS:
        given.find(option)  # refuses a wrong value here, not on each host
    if any(key == "is_host" for key, _ in given.get(options.RDZV_CONF)):
        raise UsageError("is_host of --rdzv-conf is given to each host by the launch: leave it out")
    theirs = words[: len(words) - len(given.command)]
    theirs = theirs[:-1] if theirs[-1:] == ("--",) else theirs
    job_id = given.get(options.RDZV_ID) if given.has(options.RDZV_ID) else new_id
    return LaunchWords(given, theirs, job_id)
