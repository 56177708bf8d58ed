"""The sitecustomize of ours: it reports steps, and the script cannot tell that it is there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType

import pytest

from elasticrun.agent.monitors.page import VARIABLE, ProgressPage, Slot
from elasticrun.agent.programs import INJECTED
from elasticrun.worker.reporter import hook_saving
from tests.support.processes import TORCH_DEADLINE

#: As much of torch as the hooks touch; imported in a millisecond.
FAKE_TORCH = {
    "torch/__init__.py": """
        from torch.serialization import save
        from torch import compiler, cuda
        from torch.optim import optimizer
        """,
    "torch/compiler.py": """
        compiling = False
        def is_compiling(): return compiling
        """,
    "torch/cuda.py": """
        capturing = False
        def is_initialized(): return capturing
        def is_current_stream_capturing(): return capturing
        """,
    "torch/serialization.py": """
        def save(what):
            "Save it."
            return what()
        """,
    "torch/optim/__init__.py": "",
    "torch/optim/optimizer.py": """
        import torch
        hooks = []
        def register_optimizer_step_post_hook(hook): hooks.append(hook)
        def step():
            for hook in hooks: hook(None, (), {})
        """,
    "torch/utils/__init__.py": "",
    "torch/utils/data/__init__.py": "",
    "torch/utils/data/dataloader.py": """
        class _BaseDataLoaderIter:
            def __iter__(self): return self
            def __next__(self): return "batch"
        """,
}

WORLD = """
import json, os, subprocess, sys
child = [sys.executable, "-c", "import json, os; print(json.dumps(dict(os.environ)))"]
print(json.dumps({
    "environment": dict(os.environ),
    "child": json.loads(subprocess.run(child, capture_output=True, check=True).stdout),
    "path": sys.path,
    "modules": sorted(set(sys.modules) - {"_elasticrun_sitecustomize"}),
    "sitecustomize": getattr(sys.modules.get("sitecustomize"), "__file__", None),
    "caches": sorted(sys.path_importer_cache),
    "signals": open("/proc/self/status").read().partition("SigBlk")[2].partition("CapInh")[0],
    "files": len(os.listdir("/proc/self/fd")),
}))
"""


@pytest.fixture
def page() -> Iterator[ProgressPage]:
    """Of two workers: those here are the second, so that a wrong slot is noticed."""
    page = ProgressPage(2)
    yield page
    page.close()


@pytest.fixture
def torch(tmp_path: Path) -> str:
    """A directory with something like torch, and nothing of elasticrun."""
    return str(write(tmp_path / "fake", FAKE_TORCH))


def write(directory: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    return directory


def plain(python_path: str | None) -> dict[str, str]:
    """An environment as a user may have it."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment.pop(VARIABLE, None)
    return environment if python_path is None else {**environment, "PYTHONPATH": python_path}


