"""syncgrads.torch beside DistributedDataParallel over gloo: the same model, seeds and batches, as
two ranks. tests/deploy/torch.test starts it. Prints a checksum of the parameters of each way."""

import contextlib
import datetime
import gc
import sys
import threading
import unittest
import warnings
import weakref
from unittest import mock

import torch
from torch import nn

import syncgrads
import syncgrads.torch as sg
from torch_fixture import (RANK, SIZE, JobTest, batch, checksum, make_model, make_optimizer,
                           parameters_of, process_group)

STEPS = 50


def train(model, optimizer, steps=STEPS, passes=1):
    for step in range(steps):
        optimizer.zero_grad()
        for part in range(passes):
            x, y = batch(step * passes + part)
            nn.functional.cross_entropy(model(x.to(dtype_of(model))), y).backward()
        optimizer.step()


def dtype_of(model):
    return next(model.parameters()).dtype


def train_step(model, optimizer, step):
    optimizer.zero_grad()
    x, y = batch(step)
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()


class TorchTest(JobTest):

    def gloo(self, passes=1, backend="gloo", dtype=torch.float32):
        """What DistributedDataParallel over gloo makes of the same training."""
        with process_group(self.job, backend):
            model = nn.parallel.DistributedDataParallel(make_model().to(dtype))
            train(model, make_optimizer(model), passes=passes)
            return parameters_of(model)

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
        with process_group(self.job, "syncgrads"):
            self.use_group(torch.distributed)
        self.job.leave()

    def test_members_that_disagree_get_a_reason(self):
        with process_group(self.job, "syncgrads"):
            hasty = torch.distributed.new_group(timeout=datetime.timedelta(milliseconds=200))
            values = torch.ones(9, dtype=[torch.float32, torch.float64][RANK])
            for call in (lambda: torch.distributed.all_reduce(values, group=hasty),
                         lambda: self.job.all_reduce(values, timeout=0.2)):
                with self.assertRaisesRegex(syncgrads.DeadlineExceeded, "another dtype or size"):
                    call()

    def use_group(self, dist):
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
        names = [None] * SIZE
        dist.all_gather_object(names, {"rank": RANK})
        self.assertEqual(names, [{"rank": 0}, {"rank": 1}])
        names = [f"of {RANK}"]
        dist.broadcast_object_list(names, 1)
        self.assertEqual(names, ["of 1"])
        dist.barrier()

        # The names of operations are groups of the job, of which there are 1,024 at most.
        names = set()
        start = self.job.start_all_gather
        with mock.patch.object(self.job, "start_all_gather", side_effect=lambda *arguments, name:
                               names.add(name) or start(*arguments, name=name)):
            for size in range(0, 2000, 40):
                objects = [None] * SIZE
                dist.all_gather_object(objects, "x" * (size + RANK))
                self.assertEqual([len(one) for one in objects], [size, size + 1])
        self.assertLess(len(names), 12)
        for dtype in (torch.bool, torch.int8, torch.int16, torch.float16, torch.bfloat16,
                      torch.int32, torch.int64, torch.float64):
            values = (torch.arange(5).remainder(2) + RANK).to(dtype)
            gathered = [torch.zeros(5, dtype=dtype) for _ in range(SIZE)]
            dist.all_gather(gathered, values)
            self.assertTrue(torch.equal(gathered[RANK], values), dtype)
            dist.broadcast(values, 1)
            self.assertTrue(torch.equal(gathered[1], values), dtype)
        other = [torch.zeros(3, dtype=torch.float32), torch.zeros(4, dtype=torch.int32)][RANK]
        with self.assertRaisesRegex(syncgrads.InvalidArgument,
                                    "rank . has [34] of torch.(float32|int32): pass tensors of"):
            dist.all_gather([other] * SIZE, other)

        # Timeouts.
        if RANK == 0:
            work = dist.all_reduce(torch.ones(7), async_op=True)
            with self.assertRaisesRegex(syncgrads.DeadlineExceeded, "after 0.01 s; it continues"):
                work.wait(datetime.timedelta(milliseconds=10))
        self.job.barrier("late")
        if RANK == 1:
            work = dist.all_reduce(torch.ones(7), async_op=True)
        work.wait()

        two = [torch.zeros(1)] * 2
        for operation, call in {
                "scatter": lambda: dist.scatter(two[0], two if RANK == 0 else None),
                "gather": lambda: dist.gather(two[0], two if RANK == 0 else None),
                "send": lambda: dist.send(two[0], 1 - RANK),
                "recv": lambda: dist.recv(two[0], 1 - RANK),
                "reduce_scatter": lambda: dist.reduce_scatter(two[0], two),
                "alltoall": lambda: dist.all_to_all(two, two)}.items():
            with self.assertRaisesRegex(syncgrads.Unimplemented,
                                        f"no {operation}; it has all_reduce"):
                call()
        with self.assertRaisesRegex(syncgrads.Unimplemented, "no reduction BAND"):
            dist.all_reduce(torch.zeros(1, dtype=torch.int64), dist.ReduceOp.BAND)
        alone = dist.new_group([0])
        if RANK == 0:
            with self.assertRaisesRegex(syncgrads.Unimplemented, "groups of all members only"):
                dist.all_reduce(two[0], group=alone)
        # Operations of two groups do not meet.
        second = dist.new_group()
        values = [torch.tensor([1 + 2j]), torch.tensor([3.0, 4j])]
        works = [dist.all_reduce(values[0], group=second, async_op=True),
                 dist.all_reduce(values[1], async_op=True),
                 dist.all_reduce(torch.zeros(0), async_op=True)]
        for work in works:
            work.wait()
        self.assertEqual([one.tolist() for one in values], [[2 + 4j], [6, 8j]])
        self.assertEqual(dist.group.WORLD._works, {})

    def test_ddp_over_the_process_group_trains_as_over_gloo(self):
        self.expect_near(self.gloo(backend="syncgrads"), self.gloo())
        self.job.leave()

    @contextlib.contextmanager
    def expect_threads_end(self):
        """Expects that threads that began in the block end, and that nothing keeps the job."""
        before = set(threading.enumerate())
        job = weakref.ref(self.job)
        yield
        self.job.leave()
        self.job.close()
        self.job = self.join("/next")
        gc.collect()
        for thread in set(threading.enumerate()) - before:
            if thread.name != "syncgrads wait":  # of the process
                thread.join(10)
                self.assertFalse(thread.is_alive())
        self.assertIsNone(job())

    def test_nothing_of_ddp_outlives_the_model(self):
        with self.expect_threads_end():
            model = sg.ddp(nn.Linear(2, 1))
            model(torch.ones(1, 2)).sum().backward()
            del model
            torch.distributed.destroy_process_group()

    def test_the_thread_of_a_process_group_ends_with_it(self):
        with self.expect_threads_end():
            with process_group(self.job, "syncgrads"):
                torch.distributed.all_reduce(torch.ones(1))

    def test_gradients_are_accumulated(self):
        # DistributedDataParallel averages after each pass, which rounds in another way. In float32,
        # the difference could move an activation across ReLU's zero.
        expected = self.gloo(passes=3, dtype=torch.float64)
        model = make_model().double()
        optimizer = sg.DistributedOptimizer(make_optimizer(model), model,
                                            backward_passes_per_step=3)
        train(model, optimizer, passes=3)
        self.expect_near(parameters_of(model), expected, 1e-12)
        # A worker with fewer passes synchronises in step().
        optimizer.zero_grad()
        for _ in range(3 - RANK):
            model(batch(0)[0].double()).sum().backward()
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

    def test_a_scheduler_may_be_made_before_the_optimizer_is_distributed(self):
        model = nn.Linear(2, 1, bias=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=1)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        sg.DistributedOptimizer(optimizer, model, backward_passes_per_step=2)
        for rate in (1, 0.5):
            begin = model.weight.detach().clone()
            optimizer.zero_grad()
            model(torch.ones(1, 2) * (1 + RANK)).sum().backward()
            with warnings.catch_warnings():
                warnings.simplefilter("error", UserWarning)
                optimizer.step()
                scheduler.step()
            self.assertTrue(torch.equal(model.weight, begin - 1.5 * rate))
        with self.join("/second") as second:
            sg.DistributedOptimizer(optimizer, model, job=second)
            begin = model.weight.detach().clone()
            optimizer.zero_grad()
            model(torch.ones(1, 2) * (1 + RANK)).sum().backward()
            optimizer.step()
            self.assertTrue(torch.equal(model.weight, begin - 1.5 * 0.25))
        self.job.leave()

    def test_the_learning_rate_factor_of_the_job_does_not_compound(self):
        model, expected = nn.Linear(2, 1, bias=False), nn.Linear(2, 1, bias=False)
        optimizer = sg.DistributedOptimizer(torch.optim.Adam(model.parameters(), lr=0.5), model)
        expected.load_state_dict(model.state_dict())
        by_hand = torch.optim.Adam(expected.parameters(), lr=0.5)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        for step, factor in enumerate((1, 0.25, 0.25, 2)):
            if RANK == 0:
                self.job.set_learning_rate_factor(factor)
            self.job.barrier()
            optimizer.zero_grad()
            model(torch.full((1, 2), 1.0 + step + RANK)).sum().backward()
            optimizer.step()
            scheduler.step()
            by_hand.param_groups[0]["lr"] = 0.5 * 0.5 ** step * factor
            expected.weight.grad = torch.full((1, 2), 1.5 + step)
            by_hand.step()
            self.assertEqual(optimizer.sync_group.learning_rate_factor, factor)
            self.assertTrue(torch.equal(model.weight, expected.weight))
            self.assertEqual(optimizer.param_groups[0]["lr"], 0.5 * 0.5 ** (step + 1))
        self.job.leave()

    def test_the_learning_rate_factor_is_for_local_steps(self):
        model = nn.Linear(1, 1, bias=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=1)
        with sg.LocalSGD(model, optimizer, 2):
            begin = model.weight.item()
            for step in range(6):
                if step == 2:
                    if RANK == 0:
                        self.job.set_learning_rate_factor(0.5)
                    self.job.barrier()
                optimizer.zero_grad()
                model.weight.sum().backward()
                optimizer.step()
        # The result of steps 3 and 4 is the first that has the factor.
        self.assertAlmostEqual(model.weight.item(), begin - 4 - 2 * 0.5, places=5)
        self.assertEqual(optimizer.param_groups[0]["lr"], 1)
        self.job.leave()

    @unittest.skipUnless(hasattr(torch, "amp") and hasattr(torch.amp, "GradScaler"),
                         "this PyTorch has GradScaler for CUDA only")
    def test_grad_scaler_skips_the_same_steps_everywhere(self):
        model, optimizer = self.optimized()
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        for step in range(4):
            optimizer.zero_grad()
            x, y = batch(step)
            loss = scaler.scale(nn.functional.cross_entropy(model(x), y))
            (loss * float("inf") if RANK == 1 and step == 2 else loss).backward()
            before = parameters_of(model)
            scaler.step(optimizer)
            scaler.update()
            self.assertEqual(torch.equal(before, parameters_of(model)), step == 2)
            self.expect_equal_on_all(parameters_of(model))
        self.assertEqual(scaler.get_scale(), 512)
        self.job.leave()

    def test_tensors_of_other_dtypes_are_broadcast(self):
        turned = torch.arange(6.0).reshape(2, 3).t() * (1 + RANK)
        tensors = {"complex": torch.complex(turned, -turned), "conjugate": (turned * 1j).conj(),
                   "bool": torch.tensor([RANK == 0, False]),
                   "byte": torch.tensor([7 + RANK]).byte()}
        turned = turned / (1 + RANK)
        expected = {"complex": torch.complex(turned, -turned), "conjugate": turned * -1j,
                    "bool": torch.tensor([True, False]), "byte": torch.tensor([7]).byte()}
        sg.broadcast(tensors)
        for name, tensor in tensors.items():
            self.assertTrue(torch.equal(tensor, expected[name]), name)
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

    def test_two_optimizers_have_a_part_of_the_model_each(self):
        model = nn.ModuleDict({"a": nn.Linear(2, 1, bias=False), "b": nn.Linear(2, 1, bias=False)})
        optimizers = [sg.DistributedOptimizer(torch.optim.SGD(part.parameters(), lr=1), model,
                                              name=name) for name, part in model.items()]
        self.assertEqual([one.sync_group.tensors for one in optimizers],
                         [("a.weight",), ("b.weight",)])
        for step in range(1, 3):
            x = torch.ones(1, 2) * (1 + RANK)
            for part, optimizer in zip(model.values(), optimizers):
                optimizer.zero_grad()
                part(x).sum().backward()
                self.assertEqual(part.weight.grad.tolist(), [[1.5, 1.5]])
                optimizer.step()
            self.assertEqual([one.sync_group.step for one in optimizers], [1 + step] * 2)
        self.expect_equal_on_all(parameters_of(model))
        self.job.leave()

    def test_two_optimizers_share_a_loss(self):
        model = nn.ModuleDict({"a": nn.Linear(2, 1, bias=False), "b": nn.Linear(2, 1, bias=False)})
        optimizers = [sg.DistributedOptimizer(torch.optim.SGD(part.parameters(), lr=1), model,
                                              name=name) for name, part in model.items()]
        x = torch.ones(1, 2) * (1 + RANK)
        for step in range(1, 5):
            for optimizer in optimizers:
                optimizer.zero_grad(set_to_none=True)
            # Backward begins with the part that was computed last: not the same on both ranks.
            parts = sorted(model, reverse=(RANK + step) % 2 == 0)
            sum(model[part](x).sum() for part in parts).backward()
            for part, optimizer in zip(model.values(), optimizers):
                self.assertEqual(part.weight.grad.tolist(), [[1.5, 1.5]])
                optimizer.step()
                self.assertEqual(optimizer.sync_group.step, 1 + step)
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
        # The first average is in the server's memory. zero_grad changes it.
        self.assertEqual(len(set(places[1:])), 1)
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

    def test_empty_parameters_and_buffers(self):
        class Empty(nn.Module):

            def __init__(self):
                super().__init__()
                self.line = nn.Linear(2, 1, bias=False)
                self.none = nn.Parameter(torch.ones(5, 0))
                self.register_buffer("nothing", torch.empty(0))

            def forward(self, x):
                return self.line(x) + self.none.sum()

        for make in (Empty, lambda: sg.ddp(Empty(), name="ddp")):
            model = make()
            optimizer = torch.optim.SGD(model.parameters(), lr=1)
            if isinstance(model, Empty):
                sg.DistributedOptimizer(optimizer, model)
            model(torch.ones(1, 2) * (1 + RANK)).sum().backward()
            optimizer.step()
            self.expect_equal_on_all(parameters_of(model))
        torch.distributed.destroy_process_group()
        with self.assertRaisesRegex(syncgrads.InvalidArgument, "needs a gradient"):
            sg.LocalSGD(nn.Linear(0, 5, bias=False), None, 1)
        sg.broadcast({"nothing": torch.empty(0)})
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

    def test_gradients_have_the_strides_of_their_parameters(self):
        # Optimizers that are fused read both as flat memory.
        def make(memory_format):
            torch.manual_seed(1)
            layers = nn.ModuleList([nn.Conv2d(3, 4, 3, bias=False),  # less and more than 16 KiB
                                    nn.Conv2d(32, 32, 3, bias=False)])
            return layers.to(memory_format=memory_format)

        models = [make(torch.contiguous_format), make(torch.channels_last)]
        optimizers = [sg.DistributedOptimizer(make_optimizer(one), one, name=f"{number}")
                      for number, one in enumerate(models)]
        for step in range(4):
            generator = torch.Generator().manual_seed(10 * step + RANK)
            inputs = [torch.randn(2, layer.in_channels, 5, 5, generator=generator)
                      for layer in models[0]]
            for model, optimizer in zip(models, optimizers):
                optimizer.zero_grad(set_to_none=step % 2 == 0)
                # In the last steps, a worker skips a layer, and receives its average.
                used = [number for number in range(2) if step < 2 or number == RANK]
                sum((model[number](inputs[number]) ** 2).sum() for number in used).backward()
                for layer in model:
                    self.assertEqual(layer.weight.grad.stride(), layer.weight.stride())
                optimizer.step()
            for layer, turned in zip(*models):
                self.expect_near(turned.weight.grad, layer.weight.grad, 1e-5)
        self.expect_equal_on_all(parameters_of(models[1]))
        with self.assertRaisesRegex(syncgrads.InvalidArgument, "'0.weight' .*not contiguous"):
            sg.allocate_gradients(models[1])
        self.job.leave()

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
