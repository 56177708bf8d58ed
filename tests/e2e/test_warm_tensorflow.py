"""A warm chief is a cold chief: what it can see, how it ends and what is said of that are the same.

As in test_warm_conformance.py, but for what is tensorflow's: a chief is run cold and warm at the same time,
and goes through three rounds. The first one ends with what it has saved, the second one with an exception.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.test_warm_conformance import Pair, differences, pair
from tests.support.cluster import Cluster

SCRIPT = Path(__file__).parent.parent / "support" / "warm_tensorflow.py"
ROUNDS = ("0-0", "1-0", "2-0")
#: No lines of tensorflow's with the time in them.
SILENT = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0"}
#: What the import changes; in a warm worker it has been so from the first line on.
OF_IMPORT = ("environment", "SigCgt", "signal handlers", "files")
#: BLAS starts its threads as it is loaded, and after a fork when it has to compute.
THREADS = "Threads"

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    cluster = Cluster(tmp_path_factory.mktemp("warm"))
    try:
        options = ("--tf-role=chief", "--max-restarts=1")
        return pair(cluster, "chief", *options, str(SCRIPT), "reports", "-x", "a b", "", env=SILENT)
    finally:
        cluster.close()


def test_it_was_started_as_it_was_said(both: Pair) -> None:
    for ended, is_warm in ((both.cold, False), (both.warm, True)):
        assert ended.status == 0, ended.err
        starts = {name: report["tensorflow is there"] for name, report in ended.reports.items()}
        assert starts == dict.fromkeys(ROUNDS, is_warm)


def different(cold: dict[str, object], warm: dict[str, object], *but: str) -> list[str]:
    """What is not the same, but for these facts and the number of threads."""
    return [it for it in differences(cold, warm) if it.partition(":")[0].strip() not in {*but, THREADS}]


@pytest.mark.parametrize("name", ROUNDS)
def test_at_the_first_line(both: Pair, name: str) -> None:
    cold, warm = (ended.reports[name]["start"] for ended in (both.cold, both.warm))
    assert different(cold, warm, *OF_IMPORT) == []
    imported = both.cold.reports["0-0"]["imported"]
    for fact in OF_IMPORT:
        of_round = {**imported[fact], **cold[fact]} if isinstance(imported[fact], dict) else imported[fact]
        assert list(differences(of_round, warm[fact])) == [], fact


@pytest.mark.parametrize("part", ["imported", "used"])
def test_after_the_import_and_after_the_first_operations(both: Pair, part: str) -> None:
    cold, warm = (ended.reports["0-0"][part] for ended in (both.cold, both.warm))
    assert different(cold, warm) == []


def test_no_two_processes_draw_the_same_numbers(both: Pair) -> None:
    reports = [both.cold.reports["0-0"], *both.warm.reports.values()]
    draws = [report["drawn"] for report in reports]
    assert len(draws) == 1 + len(ROUNDS)
    for name in draws[0]:
        assert len({str(drawn[name]) for drawn in draws}) == len(draws), name


def test_what_is_printed_and_how_it_ends(both: Pair) -> None:
    assert both.warm.out == both.cold.out
    assert both.warm.err == both.cold.err
    assert both.cold.ends == both.warm.ends == set(ROUNDS)
    assert "layer: é" in both.cold.err
    assert both.cold.reports["2-0"]["start"]["environment"]["TORCHELASTIC_RESTART_COUNT"] == "1"
