"""Draws the plot that is described on stdin (see results.plot)."""

import json
import sys

import matplotlib

matplotlib.use("svg")
matplotlib.rcParams["svg.hashsalt"] = "syncgrads"  # equal input gives an equal file
import matplotlib.pyplot as pyplot


def main():
    spec = json.load(sys.stdin)
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
    figure.suptitle(spec["title"])
    figure.tight_layout()
    figure.savefig(spec["path"], metadata={"Date": None})


main()
