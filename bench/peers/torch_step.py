"""A worker of //bench:torch. It makes the steps that the conductor requests (bench/conducted.h),
with PyTorch.

--system says how gradients are averaged: alone and ddp-alone (they are not, without and with a
DistributedDataParallel), ddp (DistributedDataParallel over gloo), optimizer
(syncgrads.torch.DistributedOptimizer), or hook (syncgrads.torch.ddp).
--work is what a step consists of:

  gradients  a backward pass that writes the 161 gradients of a ResNet-50, and computes nothing
  tiny       the same with 161 gradients of one element
  resnet18   forward, backward and update of a ResNet-18 on 32 images of 32×32 pixels
"""

import argparse
import os
import socket
import sys
import time

import torch
from torch import nn

import torch_train

# The parameters whose gradients are checked after every step.
CHECKED = 8


def resnet50_shapes():
    """The shapes of a ResNet-50's 161 parameters, 97.5 MiB in float32, in their order."""
    shapes = [(64, 3, 7, 7), (64,), (64,)]
    inputs = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            shapes += [(width, inputs, 1, 1), (width,), (width,),
                       (width, width, 3, 3), (width,), (width,),
                       (4 * width, width, 1, 1), (4 * width,), (4 * width,)]
            if block == 0:
                shapes += [(4 * width, inputs, 1, 1), (4 * width,), (4 * width,)]
            inputs = 4 * width
    return shapes + [(1000, 2048), (1000,)]


class Write(torch.autograd.Function):
    """Zero. Its gradient has the value `source.value` everywhere."""

    @staticmethod
    def forward(ctx, parameter, source):
        ctx.shape, ctx.source = parameter.shape, source
        return parameter.new_zeros(())

    @staticmethod
    def backward(ctx, _):
        return torch.full(ctx.shape, ctx.source.value), None


class Gradients(nn.Module):
    """Parameters of the given shapes. Backward writes all gradients, the last first."""

    def __init__(self, shapes):
        super().__init__()
        self.parts = nn.ParameterList([nn.Parameter(torch.zeros(shape)) for shape in shapes])
        self.value = 0.0

    def forward(self):
        return torch.stack([Write.apply(part, self) for part in self.parts]).sum()


class WriteStep:
    """Steps whose gradients are known."""

    def __init__(self, shapes, options):
        self.model = Gradients(shapes)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self._rank = options.rank
        alone = options.system in ("alone", "ddp-alone")
        self._offset = options.rank if alone else (options.world_size - 1) / 2
        self._expected = 0.0

    def __call__(self, model, number):
        base = number % 64
        self.model.value = float(base + self._rank)
        self._expected = base + self._offset
        self.optimizer.zero_grad(set_to_none=True)
        model().backward()

    def wrong(self, everywhere):
        parts = list(self.model.parts)
        if not everywhere:
            parts = parts[::max(1, len(parts) // CHECKED)]
        for number, part in enumerate(parts):
            values = part.grad if everywhere else part.grad.flatten()[-1:]
            if not (values - self._expected).abs().max() < 1e-4:
                return f"gradient {number} is {values.flatten()[-1]}, the mean is {self._expected}"
        return ""


class TrainStep:
    """Steps of training a ResNet-18."""

    def __init__(self, options):
        torch.manual_seed(1)
        self.model = torch_train.resnet((2, 2, 2, 2), 3, 10)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.001)
        self._images = torch.rand(32, 3, 32, 32) * 2 - 1
        self._targets = torch.randint(0, 10, (32,))
        self._loss = torch.zeros(())

    def __call__(self, model, _number):
        self.optimizer.zero_grad(set_to_none=True)
        self._loss = nn.functional.cross_entropy(model(self._images), self._targets)
        self._loss.backward()
        self.optimizer.step()

    def wrong(self, everywhere):  # pylint: disable=unused-argument
        return "" if torch.isfinite(self._loss) else f"the loss is {self._loss}"


def leave_as_it_is(_, bucket):
    """A communication hook without communication."""
    future = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


def distributed(step, options):
    """Lets the step's gradients be averaged. Returns the model to be called."""
    if options.system == "alone":
        return step.model
    if options.system == "ddp-alone":
        torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0,
                                             world_size=1)
        model = nn.parallel.DistributedDataParallel(step.model, gradient_as_bucket_view=True)
        model.register_comm_hook(None, leave_as_it_is)
        return model
    if options.system == "ddp":
        torch.distributed.init_process_group("gloo", init_method=f"file://{options.meeting}",
                                             rank=options.rank, world_size=options.world_size)
        # Without one of two copies, and without the broadcast of batch norm's statistics, which
        # ours do not have.
        return nn.parallel.DistributedDataParallel(step.model, gradient_as_bucket_view=True,
                                                   broadcast_buffers=False)
    import syncgrads.torch as sg  # pylint: disable=import-outside-toplevel

    sg.init(options.server, "bench", rank=options.rank, world_size=options.world_size,
            timeout=120, shared_memory=not options.tcp)
    if options.system == "hook":
        return sg.ddp(step.model)
    step.optimizer = sg.DistributedOptimizer(step.optimizer, step.model)
    return step.model


class Conductor:
    """The socket to the conductor."""

    def __init__(self, path, rank):
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(path)
        self._lines = self._socket.makefile("r")
        self.say(f"ready {rank} {os.getpid()}")

    def say(self, line):
        self._socket.sendall(line.encode() + b"\n")

    def commands(self):
        for line in self._lines:
            yield line.split()


def follow(conductor, step, model, rank):
    done = 0
    for command, *arguments in conductor.commands():
        wrong, moments = "", []
        if command == "run":
            for _ in range(int(arguments[0])):
                done += 1
                moments.append(time.monotonic_ns())
                step(model, done)
                moments.append(time.monotonic_ns())
                wrong = wrong or step.wrong(everywhere=False)
        elif command == "check":
            wrong = step.wrong(everywhere=True)
        if wrong:
            conductor.say(f"wrong rank {rank}, step {done}: {wrong}")
        else:
            conductor.say(" ".join(["done", *map(str, moments)]) if moments else "ok")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--system", required=True,
                        choices=("alone", "ddp-alone", "ddp", "optimizer", "hook"))
    parser.add_argument("--work", required=True, choices=("gradients", "tiny", "resnet18"))
    parser.add_argument("--conductor", required=True, help="the conductor's socket")
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--world_size", type=int, required=True)
    parser.add_argument("--server", help="of syncgrads, HOST:PORT")
    parser.add_argument("--meeting", help="the file by which gloo's processes meet")
    parser.add_argument("--tcp", action="store_true", help="without shared memory")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.work == "resnet18":
        step = TrainStep(options)
    else:
        shapes = resnet50_shapes()
        step = WriteStep(shapes if options.work == "gradients" else [(1,)] * len(shapes), options)
    model = distributed(step, options)
    follow(Conductor(options.conductor, options.rank), step, model, options.rank)
    sys.stdout.flush()
    os._exit(0)  # gloo's threads may wait for processes that have ended


main()
