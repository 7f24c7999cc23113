"""No test rests on the clock: an assertion over elapsed time, or that nothing came for a moment (docs/testing.md).

A time that a test has measured may be asserted to be long ("not before 3 s"), never to be short: a busy machine is
slow. What must not come is shown by something that comes after it. Tests in virtual time may do both, and the guard of
a loop that waits for a condition is no assertion.
"""

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

REPOSITORY = Path(__file__).parents[2]
ADVICE = "docs/testing.md"
ELAPSED: Final = (
    "asserts over elapsed time: count operations, use virtual time, or assert a least time only (`>=` on the clock that"
    f" the code itself uses); {ADVICE}"
)
NOTHING: Final = (
    "asserts after a short wait: send something that must come after it and see that it comes first, or wait for a"
    f" condition with a guard of 60 s; {ADVICE}"
)
GUARD_S: Final = 60.0
"""Shorter sleeps are short, shorter guards are assertions."""
CLOCKS: Final = frozenset({"time", "monotonic", "perf_counter", "process_time", "thread_time"})
CLOCKS_NS: Final = frozenset(f"{name}_ns" for name in CLOCKS)
VIRTUAL: Final = "in_virtual_time"
CARRIERS: Final = frozenset({"abs", "float", "int", "max", "min", "round", "sorted", "sum", "list", "tuple"})
"""Functions whose result is a time where an argument is one."""
COLLECTORS: Final = frozenset({"add", "append", "extend"})


@dataclass(frozen=True, slots=True)
class Finding:
    line: int
    what: str


def find(source: str) -> list[Finding]:
    """What rests on the clock in a file, by line."""
    tree = ast.parse(source)
    names = _Names(tree)
    found = [finding for function in _functions(tree) for finding in _Function(function, names).find()]
    return sorted(set(found), key=lambda each: each.line)


Function = ast.FunctionDef | ast.AsyncFunctionDef


def _functions(tree: ast.AST) -> Iterator[Function]:
    """Every function, but for tests in virtual time and the functions in them."""
    stack = [tree]
    while stack:
        for child in ast.iter_child_nodes(stack.pop()):
            if isinstance(child, Function):
                if any(VIRTUAL in ast.unparse(each) for each in child.decorator_list):
                    continue
                yield child
            stack.append(child)


class _Names:
    """What names mean in the whole of a file."""

    def __init__(self, tree: ast.Module) -> None:
        self.clocks = {
            alias.asname or alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and node.module == "time"
            for alias in node.names
            if alias.name in CLOCKS | CLOCKS_NS
        }
        self.constants = {
            target.id: node.value
            for node in tree.body
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None
            for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
            if isinstance(target, ast.Name)
        }


