"""The rows of the option table (``cli/options.py``) about saved states."""

# fmt: off

from __future__ import annotations

from typing import Any

from elasticrun.cli import values
from elasticrun.cli.option import Group, Option, Origin
from elasticrun.config import MAX_STATE_COPIES, JobConfig, WorkerConfig

_TIME = "a time above 0, in seconds or with s, m, h or d"

STATE_COPIES = Option(
    "state-copies", Group.STATE, values.whole(0, MAX_STATE_COPIES), "N",
    "Of what only one host has of a saved state, N other hosts keep a copy in memory; 0 keeps none.",
    allowed=f"a whole number from 0 to {MAX_STATE_COPIES}", origin=Origin.OURS, sets=JobConfig,
)
STATE_COPY_RATE = Option(
    "state-copy-rate", Group.STATE, values.byte_rate, "BYTES|off",
    "The most bytes a second that this node sends of such copies, such as 500MB or 2GiB; off sets no bound.",
    allowed="1MB or more, as a number of bytes or with MB, GB, MiB or GiB, or off", default="off",
    origin=Origin.OURS, sets=WorkerConfig,
)

STATE_STORAGE = Option(
    "state-storage", Group.STATE, values.plain, "DIR|URL",
    "Write saved states to this directory, or URL for fsspec; a job that is started anew goes on from there.",
    allowed="a directory that all nodes share, or a URL such as s3://bucket/run", origin=Origin.OURS,
    blank=True, sets=JobConfig,
)
STATE_STORAGE_EVERY = Option(
    "state-storage-every", Group.STATE, values.duration, "TIME",
    "The shortest time between two saved states that are written to the storage, such as 30s, 5m or 2h.",
    allowed=_TIME, default="5m", origin=Origin.OURS, sets=JobConfig,
)
STATE_KEEP = Option(
    "state-keep", Group.STATE, values.whole(1), "N",
    "Keep the newest N saved states in the storage; without this and --state-keep-for all stay.",
    allowed="a whole number of 1 or more", origin=Origin.OURS, sets=JobConfig,
)
STATE_KEEP_FOR = Option(
    "state-keep-for", Group.STATE, values.duration_or_off, "TIME|off",
    "Keep what was written to the storage less than so long ago, such as 12h or 7d; the newest always stays.",
    allowed=f"{_TIME}, or off", default="off", origin=Origin.OURS, sets=JobConfig,
)
STATE_FLUSH_TIMEOUT = Option(
    "state-flush-timeout", Group.STATE, values.duration_or_off, "TIME|off",
    "How long a job that ends, or a node that leaves, stays until its newest saved state is in the storage.",
    allowed=f"{_TIME}, or off", default="60s", origin=Origin.OURS, sets=JobConfig,
)

#: What means nothing without ``STATE_STORAGE``.
OF_STORAGE: tuple[Option[Any], ...] = (STATE_STORAGE_EVERY, STATE_KEEP, STATE_KEEP_FOR, STATE_FLUSH_TIMEOUT)

STATE_OPTIONS: tuple[Option[Any], ...] = tuple(
    row for row in tuple(globals().values()) if isinstance(row, Option)
)
