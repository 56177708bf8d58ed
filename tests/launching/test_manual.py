"""The code of the manual's pages on launching and testing does what they say."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.processes import TORCH_DEADLINE

MANUAL = Path(__file__).parents[2] / "elasticrun" / "manual"


def blocks(page: str) -> list[str]:
    """The Python code of a page."""
    found = re.findall(r"^```python\n(.*?)^```", (MANUAL / page).read_text(), re.M | re.S)
    assert found
    return found


def programs() -> Iterator[object]:
    """The blocks of the page, with what they need."""
    for number, block in enumerate(blocks("python.md"), 1):
        needed = {name for name in ("accelerate", "lightning", "torch") if f"import {name}" in block}
        needed |= {name for name in ("accelerate", "lightning") if f"from {name}" in block}
        missing = [name for name in needed if find_spec(name) is None]
        marks = [pytest.mark.skipif(bool(missing), reason=f"needs {missing}")]
        marks += [pytest.mark.torch] if needed else []
        marks += [pytest.mark.slow] if needed - {"torch"} else []
        yield pytest.param(block, marks=marks, id=f"{number}")


@pytest.mark.parametrize("block", [*programs()])
def test_jobs_from_python(tmp_path: Path, block: str) -> None:
    """Each block as a program of its own; what a comment promises is printed."""
    script = tmp_path / "program.py"
    script.write_text(block)
    done = subprocess.run(
        [sys.executable, script],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=TORCH_DEADLINE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for promised in re.findall(r"print\(.*\)  # (.+)", block):
        assert promised in done.stdout


@pytest.mark.torch
def test_tests_on_ranks(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("\n".join(blocks("testing.md")))
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "test_it.py"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stdout
    assert "5 passed" in done.stdout
