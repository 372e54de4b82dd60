"""What needs neither a GPU nor PyTorch: python3 -m unittest discover --start-directory bench"""

import argparse
import io
import json
import pathlib
import re
import tempfile
import unittest
from unittest import mock

import campaign
import cases
import ours
import record
import timing


def row(case, ms, **more):
    """A row as a case's process hands it over, with made-up figures."""
    peers = {"slow": {"ms": 4.0}, "fast": {"ms": 3.0}, "broken": {"error": "no"}}
    plan = "maxsim_forward_x: least cost"
    targets = {"x": 1.5, "limit": None, "plain": None}
    return {
        "case": case,
        "name": "page-10k",
        "flop": 2e12,
        "rate": "f16",
        "read_ms": 0.5,
        "targets": targets,
        "ours": {"ms": ms, "plan": plan},
        "peers": peers,
        **more,
    }


class RecordTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.path = pathlib.Path(self.folder.name) / "forward.json"
        sums = {"ptx_sha256": {"maxsim_forward_x.ptx": "12ab"}}
        patch = mock.patch.object(record, "kernels_sha256", lambda: sums)
        patch.start()
        self.addCleanup(patch.stop)

    def read(self):
        return json.loads(self.path.read_text())

    def test_a_row_gets_ratios_and_the_larger_of_two_limits(self):
        made = record.Record(self.path)
        made.take({"roofs": {"f16": {"tflop_per_s": 1000.0}}})
        made.take({"rows": [row("a", 2.0), row("b", 2.0, read_ms=4.0, plain_ms=1.6)]})
        a, b = self.read()["rows"]
        self.assertEqual((a["best_peer"], a["best_peer_ms"], a["x_best_peer"]), ("fast", 3.0, 1.5))
        self.assertEqual((a["limit_ms"], a["limit_is"], a["of_limit"]), (2.0, "arithmetic", 1.0))
        self.assertEqual((b["limit_ms"], b["limit_is"], b["of_limit"]), (4.0, "memory", 2.0))
        self.assertEqual((a["x_plain"], b["x_plain"]), (None, 1.25))
        self.assertEqual(a["kernel_sha256"], "12ab")

    def test_a_failed_row_says_why_and_has_no_figures(self):
        made = record.Record(self.path)
        made.take(
            {
                "rows": [
                    row("a", 2.0, ours={"error": "refused"}),
                    {"case": "b", "name": "b", "ours": {"error": "gone"}},
                ]
            }
        )
        a, b = self.read()["rows"]
        self.assertEqual((a["ours_ms"], a["x_best_peer"], a["of_limit"]), (None, None, None))
        self.assertEqual(b["best_peer"], None)
        self.assertIn("gone", record.table([a, b]))

    def test_a_later_campaign_replaces_its_rows_and_keeps_the_others(self):
        record.Record(self.path).take(
            {"rows": [row("a", 2.0), row("b", 2.0)], "versions": {"torch": "1"}}
        )
        record.Record(self.path).take({"rows": [row("a", 3.0)], "gpu": "G"})
        found = self.read()
        self.assertEqual(
            [(r["case"], r["ours_ms"]) for r in found["rows"]], [("a", 3.0), ("b", 2.0)]
        )
        self.assertEqual((found["gpu"], found["versions"]), ("G", {"torch": "1"}))
        other = pathlib.Path(self.folder.name) / "other.json"
        record.Record(other, self.path).take({})
        self.assertEqual(len(json.loads(other.read_text())["rows"]), 2)

    def test_compressed_documents_have_a_record_with_our_f16_forward_beside_them(self):
        path = self.path.with_name("compressed.json")
        made = record.Record(path)
        made.take({"roofs": {"f8": {"tflop_per_s": 1600.0}}})
        made.take({"rows": [row("FP8", 1.25, name="fp8-page-10k", rate="f8", f16={"ms": 3.0})]})
        found = json.loads(path.read_text())
        self.assertIn("what the codes stand for", found["protocol"])
        self.assertNotIn("what the codes stand for", record.PROTOCOL)
        (made_row,) = found["rows"]
        self.assertEqual(
            (made_row["limit_ms"], made_row["of_limit"], made_row["x_f16"]), (1.25, 1.0, 2.4)
        )
        # A row of plain tokens says nothing of it, and a failed forward gives no ratio.
        made.take({"rows": [row("plain", 2.0), row("no forward", 2.0, f16={"error": "no"})]})
        rows = {r["case"]: r for r in json.loads(path.read_text())["rows"]}
        self.assertNotIn("x_f16", rows["plain"])
        self.assertIsNone(rows["no forward"]["x_f16"])
        # A later campaign of some rows starts from the earlier record.
        other = pathlib.Path(self.folder.name) / "later" / "compressed.json"
        other.parent.mkdir()
        record.Record(other, path).take({"rows": [row("FP8", 1.0, name="fp8-page-10k", rate="f8")]})
        merged = json.loads(other.read_text())["rows"]
        figures = sorted((r["case"], r["ours_ms"]) for r in merged)
        self.assertEqual(figures, [("FP8", 1.0), ("no forward", 2.0), ("plain", 2.0)])


