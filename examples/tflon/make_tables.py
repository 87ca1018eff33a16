#!/usr/bin/env python3
"""Writes the tables of tflon.job: points of the plane, and whether each is above y = x^3.

  make_tables.py DIRECTORY [POINTS [SHARDS]]

Each shard has two files that are joined by the ID of a point: points.tsv and labels.tsv. The rows
of the labels are in another order than those of the points.
"""

import os
import random
import sys


def main(directory, points=20000, shards=4):
    draw = random.Random(7)
    for shard in range(shards):
        folder = os.path.join(directory, f"shard{shard}")
        os.makedirs(folder, exist_ok=True)
        ids = [f"p{number}" for number in range(shard, points, shards)]
        labels = {}
        with open(os.path.join(folder, "points.tsv"), "w", encoding="utf-8") as table:
            table.write("ID\tx\ty\n")
            for name in ids:
                x, y = draw.uniform(-1, 1), draw.uniform(-1, 1)
                labels[name] = int(y > x**3)
                table.write(f"{name}\t{x:.9g}\t{y:.9g}\n")
        draw.shuffle(ids)
        with open(os.path.join(folder, "labels.tsv"), "w", encoding="utf-8") as table:
            table.write("ID\tabove\n")
            for name in ids:
                table.write(f"{name}\t{labels[name]}\n")


if __name__ == "__main__":
    if not 2 <= len(sys.argv) <= 4:
        sys.exit(__doc__)
    main(sys.argv[1], *map(int, sys.argv[2:]))
