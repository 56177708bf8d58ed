"""What a script sets before its own imports holds, although a warm parent has imported them before.

A package beside the script stands for torch: it reads the environment as it is imported.
"""

from __future__ import annotations

import os
import signal
import textwrap
from pathlib import Path

import pytest

from tests.support.cluster import Cluster
from tests.support.launcher import Launcher

COLD = "this worker goes on cold"
TORCH = """
    import os
    THREADS = os.environ.get("OF_THE_PACKAGE")
    """
COMPILER = """
    import os
    DEBUG = os.environ.get("OF_THE_COMPILER")
    """


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    package = tmp_path / "torch"
    package.mkdir()
    (package / "__init__.py").write_text(textwrap.dedent(TORCH))
    (package / "_dynamo.py").write_text(textwrap.dedent(COMPILER))
    (tmp_path / "setup_env.py").write_text("import os\nos.environ['OF_THE_PACKAGE'] = '2'\n")
    return tmp_path


def run(cluster: Cluster, folder: Path, script: str, *options: str, **env: str) -> Launcher:
    (folder / "train.py").write_text(textwrap.dedent(script))
    launcher = cluster.launch(
        "--standalone", *options, "train.py", cwd=folder, env={"LOGLEVEL": "INFO", **env}
    )
    launcher.wait()
    return launcher


def cold(launcher: Launcher) -> list[str]:
    return [line for line in launcher.err.splitlines() if COLD in line]


@pytest.mark.parametrize("set_by", ["a helper", "the script", "a name that is computed"])
def test_a_variable_that_is_set_before_the_import_holds(cluster: Cluster, folder: Path, set_by: str) -> None:
    first = {
        "a helper": "import setup_env",
        "the script": "import os; os.environ['OF_THE_PACKAGE'] = '2'",
        "a name that is computed": "import os; os.environ['of_the_package'.upper()] = '2'",
    }[set_by]
    launcher = run(cluster, folder, f"{first}\nimport torch\nprint('threads', torch.THREADS)\n")
    assert launcher.process.returncode == 0, launcher.story()
    assert launcher.out.splitlines() == ["threads 2"]
    (line,) = cold(launcher)
    assert "OF_THE_PACKAGE changed before the script's import of torch (train.py, line 2)" in line


def test_a_new_start_is_as_the_first(cluster: Cluster, folder: Path) -> None:
    """The same process, with the environment, directory and arguments that it was given."""
    (folder / "below").mkdir()
    launcher = run(
        cluster,
        folder,
        """
        import os, sys
        print(os.getpid(), os.getcwd(), sys.argv, sys.path[0], os.environ.get("GROWS"), flush=True)
        os.environ["GROWS"] = os.environ.get("GROWS", "") + "x"
        import setup_env
        os.chdir("below")
        import torch
        print(torch.THREADS)
        """,
    )
    first, second, threads = launcher.out.splitlines()
    assert first == second
    assert threads == "2"
    assert launcher.process.returncode == 0


@pytest.mark.parametrize(
    "harmless",
    [
        "import os; os.environ['GRPC_FAIL_FAST'] = 'use_caller'; os.environ['CUDA_VISIBLE_DEVICES'] = '0'",
        "import os, sys; sys.path.insert(0, 'lib'); os.environ.update(NCCL_DEBUG='INFO')",
        "import importlib.util as u; print(u.find_spec('torch').origin, file=open('found', 'w'))",
        "",
    ],
    ids=["variables", "path", "search", "nothing"],
)
def test_what_is_harmless_leaves_it_warm(cluster: Cluster, folder: Path, harmless: str) -> None:
    script = f"""
        import sys
        assert "torch" not in sys.modules
        {harmless}
        import torch, setup_env
        spec = torch.__spec__
        print(torch.THREADS, "torch" in sys.modules, spec.name, type(spec.loader).__name__)
        print(b"ELASTICRUN_WARM" in open("/proc/self/environ", "rb").read())
        """
    launcher = run(cluster, folder, script)
    assert launcher.out.splitlines() == ["None True torch SourceFileLoader", "True"], launcher.story()
    assert cold(launcher) == []
    assert "workers are forked from a warm parent" in launcher.err


