"""What optimizers of syncgrads.torch report: psctl, whose path is the argument, shows it.
tests/deploy/torch.test starts it as two ranks, with a server in SYNCGRADS_SERVER."""

import json
import os
import subprocess
import sys
import time
import types
import unittest
from unittest import mock

import torch
from torch import nn

import syncgrads.torch as sg
from syncgrads.torch import _figures
from torch_fixture import RANK, TIMEOUT, JobTest, batch, make_model, make_optimizer

LOSSES = (0.25, 0.5)  # of the ranks


class ReportTest(JobTest):

    def members(self):
        """The figures of the workers of this job, as psctl prints them, by rank."""
        status = json.loads(subprocess.run(
            [sys.argv[1], "status", f"--server={os.environ['SYNCGRADS_SERVER']}", "-o", "json"],
            check=True, capture_output=True, timeout=TIMEOUT).stdout)
        job, = [job for job in status["servers"][0]["status"]["jobs"] if job["job"] == self.id()]
        return {member.get("rank", 0): member.get("figures", {}) for member in job["members"]}

    def test_psctl_shows_the_steps_of_an_optimizer(self):
        model, optimizer = self.optimized()
        seen = torch.zeros(1)
        deadline = time.monotonic() + TIMEOUT
        step = 0
        while seen == 0:
            for x, y in sg.read(batch(step) for step in range(step, step + 20)):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()
            step += 20
            # Automatic reports keep the loss and the validation.
            self.job.report(loss=torch.tensor(LOSSES[RANK]), validation={"accuracy": 0.75})
            if RANK == 0:
                self.assertLess(time.monotonic(), deadline)
                seen[0] = self.all_is_shown(self.members())
            self.job.broadcast(seen, name="seen")
        self.job.leave()

    def all_is_shown(self, members):
        """Whether psctl has the reports of both ranks. Fails if one of them is wrong."""
        if any("loss" not in figures or "times" not in figures for figures in members.values()):
            return False
        for rank, figures in members.items():
            self.assertEqual(figures["loss"], LOSSES[rank])
            self.assertEqual(figures["learning_rate"], 0.05)
            self.assertEqual(figures["device"], "cpu")
            self.assertGreaterEqual(int(figures["step"]), 20)
            self.assertEqual(figures["validation"]["scores"], [{"name": "accuracy", "value": 0.75}])
            self.assertEqual(sorted(figures["times"]),
                             ["apply_us", "compute_us", "push_us", "read_us", "wait_us"])
        return len(members) == 2

    def test_a_report_that_is_refused_does_not_end_training(self):
        model, optimizer = self.optimized()
        with mock.patch.object(_figures.StepFigures, "_name_of", return_value="x" * 65) as name:
            x, y = batch(0)
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        name.assert_called()
        self.job.leave()


class StepFiguresTest(unittest.TestCase):

    def setUp(self):
        self.now = 100.0
        patch = mock.patch.object(_figures.time, "perf_counter", lambda: self.now)
        patch.start()
        self.addCleanup(patch.stop)
        self.job = mock.Mock(_step=0)
        self.optimizer = make_optimizer(make_model())
        self.figures = _figures.StepFigures()

    @_figures.timed("wait")
    def wait(self, seconds):
        self.now += seconds

    def step(self, number):
        self.figures.stepped(types.SimpleNamespace(job=self.job, step=number + 1), self.optimizer,
                             0.5)

    def test_computes_in_the_time_that_remains(self):
        self.wait(70)  # before the end of the first step: not counted
        self.step(1)
        self.now += 2
        self.wait(3)
        self.figures.add("push", 0.5)
        self.step(2)
        self.assertEqual(self.job._report.call_args.args[0], {
            "learning_rate": 0.025, "device": "cpu",
            "times": {"compute": 1.5, "wait": 3, "push": 0.5}})
        self.assertEqual(self.job._step, 2)

    def test_reports_a_few_times_a_second(self):
        for step in range(1, 1001):
            self.step(step)
            self.now += 0.001
        self.assertIn(self.job._report.call_count, range(4, 7))
        self.assertEqual(self.job._step, 1000)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
