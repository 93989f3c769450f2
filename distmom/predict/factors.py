"""Factors of any number of groups of views, computed shard by shard and written to Zarr."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from distmom.corpus import RowBlock
from distmom.corpus.files.encoding import create_array
from distmom.corpus.layers import check_corpus
from distmom.digits import significant
from distmom.engine import Observer, Pass, Rows, Sums, SumSpec
from distmom.engine.passes import WHOLE_SHARD
from distmom.models.eca.estimator import ECA
from distmom.models.eca.recovery import group_factors
from distmom.predict.appended import AppendedArray
from distmom.predict.output import put_in_place
from distmom.spectral.capabilities import Capability, require
from distmom.spectral.inputs.checks import check_columns, with_layer


@dataclass(frozen=True)
class FactorsPass(Pass):
    """Store the factors of every group.

    Attributes
    ----------
    unmixing : ndarray of shape (k, n_features)
        Multiplied with the mean of the views of a group.
    origin : ndarray of shape (k,)
        Subtracted from the products.
    n_factors : int, default=0
        k.

    Notes
    -----
    Rows: ``factors`` (n, k) float64. Sums: ``n_groups`` and ``factors`` (k,), the sum of the factors.
    """

    unmixing: Any = None
    origin: Any = None
    n_factors: int = 0

    block_rows = WHOLE_SHARD

    @property
    def name(self) -> str:
        return "transform"

    @property
    def row_bytes(self) -> int:
        return 8 * self.n_factors

    @property
    def mapped_bytes(self) -> int:
        return 8 * self.n_features * self.n_factors

    def working_bytes(self, n_rows: int) -> int:
        # Products of the rows, and their means twice.
        return 3 * 8 * n_rows * self.n_factors

    def specs(self) -> dict[str, SumSpec]:
        return {"n_groups": SumSpec(()), "factors": SumSpec((self.n_factors,))}

    def add(self, sums: Sums, block: RowBlock, rows: Rows) -> Rows | None:
        factors = group_factors(block, self.unmixing, self.origin)
        sums["n_groups"] += block.n_documents
        sums["factors"] += factors.sum(axis=0)
        return {"factors": factors}


def transform_views(
    model: ECA,
    corpus: Any,
    out: str | os.PathLike[str],
    *,
    client: Any = None,
    memory_limit: int | None = None,
    observer: Observer | None = None,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Write the factors of every group of views.

    The output directory contains:

    - ``factors.zarr``, an array (n_groups, k) float64 for the k components of the model, as from `ECA.transform`.
    - ``groups.npy``, the groups in the order of its rows, that of their first views.
    - ``factors.json`` with sizes and digests of both.

    Parameters
    ----------
    model : ECA
    corpus : ViewCorpus or LayeredCorpus
    out : path-like
        Output directory, or a URL (``s3://BUCKET/PREFIX``).
    client : distributed.Client or Executor, optional
        Where the pass runs; this process by default.
    memory_limit : int, optional
        Bytes that one worker may use; no limit by default.
    observer : callable, optional
        Receives progress events; none by default.
    overwrite : bool, default=False
        Replace earlier factors.

    Returns
    -------
    dict
        ``n_groups``, ``n_factors``, ``mean_factors`` rounded to six digits, and ``out``.

    Raises
    ------
    UsageError
        If the model infers no factors, if the corpus has other features than the model, or if ``out`` exists,
        unless it contains earlier factors and ``overwrite`` is True.
    InputError
        If a value is not finite.
    """
    require(model, Capability.FACTORS)
    check_corpus(corpus)
    corpus = with_layer(corpus, model.reads, model.layer, type(model).__name__)
    check_columns(model, corpus)
    with put_in_place(out, "factors", overwrite=overwrite) as place:
        k = len(model.unmixing_)
        with place.engine(corpus, client, memory_limit, observer) as engine:
            pass_ = FactorsPass(
                corpus.n_words, unmixing=engine.put(model.unmixing_), origin=engine.put(model.factor_origin()),
                n_factors=k,
            )  # fmt: skip
            result = engine.run(pass_)
            n, stored = int(result.sums["n_groups"]), result.rows["factors"]
            with AppendedArray(create_array(place.out / "factors.zarr", (n, k), "float64", level=1)) as array:
                for shard in range(len(corpus.shards)):
                    array.append(stored.read(shard))
        np.save(place.out / "groups.npy", corpus.group_names, allow_pickle=False)
        place.summary.update(n_groups=n, n_factors=k)
    mean = np.asarray(result.sums["factors"]) / max(1, n)
    return {
        "n_groups": n,
        "n_factors": k,
        "mean_factors": significant(mean),
        "out": str(out),
    }
