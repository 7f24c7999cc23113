"""Compiles a tenant's grants into the stages that stand before the user's pipeline.

The stages are the enforcement; nothing after MongoDB checks events again. Each event is taken apart (`e`: the fields
that are known, by name; everything else is left behind), judged (`g`: which grant; `op`: what it is shown as, none for
not at all), cleaned of hidden fields (`hidden`), and put together again. The last stage makes a new document by an
expression: MongoDB moves no `$match` of the user's before such a stage, so the user's pipeline only ever computes on
what it may see, and cannot fail on anything else (docs/adr/0007).
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any, Final, NamedTuple

import bson
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.raw_bson import RawBSONDocument

from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.feeds.feed import SIMPLE_COLLATION, FeedSpec, Scope
from feedmux_server.core.grants.grant import Grant, Grants, granted, is_any, is_exact, regex_of
from feedmux_server.core.grants.hidden import hidden_stages, key_is_hidden
from feedmux_server.core.grants.match import Expression, match_expression

Stage = dict[str, Any]

_FIELDS: Final = (
    "_id", "operationType", "clusterTime", "wallTime", "collectionUUID", "fullDocument", "ns", "nsType", "to",
    "documentKey", "updateDescription", "fullDocumentBeforeChange", "operationDescription", "stateBeforeChange",
    "txnNumber", "lsid", "commitTimestamp",
)  # fmt: skip
_CHANGES: Final = ("insert", "update", "replace", "delete")
# Their description is part of their resume token and cannot be removed, so the whole event is withheld.
_DESCRIBED: Final = (
    "create", "createIndexes", "dropIndexes", "modify", "shardCollection", "reshardCollection",
    "refineCollectionShardKey",
)  # fmt: skip
# Tokens of version 1 say nothing about a rename; those of version 2 hold its target, as does the invalidate after it.
_PLAIN_TOKEN: Final = "^82.{16}2B02"
_RENAME_IN_TOKEN: Final = b"rename".hex().upper()
# They show events and fields that no grant describes.
_UNGRANTED_OPTIONS: Final = frozenset({"showSystemEvents", "showMigrationEvents", "showRawUpdateDescription"})
_IMAGES_SHOWN: Final = frozenset({"", "default", "off", "whenAvailable"})


_RAW: Final = CodecOptions(document_class=RawBSONDocument, datetime_conversion=DatetimeConversion.DATETIME_AUTO)

CACHE_BYTES: Final = 32 << 20
_MEANING: Final = 1
"""Another number wherever the same grants show less than before: dead letters from before are withheld from then on."""


class PolicyCache:
    """Compiled parts of policies by what they are made of, the last used, up to `bytes_max` bytes of BSON.

    A hundred grants take up to a second to compile, and ten megabytes. Keys hold nothing that a caller chooses, so that
    grants are compiled once for all feeds.
    """

    def __init__(self, bytes_max: int = CACHE_BYTES) -> None:
        self.bytes = 0
        self._bytes_max = bytes_max
        self._kept: OrderedDict[Hashable, tuple[list[RawBSONDocument], int]] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], list[Any]]) -> list[RawBSONDocument]:
        found = self._kept.get(key)
        if found is not None:
            self._kept.move_to_end(key)
            return found[0]
        documents = [RawBSONDocument(bson.encode(each)) for each in make()]
        size = sum(len(each.raw) for each in documents)
        self._kept[key] = documents, size
        self.bytes += size
        while self.bytes > self._bytes_max:
            _, (_, dropped) = self._kept.popitem(last=False)
            self.bytes -= dropped
        return documents


class Asked(NamedTuple):
    """A tenant's feed as MongoDB is asked for it."""

    spec: FeedSpec
    policy: bytes = b""
    """The stages before its pipeline: BSON `{pipeline: […]}`, empty for none."""
    keeps_changes: bool = False
    """The policy shows each change to a document as MongoDB does; what it withholds is of other events."""
    judges_documents: bool = False
    """The policy withholds documents."""
    shows: Callable[[str, str], bool] = lambda database, collection: True
    """Whether the policy shows anything of a namespace (database, collection)."""
    meaning: bytes = b""
    """What the policy is compiled from. Equal where the policies are, and stays when they are compiled in another
    way."""


