"""Events that wait for a view: counted with what they cost, and evicted as a whole."""

from feedmux_server.core.limits.rings import Rings
from feedmux_server.streams.wide.inbox import _OFFER_BYTES, Inbox


def inbox(bytes_max: int) -> tuple[Inbox, Rings, list[str]]:
    given_up: list[str] = []
    rings = Rings()
    return Inbox(bytes_max, rings, lambda: given_up.append("given up")), rings, given_up


def test_what_is_put_is_taken_in_order_and_counted_meanwhile() -> None:
    box, rings, _ = inbox(1000)
    for number, data in enumerate((b"one", b"two"), 1):
        box.put(data, float(number))
    assert (len(box), box.bytes, rings.bytes, box.read_time_s) == (2, 6 + 2 * _OFFER_BYTES, 6 + 2 * _OFFER_BYTES, 1.0)
    assert box.take() == b"onetwo"
    assert (len(box), box.bytes, rings.bytes) == (0, 0, 0)
    box.put(b"three", 3.0)
    assert box.read_time_s == 3.0, "the first of those that wait now"


def test_above_its_bound_nothing_is_left_and_the_view_is_told() -> None:
    box, rings, given_up = inbox(100 + _OFFER_BYTES)
    box.put(bytes(100), 1.0)
    assert given_up == []
    box.put(b"", 2.0)
    assert (len(box), box.bytes, rings.bytes, given_up) == (0, 0, 0, ["given up"])


def test_memory_that_is_needed_is_that_of_all_its_events() -> None:
    box, rings, given_up = inbox(10_000)
    for _ in range(5):
        box.put(bytes(100), 1.0)
    rings.evict(1)
    assert (box.take(), rings.bytes, given_up) == (b"", 0, ["given up"])
