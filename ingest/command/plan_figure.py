"""The plot of `lockstep plan`: capacity by context, a line for each system, a panel a workload."""

from pathlib import Path
from typing import Any, Final

from ingest.command.failure import USAGE, Failure
from router.simulator.study import Row
from router.simulator.systems import BASELINES, OURS

PANEL: Final = (6.0, 4.2)  # inches


def draw(rows: list[Row], path: Path) -> None:
    """Writes the file; its ending says which kind. Raises Failure."""
    try:
        import matplotlib
    except ImportError:
        raise Failure(
            "--plot: matplotlib is not installed: pip install matplotlib", USAGE
        ) from None
    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "lockstep"  # the same rows are the same file
    from matplotlib import pyplot

    workloads = list(dict.fromkeys(row.workload for row in rows))
    width, height = PANEL
    figure, axes = pyplot.subplots(
        1, len(workloads), figsize=(width * len(workloads), height), squeeze=False
    )
    for axis, workload in zip(axes[0], workloads, strict=True):
        panel(axis, [row for row in rows if row.workload == workload], workload)
    figure.tight_layout()
    try:
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    except OSError as error:
        raise Failure(f"--plot: {path} cannot be written: {error.strerror}") from None
    finally:
        pyplot.close(figure)


def panel(axis: Any, rows: list[Row], title: str) -> None:
    """One workload; bars where there is one context only."""
    systems = list(dict.fromkeys(row.system for row in rows))
    contexts = sorted({row.context for row in rows})
    axis.set_title(title)
    if len(contexts) == 1:
        axis.barh(systems, [row.capacity_rps for row in rows], color=[color(s) for s in systems])
        axis.invert_yaxis()
        axis.set_xlabel(f"requests a second, context {contexts[0]}")
        return
    for system in systems:
        mine = sorted((row for row in rows if row.system == system), key=lambda row: row.context)
        x, y = [row.context for row in mine], [row.capacity_rps for row in mine]
        line = {"color": color(system), "linestyle": style(system), "label": system}
        axis.plot(x, y, marker="o", markersize=3, linewidth=2 if system in OURS else 1, **line)
        if system in OURS:
            low, high = [row.low_rps for row in mine], [row.high_rps for row in mine]
            axis.fill_between(x, low, high, color=color(system), alpha=0.15)
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.set_xticks(contexts, [f"{context // 1024}k" for context in contexts])
    axis.set_xlabel("context, tokens")
    axis.set_ylabel("requests a second")
    axis.legend(fontsize=7)


def color(system: str) -> str:
    if system in OURS:
        return {"gpu": "#1f77b4", "gpu+cpu": "#d62728"}[system]
    if system in BASELINES:
        return f"C{5 + BASELINES.index(system) % 5}"
    return "#999999"


def style(system: str) -> str:
    return "-" if system in OURS else "--" if system in BASELINES else ":"