def apply_grants(grants: Grants, spec: FeedSpec, cache: PolicyCache | None = None) -> Asked:
    """Raises FeedmuxError: NAMESPACE_DENIED, or OPTION_REFUSED for what the grants do not allow.

    Without a `cache` everything is compiled again.
    """
    if grants is None:
        return Asked(spec)
    cases = granted(grants, spec.scope)
    if "showSystemEvents" in spec.extra_options:
        # It shows collections that no grant can name, such as `system.js`.
        raise _refused("extra_options", "showSystemEvents is for tenants without grants")
    # A rename stays within its database.
    targets = tuple(grant for grant in grants if grant.covers(Scope(spec.scope.source, spec.scope.database)))
    if _shows_all(cases, targets, spec.scope):
        return Asked(spec)
    if refused := _UNGRANTED_OPTIONS.intersection(spec.extra_options):
        message = f"{min(refused)} cannot be used with grants that narrow the feed"
        raise _refused("extra_options", message)
    if spec.collation:
        # It would apply to the policy's own comparisons too.
        raise _refused("collation", "a collation cannot be used with grants that narrow the feed")
    judged = any(grant.match for grant in cases)
    if judged:
        _check_images(spec)
    elif any(grant.hide for grant in cases):
        _check_not_required(spec)
    asked = replace(spec, collation=SIMPLE_COLLATION)
    images: _Images = None
    if judged:
        asked = replace(asked, full_document="whenAvailable", full_document_before_change="whenAvailable")
        images = spec.full_document == "whenAvailable", spec.full_document_before_change == "whenAvailable"
    keeps = _keeps_changes(cases, spec.scope)
    stages = _stages(cases, targets, spec.scope, images, cache or PolicyCache())

    def shows(database: str, collection: str) -> bool:
        return any(grant.covers(Scope(spec.scope.source, database, collection)) for grant in cases)

    meaning = bson.encode({
        "version": _MEANING,
        "cases": [[grant.database, grant.collection, grant.match, *grant.hide] for grant in cases],
        "targets": [[grant.database, grant.collection] for grant in targets],
        "images": images,
    })  # fmt: skip
    return Asked(asked, bson.encode({"pipeline": stages}), keeps, judged, shows, meaning)


def without_database(asked: Asked, database: str) -> Asked:
    """The same feed without the events of a database; an empty name changes nothing. Raises NAMESPACE_DENIED for a feed
    of the database itself."""
    if not database or asked.spec.scope.database not in ("", database):
        return asked
    if asked.spec.scope.database:
        raise FeedmuxError(
            ErrorReason.NAMESPACE_DENIED,
            "the database of the dead letters is not served",
            {"namespace": database},
        )
    stages = bson.decode(asked.policy, _RAW)["pipeline"] if asked.policy else []
    # By a pattern, because a collation of the feed would apply to a comparison.
    visible: Stage = {"$match": {"ns.db": {"$not": {"$regex": _anchored(database)}}}}

    def shows(other: str, collection: str) -> bool:
        return other != database and asked.shows(other, collection)

    meaning = bson.encode({"without": database, "of": asked.meaning})
    return asked._replace(policy=bson.encode({"pipeline": [visible, *stages]}), shows=shows, meaning=meaning)


_Images = tuple[bool, bool] | None
"""Where documents are judged: whether the user asked for the document after an update, and before a change."""


