"""The examples of tests on ranks pass, as their page says that they are run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples" / "testing"

pytestmark = pytest.mark.torch


def test_each_kind_of_fault() -> None:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(EXAMPLES)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "7 passed" in done.stdout
