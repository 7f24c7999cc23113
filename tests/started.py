"""Processes that tests start."""

import subprocess
from typing import Any, AnyStr


class Started(subprocess.Popen[AnyStr]):
    """Does not outlive its `with`: a failed test ends it, instead of waiting for it."""

    def __exit__(self, *raised: Any) -> None:
        if self.poll() is None:
            self.kill()
        super().__exit__(*raised)
