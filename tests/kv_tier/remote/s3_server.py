"""moto's server, which speaks S3, run by a Python of its own (make test-objects brings it)."""

import os
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.error import URLError

PYTHON = os.environ.get("LOCKSTEP_MOTO")  # one that has moto; None: these tests are not run
BUCKET = "lockstep"


@contextmanager
def running(port: int) -> Iterator[dict[str, str]]:
    """With an empty bucket; gives the environment that finds it."""
    command = [PYTHON, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        make_bucket(f"{url}/{BUCKET}")
        told = {"ACCESS_KEY_ID": "k", "SECRET_ACCESS_KEY": "s", "REGION": "us-east-1"}
        told |= {"ENDPOINT": url, "ALLOW_HTTP": "true"}
        yield {f"AWS_{name}": value for name, value in told.items()}
    finally:
        process.kill()
        process.wait()


def make_bucket(url: str) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with suppress(URLError, ConnectionError):
            urllib.request.urlopen(urllib.request.Request(url, method="PUT"))
            return
        time.sleep(0.1)
    raise AssertionError("the server does not start")
