"""syncgrads.torch with tensors on CUDA devices, which are emulated (cuda_emulation.py): every order
in which the devices may execute the queued work gives the right averages. tests/deploy/torch.test
starts it as two ranks; the job, its servers and the memory are real."""

import functools
import gc
import os
import unittest
import unittest.mock

import torch
from torch import nn
from torch.autograd import Variable

import syncgrads
import syncgrads.torch as sg
from cuda_emulation import CPU, Emulation, device_of
from syncgrads.torch import _cuda, _ddp

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
TIMEOUT = 120
STEPS = 4
ORDERS = ("late", "early", *range(10))


class Net(nn.Module):
    """Parameters on two devices and on the CPU. Their gradients are scale × factors[name]."""

    def __init__(self):
        super().__init__()
        self.large = nn.Parameter(torch.zeros(600, 600))  # is pushed before backward has ended
        self.small = nn.Parameter(torch.zeros(3, 5))
        self.short = nn.Parameter(torch.zeros(300, dtype=torch.float16))
        self.other = nn.Parameter(torch.zeros(7, 2))
        self.host = nn.Parameter(torch.zeros(5000, dtype=torch.float64))
        self.first = nn.Parameter(torch.zeros(4))   # rank 0 has no gradient in odd steps
        self.second = nn.Parameter(torch.zeros(4))  # rank 1 has none in even steps
        self.never = nn.Parameter(torch.zeros(2))

    def forward(self, names, scale):
        return sum((getattr(self, name) * (scale * (1 + number))).sum().double()
                   for number, name in enumerate(names))


def names_of(step, rank):
    names = ["large", "small", "short", "other", "host"]
    if rank == 1 or step % 2 == 0:
        names.append("first")
    if rank == 0 or step % 2 == 1:
        names.append("second")
    return names


def gradient_of(name, step, rank, passes=1):
    """The gradient of a rank, or None."""
    names = names_of(step, rank)
    return passes * (1 + rank + 2 * step) * (1 + names.index(name)) if name in names else None


def average_of(name, step, passes=1):
    gradients = [gradient_of(name, step, rank, passes) for rank in range(SIZE)]
    there = [gradient for gradient in gradients if gradient is not None]
    return sum(there) / len(there) if there else None


class Observe(torch.optim.Optimizer):
    """An optimizer whose step is work that reads the gradients."""

    def __init__(self, model, emulation):
        super().__init__(model.parameters(), {})
        self.seen = []
        self._named = list(model.named_parameters())
        self._emulation = emulation

    def step(self, closure=None):
        seen = {}
        self.seen.append(seen)
        for name, parameter in self._named:
            if parameter.grad is None:
                seen[name] = None
            elif device_of(parameter) == CPU:
                seen[name] = parameter.grad.clone()
            else:
                self._emulation.queue(torch.cuda.current_stream(device_of(parameter)),
                                      lambda name=name, gradient=parameter.grad:
                                      seen.__setitem__(name, gradient.clone()))


    def double_gradients(self):
        for _, parameter in self._named:
            if parameter.grad is not None and device_of(parameter) == CPU:
                parameter.grad *= 2
            elif parameter.grad is not None:
                self._emulation.queue(torch.cuda.current_stream(device_of(parameter)),
                                      functools.partial(parameter.grad.mul_, 2))


class Backward:
    """Lets gradients be computed by work that is queued on two streams of each device, as autograd
    does when forward has used them: hooks see the stream of their gradient as the current one, and
    when backward ends, the program's stream waits for both."""

    def __init__(self, model, emulation):
        self._emulation = emulation
        self._streams = {device: (stream, emulation.Stream(device))
                         for device, stream in emulation.programs.items()}
        self._has_begun = False
        self._keep = []
        for number, parameter in enumerate(model.parameters()):
            if device_of(parameter) != CPU:
                self._delay(number, parameter)

    def _delay(self, number, parameter):
        def on_gradient(*_):
            if not self._has_begun:
                self._has_begun = True
                Variable._execution_engine.queue_callback(self._end)
            stream = self._streams[device_of(parameter)][number % 2]
            self._emulation.set_stream(stream)
            gradient, value = parameter.grad, parameter.grad.clone()
            gradient.fill_(float("nan"))
            self._emulation.queue(stream, lambda: gradient.copy_(value))

        if hasattr(parameter, "register_post_accumulate_grad_hook"):
            parameter.register_post_accumulate_grad_hook(on_gradient)
        else:
            accumulator = parameter.expand_as(parameter).grad_fn.next_functions[0][0]
            accumulator.register_hook(on_gradient)
            self._keep.append(accumulator)

    def _end(self):
        self._has_begun = False
        for program, other in self._streams.values():
            program.wait_stream(other)
            self._emulation.set_stream(program)


