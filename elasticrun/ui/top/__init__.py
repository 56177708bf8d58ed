"""``elastic-ctl top``: a job as one picture, live or at a moment of its past."""
