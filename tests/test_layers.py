"""Imports of the package go downward only, and each third-party package has one home.

The rules are the two tables below; the checker under them reads sources with ``ast`` and imports nothing. It
sees every import there is: at the top of a module, inside a function, under ``TYPE_CHECKING``, relative, and
``importlib.import_module`` or ``__import__`` of a literal name.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Container, Iterator, Mapping, Set
from dataclasses import dataclass
from pathlib import Path

import pytest

PACKAGE = "elasticrun"
ROOT = Path(__file__).parent.parent / PACKAGE

#: From the bottom up. A part may import itself and the parts of lower layers, but not its neighbours.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("",),  # the package itself, which holds only its version, and names of its FACADE
    ("dataclass", "exits"),
    ("errors", "faults"),
    ("config", "clock"),
    ("policy_file",),
    ("core",),
    ("rpc", "sim", "storage"),
    ("agent", "master", "worker", "checkpoint", "data", "probe", "tf", "control"),
    ("follower", "launching"),
    ("ui", "platforms", "observer", "testing", "compat"),
    ("cli",),
    ("__main__",),
)

#: The same inside large folders, also from the bottom up. What is not named stands above all that is.
INSIDE: dict[str, tuple[tuple[str, ...], ...]] = {
    "agent": (
        ("programs", "tasks"),
        ("logs", "monitors", "memory"),
        ("spawner",),
        ("workers",),
        ("master_host",),
    ),
    "core": (
        ("protocol", "timers", "durations"),
        ("membership", "progress", "hangs", "hosts", "fleet"),
        ("recovery",),
        ("health", "tensorflow", "state", "data", "accounting", "cluster"),
        ("history",),
        ("whatif",),
        ("advice",),
        ("review",),
        ("job", "agent"),
    ),
    "storage": (
        ("errors", "priority"),
        ("store", "records"),
        ("disk", "remote", "catalog", "verifying"),
        ("opening",),
    ),
    "rpc": (
        ("elastic_pb2", "text", "slack", "outbox", "stream", "records", "claims"),
        ("listening", "codec"),
        ("reach",),
        ("security",),
        ("transport",),
    ),
}

#: What the package offers under its own name, and imports only when that is used.
FACADE = (
    "elasticrun.worker",
    "elasticrun.checkpoint",
    "elasticrun.data",
    "elasticrun.errors",
    "elasticrun.launching",
)

#: Third-party package -> the only modules (with all below them) that may import it.
HOMES: dict[str, tuple[str, ...]] = {
    "grpc": ("elasticrun.rpc",),
    "google": ("elasticrun.rpc",),  # protobuf
    "click": ("elasticrun.cli",),
    "pytest": ("elasticrun.testing",),
    "_pytest": ("elasticrun.testing",),
    "coverage": ("elasticrun.testing",),
    "cloudpickle": ("elasticrun.launching", "elasticrun.worker.target"),
    "cryptography": ("elasticrun.cli.authority",),
    "yaml": ("elasticrun.policy_file", "elasticrun.platforms.manifests.text"),
    "rich": ("elasticrun.ui",),
    "psutil": ("elasticrun.agent.monitors",),
    "pynvml": ("elasticrun.agent.monitors",),
    "aiohttp": ("elasticrun.observer", "elasticrun.platforms.kubernetes.api"),
    "prometheus_client": ("elasticrun.observer",),
    "opentelemetry": ("elasticrun.observer",),
    "torch": (
        "elasticrun.worker",
        "elasticrun.checkpoint",
        "elasticrun.data",
        "elasticrun.probe",
        "elasticrun.testing",
        "elasticrun.compat",
    ),
    "tensorflow": ("elasticrun.tf",),
    "fsspec": ("elasticrun.storage",),
    "kubernetes": ("elasticrun.platforms.kubernetes.api",),
    "kopf": ("elasticrun.platforms.kubernetes.operator",),
    "ray": ("elasticrun.platforms.ray",),
    "confluent_kafka": ("elasticrun.data.streams.kafka",),
    "redis": ("elasticrun.data.streams.redis",),
}

#: Generated protobuf code -> the only modules that may import it; generated modules may import each other.
GENERATED_SUFFIX = "_pb2"
GENERATED_HOMES = ("elasticrun.rpc.codec",)  # a package

#: core decides and does nothing else: no module that reads a clock, a file, a socket or chance.
PURE = frozenset(
    {
        "__future__",
        "abc",
        "bisect",
        "collections",
        "copy",
        "dataclasses",
        "enum",
        "functools",
        "heapq",
        "hmac",
        "itertools",
        "math",
        "operator",
        "re",
        "string",
        "types",
        "typing",
    }
)
#: Modules of our own below core that are not pure.
IMPURE = frozenset({"elasticrun.clock"})

LEVEL = {part: level for level, parts in enumerate(LAYERS) for part in parts}


@dataclass(frozen=True)
class Import:
    """One module named in an import; ``line`` is where."""

    target: str
    line: int


def imports(tree: ast.Module, module: str, is_package: bool) -> Iterator[Import]:
    """Every import in ``tree``, with absolute names. ``from a import b`` is one of ``a.b``, whatever b is."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (Import(alias.name, node.lineno) for alias in names)
            case ast.ImportFrom(module=name, names=names, level=level):
                base = absolute("." * level + (name or ""), module, is_package)
                yield from (Import(f"{base}.{alias.name}".removesuffix(".*"), node.lineno) for alias in names)
            case ast.Call(func=function, args=[ast.Constant(value=str(name)), *_]) if called(function) in (
                "import_module",
                "__import__",
            ):
                yield Import(absolute(name, module, is_package), node.lineno)


