"""The processes of one round: their environment, ports, stores, errors."""
