"""The limits of a pipeline, and what it has used of them."""

from typing import Final

from feedmux_server.core.feeds.pipeline_bounds.weights import Bound, Origin, Size, Symbol, weigh

WEIGHT_MAX: Final = 32
"""The output of a stage, and what lies between, in sizes of the event …"""
CONSTANT_PER_PIPELINE_BYTE: Final = 16
CONSTANT_BYTES: Final = 64 * 1024
"""… and in bytes beside that."""
WORK_MAX: Final = 1024
"""Steps for each byte of the event."""
OPERATOR_WORK: Final = 8
_WORK_CONSTANT_MAX: Final = 4 << 20
_PARTS_MAX: Final = 64
STEPS_MAX: Final = 500_000
"""Steps of the check itself, which looks at each part of a bound at every use: a fifth of a second at most. The largest
pipeline that refers to each value a few times takes 20,000."""


class PipelineUnbounded(Exception):
    """`operator` is not allowed, or makes too much of the event: `message` says why."""

    def __init__(self, operator: str, path: tuple[str, ...], message: str) -> None:
        super().__init__(message)
        self.operator = operator
        self.path = path
        self.message = message


class Budget:
    """Counts work, and checks sizes, of one pipeline. Methods raise PipelineUnbounded where it exceeds a limit."""

    def __init__(self, pipeline_bytes: int) -> None:
        self.at: list[str] = []
        """The path of what is being checked, within the pipeline."""
        self.operator = ""
        """The innermost stage or operator around it."""
        self.origins: dict[Symbol, Origin] = {}
        """What the symbols stand for."""
        self._constant_max = CONSTANT_PER_PIPELINE_BYTE * pipeline_bytes + CONSTANT_BYTES
        self._work = [Bound()]
        """The work of the stage, and of the loops within one another."""
        self._work_total = Size(0.0, 0.0)
        self._steps = 0

    def count(self, steps: int) -> None:
        """Count steps of the check, before they are taken."""
        self._steps += steps
        if self._steps > STEPS_MAX:
            raise self.rejection(
                self.operator,
                f"up to here the check of the pipeline takes more than {STEPS_MAX} steps. Refer less often to values"
                " that are made of many fields",
            )

    def rejection(self, operator: str, message: str) -> PipelineUnbounded:
        return PipelineUnbounded(operator, tuple(self.at), message)

    def size(self, bound: Bound) -> Size:
        self.count(len(bound.weights))
        weight, constant = 0.0, bound.constant
        for symbol, each in weigh(bound.weights, self.origins).items():
            size = self.origins[symbol].size
            weight += each * size.weight
            constant += each * size.constant
        return Size(weight, constant)

    def check(self, bound: Bound, name: str) -> Size:
        """Check what operator `name` makes. Returns its size."""
        size = self.size(bound)
        if not size.weight <= WEIGHT_MAX:
            raise self.rejection(
                name,
                f"its output may have {size.weight:.0f} times the size of the event; {WEIGHT_MAX} times are allowed",
            )
        if not size.constant <= self._constant_max:
            raise self.rejection(
                name,
                f"its output may have {size.constant:.0f} bytes and more, whatever the event; {self._constant_max} are"
                " allowed for a pipeline of this length",
            )
        return size

    def drop(self, *bounds: Bound) -> None:
        """Check values that MongoDB makes as operands, although their result is small."""
        for each in bounds:
            if (
                each.constant > self._constant_max
                or len(each.weights) > 1
                or any(weight > 1 for weight in each.weights.values())
            ):
                self.check(each, self.operator)

    def few_parts(self, bound: Bound) -> Bound:
        """The bound, or a coarser one that can be used often without much work."""
        if len(bound.weights) <= _PARTS_MAX:
            return bound
        self.count(len(bound.weights))
        whole = weigh(bound.weights, self.origins)
        return Bound(bound.constant, {(symbol, ()): weight for symbol, weight in whole.items()})

    def charge(self, *bounds: Bound) -> None:
        """Count work."""
        for each in bounds:
            self.count(len(each.weights))
            self._work[-1].add(each)

    def charge_operator(self) -> None:
        self._work[-1].constant += OPERATOR_WORK

    def end_stage(self, name: str) -> None:
        """Check the work of all stages so far."""
        size = self.size(self._work[-1])
        self._work[-1] = Bound()
        total = Size(self._work_total.weight + size.weight, self._work_total.constant + size.constant)
        self._work_total = total
        if not (total.weight <= WORK_MAX and total.constant <= _WORK_CONSTANT_MAX):
            raise self.rejection(
                name, f"up to this stage the pipeline is too much work for each event ({total.weight:.0f} steps a byte)"
            )

    @property
    def symbol(self) -> Symbol:
        """The element of the innermost loop, or the document outside of loops."""
        return len(self._work) - 1

    def enter_loop(self, over: Bound, *, objects: bool = False) -> Symbol:
        """Begin a loop over the elements of `over`. `objects`: they are objects."""
        self._work.append(Bound())
        paths = frozenset({()}) if objects or over.of_objects else frozenset()
        self.origins[self.symbol] = Origin(self.size(over), paths)
        return self.symbol

    def leave_loop(self, loop: Symbol, name: str) -> Size:
        """End it. Returns its work, by the size of its elements and for each of them."""
        work = self._work.pop()
        return Size(self.weight_in_loop(work, loop, name), work.constant)

    def weight_in_loop(self, bound: Bound, loop: Symbol, name: str) -> float:
        """What a bound weighs on the loop's element. Raises where it weighs on anything outside."""
        self.count(len(bound.weights))
        for symbol, path in bound.weights:
            if symbol != loop:
                what = ".".join(path) or "the document"
                raise self.rejection(
                    name,
                    f"uses `{what[:100]}`, which lies outside, for each element: that grows with the square of the"
                    " event's size. Within it only comparisons may refer to fields outside",
                )
        return weigh(bound.weights, self.origins).get(loop, 0.0)
