"""Measures how fast one worker trains: alone, through a server on the same machine, and compared
with PyTorch's eager mode in the same precision.

All systems take turns on the same machine, and the median of the turns counts. A case is
MODEL-CHANNELSxSIDE-bBATCH-DEVICE, for example resnet34-3x224-b96-cuda-tf32. The optional suffix
-f32, -tf32 or -bf16 is the type to which a CUDA device may round the factors of matrix products.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile

import conductor
import results
import systems

# The lowest permitted speeds for each case: relative to PyTorch's ("pytorch"), in images per second
# ("images"), and through a server, relative to the speed alone ("server"). On a CUDA device,
# PyTorch computes in the layout that is the fastest there.
GOALS = {
    "lenet-1x8-b32-cpu": {"pytorch": 3.0, "server": 0.8},
    "resnet18-3x32-b32-cpu": {"pytorch": 1.7, "server": 0.95},
    "resnet34-3x224-b96-cuda-f32": {},
    "resnet34-3x224-b96-cuda-tf32": {"pytorch": 0.9, "images": 1500, "server": 0.97},
    "resnet34-3x224-b96-cuda-bf16": {"pytorch": 0.9, "images": 2500, "server": 0.97},
}
# The first steps are not counted, because they include connections and first allocations.
WARM_UP_STEPS = 5
TIMEOUT_S = 900
# The exit codes of programs that cannot use the device of the case.
OURS_HAS_NO_DEVICE, PEER_HAS_NO_DEVICE = 6, 3

JOB = """
name: "train" seed: 1 workers: 1 threads: {threads} batch_size: {batch} steps: {steps}
data {{ custom {{ kind: "made_up"
  settings {{ key: "images" value: "{images}" }} settings {{ key: "channels" value: "{channels}" }}
  settings {{ key: "side" value: "{side}" }} settings {{ key: "classes" value: "{classes}" }} }} }}
model {{ named {{ name: "{model}" outputs: {classes} }} }}
loss {{ logit_cross_entropy {{}} }}
optimizer {{ adam {{}} }}
"""


class NoDevice(Exception):
    """A system cannot use the device of the case; the message has the reason."""


class Case:
    def __init__(self, text, options):
        match = re.fullmatch(
            r"(\w+)-(\d+)x(\d+)-b(\d+)-(cpu|cuda)(?:-(f32|tf32|bf16))?", text)
        if not match:
            raise SystemExit(f"{text} is no case; say {next(iter(GOALS))}")
        self.text = text
        self.goals = GOALS.get(text, {})
        self.seconds = options.seconds
        self.model = match[1]
        self.channels, self.side, self.batch = map(int, match.groups()[1:4])
        self.classes = 1000 if self.side >= 224 else 10
        self.threads = options.threads
        self.peer_layout = "channels_last" if match[5] == "cuda" else "nchw"
        self.on = [f"--device={match[5]}", f"--precision={match[6] or 'f32'}"]

    def flags(self):
        names = ("model", "channels", "side", "batch", "classes", "threads", "seconds")
        return [f"--{name}={getattr(self, name)}" for name in names] + self.on

    def job(self, steps):
        return JOB.format(**vars(self), steps=steps, images=2 * self.batch)


def run(command, no_device):
    """Runs a command and returns its output. Raises NoDevice if the exit code is `no_device`."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    if done.returncode == 0:
        return done.stdout
    if done.returncode == no_device:
        raise NoDevice(*done.stderr.strip().splitlines()[-1:])
    raise SystemExit(f"train: {os.path.basename(command[0])} failed: {done.stderr}")


def alone(case):
    return float(run([systems.program("bench/train_alone")] + case.flags(), OURS_HAS_NO_DEVICE))


class Server(conductor.System):
    """A ps-server without workers of its own."""

    def start(self):
        self.address = self.launch_server(
            [systems.program("server/ps-server"), "--bind=127.0.0.1", "--port=0",
             f"--state={self.directory}/state"], "listening on ")


def through_server(case, steps):
    """Returns the speed after the warm-up steps, computed from the progress log."""
    with tempfile.TemporaryDirectory(prefix="sg-", dir="/dev/shm") as scratch:
        job, log = os.path.join(scratch, "train.job"), os.path.join(scratch, "log")
        with open(job, "w") as file:
            file.write(case.job(steps + WARM_UP_STEPS))
        server = Server("server", scratch)
        try:
            run([systems.program("bench/train_through_server"), f"--job={job}",
                 f"--server={server.address}", f"--progress_log={log}"] + case.on,
                OURS_HAS_NO_DEVICE)
        finally:
            server.stop()
        with open(log) as lines:
            ended = {line["step"]: line["time"] for line in map(json.loads, lines)
                     if line["event"] == "step"}
    begin, end = WARM_UP_STEPS, max(ended)
    return (end - begin) * case.batch / (ended[end] - ended[begin])


def measure(case, options, comparisons):
    speeds = {"alone": [], "server": [], "pytorch": []}
    peer = [options.python, systems.program("bench/peers/torch_train.py"),
            f"--layout={case.peer_layout}"]
    no_peer = None
    for _ in range(options.turns):
        speeds["alone"].append(alone(case))
        steps = max(10, int(case.seconds * speeds["alone"][-1] / case.batch))
        speeds["server"].append(through_server(case, steps))
        if no_peer:
            continue
        try:
            speeds["pytorch"].append(float(run(peer + case.flags(), PEER_HAS_NO_DEVICE)))
        except NoDevice as problem:
            no_peer = problem
    medians = {name: statistics.median(values) for name, values in speeds.items() if values}

    def compare(ours, peer_name, peer_speed, goal):
        ratio = medians[ours] / peer_speed
        comparisons.add(case.text, ours, peer_name, medians[ours], peer_speed, "images/s", ratio,
                        goal=goal, at_least=True)
        return f"{ratio:.2f}"

    rows = [[case.text, "alone", f"{medians['alone']:.0f}", ""],
            [case.text, "through a server", f"{medians['server']:.0f}",
             compare("server", "alone", medians["alone"], case.goals.get("server"))]]
    if "pytorch" in medians:
        rows.append([case.text, f"pytorch, {case.peer_layout}", f"{medians['pytorch']:.0f}",
                     compare("alone", "pytorch", medians["pytorch"], case.goals.get("pytorch"))])
    else:
        print(f"{case.text}: not beside PyTorch: {no_peer}", file=sys.stderr)
    if "images" in case.goals:
        compare("alone", "images/s", case.goals["images"], 1.0)
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", default=",".join(GOALS), help="cases, with commas between them")
    parser.add_argument("--threads", type=int, default=2, help="of the processor")
    parser.add_argument("--seconds", type=float, default=4, help="of each turn")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one turn of a second")
    parser.add_argument("--python", default="/usr/bin/python3", help="one that has torch")
    options = parser.parse_args()
    if options.quick:
        options.seconds, options.turns = 1, 1

    results.print_machine()
    print()
    comparisons = results.Comparisons("train")
    rows = []
    for text in options.case.split(","):
        case = Case(text, options)
        try:
            rows += measure(case, options, comparisons)
        except NoDevice as problem:
            print(f"{text}: left out: {problem}", file=sys.stderr)
    results.print_table(["case", "system", "images/s", "ratio"], rows)
    comparisons.close()


if __name__ == "__main__":
    main()
