"""Write the pages of docs/reference from the sources: `python -m tests.reference.pages`. With `--check`, compare
instead, and exit with 1 on a difference.
"""

import sys
from functools import partial
from pathlib import Path
from typing import Final

from tests.reference import api, commands, configuration, states
from tests.written import Written

COMMAND: Final = "python -m tests.reference.pages"
FOLDER: Final = Path(__file__).parents[2] / "docs" / "reference"
WRITTEN: Final = Written(
    COMMAND,
    {
        FOLDER / "api.md": partial(api.page, COMMAND),
        FOLDER / "commands.md": partial(commands.page, COMMAND),
        FOLDER / "configuration.md": partial(configuration.page, COMMAND),
        FOLDER / "states.md": partial(states.page, COMMAND),
    },
)

if __name__ == "__main__":
    sys.exit(WRITTEN.main(sys.argv[1:]))