class _Function:
    """One function, without those within it."""

    def __init__(self, function: Function, names: _Names) -> None:
        self._names = names
        self._nodes = list(_own(function))
        self._bodies = [body for node in (function, *self._nodes) for body in _bodies(node)]
        self._guards = {
            id(inner)
            for node in self._nodes
            if isinstance(node, ast.While)
            for inner in _own(node)
            if isinstance(inner, ast.Assert) and self._is_guard(inner.test)
        }
        self._times: set[str] = set()
        """Local variables that hold a time …"""
        self._short: set[str] = set()
        """… or whether a time is short."""

    def find(self) -> Iterator[Finding]:
        while self._learn():
            pass
        for node in self._nodes:
            if isinstance(node, ast.Assert) and id(node) not in self._guards and self._demands_speed(node.test):
                yield Finding(node.lineno, ELAPSED)
            if isinstance(node, ast.Call) and _called(node) == "quiet":
                yield Finding(node.lineno, NOTHING)
        for body in self._bodies:
            for statement, following in zip(body, [*body[1:], None], strict=True):
                during = any(isinstance(node, ast.Call) and _called(node) == "during" for node in _own(statement))
                if during and isinstance(statement, ast.Assert):
                    yield Finding(statement.lineno, NOTHING)
                elif isinstance(following, ast.Assert) and (
                    self._is_short_sleep(statement) or (during and isinstance(statement, ast.Expr | ast.Assign))
                ):
                    yield Finding(following.lineno, NOTHING)

    def _learn(self) -> bool:
        """Follows assignments once. Whether something new was found."""
        before = len(self._times) + len(self._short)
        for node in self._nodes:
            match node:
                case ast.Assign(targets=targets, value=value):
                    self._assign(targets, value)
                case ast.AnnAssign(target=target, value=ast.expr() as value):
                    self._assign([target], value)
                case ast.AugAssign(target=target, value=value) | ast.NamedExpr(target=target, value=value):
                    self._assign([target], value)
                case ast.Call(func=ast.Attribute(value=ast.Name() as owner, attr=method), args=[value]):
                    if method in COLLECTORS:
                        self._assign([owner], value)
        return len(self._times) + len(self._short) > before

    def _assign(self, targets: Sequence[ast.expr], value: ast.expr) -> None:
        for target in targets:
            if isinstance(target, ast.Tuple | ast.List):
                values = value.elts if isinstance(value, ast.Tuple | ast.List) else [value] * len(target.elts)
                for one, its in zip(target.elts, values, strict=False):
                    self._assign([one], its)
            elif isinstance(target, ast.Name):
                if self._is_time(value):
                    self._times.add(target.id)
                elif self._demands_speed(value):
                    self._short.add(target.id)

    def _is_clock(self, call: ast.Call) -> bool:
        match call.func:
            case ast.Name(id=name):
                return name in self._names.clocks
            case ast.Attribute(value=ast.Name(id="time"), attr=name):
                return name in CLOCKS | CLOCKS_NS
            case ast.Attribute(value=ast.Call() as loop, attr="time"):
                return _called(loop) in ("get_running_loop", "get_event_loop")
            case ast.Attribute(value=ast.Name(id=name) | ast.Attribute(attr=name), attr="time"):
                return name.lstrip("_") == "loop"
        return False

    def _is_guard(self, test: ast.expr) -> bool:
        """Whether this is `clock() < end`, where the end is not known to be less than a guard's length away."""
        match test:
            case ast.Compare(left=ast.Call() as clock, ops=[ast.Lt() | ast.LtE()], comparators=[ast.Name(id=end)]):
                return self._is_clock(clock) and not any(
                    (seconds := self._number(length)) is not None and seconds < GUARD_S for length in self._lengths(end)
                )
        return False

    def _lengths(self, end: str) -> Iterator[ast.expr]:
        """What is added to a clock's value for the variable."""
        for node in self._nodes:
            match node:
                case ast.Assign(
                    targets=[ast.Name(id=name)], value=ast.BinOp(left=ast.Call() as clock, op=ast.Add(), right=length)
                ):
                    if name == end and self._is_clock(clock):
                        yield length

    def _is_time(self, node: ast.expr) -> bool:
        """Whether this is made of a clock's value by arithmetic."""
        match node:
            case ast.Name(id=name):
                return name in self._times
            case ast.Call():
                carries = isinstance(node.func, ast.Name) and node.func.id in CARRIERS
                return self._is_clock(node) or (carries and any(map(self._is_time, node.args)))
            case ast.BinOp(left=left, right=right):
                return self._is_time(left) or self._is_time(right)
            case ast.UnaryOp(operand=inner) | ast.Subscript(value=inner) | ast.Starred(value=inner):
                return not isinstance(getattr(node, "op", None), ast.Not) and self._is_time(inner)
            case ast.IfExp(body=body, orelse=orelse):
                return self._is_time(body) or self._is_time(orelse)
            case ast.List(elts=elements) | ast.Tuple(elts=elements) | ast.Set(elts=elements):
                return any(map(self._is_time, elements))
            case ast.ListComp(elt=element) | ast.GeneratorExp(elt=element):
                return self._is_time(element)
            case ast.NamedExpr(value=value):
                return self._is_time(value)
        return False

    def _demands_speed(self, node: ast.expr, negated: bool = False) -> bool:
        """Whether this is true only where a time is short, or equal to something."""
        match node:
            case ast.Name(id=name):
                return name in self._short
            case ast.UnaryOp(op=ast.Not(), operand=inner):
                return self._demands_speed(inner, not negated)
            case ast.BoolOp(values=values):
                return any(self._demands_speed(value, negated) for value in values)
            case ast.Call(func=ast.Name(id="all" | "any"), args=[ast.GeneratorExp() | ast.ListComp() as loop]):
                return self._demands_speed(loop.elt, negated)
            case ast.Compare(left=left, ops=ops, comparators=comparators):
                sides = [left, *comparators]
                return any(self._demands(op, a, b, negated) for op, a, b in zip(ops, sides, comparators, strict=False))
            case ast.NamedExpr(value=value):
                return self._demands_speed(value, negated)
        return False

    def _demands(self, op: ast.cmpop, left: ast.expr, right: ast.expr, negated: bool) -> bool:
        times = self._is_time(left), self._is_time(right)
        if not any(times):
            return False
        if all(times):
            return True
        longer = (ast.Lt, ast.LtE) if times[1] != negated else (ast.Gt, ast.GtE)
        return not isinstance(op, longer)

    def _is_short_sleep(self, statement: ast.stmt) -> bool:
        if not isinstance(statement, ast.Expr):
            return False
        call = statement.value.value if isinstance(statement.value, ast.Await) else statement.value
        match call:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="asyncio" | "time"), attr="sleep"), args=[length]):
                seconds = self._number(length)
                return seconds is not None and 0 < seconds < GUARD_S
        return False

    def _number(self, node: ast.expr | None) -> float | None:
        """The value of a literal, of a constant of the module, or of arithmetic with those."""
        match node:
            case ast.Constant(value=int() | float() as value):
                return value
            case ast.Name(id=name) if name in self._names.constants:
                return self._number(self._names.constants[name])
            case ast.BinOp(left=left, op=ast.Mult(), right=right):
                one, other = self._number(left), self._number(right)
                return None if one is None or other is None else one * other
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                one, other = self._number(left), self._number(right)
                return None if one is None or other is None else one + other
            case ast.BinOp(left=left, op=ast.Div(), right=right):
                one, other = self._number(left), self._number(right)
                return None if one is None or not other else one / other
        return None


