"""syncgrads.torch.save and load beside ps-worker, whose path is the argument: the digits example is
trained and evaluated by ps-worker, and by PyTorch. tests/deploy/torch.test starts it, with a server
in SYNCGRADS_SERVER."""

import gzip
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

import torch
from torch import nn

import syncgrads
import syncgrads.torch as sg

DIGITS = pathlib.Path(__file__).resolve().parents[3] / "examples/digits"


class LeNet(nn.Module):
    """The model of the digits example."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 5, padding=2)
        self.conv2 = nn.Conv2d(6, 16, 5, padding=2)
        self.dense1 = nn.Linear(64, 120)
        self.dense2 = nn.Linear(120, 84)
        self.dense3 = nn.Linear(84, 10)

    def forward(self, x):
        x = nn.functional.max_pool2d(torch.relu(self.conv1(x)), 2)
        x = nn.functional.max_pool2d(torch.relu(self.conv2(x)), 2).flatten(1)
        return self.dense3(torch.relu(self.dense2(torch.relu(self.dense1(x)))))


def digits():
    with gzip.open(DIGITS / "digits.csv.gz", "rt") as file:
        rows = [list(map(float, line.split(","))) for line in list(file)[1:]]
    table = torch.tensor(rows)
    return ((table[:, :64] - 4.88) / 6.02).reshape(-1, 1, 8, 8), table[:, 64].long()


class ModelFileTest(unittest.TestCase):

    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)

    def path(self, name):
        return os.path.join(self.folder, name)

    def worker(self, *flags):
        """Runs ps-worker, and returns its output."""
        job = self.path("digits.job")
        text = (DIGITS / "digits.job").read_text(encoding="utf-8")
        text = text.replace("epochs: 30", "epochs: 2").replace("workers: 2", "workers: 1")
        text = text.replace("shards: 2", "shards: 1").replace("digits.csv", f"{DIGITS}/digits.csv")
        pathlib.Path(job).write_text(text, encoding="utf-8")
        done = subprocess.run([sys.argv[1], f"--job={job}", *flags], text=True, timeout=120,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        self.assertEqual(done.returncode, 0, done.stdout)
        return done.stdout

    def expect_equal_evaluation(self, model, path):
        """Expects PyTorch and ps-worker to get the same loss, and to read as many digits."""
        loss, correct = re.search(r"all rows: +loss ([0-9.]+), accuracy [0-9.]+ \((\d+) of 1797",
                                  self.worker(f"--evaluate={path}")).groups()
        x, y = digits()
        with torch.no_grad():
            outputs = model(x)
        self.assertAlmostEqual(nn.functional.cross_entropy(outputs, y).item(), float(loss),
                               places=4)
        self.assertEqual((outputs.argmax(1) == y).sum().item(), int(correct))

    def test_models_are_exchanged_with_ps_worker(self):
        theirs, ours = self.path("theirs"), self.path("ours")
        server = os.environ["SYNCGRADS_SERVER"]
        self.worker(f"--server={server}", "--rank=0", "--world_size=1", f"--output={theirs}")
        model = LeNet()
        sg.load(model, theirs)
        self.expect_equal_evaluation(model, theirs)

        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        x, y = digits()
        for _ in range(5):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        sg.save(model, ours, torch_names=False)
        self.expect_equal_evaluation(model, ours)

    def test_a_state_dict_is_the_same_again(self):
        path = self.path("model")
        model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Linear(4, 3).double(),
                              nn.Linear(2, 0))
        model[0].weight.data = model[0].weight.data.to(memory_format=torch.channels_last)
        for torch_names in (True, False):
            sg.save(model, path, torch_names=torch_names, metadata={"job": "none"})
            other = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Linear(4, 3).double(),
                                  nn.Linear(2, 0))
            sg.load(other, path)
            for name, tensor in model.state_dict().items():
                self.assertTrue(torch.equal(tensor, other.state_dict()[name]), name)
        self.assertEqual(os.listdir(self.folder), ["model"])

    def test_small_integers_and_flags(self):
        path = self.path("model")
        model, other = nn.Module(), nn.Module()
        for number, dtype in enumerate((torch.bool, torch.uint8, torch.int8, torch.int16)):
            values = torch.tensor([[0, 1, 100]]) * (1 if number % 2 == 0 else -1)
            model.register_buffer(f"flags{number}", values.to(dtype))
            other.register_buffer(f"flags{number}", torch.zeros(1, 3, dtype=dtype))
        sg.save(model, path)
        sg.load(other, path)
        for name, tensor in model.state_dict().items():
            self.assertTrue(torch.equal(tensor, other.state_dict()[name]), name)

    def test_other_dtypes_are_refused_if_the_model_needs_them(self):
        path = self.path("model")
        sg.save(nn.ModuleDict({"a": nn.Linear(1, 1), "b": nn.Linear(1, 1)}), path)
        content = pathlib.Path(path).read_bytes()
        content = content.replace(b'"b.weight": {"dtype": "F32"', b'"b.weight": {"dtype": "F99"')
        pathlib.Path(path).write_bytes(content)
        sg.load(nn.ModuleDict({"a": nn.Linear(1, 1)}), path)
        with self.assertRaisesRegex(syncgrads.InvalidArgument, "'b.weight' has the dtype F99;"):
            sg.load(nn.ModuleDict({"b": nn.Linear(1, 1)}), path)

    def test_wrong_files_are_refused_and_the_model_stays(self):
        path = self.path("model")
        sg.save(nn.Linear(2, 3), path)
        model = nn.Linear(3, 3)
        before = model.weight.clone()
        with self.assertRaisesRegex(syncgrads.InvalidArgument, r"'weight' .*\[3, 2\], .*\[3, 3\]"):
            sg.load(model, path)
        with self.assertRaisesRegex(syncgrads.NotFound, "no tensor '0.weight'; .* weight, bias"):
            sg.load(nn.Sequential(model), path)
        content = pathlib.Path(path).read_bytes()
        for damaged in (b"", content[:7], content[:40], content[:-1], b"x" * 100,
                        content.replace(b'"F32"', b'[]   '), content.replace(b"[3, 2]", b"[3, 3]")):
            pathlib.Path(path).write_bytes(damaged)
            with self.assertRaisesRegex(syncgrads.DataLoss, "model: not a whole file"):
                sg.load(model, path)
        with self.assertRaisesRegex(syncgrads.InvalidArgument, "'turn' is torch.complex64"):
            model.register_buffer("turn", torch.ones(1, dtype=torch.complex64))
            sg.save(model, path)
        self.assertTrue(torch.equal(model.weight, before))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[2:])
