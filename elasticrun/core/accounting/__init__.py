"""Where the time of a job went: each microsecond of each node, by what it was spent on."""
