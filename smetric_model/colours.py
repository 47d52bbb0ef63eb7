"""Colours of figures and pages, in a light and a dark theme."""

from __future__ import annotations

__all__ = ["COLOURS"]

#: role -> (light, dark); figures are drawn in the light ones.  Series differ in line style as well,
#: and drawn over each other all of them still show.
COLOURS = {
    "ink": ("#1b2027", "#e6e9ed"),
    "muted": ("#59636f", "#a3adb9"),
    "line": ("#d4d9df", "#3a424c"),
    "paper": ("#fffffe", "#171b20"),
    "none": ("#b8450b", "#ff9d68"),
    "tiers": ("#0a65a6", "#6fbbf7"),
    "ideal": ("#0d7855", "#5bd0a3"),
    "mark": ("#84479c", "#d2a4ea"),
}
