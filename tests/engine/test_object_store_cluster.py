"""Passes over a corpus in an object store, here and on workers that hold nothing of it."""

import uuid

import numpy as np
import pytest
from distributed import Client, LocalCluster
from helpers import planted_matrices

from distmom.corpus import copy_corpus, from_arrays
from distmom.errors import StoreError
from distmom.models import MultiLabelMoM

pytestmark = pytest.mark.cluster


def fitted(corpus, client=None):
    model = MultiLabelMoM(4, head="linear", n_residual_passes=1).fit_corpus(corpus, client=client)
    [(_, head)] = model.scorer_.heads
    arrays = [model.components_, model.label_components_, model.weights_]
    arrays += [value for value in vars(head).values() if isinstance(value, np.ndarray)]
    rows = corpus.read_shard(0).words[:200]
    return [array.tobytes() for array in (*arrays, model.decision_function(rows))]


@pytest.mark.slow
def test_the_same_bits_from_a_store_in_process_and_on_workers(s3, tmp_path):
    bucket = f"b{uuid.uuid4().hex}"
    s3.make_bucket(bucket)
    local = from_arrays(tmp_path / "corpus", *planted_matrices(), shard_documents=500)
    there = copy_corpus(local.path, f"s3://{bucket}/c")
    expected = fitted(local)
    assert fitted(there) == expected
    # Workers take the environment of the test, so they are started in it.
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address="127.0.0.1:0") as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        assert fitted(there, client) == expected
        key = "c/shards/s00002/words/indices/c/0"
        content = s3.get(bucket, key)
        s3.put(bucket, key, content[:-1] + bytes([content[-1] ^ 1]))
        with pytest.raises(StoreError, match=rf"^s3://{bucket}/{key}: sha256: expected"):
            fitted(there, client)
        s3.delete(bucket, key)
        with pytest.raises(StoreError, match=rf"^s3://{bucket}/{key}: cannot be read"):
            fitted(there, client)
