"""Counts the work of a training step on a CUDA device, and computes the least time that it takes.

Nothing is measured, and no GPU is needed. The step runs on an emulated device, which counts what
each kernel, each matrix product and each copy reads, writes and computes. A launch takes at least
the time in which the device can move its bytes, or do its operations, whichever is longer. Each
byte that a launch reads or writes counts once. Operations are counted for matrix products only; to
be limited by operations, a kernel would need more than ten of them for each byte. Copies between
host and device are not in the sum, because they can run beside the computation.

A case is MODEL-CHANNELSxSIDE-bBATCH, for example resnet34-3x224-b96.
"""

import argparse
import collections
import dataclasses
import functools
import re
import subprocess

import results
import systems


@dataclasses.dataclass(frozen=True)
class Limits:
    """What a device does at most in a second."""

    memory: float  # bytes
    link: float  # bytes in one direction, between host and device
    operations: dict  # by the precision of matrix products, without sparsity


# H100 SXM: NVIDIA H100 Tensor Core GPU datasheet (bandwidth, PCIe), and "NVIDIA H100 Tensor Core GPU
# Architecture" (dense operations). H200: NVIDIA H200 Tensor Core GPU datasheet. Both have the same
# processor, so their operations are the same. PCIe Gen5 has 128 GB/s in both directions together.
_OPERATIONS = {"f32": 66.9e12, "tf32": 494.7e12, "bf16": 989.4e12}
DEVICES = {
    "H100": Limits(3.35e12, 64e9, _OPERATIONS),
    "H200": Limits(4.8e12, 64e9, _OPERATIONS),
}
CASE = "resnet34-3x224-b96"
# The lowest permitted speeds in images per second.
GOALS = {(CASE, "tf32", "H200"): 2000, (CASE, "bf16", "H200"): 3500}
BETWEEN_HOST_AND_DEVICE = ("upload", "download")


@dataclasses.dataclass(frozen=True)
class Launch:
    name: str
    read: int  # bytes
    written: int
    operations: int

    def least_seconds(self, limits, precision):
        moved = self.read + self.written
        if self.name in BETWEEN_HOST_AND_DEVICE:
            return moved / limits.link
        return max(moved / limits.memory, self.operations / limits.operations[precision])


@functools.cache
def launches_of(case, precision):
    """Counts the launches of a case. They are the same in f32 and tf32, where only the factors of
    products are rounded, after they have been read."""
    match = re.fullmatch(r"(\w+)-(\d+)x(\d+)-b(\d+)", case)
    if not match:
        raise SystemExit(f"{case} is no case; say {CASE}")
    model, channels, side, batch = match.groups()
    classes = 1000 if int(side) >= 224 else 10
    done = subprocess.run(
        [systems.program("bench/launches"), f"--model={model}", f"--channels={channels}",
         f"--side={side}", f"--batch={batch}", f"--classes={classes}", f"--precision={precision}"],
        stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise SystemExit(done.returncode)
    found = []
    for line in done.stdout.splitlines():
        name, *numbers = line.split("\t")
        found.append(Launch(name, *map(int, numbers)))
    return found, int(batch)


def row_of(precision, name, launches):
    gigabytes = [sum(getattr(launch, what) for launch in launches) / 1e9
                 for what in ("read", "written")]
    times = [sum(launch.least_seconds(limits, precision) for launch in launches) * 1e3
             for limits in DEVICES.values()]
    operations = sum(launch.operations for launch in launches)
    return [precision, name, str(len(launches)), *(f"{number:.3f}" for number in gigabytes),
            f"{operations / 1e9:.1f}" if operations else "", *(f"{time:.3f}" for time in times)]


def count(case, launches, batch, precision, comparisons):
    """Returns rows of the table: kernels that take the longest come first, then copies between
    host and device, then the sum and the images per second that it allows."""
    by_name = collections.defaultdict(list)
    for launch in launches:
        by_name[launch.name].append(launch)
    limits = list(DEVICES.values())[-1]

    def order(name):
        seconds = sum(launch.least_seconds(limits, precision) for launch in by_name[name])
        return name in BETWEEN_HOST_AND_DEVICE, -seconds

    rows = [row_of(precision, name, by_name[name]) for name in sorted(by_name, key=order)]
    summed = [launch for launch in launches if launch.name not in BETWEEN_HOST_AND_DEVICE]
    rows.append(row_of(precision, "sum, without upload and download", summed))
    speeds = []
    for device, limits in DEVICES.items():
        seconds = sum(launch.least_seconds(limits, precision) for launch in summed)
        speeds.append(f"{batch / seconds:.0f}")
        goal = GOALS.get((case, precision, device))
        if goal:
            comparisons.add(f"{case}-{precision}-{device}", "limit", "goal", batch / seconds, goal,
                            "images/s", batch / seconds / goal, 1.0, at_least=True)
    rows.append([precision, "images per second at most", "", "", "", "", *speeds])
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", default=CASE, help="cases, with commas between them")
    parser.add_argument("--precision", default="f32,tf32,bf16",
                        help="of matrix products, with commas between them")
    options = parser.parse_args()

    comparisons = results.Comparisons("devices")
    for case in options.case.split(","):
        print(case)
        rows = []
        for precision in options.precision.split(","):
            if precision not in _OPERATIONS:
                raise SystemExit(f"{precision} is no precision; say f32, tf32 or bf16")
            launches, batch = launches_of(case, "bf16" if precision == "bf16" else "f32")
            rows += count(case, launches, batch, precision, comparisons)
        results.print_table(["precision", "kernel", "launches", "GB read", "GB written", "GFLOP",
                             *(f"{device}, ms" for device in DEVICES)], rows)
        print()
    comparisons.close()


if __name__ == "__main__":
    main()
