"""The parts of the package syncgrads that need no server."""

import array
import ctypes
import os
import subprocess
import sys
import tempfile
import types
import unittest
import unittest.mock

import numpy

import syncgrads
from syncgrads import _arrays, _text, job


class TextTest(unittest.TestCase):

    def test_writes_nested_messages_and_leaves_out_none(self):
        self.assertEqual(
            _text.to_text({"name": "m", "rule": {"reduction": "sum"}, "rank": None,
                           "tensors": [{"dtype": "f32", "shape": [2, 3]}], "one_epoch": True}),
            'name: "m" rule { reduction: SUM } tensors { dtype: F32 shape: 2 shape: 3 } '
            'one_epoch: true')

    def test_quotes_every_text(self):
        self.assertEqual(_text.to_text({"job": 'a"\\\n' + "\u00e9"}),
                         'job: "a\\042\\134\\012\\303\\251"')

    def test_keeps_all_digits_of_numbers(self):
        self.assertEqual(_text.to_text({"a": 0.1, "b": 1e300, "c": float("inf"), "d": -3}),
                         "a: 0.1 b: 1e+300 c: inf d: -3")

    def test_refuses_what_no_field_has(self):
        with self.assertRaisesRegex(TypeError, "'rank' is a object"):
            _text.to_text({"rank": object()})


class SecurityTest(unittest.TestCase):

    def test_the_environment_has_the_token_and_the_files(self):
        with tempfile.NamedTemporaryFile("w") as file:
            file.write("secret\nnot this\n")
            file.flush()
            environment = {"SYNCGRADS_TOKEN_FILE": file.name, "SYNCGRADS_TLS_CA": "ca.pem"}
            with unittest.mock.patch.dict(os.environ, environment):
                options = job._security_of_environment()
        self.assertEqual(options["token"], "secret")
        self.assertEqual(_text.to_text(options), 'token: "secret" tls { ca: "ca.pem" }')

    def test_an_empty_environment_sets_nothing(self):
        with unittest.mock.patch.dict(os.environ, clear=True):
            self.assertEqual(job._security_of_environment(), {})


class OnlyDlpack:
    """An array that has DLPack and nothing else."""

    def __init__(self, values):
        self.values = values

    def __dlpack__(self):
        return self.values.__dlpack__()


class Bfloat16s:
    """An array of the bfloat16 of ml_dtypes, as numpy describes it."""

    def __init__(self, bits):
        self.dtype = types.SimpleNamespace(name="bfloat16")
        self.__array_interface__ = {**bits.__array_interface__, "typestr": "<V2"}


class ArraysTest(unittest.TestCase):

    def test_finds_the_memory_of_numpy_arrays(self):
        values = numpy.zeros((2, 3), numpy.float64)
        found = _arrays.array_of(values, writable=True)
        self.assertEqual((found.pointer, found.dtype, found.shape, found.bytes),
                         (values.ctypes.data, "f64", (2, 3), 48))
        for dtype, name in (("f2", "f16"), ("i8", "i64"), ("i4", "i32")):
            self.assertEqual(_arrays.array_of(numpy.zeros(1, dtype)).dtype, name)
        bits = numpy.zeros((2, 3), numpy.uint16)
        found = _arrays.array_of(Bfloat16s(bits), writable=True)
        self.assertEqual((found.pointer, found.dtype, found.shape, found.bytes),
                         (bits.ctypes.data, "bf16", (2, 3), 12))

    def test_a_numpy_scalar_is_read_but_not_written_to(self):
        found = [_arrays.array_of(numpy.float64(number)) for number in range(100)]
        self.assertEqual([ctypes.c_double.from_address(one.pointer).value for one in found],
                         list(range(100)))
        with self.assertRaisesRegex(syncgrads.InvalidArgument,
                                    r"float32 cannot be written to: pass .*numpy.array\(x\)"):
            _arrays.array_of(numpy.float32(3), writable=True)

    def test_finds_the_memory_of_buffers(self):
        values = array.array("f", [1, 2, 3])
        found = _arrays.array_of(values, writable=True)
        self.assertEqual((found.pointer, found.dtype, found.shape),
                         (values.buffer_info()[0], "f32", (3,)))
        with self.assertRaises(BufferError):
            values.append(4)  # the memory must stay where it is
        grid = memoryview((ctypes.c_double * 6)()).cast("B").cast("d", (2, 3))
        self.assertEqual(_arrays.array_of(grid).shape, (2, 3))

    def test_finds_the_memory_behind_dlpack(self):
        values = numpy.arange(6, dtype=numpy.int32).reshape(2, 3)
        found = _arrays.array_of(OnlyDlpack(values), writable=True)
        self.assertEqual((found.pointer, found.dtype, found.shape),
                         (values.ctypes.data, "i32", (2, 3)))

    def test_refuses_what_cannot_be_sent(self):
        grid = numpy.zeros((4, 4), numpy.float32)
        frozen = numpy.zeros(2)
        frozen.flags.writeable = False
        for values, why in ((grid.T[1:], "not contiguous"), (grid[:, ::2], "not contiguous"),
                            (OnlyDlpack(grid.T[1:]), "not contiguous"),
                            (numpy.zeros(2, numpy.uint8), "uint8"),
                            (numpy.zeros(2, ">f4"), "not supported"), (b"ab", "'B'"),
                            (numpy.zeros(2, "V2"), "not supported"),
                            (numpy.zeros(2, "M8[s]"), "datetime64.* is not supported"),
                            (frozen, "cannot be written"), (3.5, "a float is not an array")):
            with self.assertRaisesRegex(syncgrads.InvalidArgument, why):
                _arrays.array_of(values, writable=True)
        self.assertEqual(_arrays.array_of(frozen).elements, 2)
        self.assertEqual(_arrays.array_of(grid[1:3]).shape, (2, 4))

    def test_knows_the_names_of_dtypes(self):
        for dtype in ("f32", "float32", numpy.float32, numpy.dtype("f4")):
            self.assertEqual(_arrays.dtype_of(dtype), "f32")
        for dtype, name in ((float, "f64"), (int, "i64")):
            self.assertEqual(_arrays.dtype_of(dtype), name)
            self.assertEqual(_arrays.dtype_of(numpy.dtype(dtype)), name)
        with self.assertRaisesRegex(syncgrads.InvalidArgument, "complex64"):
            _arrays.dtype_of("complex64")


