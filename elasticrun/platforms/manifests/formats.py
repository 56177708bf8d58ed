"""The formats there are: what each can say, and who builds it.

To add one: a builder from a ``Workload`` to dicts, a row here, its dry run in the tests, and a line in the
manual.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from enum import Enum

from elasticrun.dataclass import dataclass
from elasticrun.platforms.manifests.batch import job, jobset, kueue, statefulset
from elasticrun.platforms.manifests.operators import pytorchjob, tfjob, trainjob, volcano
from elasticrun.platforms.manifests.pods import Manifest
from elasticrun.platforms.manifests.slurm import sbatch
from elasticrun.platforms.manifests.text import as_yaml
from elasticrun.platforms.manifests.workload import Workload


class Queue(Enum):
    """Whether a format takes the name of a queue."""

    NONE = "none"
    OPTIONAL = "optional"
    NEEDED = "needed"


@dataclass(frozen=True, slots=True)
class Format:
    """One row."""

    name: str
    build: Callable[[Workload], list[Manifest]] | Callable[[Workload], str]
    queue: Queue = Queue.NONE
    has_time_limit: bool = True
    has_roles: bool = False


FORMATS: tuple[Format, ...] = (
    Format("job", job),
    Format("jobset", jobset),
    Format("statefulset", statefulset, has_time_limit=False),
    Format("pytorchjob", pytorchjob, Queue.OPTIONAL),
    Format("trainjob", trainjob),
    Format("volcano", volcano, Queue.OPTIONAL, has_time_limit=False),
    Format("kueue", kueue, Queue.NEEDED),
    Format("tfjob", tfjob, Queue.OPTIONAL, has_roles=True),
    Format("sbatch", sbatch, Queue.OPTIONAL),
)
#: The one that is no manifest of Kubernetes.
SBATCH = FORMATS[-1]


def render(form: Format, workload: Workload) -> str:
    """The text that the platform takes."""
    made = form.build(workload)
    return made if isinstance(made, str) else as_yaml(_notes(form, workload), made)


def _notes(form: Format, workload: Workload) -> list[str]:
    name, where = workload.name, f" --namespace {workload.namespace}" if workload.namespace else ""
    low, high = workload.nodes
    size = f"{low} node{'s' if low > 1 else ''}" if low == high else f"{low} to {high} nodes"
    notes = [f"The job {name} on {size}, for elasticrun: kubectl apply{where} -f FILE"]
    if workload.token_secret:
        path = workload.token_file or f"{name}.token"
        notes += ["First make its token a Secret:"]
        if not workload.token_file:
            notes += [f"  elastic-ctl token create --path {path}"]
        source = shlex.quote(f"token={path}")
        notes += [f"  kubectl create secret generic {workload.token_secret}{where} --from-file={source}"]
    if form.name == "trainjob" and low < high:
        notes += [
            f"A TrainJob is not elastic: {high} nodes are asked for, the job runs while {low} are left."
        ]
    return notes
