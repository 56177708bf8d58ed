"""A training script that exists, and a parser call that knows nothing of this process's environment."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from elasticrun.cli import tokens
from elasticrun.cli.parse import parse_command_line
from elasticrun.config import LaunchConfig

Parse = Callable[..., LaunchConfig]


@pytest.fixture(autouse=True)
def no_token_of_this_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens are neither looked for nor made outside the test's own folder."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(tokens, "SESSIONS", str(tmp_path / "sessions"))


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """``train.py`` in the current directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("print('trained')\n")
    return "train.py"


@pytest.fixture
def parse(script: str) -> Parse:
    """Parse options followed by the script; the environment is empty unless given."""

    def call(*options: str, environ: Mapping[str, str] | None = None) -> LaunchConfig:
        return parse_command_line([*options, script], environ or {})

    return call
