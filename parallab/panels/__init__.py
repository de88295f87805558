"""Panels for JupyterLab.

lab        `pl.Lab()`: the panels together, and what a notebook without a kernel shows
run        the run panel
controls   its inputs, and which choices cannot work
proposals  the plan nearest to what a person asked for
words      labels and hints of the inputs
tiles      the main figures
engines    where its runs happen
parts      buttons, log, errors
style      how it looks
"""

from parallab.panels.lab import Lab
from parallab.panels.run import RunPanel

__all__ = ["Lab", "RunPanel"]
