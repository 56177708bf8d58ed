"""The launchers that are measured, as data.

All of them take torchrun's command line, so one measurement is one list of arguments for all. They differ in
the program, and in the settings with which it works best.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

OURS = "elastic-run"
TORCHRUN = "torchrun"
TUNED = "torchrun-tuned"
HASTY = "torchrun-hasty"
BY_HAND = "by-hand"

#: By default torchrun's workers of all rounds share one store, and meet the keys of the round before.
PRIVATE_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
#: A node is lost after 3 missed signs of life, 1 s apart; then others may still join for 2 s.
SHORT = "last_call_timeout=2,keep_alive_interval=1,keep_alive_max_attempt=3"


@dataclass(frozen=True, slots=True)
class Launcher:
    """One of them; ``options`` go before those of the measurement, ``env`` on top of the environment."""

    name: str
    program: str
    about: str
    options: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)

    def path(self) -> str | None:
        """The program, looked for beside this interpreter first; None: it is not installed."""
        places = [str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]
        return shutil.which(self.program, path=os.pathsep.join(places))

    def command(self, *args: str) -> list[str]:
        """The whole command line."""
        program = self.path()
        assert program is not None, f"{self.program} is not installed"
        return [program, *self.options, *args]


LAUNCHERS = {
    it.name: it
    for it in (
        Launcher(OURS, "elastic-run", "as it is"),
        Launcher(TORCHRUN, "torchrun", "as it is"),
        Launcher(TUNED, "torchrun", "with a store of its own for each round", env=PRIVATE_STORE),
        Launcher(
            HASTY, "torchrun", "the same, with short timeouts", ("--rdzv-conf", SHORT), env=PRIVATE_STORE
        ),
        Launcher("ft_launcher", "ft_launcher", "of nvidia-resiliency-ext, as it is"),
        Launcher("dlrover-run", "dlrover-run", "of dlrover, as it is"),
        Launcher(
            BY_HAND,
            sys.executable,
            "TF_CONFIG written by hand, and a loop that starts the whole job again when a task dies",
            (str(Path(__file__).with_name("by_hand.py")),),
        ),
    )
}
