"""Engines: start or attach, run, stop, recover, release. One engine is one rank.

cluster.py       Cluster, what a person uses
run.py           LiveRun, one run under way
verification.py  Verification, what Cluster.verify found
calls.py         one call on many ranks, and what to tell when some fail
engine.py        what runs on an engine
pool.py          engines as the others see them; local.py ours, attached.py somebody else's
processes.py     our controller, nursery and engines, seen from here; boot.py, seen from there
directory.py     their private directory; interrupts.py what Ctrl-C must not leave half done
places.py        where ranks compute: free GPUs (gpus.py, leases.py) or CPU cores
request.py       whether what is asked for can work; room.py whether it fits into memory
health.py        how the engines are, as data and as a table
"""

from parallab.cluster.cluster import Cluster
from parallab.cluster.run import LiveRun
from parallab.cluster.verification import Verification

__all__ = ["Cluster", "LiveRun", "Verification"]
