"""A real API server takes what the chart renders: of each set of values, upgraded from another one, and from Helm."""

import asyncio
import re
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio
from helm_python import Chart, Config

from tests.helm.api_server import BINARIES, ApiServer, Object, Rejected, running
from tests.helm.test_chart import CHART, LEAST, MATRIX, NOT_OF_KUBERNETES, Values, merged, objects

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]

CASES = MATRIX | {
    "two address families": {"service": {"ipFamilyPolicy": "RequireDualStack", "ipFamilies": ["IPv4", "IPv6"]}},
    "user ids of the namespace": merged(MATRIX["trial"], {"securityContext": {"userIds": False}}),
}
RESTRICTED = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn")}
"""Pods that break the policy are rejected, and templates of such pods are accepted with a warning."""


@pytest_asyncio.fixture(scope="module")
async def api(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ApiServer]:
    if not (BINARIES / "kube-apiserver").exists():
        pytest.skip("no kube-apiserver: `./run test --all` builds it, with Go 1.26 or later")
    async with running(tmp_path_factory.mktemp("kubernetes")) as server:
        rendered = [each for case in CASES.values() for each in objects(merged(LEAST, case))]
        for kind, version in sorted({(each["kind"], each["apiVersion"]) for each in rendered}):
            if kind in NOT_OF_KUBERNETES:
                server.define(kind, version)
        high: Object = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "high"}}
        server.apply(high | {"value": 1000}, "")
        yield server


class Namespace:
    """A namespace with the restricted policy, without controllers that would make anything in it."""

    def __init__(self, api: ApiServer, name: str) -> None:
        self.api = api
        self.name = name
        self._applied: dict[tuple[str, str], Object] = {}
        for each in (name, "monitoring"):
            self.api.apply(
                {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": each, "labels": RESTRICTED}}, ""
            )
        for account in ("default", "existing"):
            self.api.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": account}}, name)

    def apply(self, values: Values) -> None:
        """Install, or upgrade. Raises Rejected."""
        found = [each for each in objects(merged(LEAST, values)) if "helm.sh/hook" not in annotations(each)]
        for dry_run in (True, False):
            for each in found:
                self.api.apply(each, self.name, dry_run=dry_run)
                if not dry_run:
                    self._applied[each["kind"], each["metadata"]["name"]] = each

    def run_pods(self, values: Values) -> list[str]:
        """Create the pods that controllers would create, and those of `helm test`. Raises Rejected."""
        made = []
        for each in objects(merged(LEAST, values)):
            kind, spec = each["kind"], each.get("spec", {})
            of_pod: Object | None = each if kind == "Pod" else spec.get("template")
            if of_pod is None:
                continue
            claims = [
                {"name": claim["metadata"]["name"], "persistentVolumeClaim": {"claimName": claim["metadata"]["name"]}}
                for claim in spec.get("volumeClaimTemplates", [])
            ]
            pod: Object = {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": of_pod["metadata"] | {"name": f"{each['metadata']['name']}-{kind.lower()}"},
                "spec": of_pod["spec"] | {"volumes": of_pod["spec"].get("volumes", []) + claims},
            }
            self.api.create(pod, self.name)
            self._applied["Pod", pod["metadata"]["name"]] = pod
            made.append(pod["metadata"]["name"])
        return made

    def clear(self) -> None:
        """A node port, for example, is used only once in a cluster."""
        for each in self._applied.values():
            self.api.delete(each, self.name)


@pytest.fixture
def namespace(api: ApiServer, request: pytest.FixtureRequest) -> Iterator[Namespace]:
    made = Namespace(api, re.sub("[^a-z0-9]+", "-", request.node.name.lower()).strip("-")[-63:].strip("-"))
    yield made
    made.clear()


def annotations(made: Object) -> dict[str, str]:
    found: dict[str, str] = made["metadata"].get("annotations") or {}
    return found


@pytest.mark.parametrize("case", CASES)
def test_it_takes_what_is_installed_and_upgraded_and_its_pods(namespace: Namespace, case: str) -> None:
    """Server-side apply, with a dry run first: nothing is unknown, deprecated, not restricted or unchangeable."""
    namespace.apply({})
    namespace.apply(CASES[case])
    assert len(namespace.run_pods(CASES[case])) >= 2
    namespace.apply({})


def test_it_rejects_pods_that_are_not_restricted(namespace: Namespace) -> None:
    namespace.apply({})
    values: Values = {"securityContext": {"enabled": False}}
    with pytest.raises(Rejected, match="violates PodSecurity"):
        namespace.run_pods(values)
    with pytest.raises(Rejected, match="would violate PodSecurity"):
        namespace.apply(values)


@pytest.mark.parametrize(
    ("before", "after", "field"),
    [
        (MATRIX["trial"], MATRIX["trial without a volume"], "spec.volumeClaimTemplates: Invalid value: null: field is"),
        ({}, {"service": {"ipFamilies": ["IPv6"]}}, "expected an IPv6 value"),
    ],
)
def test_it_rejects_what_the_table_of_upgrades_lists(
    namespace: Namespace, before: Values, after: Values, field: str
) -> None:
    """The table is in the chart's README."""
    namespace.apply(before)
    with pytest.raises(Rejected, match=field):
        namespace.apply(after)


async def test_helm_installs_upgrades_tests_and_removes_a_release(namespace: Namespace) -> None:
    api, name = namespace.api, namespace.name
    with Config(kubeconfig_content=api.kubeconfig, namespace=name) as helm, Chart.load(str(CHART)) as chart:

        def values(case: str) -> Values:
            return merged(merged(LEAST, MATRIX["trial"]), MATRIX[case])

        def password() -> str:
            found: str = api.call("GET", f"/api/v1/namespaces/{name}/secrets/release-feedmux-redis")["data"]["password"]
            return found

        helm.install(chart, "release", values("trial"))
        first = password()
        for case in ("trial", "a large service", "KEDA", "bare", "trial"):
            helm.upgrade(chart, "release", values(case))
        assert password() == first, "Redis keeps the one of its volume"
        testing = asyncio.create_task(asyncio.to_thread(helm.test, "release", timeout=600))
        pod, done = f"/api/v1/namespaces/{name}/pods/release-feedmux-test/status", {"status": {"phase": "Succeeded"}}
        ended = False
        while not testing.done():
            try:  # nobody runs the pod
                api.call("PATCH", pod, done, "application/merge-patch+json")
                ended = True
            except Rejected:
                pass
            await asyncio.sleep(0.2)
        await testing
        assert ended
        helm.uninstall("release")
    assert api.call("GET", f"/apis/apps/v1/namespaces/{name}/deployments")["items"] == []
