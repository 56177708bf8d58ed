"""The parts of measurements that are computed, and two real runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from scripts.benchmarks import cases
from scripts.benchmarks.cases import CASES, EVERY, FEW, GOODPUT, GROUPS, goodput_of
from scripts.benchmarks.command import cases_of, main
from scripts.benchmarks.figures import FIGURES, TF_FIGURES
from scripts.benchmarks.figures import STAGES as STAGE_FIGURES
from scripts.benchmarks.launchers import HASTY, LAUNCHERS, OURS, PRIVATE_STORE, TORCHRUN, TUNED, Launcher
from scripts.benchmarks.report import read_json
from scripts.benchmarks.run import Event, Run, RunFailed, opened
from scripts.benchmarks.stages import STAGES, agent_marks, split
from scripts.benchmarks.usage import Memory, parsed
from scripts.benchmarks.watch import saying
from tests.support.processes import DEADLINE, Hung, kill_all, kill_marked, marked, wait_end


def steps(since: float, until: float, apart: float) -> list[Event]:
    """Steps of rank 0, the last one not after ``until``."""
    count = int((until - since) / apart)
    return [Event("step", since + number * apart, 1, 0) for number in range(1, count + 1)]


def test_undisturbed_work_is_a_goodput_of_one() -> None:
    assert goodput_of(steps(0, GOODPUT, 0.5), 0) == pytest.approx(1)


def test_a_pause_costs_as_much_as_it_takes() -> None:
    events = steps(0, 90, 0.5) + steps(108, GOODPUT, 0.5)
    assert goodput_of(events, 0) == pytest.approx(0.9)


def test_slower_steps_after_the_first_kill_cost_too() -> None:
    events = steps(0, EVERY, 0.5) + steps(EVERY, GOODPUT, 1.0)
    assert goodput_of(events, 0) == pytest.approx((EVERY + (GOODPUT - EVERY) / 2) / GOODPUT)


def test_slow_steps_at_the_start_are_not_the_measure_of_the_others() -> None:
    events = steps(0, EVERY / 2, 1.0) + steps(EVERY / 2, GOODPUT, 0.5)
    assert goodput_of(events, 0) == pytest.approx(1 - EVERY / 4 / GOODPUT)


@pytest.mark.parametrize("until", [0.0, EVERY / 2 + 0.5])
def test_who_hangs_before_the_first_kill_has_no_goodput(until: float) -> None:
    with pytest.raises(RunFailed, match="before the first kill"):
        goodput_of(steps(0, until, 0.5), 0)


def test_steps_of_other_ranks_and_other_times_do_not_count() -> None:
    other = [Event("step", 1.0, 2, 1), Event("line", 1.0, 1, 0), Event("step", GOODPUT + 0.1, 1, 0)]
    assert goodput_of(steps(0, GOODPUT, 0.5) + other, 0) == pytest.approx(1)


def test_memory_is_read_as_the_kernel_writes_it() -> None:
    rollup = (
        "55-7f ---p 00000000 00:00 0    [rollup]\nRss:  3000 kB\nPss:   2000 kB\nPrivate_Clean:  100 kB\n"
    )
    rollup += "Private_Dirty:  800 kB\nPrivate_Hugetlb:  0 kB\n"
    status = "Name:\tpython\nState:\tS (sleeping)\nVmPTE:\t     100 kB\n"
    assert parsed(rollup, status) == Memory(rss=3.072, pss=2.048, uss=1.024)


def test_every_figure_has_a_case_and_every_case_known_launchers() -> None:
    assert {figure.case for figure in (*FIGURES, *STAGE_FIGURES, *TF_FIGURES)} == CASES.keys()
    assert {figure.case for figure in TF_FIGURES} == set(GROUPS["tensorflow"])
    assert [figure.name for figure in STAGE_FIGURES] == [f"stage-{stage}" for stage in STAGES]
    assert {name for case in CASES.values() for name in (*case.launchers, *case.few)} <= LAUNCHERS.keys()


AGENT = """some words
{"name": "torchelastic.worker.status.FAILED", "timestamp": 1000010500}
{"name": "elasticrun.agent.running", "timestamp": 1000003000}
{"name": "elasticrun.agent.failed", "timestamp": 1000010100}
{"name": "elasticrun.agent.ready", "timestamp": 1000010300}
{"name": "elasticrun.agent.running", "timestamp": 1000010600}
"""


def test_stages_follow_one_another_and_add_up() -> None:
    marks = agent_marks(AGENT, offset=1_000_000)
    assert [phase for phase, _ in marks] == ["running", "failed", "ready", "running"]
    slow = [Event(what, 11 + at, 2, 1) for at, what in enumerate(("line", "imported", "group", "reduced"))]
    fast = [Event(what, 10.7, 1, 0) for what in ("line", "imported", "group", "reduced")]
    found = split(10.0, marks, slow + fast)
    assert found == pytest.approx(
        {"detect": 0.1, "stop": 0.2, "rendezvous": 0.3, "start": 0.4, "import": 1, "group": 1, "step": 1}
    )
    assert sum(found.values()) == pytest.approx(14 - 10)


def test_a_device_is_a_stage_of_its_own() -> None:
    whats = ("line", "imported", "device", "group", "reduced")
    workers = [Event(what, 11.0 + at, 1, 0) for at, what in enumerate(whats)]
    found = split(10.0, agent_marks(AGENT, offset=1_000_000), workers)
    assert (found["import"], found["device"], found["group"]) == (1, 1, 1)


def test_a_mark_that_is_missing_ends_no_stage() -> None:
    assert split(10.0, [], []) == {}


def test_who_mostly_hangs_is_measured_a_few_times() -> None:
    loss, goodput, launch = CASES["node-loss"], CASES["goodput"], CASES["launch"]
    assert (loss.runs_of(OURS, 10), loss.runs_of(TORCHRUN, 10), loss.runs_of(TORCHRUN, 1)) == (10, FEW, 1)
    assert goodput.runs_of(OURS, 10) == 1
    assert launch.runs_of("torchrun-tuned", 10) == 0  # its tuning changes nothing there


def test_a_launcher_that_is_not_installed_has_no_path() -> None:
    assert Launcher("x", "no-such-launcher", "").path() is None
    assert LAUNCHERS[OURS].path() is not None


def test_a_launcher_that_ends_fails_the_run_at_once(tmp_path: Path) -> None:
    with opened(LAUNCHERS[OURS], tmp_path, 0) as run:
        run.alone("--no-such-option")
        with pytest.raises(RunFailed, match="node0 ended with 2 before reduced of 2 workers"):
            run.all_of("reduced", 2, 60)
        assert "--no-such-option" in run.story()


def test_a_node_that_cannot_be_ended_spares_none_of_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(LAUNCHERS[OURS], tmp_path, 0)
    first, second = run.alone("--version"), run.alone("--version")
    for node in (second, first):
        monkeypatch.setattr(node, "finish", _hung(node.finish))
    with pytest.raises(Hung):
        run.close()
    assert first.process.returncode is not None
    assert second.process.returncode is not None


def test_a_second_signal_does_not_keep_a_run_from_being_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def disturbed(mark: str) -> None:
        signal.raise_signal(signal.SIGINT)
        kill_marked(mark)

    monkeypatch.setattr("scripts.benchmarks.run.kill_marked", disturbed)
    with pytest.raises(KeyboardInterrupt), opened(LAUNCHERS[OURS], tmp_path, 0) as run:
        node = run.alone("--version")
    assert node.process.returncode is not None


def test_what_is_killed_at_one_moment_is_not_left_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    kill = os.kill

    def disturbed(pid: int, signum: int) -> None:
        kill(pid, signum)
        if signum == signal.SIGSTOP:
            signal.raise_signal(signal.SIGINT)

    with subprocess.Popen(["sleep", "1000"]) as process:
        try:
            monkeypatch.setattr(os, "kill", disturbed)
            with pytest.raises(KeyboardInterrupt):
                kill_all([process.pid])
            assert process.wait(DEADLINE) == -signal.SIGKILL
        finally:
            process.kill()


def test_a_helper_of_the_bench_that_does_not_get_ready_is_ended() -> None:
    code = "import signal\nprint('something else', flush=True)\nsignal.pause()"
    with pytest.raises(AssertionError), saying("ready", (sys.executable, "-c", code)):
        raise RuntimeError("it is not ready")


def test_a_helper_of_the_bench_dies_with_it() -> None:
    code = """
