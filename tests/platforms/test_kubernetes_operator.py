"""What the operator looks at itself, beside what kopf watches for it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import pytest

if not all(map(find_spec, ("kopf", "kubernetes"))):
    pytest.skip("needs kubernetes: pip install 'elasticrun[kubernetes]'", allow_module_level=True)

from elasticrun.platforms.kubernetes import operator
from elasticrun.platforms.kubernetes.api import Api, ApiError
from elasticrun.platforms.protocol import PlatformError

JOBS = "/apis/elasticrun.io/v1alpha1"
FORBIDDEN, AWAY = ApiError("no right to", 403, "Forbidden"), ApiError("it does not answer")


class Server:
    """Has nothing, and refuses some paths."""

    def __init__(self) -> None:
        self.refused: dict[str, ApiError] = {}
        self.asked: list[str] = []

    async def get(self, path: str, **_: str) -> Any:
        self.asked.append(path)
        if (error := self.refused.get(path)) is not None:
            raise error
        return {"items": []}

    async def close(self) -> None:
        self.asked.append("close")


def test_the_server_is_asked_only_for_pods_of_jobs() -> None:
    watching = operator._settings().watching
    if not hasattr(watching, "label_selectors"):
        pytest.skip("this kopf cannot have the server choose")
    assert watching.label_selectors["", "v1", "pods"] == "elasticrun.io/job"
    assert len(watching.label_selectors) == 1


def lacking(server: Any, *namespaces: str) -> str:
    return asyncio.run(operator._lacking(server, namespaces))


def test_every_right_to_see_something_is_looked_at() -> None:
    server = Server()
    assert lacking(server, "a", "b") == ""
    jobs = [
        f"{JOBS}/namespaces/{each}/{it}" for each in "ab" for it in ("elasticjobs", "scaleouts", "scaleins")
    ]
    assert sorted(server.asked) == sorted([*jobs, "/api/v1/namespaces/a/pods", "/api/v1/namespaces/b/pods"])
    for path, where in (
        (f"{JOBS}/namespaces/b/scaleins", "scaleins in namespace b"),
        ("/api/v1/namespaces/b/pods", "pods in namespace b"),
    ):
        server.refused = {path: FORBIDDEN}
        assert lacking(server, "a", "b").startswith(f"there is no right to list {where}: apply what")
    server.refused = {"/api/v1/pods": FORBIDDEN}
    assert "pods in all namespaces" in lacking(server)
    server.refused = {"/api/v1/pods": AWAY}
    with pytest.raises(ApiError, match="does not answer"):
        lacking(server)


def test_an_operator_that_may_not_see_all_it_should_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = Server()
    server.refused = {"/api/v1/namespaces/b/pods": FORBIDDEN}

    async def connect(*_: object) -> Server:
        return server

    monkeypatch.setattr(Api, "connect", connect)

    async def work() -> None:
        until, ready = asyncio.Event(), asyncio.Event()
        await asyncio.wait_for(operator.operate(("a", "b"), None, until, ready), 30.0)

    with pytest.raises(PlatformError, match="no right to list pods in namespace b"):
        asyncio.run(work())
    assert server.asked[-1] == "close"


def test_a_right_that_is_taken_away_ends_the_operator_and_a_server_that_is_away_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server, ends = Server(), list[str]()
    steps: Sequence[ApiError] = (AWAY, FORBIDDEN)
    passes = iter(steps)

    class Over(Exception):
        """There is no next pass."""

    async def next_pass(_: float) -> None:
        if (error := next(passes, None)) is None:
            raise Over
        assert ends == []
        server.refused = {"/api/v1/namespaces/a/pods": error}

    monkeypatch.setattr(operator, "pause", next_pass)
    again = operator._look_again(server, None, ("a",), ends.append)  # type: ignore[arg-type] # what is used
    with pytest.raises(Over):
        asyncio.run(again)
    assert [why.partition(":")[0] for why in ends] == ["there is no right to list pods in namespace a"]
