"""What tests of the engine share."""

import pytest
from helpers import random_corpus

from distmom.corpus import from_arrays


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """A corpus of 15 shards on disk."""
    block = random_corpus(n=300, shard_documents=300).read_shard(0)
    return from_arrays(tmp_path_factory.mktemp("faults") / "c", block.words, block.labels, shard_documents=20)


@pytest.fixture
def noted(tmp_path):
    """A function that returns which groups were folded since its last call."""

    def groups(of=0):
        path = tmp_path / "folded"
        lines = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return sorted(int(line.split()[of]) for line in lines)

    return groups


@pytest.fixture
def stop_at(tmp_path):
    """A function that lets passes fail at a group, or at none."""

    def stop(group):
        (tmp_path / "stop").unlink(missing_ok=True)
        if group is not None:
            (tmp_path / "stop").write_text(str(group))

    return stop
