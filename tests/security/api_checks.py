"""What schemathesis holds each answer to: no 500, 503 only with Retry-After, errors as JSON.

Read by schemathesis itself (SCHEMATHESIS_HOOKS), in its own environment: fuzz_api.py.
"""

import schemathesis


@schemathesis.check
def is_an_answer(ctx, response, case):
    """Every status that is no success says what is wrong in an error object."""
    status = response.status_code
    assert status < 500 or status in (503, 504), f"{status}: {response.text[:300]}"
    if status in (429, 503):
        assert "retry-after" in {name.lower() for name in response.headers}, f"{status}: when?"
    if status >= 400 and case.method.upper() != "HEAD":
        error = response.json()["error"]
        assert error["message"] and error["type"], error