def _shows_all(cases: tuple[Grant, ...], targets: tuple[Grant, ...], scope: Scope) -> bool:
    """Whether no event of the scope could name or show anything that is not granted in full."""
    first = cases[0]
    if not first.is_plain:
        return False
    if scope.collection:
        # Renames may name any collection of the database.
        return any(grant.whole_database for grant in targets)
    return first.whole_database and (bool(scope.database) or is_any(first.database))


def _keeps_changes(cases: tuple[Grant, ...], scope: Scope) -> bool:
    """Whether a change to a document that comes at all is granted in full. Of one collection the first grant judges
    all."""
    return bool(scope.collection) and cases[0].is_plain


def _check_images(spec: FeedSpec) -> None:
    why = "where a grant matches documents: only stored images show which documents match at the time of a change"
    if spec.full_document not in _IMAGES_SHOWN:
        raise _refused("full_document", f"full_document can be default or whenAvailable {why}")
    if spec.full_document_before_change not in _IMAGES_SHOWN:
        raise _refused("full_document_before_change", f"full_document_before_change can be off or whenAvailable {why}")


def _check_not_required(spec: FeedSpec) -> None:
    """A required image that is missing ends the feed, also for a change of nothing but hidden fields."""
    for name in ("full_document", "full_document_before_change"):
        if getattr(spec, name) == "required":
            raise _refused(name, f"{name} cannot be required where a grant hides fields: use whenAvailable")


def _refused(field: str, message: str) -> FeedmuxError:
    return FeedmuxError(ErrorReason.OPTION_REFUSED, message, {"field": f"feed.{field}"}, field=f"feed.{field}")


def _stages(
    cases: tuple[Grant, ...], targets: tuple[Grant, ...], scope: Scope, images: _Images, cache: PolicyCache
) -> list[Any]:
    renames = cache.get(("renames", targets), lambda: [_rename_to(grant) for grant in targets])
    [to] = cache.get(("to", targets), lambda: [{"$or": [_names(grant, Scope(""), "$to") for grant in targets]}])
    keeps = _keeps_changes(cases, scope)
    return [
        {"$match": _prefilter(cases, targets, renames, scope)},
        {
            "$replaceWith": {
                "e": {name: f"${name}" for name in _FIELDS},
                "g": _first([(_names(grant, scope, "$ns"), index) for index, grant in enumerate(cases)], -1),
                "to": to,
                **({"whole": "$$ROOT"} if keeps else {}),
            }
        },
        *cache.get(("cases", cases, images, keeps), lambda: _stages_of_cases(cases, images, keeps)),
    ]


def _stages_of_cases(cases: tuple[Grant, ...], images: _Images, keeps: bool) -> list[Stage]:
    hides = [(index, grant.hide) for index, grant in enumerate(cases) if grant.hide]
    return [
        {"$set": {"op": _shown_as(cases)}},
        {"$match": {"op": {"$type": "string"}}},
        *hidden_stages(hides),
        {"$replaceWith": _if_change("$whole", _event(hides, images)) if keeps else _event(hides, images)},
    ]


def _prefilter(
    cases: tuple[Grant, ...], targets: tuple[Grant, ...], renames: list[RawBSONDocument], scope: Scope
) -> Stage:
    """What MongoDB can leave out while it scans the oplog. The stages after it rely on it only for this: where they
    compare patterns, no name comes that is not UTF-8."""
    patterns = {pattern for grant in (*cases, *targets) for pattern in (grant.database, grant.collection)}
    by_pattern = any(not (is_exact(each) or is_any(each)) for each in patterns)
    return {
        **(_UTF_8_NAMES if by_pattern else {}),
        "$or": [
            {"operationType": "invalidate"},
            *(_named(grant, scope, "ns") for grant in cases),
            *renames,
            *(
                {"operationType": "dropDatabase", "ns.db": _pattern(grant.database, scope.database)}
                for grant in cases
                if grant.whole_database
            ),
        ],
    }


