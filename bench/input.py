"""Measures how many JPEG images per second are converted to a model's input: decoded, cropped at a
random position, scaled and mirrored. The result is compared with a loop that only decodes the
images.

The bare loop decodes the whole image at the scale that ours chooses.
"""

import argparse

import google_benchmark
import results

GOAL = 0.9


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", default=".", help="only benchmarks that this matches, as 500x375")
    parser.add_argument("--quick", action="store_true", help="for a short time")
    options = parser.parse_args()

    results.print_machine()
    print()
    found = google_benchmark.run("input_benchmark", options.case, options.quick)
    comparisons = results.Comparisons("input")
    rows, series = [], {}
    for name, numbers in found.items():
        system, size, *_, threads = name.split("/")
        if system != "Ours":
            continue
        ours = numbers["items_per_second"]
        bare = found[name.replace("Ours", "Bare")]["items_per_second"]
        case = f"{size}, {threads.replace(':', ' ')}"
        rows.append([case, f"{ours:.0f}", f"{bare:.0f}", f"{ours / bare:.2f}"])
        comparisons.add(case, "decode, crop, scale, mirror", "libjpeg-turbo, decode", ours, bare,
                        "images/s", ours / bare, GOAL, at_least=True)
        line = series.setdefault(threads, {"name": threads.replace(":", " "), "x": [], "y": []})
        line["x"].append(int(size.split("x")[0]))
        line["y"].append(ours / bare)
    results.print_table(["case", "ours, images/s", "bare loop", "ours / bare"], rows)
    comparisons.close()
    results.plot("input", "JPEG images a second", "width of the image", "× a bare decoding loop",
                 [{"title": "decode, crop, scale, mirror", "series": list(series.values())}])


if __name__ == "__main__":
    main()
