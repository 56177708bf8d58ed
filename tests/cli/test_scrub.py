"""The job's token in the environment of the launcher: no worker finds it there."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from pathlib import Path

from tests.support.launcher import ROOT, private_folders

TOKEN = "9f1c2ab47d63e80512fa76c03be94d58"

_ANCESTORS = """\
import os, pathlib, sys
pid, seen = os.getpid(), []
while pid > 1:
    try:
        seen.append(pathlib.Path(f"/proc/{pid}/environ").read_bytes())
    except OSError:
        pass
    pid = int(pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
for path in pathlib.Path("/proc").glob("[0-9]*/environ"):
    try:
        seen.append(path.read_bytes())
    except OSError:
        pass
print("found" if any(sys.argv[1][::-1].encode() in each for each in seen) else "not found", len(seen) > 2)
"""


def test_a_worker_finds_the_token_in_no_environment(tmp_path: Path) -> None:
    """Neither its launcher's, nor the master's, nor the spawner's: before, all three had it."""
    script = tmp_path / "look.py"
    script.write_text(_ANCESTORS)
    token = secrets.token_hex(16)
    command = [sys.executable, "-m", "elasticrun", "--standalone", str(script), token[::-1]]
    done = subprocess.run(
        command,
        env={
            **private_folders(tmp_path),
            "ELASTICRUN_TOKEN": token,
            "PATH": os.environ["PATH"],
            "AFTER": "stays",
        },
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "not found True\n", "")


def test_what_stands_beside_the_token_stays() -> None:
    code = "import os\nfrom elasticrun.cli.scrub import take_environment\ntaken = take_environment()\n"
    code += "print(taken['ELASTICRUN_TOKEN'], os.environ.get('ELASTICRUN_TOKEN'), os.environ['AFTER'])\n"
    code += "print(open('/proc/self/environ').read().split('\\0').count('AFTER=stays'))"
    env = {"BEFORE": "stays", "ELASTICRUN_TOKEN": TOKEN, "AFTER": "stays", "NOT_ELASTICRUN_TOKEN": "stays"}
    done = subprocess.run([sys.executable, "-c", code], env=env, cwd=ROOT, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == (f"{TOKEN} None stays\n1\n", "")
