"""syncgrads.torch.elastic with real processes: workers are killed and preempted, and come back.
tests/deploy/torch.test starts it, with a server in SYNCGRADS_SERVER.

The gradient of one parameter counts rows, and its updates add the gradients of all workers up. In
the end it tells how often each row has counted."""

import contextlib
import hashlib
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import warnings
from unittest import mock

import torch

import syncgrads
import syncgrads.torch as sg
from syncgrads.torch import _elastic
from failing import Fails

ROWS, BATCH, EPOCHS, WORKERS = 1800, 4, 2, 3
TIMEOUT = 120
QUORUM_STEPS = 600
# Rank 0 waits after these steps until the test lets it continue, so that the job does not end
# before a worker has come back.
GATES = {100: "after the kill", 200: "after the preemption"}


class Counts(torch.nn.Module):

    def __init__(self):
        super().__init__()
        self.counts = torch.nn.Parameter(torch.zeros(ROWS))
        self.line = torch.nn.Linear(3, 1)

    def forward(self, rows):
        x = torch.stack([torch.sin(torch.arange(3) + row) for row in rows])
        return self.line(x).pow(2).sum() - self.counts[rows].sum()


def work(rank, folder):
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    with sg.init(job="elastic", rank=rank, world_size=WORKERS, max_workers=WORKERS,
                 name=f"worker-{rank}", timeout=TIMEOUT):
        print("joined", flush=True)
        model = Counts()
        optimizer = torch.optim.SGD(
            [{"params": [model.counts]},
             {"params": model.line.parameters(), "lr": 1e-4, "momentum": 0.9}], lr=1)
        sampler = sg.DealtSampler(ROWS, BATCH, seed=7, epochs=EPOCHS)
        sg.elastic(model, optimizer, sampler, reduction="sum")
        for rows in sampler:
            optimizer.zero_grad()
            model(rows).backward()
            optimizer.step()
            print("step", sampler.steps, flush=True)
            gate = GATES.get(sampler.steps)
            while rank == 0 and gate and not pathlib.Path(folder, gate).exists():
                time.sleep(0.01)
        values = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
        print("end", sampler.steps, hashlib.sha256(values.numpy().tobytes()).hexdigest(),
              "counted", *sorted(set(model.counts.tolist())), flush=True)


def work_under_quorum(rank):
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    # Steps wait for two of three workers. All results are kept for the one that is stopped.
    policy = {"quorum": {"least": 2, "grace_ms": 0, "kept": QUORUM_STEPS}}
    with sg.init(job="quorum", rank=rank, world_size=WORKERS, max_workers=WORKERS, timeout=TIMEOUT):
        model = torch.nn.Linear(3, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
        sg.elastic(model, optimizer, policy=policy)
        for step in range(1, QUORUM_STEPS + 1):
            optimizer.zero_grad()
            model(torch.ones(1, 3) * (rank + step % 7)).sum().backward()
            optimizer.step()
            print("step", step, time.monotonic(), flush=True)
        values = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
        print("end", hashlib.sha256(values.numpy().tobytes()).hexdigest(), flush=True)


def work_after_a_death(rank, victim):
    """Makes three steps. The victim dies when all have joined, before the first broadcast."""
    torch.manual_seed(rank)
    with sg.init(job=f"death of {victim}", rank=rank, world_size=WORKERS, timeout=TIMEOUT) as job:
        if rank == victim:
            os.kill(os.getpid(), signal.SIGKILL)
        model = torch.nn.Linear(3, 2)
        optimizer = sg.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1), model)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(1, 3)).sum().backward()
            optimizer.step()
        print("end", optimizer.sync_group.step, job.world_size, model.weight.sum().item())