def test_another_module_of_that_name_comes_first(cluster: Cluster, folder: Path) -> None:
    (folder / "mine").mkdir()
    (folder / "mine" / "torch.py").write_text("THREADS = 'mine'\n")
    launcher = run(
        cluster, folder, "import sys; sys.path.insert(0, 'mine')\nimport torch\nprint(torch.THREADS)\n"
    )
    assert launcher.out.strip() == "mine", launcher.story()
    assert "where torch is found" in cold(launcher)[0]


HOOKING = """
    import sys
    from importlib import machinery
    class Tracing(machinery.SourceFileLoader):
        def exec_module(self, module):
            super().exec_module(module)
            module.THREADS = "traced"
    kinds = (
        (machinery.ExtensionFileLoader, machinery.EXTENSION_SUFFIXES), (Tracing, machinery.SOURCE_SUFFIXES)
    )
    sys.path_hooks.insert(0, machinery.FileFinder.path_hook(*kinds))
    sys.path_importer_cache.clear()
    """


def test_a_hook_that_the_users_sitecustomize_puts_on_the_import_is_called(
    cluster: Cluster, folder: Path
) -> None:
    (folder / "site").mkdir()
    (folder / "site" / "sitecustomize.py").write_text(textwrap.dedent(HOOKING))
    path = str(folder / "site")
    launcher = run(cluster, folder, "import torch\nprint(torch.THREADS)\n", PYTHONPATH=path)
    assert launcher.out.strip() == "traced", launcher.story()
    assert "what loads torch (Tracing)" in cold(launcher)[0]


def test_what_the_users_sitecustomize_sets_holds(cluster: Cluster, folder: Path) -> None:
    (folder / "site").mkdir()
    (folder / "site" / "sitecustomize.py").write_text(
        "import os\nif 'RANK' in os.environ:\n    os.environ['OF_THE_PACKAGE'] = '3'\n"
    )
    path = str(folder / "site")
    launcher = run(cluster, folder, "import torch\nprint(torch.THREADS)\n", PYTHONPATH=path)
    assert launcher.out.strip() == "3", launcher.story()
    assert "OF_THE_PACKAGE changed" in cold(launcher)[0]


def test_cpus_and_limits_matter_too(cluster: Cluster, folder: Path) -> None:
    launcher = run(
        cluster,
        folder,
        """
        import os, resource, sys
        as_given = os.sched_getaffinity(0)
        resource.setrlimit(resource.RLIMIT_STACK, (2**22, resource.RLIM_INFINITY))
        pinned = getattr(os, "sched_set" + "affinity")
        pinned(0, [min(as_given)])
        import torch
        print(len(as_given))
        """,
    )
    assert launcher.process.returncode == 0, launcher.story()
    (line,) = cold(launcher)
    assert "a resource limit" in line
    assert launcher.out.strip() != "1" or "CPUs" not in line


@pytest.mark.parametrize(
    ("busy", "why"),
    [
        ("import subprocess; child = subprocess.Popen(['sleep', '9'])", "it has children"),
        (
            "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()",
            "it has threads",
        ),
        ("import sys; sys.stdin.read()", "it has read its standard input"),
        ("import sys; sys.stdin.readline()", "it has read its standard input"),
    ],
    ids=["children", "threads", "stdin", "a line of stdin"],
)
def test_what_a_new_start_would_lose_keeps_it_warm(
    cluster: Cluster, folder: Path, busy: str, why: str
) -> None:
    launcher = run(cluster, folder, f"import setup_env; {busy}\nimport torch\nprint(torch.THREADS)\n")
    assert launcher.out.strip() == "None", launcher.story()
    assert (
        "OF_THE_PACKAGE changed before the script's import of torch (train.py, line 2): too late"
        in launcher.err
    )
    assert why in launcher.err


def test_a_child_that_the_script_has_forked_does_not_run_the_script(cluster: Cluster, folder: Path) -> None:
    launcher = run(
        cluster,
        folder,
        """
        import multiprocessing
        print("begins", flush=True)
        def work():
            import setup_env
            import torch
            print("works", flush=True)
        child = multiprocessing.get_context("fork").Process(target=work)
        child.start()
        child.join()
        import torch
        """,
    )
    assert launcher.process.returncode == 0, launcher.story()
    assert launcher.out.split() == ["begins", "works"]
    assert "it is a child of the worker" in launcher.err


def test_whatever_the_script_has_put_in_place_of_its_stdout(cluster: Cluster, folder: Path) -> None:
    launcher = run(
        cluster,
        folder,
        """
        import sys
        sys.stdout = None
        import setup_env
        import torch
        print(torch.THREADS, file=sys.__stdout__)
        """,
    )
    assert launcher.process.returncode == 0, launcher.story()
    assert launcher.out.split() == ["2"]


