"""What a plan costs, by closed forms: no torch, no devices, no waiting.

Each file holds the formulas of one quantity, each with its source. The tests hold every formula to
measured ranks.
"""

from parallab.predict.report import predict

__all__ = ["predict"]
