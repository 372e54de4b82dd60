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
                value = bound * 1.01 if operator == "<=" else bound * 0.99
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
