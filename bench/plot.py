"""Draws the picture that is described on stdin (see results.draw)."""

import json
import sys

import matplotlib

matplotlib.use("svg")
matplotlib.rcParams["svg.hashsalt"] = "syncgrads"  # equal input gives an equal file
import matplotlib.pyplot as pyplot

OURS, PEER = "tab:blue", "lightgray"


def draw_curves(spec):
    panels = spec["panels"]
    figure, axes = pyplot.subplots(1, len(panels), figsize=(6 * len(panels), 4.5), squeeze=False)
    for axis, panel in zip(axes[0], panels):
        for series in panel["series"]:
            line, = axis.plot(series["x"], series["y"], marker="o", label=series["name"])
            if "low" in series:
                axis.fill_between(series["x"], series["low"], series["high"], alpha=0.15,
                                  color=line.get_color())
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.set_title(panel["title"])
        axis.set_xlabel(panel.get("x_label", spec["x_label"]))
        axis.set_ylabel(panel.get("y_label", spec["y_label"]))
        axis.grid(True, which="both", alpha=0.2)
        axis.legend(fontsize="small")
    return figure


def draw_bars(spec):
    """Horizontal bars from 0, the shortest first; a thin line is the range of a value."""
    panels = spec["panels"]
    rows = max(len(panel["bars"]) for panel in panels)
    figure, axes = pyplot.subplots(1, len(panels), figsize=(5.5 * len(panels), 1.2 + 0.35 * rows),
                                   squeeze=False)
    for axis, panel in zip(axes[0], panels):
        bars = sorted(panel["bars"], key=lambda bar: bar["value"], reverse=True)
        axis.barh([bar["name"] for bar in bars], [bar["value"] for bar in bars],
                  color=[OURS if bar["ours"] else PEER for bar in bars])
        axis.hlines(range(len(bars)), [bar["low"] for bar in bars], [bar["high"] for bar in bars],
                    color="black", linewidth=1)
        for i, bar in enumerate(bars):
            axis.annotate(f"{bar['value']:.3g}", (max(bar["value"], bar["high"]), i),
                          xytext=(4, 0), textcoords="offset points", va="center", fontsize="small")
        axis.margins(x=0.12)
        axis.spines[["top", "right"]].set_visible(False)
        axis.set_title(panel["title"])
        axis.set_xlabel(spec["x_label"])
    return figure


def lanes_of(bars):
    """Returns the lane of each bar, so that no two bars of a lane overlap, and the number of lanes.
    The bars are in the order of their begin."""
    ends, lanes = [], []
    for bar in bars:
        free = next((lane for lane, end in enumerate(ends) if end <= bar["x"]), len(ends))
        if free == len(ends):
            ends.append(0)
        ends[free] = bar["x"] + bar["width"]
        lanes.append(free)
    return lanes, max(1, len(ends))


def draw_timeline(spec):
    """One row of bars for each part of a system, over time. The colour is that of a layer."""
    figure, axis = pyplot.subplots(figsize=(11, 0.8 + 0.75 * len(spec["rows"])))
    colours = pyplot.get_cmap("tab10")
    pixels = axis.get_window_extent().width / spec["length"]
    for i, row in enumerate(spec["rows"]):
        bars = sorted(row["bars"], key=lambda bar: bar["x"])
        lanes, count = lanes_of(bars) if row.get("stacked") else ([0] * len(bars), 1)
        height = 0.8 / count
        for bar, lane in zip(bars, lanes):
            below = i - 0.4 + lane * height
            # A bar is at least one pixel wide.
            axis.broken_barh([(bar["x"], max(bar["width"], 1 / pixels))], (below, height * 0.92),
                             color=colours((bar["colour"] - 1) % 10), linewidth=0)
            begin, end = max(bar["x"], 0), min(bar["x"] + bar["width"], spec["length"])
            if (end - begin) * pixels > 9 * len(bar["label"]) and height > 0.12:
                axis.annotate(bar["label"], ((begin + end) / 2, below + height * 0.46),
                              color="white", fontsize=min(9, 34 * height), ha="center",
                              va="center")
        for wait in row.get("waits", []):
            axis.broken_barh([(wait["x"], wait["width"])], (i - 0.4, 0.736), facecolor="white",
                             alpha=0.6, hatch="////", edgecolor="black", linewidth=0)
    mark = spec["mark"]
    axis.axvline(mark["x"], color="black", linewidth=1, linestyle="--")
    for text, side, offset in ((mark["before"], "right", -4), (mark["after"], "left", 4)):
        axis.annotate(text, (mark["x"], -0.55), xytext=(offset, 0), textcoords="offset points",
                      ha=side, va="bottom", fontsize=9)
    axis.set_xlim(0, spec["length"])
    axis.set_ylim(len(spec["rows"]) - 0.5, -0.85)
    axis.set_yticks(range(len(spec["rows"])), [row["name"] for row in spec["rows"]], fontsize=9)
    axis.set_xlabel(spec["x_label"])
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(True, axis="x", alpha=0.2)
    axis.set_axisbelow(True)
    return figure


def main():
    spec = json.load(sys.stdin)
    draw = {"curves": draw_curves, "bars": draw_bars, "timeline": draw_timeline}[spec["kind"]]
    figure = draw(spec)
    figure.suptitle(spec["title"])
    figure.tight_layout()
    # Only SVG files can have a date.
    figure.savefig(spec["path"], dpi=110,
                   metadata={"Date": None} if spec["path"].endswith(".svg") else None)


main()
