"""How the nodes of a cluster are shared by many jobs."""
