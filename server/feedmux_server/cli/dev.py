"""`feedmux dev`: runs MongoDB, Redis and the server until Ctrl-C; for trying things out, not for production."""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import json
import os
import shlex
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from feedmux.cli.connection import add_json_option
from feedmux.cli.failure import CliError
from feedmux.cli.terminal import Painted, Terminal, print_json, say
from feedmux_server.cli.keys import new_key

if TYPE_CHECKING:
    from feedmux_server.app import Running
    from feedmux_server.config.server import Config

TENANT = "dev"
_PORT = 7117
_INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class _Home:
    """What must stay the same when a data folder is reused: keys, and the ports in the replica set's configuration."""

    key: str
    key_hash: str
    operator_key: str
    operator_hash: str
    mongodb_port: int
    redis_port: int


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--data-dir", metavar="DIR", type=Path, help="keep the data and the keys in this folder for the next run"
    )
    parser.add_argument(
        "--workload", action="store_true", help="continuously insert, update, replace and delete in shop.orders"
    )
    parser.add_argument(
        "--rate", metavar="N", type=_rate, default=5.0, help="changes per second of the workload (default 5)"
    )
    parser.add_argument(
        "--port", metavar="N", type=_port, default=_PORT,
        help=f"of the data; operator and health are the next two ({_PORT}); 0 picks free ones",
    )  # fmt: skip
    parser.add_argument(
        "--log-level", choices=("debug", "info", "warning", "error"), default="warning", help="log level of the server"
    )
    add_json_option(parser)


def run(args: argparse.Namespace) -> int:
    import uvloop

    from feedmux_embedded import EmbeddedError
    from feedmux_server.app import CannotStart
    from feedmux_server.config.errors import ConfigError
    from feedmux_server.rpc.server import PortInUse
    from feedmux_server.telemetry import log

    log.configure(args.log_level, "auto")
    try:
        unwritten = uvloop.run(_dev(args))
    except asyncio.CancelledError:
        return _INTERRUPTED
    except (EmbeddedError, CannotStart, ConfigError) as error:
        if isinstance(error.__cause__, PortInUse):
            raise CliError(
                f"{error.__cause__.address} is in use, perhaps by another `feedmux dev`",
                "Stop that program, or take other ports: --port 0 picks free ones.",
            ) from None
        raise CliError(str(error)) from None
    if unwritten is not None:
        raise unwritten
    return 0


async def _dev(args: argparse.Namespace) -> OSError | None:
    """Run the server until a signal. Returns the error if standard output cannot say where it is: raised beside the
    tasks of the server, it would be one of a group."""
    from feedmux_embedded import RedisServer, ReplicaSet
    from feedmux_server.app import running
    from feedmux_server.cli.sample_workload import write_sample

    me = asyncio.current_task()
    assert me is not None
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, me.cancel)
    told = Terminal(sys.stderr)
    with _folder(args.data_dir) as folder:
        home = _home(folder)
        async with AsyncExitStack() as stack:
            with told.step("MongoDB, a replica set of one"):
                mongo = ReplicaSet(ports=[home.mongodb_port], data_dir=folder / "mongodb")
                await stack.enter_async_context(mongo)
            with told.step("Redis, with its append-only file"):
                (folder / "redis").mkdir(exist_ok=True)
                redis = RedisServer(port=home.redis_port, config={"dir": str(folder / "redis")})
                await stack.enter_async_context(redis)
                stack.push_async_callback(redis.terminate)
            with told.step("feedmux"):
                config = _config(args.port, home, folder, mongo.uri, redis.url)
                server = await stack.enter_async_context(running(config))
            try:
                _tell(args, home, server, mongo.uri, redis.url)
            except OSError as error:
                return error
            try:
                if args.workload:
                    await write_sample(mongo.uri, args.rate)
                else:
                    await asyncio.Event().wait()
            except asyncio.CancelledError:
                say(file=sys.stderr)
                with told.step("stopping"):
                    await stack.aclose()
                # Ctrl-C is the normal end.
                me.uncancel()
    return None


@contextmanager
def _folder(data_dir: Path | None) -> Iterator[Path]:
    if data_dir is None:
        from feedmux_embedded.workdir import WorkDir

        work = WorkDir("dev")  # the next start removes what a killed one has left
        try:
            yield work.path
        finally:
            work.remove()
        return
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        lock = os.open(data_dir / ".lock", os.O_CREAT | os.O_RDWR, 0o600)
    except OSError as error:
        raise CliError(f"--data-dir {data_dir} cannot be used: {error.strerror}") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield data_dir.resolve()
    except BlockingIOError:
        raise CliError(f"another `feedmux dev` runs on {data_dir}", "Stop it, or choose another folder.") from None
    except OSError as error:
        if error.filename is None:
            raise
        raise CliError(f"{error.filename} cannot be used: {error.strerror}") from None
    finally:
        os.close(lock)


