"""The manual's tables of options, exit codes and the like, and the reference of its API, made from the code.

``python -m elasticrun.cli.table`` prints them; ``--write FILE...`` replaces the text between the markers in
these pages of the manual. A test compares them, so the manual cannot fall behind.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from elasticrun.cli.api_page import reference
from elasticrun.cli.option import Group, Option, Origin
from elasticrun.cli.options import OPTIONS
from elasticrun.core.fleet.notices import CONTRACT
from elasticrun.errors import EXIT_CODE_MEANING
from elasticrun.faults import FailureClass


def option_table() -> str:
    """Markdown, one row for each option that is not hidden."""
    rows = ["| option | default | meaning |", "|---|---|---|"]
    for group in Group:
        shown = [option for option in OPTIONS if option.group is group and not option.hidden]
        rows.append(f"| **{group.value}** | | |")
        rows.extend(_option_row(option) for option in shown)
    return "\n".join(rows)


def _option_row(option: Option[Any]) -> str:
    spelling = f"{option.flag} {option.metavar}".rstrip()
    short = f"`-{option.short}`, " if option.short else ""
    mark = " \\*" if option.origin is Origin.OURS else ""
    default = f"`{option.default_text}`" if option.default_text else ""
    return f"| {short}`{_cell(spelling)}`{mark} | {default} | {_cell(option.help)} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("*", "\\*")


def exit_code_table() -> str:
    """Markdown, one row for each exit code, and the rule for signals."""
    rows = ["| exit code | meaning |", "|---|---|"]
    rows.extend(f"| {code.value} | {meaning} |" for code, meaning in EXIT_CODE_MEANING.items())
    rows.append("| 128 + n | signal n stopped the launcher, and the workers with it |")
    return "\n".join(rows)


def action_table() -> str:
    """Markdown, one row for each class of failure."""
    rows = ["| class of failure | action |", "|---|---|"]
    rows.extend(f"| `{failure.value}` | `{failure.action.value}` |" for failure in FailureClass)
    return "\n".join(rows)


def preemption_table() -> str:
    """Markdown, one row for each way to take a node away."""
    rows = ["| notice | told by | time to save | another pod starts |", "|---|---|---|---|"]
    for terms in CONTRACT:
        told = [f"`{reason}`" for reason in terms.reasons]
        if terms.code is not None:
            told.append(f"exit code {terms.code.value}")
        time = "SIGTERM, then its grace" if terms.saves else "none that is sure: the last saved step counts"
        rows.append(f"| {terms.notice.value} | {', '.join(told)} | {time} | {terms.next.value} |")
    return "\n".join(rows)


TABLES = {
    "options": option_table,
    "exit-codes": exit_code_table,
    "actions": action_table,
    "preemption": preemption_table,
    "api": reference,
}


def fill(text: str) -> str:
    """``text`` with each table put between its markers; raises ValueError for a broken pair, and for none."""
    found = False
    for name, table in TABLES.items():
        start, end = f"<!-- {name}:start -->", f"<!-- {name}:end -->"
        head, found_start, rest = text.partition(start)
        _, found_end, tail = rest.partition(end)
        if found_start and found_end:
            found = True
            text = f"{head}{start}\n{table()}\n{end}{tail}"
        elif start in text or end in text:
            raise ValueError(f"the markers {start} and {end} have to stand one after the other")
    if not found:
        raise ValueError(f"there are no markers, such as <!-- {name}:start --> and <!-- {name}:end -->")
    return text


def main(argv: Sequence[str]) -> int:
    """Print the tables, or with ``--write FILE...`` write them into these files."""
    if not argv:
        print("\n\n".join(table() for table in TABLES.values()))
        return 0
    if len(argv) < 2 or argv[0] != "--write":
        print("usage: python -m elasticrun.cli.table [--write FILE...]", file=sys.stderr)
        return 2
    for path in map(Path, argv[1:]):
        try:
            path.write_text(fill(path.read_text(encoding="utf-8")), encoding="utf-8")
        except (OSError, ValueError) as error:
            print(f"{path}: {error}", file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
