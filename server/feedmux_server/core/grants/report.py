"""Describes what a tenant's grants withhold of a feed. The text names no hidden field and no value of a condition."""

from feedmux_server.core.feeds.feed import FeedSpec, Scope
from feedmux_server.core.grants.grant import Grant, Grants, granted
from feedmux_server.core.grants.stages import PolicyCache, apply_grants

Withheld = tuple[str, str]
"""What the tenant does not receive, and why."""

_IN_TOKEN = "its content is part of the event's resume token, which cannot be changed"


def withheld(grants: Grants, spec: FeedSpec, cache: PolicyCache | None = None) -> list[Withheld]:
    """Raises FeedmuxError as `apply_grants` does."""
    asked = apply_grants(grants, spec, cache)
    if grants is None or not asked.policy:
        return []
    cases = granted(grants, spec.scope)
    found: list[Withheld] = []
    if not spec.scope.collection:
        names = ", ".join(f"{grant.database}.{grant.collection}" for grant in cases)
        found.append((f"everything outside {names}", "the feed is wider than the grants"))
        if not all(grant.whole_database for grant in cases):
            found.append(("dropDatabase events", "they are shown where a grant covers all collections of the database"))
    found.append(
        ("names of collections that are not granted, in rename events", "only the granted side of a rename is shown")
    )
    unknown = "fields and kinds of events that feedmux does not know"
    if asked.keeps_changes:
        unknown = "kinds of events that feedmux does not know, and unknown fields of events other than document changes"
    found.append((unknown, "they could show what is not granted"))
    for grant in cases:
        found += _of_grant(grant, spec)
    return found


def judged_by_images(grants: Grants, scope: Scope, database: str, collection: str) -> bool | None:
    """Whether the grants need stored images of a collection in the scope; None where it is not granted."""
    if grants is None:
        return False
    for grant in grants:
        if grant.covers(Scope(scope.source, database, collection)):
            return bool(grant.match)
    return None


def _of_grant(grant: Grant, spec: FeedSpec) -> list[Withheld]:
    where = spec.scope.namespace if spec.scope.collection else f"{grant.database}.{grant.collection}"
    found: list[Withheld] = []
    if grant.match:
        found.append(
            (
                f"{where}: documents that the grant's condition does not hold for",
                "an update that moves a document into view comes as an insert, and out of view as a delete",
            )
        )
        found.append(
            (
                f"{where}: updates, replacements and deletes without stored images",
                "only images show which documents matched; enable changeStreamPreAndPostImages on the collection",
            )
        )
    if grant.hide:
        found.append((f"{where}: {len(grant.hide)} hidden field(s), wherever they occur", "the grant hides them"))
        found.append((f"{where}: updates that change nothing but hidden fields", "the grant hides these updates too"))
        found.append((f"{where}: changes of documents whose shard key holds a hidden field", _IN_TOKEN))
    if not grant.is_plain and spec.show_expanded_events:
        found.append((f"{where}: create, modify, index and sharding events", _IN_TOKEN))
    return found
