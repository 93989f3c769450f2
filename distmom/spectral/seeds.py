"""Seeds and other parameters of fits: given, drawn as in scikit-learn, and stored."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Self, cast

import numpy as np
from sklearn.utils import check_random_state

from distmom.spectral.parameters import Parameter, Parametrised

#: what ``random_state`` may be
Seed = int | np.random.RandomState | None


@dataclass(frozen=True)
class SeedParameter(Parameter):
    """The declaration of a seed, which may also be drawn from a generator."""

    @property
    def values(self) -> str:
        return f"int, RandomState or None, default {self.default}"

    @property
    def _number(self) -> str:
        return "a whole number, a RandomState or None"

    def check(self, name: str, value: Any) -> None:
        if not isinstance(value, np.random.RandomState):
            super().check(name, value)


def seed_parameter() -> Seed:
    """Declare ``random_state``."""
    declared = SeedParameter(
        0, "Seed of the random number generator.", int, least=0, below=float(1 << 64), none=True,
        unset="every fit draws a seed from NumPy's global generator, as it does from a RandomState",
    )  # fmt: skip
    # The class holds the declaration, its instances a value.
    return cast(Seed, declared)


class Seeded(Parametrised):
    """Base class of estimators with a ``random_state``.

    Attributes
    ----------
    seed_ : int
        Seed of the fit: ``random_state``, or the number drawn in its place.
    """

    random_state: Any
    seed_: int
    _fitted_with: dict[str, Any]

    @property
    def _is_drawn(self) -> bool:
        """Whether every fit draws a seed."""
        return not isinstance(self.random_state, Integral)

    @property
    def _seed(self) -> int:
        """The seed of the last fit, whatever ``random_state`` is by now; before a fit, ``random_state``."""
        return self.seed_ if self._is_drawn or hasattr(self, "seed_") else int(self.random_state)

    def _draw_seed(self) -> None:
        """Check the parameters, and set ``seed_`` for a fit."""
        self.check_parameters()
        if self._is_drawn:
            self.seed_ = int(check_random_state(self.random_state).randint(1 << 31))
        else:
            self.seed_ = int(self.random_state)
        self._fitted_with = self.get_params()

    def as_fitted(self) -> Self:
        """Return the estimator with the parameters of its last fit, whatever they are by now."""
        other = copy(self)
        vars(other).update(vars(self).get("_fitted_with", {}))
        return other

    def _stored_parameters(self) -> dict[str, Any]:
        """Return the stored parameters: ``parameters``, and ``seed`` and ``fitted_with`` if they do not give them.

        ``fitted_with`` has the parameters of the last fit that have changed since. Arrays are stored as lists, and
        the state of a generator is not stored.
        """
        now, of_fit = self.get_params(), self.as_fitted().get_params()
        parameters = {name: _stored(value) for name, value in now.items()}
        changed = {
            name: _stored(value)
            for name, value in of_fit.items()
            if name != "random_state" and _stored(value) != parameters[name]
        }
        stored: dict[str, Any] = {"parameters": parameters}
        if parameters["random_state"] != self._seed:
            stored["seed"] = self._seed
        if changed:
            stored["fitted_with"] = changed
        return stored

    def _restore_fit(self, record: Mapping[str, Any]) -> None:
        """Set the seed and the parameters of the fit of an estimator made of stored parameters.

        Raises
        ------
        KeyError
            If the record lacks the seed.
        TypeError
            If it has a parameter of the fit that the estimator does not have.
        """
        is_given = self.random_state is not None and "seed" not in record
        self.seed_ = self.random_state if is_given else record["seed"]
        self._fitted_with = type(self)(**{**self.get_params(), **record.get("fitted_with", {})}).get_params()


def _stored(value: Any) -> Any:
    """Return the value of a parameter as it is stored."""
    if isinstance(value, np.random.RandomState):
        return None
    return value.tolist() if isinstance(value, np.ndarray) else value
