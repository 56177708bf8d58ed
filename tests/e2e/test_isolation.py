"""What a job puts on its path under the name of a standard module is for its workers alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cluster import Cluster
from tests.support.launcher import ROOT, clean_environment

NAMES = ("json", "logging", "asyncio", "socket", "re", "typing", "click", "grpc", "subprocess")
SCRIPT = """
import os, sys
import NAME
print(os.environ["PYTHONPATH"], NAME.VALUE, sys.path[1])
"""


def shadow(folder: Path, *names: str) -> Path:
    folder.mkdir()
    for name in names:
        (folder / f"{name}.py").write_text("VALUE = 'mine'\n")
    return folder


@pytest.mark.parametrize("name", NAMES)
def test_a_module_of_the_job_hides_none_of_the_launchers(cluster: Cluster, tmp_path: Path, name: str) -> None:
    theirs = shadow(tmp_path / "theirs", name)
    (tmp_path / "train.py").write_text(SCRIPT.replace("NAME", name))
    path = f"{theirs}:{ROOT}"
    launcher = cluster.launch("--standalone", "train.py", cwd=tmp_path, env={"PYTHONPATH": path})
    assert launcher.wait() == 0, launcher.story()
    assert launcher.out == f"{path} mine {theirs}"


def test_all_of_them_at_once_with_a_check_of_the_nodes_health(cluster: Cluster, tmp_path: Path) -> None:
    theirs = shadow(tmp_path / "theirs", "json", "logging", "socket", "subprocess", "threading", "statistics")
    (tmp_path / "train.py").write_text("import json; print(json.VALUE)")
    launcher = cluster.launch(
        *("--standalone", "--health-check=start", "train.py"),
        cwd=tmp_path,
        env={"PYTHONPATH": f"{theirs}:{ROOT}"},
    )
    assert launcher.wait() == 0, launcher.story()
    assert launcher.out == "mine"


def test_the_working_directory_of_a_module_start(tmp_path: Path) -> None:
    theirs = shadow(tmp_path / "theirs", "json", "logging", "asyncio")
    (theirs / "train.py").write_text("import json, os; print(json.VALUE, os.environ.get('PYTHONPATH'))")
    environ = clean_environment()
    environ.pop("PYTHONPATH", None)
    code = f"import sys; sys.path.append({str(ROOT)!r}); import runpy; "
    code += "runpy.run_module('elasticrun', None, '__main__', True)"
    command = [sys.executable, "-c", code, "--standalone", "train.py"]
    ended = subprocess.run(command, cwd=theirs, env=environ, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout) == (0, "mine None\n"), ended.stderr


@pytest.mark.parametrize("program", ["main", "ctl"])
def test_a_platform_may_install_by_the_path(tmp_path: Path, program: str) -> None:
    """The launcher is found there, and what only the job's folders have."""
    code = f"from elasticrun.cli.{program} import main; import only_there, elasticrun as e; print(e.__file__)"
    theirs = shadow(tmp_path / "theirs", "only_there", "json")
    environ = {**os.environ, "PYTHONPATH": f"{theirs}{os.pathsep}{ROOT}"}
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=60
    )
    assert ended.stdout == f"{ROOT}/elasticrun/__init__.py\n", ended.stderr
