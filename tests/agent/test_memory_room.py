"""How much memory can be taken, by made-up files of the kernel."""

from __future__ import annotations

from pathlib import Path

import pytest

from elasticrun.agent.memory.room import free_bytes

MIB = 2**20
UNLIMITED_V1 = 2**63 - 4096  # as version 1 writes it


class Kernel:
    """The files under /proc and /sys/fs/cgroup."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, path: str, text: str) -> None:
        file = self._folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def host(self, total: int, available: int) -> None:
        """Its memory in MiB."""
        self.write(
            "proc/meminfo",
            f"MemTotal:       {total << 10} kB\nMemFree:        1 kB\n"
            f"MemAvailable:   {available << 10} kB\nHugePages_Total:       0\n",
        )

    def limit(self, path: str, limit: int | str, used: int, cache: int = 0) -> None:
        """Limit a cgroup of version 2, in MiB."""
        most = limit if isinstance(limit, str) else str(limit * MIB)
        self.write(f"cgroup{path}/memory.max", f"{most}\n")
        self.write(f"cgroup{path}/memory.current", f"{used * MIB}\n")
        self.write(f"cgroup{path}/memory.stat", f"anon 7\ninactive_file {cache * MIB}\nactive_file 5\n")

    def limit_v1(self, path: str, limit: int, used: int, cache: int = 0) -> None:
        """Limit a cgroup of version 1, in MiB."""
        self.write(f"cgroup/memory{path}/memory.limit_in_bytes", f"{min(limit * MIB, UNLIMITED_V1)}\n")
        self.write(f"cgroup/memory{path}/memory.usage_in_bytes", f"{used * MIB}\n")
        self.write(
            f"cgroup/memory{path}/memory.stat", f"inactive_file 0\ntotal_inactive_file {cache * MIB}\n"
        )

    @property
    def room(self) -> float | None:
        """In MiB."""
        found = free_bytes(str(self._folder / "proc"), str(self._folder / "cgroup"))
        return None if found is None else found / MIB


@pytest.fixture
def kernel(tmp_path: Path) -> Kernel:
    return Kernel(tmp_path)


def test_what_a_kernel_that_says_nothing_can_give_is_unknown(kernel: Kernel) -> None:
    assert kernel.room is None


def test_a_host_keeps_a_share_of_its_memory_free(kernel: Kernel) -> None:
    kernel.host(total=1000, available=600)
    assert kernel.room == 550


@pytest.mark.parametrize("text", ["MemTotal: 1000 kB\nMemFree: 500 kB\n", "MemAvailable: 1000 kB\n"])
def test_a_host_that_tells_not_all_of_its_memory_tells_nothing(kernel: Kernel, text: str) -> None:
    kernel.write("proc/meminfo", text)
    assert kernel.room is None


@pytest.mark.parametrize("text", ["", "\n", "MemAvailable", "MemTotal: much kB\n", "MemAvailable: kB\n"])
def test_rubbish_tells_nothing(kernel: Kernel, text: str) -> None:
    kernel.write("proc/meminfo", text)
    kernel.write("proc/self/cgroup", text)
    assert kernel.room is None


def test_the_limit_of_our_cgroup_counts_and_page_cache_is_free(kernel: Kernel) -> None:
    kernel.host(total=100_000, available=90_000)
    kernel.write("proc/self/cgroup", "0::/jobs/train\n")
    kernel.limit("/jobs/train", 1000, used=400, cache=100)
    assert kernel.room == 1000 - 400 + 100 - 50


def test_the_host_may_have_less_than_the_cgroup(kernel: Kernel) -> None:
    kernel.host(total=1000, available=300)
    kernel.write("proc/self/cgroup", "0::/train\n")
    kernel.limit("/train", 1000, used=0)
    assert kernel.room == 250


@pytest.mark.parametrize("tightest", ["/a/b/c", "/a/b", "/a", ""])
def test_the_tightest_of_nested_limits_counts(kernel: Kernel, tightest: str) -> None:
    kernel.write("proc/self/cgroup", "0::/a/b/c\n")
    for path in ("/a/b/c", "/a/b", "/a", ""):
        kernel.limit(path, 1000, used=900 if path == tightest else 100)
    kernel.limit("/a/other", 1000, used=1000)
    assert kernel.room == 50


def test_a_cgroup_without_a_limit_leaves_it_to_those_above(kernel: Kernel) -> None:
    kernel.write("proc/self/cgroup", "0::/jobs/train\n")
    kernel.limit("/jobs/train", "max", used=400)
    assert kernel.room is None
    kernel.limit("/jobs", 2000, used=500)
    assert kernel.room == 1400


def test_who_is_in_the_root_has_its_limit(kernel: Kernel) -> None:
    """So it looks from within a container, whose root is a cgroup of the host."""
    kernel.write("proc/self/cgroup", "0::/\n")
    kernel.limit("", 1000, used=100)
    assert kernel.room == 850


@pytest.mark.parametrize("missing", ["memory.max", "memory.current", "memory.stat"])
def test_a_cgroup_of_which_a_file_is_missing_sets_no_limit(
    kernel: Kernel, tmp_path: Path, missing: str
) -> None:
    kernel.write("proc/self/cgroup", "0::/jobs/train\n")
    kernel.limit("/jobs/train", 1000, used=999)
    kernel.limit("/jobs", 1000, used=500)
    (tmp_path / "cgroup/jobs/train" / missing).unlink()
    assert kernel.room == 450


def test_beyond_the_limit_there_is_no_room(kernel: Kernel) -> None:
    kernel.write("proc/self/cgroup", "0::/train\n")
    kernel.limit("/train", 1000, used=990)
    assert kernel.room == 0


@pytest.mark.parametrize("controllers", ["memory", "cpu,memory", "memory,hugetlb"])
def test_limits_of_version_1(kernel: Kernel, controllers: str) -> None:
    kernel.write("proc/self/cgroup", f"12:pids:/x\n5:{controllers}:/jobs/train\n1:name=systemd:/y\n")
    kernel.limit_v1("/jobs/train", UNLIMITED_V1, used=400)
    kernel.limit_v1("/jobs", 1000, used=500, cache=20)
    assert kernel.room == 1000 - 500 + 20 - 50


def test_page_cache_of_those_below_is_free_in_version_1(kernel: Kernel) -> None:
    kernel.write("proc/self/cgroup", "5:memory:/\n")
    kernel.limit_v1("", 1000, used=900, cache=500)
    assert kernel.room == 1000 - 900 + 500 - 50


def test_version_1_beside_version_2(kernel: Kernel) -> None:
    kernel.write("proc/self/cgroup", "3:memory:/train\n0::/session\n")
    kernel.limit_v1("/train", 1000, used=100)
    assert kernel.room == 850


def test_a_container_of_version_1_sees_its_limit_at_the_root(kernel: Kernel) -> None:
    kernel.write("proc/self/cgroup", "5:memory:/docker/0123456789abcdef\n")
    kernel.limit_v1("", 1000, used=700)
    assert kernel.room == 250


def test_other_controllers_of_version_1_say_nothing(kernel: Kernel) -> None:
    kernel.write("proc/self/cgroup", "5:cpu,cpuacct:/train\n4:memory_of_others:/train\n")
    kernel.limit_v1("/train", 1000, used=700)
    assert kernel.room is None


def test_a_path_may_have_colons(kernel: Kernel) -> None:
    kernel.write("proc/self/cgroup", "0::/jobs:a:b\n")
    kernel.limit("/jobs:a:b", 1000, used=100)
    assert kernel.room == 850


def test_this_box_has_some_room() -> None:
    room = free_bytes()
    assert room is not None
    assert room >= 0
