"""BSON's Decimal128 as Arrow's decimal128, exactly or not at all.

BSON holds a coefficient of up to 34 digits and an exponent of ten, Arrow a whole number in units of the column's scale.
Numbers of up to 18 digits, before and after shifting, are done by numpy; longer ones one by one in Python.
"""

from typing import Final

import numpy as np
from bson.decimal128 import Decimal128
from numpy.typing import NDArray

from feedmux_spark.rows import bson_walk as bson
from feedmux_spark.rows.bson_walk import Ints, Mask, Values

_BIAS: Final = 6176
_SHORT: Final = 10**18
"""Below it a number and its shifts fit int64."""
_SHORT_DIGITS: Final = 18
_LONGEST: Final = 38
"""Digits of the longest column."""
_POWERS: Final = np.array([10**digits for digits in range(_SHORT_DIGITS + 1)], np.int64)


def decimals(values: Values, precision: int, scale: int) -> tuple[NDArray[np.int64], Mask]:
    """Units of 10 to the -`scale` as little-endian 128-bit numbers in pairs of 64 bits; and where a value was taken."""
    count = len(values)
    words = np.zeros((count, 2), np.int64)
    taken = np.zeros(count, np.bool_)
    rows, coefficients, exponents, long_rows = _parts(values)
    shifts = exponents + scale
    shifted, fits, short = _shifted(coefficients, shifts)
    taken[rows[fits]] = True
    words[rows, 0] = shifted
    words[rows, 1] = shifted >> 63
    if precision < _SHORT_DIGITS:
        taken[rows[np.abs(shifted) >= 10**precision]] = False
    for row in [*rows[~short].tolist(), *long_rows.tolist()]:
        number = _in_units(values, row, scale)
        taken[row] = number is not None and abs(number) < 10**precision
        if number is not None and taken[row]:
            words[row] = np.frombuffer(number.to_bytes(16, "little", signed=True), np.int64)
    return words, taken


def _parts(values: Values) -> tuple[Ints, Ints, Ints, Ints]:
    """Rows with short numbers, their signed coefficients and exponents; and the rows of those that are not short."""
    rows, numbers, exponents, longs = [], [], [], []
    for kind, dtype in ((bson.INT32, "<i4"), (bson.INT64, "<i8")):
        of_kind = np.flatnonzero(values.kind == kind)
        found = values.buffer.at(values.start[of_kind], dtype).astype(np.int64)
        short = (found > -_SHORT) & (found < _SHORT)
        rows.append(of_kind[short])
        numbers.append(found[short])
        exponents.append(np.zeros(int(short.sum()), np.int64))
        longs.append(of_kind[~short])
    of_kind = np.flatnonzero(values.kind == bson.DECIMAL128)
    low = values.buffer.at(values.start[of_kind], "<u8")
    high = values.buffer.at(values.start[of_kind] + 8, "<u8")
    # Both bits set: infinities, NaN, and forms that no driver writes. Python handles these values, like long
    # coefficients.
    usual = (high >> np.uint64(61)) & np.uint64(3) != np.uint64(3)
    short = usual & (high & np.uint64((1 << 49) - 1) == 0) & (low < np.uint64(_SHORT))
    negative = high[short] >> np.uint64(63) == 1
    number = low[short].astype(np.int64)
    rows.append(of_kind[short])
    numbers.append(np.where(negative, -number, number))
    exponents.append((high[short] >> np.uint64(49) & np.uint64(0x3FFF)).astype(np.int64) - _BIAS)
    longs.append(of_kind[~short])
    return np.concatenate(rows), np.concatenate(numbers), np.concatenate(exponents), np.concatenate(longs)


def _shifted(numbers: Ints, shifts: Ints) -> tuple[Ints, Mask, Mask]:
    """Numbers times ten to the `shifts`, where that is exact and short; and which of them could be judged here."""
    shifts = np.where(numbers == 0, 0, shifts)
    powers = _POWERS[np.minimum(np.abs(shifts), _SHORT_DIGITS)]
    up = shifts >= 0
    short = np.where(up, (shifts <= _SHORT_DIGITS) & (np.abs(numbers) <= (_SHORT - 1) // powers), True)
    # A number of 18 digits that is divided by more than 10^18 has nothing left but zero, which is not exact.
    exact = np.where(up, short, (shifts >= -_SHORT_DIGITS) & (numbers % powers == 0))
    result = np.where(up, np.where(short, numbers, 0) * powers, numbers // powers)
    return np.where(exact, result, 0), exact, short


def _in_units(values: Values, row: int, scale: int) -> int | None:
    """One value in units of 10 to the -`scale`; None where that is not whole, or not a number."""
    raw = values.buffer.raw[values.start[row] : values.end[row]]
    if values.kind[row] != bson.DECIMAL128:
        whole: int = int.from_bytes(raw, "little", signed=True) * 10**scale
        return whole
    number = Decimal128.from_bid(raw).to_decimal()
    if not number.is_finite():
        return None
    sign, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    coefficient = int("".join(map(str, digits))) * (-1 if sign else 1)
    shift = exponent + scale
    if not coefficient:
        return 0
    if shift > _LONGEST:
        return None
    units, rest = divmod(coefficient * 10 ** max(shift, 0), 10 ** max(-shift, 0))
    return None if rest else units
