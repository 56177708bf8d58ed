"""Rules of the house that ruff and mypy do not know.

Docstrings, blind ``except`` clauses and style are ruff's (.ruff.toml); layers are test_layers'. Here are the
rest: nothing sleeps, modules and functions stay small, and only the command line reads the environment. What
the README and the manual say is test_pages'.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

MAX_MODULE_LINES = 400
MAX_FUNCTION_LINES = 60
MAX_METHODS = 20

#: Who may read the environment: the composition root, and nobody else in the package. The probe child is a
#: program of its own, which does not even import the package; its composition root is its main module. The
#: libraries for scripts run in the user's program, where nobody could hand anything to them.
ENVIRONMENT_READERS = (
    *("elasticrun/cli/", "elasticrun/probe/main.py"),
    *("elasticrun/worker/", "elasticrun/checkpoint/", "elasticrun/data/", "elasticrun/tf/"),
    *("elasticrun/launching/", "elasticrun/testing/", "elasticrun/compat.py"),
)
ENVIRONMENT_NAMES = frozenset({"environ", "environb", "getenv", "getenvb"})
SLEEPERS = frozenset({"time", "asyncio", "trio", "anyio"})


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
    return found


@dataclass(frozen=True)
class Class:
    """The names of a class's bases, as far as they are plain, and of its own methods."""

    bases: tuple[str, ...]
    methods: frozenset[str]


def classes(source: str) -> Iterator[tuple[str, Class]]:
    """The classes of a source by name."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef):
            bases = tuple(ast.unparse(base).split("[")[0].rpartition(".")[2] for base in node.bases)
            functions = (it for it in node.body if isinstance(it, ast.FunctionDef | ast.AsyncFunctionDef))
            yield node.name, Class(bases, frozenset(function.name for function in functions))


def methods_of(name: str, known: Mapping[str, Class]) -> frozenset[str]:
    """The methods of a class, those that it inherits included."""
    found = known.get(name, Class((), frozenset()))
    return found.methods.union(*(methods_of(base, known) for base in found.bases if base != name))


def crowded(texts: Iterable[str]) -> list[str]:
    """Classes of these sources with too many methods, in words."""
    known = {name: found for text in texts for name, found in classes(text)}
    counts = {name: len(methods_of(name, known)) for name in known}
    return [
        f"{n} has {count} methods, at most {MAX_METHODS}"
        for n, count in counts.items()
        if count > MAX_METHODS
    ]


def test_nothing_sleeps() -> None:
    here = "tests/test_house_rules.py"  # the sleeps that are to be found
    found = [f"{path}:{line}" for path, text in sources(*EVERYTHING) if path != here for line in sleeps(text)]
    assert not found, f"wait for an event with a deadline, or move a fake clock: {found}"


def test_modules_classes_and_functions_stay_small() -> None:
    found = [f"{path}: {what}" for path, text in sources(*SHIPPED) for what in too_long(text)]
    assert not found, "\n" + "\n".join(found)


def test_classes_stay_small_with_what_they_inherit() -> None:
    assert crowded(text for _, text in sources(*SHIPPED)) == []


def test_only_the_command_line_reads_the_environment() -> None:
    found = [
        f"{path}:{line}"
        for path, text in sources("elasticrun")
        if not path.startswith(ENVIRONMENT_READERS)
        for line in reads_of_environment(text)
    ]
    assert not found, f"take it as an argument: {found}"


#: The first two run where elasticrun may be missing, the last one speaks of them.
STANDARD_DATACLASSES = ("elasticrun/probe/", "elasticrun/worker/", "elasticrun/dataclass.py")


def test_frozen_dataclasses_are_those_that_are_quick_to_make() -> None:
    found = [
        path
        for path, text in sources("elasticrun")
        if not path.startswith(STANDARD_DATACLASSES)
        and "@dataclass(frozen=True, slots=True)" in text
        and "from elasticrun.dataclass import dataclass" not in text
    ]
    assert not found, f"each costs a launch half a millisecond: import elasticrun.dataclass in {found}"


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
    methods = [
        "".join(f"    def f{i}(self): ...\n" for i in numbers) for numbers in (range(15), range(10, 21))
    ]
    assert crowded(["class A:\n" + methods[0], "class B(a.A[int]):\n" + methods[1]])
    assert not crowded(["class A:\n" + methods[0], "class B:\n" + methods[1]])
    assert not too_long("x = 1\n" * 400)
    assert not too_long("async def f():\n" + "    x = 1\n" * 59)
