"""Which MongoDB can be a source. tests/cli/test_doctor.py tests the other checks on real servers."""

from pathlib import Path
from typing import Any

import pytest

from feedmux_server.core.check_result import Level
from feedmux_server.source.checks import judge_hello, tls_files, unsuitable_option
from tests.tables import over

SET: dict[str, Any] = {"setName": "rs0", "hosts": ["a", "b"]}


def version(*numbers: int) -> dict[str, Any]:
    return {"version": ".".join(map(str, numbers)), "versionArray": [*numbers, 0]}


@over(
    ("hello", "build", "levels"),
    [
        (SET, version(6, 0, 5), [Level.OK, Level.OK]),
        (SET, version(8, 2, 0), [Level.OK, Level.OK]),
        (SET, version(5, 0, 30), [Level.OK, Level.FAILED]),
        (SET, version(9, 0, 1), [Level.OK, Level.WARNING]),
        (SET, version(10, 1, 0), [Level.OK, Level.WARNING]),
        ({}, version(6, 0, 5), [Level.FAILED, Level.OK]),
        ({"isreplicaset": True, "info": "…"}, version(6, 0, 5), [Level.FAILED, Level.OK]),
        ({"msg": "isdbgrid"}, version(7, 0, 0), [Level.WARNING, Level.OK]),
        ({"msg": "isdbgrid", "serviceId": 1}, version(7, 0, 0), [Level.FAILED, Level.OK]),
        (SET | {"arbiterOnly": True}, version(7, 0, 0), [Level.FAILED, Level.OK]),
        (SET | {"secondary": True, "hidden": True}, version(7, 0, 0), [Level.WARNING, Level.OK]),
        (SET | {"secondary": True, "secondaryDelaySecs": 3600}, version(7, 0, 0), [Level.WARNING, Level.OK]),
        (SET | {"hosts": None}, version(7, 0, 0), [Level.OK, Level.OK]),
        (SET, {"version": "8.2.0-rc1"}, [Level.OK, Level.OK]),
        (SET, {"version": "6.0.27-21", "psmdbVersion": "6.0.27-21"}, [Level.OK, Level.OK]),
        (SET, {"version": "5.0.30-26"}, [Level.OK, Level.FAILED]),
        (SET, {"version": "9.0.1-2"}, [Level.OK, Level.WARNING]),
        (SET, {"version": "4"}, [Level.OK, Level.FAILED]),
        (SET, {"version": "latest"}, [Level.OK, Level.WARNING]),
        (SET, {"version": None}, [Level.OK, Level.WARNING]),
        (SET, {}, [Level.OK, Level.WARNING]),
    ],
)
def test_deployments_and_versions(hello: dict[str, Any], build: dict[str, Any], levels: list[Level]) -> None:
    found = judge_hello("main", hello, build)
    assert [each.level for each in found] == levels
    assert [each.check for each in found] == ["main.deployment", "main.version"]
    assert all(bool(each.advice) == (each.level is not Level.OK) for each in found)


@pytest.mark.parametrize(
    ("hello", "build", "service", "works"),
    [
        (
            {"setName": "rs0", "hosts": ["db.c0.eu-west-1.docdb.amazonaws.com:27017"]},
            {},
            "Amazon DocumentDB",
            "resumeAfter",
        ),
        (
            {"msg": "isdbgrid", "me": "x.eu-west-1.docdb-elastic.amazonaws.com:27017"},
            {},
            "Amazon DocumentDB",
            "$redact",
        ),
        ({"setName": "globaldb", "primary": "Shop.mongo.cosmos.azure.com:10255"}, {}, "Azure Cosmos DB", "one shard"),
        ({"setName": "globaldb", "me": "shop.mongo.cosmos.azure.us:10255"}, {}, "Azure Cosmos DB", "one shard"),
        (
            {"msg": "isdbgrid", "internal": {"documentdb_versions": ["0.117.0"]}},
            {},
            "Azure DocumentDB",
            "no change streams",
        ),
        ({}, {"ferretdbVersion": "v1.24.0"}, "FerretDB", "no change streams"),
        ({"msg": "isdbgrid"}, {"dataLake": {"version": "v2025"}}, "Atlas Data Federation", "name the cluster itself"),
        ({"me": "x.node.docdb.amazonaws.com.cn:27017", "setName": "rs0"}, {}, "Amazon DocumentDB", "resumeAfter"),
    ],
)
def test_what_only_speaks_the_protocol_of_mongodb(
    hello: dict[str, Any], build: dict[str, Any], service: str, works: str
) -> None:
    [found] = judge_hello("main", hello, version(7, 0, 0) | build)
    assert found.level is Level.FAILED
    assert f"is {service}" in found.says
    assert works in found.advice


def test_faulty_releases() -> None:
    [_, found] = judge_hello("main", SET, version(9, 0, 1))
    assert "SERVER-134970" in found.says
    [_, found] = judge_hello("main", SET, version(9, 0, 2))
    assert "newer than this version" in found.says


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ("", ""),
        ("?replicaSet=rs0&readPreference=secondary&tls=true", ""),
        ("?readConcernLevel=majority&loadBalanced=false", ""),
        ("?readConcernLevel=local", "readConcernLevel"),
        ("?tls=true&READCONCERNLEVEL=snapshot", "READCONCERNLEVEL"),
        ("?tls=true;readConcernLevel=available", "readConcernLevel"),
        ("?timeoutMS=0&retryReads=true", "timeoutMS"),
        ("?loadBalanced=true", "loadBalanced"),
    ],
)
@pytest.mark.parametrize("scheme", ["mongodb://u:secret%3F@h1,h2:27018/", "mongodb+srv://u:p@h.example.com/"])
def test_options_of_a_uri_that_do_not_suit_change_streams(scheme: str, options: str, name: str) -> None:
    found = unsuitable_option(scheme + options)
    assert found.startswith(f"the option {name} ") if name else not found


def test_the_files_of_a_uri() -> None:
    uri = "mongodb://u:p@a,b/?tls=true;tlsCAFile=%2Fetc%2Fca.pem&TLSCERTIFICATEKEYFILE=/etc/key+1.pem&tlsCRLFile="
    assert tls_files(uri) == [Path("/etc/ca.pem"), Path("/etc/key 1.pem")]
    assert tls_files("mongodb://a/?replicaSet=rs0") == tls_files("") == []
