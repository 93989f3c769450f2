"""Small dense linear algebra on one node: range bases, whitening and tensor decomposition."""

from distmom.linalg.orthonormal import Basis, orthonormalise
from distmom.linalg.tensors.decompose import METHODS, decompose
from distmom.linalg.tensors.decomposition import Decomposition
from distmom.linalg.tensors.sliced import decompose_slices, power_step, slice_directions
from distmom.linalg.tensors.tensor import (
    compose,
    contract_one,
    contract_two,
    cubic_form,
    deflate,
    frobenius,
    multilinear,
    operator_norm_bounds,
    symmetrise,
)
from distmom.linalg.tensors.weights import (
    mixing_weights,
    polar,
    robust_components,
)
from distmom.linalg.whiten import Whitening, fix_signs, whiten

__all__ = [
    "METHODS",
    "Basis",
    "Decomposition",
    "Whitening",
    "compose",
    "contract_one",
    "contract_two",
    "cubic_form",
    "decompose",
    "decompose_slices",
    "deflate",
    "fix_signs",
    "frobenius",
    "mixing_weights",
    "multilinear",
    "operator_norm_bounds",
    "orthonormalise",
    "polar",
    "power_step",
    "robust_components",
    "slice_directions",
    "symmetrise",
    "whiten",
]
