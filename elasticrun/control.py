"""The public client of a running job: see who is there, let a node leave, change the size, save stacks.

::

    from elasticrun.config import Endpoint, SecurityConfig
    from elasticrun.control import JobControl

    job = await JobControl.connect([Endpoint("node0", 29400)], "my-job", SecurityConfig(token))
    print((await job.status()).phase)
    await job.drain("node7", "its fan is loud")

``elastic-ctl`` is a command line around this class. The master obeys only clients that know the job's token;
a job without a token takes no orders.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from elasticrun.config import Endpoint, SecurityConfig, TaskRole
from elasticrun.core.protocol.orders import (
    ControlReply,
    ControlRequest,
    DrainNode,
    RestartRound,
    SaveAllStacks,
    ScaleJob,
    ScaleRole,
    ShowStatus,
)
from elasticrun.core.protocol.status import JobStatus, NodeStatus, TaskStatus
from elasticrun.errors import (
    ElasticRunError,
    EndpointTakenError,
    MasterUnreachableError,
    OrderDeclinedError,
    ProtocolError,
)
from elasticrun.rpc.control import give_order

__all__ = ["JobControl", "JobStatus", "NodeStatus", "TaskStatus"]


class JobControl:
    """Questions and orders to one job, each on a connection of its own.

    Each method may raise any of these; all are ElasticRunErrors whose text is one sentence:

    * MasterUnreachableError: nothing answered within the timeout. If only the answer was lost, the order may
      have been obeyed; it may be given again.
    * EndpointTakenError: another program holds the endpoint.
    * WrongJobError, WrongVersionError: the master there serves another job, or is of another version.
    * UnauthenticatedError: the token or the certificate is wrong, on this side or the other.
    * TooManyError: too many connections come from this address.
    * ProtocolError: the answer makes no sense.
    * OrderDeclinedError: the master understood and declines, and says why.
    """

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        job_id: str = "none",
        security: SecurityConfig | None = None,
        timeout: float = 15.0,
        on_silent: Callable[[ElasticRunError], None] = lambda _: None,
    ) -> None:
        """A client that has not asked anything yet.

        Args:
            endpoints: Where the master may listen: the ``--rdzv-endpoint`` of the job's nodes, at least one.
            job_id: The job's ``--rdzv-id``.
            security: The job's token, and files for TLS if the job uses it.
            timeout: Seconds to try each endpoint.
            on_silent: Called with the reason when an endpoint is passed over for the next one.
        """
        self._endpoints = tuple(endpoints)
        self._job_id = job_id
        self._security = security or SecurityConfig()
        self._timeout = timeout
        self._on_silent = on_silent

    @classmethod
    async def connect(
        cls,
        endpoints: Sequence[Endpoint],
        job_id: str = "none",
        security: SecurityConfig | None = None,
        timeout: float = 15.0,
    ) -> JobControl:
        """A client whose job has answered once; arguments are those of the class."""
        control = cls(endpoints, job_id, security, timeout)
        await control.status()
        return control

    async def status(self) -> JobStatus:
        """The job's nodes and state."""
        reply = await self._order(ShowStatus())
        if reply.status is None:
            raise ProtocolError("the master's answer to a question for its status holds none")
        return reply.status

    async def drain(self, node: str, reason: str) -> str:
        """Let a node leave with grace. Returns, before it has left, what the master does about it."""
        return (await self._order(DrainNode(node, reason))).text

    async def scale(self, min_nodes: int, max_nodes: int) -> str:
        """Change the bounds for the number of nodes. Returns what the master does about it."""
        return (await self._order(ScaleJob(min_nodes, max_nodes))).text

    async def scale_role(self, role: TaskRole, count: int) -> str:
        """Change the number of a TensorFlow job's ps or workers. Returns what the master does about it."""
        return (await self._order(ScaleRole(role, count))).text

    async def stacks(self) -> str:
        """Have every node save the stacks of its workers beside their logs. Returns how many nodes do."""
        return (await self._order(SaveAllStacks())).text

    async def restart(self, reason: str) -> str:
        """Stop all workers and start them again, from the newest saved state. Returns what the master does.

        Spends no restart. A script that was edited meanwhile starts as it is now.
        """
        return (await self._order(RestartRound(reason))).text

    async def _order(self, request: ControlRequest) -> ControlReply:
        """Try the endpoints in turn: only the host that has the master listens."""
        *others, last = self._endpoints
        for endpoint in others:
            try:
                return await self._give(endpoint, request)
            except (MasterUnreachableError, EndpointTakenError) as error:
                self._on_silent(error)
        return await self._give(last, request)

    async def _give(self, endpoint: Endpoint, request: ControlRequest) -> ControlReply:
        reply = await give_order(endpoint, self._job_id, request, self._security, self._timeout)
        self._endpoints = (endpoint, *(each for each in self._endpoints if each != endpoint))
        if not reply.ok:
            raise OrderDeclinedError(reply.text)
        return reply
