"""The record of operations: what needs neither a GPU nor PyTorch."""

import pathlib
import unittest

from operations import goals
from operations.__main__ import GROUPS
from python import rows

FOLDER = pathlib.Path(__file__).resolve().parent
CARDS = ("NVIDIA H100 80GB HBM3", "NVIDIA H200")

#: Figures of a row that just meets its goal: its own, and others.
MEETS = {
    goals.WEIGHTS: (1.02, {"x_gradients": 1.05}),
    goals.XTR: (0.8, {"x_sentence_transformers": 5, "x_plain": 3, "megabytes": 32}),
    goals.CHAMFER: (
        8, {"ms_10k": 0.08, "ms_100k": 1.5, "ms_1m": 8, "x_10k": 5, "x_100k": 10}
    ),
    goals.BATCH: (0.12, {"forward_launches": 2, "backward_launches": 2}),
    goals.DIM_128: (9, {"ms_f32": 9, "ms_f16": 4.5, "x_f32": 3, "x_f16": 6}),
    goals.PROJECTION: (
        0.95, {"x_unfused": 3.2, "x_fused": 16, "megabytes": 32, "one_query": 0.5}
    ),
    goals.PROJECTION_STEP: (1.9, {}),
    goals.ANGULAR: (1.02, {"x_gradients": 1.02}),
}


class GoalTest(unittest.TestCase):
    def test_every_row_has_a_goal_that_can_be_met(self):
        self.assertEqual(list(MEETS), list(goals.GOALS))
        for case, (own, more) in MEETS.items():
            for card in CARDS:
                found = rows.row(case, goals.GOALS[case](card), own, "ms", **more)
                self.assertTrue(found["met"], (case, card))

    def test_each_figure_of_a_goal_can_miss_it(self):
        for case, make in goals.GOALS.items():
            own, more = MEETS[case]
            for figure, operator, bound in make(CARDS[0]).conditions:
                value = bound * 1.02 if operator == "<=" else bound * 0.98
                wrong = [value, more] if figure == "ours" else [own, more | {figure: value}]
                found = rows.row(case, make(CARDS[0]), wrong[0], "ms", **wrong[1])
                self.assertFalse(found["met"], (case, figure))
                self.assertIn(figure, found["why"])
                missing = [None, more] if figure == "ours" else [own, more | {figure: None}]
                found = rows.row(case, make(CARDS[0]), missing[0], "ms", **missing[1])
                self.assertFalse(found["met"], (case, figure))

    def test_groups_are_functions_of_their_modules(self):
        for module, function in GROUPS.values():
            source = (FOLDER / f"{module}.py").read_text()
            self.assertIn(f"\ndef {function}(w):", source)


if __name__ == "__main__":
    unittest.main()
