"""Which programs start warm: what their source says, and what can be forked at all."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from elasticrun.cli.parse import parse_command_line

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
            (f"import os\n{line}\nimport torch", "line 2 of the program sets what may matter")
            for line in (
                "os.environ['OMP_NUM_THREADS'] = '4'",
                "os.environ.setdefault('CUDA_VISIBLE_DEVICES', '0')",
                "os.putenv('LD_LIBRARY_PATH', '/opt')",
                'os.environ["PYTORCH_CUDA_ALLOC_CONF"]="expandable_segments:True"',
                "os.environ.update(MKL_NUM_THREADS='1')",
                "os.environ |= settings",
                "os.environ[name] = value",
                "os.environ.pop('NCCL_DEBUG', None)",
                "del os.environ['KMP_AFFINITY']",
                "os.sched_setaffinity(0, {1})",
                "psutil.Process().cpu_affinity([1])",
                "sys.setdlopenflags(os.RTLD_GLOBAL)",
            )
        ),
    ],
)
def test_auto_starts_cold_what_it_cannot_be_sure_of(tmp_path: Path, source: str, reason: str) -> None:
    imports, said = parse(tmp_path, source)
    assert imports is None
    assert said.startswith(reason)
    assert parse(tmp_path, source, "--warm=on") == (TORCH, "")


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
            (f"import os\n{line}\nimport tensorflow", "line 2 of the program sets what may matter")
            for line in (
                "os.environ['TF_CPP_MIN_LOG_LEVEL'] = '3'",
                "os.environ['TF_CONFIG_OF_MINE'] = '3'",
                "os.environ.setdefault('TF_USE_LEGACY_KERAS', '1')",
                "os.environ['KERAS_BACKEND'] = 'tensorflow'",
                "os.environ['XLA_FLAGS'] = '--xla_cpu_multi_thread_eigen=false'",
                "os.environ['CUDA_VISIBLE_DEVICES'] = '0'",
                "os.environ['PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION'] = 'python'",
                "os.environ.update(SETTINGS)",
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