import os, signal, sys
from scripts.benchmarks.watch import saying
with saying("ready", ("sh", "-c", "echo ready; exec sleep 1000")) as pid:
    print(pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    told = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=False)
    assert told.returncode == -signal.SIGKILL
    wait_end(int(told.stdout))


def _hung(finish: Callable[[], None]) -> Callable[[], None]:
    def finish_and_complain() -> None:
        finish()
        raise Hung("a process is left")

    return finish_and_complain


def test_the_tuning_of_one_launcher_reaches_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (name,) = PRIVATE_STORE
    monkeypatch.setenv(name, "1")
    for launcher, told in ((LAUNCHERS[TORCHRUN], None), (LAUNCHERS[TUNED], "1")):
        folder = tmp_path / launcher.name
        folder.mkdir()
        shown = replace(launcher, program="env", options=())
        with opened(shown, folder, 0) as run:
            node = run._start()
            assert run.ended(node, 60) == 0
            found = dict(line.partition("=")[::2] for line in node.log.read_text().splitlines())
            assert found.get(name) == told


def test_options_of_a_launcher_are_not_undone_by_those_of_a_case() -> None:
    assert HASTY in CASES["node-loss"].launchers
    assert HASTY not in CASES["join"].launchers  # which has an --rdzv-conf of its own


