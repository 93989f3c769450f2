"""What tests of the command line share."""

import sys

import pytest
from helpers import labelled_lines

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


@pytest.fixture(scope="session")
def place(tmp_path_factory):
    """A folder with texts, the corpus of the first and a model of it, which tests leave as they are."""
    folder = tmp_path_factory.mktemp("cli")
    (folder / "train.tsv").write_text("".join(labelled_lines(400, 0)))
    (folder / "test.tsv").write_text("".join(labelled_lines(60, 1)))
    corpus, model, local = str(folder / "corpus"), str(folder / "model"), ("--workers", "0", "--quiet")
    assert main(["ingest", str(folder / "train.tsv"), corpus, *local]) == 0
    assert main(["fit", corpus, model, "-k", "3", *local]) == 0
    return folder
