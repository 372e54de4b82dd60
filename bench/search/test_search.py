"""The record of search: what needs neither a GPU nor PyTorch."""

import json
import pathlib
import tempfile
import unittest

from python import rows
from search import campaign, cluster, goals
from search.__main__ import PROGRAM

H100, H200 = "NVIDIA H100 80GB HBM3", "NVIDIA H200"

#: Figures of a row that just meets its goal on both cards, beside its own time, best peer, floor.
MEETS = {
    goals.PINNED: ((1.0, 2.0, 0.90), {"documents_per_s": 150_000}),
    goals.CACHED: ((1.0, None, 0.65), {"device_bytes": 1_000_000_000}),
    goals.COMPRESSED: ((1.0, None, None), {"x_f16_int8": 1.8, "x_f16_plaid": 5.0}),
    goals.MANY: (
        (1.0, None, None),
        {"x_one_query_pages": 1.15, "x_one_query_short": 1.15, "of_resident": 0.85},
    ),
    goals.QUERIES: ((2.5, None, None), {"x_scores": 1.06, "x_retrieve": 5.0}),
    goals.QUERY: (
        (1.0, None, None),
        {"adds_us": 10.0, "x_flash": 1.15, "proven_x_flash": 1.6, "not_proven": 0},
    ),
    goals.SELECTION: ((0.1, None, None), {}),
    goals.PROVEN: ((1.0, None, None), {"x_f16_scan": 0.65, "not_proven": 0}),
    goals.DEVICES: ((1.0, None, None), {"x_one_of_2": 1.9, "x_one_of_4": 3.6}),
    goals.CAMPAIGN: ((1.02, None, None), {"of_read": 0.97}),
}


def row(case, card, figures=None, own=None):
    """A row of a case with figures that meet its goal, or with others in their place."""
    (ours, peer, limit), more = MEETS[case]
    ours = ours if own is None else own
    peers = {"peer": peer} if peer else {}
    more = more | (figures or {})
    return rows.row(case, goals.GOALS[case](card), ours, "s", peers, limit, **more)


class GoalTest(unittest.TestCase):
    def test_every_row_has_a_goal_that_can_be_met(self):
        self.assertEqual(list(MEETS), list(goals.GOALS))
        for case in MEETS:
            for card in (H100, H200):
                self.assertTrue(row(case, card)["met"], (case, card))

    def test_each_figure_of_a_goal_can_miss_it(self):
        for case, make in goals.GOALS.items():
            for figure, operator, bound in make(H200).conditions:
                value = bound * 1.01 + 0.01 if operator == "<=" else bound * 0.99 - 0.01
                if figure == "ours":
                    found = row(case, H200, own=value)
                elif figure == "of_limit":
                    found = row(case, H200, own=1.01)
                elif figure == "best_peer":
                    found = rows.row(case, make(H200), 1.0, "s", {}, 0.9, **MEETS[case][1])
                else:
                    found = row(case, H200, {figure: value})
                self.assertFalse(found["met"], (case, figure))
                self.assertIn(figure, found["why"])

    def test_what_was_not_measured_is_missed(self):
        for case, (_, more) in MEETS.items():
            for figure in more:
                self.assertFalse(row(case, H100, {figure: None})["met"], (case, figure))

    def test_goals_are_of_the_card(self):
        slow = {"x_flash": 1.06}
        self.assertTrue(row(goals.QUERY, H100, slow)["met"])
        self.assertFalse(row(goals.QUERY, H200, slow)["met"])
        self.assertTrue(row(goals.QUERIES, H100, own=2.6)["met"])
        self.assertFalse(row(goals.QUERIES, H200, own=2.6)["met"])


