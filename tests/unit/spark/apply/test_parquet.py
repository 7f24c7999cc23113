"""The names of a mirror's states: what was written, by which batch, in which order."""

from feedmux_spark.apply.parquet import _State


def test_states_are_sorted_by_their_number_whatever_the_batch() -> None:
    states = [_State(0, "copy", 0), _State(9, "b-query", 7), _State(10, "a-query", 0)]
    folders = [state.folder for state in states]
    assert sorted(folders) == folders
    parsed = [state for each in reversed(folders) if (state := _State.parse(each)) is not None]
    assert sorted(parsed) == states


def test_what_else_is_in_the_folder_is_no_state() -> None:
    for name in ("state-1", "state-x-0-q", "state-1-x-q", "other-1-0-q", "_temporary", ".state-1-0-q", ""):
        assert _State.parse(name) is None
