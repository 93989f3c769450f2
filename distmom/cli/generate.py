"""Write the table from which options and help of commands are made: ``python -m distmom.cli.generate``.

The table, ``parameters.json`` in this package, holds what the estimators declare, so that ``--help`` imports none of
them. Run this module after a parameter, a capability or an estimator has changed.
"""

from __future__ import annotations

import json
from typing import Any

from distmom.cli.parameters import TABLE
from distmom.models import ESTIMATORS, estimator


def declared_table() -> dict[str, Any]:
    """Return the parameters that the estimators declare, as JSON values, by their names on the command line.

    Returns
    -------
    dict
        For every estimator ``summary``, the first line of its docstring, ``capabilities``, and ``parameters``, the
        fields of `distmom.spectral.parameters.Parameter` by name; fields that do not apply are omitted.
    """
    found = {}
    for listing in ESTIMATORS:
        kind = estimator(listing.name)
        found[listing.name] = {
            "summary": kind.__doc__.partition("\n")[0],
            "capabilities": sorted(kind.capabilities),
            "parameters": {name: _fields(declared) for name, declared in kind.parameters().items()},
        }
    return found


def _fields(declared: Any) -> dict[str, Any]:
    fields = {**vars(declared), "kind": declared.kind.__name__, "choices": list(declared.choices)}
    # How the constructor takes it is of no use here.
    del fields["kw_only"]
    return {
        name: value
        for name, value in fields.items()
        if name == "default" or not (value is None or value is False or value in ("", []))
    }


def main() -> None:
    """Write the table."""
    TABLE.write_text(json.dumps(declared_table(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
