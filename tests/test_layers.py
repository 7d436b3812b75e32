"""The arrows of the node point down, and never in a circle.

An import counts wherever it stands: at the top of a file, inside a function, under TYPE_CHECKING.
"""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAY_IMPORT = {
    "ingest": {"router", "workers"},
    "router": {"workers"},
    "workers": {"kernels", "kv_tier"},
    "kernels": set(),
    "kv_tier": set(),
}
TOP = "ingest.command"  # the lockstep command stands on top of everything and may import everything

# What ingest and router may know of workers (DESIGN.md, the table of layers).
VOCABULARY = {
    "workers.wire",
    "workers.wire_fields",
    "workers.kill_point",
    "workers.sla",
    "workers.cost",
    "workers.cgroup",
    "workers.settings",
    "workers.store",
    "workers.store_client",
    "workers.store_reading",
    "workers.clock",
    "workers.fleet",
    "workers.master",
    "workers.placed",
    "workers.promises",
    "workers.timings",
    "workers.histograms",
    "workers.trace.parent",
    "workers.job_list",
    "workers.script",
    "workers.text",
    "workers.address",
    "workers.log",
    "workers.session.compose",
    "workers.session.files",
}

# The simulator plays the pools: of the engine it has what decides, not what computes.
SIMULATOR = "router.simulator"
PLAYED = {
    "workers.engine.chunks",
    "workers.engine.cost",
    "workers.engine.lately",
    "workers.engine.memory",
    "workers.engine.pace",
    "workers.engine.patience",
    "workers.engine.scheduler",
    "workers.engine.sequence",
    "kv_tier.block_pool",
    "kv_tier.state_pool",
}


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(p): p for folder in MAY_IMPORT for p in (ROOT / folder).rglob("*.py")}


def imported_names(source: str) -> set[str]:
    """Every dotted name that a source text imports, also as `from package import module`."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, (
                f"line {node.lineno}: write the full name, not a relative import"
            )
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def imports_of(name: str) -> set[str]:
    """Our own modules that module `name` imports; a package only when nothing in it is."""
    names = imported_names(MODULES[name].read_text()) & MODULES.keys()
    return {n for n in names if not any(other.startswith(n + ".") for other in names)}


def is_vocabulary(name: str) -> bool:
    return any(name == word or name.startswith(word + ".") for word in VOCABULARY)


@pytest.mark.parametrize("name", sorted(MODULES))
def test_imports_point_down(name):
    if name.startswith(TOP):
        return
    home = name.split(".")[0]
    played = PLAYED if name.startswith(SIMULATOR) else set()
    for other in imports_of(name) - played:
        assert not other.startswith(TOP), f"{name} -> {other}: nothing stands on the command"
        folder = other.split(".")[0]
        assert folder == home or folder in MAY_IMPORT[home], f"{name} -> {other} points up"
        if home in ("ingest", "router") and folder == "workers":
            assert is_vocabulary(other), f"{name} -> {other}: too deep into workers"


@pytest.mark.parametrize("name", sorted(filter(is_vocabulary, MODULES)))
def test_the_vocabulary_needs_nothing_but_itself(name):
    for other in imports_of(name):
        if other == "kernels.arithmetic":
            continue  # two constants, which say what arithmetic a node has
        is_file_of_sessions = other.startswith("kv_tier.") and name.startswith("workers.session.")
        assert is_vocabulary(other) or is_file_of_sessions, (
            f"{name} -> {other}: drags the pools into the front door"
        )


def test_no_import_cycle():
    graph = {name: imports_of(name) - {name} for name in MODULES}
    list(TopologicalSorter(graph).static_order())  # raises CycleError and names the circle


def test_imports_are_found_wherever_they_stand():
    source = "import a\ndef f():\n    from b import c\nif TYPE_CHECKING:\n    import d.e\n"
    assert imported_names(source) == {"a", "b", "b.c", "d.e"}


def test_a_relative_import_is_refused():
    with pytest.raises(AssertionError, match="full name"):
        imported_names("from . import wire")
