"""elasticrun: a launcher for training jobs that outlive the crash of a worker, a node or the master.

``elastic-run`` takes torchrun's command line. This package stays light on purpose: importing it
imports neither grpc nor torch.
"""

__version__ = "0.1.0"
