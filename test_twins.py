"""The twins are the lab's model: what the benchmark compares is the same computation."""
from __future__ import annotations

import unittest

from model import Params, batch_gradient, init_params
from twins import check_twin, naive_gradient, np_gradient, np_params, numpy_version, value_gradient

BATCH = [[1, 4, 2, 5, 3], [6, 1], [2, 2, 7]]


class TestTwins(unittest.TestCase):
    def setUp(self) -> None:
        self.params: Params = init_params(8, 4, 6, 5, 1)
        self.lab = batch_gradient(self.params, BATCH)

    def test_the_naive_twin_has_the_labs_loss_and_gradients(self) -> None:
        check_twin("naive", naive_gradient(self.params, BATCH), self.lab)

    def test_scalar_autograd_has_the_labs_loss_and_gradients(self) -> None:
        loss, grads, _ = value_gradient(self.params, BATCH[0])
        check_twin("autograd", (loss, grads), batch_gradient(self.params, BATCH[:1]))

    @unittest.skipIf(numpy_version() is None, "NumPy is not installed")
    def test_numpy_has_the_labs_loss_and_gradients(self) -> None:
        check_twin("NumPy", np_gradient(np_params(self.params), BATCH), self.lab)

    def test_another_model_is_found_by_a_loss_a_gradient_or_a_shape(self) -> None:
        loss, grads = self.lab
        nan = {**grads, "wpe": [[float("nan")] * 4, *grads["wpe"][1:]]}
        for twin in ((loss * 1.0001, grads), (loss, {**grads, "wte": [[2.0 * g for g in row] for row in grads["wte"]]}),
                     (loss, nan), (loss, {**grads, "wte": grads["wte"][1:]}), (loss, {**grads, "wpe": []})):
            with self.assertRaisesRegex(ValueError, "the twin 'other' is another model: "):
                check_twin("other", twin, self.lab)


if __name__ == "__main__":
    unittest.main()