class Worker:
    """A process, and the lines that it has printed."""

    def __init__(self, rank, folder, program="elastic"):
        self.rank = rank
        self.lines = []
        self.changed = threading.Condition()
        self.process = subprocess.Popen([sys.executable, __file__, program, str(rank), folder],
                                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.thread = threading.Thread(target=self.read, daemon=True)
        self.thread.start()

    def read(self):
        with self.process.stdout as lines:
            for line in lines:
                with self.changed:
                    self.lines.append(line.strip())
                    self.changed.notify_all()

    def wait_for(self, is_there):
        """Waits for a line."""
        with self.changed:
            if not self.changed.wait_for(lambda: any(map(is_there, self.lines)), TIMEOUT):
                raise AssertionError(f"rank {self.rank}: {self.lines[-20:]}")

    def wait_for_step(self, step):
        self.wait_for(lambda line: line.startswith("step ") and int(line.split()[1]) >= step)

    def last_step(self):
        with self.changed:
            return max((int(line.split()[1]) for line in self.lines if line.startswith("step ")),
                       default=0)

    def exit(self):
        """Waits for the exit, and returns the last line."""
        code = self.process.wait(TIMEOUT)
        self.thread.join(TIMEOUT)
        return code, self.lines[-1] if self.lines else ""


class ElasticTest(unittest.TestCase):

    def test_workers_that_are_killed_and_preempted_come_back(self):
        with tempfile.TemporaryDirectory() as folder:
            workers = [Worker(rank, folder) for rank in range(WORKERS)]
            try:
                workers[2].wait_for_step(20)
                workers[2].process.kill()
                self.assertEqual(workers[2].exit()[0], -signal.SIGKILL)
                workers[0].wait_for_step(60)  # the others continue
                workers[2] = Worker(2, folder)
                workers[2].wait_for(lambda line: line == "joined")
                pathlib.Path(folder, GATES[100]).touch()

                workers[2].wait_for_step(120)
                workers[1].process.terminate()
                code, line = workers[1].exit()
                self.assertEqual(code, 1)
                self.assertRegex(line, "Preempted: SIGTERM: this worker has left .* step 1..")
                workers[1] = Worker(1, folder)
                workers[1].wait_for(lambda line: line == "joined")
                pathlib.Path(folder, GATES[200]).touch()

                ends = [worker.exit() for worker in workers]
                self.assertEqual({end for end in ends}, {ends[0]})
                self.assertRegex(ends[0][1], f"^end [0-9]+ [0-9a-f]+ counted {EPOCHS}.0$")
            finally:
                for worker in workers:
                    worker.process.kill()
                    worker.exit()


    def test_the_others_continue_while_a_worker_is_stopped_under_quorum(self):
        workers = [Worker(rank, "", "quorum") for rank in range(WORKERS)]
        try:
            workers[2].wait_for_step(20)
            workers[2].process.send_signal(signal.SIGSTOP)
            begin = max(worker.last_step() for worker in workers[:2])
            for worker in workers[:2]:
                worker.wait_for_step(begin + 100)
            self.assertLess(workers[2].last_step(), begin + 100)
            workers[2].process.send_signal(signal.SIGCONT)
            ends = [worker.exit() for worker in workers]
            self.assertEqual({end for end in ends}, {ends[0]})
            self.assertRegex(ends[0][1], "^end ")
            self.assertEqual([worker.last_step() for worker in workers], [QUORUM_STEPS] * WORKERS)
        finally:
            for worker in workers:
                worker.process.kill()
                worker.exit()


    def test_a_worker_that_dies_before_the_first_broadcast_does_not_stop_the_others(self):
        for victim in (0, 2):
            workers = [Worker(rank, f"{victim}", "death") for rank in range(WORKERS)]
            try:
                ends = [worker.exit() for worker in workers]
                self.assertEqual(ends.pop(victim)[0], -signal.SIGKILL)
                self.assertEqual(len(set(ends)), 1, ends)
                if victim == 0:  # nobody has the parameters
                    self.assertEqual(ends[0][0], 1)
                    self.assertRegex(ends[0][1], "FailedPrecondition: .*model/initial.* from root "
                                     "0: no member .*if it has died, start the job again")
                else:
                    self.assertRegex(ends[0][1], "^end 4 2 ")
            finally:
                for worker in workers:
                    worker.process.kill()
                    worker.process.wait(TIMEOUT)


class OneProcessTest(unittest.TestCase):
    """Workers in this process. Those that are not on the main thread have a thread each."""

    def join(self, rank=0, world_size=1):
        job = syncgrads.init(job=self.id(), rank=rank, world_size=world_size, max_workers=2,
                             timeout=TIMEOUT)
        self.addCleanup(job.close)
        return job

    def begin(self, job, sampler=None):
        """Returns a linear model and its optimizer."""
        model = torch.nn.Linear(1, 1, bias=False)
        return model, sg.elastic(model, torch.optim.SGD(model.parameters(), lr=1), sampler, job=job)

    @contextlib.contextmanager
    def changed_members(self, group):
        """Lets waits for the step end as if the members had changed."""
        with mock.patch.object(group, "wait_step", side_effect=syncgrads.Aborted("members")):
            yield

    def test_a_step_that_was_not_made_does_not_leave_out_the_next(self):
        model, optimizer = self.begin(self.join())
        begin = model.weight.item()
        optimizer.sync_group.begin_step()
        with self.changed_members(optimizer.sync_group):
            model(torch.ones(1, 1)).sum().backward()  # and no step(), as with GradScaler
        optimizer.zero_grad()
        model(torch.ones(1, 1)).sum().backward()
        optimizer.step()
        self.assertEqual(model.weight.item(), begin - 1)

    def test_a_gradient_that_nobody_has_is_none_as_for_a_newcomer(self):
        job = self.join()
        layers = torch.nn.ModuleList([torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)])
        optimizer = sg.elastic(layers, torch.optim.SGD(layers.parameters(), lr=1, weight_decay=0.1),
                               job=job)
        for used in (layers, layers[:1]):
            optimizer.zero_grad(set_to_none=False)
            sum(layer(torch.ones(1, 1)).sum() for layer in used).backward()
            before = layers[1].weight.item()
            self.assertEqual(layers[0].weight.grad.item(), 1)
            optimizer.step()
        self.assertIsNone(layers[1].weight.grad)
        self.assertEqual(layers[1].weight.item(), before)

    def test_rows_are_dealt_once_for_a_step(self):
        sampler = sg.DealtSampler(6, 2, shuffle=False)
        model, optimizer = self.begin(self.join(), sampler)
        rows = torch.utils.data.TensorDataset(torch.ones(6, 1))
        loader = torch.utils.data.DataLoader(rows, batch_sampler=sampler, num_workers=2,
                                             multiprocessing_context="fork")
        with self.assertRaisesRegex(syncgrads.FailedPrecondition,
                                    r"rows of step 1 were .* step\(\) once .* num_workers=0"):
            next(iter(loader))
        loader = torch.utils.data.DataLoader(rows, batch_sampler=sampler)
        for x, in loader:
            optimizer.zero_grad()
            if sampler.steps == 1 and optimizer._synchroniser.restarts == 0:
                with self.changed_members(optimizer.sync_group):
                    model(x).sum().backward()
            else:
                model(x).sum().backward()
            optimizer.step()
        self.assertEqual((sampler.ended, sampler.steps), (True, 3))

    def test_rows_of_a_step_that_an_exception_ended_are_dealt_again(self):
        sampler = sg.DealtSampler(4, 2, shuffle=False)
        model, optimizer = self.begin(self.join(), sampler)
        dealt = []
        for rows in sampler:
            dealt.append(rows)
            x = torch.ones(2, 1, requires_grad=True)
            if len(dealt) == 1:
                with self.assertRaisesRegex(ValueError, "no gradient today"):
                    model(Fails.apply(x)).sum().backward()
                continue
            model(x).sum().backward()
            self.assertEqual(model.weight.grad.item(), 2)
            optimizer.step()
            optimizer.zero_grad()
        self.assertEqual(dealt, [[0, 1], [2, 3], [0, 1]])
        self.assertEqual(sampler.steps, 3)

    def train_with_schedulers(self, rank, stop, ends, newcomer=None):
        """Trains until the step `stop`, which the newcomer sets. After 20 steps, rank 0 starts the
        newcomer. In some steps one of them has no rows."""
        with syncgrads.init(job=self.id(), rank=rank, world_size=1, max_workers=2,
                            timeout=TIMEOUT) as job:
            model = torch.nn.Linear(1, 1, bias=False)
            optimizer = torch.optim.Adam(model.parameters(), lr=1)
            scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.9)
            sampler = sg.DealtSampler(7, 1, epochs=100000)
            sg.elastic(model, optimizer, sampler, job=job, schedulers=[scheduler])
            for rows in sampler:
                optimizer.zero_grad()
                model(torch.ones(1, 1) * rows[0]).sum().backward()
                optimizer.step()
                if newcomer is None and not stop:
                    stop.append(sampler.steps + 20)
                elif newcomer is not None and sampler.steps == 20 and newcomer.ident is None:
                    newcomer.start()
                if stop and sampler.steps >= stop[0]:
                    break
            ends[rank] = (sampler.steps, model.weight.item(), optimizer.param_groups[0]["lr"],
                          scheduler.state_dict())

    def test_a_newcomer_has_the_learning_rates_and_schedulers_of_the_others(self):
        stop, ends = [], {}
        newcomer = threading.Thread(target=self.train_with_schedulers, args=(1, stop, ends))
        self.train_with_schedulers(0, stop, ends, newcomer)
        newcomer.join()
        self.assertEqual(ends[0], ends[1])
        # Also if a step was made again, because its members had changed.
        self.assertEqual(ends[0][3]["last_epoch"], ends[0][0])
        self.assertAlmostEqual(ends[0][2], 0.9 ** (ends[0][0] // 3))

    def test_schedulers_may_follow_passes(self):
        job = self.join()
        sampler = sg.DealtSampler(7, 2, epochs=3)
        model = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1)
        rates = torch.optim.lr_scheduler
        schedulers = [rates.ExponentialLR(optimizer, 0.5), rates.ReduceLROnPlateau(optimizer)]
        with self.assertRaisesRegex(syncgrads.InvalidArgument, "schedule_by is 'pass'"):
            sg.elastic(model, optimizer, job=job, schedulers=schedulers, schedule_by="pass")
        sg.elastic(model, optimizer, sampler, job=job, schedulers=schedulers, schedule_by="pass")
        for _ in sampler:
            optimizer.zero_grad()
            self.assertEqual(optimizer.param_groups[0]["lr"], 0.5 ** sampler.epoch)
            model(torch.ones(1, 1)).sum().backward()
            optimizer.step()
        self.assertEqual(optimizer.param_groups[0]["lr"], 0.125)

    def test_a_scheduler_that_a_newcomer_would_lack_is_refused(self):
        job = self.join()
        model = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1)
        torch.optim.lr_scheduler.StepLR(optimizer, 3)
        with self.assertRaisesRegex(syncgrads.FailedPrecondition, r"schedulers=\[scheduler\]"):
            sg.elastic(model, optimizer, job=job)
        model, optimizer = self.begin(job)
        torch.optim.lr_scheduler.StepLR(optimizer, 3)
        with self.assertRaisesRegex(syncgrads.FailedPrecondition, "before syncgrads.torch.elastic"):
            model(torch.ones(1, 1)).sum().backward()

    def test_a_newcomer_that_does_not_call_elastic_is_refused(self):
        job = self.join()
        model = torch.nn.Linear(1, 1)
        model.set_all_reduce_hook = lambda _: None
        optimizer = torch.optim.SGD(model.parameters(), lr=1)
        with mock.patch.object(type(job), "is_newcomer", True):
            for name, call in {
                    "DistributedOptimizer": lambda: sg.DistributedOptimizer(optimizer, model,
                                                                            job=job),
                    "ddp": lambda: sg.ddp(model, job=job),
                    "fsdp": lambda: sg.fsdp(model, job=job),
                    "DiLoCo": lambda: sg.DiLoCo(model, optimizer, 1, job=job),
                    "LocalSGD": lambda: sg.LocalSGD(model, optimizer, 1, job=job)}.items():
                with self.subTest(name), self.assertRaisesRegex(
                        syncgrads.FailedPrecondition, f"torch.{name} .*use syncgrads.torch.elastic"):
                    call()
        torch.distributed.destroy_process_group()

    def test_the_length_of_a_sampler_is_the_number_of_batches(self):
        with self.assertRaisesRegex(syncgrads.FailedPrecondition, "pass it to .*elastic"):
            len(sg.DealtSampler(7, 2))
        sampler = sg.DealtSampler(7, 2, epochs=3)
        model, optimizer = self.begin(self.join(), sampler)
        batches = len(sampler)
        for _ in sampler:
            batches -= 1
            optimizer.zero_grad()
            model(torch.ones(1, 1)).sum().backward()
            optimizer.step()
        self.assertEqual(batches, 0)
        for rank, expected in enumerate((6, 3, 3)):  # two rows each, and then one of rank 0
            with mock.patch.object(_elastic._Training, "placement", (rank, 3)):
                self.assertEqual(len(sampler), expected)

    def test_a_model_that_cannot_be_handed_over_is_refused(self):
        job = self.join()

        def begin(model, kind=torch.optim.SGD):
            sg.elastic(model, kind(model.parameters(), lr=1), job=job)

        flags = torch.nn.Linear(1, 1)
        flags.register_buffer("mask", torch.ones(1, dtype=torch.bool))
        with self.assertRaisesRegex(syncgrads.InvalidArgument,
                                    "'model/mask' is torch.bool.* persistent=False"):
            begin(flags)
        turned = torch.nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
        with self.assertRaisesRegex(syncgrads.InvalidArgument,
                                    "'model/weight' .*not contiguous.*torch.contiguous_format"):
            begin(turned)
        with self.assertRaisesRegex(syncgrads.InvalidArgument, "LBFGS calls its closure"):
            begin(torch.nn.Linear(1, 1), torch.optim.LBFGS)
        turned.register_buffer("nothing", torch.empty(0))
        begin(turned.to(memory_format=torch.contiguous_format))

    def expect_refused(self, change, expected, is_newcomer):
        """Expects that a second worker whose sampler has another argument is refused."""
        def join(rank):
            return syncgrads.init(job=f"{self.id()}/{change}/{is_newcomer}", rank=rank,
                                  max_workers=2, world_size=1 if is_newcomer else 2,
                                  timeout=TIMEOUT)

        def work():
            with join(1) as job:
                try:
                    self.begin(job, sg.DealtSampler(**{**arguments, **change}))
                except syncgrads.Error as error:
                    errors.append(error)

        arguments = {"rows": 4, "batch_size": 1, "epochs": 100000}
        errors = []
        thread = threading.Thread(target=work)
        if not is_newcomer:
            thread.start()
        with join(0) as job:
            sampler = sg.DealtSampler(**arguments)
            model, optimizer = self.begin(job, sampler)
            if is_newcomer:
                thread.start()
            for _ in sampler:
                optimizer.zero_grad()
                model(torch.ones(1, 1)).sum().backward()
                optimizer.step()
                if not thread.is_alive():
                    break
            thread.join()
        error, = errors
        self.assertIsInstance(error, syncgrads.InvalidArgument)
        self.assertRegex(str(error), expected)

    def test_samplers_with_other_arguments_are_refused(self):
        for change in ({"rows": 5}, {"batch_size": 2}, {"epochs": 2}, {"shuffle": False},
                       {"seed": 3}):
            (name, _), = change.items()
            expected = f"^{name} of the DealtSampler is .* but .* the same arguments on all"
            for is_newcomer in (False, True):
                with self.subTest(change=change, is_newcomer=is_newcomer):
                    if is_newcomer and name == "rows":
                        expected = r"sampler/order.* i64\[5\] here, but .* i64\[4\]"
                    self.expect_refused(change, expected, is_newcomer)