def called(function: ast.expr) -> str:
    """The last name of what is called."""
    match function:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def absolute(name: str, module: str, is_package: bool) -> str:
    """``name`` without leading dots, seen from ``module``."""
    level = len(name) - len(name.lstrip("."))
    if level == 0:
        return name
    up = module.split(".")
    up = up[: len(up) - level + is_package]
    return ".".join(filter(None, [*up, name.lstrip(".")]))


def within(module: str, homes: tuple[str, ...]) -> bool:
    """Whether ``module`` is one of ``homes`` or below one."""
    return any(module == home or module.startswith(f"{home}.") for home in homes)


def is_generated(name: str) -> bool:
    """Whether ``name`` is, or is taken from, a module that protoc wrote."""
    return any(part.endswith((GENERATED_SUFFIX, f"{GENERATED_SUFFIX}_grpc")) for part in name.split("."))


def part_of(name: str) -> str:
    """The part of the package that ``name`` belongs to; "" for the package's own names, as its version."""
    part = f"{name}.".split(".")[1]
    return part if part in LEVEL or (ROOT / part).is_dir() or (ROOT / f"{part}.py").exists() else ""


def problem_of_own(module: str, target: str) -> str:
    """Why ``module`` may not import ``target`` of this package; "" if it may."""
    here, there = part_of(module), part_of(target)
    if module == PACKAGE and within(target, FACADE):
        return ""
    if unknown := [part for part in (here, there) if part not in LEVEL]:
        return f"{unknown[0]} is in no layer; add it to LAYERS"
    if LEVEL[there] > LEVEL[here]:
        return f"upward: {here or PACKAGE} is below {there}"
    if LEVEL[there] == LEVEL[here] and here != there:
        return f"sideways: {here} and {there} do not know each other"
    if is_generated(target) and not (within(module, GENERATED_HOMES) or is_generated(module)):
        return f"generated code is imported by {', '.join(GENERATED_HOMES)} only"
    if here == "core" and within(target, tuple(IMPURE)):
        return "core is pure"
    return ""


def problem_inside(module: str, target: str) -> str:
    """Why ``module`` may not import ``target`` of the same large folder; "" if it may."""
    folder, tiers = part_of(module), INSIDE.get(part_of(module), ())
    if part_of(target) != folder or target.count(".") < 2:
        return ""
    here, there = (f"{name}.".split(".")[2] for name in (module, target))
    level = {part: level for level, parts in enumerate(tiers) for part in parts}
    if here == there or level.get(there, len(tiers)) < level.get(here, len(tiers)):
        return ""
    is_top = level.get(here) is None
    return "" if is_top else f"inside {folder}, {here} is not above {there}"


