"""The probe from settings to result: a schedule, the self test, the groups of each slot.

Settings are one JSON object::

    {"check": 7, "start": 1234.5, "timeout": 60.0, "slots": 2, "node": "a", "address": "10.0.0.1",
     "secret": "3a...",
     "groups": [{"slot": 0, "rank": 0, "names": ["a", "b"], "address": "10.0.0.1", "port": 12345}]}

Results are JSON lines, each written when it is known: first ``{"error": "", "matmul_flops": 3.5e10,
"engine": "torch/cpu"}`` for the self test, then for each group, in the order of the settings, ``{"error": "",
"bandwidth": 1.2e9, "latency": 5e-5, "transport": "gloo"}``. Nothing follows a failed self test. If there was
time for a second benchmark, the last line is like the first and replaces it.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from . import torch_gather
from .compute import DURATION, WARM_UP, Engine, benchmark, cpu_engine, gpu_engine
from .drill import Drill, parse_drill
from .proof import ring_tag
from .rendezvous import Door, Group, Meeting, Pass, lead, visit
from .ring import Ring, join_ring
from .sockets import ProbeError, listen, remaining, why
from .transport import Measurement, Transport, measure
from .turns import alone, beside

#: The slots end here, as a share of the time, so that the result is there before the time is over.
USABLE = 0.85
#: The last share of a slot is for the all-gather: by then every member has to be there.
MEASURING = 0.2
#: Seconds to wait for a turn on this host: for the self test; for an all-gather or the second benchmark.
PATIENCE = 10.0
COURTESY = 2.0
#: Seconds and bytes for an all-gather within this node.
LOCAL_PATIENCE = 5.0
LOCAL_BLOCK = 1024 * 1024
#: The fewest seconds for the benchmark of one GPU, however many there are.
LEAST = 0.2
#: How many int32 numbers torch copies from one GPU to the next.
COPIED = 4 * 1024 * 1024


@dataclass(frozen=True)
class Settings:
    """What to test. Times are in seconds."""

    check: int
    start: float  # of the schedule: when the agent was told, by this host's monotonic clock
    timeout: float
    slots: int
    node: str
    address: str  # of this node
    groups: tuple[Group, ...]
    secret: str = field(default="", repr=False)  # of this check, in hex

    @property
    def check_pass(self) -> Pass:
        """What proves to the others that this probe takes part."""
        return Pass(self.check, bytes.fromhex(self.secret))


@dataclass(frozen=True)
class Surroundings:
    """What the probe takes from its environment."""

    fault: str = ""  # ELASTICRUN_PROBE_FAULT
    interface: str = ""  # GLOO_SOCKET_IFNAME
    hides_gpus: bool = False  # CUDA_VISIBLE_DEVICES names none


def parse_settings(text: str) -> Settings:
    """The settings in ``text``, which the agent wrote: anything wrong with them is a bug."""
    values = json.loads(text)
    groups = [Group(**{**group, "names": tuple(group["names"])}) for group in values.pop("groups")]
    return Settings(**values, groups=tuple(groups))


class Schedule:
    """When each slot ends: one share for the self test, one for each slot."""

    def __init__(self, start: float, timeout: float, slots: int) -> None:
        self._start = start
        self._slots = slots
        self._share = timeout * USABLE / (slots + 1)

    def end_of(self, slot: int) -> float:
        """The moment until which this slot's all-gather has to be over."""
        return self._start + self._share * (slot + 2)

    def last_arrival(self, slot: int) -> float:
        """The moment until which every member has to be there."""
        return self.end_of(slot) - MEASURING * self._share

    def end(self) -> float:
        """The moment when everything has to be over."""
        return self._start + self._share * (self._slots + 1)

    def last_turn(self) -> float:
        """The latest moment for the benchmark to begin, if it is to end before the first slot's last arrival.

        It leaves twice the duration, because a node that got no turn is slower.
        """
        return (self.last_arrival(0) if self._slots else self.end()) - 2 * (WARM_UP + DURATION)


