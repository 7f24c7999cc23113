"""Compares what the workers of a group recorded with what was written. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

Change = tuple[int, int]
"""The `_id` of an order, and which change of it."""


class Step(NamedTuple):
    """A line of a record."""

    what: str
    at_ns: int
    change: Change


@dataclass(slots=True)
class GroupResult:
    """What a group did. The promises are kept if the last four are 0 and the letters are those expected."""

    written: int
    processed: int = 0
    redelivered: int = 0
    """What the killed worker had processed and came again, because it was not stored yet."""
    letters: list[Change] = field(default_factory=list)
    lost: int = 0
    repeated: int = 0
    out_of_order: int = 0
    shared: int = 0
    """How often a worker began an event while another one had an event of its order."""

    def kept(self, poison: Iterable[Change]) -> bool:
        return not (self.lost or self.repeated or self.out_of_order or self.shared) and self.letters == list(poison)


def read_steps(lines: Iterable[str]) -> list[Step]:
    """The steps of a record. A line that a killed process has not finished is left out."""
    found = []
    for line in lines:
        what, *numbers = line.split()
        if line.endswith("\n") and len(numbers) == 3:
            at_ns, order, change = map(int, numbers)
            found.append(Step(what, at_ns, (order, change)))
    return found


def processed(records: Iterable[Sequence[Step]]) -> set[Change]:
    return {step.change for record in records for step in record if step.what == "end"}


def check_group(
    written: Mapping[int, int], records: Sequence[Sequence[Step]], killed_ns: Mapping[int, int], letters: list[Change]
) -> GroupResult:
    """`written`: the number of changes by order. `killed_ns`: when a worker was killed, by its number."""
    result = GroupResult(sum(written.values()), letters=sorted(letters))
    done = processed(records)
    result.processed = len(done)
    wanted = {(order, change) for order, count in written.items() for change in range(1, count + 1)}
    result.lost = len(wanted - done - set(letters))
    spans: defaultdict[int, list[tuple[int, int, int]]] = defaultdict(list)
    """By order: when a worker had an event of it, from and to, and which worker."""
    first_begin: dict[Change, int] = {}
    ended_by: defaultdict[Change, list[int]] = defaultdict(list)
    for worker, record in enumerate(records):
        begun: dict[Change, int] = {}
        for what, at_ns, change in record:
            if what == "begin":
                begun[change] = at_ns
                first_begin[change] = min(at_ns, first_begin.get(change, at_ns))
            else:
                spans[change[0]].append((begun.pop(change), at_ns, worker))
                if what == "end":
                    ended_by[change].append(worker)
        for change, at_ns in begun.items():
            spans[change[0]].append((at_ns, killed_ns.get(worker, at_ns), worker))
    for workers in ended_by.values():
        again = len(workers) - 1
        if again and any(worker in killed_ns for worker in workers):
            result.redelivered += 1
            again -= 1
        result.repeated += again
    for each in spans.values():
        each.sort()
        result.shared += sum(later[0] < earlier[1] for earlier, later in pairwise(each))
    for order, count in written.items():
        begins = [first_begin[order, change] for change in range(1, count + 1) if (order, change) in first_begin]
        result.out_of_order += sum(later < earlier for earlier, later in pairwise(begins))
    return result
