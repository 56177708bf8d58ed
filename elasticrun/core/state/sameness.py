"""Whether what a training saves changes at all.

A state that was copied before the loop, and is saved again and again, is a failure that nobody sees until it
is restored: training goes on, saves succeed, and the step that comes back is the first one. A save computes
digests of all that it copies, so this costs one comparison.

Some trainings rightly leave all tensors as they are for a few steps: one with a loss scale skips steps whose
gradients have overflowed. So only ``SAME`` saves in a row with the same tensors are worth a warning, and it
is told once. An entry of the state may rightly stay the same for good, as one that is computed once. So one
entry alone is worth a warning only if it looks like a copy of what is trained.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from elasticrun.dataclass import dataclass

#: Saves in a row with the same tensors before somebody is warned.
SAME = 5


@dataclass(frozen=True, slots=True)
class Sameness:
    """What is known of one entry after some saves of one rank."""

    digest: str = ""  # of the tensors in the last save
    since: int = 0  # the step of the first save in a row that had them
    count: int = 0  # the saves in that row

    def after(self, step: int, digest: str) -> Sameness:
        """What is known after one more save. ``digest``: of the tensors that training should change."""
        is_same = digest == self.digest and self.count > 0
        return Sameness(digest, self.since if is_same else step, self.count + 1 if is_same else 1)


class Watch:
    """What is known of all entries of one rank."""

    def __init__(self) -> None:
        self._entries: dict[str, Sameness] = {}
        self._has_warned = False

    def after(self, step: int, digests: Mapping[str, str]) -> list[str]:
        """Take in one more save. Returns the entries that have stayed the same for too long.

        ``digests``: of the tensors that training should change, for each entry that has such tensors. Nothing
        is returned once a warning was given.
        """
        self._entries = {
            name: self._entries.get(name, Sameness()).after(step, digest) for name, digest in digests.items()
        }
        same = [name for name, entry in self._entries.items() if entry.count >= SAME]
        return [] if self._has_warned else same

    def warning(self, step: int, same: Collection[str], copies: Collection[str]) -> str:
        """What to say of entries that stay the same, in a sentence; "" if that may be right.

        ``copies``: those of them that look like copies of what is trained.
        """
        if same and len(same) == len(self._entries):
            self._has_warned = True
            since = max(entry.since for entry in self._entries.values())
            return (
                f"no tensor that this rank saves has changed from step {since} to step {step}: unless all of"
                " them are frozen, `state` has copies; give `save` the model and the optimizer themselves"
            )
        for name in copies:
            self._has_warned = True
            return (
                f"no tensor of {name!r} has changed from step {self._entries[name].since} to step {step}, and"
                " what the optimizer trains is not in `state`: give `save` the model itself, and no copy"
            )
        return ""
