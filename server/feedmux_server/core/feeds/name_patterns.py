"""Pipelines that may compare names of collections and databases with regular expressions in a `$match`.

MongoDB moves a `$match` to the oplog, also past stages that rename fields. There it makes an expression of a regular
expression on a name, and such an expression fails at a name that is not UTF-8, of whatever collection. Compared on an
event, it does not match such a name.
"""

import re
from typing import Any, Final

ON_EVENTS: Final[dict[str, Any]] = {"$replaceWith": {"$mergeObjects": ["$$ROOT"]}}
"""Returns each event as it is. MongoDB moves no `$match` before a stage that makes a new document."""
_NAMES: Final = re.compile(rb"(?:[^\w.]|\$\$(?:ROOT|CURRENT)\.)(?:ns|to)(?:\.(?:db|coll))?\0")
"""As the name of a field, or as a path."""
_REGEX: Final = re.compile(rb"\x0b[^\0]|\$regex\0")
"""The type of a field with a regular expression, before its name; or the operator."""


def compares_names(pipeline: bytes) -> bool:
    """Whether a `$match` may compare a name with a regular expression. `pipeline`: BSON, as `FeedSpec` has it.

    True also where its bytes only look like that.
    """
    return _NAMES.search(pipeline) is not None and _REGEX.search(pipeline) is not None
