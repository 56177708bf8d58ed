"""``elastic-ctl simulate`` in this process."""

from __future__ import annotations

from elasticrun.cli import ctl_simulate
from elasticrun.master.snapshot import restore, take
from elasticrun.sim.master import Saving

#: How a master really saves its state.
REAL = Saving(take, restore)


def simulate(*arguments: str) -> int:
    """The exit status; what it prints goes to stdout."""
    return int(ctl_simulate.simulate.main(list(arguments), standalone_mode=False) or 0)