class CampaignTest(unittest.TestCase):
    def found(self, forward, compressed, card=H100):
        goal = goals.GOALS[goals.CAMPAIGN](H100)
        with tempfile.TemporaryDirectory() as folder:
            for name, found in zip(campaign.FILES, (forward, compressed)):
                text = json.dumps({"gpu": H100, "rows": found})
                (pathlib.Path(folder) / name).write_text(text)
            return campaign.campaign_row(goal, folder, card)

    def row(self, case, ours_ms=1.0, x=1.0, read_ms=0.98, **more):
        found = {"case": case, "ours_ms": ours_ms, "x_best_peer": x, "read_ms": read_ms}
        found |= {"limit_is": "memory", "element": "f16", "query_len": 32, "bytes": 3e8}
        return found | more

    def test_the_slowest_row_and_the_farthest_from_a_read_decide(self):
        found = self.found([self.row("a"), self.row("b", x=0.99)], [self.row("c", read_ms=0.97)])
        self.assertEqual((found["met"], found["slowest"], found["farthest"]), (True, "b", "c"))
        found = self.found([self.row("a")], [self.row("b", x=0.97)])
        self.assertEqual((found["met"], list(found["slower"])), (False, ["b"]))
        found = self.found([self.row("a", read_ms=0.96)], [self.row("b")])
        self.assertEqual((found["met"], found["farthest"]), (False, "a"))

    def test_rows_that_are_not_short_reads_or_not_beside_a_peer_do_not_count(self):
        others = [
            self.row("long", read_ms=0.5, query_len=128),
            self.row("small", read_ms=0.5, bytes=1e8),
            self.row("arithmetic", read_ms=0.5, limit_is="arithmetic"),
            self.row("codes", read_ms=0.5, element="fp8"),
            self.row("exact", x=0.5, rate="f32"),
            self.row("coarse to fine", x=0.5, element="int8", best_peer="maxsim, f16"),
            self.row("a, sm_80 kernel", x=0.5, element="bf16"),
        ]
        found = self.found([self.row("a"), *others], [])
        self.assertEqual((found["met"], list(found["reads"])), (True, ["a", "exact"]))

    def test_what_was_not_measured_or_is_of_another_card_is_no_row(self):
        with self.assertRaisesRegex(ValueError, "not measured: b"):
            self.found([self.row("a"), self.row("b", ours_ms=None)], [])
        with self.assertRaisesRegex(ValueError, "is of NVIDIA H100"):
            self.found([self.row("a")], [], "NVIDIA H100 PCIe")

    def test_committed_records_are_read(self):
        self.assertGreater(campaign.campaign_row(None)["ours"], 0.9)


class ClusterTest(unittest.TestCase):
    def test_the_median_beside_two_processes_decides(self):
        for ours, met in ((115.0, True), (116.0, False)):
            found = {"cluster_ms": [900.0, ours, 1.0], "peer_ms": [100.0, 1.0, 900.0]}
            found = cluster.row(found)
            self.assertEqual((found["met"], found["ours"], found["best_peer"]), (met, ours, 100.0))
            self.assertEqual("why" in found, not met)

    def test_what_the_program_prints_becomes_a_record(self):
        with tempfile.TemporaryDirectory() as folder:
            program, out = (pathlib.Path(folder) / name for name in ("measure", "search.json"))
            program.write_text('#!/bin/sh\necho \'{"cluster_ms": [1.0], "peer_ms": [2.0]}\'\n')
            program.chmod(0o755)
            words = ["--program", str(program), "--out", str(out), "--folder", folder]
            self.assertEqual(cluster.main(words), 0)
            found = json.loads(out.read_text())["rows"]
        self.assertEqual([row["case"] for row in found], [cluster.CASE])


class ProgramTest(unittest.TestCase):
    def test_all_groups_are_run_where_none_is_named_on_a_cpu_too(self):
        for words in ([], ["--device", "cpu"]):
            self.assertEqual(PROGRAM.arguments(words).rows, list(PROGRAM.groups))
        self.assertEqual(PROGRAM.arguments([]).out.name, "search.json")


if __name__ == "__main__":
    unittest.main()
