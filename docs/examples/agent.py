"""An agent that works in a session: each turn sends what is new, and only that is computed.

    python docs/examples/agent.py

What the default model says is too simple to act on; the last column is the point.
"""

from secrets import token_hex

from ingest.client import Client

SYSTEM = "You are a patient teacher of physics. You answer in one short sentence."
QUESTIONS = ("What is gravity?", "Who found it?", "And when?")

client = Client()
session_id = f"agent-{token_hex(4)}"
messages = [{"role": "system", "content": SYSTEM}]
for question in QUESTIONS:
    messages.append({"role": "user", "content": question})
    request_id = client.enqueue(
        messages=messages, session_id=session_id, sla="realtime", max_tokens=24, temperature=0
    )
    end = client.result(request_id, timeout_s=120)
    if end.status != "finished" or end.usage is None:
        raise SystemExit(f"{request_id} {end.status}: {end.error}")
    print(f"{question} {end.text.strip()}")
    print(f"    prompt: {end.usage.prompt_tokens} tokens, {end.usage.cached_tokens} not computed")
    messages = []  # the node has the rest
