"""Which programs start warm: what their source says, and what can be forked at all."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from elasticrun.cli.parse import parse_command_line
from elasticrun.cli.warm import CHIEF
from elasticrun.worker.target import COMPILER, KEEPER

TORCH = ("torch",)
TENSORFLOW = ("tensorflow",)


def parse(folder: Path, source: str, *argv: str, python: str = sys.executable) -> tuple[object, str]:
    """What is imported, and the note that says why nothing is."""
    script = folder / "train.py"
    script.write_text(source)
    environ = {"PATH": "/usr/bin:/bin", "PYTHON_EXEC": python}
    config = parse_command_line([*argv, str(script)], environ)
    notes = [sentence for _, sentence in config.notes if "cold" in sentence]
    return config.workers.warm_imports, "".join(notes).removeprefix("workers start cold: ")


@pytest.mark.parametrize(
    "source",
    [
        "import torch",
        "import os, torch",
        "import numpy as np, torch.nn as nn",
        "from torch import nn",
        "from torch.nn import Linear",
        "def main():\n    import torch\n",
        "import os\nif os.environ['OMP_NUM_THREADS'] == '1': import torch\nimport torch",
        "import os, torch\nos.environ['WANDB_MODE'] = 'off'\nprint(os.environ.get('CUDA_VISIBLE_DEVICES'))",
        "import os, torch\nrank = os.environ[name]",
        "import os, torch\ncpus = os.sched_getaffinity(0)",
    ],
)
def test_a_script_that_imports_torch_is_warm(tmp_path: Path, source: str) -> None:
    assert parse(tmp_path, source) == (TORCH, "")
    assert parse(tmp_path, source, "--warm=off") == (None, "")


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import json", "the program's own source does not import torch"),
        ("import torchvision", "the program's own source does not import torch"),
        ("# import torch", "the program's own source does not import torch"),
        ("import torch\0", "the source of the program is not at hand"),
        *(
            (
                f"import os\n{line}\nimport torch",
                f"line 2 of the program sets what is read ({name}) while torch",
            )
            for line, name in (
                ("os.environ['OMP_NUM_THREADS'] = '4'", "OMP_NUM_THREADS"),
                ("os.environ.setdefault('MKL_NUM_THREADS', '4')", "MKL_NUM_THREADS"),
                (
                    'os.environ["PYTORCH_CUDA_ALLOC_CONF"]="expandable_segments:True"',
                    "PYTORCH_CUDA_ALLOC_CONF",
                ),
                ("os.environ.update(A='2', MKL_NUM_THREADS='1')", "MKL_NUM_THREADS"),
                ("os.environ |= {'OPENBLAS_NUM_THREADS': '1'}", "OPENBLAS_NUM_THREADS"),
                ("os.putenv('OMP_NUM_THREADS', '2')", "OMP_NUM_THREADS"),
                ("os.environ['CUDA_LAUNCH_BLOCKING'] = '1'", "CUDA_LAUNCH_BLOCKING"),
                ("del os.environ['KMP_AFFINITY']", "KMP_AFFINITY"),
                ("os.environ['TORCH_LOGS'] = '+dynamo'", "TORCH_LOGS"),
                ("os.sched_setaffinity(0, {1})", "sched_setaffinity"),
                ("psutil.Process().cpu_affinity([1])", "cpu_affinity"),
                ("sys.setdlopenflags(os.RTLD_GLOBAL)", "setdlopenflags"),
            )
        ),
    ],
)
def test_auto_starts_cold_what_would_come_too_late(tmp_path: Path, source: str, reason: str) -> None:
    imports, said = parse(tmp_path, source)
    assert imports is None
    assert said.startswith(reason)
    assert parse(tmp_path, source, "--warm=on") == (TORCH, "")


@pytest.mark.parametrize(
    "line",
    [
        "os.environ['GRPC_FAIL_FAST'] = 'use_caller'",
        "os.environ['CUDA_VISIBLE_DEVICES'] = '0'",
        "os.environ['NCCL_DEBUG'] = 'INFO'",
        "os.environ['TORCH_NCCL_BLOCKING_WAIT'] = '1'",
        "os.environ['LD_LIBRARY_PATH'] = '/opt'",
        "os.environ['PYTHONHASHSEED'] = '0'",
        "os.environ['PATH'] += ':/opt'",
        "os.environ[name] = value",
        "os.environ.update(settings)",
        "os.environ |= settings",
    ],
)
@pytest.mark.parametrize("library", ["torch", "tensorflow"])
def test_what_is_not_read_there_leaves_it_warm(tmp_path: Path, line: str, library: str) -> None:
    """A worker in which something did change that is read will notice by itself."""
    start = parse if library == "torch" else parse_tensorflow
    assert start(tmp_path, f"import os\n{line}\nimport {library}") == ((library,), "")


def test_what_is_set_below_the_import_is_as_late_in_a_cold_start(tmp_path: Path) -> None:
    assert parse(tmp_path, "import os, torch\nos.environ['OMP_NUM_THREADS'] = '4'") == (TORCH, "")


def test_users_are_warned_of_what_a_cold_start_costs(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import os\n\nos.environ['OMP_NUM_THREADS'] = '4'\nimport torch\n")
    config = parse_command_line([str(script)], {"PATH": "/usr/bin:/bin"})
    (warning,) = (text for level, text in config.notes if level == "warning")
    assert warning == (
        "workers start cold: "
        "line 3 of the program sets what is read (OMP_NUM_THREADS) while torch is imported; "
        "each restart takes the seconds of that import, where a fork takes hundredths: "
        "set it where elastic-run is started, or give --warm on if the order does not matter"
    )


def test_what_torchs_compiler_reads_is_not_imported_for_restarts(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    for line, later in (("TORCHDYNAMO_DISABLE", False), ("TORCHINDUCTOR_CACHE_DIR", False), ("MINE", True)):
        script.write_text(f"import os, torch\nos.environ['{line}'] = '1'\n")
        config = parse_command_line([str(script)], {"PATH": "/usr/bin:/bin"})
        assert config.workers.warm_imports == TORCH
        assert config.workers.warm_later == ((COMPILER,) if later else ())
        assert any("line 2 of the program" in note for _, note in config.notes) is not later


def test_restarts_of_a_script_that_keeps_its_state_do_not_wait_for_the_import_of_that(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    for line, later in (
        ("from elasticrun import Checkpointer", (COMPILER, KEEPER)),
        ("import elasticrun; keeper = elasticrun.Checkpointer()", (COMPILER, KEEPER)),
        ("import elasticrun; elasticrun.report_step(1)", (COMPILER,)),
        ("from elsewhere import Checkpointer", (COMPILER,)),
    ):
        script.write_text(f"import torch\n{line}\n")
        config = parse_command_line([str(script)], {"PATH": "/usr/bin:/bin"})
        assert config.workers.warm_later == later


@pytest.mark.parametrize(
    ("source", "frameworks"),
    [
        ("import lightning as L, torch", ("lightning",)),
        ("import torch\nfrom lightning.fabric import Fabric\nimport accelerate", ("accelerate", "lightning")),
        ("import torch, transformers\nimport os\nos.environ['HF_HOME'] = '/data'", ("transformers",)),
        ("import os, torch\nos.environ['HF_HOME'] = '/data'\nimport transformers", ()),
        ("import os, torch\nos.sched_setaffinity(0, {1})\nimport pytorch_lightning", ()),
        ("import torch, lightning_of_mine", ()),
    ],
)
def test_restarts_do_not_wait_for_the_import_of_a_framework(
    tmp_path: Path, source: str, frameworks: tuple[str, ...]
) -> None:
    """Unless the script sets what that import may read: such a restart would be a cold one."""
    script = tmp_path / "train.py"
    script.write_text(source)
    config = parse_command_line([str(script)], {"PATH": "/usr/bin:/bin"})
    assert config.workers.warm_imports == TORCH
    assert config.workers.warm_later == (COMPILER, *frameworks)


@pytest.mark.parametrize(
    ("line", "later"),
    [
        ("from elasticrun.tf import ChiefSession", CHIEF),
        ("import elasticrun.tf as et; et.ChiefSession(None, '.')", CHIEF),
        ("from elasticrun.tf import ShardedAdagrad", ()),
        ("from elsewhere import ChiefSession", ()),
    ],
)
def test_a_next_chief_does_not_import_its_session(tmp_path: Path, line: str, later: tuple[str, ...]) -> None:
    script = tmp_path / "train.py"
    (tmp_path / "tensorflow.py").touch()
    script.write_text(f"import tensorflow\n{line}\n")
    roles = ("--role-counts", "chief=1,worker=1,ps=1")
    config = parse_command_line([*roles, str(script)], {"PATH": "/usr/bin:/bin"})
    assert (config.workers.warm_imports, config.workers.warm_later) == (TENSORFLOW, later)


@pytest.mark.parametrize(
    ("asked", "later"),
    [
        (("--warm=on", "--warm-import=colorsys"), ()),
        (("--warm=on", "--warm-import=torch,tensorflow"), (COMPILER, *CHIEF)),
    ],
)
def test_a_restart_imports_no_library_that_the_user_left_out(
    tmp_path: Path, asked: tuple[str, ...], later: tuple[str, ...]
) -> None:
    (tmp_path / "tensorflow.py").touch()
    script = tmp_path / "train.py"
    script.write_text("from elasticrun.tf import ChiefSession\n")
    line = ["--framework=tensorflow", *asked, str(script)]
    config = parse_command_line(line, {"PATH": "/usr/bin:/bin"})
    assert config.workers.warm_later == later


def parse_tensorflow(folder: Path, source: str, *argv: str) -> tuple[object, str]:
    """The same for a TensorFlow job."""
    (folder / "tensorflow.py").touch()
    return parse(folder, source, "--framework=tensorflow", *argv)


@pytest.mark.parametrize(
    "source",
    [
        "import tensorflow as tf",
        "import torch, tensorflow.keras",
        "from tensorflow import keras",
        "import os, tensorflow\nos.environ['TF_CONFIG'] = '{}'\nos.environ.pop('TF_CONFIG', None)",
        "import os, tensorflow\nprint(os.environ['TF_CPP_MIN_LOG_LEVEL'])",
    ],
)
def test_a_script_that_imports_tensorflow_is_warm(tmp_path: Path, source: str) -> None:
    assert parse_tensorflow(tmp_path, source) == (TENSORFLOW, "")
    assert parse_tensorflow(tmp_path, source, "--warm=off") == (None, "")
    assert parse(tmp_path, source)[0] == (TORCH if "torch" in source else None)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import torch", "the program's own source does not import tensorflow"),
        ("import tensorflow_datasets", "the program's own source does not import tensorflow"),
        *(
            (f"import os\n{line}\nimport tensorflow", "line 2 of the program sets what is read")
            for line in (
                "os.environ['TF_CPP_MIN_LOG_LEVEL'] = '3'",
                "os.environ['TF_CONFIG_OF_MINE'] = '3'",
                "os.environ.setdefault('TF_USE_LEGACY_KERAS', '1')",
                "os.environ['KERAS_BACKEND'] = 'tensorflow'",
                "os.environ['XLA_FLAGS'] = '--xla_cpu_multi_thread_eigen=false'",
                "os.environ['PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION'] = 'python'",
                "os.sched_setaffinity(0, {1})",
            )
        ),
    ],
)
def test_auto_starts_a_tensorflow_job_cold_if_in_doubt(tmp_path: Path, source: str, reason: str) -> None:
    imports, said = parse_tensorflow(tmp_path, source)
    assert imports is None
    assert said.startswith(reason)
    assert parse_tensorflow(tmp_path, source, "--warm=on") == (TENSORFLOW, "")


def test_which_modules_are_imported(tmp_path: Path) -> None:
    more = ("--warm=on", "--warm-import=json,torch,os.path")
    assert parse(tmp_path, "", *more)[0] == ("json", "torch", "os.path")
    assert parse(tmp_path, "import torch", "--warm-import=json")[0] == ("torch", "json")
    assert parse_tensorflow(tmp_path, "import tensorflow", "--warm-import=json")[0] == ("tensorflow", "json")


@pytest.mark.parametrize("mode", ["auto", "on"])
def test_a_program_around_python_starts_cold(tmp_path: Path, mode: str) -> None:
    """It may start the interpreter with -E, and that one would run the script in the warm parent."""
    wrapper = tmp_path / "python"
    wrapper.write_text(f'#!/bin/sh\nexec {sys.executable} -E "$@"\n')
    wrapper.chmod(0o755)
    imports, said = parse(tmp_path, "import torch", f"--warm={mode}", python=str(wrapper))
    assert imports is None
    assert said.startswith(f"{wrapper} is not certain to be a Python interpreter")


def test_what_can_never_be_warm(tmp_path: Path) -> None:
    for argv, reason in (
        (("--no-python", "/bin/true"), "a program that is not started as Python"),
        (("-",), "the program comes from stdin"),
        (("train${local_rank}.py",), "each local rank runs another program"),
    ):
        config = parse_command_line(["--warm=on", *argv], {"PATH": "/usr/bin:/bin"})
        assert config.workers.warm_imports is None
        assert any(level == "warning" and reason in sentence for level, sentence in config.notes)


def test_the_source_of_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pack" / "inner").mkdir(parents=True)
    (tmp_path / "pack" / "train.py").write_text("import torch")
    (tmp_path / "pack" / "inner" / "__main__.py").write_text("import torch")
    (tmp_path / "pack" / "other.py").write_text("")
    for name, imports in (("pack.train", TORCH), ("pack.inner", TORCH), ("pack.other", None)):
        assert parse_command_line(["-m", name], {"PATH": "/bin"}).workers.warm_imports == imports


def test_the_source_of_a_folder(tmp_path: Path) -> None:
    main = tmp_path / "__main__.py"
    for code, imports in (("import torch", TORCH), ("", None)):
        main.write_text(code)
        assert parse_command_line([str(tmp_path)], {"PATH": "/bin"}).workers.warm_imports == imports
