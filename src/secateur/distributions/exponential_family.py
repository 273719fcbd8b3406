"""What every distribution offers, and what makes one an exponential family."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import jax

Natural = tuple[jax.Array, ...]


class Distribution:
    """What every distribution offers: `mean`, `variance`, `log_prob`, `sample`, and often `kl`."""

    if TYPE_CHECKING:  # fields in some subclasses, computed properties in others

        @property
        def mean(self) -> Any: ...  # noqa: D102

        @property
        def variance(self) -> Any: ...  # noqa: D102

    def log_prob(self, value: Any) -> jax.Array:
        """Log-density at `value`, in nats; −inf outside the support."""
        raise NotImplementedError

    def sample(self, key: jax.Array, shape: tuple[int, ...] = ()) -> jax.Array:
        """Draw independent samples; `shape` comes before the distribution's own shape."""
        raise NotImplementedError

    def kl(self, other: Distribution) -> jax.Array:
        """KL[self ‖ other] in nats, where it has a closed form; otherwise a TypeError."""
        raise NotImplementedError

    def _no_kl(self, other: Any, *supported: str) -> TypeError:
        return TypeError(
            f"KL[{type(self).__name__} ‖ {type(other).__name__}] has no closed form here. "
            f"Supported as the second distribution: {', '.join(supported)}. Otherwise estimate it "
            "by averaging self.log_prob(x) - other.log_prob(x) over x = self.sample(key, shape)."
        )


class ExponentialFamily(Distribution):
    """A density h(x) exp(η·T(x) − A(η)), which is all that Bayesian model reduction needs.

    A subclass supplies η (`natural_parameters`), its inverse (`from_natural`), A
    (`log_partition_of`) and the domain of A (`is_valid_natural`); `secateur.reduce` then works.
    η is a tuple of arrays, one per sufficient statistic.
    """

    @property
    def natural_parameters(self) -> Natural:
        """η, a tuple with one array per sufficient statistic."""
        raise NotImplementedError

    @classmethod
    def from_natural(cls, natural: Natural) -> Self:
        """The member with natural parameters η."""
        raise NotImplementedError

    @staticmethod
    def log_partition_of(natural: Natural) -> jax.Array:
        """A(η), so that the density integrates to one."""
        raise NotImplementedError

    @staticmethod
    def is_valid_natural(natural: Natural) -> jax.Array:
        """Whether η belongs to a proper distribution, for each member of the batch."""
        raise NotImplementedError

    @classmethod
    def log_partition_difference(cls, new: Natural, old: Natural) -> jax.Array:
        """A(new) − A(old); families override it where that difference would cancel."""
        return cls.log_partition_of(new) - cls.log_partition_of(old)
