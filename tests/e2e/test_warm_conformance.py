"""A warm start is a cold start: whatever a script can see is the same, but for what is listed here.

One script reports what it sees (tests/support/warm_report.py); here it is run cold and warm, in each form in
which a script can be given, and everything is compared, fact by fact. Another script ends in every way there
is; then what was printed and what the launcher said are compared, letter by letter.

What may differ is inherent, and is listed with the reason: a fact that differs and is not listed is a bug,
and so is one that is listed and does not differ.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster import Cluster
from tests.support.launcher import MARK, Launcher
from tests.support.processes import TORCH_DEADLINE, wait_end

pytestmark = [pytest.mark.torch, pytest.mark.slow]

REPORTER = Path(__file__).parent.parent / "support" / "warm_report.py"

Report = dict[str, Any]


@dataclass(frozen=True)
class Form:
    """One way to say what has to run."""

    name: str
    options: tuple[str, ...]
    target: tuple[str, ...]
    workers: int
    rounds: int
    tasks: tuple[str, ...]

    @property
    def args(self) -> tuple[str, ...]:
        return (
            *self.options,
            f"--nproc-per-node={self.workers}",
            *self.target,
            "reports",
            *self.tasks,
            *REST,
            "${local_rank}",
        )


#: What each launch has of its own; what may contain another one of them comes first.
PER_LAUNCH = ("TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_RUN_ID", "MASTER_PORT", "ELASTICRUN_MEMORY", MARK)
#: The launcher serves the store where workers are warm, rank 0 does where they are cold.
SERVER = "TORCHELASTIC_USE_AGENT_STORE"
MISSING = "nothing"
IMPORTED_MORE = "the warm parent has imported more"  # restarts begin with that; the first start does not
COMPILATION = 600.0  # seconds; it takes some ten of a core
#: No trial program for each kind of vectors that the processor may know, and no pool of compiling processes.
CHEAP_COMPILATION = {"TORCHINDUCTOR_VEC_ISA_OK": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
#: A restart compiles again what the first start has compiled.
COMPILATION_ANEW = {**CHEAP_COMPILATION, "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"}

#: Differences that no warm start can avoid, and why.
INHERENT = {
    "torch is there": "it is what a warm start is for",
    "first modules": "torch's are among them",
    "frozen objects": "a collection that looked at the imports would copy the pages that are shared",
    "SigCgt": "glibc catches a signal of its own once there were threads, as OpenBLAS had in the parent",
    "environment in /proc": "the kernel shows what the interpreter was executed with",
}
#: The same after torch was imported. Torch's own threads start at the first operation, warm or cold.
LATER = {"Threads": "OpenBLAS starts its threads as it is loaded, and after a fork when it has to compute"}
#: What an idle warm parent imports for restarts is there, and more of what comes with it.
IN_RESTARTS = {
    "modules": "torch._dynamo is there, which torch imports at an optimizer's first step",
    "warning filters": "sympy, which that imports, adds one",
    "loggers": "and so do its modules",
    "importers": "its folders were searched",
    "exit handlers": "it registers two",
}
#: What importing torch changes is at the first line as it is in a cold worker after the import.
SHOWN_BY_IMPORT = (
    "modules",
    "warning filters",
    "loggers",
    "importers",
    "exit handlers",
    "shadowed",
)

REST = ("--", "-x", "--", "a b", "", "é")
FORMS = (
    Form(
        "script", ("--max-restarts=1",), ("folder/train.py",), 2, 2, ("processes", "loader", "reduce", "edit")
    ),
    Form("module", (), ("-m", "folder.train"), 1, 1, ("processes",)),
    Form("path", (), ("--run-path", "folder/train.py"), 1, 1, ("processes",)),
)

#: Hides a module of the standard library, and is it.
SHADOW = """
import os
path = os.path.join(os.path.dirname(os.__file__), "pickletools.py")
with open(path, encoding="utf-8") as file:
    exec(compile(file.read(), path, "exec"))
"""

ENDINGS = r"""
import atexit, json, os, signal, sys, threading

round = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
with open(f"reports/{round}-0.json", "w") as file:
    json.dump({"start": {"torch is there": "torch._C" in sys.modules, "environment": dict(os.environ)}}, file)

@atexit.register
def last():
    print("atexit")

def inner(number):
    try:
        return {}[number]
    except KeyError as error:
        raise ValueError("no such\n  layer: é") from error

def wait():
    threading.main_thread().join()
    print("a thread outlives the main one")