def test_an_alarm_of_the_first_start_does_not_end_the_second(cluster: Cluster, folder: Path) -> None:
    launcher = run(
        cluster,
        folder,
        """
        import os, signal
        print(signal.getitimer(signal.ITIMER_REAL)[0] > 0)
        signal.signal(signal.SIGALRM, lambda *args: None)
        signal.alarm(600)
        import setup_env
        import torch
        """,
    )
    assert launcher.process.returncode == 0, launcher.story()
    assert launcher.out.split() == ["False", "False"]


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is one CPU only")
def test_cpus_that_the_host_has_changed_meanwhile_are_as_good(cluster: Cluster, folder: Path) -> None:
    """As a scheduler does that moves all processes of a container."""
    launcher = run(
        cluster,
        folder,
        """
        import os
        from pathlib import Path
        cpus = sorted(os.sched_getaffinity(0))
        print(len(cpus), flush=True)
        import torch
        def parents():
            # The warm parent, and what it forks just now as its replacement: not yet the spawner's child.
            found = {}
            for path in Path("/proc").glob("[0-9]*"):
                try:
                    name, _, rest = path.joinpath("stat").read_text().rpartition(")")
                except OSError:
                    continue
                if name.endswith("(elasticrun-warm"):
                    found[int(path.name)] = int(rest.split()[1])
            ours = {os.getppid()}
            while more := {pid for pid, parent in found.items() if parent in ours} - ours:
                ours |= more
            return ours - {os.getppid()}
        def move(pid):
            try:
                is_moved = os.sched_getaffinity(pid) == set(cpus[:1])
                os.sched_setaffinity(pid, cpus[:1])
            except ProcessLookupError:
                return False
            return not is_moved
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            while any([move(pid) for pid in parents()]):
                pass  # one that was not moved yet may have forked another one meanwhile
            raise SystemExit(1)
        """,
        "--max-restarts=1",
    )
    assert launcher.process.returncode == 0, launcher.story()
    assert launcher.out.split()[1:] == ["1"]


def test_warm_on_keeps_it_warm(cluster: Cluster, folder: Path) -> None:
    launcher = run(cluster, folder, "import setup_env, torch\nprint(torch.THREADS)\n", "--warm=on")
    assert launcher.out.strip() == "None", launcher.story()
    assert "--warm on keeps it" in launcher.err


SLOW_COMPILER = """
    import os, setup_env, torch
    def forked():
        return b"ELASTICRUN_WARM" in open("/proc/self/environ", "rb").read()
    import torch._dynamo
    print("round", os.environ["ELASTICRUN_ROUND"], torch._dynamo.DEBUG, forked(), os.getpid(), flush=True)
    if os.environ["ELASTICRUN_ROUND"] == "0":
        __import__("signal").pause()
    """


def test_what_restarts_have_imported_reads_it_too(cluster: Cluster, folder: Path) -> None:
    (folder / "setup_env.py").write_text("import os\nos.environ['OF_THE_COMPILER'] = '1'\n")
    (folder / "train.py").write_text(textwrap.dedent(SLOW_COMPILER))
    options = ("--standalone", "--max-restarts=1")
    launcher = cluster.launch(*options, "train.py", cwd=folder, env={"LOGLEVEL": "INFO"})
    pid = launcher.wait_line(r"round 0 1 True (\d+)")[1]
    launcher.wait_line("the warm parent has imported more")
    os.kill(int(pid), signal.SIGKILL)
    assert launcher.wait() == 0, launcher.story()
    forked = launcher.wait_line(r"round 1 1 (True|False)")[1]
    assert len(cold(launcher)) == (
        forked == "False"
    )  # a replacement that was forking is replaced by a parent


def test_a_module_that_is_imported_as_well(cluster: Cluster, folder: Path) -> None:
    (folder / "hub.py").write_text(
        "import os\nHOME = os.path.expanduser(os.environ.get('HF_HOME', 'none'))\n"
    )
    launcher = run(
        cluster,
        folder,
        """
        import os
        import torch
        os.environ["HF_HOME"] = "/cache"
        import hub
        print(hub.HOME)
        """,
        "--warm-import=hub",
    )
    assert launcher.out.strip() == "/cache", launcher.story()
