"""An API server of Kubernetes on loopback, with etcd and without nodes or controllers, as Kubernetes' own envtest runs
it: objects are checked, admitted and stored, and nothing comes of them."""

import json
import ssl
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from feedmux_embedded.ports import free_ports
from feedmux_embedded.process import Process

BINARIES: Final = Path(sys.prefix, "kube-apiserver")
"""`./run test --all` builds them, by `apiserver/go.mod`. The name of etcd's is `server`."""
_TOKEN: Final = "operator"
_STARTED_S: Final = 120

Object = dict[str, Any]


class Rejected(Exception):
    """The API server's answer is an error, or a warning."""


class ApiServer:
    """The API, for one who may do everything."""

    def __init__(self, port: int, process: Process) -> None:
        self.url = f"https://127.0.0.1:{port}"
        self._process = process
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        https = urllib.request.HTTPSHandler(context=context)
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), https)
        self._resources_of = cache(self._discover)

    @property
    def kubeconfig(self) -> str:
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "it", "cluster": {"server": self.url, "insecure-skip-tls-verify": True}}],
            "users": [{"name": "operator", "user": {"token": _TOKEN}}],
            "contexts": [{"name": "it", "context": {"cluster": "it", "user": "operator"}}],
            "current-context": "it",
        }
        return json.dumps(config)

    def call(self, method: str, path: str, body: Object | None = None, content: str = "application/json") -> Object:
        """Raises Rejected, also for what is accepted with a warning."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {_TOKEN}", "Content-Type": content}
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        try:
            with self._opener.open(request, timeout=60) as answer:
                if warnings := answer.headers.get_all("Warning"):
                    raise Rejected(f"{method} {path}: {warnings}")
                found: Object = json.loads(answer.read())
        except urllib.error.HTTPError as error:
            raise Rejected(f"{method} {path}: {error.read().decode()}") from error
        return found

    def apply(self, made: Object, namespace: str, *, dry_run: bool = False) -> Object:
        """Apply an object on the server's side, as Helm and `kubectl apply --server-side` do. Raises Rejected."""
        query = "?fieldManager=helm&force=true&fieldValidation=Strict" + ("&dryRun=All" if dry_run else "")
        return self.call("PATCH", self._path(made, namespace) + query, made, "application/apply-patch+yaml")

    def create(self, made: Object, namespace: str) -> Object:
        path = self._path(made, namespace).rpartition("/")[0]
        return self.call("POST", f"{path}?fieldValidation=Strict", made)

    def delete(self, made: Object, namespace: str) -> None:
        self.call("DELETE", f"{self._path(made, namespace)}?gracePeriodSeconds=0&propagationPolicy=Background")

    def define(self, kind: str, api_version: str) -> None:
        """Define a kind that is not Kubernetes' own, with any fields."""
        group, _, version = api_version.partition("/")
        plural = f"{kind.lower()}s"
        schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        names = {"kind": kind, "plural": plural, "singular": kind.lower()}
        served = {"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
        spec = {"group": group, "names": names, "scope": "Namespaced", "versions": [served]}
        metadata: Object = {"name": f"{plural}.{group}"}
        if group.endswith(".k8s.io"):
            metadata["annotations"] = {"api-approved.kubernetes.io": "unapproved, for a test"}
        made = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": metadata}
        self.apply(made | {"spec": spec}, "")
        self.wait_for(f"/apis/{group}/{version}/namespaces/default/{plural}", self._process)

    def wait_for(self, path: str, process: Process) -> None:
        """Wait until there is an answer at `path`. Raises EmbeddedError with the end of the server's log."""
        until_s = time.monotonic() + _STARTED_S
        while True:
            process.check_running()
            try:
                self.call("GET", path)
            except (Rejected, OSError):
                process.check_patience(until_s)
                time.sleep(0.2)
            else:
                return

    def _path(self, made: Object, namespace: str) -> str:
        version = made["apiVersion"]
        root = f"/apis/{version}" if "/" in version else f"/api/{version}"
        plural, is_namespaced = self._resources_of(root)[made["kind"]]
        within = f"/namespaces/{made['metadata'].get('namespace', namespace)}" if is_namespaced else ""
        return f"{root}{within}/{plural}/{made['metadata']['name']}"

    def _discover(self, root: str) -> dict[str, tuple[str, bool]]:
        found = self.call("GET", root)["resources"]
        return {each["kind"]: (each["name"], each["namespaced"]) for each in found if "/" not in each["name"]}


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[ApiServer]:
    """Start both servers; they end with the block."""
    etcd_port, peer_port, port = free_ports(3)
    etcd_url, peer_url = f"http://127.0.0.1:{etcd_port}", f"http://127.0.0.1:{peer_port}"
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    account = folder / "service-accounts.pem"
    account.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    (folder / "tokens.csv").write_text(f"{_TOKEN},operator,1,system:masters\n")
    etcd = Process(
        "etcd",
        [
            BINARIES / "server",
            f"--data-dir={folder / 'etcd'}",
            f"--listen-client-urls={etcd_url}",
            f"--advertise-client-urls={etcd_url}",
            f"--listen-peer-urls={peer_url}",
            "--unsafe-no-fsync",
        ],
        folder / "etcd.log",
    )
    server = Process(
        "kube-apiserver",
        [
            BINARIES / "kube-apiserver",
            f"--etcd-servers={etcd_url}",
            "--bind-address=127.0.0.1",
            "--advertise-address=192.0.2.1",  # it rejects a loopback address, and nobody connects there
            f"--secure-port={port}",
            f"--cert-dir={folder / 'certificates'}",
            f"--token-auth-file={folder / 'tokens.csv'}",
            "--anonymous-auth=false",
            "--authorization-mode=RBAC",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={account}",
            f"--service-account-signing-key-file={account}",
            "--service-cluster-ip-range=10.0.0.0/24,fd00:1::/112",
        ],
        folder / "kube-apiserver.log",
    )
    api = ApiServer(port, server)
    etcd.start()
    try:
        await etcd.wait_until_listening(etcd_port, timeout_s=_STARTED_S)
        server.start()
        api.wait_for("/api/v1/namespaces/default", server)
        yield api
    finally:
        await server.kill9()
        await etcd.kill9()
