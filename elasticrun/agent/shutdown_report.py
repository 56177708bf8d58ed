"""The last words of an agent: the summary of a failure, and what is left for others to read."""

from __future__ import annotations

import logging
from collections.abc import Callable

from elasticrun.agent.logs.dirs import LogDirs
from elasticrun.agent.spawner.client import LeftAlone, WarmNews
from elasticrun.agent.summary import render_summary
from elasticrun.agent.workers.error_file import copy_root_cause
from elasticrun.config import LaunchConfig
from elasticrun.core.agent.events import Finish
from elasticrun.core.agent.recovery import describe_end
from elasticrun.core.protocol.messages import Assignment, NodeCheck, Outcome
from elasticrun.errors import ExitCode

logger = logging.getLogger(__name__)

ShowCheckup = Callable[[tuple[NodeCheck, ...]], None]

#: Seconds to wait for a master whose job has ended, and for one whose job this agent only leaves.
MASTER_FAREWELL = 35.0
MASTER_LEFT_BEHIND = 1.0
#: Processes left alone that a warning names at most.
MOST_NAMED = 8


class ShutdownReport:
    """What one Finish means for the console, the error file and the master."""

    def __init__(
        self,
        config: LaunchConfig,
        finish: Finish,
        show_checkup: ShowCheckup | None = None,
        last: Assignment | None = None,
        lasted: float = 0.0,
        is_seen: bool = False,
        is_told: bool = False,
    ) -> None:
        """``last``: the last round here; ``lasted``: seconds of this agent; ``is_seen``: on a terminal;
        ``is_told``: somebody hears of the end, and shows a failure.
        """
        self._config = config
        self._finish = finish
        self._show_checkup = show_checkup
        self._last = last
        self._lasted = lasted
        self._is_seen = is_seen
        self._is_told = is_told

    @property
    def patience(self) -> float:
        """How long to wait for the master that this agent hosts, in seconds."""
        return MASTER_LEFT_BEHIND if self._finish.outcome is None else MASTER_FAREWELL

    def say(self, write: Callable[[bytes], object], dirs: LogDirs) -> None:
        """Tell the user how it ended. A good end without a restart needs words on a terminal only."""
        finish = self._finish
        failed = finish.outcome in (Outcome.FAILED, Outcome.REPEATED_ERROR)
        logs = dirs.close(failed)
        if finish.checkup and self._show_checkup is not None:
            self._show_checkup(finish.checkup)
        if failed:
            script = self._config.workers.entrypoint.target
            if not self._is_told:
                write(render_summary(script, finish.reason, finish.failures, logs).encode(errors="replace"))
            self._copy_root_cause()
        else:
            if dirs.kept:
                logger.warning(
                    "the job's logs or stacks of hangs are kept in %s; --log-dir chooses another place",
                    dirs.kept,
                )
            self._say_done()
            if finish.is_spare and finish.exit_status == ExitCode.OK:
                logger.warning("%s", finish.reason)
            if finish.exit_status not in (ExitCode.OK, ExitCode.DRAINED):  # a drain was reported before
                logger.error("%s", finish.reason)

    def _say_done(self) -> None:
        last = self._last
        if last is None or self._finish.outcome is not Outcome.SUCCEEDED:
            return
        is_news = self._is_seen or last.restart_count > 0
        logger.log(logging.WARNING if is_news else logging.INFO, "%s", describe_end(last, self._lasted))

    def _copy_root_cause(self) -> None:
        target = self._config.workers.error_file
        if target is None or not self._finish.failures:
            return
        problem = copy_root_cause(self._finish.failures[0], target)
        if problem:
            logger.warning("%s", problem)


def report(news: WarmNews | LeftAlone) -> None:
    """Log news from the spawner: how workers start, or which processes live on."""
    match news:
        case WarmNews():
            logger.log(logging.INFO if news.is_warm else logging.WARNING, "%s", news.text)
        case LeftAlone(processes):
            named = ", ".join(f"{pid} ({command})" for pid, command in processes[:MOST_NAMED])
            more = f" and {len(processes) - MOST_NAMED} more" if len(processes) > MOST_NAMED else ""
            logger.warning(
                "left alone, as the job ended well: %s%s; what they print may be lost, and --kill-leftovers "
                "ends them with the job",
                named,
                more,
            )
