"""The report as one file of HTML: nothing is loaded from elsewhere, and no script runs.

The page forbids itself whatever it does not need, so that a log cannot make it load or run anything, even if
its text were not escaped somewhere.
"""

from __future__ import annotations

from datetime import datetime, timezone

from elasticrun.core.review.document import Report
from elasticrun.ui.report import sections
from elasticrun.ui.report.html import Html, el, join, raw
from elasticrun.ui.report.style import SHEET

POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


def page(report: Report, title: str, version: str) -> str:
    """The file."""
    parts: list[tuple[str, str, Html | None]] = [
        ("advice", "Advice", sections.advice(report)),
        ("time", "Goodput over time", sections.over_time(report)),
        ("lost", "Where the time went", sections.where(report)),
        ("rounds", "Rounds and failures", sections.rounds(report)),
        ("failures", "Failures by class", sections.failures(report)),
        ("recoveries", "Recoveries", sections.recoveries(report)),
        ("nodes", "Slowest nodes", sections.nodes(report)),
        ("saved", "Saved states", sections.saved(report)),
        ("if", "What if", sections.what_if(report)),
    ]
    shown = [(name, head, body) for name, head, body in parts if body is not None]
    body = join(
        el("h1", title),
        el("p", _subtitle(report), class_="soft"),
        el("nav", *(el("a", head, href=f"#{name}") for name, head, _ in shown), aria_label="sections"),
        el(
            "main",
            sections.tiles(report),
            *(el("div", note, class_="note") for note in report.notes),
            *(el("section", el("h2", head), body, id=name, aria_label=head) for name, head, body in shown),
        ),
        el(
            "footer",
            f"elasticrun {version}, from {report.entries} lines of the event log. Times count from"
            " the start of the job's clock; dates are in UTC.",
        ),
    )
    return (
        "<!doctype html>\n"
        + el(
            "html",
            el(
                "head",
                el("meta", charset="utf-8"),
                el("meta", name_="viewport", content="width=device-width, initial-scale=1"),
                el("meta", http_equiv="Content-Security-Policy", content=POLICY),
                el("title", title),
                el("style", raw(SHEET)),
            ),
            el("body", body),
            lang="en",
        )
        + "\n"
    )


def _subtitle(report: Report) -> str:
    if not report.entries:
        return "Nothing is known."
    began, ended = (
        datetime.fromtimestamp(each, timezone.utc).strftime("%Y-%m-%d %H:%M:%S")
        for each in (report.began, report.ended)
    )
    ending = f"{report.outcome}: {report.reason}" if report.outcome else "not over"
    return f"{began} to {ended} UTC, {ending}"
