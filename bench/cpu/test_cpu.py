"""The record of the CPU engine: what needs no library; where numpy is missing, goals alone."""

import io
import json
import pathlib
import sys
import tempfile
import unittest

try:
    import numpy

    from cpu import problem, worker
except ImportError:
    numpy = None
from cpu import goals, machine
from cpu.__main__ import GROUPS
from python import rows

FOLDER = pathlib.Path(__file__).resolve().parent
ALL = list(machine.NEEDS)

#: Figures of a row that just meets its goal on a machine of all instruction sets.
MEETS = {
    goals.F32: (
        40, {
            "x_numkong_avx2": 1.0, "largest_relative_error": 1e-5, "of_peak_in_l2": 0.85,
            "of_limit": 0.85,
        },
    ),
    goals.CODES: (
        5, {"of_f32_avx2": 0.6, "of_f32_vnni": 0.25, "of_f32_amx": 0.12, "is_exact": 1}
    ),
    goals.COARSE: (
        9, {"x_numkong_avx2": 1.3, "x_numkong_amx": 1.0, "overlap": 1.0, "mean_loss": 5e-5}
    ),
    goals.BF16: (9, {"x_numkong": 0.9, "largest_relative_error": 1e-5}),
    goals.PLAID: (9, {"x_2_bits": 3, "x_4_bits": 3}),
    goals.START: (30, {}),
    goals.NO_SLOWER: (1.03, {}),
}  # fmt: skip


class GoalTest(unittest.TestCase):
    def test_every_row_has_a_goal_that_can_be_met_and_missed(self):
        self.assertEqual(list(MEETS), list(goals.GOALS))
        for case, make in goals.GOALS.items():
            own, more = MEETS[case]
            goal = make(ALL)
            self.assertTrue(rows.row(case, goal, own, "ms", **more)["met"], case)
            for figure, operator, bound in goal.conditions:
                value = bound * (1.02 if operator == "<=" else 0.98)
                figures = {"ours": own} | more | {figure: value}
                ours = figures.pop("ours")
                found = rows.row(case, goal, ours, "ms", **figures)
                self.assertFalse(found["met"], (case, figure))
                self.assertIn(figure, found["why"])

    def test_conditions_are_on_what_the_machine_has(self):
        found = goals.of_codes(["portable", "avx2"]).conditions
        self.assertEqual([figure for figure, *_ in found], ["of_f32_avx2", "is_exact"])
        found = goals.of_coarse(["portable", "avx2", "vnni"]).conditions
        self.assertNotIn("x_numkong_amx", [figure for figure, *_ in found])

    def test_groups_are_functions_of_their_modules(self):
        for module, function in GROUPS.values():
            source = (FOLDER / f"{module}.py").read_text()
            self.assertIn(f"\ndef {function}(w):", source)


class MachineTest(unittest.TestCase):
    def test_instruction_sets_are_those_whose_features_are_all_there(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "cpuinfo"
            path.write_text("model name\t: x\nflags\t\t: avx2 fma avx512f avx512_vnni amx_int8\n")
            found = machine.flags(path)
            self.assertEqual(machine.instruction_sets(found), ["portable", "avx2", "vnni"])
            self.assertEqual(machine.widest_multiply_add(found), "avx512")
            self.assertEqual(machine.flags(pathlib.Path(folder) / "none"), frozenset())
            self.assertEqual(machine.widest_multiply_add(frozenset({"avx2"})), "portable")
            path.write_text("2048K\n")
            self.assertEqual(machine.l2_bytes(path), 2 << 20)


@unittest.skipIf(numpy is None, "no numpy")
class ProblemTest(unittest.TestCase):
    def test_scores_of_numpy_are_the_exact_ones(self):
        for shape in (
            problem.Shape(2, 3, 5, 4, 8),
            problem.Shape(2, 3, 6, 4, 8, candidates=3),
        ):
            of = problem.Problem.random(shape)
            exact = of.exact()
            self.assertEqual(exact.shape, (shape.n_scores,))
            for query_first in (False, True):
                found = worker.Numpy(of, query_first).scores()
                numpy.testing.assert_allclose(found, exact, 1e-5)
        self.assertAlmostEqual(exact[-1], (of.document(5) @ of.query(1).T).max(0).sum(), 5)

    def test_a_problem_comes_back_from_its_folder(self):
        of = problem.Problem.real(n_queries=3)
        with tempfile.TemporaryDirectory() as folder:
            found = problem.Problem.load(of.save(pathlib.Path(folder)))
        self.assertTrue(found.is_ragged)
        numpy.testing.assert_array_equal(found.document(7), of.document(7))
        numpy.testing.assert_allclose(numpy.linalg.norm(of.queries, axis=1), 1, 1e-3)

    def test_bf16_is_the_nearest_with_ties_to_even(self):
        rows_of = numpy.array([1.0, 1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-7], numpy.float32)
        found = problem.rounded_to("bf16")(rows_of)
        numpy.testing.assert_array_equal(found, [1.0, 1.0, 1 + 2**-6, -1 - 2**-7])

    def test_quality_counts_what_is_lost(self):
        shape = problem.Shape(1, 1, 20, 1)
        exact = numpy.arange(20.0, 0, -1)
        found = problem.quality(exact, exact, shape)
        self.assertEqual((found["overlap"], found["mean_error"]), (1.0, 0.0))
        worse = exact.copy()
        worse[0] = 0.0
        found = problem.quality(worse, exact, shape)
        self.assertEqual((found["overlap"], found["mean_error"]), (0.9, -1.0))
        self.assertAlmostEqual(found["mean_loss"], 1 / 20)


@unittest.skipIf(numpy is None, "no numpy")
class WorkerTest(unittest.TestCase):
    def said(self, lines):
        """What the process of numpy's method says to lines."""
        standard = sys.stdin, sys.stdout
        sys.stdin, sys.stdout = io.StringIO("\n".join(lines)), io.StringIO()
        try:
            output = sys.stdout
            worker.main()
        finally:
            sys.stdin, sys.stdout = standard
        return [json.loads(line) for line in output.getvalue().splitlines()]

    def test_answers_and_errors_are_lines(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder)
            of = problem.Problem.random(problem.Shape(1, 2, 3, 4, 8))
            spec = json.dumps({"kind": "numpy", "problem": str(of.save(path))})
            wishes = ["run", "loop 3", f"scores {path / 'scores.npy'}", "sing"]
            about, once, looped, written, error = self.said([spec, *wishes])
            self.assertIn("version", about["about"])
            self.assertTrue(all(ms >= 0 for ms in (*once, *looped)))
            self.assertEqual(written, "written")
            numpy.testing.assert_allclose(numpy.load(path / "scores.npy"), of.exact(), 1e-5)
            self.assertIn("sing", error["error"])
            [error] = self.said([json.dumps({"kind": "nobody", "problem": folder})])
            self.assertIn("nobody", error["error"])


if __name__ == "__main__":
    unittest.main()
