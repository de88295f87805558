"""What the participants of a workshop saved, gathered for the leader: a folder of Reports."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from parallab import html
from parallab.compare import collection
from parallab.compare.collection import Named, short_name
from parallab.errors import ReportError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Classroom:
    """The Reports in a folder, each called after its file and its plan.

    A participant saves one with `report.save("ada.json")`, or with `--json ada.json` in a terminal.
    What is no Report is named and left out, so one bad file spoils nothing.

    >>> everyone = Classroom("reports")    # doctest: +SKIP
    >>> everyone.plot()                    # doctest: +SKIP

    Attributes:
        folder: where they lie; only files that end in .json are read.
        reports: in the order of their files.
        skipped: file name -> why it was left out.
    """

    def __init__(self, folder: str | Path = "reports") -> None:
        self.folder = Path(folder)
        self.skipped: dict[str, str] = {}
        found: list[Named] = []
        for file in sorted(self.folder.glob("*.json"), key=lambda file: file.name.lower()):
            try:
                loaded = collection.load(file)
            except ReportError as error:
                reason = str(error).replace(str(file), file.name)
                self.skipped[file.name] = reason.removeprefix(f"{file.name}: ")
                continue
            alone = len(loaded) == 1  # and so it has no name but the file's
            found += [
                Named(f"{file.stem}: {short_name(report) if alone else name}", report)
                for name, report in loaded
            ]
        self.reports = tuple(collection.named(found))

    def plot(self) -> Figure:
        """A row for each Report: memory of the fullest rank, bytes sent, time, bubble."""
        from parallab.plots import plot_comparison
        from parallab.plots.style import MUTED, ReportFigure

        if self.reports:
            return plot_comparison(self.reports)
        figure = ReportFigure(9.4, 0.6)
        figure.text(0.01, 0.5, self._summary(), va="center", color=MUTED, parse_math=False)
        return figure

    def _summary(self) -> str:
        if not self.folder.is_dir():
            return f"There is no folder {self.folder} yet: make it, and put Reports into it."
        if not self.reports and not self.skipped:
            return f"There is no .json file in {self.folder} yet: put saved Reports there."
        count = len(self.reports)
        left_out = f", {len(self.skipped)} left out" if self.skipped else ""
        return f"{count} Report{'' if count == 1 else 's'} in {self.folder}{left_out}."

    def __repr__(self) -> str:
        skipped = [f"  {name}: {reason}" for name, reason in self.skipped.items()]
        return "\n".join([self._summary(), *skipped])

    def _repr_html_(self) -> str:
        rows = [(escape(name), escape(reason)) for name, reason in self.skipped.items()]
        left_out = [html.table(("left out", "because"), rows, left={0, 1})] if rows else []
        return html.block(html.sentence(self._summary()), *left_out)
