"""Reports as pictures: pure functions from a Report to a matplotlib Figure, and a live view.

style           one colour per category and per operation, units, captions
history         the listening half: what a run reports, as arrays
boxes           many rectangles at the price of one
labels          many short texts at the price of one
memory          memory per GPU over a step
gantt           a step's spans on one clock, and the planned schedule
timeline        every rank's work, communication and memory in one step
communication   bytes per step by operation and axis
traffic         bytes from rank to rank
loss            the loss curve
figures         Report -> Figure
peaks           the peak of each kind of rank against a card's memory
scale           memory, bytes and time on more and more devices
compare         several Reports side by side
mesh            where each rank is, and what passes between them
idea            the idea of each strategy in one picture
live            the drawing half: many frames a second
"""

from parallab.plots.compare import plot_comparison
from parallab.plots.figures import (
    plot_communication,
    plot_loss,
    plot_memory,
    plot_report,
    plot_timeline,
    plot_traffic,
)
from parallab.plots.history import History
from parallab.plots.idea import plot_exchange, plot_schedules, plot_split, plot_states
from parallab.plots.live import LiveFigure, LiveRunView
from parallab.plots.mesh import plot_mesh
from parallab.plots.peaks import plot_peaks
from parallab.plots.scale import plot_scale

__all__ = [
    "History",
    "LiveFigure",
    "LiveRunView",
    "plot_communication",
    "plot_comparison",
    "plot_exchange",
    "plot_loss",
    "plot_memory",
    "plot_mesh",
    "plot_peaks",
    "plot_report",
    "plot_scale",
    "plot_schedules",
    "plot_split",
    "plot_states",
    "plot_timeline",
    "plot_traffic",
]
