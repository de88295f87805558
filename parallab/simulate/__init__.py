"""What a plan costs, from the very code that trains: on fake ranks, without devices or memory.

report     chooses the ranks that differ, and makes one Report of them
crew       the processes that simulate ranks, one after the other
worker     what such a process does
rank       one fake rank: the trainer on fake tensors, in a world that moves nothing
replicate  DDP for fake ranks
layers     deep models from shallow ones
"""

from parallab.simulate.report import simulate

__all__ = ["simulate"]
