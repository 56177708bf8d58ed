"""Rules of the house that ruff and mypy do not know.

Docstrings, blind ``except`` clauses and style are ruff's (.ruff.toml); layers are test_layers'. Here are the
rest: nothing sleeps, modules and functions stay small, only the command line reads the environment, and
what the README and the examples tell people to type exists.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from elasticrun.cli.ctl import group

ROOT = Path(__file__).parent.parent

MAX_MODULE_LINES = 400
MAX_FUNCTION_LINES = 60
MAX_METHODS = 20
#: One class each on purpose: a whole state machine, whose methods are its transitions.
STATE_MACHINES = frozenset({"JobFacts", "JobMachine", "AgentMachine"})

#: Who may read the environment: the composition root, and nobody else in the package. The probe child is a
#: program of its own, which does not even import the package; its composition root is its main module. The
#: libraries for scripts run in the user's program, where nobody could hand anything to them.
ENVIRONMENT_READERS = ("elasticrun/cli/", "elasticrun/probe/main.py", "elasticrun/worker/", "elasticrun/tf/")
ENVIRONMENT_NAMES = frozenset({"environ", "environb", "getenv", "getenvb"})
SLEEPERS = frozenset({"time", "asyncio", "trio", "anyio"})

PAGES = (
    "README.md",
    "examples/README.md",
    "CHANGELOG.md",
    *(f"elasticrun/manual/{name}.md" for name in ("command-line", "security", "speed", "warm-start")),
)


def sources(*folders: str) -> Iterator[tuple[str, str]]:
    """(path in the repository, text) of every source that a person wrote."""
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if not path.stem.endswith(("_pb2", "_pb2_grpc")):
                yield str(path.relative_to(ROOT)), path.read_text()


SHIPPED = ("elasticrun", "examples", "scripts")
EVERYTHING = (*SHIPPED, "tests")


def names_used(tree: ast.AST, modules: frozenset[str], names: frozenset[str]) -> Iterator[int]:
    """The lines where one of ``names`` is taken from one of ``modules``."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id=module), attr=name) if module in modules and name in names:
                yield node.lineno
            case ast.ImportFrom(module=str(module), names=imported) if module in modules:
                yield from (node.lineno for alias in imported if alias.name in names)


def sleeps(source: str) -> list[int]:
    """The lines of ``source`` that sleep, or hold a program that does."""
    tree = ast.parse(source)
    told = [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "time.sleep(" in node.value
    ]
    return [*names_used(tree, SLEEPERS, frozenset({"sleep"})), *told]


def reads_of_environment(source: str) -> list[int]:
    """The lines of ``source`` that touch the environment of this process."""
    return list(names_used(ast.parse(source), frozenset({"os"}), ENVIRONMENT_NAMES))


def too_long(source: str) -> list[str]:
    """What is too long in ``source``, in words."""
    found = []
    if (lines := len(source.splitlines())) > MAX_MODULE_LINES:
        found.append(f"the module has {lines} lines, at most {MAX_MODULE_LINES}")
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > MAX_FUNCTION_LINES:
                    found.append(f"line {node.lineno}: {name} has {lines} lines of {MAX_FUNCTION_LINES}")
            case ast.ClassDef(name=name, body=body):
                methods = sum(isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef) for item in body)
                if methods > MAX_METHODS and name not in STATE_MACHINES:
                    found.append(f"line {node.lineno}: {name} has {methods} methods, at most {MAX_METHODS}")
    return found


def test_nothing_sleeps() -> None:
    here = "tests/test_house_rules.py"  # the sleeps that are to be found
    found = [f"{path}:{line}" for path, text in sources(*EVERYTHING) if path != here for line in sleeps(text)]
    assert not found, f"wait for an event with a deadline, or move a fake clock: {found}"


def test_modules_classes_and_functions_stay_small() -> None:
    found = [f"{path}: {what}" for path, text in sources(*SHIPPED) for what in too_long(text)]
    assert not found, "\n" + "\n".join(found)


def test_only_the_command_line_reads_the_environment() -> None:
    found = [
        f"{path}:{line}"
        for path, text in sources("elasticrun")
        if not path.startswith(ENVIRONMENT_READERS)
        for line in reads_of_environment(text)
    ]
    assert not found, f"take it as an argument: {found}"


@pytest.mark.parametrize(
    "source",
    [
        "import time\ntime.sleep(1)",
        "async def f():\n    await asyncio.sleep(0)",
        "from time import sleep",
        "from asyncio import sleep as rest",
        "wait = time.sleep",
        "program = 'import time; time.sleep(1)'",
    ],
)
def test_a_sleep_is_found(source: str) -> None:
    assert sleeps(source)


@pytest.mark.parametrize(
    "source", ["import os\nos.environ['A']", "from os import environ", "os.getenv('A')", "dict(os.environ)"]
)
def test_a_read_of_the_environment_is_found(source: str) -> None:
    assert reads_of_environment(source)


def test_what_is_too_long_is_found() -> None:
    assert too_long("x = 1\n" * 401)
    assert too_long("def f():\n" + "    x = 1\n" * 60)
    assert too_long("class C:\n" + "".join(f"    def f{i}(self): ...\n" for i in range(21)))
    assert not too_long("x = 1\n" * 400)
    assert not too_long("async def f():\n" + "    x = 1\n" * 59)


def commands(page: str) -> Iterator[str]:
    """The lines of a page's shell blocks, with continued lines joined."""
    for block in re.findall(r"^```(?:sh|bash|console)\n(.*?)^```", (ROOT / page).read_text(), re.M | re.S):
        for line in block.replace("\\\n", " ").splitlines():
            if command := line.split(" #")[0].strip():
                yield command


def test_files_named_in_commands_exist() -> None:
    named = [
        (page, name)
        for page in PAGES
        for command in commands(page)
        for name in re.findall(r"(?<![\w/.-])(?:scripts|examples|tests)/[\w./-]+", command)
    ]
    assert named
    assert [(page, name) for page, name in named if not (ROOT / name).exists()] == []


def test_links_lead_somewhere() -> None:
    missing = [
        (page, link)
        for page in PAGES
        for link in re.findall(r"\]\(([^)#:]+)\)", (ROOT / page).read_text())
        if not ((ROOT / page).parent / link).exists()
    ]
    assert missing == []


def test_options_named_in_commands_exist() -> None:
    text = subprocess.run(
        [sys.executable, "-m", "elasticrun", "--help"], capture_output=True, text=True, check=True, cwd=ROOT
    ).stdout
    known = set(re.findall(r"(?<![\w-])--?[a-z][\w-]*", text))
    named = {
        (page, option)
        for page in PAGES
        for command in commands(page)
        for option in options_of_the_launcher(command)
    }
    assert named
    assert {(page, option) for page, option in named if option not in known} == set()


def options_of_the_launcher(command: str) -> list[str]:
    """The options in an elastic-run command that come before the script."""
    _, launcher, rest = command.partition("elastic-run ")
    before_script = re.split(r"\s\S+\.py\b|\s-m\s", rest)[0]
    return re.findall(r"(?<![\w-])--?[a-z][\w-]*", before_script) if launcher else []


def test_orders_named_in_commands_can_be_given() -> None:
    orders = [command.split()[1:] for page in PAGES for command in commands(page) if "elastic-ctl" in command]
    assert orders
    for verb, *arguments in orders:
        group.commands[verb].make_context(verb, arguments)
