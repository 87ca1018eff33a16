"""Measures how fast gradients are encoded and decoded, compared with memcpy of the same gradients.

Results are in bytes of float32 per second. Encoding works as on a worker: it reads a span of 1 MiB
and its residual from memory, and writes the encoded span and the new residual. Decoding works as on
a server: it checks an encoded span and decodes it, block by block, into the first-level cache.
"""

import argparse

import google_benchmark
import results

SPAN_BYTES = 1 << 20


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", default=".", help="only benchmarks that this matches, as int8")
    parser.add_argument("--quick", action="store_true", help="for a short time")
    options = parser.parse_args()

    results.print_machine()
    print()
    found = google_benchmark.run("codecs_benchmark", f"Copy|{options.case}", options.quick)
    copy = found.pop("Copy")["bytes_per_second"]
    comparisons = results.Comparisons("codecs")
    rows, series = [], {}
    smaller = {name.split("/")[1]: SPAN_BYTES / numbers["encoded"]
               for name, numbers in found.items() if "encoded" in numbers}
    for name, numbers in found.items():
        speed = numbers["bytes_per_second"]
        direction, codec = name.split("/")
        times = smaller.get(codec)
        rows.append([direction, codec, f"{speed / 1e9:.2f}", f"{speed / copy:.2f}",
                     f"{times:.1f}" if times else ""])
        comparisons.add(name, "codec", "memcpy", speed / 1e9, copy / 1e9, "GB/s", speed / copy)
        if times:
            series.setdefault(direction, []).append((times, speed / copy))
    results.print_table(["what", "codec", "GB/s", "× memcpy", "times smaller"], rows)
    comparisons.close()
    if series:
        lines = [{"name": direction, "x": [x for x, _ in sorted(points)],
                  "y": [y for _, y in sorted(points)]} for direction, points in series.items()]
        results.plot("codecs", "float32 bytes encoded and decoded a second",
                     "times smaller: " + ", ".join(f"{codec} {times:.0f}"
                                                   for codec, times in smaller.items()),
                     "× memcpy", [{"title": "top-k: one in a hundred", "series": lines}])


if __name__ == "__main__":
    main()
