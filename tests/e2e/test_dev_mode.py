"""Python's development mode shows what is wrong with the job, and finds nothing to say of the launcher."""

from __future__ import annotations

import re

import pytest

from tests.support.cluster import Cluster

SCRIPT = """
import os, sys
print(sys.flags.dev_mode, len(os.environ["TORCHELASTIC_RUN_ID"]))
"""


@pytest.mark.parametrize("options", [(), ("--warm=on", "--warm-import=colorsys")], ids=["cold", "warm"])
def test_nothing_is_left_open(cluster: Cluster, options: tuple[str, ...]) -> None:
    (cluster.folder / "train.py").write_text(SCRIPT)
    environ = {"PYTHONDEVMODE": "1", "PYTHONWARNINGS": "always"}
    launcher = cluster.launch(*options, "train.py", env=environ)
    assert launcher.wait() == 0, launcher.story()
    assert launcher.out == "True 36"
    # This mode also tells of each callback that took more than 0.1 s, as any may on a busy box.
    slow = r"^(elastic-run: (master: )?)?Executing <.*> took [\d.]+ seconds$\n?"
    assert re.sub(slow, "", launcher.err, flags=re.MULTILINE) == ""
