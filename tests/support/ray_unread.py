"""A driver on a cluster in memory, whose first node crashes; it ends with 0 once another one runs.

Its standard error is a pipe that is full, and that nobody reads.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path


async def main() -> None:
    """Run it."""
    from elasticrun.agent.signals import SignalInbox
    from elasticrun.config import SecurityConfig
    from elasticrun.core.fleet.replicas import Note, Shape, Wish
    from elasticrun.platforms.ray.driver import RayJob, drive
    from elasticrun.platforms.ray.words import Needs
    from tests.support.ray_fake import FakeActor, FakeCluster

    class Cluster(FakeCluster):
        def start(self, name: str, needs: Needs, bundle: int, avoided: Sequence[str]) -> FakeActor:
            actor = super().start(name, needs, bundle, avoided)
            if len(self.actors) == 1:
                actor.ended.set_result(70)
            else:
                actor.begun = lambda: os._exit(0)
            return actor

    def tell(note: Note) -> None:
        logging.warning("%s", note.text)

    master = (sys.executable, "-c", "import sys; print('{\"port\": 9}', flush=True); sys.stdin.read()")
    wish = Wish(Shape(1, 1, 0), 1)
    job = RayJob("job", wish, Needs(1.0), SecurityConfig(), master, lambda *_: {}, lambda *_: b"request")
    logging.basicConfig(level="INFO")
    await drive(job, Cluster(), SignalInbox(()), tell)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent.parent))
    asyncio.run(main())
