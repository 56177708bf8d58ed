"""What starts again after a loss: the strategy of a round, chosen by whether it has tasks.

The workers of a torch job make one world that is fixed in each process, so all of them start again, by a new
round. A round that has tasks of TensorFlow (``core/job/tasks.py``) may go on without some of them.
"""

from __future__ import annotations

from typing import Protocol


class RestartScope(Protocol):
    """How far a loss goes in a round that runs."""

    def ended(self) -> str:
        """Why the job is over although members may still run, in words; "" if it is not."""
        ...

    def watch(self) -> None:
        """Start again what can be without a new round; called only while nothing stops the round."""
        ...

    def stop(self) -> None:
        """Choose the members that are told last that the round stops."""
        ...

    def go_on_stopping(self) -> None:
        """Tell the remaining members to stop, once it is their turn."""
        ...


class WholeWorld:
    """All workers start again, so there is nothing to do before the round has stopped."""

    def ended(self) -> str:
        """No worker ends the job for others."""
        return ""

    def watch(self) -> None:
        """Each failure stops the round."""

    def stop(self) -> None:
        """All are told at once."""

    def go_on_stopping(self) -> None:
        """No member is told later than others."""
