"""Models that people train, beside DistributedDataParallel over gloo: the network of the digits
job, and a ResNet-18 on images of 32×32 pixels. The same seeds and batches, with any number of
ranks. tests/deploy/torch.test starts it. Prints a checksum of the parameters of each model."""

import gzip
import itertools
import pathlib
import sys
import unittest

import torch
from torch import nn

import syncgrads.torch as sg
from torch_fixture import SIZE, JobTest, checksum, process_group

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "bench/peers"))
import torch_train  # pylint: disable=wrong-import-position

STEPS = 50


def read_digits():
    """Images of 8×8 pixels, and their classes."""
    with gzip.open(ROOT / "examples/digits/digits.csv.gz", "rt") as file:
        rows = [list(map(float, line.split(","))) for line in file.read().splitlines()[1:]]
    table = torch.tensor(rows)
    return (table[:, :64].reshape(-1, 1, 8, 8) - 4.88) / 6.02, table[:, 64].long()


class Training:
    """A model and how it is trained. The batches of a step are those of all ranks."""

    def __init__(self, job, make, batch, images, targets):
        self.job = job
        self.make = make
        self.batch = batch
        self.images, self.targets = images, targets

    def run(self, wrap, rate):
        """Makes the steps with a model and an optimizer that `wrap` returns. Returns the
        parameters, and the losses of the first and the last step."""
        torch.manual_seed(1)
        model = self.make()
        model, optimizer = wrap(model, torch.optim.SGD(model.parameters(), lr=rate))
        losses = []
        for step in range(STEPS):
            begin = (step * self.job.world_size + self.job.rank) * self.batch
            rows = torch.arange(begin, begin + self.batch) % len(self.images)
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(self.images[rows]), self.targets[rows])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        parameters = [parameter.detach().flatten() for parameter in model.parameters()]
        return torch.cat(parameters), losses


def add_in_rank_order(_, bucket):
    """A communication hook of DistributedDataParallel that averages in the order of the servers."""
    gradients = [torch.empty_like(bucket.buffer()) for _ in range(SIZE)]
    torch.distributed.all_gather(gradients, bucket.buffer())
    average = sum(gradients[1:], gradients[0]) / SIZE
    future = torch.futures.Future()
    future.set_result(average)
    return future


class ModelsTest(JobTest):

    def setUp(self):
        super().setUp()
        self.images, self.targets = read_digits()
        self.groups = itertools.count()

    def gloo(self, training, rate, hook):
        def wrap(model, optimizer):
            model = nn.parallel.DistributedDataParallel(model)
            if hook is not None:
                model.register_comm_hook(None, hook)
            return model, optimizer

        with process_group(self.job):
            return training.run(wrap, rate)

    def optimizer(self, training, rate):
        return training.run(lambda model, optimizer: (model, sg.DistributedOptimizer(
            optimizer, model, name=f"{next(self.groups)}")), rate)[0]

    def ddp(self, training, rate):
        try:
            return training.run(lambda model, optimizer: (
                sg.ddp(model, name=f"{next(self.groups)}"), optimizer), rate)[0]
        finally:
            torch.distributed.destroy_process_group()

    def expect_trained_as_over_gloo(self, name, training, rate, hook=None):
        """The same bits in each run, on each rank, and nearly those of gloo."""
        expected, losses = self.gloo(training, rate, hook)
        runs = [self.optimizer(training, rate), self.optimizer(training, rate),
                self.ddp(training, rate)]
        for trained in runs:
            self.expect_equal_on_all(trained)
            self.assertTrue(torch.equal(trained, runs[0]))
        error = ((runs[0] - expected).abs().max() / expected.abs().max()).item()
        print(f"{name}: {SIZE} ranks, rate {rate}, loss {losses[0]:.3f} to {losses[-1]:.3f}, "
              f"difference to gloo {error:.2g}, checksum {checksum(runs[0])}", flush=True)
        self.assertLess(losses[-1], losses[0])
        self.assertLess(error, 1e-6)

    def test_the_network_of_the_digits_job(self):
        training = Training(self.job, lambda: torch_train.lenet(1, 8, 10), 32, self.images,
                            self.targets)
        self.expect_trained_as_over_gloo("digits", training, 0.2)
        self.job.leave()

    def test_resnet18(self):
        images = nn.functional.interpolate(self.images, scale_factor=4, mode="bilinear",
                                           align_corners=False).expand(-1, 3, -1, -1)
        noise = torch.randn(images.shape, generator=torch.Generator().manual_seed(2))
        training = Training(self.job, lambda: torch_train.resnet((2, 2, 2, 2), 3, 10), 8,
                            images + 0.3 * noise, self.targets)
        # Gloo adds four gradients in an order of its own. After one step, that is a difference of
        # 1e-8. It moves some activations across ReLU's zero, and after five steps it is 5e-3, with
        # any two orders. The sum of two does not depend on their order.
        # Also where the fixture has turned oneDNN off: it is right for multiples of 16 channels, and
        # without it the test takes more than twice as long.
        with torch.backends.mkldnn.flags(enabled=True):
            self.expect_trained_as_over_gloo("resnet18", training, 0.003,
                                             None if SIZE == 2 else add_in_rank_order)
        self.job.leave()


if __name__ == "__main__":
    torch.set_num_threads(1)
    unittest.main()
