"""The published experiment of PaddlePaddle's EDL: one cluster of 133 nodes, without and with its autoscaler.

Source: PaddlePaddle/cloud (now PaddlePaddle/PaddleCloud), doc/edl/experiment/README.md, and the logs of
single passes in doc/autoscale/experiment/out (case1-mnist-OFF-20-1-ON-400-round_0,
case2-mnist-OFF-6-1-ON-400-round_0).

Published figures, means of ten passes, pending time in seconds and share of the processors that is requested:

| case | without | with |
|---|---|---|
| 1: 20 jobs one after another, which outlast the experiment | 280.5 s, 76.2 % | 42.9 s, 76.3 % |
| 2: 6 jobs beside 400 to 100 to 400 pods of nginx | 1.5 s, 61.9 % | 53.6 s, 83.4 % |
| 2, seconds 300 to 370 | 44.9 % | 79.4 % |

The README's mean pending times of case 1 are the sums of ten passes divided by eleven; its ten values have
the means 308.5 and 47.2. An autoscaler cannot raise the utilisation of case 1, as jobs of 60 trainers fill
the cluster as well. Its gain there is in pending time, and in case 2 in utilisation.

Taken from the logs: when jobs came, and when the pods of nginx were fewer or more; the share of all
processors that the system (2.11 %), one pod of nginx (0.1279 %), one trainer (0.2129 %), and the parameter
servers and master of a job (1.747 %) ask for; the largest share that was ever in use, 88.65 %: the rest is
in fragments. Without the autoscaler the jobs of case 1 had 60 trainers, or what of them found room (348 in
six jobs), and those of case 2 had 15.

Assumed: a pod that is removed is gone after 30 s, the grace period that Kubernetes gives by default, and a
new one is there at once. So what a pod takes to start is in the published pending times, and not in the
replayed ones. Trainers have the assumed curve, and a change of size takes 10 s.
"""

from __future__ import annotations

from elasticrun.dataclass import dataclass
from elasticrun.sim.cluster.trace import Asked, Trace

#: A unit is a millionth of all processors.
TOTAL, USABLE, SYSTEM = 1_000_000, 886_500, 21_100
NGINX, TRAINER, BESIDES = 1_279, 2_129, 17_470
LEAST, MOST = 2, 60
SUBMITTED = (
    *(10, 27, 44, 61, 79, 97, 115, 135, 150, 168),
    *(185, 201, 223, 241, 261, 275, 290, 312, 335, 350),
)
PODS = ((0, 400), (118, 300), (209, 200), (301, 100), (391, 200), (484, 300), (576, 400))
END = 690.0


@dataclass(frozen=True, slots=True)
class Published:
    """Means of the passes."""

    pending: float  # seconds
    utilisation: float


#: By case; first without, then with the autoscaler.
PUBLISHED = {
    1: (Published(280.455, 0.761626), Published(42.9091, 0.763321)),
    2: (Published(1.5, 0.618629), Published(53.55, 0.834247)),
}


def case_1() -> Trace:
    """Twenty jobs come one after another."""
    jobs = tuple(_job(number, float(at), MOST) for number, at in enumerate(SUBMITTED))
    return Trace("EDL, case 1", USABLE, TOTAL, jobs, ((0.0, SYSTEM),), END)


def case_2() -> Trace:
    """Six jobs run beside a web service that needs less for a while."""
    jobs = tuple(_job(number, at, 15) for number, at in enumerate((7.0, 18.0, 29.0, 38.0, 46.0, 51.0)))
    others = tuple((float(at), SYSTEM + pods * NGINX) for at, pods in PODS)
    return Trace("EDL, case 2", USABLE, TOTAL, jobs, others, END)


def _job(number: int, at: float, fixed: int) -> Asked:
    return Asked(f"job-{number:02}", at, LEAST, MOST, fixed, takes=TRAINER, besides=BESIDES, pause=10.0)
