"""The package syncgrads with real servers. python_test.cc runs this program as two ranks, each of
which runs the same tests in the same order."""

import array
import collections
import contextlib
import gc
import importlib
import os
import signal
import sys
import threading
import time
import types
import unittest
import unittest.mock
import weakref

import numpy

import syncgrads

# The timeout of every wait that is expected to end, in seconds.
TIMEOUT = 120


class RanksTest(unittest.TestCase):

    def setUp(self):
        self.job = self.join()
        self.rank, self.size = self.job.rank, self.job.world_size

    def tearDown(self):
        self.job.close()

    def join(self, suffix="", **options):
        return syncgrads.init(job=self.id() + suffix, timeout=TIMEOUT, **options)

    def test_rank_and_size_are_those_of_the_launcher(self):
        self.assertEqual(self.rank, int(os.environ["RANK"]))
        self.assertEqual(self.size, 2)
        self.assertFalse(self.job.is_newcomer)
        self.assertIsNone(self.job.status)
        self.assertFalse(self.job.take_checkpoint_request())
        self.job.report_checkpoint(1, "/tmp/one")
        self.job.report(1, loss=float("nan"), validation={"accuracy": 0.5})
        self.job.report(2, loss=0.25, learning_rate=0.1, device="cpu", seconds={"wait": 1.5})
        with self.assertRaisesRegex(syncgrads.InvalidArgument, "device.*65"):
            self.job.report(3, device="x" * 65)
        self.job.leave()

    def test_all_reduces_arrays_of_every_kind_in_place(self):
        for values in (numpy.full((2, 3), self.rank + 1, numpy.float32),
                       array.array("q", [self.rank + 1] * 6),
                       memoryview(array.array("d", [self.rank + 1] * 6))):
            self.assertIs(self.job.all_reduce(values), values)
            self.assertTrue((numpy.asarray(values) == 3).all())
        values = numpy.array([self.rank + 1.0])
        largest = numpy.zeros(1)
        self.assertIs(self.job.all_reduce(values, "max", out=largest), largest)
        self.assertEqual((values[0], largest[0]), (self.rank + 1, 2))
        self.assertEqual(self.job.all_reduce(values, "average", name="mean")[0], 1.5)
        self.job.all_reduce(numpy.float64(self.rank + 5), out=largest)
        self.assertEqual(largest[0], 11)
        with self.assertRaisesRegex(syncgrads.InvalidArgument, "'mean'.* 3 f64.* 1 f64"):
            self.job.all_reduce(numpy.zeros(3), out=numpy.zeros(1), name="mean")
        with self.assertRaisesRegex(syncgrads.InvalidArgument, "unknown reduction 'median'"):
            self.job.all_reduce(values, "median")
        if self.rank == 0:
            self.assertEqual(self.job.all_reduce_skip(values, name="one"), 1)
        else:
            self.job.all_reduce(values, name="one")
        self.job.leave()

    def test_collectives(self):
        gathered = numpy.zeros((2, 3), numpy.int32)
        self.assertEqual(self.job.all_gather(numpy.full(3, self.rank, numpy.int32), gathered), 2)
        self.assertEqual(gathered.tolist(), [[0] * 3, [1] * 3])
        with self.assertRaisesRegex(syncgrads.InvalidArgument, "needs 6 i32.* has 3 i32"):
            self.job.all_gather(gathered[0], gathered[0])
        reduced = self.job.reduce(numpy.array([1.0]), root=1)
        self.assertEqual(reduced.tolist() if self.rank == 1 else reduced,
                         [2.0] if self.rank == 1 else None)
        self.assertEqual(self.job.broadcast(numpy.array([self.rank]), root=1)[0], 1)
        model = {"w": numpy.full((2, 2), self.rank, numpy.float32), "step": numpy.array(self.rank)}
        self.job.broadcast_all(model)
        self.assertEqual((model["w"].sum(), model["step"]), (0, 0))
        model["step"] += self.rank
        self.job.start_broadcast_all(model, root=1, name="later").wait()
        self.assertEqual(model["step"], 1)
        pending = self.job.start_all_reduce(numpy.ones(5), name="later")
        self.job.barrier()
        self.assertEqual(pending.wait(), 2)
        self.assertEqual(pending.wait(), 2)
        self.job.leave()

    def test_steps(self):
        group = self.job.register("model", {"v": ("f32", (2,)), "w": numpy.zeros((3, 4)),
                                            "b": numpy.zeros((), numpy.float32)},
                                  chunk_bytes=16)
        v = numpy.array([self.rank, 1], numpy.float32)
        w = self.job.allocate_gradients((3, 4), float)
        self.assertEqual(w.sum(), 0)
        w += self.rank
        b = numpy.zeros((), numpy.float32)
        mean = numpy.zeros((3, 4))
        with self.assertRaisesRegex(syncgrads.InvalidArgument,
                                    "`out` has tensor 'v' of group 'model', .* or None to skip"):
            group.push_many({"w": w}, {"w": mean, 0: v})
        for step in range(1, 4):
            self.assertEqual(group.step, step)
            group.set_weight(1)
            group.push("v", v)
            group.push_many({1: w, "b": b if self.rank == 0 else None}, {"w": mean, 2: b})
            self.assertEqual({group.next_completion() for _ in range(3)}, {"v", "w", "b"})
            with self.assertRaises(syncgrads.NotFound):
                group.next_completion()
            self.assertEqual(group.wait("w"), (2, 2, False))
            self.assertTrue(group.is_step_answered)
            counted = group.wait_step()
            self.assertEqual([one.most for one in counted], [2, 2, 1])
            self.assertEqual((v.tolist(), mean.sum()), ([0.5, 1], 6))
        outcome = group.last_step()
        self.assertEqual((outcome.step, outcome.contributors, outcome.whole), (3, [0, 1], True))
        self.assertEqual(outcome.members, ["worker-0", "worker-1"])
        self.assertTrue(any("shared memory" in notice for notice in self.job.notices()))
        group.end()
        for tensor in group.tensors:
            group.skip(tensor)
        with self.assertRaises(syncgrads.OutOfRange):
            group.wait_step()
        self.job.leave()

    def test_wrong_use_says_what_to_do(self):
        group = self.job.register("model", {"w": ("f32", (2, 3))})
        self.assertIs(self.job.register("model", {"w": ("f32", (2, 3))}), group)
        for values, why in ((numpy.zeros((2, 3)), r"registered as f32\[2, 3\].* f64\[2, 3\]"),
                            (numpy.zeros(5, numpy.float32), r"is f32\[5\]"),
                            (numpy.zeros((3, 2), numpy.float32), r"is f32\[3, 2\]: .* flat"),
                            (numpy.float32(0), "float32 cannot be written to")):
            with self.assertRaisesRegex(syncgrads.InvalidArgument, why):
                group.push("w", values)
        with self.assertRaisesRegex(syncgrads.InvalidArgument, "no tensor 'x'.* before the first"):
            group.push("x", numpy.zeros(2))
        with self.assertRaisesRegex(syncgrads.InvalidArgument, "'step': the int64 cannot be"):
            self.job.broadcast_all({"step": numpy.int64(1)})
        with self.assertRaisesRegex(syncgrads.FailedPrecondition, "has not been pushed"):
            group.wait_step()
        with self.assertRaisesRegex(syncgrads.InvalidArgument, "learning_rte"):
            self.job.register("other", {"w": ("f32", (2,))},
                              optimizer={"sgd": {"learning_rte": 1}})
        values = numpy.zeros((2, 3), numpy.float32)
        if self.rank == 0:
            group.push("w", values)
            with self.assertRaisesRegex(syncgrads.FailedPrecondition, "in progress"):
                self.job.leave()
        self.job.barrier()
        if self.rank == 1:
            group.push("w", values.reshape(-1))
        group.wait_step()

        child = os.fork()
        if child == 0:
            try:
                group.push("w", values)
            except syncgrads.FailedPrecondition as error:
                os._exit(0 if "forked" in str(error) else 1)
            os._exit(1)
        self.assertEqual(os.waitpid(child, 0)[1], 0)

        with self.join("/second") as second:
            self.assertEqual(second.all_reduce(numpy.ones(1))[0], 2)
        with self.assertRaisesRegex(syncgrads.FailedPrecondition, "job is closed"):
            second.barrier()
        self.job.leave()
        with self.assertRaisesRegex(syncgrads.FailedPrecondition, "has left"):
            group.push("w", values)

    def test_a_deadline_names_the_worker_that_is_missing(self):
        group = self.job.register("model", {"w": ("f32", (1,))})
        values = numpy.zeros(1, numpy.float32)
        if self.rank == 0:
            group.push("w", values)
            give_up = time.monotonic() + TIMEOUT
            message = ""
            while "worker-1" not in message and time.monotonic() < give_up:
                with self.assertRaises(syncgrads.DeadlineExceeded) as caught:
                    group.wait_step(timeout=1)
                message = str(caught.exception)
            self.assertIn("worker-1", message)
        self.job.barrier()
        if self.rank == 1:
            group.push("w", values)
        group.wait_step()
        self.job.leave()

    def test_a_collective_can_be_repeated(self):
        job, rank = self.job, self.rank
        x, total, parts = numpy.zeros(1), numpy.zeros(1), numpy.zeros(2)
        calls = (
            (x, [3], lambda **given: job.all_reduce(x, **given)),
            (total, [2], lambda **given: job.all_reduce(numpy.float64(rank + 1), "max", out=total,
                                                        **given)),
            (total, [3], lambda **given: job.reduce(x, out=total, **given)),
            (x, [2], lambda **given: job.broadcast(x, 1, **given)),
            (x, [2], lambda **given: job.broadcast_all({"x": x}, 1, **given)),
            (parts, [1, 2], lambda **given: job.all_gather(x, parts, **given)),
            (x, [1], job.barrier))
        for is_over in (False, True):
            for why in (syncgrads.DeadlineExceeded, KeyboardInterrupt):
                for result, expected, call in calls:
                    x[:] = rank + 1
                    if rank == 0:
                        with contextlib.ExitStack() as stack:
                            stack.enter_context(self.assertRaises(why))
                            if why is KeyboardInterrupt:
                                stack.enter_context(unittest.mock.patch(
                                    "syncgrads._waits.Task.result", side_effect=why))
                            call(timeout=TIMEOUT if why is KeyboardInterrupt else 0.01)
                    job.barrier("rank 0 has begun")
                    if rank == 1:
                        call()
                    if is_over:
                        job.barrier("rank 1 has ended")
                    if rank == 0:
                        call()
                        self.assertEqual(result.tolist(), expected)
        job.leave()

    def test_a_collective_that_was_given_up_is_not_continued_later(self):
        first, second = numpy.zeros(1), numpy.zeros(1)
        if self.rank == 0:
            with self.assertRaises(syncgrads.DeadlineExceeded):
                self.job.all_reduce(first, timeout=0.01)
            with self.assertRaisesRegex(syncgrads.FailedPrecondition, "in progress"):
                self.job.all_reduce(second)
        self.job.barrier("rank 0 has begun")
        if self.rank == 1:
            self.job.all_reduce(first)
        self.job.barrier("rank 1 has ended")
        for values in (second, first):
            values[:] = self.rank + 1
            self.assertEqual(self.job.all_reduce(values)[0], 3)
        self.job.leave()

    def test_a_job_is_freed_with_a_collective_in_progress(self):
        job = self.join("/dropped")
        with self.assertRaises(syncgrads.DeadlineExceeded):
            job.all_reduce(numpy.zeros(1), name=f"of {self.rank}", timeout=0.01)
        freed = weakref.ref(job)
        del job
        gc.collect()
        self.assertIsNone(freed())
        self.job.leave()

    def test_keyboard_interrupt_ends_a_wait_that_can_be_repeated(self):
        group = self.job.register("model", {"w": ("f32", (1,))})
        values = numpy.ones(1, numpy.float32)
        if self.rank == 0:
            group.push("w", values)

            def interrupt():
                give_up = time.monotonic() + TIMEOUT
                while not group._waiting.has_begun and time.monotonic() < give_up:
                    time.sleep(0.001)
                os.kill(os.getpid(), signal.SIGINT)

            thread = threading.Thread(target=interrupt)
            thread.start()
            with self.assertRaises(KeyboardInterrupt):
                group.wait_step()
            thread.join()
        self.job.barrier()
        if self.rank == 1:
            group.push("w", values)
        self.assertEqual(group.wait_step()[0].most, 2)
        self.assertEqual(group.step, 2)
        self.job.leave()

    def test_keyboard_interrupt_at_the_end_of_a_step_does_not_lose_it(self):
        group = self.job.register("model", {"w": ("f32", (1,))})
        values = numpy.ones(1, numpy.float32)

        def interrupted(function, *arguments):
            check(function, *arguments)
            raise KeyboardInterrupt

        check = syncgrads.group.check
        # A call with a short timeout may be made on another thread.
        for timeout in (TIMEOUT, 0.1):
            group.push("w", values)
            with unittest.mock.patch("syncgrads.group.check", interrupted):
                with self.assertRaises(KeyboardInterrupt):
                    group.wait_step(TIMEOUT)
            self.assertEqual(group.wait_step(timeout)[0].most, 2)
        self.assertEqual(group.step, 3)
        group.push("w", values)
        with unittest.mock.patch("syncgrads.group.check", interrupted):
            with self.assertRaises(KeyboardInterrupt):
                group.wait_step(TIMEOUT)
        # A step that is pushed is awaited, also if the wait for the last one was not repeated.
        group.push("w", values)
        self.assertEqual(group.wait_step()[0].most, 2)
        self.assertEqual(group.step, 5)
        self.job.leave()

    def test_waits_release_the_interpreter(self):
        counted = [0]
        done = threading.Event()

        def count():
            while not done.is_set():
                counted[0] += 1
            self.job.barrier("counted")

        thread = threading.Thread(target=count)
        thread.start()
        if self.rank == 0:
            # Waits for rank 1, which waits for its own thread.
            self.job.barrier()
        else:
            give_up = time.monotonic() + TIMEOUT
            while counted[0] < 1000 and time.monotonic() < give_up:
                time.sleep(0.001)
            self.job.barrier()
        self.assertGreater(counted[0], 0)
        done.set()
        thread.join()
        self.job.leave()

    def test_an_optimizer_on_the_servers_is_read_and_restored(self):
        momentum = {"momentum": {"learning_rate": 0.5, "momentum": 0.5}}
        gradient = numpy.array([2, 4], numpy.float32)
        w = numpy.array([8, 0] if self.rank == 0 else [-1, -1], numpy.float32)
        group = self.job.register("model", {"w": w}, optimizer=momentum)
        group.broadcast([w])
        group.push("w", gradient, w)
        group.wait_step()
        self.assertEqual(w.tolist(), [7, -2])
        state = group.read_optimizer()
        self.assertEqual(numpy.frombuffer(state.slots[0][0], numpy.float32).tolist(), [1, 2])
        self.assertEqual(state.updates, [1])
        self.job.leave()

        with self.join("/resumed") as job:
            group = job.register("model", {"w": w}, optimizer=momentum)
            group.broadcast([w], state=state if self.rank == 0 else None)
            group.push("w", gradient, w)
            group.wait_step()
            self.assertEqual(w.tolist(), [5.5, -5])
            with self.assertRaisesRegex(syncgrads.InvalidArgument, "factor of 0"):
                job.set_learning_rate_factor(0)
            if self.rank == 0:
                job.set_learning_rate_factor(2)
            job.barrier()
            group.push("w", gradient, w)
            group.wait_step()
            self.assertEqual((w.tolist(), group.learning_rate_factor), ([2.75, -10.5], 2))

    def test_a_newcomer_gets_the_state(self):
        options = {"world_size": 1, "rank": self.rank, "max_workers": 2}
        members = self.size
        if self.rank == 1:
            self.job.barrier("rank 0 has begun")
        with self.join("/elastic", **options) as job:
            group = job.register("model", {"w": ("f64", ())}, reduction="sum", one_epoch=True)
            w, steps = numpy.zeros(()), numpy.zeros((), numpy.int64)
            self.assertEqual(group.register_state({"w": w, "steps": steps}), self.rank == 1)
            self.assertEqual(job.is_newcomer, self.rank == 1)
            if self.rank == 0:
                self.job.barrier("rank 0 has begun")
            self.assertEqual(group.step, steps + 1)
            total = numpy.zeros(())
            for together in range(2):
                while True:
                    step = group.begin_step()
                    group.push("w", numpy.ones(()), total)
                    try:
                        group.wait_step()
                    except syncgrads.Aborted:
                        group.restart_step()
                        continue
                    self.assertEqual(total, step.world_size)
                    w += total
                    steps += 1
                    if step.world_size == members:
                        break
            group.end()
        both = numpy.zeros((2, 2))
        self.job.all_gather(numpy.array([w, steps]), both)
        self.assertEqual(both[0].tolist(), both[1].tolist())
        self.job.leave()

    def test_optax_gets_averages(self):
        # Neither JAX nor optax is there: these have the functions that are called.
        calls = []

        def io_callback(function, shapes, *arguments, ordered):
            calls.append((shapes, ordered))
            return function(*arguments)

        jax = types.ModuleType("jax")
        jax.ShapeDtypeStruct = lambda shape, dtype: (shape, str(dtype))
        jax.tree_util = types.SimpleNamespace(
            tree_flatten=lambda tree: (list(tree.values()), list(tree)),
            tree_unflatten=lambda structure, leaves: dict(zip(structure, leaves)))
        jax.experimental = types.ModuleType("jax.experimental")
        jax.experimental.io_callback = io_callback
        optax = types.ModuleType("optax")
        optax.GradientTransformation = collections.namedtuple("Transformation", "init update")
        stubs = {"jax": jax, "jax.experimental": jax.experimental, "optax": optax}
        with unittest.mock.patch.dict(sys.modules, stubs):
            module = importlib.import_module("syncgrads.optax")
            negated = optax.GradientTransformation(
                lambda parameters: "state",
                lambda updates, state, parameters: (
                    {name: -value for name, value in updates.items()}, state + parameters))
            optimizer = module.distributed(negated, self.job)
            self.assertEqual(optimizer.init(None), "state")
            for step in range(2):
                gradients = {"w": numpy.full((2, 3), self.rank + step, numpy.float32),
                             "b": numpy.full((), 2.0 * self.rank)}
                updates, state = optimizer.update(gradients, "state", "parameters")
                self.assertEqual(updates["w"].tolist(), [[-0.5 - step] * 3] * 2)
                self.assertEqual((updates["b"].shape, updates["b"], state),
                                 ((), -1, "stateparameters"))
            self.assertEqual(calls[1], ([((2, 3), "float32"), ((), "float64")], True))
        self.job.leave()

    def test_memory_outlives_the_job(self):
        gradients = self.job.allocate_gradients(1000)
        self.job.all_reduce(gradients)
        self.job.leave()
        self.job.close()
        self.job = self.join("/other")
        gc.collect()
        gradients += 1
        self.assertEqual(gradients.sum(), 1000)
        self.job.leave()

    def test_joins_and_leaves_leak_nothing(self):
        def descriptors():
            return len(os.listdir("/proc/self/fd"))

        def threads():
            return len(os.listdir("/proc/self/task"))

        self.job.leave()
        before = None
        for round_number in range(30):
            with self.join(f"/{round_number}") as job:
                job.all_reduce(self.rank + job.allocate_gradients(10))
            del job
            gc.collect()
            if round_number == 4:
                before = descriptors(), threads()
        # gRPC closes descriptors a moment later. It keeps some threads, up to a few for each
        # processor.
        give_up = time.monotonic() + TIMEOUT
        while descriptors() > before[0] and time.monotonic() < give_up:
            time.sleep(0.01)
        self.assertLessEqual(descriptors(), before[0])
        self.assertLess(threads(), before[1] + 15)


if __name__ == "__main__":
    unittest.main()
