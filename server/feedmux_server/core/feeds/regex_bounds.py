"""Which regular expressions MongoDB may run for a tenant that is not trusted.

PCRE tries every way in which a pattern can match, and some patterns have more ways than the text has characters, by
far: `(a+)+$` doubles its work with every `a`. A pattern here has no repetition within a repetition, no choice within
one, no reference back and no look around, and few repetitions, so that its work is a small power of the text's length.
MongoDB's own limit (10 million steps for a match) and the time limit of a feed bound the rest.
"""

from typing import Final

PATTERN_BYTES_MAX: Final = 1024
REPETITIONS_MAX: Final = 8
_REPEAT_MAX: Final = 1000
_OPTIONS: Final = frozenset("imsu")
_ESCAPES_REFUSED: Final = frozenset("123456789gkcKQEGXRC")
_GROUPS: Final = ("?:", "?i:", "?i)", "?s)", "?m)", "?s:", "?m:")


def check_regex(pattern: str, options: str) -> int:
    """How many groups the pattern captures. Raises ValueError with what is not allowed."""
    if len(pattern.encode()) > PATTERN_BYTES_MAX:
        raise ValueError(f"a pattern of more than {PATTERN_BYTES_MAX} bytes is not allowed")
    if refused := set(options) - _OPTIONS:
        raise ValueError(f"the option {min(refused)!r} of a regular expression is not allowed")
    return _Scan(pattern).run()


class _Scan:
    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0
        self._groups = 0
        self._repetitions = 0
        self._simple = [True]
        """Whether each enclosing group holds neither repetition nor choice so far."""
        self._last_simple = True
        """The same for the part that a repetition would repeat."""

    def run(self) -> int:
        pattern = self._pattern
        while self._at < len(pattern):
            char = pattern[self._at]
            self._at += 1
            if char == "\\":
                self._escape()
            elif char == "[":
                self._class()
            elif char == "(":
                self._open()
            elif char == ")":
                self._close()
            elif char == "|":
                self._simple[-1] = False
            elif char in "*+?" or (char == "{" and self._is_count()):
                self._repeat(char)
            else:
                self._last_simple = True
        return self._groups

    def _escape(self) -> None:
        char = self._pattern[self._at : self._at + 1]
        if char in _ESCAPES_REFUSED:
            raise ValueError(f"\\{char} is not allowed in a regular expression")
        self._at += 1
        self._last_simple = True

    def _class(self) -> None:
        pattern = self._pattern
        if pattern[self._at : self._at + 1] == "^":
            self._at += 1
        if pattern[self._at : self._at + 1] == "]":
            self._at += 1
        while self._at < len(pattern) and pattern[self._at] != "]":
            if pattern[self._at] == "[" and pattern[self._at + 1 : self._at + 2] in (":", ".", "="):
                raise ValueError("named classes of characters are not allowed in a regular expression")
            if pattern[self._at] == "\\" and pattern[self._at + 1 : self._at + 2] in ("Q", "E", "c"):
                raise ValueError("\\Q and \\c are not allowed in a regular expression")
            self._at += 2 if pattern[self._at] == "\\" else 1
        self._at += 1
        self._last_simple = True

    def _open(self) -> None:
        rest = self._pattern[self._at : self._at + 3]
        kind = next((each for each in _GROUPS if rest.startswith(each)), "")
        if rest.startswith(("?", "*")) and not kind:
            raise ValueError("in a regular expression, look-around, named groups and PCRE's verbs are not allowed")
        self._at += len(kind)
        if kind.endswith(")"):
            return
        self._groups += not kind
        self._simple.append(True)

    def _close(self) -> None:
        if len(self._simple) == 1:
            raise ValueError("a regular expression has a ) without its (")
        self._last_simple = self._simple.pop()
        self._simple[-1] &= self._last_simple

    def _is_count(self) -> bool:
        inside = self._pattern[self._at :].partition("}")[0]
        return bool(inside) and not inside.strip("0123456789, ")

    def _repeat(self, char: str) -> None:
        if char == "{":
            inside, _, _ = self._pattern[self._at :].partition("}")
            self._at += len(inside) + 1
            if any(int(count) > _REPEAT_MAX for count in inside.replace(" ", "").split(",") if count):
                raise ValueError(f"more than {_REPEAT_MAX} repetitions are not allowed in a regular expression")
        if char != "?" and not self._last_simple:
            raise ValueError("a repetition around a repetition or a choice (|) is not allowed in a regular expression")
        if self._pattern[self._at : self._at + 1] in ("?", "+"):
            self._at += 1
        self._simple[-1] = False
        self._repetitions += 1
        if self._repetitions > REPETITIONS_MAX:
            raise ValueError(f"more than {REPETITIONS_MAX} repetitions are not allowed in a regular expression")
