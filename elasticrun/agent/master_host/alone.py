"""The port of a node that is alone: one launcher has it; a second one reports that and ends.

A job of one node has no spares, so a second launcher with the same MASTER_PORT or endpoint wants a job of its
own, and fails as with torchrun: "address already in use". Trying the port is not enough, as nobody may listen
there yet: the workers' store comes up seconds later, or never if the script needs none. So the launcher
claims the port first (``rpc/claims.py``).
"""

from __future__ import annotations

import socket

from elasticrun.agent.master_host.addressing import Place, Survey, survey
from elasticrun.config import Endpoint
from elasticrun.errors import EndpointTakenError
from elasticrun.rpc.claims import ClaimedError, claim

_LOOPBACK = "127.0.0.1"


def claim_master_port(master: Endpoint) -> tuple[str, socket.socket]:
    """MASTER_ADDR for the workers of this node, and the claim, which holds until it is closed.

    Raises:
        EndpointTakenError: another launcher, or another program, has the port.
        UsageError: the port may not be bound by this user.
    """
    try:
        held = claim(f"store.{master.port}")
    except ClaimedError:
        raise in_use(master) from None
    try:
        return _address(master), held
    except BaseException:
        held.close()
        raise


def _address(master: Endpoint) -> str:
    here, found = master, survey(master, None)
    if found.place in (Place.ELSEWHERE, Place.UNKNOWN):  # perhaps a service in front of this host
        here = Endpoint(_LOOPBACK, master.port)
        found = survey(here, None)
    if found.place is Place.OCCUPIED:
        raise in_use(master)
    return here.host


def check_endpoint(endpoint: Endpoint, found: Survey) -> None:
    """Check that nobody listens where the master of a node that is alone takes orders.

    Raises EndpointTakenError.
    """
    if endpoint.port and found.place is Place.OCCUPIED:
        raise in_use(endpoint)


def in_use(endpoint: Endpoint) -> EndpointTakenError:
    """The error for a port that only one job of one node can have."""
    return EndpointTakenError(
        f"port {endpoint.port} of {endpoint.host}: address already in use, perhaps by another launcher;"
        " a job of one node has no spares: give each job its own --master-port or --rdzv-endpoint, or give"
        " --nnodes MIN:MAX to nodes of one job"
    )
