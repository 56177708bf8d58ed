"""The rows of the option table (``cli/options.py``) about those who look at the job from outside."""

# fmt: off

from __future__ import annotations

from typing import Any

from elasticrun.cli import values
from elasticrun.cli.option import Group, Option, Origin
from elasticrun.config import LaunchConfig

WEB = Option(
    "web", Group.WATCH, values.web_address, "[HOST]:PORT",
    "Serve a page that shows the job, from a process of its own on this node; without HOST to this host "
    "only. Needs pip install 'elasticrun[web]'.",
    allowed="[HOST]:PORT with a port from 0 to 65535, such as :8080 or node0:8080", origin=Origin.OURS,
    blank=True, sets=LaunchConfig,
)
WEB_READ = Option(
    "web-read", Group.WATCH, values.one_of("auto", "token", "anyone"), "WHO",
    "Who may read the page without the job's token: auto (everybody on this host, if it is served to this "
    "host only), token (nobody), anyone. Orders, stacks and logs always need the token.",
    allowed="auto, token or anyone", origin=Origin.OURS, sets=LaunchConfig,
)
TRACES = Option(
    "traces", Group.WATCH, values.plain, "URL",
    "Send the job's recoveries as OpenTelemetry traces to this URL (OTLP over HTTP). Needs pip install "
    "'elasticrun[traces]'.",
    allowed="a URL such as http://collector:4318/v1/traces", origin=Origin.OURS, blank=True,
    sets=LaunchConfig,
)

WATCH_OPTIONS: tuple[Option[Any], ...] = (WEB, WEB_READ, TRACES)
