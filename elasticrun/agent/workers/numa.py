"""Which CPUs each worker may use: ``--numa-binding`` as a function of what /sys says.

    node          the CPUs of the NUMA node of the worker's GPU
    socket        those of every NUMA node of that node's socket
    exclusive     a share of the node's physical cores that no other worker of this host has
    core-complex  the cores that share one last-level cache, another cache for each worker where possible

The GPU of local rank i is the i-th one that the workers can see; its node is what the kernel says about
its PCI device. On a host without NVIDIA GPUs torchrun fails; here the local ranks are spread over the NUMA
nodes in order and evenly (of 4 ranks on 2 nodes, 0 and 1 are on the first). With more local ranks than
GPUs, GPUs are shared in turn. Everything stays within the CPUs this process may use; on a host with one
node, ``node`` and ``socket`` bind to all of those.

No program is run and nothing is imported for it: the spawner sets the mask before the worker's first
instruction, so its memory comes from the right node as well (the kernel's first-touch rule).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

from elasticrun.config import NumaBinding
from elasticrun.dataclass import dataclass
from elasticrun.errors import UsageError

CpuSet = frozenset[int]

_NVIDIA = 0x10DE
_DISPLAY_CLASS = 0x03  # first byte of the PCI class: VGA and 3D controllers


@dataclass(frozen=True, slots=True)
class Cpu:
    """Where one logical CPU sits; the groups are named by their lowest member."""

    number: int
    socket: int
    core: int
    cache: int  # the last-level cache


@dataclass(frozen=True, slots=True)
class Topology:
    """The parts of a host that matter for binding."""

    nodes: Mapping[int, CpuSet]  # only CPUs that we may use; nodes without any are left out
    cpus: Mapping[int, Cpu]
    gpu_nodes: tuple[int, ...] = ()  # NUMA node of each GPU that the workers can see, in their order


def plan(mode: NumaBinding, topology: Topology, local_world_size: int) -> tuple[CpuSet, ...]:
    """The CPUs of each local rank. UsageError if ``exclusive`` has fewer cores than seats on a node."""
    seats = _seats(topology, local_world_size)
    if mode is NumaBinding.NODE:
        sets = [topology.nodes[node] for node in seats]
    elif mode is NumaBinding.SOCKET:
        sets = [_socket_of(topology, node) for node in seats]
    elif mode is NumaBinding.EXCLUSIVE:
        sets = _deal(seats, lambda node, count: _shares(topology, node, count))
    else:
        sets = _deal(seats, lambda node, count: _complexes(topology, node, count))
    return tuple(sets[:local_world_size])


def _seats(topology: Topology, local_world_size: int) -> list[int]:
    """The NUMA node of each GPU, used or not, and of each local rank: a GPU nobody uses keeps its share."""
    usable = sorted(topology.nodes)
    gpus = [node if node in topology.nodes else usable[0] for node in topology.gpu_nodes]
    if not gpus:
        return [usable[rank * len(usable) // local_world_size] for rank in range(local_world_size)]
    return [gpus[seat % len(gpus)] for seat in range(max(len(gpus), local_world_size))]


def _socket_of(topology: Topology, node: int) -> CpuSet:
    sockets = {number: topology.cpus[min(cpus)].socket for number, cpus in topology.nodes.items()}
    return frozenset().union(
        *(topology.nodes[number] for number, socket in sockets.items() if socket == sockets[node])
    )


def _deal(seats: Sequence[int], divide: Callable[[int, int], list[CpuSet]]) -> list[CpuSet]:
    """Divide each node among the seats on it, and give every seat its part in order."""
    parts = {node: iter(divide(node, seats.count(node))) for node in set(seats)}
    return [next(parts[node]) for node in seats]


def _shares(topology: Topology, node: int, count: int) -> list[CpuSet]:
    cores = _groups(topology, node, lambda cpu: cpu.core)
    if len(cores) < count:
        raise UsageError(
            "--numa-binding exclusive needs a physical core for each worker and each unused GPU, but NUMA "
            f"node {node} has {len(cores)} for {count} of them; use node instead, or fewer workers"
        )
    small, larger = divmod(len(cores), count)  # the first few get one core more
    ends = [seat * small + min(seat, larger) for seat in range(count + 1)]
    return [frozenset().union(*cores[start:end]) for start, end in pairwise(ends)]


def _complexes(topology: Topology, node: int, count: int) -> list[CpuSet]:
    caches = _groups(topology, node, lambda cpu: cpu.cache)
    caches.sort(key=len, reverse=True)  # stable: the larger ones first, then by number
    return [caches[seat % len(caches)] for seat in range(count)]


def _groups(topology: Topology, node: int, key: Callable[[Cpu], int]) -> list[CpuSet]:
    groups: defaultdict[int, set[int]] = defaultdict(set)
    for number in topology.nodes[node]:
        groups[key(topology.cpus[number])].add(number)
    return [frozenset(groups[name]) for name in sorted(groups)]


def read_topology(
    allowed: Iterable[int], visible_devices: str | None = None, root: str | Path = "/"
) -> Topology:
    """Read the host below ``root``. What is not there counts as one node without GPUs.

    ``allowed`` are the CPUs that this process may use, ``visible_devices`` is the workers'
    CUDA_VISIBLE_DEVICES.
    """
    base = Path(root)
    mask = frozenset(allowed)
    nodes = {number: cpus & mask for number, cpus in _read_nodes(base).items() if cpus & mask}
    gpus = _visible(_read_gpus(base), visible_devices)
    return Topology(
        nodes=nodes or {0: mask},
        cpus={number: _read_cpu(base, number) for number in mask},
        gpu_nodes=tuple(max(gpu.node, 0) for gpu in gpus),  # -1: unknown to the kernel; there is one node
    )


def parse_cpu_list(text: str) -> CpuSet:
    """``0-2,4`` as the kernel writes sets of CPUs."""
    numbers: set[int] = set()
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        if first:
            numbers.update(range(int(first), int(last or first) + 1))
    return frozenset(numbers)


def _read_nodes(base: Path) -> dict[int, CpuSet]:
    paths = (base / "sys/devices/system/node").glob("node[0-9]*/cpulist")
    return {int(path.parent.name[4:]): parse_cpu_list(_read(path)) for path in paths}


def _read_cpu(base: Path, number: int) -> Cpu:
    directory = base / f"sys/devices/system/cpu/cpu{number}"
    socket = _read(directory / "topology/physical_package_id")
    siblings = parse_cpu_list(_read(directory / "topology/thread_siblings_list"))
    return Cpu(
        number=number,
        socket=int(socket or 0),
        core=min(siblings, default=number),
        cache=min(_last_level_cache(directory / "cache"), default=number),
    )


def _last_level_cache(directory: Path) -> CpuSet:
    caches = [
        (int(_read(index / "level") or 0), _read(index / "shared_cpu_list"))
        for index in directory.glob("index[0-9]*")
        if _read(index / "type") in ("Unified", "Data")
    ]
    return parse_cpu_list(max(caches)[1]) if caches else frozenset()


@dataclass(frozen=True, slots=True)
class _Gpu:
    node: int  # -1: unknown
    uuid: str = ""


def _read_gpus(base: Path) -> list[_Gpu]:
    """The host's NVIDIA GPUs in the order of their PCI addresses, which is CUDA's for equal ones.

    The driver's own list is preferred: in a container it has only the devices that the container was given.
    """
    devices = base / "sys/bus/pci/devices"
    driver = sorted((base / "proc/driver/nvidia/gpus").glob("*"))
    if driver:
        return [_Gpu(_node_of(devices / path.name.lower()), _uuid(path / "information")) for path in driver]
    return [_Gpu(_node_of(path)) for path in sorted(devices.glob("*")) if _is_nvidia_gpu(path)]


def _is_nvidia_gpu(device: Path) -> bool:
    with suppress(ValueError):
        return int(_read(device / "vendor"), 16) == _NVIDIA and (
            int(_read(device / "class"), 16) >> 16 == _DISPLAY_CLASS
        )
    return False


def _node_of(device: Path) -> int:
    return int(_read(device / "numa_node") or -1)


def _uuid(information: Path) -> str:
    for line in _read(information).splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "GPU UUID":
            return value.strip()
    return ""


def _visible(gpus: list[_Gpu], visible_devices: str | None) -> list[_Gpu]:
    """The GPUs that the variable names to CUDA: indices or UUID prefixes, up to the first invalid one."""
    if visible_devices is None:
        return gpus
    chosen: list[_Gpu] = []
    for name in map(str.strip, visible_devices.split(",")):
        matches = [
            gpu
            for index, gpu in enumerate(gpus)
            if name == str(index) or (name.startswith("GPU-") and gpu.uuid.startswith(name))
        ]
        if len(matches) != 1:
            break
        chosen += matches
    return chosen


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
