"""The chart, rendered by Helm's own engine over many values: fit for Kubernetes, restricted, readable when wrong."""

import base64
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from helm_python import Chart, HelmError, lint
from kubernetes_validate import utils
from pymongo.uri_parser import parse_uri

from feedmux_server.config.load import load_config, make_config
from feedmux_server.tenants.registry import hash_key
from tests.helm import config_schema, values_table
from tests.telemetry.promql import asked

CHART = Path(__file__).parents[2] / "helm" / "feedmux"
README = CHART / "README.md"
METRICS = Path(__file__).parents[2] / "docs" / "metrics.md"
KUBERNETES = ("1.30", "1.35", "1.36", "1.37")
"""The oldest release that Chart.yaml allows, and the newest ones."""
NOT_OF_KUBERNETES = {"ServiceMonitor", "PrometheusRule", "Certificate", "GRPCRoute", "ScaledObject"}
HASH = hash_key("key")
utils.schema_contents = cache(utils.schema_contents)  # it would read two files for each object

Values = dict[str, Any]
Object = dict[str, Any]

LEAST: Values = {
    "sources": {"main": {"uriSecret": {"name": "mongodb", "key": "uri"}}},
    "redis": {"url": "redis://redis:6379/0"},
    "tenants": {"existingConfigMap": "tenants"},
}
MATRIX: dict[str, Values] = yaml.safe_load(
    """
least: {}
trial:
  redis: {url: "", bundled: {enabled: true}}
  tenants: {existingConfigMap: "", inline: [{name: shop, api_key_hashes: [HASH]}]}
trial without a volume: {redis: {url: "", bundled: {enabled: true, storage: ""}}}
several sources:
  sources:
    main: {uriSecret: {name: mongodb, key: uri}, id: set-1}
    orders-eu: {uriSecret: {name: orders, key: eu.uri}}
secrets for everything:
  redis:
    url: ""
    urlSecret: {name: redis, key: url}
    username: feedmux
    keyPrefix: feedmux-staging
    passwordSecret: {name: redis, key: password}
    caSecret: redis-ca
  tenants: {existingConfigMap: "", existingSecret: tenants}
  tls: {existingSecret: feedmux-tls, clientCaSecret: clients}
  positions: {keySecret: {name: positions, key: position.keys}}
  imagePullSecrets: [registry]
  envFrom: [{secretRef: {name: more}}]
cert-manager: {tls: {certManager: {enabled: true, issuerRef: {name: ca}, dnsNames: [feeds.example.com]}}}
another issuer:
  tls: {certManager: {enabled: true, issuerRef: {group: awspca.cert-manager.io, kind: AWSPCAClusterIssuer, name: ca}}}
a large service:
  fullnameOverride: feeds
  image:
    repository: registry.example.com/feedmux
    digest: sha256:0000000000000000000000000000000000000000000000000000000000000000
  autoscaling: {enabled: true, maxReplicas: 20, sessions: {enabled: true}}
  podDisruptionBudget: {maxUnavailable: 25%}
  operator: {keyHashes: [HASH], service: true}
  service:
    type: LoadBalancer
    port: 443
    nodePort: 30443
    annotations: {cloud: internal}
    labels: {exposed: "yes"}
    loadBalancerClass: example.com/internal
    loadBalancerSourceRanges: [10.0.0.0/8, fd00::/8]
    externalTrafficPolicy: Local
    internalTrafficPolicy: Cluster
  metrics:
    enabled: true
    serviceMonitor:
      enabled: true
      labels: {release: prometheus}
      namespace: monitoring
      interval: 1m30s
      scrapeTimeout: 90s
      relabelings: [{action: replace, targetLabel: cluster, replacement: eu}]
      metricRelabelings: [{action: drop, sourceLabels: [__name__], regex: python_.*}]
    prometheusRule: {enabled: true}
    dashboard: {enabled: true}
  networkPolicy:
    clients: [{namespaceSelector: {matchLabels: {feeds: "yes"}}}]
    operators: [{podSelector: {matchLabels: {app: console}}}]
    egress: [{ports: [27017], to: [{ipBlock: {cidr: 10.0.0.0/8}}]}]
  config: {limits: {memory_bytes: 4294967296, drain_delay_s: 20}, log: {level: warning}}
  resources: {limits: {memory: 7Gi}}
  drain: {delaySeconds: 10, seconds: 60}
  env: [{name: OTEL_EXPORTER_OTLP_ENDPOINT, value: http://collector:4317}]
  nodeSelector: {pool: feeds}
  tolerations: [{key: feeds, operator: Exists}]
  affinity: {nodeAffinity: {}}
  topologySpreadConstraints: [{maxSkew: 1, topologyKey: zone, whenUnsatisfiable: DoNotSchedule, labelSelector: {}}]
  podLabels: {team: data}
  podAnnotations: {note: "1"}
  priorityClassName: high
  serviceAccount: {annotations: {role: feeds}}
  commonLabels: {team: data}
KEDA:
  metrics: {enabled: true}
  autoscaling:
    minReplicas: 3
    maxReplicas: 9
    keda:
      enabled: true
      serverAddress: https://prometheus.monitoring:9090
      threshold: 1500
      authentication: {name: prometheus, modes: bearer}
  podDisruptionBudget: {maxUnavailable: "", minAvailable: 2}
a budget by what stays:
  replicas: 4
  podDisruptionBudget: {maxUnavailable: "", minAvailable: 3, unhealthyPodEvictionPolicy: IfHealthyBudget}
routes:
  service: {port: 443}
  grpcRoute:
    enabled: true
    parentRefs: [{name: public, namespace: gateways, sectionName: grpc}]
    hostnames: [feeds.example.com, "*.feeds.example.com"]
    annotations: {note: "1"}
  ingress:
    enabled: true
    className: nginx
    annotations: {nginx.ingress.kubernetes.io/backend-protocol: GRPC}
    hosts: [feeds.example.com, "*.feeds.example.com"]
    tls: [{secretName: feeds-tls, hosts: [feeds.example.com]}]
sources with TLS:
  sources:
    main:
      uriSecret: {name: mongodb, key: uri}
      caSecret: mongodb-ca
      certificateSecret: {name: mongodb-client, key: tls-combined.pem}
    orders-eu: {uriSecret: {name: orders, key: uri}, caSecret: orders-ca}
    plain: {uriSecret: {name: plain, key: uri}, caSecret: "", certificateSecret: {name: "", key: ""}}
more volumes:
  extraVolumes: [{name: jwks, configMap: {name: jwks}}, {name: redis-client, secret: {secretName: redis-client}}]
  extraVolumeMounts:
    - {name: jwks, mountPath: /etc/jwks, readOnly: true}
    - {name: redis-client, mountPath: /etc/redis-client, readOnly: true}
  initContainers:
    - name: keys
      image: sidecar:1
      restartPolicy: Always
      volumeMounts: [{name: jwks, mountPath: /jwks}]
      resources: {requests: {cpu: 10m}, limits: {memory: 64Mi}}
  config: {jwt: {issuer: https://id, audience: feedmux, jwks_file: /etc/jwks/jwks.json}}
  env:
    - {name: FEEDMUX_REDIS__CERTIFICATE_FILE, value: /etc/redis-client/tls.crt}
    - {name: FEEDMUX_REDIS__KEY_FILE, value: /etc/redis-client/tls.key}
bare:
  networkPolicy: {enabled: false}
  tls: {acceptPlaintext: true}
  podDisruptionBudget: {enabled: false}
  replicas: 1
  nameOverride: changes
  drain: {delaySeconds: 0}
  serviceAccount: {create: false, name: existing}
small:
  config: {limits: {memory_bytes: 67108864, retained_bytes: 16777216, sessions: 100, connections: 100}}
  resources: {requests: {memory: 0.25Gi, cpu: 0.5}, limits: {memory: 536870912, cpu: "1.5"}}
  imagePullSecrets: [registry, {name: registry}]
""".replace("HASH", HASH)
)
WRONG: dict[str, tuple[Values, str]] = yaml.safe_load(
    """
a misspelt value: [{replica: 3}, additional properties 'replica' not allowed]
a number as text: [{replicas: three}, "'/replicas': got string, want integer"]
a monitor of a port that is closed: [{metrics: {serviceMonitor: {enabled: true}}}, set metrics.enabled]
no servers: [{replicas: 0}, minimum]
a port that is none: [{service: {port: 70000}}, "'/service/port'"]
a name that is none: [{tls: {existingSecret: My_Secret}}, "'/tls/existingSecret'"]
a source without a secret: [{sources: {more: {id: x}}}, missing property 'uriSecret']
a source's name: [{sources: {Main!: {uriSecret: {name: mongodb, key: uri}}}}, Main!]
a password in place of a hash: [{operator: {keyHashes: [secret]}}, "'/operator/keyHashes/0'"]
a certificate without a key:
  [{sources: {main: {certificateSecret: {name: mongodb-client}}}}, "'/sources/main/certificateSecret'"]
another database: [{redis: {url: mysql://x}}, "redis.url: it is no URL of a known form"]
a secret without a key: [{redis: {passwordSecret: {name: redis}}}, "'/redis/passwordSecret"]
a user of the chart's own Redis:
  [{redis: {url: "", username: feedmux, bundled: {enabled: true}}}, "redis.bundled: it has only the user `default`"]
an image with its tag: [{image: {repository: registry/feedmux:1}}, "'/image/repository'"]
an image that is none: [{image: {repository: registry/FeedMux/}}, "'/image/repository'"]
a tenant without a name: [{tenants: {inline: [{}]}}, missing property 'name']
a grant that is no list: [{tenants: {inline: [{name: a, grants: {database: shop}}]}}, grants]
no sources: [{sources: null}, "sources: name at least one MongoDB deployment"]
no Redis: [{redis: {url: ""}}, "redis: set exactly one"]
two Redis: [{redis: {bundled: {enabled: true}}}, "set now: redis.url, redis.bundled.enabled"]
no tenants: [{tenants: {existingConfigMap: ""}}, "tenants: set exactly one"]
two kinds of tenants: [{tenants: {existingSecret: x}}, "tenants.existingConfigMap, tenants.existingSecret"]
two certificates: [{tls: {existingSecret: x, certManager: {enabled: true, issuerRef: {name: ca}}}}, not both]
no issuer: [{tls: {certManager: {enabled: true}}}, tls.certManager.issuerRef.name]
client certificates without TLS: [{tls: {clientCaSecret: x}}, client certificates need TLS]
a second port without authorities: [{service: {mtlsPort: 7120}}, "service.mtlsPort: set tls.clientCaSecret"]
one port for both:
  [{service: {mtlsPort: 7117}, tls: {existingSecret: x, clientCaSecret: y}}, "service.mtlsPort: choose another port"]
fewest above most: [{autoscaling: {minReplicas: 9}}, minReplicas is above maxReplicas]
another time to drain: [{config: {limits: {drain_s: 60}}}, "config.limits.drain_s: the chart sets this"]
too little memory: [{resources: {limits: {memory: 2Gi}}}, is less than the servers may use]
more memory in use: [{config: {limits: {memory_bytes: 2147483648}}}, "resources.limits.memory: 3Gi is less"]
an amount of memory: [{resources: {limits: {memory: 3000m}}}, "'/resources/limits/memory'"]
half a byte: [{resources: {limits: {memory: 0.5}}}, "'/resources/limits/memory': got number"]
an affinity that is text: [{affinity: "podAntiAffinity: {}"}, "'/affinity': got string"]
a toleration that is no text: [{tolerations: [{key: a, value: true}]}, "'/tolerations/0/value'"]
a constraint of nothing: [{topologySpreadConstraints: [{topologyKey: zone}]}, "'maxSkew'"]
a peer of nothing: [{networkPolicy: {clients: [{}]}}, "'/networkPolicy/clients/0'"]
a peer of two kinds:
  - {networkPolicy: {clients: [{ipBlock: {cidr: 10.0.0.0/8}, podSelector: {}}]}}
  - "'/networkPolicy/clients/0': maxProperties"
a peer that is no selector:
  - {networkPolicy: {metrics: [{podSelector: {app: prometheus}}]}}
  - "'/networkPolicy/metrics/0/podSelector': additional properties 'app'"
a peer's address without its length:
  - {networkPolicy: {egress: [{ports: [1], to: [{ipBlock: {cidr: fd00::1}}]}]}}
  - "'/networkPolicy/egress/0/to/0/ipBlock/cidr'"
an amount of cores: [{resources: {requests: {cpu: 1Gi}}}, "'/resources/requests/cpu'"]
two families where one is allowed:
  - {service: {ipFamilyPolicy: SingleStack, ipFamilies: [IPv6, IPv4]}}
  - "service.ipFamilies: a Service of ipFamilyPolicy SingleStack has one family"
a label that is none: [{commonLabels: {team: data & feeds}}, "'/commonLabels/team'"]
a label's name that is none: [{podLabels: {my team: data}}, "'/podLabels': additional properties"]
a secret's name that is none: [{redis: {caSecret: redis..ca}}, "'/redis/caSecret'"]
a mount's path that is none: [{extraVolumeMounts: [{name: tmp, mountPath: /x:y}]}, mountPath]
a user's id that is text: [{securityContext: {pod: {runAsUser: "1000"}}}, "'/securityContext/pod/runAsUser'"]
a selector's misspelt field:
  - {networkPolicy: {clients: [{podSelector: {matchExpressions: [{key: a, operator: in}]}}]}}
  - "'/networkPolicy/clients/0/podSelector/matchExpressions/0/operator'"
a variable of no name: [{env: [{name: A=B}]}, "'/env/0/name'"]
variables of nothing: [{envFrom: [{}]}, "'/envFrom/0'"]
a variable that is a number: [{env: [{name: A, value: 5}]}, "'/env/0/value'"]
a variable twice: [{env: [{name: A}, {name: A}]}, "env: the name A is there twice"]
a variable of the chart:
  - {env: [{name: FEEDMUX_SOURCES__MAIN__URI, value: mongodb://db}]}
  - "env: the name FEEDMUX_SOURCES__MAIN__URI is there twice, or the chart itself uses it"
a variable of two kinds:
  - {env: [{name: A, value: x, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]}
  - "env: A has both value and valueFrom"
a container's variable of two kinds:
  - {initContainers: [{name: x, image: x:1, env: [{name: A, value: x, valueFrom: {y: {}}}]}]}
  - "initContainers (x): A has both value and valueFrom"
a variable from two places:
  [{env: [{name: A, valueFrom: {secretKeyRef: {}, configMapKeyRef: {}}}]}, "env: the valueFrom of A names 2 sources"]
variables of two places:
  [{envFrom: [{configMapRef: {name: x}, secretRef: {name: x}}]}, "envFrom: name a configMapRef or a secretRef"]
a volume of two kinds:
  - {extraVolumes: [{name: a, secret: {secretName: a}, emptyDir: {}}]}
  - "extraVolumes: a has more than one source: emptyDir, secret"
a mount of no volume:
  - {extraVolumeMounts: [{name: jwks, mountPath: /etc/jwks}]}
  - "extraVolumeMounts: there is no volume jwks; add it to extraVolumes"
a container's mount of no volume:
  - {initContainers: [{name: x, image: x:1, volumeMounts: [{name: jwks, mountPath: /x}]}]}
  - "initContainers (x): there is no volume jwks; add it to extraVolumes"
a container twice:
  [{initContainers: [{name: x, image: x:1}, {name: x, image: x:2}]}, "initContainers: the name x is there twice"]
a container of the chart:
  - {initContainers: [{name: feedmux, image: x:1}]}
  - "initContainers: the name feedmux is there twice, or the chart itself uses it"
a mount in the chart's place:
  - {extraVolumeMounts: [{name: tmp, mountPath: /etc/feedmux/config/}]}
  - "extraVolumeMounts: the mountPath /etc/feedmux/config/ is there twice, or the chart"
more memory reserved than allowed:
  - {resources: {requests: {memory: 4Gi}}}
  - "resources.requests.memory: 4Gi is more than the limit of 3Gi, which Kubernetes rejects"
more memory reserved for Redis than allowed:
  - {redis: {bundled: {resources: {limits: {memory: 64Mi}}}}}
  - "redis.bundled.resources.requests.memory: 128Mi is more than the limit of 64Mi"
more cores reserved than allowed:
  [{resources: {requests: {cpu: 1}, limits: {cpu: 750m}}}, "resources.requests.cpu: 1 is more than the limit of 750m"]
a class of a load balancer without one:
  [{service: {loadBalancerClass: x, type: NodePort}}, "only with service.type LoadBalancer, and it is NodePort"]
ranges of a load balancer without one:
  - {service: {loadBalancerSourceRanges: [10.0.0.0/8]}}
  - "service.loadBalancerSourceRanges: Kubernetes accepts this only with"
a range that is none:
  [{service: {type: LoadBalancer, loadBalancerSourceRanges: [10.0.0.0]}}, "'/service/loadBalancerSourceRanges/0'"]
a node's port of a Service inside: [{service: {nodePort: 30443}}, service.type NodePort or LoadBalancer]
outside traffic of a Service inside:
  [{service: {externalTrafficPolicy: Local}}, "service.externalTrafficPolicy: Kubernetes accepts this only with"]
a route of no gateway: [{grpcRoute: {enabled: true}}, "grpcRoute.parentRefs: name at least one Gateway"]
a gateway without a name: [{grpcRoute: {parentRefs: [{namespace: x}]}}, missing property 'name']
an Ingress of no host: [{ingress: {enabled: true}}, "ingress.hosts: name at least one host"]
a host that is none: [{ingress: {hosts: [https://feeds]}}, "'/ingress/hosts/0'"]
two autoscalers:
  - {autoscaling: {enabled: true, keda: {enabled: true}}}
  - "set autoscaling.enabled or autoscaling.keda.enabled, not both"
a percentage of no CPU:
  [{autoscaling: {enabled: true}, resources: {requests: {cpu: null}}}, "autoscaling: set resources.requests.cpu"]
KEDA without Prometheus: [{autoscaling: {keda: {enabled: true}}}, autoscaling.keda.serverAddress]
KEDA without metrics:
  - {autoscaling: {keda: {enabled: true, serverAddress: http://prometheus:9090}}}
  - "autoscaling.keda: set metrics.enabled"
Prometheus without a URL:
  [{autoscaling: {keda: {serverAddress: prometheus:9090}}}, "autoscaling.keda.serverAddress: it is no URL"]
credentials without a name:
  [{autoscaling: {keda: {authentication: {modes: bearer}}}}, autoscaling.keda.authentication.name]
a read that outlasts the interval:
  - {metrics: {serviceMonitor: {scrapeTimeout: 1m1s, interval: 1m}}}
  - "scrapeTimeout: 1m1s is longer than the interval, 1m"
two budgets: [{podDisruptionBudget: {minAvailable: 1}}, both are set now]
no budget: [{podDisruptionBudget: {maxUnavailable: ""}}, none is set now]
a budget that lets nothing be evicted:
  [{podDisruptionBudget: {maxUnavailable: "", minAvailable: 2}}, 2 of 2 servers leaves none that may be evicted]
a budget by percentage that lets nothing be evicted:
  - {replicas: 3, podDisruptionBudget: {maxUnavailable: "", minAvailable: 67%}}
  - 67% of 3 servers leaves none that may be evicted
a budget of no percentage: [{podDisruptionBudget: {maxUnavailable: 0%}}, podDisruptionBudget]
a budget of no servers: [{podDisruptionBudget: {maxUnavailable: 0}}, "'/podDisruptionBudget/maxUnavailable'"]
another policy for what is not ready:
  [{podDisruptionBudget: {unhealthyPodEvictionPolicy: Never}}, "'/podDisruptionBudget/unhealthyPodEvictionPolicy'"]
annotations of another's account:
  [{serviceAccount: {create: false, annotations: {role: feeds}}}, the chart annotates only the account that it creates]
a volume twice: [{extraVolumes: [{name: a}, {name: a}]}, "extraVolumes: the name a is there twice"]
a mount without a path: [{extraVolumeMounts: [{name: x}]}, missing property 'mountPath']
an option of another type: [{config: {limits: {sessions: "5"}}}, "'/config/limits/sessions'"]
an option out of its bounds: [{config: {reload_s: 60}}, "'/config/reload_s': maximum"]
what the chart sets: [{config: {listen: {data: ":1"}}}, "config.listen: the chart sets this itself"]
""".replace("HASH", HASH)
)
"""Values, and words of the message that refuses them."""
_MANY: Values = {
    "existingConfigMap": "",
    "inline": [{"name": f"t{n}", "grants": [{"database": "d" * 60}]} for n in range(12_000)],
}
WRONG["too many tenants"] = ({"tenants": _MANY}, "tenants.inline: it has more than 1 MiB")


