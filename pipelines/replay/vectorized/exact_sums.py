"""Sums of windows without error: values as fixed-point numbers in int64 limbs, a window as a difference of prefix sums.

`core.definitions` defines a sum as the exact sum rounded once. Here each value is split into up to three limbs of about
41 bits under one common unit; prefix sums of limbs are integers and therefore exact, and so is their difference.
One rounding at the end gives the same float as the definition, for all windows of a chunk at once.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from breaker_actors.core.model import Float64, Int64

LIMB_BITS_MAX, LIMBS_MAX = 41, 3
TOP_EXPONENT, LOW_EXPONENT, PART_EXPONENT = 950, -850, -980
"""Of the largest value: scaling then neither overflows nor meets subnormal numbers. Part of what fits always fits."""

Index = Any
"""An int, or an array of positions in a prefix array."""


class TooWide(Exception):
    """The values of this chunk do not fit the limbs: they differ by more than about 20 orders of magnitude."""


class ExactSums:
    """Sums over windows of the samples `entering`, of which those at the front of `leaving` have left.

    `leaving` holds the same values in another order (or is `entering` itself). With `lossy`, what does not fit the
    limbs is cut off instead of refused: `lost` bounds it per value. `part`: of values whose sums are known to fit.
    """

    __slots__ = ("_bits", "_entered", "_left", "_unit", "lost")

    def __init__(
        self, entering: Float64, leaving: Float64 | None = None, *, lossy: bool = False, part: bool = False
    ) -> None:
        self._bits = min(LIMB_BITS_MAX, 62 - len(entering).bit_length())
        top = max(float(entering.max()), -float(entering.min())) if len(entering) else 0.0
        exponent = int(np.frexp(top)[1])
        self.lost = 0.0
        if top and exponent < (PART_EXPONENT if part else LOW_EXPONENT):
            if not lossy:
                raise TooWide
            self.lost, entering, exponent = top, np.zeros(len(entering)), 0
            leaving = None if leaving is None else entering
        if exponent > TOP_EXPONENT:
            raise TooWide
        limbs = self._split(entering, exponent, lossy)
        self._unit = 2.0 ** (exponent - self._bits * len(limbs))
        self._entered = [_prefix(limb) for limb in limbs]
        self._left = self._entered
        if leaving is not None:
            self._left = [_prefix(limb) for limb in self._split(leaving, exponent, lossy)]

    def _split(self, values: Float64, exponent: int, lossy: bool) -> list[Int64]:
        """Limbs of each value, the highest first; all scaling is by powers of two and exact."""
        rest = values * 2.0 ** (self._bits - exponent)
        limbs = []
        for _ in range(LIMBS_MAX):
            limb = rest.astype(np.int64)
            limbs.append(limb)
            rest -= limb
            if not rest.any():
                return limbs
            rest *= 2.0**self._bits
        if not lossy:
            raise TooWide
        self.lost = 2.0 ** (exponent - self._bits * LIMBS_MAX)
        return limbs

    def total(self, entered: Index, left: Index) -> Any:
        """The sum of a window, rounded once: of the first `entered` samples without the first `left` to leave."""
        limbs = [came[entered] - gone[left] for came, gone in zip(self._entered, self._left, strict=True)]
        bits, mask = self._bits, (1 << self._bits) - 1
        for i in range(len(limbs) - 1, 0, -1):
            limbs[i - 1] = limbs[i - 1] + (limbs[i] >> bits)
            limbs[i] = limbs[i] & mask
        high = np.asarray(limbs[0]).astype(np.float64)
        if len(limbs) == 1:
            return high * self._unit
        # high is limbs[0] rounded; what that took off joins the next limb, which then still is a small whole number.
        low = ((limbs[0] - high.astype(np.int64)) << bits) + limbs[1]
        high, low = high * 2.0**bits, np.asarray(low).astype(np.float64)
        total = high + low
        if len(limbs) == 3:
            total = self._with_third(total, high, low, limbs[2]) * 2.0**bits
        return total * self._unit

    def one(self, entered: int, left: int) -> float:
        """`total` of a single window."""
        whole = 0
        for came, gone in zip(self._entered, self._left, strict=True):
            whole = (whole << self._bits) + int(came[entered]) - int(gone[left])
        return float(whole) * self._unit

    def _with_third(self, total: Float64, high: Float64, low: Float64, third: Int64) -> Float64:
        """total + (what its own rounding took off) + third * 2**-bits, rounded once.

        Where something was taken off, it is whole and so are the places where rounding turns: any fraction does."""
        part = total - high
        off = (high - (total - part)) + (low - part)
        fraction = np.asarray(third).astype(np.float64) * 2.0**-self._bits
        fraction = np.where(off == 0, fraction, np.where(third != 0, 0.5, 0.0))
        return np.asarray(total + (off + fraction))


def _prefix(limb: Int64) -> Int64:
    out = np.zeros(len(limb) + 1, np.int64)
    np.cumsum(limb, out=out[1:])
    return out
