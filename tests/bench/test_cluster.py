"""The table of the cluster's schedulers is printed; what it says is no matter of this test."""

from __future__ import annotations

import pytest

from scripts.benchmarks import cluster, command


def test_a_small_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["cluster", "--jobs", "20", "--nodes", "32"]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert len(rows) == 2 + 3 * 4 + 2 * 2 + 3
    assert all(row.count("|") == len(cluster.HEAD) + 1 for row in rows)


def test_absurd_traces_are_refused() -> None:
    with pytest.raises(SystemExit):
        command.main(["cluster", "--jobs", "0"])
