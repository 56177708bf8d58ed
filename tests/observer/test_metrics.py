"""What a scrape shows of a job, read as Prometheus reads it; promtool's opinion where it is installed."""

from __future__ import annotations

import importlib
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import cast

import pytest

from elasticrun.core.history.history import KEPT
from elasticrun.core.history.totals import BUCKETS, TOTAL
from elasticrun.core.protocol.chronicle import (
    DataProgress,
    EntriesLost,
    Happening,
    JobEnded,
    LogEntry,
    NodeChanged,
    NodeDetached,
    Place,
    RoundStopped,
    SaveStalled,
    StateSaved,
    StepsDone,
    StragglerFound,
)
from elasticrun.core.protocol.round_progress import NodeFigures
from elasticrun.follower import Follower
from elasticrun.observer import exposition, metrics
from elasticrun.observer.metrics import LATE
from tests.core.story import LASTS, SPAN, WALL, entry, failed, joined, running, stopping, story
from tests.observer.followed import USED, Followed, everything, status, using

MANUAL = Path(metrics.__file__).parent.parent / "manual/metrics.md"


def at(moment: float, *told: Happening) -> Iterable[LogEntry]:
    return [entry(moment, each) for each in told]


def test_a_job_of_two_rounds() -> None:
    job = Followed(status=status()).take(story(2))
    assert job["restarts_total{reason=worker_failed}"] == job["worker_failures_total{how=signal}"] == 1
    assert job["restarts_total{reason=node_joined}"] == 0
    assert job["nodes{state=running}"] == job["world_nodes"] == 2
    assert job["world_size"] == 4
    assert (job["round"], job["last_step"], job["steps_per_second"]) == (1, 30, 2)
    assert job["last_step_timestamp_seconds"] == WALL + SPAN + 10
    assert (job["master_epoch"], job["job_over"], job["observer_connected"]) == (1, 0, 1)
    assert (job["restarts_used"], job["restarts_max"], job["min_nodes"], job["max_nodes"]) == (1, 3, 1, 4)
    assert job["event_log_start_timestamp_seconds"] == WALL
    assert job["event_log_last_timestamp_seconds"] == WALL + SPAN + 10
    assert (job["observer_entries_missed"], job["stragglers"], job["slowest_node_ratio"]) == (0, 0, 1)


def test_phases_of_recoveries_add_up_to_the_total() -> None:
    samples = Followed().take(story(5)).samples()
    sums = {dict(key)["phase"]: it for (name, key), it in samples.items() if name.endswith("_seconds_sum")}
    assert sums.pop(TOTAL) == sum(sums.values()) == 4 * 5.5
    buckets = {
        dict(key)["le"]: value
        for (name, key), value in samples.items()
        if name.endswith("_bucket") and ("phase", TOTAL) in key
    }
    assert [buckets[each] for each in ("5.0", "10.0", "+Inf")] == [0, 4, 4]
    assert len(buckets) == len(BUCKETS) + 1


def test_time_of_the_job_is_lost_or_productive() -> None:
    job = Followed().take(story(2), at(SPAN + 15, SaveStalled(1, 2.0), StepsDone(1, 35, 1.0)))
    lost = {dict(key)["kind"]: it for (name, key), it in job.samples().items() if "badput" in name}
    assert lost["import"] == 4
    assert lost["checkpoint_stall"] == 2
    assert sum(lost.values()) + job["productive_seconds_total"] == pytest.approx(SPAN + 15)
    assert 0 < job["goodput_ratio"] == job["ettr_ratio"] < 1
    before = job["productive_seconds_total"]
    job.later = 7  # steps that are not told yet are not counted, as they may be lost
    assert job["productive_seconds_total"] == before
    assert job["badput_seconds_total{kind=waiting_for_nodes}"] == 1


def test_what_is_not_known_is_left_out() -> None:
    names = {name for name, _ in Followed().samples()}
    for unknown in ("info", "round", "last_step", "last_step_timestamp_seconds", "saved_step", "min_nodes"):
        assert f"elasticrun_{unknown}" not in names
    assert "elasticrun_restarts_total" in names


def test_nodes_by_state() -> None:
    job = Followed().take(joined(("a", "b", "c", "d")), running(0, 0.0, ("a", "b")))
    job.take(
        at(12, NodeDetached("c", "gone"), NodeChanged("d", 'new "state"', -1), StragglerFound(0, "b", 1.5))
    )
    counts = {
        dict(key)["state"]: it for (name, key), it in job.samples().items() if name == "elasticrun_nodes"
    }
    assert {state: count for state, count in counts.items() if count} == {
        "running": 2,
        "detached": 1,
        "other": 1,
    }
    assert (job["stragglers"], job["slowest_node_ratio"]) == (1, 1.5)


def test_between_rounds_and_after_the_end_nothing_runs() -> None:
    for last in (stopping(0, LASTS), at(LASTS, RoundStopped(0)), at(LASTS, JobEnded("failed", ""))):
        job = Followed().take(story(1))
        assert (job["world_size"], job["world_nodes"], job["steps_per_second"]) == (4, 2, 2)
        job.take(last)
        assert (job["world_size"], job["world_nodes"], job["steps_per_second"]) == (0, 0, 0)
    assert job["job_over"] == 1


def test_saved_states_by_place() -> None:
    job = Followed().take(story(1), at(11, StateSaved(Place.MEMORY, 0, 18), StateSaved(Place.STORAGE, 0, 12)))
    assert (job["saved_step{place=memory}"], job["saved_step{place=storage}"]) == (18, 12)
    assert job["saved_timestamp_seconds{place=storage}"] == WALL + 11
    assert job["saves_total{place=hosts}"] == 0
    assert ("elasticrun_saved_step", frozenset({("place", "hosts")})) not in job.samples()


