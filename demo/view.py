"""Draws the demo: live on a terminal; elsewhere one line every two seconds."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from demo.observer import Row, Snapshot
from feedmux.cli.streams import state_name
from feedmux.cli.terminal import size

_PLAIN_S = 2.0
_STATES = {"live": "green", "catch up": "yellow", "lagging": "yellow", "killed": "bold red", "done": "green"}
_WIDE = 100


View = Callable[[Snapshot], None]
"""Shows progress."""


@contextmanager
def make_view(to_stderr: bool) -> Iterator[View]:
    """Provide a live view if possible. With --json everything except the result goes to standard error."""
    console = Console(stderr=to_stderr, highlight=False)
    if not console.is_terminal or console.is_dumb_terminal:
        yield PlainView(to_stderr).show
        return
    with Live(console=console, auto_refresh=False, transient=False) as live:
        yield lambda now: live.update(_everything(now, console.width >= _WIDE), refresh=True)


class PlainView:
    """The view for pipes and logs."""

    def __init__(self, to_stderr: bool) -> None:
        self._stream = sys.stderr if to_stderr else sys.stdout
        self._shown_s = 0.0
        self._told = 0.0

    def show(self, now: Snapshot) -> None:
        for at_s, text in now.news:
            if at_s > self._told:
                self._told = at_s
                print(f"{at_s:5.1f} s  {text}", file=self._stream, flush=True)
        if time.monotonic() - self._shown_s < _PLAIN_S:
            return
        self._shown_s = time.monotonic()
        rows = ", ".join(f"{row.name} {row.received} ({row.state})" for row in now.rows)
        print(
            f"{now.elapsed_s:5.1f} s  written {now.written} ({now.write_rate:.0f}/s),"
            f" shared streams {len(now.streams)}, MongoDB cursors {now.cursors}; {rows}",
            file=self._stream,
            flush=True,
        )


def _everything(now: Snapshot, wide: bool) -> Group:
    streams, cursors = _streams(now), _cursors(now)
    parts: list[RenderableType] = [_head(now, wide), _subscribers(now, wide)]
    if wide:
        beside = Table.grid(expand=True, padding=(0, 1, 0, 0))
        beside.add_column(ratio=3)
        beside.add_column(ratio=2)
        beside.add_row(streams, cursors)
        parts.append(beside)
    else:
        parts += [streams, cursors]
    text = "\n".join(f" {at_s:5.1f} s  {text}" for at_s, text in now.news)
    return Group(*parts, Text(text, "dim"))


def _head(now: Snapshot, wide: bool) -> Table:
    head = Table.grid(expand=True, padding=(0, 2, 0, 0))
    head.add_column(no_wrap=True)
    head.add_column(ratio=1)
    head.add_column(justify="right", no_wrap=True)
    share = min(now.elapsed_s, now.length_s)
    kinds = "  ".join(f"{count:,} {name}" for name, count in now.kinds.items())
    head.add_row(
        Text.assemble(("feedmux", "bold cyan"), "  one change stream, many subscribers" if wide else ""),
        "",
        Text(now.phase, "bold"),
    )
    head.add_row(
        Text.assemble(("written ", "dim"), (f"{now.written:,}", "bold"), f"  {now.write_rate:,.0f}/s"),
        ProgressBar(total=now.length_s, completed=share),
        Text(kinds if wide else "", "dim"),
    )
    return head


def _subscribers(now: Snapshot, wide: bool) -> Panel:
    table = Table(expand=True, box=None, header_style="dim")
    for name in ("subscriber", "", "state") if wide else ("subscriber", "state"):
        table.add_column(name, no_wrap=True)
    for name in ("received", "events/s", "behind", "unacked"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in now.rows:
        style = "dim" if row.state == "waits" else ""
        table.add_row(
            Text(row.name, style or "bold"),
            *([Text(row.part, "dim")] if wide else []),
            Text(_state(row), _STATES.get(row.state, "dim")),
            f"{row.received:,}" if row.sessions else "",
            f"{row.rate:,.0f}" if row.sessions else "",
            _behind(row),
            "" if row.unacked is None else f"{row.unacked:,}",
            style=style,
        )
    return Panel(table, title="subscribers, each at its own pace", title_align="left", border_style="dim")


def _state(row: Row) -> str:
    return f"{row.state} (session {row.sessions})" if row.sessions > 1 else row.state


def _behind(row: Row) -> Text:
    if row.behind is None:
        return Text("")
    return Text(f"{row.behind:,}", "yellow" if row.behind > 5_000 else "")


def _streams(now: Snapshot) -> Panel:
    table = Table(expand=True, box=None, header_style="dim")
    for name in ("feed", "state"):
        table.add_column(name, no_wrap=True)
    for name in ("serves", "ring", "read", "lag"):
        table.add_column(name, justify="right", no_wrap=True)
    for stream in now.streams:
        state = state_name(stream)
        table.add_row(
            stream.scope,
            f"{state} history" if stream.catch_up else state,
            str(stream.subscriber_count),
            size(stream.ring_bytes),
            f"{stream.events_read:,}",
            f"{stream.lag.ToTimedelta().total_seconds():.0f} s",
        )
    return Panel(table, title="shared streams in feedmux", title_align="left", border_style="dim")


def _cursors(now: Snapshot) -> Panel:
    waste = now.subscribers_most if now.phase == "done" else now.subscribers
    text = Text.assemble(
        (f"{now.cursors:>3} ", "bold green"),
        (("■ " * now.cursors).ljust(2), "green"),
        ("with feedmux\n", "dim"),
        (f"{waste:>3} ", "bold"),
        (("■ " * waste).ljust(2), "red"),
        ("with a watch() each\n", "dim"),
        (f"server memory for events: {size(now.memory_bytes)}", "dim"),
    )
    return Panel(text, title="cursors in MongoDB", title_align="left", border_style="dim")
