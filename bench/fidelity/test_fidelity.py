"""The measures of fidelity, on rankings that are worked out by hand."""

import unittest

try:
    import numpy

    from . import measures
except ImportError:
    numpy = None


@unittest.skipIf(numpy is None, "NumPy is not installed")
class Measures(unittest.TestCase):
    def test_scores_are_sums_of_maxima(self):
        queries = {
            "embeddings": numpy.array([[1, 0], [0, 1], [1, 1]], numpy.float16),
            "offsets": numpy.array([0, 2, 3]),
        }
        documents = {
            "embeddings": numpy.array([[2, 0], [3, 4], [-1, 5]], numpy.float16),
            "offsets": numpy.array([0, 1, 3]),
        }
        found = measures.exact_scores(queries, documents)
        self.assertEqual(found.tolist(), [[2, 8], [2, 7]])

    def test_equal_scores_keep_their_order(self):
        order, places = measures.ranks(numpy.array([[1.0, 3.0, 3.0, 2.0]]))
        self.assertEqual(order.tolist(), [[1, 2, 3, 0]])
        self.assertEqual(places.tolist(), [[3, 0, 1, 2]])

    def test_correlation_and_overlap(self):
        exact = numpy.array([[4.0, 3.0, 2.0, 1.0]])
        self.assertAlmostEqual(measures.spearman(exact, exact), 1)
        self.assertAlmostEqual(measures.spearman(-exact, exact), -1)
        # One exchange of neighbours: 1 - 6 · 2 / (4 · 15).
        self.assertAlmostEqual(measures.spearman(numpy.array([[3.0, 4.0, 2.0, 1.0]]), exact), 0.8)
        self.assertEqual(measures.overlap(-exact, exact, 2), 0)
        self.assertEqual(measures.overlap(numpy.array([[4.0, 1.0, 2.0, 3.0]]), exact, 2), 0.5)

    def test_judgements(self):
        order = numpy.array([[5, 7, 1], [2, 3, 4], [1, 2, 3]])
        ndcg, recall = measures.judged(order, [[7], [9], []])
        self.assertAlmostEqual(ndcg, (1 / numpy.log2(3) + 0) / 2)
        self.assertAlmostEqual(recall, 0.5)


if __name__ == "__main__":
    unittest.main()
