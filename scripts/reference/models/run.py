"""What every folder takes from the command line: the seed, its random generators, and where it goes."""

import os
from dataclasses import dataclass

import numpy as np


class Unsteady(Exception):
    """This draw amplifies rounding: a gradient entry near zero turns Adam's step around, or a greedy step is a tie."""


@dataclass
class Run:
    """One run of a program. A later `attempt` draws other numbers, where the first ones were unsteady."""

    seed: int
    out: str
    attempt: int = 0

    @property
    def is_recorded(self):
        """Seed 0, whose models are in the repository, has fixed sizes; every other seed draws its own."""
        return self.seed == 0

    def rng(self, number):
        """numpy's PCG64 of (seed, number of the folder): a seed always gives the same bytes."""
        return np.random.default_rng([self.seed, number] + ([self.attempt] if self.attempt else []))

    def pick(self, rng, recorded, *others):
        """`recorded` under seed 0, else one of `others`."""
        return recorded if self.is_recorded else pick(rng, *others)

    def folder(self, name):
        """The path of a new folder."""
        path = f"{self.out}/{name}"
        os.makedirs(path)
        return path


def pick(rng, *choices):
    """One of `choices`, all of them equally likely."""
    return choices[int(rng.integers(len(choices)))]
