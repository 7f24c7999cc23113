"""No backtracking pattern and no decoder of the server meets foreign text or bytes unnoticed.

On the event loop, what tenants, documents and strangers send is processed in time that grows with its length, and the
length is bounded before. A regular expression can take time that grows with the square of the length, or worse. A
decoder of BSON, JSON, protobuf or certificates builds an object for each value, and raises exceptions of its own, as on
values that Python has no type for: in a task that serves many tenants, that would end the task of all. So each module
that uses one is listed here, with what it reads and what bounds it. A new entry needs such a bound; string methods and
`core/events/bson_walk.py` need no entry.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

SERVER = Path(__file__).parents[2] / "server" / "feedmux_server"
PATTERNS = {
    "config/sections.py": "values of the operator's configuration",
    "yaml_with_lines.py": "PyYAML's messages about files of the operator",
    "core/feeds/query_json.py": "values of pipelines, each by a pattern that matches in linear time; pipelines of more"
    " than 512 bytes are read in a separate process",
    "core/feeds/name_patterns.py": "pipelines that were checked, by patterns that match in linear time",
    "core/grants/grant.py": "names that tenants send, by patterns with atomic groups: they do not backtrack",
}
DECODERS = {
    "core/grants/match.py": "a grant's condition, from the tenants file",
    "core/grants/stages.py": "the stages of grants, which the server has made",
    "core/feeds/former_json.py": "pipelines, for the doctor",
    "core/feeds/pipeline_bounds/stages.py": "pipelines, in a separate process",
    "core/feeds/query_json.py": "pipelines; those of more than 512 bytes are read in a separate process",
    "core/feeds/snapshot_stages.py": "an `_id` that MongoDB sent, without decoding what is in it",
    "core/feeds/simple_filter.py": "pipelines of up to 64 KiB; an exception only means that the filter is not simple",
    "core/feeds/stream_key.py": "pipelines that were checked, without decoding what is in their stages",
    "core/positions/resume_token.py": "resume tokens, each a document of one or two fields",
    "source/cursor.py": "MongoDB's replies without their events, and with a replacement for what is not UTF-8",
    "source/deployment.py": "collations and comments that were checked, without decoding what is in them",
    "source/letters.py": "keys of events, of up to 1 KiB, without decoding what is in them",
    "source/namespaces.py": "drops and renames, which hold names and no documents, and a replacement for what is not"
    " UTF-8",
    "source/stream_request.py": "resume tokens, without decoding what is in them",
    "source/token_check.py": "resume tokens, without decoding what is in them",
    "doctor.py": "certificates of the operator, in a process of its own",
    "rpc/convert.py": "requests whose length and shape were checked, and definitions that the server has stored",
    "rpc/health_service.py": "requests without credentials, of up to 1 KiB",
    "rpc/subscriptions.py": "definitions that the server has stored",
    "rpc/tls.py": "certificates of clients, which gRPC has verified; an exception rejects the call",
    "tenants/jwt_verifier.py": "tokens, which are metadata of up to 12 KiB; an exception rejects the call",
    "tenants/jwks.py": "the keys of an issuer that the operator trusts, of a bounded size",
    "workers/check_worker.py": "pipelines, in a separate process",
    "workers/request_checks.py": "answers of the server's own process; pipelines of up to 512 bytes",
}
MATCHING = {"compile", "match", "search", "fullmatch", "findall", "finditer", "split", "sub", "subn"}
DECODING = {
    ("bson", "decode"),
    ("bson", "decode_all"),
    ("bson", "decode_iter"),
    ("json", "loads"),
    ("json_util", "loads"),
    ("jwt", "decode"),
    ("jwt", "get_unverified_header"),
    ("", "RawBSONDocument"),
}
DECODING_METHODS = {"FromString", "ParseFromString", "MergeFromString", "load_pem_x509_certificate"}


def calls(path: Path) -> Iterator[tuple[str, str]]:
    """The calls `module.name(…)` of a file, and `("", name)` for `name(…)`."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            match node.func:
                case ast.Attribute(value=ast.Name(id=module), attr=name):
                    yield module, name
                case ast.Name(id=name):
                    yield "", name


def users(uses: set[tuple[str, str]]) -> set[str]:
    return {
        path.relative_to(SERVER).as_posix()
        for path in SERVER.rglob("*.py")
        if path.parent.name != "cli" and uses & set(calls(path))
    }


def test_every_pattern_is_listed() -> None:
    assert users({("re", name) for name in MATCHING}) == set(PATTERNS)


def test_every_decoder_is_listed() -> None:
    by_method = {
        path.relative_to(SERVER).as_posix()
        for path in SERVER.rglob("*.py")
        if path.parent.name != "cli"
        and any(
            isinstance(node, ast.Attribute) and node.attr in DECODING_METHODS
            for node in ast.walk(ast.parse(path.read_text()))
        )
    }
    assert users(DECODING) | by_method == set(DECODERS)


def test_nothing_is_imported_past_the_lists() -> None:
    """The lists find calls by the names of the modules."""
    for path in SERVER.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                names = {(node.module or "", each.name) for each in node.names}
                assert not {("re", name) for name in MATCHING} & names, path
                assert not {("bson", "decode"), ("bson", "decode_all"), ("bson.json_util", "loads")} & names, path
                assert ("json", "loads") not in names, path
            if isinstance(node, ast.Import):
                renamed = [each for each in node.names if each.name in ("re", "bson") and each.asname]
                assert not renamed, path