class ReportTest(unittest.TestCase):

    def setUp(self):
        self.job = job.Job({"coordinator": "127.0.0.1:1", "job": "j", "rank": 0, "world_size": 1})
        self.addCleanup(self.job.close)

    def reported(self, *arguments, **named):
        """What the library receives of a report."""
        with unittest.mock.patch.object(job, "check") as check:
            self.job.report(*arguments, **named)
        _, _, text = check.call_args.args
        return text.decode()

    def test_what_a_report_leaves_out_is_that_of_the_last_one(self):
        self.assertEqual(self.reported(3, loss=0.5, learning_rate=0.1), "step: 3 loss: 0.5 "
                         "learning_rate: 0.1")
        self.assertEqual(self.reported(validation={"loss": 0.25}),
                         'step: 3 loss: 0.5 learning_rate: 0.1 validation { step: 3 '
                         'scores { name: "loss" value: 0.25 } }')
        self.assertEqual(self.reported(4, seconds={"wait": 1.5}),
                         'step: 4 loss: 0.5 learning_rate: 0.1 validation { step: 3 '
                         'scores { name: "loss" value: 0.25 } } times { wait_us: 1500000 }')

    def test_a_loss_that_is_not_finite_is_none(self):
        self.reported(1, loss=0.5)
        self.assertEqual(self.reported(2, loss=float("nan")), "step: 2")
        self.assertEqual(self.reported(3), "step: 3")

    def test_the_step_is_that_of_the_optimizers(self):
        self.job._step = 7
        self.assertEqual(self.reported(loss=0.5), "step: 7 loss: 0.5")

    def test_a_report_that_is_refused_is_forgotten(self):
        with self.assertRaisesRegex(syncgrads.InvalidArgument, "bogus"):
            self.job.report(1, seconds={"bogus": 1.5})
        self.assertEqual(self.reported(2), "step: 2")


class ErrorsTest(unittest.TestCase):

    def test_there_is_one_class_for_each_code(self):
        classes = {error_of.__class__ for error_of in
                   (syncgrads.errors.error_of(code, "why") for code in range(1, 17))}
        self.assertEqual(len(classes), 16)
        error = syncgrads.errors.error_of(4, "waited for w1")
        self.assertIsInstance(error, syncgrads.DeadlineExceeded)
        self.assertIsInstance(error, TimeoutError)
        self.assertEqual((str(error), error.code, error.name),
                         ("waited for w1", 4, "DEADLINE_EXCEEDED"))

    def test_options_that_do_not_exist_are_named(self):
        with self.assertRaisesRegex(syncgrads.InvalidArgument, "wrold_size"):
            syncgrads.init("nowhere:1", wrold_size=2)

    def test_the_server_must_be_given(self):
        with self.assertRaisesRegex(syncgrads.InvalidArgument, "SYNCGRADS_SERVER"):
            syncgrads.init("")

    def test_a_server_that_does_not_answer_is_named(self):
        with self.assertRaisesRegex(syncgrads.DeadlineExceeded, "localhost:1"):
            syncgrads.init("localhost:1", timeout=0.5)


class ImportTest(unittest.TestCase):

    def test_imports_neither_numpy_nor_torch(self):
        program = ("import sys, syncgrads; "
                   "sys.exit(any(name in sys.modules for name in ('numpy', 'torch')))")
        self.assertEqual(subprocess.run([sys.executable, "-c", program], check=False).returncode, 0)


if __name__ == "__main__":
    unittest.main()
