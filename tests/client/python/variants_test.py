"""Ways to use PyTorch that are not in the other tests, each with the gradients that it must have.
tests/deploy/torch.test starts it as two ranks.

In each row of _CASES, a function gets a model of one weight per element, whose gradient is the
input: that of rank r is 1 + r, so that averages are 1.5. It returns what it found and what it
expected."""

import contextlib
import unittest

import torch
from torch import nn

import syncgrads.torch as sg
from torch_fixture import RANK, JobTest, process_group


class Weights(nn.Module):

    def __init__(self, dtype=torch.float32):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(4, dtype=dtype))

    def forward(self, x):
        return (self.weight * x).sum()


def x_of(step=0, dtype=torch.float32):
    return torch.full((4,), 1 + RANK + step, dtype=dtype)


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=1)


def closure(_):
    model = Weights()
    optimizer = sg.DistributedOptimizer(sgd(model), model)

    def compute():
        optimizer.zero_grad()
        loss = model(x_of())
        loss.backward()
        return loss

    losses = [float(optimizer.step(compute)) for _ in range(2)]
    return losses + model.weight.tolist(), [0, -6 * (1 + RANK)] + [-3] * 4


def half_precision(dtype):
    def train(_):
        model = Weights(dtype)
        optimizer = sg.DistributedOptimizer(sgd(model), model)
        for step in range(2):
            optimizer.zero_grad()
            model(x_of(step, dtype)).backward()
            optimizer.step()
        return model.weight.tolist(), [-1.5 - 2.5] * 4
    return train


def retained_graph(_):
    model = Weights()
    optimizer = sg.DistributedOptimizer(sgd(model), model, backward_passes_per_step=2)
    loss = model(x_of())
    loss.backward(retain_graph=True)
    alone = model.weight.grad.tolist()
    loss.backward()
    optimizer.step()
    return alone + model.weight.grad.tolist(), [1 + RANK] * 4 + [3] * 4


def ddp_without_sync(_):
    model = sg.ddp(Weights())
    for _ in range(2):
        model.zero_grad()
        with model.no_sync():
            model(x_of()).backward()
        alone = model.module.weight.grad.tolist()
        model(x_of(1)).backward()
    return alone + model.module.weight.grad.tolist(), [1 + RANK] * 4 + [4] * 4


def ddp_with_static_graph(test):
    test.stack.enter_context(alone())
    model = sg.ddp(nn.parallel.DistributedDataParallel(Weights(), static_graph=True))
    found = []
    for step in range(3):
        model.zero_grad()
        model(x_of(step)).backward()
        found.append(model.module.weight.grad.tolist())
    return found, [[1.5 + step] * 4 for step in range(3)]


def ddp_with_clipping(_):
    model = sg.ddp(Weights())
    model(x_of()).backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.5)
    return ([norm.item()] + [round(one, 4) for one in model.module.weight.grad.tolist()],
            [3] + [0.75] * 4)


def ddp_with_grad_scaler(_):
    model = sg.ddp(Weights())
    optimizer = sgd(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for step in range(3):
        optimizer.zero_grad()
        loss = scaler.scale(model(x_of()))
        (loss * float("inf") if RANK == 1 and step == 1 else loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return [scaler.get_scale()] + model.module.weight.tolist(), [2] + [-3] * 4


def gather_into_tensor(test):
    test.stack.enter_context(process_group(test.job, "syncgrads"))
    found = []
    for size in (4, 5000):  # few elements, and many
        gathered = torch.zeros(2 * size)
        gather = getattr(torch.distributed, "all_gather_into_tensor",
                         torch.distributed._all_gather_base)
        gather(gathered, torch.arange(float(size)) + RANK)
        expected = torch.arange(float(size))
        found.append(torch.equal(gathered, torch.cat([expected, expected + 1])))
    return found, [True, True]


_HAS_SCALER = hasattr(torch, "amp") and hasattr(torch.amp, "GradScaler")
_CASES = {
    "step(closure)": closure,
    "bfloat16": half_precision(torch.bfloat16),
    "float16": half_precision(torch.float16),
    "retain_graph, and two passes": retained_graph,
    "ddp, no_sync()": ddp_without_sync,
    "ddp, static_graph": ddp_with_static_graph,
    "ddp, clip_grad_norm_": ddp_with_clipping,
    "all_gather_into_tensor": gather_into_tensor,
    **({"ddp, GradScaler": ddp_with_grad_scaler} if _HAS_SCALER else {}),
}


@contextlib.contextmanager
def alone():
    """A process group of this process."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0,
                                         world_size=1)
    yield


class VariantsTest(JobTest):

    def test_gradients_are_averages(self):
        self.job.close()
        for name, case in _CASES.items():
            with self.subTest(name):
                self.job = self.join(f"/{name}")
                with contextlib.ExitStack() as self.stack:
                    found, expected = case(self)
                    self.assertEqual(found, expected)
                if torch.distributed.is_initialized():
                    torch.distributed.destroy_process_group()
                self.job.leave()
                self.job.close()


if __name__ == "__main__":
    torch.set_num_threads(1)
    unittest.main()
