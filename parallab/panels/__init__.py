"""Panels for JupyterLab.

lab         `pl.Lab()`: the panels together, and what a notebook without a kernel shows
tabs        several panels in one place, each built when it is first opened

run         the run panel
controls    its inputs, and which choices cannot work
proposals   the plan nearest to what a person asked for
picture     its figures and plots: predicted before a run, then the run itself
tiles       the main figures
why         predicted, simulated and measured side by side
engines     where its runs happen

calculator  what any plan would cost, while a slider moves
paper       its inputs: the run panel's, without any limit
cards       whose memory a plan is held against
sums        what memory is made of, in words
advisor     which plans fit some hardware, and why
scale       one model on more and more devices
scaling     its plans and points
compare     pinned Reports side by side, and what changed between two
pins        which Reports are kept, and the button that keeps one
pinned      one of them in the list
opener      saved Reports, by upload or path
take        the comparison as a file

theory      predictions, and simulations in the background
worker      the latest of what was asked, in another thread
words       labels and hints of the inputs, and what a replay says of itself
parts       buttons, log, errors
style       how it looks
"""

from parallab.panels.lab import Lab
from parallab.panels.run import RunPanel

__all__ = ["Lab", "RunPanel"]