class Probe:
    """One probe; ``write`` is called with each result."""

    def __init__(
        self, settings: Settings, around: Surroundings, write: Callable[[Mapping[str, Any]], None]
    ) -> None:
        self._settings = settings
        self._around = around
        self._write = write
        self._schedule = Schedule(settings.start, settings.timeout, settings.slots)
        ports = {group.port for group in settings.groups if group.rank == 0}
        self._doors = {port: Door(port, settings.check, settings.check_pass.secret) for port in ports}
        self._drill = Drill()
        self._torch: Any = None
        self._gpus = 0

    def run(self) -> None:
        """Test everything, and write what was found."""
        with contextlib.ExitStack() as doors:
            for door in self._doors.values():
                doors.callback(door.close)
            self._test()

    def _test(self) -> None:
        try:
            flops, engine = self._test_this_node()
        except (ProbeError, OSError, RuntimeError) as error:
            self._write({"error": why(error), "matmul_flops": 0.0, "engine": ""})
            self._decline(f"{self._settings.node} failed its self test")
            return
        self._write({"error": "", "matmul_flops": flops, "engine": engine})
        for group in self._settings.groups:
            self._write(self._test_group(group))
        if self._settings.groups:
            self._compute_again(flops, engine)

    def _compute_again(self, before: float, engine: str) -> None:
        """Run a second benchmark, if there is time for it; the faster one counts."""
        turn = min(self._schedule.end() - 2 * (WARM_UP + DURATION), time.monotonic() + COURTESY)
        with alone(turn):
            if time.monotonic() >= turn:
                return
            try:
                flops, _ = self._compute()
            except (ProbeError, OSError, RuntimeError) as error:
                self._write({"error": why(error), "matmul_flops": 0.0, "engine": ""})
            else:
                self._write({"error": "", "matmul_flops": max(before, flops), "engine": engine})

    # -- this node

    def _test_this_node(self) -> tuple[float, str]:
        """Floating point operations per second, and the kind of engine that did them."""
        self._drill = parse_drill(self._around.fault)
        if self._drill.kind != "network":
            for door in self._doors.values():
                door.open()  # a port that is taken now may be free when its slot begins
        self._drill.strike()
        turn = min(self._schedule.last_turn(), time.monotonic() + PATIENCE)
        with beside(turn):
            self._torch = load_torch()
            check_local_network(self._settings.address)
        self._gpus = count_gpus(self._torch, self._around.hides_gpus)
        with alone(turn):
            check_copies(self._torch, self._gpus)
            return self._compute()

    def _compute(self) -> tuple[float, str]:
        gpus = self._gpus
        if not gpus:
            return self._benchmark(cpu_engine(self._torch))
        seconds = max(DURATION / gpus, LEAST)
        slowest = min(self._benchmark(gpu_engine(self._torch, index), seconds) for index in range(gpus))
        self._torch.cuda.empty_cache()
        return slowest

    def _benchmark(self, engine: Engine, seconds: float = DURATION) -> tuple[float, str]:
        flops = benchmark(engine, self._drill.kind == "compute", seconds)
        return flops * self._drill.speed, engine.kind

    # -- together with others

    def _test_group(self, group: Group) -> dict[str, Any]:
        try:
            if self._drill.kind == "network":
                raise ProbeError("ELASTICRUN_PROBE_FAULT=network keeps this node out of every all-gather")
            found, transport = self._gather(group)
        except ProbeError as error:
            return {"error": str(error), "bandwidth": 0.0, "latency": 0.0, "transport": ""}
        return {
            "error": "",
            "bandwidth": found.bandwidth,
            "latency": found.latency,
            "transport": transport,
        }

    def _gather(self, group: Group) -> tuple[Measurement, str]:
        able = torch_gather.abilities(self._torch)
        arrival = self._schedule.last_arrival(group.slot)
        if group.rank == 0:
            meeting = lead(group, self._doors[group.port], able, self._host_store, arrival)
        else:
            end = self._schedule.end_of(group.slot)
            meeting = visit(group, self._settings.check_pass, able, arrival, end)
        with contextlib.closing(meeting):
            others = ", ".join(name for rank, name in enumerate(group.names) if rank != group.rank)
            try:
                return self._measure(group, meeting), meeting.transport
            except (OSError, RuntimeError) as error:
                raise ProbeError(
                    f"the {meeting.transport} all-gather with {others} failed: {why(error)}"
                ) from error

    def _decline(self, problem: str) -> None:
        """Tell the other members of every group, so that they do not wait."""
        for group in self._settings.groups:
            deadline = self._schedule.last_arrival(group.slot)
            if group.rank == 0:
                self._doors[group.port].turn_away(group, problem, deadline)
            else:
                with contextlib.suppress(ProbeError):  # the expected answer
                    visit(group, self._settings.check_pass, (), deadline, deadline, problem)

    def _host_store(self, address: str, deadline: float) -> tuple[Any, int]:
        return torch_gather.host_store(self._torch, address, deadline)

    def _measure(self, group: Group, meeting: Meeting) -> Measurement:
        turn = min(self._schedule.last_arrival(group.slot), time.monotonic() + COURTESY)
        with beside(turn), contextlib.closing(self._join(group, meeting)) as transport:
            return measure(transport)

    def _join(self, group: Group, meeting: Meeting) -> Transport:
        end = self._schedule.end_of(group.slot)
        damages = self._drill.kind == "wrong"
        if meeting.transport == "tcp":
            secret = self._settings.check_pass.secret
            tag = (ring_tag(secret, self._settings.check, group.slot), group.slot)
            return join_ring(group.names, group.rank, tag, meeting.ring, meeting.places, end, damages)
        return torch_gather.join_torch(self._torch, group, meeting, self._around.interface, end, damages)