def problem_of_other(module: str, target: str) -> str:
    """Why ``module`` may not import ``target`` of the standard library or a third party; "" if it may."""
    top = target.split(".")[0]
    if part_of(module) == "core" and top not in PURE:
        return "core is pure"
    if top in sys.stdlib_module_names:
        return ""
    if top not in HOMES:
        return f"{top} has no home; add it to HOMES and to setup.cfg"
    return "" if within(module, HOMES[top]) else f"{top} lives in {', '.join(HOMES[top])} only"


def violations(source: str, module: str, is_package: bool = False) -> list[str]:
    """Every import of ``source`` that the tables forbid, in words."""
    found = []
    for item in imports(ast.parse(source), module, is_package):
        own = within(item.target, (PACKAGE,))
        problem = (problem_of_own if own else problem_of_other)(module, item.target)
        if own and not problem:
            problem = problem_inside(module, item.target)
        if problem:
            found.append(f"{module}:{item.line} imports {item.target}: {problem}")
    return found


def modules() -> Iterator[tuple[Path, str]]:
    """Every source file of the package, with the name of its module."""
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT.parent).with_suffix("").parts
        yield path, ".".join(parts).removesuffix(".__init__")


def test_the_package_keeps_its_layers() -> None:
    found = [
        violation
        for path, module in modules()
        for violation in violations(path.read_text(), module, path.name == "__init__.py")
    ]
    assert not found, "\n" + "\n".join(found)


def cycles(graph: Mapping[str, Set[str]]) -> list[set[str]]:
    """The groups of modules that import one another, directly or not."""
    above = {module: reach(module, graph) for module in graph}
    groups = {frozenset(other for other in above[module] if module in above[other]) for module in graph}
    return [{*group} for group in groups if group]


def reach(module: str, graph: Mapping[str, Set[str]]) -> set[str]:
    """Everything that a module imports, and what that imports, and so on."""
    found, left = set[str](), [module]
    while left:
        new = graph[left.pop()] - found
        found |= new
        left += new
    return found


def test_no_modules_import_one_another() -> None:
    """Not even under TYPE_CHECKING. The package itself imports its facade only when that is used.

    The parts of the simulator do: each is told of the simulated job as a whole, whose type it names.
    """
    paths = {
        module: path
        for path, module in modules()
        if module != PACKAGE and not module.startswith(f"{PACKAGE}.sim.")
    }
    graph = dict[str, set[str]]()
    for module, path in paths.items():
        found = imports(ast.parse(path.read_text()), module, path.name == "__init__.py")
        graph[module] = {known for item in found for known in named(item.target, paths)} - {module}
    assert cycles(graph) == []


def named(target: str, known: Container[str]) -> Iterator[str]:
    """The module that ``target`` is, or is taken from, if it is one of ours."""
    yield from [name for name in (target, target.rpartition(".")[0]) if name in known][:1]


