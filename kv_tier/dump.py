"""What is in a file of the tier, and is it whole?

    python -m kv_tier.dump PATH... [--json]

Prints what each object or manifest says of itself, by FORMAT.md's names, and whether every byte
agrees with its checksums. Ends with 0 when all are sound, 1 when one is damaged or unreadable.
"""

import argparse
import json
import sys
from contextlib import closing
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kv_tier.files import DiskError, OsFiles
from kv_tier.format import CorruptFile
from kv_tier.manifest import Manifest, decode_manifest
from kv_tier.open_object import Missing, OpenObject, open_file
from kv_tier.sessions import manifest_name


def describe(path: Path) -> dict[str, Any]:
    """What an object's or a manifest's header and records say; plain values, for JSON.

    Raises CorruptFile, NewerVersion, DiskError, Missing.
    """
    if path.suffix == ".manifest":
        return _manifest_facts(_read_manifest(path), path)
    with closing(open_file(path)) as opened:
        return _object_facts(opened)


def verify_file(path: Path) -> None:
    """Read every byte of it and hold it to its checksums and to its name.

    Raises CorruptFile, NewerVersion, DiskError, Missing.
    """
    if path.suffix == ".manifest":
        manifest = _read_manifest(path)
        if path.name != manifest_name(manifest.generation):
            raise CorruptFile(path, f"it is generation {manifest.generation}, under another's name")
        return
    with closing(open_file(path)) as opened:
        opened.verify()


def _read_manifest(path: Path) -> Manifest:
    if not path.exists():
        raise Missing(path)
    return decode_manifest(OsFiles().perform(path, path.read_bytes), path)


def _object_facts(opened: OpenObject) -> dict[str, Any]:
    return {
        "format": "object",
        "kind": opened.kind,
        "num_tokens": opened.num_tokens,
        "key": opened.key.hex(),
        "parent": opened.parent.hex() if any(opened.parent) else None,
        "tenant": opened.tenant,
        "fingerprint": opened.fingerprint.hex(),
        "payload_offset": opened.payload_offset,
        "payload_bytes": opened.payload_bytes,
        "file_bytes": opened.path.stat().st_size,
    }


def _manifest_facts(manifest: Manifest, path: Path) -> dict[str, Any]:
    facts: dict[str, Any] = {"format": "manifest", **asdict(manifest)}
    facts["token_ids"] = list(manifest.token_ids)
    facts["num_tokens"] = len(manifest.token_ids)
    facts["file_bytes"] = path.stat().st_size
    facts["messages"] = [asdict(message) for message in manifest.messages]
    facts["fingerprint"] = manifest.fingerprint.hex()
    facts["blocks"] = [key.hex() for key in manifest.blocks]
    facts["tail"] = manifest.tail.hex() if manifest.tail is not None else None
    facts["checkpoints"] = [
        {"position": checkpoint.position, "key": checkpoint.key.hex()}
        for checkpoint in manifest.checkpoints
    ]
    return facts


def examine(path: Path) -> dict[str, Any]:
    """What it says, as far as it can be read, and its `damage`: None if it is sound."""
    facts: dict[str, Any] = {"path": str(path)}
    try:
        facts |= describe(path)
        verify_file(path)
    except (CorruptFile, DiskError) as error:
        return facts | {"damage": error.reason}
    except Missing:
        return facts | {"damage": "it is not there"}
    return facts | {"damage": None}


def _lines(facts: dict[str, Any]) -> list[str]:
    """For people: one fact a line, long lists by their length and their ends."""
    lines = [f"{facts['path']}: {facts['damage'] or 'sound'}"]
    for name, value in facts.items():
        if name not in ("path", "damage"):
            lines.append(f"  {name:<18} {_short(name, value)}")
    return lines


def _short(name: str, value: Any) -> str:
    if name.endswith("_ms") and value < 1 << 47:  # the year 6429; later ones are shown as they are
        return datetime.fromtimestamp(value / 1000, UTC).isoformat(timespec="seconds")
    if isinstance(value, list) and len(value) > 6:
        shown = [*map(str, value[:3]), f"… {len(value) - 6} more …", *map(str, value[-3:])]
        return "\n".join([shown[0], *(f"{'':21}{line}" for line in shown[1:])])
    if isinstance(value, list):
        return ("\n" + " " * 21).join(map(str, value)) or "none"
    return "none" if value is None or value == "" else str(value)


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m kv_tier.dump", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("path", nargs="+", type=Path, help="an object, or a manifest")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    options = parser.parse_args()
    all_facts = [examine(path) for path in options.path]
    for facts in all_facts:
        print(json.dumps(facts) if options.json else "\n".join(_lines(facts)))
    return 1 if any(facts["damage"] for facts in all_facts) else 0


if __name__ == "__main__":
    sys.exit(main())
