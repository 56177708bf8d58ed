"""Manifests as YAML text; the only place of this folder that knows YAML."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from yaml import SafeDumper


def as_yaml(notes: Sequence[str], manifests: Iterable[Mapping[str, Any]]) -> str:
    """The documents, one after the other, below the notes as comments."""
    import yaml

    head = "".join(f"# {line}".rstrip() + "\n" for note in notes for line in note.splitlines() or [""])
    return head + yaml.dump_all(
        manifests, Dumper=_dumper(), sort_keys=False, width=110, explicit_start=True, allow_unicode=True
    )


@cache
def _dumper() -> type[SafeDumper]:
    """Writes texts of several lines as such, and nothing by reference. Only this verb waits for yaml."""
    import yaml

    class Dumper(yaml.SafeDumper):
        def ignore_aliases(self, data: Any) -> bool:
            return True

    def write_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
        # kubectl's parser takes more for numbers and switches than PyYAML knows of: 1e-4, 08, y.
        is_risky = len(text) < 2 or text[0] in "+-.0123456789"
        style = "|" if "\n" in text else "'" if is_risky else None
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)

    Dumper.add_representer(str, write_text)
    return Dumper
