"""A worker of a job that ps-worker trains too: PyTorch computes the gradients, and an optimizer on
the servers applies their averages. tests/deploy/torch13.test starts it, once for each version of
Python and PyTorch, with a server in SYNCGRADS_SERVER.

  mixed_job.py job         prints the file of the job
  mixed_job.py train       trains, and prints a checksum of the parameters
  mixed_job.py check FILE  prints the checksum of the parameters in a file of ps-worker
"""

import gzip
import hashlib
import pathlib
import platform
import struct
import sys
import time

import numpy
import torch
from torch import nn

import syncgrads
import syncgrads.torch as sg

DIGITS = pathlib.Path(__file__).resolve().parents[3] / "examples/digits/digits.csv.gz"
WORKERS, BATCH, EPOCHS = 3, 50, 4
JOB = f"""
name: "mixed"
seed: 1
workers: {WORKERS}
batch_size: {BATCH}
epochs: {EPOCHS}
data {{ table {{ path: "{DIGITS}" }} target: "digit" shards: {WORKERS} }}
model {{
  layers {{ dense {{ outputs: 32 activation: TANH torch_names: true }} }}
  layers {{ dense {{ outputs: 10 torch_names: true }} }}
}}
loss {{ logit_cross_entropy {{}} }}
optimizer {{ momentum {{ learning_rate: 0.01 momentum: 0.9 }} }}
optimizer_placement: SERVERS
"""


class Net(nn.Module):

    def __init__(self):
        super().__init__()
        self.dense1 = nn.Linear(64, 32)
        self.dense2 = nn.Linear(32, 10)

    def forward(self, x):
        return self.dense2(torch.tanh(self.dense1(x)))


def checksum(model):
    values = torch.cat([one.detach().flatten() for one in model.parameters()])
    return hashlib.sha256(values.numpy().tobytes()).hexdigest()[:16]


def list_of(strings):
    """EncodeStrings in worker/base/string_list.h."""
    return b"".join(struct.pack("<Q", len(one)) + one for one in strings)


def gather(job, name, content):
    """Team::Gather in worker/team/team.h."""
    longest = job.all_reduce(numpy.array([len(content)]), "max", name=f"{name}/length")[0]
    words = 1 + (longest + 7) // 8
    sent = numpy.zeros(words, numpy.int64)
    sent[0] = len(content)
    sent[1:].view(numpy.uint8)[:len(content)] = numpy.frombuffer(content, numpy.uint8)
    job.all_gather(sent, numpy.zeros((job.world_size, words), numpy.int64), name=f"{name}/{words}")


class TeamLoss:
    """The collectives of TeamLoss in worker/report/team_loss.cc, without a loss."""

    def __init__(self, job, steps):
        self._job, self._steps = job, steps
        self._began = time.monotonic()
        self._sums, self._pending = numpy.zeros(4), None
        self._interval, self._end = 1, 0

    def stepped(self, step):
        if step < self._end and step < self._steps:
            return
        waits = self._end == 0 or step == self._steps
        self._finish()
        now = time.monotonic()
        self._sums[:] = 0, 0, 0, now - self._began
        self._began, self._end = now, step + self._interval
        self._pending = self._job.start_all_reduce(self._sums, name="training loss")
        if waits:
            self._finish()

    def _finish(self):
        if self._pending is None:
            return
        self._pending.wait()
        self._pending = None
        seconds = self._sums[3] / WORKERS
        if seconds < 0.5:
            self._interval *= 2
        elif seconds > 2:
            self._interval = max(self._interval // 2, 1)


def train():
    torch.set_num_threads(1)
    with gzip.open(DIGITS, "rt") as file:
        header, *rows = file.read().splitlines()
    table = torch.tensor([list(map(float, row.split(","))) for row in rows])
    with sg.init(job="mixed", timeout=120) as job:
        mine = table[job.rank::job.world_size]
        batches = EPOCHS * (-(-len(mine) // BATCH))
        gather(job, "hosts", platform.node().encode())
        gather(job, "resume/kept", struct.pack("<Q", 0))
        gather(job, "resume/found", b"")
        gather(job, "data/columns", list_of([
            list_of(name.encode() for name in header.split(",")[:64]), b""]))
        job.all_reduce(numpy.array([len(mine), 0.0]), name="plan/rows")
        job.all_reduce(numpy.array([float(batches), 0.0, 0.0]), "max", name="plan/steps")
        model = Net()
        parameters = dict(model.named_parameters())
        group = job.register("model", parameters, optimizer={
            "momentum": {"learning_rate": 0.01, "momentum": 0.9}})
        group.broadcast([one.data for one in parameters.values()])
        loss = TeamLoss(job, batches)
        for batch in range(batches):
            part = mine.roll(-BATCH * batch, 0)[:BATCH]
            model.zero_grad()
            nn.functional.cross_entropy(model(part[:, :64]), part[:, 64].long()).backward()
            group.set_weight(len(part))
            for name, parameter in reversed(list(parameters.items())):
                group.push(name, parameter.grad, out=parameter.data)
            group.wait_step()
            loss.stepped(batch + 1)
        group.end()
        try:
            while True:
                for name, parameter in parameters.items():
                    group.skip(name, out=parameter.data)
                group.wait_step()
        except syncgrads.OutOfRange:
            print("torch", torch.__version__, "steps", group.step - 1, "end", checksum(model))


def check(path):
    model = Net()
    sg.load(model, path)
    print("end", checksum(model))


if __name__ == "__main__":
    if sys.argv[1] == "job":
        print(JOB)
    elif sys.argv[1] == "train":
        train()
    else:
        check(sys.argv[2])
