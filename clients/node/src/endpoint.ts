/** Whether the address of a server is one of this machine. */

import { BlockList, isIPv4, isIPv6 } from "node:net";

/** HOST:PORT, after a scheme of gRPC's and an authority. */
const HOST = /^(?:[a-z][a-z0-9+.-]*:(?:\/\/[^/]*\/)?)?(?:\[([^\]]+)\]|([^:/,[\]]+)):\d+$/i;
const LOCAL_NAMES = new Set(["localhost", "ip6-localhost"]);

const loopback = new BlockList();
loopback.addSubnet("127.0.0.0", 8, "ipv4");
loopback.addAddress("::1", "ipv6");

/**
 * Whether this is the address of a server on this machine, which no proxy knows. Containers often get http_proxy from
 * the engine that runs them.
 */
export function isLoopback(address: string): boolean {
  const found = HOST.exec(address);
  const host = found?.[1] ?? found?.[2] ?? "";
  if (isIPv4(host) || isIPv6(host)) {
    return loopback.check(host, isIPv4(host) ? "ipv4" : "ipv6");
  }
  return LOCAL_NAMES.has(host.toLowerCase().replace(/\.$/, ""));
}
