"""What the tests of syncgrads.torch have in common: a job, a model, its batches, and process groups
of torch.distributed."""

import contextlib
import hashlib
import inspect
import os
import unittest

import torch
from torch import distributed, nn

import syncgrads.torch as sg

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
TIMEOUT = 300  # of each wait, in seconds

# The oneDNN of Debian 13 computes wrong convolutions, with NaN now and then (docs/pytorch.md).
if torch.__version__ == "2.6.0+debian":
    torch.backends.mkldnn.enabled = False


class Net(nn.Module):
    """Convolutions, batch norm, weights that are used twice, and one that is used now and then."""

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
                                      nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(4))
        self.head = nn.Linear(128, 10)
        self.tied = nn.Linear(10, 10)

    def forward(self, x):
        x = self.head(self.features(x).flatten(1))
        return self.tied(torch.relu(self.tied(x)))


def make_model():
    torch.manual_seed(1 + RANK)  # different: rank 0's must be broadcast
    return Net()


def batch(step, rank=RANK):
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return (torch.randn(8, 3, 16, 16, generator=generator),
            torch.randint(10, (8,), generator=generator))


def make_optimizer(model):
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def parameters_of(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def checksum(values):
    return hashlib.sha256(values.numpy().tobytes()).hexdigest()[:16]


@contextlib.contextmanager
def process_group(job, backend="gloo"):
    """Opens the process group of the members of a job, and closes it at the end of the block. The
    store by which they meet is in rank 0, at a port that the system chooses."""
    options = {"wait_for_workers": False}
    if "use_libuv" in (inspect.getdoc(distributed.TCPStore.__init__) or ""):  # PyTorch 2.3
        options["use_libuv"] = False  # Debian builds PyTorch without it
    port = torch.zeros(1, dtype=torch.int64)
    if job.rank == 0:
        store = distributed.TCPStore("127.0.0.1", 0, job.world_size, True, **options)
        port[0] = store.port
    job.broadcast(port, name="the port of the store")
    if job.rank != 0:
        store = distributed.TCPStore("127.0.0.1", int(port), job.world_size, False, **options)
    distributed.init_process_group(backend, store=store, rank=job.rank, world_size=job.world_size)
    try:
        yield
    finally:
        distributed.destroy_process_group()
    job.barrier("the store is not used any more")


class JobTest(unittest.TestCase):
    """Tests that all ranks run in the same order, each in a job of its own."""

    def setUp(self):
        self.job = self.join()

    def tearDown(self):
        # If a test has failed.
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
        self.job.close()

    def join(self, suffix=""):
        """Joins another job, which is the default from now on."""
        return sg.init(job=self.id() + suffix, timeout=TIMEOUT)

    def expect_equal_on_all(self, values):
        """Expects the same values on every rank, and no NaN. `values` has one dimension."""
        everybody = torch.zeros(SIZE, values.numel())
        self.job.all_gather(values.contiguous(), everybody)
        for rank, other in enumerate(everybody):
            differ = (other != values).flatten()  # NaN differs from NaN
            self.assertFalse(differ.any(), f"{int(differ.sum())} of {values.numel()} values: first "
                             f"{other[differ][:3].tolist()} on rank {rank} and "
                             f"{values[differ][:3].tolist()} on rank {RANK}")

    def expect_near(self, values, expected, tolerance=1e-6):
        error = (values - expected).abs().max() / expected.abs().max()
        self.assertLess(error.item(), tolerance)

    def optimized(self, **options):
        model = make_model()
        optimizer = sg.DistributedOptimizer(make_optimizer(model), model, **options)
        return model, optimizer
