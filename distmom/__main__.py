"""``python -m distmom`` is the command ``distmom``, where its script is not on the search path."""

import sys

from distmom.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