_ANY_TEXT: Final = {"properties": {"db": {"pattern": r"\A"}, "coll": {"pattern": r"\A"}}}
_UTF_8_NAMES: Final = {"$jsonSchema": {"properties": {"ns": _ANY_TEXT, "to": _ANY_TEXT}}}
"""A regular expression in an expression fails at a name that is not UTF-8; in a schema, it does not match."""


def _rename_to(grant: Grant) -> Stage:
    return {"operationType": "rename", **_named(grant, Scope(""), "to")}


def _named(grant: Grant, scope: Scope, field: str) -> Stage:
    """A pattern stands in a `$jsonSchema`, which MongoDB checks on events alone. It turns other regular expressions on
    names into expressions for its oplog, and those fail at a name that is not UTF-8, of whatever collection."""
    known = {"db": (grant.database, scope.database), "coll": (grant.collection, scope.collection)}
    named: Stage = {f"{field}.{part}": _pattern(*names) for part, names in known.items()}
    patterns = {
        part: {"pattern": f"(?s){_anchored(pattern)}"}
        for part, (pattern, name) in known.items()
        if not (name or is_exact(pattern) or is_any(pattern))
    }
    if patterns:
        named["$jsonSchema"] = {"properties": {field: {"properties": patterns}}}
    return named


def _pattern(pattern: str, known: str) -> Any:
    return {"$eq": known or pattern} if known or is_exact(pattern) else {"$exists": True}


def _names(grant: Grant, scope: Scope, field: str) -> Expression:
    """Whether the namespace in `field` is one of the grant's; what the scope fixes is compared as it is."""
    return {
        "$and": [
            _fits(grant.database, scope.database, f"{field}.db"),
            _fits(grant.collection, scope.collection, f"{field}.coll"),
        ]
    }


def _fits(pattern: str, known: str, value: str) -> Expression:
    if known or is_exact(pattern):
        return {"$eq": [value, {"$literal": known or pattern}]}
    if is_any(pattern):
        return {"$eq": [{"$type": value}, "string"]}
    return {"$regexMatch": {"input": value, "regex": _anchored(pattern), "options": "s"}}


def _anchored(pattern: str) -> str:
    # \z: unlike $ it does not let a line break follow.
    return rf"\A{regex_of(pattern)}\z"


def _shown_as(cases: tuple[Grant, ...]) -> Expression:
    """The operation type that the event is shown with; null for an event that is withheld."""
    op = "$e.operationType"
    plain = [index for index, grant in enumerate(cases) if grant.is_plain]
    whole = [_fits(grant.database, "", "$e.ns.db") for grant in cases if grant.whole_database]
    token = "$e._id._data"
    names_target = {
        "$and": [
            {"$not": [{"$regexMatch": {"input": token, "regex": _PLAIN_TOKEN}}]},
            {"$regexMatch": {"input": token, "regex": _RENAME_IN_TOKEN}},
        ]
    }
    changes = [({"$eq": ["$g", index]}, _change_shown_as(grant)) for index, grant in enumerate(cases)]
    branches: list[tuple[Expression, Expression]] = [
        ({"$in": [op, list(_CHANGES)]}, _first(changes, None)),
        (
            {"$in": [op, list(_DESCRIBED)]},
            # A view's description names another collection.
            _if({"$and": [{"$in": ["$g", plain]}, _missing("$e.operationDescription.viewOn")]}, op),
        ),
        ({"$eq": [op, "drop"]}, _if({"$gte": ["$g", 0]}, op)),
        (
            {"$eq": [op, "rename"]},
            _if({"$or": ["$to", {"$and": [{"$gte": ["$g", 0]}, {"$not": [names_target]}]}]}, op),
        ),
        ({"$eq": [op, "dropDatabase"]}, _if({"$or": whole}, op)),
        ({"$eq": [op, "invalidate"]}, _if({"$not": [names_target]}, op)),
    ]
    return _first(branches, None)


