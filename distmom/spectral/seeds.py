"""Seeds of fits: given as whole numbers, or drawn by every fit as scikit-learn does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral
from typing import Any, cast

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

    def _stored_parameters(self) -> dict[str, Any]:
        """Return the stored parameters: ``parameters``, and ``seed`` if they do not give it.

        Arrays are stored as lists, and the state of a generator is not stored.
        """
        parameters = {
            name: own.tolist() if isinstance(own, np.ndarray) else own
            for name, own in self.get_params().items()
        }
        if self._is_drawn:
            parameters["random_state"] = None
        if parameters["random_state"] == self._seed:
            return {"parameters": parameters}
        return {"parameters": parameters, "seed": self._seed}

    def _restore_seed(self, record: Mapping[str, Any]) -> None:
        """Set ``seed_`` of an estimator made of stored parameters; a KeyError if the record lacks it."""
        is_given = self.random_state is not None and "seed" not in record
        self.seed_ = self.random_state if is_given else record["seed"]