def merged(values: Values, more: Values) -> Values:
    both = dict(values)
    for name, value in more.items():
        both[name] = (
            merged(both[name], value) if isinstance(value, dict) and isinstance(both.get(name), dict) else value
        )
    return both


def render(values: Values, name: str = "release", namespace: str = "feeds") -> dict[str, str]:
    return _rendered(json.dumps(values), name, namespace)


@cache
def _rendered(values: str, name: str, namespace: str) -> dict[str, str]:
    with Chart.load(str(CHART)) as chart:
        return chart.render(json.loads(values), name=name, namespace=namespace)


class Strict(yaml.CSafeLoader):
    """Rejects a name twice in one map, as Kustomize and server-side apply do."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        names = [key.value for key, _ in node.value]
        assert len(names) == len(set(names)), f"a name twice: {names}"
        return super().construct_mapping(node, deep)


def objects(values: Values) -> Iterator[Object]:
    return parsed(render(values))


def parsed(rendered: dict[str, str]) -> Iterator[Object]:
    for path, text in rendered.items():
        if not path.endswith("NOTES.txt"):
            yield from (each for each in yaml.load_all(text, Strict) if each is not None)


def of_kind(values: Values, kind: str) -> list[Object]:
    return [each for each in objects(values) if each["kind"] == kind]


def pod_of(values: Values, kind: str = "Deployment") -> Object:
    """The pods that the only object of a kind makes."""
    (found,) = of_kind(values, kind)
    spec: Object = found["spec"]["template"]["spec"]
    return spec


def container_of(values: Values, kind: str = "Deployment") -> Object:
    container: Object
    (container,) = pod_of(values, kind)["containers"]
    return container


def configuration(values: Values) -> str:
    """The file that a server reads."""
    texts: list[str] = [each["data"].get("feedmux.yaml", "") for each in of_kind(values, "ConfigMap")]
    (text,) = filter(None, texts)
    return text


def pods(values: Values) -> Iterator[tuple[str, Object]]:
    for each in objects(values):
        if each["kind"] in ("Deployment", "StatefulSet"):
            yield each["metadata"]["name"], each["spec"]["template"]["spec"]
        elif each["kind"] == "Pod":
            yield each["metadata"]["name"], each["spec"]


def fenced(word: str) -> str:
    """The block of code in the chart's README that contains a word."""
    blocks: list[str] = re.findall(r"^```\w*\n(.*?)^```", README.read_text(), re.MULTILINE | re.DOTALL)
    (block,) = [each for each in blocks if word in each]
    return block


