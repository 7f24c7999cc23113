"""Write what the chart's values.schema.json has from others: the parts `config` and `tenants.inline` from the server's
model, and fields of Kubernetes' own types: `python -m tests.helm.config_schema`. With `--check`, compare instead, and
exit with 1 on a difference.
"""

import json
import sys
from pathlib import Path
from typing import Any, Final

import kubernetes_validate

from feedmux_server.config.server import Config
from feedmux_server.config.tenants_file import Tenant
from tests.written import Written

COMMAND: Final = "python -m tests.helm.config_schema"
SCHEMA: Final = Path(__file__).parents[2] / "helm" / "feedmux" / "values.schema.json"
OF_THE_CHART: Final = frozenset(
    {"sources", "redis", "positions", "listen", "tls", "tenants_file", "operator_key_hashes"},
)
"""What the chart sets itself. The schema accepts it with any content, so that the template names the value to use."""
_LEFT_OUT: Final = ("title", "description", "default", "format", "required")
"""An option that is required may come from the environment. The server describes its options itself."""

OF_KUBERNETES: Final = {
    ("env", "items"): "EnvVar",
    ("envFrom", "items"): "EnvFromSource",
    ("extraVolumes", "items"): "Volume",
    ("extraVolumes", "items", "properties", "configMap"): "ConfigMapVolumeSource",
    ("extraVolumes", "items", "properties", "secret"): "SecretVolumeSource",
    ("extraVolumeMounts", "items"): "VolumeMount",
    ("initContainers", "items"): "Container",
    ("topologySpreadConstraints", "items"): "TopologySpreadConstraint",
    ("securityContext", "properties", "pod"): "PodSecurityContext",
    ("securityContext", "properties", "container"): "SecurityContext",
}
"""Where the schema has the fields of a type of Kubernetes, so that Helm names one that is misspelt."""
_KUBERNETES: Final = "v1.37.0"

Schema = dict[str, Any]


def config_schema() -> Schema:
    """The JSON schema of the value `config`."""
    whole = Config.model_json_schema()
    properties = {
        name: {} if name in OF_THE_CHART else _plain(schema, whole["$defs"])
        for name, schema in whole["properties"].items()
    }
    return {"type": "object", "additionalProperties": False, "properties": properties}


def tenant_schema() -> Schema:
    """The JSON schema of an item of the value `tenants.inline`."""
    whole = Tenant.model_json_schema()
    definitions = whole.pop("$defs")
    return _plain(whole, definitions) | {"required": whole["required"]}


def fields_of(kind: str) -> dict[str, Schema]:
    """The fields of a type of Kubernetes' core, with their types; not what is in them."""
    schemas = Path(kubernetes_validate.__file__).parent / "kubernetes-json-schema" / f"{_KUBERNETES}-local-strict"
    fields = json.loads((schemas / f"{kind.lower()}-v1.json").read_text("utf-8"))["properties"]
    types = {name: fields[name].get("type", "object") for name in sorted(fields)}
    return {name: {"type": found if isinstance(found, str) else found[0]} for name, found in types.items()}


def _plain(schema: Schema, definitions: dict[str, Schema]) -> Schema:
    """What Helm checks of a schema: types and bounds, without references. Null is how a value is unset."""
    if "$ref" in schema:
        own = {name: value for name, value in schema.items() if name != "$ref"}
        return _plain(definitions[schema["$ref"].rpartition("/")[2]] | own, definitions)
    choices = [each for each in schema.get("anyOf", ()) if each != {"type": "null"}]
    if len(choices) == 1:
        return _plain({name: value for name, value in schema.items() if name != "anyOf"} | choices[0], definitions)
    plain: Schema = {}
    for name, value in schema.items():
        if name == "properties":
            plain[name] = {each: _plain(inner, definitions) for each, inner in value.items()}
        elif name == "items":
            plain[name] = _plain(value, definitions)
        elif name == "anyOf":
            plain[name] = [_plain(each, definitions) for each in choices]
        elif name not in _LEFT_OUT:
            plain[name] = value
    return plain


def text() -> str:
    """The whole file, with the present generated parts."""
    schema: Schema = json.loads(SCHEMA.read_text("utf-8"))
    schema["properties"]["config"] = config_schema()
    schema["properties"]["tenants"]["properties"]["inline"]["items"] = tenant_schema()
    for path, kind in OF_KUBERNETES.items():
        place: Schema = schema["properties"]
        for name in path:
            place = place[name]
        place["properties"] = fields_of(kind) | place.get("properties", {})
        place["additionalProperties"] = False
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


WRITTEN = Written(COMMAND, {SCHEMA: text})


if __name__ == "__main__":
    sys.exit(WRITTEN.main(sys.argv[1:]))