def end(number):
    sys.stdout.write(f"begin {number}, ")
    sys.stderr.write("not a whole line; ")
    match number:
        case 0: sys.exit(3)
        case 1: raise SystemExit("text")
        case 2: os._exit(5)
        case 3: inner(number)
        case 4:
            os.kill(os.getpid(), signal.SIGINT)
            signal.pause()
        case 5: os.kill(os.getpid(), signal.SIGTERM)
        case 6: os.kill(os.getpid(), signal.SIGKILL)
        case 7: os.abort()
        case 8: os.kill(os.getpid(), signal.SIGSEGV)
        case 9: sys.exit(-1)
        case 10: sys.setrecursionlimit(50); (lambda f: f(f))(lambda f: f(f))
        case 11:
            atexit.register(lambda: 1 / 0)
            thread = threading.Thread(target=inner, args=(0,))
            thread.start()
            thread.join()
            threading.Thread(target=wait).start()

end(round)
"""
ROUNDS_OF_ENDINGS = 12
SAID_OF_ENDINGS = (
    *(
        "exited with 3",
        "text",
        "exited with 5",
        "layer: é",
        "KeyboardInterrupt",
        "SIGINT",
        "SIGTERM",
        "SIGKILL",
    ),
    *(
        "SIGABRT",
        "SIGSEGV",
        "Fatal Python error: Segmentation fault",
        "exited with 255",
        "RecursionError",
        "ZeroDivisionError",
        "Thread-1 (inner)",
    ),
)


@dataclass(frozen=True)
class Ended:
    """A launch that is over."""

    out: str
    err: str
    status: int
    reports: dict[str, Report]  # by "<round>-<rank>"
    ends: frozenset[str]  # whose exit handlers ran


def prepare(folder: Path) -> None:
    """A working directory with a package in it, and other modules of the names that it has."""
    package = folder / "folder"
    package.mkdir(parents=True)
    (folder / "reports").mkdir()
    os.mkfifo(folder / "reports" / "gate")
    shutil.copy(REPORTER, package / "train.py")
    (package / "__init__.py").touch()
    for place in (folder, package):
        (place / "beside.py").write_text("VALUE = 1\n")
        (place / "pickletools.py").write_text(SHADOW)
        shutil.copy(REPORTER.with_name("kernel_report.py"), place)
    (folder / "endings.py").write_text(ENDINGS)
    (folder / "policy.yaml").write_text("backoff: {first: 0}\n")


def anonymous(value: Any, known: Mapping[str, str]) -> Any:
    """Without what no two launches share; ``known`` says what stands for it."""
    match value:
        case str():
            for own, general in known.items():
                # Not where a port is the end of a longer number, such as that of a namespace.
                value = re.sub(rf"(?<!\d){re.escape(own)}(?!\d)", general, value)
            return value
        case list():
            return [anonymous(item, known) for item in value]
        case dict():
            return {anonymous(name, known): anonymous(item, known) for name, item in value.items()}
    return value


def printed(text: str, folder: Path) -> str:
    """The lines of workers and launcher, but for the launcher's word on warm starts and names of its own, and
    the modules in C that are there: torch's, in a warm worker.
    """
    # A busy machine may hand on the line of a dying process in two pieces.
    text = re.sub(r"\n\nExtension modules:(?:[^(]*\(total: \d+\)|.*)", "", text)
    text = re.sub(r"(done: .*,) \d+(\.\d+)? s", r"\1 <seconds>", text)
    # that training runs again is said beside what the new workers print: before it, or after it
    text = re.sub("elastic-run: (recovered in|running again after)[^\n]*\n", "", text)
    own = re.compile("elastic-run: .*warm")
    lines = [line for line in text.splitlines() if not own.match(line)]
    text = re.sub(r"(?<=\w/)[\da-f]{6}\b", "<node>", "\n".join(lines).replace(str(folder), "<folder>"))
    return re.sub(r"(pid=?|0x)[ \da-f]+", r"\1<number>", text)


def dictionaries(value: Any) -> Iterator[dict[str, Any]]:
    """All that are in this value, itself included: children of the script tell of their environment, too."""
    if isinstance(value, dict):
        yield value
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for part in parts:
        yield from dictionaries(part)


def over(launcher: Launcher, folder: Path, patience: float) -> Ended:
    wait_end(launcher.pid, patience)
    launcher.wait()
    reports = {}
    for path in sorted((folder / "reports").glob("*.json")):
        report = json.loads(path.read_text())
        own = report["start"]["environment"]
        for seen in dictionaries(report):
            seen.pop(SERVER, None)
        known = {own[name]: f"<{name}>" for name in PER_LAUNCH if name in own}
        known |= {f"{SERVER}={served}": SERVER for served in (True, False)}
        reports[path.stem] = anonymous(report, {**known, str(folder): "<folder>"})
    ends = frozenset(path.stem for path in (folder / "reports").glob("*.end"))
    out, err = (printed(text, folder) for text in (launcher.out, launcher.err))
    return Ended(out, err, launcher.process.returncode, reports, ends)


@dataclass(frozen=True)
class Pair:
    cold: Ended
    warm: Ended


def pair(
    cluster: Cluster, name: str, *args: str, env: Mapping[str, str] = {}, patience: float = TORCH_DEADLINE
) -> Pair:
    """The same launch cold and warm, at the same time."""
    folders = {kind: cluster.folder / name / kind for kind in ("off", "on")}
    launchers = {}
    for kind, folder in folders.items():
        prepare(folder)
        environment = {"OMP_NUM_THREADS": "2", "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"), **env}
        if "edit" in args:
            environment["LOGLEVEL"] = "INFO"
        options = ("--standalone", "--warm", kind)
        launchers[kind] = cluster.launch(*options, *args, cwd=folder, env=environment, name=f"{name} {kind}")
    if "edit" in args:
        launchers["on"].wait_line(IMPORTED_MORE)
        for folder in folders.values():
            go_on(folder)
    cold, warm = (over(launchers[kind], folders[kind], patience) for kind in ("off", "on"))
    if "edit" in args:  # one that never came to its round 0 proves nothing
        for ended in (cold, warm):
            assert any(name.startswith("0-") for name in ended.reports), ended.err
    return Pair(cold, warm)


def go_on(folder: Path) -> None:
    """Let the script fail, now or when it comes to that."""
    gate = os.open(folder / "reports" / "gate", os.O_RDWR)
    os.write(gate, b"\n")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("warm"))
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module", params=FORMS, ids=lambda form: form.name)
def form(request: pytest.FixtureRequest) -> Form:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def both(form: Form, shared: Cluster) -> Pair:
    return pair(shared, form.name, *form.args)


@pytest.fixture(scope="module")
def endings(shared: Cluster) -> Pair:
    options = (f"--max-restarts={ROUNDS_OF_ENDINGS - 1}", "--policy=policy.yaml")
    return pair(shared, "endings", *options, "endings.py", env={"PYTHONFAULTHANDLER": "1"})


def differences(cold: Any, warm: Any, place: str = "") -> Iterator[str]:
    """What is not the same, and where."""
    if isinstance(cold, dict) and isinstance(warm, dict):
        for name in sorted({*cold, *warm}):
            yield from differences(cold.get(name, MISSING), warm.get(name, MISSING), f"{place} {name}:")
    elif isinstance(cold, list) and isinstance(warm, list) and len(cold) == len(warm):
        for number, (one, other) in enumerate(zip(cold, warm, strict=True)):
            yield from differences(one, other, f"{place} {number}:")
    elif isinstance(cold, list) and isinstance(warm, list):
        missing, more = ([it for it in one if it not in other] for one, other in ((cold, warm), (warm, cold)))
        yield f"{place} only when cold {missing}, only when warm {more}, of {len(cold)} and {len(warm)}"
    elif cold != warm:
        yield f"{place} {cold!r} when cold, {warm!r} when warm"


def is_restart(name: str) -> bool:
    return not name.startswith("0-")


def compared(both: Pair, part: str, leave_out: Collection[str] = ()) -> list[str]:
    """The differences in a part of all reports."""
    assert both.cold.reports.keys() == both.warm.reports.keys(), f"{both.cold.err}\n-- warm\n{both.warm.err}"
    found: list[str] = []
    for name in both.cold.reports:
        without = {*leave_out, *(IN_RESTARTS if is_restart(name) else ())}
        cold, warm = (
            {fact: value for fact, value in ended.reports[name][part].items() if fact not in without}
            for ended in (both.cold, both.warm)
        )
        found += differences(cold, warm, f"{name}:")
    return found


def test_every_worker_of_every_round_was_started_as_it_was_said(form: Form, both: Pair) -> None:
    names = {f"{number}-{rank}" for number in range(form.rounds) for rank in range(form.workers)}
    for ended, warm in ((both.cold, False), (both.warm, True)):
        assert ended.status == 0, ended.err
        assert {name: it["start"]["torch is there"] for name, it in ended.reports.items()} == dict.fromkeys(
            names, warm
        )


def test_at_the_first_line(both: Pair) -> None:
    assert compared(both, "start", {*INHERENT, *SHOWN_BY_IMPORT}) == []


def test_after_the_import_of_torch(both: Pair) -> None:
    assert compared(both, "torch", LATER) == []


def test_at_the_first_line_modules_that_a_script_may_import_are_hidden(both: Pair) -> None:
    for name, cold in both.cold.reports.items():
        found = set(both.warm.reports[name]["start"]["modules"])
        assert not found & {"torch", "torch.nn", "torch.distributed", "numpy"}
        if not is_restart(name):
            assert found < set(cold["torch"]["modules"])


@pytest.mark.parametrize("fact", [it for it in SHOWN_BY_IMPORT if it != "modules"])
def test_at_the_first_line_torch_is_imported(both: Pair, fact: str) -> None:
    for name, cold in both.cold.reports.items():
        found = both.warm.reports[name]["start"][fact]
        if not (fact in IN_RESTARTS and is_restart(name)):
            assert list(differences(cold["torch"][fact], found)) == []


@pytest.mark.parametrize("fact", IN_RESTARTS)
def test_restarts_have_more_and_miss_nothing(both: Pair, fact: str) -> None:
    for name in filter(is_restart, both.cold.reports):
        cold, warm = (ended.reports[name]["torch"][fact] for ended in (both.cold, both.warm))
        match cold:
            case int():
                assert cold < warm
            case [level, handlers, [*loggers]]:
                assert [level, handlers] == warm[:2]
                assert set(loggers) < set(warm[2])
            case _:
                assert set(cold) < set(warm)


@pytest.mark.parametrize(
    ("part", "fact"), [*(("start", it) for it in INHERENT), *(("torch", it) for it in LATER)]
)
def test_what_is_said_to_differ_does(both: Pair, part: str, fact: str) -> None:
    for name, cold in both.cold.reports.items():
        assert cold[part][fact] != both.warm.reports[name][part][fact]


def test_no_module_is_missing_at_the_first_line(both: Pair) -> None:
    for name, cold in both.cold.reports.items():
        assert set(cold["start"]["first modules"]) <= set(both.warm.reports[name]["start"]["first modules"])


def test_what_the_script_does(both: Pair) -> None:
    assert compared(both, "tasks") == []


def test_no_two_processes_draw_the_same_numbers(both: Pair) -> None:
    values: dict[str, list[str]] = defaultdict(list)
    for ended in (both.cold, both.warm):
        for report in ended.reports.values():
            for name, value in report["drawn"].items():
                values[name].append(str(value))
    assert {name: found for name, found in values.items() if len(set(found)) < len(found)} == {}


def test_what_is_edited_is_read_anew(form: Form, both: Pair) -> None:
    for ended in (both.cold, both.warm):
        editions = {name: report["tasks"]["edition"] for name, report in ended.reports.items()}
        assert editions == {name: [23, 45] if name.startswith("1") else [1, 1] for name in ended.reports}


def test_what_is_printed(form: Form, both: Pair) -> None:
    assert sorted(both.warm.out.splitlines()) == sorted(both.cold.out.splitlines())
    assert sorted(both.warm.err.splitlines()) == sorted(both.cold.err.splitlines())
    assert (
        both.cold.ends
        == both.warm.ends
        == {name for name in both.cold.reports if name != "0-1" or form.rounds == 1}
    )


def test_every_ending_is_the_same(endings: Pair) -> None:
    for ended, warm in ((endings.cold, False), (endings.warm, True)):
        starts = [report["start"]["torch is there"] for report in ended.reports.values()]
        assert starts == [warm] * ROUNDS_OF_ENDINGS, ended.err
        assert ended.status == 0
    assert endings.warm.out == endings.cold.out
    assert endings.warm.err == endings.cold.err


@pytest.mark.parametrize("said", SAID_OF_ENDINGS)
def test_the_endings_are_what_they_are_meant_to_be(endings: Pair, said: str) -> None:
    assert said in endings.cold.err


@pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler, as torch.compile does")
@pytest.mark.timeout(1200)
def test_compilation(shared: Cluster) -> None:
    """By a worker of the first parent, and after a restart by one of its replacement."""
    options = ("--max-restarts=1", "folder/train.py", "reports", "compile", "edit", "--")
    both = pair(shared, "compiled", *options, env=COMPILATION_ANEW, patience=COMPILATION)
    for ended, warm in ((both.cold, False), (both.warm, True)):
        assert ended.status == 0, ended.err
        starts = {name: report["start"]["torch is there"] for name, report in ended.reports.items()}
        assert starts == {"0-0": warm, "1-0": warm}
    assert compared(both, "tasks") == []
    found = both.warm.reports["1-0"]["tasks"]["compile"]
    assert found["loss"] == pytest.approx(3 * math.sin(3.5) + 6)
    assert found["counted"]["stats"]["unique_graphs"] == 1
