"""Decimals as units of the column: exactly, or not at all."""

import struct

import bson
import numpy as np
from bson import Decimal128, Int64

from feedmux_spark.rows.bson_walk import DOCUMENT, Buffer, Values, find
from feedmux_spark.rows.decimals import decimals
from tests.tables import over

DIGITS_34 = 10**34 - 1


def units(value: object, precision: int, scale: int) -> int | None:
    """One value in units of 10 to the -`scale`; None where it was not taken."""
    raw = bson.encode({"v": value})
    whole = Values(Buffer(raw), np.array([DOCUMENT], np.uint8), np.array([0]), np.array([len(raw)]))
    words, taken = decimals(find(whole, ["v"])["v"], precision, scale)
    return int.from_bytes(words[0].tobytes(), "little", signed=True) if taken[0] else None


@over(
    ("value", "precision", "scale", "found"),
    [
        (5, 1, 0, 5),
        (5, 3, 2, 500),
        (10, 3, 2, None),
        (-999, 5, 2, -99_900),
        (Int64(10**18), 38, 0, 10**18),
        (Int64(-(2**63)), 19, 0, -(2**63)),
        (Int64(10**18), 18, 0, None),
        (Decimal128("12.50"), 4, 2, 1250),
        (Decimal128("12.500"), 4, 2, 1250),
        (Decimal128("12.505"), 4, 2, None),
        (Decimal128("1E+3"), 4, 0, 1000),
        (Decimal128("1E+38"), 38, 0, None),
        (Decimal128("1E+37"), 38, 0, 10**37),
        (Decimal128("-0"), 1, 0, 0),
        (Decimal128("0E-6176"), 1, 0, 0),
        (Decimal128("0E+6000"), 1, 0, 0),
        (Decimal128("1E-6176"), 38, 18, None),
        (Decimal128(str(DIGITS_34)), 34, 0, DIGITS_34),
        (Decimal128(str(-DIGITS_34)), 38, 4, -DIGITS_34 * 10**4),
        (Decimal128(str(DIGITS_34)), 33, 0, None),
        (Decimal128("NaN"), 38, 0, None),
        (Decimal128("-Infinity"), 38, 0, None),
        (1.5, 38, 2, None),
        ("1", 38, 0, None),
    ],
)
def test_a_value_is_held_exactly_or_not_taken(value: object, precision: int, scale: int, found: int | None) -> None:
    assert units(value, precision, scale) == found


def test_the_second_form_of_a_coefficient_is_zero() -> None:
    """IEEE 754's form for coefficients beyond 34 digits, which no driver writes: such numbers are zeros."""
    value = Decimal128.from_bid(struct.pack("<QQ", 1, 0b11 << 61 | 6176 << 47))
    assert units(value, 38, 0) == 0
