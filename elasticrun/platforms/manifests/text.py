"""Manifests as YAML text; the only place of this folder that knows YAML."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import yaml


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as such, and nothing by reference."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _write_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _write_text)


def as_yaml(notes: Sequence[str], manifests: Iterable[Mapping[str, Any]]) -> str:
    """The documents, one after the other, below the notes as comments."""
    head = "".join(f"# {note}".rstrip() + "\n" for note in notes)
    parts = yaml.dump_all(
        manifests, Dumper=_Dumper, sort_keys=False, width=110, explicit_start=True, allow_unicode=True
    )
    return head + parts
