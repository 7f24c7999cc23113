"""Names as metric attributes, with a bound: the first names keep their value, all further names become "other"."""

from feedmux_server.telemetry.metrics import OTHER


class Labels:
    """A name keeps its value for as long as the process lives, so that counters never go back."""

    __slots__ = ("_known", "_most")

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: set[str] = set()

    def of(self, name: str) -> str:
        if name in self._known:
            return name
        if len(self._known) >= self._most:
            return OTHER
        self._known.add(name)
        return name
