"""Events, by which people hear what happened to a job."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

from elasticrun.core.fleet.replicas import Note
from elasticrun.platforms.kubernetes.api import Api, ApiError
from elasticrun.platforms.kubernetes.names import API_VERSION, KIND, core_path

COMPONENT = "elasticrun-operator"


async def tell(api: Api, metadata: Mapping[str, Any], note: Note, now: float) -> None:
    """Create an event of the job with these metadata. One that is refused is in the log all the same."""
    moment = datetime.fromtimestamp(now, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    body = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": f"{metadata['name']}.", "namespace": metadata["namespace"]},
        "involvedObject": {
            "apiVersion": API_VERSION,
            "kind": KIND,
            **{key: metadata[key] for key in ("name", "namespace", "uid")},
        },
        "reason": note.reason,
        "message": note.text[:1024],
        "type": "Warning" if note.is_warning else "Normal",
        "source": {"component": COMPONENT},
        "firstTimestamp": moment,
        "lastTimestamp": moment,
        "count": 1,
    }
    with contextlib.suppress(ApiError):
        await api.create(core_path(metadata["namespace"], "events"), body)
