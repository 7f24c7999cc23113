"""The alerts of two releases that share a Prometheus: each release has its own, and hides none of the other's."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from helm_python import HelmError

from tests.helm.test_chart import LEAST, Values, merged, objects, of_kind, render
from tests.telemetry.days import BAD_DAYS, GOOD_DAY, check, day

RELEASES = {"shop": "release", "billing": "release"}
"""Names by namespace: the same name, as teams choose it that do not know of each other."""
ENABLED: Values = {"metrics": {"enabled": True, "prometheusRule": {"enabled": True}}}


def rules(namespace: str, more: Values) -> dict[str, Any]:
    rendered = render(merged(LEAST, more), name=RELEASES[namespace], namespace=namespace).values()
    found = [each for text in rendered if "PrometheusRule" in text for each in yaml.safe_load_all(text)]
    (spec,) = [each["spec"] for each in found if each and each["kind"] == "PrometheusRule"]
    return dict(spec)


def of_release(day: dict[str, str], namespace: str) -> dict[str, str]:
    """The series of a day with the labels that a ServiceMonitor adds."""
    labels = f'namespace="{namespace}",service="{RELEASES[namespace]}-feedmux-headless"'
    return {each.replace("{", f"{{{labels},", 1): values for each, values in day.items()}


@pytest.mark.parametrize("matchers", ["", 'job="feedmux", cluster=~"eu.*"', 'cluster="eu: # 1"'])
def test_every_selector_has_the_matchers_of_the_release(matchers: str) -> None:
    more = merged(ENABLED, {"metrics": {"prometheusRule": {"matchers": matchers}}})
    wanted = re.escape(matchers or 'namespace="shop",service="release-feedmux-headless"')
    for group in rules("shop", more)["groups"]:
        for rule in group["rules"]:
            labels_aside = re.sub(r"(by|without) \([^)]*\)", "", rule["expr"])
            assert not re.search("feedmux_|rpc_", re.sub(rf"\w+\{{([^}}]*,)?{wanted}\}}", "", labels_aside)), rule


def test_alerts_without_series_need_a_word() -> None:
    values = merged(LEAST, {"metrics": {"prometheusRule": {"enabled": True}}})
    with pytest.raises(HelmError, match=r"metrics\.prometheusRule: set metrics\.enabled"):
        render(values)
    render(merged(values, {"metrics": {"prometheusRule": {"matchers": 'job="feedmux"'}}}))


def test_rules_and_dashboard_go_to_the_namespace_of_their_readers() -> None:
    more: Values = {"metrics": {"prometheusRule": {"namespace": "monitoring"}, "dashboard": {"enabled": True}}}
    values = merged(merged(LEAST, ENABLED), more)
    assert [each["metadata"].get("namespace") for each in of_kind(values, "PrometheusRule")] == ["monitoring"]
    values = merged(values, {"metrics": {"dashboard": {"namespace": "grafana"}}})
    placed = [(each["kind"], each["metadata"]["namespace"], each["metadata"]["name"]) for each in objects(values)
              if "namespace" in each["metadata"]]  # fmt: skip
    assert placed == [
        ("PrometheusRule", "monitoring", "feeds-release-feedmux"),
        ("ConfigMap", "grafana", "feeds-release-feedmux-dashboard"),
    ]


def test_a_release_has_its_own_alerts_beside_another(tmp_path: Path) -> None:
    files = [tmp_path / f"{namespace}.yaml" for namespace in RELEASES]
    for file in files:
        file.write_text(yaml.safe_dump(rules(file.stem, ENABLED)))
    days: list[dict[str, Any]] = []
    for alert, series in {"none": {}, **BAD_DAYS}.items():
        both = of_release({**GOOD_DAY, **series}, "shop") | of_release(GOOD_DAY, "billing")
        labels = f'{{alertname="{alert}",namespace="shop",service="release-feedmux-headless"}}'
        days.append(day(alert, both, [labels] if series else []))
    check(files, days, tmp_path)
