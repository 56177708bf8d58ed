"""``srun elastic-run`` on a real Slurm: no option, a node that is lost, a time limit."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest

from tests.support.launcher import ROOT, Launcher
from tests.support.slurm import Slurm, slurm

__all__ = ["slurm"]

ELASTIC_RUN = (sys.executable, "-m", "elasticrun")
QUICK = "--health-check=off"
#: Says who it is; the first time that the job runs it goes on until it is told to stop. It is told twice:
#: by Slurm, which signals all processes of a step here, and by its launcher. It saves once.
SCRIPT = """
import os, signal
def end(signum, frame):
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    os.write(1, f"saved by rank {os.environ['RANK']}\\n".encode())
    os._exit(0)
signal.signal(signal.SIGTERM, end)
print("rank {RANK} of {WORLD_SIZE} in {TORCHELASTIC_RUN_ID}".format(**os.environ),
      "on", os.environ["SLURMD_NODENAME"], flush=True)
while "endless" in os.environ.get("TEST_MODE", "") and "SLURM_RESTART_COUNT" not in os.environ:
    signal.pause()
"""


@pytest.fixture
def script(slurm: Slurm) -> str:
    path = slurm.folder / "train.py"
    path.write_text(SCRIPT)
    return str(path)


def line(*words: str) -> str:
    return " ".join(["srun", *ELASTIC_RUN, *words])


def test_srun_needs_no_option(slurm: Slurm, script: str) -> None:
    run = slurm.launch("srun", "-N2", *ELASTIC_RUN, script)
    assert run.wait() == 0, run.story()
    found = re.findall(r"^rank (\d) of 2 in slurm-(\d+)\.0 on (\S+)$", run.out, re.M)
    ranks = {(rank, node) for rank, _, node in found}
    assert ranks == {("0", "127.0.0.1"), ("1", "127.0.0.2")}, run.story()
    assert len({job for _, job, _ in found}) == 1
    run.wait_line(
        r"Slurm: job slurm-\d+\.0, node 1 of 2, the first is 127\.0\.0\.1 \(from SLURM_STEP_NODELIST\)"
    )


def test_what_is_given_wins(slurm: Slurm, script: str) -> None:
    run = slurm.launch("srun", "-N2", *ELASTIC_RUN, "--standalone", script)
    assert run.wait() == 0, run.story()
    assert len(re.findall(r"^rank 0 of 1 in (?!slurm)", run.out, re.M)) == 2, run.story()
    run = slurm.launch("srun", "-N2", *ELASTIC_RUN, "--rdzv-id=mine", QUICK, script)
    assert run.wait() == 0, run.story()
    assert {*re.findall(r"^rank (\d) of 2 in mine ", run.out, re.M)} == {"0", "1"}, run.story()


def test_several_tasks_on_a_node_are_a_mistake(slurm: Slurm, script: str) -> None:
    run = slurm.launch("srun", "-N1", "--ntasks-per-node=2", *ELASTIC_RUN, script)
    assert run.wait() == 2, run.story()
    run.wait_lines(
        "elastic-run: error: srun started 2 tasks on 1 node, and elastic-run has to be started once on each: "
        "use srun --ntasks-per-node=1, and --nproc-per-node for the workers",
        2,
    )


def test_a_batch_script_alone_is_no_step(slurm: Slurm, script: str) -> None:
    output = slurm.submit(f"{' '.join(ELASTIC_RUN)} {script}; echo status $?", "-N2")
    output.wait_line("^status 0$")
    assert re.search(r"^rank 0 of 1 in (?!slurm)", output.out, re.M), output.story()


def batch_script() -> str:
    """The one of the manual, which types what a user types."""
    page = (ROOT / "elasticrun/manual/slurm.md").read_text()
    found = re.search(r"^```text\n#!/bin/bash\n(.*?)^```", page, re.M | re.S)
    assert found and "--signal=TERM@120" in found[1]
    folder = shlex.quote(str(Path(sys.executable).parent))
    assert "\nsrun elastic-run " in found[1]
    start = f"\nexport TEST_MODE=endless PATH={folder}:$PATH\nsrun elastic-run {QUICK} "
    return found[1].replace("\nsrun elastic-run ", start)


def signalled(slurm: Slurm, name: str) -> tuple[Launcher, str]:
    """The output and the id of a batch job whose step got a signal, as it does before the time limit."""
    output = slurm.submit(batch_script())
    output.wait_lines(r"^rank \d of 2 in ", 2)
    job = output.wait_line(r"in slurm-(\d+)\.0 on")[1]
    slurm.ask("scancel", f"--signal={name}", f"{job}.0")
    return output, job


def test_sigterm_lets_workers_save_and_queues_the_job_again(slurm: Slurm, script: str) -> None:
    output, job = signalled(slurm, "TERM")
    saved = output.wait_lines(r"^saved by rank (\d)$", 2)
    assert {match[1] for match in saved} == {"0", "1"}
    output.wait_lines("Exited with exit code 143", 2)
    slurm.control.wait_line(f"Requeuing JobId={job}")


def test_sigusr1_is_a_notice_and_the_job_goes_on_as_itself(slurm: Slurm, script: str) -> None:
    output, job = signalled(slurm, "USR1")
    output.wait_lines("this node leaves: SIGUSR1, the platform's notice that it takes this node away", 2)
    slurm.control.wait_line(f"Requeuing JobId={job}")
    output.wait_line("Slurm has queued this job again once: it goes on as the same job")
    output.wait_lines(rf"^rank \d of 2 in slurm-{job}\.0 on", 4)


def test_a_lost_node_has_the_job_queued_again(slurm: Slurm, script: str) -> None:
    output = slurm.submit(f"export TEST_MODE=endless\n{line(QUICK, script)}; echo status $?", "-N2")
    output.wait_lines(r"^rank \d of 2 in ", 2)
    job = output.wait_line(r"in slurm-(\d+)\.0 on")[1]
    slurm.lose("127.0.0.2")
    slurm.control.wait_line(f"Requeuing JobId={job}")
    output.wait_line("Slurm has queued this job again once: it goes on as the same job")
    output.wait_line("^status 0$")
    nodes = re.findall(rf"^rank (\d) of 2 in slurm-{job}\.0 on (\S+)$", output.out, re.M)
    assert {*nodes[2:]} == {("0", "127.0.0.1"), ("1", "127.0.0.3")}, output.story()
