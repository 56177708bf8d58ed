"""The list of variables that libraries read in C is that of the installed ones; others are noted."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from elasticrun.worker import warm_watch
from elasticrun.worker.warm_watch import EARLY, Batch, may_hide

#: Writes each name that C code asks for, as it is loaded before the C library.
NOTING = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <unistd.h>
static void note(const char *name) {
    char line[300];
    int length = snprintf(line, sizeof line, "getenv %s\n", name);
    if (length > 0 && write(2, line, length < 300 ? length : 299) < 0) return;
}
char *getenv(const char *name) {
    note(name);
    return ((char *(*)(const char *))dlsym(RTLD_NEXT, "getenv"))(name);
}
char *secure_getenv(const char *name) {
    note(name);
    return ((char *(*)(const char *))dlsym(RTLD_NEXT, "secure_getenv"))(name);
}
"""
#: Read by Python itself, and by libraries, where nothing of a training depends on it.
OTHERS = {"PYTHONINSPECT", "PSUTIL_DEBUG", "PSUTIL_TESTING", "bar"}


@pytest.fixture(scope="module")
def noting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("there is no C compiler, so nobody can listen to getenv")
    folder = tmp_path_factory.mktemp("noting")
    (folder / "noting.c").write_text(NOTING)
    command = [
        compiler,
        "-shared",
        "-fPIC",
        "-o",
        str(folder / "noting.so"),
        str(folder / "noting.c"),
        "-ldl",
    ]
    subprocess.run(command, check=True)
    return folder / "noting.so"


@pytest.mark.parametrize(
    "library",
    [pytest.param(name, marks=getattr(pytest.mark, name)) for name in ("torch", "tensorflow")],
)
def test_the_list_has_all_that_is_read_in_c(noting: Path, library: str) -> None:
    code = f"import os; os.write(2, b'the import\\n'); import {library}; os._exit(0)"
    env = {**os.environ, "LD_PRELOAD": str(noting)}
    ended = subprocess.run([sys.executable, "-c", code], env=env, stderr=subprocess.PIPE, check=True)
    said = ended.stderr.decode(errors="replace").partition("the import\n")[2]
    names = {line.removeprefix("getenv ") for line in said.splitlines() if line.startswith("getenv ")}
    assert len(names) > 20
    assert sorted(name for name in names - OTHERS if not EARLY.fullmatch(name)) == []


def test_what_only_builds_for_gpus_read_is_in_it() -> None:
    assert EARLY.fullmatch("CUDA_LAUNCH_BLOCKING")


@pytest.mark.parametrize(
    "name",
    [
        "CUDA_VISIBLE_DEVICES",
        "CUBLAS_WORKSPACE_CONFIG",
        "GRPC_FAIL_FAST",
        "NCCL_DEBUG",
        "MASTER_PORT",
        "RANK",
        "TORCHELASTIC_RUN_ID",
        "PATH",
    ],
)
def test_what_is_read_later_or_differs_in_each_worker_is_not_in_it(name: str) -> None:
    assert EARLY.fullmatch(name) is None


def test_all_ways_to_read_a_variable_are_noted() -> None:
    names: set[str] = set()
    with warm_watch.reads_noted(names):
        os.environ.get("A")
        os.getenv("B")
        assert "C" not in os.environ
        os.environb.get(b"D")
        os.environ.setdefault("ELASTICRUN_TEST_E", "")
        del os.environ["ELASTICRUN_TEST_E"]
    os.environ.get("F")
    assert names == {"A", "B", "C", "D", "ELASTICRUN_TEST_E"}


@pytest.mark.parametrize(
    ("module", "noted"),
    [
        ("lightning.fabric.utilities.rank_zero", {"OTHER"}),
        ("lightning_fabric.utilities.rank_zero", {"OTHER"}),
        ("torchmetrics.utilities.prints", {"OTHER"}),
        ("lightning.fabric.utilities", {"OTHER", "RANK", "LOCAL_RANK"}),
    ],
)
def test_ranks_that_each_worker_is_told_again_are_not_noted(module: str, noted: set[str]) -> None:
    names: set[str] = set()
    program = (
        "[read(name) for read in (os.getenv, os.environ.get) for name in ('RANK', 'LOCAL_RANK', 'OTHER')]"
    )
    with warm_watch.reads_noted(names):
        exec(program, {"__name__": module, "os": os})
    assert names == noted


@pytest.mark.parametrize(
    ("name", "asked", "hidden"),
    [
        ("torch", "torch", True),
        ("torch.hub", "torch", True),
        ("torch.nn.parallel/", "torch", True),  # a package
        ("torch.nn.functional", "torch", False),
        ("numpy", "torch", True),
        ("torch._C", "torch", False),
        ("torch.distributed.fsdp.sharded.more/", "torch", False),
        ("torch._dynamo/", "torch._dynamo", True),
        ("torch._dynamo.config/", "torch._dynamo", True),
        ("torch._inductor.config", "torch._dynamo", False),
        ("pickletools", "torch", False),
        ("a", "a.b._c", True),
    ],
)
def test_what_is_hidden(name: str, asked: str, hidden: bool) -> None:
    assert may_hide(name.rstrip("/"), asked, name.endswith("/")) is hidden


def test_a_package_that_came_along_is_put_back_alone() -> None:
    batch = Batch("torch")
    batch.modules = dict.fromkeys(("torch", "torch.nn", "numpy", "numpy.random"), warm_watch)
    assert batch.part("numpy.random") == ["numpy", "numpy.random"]
    assert batch.part("torch.nn") == [*batch.modules]


def test_attributes_elsewhere_are_hidden_as_well(tmp_path: Path) -> None:
    code = """
        import sys
        from elasticrun.worker.warm_watch import Batch
        import json.tool
        batch = Batch("json.tool")
        batch.modules = {"json.tool": sys.modules["json.tool"]}
        batch.hide()
        assert not hasattr(sys.modules["json"], "tool") and "json.tool" not in sys.modules
        batch.show()
        assert sys.modules["json"].tool is sys.modules["json.tool"]
        """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True)
