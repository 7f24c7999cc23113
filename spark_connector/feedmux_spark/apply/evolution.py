"""Documents of one schema as documents of another one: a mirror's table and its stream may have different schemas.

Fields are matched by name, at every depth. A type may become one that holds all its values.
"""

from collections.abc import Iterator
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as f
from pyspark.sql.types import (
    ArrayType,
    ByteType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StructType,
)

_INTEGERS: Final = (ByteType(), ShortType(), IntegerType(), LongType())
_DIGITS: Final = (3, 5, 10, 19)


class CannotConvert(Exception):
    """A field has a type that cannot become the wanted one."""


def same(have: DataType, want: DataType) -> bool:
    """Whether the types have the same fields in the same order. Whether they may be null does not count."""
    return have.simpleString() == want.simpleString()


def converted(column: Column, have: DataType, want: DataType, path: str) -> Column:
    """The column with another type: fields that it lacks are null, others that are not wanted are left out.

    Raises CannotConvert.
    """
    if same(have, want):
        return column
    if isinstance(have, StructType) and isinstance(want, StructType):
        names = have.fieldNames()
        fields = [
            converted(column.getField(field.name), have[field.name].dataType, field.dataType, f"{path}.{field.name}")
            if field.name in names
            else f.lit(None).cast(field.dataType)
            for field in want.fields
        ]
        made = f.struct(*[each.alias(field.name) for each, field in zip(fields, want.fields, strict=True)])
        return f.when(column.isNotNull(), made)
    if isinstance(have, ArrayType) and isinstance(want, ArrayType):
        have_element, want_element = have.elementType, want.elementType
        _check_inside(have_element, want_element, f"{path}[]")
        return f.transform(column, lambda each: converted(each, have_element, want_element, f"{path}[]"))
    if isinstance(have, MapType) and isinstance(want, MapType):
        have_value, want_value = have.valueType, want.valueType
        _check_inside(have_value, want_value, f"{path}{{}}")
        return f.transform_values(column, lambda _, each: converted(each, have_value, want_value, f"{path}{{}}"))
    if _holds(want, have):
        return column.cast(want)
    raise CannotConvert(f"{path} is {_shown(have)}, which cannot become {_shown(want)}")


def missing(have: DataType, want: DataType, path: str) -> Iterator[str]:
    """Yields the wanted fields that a type lacks, at every depth."""
    match have, want:
        case StructType(), StructType():
            for field in want.fields:
                name = f"{path}.{field.name}"
                if field.name in have.fieldNames():
                    yield from missing(have[field.name].dataType, field.dataType, name)
                else:
                    yield name
        case ArrayType(), ArrayType():
            yield from missing(have.elementType, want.elementType, f"{path}[]")
        case MapType(), MapType():
            yield from missing(have.valueType, want.valueType, f"{path}{{}}")


def _check_inside(have: DataType, want: DataType, path: str) -> None:
    """Raises CannotConvert, which must not come out of a function that Spark calls."""
    converted(f.lit(None).cast(have), have, want, path)


def _holds(want: DataType, have: DataType) -> bool:
    """Whether a leaf type holds all values of another one exactly."""
    if have in _INTEGERS:
        rank = _INTEGERS.index(have)
        if isinstance(want, DecimalType):
            return want.precision - want.scale >= _DIGITS[rank]
        return want in _INTEGERS[rank:] or (isinstance(want, DoubleType) and rank < len(_INTEGERS) - 1)
    if isinstance(have, DecimalType) and isinstance(want, DecimalType):
        return want.scale >= have.scale and want.precision - want.scale >= have.precision - have.scale
    return isinstance(have, FloatType) and isinstance(want, DoubleType)


def _shown(data_type: DataType) -> str:
    return data_type.simpleString().upper()
