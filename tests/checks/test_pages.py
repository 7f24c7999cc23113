"""Each command block of a page is run by a test that is named here, or has a reason why not (tests/cli/pages.py)."""

import re
import shlex
from typing import Final

import pytest

from feedmux.cli import _parser
from feedmux.cli.failure import CliError
from tests.checks.test_docs import REPOSITORY, pages
from tests.cli.pages import NOT_RUN, RUN, SHOWN, Block, fenced, reason
from tests.tables import over

COMMAND: Final = re.compile(
    r"^ *(?:\./run|curl|docker|feedmux|go|helm|kubectl|mvn|node|npm|openssl|pip|python -m) [a-z.']", re.MULTILINE
)
HELP: Final = "docs/reference/commands.md"
"""Its blocks are what `--help` prints."""
PAGES: Final = {page: fenced((REPOSITORY / page).read_text()) for page in pages()}


def not_listed(page: str, block: Block) -> bool:
    """Whether neither table has this block of commands."""
    if block.language in SHOWN:
        return page != HELP and block.language == "" and COMMAND.search(block.text) is not None
    return not reason(page, block) and block.language not in RUN.get(page, {})


def test_each_block_is_run_or_has_a_reason() -> None:
    found = [f"{page}: {block.first_line}" for page, all_ in PAGES.items() for block in all_ if not_listed(page, block)]
    assert found == []


def test_the_tables_name_blocks_and_tests_that_exist() -> None:
    for page, reasons in NOT_RUN.items():
        for beginning in reasons:
            assert any(block.text.startswith(beginning) for block in PAGES[page]), f"{page}: {beginning}"
    for page, languages in RUN.items():
        for language, test in languages.items():
            assert any(each.language == language and not reason(page, each) for each in PAGES[page]), (page, language)
            file, _, name = test.partition("::")
            text = (REPOSITORY / file).read_text()
            assert f"def {name}(" in text, test
            assert page.rpartition("/")[2] in text or page.rpartition("/")[2].removesuffix(".md") in text, test


def calls(text: str) -> list[list[str]]:
    """The words of the commands of `feedmux` in a script or in a help text, without those that read variables."""
    lines = re.findall(r"^ *(?:\./run )?feedmux ([a-z].*)", text.replace("\\\n", ""), re.MULTILINE)
    found = (shlex.split(re.split(r"   +[a-z]| +\d?[|&>]", line)[0], comments=True) for line in lines)
    return [words for words in found if not any("$" in word and "{" not in word for word in words)]


@over("page", [page for page, all_ in PAGES.items() if any(calls(each.text) for each in all_)])
def test_commands_have_the_options_that_exist(page: str) -> None:
    for block in PAGES[page]:
        for words in calls(block.text) if "[OPTION …]" not in block.text else ():
            try:
                _parser(words[0]).parse_args([word.replace("…", "x") for word in words])
            except CliError as error:
                pytest.fail(f"{page}: feedmux {shlex.join(words)}: {error.message}")


def test_the_words_of_calls() -> None:
    script = "feedmux watch a.b   # b\n./run feedmux watch a | jq\n feedmux keys new \\\n --json > f\nfeedmux x $KEY\n"
    assert calls(script) == [["watch", "a.b"], ["watch", "a"], ["keys", "new", "--json"]]
