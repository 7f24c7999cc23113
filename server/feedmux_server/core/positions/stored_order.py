"""The order of stored positions: by cluster time, then by these bytes."""

from feedmux_server.core.positions.resume_token import ResumeToken


def order_bytes(place: ResumeToken) -> bytes:
    """Bytes that order positions of one cluster time as MongoDB does; the stored position moves only forward by them.

    Here, positions of a later token version sort after positions of an earlier version. So a session that begins at a
    position of an older version may store what it has delivered since. After a return to an older version, the stored
    position moves again only at the next cluster time.
    """
    _, kind, transaction, from_invalidate, tail = place.key
    version = 0 if place.is_high_water_mark else place.version
    return bytes((kind,)) + transaction.to_bytes(8) + bytes((from_invalidate, version)) + tail


def group_order(place: ResumeToken, epoch: int, changes: int) -> bytes:
    """The same for a group, whose position may stay while more is settled after it: by the host's epoch, then by how
    often what is settled has changed."""
    return order_bytes(place) + epoch.to_bytes(8) + changes.to_bytes(8)