class StateTest(unittest.TestCase):

    def test_state_that_is_made_in_advance_changes_no_step(self):
        for kind, settings in ((torch.optim.SGD, {"momentum": 0.9, "weight_decay": 0.1}),
                               (torch.optim.Adam, {"weight_decay": 0.1}), (torch.optim.AdamW, {}),
                               (torch.optim.RMSprop, {"momentum": 0.5}),
                               (torch.optim.Adagrad, {"initial_accumulator_value": 0.5})):
            ends = []
            for in_advance in (False, True):
                parameter = torch.nn.Parameter(torch.ones(3))
                optimizer = kind([parameter], lr=0.1, **settings)
                if in_advance:
                    _elastic._make_state(optimizer)
                    self.assertEqual(parameter.tolist(), [1, 1, 1])
                for step in range(3):
                    parameter.grad = torch.tensor([1.0, -2.0, 0.5]) * step + 1
                    optimizer.step()
                ends.append(parameter.tolist())
            self.assertEqual(*ends, kind)
        optimizer = torch.optim.NAdam([torch.nn.Parameter(torch.ones(3))])
        with self.assertRaisesRegex(syncgrads.InvalidArgument, "'mu_product' of NAdam"):
            _elastic._make_state(optimizer)

    def test_state_that_begins_with_the_learning_rate_is_refused(self):
        class Decays(torch.optim.Optimizer):

            def step(self, closure=None):
                for parameter in self.param_groups[0]["params"]:
                    parameter.data.mul_(0.5)
                    self.state[parameter]["rate"] = torch.tensor(self.param_groups[0]["lr"])

        parameter = torch.nn.Parameter(torch.ones(3))
        with self.assertRaisesRegex(syncgrads.InvalidArgument, "'rate' of Decays"):
            _elastic._make_state(Decays([parameter], {"lr": 0.1}))
        self.assertEqual(parameter.tolist(), [1, 1, 1])

    def test_numbers_are_kept_in_a_tensor(self):
        parameter = torch.nn.Parameter(torch.ones(1))
        optimizer = torch.optim.SGD([parameter], lr=0.1)
        optimizer.state[parameter] = {"step": 3, "rate": 0.5}
        numbers = _elastic._Numbers(optimizer)
        received, = numbers.state().values()
        self.assertEqual(received[:2].tolist(), [3, 0.5])
        received[:2] = torch.tensor([7, 0.25])
        numbers.restore()
        self.assertEqual(optimizer.state[parameter], {"step": 7, "rate": 0.25})

    def test_settings_and_schedulers_are_restored(self):
        def make():
            optimizer = torch.optim.Adam([torch.nn.Parameter(torch.ones(1))], lr=1, betas=(0.5, 0.9))
            rates = torch.optim.lr_scheduler
            schedulers = [rates.SequentialLR(optimizer, [rates.ConstantLR(optimizer, 0.5, 2),
                                                         rates.CosineAnnealingLR(optimizer, 10)],
                                             [3]),
                          rates.ReduceLROnPlateau(optimizer, patience=0)]
            return optimizer, schedulers, _elastic._Numbers(optimizer, schedulers)

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the optimizer makes no steps
            optimizer, schedulers, numbers = make()
            other, of_other, numbers_of_other = make()
            for step in range(5):
                schedulers[0].step()
                schedulers[1].step(step)
            optimizer.param_groups[0]["betas"] = (0.25, 0.75)
            numbers.save()
            numbers_of_other.state()["optimizer/numbers"].copy_(
                numbers.state()["optimizer/numbers"])
            numbers_of_other.restore()
            for step in range(3):
                for one, two in ((optimizer, schedulers), (other, of_other)):
                    two[0].step()
                    two[1].step(7)
                settings = [{key: value for key, value in one.param_groups[0].items()
                             if key != "params"} for one in (optimizer, other)]
                self.assertEqual(*settings)
            self.assertEqual(other.param_groups[0]["betas"], (0.25, 0.75))


