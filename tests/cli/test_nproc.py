"""What ``--nproc-per-node`` counts: by a stand-in for torch in a real child, and without any torch."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from elasticrun.cli import nproc
from elasticrun.cli.parse import parse_command_line
from elasticrun.config import LaunchConfig
from elasticrun.errors import UsageError

CORES = len(os.sched_getaffinity(0))

TORCH = """
import types
__version__ = "9.9"
print("noise on stdout")
def device(count):
    return types.SimpleNamespace(is_available=lambda: count > 0, device_count=lambda: count)
cuda, xpu, npu = device({cuda}), device({xpu}), device({npu})
accelerator = device({cuda})
accelerator.current_accelerator = lambda: types.SimpleNamespace(type="cuda")
_C = types.SimpleNamespace(_get_privateuse1_backend_name=lambda: "npu")
"""
NO_TORCH = "raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')"


class Bench:
    """A directory with a training script and a torch that sees what the test says."""

    def __init__(self, home: Path) -> None:
        self.home = home
        (home / "train.py").touch()

    def torch(self, text: str = TORCH, cuda: int = 0, xpu: int = 0, npu: int = 0) -> None:
        path = self.home / "site" / "torch.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text if text is not TORCH else TORCH.format(cuda=cuda, xpu=xpu, npu=npu))

    def parse(self, wanted: str, **environ: str) -> LaunchConfig:
        environ = {"PYTHONPATH": str(self.home / "site"), **environ}
        return parse_command_line(["--nproc-per-node", wanted, str(self.home / "train.py")], environ)

    def count(self, wanted: str, **environ: str) -> int:
        return self.parse(wanted, **environ).workers.local_world_size

    def refusal(self, wanted: str, **environ: str) -> str:
        with pytest.raises(UsageError) as caught:
            self.count(wanted, **environ)
        assert "\n" not in str(caught.value)
        return str(caught.value)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def no_devices() -> list[str]:
    return ["null", "nvidiactl", "nvidia-uvm"]


def two_devices() -> list[str]:
    return ["null", "nvidiactl", "nvidia0", "nvidia1"]


def test_cpu_is_the_usable_cores(bench: Bench) -> None:
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert bench.count("cpu") == 1
    finally:
        os.sched_setaffinity(0, before)
    assert bench.count("cpu") == CORES


@pytest.mark.parametrize(("word", "count"), [("gpu", 3), ("xpu", 2), ("npu", 5), ("auto", 3)])
def test_torch_is_asked(word: str, count: int, bench: Bench) -> None:
    bench.torch(cuda=3, xpu=2, npu=5)
    assert bench.count(word) == count


def test_what_was_counted_is_noted(bench: Bench) -> None:
    bench.torch(cuda=3)
    assert (
        "info",
        "--nproc-per-node 'auto': 3 workers, one for each of the cuda devices that torch 9.9 sees",
    ) in bench.parse("auto").notes


def test_auto_falls_back_to_cores(bench: Bench) -> None:
    bench.torch()
    assert bench.count("auto") == CORES


def test_an_older_torch_without_accelerator(bench: Bench) -> None:
    bench.torch(TORCH.format(cuda=4, xpu=0, npu=0) + "del accelerator\n")
    assert bench.count("auto") == 4
    bench.torch(TORCH.format(cuda=0, xpu=0, npu=0) + "del accelerator, xpu\n")
    assert bench.count("auto") == CORES
    assert "sees no XPU device" in bench.refusal("xpu")


@pytest.mark.parametrize(("word", "kind"), [("gpu", "CUDA"), ("xpu", "XPU"), ("npu", "npu")])
def test_no_device_is_an_error_that_says_what_was_found(word: str, kind: str, bench: Bench) -> None:
    bench.torch()
    assert bench.refusal(word) == (
        f"--nproc-per-node {word!r}: torch 9.9 in {sys.executable} sees no {kind} device; "
        "give a number, or cpu for one worker per core"
    )


def test_a_word_that_nobody_knows(bench: Bench) -> None:
    bench.torch()
    assert bench.refusal("tpu") == (
        f"--nproc-per-node 'tpu' is not valid: torch 9.9 in {sys.executable} has no backend of this name; "
        "give a number of 1 or more, cpu, gpu, xpu or auto"
    )
    with pytest.raises(UsageError, match=r"^PET_NPROC_PER_NODE='tpu' is not valid: "):
        parse_command_line([str(bench.home / "train.py")], {
            "PET_NPROC_PER_NODE": "tpu", "PYTHONPATH": str(bench.home / "site")})  # fmt: skip


@pytest.mark.parametrize(
    ("visible", "count"), [(None, 2), ("0", 1), ("0,1", 2), ("0,1,2", 2), ("1,-1,0", 1), ("GPU-8932f937", 1)]
)
def test_without_torch_device_files_are_counted(
    visible: str | None, count: int, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.torch(NO_TORCH)
    monkeypatch.setattr(nproc, "_device_files", two_devices)
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert bench.count("gpu", **environ) == bench.count("auto", **environ) == count


@pytest.mark.parametrize("visible", ["", "-1", "-1,0"])
def test_without_torch_and_nothing_visible(
    visible: str, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.torch(NO_TORCH)
    monkeypatch.setattr(nproc, "_device_files", two_devices)
    assert bench.count("auto", CUDA_VISIBLE_DEVICES=visible) == CORES
    assert "no device /dev/nvidia<N> is visible" in bench.refusal("gpu", CUDA_VISIBLE_DEVICES=visible)


def test_without_torch_and_devices(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.torch(NO_TORCH)
    monkeypatch.setattr(nproc, "_device_files", no_devices)
    assert bench.count("auto") == CORES
    assert bench.refusal("gpu") == (
        f"--nproc-per-node 'gpu': {sys.executable} has no torch to ask and no device /dev/nvidia<N> is "
        "visible; give a number, or cpu for one worker per core"
    )
    assert bench.refusal("xpu") == (
        f"--nproc-per-node 'xpu' is not valid: {sys.executable} has no torch that could know this device; "
        "give a number of 1 or more, cpu, gpu or auto"
    )


@pytest.mark.parametrize(
    ("text", "last"),
    [
        ("raise ImportError('libcuda.so.1 is missing')", "ImportError: libcuda.so.1 is missing"),
        ("raise ModuleNotFoundError('no numpy', name='numpy')", "no numpy"),
        ("import os; os._exit(3)", "it ended with status 3"),
    ],
)
def test_a_torch_that_does_not_load(text: str, last: str, bench: Bench) -> None:
    bench.torch(text)
    sentence = bench.refusal("gpu")
    assert sentence.startswith(f"--nproc-per-node 'gpu': {sys.executable} could not count devices (")
    assert sentence.endswith(f"{last}); give a number")


def test_a_python_that_does_not_start(bench: Bench) -> None:
    python = bench.home / "python"
    python.write_text("\0")
    python.chmod(0o755)
    assert "could not count devices" in bench.refusal("gpu", PYTHON_EXEC=str(python))


def test_a_module_called_torch_beside_the_users_does_not_count(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    (bench.home / "torch.py").write_text("raise SystemExit('the wrong torch')")
    monkeypatch.chdir(bench.home)
    bench.torch(cuda=2)
    assert bench.count("gpu") == 2


@pytest.mark.torch
def test_the_torch_that_is_installed(bench: Bench) -> None:
    assert bench.count("auto", PATH=os.defpath) >= 1
    assert bench.refusal("tpu").startswith("--nproc-per-node 'tpu' is not valid: torch ")


def test_the_launcher_imports_no_torch(bench: Bench) -> None:
    import subprocess

    bench.torch(cuda=2)
    code = (
        "import sys; from elasticrun.cli.parse import parse_command_line\n"
        "parse_command_line(['--nproc-per-node=gpu', sys.argv[1]], {'PYTHONPATH': sys.argv[2]})\n"
        "sys.exit(bool({'torch', 'numpy', 'grpc', 'rich', 'pathlib'} & set(sys.modules)))"
    )
    argv = [sys.executable, "-c", code, str(bench.home / "train.py"), str(bench.home / "site")]
    assert subprocess.run(argv, check=False).returncode == 0
