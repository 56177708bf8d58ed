"""The command lines that PyTorch tests its own launcher with: the same exit and the same workers.

Behaviour for behaviour after test/distributed/launcher/test_run.py of PyTorch 2.15, read and told anew here.
With ``ELASTICRUN_COMPARE=torchrun`` each line is given to the installed torchrun as well; that takes minutes.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.ports import free_port

LAUNCHERS = {
    "elastic-run": [sys.executable, "-m", "elasticrun"],
    "torchrun": [sys.executable, "-m", "torch.distributed.run"],
}
COMPARED = ["elastic-run"] + (["torchrun"] if os.environ.get("ELASTICRUN_COMPARE") == "torchrun" else [])
ENDED, FAILED = True, False

TOUCH = """\
import argparse, os, pathlib
parser = argparse.ArgumentParser()
parser.add_argument("--fail", action="store_true")
parser.add_argument("--touch-file-dir")
given = parser.parse_args()
for name in '''LOCAL_RANK RANK GROUP_RANK ROLE_RANK ROLE_NAME LOCAL_WORLD_SIZE WORLD_SIZE ROLE_WORLD_SIZE
MASTER_ADDR MASTER_PORT TORCHELASTIC_RESTART_COUNT TORCHELASTIC_MAX_RESTARTS TORCHELASTIC_RUN_ID
TORCHELASTIC_ERROR_FILE SENTINEL'''.split():
    os.environ[name]
if given.fail:
    raise RuntimeError("as asked")
