"""Wrong use of syncgrads.torch, and what may look like it: exceptions say what to do, and the other
rank is not disturbed. tests/deploy/torch.test starts it as two ranks."""

import concurrent.futures
import contextlib
import copy
import io
import itertools
import os
import pickle
import signal
import threading
import types
import unittest
import unittest.mock

import torch
import torch.utils.checkpoint
from torch import nn

import syncgrads
import syncgrads.torch as sg
from syncgrads.torch import _ddp
from failing import Fails
from torch_fixture import (RANK, JobTest, batch, make_model, make_optimizer, parameters_of)


class MisuseTest(JobTest):

    def test_an_exception_in_backward_does_not_disturb_the_others(self):
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
            sg.DistributedOptimizer(make_optimizer(frozen), frozen)
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

    def test_a_step_with_a_gradient_that_is_refused_can_be_ended(self):
        model = nn.ModuleDict({"table": nn.Embedding(4, 2), "line": nn.Linear(2, 2, bias=False)})
        optimizer = sg.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1), model)
        for step in range(3):
            optimizer.zero_grad(set_to_none=True)
            model["table"].sparse = RANK == 1 and step == 1
            loss = model["line"](model["table"](torch.tensor([1])) * 0 + 1 + RANK).sum()
            if model["table"].sparse:
                with self.assertRaisesRegex(syncgrads.InvalidArgument, "'table.weight' is sparse"):
                    loss.backward()
                continue
            loss.backward()
            if step != 1:
                self.assertEqual(model["line"].weight.grad.tolist(), [[1.5] * 2] * 2)
            optimizer.step()
        self.assertEqual(optimizer.sync_group.step, 4)
        self.job.leave()

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
        with self.join("/second") as second:  # two jobs
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

    def test_a_parameter_that_is_trained_later_is_refused(self):
        model = make_model()
        model.head.requires_grad_(False)
        optimizer = sg.DistributedOptimizer(make_optimizer(model), model)
        x, y = batch(0)
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        model.head.requires_grad_(True)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        with self.assertRaisesRegex(syncgrads.FailedPrecondition, "'head.weight' needs a gradient"):
            optimizer.step()
        # The other way round is a skip on all.
        model.head.requires_grad_(False)
        model.tied.requires_grad_(False)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        self.expect_equal_on_all(parameters_of(model))
        self.job.leave()

    def test_a_name_is_for_one_optimizer(self):
        model, optimizer = self.optimized()
        twin = make_model()
        with self.assertRaisesRegex(syncgrads.FailedPrecondition, "'model' has a .* another name"):
            sg.DistributedOptimizer(make_optimizer(twin), twin)
        with self.assertRaisesRegex(syncgrads.FailedPrecondition, "of this job already"):
            sg.DistributedOptimizer(optimizer, model, name="again")
        with self.assertRaisesRegex(syncgrads.InvalidArgument, "leave out `optimizer`"):
            sg.ddp(twin, optimizer={"sgd": {"learning_rate": 1}}, name="twin")
        torch.distributed.destroy_process_group()
        other = nn.Linear(2, 2)
        with self.assertRaisesRegex(syncgrads.FailedPrecondition, "'model' has a .* another name"):
            sg.DistributedOptimizer(make_optimizer(other), other)
        with self.join("/second") as second:
            sg.DistributedOptimizer(optimizer, model, job=second)
            self.assertIs(type(optimizer).__mro__[2], torch.optim.SGD)
            model(batch(0)[0]).sum().backward()
            optimizer.step()
            self.expect_equal_on_all(parameters_of(model))
        # A notebook makes everything again.
        del model, optimizer
        model, optimizer = self.optimized(job=self.job)
        model(batch(0)[0]).sum().backward()
        optimizer.step()
        self.assertEqual(optimizer.sync_group.step, 2)
        self.job.leave()

    def test_parameters_that_are_added_are_refused(self):
        for kind in (sg.DiLoCo, sg.LocalSGD):
            for change in ("model", "optimizer", "requires_grad"):
                model = nn.ModuleDict({"a": nn.Linear(1, 1), "b": nn.Linear(1, 1)})
                model["b"].requires_grad_(False)
                optimizer = torch.optim.SGD(model.parameters(), lr=1)
                local = kind(model, optimizer, 2, name=f"{kind.__name__}/{change}")
                with self.assertRaisesRegex(
                        syncgrads.FailedPrecondition,
                        f"is trained, but was not when {kind.__name__} was made"), local:
                    for step in range(2):
                        if step == 1 and change == "model":
                            model["c"] = nn.Linear(1, 1)
                        elif step == 1 and change == "optimizer":
                            optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]})
                        elif step == 1:
                            model["b"].requires_grad_(True)
                        model["a"](torch.ones(1, 1)).sum().backward()
                        optimizer.step()
        model, optimizer = self.optimized()
        optimizer.param_groups[0]["params"].append(nn.Parameter(torch.ones(1)))
        with self.assertRaisesRegex(syncgrads.FailedPrecondition, "param_groups have other"):
            optimizer.step()
        optimizer.param_groups[0]["params"].pop()
        optimizer.step()
        self.job.leave()

    def test_optimizers_are_copied_and_pickled_as_plain_ones(self):
        model, optimizer = self.optimized()
        model(batch(0)[0]).sum().backward()
        optimizer.step()
        other, copied = copy.deepcopy((model, optimizer))
        for one in (copied, pickle.loads(pickle.dumps(optimizer)), copy.copy(optimizer)):
            self.assertIs(type(one), torch.optim.SGD)
            self.assertEqual(one.param_groups[0]["lr"], 0.05)
            self.assertEqual(len(one.state), len(optimizer.state))
        other(batch(0)[0]).sum().backward()
        copied.step()
        self.assertEqual(optimizer.sync_group.step, 2)
        self.assertFalse(torch.equal(parameters_of(model), parameters_of(other)))
        self.job.leave()

    def test_hooks_of_steps_run_once_after_load_state_dict(self):
        _, optimizer = self.optimized()
        calls = []
        if hasattr(optimizer, "register_step_post_hook"):  # PyTorch 2.0
            optimizer.register_step_post_hook(lambda *_: calls.append(1))
        optimizer.load_state_dict(optimizer.state_dict())
        self.assertNotIn("step", vars(type(optimizer)))  # is not wrapped
        optimizer.step()
        self.assertLess(len(calls), 2)
        self.job.leave()

    def test_an_exception_in_backward_of_ddp_ends_the_step_for_the_others(self):
        # Before the first bucket was pushed, between two buckets, and after the last one.
        for count, last, megabytes in ((3, 1, 100), (3, 1, 0.03), (1, 0, 100)):
            with self.join(f"/{count}/{megabytes}"):
                layers = nn.Sequential(*[nn.Linear(100, 100, bias=False) for _ in range(count)])
                torch.distributed.init_process_group(
                    "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
                model = sg.ddp(nn.parallel.DistributedDataParallel(layers,
                                                                   bucket_cap_mb=megabytes))
                for step in range(4):
                    model.zero_grad()
                    x = torch.ones(1, 100, requires_grad=True)
                    if RANK == 1 and step == 2:
                        layers[last].register_forward_pre_hook(lambda _, x: (Fails.apply(x[0]),))
                        with self.assertRaisesRegex(ValueError, "no gradient today"):
                            model(x).sum().backward()
                        # The first call waits for the others to end the step, or job.leave()
                        # would be refused.
                        with concurrent.futures.ThreadPoolExecutor(1) as pool:
                            first = pool.submit(model, x)
                            with self.assertRaises(concurrent.futures.TimeoutError):
                                first.result(0.1)
                            self.job.barrier("rank 1 has failed")
                            for call in (first.result, lambda: model(x)):
                                with self.assertRaisesRegex(
                                        syncgrads.FailedPrecondition,
                                        "backward was not complete.* job.leave()"):
                                    call()
                        break
                    if step == 2:
                        self.job.barrier("rank 1 has failed")
                    model(x).sum().backward()
                torch.distributed.destroy_process_group()
        self.job.leave()

    def test_keyboard_interrupt_ends_backward_of_ddp_and_forward_ends_the_step(self):
        model = sg.ddp(nn.Linear(2, 2, bias=False))
        x = torch.ones(1, 2) * (1 + RANK)
        if RANK == 0:
            with self.interrupted(_ddp._live[self.job]["model"]._group):
                model(x).sum().backward()
            self.job.barrier()
            for _ in range(2):
                with self.assertRaisesRegex(syncgrads.FailedPrecondition,
                                            "backward was not complete.* job.leave()"):
                    model(x)
        else:
            self.job.barrier()
            model(x).sum().backward()
            self.assertEqual(model.module.weight.grad.tolist(), [[1.5, 1.5]] * 2)
        torch.distributed.destroy_process_group()
        self.job.leave()

    def test_a_name_is_for_one_model_of_ddp(self):
        model = sg.ddp(nn.Linear(1, 1))
        for again in (lambda: sg.ddp(nn.Linear(1, 1)), lambda: self.optimized()):
            with self.assertRaisesRegex(syncgrads.FailedPrecondition,
                                        "'model' has a .* another name"):
                again()
        del model
        model = sg.ddp(nn.Linear(1, 1))
        model(torch.ones(1, 1)).sum().backward()
        torch.distributed.destroy_process_group()
        self.job.leave()

    def test_a_model_of_ddp_that_has_changed_is_refused(self):
        model = sg.ddp(nn.Linear(2, 2))
        x = torch.ones(1, 2)
        model(x).sum().backward()
        model.module.double()
        with self.assertRaisesRegex(syncgrads.InvalidArgument, "'weight' is torch.float64.* name"):
            model(x.double())
        model.module.float()
        self.job.leave()
        with self.assertRaisesRegex(syncgrads.FailedPrecondition, "has left"):
            model(x)
        torch.distributed.destroy_process_group()

    def test_a_model_of_ddp_that_not_all_workers_use_is_refused(self):
        torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0,
                                             world_size=1)
        with self.assertRaisesRegex(syncgrads.InvalidArgument,
                                    "find_unused_parameters.*DistributedOptimizer"):
            sg.ddp(nn.parallel.DistributedDataParallel(nn.Linear(2, 2),
                                                       find_unused_parameters=True))
        torch.distributed.destroy_process_group()
        self.job.leave()

    def test_a_model_of_ddp_with_sparse_gradients_is_refused(self):
        for table in (nn.Embedding(4, 2, sparse=True), nn.EmbeddingBag(4, 2, sparse=True)):
            with self.assertRaisesRegex(syncgrads.InvalidArgument,
                                        "'0.weight' is sparse.* sparse=False"):
                sg.ddp(nn.Sequential(table, nn.Linear(2, 2)))
        torch.distributed.destroy_process_group()
        self.job.leave()

    def test_a_parameter_that_is_added_to_a_model_of_ddp_is_refused(self):
        model = sg.ddp(nn.Sequential(nn.Linear(2, 2)))
        model(torch.ones(1, 2)).sum().backward()
        model.module.append(nn.Linear(2, 2))
        with self.assertRaisesRegex(syncgrads.FailedPrecondition,
                                    "'1.weight' was added .*another name"):
            model(torch.ones(1, 2))
        torch.distributed.destroy_process_group()
        self.job.leave()

    def test_a_bucket_of_ddp_of_another_dtype_is_refused(self):
        # As with DistributedDataParallel(mixed_precision=...) of PyTorch 2.1.
        weight = nn.Linear(2, 2).weight
        group = self.job.register("half", {"weight": weight})
        half = weight.detach().half()
        bucket = types.SimpleNamespace(parameters=lambda: [weight], gradients=lambda: [half],
                                       buffer=half.flatten, is_last=lambda: True)
        with self.assertRaisesRegex(syncgrads.InvalidArgument,
                                    "'weight' is torch.float16 .* torch.float32.*autocast"):
            _ddp._BucketHook(group, {"weight": weight}, are_views=False).push(bucket)
        self.job.leave()

    def test_local_steps_of_a_model_that_has_changed_are_refused(self):
        model = nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1)
        local = sg.LocalSGD(model, optimizer, 1)

        def step(dtype):
            with local:
                model(torch.ones(1, 1, dtype=dtype)).sum().backward()
                optimizer.step()

        model.double()
        with self.assertRaisesRegex(syncgrads.InvalidArgument, "'weight' is .*float64.* LocalSGD"):
            step(torch.float64)
        model.float()
        step(torch.float32)
        with self.assertRaisesRegex(syncgrads.FailedPrecondition, "ended already: make a new"):
            step(torch.float32)
        self.expect_equal_on_all(parameters_of(model))
        self.job.leave()

    def test_what_cannot_work_is_refused_at_once(self):
        model = nn.Linear(2, 2)
        with self.assertRaisesRegex(syncgrads.InvalidArgument, "LBFGS calls its closure"):
            sg.DistributedOptimizer(torch.optim.LBFGS(model.parameters()), model)
        with self.assertRaisesRegex(syncgrads.FailedPrecondition, "not elastic: pass max_workers"):
            sg.elastic(model, make_optimizer(model))
        with self.assertRaisesRegex(syncgrads.InvalidArgument, "complex64 is not supported"):
            turned = nn.Linear(1, 1).to(torch.complex64)
            sg.DistributedOptimizer(make_optimizer(turned), turned)
        self.job.leave()

    def test_models_are_copied_and_saved_as_before(self):
        model, optimizer = self.optimized()
        model(batch(0)[0]).sum().backward()
        optimizer.step()
        twin = copy.deepcopy(model)
        twin.zero_grad()
        twin(batch(0)[0]).sum().backward()  # pushes nothing
        self.assertEqual(optimizer.sync_group.step, 2)
        file = io.BytesIO()
        torch.save({"model": model, "optimizer": optimizer.state_dict()}, file)
        file.seek(0)
        of_any_class = hasattr(torch.serialization, "safe_globals")  # PyTorch 2.5
        saved = torch.load(file, **({"weights_only": False} if of_any_class else {}))
        self.assertTrue(torch.equal(parameters_of(saved["model"]), parameters_of(model)))
        optimizer.load_state_dict(saved["optimizer"])
        self.job.leave()

    def test_processes_that_are_forked_load_data(self):
        model, optimizer = self.optimized()
        rows = torch.utils.data.TensorDataset(*batch(0))
        for _ in range(2):
            for x, y in torch.utils.data.DataLoader(rows, batch_size=4, num_workers=2,
                                                    multiprocessing_context="fork"):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()
        self.assertEqual(optimizer.sync_group.step, 5)
        child = os.fork()
        if child == 0:
            try:
                optimizer.step()  # PyTorch itself refuses backward
            except syncgrads.FailedPrecondition as error:
                os._exit(0 if "make a new client" in str(error) else 1)
            finally:
                os._exit(2)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        optimizer.zero_grad()
        self.expect_equal_on_all(parameters_of(model))
        self.job.leave()

    @contextlib.contextmanager
    def interrupted(self, group):
        """Sends SIGINT to this process when the group waits. Expects that it ends the block."""
        def interrupt():
            while not group._waiting.has_begun:
                pass
            os.kill(os.getpid(), signal.SIGINT)

        thread = threading.Thread(target=interrupt)
        thread.start()
        with self.assertRaises(KeyboardInterrupt):
            yield
        thread.join()

    def test_keyboard_interrupt_ends_backward_and_step_continues(self):
        model, optimizer = self.optimized()
        x, y = batch(0)
        if RANK == 0:
            with self.interrupted(optimizer.sync_group):
                nn.functional.cross_entropy(model(x), y).backward()
        self.job.barrier()
        if RANK == 1:
            nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        self.assertEqual(optimizer.sync_group.step, 2)
        self.expect_equal_on_all(parameters_of(model))
        self.job.leave()

    def test_keyboard_interrupt_ends_backward_and_zero_grad_ends_the_step(self):
        for sets_to_none in (False, True):
            model = nn.Linear(2, 2, bias=False)
            optimizer = sg.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1), model,
                                                name=f"{sets_to_none}")
            x = torch.ones(1, 2) * (1 + RANK)
            if RANK == 0:
                with self.interrupted(optimizer.sync_group):
                    model(x).sum().backward()
                model.zero_grad()
                with self.assertRaisesRegex(syncgrads.FailedPrecondition,
                                            "the gradient of 'weight', but .* zero_grad"):
                    model(x).sum().backward()
            self.job.barrier()
            if RANK == 1:
                model(x).sum().backward()
                self.assertEqual(model.weight.grad.tolist(), [[1.5] * 2] * 2)
            optimizer.zero_grad(set_to_none=sets_to_none)
            self.assertEqual(optimizer.sync_group.step, 2)
            model(x).sum().backward()
            self.assertEqual(model.weight.grad.tolist(), [[1.5] * 2] * 2)
            optimizer.step()
            self.expect_equal_on_all(parameters_of(model))
        self.job.leave()

    def test_keyboard_interrupt_in_a_push_or_skip_and_zero_grad_ends_the_step(self):
        check = syncgrads.group.check
        calls = itertools.product(("sg_copy_and_push_many", "sg_skip"), (False, True),
                                  (False, True))
        for name, is_made, has_backward in calls:
            if name != "sg_skip" and not has_backward:
                continue

            def interrupted(function, *arguments):
                if function != name or is_made:
                    check(function, *arguments)
                if function == name:
                    raise KeyboardInterrupt

            layers = nn.ModuleList([nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)])
            optimizer = sg.DistributedOptimizer(torch.optim.SGD(layers.parameters(), lr=1), layers,
                                                name=f"{name} {is_made} {has_backward}")
            x = torch.ones(1, 2) * (1 + RANK)
            if RANK == 0:
                with unittest.mock.patch("syncgrads.group.check", interrupted):
                    with self.assertRaises(KeyboardInterrupt):
                        if has_backward:
                            layers[0](x).sum().backward()
                        else:
                            optimizer.step()
                optimizer.zero_grad()
            else:
                layers[0](x).sum().backward()
                both = has_backward and (name == "sg_skip" or is_made)
                self.assertEqual(layers[0].weight.grad.tolist(), [[1.5 if both else 2] * 2] * 2)
                optimizer.zero_grad()
            self.assertEqual(optimizer.sync_group.step, 2)
            layers[0](x).sum().backward()
            self.assertEqual(layers[0].weight.grad.tolist(), [[1.5] * 2] * 2)
            optimizer.step()
            self.assertEqual(optimizer.sync_group.step, 3)
        self.job.leave()

    def test_keyboard_interrupt_ends_the_wait_for_local_steps_and_the_next_step_continues(self):
        model = nn.Linear(1, 1, bias=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=1)
        local = sg.LocalSGD(model, optimizer, 2)

        def step():
            optimizer.zero_grad()
            (model.weight * (1 + RANK)).sum().backward()
            optimizer.step()

        with local:
            begin = model.weight.item()
            step()
            if RANK == 0:
                with self.interrupted(local.sync_group):
                    step()
            self.job.barrier()
            step()  # of rank 0: its result is that of the wait
            if RANK == 1:
                self.assertAlmostEqual(model.weight.item(), begin - 3, places=5)
                step()
            self.assertEqual(local.sync_group.step, 2)
            self.assertAlmostEqual(model.weight.item(), begin - 3 - 2 * RANK, places=5)
            for _ in range(2 - RANK):
                step()
            self.assertEqual(local.sync_group.step, 3)
        self.assertAlmostEqual(model.weight.item(), begin - 6, places=5)
        self.expect_equal_on_all(parameters_of(model))
        self.job.leave()

    def test_keyboard_interrupt_in_a_call_of_local_steps_and_the_next_step_continues(self):
        check = syncgrads.group.check
        for name, is_made in itertools.product(("sg_push_many", "sg_wait_step"), (False, True)):
            model = nn.Linear(1, 1, bias=False)
            optimizer = torch.optim.SGD(model.parameters(), lr=1)
            local = sg.LocalSGD(model, optimizer, 1, name=f"{name} {is_made}")

            def step():
                optimizer.zero_grad()
                (model.weight * (1 + RANK)).sum().backward()
                optimizer.step()

            def interrupted(function, *arguments):
                if function != name or is_made:
                    check(function, *arguments)
                if function == name:
                    raise KeyboardInterrupt

            with local:
                begin = model.weight.item()
                if RANK == 0:
                    with unittest.mock.patch("syncgrads.group.check", interrupted):
                        with self.assertRaises(KeyboardInterrupt):
                            step()
                step()  # of rank 0: its result is that of the first one
                self.assertEqual(local.sync_group.step, 2)
                self.assertAlmostEqual(model.weight.item(), begin - 1.5, places=5)
                step()
                self.assertEqual(local.sync_group.step, 3)
                self.assertAlmostEqual(model.weight.item(), begin - 3, places=5)
            self.expect_equal_on_all(parameters_of(model))
        self.job.leave()

    def test_keyboard_interrupt_after_the_wait_and_step_continues(self):
        check = syncgrads.group.check
        calls = itertools.product(("sg_wait_step", "sg_use_results"), (False, True))
        for name, is_made in calls:
            model = nn.Linear(128, 64, bias=False)
            optimizer = sg.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1), model,
                                                name=f"{name} {is_made}")
            begin = model.weight[0, 0].item()
            x = torch.ones(1, 128) * (1 + RANK)

            def interrupted(function, *arguments):
                if function != name or is_made:
                    check(function, *arguments)
                if function == name:
                    raise KeyboardInterrupt

            for step in range(1, 4):
                optimizer.zero_grad(set_to_none=True)
                if RANK == 0:
                    with unittest.mock.patch("syncgrads.group.check", interrupted):
                        with self.assertRaises(KeyboardInterrupt):
                            model(x).sum().backward()
                else:
                    model(x).sum().backward()
                optimizer.step()
                self.assertEqual(optimizer.sync_group.step, 1 + step)
                self.assertAlmostEqual(model.weight[0, 0].item(), begin - 1.5 * step, places=5)
            self.expect_equal_on_all(parameters_of(model))
        self.job.leave()

    def test_zero_grad_forgets_earlier_passes(self):
        model = nn.Linear(2, 2, bias=False)
        optimizer = sg.DistributedOptimizer(make_optimizer(model), model,
                                            backward_passes_per_step=2)
        for step in range(1, 3):
            for batches in (1, 2):
                optimizer.zero_grad(set_to_none=True)
                for number in range(1, batches + 1):
                    model(torch.ones(1, 2) * (1 + RANK)).sum().backward()
                    self.assertEqual(optimizer.sync_group.step, step + (number == 2))
            self.assertEqual(model.weight.grad.tolist(), [[3] * 2] * 2)
            optimizer.step()
        # The model's zero_grad, with which another parameter has no gradient in the last pass.
        pair = nn.ModuleList([nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)])
        optimizer = sg.DistributedOptimizer(make_optimizer(pair), pair, name="pair",
                                            backward_passes_per_step=2)
        for layer in pair:
            pair.zero_grad(set_to_none=True)
            layer(torch.ones(1, 2) * (1 + RANK)).sum().backward()
        self.assertIsNone(pair[0].weight.grad)
        self.assertEqual(pair[1].weight.grad.tolist(), [[1.5] * 2] * 2)
        self.job.leave()


if __name__ == "__main__":
    torch.set_num_threads(1)
    unittest.main()
