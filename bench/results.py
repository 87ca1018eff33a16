"""The output of a benchmark: a table, JSON lines, and a plot."""

import json
import os
import platform
import subprocess
import sys
import time


def output_directory():
    root = os.environ.get("BUILD_WORKSPACE_DIRECTORY", os.getcwd())
    directory = os.path.join(root, "bench", "out")
    os.makedirs(directory, exist_ok=True)
    return directory


class Comparisons:
    """Writes bench/out/NAME.jsonl: one line for each comparison of ours with a peer."""

    def __init__(self, name):
        self.path = os.path.join(output_directory(), f"{name}.jsonl")
        self._file = open(self.path, "w")
        self.goals = []

    def add(self, case, ours, peer, ours_value, peer_value, unit, ratio, goal=None,
            at_least=False, **more):
        """Adds a comparison. `goal` is the largest permitted ratio, or the smallest if `at_least`
        is set."""
        met = None
        if goal is not None:
            met = ratio >= goal if at_least else ratio <= goal
        line = {"case": case, "ours": ours, "peer": peer,
                "value": {"ours": round(ours_value, 6), "peer": round(peer_value, 6),
                          "unit": unit},
                "ratio": round(ratio, 4), "goal": goal, "met": met, **more}
        if goal is not None:
            line["goal_is"] = "at least" if at_least else "at most"
            self.goals.append(line)
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()

    def close(self):
        self._file.close()
        if self.goals:
            print()
            print_table(["case", "ours", "peer", "ratio", "goal", "met"],
                        [[g["case"], g["ours"], g["peer"], f"{g['ratio']:.2f}",
                          ("≥ " if g["goal_is"] == "at least" else "≤ ") + f"{g['goal']:g}",
                          "yes" if g["met"] else "NO"] for g in self.goals])
        print(f"\nwritten: {self.path}")


def print_table(header, rows):
    widths = [max(len(row[i]) for row in [header] + rows) for i in range(len(header))]
    for n, row in enumerate([header] + rows):
        # Text is left-aligned, numbers are right-aligned.
        print("  ".join(cell.ljust(width) if i < 2 else cell.rjust(width)
                        for i, (cell, width) in enumerate(zip(row, widths))).rstrip(), flush=True)
        if n == 0:
            print("  ".join("-" * width for width in widths))


def print_machine():
    """Prints the machine on which the numbers were measured."""
    model = ""
    with open("/proc/cpuinfo") as cpuinfo:
        for line in cpuinfo:
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
    with open("/proc/sys/net/ipv4/tcp_congestion_control") as control:
        congestion = control.read().strip()
    print(f"{time.strftime('%Y-%m-%d %H:%M')}, {os.cpu_count()} × {model}, Linux "
          f"{platform.release()}, TCP {congestion}, load {os.getloadavg()[0]:.1f}")


def plot(name, title, x_label, y_label, panels):
    """Draws the curves bench/out/NAME.svg. A panel is {"title", "series"}. A series has "name",
    "x", "y", and optionally "low" and "high"."""
    draw(os.path.join(output_directory(), f"{name}.svg"), "curves", title, x_label=x_label,
         y_label=y_label, panels=panels)


def draw(path, kind, title, **spec):
    """Draws a picture of one of the kinds of plot.py. A relative path is relative to the directory
    in which ./dev was started."""
    path = os.path.join(os.environ.get("BUILD_WORKING_DIRECTORY", ""), path)
    spec.update(path=path, kind=kind, title=title)
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "plot.py")
    # Uses Debian's Python, because only that one has Debian's matplotlib.
    drawn = subprocess.run(["/usr/bin/python3", script], input=json.dumps(spec), text=True,
                           capture_output=True)
    if drawn.returncode == 0:
        print(f"drawn: {path}")
    else:
        print(f"not drawn: {drawn.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
