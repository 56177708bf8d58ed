"""The schedule, drills, and what the probe makes of torch and GPUs; the GPUs are fakes."""

from __future__ import annotations

import contextlib
import socket
import sys
import time
from types import SimpleNamespace
from typing import Any

import pytest

from elasticrun.probe import program
from elasticrun.probe.compute import DURATION, WARM_UP
from elasticrun.probe.drill import Drill, parse_drill
from elasticrun.probe.program import (
    LEAST,
    MEASURING,
    USABLE,
    Schedule,
    check_copies,
    count_gpus,
    parse_settings,
)
from elasticrun.probe.rendezvous import Group, Meeting
from elasticrun.probe.sockets import ProbeError, listen, why
from elasticrun.probe.torch_gather import abilities, join_torch


def test_slots_end_at_the_same_times_for_all_nodes() -> None:
    schedule = Schedule(100.0, 40.0, 3)
    share = 40.0 * USABLE / 4
    assert [schedule.end_of(slot) for slot in range(3)] == pytest.approx(
        [100 + 2 * share, 100 + 3 * share, 100 + 4 * share]
    )
    assert schedule.end_of(2) < 140.0
    assert schedule.end_of(1) - schedule.last_arrival(1) == pytest.approx(MEASURING * share)


@pytest.mark.parametrize("slots", [0, 1, 3])
def test_who_begins_its_benchmark_last_is_not_late(slots: int) -> None:
    schedule = Schedule(100.0, 40.0, slots)
    over = schedule.last_turn() + 2 * (WARM_UP + DURATION)
    assert over == pytest.approx(schedule.last_arrival(0) if slots else 100 + 40 * USABLE)


def test_settings_are_read() -> None:
    settings = parse_settings(
        '{"check": 7, "start": 3.5, "timeout": 60.0, "slots": 2, "node": "a", "address": "10.0.0.1", '
        '"groups": [{"slot": 1, "rank": 0, "names": ["a", "b"], "address": "10.0.0.1", "port": 12345}]}'
    )
    assert settings.groups == (Group(1, 0, ("a", "b"), "10.0.0.1", 12345),)
    assert (settings.check, settings.timeout, settings.slots, settings.node) == (7, 60.0, 2, "a")


@pytest.mark.parametrize(
    ("value", "drill"),
    [
        ("", Drill()),
        ("compute", Drill("compute")),
        ("hang", Drill("hang")),
        ("slow=0.25", Drill("slow", 0.25)),
    ],
)
def test_a_drill_is_read(value: str, drill: Drill) -> None:
    assert parse_drill(value) == drill


@pytest.mark.parametrize(
    "value", ["fire", "slow", "slow=", "slow=x", "slow=0", "slow=2", "slow=nan", "hang=1"]
)
def test_a_drill_that_makes_no_sense_is_refused(value: str) -> None:
    with pytest.raises(ProbeError, match="is not valid: give compute, slow"):
        parse_drill(value)


def test_a_slow_node_reports_its_part_of_the_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "load_torch", lambda: None)
    monkeypatch.setattr(program, "benchmark", lambda engine, spoils, seconds: 100.0)
    settings = program.Settings(1, time.monotonic(), 60.0, 0, "a", "127.0.0.1", ())
    written: list[Any] = []
    program.Probe(settings, program.Surroundings(fault="slow=0.25"), written.append).run()
    engine = f"python{sys.version_info.major}.{sys.version_info.minor}"
    assert written == [{"error": "", "matmul_flops": 25.0, "engine": engine}]


def probe_that_computes(
    monkeypatch: pytest.MonkeyPatch, *found: float | ProbeError, timeout: float = 60.0
) -> list[Any]:
    """What a probe of one group writes whose benchmarks find this, one after the other."""
    left = list(found)

    def benchmark(engine: object, spoils: bool, seconds: float) -> float:
        now = left.pop(0)
        if isinstance(now, ProbeError):
            raise now
        return now

    for turn in ("alone", "beside"):  # whatever else this host measures meanwhile
        monkeypatch.setattr(program, turn, lambda deadline: contextlib.nullcontext(True))
    monkeypatch.setattr(program, "load_torch", lambda: None)
    monkeypatch.setattr(program, "benchmark", benchmark)
    monkeypatch.setattr(program.Probe, "_test_group", lambda self, group: "group")
    groups = (Group(0, 1, ("a", "b"), "127.0.0.1", 1),)
    settings = program.Settings(1, time.monotonic(), timeout, 1, "b", "127.0.0.1", groups)
    written: list[Any] = []
    program.Probe(settings, program.Surroundings(), written.append).run()
    return [line if line == "group" else (line["error"], line["matmul_flops"]) for line in written]


def test_the_faster_of_two_benchmarks_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert probe_that_computes(monkeypatch, 100.0, 50.0) == [("", 100.0), "group", ("", 100.0)]
    assert probe_that_computes(monkeypatch, 100.0, 200.0) == [("", 100.0), "group", ("", 200.0)]


def test_a_wrong_result_after_the_groups_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    found = probe_that_computes(monkeypatch, 100.0, ProbeError("it computes wrong results"))
    assert found == [("", 100.0), "group", ("it computes wrong results", 0.0)]