def load_torch() -> Any | None:
    """The module, or None where there is none. ProbeError if there is one that does not work."""
    try:
        torch = importlib.import_module("torch")
        importlib.import_module("torch.distributed")
    except ModuleNotFoundError as error:
        if error.name == "torch":
            return None
        raise ProbeError(f"torch cannot be imported: {why(error)}") from error
    except (ImportError, OSError) as error:
        raise ProbeError(f"torch cannot be imported: {why(error)}") from error
    return torch


def count_gpus(torch: Any | None, hides_gpus: bool) -> int:
    """How many GPUs torch can use. ProbeError if there should be some, but torch finds none."""
    if torch is None:
        return 0
    if torch.cuda.is_available():
        return int(torch.cuda.device_count())
    if torch.version.cuda and os.path.exists("/dev/nvidia0") and not hides_gpus:  # noqa: PTH110
        raise ProbeError("this node has an NVIDIA GPU and torch was built for CUDA, but CUDA finds no GPU")
    return 0


def check_copies(torch: Any, gpus: int) -> None:
    """Copy numbers from each GPU to the next one. ProbeError if they arrive damaged."""
    for index in range(gpus if gpus > 1 else 0):
        after = (index + 1) % gpus
        numbers = torch.arange(COPIED, dtype=torch.int32, device=f"cuda:{index}")
        if not torch.equal(numbers.to(f"cuda:{after}").cpu(), numbers.cpu()):
            raise ProbeError(f"a copy from GPU {index} to GPU {after} arrived damaged")


def check_local_network(address: str) -> None:
    """An all-gather of two threads over this node's own stack. ProbeError if it fails."""
    deadline = time.monotonic() + LOCAL_PATIENCE
    try:
        listeners = _local_listeners(address)
        try:
            _gather_locally(listeners, deadline)
        finally:
            for listener in listeners:
                listener.close()
    except (ProbeError, OSError) as error:
        raise ProbeError(f"this node cannot reach itself over its own network: {why(error)}") from error


def _local_listeners(address: str) -> list[socket.socket]:
    """Two on the node's own address, or on the loopback if that is a gateway's address, as behind NAT."""
    try:
        return [listen(address, 0) for _ in range(2)]
    except OSError:
        return [listen("127.0.0.1", 0) for _ in range(2)]


def _gather_locally(listeners: list[socket.socket], deadline: float) -> None:
    names = ("itself", "itself")
    places = [(listener.getsockname()[0], listener.getsockname()[1]) for listener in listeners]
    problems: list[Exception] = []

    def take_part(rank: int) -> None:
        try:
            ring: Ring = join_ring(names, rank, (0, 0), listeners[rank], places, deadline)
            with contextlib.closing(ring):
                ring.time_gather(LOCAL_BLOCK)
        except (ProbeError, OSError) as error:
            problems.append(error)

    other = threading.Thread(target=take_part, args=(1,), daemon=True)
    other.start()
    take_part(0)
    other.join(max(0.0, deadline - time.monotonic()))
    if problems:
        raise problems[0]
    remaining(deadline)
