"""Draw every figure and put them on one page that needs nothing else.

    python paper_figures/gallery.py [TRACE ...] [--results RESULTS] [--out out/figures]

Figures 5 to 9 are of the traces given (without: of the small synthetic one that is shipped), 11 to
25 of the result table, once for each workload.  ``index.html`` holds all of them and the claims.
"""

from __future__ import annotations

import argparse
import ast
import base64
import importlib
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import jinja2
from common import SHIPPED
from markdown_it import MarkdownIt
from markupsafe import Markup
from results import PRESETS, render

from smetric_model.errors import SpecError

HERE = Path(__file__).resolve().parent
OF_TRACES = (5, 6, 7, 8, 9)
OF_RESULTS = (11, 12, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25)

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>The paper's figures, reproduced</title>
<style>
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 62rem; padding: 0 1rem 4rem;
       overflow-wrap: anywhere; }
figure { margin: 2.5rem 0; }
img { width: 100%; height: auto; background: #fff; border-radius: 6px; }
a.zoom { display: block; overflow-x: auto; }
figcaption { white-space: pre-line; margin: .3rem 0 .6rem; }
code { font-size: .9em; }
h2 { margin-top: 3rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .82rem; }
td, th { padding: .25rem .5rem; text-align: left; border-bottom: 1px solid #8884;
         vertical-align: top; }
tr.no td:first-child { border-left: 4px solid #D55E00; }
tr.yes td:first-child { border-left: 4px solid #009E73; }
nav a { margin-right: .6rem; }
.missing { border-left: 4px solid #E69F00; padding-left: .6rem; }
</style>
</head>
<body>
<h1>The paper's figures, reproduced</h1>
<p>{{ intro }}</p>
<nav>{% for one in figures %}<a href="#figure{{ one.number }}">{{ one.number }}</a>
{% endfor %}{% if claims %}<a href="#claims">claims</a>{% endif %}</nav>
{% for one in figures %}
<figure id="figure{{ one.number }}">
<h2>Figure {{ one.number }}</h2>
<figcaption>{{ one.caption | inline }}</figcaption>
{% for image in one.images %}
{% if loop.first %}<a class="zoom" href="#figure{{ one.number }}">\
<img alt="Figure {{ one.number }}, {{ image.name }}" src="{{ image.source }}"></a>
{% else %}<details><summary>{{ image.name }}</summary>
<img loading="lazy" alt="Figure {{ one.number }}, {{ image.name }}" src="{{ image.source }}">
</details>{% endif %}
{% endfor %}
{% for problem in one.problems %}<p class="missing">{{ problem }}</p>{% endfor %}
</figure>
{% endfor %}
{% if claims %}
<h2 id="claims">Claims</h2>
<p>{{ claims.summary }}</p>
<div class="scroll"><table>
<tr>{% for name in claims.columns %}<th>{{ name }}</th>{% endfor %}</tr>
{% for row in claims.rows %}<tr class="{{ row.look }}">
{% for cell in row.cells %}<td>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}</table></div>
{% endif %}
</body>
</html>
"""


@dataclass
class Entry:
    """A figure on the page."""

    number: int
    caption: str
    images: list[dict[str, str]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def caption(number: int) -> str:
    """Return what a figure's script says of it, without how it is called; inline markdown."""
    text = ast.get_docstring(ast.parse((HERE / f"figure{number}.py").read_text())) or ""
    first, _, rest = text.partition("\n")
    paragraphs = [p for p in rest.split("\n\n") if not p.lstrip().startswith("python ")]
    body = "\n".join(" ".join(p.split()) for p in paragraphs if p.strip())
    title = first.partition(":")[2].strip()
    return title[:1].upper() + title[1:] + ("\n" + body if body else "")


def _run(number: int, out: Path, arguments: list[str]) -> str:
    """Run a figure's script; returns what is wrong, if anything."""
    done = subprocess.run(
        [sys.executable, str(HERE / f"figure{number}.py"), *arguments, "--out", str(out)],
        capture_output=True,
        text=True,
    )
    if done.returncode == 0:
        return ""
    return done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "no figure, no reason"


def _image(name: str, path: Path) -> dict[str, str]:
    data = base64.b64encode(path.read_bytes()).decode()
    return {"name": name, "source": f"data:image/png;base64,{data}"}


def entries(options: argparse.Namespace) -> list[Entry]:
    """Draw what was asked for."""
    made = []
    order = [p for p in ("medium", "short", "long") if p in options.presets]
    for number in options.only or (*OF_TRACES, *OF_RESULTS):
        entry = Entry(number, caption(number))
        for name in [""] if number in OF_TRACES else order:
            path = options.out / f"figure{number}{'-' + name if name else ''}.png"
            if number in OF_TRACES:
                problem = _run(number, path, [str(p) for p in options.traces or [SHIPPED]])
            else:
                problem = _draw(number, name, path, options)
            if problem:
                entry.problems.append(f"{name + ': ' if name else ''}{problem}")
                print(f"figure {number} {name}: {problem}", file=sys.stderr, flush=True)
            else:
                entry.images.append(_image(f"{name} prompts" if name else "traces", path))
        made.append(entry)
    return made


def _draw(number: int, preset: str, path: Path, options: argparse.Namespace) -> str:
    """Draw a figure of the result table; returns what is wrong, if anything."""
    make = importlib.import_module(f"figure{number}").make
    try:
        render(f"figure{number}", make, preset, path, options.results, options.profiles)
    except (SpecError, OSError) as error:
        return str(error)
    return ""


def claims_of(options: argparse.Namespace) -> dict[str, object] | None:
    """Return the claims for the page: which agree on each workload."""
    from smetric_model.reproduction import load_parameters, read_results

    try:
        from smetric_model.reproduction import claims_table, score

        results = read_results(options.results)
        claims = claims_table(results, operating=load_parameters().operating)
    except (ImportError, SpecError):
        return None
    words = [
        f"{row['preset']}, {row['use']}: {row['agree']} of {row['comparable']} comparable claims"
        for _, row in score(claims).iterrows()
    ]
    columns = ["claim", "figure", "quantity", "policy", "paper", "tolerance"]
    looks = {"yes": "yes", "no": "no"}
    rows = []
    for _, part in claims.groupby("claim", sort=False):
        first = part.iloc[0]
        cells = [str(first[name]) for name in columns]
        cells += [
            f"{row['simulated']:.3g} ({row['agrees']})" if row["agrees"] in looks else "–"
            for _, row in part.iterrows()
        ]
        agree = set(part["agrees"]) & set(looks)
        look = agree.pop() if len(agree) == 1 else ""
        rows.append({"cells": cells, "look": look})
    heads = [*columns, *(str(preset) for preset in claims["preset"].unique())]
    return {"summary": "; ".join(words) + ".", "columns": heads, "rows": rows}


def page(figures: list[Entry], claims: dict[str, object] | None) -> str:
    """Return the page."""
    intro = (
        "Drawn from this library's own models; grey and black-edged marks are what the paper"
        " states. Parameters and their reasons: data/reproduction.toml."
    )
    environment = jinja2.Environment(autoescape=True)
    environment.filters["inline"] = lambda text: Markup(MarkdownIt().renderInline(text))
    return environment.from_string(PAGE).render(figures=figures, claims=claims, intro=intro)


def main(arguments: list[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("traces", nargs="*", type=Path, help="trace files for Figures 5 to 9")
    parser.add_argument("--results", type=Path, help="result table [the shipped one]")
    parser.add_argument("--profiles", type=Path, help="profiles [the shipped ones]")
    parser.add_argument("--presets", nargs="+", choices=list(PRESETS), default=list(PRESETS))
    parser.add_argument("--only", nargs="+", type=int, choices=(*OF_TRACES, *OF_RESULTS))
    parser.add_argument("--out", type=Path, default=Path("out/figures"))
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    figures = entries(options)
    path = options.out / "index.html"
    path.write_text(page(figures, claims_of(options)), encoding="utf-8")
    print(f"written {path}: {path.stat().st_size / 1e6:.1f} MB")
    lacking = [entry.number for entry in figures if entry.problems]
    if lacking:
        print(f"incomplete: figures {', '.join(map(str, lacking))}", file=sys.stderr)
    return int(bool(lacking))


if __name__ == "__main__":
    sys.exit(main())
