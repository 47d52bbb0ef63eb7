"""The picture in the README: one question, four answers, one routing policy.

``python docs/figures/four_answers.py`` writes ``four_answers.svg`` beside this file.
"""

from __future__ import annotations

from pathlib import Path
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 880, 400
BLUE, ORANGE, INK, PALE, GREY = "#0072B2", "#D55E00", "#222222", "#EAF2F8", "#666666"
FONT = "font-family='Helvetica, Arial, sans-serif'"

#: verb, what it is, how long it takes, how it sees the routing policy
VERBS = (
    ("predict", ("closed form", "and mean field"), "a tenth of a second", "as a threshold"),
    ("simulate", ("every engine step", "of the cluster"), "seconds", "asked for each request"),
    (
        "bound",
        ("linear program that", "knows the future"),
        "seconds to minutes",
        "none: any router",
    ),
    ("measure", ("real vLLM engines,", "real router"), "minutes", "as the live router"),
)
#: what holds between a verb's tokens within SLO and those of the next
RELATIONS = ("≈", "≤", "≥")
BOX, GAP, LEFT, TOP, TALL = 190, 30, 15, 108, 176
BAND_TOP, BAND_TALL = 228, 38


def text(x: float, y: float, words: str, size: int = 14, colour: str = INK, **more: str) -> str:
    """One centred line."""
    style = "".join(f" {key.replace('_', '-')}='{value}'" for key, value in more.items())
    return (
        f"<text x='{x:g}' y='{y:g}' font-size='{size}' fill='{colour}'"
        f" text-anchor='middle'{style}>{escape(words)}</text>"
    )


def box(x: float, y: float, wide: float, tall: float, fill: str, edge: str) -> str:
    """Return a rounded rectangle."""
    return (
        f"<rect x='{x:g}' y='{y:g}' width='{wide:g}' height='{tall:g}' rx='8'"
        f" fill='{fill}' stroke='{edge}' stroke-width='1.5'/>"
    )


def arrow(x: float, y: float, end: float) -> str:
    """Return an arrow downwards."""
    return (
        f"<line x1='{x:g}' y1='{y:g}' x2='{x:g}' y2='{end - 6:g}' stroke='{GREY}'"
        f" stroke-width='1.5' marker-end='url(#head)'/>"
    )


def picture() -> str:
    """Return the SVG."""
    middle, wide = WIDTH / 2, WIDTH - 2 * LEFT
    parts = [
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {HEIGHT}' {FONT}>",
        "<title>One scenario, four answers that check each other, one routing policy</title>",
        "<defs><marker id='head' viewBox='0 0 8 8' refX='2' refY='4' markerWidth='6'"
        f" markerHeight='6' orient='auto'><path d='M0,0 L8,4 L0,8 z' fill='{GREY}'/></marker>",
        "</defs>",
        f"<rect width='{WIDTH}' height='{HEIGHT}' fill='white'/>",
        box(LEFT, 12, wide, 60, PALE, BLUE),
        text(middle, 36, "one question: Scenario", 17, BLUE, font_weight="bold"),
        text(middle, 59, "workload  ·  LLM  ·  GPU  ·  cluster  ·  KV tiers  ·  router  ·  SLO"),
        box(LEFT, HEIGHT - 72, wide, 60, PALE, BLUE),
        text(middle, HEIGHT - 48, "one answer: Outcome", 17, BLUE, font_weight="bold"),
        text(
            middle,
            HEIGHT - 25,
            "tokens/s within SLO  ·  TTFT, TPOT  ·  hits  ·  balance  ·  what binds",
        ),
    ]
    centres = [LEFT + BOX / 2 + k * (BOX + GAP) for k in range(len(VERBS))]
    for x in centres:
        parts += [arrow(x, 72, TOP), arrow(x, TOP + TALL, HEIGHT - 72)]
        parts.append(box(x - BOX / 2, TOP, BOX, TALL, "white", BLUE))
    parts.append(
        f"<rect x='{LEFT - 7}' y='{BAND_TOP}' width='{wide + 14}' height='{BAND_TALL}' rx='6'"
        f" fill='#FBEDE6' stroke='{ORANGE}'/>"
    )
    for x, (verb, lines, cost, seen) in zip(centres, VERBS, strict=True):
        parts.append(text(x, TOP + 27, verb, 18, INK, font_weight="bold"))
        parts += [text(x, TOP + 52 + 18 * k, line) for k, line in enumerate(lines)]
        parts.append(text(x, TOP + 98, cost, 13, GREY, font_style="italic"))
        parts.append(text(x, BAND_TOP + 32, seen, 13, INK))
    parts.append(text(middle, BAND_TOP + 14, "one routing policy, one function", 13, ORANGE))
    for left, right, sign in zip(centres, centres[1:], RELATIONS, strict=False):
        x, y = (left + right) / 2, TOP + 45
        parts.append(f"<circle cx='{x:g}' cy='{y}' r='13' fill='{BLUE}'/>")
        parts.append(text(x, y + 6, sign, 17, "white"))
    parts.append("</svg>")
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    Path(__file__).with_suffix(".svg").write_text(picture(), encoding="utf-8")
