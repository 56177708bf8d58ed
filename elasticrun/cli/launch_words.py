"""What ``elastic-run`` is told on each host of a launch.

Theory. The launch knows where the master is, how many nodes and workers there are, and which node is which.
All other options are the user's, the same on every host.
"""

from __future__ import annotations

from typing import Any

from elasticrun.cli import options
from elasticrun.cli.arguments import Given, ShowText, read_arguments
from elasticrun.cli.node_words import NodeWords, check_given, grace_of
from elasticrun.cli.option import Option
from elasticrun.cli.platform_options import PLATFORM
from elasticrun.config import Endpoint
from elasticrun.core.hosts.names import Host
from elasticrun.dataclass import dataclass
from elasticrun.errors import UsageError

#: Options of elastic-run that the launch gives, and what to do instead.
_OURS: tuple[tuple[Option[Any], str], ...] = (
    (options.NNODES, "give --min-nodes and --max-nodes"),
    (options.RDZV_ENDPOINT, "give --rdzv-endpoint before the --"),
    (options.MASTER_ADDR, "give --rdzv-endpoint before the --"),
    (options.MASTER_PORT, "give --rdzv-endpoint before the --"),
    (options.TOKEN_FILE, "give --token-file before the --"),
    (options.RDZV_BACKEND, "give nothing"),
    (options.NODE_RANK, "give nothing"),
    (options.STANDALONE, "give elastic-run itself"),
    (PLATFORM, "give elastic-run itself, in a driver"),
    (options.NO_TOKEN, "give nothing: hosts are drained with the token"),
)
_PROGRAM = "elastic-run"
_EXAMPLE = "-- [options of elastic-run] script [its arguments]"


@dataclass(frozen=True, slots=True)
class LaunchWords:
    """The user's words, and how the hosts find one another."""

    given: Given
    options: tuple[str, ...]  # as the user wrote them
    job_id: str

    def argv(
        self, python: str, host: Host, rank: int, nodes: tuple[int, int], endpoint: Endpoint
    ) -> list[str]:
        """The command line on a host. The first alone has the master, even if others could listen there."""
        more = dict[Option[Any], str]()
        if host.slots or not self.given.has(options.NPROC_PER_NODE):
            more[options.NPROC_PER_NODE] = host.slots or "1"
        node = NodeWords(self.job_id, nodes, endpoint, rank, is_host=rank == 0)
        return node.argv(python, self.given, self.options, more)

    @property
    def grace(self) -> float:
        """How long a launcher may take to stop."""
        return grace_of(self.given)


def read_words(argv: tuple[str, ...], new_id: str) -> LaunchWords:
    """Look through the words behind the ``--``. Raises UsageError for what the launch gives itself."""
    words = argv[1:] if argv[:1] == (_PROGRAM,) else argv
    try:
        given = read_arguments(words, {})
    except ShowText:
        raise UsageError(f"these words start a job and print nothing: ask {_PROGRAM} itself") from None
    check_given(given, _OURS, "is given to each host by the launch", _EXAMPLE)
    theirs = words[: len(words) - len(given.command)]
    theirs = theirs[:-1] if theirs[-1:] == ("--",) else theirs
    job_id = given.get(options.RDZV_ID) if given.has(options.RDZV_ID) else new_id
    return LaunchWords(given, theirs, job_id)