class InterfaceTest(unittest.TestCase):
    def test_every_function_takes_as_many_arguments_as_the_library_has(self):
        source = pathlib.Path(__file__).parent / "src" / "ffi.rs"
        if not source.is_file():
            self.skipTest("the library's source is not here")
        functions = re.findall(r'extern "C" fn maxsim_bench_(\w+)\(([^)]*)\)', source.read_text())
        found = {
            name: len([a for a in arguments.split(",") if a.strip()])
            for name, arguments in functions
        }
        expected = {name: len(arguments) for name, (_, arguments) in ours.SIGNATURES.items()}
        self.assertEqual(found, expected)


class CasesTest(unittest.TestCase):
    def test_names_and_words_are_unique(self):
        words = [
            case.words + v.words
            for case in [*cases.CASES, *cases.COMPRESSED]
            for v in case.variants
        ]
        self.assertEqual(len(words), len(set(words)))
        groups = (cases.CASES, [cases.SCALING], cases.BASELINES, cases.COMPRESSED)
        self.assertEqual(len(cases.BY_NAME), sum(map(len, groups)))

    def test_compressed_documents_are_a_group_with_a_record_of_its_own(self):
        names = campaign.chosen(["compressed"])
        self.assertEqual((names[0], len(names)), ("roofs", 1 + len(cases.COMPRESSED)))
        self.assertEqual(campaign.file_of(names), "compressed.json")
        self.assertEqual(campaign.file_of(["fp8-page-10k"]), "compressed.json")
        self.assertEqual(campaign.file_of(campaign.chosen(["all", "baselines"])), "forward.json")
        self.assertNotIn("fp8-page-10k", campaign.chosen(["all"]))
        with self.assertRaises(SystemExit):
            campaign.file_of(["fp8-page-10k", "page-10k"])

    def test_compressed_cases_are_in_the_words_of_their_goals(self):
        words = [case.words for case in cases.COMPRESSED]
        for expected in (
            "FP8, one query of 1024 x 10 000 x 1024",
            "INT8, 32 queries of 32 x 1024 x 1024",
            "PLAID 4 bits, one query of 32 x 1000 x 180, 16 384 centroids",
            "PLAID 2 bits, one query of 32 x 1 000 000 x 100, 131 072 centroids, normalised",
            "coarse to fine, one query of 32 x 10 000 x 1024",
        ):
            self.assertIn(expected, words)
        limits = {(case.format, case.variants[0].rate) for case in cases.COMPRESSED}
        self.assertEqual(
            limits, {("fp8", "f8"), ("int8", "f8"), ("plaid", "f16"), ("coarse", "f8")}
        )

    def test_coarse_to_fine_has_a_goal_for_the_short_query_alone(self):
        goals = {name: cases.BY_NAME[name].variants[0].x for name in campaign.chosen(["coarse"])}
        self.assertEqual(goals, {"coarse-32-10000-1024": 1.5, "coarse-1024-10000-1024": None})
        self.assertEqual(campaign.file_of(list(goals)), "compressed.json")

    def test_cases_are_chosen_by_name_prefix_and_group(self):
        self.assertEqual(campaign.chosen(["f32", "ragged-100k"]), ["f32", "ragged-100k"])
        self.assertEqual(
            campaign.chosen(["candidates"]), ["candidates-100", "candidates-10", "candidates-16"]
        )
        self.assertEqual(campaign.chosen(["all"])[0], "roofs")
        with self.assertRaises(SystemExit):
            campaign.chosen(["absent"])


