"""What holds for every test: those that this machine or user cannot run are skipped with the reason."""

from __future__ import annotations

import importlib.util
import os
import signal
from collections.abc import Iterator

# Tests fork the spawner from a process that has used gRPC already, which an agent never does. gRPC's
# handlers would then crash the child; it reads this when it is first imported.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"

import pytest
from hypothesis import HealthCheck, settings

from tests.support import kubernetes

#: A fixture whose tests all run in one process, as starting it takes long. It ends with them: it would take a
#: tenth of a core, and 1 GB, for as long as other tests run.
CONTROL_PLANE = "control_plane"


@pytest.fixture(scope="module")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[kubernetes.ControlPlane]:
    """A real API server of Kubernetes, with the CRDs for which there are manifests."""
    if reason := kubernetes.why_not():
        pytest.skip(reason)
    with kubernetes.started(tmp_path_factory.mktemp(CONTROL_PLANE)) as found:
        yield found


def pytest_configure() -> None:
    # How long an example takes says something about the machine, not about the code.
    settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("busy")
    # Under nohup, SIGHUP is ignored, and so it would be by every launcher that a test starts.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    # And a shell without job control starts what it puts in the background with SIGINT ignored.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist looks for groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reasons: dict[str, str] = {}
    if os.geteuid() != 0:
        reasons["root"] = "needs root"
    if importlib.util.find_spec("torch") is None:
        reasons["torch"] = "needs torch: pip install 'elasticrun[torch]'"
    if importlib.util.find_spec("tensorflow") is None:
        reasons["tensorflow"] = "needs tensorflow: pip install 'elasticrun[tensorflow]'"
    for item in items:
        if CONTROL_PLANE in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group(CONTROL_PLANE))
        elif shared := _shared_fixtures(item):
            item.add_marker(pytest.mark.xdist_group(shared))
        for marker, reason in reasons.items():
            if item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))


def _shared_fixtures(item: pytest.Item) -> str:
    """The module whose tests have to run in one process, as they share a fixture; "" if they share none."""
    definitions = getattr(item, "_fixtureinfo").name2fixturedefs  # noqa: B009 pytest has no public name for it
    own = [it for found in definitions.values() for it in found if it.baseid == item.nodeid.split("::")[0]]
    return item.nodeid.split("::")[0] if any(it.scope == "module" for it in own) else ""
