"""Figures that belong to nobody's pyplot, and that notebooks show all the same."""

from __future__ import annotations

import io

from matplotlib.figure import Figure

__all__ = ["ShownFigure"]


class ShownFigure(Figure):
    """A figure that a notebook draws where it is the value of a cell.

    Matplotlib's own is text there until pyplot has been imported or ``%matplotlib inline`` run.
    """

    def _repr_png_(self) -> bytes:
        image = io.BytesIO()
        # white: its text is dark, whatever is behind it; tight: no label is cut off
        self.savefig(image, format="png", facecolor="white", bbox_inches="tight")
        return image.getvalue()
