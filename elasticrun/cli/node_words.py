"""What whoever starts the nodes of a job tells each of them: ``elastic-ctl launch``, and the driver on Ray.

Each gives some options itself, behind the user's, and refuses those from the user: two answers to one
question would be one too many.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from elasticrun.cli import options
from elasticrun.cli.arguments import Given
from elasticrun.cli.option import Option
from elasticrun.cli.secrets import Notes, given_token, read_tls
from elasticrun.config import Endpoint, SecurityConfig
from elasticrun.dataclass import dataclass
from elasticrun.errors import UsageError

#: Options that are not the user's to give, and what to do instead, or why.
Refused = Sequence[tuple[Option[Any], str]]

#: Seconds that workers get to end if nothing is said; and beyond them, for the launcher itself.
_WORKERS_GRACE, _MARGIN = 30.0, 30.0


@dataclass(frozen=True, slots=True)
class NodeWords:
    """How one node finds its job."""

    job_id: str
    nodes: tuple[int, int]  # fewest and most
    endpoint: Endpoint
    rank: int
    is_host: bool  # whether it has the master

    def argv(
        self, python: str, given: Given, theirs: Sequence[str], more: Mapping[Option[Any], str]
    ) -> list[str]:
        """The command line. ``theirs``: the user's options; ``more``: options that win over them as well."""
        conf = given.texts.get(options.RDZV_CONF.name)
        is_host = f"is_host={'true' if self.is_host else 'false'}"
        ours = {
            options.NNODES: f"{self.nodes[0]}:{self.nodes[1]}",
            options.RDZV_BACKEND: "static",
            options.RDZV_ENDPOINT: str(self.endpoint),
            options.RDZV_ID: self.job_id,
            options.RDZV_CONF: is_host if conf is None else f"{conf.text},{is_host}",
            options.NODE_RANK: str(self.rank),
            **more,
        }
        words = [word for option, text in ours.items() for word in (option.flag, text)]
        return [python, "-m", "elasticrun", *theirs, *words, "--", *given.command]


def check_given(given: Given, refused: Refused, why_not: str, example: str) -> None:
    """Raise UsageError for an option that is not the user's, a wrong value, and a missing script.

    ``why_not``: follows the name of an option that is refused; ``example``: a command line with a script.
    """
    for option, instead in refused:
        if given.has(option):
            raise UsageError(f"{option.flag} {why_not}: {instead}")
    if not given.command and not given.on(options.HEALTH_CHECK_ONLY):
        raise UsageError(f"no training script given: give {example}")
    for option in options.OPTIONS:
        given.find(option)  # refuses a wrong value here, not on each host
    if any(key == "is_host" for key, _ in given.get(options.RDZV_CONF)):
        raise UsageError(f"is_host of {options.RDZV_CONF.flag} {why_not}: leave it out")


def grace_of(given: Given) -> float:
    """Seconds that a launcher may take to stop."""
    grace = given.find(options.SHUTDOWN_TIMEOUT)
    return _MARGIN + (_WORKERS_GRACE if grace is None else grace)


def security_of(
    token_file: str | None,
    tls: tuple[str | None, str | None, str | None],
    environ: Mapping[str, str],
    notes: Notes,
    *,
    is_strict: bool,
    whose: str,
) -> SecurityConfig:
    """The given token, else a new one. ``tls``: authority, certificate and key; ``whose``: a new token's."""
    token = given_token(token_file, environ, notes, is_strict)
    files = read_tls(*tls, notes)
    if token is None:
        return SecurityConfig(os.urandom(32).hex(), files, whose)
    return SecurityConfig(token.text, files, token.source)
