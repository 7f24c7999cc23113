"""The dashboard has the form that Grafana expects, by the types of the version that compose.yaml starts."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.started import ran
from tests.telemetry.promql import DASHBOARD

SCHEMA = Path(__file__).with_name("dashboard_schema.ts")
COMPOSE = Path(__file__).parents[2] / "compose.yaml"
TYPESCRIPT = "6.0.3"
TIMEOUT_S = 240


@pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not installed")
def test_grafana_s_own_types_accept_the_dashboard(tmp_path: Path) -> None:
    version = yaml.safe_load(COMPOSE.read_text())["services"]["grafana"]["image"].rpartition(":")[2]
    (tmp_path / "package.json").write_text("{}")
    options: dict[str, Any] = {"cwd": tmp_path, "stderr": subprocess.STDOUT, "timeout_s": TIMEOUT_S}
    packages = (f"@grafana/schema@{version}", f"typescript@{TYPESCRIPT}")
    fetched = ran("npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", *packages, **options)
    if re.search(r"code (EAI_AGAIN|ENOTFOUND|ECONNREFUSED|ETIMEDOUT)", fetched.stdout):
        pytest.skip("Grafana's types cannot be fetched here")
    assert fetched.returncode == 0, fetched.stdout
    shutil.copy(SCHEMA, tmp_path / "schema.ts")
    # The compiler looks for unknown fields only in a literal.
    literal = DASHBOARD.read_text("utf-8")
    (tmp_path / "dashboard.ts").write_text(
        f'import type {{ Dashboard }} from "./schema.js";\nexport const dashboard: Dashboard = {literal};\n'
    )
    strictly = ("--noEmit", "--strict", "--skipLibCheck", "--module", "nodenext", "--target", "es2022")
    checked = ran("npx", "--no-install", "tsc", *strictly, "dashboard.ts", **options)
    assert checked.returncode == 0, checked.stdout
