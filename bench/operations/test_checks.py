"""The checks of rows of operations: what is wrong is not timed. Needs PyTorch."""

import types
import unittest

try:
    import torch

    from operations import chamfer, xtr
except ImportError:
    torch = None


@unittest.skipIf(torch is None, "no PyTorch")
class ChamferCheckTest(unittest.TestCase):
    def setUp(self):
        w = types.SimpleNamespace(device="cpu")
        self.x, self.y = chamfer.clouds(w, "converging", 2, 50, 3)
        gaps = (self.x[:, :, None] - self.y[:, None]).square().sum(-1)
        near, back = gaps.min(2), gaps.min(1)
        values = near.values.mean(1) + back.values.mean(1)
        leaves = [side.clone().requires_grad_(True) for side in (self.x, self.y)]
        gaps = (leaves[0][:, :, None] - leaves[1][:, None]).square().sum(-1)
        loss = gaps.min(2).values.mean(1).sum() + gaps.min(1).values.mean(1).sum()
        grads = torch.autograd.grad(loss, leaves)
        self.found = [values, near.indices.int(), back.indices.int(), *grads]

    def test_what_is_right_passes(self):
        chamfer.check(self.x, self.y, self.found)

    def test_what_is_wrong_does_not(self):
        def changed(place, change):
            found = [of.clone() for of in self.found]
            change(found[place])
            return found

        def other_neighbour(places):
            places[1, 3] = (places[1, 3] + 1) % 50

        wrong = [
            changed(0, lambda values: values[1].mul_(1 + 1e-5)),
            changed(1, other_neighbour),
            changed(2, other_neighbour),
            changed(1, lambda places: places[0, 0].fill_(-1)),
            changed(3, lambda grad: grad[1].mul_(torch.rand(50, 1))),
        ]
        for found in wrong:
            with self.assertRaises(ValueError):
                chamfer.check(self.x, self.y, found)

    def test_clouds_are_what_they_are_called(self):
        w = types.SimpleNamespace(device="cpu")
        for name in chamfer.SCENES:
            x, y = chamfer.clouds(w, name, 1, 400, 3)
            self.assertEqual((x.shape, y.shape), ((1, 400, 3), (1, 400, 3)))
            self.assertTrue(bool(x.isfinite().all() and y.isfinite().all()))


@unittest.skipIf(torch is None, "no PyTorch")
class PeerWordsTest(unittest.TestCase):
    def test_a_row_says_where_the_value_of_its_peer_is_wrong(self):
        def scene(value):
            return {"x": 3.0, "value_of_peer": value}

        right = {"10k": {"cube": scene(1.001)}, "1m": {"cube": {}}}
        self.assertEqual(chamfer.with_peer({"ours": 1}, right), {"ours": 1, "peer": "flash-maxsim"})
        right["100k"] = {"cube": scene(1.0), "converging": scene(26.54)}
        right["10k"]["scene"] = scene(float("nan"))
        words = chamfer.with_peer({}, right)["peer"]
        self.assertIn("wrong: nan × ours in 10k scene, 26.54 × ours in 100k converging", words)
        self.assertIsNone(chamfer.with_peer({}, {"1m": {"cube": {}}})["peer"])


@unittest.skipIf(torch is None, "no PyTorch")
class XtrCheckTest(unittest.TestCase):
    def test_few_scores_of_peers_may_be_retrieved_otherwise(self):
        wanted = torch.rand(10, 20) + 1
        found = wanted * 1.001
        xtr.check(found, wanted)
        found[3, 4] = 0.0
        xtr.check(found, wanted, xtr.SHARE_PEERS)
        found[3, 5:9] = torch.nan
        for share in (0.0, xtr.SHARE_PEERS):
            with self.assertRaises(ValueError):
                xtr.check(found, wanted, share)
        with self.assertRaises(ValueError):
            xtr.check(wanted.T, wanted, 1.0)


@unittest.skipIf(torch is None, "no PyTorch")
class XtrReferenceTest(unittest.TestCase):
    def test_of_a_query_by_hand(self):
        queries = torch.eye(2)[None]
        documents = torch.tensor([[[2.0, 0.0], [1.0, 0.0]], [[3.0, 4.0], [-1.0, 5.0]]])
        found = xtr.reference(queries, documents, 2)
        self.assertEqual(found.tolist(), [[2.0, (3.0 + 5.0) / 2]])


if __name__ == "__main__":
    unittest.main()
