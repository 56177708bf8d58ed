"""How large the package is, and how tangled: one column for each checkout.

    python scripts/metrics.py [CHECKOUT...]

A class counts with the methods that it inherits from classes of the package. Import cycles are groups of
modules that import one another, also under TYPE_CHECKING or inside a function.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from tests.test_house_rules import classes, methods_of  # noqa: E402
from tests.test_layers import cycles, imports, named  # noqa: E402

PACKAGE = "elasticrun"
SHOWN = 3  # classes


def main(roots: list[str]) -> None:
    """Print the table."""
    columns = [dict(figures(Path(root))) for root in roots or [str(ROOT)]]
    for name in columns[0]:
        print(f"{name:34}", *(f"{column[name]:>34}" for column in columns))


def figures(root: Path) -> Iterator[tuple[str, str]]:
    """(what is counted, how much) for the package of one checkout."""
    texts = {module: path.read_text() for module, path in sources(root / PACKAGE)}
    sizes = [len(text.splitlines()) for text in texts.values()]
    yield "modules", str(len(texts))
    yield "lines", str(sum(sizes))
    yield "lines of the longest module", str(max(sizes))
    known = {name: found for text in texts.values() for name, found in classes(text)}
    largest = sorted(known, key=lambda name: -len(methods_of(name, known)))
    for number, name in enumerate(largest[:SHOWN], 1):
        yield f"class {number} by methods", f"{name} {len(methods_of(name, known))}"
    found = cycles(graph(root / PACKAGE, texts))
    yield "modules in import cycles", str(len(set[str]().union(*found)))


def sources(package: Path) -> Iterator[tuple[str, Path]]:
    """(module, path) of every source that a person wrote."""
    for path in sorted(package.rglob("*.py")):
        if not path.stem.endswith(("_pb2", "_pb2_grpc")):
            parts = path.relative_to(package.parent).with_suffix("").parts
            yield ".".join(parts).removesuffix(".__init__"), path


def graph(package: Path, texts: dict[str, str]) -> dict[str, set[str]]:
    """What each module imports of the package."""
    packages = {module for module, path in sources(package) if path.name == "__init__.py"}
    found = dict[str, set[str]]()
    for module, text in texts.items():
        targets = [item.target for item in imports(ast.parse(text), module, module in packages)]
        found[module] = {known for target in targets for known in named(target, texts)} - {module}
    found.pop(PACKAGE, None)  # it imports its facade only when that is used
    return {module: {it for it in others if it in found} for module, others in found.items()}


if __name__ == "__main__":
    main(sys.argv[1:])
