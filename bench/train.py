"""How fast one worker trains on the processor, beside PyTorch with as many threads.

Both take turns on the same machine; of several turns the median counts.
"""

import argparse
import os
import statistics
import subprocess
import sys

import results

# Model, channels, side, batch, and what the ratio must be at least.
CASES = [("lenet", 1, 8, 32, 1.0), ("resnet18", 3, 32, 32, 0.5)]


def run(command):
    return float(subprocess.run(command, check=True, capture_output=True, text=True,
                                timeout=600).stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=4, help="of each turn")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--python", default="/usr/bin/python3", help="one that has torch")
    options = parser.parse_args()
    here = os.path.dirname(os.path.abspath(__file__))
    ours = os.path.join(here, "train_worker")
    theirs = os.path.join(here, "peers", "torch_train.py")
    has_torch = subprocess.run([options.python, "-c", "import torch"],
                               capture_output=True).returncode == 0
    if not has_torch:
        print(f"{options.python} has no torch: only ours is measured", file=sys.stderr)

    comparisons = results.Comparisons("train")
    rows = []
    for model, channels, side, batch, goal in CASES:
        arguments = [model, str(channels), str(side), str(batch), str(options.threads),
                     str(options.seconds)]
        our_speeds, their_speeds = [], []
        for _ in range(options.turns):
            our_speeds.append(run([ours] + arguments))
            if has_torch:
                their_speeds.append(run([options.python, theirs] + arguments))
        case = f"{model}, {channels}x{side}x{side}, batch {batch}, {options.threads} threads"
        our_speed = statistics.median(our_speeds)
        rows.append([case, "syncgrads", f"{our_speed:.0f}", ""])
        if has_torch:
            their_speed = statistics.median(their_speeds)
            ratio = our_speed / their_speed
            rows.append([case, "pytorch", f"{their_speed:.0f}", f"{ratio:.2f}"])
            comparisons.add(case, "syncgrads", "pytorch", our_speed, their_speed, "images/s", ratio,
                            goal=goal, at_least=True)
    results.print_table(["case", "system", "images/s", "ours / theirs"], rows)
    comparisons.close()


if __name__ == "__main__":
    main()
