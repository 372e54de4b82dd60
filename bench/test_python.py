"""The Python package's record: what needs neither a GPU nor PyTorch."""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

from python.__main__ import PROGRAM
from python import packages, rows

GOAL = rows.Goal("≥ 2 × theirs", (("x_best_peer", ">=", 2.0), ("peak", "<=", "their_peak")))


class RowTest(unittest.TestCase):
    def test_a_row_compares_with_the_best_peer(self):
        peers = {"slow": 9.0, "fast": 6.0, "broken": "OSError: no"}
        found = rows.row("a", GOAL, 2.0, "ms", peers, limit=1.0, peak=1, their_peak=1)
        self.assertEqual((found["peer"], found["best_peer"], found["x_best_peer"]), ("fast", 6, 3))
        self.assertEqual((found["limit"], found["of_limit"]), (1.0, 0.5))
        self.assertEqual((found["goal"], found["met"]), (GOAL.words, True))
        self.assertNotIn("why", found)
        self.assertEqual(found["peers"]["broken"], "OSError: no")

    def test_a_missed_goal_says_why(self):
        found = rows.row("a", GOAL, 4.0, "ms", {"fast": 6.0}, peak=2, their_peak=1)
        self.assertFalse(found["met"])
        self.assertEqual(found["why"], "x_best_peer is 1.5, not >= 2; peak is 2, not <= 1")

    def test_a_goal_without_a_measurement_is_missed(self):
        for value in (None, float("nan"), True, "1"):
            found = rows.row("a", rows.Goal("0", (("waits", "<=", 1),)), 1.0, "ms", waits=value)
            self.assertFalse(found["met"], value)
            self.assertIn("was not measured", found["why"])
        found = rows.row("a", GOAL, 1.0, "ms", {"broken": "no"}, peak=1, their_peak=1)
        self.assertFalse(found["met"])
        self.assertIsNone(found["x_best_peer"])

    def test_without_a_goal_nothing_is_met_or_missed(self):
        found = rows.row("a", None, 1.0, "ms")
        self.assertEqual((found["goal"], found["met"]), (None, None))
        self.assertNotIn("why", found)

    def test_a_failed_row_has_what_every_row_has(self):
        found, whole = rows.failed("a", GOAL, "OSError: no"), rows.row("a", GOAL, 1.0, "ms")
        self.assertEqual(list(found), list(whole))
        self.assertEqual((found["met"], found["why"]), (False, "OSError: no"))
        self.assertIn("MISSED a: -: OSError: no", rows.line(found))

    def test_keys_of_a_row_are_those_that_readers_know(self):
        known = "case card ours unit peer best_peer x_best_peer limit of_limit goal met".split()
        self.assertEqual(list(rows.row("a", None, 1.0, "ms")), known)


class RecordTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.path = pathlib.Path(self.folder.name) / "record" / "python.json"

    def read(self):
        return json.loads(self.path.read_text())

    def test_rows_are_replaced_and_stand_in_the_order_of_groups(self):
        record = rows.Record(self.path, ["first", "second"])
        record.about({"card": "x"})
        record.take("second", "x", [rows.row("b", None, 1.0, "ms")])
        record.take("first", "x", [rows.row("a", None, 1.0, "ms")])
        record = rows.Record(self.path, ["first", "second"])
        record.take("second", "y", [rows.row("b", None, 2.0, "ms"), rows.row("c", None, 3, "ms")])
        found = self.read()
        self.assertEqual([row["case"] for row in found["rows"]], ["a", "b", "c"])
        self.assertEqual([row["card"] for row in found["rows"]], ["x", "y", "y"])
        self.assertEqual((found["rows"][1]["ours"], found["card"]), (2.0, "x"))

    def test_versions_of_other_groups_stay(self):
        record = rows.Record(self.path, ["g"])
        record.about({"versions": {"a": "1", "b": "1"}, "card": "x"})
        record.about({"versions": {"b": "2"}})
        record.save()
        self.assertEqual(self.read()["versions"], {"a": "1", "b": "2"})
        self.assertEqual(self.read()["card"], "x")

    def test_records_are_merged(self):
        parts = []
        for name in ("a", "b"):
            parts.append(self.path.parent / f"{name}.json")
            rows.Record(parts[-1], ["g"]).take("g", name, [rows.row(name, None, 1.0, "ms")])
        rows.Record(self.path, ["g"], parts).save()
        self.assertEqual([row["case"] for row in self.read()["rows"]], ["a", "b"])

    def test_numbers_that_are_none_do_not_break_the_file(self):
        record = rows.Record(self.path, [])
        record.take("g", "x", [rows.row("a", GOAL, float("inf"), "ms", {"p": float("nan")})])
        row = self.read()["rows"][0]
        self.assertEqual((row["ours"], row["met"]), (None, False))


