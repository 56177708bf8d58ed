"""The code of the manual's pages on launching and testing does what they say."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

MANUAL = Path(__file__).parents[2] / "elasticrun" / "manual"


def blocks(page: str) -> list[str]:
    """The Python code of a page."""
    found = re.findall(r"^```python\n(.*?)^```", (MANUAL / page).read_text(), re.M | re.S)
    assert found
    return found


def test_jobs_from_python(tmp_path: Path) -> None:
    """Each block as a program of its own; what a comment promises is printed."""
    for block in blocks("python.md"):
        script = tmp_path / "program.py"
        script.write_text(block)
        done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
        for promised in re.findall(r"print\(.*\)  # (.+)", block):
            assert promised in done.stdout


@pytest.mark.torch
def test_tests_on_ranks(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("\n".join(blocks("testing.md")))
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "test_it.py"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stdout
    assert "5 passed" in done.stdout
