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


def ddp_with_static_graph(**options):
    def train(test):
        test.stack.enter_context(alone())
        model = sg.ddp(nn.parallel.DistributedDataParallel(Large(), static_graph=True, **options))
        found = []
        for step in range(4):
            model.zero_grad(set_to_none=True)
            model(step, 2 * step).backward()
            found += [all_are(model.module.first.grad, 1.5 + step),
                      all_are(model.module.second.grad, 1.5 + 2 * step)]
        return found, [True] * 8
    return train


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


class Large(nn.Module):
    """Two weights that are large enough for their averages to be used in the servers' memory."""

    SIZE = 1 << 16

    def __init__(self):
        super().__init__()
        self.first, self.second = (nn.Parameter(torch.zeros(self.SIZE)) for _ in range(2))

    def forward(self, first, second):
        loss = (self.first * (1 + RANK + first)).sum()
        return loss if second is None else loss + (self.second * (1 + RANK + second)).sum()


def trained(kind):
    """A model, and a function that forgets its gradients."""
    model = Large()
    if kind == "ddp":
        parallel = sg.ddp(model)
        return model, parallel, lambda: parallel.zero_grad(set_to_none=True)
    optimizer = sg.DistributedOptimizer(sgd(model), model)
    return model, model, lambda: optimizer.zero_grad(set_to_none=True)


def all_are(tensor, value):
    return bool((tensor == value).all())


def results_in_place(kind):
    def train(_):
        model, call, forget = trained(kind)
        averages, places = [], [set(), set()]
        for step in range(8):
            forget()
            call(step, 2 * step).backward()
            weights = (model.first, model.second)
            averages += [all_are(weights[0].grad, 1.5 + step),
                         all_are(weights[1].grad, 1.5 + 2 * step)]
            for place, weight in zip(places, weights):
                place.add(weight.grad.data_ptr())
        # Servers write results to two places in turn.
        return averages + [len(place) for place in places], [True] * 16 + [2, 2]
    return train


def changed_results(kind, change):
    """Averages that the program changes, which are copies from then on."""
    def train(_):
        model, call, forget = trained(kind)
        found = []
        for step in range(8):
            forget()
            call(step, step).backward()
            found.append(all_are(model.first.grad, 1.5 + step))
            # Not in all steps: what is changed later is then in the memory of an earlier step.
            if step not in (1, 4):
                change(model.first.grad)
                change(model.second.grad)
                found.append(all_are(model.second.grad, 2 * (1.5 + step)))
        return found, [True] * 14
    return train


def double(gradient):
    gradient.mul_(2)


def double_unseen(gradient):
    gradient.data.mul_(2)  # without a new version


def zeroed_results(kind):
    """zero_grad(set_to_none=False), the default of PyTorch 1.13."""
    def train(_):
        model, call, _ = trained(kind)
        found = []
        for step in range(6):
            for weight in (model.first, model.second):
                if weight.grad is not None:
                    weight.grad.zero_()
            call(step, 2 * step).backward()
            found += [all_are(model.first.grad, 1.5 + step),
                      all_are(model.second.grad, 1.5 + 2 * step)]
        return found, [True] * 12
    return train


def skipped_result_in_place(_):
    """The average of a gradient that nobody has computed since stays."""
    model = Large()
    optimizer = sg.DistributedOptimizer(sgd(model), model)
    found = []
    for step in range(6):
        model.first.grad = None
        model(step, 7 if step == 0 else None).backward()
        optimizer.step()
        found += [all_are(model.first.grad, 1.5 + step), all_are(model.second.grad, 1.5 + 7)]
    return found, [True] * 12


def results_after_leave(kind):
    """Averages are in memory of this process when the worker has left, because the others go on."""
    def train(test):
        model, call, forget = trained(kind)
        for step in range(3):
            forget()
            call(step, step).backward()
        place = model.first.grad.data_ptr()
        test.job.barrier()
        test.job.leave()
        return ([all_are(model.first.grad, 3.5), all_are(model.second.grad, 3.5),
                 model.first.grad.data_ptr() != place], [True] * 3)
    return train


_HAS_SCALER = hasattr(torch, "amp") and hasattr(torch.amp, "GradScaler")
_CASES = {
    "step(closure)": closure,
    "bfloat16": half_precision(torch.bfloat16),
    "float16": half_precision(torch.float16),
    "retain_graph, and two passes": retained_graph,
    "ddp, no_sync()": ddp_without_sync,
    "ddp, static_graph": ddp_with_static_graph(),
    "ddp, static_graph, gradient_as_bucket_view": ddp_with_static_graph(
        gradient_as_bucket_view=True),
    "ddp, clip_grad_norm_": ddp_with_clipping,
    "all_gather_into_tensor": gather_into_tensor,
    **{f"{kind}, {name}": case(kind) for kind in ("optimizer", "ddp") for name, case in {
        "results in place": results_in_place,
        "changed results": lambda kind: changed_results(kind, double),
        "changed results, unseen": lambda kind: changed_results(kind, double_unseen),
        "zeroed results": zeroed_results,
        "results after leave": results_after_leave}.items()},
    "a skipped result in place": skipped_result_in_place,
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
