"""The tables' own methods, on the CPU: `python3 -m unittest` with PyTorch."""

import types
import unittest

try:
    import torch
except ImportError as error:
    raise unittest.SkipTest("no PyTorch") from error

import cases
import data
import peers
import timing
from python import rows

from . import methods
from .__main__ import GROUPS
from .codes import alike
from .shapes import Unnormalized


def problem_of(n_queries=3, made=data.Problem):
    return made(cases.Case("test", "", n_queries, 7, 5, 11, 16), "cpu")


class Methods(unittest.TestCase):
    def test_methods_score_alike(self):
        problem = problem_of()
        sample = problem.sample(5, torch.float16)
        eager = peers.eager(problem.queries, problem.padded)
        self.assertLess(problem.largest_error(eager, sample), 2e-2)
        for n in (1, 2, 5, 9):
            chunked = peers.chunked(problem.queries, problem.padded, n)
            self.assertEqual(chunked.shape, (3, 5))
            torch.testing.assert_close(chunked, eager)
        self.assertGreater(problem.largest_error(eager + 1, sample), 2e-2)

    def test_rows_of_other_lengths_are_divided_by_them(self):
        problem = problem_of(made=Unnormalized)
        lengths = problem.documents.float().norm(dim=1)
        self.assertGreater(float(lengths.max() - lengths.min()), 0.5)
        unit = torch.nn.functional.normalize(problem.padded.float(), dim=-1)
        sample = problem.sample(5, torch.float16)
        scores = peers.eager(problem.queries.float(), unit)
        self.assertLess(problem.largest_error(scores, sample), 1e-3)
        plain = peers.eager(problem.queries, problem.padded)
        self.assertGreater(problem.largest_error(plain, sample), 2e-2)

    def test_the_fastest_chunk_is_one_that_was_timed(self):
        problem, calls = problem_of(), iter(range(100, 0, -1))
        w = types.SimpleNamespace(
            timer=types.SimpleNamespace(device_ms=lambda call, us, cold: next(calls))
        )
        self.assertEqual(methods.best_chunk(w, problem.queries, problem.padded), 16)

    def test_what_did_not_run_is_said_in_few_words(self):
        said = {
            "a": "OutOfMemoryError: CUDA out of memory. Tried",
            "b": "ValueError: off",
            "c": timing.said(methods.NotRun("not run: it would fail")),
        }
        wanted = {"a": "out of memory", "b": "ValueError: off", "c": "not run: it would fail"}
        self.assertEqual(methods.plainly(said), wanted)


class Rankings(unittest.TestCase):
    def test_alike(self):
        wanted = torch.arange(1.0, 101)
        same = alike(wanted * 2, wanted)
        self.assertAlmostEqual(same["spearman"], 1)
        self.assertEqual((same["top_20"], same["mean_relative_error"]), (1, 1))
        self.assertAlmostEqual(alike(-wanted, wanted)["spearman"], -1)
        self.assertEqual(alike(-wanted, wanted)["top_20"], 0)


class Record(unittest.TestCase):
    def test_rows_of_groups_are_in_order(self):
        self.assertEqual(list(GROUPS)[0], "corpus")
        found = rows.row("case", None, 2.0, "ms", {"a": 3.0, "b": "out of memory"})
        self.assertEqual((found["peer"], found["x_best_peer"], found["met"]), ("a", 1.5, None))


if __name__ == "__main__":
    unittest.main()