def test_without_time_for_it_nothing_is_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    assert probe_that_computes(monkeypatch, 100.0, timeout=1.0) == [("", 100.0), "group"]


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ConnectionRefusedError(111, "Connection refused"), "Connection refused"),
        (RuntimeError("[/src/gloo/pair.cc:78] Closed by [10.0.0.1]:5. Check\nit"), "Closed by [10.0.0.1]:5"),
        (ConnectionResetError("the connection was closed"), "the connection was closed"),
        (TimeoutError("timed out"), "Connection timed out"),
        (OSError(98, "Address already in use (while binding)"), "Address already in use"),
        (socket.gaierror(-2, "Name or service not known"), "[Errno -2] Name or service not known"),
        (RuntimeError(), "RuntimeError"),
        (
            RuntimeError("NCCL error in: x.cpp:93, invalid usage\nLast error:\nDuplicate GPU\n"),
            "Duplicate GPU",
        ),
        (
            RuntimeError("NCCL error in: x.cpp:93, invalid usage\nLast error:\n"),
            "NCCL error in: x.cpp:93, invalid usage",
        ),
    ],
)
def test_an_error_is_one_line(error: Exception, text: str) -> None:
    assert why(error) == text


# -- torch and GPUs


class FakeTensor:
    """Numbers on some device, which a broken link changes."""

    def __init__(self, numbers: list[int], link: FakeCuda) -> None:
        self.numbers = numbers
        self._link = link

    def to(self, device: str) -> FakeTensor:
        self._link.copies.append(device)
        return FakeTensor([0] if device == self._link.broken else self.numbers, self._link)

    def cpu(self) -> FakeTensor:
        return self


class FakeCuda:
    """A torch that sees GPUs."""

    def __init__(
        self, count: int, broken: str = "", built_for: str | None = "13.0", **properties: str
    ) -> None:
        self.copies: list[str] = []
        self.broken = broken
        self.version = SimpleNamespace(cuda=built_for)
        self.int32 = "int32"
        self.used: list[int] = []
        self.cuda = SimpleNamespace(
            is_available=lambda: count > 0,
            device_count=lambda: count,
            set_device=self.used.append,
            get_device_properties=lambda index: SimpleNamespace(**properties),
        )
        self.distributed = SimpleNamespace(
            is_available=lambda: True,
            is_gloo_available=lambda: True,
            is_nccl_available=lambda: True,
            ProcessGroupNCCL=FakeNccl,
        )

    def arange(self, count: int, dtype: str, device: str) -> FakeTensor:
        return FakeTensor([1, 2], self)

    @staticmethod
    def equal(one: FakeTensor, other: FakeTensor) -> bool:
        return one.numbers == other.numbers


class FakeNccl:
    """The backend's class: notes what it was made with."""

    Options = SimpleNamespace

    def __init__(self, store: object, rank: int, size: int, options: Any) -> None:
        self.made_with = (store, rank, size)
        self.timeout = options._timeout
        self.aborted = False

    def abort(self) -> None:
        self.aborted = True


def test_gpus_are_counted() -> None:
    assert count_gpus(None, hides_gpus=False) == 0
    assert count_gpus(FakeCuda(4), hides_gpus=False) == 4


def test_a_driver_that_does_not_work_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.path.exists", lambda path: path == "/dev/nvidia0")
    with pytest.raises(ProbeError, match="CUDA finds no GPU"):
        count_gpus(FakeCuda(0), hides_gpus=False)
    assert count_gpus(FakeCuda(0), hides_gpus=True) == 0
    assert count_gpus(FakeCuda(0, built_for=None), hides_gpus=False) == 0


def test_copies_between_gpus_go_around() -> None:
    torch = FakeCuda(3)
    check_copies(torch, 3)
    assert torch.copies == ["cuda:1", "cuda:2", "cuda:0"]


def test_one_gpu_copies_nothing() -> None:
    torch = FakeCuda(1)
    check_copies(torch, 1)
    assert torch.copies == []


def test_a_damaged_copy_is_an_error() -> None:
    with pytest.raises(ProbeError, match=r"^a copy from GPU 1 to GPU 2 arrived damaged$"):
        check_copies(FakeCuda(3, broken="cuda:2"), 3)


def test_the_slowest_gpu_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = FakeCuda(8)
    torch.cuda.empty_cache = lambda: None
    spans: list[float] = []

    def benchmark(engine: SimpleNamespace, spoils: bool, seconds: float) -> float:
        spans.append(seconds)
        return float(100 - 10 * engine.index)

    monkeypatch.setattr(program, "load_torch", lambda: torch)
    monkeypatch.setattr(
        program, "gpu_engine", lambda torch, index: SimpleNamespace(index=index, kind="torch/gpu")
    )
    monkeypatch.setattr(program, "benchmark", benchmark)
    settings = program.Settings(1, time.monotonic(), 60.0, 0, "a", "127.0.0.1", ())
    written: list[Any] = []
    program.Probe(settings, program.Surroundings(), written.append).run()
    assert written == [{"error": "", "matmul_flops": 30.0, "engine": "torch/gpu"}]
    assert sum(spans) == pytest.approx(8 * LEAST)


def test_what_a_node_can_do() -> None:
    assert abilities(None) == ["tcp"]
    assert abilities(FakeCuda(0)) == ["tcp", "gloo"]
    assert abilities(FakeCuda(1)) == ["tcp", "gloo", "nccl"]
    assert abilities(FakeCuda(1, uuid="9112")) == ["tcp", "gloo", "nccl", "gpu=9112"]


def test_gpus_gather_over_nccl() -> None:
    torch, store = FakeCuda(2), object()
    with listen("127.0.0.1", 0) as ring:
        meeting = Meeting("nccl", 1234, "10.0.0.1", "10.0.0.1", [], ring, store)
        group = Group(0, 0, ("a", "b"), "10.0.0.1", 12345)
        transport = join_torch(torch, group, meeting, "", time.monotonic() + 10)
    nccl = transport._group
    assert nccl.made_with == (store, 0, 2)
    assert 9 < nccl.timeout.total_seconds() <= 10
    assert torch.used == [0]
    assert transport.max_received > 64 * 1024 * 1024
    transport.close()
    assert nccl.aborted
