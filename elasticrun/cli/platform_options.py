"""The rows of the option table (``cli/options.py``) about where the nodes run."""

# fmt: off

from __future__ import annotations

from typing import Any

from elasticrun.cli import values
from elasticrun.cli.option import Group, Option, Origin

PLATFORM = Option(
    "platform", Group.SIZE, values.one_of("host", "ray"), "NAME",
    "Where the nodes run: host (this one is a node) or ray (on a Ray cluster, with this process as the "
    "driver). Needs pip install 'elasticrun[ray]'.",
    allowed="host or ray", default="host", origin=Origin.OURS,
)
PLATFORM_CONF = Option(
    "platform-conf", Group.SIZE, values.settings, "KEY=VALUE,...",
    "With --platform ray, what each node takes: cpus (its workers, if a number), gpus (0), memory (not "
    "reserved), or a resource of the cluster's own; and restarts (10), of nodes that fail.",
    allowed="KEY=VALUE,KEY=VALUE,... such as cpus=4,gpus=1,memory=16Gi", default="", blank=True,
    origin=Origin.OURS,
)

PLATFORM_OPTIONS: tuple[Option[Any], ...] = (PLATFORM, PLATFORM_CONF)
