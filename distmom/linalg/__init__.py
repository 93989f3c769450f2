"""Small dense linear algebra on one node: range bases, whitening and tensor decomposition."""

from distmom.linalg.algebraic import jennrich, project
from distmom.linalg.decompose import (
    METHODS,
    Decomposition,
    decompose,
    decompose_slices,
    slice_directions,
)
from distmom.linalg.orthonormal import Basis, orthonormalise
from distmom.linalg.post import (
    EigenpairCheck,
    Mixture,
    check_eigenpair,
    clip_columns,
    mixing_weights,
    mixture_parameters,
    polar,
    project_simplex,
)
from distmom.linalg.tensor import (
    compose,
    contract_one,
    contract_two,
    cubic_form,
    deflate,
    frobenius,
    multilinear,
    operator_norm_bounds,
    sym3,
    symmetrise,
)
from distmom.linalg.whiten import Whitening, whiten

__all__ = [
    "METHODS",
    "Basis",
    "Decomposition",
    "EigenpairCheck",
    "Mixture",
    "Whitening",
    "check_eigenpair",
    "clip_columns",
    "compose",
    "contract_one",
    "contract_two",
    "cubic_form",
    "decompose",
    "decompose_slices",
    "deflate",
    "frobenius",
    "jennrich",
    "mixing_weights",
    "mixture_parameters",
    "multilinear",
    "operator_norm_bounds",
    "orthonormalise",
    "polar",
    "project",
    "project_simplex",
    "slice_directions",
    "sym3",
    "symmetrise",
    "whiten",
]
