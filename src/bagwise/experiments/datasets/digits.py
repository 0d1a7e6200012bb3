"""The digits inside scikit-learn: 1,797 images of 8x8 pixels, the data set that needs no download."""

from __future__ import annotations

import numpy as np

from bagwise.experiments.datasets.dataset import Dataset

# Of each class, in the order of the file, every fifth image is a test image: 80/20, stratified, and the same
# for every version of every library, since nothing is drawn.
_TEST_EVERY = 5


def load_digits() -> Dataset:
    """Return the digits with their 16 grey levels stretched to 0..255 and a fixed split into 1442 + 355."""
    from sklearn.datasets import load_digits as sklearn_digits

    bunch = sklearn_digits(return_X_y=True)
    pixels, labels = (np.asarray(array) for array in bunch)  # [n, 64], [n]
    images = np.rint(pixels * (255 / 16)).astype(np.uint8).reshape(-1, 1, 8, 8)
    labels = labels.astype(np.int64)
    is_test = np.zeros(len(labels), dtype=bool)
    for label in range(10):
        of_class = np.flatnonzero(labels == label)
        is_test[of_class[_TEST_EVERY - 1 :: _TEST_EVERY]] = True
    return Dataset.from_arrays(
        "digits",
        train=(images[~is_test], labels[~is_test]),
        test=(images[is_test], labels[is_test]),
        class_names=tuple(str(label) for label in range(10)),
    )