def not_restricted(pod: Object) -> list[str]:
    """What of the restricted profile a pod breaks (Kubernetes, "Pod Security Standards"); and what we add to it."""
    broken = [name for name in ("hostNetwork", "hostPID", "hostIPC") if pod.get(name)]
    security = pod["securityContext"]
    if security.get("seccompProfile", {}).get("type") != "RuntimeDefault":
        broken.append("seccompProfile")
    if not security.get("runAsNonRoot") or not security.get("runAsUser"):
        broken.append("runAsNonRoot")
    if pod.get("automountServiceAccountToken") is not False:
        broken.append("automountServiceAccountToken")
    allowed = {"configMap", "secret", "emptyDir", "persistentVolumeClaim", "projected", "downwardAPI", "csi", "name"}
    broken += [f"volume {each['name']}" for each in pod.get("volumes", []) if not set(each) <= allowed]
    for container in [*pod["containers"], *pod.get("initContainers", [])]:
        own = container["securityContext"]
        if own.get("allowPrivilegeEscalation") is not False or own.get("privileged"):
            broken.append("allowPrivilegeEscalation")
        if own.get("capabilities", {}).get("drop") != ["ALL"] or own["capabilities"].get("add"):
            broken.append("capabilities")
        if own.get("readOnlyRootFilesystem") is not True:
            broken.append("readOnlyRootFilesystem")
        if any("hostPort" in port for port in container.get("ports", [])):
            broken.append("hostPort")
        if not container["resources"].get("requests") or "memory" not in container["resources"].get("limits", {}):
            broken.append("resources")
    return broken


@pytest.mark.parametrize("case", MATRIX)
def test_kubernetes_takes_every_object(case: str) -> None:
    found = list(objects(merged(LEAST, MATRIX[case])))
    assert {"Deployment", "Service", "ConfigMap", "Pod"} <= {each["kind"] for each in found}
    for each in found:
        for version in KUBERNETES if each["kind"] not in NOT_OF_KUBERNETES else ():
            kubernetes_validate.validate(each, version, strict=True)
        assert each["metadata"]["labels"]["app.kubernetes.io/instance"] == "release"
    names = [(each["kind"], each["metadata"]["name"]) for each in found]
    assert len(names) == len(set(names))


def test_the_oldest_kubernetes_that_the_chart_allows_is_checked() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["kubeVersion"] == f">={KUBERNETES[0]}.0-0"
    assert f"Kubernetes {KUBERNETES[0]} or later" in README.read_text()
    # An older one does not know everything that the chart renders.
    (deployment,) = of_kind(LEAST, "Deployment")
    with pytest.raises(kubernetes_validate.ValidationError, match="sleep"):
        kubernetes_validate.validate(deployment, "1.28", strict=True)


@pytest.mark.parametrize("case", MATRIX)
def test_helm_finds_nothing_to_warn_of(case: str) -> None:
    values = merged(LEAST, MATRIX[case])
    found = lint(CHART, values, strict=True, namespace="feeds", kube_version=f"v{KUBERNETES[0]}.0")
    assert found["total_charts_linted"] == 1
    assert found["errors"] == []
    assert [each for each in found["messages"] if each["severity"] > 1] == []


@pytest.mark.parametrize("case", MATRIX)
def test_every_pod_is_restricted(case: str) -> None:
    found = dict(pods(merged(LEAST, MATRIX[case])))
    assert len(found) >= 2
    assert {name: not_restricted(pod) for name, pod in found.items()} == {name: [] for name in found}


