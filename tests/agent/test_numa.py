"""CPU sets from fake hosts."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticrun.agent.workers.numa import CpuSet, parse_cpu_list, plan, read_topology
from elasticrun.config import NumaBinding
from elasticrun.errors import UsageError


@dataclass
class Host:
    """A tree like /sys and /proc: ``nodes`` NUMA nodes of ``cores`` cores with two threads each.

    CPU n and n + (number of cores of the host) are the two threads of core n, as is usual.
    """

    root: Path
    nodes: int = 2
    cores: int = 4
    nodes_per_socket: int = 1
    cores_per_cache: int = 2
    cpus: range = field(init=False)

    def __post_init__(self) -> None:
        all_cores = self.nodes * self.cores
        self.cpus = range(2 * all_cores)
        for node in range(self.nodes):
            self.write(
                f"sys/devices/system/node/node{node}/cpulist", self.list_of(node * self.cores, self.cores)
            )
        for cpu in self.cpus:
            core = cpu % all_cores
            cache = core // self.cores_per_cache * self.cores_per_cache
            base = f"sys/devices/system/cpu/cpu{cpu}"
            self.write(f"{base}/topology/physical_package_id", core // self.cores // self.nodes_per_socket)
            self.write(f"{base}/topology/thread_siblings_list", self.list_of(core, 1))
            self.write_cache(f"{base}/cache/index0", 1, "Data", self.list_of(core, 1))
            self.write_cache(f"{base}/cache/index1", 9, "Instruction", "0-99")
            self.write_cache(f"{base}/cache/index3", 3, "Unified", self.list_of(cache, self.cores_per_cache))

    def list_of(self, first: int, count: int) -> str:
        other = first + self.nodes * self.cores
        return f"{first}-{first + count - 1},{other}-{other + count - 1}"

    def write(self, path: str, value: object) -> None:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(f"{value}\n")

    def write_cache(self, path: str, level: int, kind: str, cpus: str) -> None:
        self.write(f"{path}/level", level)
        self.write(f"{path}/type", kind)
        self.write(f"{path}/shared_cpu_list", cpus)

    def add_gpu(self, address: str, node: int, vendor: str = "0x10de", kind: str = "0x030200") -> None:
        base = f"sys/bus/pci/devices/{address}"
        self.write(f"{base}/vendor", vendor)
        self.write(f"{base}/class", kind)
        self.write(f"{base}/numa_node", node)

    def add_driver(self, address: str, uuid: str) -> None:
        self.write(f"proc/driver/nvidia/gpus/{address}/information", f"Model: \t H200\nGPU UUID: \t {uuid}\n")

    def plan(
        self,
        mode: NumaBinding,
        ranks: int,
        visible: str | None = None,
        allowed: set[int] | None = None,
    ) -> list[list[int]]:
        topology = read_topology(allowed or set(self.cpus), visible, self.root)
        return [sorted(cpus) for cpus in plan(mode, topology, ranks)]


NODE_0, NODE_1 = [0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7, 12, 13, 14, 15]


def test_parse_cpu_list() -> None:
    assert parse_cpu_list("0-2,4, 6-7\n") == {0, 1, 2, 4, 6, 7}
    assert parse_cpu_list("\n") == frozenset()


def test_node_without_gpus_spreads_evenly(tmp_path: Path) -> None:
    host = Host(tmp_path)
    assert host.plan(NumaBinding.NODE, 4) == [NODE_0, NODE_0, NODE_1, NODE_1]
    assert host.plan(NumaBinding.NODE, 1) == [NODE_0]


def test_node_follows_the_gpus(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.add_gpu("0000:1b:00.0", node=1)
    host.add_gpu("0000:8a:00.0", node=0, kind="0x030000")
    host.add_gpu("0000:00:02.0", node=0, vendor="0x8086")
    host.add_gpu("0000:1c:00.0", node=0, kind="0x068000")  # an NVSwitch is no GPU
    assert host.plan(NumaBinding.NODE, 2) == [NODE_1, NODE_0]
    assert host.plan(NumaBinding.NODE, 3) == [NODE_1, NODE_0, NODE_1]  # shared GPUs
    assert host.plan(NumaBinding.NODE, 1, visible="1") == [NODE_0]
    assert host.plan(NumaBinding.NODE, 2, visible="1, 0") == [NODE_0, NODE_1]
    assert host.plan(NumaBinding.NODE, 2, visible="1,7,0") == [NODE_0, NODE_0]  # as CUDA: none after 7


def test_the_drivers_list_knows_what_a_container_may_use(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.add_gpu("0000:1b:00.0", node=0)
    host.add_gpu("0000:8a:00.0", node=1)
    host.add_gpu("0000:9b:00.0", node=0)
    host.add_driver("0000:8A:00.0", "GPU-aa11")
    host.add_driver("0000:9b:00.0", "GPU-ab22")
    assert host.plan(NumaBinding.NODE, 2) == [NODE_1, NODE_0]
    assert host.plan(NumaBinding.NODE, 1, visible="GPU-ab") == [NODE_0]
    assert host.plan(NumaBinding.NODE, 2, visible="GPU-a") == [NODE_0, NODE_1]  # ambiguous: as if none


def test_a_gpu_of_a_node_that_is_unknown_or_not_ours(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.add_gpu("0000:1b:00.0", node=-1)
    host.add_gpu("0000:1c:00.0", node=1)
    assert host.plan(NumaBinding.NODE, 2, allowed=set(NODE_0)) == [NODE_0, NODE_0]


def test_socket(tmp_path: Path) -> None:
    host = Host(tmp_path, nodes=4, cores=2, nodes_per_socket=2)
    first, second = [0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7, 12, 13, 14, 15]
    assert host.plan(NumaBinding.SOCKET, 4) == [first, first, second, second]


def test_exclusive(tmp_path: Path) -> None:
    host = Host(tmp_path)
    assert host.plan(NumaBinding.EXCLUSIVE, 4) == [
        [0, 1, 8, 9],
        [2, 3, 10, 11],
        [4, 5, 12, 13],
        [6, 7, 14, 15],
    ]
    assert host.plan(NumaBinding.EXCLUSIVE, 6)[:3] == [[0, 1, 8, 9], [2, 10], [3, 11]]


def test_exclusive_leaves_the_share_of_a_gpu_that_is_not_used(tmp_path: Path) -> None:
    host = Host(tmp_path)
    for number in range(4):
        host.add_gpu(f"0000:1{number}:00.0", node=0)
    assert host.plan(NumaBinding.EXCLUSIVE, 2) == [[0, 8], [1, 9]]


def test_exclusive_with_too_few_cores(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"NUMA node 0 has 4 for 5 of them"):
        Host(tmp_path).plan(NumaBinding.EXCLUSIVE, 10)


def test_core_complex(tmp_path: Path) -> None:
    host = Host(tmp_path)
    one, other = [0, 1, 8, 9], [2, 3, 10, 11]
    assert host.plan(NumaBinding.CORE_COMPLEX, 6)[:3] == [one, other, one]
    larger_first = host.plan(NumaBinding.CORE_COMPLEX, 2, allowed={0, 2, 3, 10, 11})
    assert larger_first == [other, [0]]


def test_the_affinity_mask_is_respected(tmp_path: Path) -> None:
    host = Host(tmp_path)
    assert host.plan(NumaBinding.NODE, 2, allowed={1, 9, 5}) == [[1, 9], [5]]
    assert host.plan(NumaBinding.NODE, 2, allowed={4, 5}) == [[4, 5], [4, 5]]


def test_a_host_that_says_nothing_is_one_node(tmp_path: Path) -> None:
    topology = read_topology({0, 1, 2}, None, tmp_path)
    for mode in (NumaBinding.NODE, NumaBinding.SOCKET):
        assert plan(mode, topology, 2) == (frozenset({0, 1, 2}),) * 2
    assert plan(NumaBinding.EXCLUSIVE, topology, 2) == (frozenset({0, 1}), frozenset({2}))


@settings(deadline=None)  # it writes files
@given(
    nodes=st.integers(1, 4),
    cores=st.integers(1, 4),
    ranks=st.integers(1, 9),
    gpus=st.lists(st.integers(-1, 4), max_size=6),
    seed=st.randoms(use_true_random=False),
    mode=st.sampled_from(NumaBinding),
)
def test_every_worker_gets_cpus_that_it_may_use(
    tmp_path_factory: pytest.TempPathFactory,
    nodes: int,
    cores: int,
    ranks: int,
    gpus: list[int],
    seed: random.Random,
    mode: NumaBinding,
) -> None:
    host = Host(tmp_path_factory.mktemp("host"), nodes, cores)
    for number, node in enumerate(gpus):
        host.add_gpu(f"0000:{number:02x}:00.0", node)
    allowed = set(seed.sample(host.cpus, seed.randrange(1, len(host.cpus) + 1)))
    topology = read_topology(allowed, None, host.root)
    try:
        sets: tuple[CpuSet, ...] = plan(mode, topology, ranks)
    except UsageError:
        assert mode is NumaBinding.EXCLUSIVE
        return
    assert len(sets) == ranks
    assert all(cpus and cpus <= allowed for cpus in sets)
    if mode is NumaBinding.EXCLUSIVE:
        assert sum(map(len, sets)) == len(frozenset().union(*sets))


def test_this_host() -> None:
    allowed = os.sched_getaffinity(0)
    for mode in (NumaBinding.NODE, NumaBinding.SOCKET, NumaBinding.CORE_COMPLEX):
        assert all(cpus <= allowed for cpus in plan(mode, read_topology(allowed), 2))
