"""Panels for JupyterLab.

lab        `pl.Lab()`: the panels together, and what a notebook without a kernel shows
run        the run panel
controls   its inputs, and which choices cannot work
engines    where its runs happen
parts      buttons, log, tiles, errors
style      how it looks
"""

from parallab.panels.lab import Lab
from parallab.panels.run import RunPanel

__all__ = ["Lab", "RunPanel"]
