"""How RQ's records are packed here: msgpack, never pickle."""

from typing import Any, cast

import msgpack


class MsgpackSerializer:
    """RQ's serializer protocol: dumps(value) -> bytes, loads(bytes) -> value."""

    @staticmethod
    def dumps(value: Any) -> bytes:
        return cast(bytes, msgpack.packb(value))

    @staticmethod
    def loads(data: bytes) -> Any:
        return msgpack.unpackb(data)
