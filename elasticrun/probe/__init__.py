"""The probe child: it tests one node by itself, then its network together with other nodes.

Theory. A node that computes wrongly, or slowly, or whose network loses data, spoils the whole job's training,
and often silently. Two operations find nearly all such nodes, because training is made of them: a matrix
product and an all-gather. Both are therefore run on the hardware that training will use (GPUs and NCCL if
torch sees GPUs, else one core and gloo, else plain Python and TCP), both are timed by the wall clock, and the
results of both are verified, not only awaited.

It is a child because torch takes 100 MB and seconds to import, because a CUDA context is only released when
its process ends, and because a driver that hangs has to be killed. It is started by path in the job's own
interpreter, where elasticrun may not be installed: no module here imports anything of elasticrun from outside
this package, and torch is optional.

Time. The time of a probe is divided into equal shares: one for the self test and one for each *slot*. Every
deadline is a point on this schedule, not a duration: a node that is ready early waits for its peers for all
the time that is left until the slot's end, and one that lost a slot to a dead peer is in time for the next.
All nodes of a probe have the same schedule, and start it when their agents are told to, within milliseconds.

Invariants. A fault becomes a sentence in the result, never a traceback. What has been found is written at
once, so that a probe which then hangs or crashes has not run in vain. Every wait has a deadline.
"""