class ProgramTest(unittest.TestCase):
    def test_a_group_that_dies_is_said_and_the_others_run(self):
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder) / "python.json"
            words = ["--rows", "whole", "memory", "--out", str(out)]
            with mock.patch.object(PROGRAM, "child", side_effect=["ended with -11", None]) as child:
                self.assertEqual(PROGRAM.main(words), 1)
            self.assertEqual([call.args[1] for call in child.call_args_list], ["whole", "memory"])
            found = json.loads(out.read_text())
            self.assertEqual(found["ended_badly"], {"whole": "ended with -11"})
            with mock.patch.object(PROGRAM, "child", return_value=None):
                self.assertEqual(PROGRAM.main(words), 0)
            self.assertNotIn("ended_badly", json.loads(out.read_text()))

    def test_a_cpus_rows_are_in_a_record_of_their_own(self):
        self.assertNotIn("cpu", PROGRAM.arguments([]).rows)
        self.assertEqual(PROGRAM.arguments(["--device", "cpu"]).rows, ["cpu"])

    def test_no_group_starts_after_the_deadline(self):
        with tempfile.TemporaryDirectory() as folder:
            words = ["--out", str(pathlib.Path(folder) / "python.json"), "--deadline", "-1"]
            with mock.patch.object(PROGRAM, "child") as child:
                self.assertEqual(PROGRAM.main(words), 1)
            child.assert_not_called()

    def test_a_child_that_ends_badly_or_never(self):
        args = argparse.Namespace(timeout=30.0)
        with mock.patch.object(sys, "executable", "/bin/false"):
            self.assertIsNone(PROGRAM.child(args, "whole", []))  # as where a goal is missed
        args.timeout = 0.0
        self.assertIn("did not end", PROGRAM.child(args, "whole", []))

    def test_a_child_is_given_this_ones_words_and_its_group(self):
        words = ["--tiny", "--rows", "whole", "memory", "--out", "o"]
        done = subprocess.CompletedProcess([], 1)
        with mock.patch.object(subprocess, "run", return_value=done) as run:
            PROGRAM.child(PROGRAM.arguments(words), "memory", words)
        given = run.call_args.args[0]
        self.assertEqual(given[1:3], ["-m", "python"])
        args = PROGRAM.arguments(given[3:])
        self.assertEqual((args.rows, args.in_process, args.tiny), (["memory"], True, True))
        self.assertEqual(args.out, pathlib.Path("o"))
        found = run.call_args.kwargs["env"]["PYTHONPATH"].split(":")[0]
        self.assertTrue((pathlib.Path(found) / "python" / "rows.py").is_file())


class PackagesTest(unittest.TestCase):
    def test_this_library_under_a_peers_name_is_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            for name, text in (("peer_x", "from maxsim.compat.x import *"), ("peer_y", "")):
                path = pathlib.Path(folder) / name / "__init__.py"
                path.parent.mkdir()
                path.write_text(text)
            with mock.patch.object(sys, "path", [folder, *sys.path]):
                self.assertEqual(packages.original("peer_y").__name__, "peer_y")
                # Reading it would import this library: the text is looked at first.
                with self.assertRaisesRegex(ImportError, "under that name"):
                    packages.original("peer_x")


if __name__ == "__main__":
    unittest.main()
