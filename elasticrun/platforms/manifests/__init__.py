"""What runs a job of ``elastic-run`` on a cluster, as text: pure functions of a ``Workload``."""