@pytest.mark.parametrize("case", MATRIX)
def test_the_server_reads_its_configuration(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the environment that the pod would have."""
    values = merged(LEAST, MATRIX[case])
    pod = pod_of(values)
    (container,) = pod["containers"]
    for name in [name for name in os.environ if name.startswith("FEEDMUX_")]:
        monkeypatch.delenv(name)
    secrets = {"URI": "mongodb://db/?replicaSet=rs0", "URL": "rediss://redis:6379/0", "PASSWORD": "canary"}
    for each in container["env"]:
        monkeypatch.setenv(each["name"], each.get("value") or secrets[each["name"].rpartition("_")[2]])
    path = tmp_path / "feedmux.yaml"
    path.write_text(configuration(values))
    config = load_config(path)
    assert set(config.sources) == set(values["sources"])
    assert all(each.uri == secrets["URI"] for each in config.sources.values())
    assert {each["name"] for each in container["volumeMounts"]} == {each["name"] for each in pod["volumes"]}
    mounted = {each["mountPath"] for each in container["volumeMounts"]}
    files = [config.tenants_file, config.redis.ca_file, config.positions.key_file]
    files += [config.redis.certificate_file, config.redis.key_file]
    if config.jwt is not None:
        files.append(config.jwt.jwks_file)
    if config.tls is not None:
        files += [config.tls.certificate_file, config.tls.key_file, config.tls.client_ca_file]
    assert all(str(path.parent) in mounted for path in files if path is not None)
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    listen = {"grpc": config.listen.data, "operator": config.listen.operator, "health": config.listen.health}
    assert {name: int(address.rpartition(":")[2]) for name, address in listen.items()} == {
        name: ports[name] for name in listen
    }
    delay_s = container["lifecycle"]["preStop"]["sleep"]["seconds"] if "lifecycle" in container else 0
    assert delay_s == values.get("drain", {}).get("delaySeconds", 5)
    assert config.limits.drain_s == values.get("drain", {}).get("seconds", 10)
    needed_s = delay_s + config.limits.drain_s + config.limits.drain_delay_s + 5
    assert pod["terminationGracePeriodSeconds"] >= needed_s


@pytest.mark.parametrize("delay_s", [0, 5])
@pytest.mark.parametrize("drain_delay_s", [None, 0, 2.5, 20])
def test_a_pod_gets_the_time_that_its_drain_takes(delay_s: int, drain_delay_s: float | None) -> None:
    """The hook, the delay, the drain, and ten seconds (docs/replicas.md)."""
    limits = {} if drain_delay_s is None else {"drain_delay_s": drain_delay_s}
    values = merged(LEAST, {"drain": {"delaySeconds": delay_s, "seconds": 30}, "config": {"limits": limits}})
    grace_s = pod_of(values)["terminationGracePeriodSeconds"]
    needed_s = delay_s + (drain_delay_s or 0) + 30 + 10
    assert needed_s <= grace_s <= needed_s + 6


@pytest.mark.parametrize("case", WRONG)
def test_wrong_values_are_refused_in_words(case: str) -> None:
    values, words = WRONG[case]
    with pytest.raises(HelmError) as caught:
        render(merged(LEAST, values))
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("path", "url"),
    [
        ("redis.url", "redis+cluster://:canary@a,b"),
        ("redis.url", "redis://:can/canary@redis"),
        ("redis.url", "redis+sentinel://:can/canary@a,b/primary"),
        ("redis.url", "redis://redis/0?password=canary"),
        ("redis.url", ":canary@redis"),
        ("config.dead_letters.uri", "mongodb://u:canary@db/"),
        ("config.dead_letters.uri", "mongodb://u:can/canary@db/"),
        ("config.dead_letters.uri", "mongodb://db/?tlsCertificateKeyFilePassword=canary"),
        ("config.dead_letters.uri", "mongodb://db/?authMechanismProperties=AWS_SESSION_TOKEN:canary"),
        ("config.jwt.jwks_url", "https://u:canary@issuer/keys"),
        ("config.jwt.jwks_url", "https://issuer/keys?access_token=canary"),
        ("autoscaling.keda.serverAddress", "http://u:canary@prometheus"),
        ("autoscaling.keda.serverAddress", "u:canary@prometheus"),
    ],
)
def test_no_url_has_a_password(path: str, url: str) -> None:
    with pytest.raises(HelmError, match=rf" {path}: it ") as caught:
        render(merged(LEAST, under(tuple(path.split(".")), url)))
    assert "canary" not in str(caught.value)


def test_urls_without_a_password_are_taken() -> None:
    urls = {
        "redis.url": "rediss+sentinel://feedmux@a:26379,b:26379/primary/0",
        "config.dead_letters.uri": "mongodb://u@db:1,db:2/?authMechanismProperties=TOKEN_RESOURCE:x"
        "&tlsCertificateKeyFile=/etc/client.pem",
        "config.jwt.jwks_url": "https://issuer:8443/keys?tenant=feedmux",
    }
    values = LEAST
    for path, url in urls.items():
        values = merged(values, under(tuple(path.split(".")), url))
    assert "mongodb://u@db" in "".join(render(values).values())


OPTIONAL = {"redis.bundled.resources", "resources", "podDisruptionBudget.maxUnavailable",
            "podDisruptionBudget.minAvailable", "affinity", "metrics.dashboard.labels"}  # fmt: skip
"""Where null is how Helm removes a default, or Kubernetes itself takes it."""


def nested(values: Values, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, value in values.items():
        yield (*path, name), value
        if isinstance(value, dict):
            yield from nested(value, (*path, name))


def under(path: tuple[str, ...], value: Any) -> Values:
    return {path[0]: under(path[1:], value) if path[1:] else value}


def test_null_is_refused_by_the_name_of_its_value() -> None:
    source = {"main": LEAST["sources"]["main"]}
    wrong = [({"sources": {"main": source["main"] | {name: None}}}, name) for name in ("id", "caSecret", "uriSecret")]
    wrong += [({"networkPolicy": {"egress": [{"ports": [1], "to": [], name: None}]}}, name) for name in ("ports", "to")]
    wrong += [({"config": {"limits": {"sessions": None}}}, "sessions"), ({"config": {"log": None}}, "log")]
    accepted = []
    for path, default in nested(yaml.safe_load((CHART / "values.yaml").read_text())):
        name = ".".join(path)
        optional = any(name == each or name.startswith(f"{each}.") for each in OPTIONAL)
        if optional and name not in ("resources", "redis.bundled.resources", "affinity", "metrics.dashboard.labels"):
            accepted.append(under(path, None))
        else:
            wrong.append((under(path, None), path[-1]))
        if isinstance(default, list):
            wrong.append((under(path, [None]), path[-1]))
        if default == {} and not optional:
            wrong.append((under(path, {"x": None}), path[-1]))
    assert len(wrong) > 150
    for more, name in wrong:
        with pytest.raises(HelmError) as caught:
            render(merged(LEAST, more))
        assert name in str(caught.value), more
        assert "nil pointer" not in str(caught.value), more
    assert len(accepted) > 5
    for more in accepted:
        other = {"podDisruptionBudget": {"maxUnavailable": 1} if "minAvailable" in str(more) else {"minAvailable": 1}}
        render(merged(merged(LEAST, MATRIX["trial"]), merged(other, more) if "Budget" in str(more) else more))


@pytest.mark.parametrize(
    ("release", "more"),
    [
        ("feeds.eu", {}),
        ("r" * 53, {"nameOverride": "n" * 253}),
        ("release", {"nameOverride": "my.changes"}),
        ("release", {"nameOverride": f"{'n' * 41}---{'n' * 30}"}),
        ("release", {"fullnameOverride": "a.b." + "c" * 240}),
        ("7", {"fullnameOverride": "seven"}),
        ("1e3", {"fullnameOverride": "null", "nameOverride": "123"}),
    ],
)
def test_names_are_those_that_kubernetes_allows(release: str, more: Values) -> None:
    everything = merged(merged(MATRIX["trial"], MATRIX["a large service"]), {"fullnameOverride": ""} | more)
    found = list(parsed(render(merged(LEAST, everything), name=release, namespace="7")))
    assert len(found) > 10
    check_names(found)


def check_names(found: list[Object]) -> None:
    for each in found:
        if each["kind"] not in NOT_OF_KUBERNETES:
            kubernetes_validate.validate(each, KUBERNETES[-1], strict=True)
        limit = 52 if each["kind"] == "StatefulSet" else 63
        name = each["metadata"]["name"].removeprefix("7-")  # of a namespace, which may begin with a digit
        assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name), name
        assert len(name) <= limit, name
        for value in each["metadata"]["labels"].values():
            assert re.fullmatch(r"(?=.{0,63}$)([A-Za-z0-9]([-\w.]*[A-Za-z0-9])?)?", value), value


@pytest.mark.parametrize("alias", ["feedmux", "changeFeeds", "change_feeds", "a" * 60 + "_"])
def test_another_chart_may_depend_on_it(alias: str, tmp_path: Path) -> None:
    """Its values then have other types than those of a file, and its name is that of the dependency."""
    condition = f"{alias}.enabled"
    dependency = {"name": "feedmux", "alias": alias, "version": "0.1.0", "repository": "", "condition": condition}
    chart = {"apiVersion": "v2", "name": "parent", "version": "1.0.0", "dependencies": [dependency]}
    everything = merged(merged(merged(LEAST, MATRIX["trial"]), MATRIX["a large service"]), {"fullnameOverride": ""})
    (tmp_path / "Chart.yaml").write_text(yaml.safe_dump(chart))
    shutil.copytree(CHART, tmp_path / "charts" / "feedmux")
    for enabled in (True, False):
        values = everything | {"enabled": enabled}
        of_all = {"imageRegistry": "mirror:5000/hub/", "imagePullSecrets": ["mirror", {"name": "registry"}]}
        (tmp_path / "values.yaml").write_text(yaml.safe_dump({alias: values, "global": of_all}))
        with Chart.load(str(tmp_path)) as parent:
            found = list(parsed(parent.render({}, name="release", namespace="feeds")))
        assert bool(found) == enabled
        check_names(found)
        specs = [each["spec"] if each["kind"] == "Pod" else each["spec"]["template"]["spec"] for each in found
                 if each["kind"] in ("Deployment", "StatefulSet", "Pod")]  # fmt: skip
        assert len(specs) == (3 if enabled else 0)
        for spec in specs:
            assert spec["imagePullSecrets"] == [{"name": "mirror"}, {"name": "registry"}]
            assert re.match("mirror:5000/hub/(feedmux@sha256:|redis:)", spec["containers"][0]["image"])


def test_selectors_find_only_what_is_the_charts_own(tmp_path: Path) -> None:
    """Another chart may depend on it twice, or on another one that has a Redis: the release is the same."""
    aliases = ["feeds", "changes"]
    values = merged(LEAST, merged(MATRIX["trial"], {"metrics": {"enabled": True, "serviceMonitor": {"enabled": True}}}))
    dependencies = [{"name": "feedmux", "alias": alias, "version": "0.1.0", "repository": ""} for alias in aliases]
    chart = {"apiVersion": "v2", "name": "parent", "version": "1.0.0", "dependencies": dependencies}
    (tmp_path / "Chart.yaml").write_text(yaml.safe_dump(chart))
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(dict.fromkeys(aliases, values)))
    shutil.copytree(CHART, tmp_path / "charts" / "feedmux")
    with Chart.load(str(tmp_path)) as parent:
        found = list(parsed(parent.render({}, name="release", namespace="feeds")))

    def selectors(value: Any) -> Iterator[Values]:
        for name, inner in value.items() if isinstance(value, dict) else enumerate(value):
            if name == "matchLabels" or (name == "selector" and "matchLabels" not in inner):
                yield inner
            elif isinstance(inner, dict | list):
                yield from selectors(inner)

    tried = 0
    for each in found:
        for selector in selectors(each.get("spec", {})):
            assert selector["app.kubernetes.io/name"] == each["metadata"]["labels"]["app.kubernetes.io/name"], each
            tried += 1
    assert tried == 2 * 13


def test_constraints_of_spreading_count_the_servers_unless_they_say_otherwise() -> None:
    own = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
    every = {"maxSkew": 2, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": {}}
    (deployment,) = of_kind(merged(LEAST, {"topologySpreadConstraints": [own, every]}), "Deployment")
    spec = deployment["spec"]
    assert spec["template"]["spec"]["topologySpreadConstraints"] == [own | {"labelSelector": spec["selector"]}, every]


def test_a_name_that_begins_with_a_digit_is_refused() -> None:
    with pytest.raises(HelmError, match="fullnameOverride: set a name that begins with a letter; 7-feedmux begins"):
        render(LEAST, name="7")


def test_no_secret_is_rendered() -> None:
    values = merged(LEAST, MATRIX["secrets for everything"])
    assert not of_kind(values, "Secret")
    from_secrets = {each["name"] for each in container_of(values)["env"] if "valueFrom" in each}
    assert from_secrets == {"FEEDMUX_SOURCES__MAIN__URI", "FEEDMUX_REDIS__URL", "FEEDMUX_REDIS__PASSWORD"}


def test_no_volume_takes_the_name_of_one_of_the_charts() -> None:
    tried = set[str]()
    for case in MATRIX.values():
        for name in {each["name"] for each in pod_of(merged(LEAST, case))["volumes"]} - tried:
            more = {"extraVolumes": [*case.get("extraVolumes", []), {"name": name, "emptyDir": {}}]}
            with pytest.raises(HelmError, match=f"extraVolumes: the name {name} is there twice"):
                render(merged(merged(LEAST, case), more))
            tried.add(name)
    assert {"config", "tenants", "tls", "sources"} <= tried


def shown(case: str, path: tuple[str, ...], text: str) -> str:
    """A case with this text in the place of a value."""
    found = list(objects(merged(merged(LEAST, MATRIX[case]), under(path, text))))
    for each in found:
        if "feedmux.yaml" in each.get("data", {}):
            each["data"] = yaml.safe_load(each["data"]["feedmux.yaml"])
    return re.sub(r'"checksum/config": "\w+"', "", json.dumps(found))


def test_text_stays_text() -> None:
    """Also what YAML reads as a number, as it reads other words as a truth value or as nothing."""
    tried = 0
    for case in ("a large service", "secrets for everything", "cert-manager", "KEDA", "sources with TLS"):
        for path, value in nested(MATRIX[case]):
            if not isinstance(value, str) or path[0] == "fullnameOverride":
                continue
            try:
                expected, found = shown(case, path, "zzz"), shown(case, path, "123")
            except HelmError:
                continue
            assert found == expected.replace("zzz", "123"), path
            tried += 1
    assert tried > 20


def test_the_files_of_sources_are_where_the_values_say(tmp_path: Path) -> None:
    """And MongoDB's driver accepts the options by which a URI names them."""
    pod = pod_of(merged(LEAST, MATRIX["sources with TLS"]))
    (mount,) = [each["mountPath"] for each in pod["containers"][0]["volumeMounts"] if each["name"] == "sources"]
    (volume,) = [each["projected"]["sources"] for each in pod["volumes"] if each["name"] == "sources"]
    files = {
        f"{mount}/{item['path']}": (each["secret"]["name"], item["key"])
        for each in volume
        for item in each["secret"]["items"]
    }
    assert files == {
        "/etc/feedmux/sources/main/ca.crt": ("mongodb-ca", "ca.crt"),
        "/etc/feedmux/sources/main/client.pem": ("mongodb-client", "tls-combined.pem"),
        "/etc/feedmux/sources/orders-eu/ca.crt": ("orders-ca", "ca.crt"),
    }
    options = re.findall(r"`(tls=true&[^`]+)`", (CHART / "values.yaml").read_text())
    found: dict[str, Any] = {}
    for option in options:
        (path,) = re.findall(r"=(/[^&]+)", option)
        assert path in files
        there = tmp_path / Path(path).name
        there.touch()
        found |= parse_uri(f"mongodb://db/?{option.replace(path, str(there))}")["options"]
    assert found["tlsCAFile"] == str(tmp_path / "ca.crt")
    assert found["tlsCertificateKeyFile"] == str(tmp_path / "client.pem")
    assert found["authMechanism"] == "MONGODB-X509"


def test_the_service_has_the_fields_of_its_type() -> None:
    def spec(more: Values) -> Object:
        (service,) = [each for each in of_kind(merged(LEAST, more), "Service") if each["spec"].get("type")]
        return {name: value for name, value in service["spec"].items() if name not in ("selector", "ports")}

    assert spec({}) == {"type": "ClusterIP"}
    assert spec({"service": {"internalTrafficPolicy": "Local"}})["internalTrafficPolicy"] == "Local"
    assert spec({"service": {"type": "NodePort", "externalTrafficPolicy": "Local"}}) == {
        "type": "NodePort",
        "externalTrafficPolicy": "Local",
    }
    values = MATRIX["a large service"]["service"]
    assert spec({"service": values}) == {
        name: value for name, value in values.items() if name not in ("port", "nodePort", "annotations", "labels")
    }
    (service,) = [each for each in of_kind(merged(LEAST, {"service": values}), "Service") if each["spec"].get("type")]
    assert service["metadata"]["labels"]["exposed"] == "yes"
    assert (service["spec"]["ports"][0]["port"], service["spec"]["ports"][0]["nodePort"]) == (443, 30443)


def documented_metrics() -> set[str]:
    """The names that Prometheus has, by docs/metrics.md."""
    return set(re.findall(r"^\| `[^`]+` \| `(\w+)` \|", METRICS.read_text(), re.MULTILINE))


def test_servers_scale_by_the_cpu_of_their_container() -> None:
    values = merged(LEAST, {"autoscaling": {"enabled": True}})
    (scaler,), (deployment,) = of_kind(values, "HorizontalPodAutoscaler"), of_kind(values, "Deployment")
    assert "replicas" not in deployment["spec"]
    assert scaler["spec"]["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
    (metric,) = scaler["spec"]["metrics"]
    container = container_of(values)
    assert metric["containerResource"]["container"] == container["name"]
    assert metric["containerResource"]["name"] in container["resources"]["requests"]


def test_servers_scale_by_a_metric_that_they_have() -> None:
    values = merged(LEAST, MATRIX["a large service"])
    (scaler,) = of_kind(values, "HorizontalPodAutoscaler")
    (metric,) = [each["pods"]["metric"]["name"] for each in scaler["spec"]["metrics"] if each["type"] == "Pods"]
    assert metric in documented_metrics()
    # The rule for the adapter that the README prints serves this metric, of pods.
    (rule,) = yaml.safe_load(fenced("seriesQuery"))["rules"]["custom"]
    assert set(asked(rule["seriesQuery"]).series) == {metric}
    assert rule.get("name", {"as": metric})["as"] == metric
    assert rule["resources"]["overrides"] == {"namespace": {"resource": "namespace"}, "pod": {"resource": "pod"}}
    query = rule["metricsQuery"].replace("<<.LabelMatchers>>", 'pod="x"').replace("<<.GroupBy>>", "pod")
    series = asked(query.replace("<<.Series>>", metric)).series
    assert set(series) <= documented_metrics()
    assert metric in series


def test_keda_asks_for_the_open_sessions_of_the_release() -> None:
    values = merged(LEAST, MATRIX["KEDA"])
    (scaled,), (deployment,) = of_kind(values, "ScaledObject"), of_kind(values, "Deployment")
    assert not of_kind(values, "HorizontalPodAutoscaler")
    assert "replicas" not in deployment["spec"]
    assert scaled["apiVersion"] == "keda.sh/v1alpha1"
    spec = scaled["spec"]
    assert spec["scaleTargetRef"] == {"name": deployment["metadata"]["name"]}
    assert (spec["minReplicaCount"], spec["maxReplicaCount"]) == (3, 9)
    cpu, prometheus = spec["triggers"]
    assert cpu["metadata"] == {"containerName": "feedmux", "value": "70"}
    assert prometheus["authenticationRef"] == {"name": "prometheus"}
    # KEDA reads only strings.
    assert all(isinstance(value, str) for each in spec["triggers"] for value in each["metadata"].values())
    assert prometheus["metadata"]["threshold"] == "1500"
    (headless,) = [
        each["metadata"]["name"] for each in of_kind(values, "Service") if each["spec"].get("clusterIP") == "None"
    ]
    series = asked(prometheus["metadata"]["query"]).series
    assert set(series) == {"feedmux_subscriber_active", "feedmux_ready"}
    assert set(series) <= documented_metrics()
    assert all(labels == {"namespace": ["feeds"], "service": [headless]} for labels in series.values())
    values = merged(values, {"autoscaling": {"keda": {"query": "sum(up)", "threshold": 0.5}}})
    (scaled,) = of_kind(values, "ScaledObject")
    metadata = scaled["spec"]["triggers"][1]["metadata"]
    assert (metadata["query"], metadata["threshold"]) == ("sum(up)", "0.5")


def test_both_autoscalers_scale_down_slowly() -> None:
    (one,) = of_kind(merged(LEAST, MATRIX["a large service"]), "HorizontalPodAutoscaler")
    (other,) = of_kind(merged(LEAST, MATRIX["KEDA"]), "ScaledObject")
    behavior = one["spec"]["behavior"]
    assert behavior["scaleDown"]["policies"] == [{"type": "Pods", "value": 1, "periodSeconds": 300}]
    assert other["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"] == behavior


@pytest.mark.parametrize(
    ("budget", "spec"),
    [
        ({}, {"maxUnavailable": 1}),
        ({"maxUnavailable": "25%"}, {"maxUnavailable": "25%"}),
        ({"maxUnavailable": "", "minAvailable": 1}, {"minAvailable": 1}),
        ({"maxUnavailable": None, "minAvailable": "50%"}, {"minAvailable": "50%"}),
    ],
)
def test_a_disruption_budget_has_one_bound(budget: Values, spec: Object) -> None:
    (found,) = of_kind(merged(LEAST, {"podDisruptionBudget": budget}), "PodDisruptionBudget")
    bounds = {name: value for name, value in found["spec"].items() if name.endswith("vailable")}
    assert bounds == spec
    assert found["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"


def test_a_monitor_in_another_namespace_finds_the_servers() -> None:
    values = merged(LEAST, MATRIX["a large service"])
    (monitor,) = of_kind(values, "ServiceMonitor")
    assert (monitor["metadata"]["namespace"], monitor["metadata"]["name"]) == ("monitoring", "feeds-feeds")
    assert monitor["spec"]["namespaceSelector"] == {"matchNames": ["feeds"]}
    given = values["metrics"]["serviceMonitor"]
    names = ("interval", "scrapeTimeout", "relabelings", "metricRelabelings")
    assert monitor["spec"]["endpoints"] == [{"port": "metrics"} | {name: given[name] for name in names}]
    values = merged(LEAST, {"metrics": {"enabled": True, "serviceMonitor": {"enabled": True}}})
    (monitor,) = of_kind(values, "ServiceMonitor")
    assert "namespace" not in monitor["metadata"]
    assert monitor["metadata"]["name"] == "release-feedmux"
    assert monitor["spec"]["endpoints"] == [{"port": "metrics", "interval": "30s"}]


def test_routes_lead_to_the_data_port() -> None:
    assert not of_kind(LEAST, "GRPCRoute")
    assert not of_kind(LEAST, "Ingress")
    values = merged(LEAST, MATRIX["routes"])
    (service,) = [each for each in of_kind(values, "Service") if each["spec"].get("type")]
    (port,) = service["spec"]["ports"]
    (route,), (ingress,) = of_kind(values, "GRPCRoute"), of_kind(values, "Ingress")
    assert route["apiVersion"] == "gateway.networking.k8s.io/v1"
    assert route["metadata"]["annotations"] == {"note": "1"}
    assert route["spec"] == {
        "parentRefs": values["grpcRoute"]["parentRefs"],
        "hostnames": values["grpcRoute"]["hostnames"],
        "rules": [{"backendRefs": [{"name": service["metadata"]["name"], "port": port["port"]}]}],
    }
    assert ingress["metadata"]["annotations"] == values["ingress"]["annotations"]
    assert ingress["spec"]["ingressClassName"] == "nginx"
    assert ingress["spec"]["tls"] == values["ingress"]["tls"]
    assert [rule["host"] for rule in ingress["spec"]["rules"]] == values["ingress"]["hosts"]
    backend = {"service": {"name": service["metadata"]["name"], "port": {"name": port["name"]}}}
    assert [rule["http"]["paths"] for rule in ingress["spec"]["rules"]] == 2 * [
        [{"path": "/", "pathType": "Prefix", "backend": backend}]
    ]


@pytest.mark.parametrize(
    ("account", "name"),
    [
        ({}, "release-feedmux"),
        ({"name": "feeds"}, "feeds"),
        ({"create": False, "name": "existing"}, "existing"),
        ({"create": False}, "default"),
    ],
)
def test_pods_run_as_the_service_account_that_is_named(account: Values, name: str) -> None:
    values = merged(LEAST, {"serviceAccount": account})
    assert pod_of(values)["serviceAccountName"] == name
    created = [each["metadata"]["name"] for each in of_kind(values, "ServiceAccount")]
    assert created == ([name] if account.get("create", True) else [])


def test_the_token_of_the_service_account_is_mounted_only_where_it_is_wanted() -> None:
    for wanted in (False, True):
        values = merged(LEAST, {"serviceAccount": {"automountServiceAccountToken": wanted}})
        (account,) = of_kind(values, "ServiceAccount")
        assert pod_of(values)["automountServiceAccountToken"] is wanted
        assert account["automountServiceAccountToken"] is wanted
        assert [pod["spec"]["automountServiceAccountToken"] for pod in of_kind(values, "Pod")] == [False]


def test_pods_start_again_for_a_configuration_and_not_for_tenants() -> None:
    def checksum(more: Values) -> str:
        (deployment,) = of_kind(merged(LEAST, more), "Deployment")
        annotations: Mapping[str, str] = deployment["spec"]["template"]["metadata"]["annotations"]
        return annotations["checksum/config"]

    inline = {"existingConfigMap": "", "inline": [{"name": "shop", "api_key_hashes": [HASH]}]}
    other = {"existingConfigMap": "", "inline": [{"name": "other", "api_key_hashes": [HASH]}]}
    assert checksum({"tenants": inline}) == checksum({"tenants": other})
    assert checksum({}) != checksum({"config": {"limits": {"sessions": 5}}})


def templates(values: Values) -> dict[str, Object]:
    """The pods of a release, by the last word of their names, each with its metadata."""
    made = {each["metadata"]["name"].rpartition("-")[2]: each for each in objects(values)
            if each["kind"] in ("Deployment", "StatefulSet", "Pod")}  # fmt: skip
    return {name: each if each["kind"] == "Pod" else each["spec"]["template"] for name, each in made.items()}


def test_every_pod_runs_where_and_as_whom_the_values_say() -> None:
    placement: Values = {
        "nodeSelector": {"pool": "feeds"},
        "tolerations": [{"key": "feeds", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}},
        "priorityClassName": "high",
    }
    more: Values = {"imagePullSecrets": ["registry"], "serviceAccount": {"name": "feeds"}, "podLabels": {"cost": "1"}}
    found = templates(merged(merged(LEAST, MATRIX["trial"]), placement | more))
    assert set(found) == {"feedmux", "redis", "test"}
    for name, pod in found.items():
        spec = pod["spec"]
        assert {value: spec.get(value) for value in placement} == placement, name
        assert spec["imagePullSecrets"] == [{"name": "registry"}], name
        assert spec["serviceAccountName"] == "feeds", name
        assert pod["metadata"]["labels"]["cost"] == "1", name


def test_labels_and_annotations_of_the_values_merge_with_the_charts() -> None:
    given = {
        "app.kubernetes.io/name": "changes",
        "app.kubernetes.io/instance": "other",
        "app.kubernetes.io/component": "headless",
        "app.kubernetes.io/version": "7",
        "app.kubernetes.io/managed-by": "Flux",
        "helm.sh/chart": "umbrella",
        "team": "data",
    }
    everything = merged(MATRIX["trial"], MATRIX["a large service"])
    plain = merged(LEAST, everything | {"commonLabels": {}, "podLabels": {}, "podAnnotations": {}})
    more: Values = {"commonLabels": given, "podLabels": given | {"team": "feeds"},
                    "podAnnotations": {"checksum/config": "0", "note": "1"},
                    "service": {"labels": given}, "metrics": {"serviceMonitor": {"labels": given}}}  # fmt: skip
    values = merged(plain, more)

    def selectors(values: Values) -> list[Any]:
        return [each["spec"].get("selector") for each in objects(values) if "spec" in each]

    assert selectors(values) == selectors(plain), "Kubernetes does not change the selectors of what exists"
    own = ("app.kubernetes.io/name", "app.kubernetes.io/instance", "app.kubernetes.io/component")
    for before, after in zip(objects(plain), objects(values), strict=True):
        labels = after["metadata"]["labels"]
        assert {name: labels.get(name) for name in own} == {
            name: before["metadata"]["labels"].get(name) for name in own
        }
        assert labels["app.kubernetes.io/version"] == "7"
    for name, pod in templates(values).items():
        before = templates(plain)[name]["metadata"]["labels"]
        labels = pod["metadata"]["labels"]
        assert {name: labels.get(name) for name in own} == {name: before.get(name) for name in own}
        assert labels["team"] == "feeds"
    annotations = templates(values)["feeds"]["metadata"]["annotations"]
    assert annotations == templates(plain)["feeds"]["metadata"]["annotations"] | {"note": "1"}


def test_everything_is_denied_but_what_is_named() -> None:
    values = merged(LEAST, MATRIX["a large service"])
    (policy,) = of_kind(values, "NetworkPolicy")
    (deployment,) = of_kind(values, "Deployment")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert policy["spec"]["podSelector"]["matchLabels"].items() <= labels.items()
    assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]
    open_to = {rule["ports"][0]["port"]: rule.get("from") for rule in policy["spec"]["ingress"]}
    assert set(open_to) == {"grpc", "operator", "metrics", "health"}
    assert open_to["operator"] == values["networkPolicy"]["operators"]
    assert {port["port"] for rule in policy["spec"]["egress"] for port in rule["ports"]} == {53, 27017}
    (policy,) = of_kind(LEAST, "NetworkPolicy")
    assert "operator" not in {rule["ports"][0]["port"] for rule in policy["spec"]["ingress"]}


def test_security_contexts_of_openshift() -> None:
    """restricted-v2 rejects user ids, and sets the rest; another policy may want other fields, or none."""

    def contexts(more: Values) -> dict[str, tuple[Object, Object]]:
        found = pods(merged(merged(LEAST, MATRIX["trial"]), {"securityContext": more}))
        return {
            name.rpartition("-")[2]: (pod["securityContext"], pod["containers"][0]["securityContext"])
            for name, pod in found
        }

    least: Object = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    container: Object = {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    ids = {name: {"runAsUser": user, "runAsGroup": user, "fsGroup": user}
           for name, user in (("feedmux", 10001), ("redis", 999), ("test", 10001))}  # fmt: skip
    assert contexts({}) == {name: (least | ids[name], container) for name in ids}
    assert contexts({"userIds": False}) == dict.fromkeys(ids, (least, container))
    assert contexts({"enabled": False}) == dict.fromkeys(ids, ({}, {}))
    changed: Values = {"pod": {"fsGroup": 1, "runAsNonRoot": False}, "container": {"readOnlyRootFilesystem": False}}
    assert contexts(changed) == {
        name: (least | ids[name] | changed["pod"], container | changed["container"]) for name in ids
    }


def test_dns_may_listen_elsewhere() -> None:
    ports = [{"port": 5353, "protocol": "UDP"}, {"port": 853, "protocol": "TCP"}]
    dns = {"ports": ports, "to": [{"namespaceSelector": {"matchLabels": {"dns": "yes"}}}]}
    (policy,) = of_kind(merged(LEAST, {"networkPolicy": {"dns": dns}}), "NetworkPolicy")
    assert policy["spec"]["egress"][0] == dns


def test_every_service_has_the_address_families_of_the_values() -> None:
    families = {"ipFamilyPolicy": "RequireDualStack", "ipFamilies": ["IPv6", "IPv4"]}
    values = merged(merged(LEAST, MATRIX["trial"]), {"service": families, "operator": {"service": True}})
    services = of_kind(values, "Service")
    assert len(services) == 4
    for each in services:
        assert {name: each["spec"][name] for name in families} == families
        kubernetes_validate.validate(each, KUBERNETES[0], strict=True)
    assert not any(name in each["spec"] for each in of_kind(LEAST, "Service") for name in families)


@pytest.mark.parametrize("enabled", [False, True])
def test_metrics_are_the_pods_own_unless_they_are_enabled(enabled: bool) -> None:
    values = merged(LEAST, {"metrics": {"enabled": enabled}})
    listen = yaml.safe_load(configuration(values))["listen"]
    assert listen["metrics"] == ("[::]:9117" if enabled else "127.0.0.1:9117")
    assert ("metrics" in {port["name"] for port in container_of(values)["ports"]}) == enabled
    (policy,) = of_kind(values, "NetworkPolicy")
    assert ("metrics" in {rule["ports"][0]["port"] for rule in policy["spec"]["ingress"]}) == enabled
    of_services = {port["name"] for each in of_kind(values, "Service") for port in each["spec"]["ports"]}
    assert ("metrics" in of_services) == enabled


@pytest.mark.parametrize("port", [0, 443])
def test_a_second_port_for_client_certificates(port: int) -> None:
    tls = {"existingSecret": "feedmux-tls", "clientCaSecret": "clients"}
    more: Values = {"tls": tls, "service": {"mtlsPort": port}, "networkPolicy": {"enabled": True}}
    values = merged(LEAST, more)
    assert yaml.safe_load(configuration(values))["listen"].get("data_mtls") == ("0.0.0.0:7120" if port else None)
    container = container_of(values)
    assert {"name": "grpc-mtls", "containerPort": 7120} in container["ports"] or not port
    assert container["readinessProbe"]["grpc"]["port"] == 7119
    (policy,) = of_kind(values, "NetworkPolicy")
    clients = [each["port"] for each in policy["spec"]["ingress"][0]["ports"]]
    assert clients == (["grpc", "grpc-mtls"] if port else ["grpc"])
    of_services = [one["port"] for each in of_kind(values, "Service") for one in each["spec"]["ports"]
                   if one["name"] == "grpc-mtls"]  # fmt: skip
    assert of_services == ([port, 7120] if port else [])


def test_the_charts_own_redis_wants_a_password_and_lets_in_its_servers_alone() -> None:
    values = merged(LEAST, MATRIX["trial"])
    (secret,) = of_kind(values, "Secret")
    (redis,) = of_kind(values, "StatefulSet")
    (container,) = redis["spec"]["template"]["spec"]["containers"]
    assert len(base64.b64decode(secret["data"]["password"])) == 32
    _rendered.cache_clear()
    (other,) = of_kind(values, "Secret")
    assert other["data"] != secret["data"], "random, where there is none yet"
    (known,) = container["env"]
    assert container["args"][:3] == ["redis-server", "--requirepass", f"$({known['name']})"]
    reference = {"name": secret["metadata"]["name"], "key": "password"}
    assert known["valueFrom"]["secretKeyRef"] == reference
    (deployment,) = of_kind(values, "Deployment")
    (server,) = deployment["spec"]["template"]["spec"]["containers"]
    (password,) = [each for each in server["env"] if each["name"] == "FEEDMUX_REDIS__PASSWORD"]
    assert password["valueFrom"]["secretKeyRef"] == reference
    (policy,) = [each for each in of_kind(values, "NetworkPolicy") if each["metadata"]["name"].endswith("-redis")]
    (rule,) = policy["spec"]["ingress"]
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert [peer["podSelector"]["matchLabels"].items() <= labels.items() for peer in rule["from"]] == [True]
    assert (
        policy["spec"]["podSelector"]["matchLabels"].items() <= redis["spec"]["template"]["metadata"]["labels"].items()
    )
    # One that exists is used, and none is made.
    own = {"name": "mine", "key": "redis"}
    values = merged(values, {"redis": {"passwordSecret": own}})
    assert not of_kind(values, "Secret")
    assert container_of(values, "StatefulSet")["env"][0]["valueFrom"]["secretKeyRef"] == own


def test_the_schema_accepts_the_servers_own_defaults() -> None:
    defaults = make_config({"sources": {"main": {"uri": "mongodb://db"}}})
    given = defaults.model_dump(mode="json", exclude=set(config_schema.OF_THE_CHART), exclude_none=True)
    assert {"limits", "wide", "log"} <= set(given)
    del given["limits"]["drain_s"]
    values = merged(LEAST, {"config": given})
    config = yaml.safe_load(configuration(values))
    assert merged(config, given) == config


@pytest.mark.parametrize("name", sorted(config_schema.OF_THE_CHART))
def test_what_the_chart_sets_is_refused_in_words(name: str) -> None:
    with pytest.raises(HelmError, match=rf"config\.{name}: the chart sets this itself"):
        render(merged(LEAST, {"config": {name: {"any": 1}}}))


def test_variables_do_not_pass_by_the_chart() -> None:
    """Those of what the chart renders in the configuration, of what it reads from `config`, and of JSON for a part."""
    values = LEAST
    for more in ("several sources", "secrets for everything", "small"):
        values = merged(values, MATRIX[more])
    values = merged(values, {"service": {"mtlsPort": 7120}, "operator": {"keyHashes": [HASH]}})
    values = merged(values, {"config": {"limits": {"drain_delay_s": 5}}})
    names = {"FEEDMUX_" + "__".join(path).upper() for path, _ in nested(yaml.safe_load(configuration(values)))}
    assert {"FEEDMUX_LIMITS__DRAIN_S", "FEEDMUX_LISTEN__DATA_MTLS", "FEEDMUX_SOURCES__MAIN__ID"} <= names
    for name in (*sorted(names), "FEEDMUX_REDIS__URL", "FEEDMUX_REDIS__PASSWORD", "feedmux_limits__drain_s"):
        with pytest.raises(HelmError, match=f"env: {name}: the chart sets this itself; use "):
            render(merged(LEAST, {"env": [{"name": name, "value": "1"}]}))
    others = ["FEEDMUX_REDIS__LEASE_S", "FEEDMUX_SOURCES__MAIN__HISTORY_READS", "FEEDMUX_LIMITS__RING_BYTES"]
    render(merged(LEAST, {"env": [{"name": name, "value": "1"} for name in others]}))


def test_the_memory_limit_is_what_a_server_may_use_and_a_quarter() -> None:
    """By the defaults of the server itself: docs/operations.md, Sizing."""
    limits = make_config({"sources": {"main": {"uri": "mongodb://db"}}}).limits
    needed = limits.memory_bytes + limits.retained_bytes + 60_000 * limits.sessions + 20_000 * limits.connections
    needed += 300_000_000 + 112_000_000
    assert container_of(LEAST)["resources"]["limits"]["memory"] == "3Gi"
    assert 1.25 * needed <= 3 << 30
    render(merged(LEAST, {"resources": {"limits": {"memory": needed}}}))
    with pytest.raises(HelmError, match="is less than the servers may use"):
        render(merged(LEAST, {"resources": {"limits": {"memory": needed - 1}}}))


@pytest.mark.parametrize(
    ("limit", "most"), [("256Mi", "161061273"), ("1G", "600000000"), ("1.5Gi", "966367641"), (1 << 30, "644245094")]
)
def test_the_charts_own_redis_is_full_before_it_is_killed(limit: str | int, most: str) -> None:
    values = {"redis": {"bundled": {"resources": {"limits": {"memory": limit}}}}}
    container = container_of(merged(merged(LEAST, MATRIX["trial"]), values), "StatefulSet")
    given = dict(pairwise(container["args"]))
    assert (given["--maxmemory"], given["--maxmemory-policy"]) == (most, "noeviction")


@pytest.mark.parametrize(
    ("image", "program"),
    [("valkey/valkey:9.0.1-alpine", "valkey"), ("registry/valkey-mirror/redis:8", "redis"), ("my-valkey", "valkey")],
)
def test_the_charts_own_redis_may_be_valkey(image: str, program: str) -> None:
    values = merged(merged(LEAST, MATRIX["trial"]), {"redis": {"bundled": {"image": image}}})
    container = container_of(values, "StatefulSet")
    assert (container["image"], container["args"][0]) == (image, f"{program}-server")
    assert f"{program}-cli ping" in container["readinessProbe"]["exec"]["command"][-1]


def test_images_are_pinned_to_a_version() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert re.fullmatch(r"redis:\d+\.\d+\.\d+-alpine", values["redis"]["bundled"]["image"])


def test_alerts_and_dashboard_come_with_it() -> None:
    values = merged(LEAST, MATRIX["a large service"])
    (rule,) = of_kind(values, "PrometheusRule")
    alerts = [each for group in rule["spec"]["groups"] for each in group["rules"]]
    assert len(alerts) > 5
    link = "https://github.com/feedmux/feedmux/blob/main/docs/runbook.md#"
    assert all(each["annotations"]["runbook_url"].startswith(link) for each in alerts)
    (dashboard,) = [each for each in of_kind(values, "ConfigMap") if each["metadata"]["name"].endswith("-dashboard")]
    assert json.loads(dashboard["data"]["feedmux.json"])["panels"]
    (monitor,) = of_kind(values, "ServiceMonitor")
    services = [
        each
        for each in of_kind(values, "Service")
        if monitor["spec"]["selector"]["matchLabels"].items() <= each["metadata"]["labels"].items()
    ]
    assert [each["metadata"]["name"] for each in services] == ["feeds-headless"]
    assert monitor["spec"]["endpoints"][0]["port"] in {port["name"] for port in services[0]["spec"]["ports"]}


@pytest.mark.parametrize("case", MATRIX)
def test_the_notes_say_how_to_connect(case: str) -> None:
    values = merged(LEAST, MATRIX[case])
    (notes,) = [text for path, text in render(values).items() if path.endswith("NOTES.txt")]
    assert "port-forward" in notes
    has_tls = bool(values.get("tls", {}).get("existingSecret")) or "certManager" in values.get("tls", {})
    assert ("--tls" in notes) == has_tls == ("in the clear" not in notes)
    assert ("through the gateway to feeds.example.com" in notes) == ("grpcRoute" in values)
    assert ("through the Ingress controller to feeds.example.com" in notes) == ("ingress" in values)


def test_every_value_has_a_row() -> None:
    text = (CHART / "values.yaml").read_text()
    rows = {row.path: row for row in values_table.rows(text)}

    def leaves(values: Values, path: str = "") -> Iterator[str]:
        for name, value in values.items():
            here = f"{path}.{name}".lstrip(".")
            if isinstance(value, dict) and value and here not in rows:
                yield from leaves(value, here)
            else:
                yield here

    assert set(leaves(yaml.safe_load(text))) <= set(rows)
    assert rows["drain.seconds"].default == "10"
    assert rows["sources.NAME.uriSecret"].default == ""
    assert rows["sources.NAME.id"].default == '""'
    assert all(row.description.endswith(".") for row in rows.values())


def open_objects(schema: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Where a schema names what an object may have, and accepts what is misspelt."""
    if isinstance(schema, list):
        schema = dict(enumerate(schema))
    if isinstance(schema, dict):
        if "properties" in schema and schema.get("additionalProperties") is not False:
            yield path
        for name, inner in schema.items():
            if name not in ("if", "then"):
                yield from open_objects(inner, path if name == "properties" else (*path, str(name)))


def test_every_value_is_described_and_in_the_schema() -> None:
    text = (CHART / "values.yaml").read_text()
    values, schema = yaml.safe_load(text), json.loads((CHART / "values.schema.json").read_text())

    def check(values: Values, schema: Values, path: str) -> None:
        known = set(schema["properties"]) - ({"global", "enabled"} if path == "values" else set())
        assert known == set(values), path
        for name, value in values.items():
            each = schema["properties"][name]
            if isinstance(value, dict) and value and "properties" in each and not leaf(value):
                check(value, each, f"{path}.{name}")

    def leaf(value: Values) -> bool:
        """A value that stands on one line, with one comment for all of it."""
        return set(value) <= {"name", "key", "requests", "limits"}

    check(values, schema, "values")
    assert list(open_objects(schema)) == [("global",)]
    # Each line with a value of its own has a comment before it; sections speak through what is in them.
    lines = text.splitlines()
    bare = [
        line.strip()
        for before, line in pairwise(lines)
        if re.match(r"\s*[a-zA-Z]+: \S", line)
        and not before.lstrip().startswith("#")
        and line.strip().partition(":")[0] not in ("requests", "limits")
    ]
    assert bare == []
