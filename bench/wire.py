"""Measures how long a frame's header takes to encode and to decode, compared with a copy of the
frame's payload. Our code touches only the header."""

import argparse

import google_benchmark
import results


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", default=".", help="only benchmarks that this matches, as Push")
    parser.add_argument("--quick", action="store_true", help="for a short time")
    options = parser.parse_args()

    results.print_machine()
    print()
    found = google_benchmark.run("wire_benchmark", f"CopyPayload|{options.case}", options.quick)
    comparisons = results.Comparisons("wire")
    rows = []
    for name, numbers in found.items():
        kind, payload, *spans = name.split("/")
        copy = found[f"CopyPayload/{payload}"]["real_time"]
        rows.append([kind, f"{int(payload) >> 10} KiB", spans[0] if spans else "",
                     f"{numbers['real_time']:.0f}", f"{numbers['real_time'] / copy:.5f}"])
        if kind != "CopyPayload":
            comparisons.add(name, kind, "memcpy of the payload", numbers["real_time"], copy, "ns",
                            numbers["real_time"] / copy)
    results.print_table(["what", "payload", "spans", "ns", "× memcpy"], rows)
    comparisons.close()


if __name__ == "__main__":
    main()
