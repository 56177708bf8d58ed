"""Which hosts a launch wants, and when each is started, drained or left out. Pure."""
