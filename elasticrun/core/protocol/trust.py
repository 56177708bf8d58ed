"""How far the master trusts a sender."""

from __future__ import annotations

from enum import Enum


class Trust(Enum):
    """What the sender of a Hello has proved. The master's end of the stream decides it; it is never sent."""

    STRANGER = "stranger"  # nothing
    MEMBER = "member"  # that it knows the job's token, or is the only agent that can speak to this master
    RETURNING = "returning"  # that it is the incarnation that was given the secret in an earlier Welcome
