"""Print the lowest versions of dependencies that pyproject.toml allows, as constraints of pip."""

import re
import sys
import tomllib
from pathlib import Path

project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
extras = project["optional-dependencies"]
for requirement in project["dependencies"] + extras["s3"] + extras["arrow"] + extras["test"]:
    bound = re.match(r"([\w-]+)(?:\[.*\])?>=([\w.]+)", requirement)
    # The tests require the other extras by the name of the package itself.
    if bound:
        sys.stdout.write("==".join(bound.groups()) + "\n")
