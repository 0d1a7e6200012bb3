"""Decode the shards of a data set, one process each: python decode_shards.py cifar10 SHARDS OUT.

SHARDS is a folder with cifar_codec.py, whose own export decodes one shard after the other; on a lent GPU seconds count.
"""

import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import numpy as np

NAME, SHARDS, OUT = sys.argv[1:]
sys.path.insert(0, SHARDS)

import cifar_codec  # noqa: E402


def load_shard(split: str, shard: int) -> tuple[np.ndarray, np.ndarray]:
    return cifar_codec.load_part(NAME, split, [shard])


def load_all() -> tuple[np.ndarray, ...]:
    with ProcessPoolExecutor(6) as pool:
        test = pool.submit(load_shard, "test", 0)
        train = list(pool.map(partial(load_shard, "train"), range(5)))
    images, labels = zip(*train, strict=True)
    return np.concatenate(images), np.concatenate(labels), *test.result()


if __name__ == "__main__":
    cifar_codec.load = lambda *_: load_all()
    print(cifar_codec.export(NAME, OUT))
