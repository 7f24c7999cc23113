"""Nothing but `terminal.say` and `terminal.print_json` prints for a command: they let no control characters through."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = (ROOT / "clients" / "python" / "feedmux" / "cli", ROOT / "server" / "feedmux_server" / "cli")


def test_commands_print_in_one_way() -> None:
    files = [file for folder in FOLDERS for file in sorted(folder.rglob("*.py"))]
    assert len(files) > 20
    found = [
        f"{file.relative_to(ROOT)}:{node.lineno}"
        for file in files
        if file.name != "terminal.py"
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert not found, "use say() of feedmux.cli.terminal"