def test_a_group_is_measured_only_if_it_is_asked_for() -> None:
    assert [it.name for it in cases_of(["tf-served", "launch", "tensorflow"])] == [
        *("tf-served", "launch", "tf-mirrored")
    ]
    assert {it.name for it in cases_of([])} == CASES.keys() - set(GROUPS["tensorflow"])


def test_a_command_that_measures_nothing_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["launch", "--launchers", TUNED])
    assert "nothing was measured" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["nonsense"], ["launch", "--launchers", "nonsense"]])
def test_what_is_not_known_is_named(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(arguments)
    assert "nonsense is not" in capsys.readouterr().err


@pytest.mark.torch
def test_one_run_each_of_a_launch_and_of_a_kill(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cases, "SETTLED", 5)
    path = tmp_path / "report.json"
    assert main(["launch", "kill", "--runs", "1", "--launchers", OURS, "--json", str(path)]) == 0
    report = read_json(path)
    assert [(it.case, it.launcher, it.number, it.failure) for it in report.samples] == [
        ("launch", OURS, 0, ""),
        ("kill", OURS, 0, ""),
    ]
    assert [[*it.figures] for it in report.samples] == [["launch"], ["kill"]]
    assert all(value > 0 for it in report.samples for value in it.figures.values())
    assert report.commands == ("scripts/bench launch kill --runs 1 --launchers elastic-run",)
    assert {"cpu", "cores", "memory", "kernel", "python", "torch"} <= report.machine.keys()
    assert "| launch to first line" in capsys.readouterr().out


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGHUP])
def test_a_measurement_that_is_ended_leaves_nobody(tmp_path: Path, signum: signal.Signals) -> None:
    if signal.getsignal(signum) is signal.SIG_IGN:
        pytest.skip(f"{signum.name} is ignored here, and so it is by all that is started")
    mark = f"BENCH_TEST={uuid.uuid4().hex}"
    env = {**os.environ, "TMPDIR": str(tmp_path), "BENCH_TEST": mark.partition("=")[2]}
    command = [sys.executable, "-m", "scripts.benchmarks", "launch", "--runs", "1000", "--launchers", OURS]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith(b"launch 0 elastic-run")
            process.send_signal(signum)
            process.communicate(timeout=DEADLINE)
            assert process.returncode == 128 + signum
            assert marked(mark) == []
        finally:
            kill_marked(mark)


def test_a_helper_that_ended_meanwhile_shares_nothing() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert cases._share_of(process.pid) == 0.0
    assert cases._share_of(os.getpid()) > 1.0
