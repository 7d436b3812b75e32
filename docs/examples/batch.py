"""A file of questions as one batch: answers are read while it runs, and when it is done.

    python docs/examples/batch.py

It runs as class batch, behind whatever is urgent, and goes on after a restart of the node.
"""

import json
import os
import time

from openai import OpenAI

base_url = f"http://127.0.0.1:{os.environ.get('LOCKSTEP_PORT', 8000)}/v1"
client = OpenAI(base_url=base_url, api_key=os.environ.get("LOCKSTEP_API_KEY", "none"))
endpoint = "/v1/chat/completions"
lines = [
    {
        "custom_id": city,
        "method": "POST",
        "url": endpoint,
        "body": {
            "messages": [{"role": "user", "content": f"Name one sight of {city}."}],
            "max_tokens": 24,
            "temperature": 0,
        },
    }
    for city in ("Paris", "Rome", "Athens")
]
raw = "\n".join(json.dumps(line) for line in lines).encode()
file = client.files.create(file=("questions.jsonl", raw), purpose="batch")
batch = client.batches.create(input_file_id=file.id, endpoint=endpoint, completion_window="24h")
while batch.status not in ("completed", "failed", "expired", "cancelled"):
    time.sleep(1)
    batch = client.batches.retrieve(batch.id)
    print(f"{batch.status}: {batch.request_counts.completed} of {batch.request_counts.total}")
for row in client.files.content(batch.output_file_id).text.splitlines():
    answer = json.loads(row)
    said = answer["response"]["body"]["choices"][0]["message"]["content"]
    print(answer["custom_id"], " ".join(said.split()))