def run(
    code: str, environment: Mapping[str, str], *flags: str, python: str = sys.executable
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [python, *flags, "-c", textwrap.dedent(code)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=TORCH_DEADLINE,
        check=False,
    )


def run_worker(
    page: ProgressPage, code: str, python_path: str | None = None, python: str = sys.executable
) -> str:
    """Run a script as local rank 1; what it printed. It must not fail, nor say a word on stderr."""
    environment = plain(python_path)
    done = run(code, {**environment, **page.environment(1, environment, auto=True)}, python=python)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout.strip()


def slot(page: ProgressPage) -> Slot:
    found = page.read(1)
    assert found is not None
    return found


# -- what the script sees


def place(tmp_path: Path, kind: str) -> str | None:
    """A value of PYTHONPATH."""
    own = write(tmp_path / "own", {"sitecustomize.py": "ran = True"})
    empty = write(tmp_path / "empty", {"nothing.txt": ""})
    values = {"unset": None, "empty": "", "plain": str(empty), "end": f"{empty}:", "own": f"{empty}:{own}"}
    return values[kind]


@pytest.mark.parametrize("kind", ["unset", "empty", "plain", "end", "own"])
def test_the_script_and_its_children_see_what_they_would_without_us(
    page: ProgressPage, tmp_path: Path, kind: str
) -> None:
    environment = plain(place(tmp_path, kind))
    bare = str(Path(sys.executable).resolve())  # it has imported less than one in a virtual environment
    before = run(WORLD, environment, python=bare)
    assert before.stderr == ""
    after = run_worker(page, WORLD, environment.get("PYTHONPATH"), python=bare)
    assert json.loads(after) == json.loads(before.stdout)
    assert (json.loads(after)["sitecustomize"] or "").startswith(str(tmp_path)) == (kind == "own")


@pytest.mark.parametrize("text", ["1 / 0", "import not_there_at_all", "import sys; sys.exit(3)"])
def test_a_users_sitecustomize_fails_as_it_would_without_us(
    page: ProgressPage, tmp_path: Path, text: str
) -> None:
    environment = plain(str(write(tmp_path, {"sitecustomize.py": text})))
    code = "import sys; print('sitecustomize' in sys.modules)"
    before = run(code, environment)
    after = run(code, {**environment, **page.environment(1, environment, auto=True)})
    assert (after.returncode, after.stdout) == (before.returncode, before.stdout)
    assert after.stderr.splitlines()[-1:] == before.stderr.splitlines()[-1:]


@pytest.mark.parametrize("flag", ["-I", "-E", "-S"])
def test_an_interpreter_that_ignores_the_environment_is_left_alone(page: ProgressPage, flag: str) -> None:
    environment = plain(None)
    done = run("print('ran')", {**environment, **page.environment(1, environment, auto=True)}, flag)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ran\n", "")


def test_what_a_wrapper_put_before_our_directory_stays(page: ProgressPage, tmp_path: Path) -> None:
    environment = plain("/a")
    environment |= page.environment(1, environment, auto=True)
    environment["PYTHONPATH"] = f"/before:{environment['PYTHONPATH']}"
    assert run("import os; print(os.environ['PYTHONPATH'])", environment).stdout == "/before:/a\n"


def test_our_directory_alone_does_nothing(torch: str) -> None:
    environment = plain(f"{INJECTED}:{torch}")
    code = "import os, sys, torch; print(os.environ['PYTHONPATH'], torch.optimizer.hooks, sys.path[1])"
    assert run(code, environment).stdout == f"{torch} [] {torch}\n"


@pytest.mark.parametrize(
    "value",
    ["1", ":", "1:2", "9:1:2:3:4:5:set", "1:x:y:z:0:0:set", "1:1:0:00:0:0:set", "1:{pid}:0:00:0:0:set"],
)
def test_a_page_that_is_not_there_costs_the_reports_only(torch: str, value: str) -> None:
    environment = {**plain(f"{INJECTED}:{torch}"), VARIABLE: value.format(pid=os.getpid())}
    done = run("import torch; torch.optimizer.step(); print(torch.optimizer.hooks)", environment)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_a_foreign_page_is_not_touched(page: ProgressPage, torch: str) -> None:
    environment = plain(torch)
    environment |= page.environment(1, environment, auto=True)
    fields = environment[VARIABLE].split(":")
    environment[VARIABLE] = ":".join([*fields[:3], "00" * 8, *fields[4:]])
    assert run("import torch; torch.optimizer.step()", environment).stderr == ""
    assert page.read(1) is None


# -- what it reports


def test_steps_are_reported_with_no_change_to_the_script(page: ProgressPage, torch: str) -> None:
    code = "import os, torch\nfor _ in range(5): torch.optimizer.step()\nprint(os.getpid())"
    pid = run_worker(page, code, torch)
    assert (slot(page).progress.steps, slot(page).progress.step, slot(page).owner) == (5, 4, int(pid))
    assert page.read(0) is None


#: A clock that moves only when the script waits, so that a busy machine adds no silence.
CLOCK = """
import time, torch
begin = now = time.monotonic_ns()
time.monotonic_ns = lambda: now
def wait(seconds):
    global now
    now += round(seconds * 1e9)
"""


def test_the_longest_silence_begins_after_two_steps(page: ProgressPage, torch: str) -> None:
    steps = """
torch.optimizer.step(); wait(0.3)
torch.optimizer.step(); wait(0.05)
torch.optimizer.step(); torch.optimizer.step()
print(begin / 1e9)
"""
    begin = float(run_worker(page, CLOCK + steps, torch))
    assert slot(page).progress.longest == 0.05
    assert slot(page).progress.sign_at == pytest.approx(begin + 0.35)


def test_a_rare_silence_is_a_pause_and_a_frequent_one_is_learnt_as_a_step(
    page: ProgressPage, torch: str
) -> None:
    train = CLOCK + "for step in range(40):\n    torch.optimizer.step(); wait(0.01)\n"
    pause = "    if step % {} == 15: wait({})\n"
    run_worker(page, train + pause.format(20, 1.0), torch)
    assert (slot(page).progress.longest, slot(page).progress.pause) == (0.01, 1.01)
    run_worker(page, train + pause.format(20, 0.3) + pause.format(17, 0.3), torch)
    assert slot(page).progress.longest == 0.31


def test_a_batch_is_a_sign_of_life_but_no_step(page: ProgressPage, torch: str) -> None:
    code = """
    import time, torch
    from torch.utils.data.dataloader import _BaseDataLoaderIter
    torch.optimizer.step()
    before = time.monotonic()
    assert next(iter(_BaseDataLoaderIter())) == "batch"
    print(before)
    """
    before = float(run_worker(page, code, torch))
    assert slot(page).progress.steps == 1
    assert slot(page).progress.sign_at >= before - 1e-6


def test_within_a_save_the_worker_is_busy_and_afterwards_it_is_not(page: ProgressPage, torch: str) -> None:
    busy = """
    import os, torch
    assert torch.save.__doc__ == "Save it." and torch.save.__name__ == "save"
    torch.optimizer.step()
    torch.save(lambda: torch.save(lambda: None))
    """
    run_worker(page, busy, torch)
    assert slot(page).progress.busy_since is None
    run_worker(page, f"{busy}\n    torch.save(lambda: os._exit(0))", torch)
    assert slot(page).progress.busy_since == slot(page).progress.sign_at


def test_a_save_that_fails_raises_and_leaves_nobody_busy(page: ProgressPage, torch: str) -> None:
    code = """
    import torch
    try: torch.save(lambda: 1 / 0)
    except ZeroDivisionError: print("raised")
    """
    assert run_worker(page, code, torch) == "raised"
    assert slot(page).progress.busy_since is None


def test_a_save_in_the_background_excuses_nobody(page: ProgressPage, torch: str) -> None:
    code = """
    import os, threading, torch
    torch.optimizer.step()
    threading.Thread(target=torch.save, args=(lambda: os._exit(0),)).start()
    """
    run_worker(page, code, torch)
    assert slot(page).progress.busy_since is None


def test_a_step_under_compilation_is_left_alone(page: ProgressPage, torch: str) -> None:
    code = "import torch; torch.compiler.compiling = True; torch.optimizer.step()"
    run_worker(page, code, torch)
    assert slot(page).progress.steps == 0


def test_a_step_that_a_cuda_graph_captures_ends_the_reports(page: ProgressPage, torch: str) -> None:
    code = """
    import torch
    for _ in range(3): torch.optimizer.step()
    torch.cuda.capturing = True
    torch.optimizer.step()
    torch.cuda.capturing = False
    torch.optimizer.step()
    """
    run_worker(page, code, torch)
    assert page.read(1) is None


def test_a_function_that_a_package_already_offers_is_a_checkpoint_there_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As torch.save in a worker that is forked from a parent which has imported torch."""
    package, module, other = ModuleType("above"), ModuleType("above.inner.saver"), ModuleType("above.inner")
    vars(module)["save"] = vars(package)["save"] = vars(other)["load"] = lambda: None
    vars(other)["save"] = own = object()
    monkeypatch.setitem(sys.modules, "above", package)
    monkeypatch.setitem(sys.modules, "above.inner", other)
    hook_saving("save", "absent")(module)
    assert "reporter" in package.save.__code__.co_filename
    assert (package.save, other.save) == (module.save, own)


CHILDREN = {
    "fork": "pid = os.fork()\nif pid == 0: body(); os._exit(0)\nos.waitpid(pid, 0)",
    "fork before torch": "",
    "exec": "subprocess.run([sys.executable, '-c', 'import torch; torch.optimizer.step()'], check=True)",
    "spawn": "process = multiprocessing.get_context('spawn').Process(target=torch.optimizer.step)\n"
    "process.start(); process.join(); assert process.exitcode == 0",
}


@pytest.mark.parametrize("how", CHILDREN)
def test_a_child_of_the_worker_reports_nothing(page: ProgressPage, torch: str, how: str) -> None:
    code = f"""
import multiprocessing, os, subprocess, sys
def body():
    import torch
    for _ in range(50): torch.optimizer.step()
    torch.save(lambda: None)
if {how == "fork before torch"}:
    {CHILDREN["fork"].replace(chr(10), chr(10) + "    ")}
import torch
torch.optimizer.step()
{CHILDREN[how]}
print(os.getpid())
"""
    pid = run_worker(page, code, torch)
    assert (slot(page).progress.steps, slot(page).owner) == (1, int(pid))


def test_the_last_that_imports_torch_owns_the_slot(page: ProgressPage, torch: str) -> None:
    """As under a shell script that prepares something with torch, and then trains."""
    environment = plain(torch)
    environment |= page.environment(1, environment, auto=True)
    step = "torch.optimizer.step()"
    prepare = f"import sys, torch; {step}; print(flush=True); sys.stdin.read(); {step}"
    with subprocess.Popen(
        [sys.executable, "-c", prepare], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as first:
        assert first.stdout is not None
        first.stdout.readline()
        run("import torch\nfor _ in range(3): torch.optimizer.step()", environment)
        assert slot(page).progress.steps == 3
        first.communicate(timeout=TORCH_DEADLINE)
    assert slot(page).progress.steps == 3
    assert slot(page).owner != first.pid


def test_the_finder_leaves_nothing_in_a_loader(page: ProgressPage, torch: str) -> None:
    code = """
    import inspect, torch
    assert "exec_module" not in vars(torch.optimizer.__loader__)
    assert "def step" in inspect.getsource(torch.optimizer)
    """
    run_worker(page, code, torch)


# -- with the real torch

TRAIN = """
import os, torch, warnings
warnings.simplefilter("error")
parameter = torch.nn.Parameter(torch.ones(2))
optimizer = torch.optim.SGD([parameter], lr=0.1)
loader = torch.utils.data.DataLoader(range(4), num_workers=1)
for _ in loader:
    optimizer.zero_grad(); parameter.sum().backward(); optimizer.step()
import io, torch.distributed.checkpoint as dcp
torch.save(parameter, io.BytesIO())
for function in (torch.save, torch.serialization.save, dcp.save):
    assert function.__name__ == "save" and "reporter" in function.__code__.co_filename
"""


@pytest.mark.torch
def test_real_torch_reports_its_steps(page: ProgressPage) -> None:
    run_worker(page, TRAIN)
    assert (slot(page).progress.steps, slot(page).progress.busy_since) == (4, None)
    assert slot(page).progress.longest > 0


def warnings_of(ended: subprocess.CompletedProcess[str]) -> int:
    """How many there are; but torch warns of Python 3.13.0 wherever it meets a hook, whoever's it is."""
    return ended.stderr.count("Warning") - ended.stderr.count("Python 3.13.0")


@pytest.mark.torch
def test_a_compiled_step_compiles_as_without_us(page: ProgressPage) -> None:
    code = """
    import torch
    parameter = torch.nn.Parameter(torch.ones(2))
    parameter.grad = torch.ones(2)
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    torch.compile(optimizer.step, backend="eager")()
    print(dict(torch._dynamo.utils.counters["graph_break"]), torch._dynamo.utils.counters["stats"])
    """
    environment = plain(None)
    before = run(code, environment)
    after = run(code, {**environment, **page.environment(1, environment, auto=True)})
    assert (after.returncode, after.stdout) == (0, before.stdout), after.stderr
    assert warnings_of(after) == warnings_of(before)
