"""The public names of the package: documented in full, shown by ``help``, and their examples run.

That the manual's page is what the sources say now is test_help_and_tables'.
"""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from configparser import ConfigParser
from pathlib import Path

import pytest

from elasticrun import errors
from elasticrun.cli import api_page
from elasticrun.cli.api_page import MODULES, Entry, examples, public, reference, sections, signature
from elasticrun.testing import Kill
from elasticrun.testing import simulation as sim

ROOT = Path(__file__).parents[2]
ENTRIES = [(module, entry) for module in MODULES for entry in public(module)]
MADE = [(module, entry) for module, entry in ENTRIES if not isinstance(entry.node, ast.Assign)]
EXAMPLES = [example for module in MODULES for example in examples(module)]


def doc(node: ast.AST) -> str:
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module)
    return ast.get_docstring(node) or ""


def parameters(node: ast.FunctionDef) -> list[str]:
    given = node.args
    every = [*given.args, given.vararg, *given.kwonlyargs, given.kwarg]
    return [it.arg for it in every if it is not None and it.arg not in ("self", "cls")]


def is_told(name: str, text: str) -> bool:
    """Whether a docstring says something of a parameter: in its list, or in a sentence."""
    listed = {each for names in sections(text).get("Args:", {}) for each in names.split(", ")}
    return name in listed or re.search(rf"``[^`]*\b{name}\b[^`]*``", text) is not None


def untold(module: str, entry: Entry) -> Iterator[str]:
    """What a public name takes and its docstrings do not speak of."""
    node = entry.node
    if isinstance(node, ast.FunctionDef):
        yield from (it for it in parameters(node) if not is_told(it, doc(node)))
        return
    assert isinstance(node, ast.ClassDef)
    around = doc(node) + doc(ast.parse(Path(api_page._path(module)).read_text()))
    for it in node.body:
        match it:
            case ast.FunctionDef(name=name) if name == "__init__" and "Made by ``" not in doc(node):
                yield from (name for name in parameters(it) if not is_told(name, around + doc(it)))
            case ast.FunctionDef(name=name) if name == "__call__" or not name.startswith("_"):
                if not doc(it):
                    yield f"{name}()"
                yield from (f"{name}({each})" for each in parameters(it) if not is_told(each, doc(it)))
            case ast.AnnAssign(target=ast.Name(id=name)) if not name.startswith("_"):
                if not api_page._comment(entry.source, it) and not is_told(name, around):
                    yield name


@pytest.mark.parametrize(("module", "entry"), MADE, ids=[f"{module}.{it.name}" for module, it in MADE])
def test_each_name_and_each_parameter_is_told_of(module: str, entry: Entry) -> None:
    assert doc(entry.node)
    assert [*untold(module, entry)] == []


def test_a_parameter_that_is_not_told_of_is_found() -> None:
    source = 'def f(a, *b, c=1, **d):\n    """``a`` is one.\n\n    Args:\n        b, c: Two.\n    """\n'
    node = ast.parse(source).body[0]
    assert isinstance(node, ast.FunctionDef)
    assert [*untold("elasticrun", Entry("f", "m", node, source))] == ["d"]
    source = 'class C:\n    """It."""\n    a: int\n    b: int  # told\n    def f(self, c): ...\n'
    cls = ast.parse(source).body[0]
    assert isinstance(cls, ast.ClassDef)
    assert [*untold("elasticrun", Entry("C", "m", cls, source))] == ["a", "f()", "f(c)"]


# -- the page


def test_the_page_has_each_name_once_with_its_signature_and_errors() -> None:
    text = reference()
    headings = re.findall(r"^### (\w+)$", text, re.M)
    assert {*headings} == {entry.name for _, entry in ENTRIES}
    assert "launch(\n    target: Target,\n    *args: object,\n    nproc: int = 2,\n" in text
    assert "Kill(rank: int, at_step: int, round: int = 0)" in text
    assert "- raises `JobFailedError`: the job ended in another way." in text
    assert "`cancel(patience: float = 35.0) -> None`" in text
    for line in re.findall(r"^```python\n(.*?)^```", text, re.M | re.S):
        assert max(map(len, line.splitlines())) <= api_page.WIDEST


def test_the_page_has_all_errors_with_their_exit_codes() -> None:
    found = re.findall(r"^\| `(\w+)` \| `(\w+)` \| (\d+) \| .+ \|$", reference(), re.M)
    known = {
        (name, it.__base__.__name__, str(int(it.exit_code)))
        for name, it in vars(errors).items()
        if isinstance(it, type) and issubclass(it, errors.ElasticRunError) and it.__base__ is not None
    }
    assert {*found} == known


def test_a_signature_is_as_it_was_written() -> None:
    source = "async def f(self, a, b: int = LIMIT, *c: str, d=(1, 2), **e) -> dict[str, int]: ..."
    node = ast.parse(source).body[0]
    assert isinstance(node, ast.AsyncFunctionDef)
    told = signature("f", node, {"LIMIT": "64 << 20"})
    assert told == "f(a, b: int = 64 << 20, *c: str, d = (1, 2), **e) -> dict[str, int]"
    long = api_page._code("f(" + "a: dict[str, int] = (1, 2), " * 5 + "b) -> int")
    assert long == "```python\nf(\n" + "    a: dict[str, int] = (1, 2),\n" * 5 + "    b,\n) -> int\n```"


# -- in Python


def run(program: str) -> str:
    command = [sys.executable, "-W", "error", "-c", program]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_help_shows_the_public_names_without_torch() -> None:
    text = run("import sys, elasticrun; help(elasticrun); print({'torch', 'grpc'} & {*sys.modules})")
    assert text.endswith("set()\n")
    for line in ("    class Job(", "    launch(target: 'Target', *args: 'object', nproc: 'int' = 2,"):
        assert line in text
    for name in ("Checkpointer", "RandomState", "report_step"):
        assert name in text
    text = run("import elasticrun.testing as it; help(it)")
    assert "    class Kill(" in text
    assert "    simulate(policy: 'PolicyLike' = None," in text


@pytest.mark.torch
def test_dir_has_all_names_once_torch_is_there() -> None:
    program = "import elasticrun; {} print(sorted({{*elasticrun.__all__}} - {{*dir(elasticrun)}}))"
    assert run(program.format("")) == "['Checkpointer', 'RandomState']\n"
    assert run(program.format("import torch;")) == "[]\n"


def test_dataclasses_show_their_fields() -> None:
    assert str(inspect.signature(Kill)) == "(rank: 'int', at_step: 'int', round: 'int' = 0)"
    assert [*inspect.signature(sim.Network).parameters] == ["delay", "duplicate", "reorder", "late"]


def test_type_checkers_are_told_that_the_package_is_typed() -> None:
    setup = ConfigParser()
    setup.read(ROOT / "setup.cfg")
    assert "py.typed" in setup["options.package_data"]["*"].split()
    assert (ROOT / "elasticrun/py.typed").exists()


# -- examples


def test_there_are_examples() -> None:
    assert {where for where, _ in EXAMPLES} >= {*MODULES}


@pytest.mark.torch
@pytest.mark.parametrize(("where", "code"), EXAMPLES, ids=[where for where, _ in EXAMPLES])
def test_an_example_runs(where: str, code: str, tmp_path: Path) -> None:
    script = tmp_path / "test_example.py"
    script.write_text(code)
    pytest_too = ["-m", "pytest", "-q", "-p", "no:cacheprovider"] if "def test_" in code else []
    command = [sys.executable, *pytest_too, str(script)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
