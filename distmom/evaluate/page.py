"""The common page of all reports: sanitised text, numbers, cards of states or topics, timings and settings.

Words and labels come from an untrusted corpus. They are escaped, and control characters are removed; the page
forbids scripts and external resources.
"""

from __future__ import annotations

import json
import math
import os
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import jinja2
import numpy as np
from markupsafe import Markup

import distmom
from distmom.corpus.files.commit import check_file_target, write_atomic
from distmom.errors import UsageError
from distmom.spectral.capabilities import Capability

#: number of words and labels shown per state
N_TOP = 8
#: number of states shown initially; the others are in a collapsed section
N_OPEN = 12
#: maximum number of characters shown of a word, label or setting
MAX_CHARACTERS = 200

# Format characters (Unicode category Cf) are kept, except for these, which reorder or hide text.
_HIDDEN = frozenset(
    "\u200b\u200e\u200f\u2028\u2029\u2060\ufeff" + "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
)


@dataclass(frozen=True)
class Row:
    """A name, a value and a one-sentence explanation."""

    name: str
    value: str
    note: str = ""


def write_page(out: str | os.PathLike[str], metrics: Any, render: Callable[[], str]) -> None:
    """Render and write a page; UsageError if the metrics or the destination are invalid."""
    if metrics is not None and not isinstance(metrics, Mapping):
        raise UsageError(f"metrics: expected a mapping of names to numbers, got a {type(metrics).__name__}")
    target = check_file_target(out)
    write_atomic(target, render().encode())


@cache
def template(name: str) -> jinja2.Template:
    """Return a template of this package, which sanitises and escapes all text."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("distmom.evaluate", "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=clean,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(name)


def clean(value: Any) -> Any:
    """Sanitise a value for the page: remove control characters from text and limit its length."""
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    kept = "".join(c for c in value if unicodedata.category(c) not in ("Cc", "Cs", "Cn") and c not in _HIDDEN)
    return kept if len(kept) <= MAX_CHARACTERS else kept[: MAX_CHARACTERS - 1] + "…"


def number(value: Any) -> str:
    """Format a number with about four significant digits."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | np.integer):
        return f"{int(value):,}"
    x = float(value)
    if not math.isfinite(x):
        return "not defined" if math.isnan(x) else ("infinity" if x > 0 else "minus infinity")
    if x == int(x) and abs(x) < 1e9:
        return f"{int(x):,}"
    return f"{x:,.1f}" if 1000 <= abs(x) < 1e6 else f"{x:.4g}"


def is_number(value: Any) -> bool:
    """Whether a value is a number to be shown; Booleans are not."""
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


def percent(value: float, largest: float) -> str:
    """Return a value as a CSS width, relative to the largest."""
    share = value / largest if largest > 0 and math.isfinite(value) else 0.0
    return f"{100 * min(1.0, max(0.0, share)):.1f}%"


def cards(topics: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Prepare cards of states or topics with top words and labels, and standard errors where available."""
    largest = max((topic["weight"] for topic in topics), default=0.0)

    def entries(pairs: Sequence[tuple[str, float]], errors: Sequence[float]) -> list[dict[str, Any]]:
        ends = [p + _known(e) for (_, p), e in zip(pairs, errors, strict=True)]
        top = max(ends, default=0.0)
        return [
            {
                "name": name,
                "value": _measured(p, e),
                "width": percent(p, top),
                "has_error": math.isfinite(e),
                "left": percent(p - e, top),
                "right": percent(top - p - e, top),
            }
            for (name, p), e in zip(pairs, errors, strict=True)
        ]

    return [
        {
            "state": topic["state"],
            "weight": _measured(topic["weight"], error_of(topic.get("weight_error"))),
            "width": percent(topic["weight"], largest),
            "words": entries(topic["words"], _errors_of(topic)),
            "labels": entries(topic["labels"], [math.nan] * len(topic["labels"])),
            "documents": [],
        }
        for topic in topics
    ]


def error_of(error: float | None) -> float:
    """Return a standard error, NaN if there is none."""
    return math.nan if error is None else error


def _errors_of(topic: Mapping[str, Any]) -> list[float]:
    """Return the standard errors of the words of a topic, NaN where there is none."""
    return [error_of(error) for error in topic.get("word_errors", [None] * len(topic["words"]))]


def _known(error: float) -> float:
    return error if math.isfinite(error) else 0.0


def _measured(value: float, error: float) -> str:
    """Format a value, with its standard error to two significant digits if there is one."""
    if not math.isfinite(error):
        return small(value)
    digits = min(9, max(0, 1 - math.floor(math.log10(error)))) if error > 0.0 else 3
    return f"{value:.{digits}f} ±{error:.{digits}f}"


def small(probability: float) -> str:
    """Format a probability with few digits."""
    return f"{probability:.3f}" if probability >= 0.0095 else f"{probability:.1g}"


def configuration(model: Any) -> dict[str, Any]:
    """Return the data of the last sections of every page: timings, parameters and corpus settings."""
    pass_seconds = sum(entry["seconds"] for entry in model.timings_)
    return {
        "version": distmom.__version__,
        "n_open": N_OPEN,
        "timings": _timings(model),
        "unit": _unit(model),
        "pass_seconds": f"{pass_seconds:,.1f}",
        "other_seconds": f"{max(0.0, model.fit_seconds_ - pass_seconds):,.1f}",
        "parameters": [
            Row(name, _setting(value)) for name, value in sorted(model.as_fitted().get_params().items())
        ],
        "settings": [Row(name, _setting(value)) for name, value in sorted(model.settings_.items())],
    }


def _unit(model: Any) -> str:
    """Return the name of the units that a model was fitted to, in the plural."""
    if model.can(Capability.VIEWS):
        return "groups"
    return "units" if model.can(Capability.ROWS) else "documents"


def _setting(value: Any) -> str:
    if value is None:
        return "default"
    if isinstance(value, str | int | float):
        return number(value) if isinstance(value, bool) else str(value)
    return json.dumps(value, ensure_ascii=False, default=str)


def _timings(model: Any) -> list[dict[str, str]]:
    longest = max((entry["seconds"] for entry in model.timings_), default=0.0)
    return [
        {
            "name": entry["name"],
            "seconds": f"{entry['seconds']:.2f}",
            "width": percent(entry["seconds"], longest),
            "rate": "resumed"
            if entry["resumed"]
            else f"{entry['n_documents'] / max(entry['seconds'], 1e-9):,.0f}",
        }
        for entry in model.timings_
    ]
