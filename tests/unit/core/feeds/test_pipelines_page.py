"""docs/pipelines.md lists what the code allows."""

import re
from pathlib import Path

from feedmux_server.core.feeds.pipeline_bounds import budget, expressions, match_query, stages
from feedmux_server.core.feeds.pipeline_policy import STAGES_MAX
from feedmux_server.core.feeds.query_json import FORMS, parse_query
from feedmux_server.core.feeds.regex_bounds import PATTERN_BYTES_MAX, REPETITIONS_MAX
from tests.tables import over

PAGE = Path(__file__).parents[4] / "docs" / "pipelines.md"
LISTS = {
    "stages": stages.STAGES,
    "variables": {f"$${name}" for name in expressions.CONSTANT_VARIABLES},
    "expressions": expressions.OPERATORS,
    "query": match_query.QUERY_OPERATORS | match_query.QUERY_TOP,
}


def written(names: set[str] | frozenset[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))


@over("name", LISTS)
def test_the_lists_are_those_of_the_code(name: str) -> None:
    found = re.search(f"<!-- {name} -->(.*?)<!-- end -->", PAGE.read_text(), re.DOTALL)
    assert found is not None
    listed = re.findall(r"`(\$[^`]+)`", found[1])
    assert listed == sorted(LISTS[name]), f"the list in docs/pipelines.md should be: {written(set(LISTS[name]))}"


def test_the_limits_are_those_of_the_code() -> None:
    page = PAGE.read_text()
    assert f"{budget.WEIGHT_MAX} times the event, and {budget.CONSTANT_PER_PIPELINE_BYTE} times the pipeline" in page
    assert f"+ {budget.CONSTANT_BYTES // 1024} KiB" in page
    assert f"{budget.WORK_MAX:,} steps" in page
    assert f"at most {STAGES_MAX} stages" in page
    assert f"at most {PATTERN_BYTES_MAX:,} bytes and {REPETITIONS_MAX} repetitions" in page


def test_the_values_of_json_are_those_of_the_code() -> None:
    table = PAGE.read_text().split("<!-- values -->")[1].split("<!-- end -->")[0]
    assert set(re.findall(r"\$\w+", table)) - {"$scope", "$in", "$nin", "$all", "$regex"} == FORMS.keys()
    shown = re.findall(r"`({[^`]*})`", table)
    assert len(shown) >= len(FORMS) - 3
    for text in shown:
        assert not isinstance(parse_query(text.replace("{…}", "{}"), "value"), dict), text
