"""Whatever happens on the wire, gRPC's core must not write log lines of its own to the user's terminal."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def grpc_stays_quiet(request: pytest.FixtureRequest) -> Iterator[None]:
    # With TLS core writes a line about each handshake that fails; the launcher sets GRPC_VERBOSITY for that.
    if "hypothesis" in request.keywords or request.path.stem in ("test_codec", "test_tls"):
        yield
        return
    capfd: pytest.CaptureFixture[str] = request.getfixturevalue("capfd")
    yield
    written = capfd.readouterr().err
    assert not re.search(r"^[IWEF]\d{4} |absl", written, re.MULTILINE), written
