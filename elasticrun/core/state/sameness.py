"""Whether what a training saves changes at all.

A state that was copied before the loop, and is saved again and again, is a failure that nobody sees until it
is restored: training goes on, saves succeed, and the step that comes back is the first one. A save computes
digests of all that it copies, so this costs one comparison.

Some trainings rightly leave all tensors as they are for a few steps: one with a loss scale skips steps whose
gradients have overflowed. So only ``SAME`` saves in a row with the same tensors are worth a warning, and it
is told once.
"""

from __future__ import annotations

from dataclasses import replace

from elasticrun.dataclass import dataclass

#: Saves in a row with the same tensors before somebody is warned.
SAME = 5


@dataclass(frozen=True, slots=True)
class Sameness:
    """What is known after some saves of one rank."""

    digest: str = ""  # of the tensors in the last save; "": it had none
    since: int = 0  # the step of the first save in a row that had them
    count: int = 0  # the saves in that row
    warns: bool = False  # with the last save
    warned: bool = False  # then, or before

    def after(self, step: int, digest: str) -> Sameness:
        """What is known after one more save. ``digest``: of the tensors that training should change."""
        if not digest or digest != self.digest:
            return replace(self, digest=digest, since=step, count=1, warns=False)
        count = self.count + 1
        warns = count >= SAME and not self.warned
        return replace(self, count=count, warns=warns, warned=warns or self.warned)

    def warning(self, step: int) -> str:
        """What to say of it, in a sentence."""
        return (
            f"no tensor that this rank saves has changed from step {self.since} to step {step}: unless all of"
            " them are frozen, `state` has copies; give `save` the model and the optimizer themselves"
        )
