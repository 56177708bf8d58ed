"""What manifests start is started here, by real launchers."""

from __future__ import annotations

import os
import sys
import urllib.request
from pathlib import Path
from typing import Any

import yaml

from elasticrun.platforms.manifests.formats import FORMATS, render
from elasticrun.platforms.manifests.pods import HEALTH_PORT
from elasticrun.platforms.manifests.workload import Workload
from tests.support.launcher import MODULE, Launcher, private_folders
from tests.support.ports import free_port

SCRIPT = """\
import os
os.write(1, "rank {RANK} of {WORLD_SIZE}\\n".format(**os.environ).encode())
"""


def document(name: str, workload: Workload) -> dict[str, Any]:
    (form,) = (form for form in FORMATS if form.name == name)
    return dict(list(yaml.safe_load_all(render(form, workload)))[-1])


def test_a_probe_succeeds_while_there_is_no_master(tmp_path: Path) -> None:
    """No name of a pod can be looked up here, so the master of the job is never found."""
    workload = Workload(
        "no-such-job", "r/x", nodes=(2, 4), conf=(("read_timeout", "600"),), command=("train.py",)
    )
    (container,) = document("job", workload)["spec"]["template"]["spec"]["containers"]
    (tmp_path / "train.py").write_text(SCRIPT)
    port = free_port()
    variables = {it["name"]: it["value"].replace(str(HEALTH_PORT), str(port)) for it in container["env"]}
    env = {**private_folders(tmp_path), **variables, "ELASTICRUN_TOKEN": os.urandom(32).hex()}
    launcher = Launcher(*container["command"][1:], cwd=tmp_path, env=env)
    try:
        launcher.wait_line(r"cannot connect to no-such-job-0\.no-such-job:29400: .*still trying", "err")
        path = container["livenessProbe"]["httpGet"]["path"]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
            assert answer.status == 200
    finally:
        launcher.finish()


def test_a_pytorchjob_runs_by_the_variables_of_its_operator(tmp_path: Path) -> None:
    """Through the lines of shell that judge the exit code, to which the words of elastic-run are given."""
    spec = document("pytorchjob", Workload("digits", "r/x", workers="2", command=("train.py",)))["spec"]
    command = spec["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]["command"]
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "elastic-run").write_text(f'#!/bin/sh\nexec {" ".join(MODULE)} "$@"\n')
    (tmp_path / "elastic-run").chmod(0o755)
    policy = spec["elasticPolicy"]
    env = {
        **private_folders(tmp_path),
        "PATH": f"{tmp_path}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PET_NNODES": f"{policy['minReplicas']}:{policy['maxReplicas']}",
        "PET_NPROC_PER_NODE": spec["nprocPerNode"],
        "PET_RDZV_BACKEND": policy["rdzvBackend"],
        "PET_RDZV_ENDPOINT": f"127.0.0.1:{free_port()}",
        "PET_RDZV_ID": policy["rdzvId"],
        "PET_MAX_RESTARTS": str(policy["maxRestarts"]),
    }
    launcher = Launcher(
        *(word.replace("$$(", "$(") for word in command[1:]), cwd=tmp_path, env=env, command=command[:1]
    )
    try:
        launcher.wait_line("rank 0 of 2", "out")
        launcher.wait_line("rank 1 of 2", "out")
        assert launcher.wait() == 0, launcher.story()
    finally:
        launcher.finish()