def test_a_cycle_is_found() -> None:
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [{"a", "b", "c"}]
    assert cycles({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


def test_the_checker_reads_the_whole_package() -> None:
    names = {name for _, name in modules()}
    assert {
        "elasticrun",
        "elasticrun.errors",
        "elasticrun.core.protocol.messages",
        "elasticrun.__main__",
    } <= names


@pytest.mark.parametrize(
    ("module", "source", "reason"),
    [
        ("core.a", "import elasticrun.rpc", "upward"),
        ("core.a", "from elasticrun import rpc", "upward"),
        ("core.a", "from ..rpc import client", "upward"),
        ("core.a", "from .. import rpc", "upward"),
        ("core.a", "def f():\n    from elasticrun.agent import x", "upward"),
        ("core.a", "import importlib\nimportlib.import_module('elasticrun.rpc')", "upward"),
        ("agent.a", "from importlib import import_module\nimport_module('..cli', __package__)", "upward"),
        ("agent.a", "__import__('elasticrun.cli.main')", "upward"),
        ("errors", "from elasticrun import config", "upward"),
        ("rpc.a", "if TYPE_CHECKING:\n    from elasticrun.master import loop", "upward"),
        ("sim.a", "from elasticrun.master import journal", "upward"),
        ("sim.a", "from elasticrun.rpc import records", "sideways"),
        ("agent.a", "from elasticrun.master.loop import Loop", "sideways"),
        ("master.a", "from ..agent import spawner", "sideways"),
        ("tf.a", "import elasticrun.worker", "sideways"),
        ("worker.a", "from elasticrun import agent", "sideways"),
        ("ui.a", "from elasticrun.platforms import ray", "sideways"),
        ("core.protocol.a", "from elasticrun.core.membership import quorum", "protocol is not above"),
        ("core.job.a", "from elasticrun.core.agent import state", "job is not above agent"),
        ("core.timers", "from elasticrun.core import new", "timers is not above new"),
        ("rpc.security.a", "from elasticrun.rpc.transport import open_channel", "security is not above"),
        ("rpc.client", "from elasticrun.rpc import elastic_pb2", "generated code"),
        ("agent.a", "from elasticrun.rpc.elastic_pb2 import Hello", "generated code"),
        ("agent.a", "import grpc.aio", "grpc lives in"),
        ("agent.a", "from google.protobuf import message", "google lives in"),
        ("agent.a", "import click", "click lives in"),
        ("cli.main", "import rich.table", "rich lives in"),
        ("master.a", "import yaml", "yaml lives in"),
        ("agent.a", "def f():\n    import torch", "torch lives in"),
        ("agent.a", "import torch.distributed as dist", "torch lives in"),
        ("worker.a", "import tensorflow as tf", "tensorflow lives in"),
        ("cli.main", "import requests", "has no home"),
        *[("core.a", f"import {name}", "core is pure") for name in ("time", "os.path", "asyncio", "random")],
        ("core.a", "from logging import getLogger", "core is pure"),
        ("core.a", "from elasticrun.clock import Clock", "core is pure"),
        ("core.a", "from elasticrun import clock", "core is pure"),
        ("core.a", "import grpc", "core is pure"),
    ],
)
def test_a_violation_is_found(module: str, source: str, reason: str) -> None:
    (found,) = (
        line for line in violations(source, f"elasticrun.{module}") if "importlib" not in line.split(":")[1]
    )
    assert reason in found


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("core.a", "from __future__ import annotations\nfrom collections.abc import Mapping\nimport heapq"),
        ("core.a", "from elasticrun.core import ranks\nfrom . import job\nfrom .job import Job"),
        ("core.a", "from elasticrun.config import JobConfig\nfrom elasticrun.errors import ElasticRunError"),
        ("config", "from elasticrun.errors import UsageError"),
        ("rpc.codec", "from elasticrun.rpc import elastic_pb2\nfrom google.protobuf.message import Message"),
        ("rpc.elastic_pb2_grpc", "import grpc\nfrom elasticrun.rpc import elastic_pb2"),
        ("agent.a", "import os, asyncio\nfrom elasticrun.rpc.client import connect"),
        ("worker.a", "import torch"),
        (
            "cli.main",
            "from elasticrun import __version__, agent, master\nimport click",
        ),
        ("__main__", "from elasticrun.cli.main import main"),
    ],
)
def test_what_is_allowed_passes(module: str, source: str) -> None:
    assert violations(source, f"elasticrun.{module}") == []


def test_relative_imports_of_a_package_start_at_the_package_itself() -> None:
    assert violations("from . import loop", "elasticrun.master", is_package=True) == []
    assert violations("from .. import agent", "elasticrun.master", is_package=True) != []
    assert absolute(".x", "elasticrun.master", is_package=True) == "elasticrun.master.x"
    assert absolute(".x", "elasticrun.master.loop", is_package=False) == "elasticrun.master.x"
    assert absolute("..x", "elasticrun.master.loop", is_package=False) == "elasticrun.x"
