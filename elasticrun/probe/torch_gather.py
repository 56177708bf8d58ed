"""All-gathers by torch.distributed: gloo between CPUs, NCCL between GPUs.

The groups are made from their backend's class and a store of their own, not by ``init_process_group``: a
process can have one such group at a time, and its gloo takes the address that the host's name resolves to. In
containers and network namespaces that is often 127.0.0.1, or the same for everybody; here gloo gets the
address that reaches the group's first rank. NCCL chooses its interfaces itself, and is told by the same
variables as the workers' NCCL.

One process per node takes part, with its first GPU: every GPU is tested by itself, and the copies between the
GPUs of a node as well, but the network is tested through one of them.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from .rendezvous import GPU, Group, Meeting
from .sockets import ProbeError, remaining, why
from .transport import MAX_RECEIVED

#: Seconds; torch refuses a timeout of 0.
_SHORTEST = 0.01
_INT32_BYTES = 4
#: Bytes in one all-gather between GPUs, which are faster by some orders of magnitude.
_MAX_RECEIVED_BY_GPU = 1024 * 1024 * 1024


def abilities(torch: Any | None) -> list[str]:
    """The transports that this node has, ``tcp`` always; and which GPU it has for NCCL."""
    if torch is None or not torch.distributed.is_available():
        return ["tcp"]
    found = ["tcp"]
    if torch.distributed.is_gloo_available():
        found.append("gloo")
    if torch.cuda.is_available() and torch.distributed.is_nccl_available():
        found.append("nccl")
        uuid = getattr(torch.cuda.get_device_properties(0), "uuid", "")  # not every torch tells
        found += [f"{GPU}{uuid}"] if uuid else []
    return found


def host_store(torch: Any, address: str, deadline: float) -> tuple[Any, int]:
    """A TCPStore of this process on a port that the kernel chooses, and that port. Raises ProbeError."""
    try:
        store = torch.distributed.TCPStore(
            address, 0, is_master=True, timeout=_left(deadline), wait_for_workers=False
        )
    except RuntimeError as error:
        raise ProbeError(f"torch's store cannot listen on {address}: {why(error)}") from error
    return store, store.port


def join_torch(
    torch: Any, group: Group, meeting: Meeting, interface: str, deadline: float, damages: bool = False
) -> TorchGather:
    """Form the torch group of a meeting. Raises RuntimeError.

    ``interface`` is what the user gave as GLOO_SOCKET_IFNAME, or "".
    """
    store = meeting.store
    if store is None:
        store = torch.distributed.TCPStore(
            meeting.host, meeting.store_port, is_master=False, timeout=_left(deadline)
        )
    on_gpu = meeting.transport == "nccl"
    make, options = _nccl(torch) if on_gpu else _gloo(torch, meeting.address, interface)
    options._timeout = _left(deadline)
    backend = make(store, group.rank, len(group.names), options)
    device = "cuda:0" if on_gpu else "cpu"
    return TorchGather(torch, backend, device, group.names, group.rank, deadline, damages)


def _gloo(torch: Any, address: str, interface: str) -> tuple[Any, Any]:
    backend = torch.distributed.ProcessGroupGloo
    options = backend._Options()
    device = {"interface": interface} if interface else {"hostname": address}
    options._devices = [backend.create_device(**device)]
    return backend, options


def _nccl(torch: Any) -> tuple[Any, Any]:
    torch.cuda.set_device(0)
    backend = torch.distributed.ProcessGroupNCCL
    return backend, backend.Options()


class TorchGather:
    """One rank of a torch group; see Transport."""

    def __init__(
        self,
        torch: Any,
        group: Any,
        device: str,
        names: Sequence[str],
        rank: int,
        deadline: float,
        damages: bool = False,
    ) -> None:
        self.size = len(names)
        self.max_received = MAX_RECEIVED if device == "cpu" else _MAX_RECEIVED_BY_GPU
        self._torch = torch
        self._group = group
        self._device = device
        self._names = names
        self._rank = rank
        self._deadline = deadline
        self._damages = damages  # a drill: what this rank sends is wrong

    def share(self, value: float) -> list[float]:
        torch = self._torch
        mine = torch.tensor([value], dtype=torch.float64, device=self._device)
        everybody = torch.empty(self.size, dtype=torch.float64, device=self._device)
        self._gather(everybody, mine)
        return [float(theirs) for theirs in everybody.tolist()]

    def time_gather(self, length: int) -> float:
        count = length // _INT32_BYTES
        mine = self._pattern(self._rank, count)
        if self._damages:
            mine[-1] ^= 1
        everybody = self._torch.zeros(self.size * count, dtype=self._torch.int32, device=self._device)
        start = time.perf_counter()
        self._gather(everybody, mine)
        seconds = time.perf_counter() - start
        for rank in range(self.size):
            theirs = everybody[rank * count : (rank + 1) * count]
            if rank != self._rank and not self._torch.equal(theirs, self._pattern(rank, count)):
                raise ProbeError(f"what {self._names[rank]} sent arrived damaged")
        return seconds

    def close(self) -> None:
        if self._device != "cpu":
            self._group.abort()  # the communicator holds memory of the GPU and threads
        self._group = None

    def _pattern(self, rank: int, count: int) -> Any:
        """What a rank sends: no two ranks the same, and every number different."""
        numbers = self._torch.arange(count, dtype=self._torch.int32, device=self._device)
        return numbers * 40_503 + rank * 7_919  # odd factors; the overflow is intended

    def _gather(self, everybody: Any, mine: Any) -> None:
        options = self._torch.distributed.distributed_c10d.AllgatherOptions()
        options.timeout = _left(self._deadline)
        self._group._allgather_base(everybody, mine, options).wait()
        if self._device != "cpu":
            self._torch.cuda.synchronize(self._device)


def _left(deadline: float) -> timedelta:
    return timedelta(seconds=max(_SHORTEST, remaining(deadline)))
