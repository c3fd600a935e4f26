"""Pictures of a comparison, as SVG beside its JSON.

    <environment of plots.txt>/bin/python proof/benchmarks/compare_plots.py proof/benchmarks/results/compare.json

    compare-time.svg     seconds until the first records are processed, and until nothing is left to compact
    compare-cpu.svg      processor seconds of the same runs
    compare-memory.svg   peak resident size

Rules of this file: it runs in an environment of its own, and imports nothing of standfast. A bar is the median of the
rounds, its line reaches from minimum to maximum. The same JSON gives the same bytes.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl  # pyright: ignore[reportMissingImports]

mpl.use("svg")
# A random salt would give other ids, and so other bytes, for the same figures.
mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "standfast", "font.size": 9, "font.family": "sans-serif"})

from compare_report import NAMES, WHAT  # noqa: E402 - the settings above come first
from matplotlib import pyplot  # noqa: E402  # pyright: ignore[reportMissingImports]

WHICH = ("", "-reads", "-writes")
COLOURS = {
    "standfast": "#0b6e4f",
    **{f"kafka-streams{version}": "#c2410c" for version in ("", "-4.4")},
    **{f"kafka-streams{version}-tuned{which}": "#f59e0b" for version in ("", "-4.4") for which in WHICH},
    "quix": "#4f46e5",
}
COLUMNS, BAR_INCHES = 2, 0.22
PICTURES = {
    "time": (
        "elapsed_ms",
        1_000,
        "seconds until the first records are processed (dark), and until RocksDB is idle",
    ),
    "cpu": ("cpu_s", 1, "processor seconds meanwhile"),
    "memory": ("peak_bytes", 2**20, "peak resident size, MiB"),
}


def draw(found: dict[str, Any], measure: str, divisor: float, title: str, target: Path) -> None:
    """Draw one picture: a panel for each scenario, each with its own scale."""
    scenarios = [name for name in found["settings"]["scenarios"] if name in WHAT]  # the others have no times
    rows = -(-len(scenarios) // COLUMNS)
    most_bars = max(sum(one["scenario"] == name for one in found["results"]) for name in scenarios)
    size = 11, 0.5 + (0.5 + BAR_INCHES * most_bars) * rows
    figure, panels = pyplot.subplots(rows, COLUMNS, figsize=size, squeeze=False)
    for panel, scenario in zip(panels.flat, [*scenarios, *[None] * COLUMNS], strict=False):
        if scenario is None:
            panel.set_axis_off()
            continue
        results = [one for one in found["results"] if one["scenario"] == scenario][::-1]
        for at, one in enumerate(results):
            middle, least, most = (one[measure][name] / divisor for name in ("median", "min", "max"))
            two_clocks = measure == "elapsed_ms"
            panel.barh(at, middle, color=COLOURS[one["system"]], height=0.7, alpha=0.45 if two_clocks else 1)
            if two_clocks:
                panel.barh(at, one["processed_ms"]["median"] / divisor, color=COLOURS[one["system"]], height=0.7)
            panel.plot([least, most], [at, at], color="black", linewidth=1)
            lost = f", {one['lost']['median']:,.0f} rows lost" if one.get("lost", {}).get("median") else ""
            text = f"{middle:,.0f}" if divisor == 2**20 else f"{middle:,.2f}{lost}"
            panel.annotate(text, (most, at), xytext=(4, 0), textcoords="offset points", va="center")
        panel.set_yticks(range(len(results)), [NAMES[one["system"]] for one in results])
        panel.set_title(WHAT[scenario], loc="left", fontsize=9, fontweight="bold")
        panel.margins(x=0.25)
        panel.spines[["top", "right"]].set_visible(False)
    settings = found["settings"]
    figure.suptitle(f"{title}\n{settings['records']:,} records, medians of {settings['rounds']} rounds", fontsize=10)
    figure.tight_layout()
    figure.savefig(target, metadata={"Date": None})  # a date would change the file of the same figures
    pyplot.close(figure)


def main() -> None:
    """Draw all pictures."""
    source = Path(sys.argv[1])
    found = json.loads(source.read_text(encoding="utf-8"))
    for name, (measure, divisor, title) in PICTURES.items():
        draw(found, measure, divisor, title, source.with_name(f"{source.stem}-{name}.svg"))


if __name__ == "__main__":
    main()
