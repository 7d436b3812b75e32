"""A call on a stack that is deep enough for a compiler that follows its grammar by recursion."""

import threading
from collections.abc import Callable
from typing import Final, TypeVar

STACK_BYTES: Final = 64 << 20  # of addresses: memory is taken as far as the call goes
ONE_AT_A_TIME: Final = threading.Lock()  # the size is one for all threads that begin

Result = TypeVar("Result")


def on_deep_stack(call: Callable[[], Result]) -> Result:
    """What call gives, from a thread of its own. What it raises is raised here."""
    results: list[Result] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(call())
        except BaseException as error:
            errors.append(error)

    with ONE_AT_A_TIME:
        usual = threading.stack_size(STACK_BYTES)
        try:
            thread = threading.Thread(target=run)
            thread.start()
        finally:
            threading.stack_size(usual)
    thread.join()
    if errors:
        raise errors[0]
    return results[0]
