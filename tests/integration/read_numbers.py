"""`python -m tests.integration.read_numbers PORT SUBSCRIPTION COUNT`: reads and acknowledges COUNT events with whatever
client Python finds. Prints where that client is, and then `fullDocument.n` of each event."""

import sys

import feedmux

if __name__ == "__main__":
    port, name, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    print(feedmux.__file__)
    with feedmux.Client(f"127.0.0.1:{port}", source="main") as client, client.subscription(name).open() as session:
        for event in session:
            print(event.document["fullDocument"]["n"])
            session.ack(event)
            count -= 1
            if not count:
                break