def _change_shown_as(grant: Grant) -> Expression:
    op = "$e.operationType"
    shown: Expression = op
    if grant.match:
        images = {
            "was": match_expression(grant.match, "$$before"),
            "is": match_expression(grant.match, "$$after"),
            "known": {"$and": [_is_document("$$before"), _is_document("$$after")]},
        }
        outcome = _first(
            [
                ({"$eq": [op, "insert"]}, _if("$$is", op)),
                ({"$eq": [op, "delete"]}, _if("$$was", op)),
                # An image that is missing says nothing, so nothing is shown.
                ({"$not": ["$$known"]}, None),
                ({"$and": ["$$was", "$$is"]}, op),
                ("$$is", "insert"),
                ("$$was", "delete"),
            ],
            None,
        )
        shown = {
            "$let": {
                "vars": {"before": "$e.fullDocumentBeforeChange", "after": "$e.fullDocument"},
                "in": {"$let": {"vars": images, "in": outcome}},
            }
        }
    return _if({"$not": [key_is_hidden(grant.hide)]}, shown) if grant.hide else shown


def _event(hides: list[tuple[int, tuple[str, ...]]], images: _Images) -> Stage:
    """The event as the user's pipeline meets it. `_id` comes first, where it is found without a search."""
    after: Expression = True
    before: Expression = True
    if images is not None:
        # The policy asked for the images. What the user did not ask for, or what belongs to the other side of a move
        # into or out of view, is removed again.
        after_update, before_change = images
        after = {"$in": ["$op", ["insert", "replace", *(["update"] if after_update else [])]]}
        before = before_change and {"$ne": ["$op", "insert"]}
    cleaned = [({"$eq": ["$g", index]}, f"$h.{index}h") for index, _ in hides]

    def content(name: str, slot: str) -> Expression:
        return _first([(case, f"{path}.{slot}") for case, path in cleaned], f"$e.{name}")

    known, both = {"$gte": ["$g", 0]}, {"$and": [{"$gte": ["$g", 0]}, "$to"]}
    return {
        "_id": "$e._id",
        "operationType": "$op",
        "clusterTime": "$e.clusterTime",
        "collectionUUID": _keep(known, "$e.collectionUUID"),
        "wallTime": "$e.wallTime",
        "fullDocument": _keep(after, content("fullDocument", "after")),
        "ns": _keep({"$or": [known, {"$eq": ["$op", "dropDatabase"]}]}, "$e.ns"),
        "nsType": _keep(known, "$e.nsType"),
        "to": _keep("$to", "$e.to"),
        "documentKey": "$e.documentKey",
        "updateDescription": _keep({"$eq": ["$op", "update"]}, content("updateDescription", "update")),
        "fullDocumentBeforeChange": _keep(before, content("fullDocumentBeforeChange", "before")),
        "operationDescription": _keep({"$or": [{"$in": ["$op", list(_DESCRIBED)]}, both]}, "$e.operationDescription"),
        "stateBeforeChange": "$e.stateBeforeChange",
        "txnNumber": "$e.txnNumber",
        "lsid": "$e.lsid",
        "commitTimestamp": "$e.commitTimestamp",
    }


def _if_change(value: Expression, other: Expression) -> Expression:
    return {"$cond": [{"$in": ["$op", list(_CHANGES)]}, value, other]}


def _first(branches: list[tuple[Expression, Expression]], default: Expression) -> Expression:
    if not branches:
        return default
    return {"$switch": {"branches": [{"case": case, "then": then} for case, then in branches], "default": default}}


def _if(condition: Expression, then: Expression) -> Expression:
    return {"$cond": [condition, then, None]}


def _keep(condition: Expression, value: Expression) -> Expression:
    return value if condition is True else {"$cond": [condition, value, "$$REMOVE"]}


def _missing(value: str) -> Expression:
    return {"$eq": [{"$type": value}, "missing"]}


def _is_document(value: str) -> Expression:
    return {"$eq": [{"$type": value}, "object"]}
