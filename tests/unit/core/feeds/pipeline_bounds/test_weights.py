"""How the weights on parts of an event add up."""

from feedmux_server.core.feeds.pipeline_bounds.weights import Bound, Origin, Path, Size, largest_of, sum_of, weigh

OBJECTS = Origin(Size(1.0, 0.0), frozenset({(), ("a",)}))


def weight_of(*paths: Path, origin: Origin = OBJECTS) -> float:
    return weigh(sum_of(Bound(0.0, {(0, path): 1.0}) for path in paths).weights, {0: origin})[0]


def test_the_fields_of_an_object_share_its_bytes() -> None:
    assert weight_of(("a", "x"), ("a", "y"), ("b",)) == 1.0
    assert weight_of(("a", "x"), ("a", "x"), ("a", "y")) == 2.0
    assert weight_of((), ("a", "x")) == 2.0


def test_each_reference_into_an_array_has_its_own_indexes() -> None:
    assert weight_of(("b", "x"), ("b", "y")) == 2.0
    assert weight_of(*(("b", str(index)) for index in range(9))) == 3.0
    assert weight_of(*(("b", "x", str(index)) for index in range(9))) == 9.0


def test_a_field_of_the_event_is_no_array() -> None:
    event = Origin(Size(1.0, 0.0), frozenset({()}), is_event=True)
    assert weight_of(*(("b", str(index)) for index in range(9)), origin=event) == 1.0


def test_a_choice_weighs_the_most_of_each_part() -> None:
    branches = Bound(5.0, {(0, ("a",)): 1.0}), Bound(3.0, {(0, ("a",)): 2.0, (0, ("b",)): 1.0})
    largest = largest_of(branches)
    assert (largest.constant, largest.weights) == (5.0, {(0, ("a",)): 2.0, (0, ("b",)): 1.0})