class CampaignTest(unittest.TestCase):
    """The campaign with made-up processes."""

    def run_cases(self, names, outcomes):
        started = []

        class Child:
            def __init__(self, args, name, caches, log, more=()):
                self.key = " ".join([name, *more])

            def finish(self, timeout):
                started.append(self.key)
                return outcomes.get(self.key, {"rows": []})

            def close(self):
                pass

        with tempfile.TemporaryDirectory() as folder, mock.patch.object(campaign, "Child", Child):
            args = argparse.Namespace(
                out=pathlib.Path(folder), timeout=1, deadline=1e9, precompile=0, keep_compiled=False
            )
            made = record.Record(args.out / "forward.json")
            ran = campaign.Campaign(args, made)
            with mock.patch("sys.stdout", io.StringIO()):
                ran.run(names)
            return started, ran.failed, json.loads((args.out / "forward.json").read_text())

    def test_a_process_that_dies_is_tried_with_less(self):
        dead = {"error": "exit status -6"}
        outcomes = {"page-10k": dead, "page-10k --variants 1": {"rows": [row("a", 2.0)]}}
        started, failed, found = self.run_cases(["page-10k", "f32"], outcomes)
        self.assertEqual(started, ["page-10k", "page-10k --variants 1", "f32"])
        self.assertEqual((len(failed), found["rows"][0]["ours_ms"]), (1, 2.0))

    def test_a_case_that_always_dies_is_a_row(self):
        slow = {"error": "did not end within 1 s"}
        outcomes = {"f32": slow, "f32 --variants 1 --no-peers": {"error": "exit status 1"}}
        started, failed, found = self.run_cases(["f32"], outcomes)
        self.assertEqual(started, ["f32", "f32 --variants 1 --no-peers"])
        self.assertEqual(found["rows"][0]["ours"], {"error": "exit status 1"})

    def test_a_series_keeps_its_points(self):
        point = lambda n: {"n_docs": n, "results": {}}
        outcomes = {
            "scaling": {"error": "exit status 1", "scaling": [point(1), point(2)]},
            "scaling --no-peers": {"scaling": [point(1), point(2), point(3)]},
        }
        _, _, found = self.run_cases(["scaling"], outcomes)
        self.assertEqual([p["n_docs"] for p in found["scaling"]], [1, 2, 3])


class RowsTest(unittest.TestCase):
    def test_rows_of_other_kernels_say_so(self):
        earlier = {"ptx_sha256": {"a.ptx": "1"}, "cubin_sha256": {}, "rows": [{"case": "a"}]}
        self.assertEqual(record.rows_of(earlier, earlier), [{"case": "a"}])
        now = earlier | {"ptx_sha256": {"a.ptx": "2"}}
        self.assertEqual(record.rows_of(earlier, now), [{"case": "a", "earlier_kernels": True}])

    def test_rows_that_say_their_kernels_stay_where_those_do(self):
        made = {"ptx_sha256": {"a.ptx": "1", "b.ptx": "2"}, "cubin_sha256": {"a.sm_90a.cubin": "3"}}
        log = "# a on NVIDIA H200\nptxas info : 1 register\n"
        row = {"case": "x", "kernels": record.kernels_of(log, made)}
        self.assertEqual(
            row["kernels"], {"ptx_sha256": {"a.ptx": "1"}, "cubin_sha256": {"a.sm_90a.cubin": "3"}}
        )
        marked = row | {"earlier_kernels": True}
        for key, file, value, expected in [
            ("ptx_sha256", "b.ptx", "4", row),
            ("ptx_sha256", "a.ptx", "4", marked),
            ("cubin_sha256", "a.sm_90a.cubin", None, marked),
        ]:
            now = made | {key: made[key] | {file: value}}
            self.assertEqual(record.rows_of(made | {"rows": [row]}, now), [expected])


class TimingTest(unittest.TestCase):
    def test_methods_that_fail_are_errors_and_the_others_are_timed(self):
        def broken():
            raise ValueError("no such kernel")

        results = timing.measure(timing.Cpu(), {"good": lambda: None, "bad": broken}, 0.01)
        self.assertIn("no such kernel", results["bad"]["error"])
        self.assertGreaterEqual(results["good"]["n"], 7)
        self.assertLessEqual({"ms", "iqr_ms", "warm_ms", "enqueue_us"}, results["good"].keys())
        alone = timing.measure(timing.Cpu(), {"bad": broken}, 0.01)
        self.assertEqual(alone, {"bad": {"error": "ValueError: no such kernel"}})


if __name__ == "__main__":
    unittest.main()
