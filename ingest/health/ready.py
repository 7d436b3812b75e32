"""What is said once when the node takes requests: one line, and a command to try.

`make start` says it; under any other starter the api process does (ingest/__main__.py), at its
first start. Only the standard library: `make start` stays in memory as long as the node.
"""

import http.client
import json
import shlex
from typing import Final

SAID_ELSEWHERE: Final = "LOCKSTEP_READY_IS_SAID"  # in the environment: whoever started us says it


def reachable(host: str) -> str:
    """The address to try from this machine when we listen on `host`."""
    return "127.0.0.1" if host in ("0.0.0.0", "::") else host


def needs_key(host: str, port: int) -> bool:
    """Whether the door lets nobody in without an API key."""
    return status_of(host, port, "/v1/models") == 401


def status_of(host: str, port: int, path: str) -> int | None:
    """What a GET of it answers; None: nothing does."""
    connection = http.client.HTTPConnection(host, port, timeout=5)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def ready_lines(*, host: str, port: int, model: str, took_s: float, with_key: bool = False) -> str:
    """The ready line and the command.   host: one that can be reached"""
    url = f"http://{host}:{port}"
    question = [{"role": "user", "content": "What is gravity?"}]
    fields = {"model": model, "messages": question, "max_tokens": 60, "temperature": 0}
    body = json.dumps(fields)
    curl = f"curl {url}/v1/chat/completions -H 'Content-Type: application/json'"
    if with_key:
        curl += ' -H "Authorization: Bearer $LOCKSTEP_API_KEY"'
    ready = f"Lockstep is ready on {url} after {took_s:.1f} s, serving {model}. Ctrl-C stops it."
    return f"\n{ready}\n{curl} -d {shlex.quote(body)}\n"