def _own(node: ast.AST) -> Iterator[ast.AST]:
    """Everything within, but for functions in it."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, Function | ast.ClassDef):
            yield child
            yield from _own(child)


def _bodies(node: ast.AST) -> Iterator[list[ast.stmt]]:
    for name in ("body", "orelse", "finalbody"):
        body = getattr(node, name, None)
        if isinstance(body, list) and body and isinstance(body[0], ast.stmt):
            yield body


def _called(call: ast.Call) -> str:
    match call.func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def test_no_test_rests_on_the_clock() -> None:
    found = [
        f"{path.relative_to(REPOSITORY)}:{finding.line}: {finding.what}"
        for path in sorted((REPOSITORY / "tests").rglob("*.py"))
        for finding in find(path.read_text("utf-8"))
    ]
    assert not found, "\n".join(found)


def lines(*body: str) -> list[int]:
    """Of the findings in a test with these lines, which begin at 1."""
    head = (
        "import asyncio, time\nfrom time import perf_counter as clock\nPAUSE_S = 0.05\nLONG_S = 60\nasync def test():\n"
    )
    return [each.line - 5 for each in find(head + "".join(f"    {line}\n" for line in body))]


@pytest.mark.parametrize(
    "body",
    [
        ["assert time.monotonic() - began < 1"],
        ["assert 2 < asyncio.get_running_loop().time() - began < 20"],
        ["assert self._loop.time() < 3"],
        ["assert work() and time.time_ns() == 7"],
        ["assert 1 > clock() - 3"],
        ["assert not time.perf_counter() - 3 >= 1"],
        ["assert all(each - time.monotonic() < 1 for each in seen)"],
        ["assert (now := time.monotonic()) < 3"],
    ],
)
def test_an_assertion_that_a_time_is_short_is_found(body: list[str]) -> None:
    assert lines(*body) == [1]


@pytest.mark.parametrize(
    "body",
    [
        ["began = time.monotonic()", "took = time.monotonic() - began", "assert took < 1"],
        ["took: float = time.monotonic()", "least = min(took, 3)", "assert least < 1"],
        ["began, other = time.monotonic(), 1", "quick = other - began < 1", "assert quick"],
        ["took = []", "took.append(time.thread_time() - 3)", "assert max(took) < 1"],
        ["first = time.monotonic()", "second = time.monotonic()", "assert second > 2 * first"],
        ["took = 0", "took += time.process_time()", "assert took <= 1"],
        ["end_s = time.monotonic() + 30", "while not seen:", "    assert time.monotonic() < end_s"],
    ],
)
def test_it_is_found_through_local_variables(body: list[str]) -> None:
    assert lines(*body) == [3]


@pytest.mark.parametrize(
    "body",
    [
        ["assert time.monotonic() - began >= 3"],
        ["assert 3 <= loop.time() - began"],
        ["assert not time.monotonic() - 3 < 1"],
        ["began, other = time.monotonic(), 1", "assert other < 3"],
        ["took = time.monotonic()", "slow = took > 1", "assert slow"],
        ["began = time.time()", "token = issue(exp=began)", "assert token == 3"],
        ["while time.monotonic() < end_s: pass"],
        ["end_s = time.monotonic() + 60", "while not seen:", "    assert time.monotonic() < end_s"],
        ["end_s = time.monotonic() + PATIENCE_S", "while not seen:", "    assert time.monotonic() < end_s"],
        ["assert event.time() < 3", "assert self.time < 3"],
    ],
)
def test_a_least_time_and_other_times_may_stay(body: list[str]) -> None:
    assert lines(*body) == []


@pytest.mark.parametrize(
    ("body", "line"),
    [
        (["await asyncio.sleep(0.05)", "assert seen == []"], 2),
        (["time.sleep(59)", "assert not seen"], 2),
        (["await asyncio.sleep(PAUSE_S)", "assert not seen"], 2),
        (["await asyncio.sleep(3 * PAUSE_S + 1)", "assert not seen"], 2),
        (["if seen:", "    await asyncio.sleep(1)", "    assert not seen"], 3),
        (["await session.quiet(0.3)"], 1),
        (["assert await session.during(0.3) == []"], 1),
        (["got = await session.during(0.3)", "assert not got"], 2),
    ],
)
def test_an_assertion_after_a_short_wait_is_found(body: list[str], line: int) -> None:
    assert lines(*body) == [line]


@pytest.mark.parametrize(
    "body",
    [
        ["await asyncio.sleep(0)", "assert seen == []"],
        ["await asyncio.sleep(LONG_S)", "assert seen == []"],
        ["await asyncio.sleep(chance())", "assert seen == []"],
        ["while not seen:", "    await asyncio.sleep(0.01)", "assert seen == [1]"],
        ["await asyncio.sleep(0.05)", "await marker()", "assert seen == []"],
        ["await session.during(0.3)", "await marker()"],
    ],
)
def test_other_waits_may_stay(body: list[str]) -> None:
    assert lines(*body) == []


def test_virtual_time_is_left_out_with_the_functions_in_it() -> None:
    nested = "    def work():\n        time.sleep(1)\n        assert not seen\n"
    assert find(f"@in_virtual_time\nasync def test():\n{nested}") == []
    assert find(f"class Case:\n  async def test(self):\n{nested}") == [Finding(5, NOTHING)]
