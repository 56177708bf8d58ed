"""What is to run on a platform: a job of ``elastic-run``, its sizes, and what its pods need."""

from __future__ import annotations

from collections.abc import Container, Iterator

from elasticrun.dataclass import dataclass

#: The job's endpoint is served by this many hosts if MIN allows it; then the loss of any one is survived.
HOSTS = 3
PROGRAM = "elastic-run"
#: The port of the endpoint; a pod has its network to itself.
PORT = 29400


@dataclass(frozen=True, slots=True)
class Workload:
    """A job of ``elastic-run`` for one platform; every text in it is checked and valid there."""

    name: str
    image: str = ""
    namespace: str = ""  # "": the one of whoever applies the manifest
    options: tuple[tuple[str, str], ...] = ()  # of elastic-run, and their values; "" for a flag
    command: tuple[str, ...] = ()  # the script and its arguments
    nodes: tuple[int, int] = (1, 1)  # MIN and MAX
    workers: str = "1"  # on each node, as --nproc-per-node takes it
    max_restarts: int = 0
    conf: tuple[tuple[str, str], ...] = ()  # of --rdzv-conf
    roles: tuple[tuple[str, int], ...] = ()  # of a TensorFlow job: how many nodes have which role
    grace: int = 30  # seconds from the signal that stops a launcher to its end
    token_secret: str = ""  # the name of a Secret; "": the job has no token
    token_file: str = ""  # where the token lies on the host of the user; in a Slurm job, on each node
    cpu: str = ""
    memory: str = ""
    gpu: tuple[str, int] = ("nvidia.com/gpu", 0)  # resource and number
    shm: str = ""  # "": as much as the memory of the container allows
    is_spot: bool = False
    is_restricted: bool = False  # no root, no capabilities, and nothing is written but to /tmp and volumes
    queue: str = ""
    priority_class: str = ""
    service_account: str = ""
    pull_secret: str = ""
    node_selector: tuple[tuple[str, str], ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    volumes: tuple[tuple[str, str], ...] = ()  # claim and path
    time_limit: int = 0  # seconds; 0: none
    minor: int = 31  # the cluster runs Kubernetes 1.MINOR or newer
    runtime: str = "torch-distributed"  # of a TrainJob

    def endpoint(self, host: str) -> str:
        """The value of ``--rdzv-endpoint``; ``host`` is the name of a node, with {} for its number."""
        count = HOSTS if self.nodes[0] >= HOSTS else 1
        return ",".join(f"{host.format(number)}:{PORT}" for number in range(count))

    def argv(self, endpoint: str, without: Container[str] = (), nodes: str = "") -> list[str]:
        """The command line on each node. ``without``: options that the platform sets in another way.

        ``nodes``: what to say for ``--nnodes`` (default: MIN:MAX).
        """
        low, high = self.nodes
        ours = {
            "--nnodes": nodes or (str(low) if low == high else f"{low}:{high}"),
            "--nproc-per-node": self.workers,
            "--max-restarts": str(self.max_restarts),
            "--rdzv-id": self.name,
            "--rdzv-endpoint": endpoint,
            "--rdzv-conf": ",".join(f"{key}={value}" for key, value in self.conf),
        }
        words = [PROGRAM]
        words += _words((flag, text) for flag, text in ours.items() if text and flag not in without)
        words += _words(self.options)
        return [*words, "--", *self.command] if self.command else words


def _words(pairs: Iterator[tuple[str, str]] | tuple[tuple[str, str], ...]) -> list[str]:
    return [word for flag, text in pairs for word in ((flag, text) if text else (flag,))]
