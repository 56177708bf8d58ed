"""What tests put into journals."""

from __future__ import annotations

from elasticrun.master.journal import Entry, Journal


def append(journal: Journal, *entries: Entry) -> None:
    """Write each entry by itself, as a master does that has nothing else in hand."""
    for entry in entries:
        journal.add(entry)
        journal.commit()
