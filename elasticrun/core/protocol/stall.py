"""The silence of a node's workers, as a value that agents tell the master."""

from enum import Enum
from typing import Annotated

from elasticrun.core.protocol.bounds import RANKS, SECONDS, STEPS, TIMESTAMPS, Path, Sentence, Unknown
from elasticrun.dataclass import dataclass


class Evidence(Enum):
    """Why a silence counts as a hang; see ``core/progress/silence.py``."""

    NONE = "none"  # it may be work: it is reported, and waited for
    STILL = "still"  # every rank here waits for others, and no process below one has done anything
    LAST_BOUND = "last_bound"  # it has lasted so long that it counts as a hang without further evidence
    TIMEOUT = "timeout"  # it has lasted longer than the user's timeout


@dataclass(frozen=True, slots=True)
class Stall:
    """No worker of a node has made a step for too long; describes the worker that lags."""

    rank: Annotated[int, RANKS]
    local_rank: Annotated[int, RANKS]
    step: Annotated[int, STEPS]  # the last one it made
    silence: Annotated[float, SECONDS]  # since then
    allowed: Annotated[float, SECONDS]  # seconds that were allowed
    in_collective: bool  # by its stack: it waits for others
    where: Sentence = ""  # the innermost frame of its stack
    stacks: Path = ""  # the directory on its host in which all stacks were saved; "": they were not
    # Wall clock of its host when it was found, in seconds; shown, never compared.
    timestamp: Annotated[float, TIMESTAMPS] = 0.0
    evidence: Annotated[Evidence, Unknown(Evidence.NONE)] = Evidence.NONE
    lasting: Annotated[float, SECONDS] = 0.0  # seconds for which the evidence had held when this was sent
    doubt: Sentence = ""  # without evidence: what speaks for work
