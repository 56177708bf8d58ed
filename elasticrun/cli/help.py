"""The text of ``elastic-run --help``, made from the option table; plain, at most 100 columns wide."""

from __future__ import annotations

import textwrap
from typing import Any

from elasticrun.cli.option import Group, Option, Origin
from elasticrun.cli.options import OPTIONS

WIDTH = 100
_INDENT = 30

_USAGE = """\
Usage: elastic-run [OPTIONS] SCRIPT [ARGUMENTS OF THE SCRIPT]

Starts a training program on this node as part of a job that outlives the crash of a worker or a
node. Takes torchrun's command line: put elastic-run where torchrun stood. Everything after SCRIPT
belongs to the script. TensorFlow programs are started as well, with TF_CONFIG.
"""

_NOTES = """\
Options marked * are elasticrun's own; all others are torchrun's.
--with-dashes and --with_underscores are the same, and a beginning that fits one option only is
enough (--redirect=3). Options can also be set in the environment: PET_NNODES for --nnodes,
PET_REDIRECTS for -r; a flag is 1 or 0 there. The command line wins.
elastic-ctl manual lists the pages that say more, such as: elastic-ctl manual troubleshooting
"""

_EXAMPLES = """\
Examples:
  One machine, one worker for each GPU, at most 3 restarts:
    elastic-run --standalone --nproc-per-node gpu --max-restarts 3 train.py --epochs 10

  2 to 4 machines, the same line on each; the one named by the endpoint hosts the master:
    elastic-run --nnodes 2:4 --nproc-per-node 8 --rdzv-id job1 --rdzv-backend c10d \\
        --rdzv-endpoint node0.example.com:29400 train.py

  2 machines, numbered by hand (the other one says --node-rank 1):
    elastic-run --nnodes 2 --node-rank 0 --master-addr node0.example.com --master-port 29500 \\
        --nproc-per-node 8 train.py

  3 machines, any one of which may be lost; node1 takes over as the master's host:
    elastic-run --nnodes 2:3 --nproc-per-node 8 --rdzv-id job1 --rdzv-backend c10d \\
        --rdzv-endpoint node0,node1,node2 --token-file job1.token train.py

  Check 4 machines, and train nothing:
    elastic-run --nnodes 4 --rdzv-backend c10d --rdzv-endpoint node0 --health-check-only

  TensorFlow on one machine: 4 mirrored workers; then a chief, 4 workers and 2 parameter servers:
    elastic-run --framework tensorflow --nproc-per-node 4 --max-restarts 3 train.py
    elastic-run --role-counts chief=1,worker=4,ps=2 --max-restarts 3 train.py

  The same on 7 machines, of which this one is a parameter server:
    elastic-run --nnodes 7 --rdzv-id job1 --rdzv-backend c10d --rdzv-endpoint node0 \\
        --tf-role ps --max-restarts 3 train.py

  As a container's entrypoint, with PET_NNODES, PET_RDZV_ENDPOINT, ... in its environment:
    ENTRYPOINT ["elastic-run", "-m", "mypackage.train"]
"""


def help_text() -> str:
    """The whole text, without a newline at the end."""
    groups = [_group_text(group) for group in Group]
    return "\n".join([_USAGE, *groups, _NOTES, _EXAMPLES]).rstrip()


def _group_text(group: Group) -> str:
    rows = [_row(option) for option in OPTIONS if option.group is group and not option.hidden]
    return "\n".join([f"{group.value}:", *rows, ""])


def _row(option: Option[Any]) -> str:
    short = f"-{option.short}, " if option.short else "    "
    left = f"  {short}{option.flag} {option.metavar}".rstrip()
    left += " *" if option.origin is Origin.OURS else ""
    right = textwrap.wrap(description(option), WIDTH - _INDENT, break_on_hyphens=False)
    if len(left) > _INDENT - 2:
        return "\n".join([left, *(" " * _INDENT + line for line in right)])
    first, *others = right
    return "\n".join([left.ljust(_INDENT) + first, *(" " * _INDENT + line for line in others)])


def description(option: Option[Any]) -> str:
    """The meaning of an option, with its default."""
    default = f" (default: {option.default_text})" if option.default_text else ""
    return option.help.removesuffix(".") + default + "." if default else option.help