def _home(folder: Path) -> _Home:
    file = folder / "dev.json"
    try:
        return _Home(**json.loads(file.read_text()))
    except FileNotFoundError:
        pass
    except (OSError, ValueError, TypeError):
        raise CliError(f"{file} cannot be read", "Delete the folder to start afresh.") from None
    from feedmux_embedded.ports import free_ports

    key, operator = new_key(), new_key()
    mongodb_port, redis_port = free_ports(2)
    home = _Home(key.key, key.sha256, operator.key, operator.sha256, mongodb_port, redis_port)
    file.touch(0o600)
    file.write_text(json.dumps({name: getattr(home, name) for name in _Home.__slots__}))
    return home


def _config(port: int, home: _Home, folder: Path, mongodb_uri: str, redis_url: str) -> Config:
    from feedmux_server.config.load import make_config

    tenants = folder / "tenants.yaml"
    tenants.write_text(
        json.dumps({"tenants": [{"name": TENANT, "api_key_hashes": [home.key_hash], "pipelines": "any"}]})
    )
    data, operator, health = (f"127.0.0.1:{port + offset if port else 0}" for offset in range(3))
    return make_config(
        {
            "sources": {"main": {"uri": mongodb_uri}},
            "dead_letters": {"source": "main"},
            "redis": {"url": redis_url},
            # The user did not choose this port, so if it is taken the server runs without it (listen.metrics).
            "listen": {"data": data, "operator": operator, "health": health}
            | ({} if port else {"metrics": "127.0.0.1:0"}),
            "tenants_file": str(tenants),
            "operator_key_hashes": [home.operator_hash],
        }
    )


def _tell(args: argparse.Namespace, home: _Home, server: Running, mongodb_uri: str, redis_url: str) -> None:
    ports = server.ports
    metrics = f"http://localhost:{server.metrics_port}/metrics" if server.metrics_port else ""
    endpoint, operator_endpoint = f"localhost:{ports.data}", f"localhost:{ports.operator}"
    if args.json:
        print_json(
            {
                "endpoint": endpoint,
                "operator_endpoint": operator_endpoint,
                "api_key": home.key,
                "operator_key": home.operator_key,
                "mongodb": mongodb_uri,
                "redis": redis_url,
                "metrics": metrics,
            }
        )
        sys.stdout.flush()
        return
    terminal = Terminal(sys.stdout)
    feedmux = _command()
    at = "" if ports.data == _PORT else f" FEEDMUX_ENDPOINT={endpoint}"
    operator_at = "" if ports.operator == _PORT + 1 else f" --operator-endpoint {operator_endpoint}"

    def title(text: str) -> str:
        return terminal.paint(text, "bold")

    def fact(name: str, value: str) -> str:
        return f"  {terminal.paint(name.ljust(13), 'dim')} {value}"

    request = '{"feed": {"source": "main", "database": "shop"}, "format": "FORMAT_EXTENDED_JSON_RELAXED"}'
    lines = [
        "",
        title("feedmux is running."),
        fact("endpoint", endpoint),
        fact("API key", home.key),
        fact("operator", operator_endpoint),
        fact("operator key", home.operator_key),
        fact("MongoDB", mongodb_uri),
        fact("Redis", redis_url),
        *([fact("metrics", metrics)] if metrics else []),
        "",
        title("In another terminal:"),
        f"  export FEEDMUX_API_KEY={home.key}{at}",
        f"  {feedmux} watch shop.orders",
        f"  {feedmux} streams --operator-key {home.operator_key}{operator_at}",
        "",
        title("In Python:"),
        "  import feedmux",
        f'  client = feedmux.Client("{endpoint}", api_key="{home.key}")',
        '  for change in client["shop"]["orders"].watch():',
        "      print(change)",
        "",
        title("In any language, or with buf:"),
        "  buf curl --protocol grpc --http2-prior-knowledge \\",
        f"    -H 'authorization: Bearer {home.key}' \\",
        f"    -d '{request}' \\",
        f"    http://{endpoint}/feedmux.v1.ChangeFeed/Watch",
        "",
        f"Writing {args.rate:g} changes per second to shop.orders."
        if args.workload
        else "Nothing writes yet: use --workload, or connect your own program to the MongoDB above.",
        "Press Ctrl-C to stop everything.",
    ]
    say(Painted("\n".join(lines)), flush=True)


def _command() -> str:
    """Return the command with which the user can run feedmux in another terminal."""
    script = Path(sys.argv[0])
    found = shutil.which("feedmux")
    if found is not None and Path(found).resolve() == script.resolve():
        return "feedmux"
    if script.name == "feedmux":
        try:
            return shlex.quote(str(script.resolve().relative_to(Path.cwd())))
        except ValueError:
            return shlex.quote(str(script.resolve()))
    return f"{shlex.quote(sys.executable)} -m feedmux.cli"


def _rate(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number <= 20_000:
        raise argparse.ArgumentTypeError("the rate is more than 0 and at most 20000 changes per second")
    return number


def _port(text: str) -> int:
    number = int(text) if text.isdecimal() else -1
    if not 0 <= number <= 65_533:
        raise argparse.ArgumentTypeError("a port is 0 to 65533 (the next two are used as well)")
    return number
