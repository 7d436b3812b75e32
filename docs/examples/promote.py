"""Work that waits in class batch until somebody looks at it: then it is promoted, and streams.

    python docs/examples/promote.py

Nothing is computed again when a request changes its class, not even when it changes the processor.
"""

from ingest.client import Client
from workers.wire import TokenEvent

client = Client()
ids = [
    client.enqueue(prompt=f"Chapter {number}:", sla="batch", max_tokens=40, temperature=0)
    for number in (1, 2, 3)
]
wanted = ids[-1]
promoted = None
for event in client.stream(wanted, timeout_s=120):
    if promoted is None:  # somebody opened the page of chapter 3
        promoted = client.promote(wanted, "realtime")
        print(f"{wanted}: {promoted.result}, was {promoted.was}")
    if isinstance(event, TokenEvent):
        print(event.text, end="", flush=True)
print()
for request_id in ids[:-1]:
    print(request_id, client.result(request_id, timeout_s=120).status)
