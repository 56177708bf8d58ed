"""Ask the interpreter of the workers: run code with one argument, return what it printed.

The code may import what the user wrote, so it gets the environment of a worker: without the job's token.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from elasticrun.cli.secrets import without_token

if TYPE_CHECKING:
    from subprocess import CompletedProcess


def ask(
    python: str, code: str, word: str, environ: Mapping[str, str], timeout: float
) -> CompletedProcess[str]:
    """Run ``python -c code word``, for ``timeout`` seconds at most.

    Raises OSError if it cannot be started, subprocess.TimeoutExpired if it does not end.
    """
    import subprocess  # not needed for the usual command line

    return subprocess.run(
        [python, "-c", code, word],
        env=without_token(environ),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=timeout,
        check=False,
    )
