"""Take it home: a plan leaves the lab.

bundle    the plan as a file, and the torchrun command that trains it
configs   Accelerate's and DeepSpeed's settings for a training script of your own
"""

from parallab.take_home.bundle import TakeHome, read_plan, take_home

__all__ = ["TakeHome", "read_plan", "take_home"]