class SamplerTest(unittest.TestCase):

    def test_rows_that_were_not_counted_are_dealt_again(self):
        sampler = sg.DealtSampler(10, 2, shuffle=False)
        self.assertEqual([sampler._rows_of(rank) for rank in range(3)], [[0, 1], [2, 3], [4, 5]])
        sampler._advance(3, [0, 2])
        self.assertEqual([sampler._rows_of(rank) for rank in range(3)], [[6, 7], [8, 9], [2, 3]])
        sampler._advance(2, [0, 1])
        self.assertEqual([sampler._rows_of(rank) for rank in range(2)], [[2, 3], []])
        self.assertFalse(sampler.ended)
        sampler._advance(2, [0])
        self.assertTrue(sampler.ended)
        self.assertEqual((sampler.steps, sampler.epoch), (3, 1))

    def test_the_order_is_written_only_if_rows_are_dealt_again(self):
        sampler = sg.DealtSampler(10, 2, shuffle=False)
        version = sampler._order._version
        sampler._advance(3, [0, 1, 2])
        self.assertEqual(sampler._order._version, version)
        sampler._advance(2, [1])
        self.assertGreater(sampler._order._version, version)
        self.assertEqual(sampler._order.tolist(), [0, 1, 2, 3, 4, 5, 8, 9, 6, 7])

    def test_each_pass_has_an_order_of_its_own(self):
        sampler = sg.DealtSampler(6, 6, seed=1, epochs=2)
        first = sampler._rows_of(0)
        sampler._advance(1, [0])
        self.assertNotEqual(sampler._rows_of(0), first)
        self.assertEqual(sorted(sampler._rows_of(0)), list(range(6)))

    def test_wrong_use_says_what_to_do(self):
        with self.assertRaisesRegex(syncgrads.InvalidArgument, "batch_size is 0"):
            sg.DealtSampler(10, 0)
        with self.assertRaisesRegex(syncgrads.FailedPrecondition, "pass it to .*elastic"):
            next(iter(sg.DealtSampler(10, 1)))


if __name__ == "__main__":
    if sys.argv[1:2] == ["elastic"]:
        work(int(sys.argv[2]), sys.argv[3])
    elif sys.argv[1:2] == ["quorum"]:
        work_under_quorum(int(sys.argv[2]))
    elif sys.argv[1:2] == ["death"]:
        work_after_a_death(int(sys.argv[2]), int(sys.argv[3]))
    else:
        unittest.main()