def test_shards_of_all_shared_datasets_together() -> None:
    train, test = DataProgress(0, 'tr"ain', 2, 3, 1, 1, 9), DataProgress(0, "test", 0, 1, 2, 0, 0)
    job = Followed().take(story(1), at(11, train, test))
    states = {name: job[f"data_shards{{state={name}}}"] for name in ("done", "leased", "failed", "waiting")}
    assert states == {"done": 4, "leased": 3, "failed": 1, "waiting": 4}
    assert job["data_epoch"] == 2


def test_what_workers_use() -> None:
    job = Followed(status=using(*USED, None)).take(story(1))
    assert (job["cpu_busy_cores"], job["cpu_cores"]) == (3.5, 16)
    assert (job["memory_bytes"], job["memory_limit_bytes"], job["fullest_node_memory_ratio"]) == (
        400,
        800,
        0.75,
    )
    assert job["network_bytes_per_second{direction=received}"] == 11
    assert job["network_bytes_per_second{direction=sent}"] == 22
    assert (job["gpus"], job["gpu_busy_ratio"]) == (3, 0.5)
    assert (job["gpu_memory_bytes"], job["gpu_memory_limit_bytes"]) == (80, 240)
    job.status = using(NodeFigures(1.0, 8, 0, 0, 0.0, 0.0))
    assert (job["gpus"], job["fullest_node_memory_ratio"]) == (0, 0)
    for unknown in (using(None), status(), None):
        job.status = unknown
        names = {name for name, _ in job.samples()}
        assert not {"elasticrun_gpus", "elasticrun_cpu_cores"} & names


def test_no_time_passes_while_nothing_is_heard() -> None:
    job = Followed(later=LATE + 1.0).take(joined())
    assert job["badput_seconds_total{kind=waiting_for_nodes}"] == 1
    job.trouble, job.later = "no answer", LATE + 60.0
    assert job["badput_seconds_total{kind=waiting_for_nodes}"] == 1
    job.trouble = ""
    assert job["badput_seconds_total{kind=waiting_for_nodes}"] == 60


def test_what_is_missing_is_told() -> None:
    job = Followed(trouble="no answer").take(story(1), at(11, EntriesLost(7)))
    assert job["observer_connected"] == 0
    assert (job["observer_entries_missed"], job["event_log_lost_total"]) == (1, 7)


@pytest.mark.parametrize(
    "hostile", ['a"} 1\nelasticrun_fake 1\n# ', "\\", "\ud800", "x" * 10_000, "\r\n\x1b[2J", "\u2028"]
)
def test_hostile_texts_make_no_lines(hostile: str) -> None:
    job = Followed(status=status(hostile)).take(story(1), stopping(0, LASTS, hostile), running(1, SPAN))
    job.take([entry(99, failed(1, hostile, hostile, hostile))])
    usual = Followed(status=status()).take(story(2), [entry(99, failed(1))])
    without = [[key for key in it.samples() if key[0] != "elasticrun_info"] for it in (job, usual)]
    assert without[0] == without[1]
    assert len(job.render().splitlines()) == len(usual.render().splitlines())
    [info] = [dict(key) for name, key in job.samples() if name == "elasticrun_info"]
    assert len(info["job_id"]) <= 200
    assert job["restarts_total{reason=other}"] == job["worker_failures_total{how=other}"] == 1


def test_counters_never_fall_beyond_what_a_history_keeps() -> None:
    job, before = Followed(), dict[str, float]()
    counted = ("_total", "_bucket", "_count", "_sum")
    for number, each in enumerate(story(KEPT + 1000)):
        job.history.take(each)
        if number % 997 == 0 or number < 200:
            job.later = number % 3 / 10
            now = {
                f"{name}{sorted(key)}": it
                for (name, key), it in job.samples().items()
                if name.endswith(counted)
            }
            assert all(now[name] >= value for name, value in before.items())
            before = now
    assert job["restarts_total{reason=worker_failed}"] == KEPT + 999


def test_an_observer_that_starts_anew_shows_the_same() -> None:
    jobs = [Followed().take(story(3)), Followed()]
    for each in story(3):
        jobs[1].take([each]).samples()  # scraped at each entry
    assert jobs[0].render() == jobs[1].render()


def test_series_do_not_grow_with_the_job() -> None:
    small = Followed().take(story(2))
    large = Followed().take(story(3, tuple(f"node{number}" for number in range(1000))))
    assert small.samples().keys() == large.samples().keys()


def test_it_is_said_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    monkeypatch.delitem(sys.modules, exposition.__name__)
    with pytest.raises(ImportError, match=r"pip install 'elasticrun\[metrics\]'"):
        importlib.import_module(exposition.__name__)


def labels_of(family: exposition.Family) -> str:
    """As a table of the manual has them."""
    found = family.values if isinstance(family, exposition.Facts) else family.label
    return found if isinstance(found, str) else ", ".join(found)


def test_the_manual_has_each_metric_with_its_labels() -> None:
    rows = re.findall(r"^\| `(elasticrun_\w+)(?:\{([\w, ]+)\})?` \|", MANUAL.read_text(), re.M)
    found = metrics.families(cast(Follower, everything()))
    expected = {(exposition.PREFIX + it.name, labels_of(it)) for it in found}
    assert set(rows) == expected
    assert len(rows) == len(expected)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool: apt install prometheus")
def test_promtool_finds_nothing_to_mend() -> None:
    command = ["promtool", "check", "metrics"]
    done = subprocess.run(command, input=everything().render(), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    bad = subprocess.run(
        command, input="x_milliseconds_total 1\n", capture_output=True, text=True, check=False
    )
    assert bad.returncode != 0
