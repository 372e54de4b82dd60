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
class XtrReferenceTest(unittest.TestCase):
    def test_of_a_query_by_hand(self):
        queries = torch.eye(2)[None]
        documents = torch.tensor([[[2.0, 0.0], [1.0, 0.0]], [[3.0, 4.0], [-1.0, 5.0]]])
        found = xtr.reference(queries, documents, 2)
        self.assertEqual(found.tolist(), [[2.0, (3.0 + 5.0) / 2]])


if __name__ == "__main__":
    unittest.main()
