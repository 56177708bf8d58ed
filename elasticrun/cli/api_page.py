"""The reference of the manual's page on the API, made from the docstrings and signatures in the sources.

Nothing is imported: the sources are read, so the page is the same with and without torch, and with each
version of Python. Where a name of a package comes from is what that package imports for type checkers.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from elasticrun.dataclass import dataclass

PACKAGE = Path(__file__).parent.parent
#: The modules whose public names are on the page, in its order.
MODULES = ("elasticrun", "elasticrun.testing", "elasticrun.testing.simulation", "elasticrun.compat")
ERRORS = "elasticrun.errors"
WIDEST = 92  # columns of a signature
#: Headings of a docstring's sections, with what stands before their entries on the page.
SECTIONS = {"Args:": "", "Raises:": "raises "}

Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = Function | ast.ClassDef
Known = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Entry:
    """A public name, and what it stands for."""

    name: str
    module: str  # where it is made
    node: Definition | ast.Assign
    source: str  # of that module


def reference() -> str:
    """Markdown: each module with its names, then the tree of errors."""
    told = set[tuple[str, str]]()
    parts = []
    for module in MODULES:
        parts.append(f"## {module}\n\n{_text(_docstring(_tree(module)))}")
        for entry in public(module):
            if (entry.module, entry.name) not in told:  # a package may offer what its module does
                told.add((entry.module, entry.name))
                parts.append(_entry(entry))
    return "\n\n".join([*parts, _errors()])


def public(module: str) -> Iterator[Entry]:
    """The public names of a module, in the order of its ``__all__``, functions first."""
    homes = _homes(_tree(module))
    found = [_found(name, homes.get(name, module)) for name in names(module)]
    yield from sorted(found, key=lambda entry: _rank(entry.node))


def names(module: str) -> list[str]:
    """What is in the ``__all__`` of a module."""
    for node in _tree(module).body:
        match node:
            case ast.Assign(targets=[ast.Name(id="__all__")], value=value):
                listed: list[str] = ast.literal_eval(value)
                return listed
    raise LookupError(f"{module} has no __all__")


def _rank(node: ast.AST) -> int:
    return 0 if isinstance(node, Function) else 1


def _path(module: str) -> Path:
    path = PACKAGE.parent / Path(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _tree(module: str) -> ast.Module:
    return ast.parse(_path(module).read_text(encoding="utf-8"))


def _homes(tree: ast.Module) -> dict[str, str]:
    """By name: the module that it is imported from."""
    return {
        alias.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }


def _found(name: str, module: str) -> Entry:
    source = _path(module).read_text(encoding="utf-8")
    for node in ast.parse(source).body:
        match node:
            case ast.FunctionDef(name=here) | ast.AsyncFunctionDef(name=here) | ast.ClassDef(name=here):
                if here == name:
                    return Entry(name, module, node, source)
            case ast.Assign(targets=[ast.Name(id=here)]) if here == name:
                return Entry(name, module, node, source)
    raise LookupError(f"{module} does not make {name}")


# -- one name


def _entry(entry: Entry) -> str:
    node, known = entry.node, _constants(entry.source)
    if isinstance(node, ast.Assign):
        parts = [f"```python\n{_union(node)}\n```", _comment_above(entry.source, node)]
    elif isinstance(node, ast.ClassDef):
        parts = [*_class(node, entry.source, known)]
    else:
        parts = [_code(signature(node.name, node, known)), _text(_docstring(node))]
    return "\n\n".join([f"### {entry.name}", *filter(None, parts)])


def _constants(source: str) -> Known:
    """The constants of a module, as written: what a default means if it is one of them."""
    return {
        node.targets[0].id: ast.unparse(node.value)
        for node in ast.parse(source).body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }


def _union(node: ast.Assign) -> str:
    parts = ast.unparse(node.value).split(" | ")
    line = f"{ast.unparse(node.targets[0])} = {' | '.join(parts)}"
    return (
        line if len(line) <= WIDEST else line.split(" = ")[0] + " = (\n    " + "\n    | ".join(parts) + "\n)"
    )


def _class(node: ast.ClassDef, source: str, known: Known) -> Iterator[str]:
    fields = [it for it in node.body if isinstance(it, ast.AnnAssign) and not _is_private(it)]
    made = next((it for it in _functions(node) if it.name == "__init__"), None)
    is_ours = _is_made_by_us(node)
    if made is not None and not is_ours:
        yield _code(signature(node.name, made, known, returns=False))
    elif fields and not is_ours:
        yield _code(_call(node.name, [_field(it) for it in fields], ""))
    yield _text(_docstring(node))
    if made is not None and not is_ours:
        yield _text(_docstring(made))
    yield "\n".join(_attribute(it, source) for it in fields if is_ours or _comment(source, it))
    if any(ast.unparse(base).endswith("Enum") for base in node.bases):
        yield "\n".join(_member(it, source) for it in node.body if isinstance(it, ast.Assign))
    yield "\n".join(_method(it, known) for it in _functions(node) if _is_public(it) and _docstring(it))


def _is_public(node: Function) -> bool:
    return not node.name.startswith("_") or node.name == "__call__"


def _is_made_by_us(node: ast.ClassDef) -> bool:
    """Whether users get such objects, and never make one."""
    return "Made by ``" in _docstring(node)


def _is_private(field: ast.AnnAssign) -> bool:
    return ast.unparse(field.target).startswith("_")


def _functions(node: ast.ClassDef) -> Iterator[Function]:
    yield from (it for it in node.body if isinstance(it, Function))


def _field(field: ast.AnnAssign) -> str:
    default = f" = {ast.unparse(field.value)}" if field.value is not None else ""
    return f"{ast.unparse(field.target)}: {ast.unparse(field.annotation)}{default}"


def _attribute(field: ast.AnnAssign, source: str) -> str:
    said = _inline(_comment(source, field))
    return f"- `{ast.unparse(field.target)}: {ast.unparse(field.annotation)}`" + (f": {said}" if said else "")


def _member(node: ast.Assign, source: str) -> str:
    said = _inline(_comment(source, node))
    return f"- `{ast.unparse(node.targets[0])}`" + (f": {said}" if said else "")


def _method(node: Function, known: Known) -> str:
    decorators = {ast.unparse(it) for it in node.decorator_list}
    shown = node.name if "property" in decorators else signature(node.name.strip("_"), node, known)
    paragraphs = _text(_docstring(node)).split("\n\n")
    return "\n".join([f"- `{shown}`: {paragraphs[0]}", *(_indented(each) for each in paragraphs[1:])])


def _indented(paragraph: str) -> str:
    return "\n" + "\n".join(f"  {line}" for line in paragraph.splitlines())


# -- signatures


def signature(name: str, node: Function, known: Known, returns: bool = True) -> str:
    """How a function is called, without what belongs to its object."""
    given = node.args
    first = given.args[1:] if given.args[:1] and given.args[0].arg in ("self", "cls") else given.args
    missing: list[ast.expr | None] = [None] * (len(first) - len(given.defaults))
    parts = [_parameter(*each, known) for each in zip(first, [*missing, *given.defaults], strict=True)]
    if given.vararg is not None:
        parts.append(f"*{_parameter(given.vararg, None, known)}")
    elif given.kwonlyargs:
        parts.append("*")
    parts += [_parameter(*each, known) for each in zip(given.kwonlyargs, given.kw_defaults, strict=True)]
    if given.kwarg is not None:
        parts.append(f"**{_parameter(given.kwarg, None, known)}")
    result = f" -> {ast.unparse(node.returns)}" if returns and node.returns is not None else ""
    return _call(name, parts, result)


def _parameter(parameter: ast.arg, default: ast.expr | None, known: Known) -> str:
    kind = f": {ast.unparse(parameter.annotation)}" if parameter.annotation is not None else ""
    if default is None:
        return f"{parameter.arg}{kind}"
    written = ast.unparse(default)
    return f"{parameter.arg}{kind} = {known.get(written, written)}"


def _call(name: str, parts: Sequence[str], result: str) -> str:
    return f"{name}({', '.join(parts)}){result}"


def _code(call: str) -> str:
    """A block with a call: in one line, or with a line for each parameter."""
    if len(call) > WIDEST:
        name, _, rest = call.partition("(")
        inside, _, result = rest.rpartition(")")
        parts = re.split(r", (?![^\[(]*[\])])", inside)
        call = f"{name}(\n" + "".join(f"    {part},\n" for part in parts) + f"){result}"
    return f"```python\n{call}\n```"


# -- docstrings


def _docstring(node: ast.Module | Definition) -> str:
    return ast.get_docstring(node) or ""


def sections(docstring: str) -> dict[str, dict[str, str]]:
    """What a docstring says of each parameter and error, by heading and name."""
    found: dict[str, dict[str, str]] = {}
    for block in docstring.split("\n\n"):
        lines = block.splitlines()
        if lines and lines[0] in SECTIONS:
            found[lines[0]] = _entries(lines[1:])
    return found


def _entries(lines: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    name = ""
    for line in lines:
        if re.match(r"    \S", line):
            name, _, text = line.strip().partition(": ")
            found[name] = text
        else:
            found[name] += f" {line.strip()}"
    return found


def _text(docstring: str) -> str:
    """A docstring as Markdown: each paragraph in one line, code in blocks."""
    parts: list[str] = []
    for block in docstring.split("\n\n"):
        lines = block.splitlines()
        if not lines:
            continue
        if lines[0] in SECTIONS:
            prefix = SECTIONS[lines[0]]
            parts.append(
                "\n".join(f"- {prefix}`{n}`: {_inline(text)}" for n, text in _entries(lines[1:]).items())
            )
        elif lines[0].startswith("- "):
            parts.append("\n".join(f"- {_inline(each)}" for each in re.split(r"(?:^|\n)- ", block)[1:]))
        elif all(line.startswith("    ") for line in lines):
            parts.append(_block(lines, parts))
        elif block.strip() != "::":
            parts.append(_inline(block.removesuffix("::") + ":" * block.endswith("::")))
    return "\n\n".join(parts)


def _block(lines: Sequence[str], parts: list[str]) -> str:
    """Lines of code; those of the block just before, which an empty line divides, are joined.

    As ruff has it in pages: there are two such lines above a definition.
    """
    code = "\n".join(line[4:] for line in lines)
    if parts and parts[-1].endswith("\n```"):
        before = parts.pop().removesuffix("\n```")
        space = "\n\n\n" if code.startswith(("def ", "class ", "@")) else "\n\n"
        return f"{before}{space}{code}\n```"
    return f"```python\n{code}\n```"


def _inline(text: str) -> str:
    joined = " ".join(text.split())
    return re.sub(r"``(.+?)``", r"`\1`", joined)


def _comment(source: str, node: ast.stmt) -> str:
    """What stands behind a statement on its last line."""
    line = source.splitlines()[(node.end_lineno or node.lineno) - 1]
    found = re.search(r"  # (.*)$", line[node.end_col_offset or 0 :])
    return found[1] if found else ""


def _comment_above(source: str, node: ast.stmt) -> str:
    lines = []
    for line in reversed(source.splitlines()[: node.lineno - 1]):
        if not line.startswith("#: "):
            break
        lines.append(line.removeprefix("#: "))
    return _inline(" ".join(reversed(lines)))


# -- errors


def _errors() -> str:
    from elasticrun import errors

    rows = ["| error | is a | exit code | meaning |", "|---|---|---|---|"]
    for node in _tree(ERRORS).body:
        made = getattr(errors, node.name) if isinstance(node, ast.ClassDef) else None
        if (
            isinstance(node, ast.ClassDef)
            and isinstance(made, type)
            and issubclass(made, errors.ElasticRunError)
        ):
            said = _inline(_docstring(node).split("\n\n")[0])
            rows.append(f"| `{node.name}` | `{_base(node)}` | {made.exit_code} | {said} |")
    head = "What elasticrun raises by intent, with the exit status of a command that it ends."
    return f"## {ERRORS}\n\n{head}\n\n" + "\n".join(rows)


def _base(node: ast.ClassDef) -> str:
    return ", ".join(ast.unparse(base) for base in node.bases)


# -- examples


def examples(module: str) -> Iterator[tuple[str, str]]:
    """The code in docstrings of a module and its public names, with where it is."""
    found: list[tuple[str, str]] = [(module, _docstring(_tree(module)))]
    for entry in public(module):
        if not isinstance(entry.node, ast.Assign):
            found.append((f"{module}.{entry.name}", _docstring(entry.node)))
    for where, text in found:
        for code in re.findall(r"^```python\n(.*?)^```", _text(text), re.M | re.S):
            yield where, code
