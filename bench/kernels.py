"""Measures how fast contributions are averaged and updates are applied, compared with memcpy.

Results are in bytes accessed per second. An average of N buffers reads N and writes one; a copy
reads one and writes one. Buffers have 1 MiB, and more than 256 MiB of them are used in turn, so
that data is read from memory. In "cached" benchmarks they are small, and data is read from the
cache.
"""

import argparse

import google_benchmark
import results


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", default=".", help="only benchmarks that this matches, as f32/")
    parser.add_argument("--quick", action="store_true", help="for a short time")
    options = parser.parse_args()

    results.print_machine()
    print()
    found = google_benchmark.run("kernels_benchmark", f"Copy|{options.case}", options.quick)
    copies = {kind: next(numbers["bytes_per_second"] for name, numbers in found.items()
                         if name.startswith(f"Copy/{kind}/"))
              for kind in ("memory", "cached")}
    comparisons = results.Comparisons("kernels")
    rows, series = [], {}
    for name, numbers in found.items():
        speed = numbers["bytes_per_second"]
        copy = copies["cached" if "cached" in name else "memory"]
        kernel, what, *arguments = name.split("/")
        rows.append([f"{kernel} {what}", "/".join(arguments), f"{speed / 1e9:.2f}", f"{speed / copy:.2f}"])
        if name.startswith("Copy"):
            continue
        is_goal = what == "f32" and kernel == "Average"
        comparisons.add(name, "kernel", "memcpy", speed / 1e9, copy / 1e9, "GB/s", speed / copy,
                        0.85 if is_goal else None, at_least=True)
        if kernel == "Average":
            line = series.setdefault(what, {"name": what, "x": [], "y": []})
            line["x"].append(int(arguments[0]))
            line["y"].append(speed / copy)
    results.print_table(["what", "N/bytes", "GB/s", "× memcpy"], rows)
    comparisons.close()
    if series:
        results.plot("kernels", "average of N, bytes touched a second", "N", "× memcpy",
                     [{"title": "float32 and halves", "series": list(series.values())}])


if __name__ == "__main__":
    main()
