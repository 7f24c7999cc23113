"""How much a read of a change stream returns, and how long it may take."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadLimits:
    """Limits of the requests to MongoDB."""

    batch_events: int = 4_000
    """Events per getMore at most."""
    max_await_ms: int = 1_000
    """How long MongoDB waits for an event before it answers with a new postBatchResumeToken."""
    idle_reads_per_s: float = 125.0
    """Reads per second of all change streams without events together: with more such streams, each read waits longer. A
    read without events costs the server about 0.7 ms."""
    event_time_s: float = 5.0
    """How long MongoDB may compute on one event for a pipeline of a user."""
    snapshot_step_s: float = 2.0
    """How long existing documents are read before the changes to those copied so far. A shorter time costs MongoDB more
    change streams; changes to copied documents wait for as long."""
    names_kept: int = 1_000
    """Names that a copy keeps of a database, which may have a hundred thousand: 10 MB, in each of 32 copies. A step
    hardly comes further."""
    chunk_bytes_max: int = 1024 * 1024 - 16 * 1024
    """A batch is cut into chunks of this size, so that a whole chunk and its frame fit into the default message."""