pathlib.Path(given.touch_file_dir, os.environ["RANK"]).touch()
"""
SHELL = '#!/bin/sh\necho "creating $1/$RANK"; touch "$1/$RANK"\n'
LAUNCHED = "import sys, torch.distributed as d; sys.exit(0 if d.is_torchelastic_launched() else 3)\n"
GROUP = """\
import argparse, os
import torch
import torch.distributed as dist
parser = argparse.ArgumentParser()
parser.add_argument("--init-method")
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group("gloo", init_method=parser.parse_args().init_method, world_size=size, rank=rank)
total = torch.tensor(rank)
dist.all_reduce(total)
assert total == sum(range(size))
dist.barrier()
dist.destroy_process_group()
"""
SCRIPTS = {"touch.py": TOUCH, "touch.sh": SHELL, "launched.py": LAUNCHED, "group.py": GROUP}


@dataclass(frozen=True)
class Line:
    """One command line; PORT is a free port, TOUCHED a folder in which worker N makes the file N."""

    name: str
    options: str
    command: str = "touch.py --touch-file-dir TOUCHED"
    ends_well: bool = ENDED
    workers: int = 4
    environ: str = ""
    needs_torch: bool = False
    nodes: int = 1


C10D = (
    "--nproc-per-node=4 --rdzv-backend=c10d --rdzv-endpoint=localhost:PORT --rdzv-id=7 --start-method=spawn"
)
CONF = "--rdzv-conf='join_timeout=5,last_call_timeout=1,timeout=5'"  # quotes and all, as no shell sees it
TCP = "--run-path --nnodes=1 --nproc-per-node=4 --master-addr=localhost --master-port=PORT"
LINES = [
    Line("python", "--nnodes=1 --nproc-per-node=4 --rdzv-id=7 --monitor-interval=1 --start-method=spawn"),
    Line("caffe2", "--nnodes=1 --nproc-per-node=4 --master-addr=localhost --master-port=PORT --node-rank=0"),
    Line("bash", "--nnodes=1 --nproc-per-node=4 --rdzv-id=7 --no-python", "./touch.sh TOUCHED"),
    Line("bash module", "--nnodes=1 --no-python --module", "./touch.sh TOUCHED", FAILED, 0),
    Line("default nproc", "--nnodes=1 --rdzv-id=7 --no-python", "./touch.sh TOUCHED", workers=1),
    Line(
        "variables", "", "./touch.sh TOUCHED",
        environ="PET_NNODES=1 PET_NPROC_PER_NODE=4 PET_RDZV_ID=7 PET_NO_PYTHON=1 PET_MODULE=0",
    ),
    Line(
        "variables at odds", "", "./touch.sh TOUCHED", FAILED, 0,
        environ="PET_NNODES=1 PET_NO_PYTHON=1 PET_MODULE=1",
    ),
    Line("unknown nproc", "--nproc-per-node=unknown --no-python", "./touch.sh TOUCHED", FAILED, 0),
    Line("elastic", f"--nnodes=1:2 {C10D} {CONF}"),
    Line("elastic fails", f"--nnodes=1:2 {C10D} {CONF} --max-restarts=0", "touch.py --fail", FAILED, 0),
    Line("standalone", "--nnodes=1 --nproc-per-node=4 --standalone --start-method=spawn"),
    Line("run path", "--run-path --nnodes=1 --nproc-per-node=4 --start-method=spawn"),
    Line("two agents", f"--nnodes=1:2 {C10D} --rdzv_conf=last_call_timeout=20", workers=8, nodes=2),
    Line("three numbers", "--nnodes=2:20:30", ends_well=FAILED, workers=0),
    Line("launched", "--run-path --nnodes=1", "launched.py", workers=0, needs_torch=True),
    Line("logs specs", "--run-path --logs_specs=default", "launched.py", workers=0, needs_torch=True),
    Line("no logs specs", "--run-path --nnodes=1 --logs_specs=DOES_NOT_EXIST", "launched.py", FAILED, 0),
    Line("tcp", TCP, "group.py --init-method tcp://localhost:PORT", workers=0, needs_torch=True),
    Line("env", TCP, "group.py --init-method env://", workers=0, needs_torch=True),
]  # fmt: skip


class Place:
    """A folder with the scripts, and a port."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.touched, self.port = folder, folder / "touched", free_port()
        self.touched.mkdir()
        for name, text in SCRIPTS.items():
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)

    def words(self, text: str) -> list[str]:
        return text.replace("PORT", str(self.port)).replace("TOUCHED", str(self.touched)).split()

    def start(self, launcher: str, line: Line) -> subprocess.Popen[str]:
        env = {
            name: value for name, value in os.environ.items() if not name.startswith(("PET_", "TORCHELASTIC"))
        }
        env |= {"SENTINEL": "1", "PET_HEALTH_CHECK": "off", "OMP_NUM_THREADS": "1"}
        env |= dict(pair.split("=", 1) for pair in line.environ.split())
        command = [*LAUNCHERS[launcher], *self.words(line.options), *self.words(line.command)]
        return subprocess.Popen(
            command, cwd=self.folder, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.mark.parametrize("launcher", COMPARED)
@pytest.mark.parametrize("line", LINES, ids=lambda line: line.name)
def test_line(place: Place, line: Line, launcher: str) -> None:
    if line.needs_torch:
        pytest.importorskip("torch", reason="needs torch: pip install 'elasticrun[torch]'")
    nodes = [place.start(launcher, line) for _ in range(line.nodes)]
    for node in nodes:
        out, err = node.communicate(timeout=120)
        assert (node.returncode == 0) is line.ends_well, f"{out}\n{err}"
    assert {path.name for path in place.touched.iterdir()} == set(map(str, range(line.workers)))


@pytest.mark.parametrize("launcher", COMPARED)
def test_logs_with_a_prefix_of_ones_own(place: Place, launcher: str) -> None:
    line = Line(
        "logs", "--nnodes=1 --nproc-per-node=4 --rdzv-id=7 --redirect=3 --tee=3 --no-python",
        "./touch.sh TOUCHED", environ="TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE=[rank${rank}]:",
    )  # fmt: skip
    out, err = place.start(launcher, line).communicate(timeout=120)
    assert sorted(re.findall(r"^\[rank(\d)\]:creating ", out, re.M)) == list("0123"), err
