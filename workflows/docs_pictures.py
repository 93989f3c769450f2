"""Draw the pictures of the documentation: for each page, a chart of the report of the model in its first example.

    python workflows/docs_pictures.py

The example of the page runs as it is printed, in a temporary directory, and ``docs/images/PAGE.svg`` is a chart of
``distmom report``. --pages restricts the pages, and --out names another folder.
"""

from __future__ import annotations

import argparse
import os
import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from distmom.evaluate import page
from distmom.evaluate.charts import bar_chart
from distmom.evaluate.dispatch import write_report

DOCS = Path(__file__).parents[1] / "docs"
#: pages with an example that runs by itself, and the number of the chart of the report that is shown
CHARTS = {
    "diagonal": 0,
    "eca": 0,
    "expansion": 1,
    "factorial": 1,
    "gaussian": 0,
    "hmm": 0,
    "ica": 0,
    "model": 1,
    "multiview": 0,
    "network": 1,
    "product": 0,
    "search": 0,
    "topics": 1,
    "trees": 0,
}


def model_of(name: str) -> Any:
    """Run the first example of a page, and return its model."""
    text = (DOCS / f"{name}.md").read_text(encoding="utf-8")
    example = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    assert example is not None
    names: dict[str, Any] = {}
    exec(example[1], names)
    return names["model"]


def charts_of(model: Any) -> list[str]:
    """Return the charts of the report of a model without their style; if it only has bars, the first of these."""
    write_report(model, "report.html")
    text = Path("report.html").read_text(encoding="utf-8")
    if found := re.findall(r'<svg class="chart".*?</svg>', text, re.DOTALL):
        return found
    bars = model.pictures()[0]
    return [str(bar_chart(bars["values"], title=bars["title"], x_label=", ".join(bars["names"])))]


def style() -> str:
    """Return the style of the charts in a report, with its colours."""
    template = Path(page.__file__).with_name("page.html.j2").read_text(encoding="utf-8")
    rules = template.partition("<style>")[2].partition("* { box-sizing")[0].strip()
    charts = [line for line in template.splitlines() if line.startswith("svg ")]
    return "\n".join([rules, "svg { background: var(--ground); }", *charts])


def standalone(chart: str) -> str:
    """Return a chart as a file of its own."""
    first, rest = re.fullmatch(r"(<svg [^>]*)(>.*)", chart, re.DOTALL).groups()  # type: ignore[union-attr]
    return f'{first} width="640" xmlns="http://www.w3.org/2000/svg"><style>\n{style()}\n</style{rest}\n'


def draw(name: str, out: Path) -> Path:
    """Draw the picture of a page, and return its file."""
    here = Path.cwd()
    with TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            chart = charts_of(model_of(name))[CHARTS[name]]
        finally:
            os.chdir(here)
    path = out / f"{name}.svg"
    path.write_text(standalone(chart), encoding="utf-8")
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pages", nargs="+", choices=sorted(CHARTS), default=sorted(CHARTS))
    parser.add_argument("--out", type=Path, default=DOCS / "images")
    options = parser.parse_args()
    for name in options.pages:
        print(draw(name, options.out.resolve()))


if __name__ == "__main__":
    main()
