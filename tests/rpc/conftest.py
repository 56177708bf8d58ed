"""Whatever happens on the wire, gRPC's core must not write log lines of its own to the user's terminal."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def grpc_stays_quiet(request: pytest.FixtureRequest) -> Iterator[None]:
    if "hypothesis" in request.keywords or request.path.stem == "test_codec":
        yield
        return
    capfd: pytest.CaptureFixture[str] = request.getfixturevalue("capfd")
    yield
    written = capfd.readouterr().err
    assert not re.search(r"^[IWEF]\d{4} |absl", written, re.MULTILINE), written
