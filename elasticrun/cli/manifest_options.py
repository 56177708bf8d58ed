"""The options of ``elastic-ctl manifest`` beside those of ``elastic-run``: where and with what it runs."""

# fmt: off

from __future__ import annotations

from typing import Any

from elasticrun.cli import values
from elasticrun.cli.option import Group, Option, Origin, flag
from elasticrun.platforms.manifests import quantities
from elasticrun.platforms.manifests.formats import FORMATS

_NAMES = tuple(form.name for form in FORMATS)
_OBJECT = "a name of Kubernetes: lower-case letters, digits, - and ., with a letter or digit at both ends"
_OURS = Origin.OURS

FORMAT = Option(
    "format", Group.PROGRAM, values.one_of(*_NAMES), "NAME", f"{', '.join(_NAMES[:-1])} or {_NAMES[-1]}.",
    allowed=f"{', '.join(_NAMES[:-1])} or {_NAMES[-1]}", origin=_OURS,
)
NAME = Option(
    "name", Group.PROGRAM, quantities.job_name, "NAME", "Name of the job (default: that of the script).",
    allowed=f"at most {quantities.LONGEST_NAME} lower-case letters, digits and -, with a letter first and a "
    "letter or digit last", origin=_OURS,
)
NAMESPACE = Option(
    "namespace", Group.PROGRAM, quantities.object_name, "NAME", "Namespace of all objects.",
    allowed=_OBJECT, origin=_OURS,
)
IMAGE = Option(
    "image", Group.PROGRAM, quantities.image, "IMAGE", "Image with elasticrun and the script.",
    allowed="the name of an image, such as registry.example/team/train:1", origin=_OURS,
)
CPU = Option(
    "cpu", Group.PROGRAM, quantities.cpu, "N", "Cores of each node.",
    allowed="a number above 0, such as 4, 0.5 or 500m", origin=_OURS,
)
MEMORY = Option(
    "memory", Group.PROGRAM, quantities.memory, "SIZE", "Memory of each node; more than that ends the pod.",
    allowed="a number above 0 with Ki, Mi, Gi, Ti, k, M, G or T, such as 64Gi", origin=_OURS,
)
GPU = Option(
    "gpu", Group.PROGRAM, quantities.devices, "[RESOURCE=]N", "Devices of each node, of nvidia.com/gpu.",
    allowed="a whole number, or RESOURCE=N such as amd.com/gpu=8", origin=_OURS,
)
SHM = Option(
    "shm", Group.PROGRAM, quantities.memory, "SIZE",
    "Size of /dev/shm, which counts as memory (default: bounded by --memory only).",
    allowed="a number above 0 with Ki, Mi, Gi, Ti, k, M, G or T, such as 8Gi", origin=_OURS,
)
SPOT = flag(
    "spot", Group.PROGRAM, "May run on nodes that are taken away: tolerate the taints of large clouds.",
    origin=_OURS,
)
RESTRICTED = flag(
    "restricted", Group.PROGRAM,
    "Ask for no more than the Pod Security Standard of that name allows; only /tmp can be written to.",
    origin=_OURS,
)
QUEUE = Option(
    "queue", Group.PROGRAM, quantities.queue_name, "NAME", "Queue of Kueue or Volcano; partition of Slurm.",
    allowed="the name of a queue", origin=_OURS,
)
PRIORITY_CLASS = Option(
    "priority-class", Group.PROGRAM, quantities.object_name, "NAME", "Which jobs may push out which.",
    allowed=_OBJECT, origin=_OURS,
)
SERVICE_ACCOUNT = Option(
    "service-account", Group.PROGRAM, quantities.object_name, "NAME",
    "Account of the pods; without it they get none, as elastic-run needs none.",
    allowed=_OBJECT, origin=_OURS,
)
PULL_SECRET = Option(
    "pull-secret", Group.PROGRAM, quantities.object_name, "NAME", "Secret for the registry of the image.",
    allowed=_OBJECT, origin=_OURS,
)
TOKEN_SECRET = Option(
    "token-secret", Group.PROGRAM, quantities.object_name, "NAME",
    "Secret with the job's token under the key token (default: NAME-token; none with --no-token).",
    allowed=_OBJECT, origin=_OURS,
)
TIME_LIMIT = Option(
    "time-limit", Group.PROGRAM, values.duration, "TIME", "How long the job may run, such as 90m, 12h or 7d.",
    allowed="a time above 0, in seconds or with s, m, h or d", origin=_OURS,
)
RUNTIME = Option(
    "runtime", Group.PROGRAM, quantities.object_name, "NAME", "ClusterTrainingRuntime of a TrainJob.",
    allowed=_OBJECT, default="torch-distributed", origin=_OURS,
)
KUBERNETES = Option(
    "kubernetes", Group.PROGRAM, quantities.version, "1.MINOR",
    "Oldest version of the cluster: newer fields are left out.",
    allowed="1.25 or newer, such as 1.29", default="1.31", origin=_OURS,
)
ENV = Option(
    "env", Group.PROGRAM, quantities.variable, "NAME=VALUE", "A variable of elastic-run and its workers.",
    allowed="NAME=VALUE", origin=_OURS,
)
NODE_SELECTOR = Option(
    "node-selector", Group.PROGRAM, quantities.label, "KEY=VALUE", "A label that nodes have to have.",
    allowed="KEY=VALUE of a label", origin=_OURS,
)
VOLUME = Option(
    "volume", Group.PROGRAM, quantities.claim, "CLAIM:PATH", "Mount a PersistentVolumeClaim there.",
    allowed="CLAIM:PATH with an absolute path, such as data:/data", origin=_OURS,
)

#: May be given more than once.
REPEATED: tuple[Option[Any], ...] = (ENV, NODE_SELECTOR, VOLUME)
ROWS: tuple[Option[Any], ...] = tuple(row for row in tuple(globals().values()) if isinstance(row, Option))
#: What means nothing to Slurm.
OF_KUBERNETES: tuple[Option[Any], ...] = (
    NAMESPACE, IMAGE, SHM, SPOT, RESTRICTED, PRIORITY_CLASS, SERVICE_ACCOUNT, PULL_SECRET, TOKEN_SECRET,
    RUNTIME, KUBERNETES, NODE_SELECTOR, VOLUME,
)
