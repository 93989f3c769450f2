"""What tests of the command line share."""

import sys

import pytest

from distmom.cli.main import main


@pytest.fixture
def run(capsys):
    """Run a command in this process: exit code, stdout, stderr."""

    def call(*arguments):
        capsys.readouterr()
        code = main([str(a) for a in arguments])
        done = capsys.readouterr()
        # Shown by pytest where the test fails.
        sys.stderr.write(done.err)
        assert "Traceback" not in done.err
        return code, done.out, done.err

    return call
