"""Real servers for `feedmux dev`, the demo, the benchmarks and the tests: installed by pip, ended with the parent.

`mongod` and `redis_server` describe the servers, `process` is the only way to start a child, and `workdir` holds the
children's files. Nothing here serves users' data: every instance lives in a temporary folder.
"""

from feedmux_embedded.mongod import Mongod, MongodOptions, ReplicaSet
from feedmux_embedded.process import EmbeddedError, Process
from feedmux_embedded.redis_server import RedisServer

__all__ = ["EmbeddedError", "Mongod", "MongodOptions", "Process", "RedisServer", "ReplicaSet"]
