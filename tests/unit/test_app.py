"""The memory that the process uses again."""

import platform
import subprocess
import sys

import pytest

FAULTS = """
import resource
from feedmux_server.app import reuse_freed_memory

reuse_freed_memory()
faults = []
for _ in range(3):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    copies = [b"x" * 2_200_000 for _ in range(3)]
    del copies
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(max(faults[1:]))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="an option of glibc")
def test_the_copies_of_a_batch_cost_no_page_faults_again() -> None:
    made = subprocess.run([sys.executable, "-c", FAULTS], check=True, capture_output=True, text=True)
    assert int(made.stdout) < 100
