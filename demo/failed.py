"""What ends a demo early."""


class DemoFailed(Exception):
    """The demo could not be completed; the message says why."""