class Shard(nn.Module):
    """A module as fully_shard of PyTorch 2.8 makes it."""

    def __init__(self, size, dtype):
        super().__init__()
        self.weight = nn.Parameter(torch.full((size,), float(RANK), dtype=dtype))
        self.hook = None

    def set_all_reduce_hook(self, hook):
        self.hook = hook

    def reduce(self, emulation, stream, value):
        """Calls the hook, as backward does when the reduce-scatter has been queued on `stream`."""
        gradients = torch.full_like(self.weight, float("nan")).detach()
        if device_of(gradients) == CPU:
            self.hook(gradients.fill_(value))
            return gradients
        with emulation.stream(stream):
            emulation.queue(stream, lambda: gradients.fill_(value))
            self.hook(gradients)
            average = torch.zeros_like(gradients)
            emulation.queue(stream, lambda: average.copy_(gradients))
        return average


class CudaTest(unittest.TestCase):

    def setUp(self):
        self.job = sg.init(job=self.id(), timeout=TIMEOUT)

    def tearDown(self):
        self.job.close()

    def expect_averages(self, seen, passes=1):
        for step, gradients in enumerate(seen):
            for name, gradient in gradients.items():
                expected = average_of(name, step, passes)
                if expected is None:
                    self.assertIsNone(gradient, name)
                else:
                    self.assertEqual((set(gradient.double().flatten().tolist()), name, step),
                                     ({expected}, name, step))

    def test_the_optimizer_sees_averages_in_every_order(self):
        for order in ORDERS:
            with self.subTest(order), Emulation(order).installed() as emulation:
                model = Net()
                Backward(model, emulation)
                observe = Observe(model, emulation)
                optimizer = sg.DistributedOptimizer(observe, model, name=f"{order}")
                for step in range(STEPS):
                    optimizer.zero_grad(set_to_none=True)
                    model(names_of(step, RANK), 1.0 + RANK + 2 * step).backward()
                    optimizer.step()
                emulation.finish()
                self.expect_averages(observe.seen)
        self.job.leave()

    def test_gradients_are_accumulated_before_they_are_copied(self):
        for order in ORDERS:
            with self.subTest(order), Emulation(order).installed() as emulation:
                model = Net()
                Backward(model, emulation)
                observe = Observe(model, emulation)
                optimizer = sg.DistributedOptimizer(observe, model, name=f"{order}",
                                                    backward_passes_per_step=2)
                other = emulation.Stream(torch.device("cuda", 0))
                for step in range(STEPS):
                    optimizer.zero_grad(set_to_none=True)
                    model(names_of(step, RANK), 1.0 + RANK + 2 * step).backward()
                    if RANK == 0:
                        emulation.finish()  # the next pass reads the gradients at once
                        model(names_of(step, RANK), 1.0 + RANK + 2 * step).backward()
                        optimizer.step()
                        continue
                    # Fewer passes: step() pushes, on a stream of which backward knows nothing.
                    program = emulation.programs[torch.device("cuda", 0)]
                    other.wait_stream(program)
                    with emulation.stream(other):
                        observe.double_gradients()
                        optimizer.step()
                emulation.finish()
                self.expect_averages(observe.seen, passes=2)
        self.job.leave()

    def test_copies_of_a_backward_that_failed_are_not_pushed(self):
        def fail(_):
            raise ValueError("no gradient today")

        for order in ORDERS:
            with self.subTest(order), Emulation(order).installed() as emulation:
                model = Net()
                Backward(model, emulation)
                observe = Observe(model, emulation)
                optimizer = sg.DistributedOptimizer(observe, model, name=f"{order}")
                if RANK == 1:
                    # Backward computes this gradient last, when others are being copied.
                    handle = model.small.register_hook(fail)
                    with self.assertRaisesRegex(ValueError, "no gradient today"):
                        model(["small", "large", "other", "second"], 1e4).backward()
                    handle.remove()
                else:
                    model(["small"], 1.0).backward()
                optimizer.zero_grad(set_to_none=True)
                self.assertEqual(optimizer.sync_group.step, 2)
                for step in range(STEPS):
                    optimizer.zero_grad(set_to_none=True)
                    model(names_of(step, RANK), 1.0 + RANK + 2 * step).backward()
                    optimizer.step()
                emulation.finish()
                self.expect_averages(observe.seen)
        self.job.leave()

    def test_ddp_gives_averages_in_every_order(self):
        torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0,
                                             world_size=1)
        for order in ORDERS:
            with self.subTest(order), Emulation(order).installed() as emulation:
                def push_late(state, bucket, push=_ddp._push_bucket, emulation=emulation):
                    buffer = bucket.buffer()
                    value = buffer.clone()
                    buffer.fill_(float("nan"))
                    emulation.queue(torch.cuda.current_stream(device_of(buffer)),
                                    lambda: buffer.copy_(value))
                    return push(state, bucket)

                module = Net()
                names = ["large", "small", "short", "other"]
                for name, parameter in module.named_parameters():
                    parameter.requires_grad = name in names
                with unittest.mock.patch.object(_ddp, "_push_bucket", push_late):
                    model = sg.ddp(nn.parallel.DistributedDataParallel(
                        module, bucket_cap_mb=0.001, gradient_as_bucket_view=True), name=f"{order}")
                observe = Observe(module, emulation)
                for step in range(STEPS):
                    observe.zero_grad(set_to_none=True)
                    model(names, 1.0 + RANK + 2 * step).backward()
                    # As waiting for a future with devices does.
                    for stream in emulation.programs.values():
                        for mark in emulation.futures:
                            stream.wait_mark(mark)
                    emulation.futures.clear()
                    observe.step()
                    emulation.finish()  # DDP writes to the buckets at once
                emulation.finish()
                self.expect_averages([{name: seen[name] for name in names}
                                      for seen in observe.seen])
        torch.distributed.destroy_process_group()
        self.job.leave()

    def test_fsdp_gives_averages_in_every_order(self):
        for order in ORDERS:
            with self.subTest(order), Emulation(order).installed() as emulation:
                device = torch.device("cuda", 0)
                reduce_stream = emulation.Stream(device)
                shards = [Shard(4, torch.float32), Shard(9000, torch.float32),
                          Shard(4, torch.float64)]
                model = nn.Sequential(shards[0], nn.Sequential(*shards[1:]))
                self.assertIs(sg.fsdp(model, name=f"{order}"), model)
                self.assertEqual({shard.weight.mean().item() for shard in shards}, {0})
                for step in range(STEPS):
                    averages = [shard.reduce(emulation, reduce_stream, 1.0 + RANK + 2 * step)
                                for shard in shards]
                    emulation.finish()
                    self.assertEqual([set(one.tolist()) for one in averages],
                                     [{1.5 + 2 * step}] * 3)
        with self.assertRaisesRegex(syncgrads.InvalidArgument, "fully_shard .*2.8"):
            sg.fsdp(nn.Linear(1, 1))
        with self.assertRaisesRegex(syncgrads.InvalidArgument,
                                    r"'9/1.1' are .*float64\[3\], but were .*\[4\]"):
            shards[2].hook(torch.zeros(3, dtype=torch.float64))
        self.job.leave()

    def test_host_memory_is_page_locked_until_it_is_freed(self):
        with Emulation("early").installed() as emulation:
            model = Net()
            optimizer = sg.DistributedOptimizer(Observe(model, emulation), model)
            (size,) = emulation.pinned.values()
            self.assertGreaterEqual(size, 4 * 600 * 600)
            del optimizer, model
            gc.collect()
            self.assertEqual(emulation.pinned, {})
            refuses = unittest.mock.Mock(cudaHostRegister=lambda *_: 2)
            with unittest.mock.patch.object(torch.cuda, "cudart", lambda: refuses):
                with self.assertRaisesRegex(syncgrads.ResourceExhausted, "error 2 for 4096 bytes"):
                    _cuda.pin(self, None, 8192, 4096)
            with self.assertRaisesRegex(syncgrads.InvalidArgument, "is on meta: .* CUDA devices"):
                _cuda.copies_for([torch.empty(1, dtype=torch.bfloat16, device="meta")])
            with self.assertRaisesRegex(syncgrads.InvalidArgument, "'large' is on .*on the CPU"):
                sg.allocate_gradients(Net())
        self.job.leave()


if __name__ == "__main__":
    torch.set_num_threads(1)
    unittest.main()
