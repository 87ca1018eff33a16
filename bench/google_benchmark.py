"""Runs programs that use Google's benchmark library."""

import json
import os
import re
import statistics
import subprocess
import tempfile

import systems


def run(name, pattern, quick):
    """Runs a program. Returns the medians of interleaved repetitions: for each benchmark a dict of
    numbers."""
    with tempfile.TemporaryDirectory() as scratch:
        out = os.path.join(scratch, "out.json")
        subprocess.run([
            systems.program(f"bench/{name}"), f"--benchmark_filter={pattern}",
            f"--benchmark_repetitions={3 if quick else 9}",
            f"--benchmark_min_time={0.02 if quick else 0.1}",
            "--benchmark_enable_random_interleaving=true", f"--benchmark_out={out}",
            "--benchmark_out_format=json"
        ], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        with open(out) as file:
            runs = json.load(file)["benchmarks"]
    found = {}
    for entry in runs:
        if entry.get("run_type") != "iteration":
            continue
        numbers = found.setdefault(entry["run_name"], {})
        for key in ("real_time", "bytes_per_second", "items_per_second", "encoded"):
            if key in entry:
                numbers.setdefault(key, []).append(entry[key])
    return {name: {key: statistics.median(values) for key, values in numbers.items()}
            for name, numbers in sorted(found.items(), key=lambda item: _order(item[0]))}


def _order(name):
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]
