"""syncgrads.torch beside DistributedDataParallel over gloo: the same model, seeds and batches, as
two ranks. tests/deploy/torch.test starts it. Prints a checksum of the parameters of each way."""

import contextlib
import copy
import hashlib
import os
import sys
import unittest

import torch
import torch.utils.checkpoint
from torch import nn

import syncgrads
import syncgrads.torch as sg

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
STEPS = 50
TIMEOUT = 120


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


def train(model, optimizer, steps=STEPS, passes=1):
    for step in range(steps):
        optimizer.zero_grad()
        for part in range(passes):
            x, y = batch(step * passes + part)
            nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()


def train_step(model, optimizer, step):
    optimizer.zero_grad()
    x, y = batch(step)
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()


def parameters_of(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def checksum(values):
    return hashlib.sha256(values.numpy().tobytes()).hexdigest()[:16]


class TorchTest(unittest.TestCase):

    def setUp(self):
        self.job = sg.init(job=self.id(), timeout=TIMEOUT)

    def tearDown(self):
        # If a test has failed, so that the next one does not wait for ever.
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
        self.job.close()

    def expect_equal_on_all(self, values):
        """Expects the same bits on every rank."""
        everybody = torch.zeros(SIZE, values.numel())
        self.job.all_gather(values.contiguous(), everybody)
        for other in everybody:
            self.assertTrue(torch.equal(other, values))

    def expect_near(self, values, expected):
        error = (values - expected).abs().max() / expected.abs().max()
        self.assertLess(error.item(), 1e-6)

    def gloo(self, passes=1, backend="gloo"):
        """What DistributedDataParallel over gloo makes of the same training."""
        torch.distributed.init_process_group(backend, rank=RANK, world_size=SIZE)
        try:
            model = nn.parallel.DistributedDataParallel(make_model())
            optimizer = make_optimizer(model)
            for step in range(STEPS):
                optimizer.zero_grad()
                for part in range(passes):
                    x, y = batch(step * passes + part)
                    nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()
            return parameters_of(model)
        finally:
            torch.distributed.destroy_process_group()
            self.job.barrier()  # the next group must not meet at this one's store

    def optimized(self, **options):
        model = make_model()
        optimizer = sg.DistributedOptimizer(make_optimizer(model), model, **options)
        return model, optimizer

    def test_optimizer_trains_as_ddp_does_bit_identically_in_every_run(self):
        expected = self.gloo()
        runs = []
        for run in range(2):
            model, optimizer = self.optimized(name=f"model{run}")
            self.assertIsInstance(optimizer, torch.optim.SGD)
            train(model, optimizer)
            runs.append(parameters_of(model))
            self.expect_equal_on_all(runs[-1])
            self.expect_near(runs[-1], expected)
        self.assertTrue(torch.equal(runs[0], runs[1]))
        print("DistributedOptimizer", checksum(runs[0]), flush=True)
        self.job.leave()

    def test_ddp_trains_as_over_gloo(self):
        expected = self.gloo()
        model = sg.ddp(make_model())
        train(model, make_optimizer(model))
        trained = parameters_of(model)
        torch.distributed.destroy_process_group()
        self.expect_equal_on_all(trained)
        self.expect_near(trained, expected)
        print("ddp", checksum(trained), flush=True)
        self.job.leave()

    def test_ddp_with_several_buckets(self):
        torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0,
                                             world_size=1)
        layers = nn.Sequential(*[nn.Linear(300, 300, bias=False) for _ in range(6)])
        with torch.no_grad():
            for layer in layers:
                layer.weight.copy_(torch.eye(300))
        model = sg.ddp(nn.parallel.DistributedDataParallel(layers, bucket_cap_mb=0.1))
        for step in range(3):
            model.zero_grad()
            model(torch.full((1, 300), 1.0 + RANK + step)).sum().backward()
            for layer in layers:
                self.assertTrue((layer.weight.grad == 1.5 + step).all())
        torch.distributed.destroy_process_group()
        self.job.leave()

    def test_a_process_group_of_the_job(self):
        dist = torch.distributed
        dist.init_process_group("syncgrads", rank=RANK, world_size=SIZE)
        self.assertEqual((dist.get_backend(), dist.get_rank(), dist.get_world_size()),
                         ("syncgrads", RANK, SIZE))
        values = torch.arange(6.0).reshape(2, 3).t() + RANK  # not contiguous
        dist.all_reduce(values)
        self.assertEqual(values.tolist(), [[1, 7], [3, 9], [5, 11]])
        flags = torch.tensor([RANK == 0, False])
        dist.all_reduce(flags, dist.ReduceOp.MAX)
        self.assertEqual(flags.tolist(), [True, False])
        works = [dist.all_reduce(torch.full((1000,), float(number)), async_op=True)
                 for number in range(20)]
        for number, work in enumerate(works):
            work.wait()
            self.assertEqual(work.get_future().wait()[0][0], 2 * number)
        values = torch.tensor([float(RANK)])
        dist.broadcast(values, 1)
        self.assertEqual(values.item(), 1)
        gathered = [torch.zeros(2) for _ in range(SIZE)]
        dist.all_gather(gathered, torch.full((2,), float(RANK)))
        self.assertEqual([one.tolist() for one in gathered], [[0, 0], [1, 1]])
        values = torch.tensor([RANK + 1.0])
        dist.reduce(values, 1)
        self.assertEqual(values.item(), [1, 3][RANK])
        dist.barrier()
        with self.assertRaisesRegex(syncgrads.Unimplemented, "no scatter; it has all_reduce"):
            dist.scatter(torch.zeros(1), [torch.zeros(1)] * 2 if RANK == 0 else None)
        with self.assertRaisesRegex(syncgrads.Unimplemented, "no reduction BAND"):
            dist.all_reduce(torch.zeros(1, dtype=torch.int64), dist.ReduceOp.BAND)
        self.assertEqual(dist.group.WORLD._works, {})
        dist.destroy_process_group()
        self.job.leave()

    def test_ddp_over_the_process_group_trains_as_over_gloo(self):
        self.expect_near(self.gloo(backend="syncgrads"), self.gloo())
        self.job.leave()

    def test_gradients_are_accumulated(self):
        expected = self.gloo(passes=3)
        model, optimizer = self.optimized(backward_passes_per_step=3)
        train(model, optimizer, passes=3)
        self.expect_near(parameters_of(model), expected)
        # A worker with fewer passes synchronises in step().
        optimizer.zero_grad()
        for _ in range(3 - RANK):
            model(batch(0)[0]).sum().backward()
        optimizer.step()
        self.assertEqual(optimizer.sync_group.step, STEPS + 2)
        self.job.leave()

    def test_clipping_and_schedulers_see_averages(self):
        model, optimizer = self.optimized()
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
        for step in range(4):
            optimizer.zero_grad()
            x, y = batch(step)
            nn.functional.cross_entropy(model(x), y).backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            self.expect_equal_on_all(norm.reshape(1))
            optimizer.step()
            scheduler.step()
        self.assertEqual(optimizer.param_groups[0]["lr"], 0.05 / 4)
        self.expect_equal_on_all(parameters_of(model))
        self.job.leave()

    def test_gradients_that_one_worker_lacks_are_those_of_the_others(self):
        model = nn.ModuleDict({"a": nn.Linear(2, 1, bias=False), "b": nn.Linear(2, 1, bias=False),
                               "c": nn.Linear(2, 1, bias=False)})
        optimizer = sg.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1), model)
        x = torch.tensor([[1.0, 2.0]]) * (1 + RANK)
        loss = model["a"](x).sum()
        if RANK == 1:
            loss = loss + model["b"](x).sum()
        loss.backward()
        self.assertEqual(model["a"].weight.grad.tolist(), [[1.5, 3]])
        self.assertEqual(model["b"].weight.grad.tolist(), [[2, 4]])
        self.assertIsNone(model["c"].weight.grad)
        optimizer.step()
        self.expect_equal_on_all(parameters_of(model))
        self.job.leave()

    def test_a_step_without_backward_takes_the_gradients_of_the_others(self):
        model = nn.Linear(2, 1, bias=False)
        optimizer = sg.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1), model)
        before = model.weight.detach().clone()
        if RANK == 0:
            model(torch.tensor([[1.0, 2.0]])).sum().backward()
        optimizer.step()
        self.assertEqual((before - model.weight).tolist(), [[1, 2]])
        self.job.leave()

    def test_a_second_backward_before_the_step_is_refused(self):
        model, optimizer = self.optimized()
        x, y = batch(0)
        nn.functional.cross_entropy(model(x), y).backward()
        with self.assertRaisesRegex(syncgrads.FailedPrecondition, "backward_passes.*reentrant"):
            nn.functional.cross_entropy(model(x), y).backward()
        # As GradScaler does when it skips a step.
        model.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        self.assertEqual(optimizer.sync_group.step, 3)
        self.expect_equal_on_all(parameters_of(model))

        within = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        optimizer = sg.DistributedOptimizer(make_optimizer(within), within, name="within")
        x = torch.ones(1, 2, requires_grad=True)
        for reentrant in (False, True):
            with contextlib.ExitStack() as stack:
                if reentrant:
                    stack.enter_context(
                        self.assertRaisesRegex(syncgrads.FailedPrecondition, "reentrant"))
                for layer in within:
                    x = torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=reentrant)
                x.sum().backward()
                optimizer.step()
        self.job.leave()

    def test_a_nan_of_one_worker_is_seen_by_all(self):
        model, optimizer = self.optimized()
        x, y = batch(0)
        loss = nn.functional.cross_entropy(model(x), y)
        (loss * float("inf") if RANK == 1 else loss).backward()
        self.assertFalse(torch.isfinite(model.head.weight.grad).all())
        self.job.leave()

    def test_large_gradients_stay_where_servers_read_them(self):
        def make_wide():  # a weight of 30 KiB
            torch.manual_seed(1 + RANK)
            return nn.Sequential(nn.Flatten(), nn.Linear(768, 10))

        expected, model = make_wide(), make_wide()
        optimizer = sg.DistributedOptimizer(make_optimizer(expected), expected, name="expected")
        train(expected, optimizer, steps=4)
        optimizer = sg.DistributedOptimizer(make_optimizer(model), model)
        places = []
        for step, sets_to_none in enumerate((False, False, False, True)):
            optimizer.zero_grad(set_to_none=sets_to_none)
            x, y = batch(step)
            nn.functional.cross_entropy(model(x), y).backward()
            places.append(model[1].weight.grad.data_ptr())
            optimizer.step()
        self.assertEqual(len(set(places)), 1)
        self.assertTrue(torch.equal(parameters_of(model), parameters_of(expected)))
        self.job.leave()

    def test_gradients_can_be_allocated(self):
        model = nn.Linear(3, 2)
        model.bias.grad = torch.full((2,), 5.0)
        sg.allocate_gradients(model)
        self.assertEqual(model.bias.grad.tolist(), [5, 5])
        self.assertEqual(model.weight.grad.tolist(), [[0, 0, 0]] * 2)
        places = [parameter.grad.data_ptr() for parameter in model.parameters()]
        model(torch.ones(1, 3)).sum().backward()
        self.assertEqual(places, [parameter.grad.data_ptr() for parameter in model.parameters()])
        self.job.all_reduce(model.weight.grad)
        self.assertEqual(model.weight.grad.tolist(), [[2, 2, 2]] * 2)
        self.job.leave()

    def test_gradients_that_are_not_contiguous(self):
        model = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
        optimizer = sg.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1), model)
        x = torch.ones(1, 3, 5, 5).to(memory_format=torch.channels_last) * (1 + RANK)
        model(x).sum().backward()
        self.assertEqual(model.weight.grad.flatten()[0].item(), 9 * 1.5)
        optimizer.step()
        self.expect_equal_on_all(parameters_of(model))
        self.job.leave()

    def test_an_exception_in_backward_does_not_disturb_the_others(self):
        class Fails(torch.autograd.Function):

            @staticmethod
            def forward(ctx, x):
                return x.clone()

            @staticmethod
            def backward(ctx, gradient):
                raise ValueError("no gradient today")

        model, optimizer = self.optimized()
        for step in range(3):
            optimizer.zero_grad()
            x, y = batch(step)
            x = model.features(x)
            if RANK == 1 and step == 1:
                x = Fails.apply(x)
            loss = nn.functional.cross_entropy(model.tied(model.head(x.flatten(1))), y)
            if RANK == 1 and step == 1:
                with self.assertRaisesRegex(ValueError, "no gradient today"):
                    loss.backward()
                with self.assertRaisesRegex(syncgrads.FailedPrecondition, "zero_grad"):
                    optimizer.step()
                continue
            loss.backward()
            optimizer.step()
        self.assertEqual(optimizer.sync_group.step, 4)
        self.job.leave()

    def test_wrong_use_says_what_to_do(self):
        with self.assertRaisesRegex(syncgrads.InvalidArgument, "that the model has not"):
            sg.DistributedOptimizer(make_optimizer(make_model()), make_model(), broadcast_from=None)
        with self.assertRaisesRegex(syncgrads.InvalidArgument, "needs a gradient"):
            frozen = nn.Linear(1, 1).requires_grad_(False)
            sg.DistributedOptimizer(make_optimizer(make_model()), frozen)
        model, optimizer = self.optimized()
        with self.assertRaisesRegex(syncgrads.FailedPrecondition, "cannot be added"):
            optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))]})
        table = nn.Embedding(4, 2, sparse=True)
        of_table = sg.DistributedOptimizer(make_optimizer(table), table, name="table")
        with self.assertRaisesRegex(syncgrads.InvalidArgument, "'weight' is sparse"):
            table(torch.tensor([1])).sum().backward()
        del of_table
        self.assertIsNotNone(copy.copy(optimizer.state_dict()))
        self.job.close()
        with self.assertRaisesRegex(syncgrads.FailedPrecondition, "is closed"):
            model(batch(0)[0]).sum().backward()

    def test_a_model_that_has_changed_is_refused(self):
        for number, change in enumerate((nn.Module.double, lambda model: setattr(
                model.weight, "data", torch.zeros(3, 2)))):
            model = nn.Linear(2, 2, bias=False)
            optimizer = sg.DistributedOptimizer(make_optimizer(model), model, name=f"{number}")
            change(model)
            with self.assertRaisesRegex(
                    syncgrads.InvalidArgument,
                    r"is torch.float(64\[2|32\[3), 2\].* registered as torch.float32\[2, 2\].*new"):
                if number == 0:  # PyTorch itself refuses other shapes in backward
                    model(torch.ones(1, 2, dtype=torch.float64)).sum().backward()
                optimizer.step()
        self.job.leave()

    def test_wrong_use_by_one_worker_does_not_disturb_the_others(self):
        other = nn.Linear(1, 1)
        with sg.init(job=f"{self.id()}/second", timeout=TIMEOUT) as second:  # two jobs
            optimizer = sg.DistributedOptimizer(make_optimizer(other), other, job=second)
            other(torch.ones(1, 1)).sum().backward()
            optimizer.step()

        model = nn.Linear(2, 2, bias=False)
        optimizer = sg.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1), model,
                                            job=self.job)
        for step in range(3):
            optimizer.zero_grad()
            if RANK == 1 and step == 1:
                model.double()
                with self.assertRaisesRegex(syncgrads.InvalidArgument, "float64.* make a new"):
                    model(torch.ones(1, 2, dtype=torch.float64)).sum().backward()
                    optimizer.step()
                self.job.leave()
                with self.assertRaisesRegex(syncgrads.FailedPrecondition, "has left"):
                    self.job.barrier()
                return
            model(torch.ones(1, 2) * (1 + RANK)).sum().backward()
            optimizer.step()
            self.assertEqual(model.weight.grad.tolist(), [[1.5 if step == 0 else 1.0] * 2] * 2)
        self.assertEqual(optimizer.sync_group.step, 4)
        self.job.leave()
        with self.assertRaisesRegex(syncgrads.FailedPrecondition, "has left"):
            model(torch.ones(1, 2)).sum().backward()

    def train_locally(self, kind, sync_every, steps, **options):
        """Returns the parameters after local steps, and what they should be."""
        model = make_model()
        optimizer = make_optimizer(model)
        local = kind(model, optimizer, sync_every, **options)
        expected = make_model()
        expected.load_state_dict(model.state_dict())
        self.expect_equal_on_all(parameters_of(model))
        with local:
            scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 4, 0.5)
            for step in range(steps):
                train_step(model, optimizer, step)
                scheduler.step()
        self.assertNotIn("syncgrads", optimizer.step.__func__.__code__.co_filename)

        rule = options.get("outer", {"sgd": {"learning_rate": 1}})
        (_, settings), = rule.items()
        optimizer = make_optimizer(expected)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 4, 0.5)
        begin = [parameter.detach().clone() for parameter in expected.parameters()]
        outer = torch.optim.SGD(begin, lr=settings["learning_rate"],
                                momentum=settings.get("momentum", 0),
                                nesterov=settings.get("momentum", 0) > 0)
        for step in range(steps):
            train_step(expected, optimizer, step)
            scheduler.step()
            if (step + 1) % sync_every != 0 and step + 1 != steps:
                continue
            for number, (value, parameter) in enumerate(zip(begin, expected.parameters())):
                value.grad = value - parameter.detach()
                self.job.all_reduce(value.grad, "average", name=f"{options['name']}/{number}")
            outer.step()
            with torch.no_grad():
                for value, parameter in zip(begin, expected.parameters()):
                    parameter.copy_(value)
        return parameters_of(model), parameters_of(expected)

    def test_local_steps_are_averaged_by_the_outer_optimizer(self):
        nesterov = {"nesterov": {"learning_rate": 0.7, "momentum": 0.5}}
        for trained, expected in (
                self.train_locally(sg.DiLoCo, 5, 15, outer=nesterov, name="diloco"),
                self.train_locally(sg.LocalSGD, 4, 10, name="average")):
            self.expect_equal_on_all(trained)
            self.expect_near(trained, expected)
        with self.assertRaisesRegex(syncgrads.InvalidArgument, "sync_every is 0"):
            sg.LocalSGD(nn.Linear(1, 1), None, 0)
        self.job.leave()

    def test_workers_may_have_different_numbers_of_local_steps(self):
        model = nn.Linear(1, 1, bias=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=1)
        with sg.LocalSGD(model, optimizer, 2, batch_size=4):
            begin = model.weight.item()
            for _ in range(2 if RANK == 0 else 5):
                optimizer.zero_grad()
                (model.weight * (1 + RANK)).sum().backward()
                optimizer.step()
        # Two steps of both, and then three of rank 1 alone.
        self.assertAlmostEqual(model.weight.item(), begin - (2 + 4) / 2 - 6, places=4)
        self.expect_equal_on_all(parameters_of(model))
        self.job.leave()


if __name__ == "__main__":
    print("torch", torch.__version__, "python", sys.version.split()[0], flush=True)
    torch.set_num_threads(1)
    unittest.main()
