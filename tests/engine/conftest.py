"""What tests of the engine share."""

import pytest
from helpers import random_corpus

from distmom.corpus import from_arrays


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """A corpus of 15 shards on disk."""
    block = random_corpus(n=300, shard_documents=300).read_shard(0)
    return from_arrays(tmp_path_factory.mktemp("faults") / "c", block.words, block.labels, shard_documents=20)
