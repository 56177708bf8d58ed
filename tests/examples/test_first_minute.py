"""What the README tells a newcomer to type works after exactly what stands above it, in an empty venv."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import venv
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NO_NETWORK = re.compile("NewConnectionError|Temporary failure in name resolution|Network is unreachable")


#: What works from the wheel as well, without a word on torch or another package.
TOOLS = """
elastic-ctl manual troubleshooting > page.txt
elastic-run --standalone --state-dir state --no-python true
elastic-ctl replay state
elastic-ctl simulate --seeds 2
python -c 'from elasticrun.testing import simulate; simulate(seeds=2).check()'
"""


def blocks(heading: str) -> list[str]:
    """The commands under a heading of the README, block by block."""
    section = (ROOT / "README.md").read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return re.findall(r"```sh\n(.*?)```", section, re.S)


@pytest.mark.slow
def test_the_first_block_in_an_empty_environment(tmp_path: Path) -> None:
    home, tree = tmp_path / "venv", tmp_path / "tree"
    venv.create(home, with_pip=True)
    for name in ("elasticrun", "examples"):
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.py", "setup.cfg", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    env |= {
        "PATH": f"{home / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "PIP_CONSTRAINT": str(ROOT / "scripts/constraints.txt"),
    }
    minute = blocks("The first minute")[0]
    command = ["bash", "-ec", f"pip install .\ncd ..\nln -s tree/examples\n{minute}{TOOLS}"]
    done = subprocess.run(
        command, cwd=tree, env=env, capture_output=True, text=True, timeout=280, check=False
    )
    if NO_NETWORK.search(done.stderr):
        pytest.skip("there is no network to install packages from")
    assert done.returncode == 0, done.stderr
    assert "worker 1 kills itself" in done.stdout
    assert "worker 1 is back: step 5 was saved" in done.stdout
    assert "worker 1, step 10 of 10" in done.stdout
    assert "=> round 0 starts with" in done.stdout
    assert "every rule held after every step" in done.stdout
    assert list(home.glob("lib/python*/site-packages/elasticrun/py.typed")), "type checkers would ignore it"


def test_what_later_blocks_need_was_installed_above() -> None:
    assert blocks("Install") == ["pip install '.[torch]'\n"]
    installed = {"torch"}
    for block in blocks("The first minute"):
        for line in block.splitlines():
            words = line.split()
            if words[:2] == ["pip", "install"]:
                installed |= set(words[2:]) - {"."}
                continue
            (script,) = (word for word in words if word.endswith(".py"))
            assert imported(ROOT / script) <= installed, line


def imported(script: Path) -> set[str]:
    """The packages, by the name under which pip knows them, that a script imports."""
    modules: set[str] = set()
    for node in ast.walk(ast.parse(script.read_text())):
        match node:
            case ast.Import(names=names):
                modules |= {name.name.partition(".")[0] for name in names}
            case ast.ImportFrom(module=str(module)):
                modules.add(module.partition(".")[0])
    distributions = packages_distributions()
    return {distributions[name][0] for name in modules - set(sys.stdlib_module_names)}
