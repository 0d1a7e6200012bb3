"""The official files of each data set: names, checksums, addresses.

How the checksums were established: those of the archives, of the files in them and of Fashion-MNIST's `.gz`
files are the ones that independent projects publish. In addition, CIFAR's binary files were rebuilt from exact
copies of the pixels and labels (all but CIFAR-100's test file, whose copy is in another order), and
Fashion-MNIST's files were read from Debian's package: they gave the same sums.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from bagwise.experiments.datasets.cifar import decode_cifar_binary, decode_cifar_python
from bagwise.experiments.datasets.idx import decode_idx
from bagwise.experiments.datasets.source import SourceFile

Decoder = Callable[[Sequence[SourceFile]], tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class OfficialFile:
    """A data file, plain or with `.gz` after its name.

    Attributes:
        name: its name in the folder.
        sha256: of its content, unzipped: different gzip programs make different files of the same content.
        size: of its content, where the format fixes it.
        also: the SHA-256 of the same records in another order that is in circulation.
    """

    name: str
    sha256: str
    size: int | None = None
    also: str | None = None


@dataclass(frozen=True)
class Edition:
    """One form in which a data set is handed out: a folder of files, or the archive of that folder."""

    folder: str
    archive: str | None
    train: tuple[OfficialFile, ...]
    test: tuple[OfficialFile, ...]
    decode: Decoder


@dataclass(frozen=True)
class Download:
    """A file to fetch: its address, where it belongs below the data folder, its size and SHA-256 as sent."""

    url: str
    path: str
    size: int
    sha256: str


@dataclass(frozen=True)
class OfficialDataset:
    """All that is known of a data set before it is read.

    Attributes:
        name: the name that `load_dataset` knows it by.
        class_names: in the order of the class numbers.
        editions: in the order in which they are looked for.
        downloads: what to fetch when no edition is found; they make up the first one.
        system_folders: where an operating system's package puts the files.
    """

    name: str
    class_names: tuple[str, ...]
    editions: tuple[Edition, ...]
    downloads: tuple[Download, ...]
    system_folders: tuple[str, ...] = ()


_CIFAR10_BINARY = Edition(
    folder="cifar-10-batches-bin",
    archive="cifar-10-binary.tar.gz",
    train=tuple(
        OfficialFile(f"data_batch_{number}.bin", sha256, 30_730_000)
        for number, sha256 in enumerate(
            (
                "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
                "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
                "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
                "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
                "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
            ),
            start=1,
        )
    ),
    test=(
        OfficialFile("test_batch.bin", "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b", 30_730_000),
    ),
    decode=partial(decode_cifar_binary, label_bytes=1, num_classes=10),
)

_CIFAR10_PYTHON = Edition(
    folder="cifar-10-batches-py",
    archive="cifar-10-python.tar.gz",
    train=tuple(
        OfficialFile(f"data_batch_{number}", sha256)
        for number, sha256 in enumerate(
            (
                "54636561a3ce25bd3e19253c6b0d8538147b0ae398331ac4a2d86c6d987368cd",
                "766b2cef9fbc745cf056b3152224f7cf77163b330ea9a15f9392beb8b89bc5a8",
                "0f00d98ebfb30b3ec0ad19f9756dc2630b89003e10525f5e148445e82aa6a1f9",
                "3f7bb240661948b8f4d53e36ec720d8306f5668bd0071dcb4e6c947f78e9682b",
                "d91802434d8376bbaeeadf58a737e3a1b12ac839077e931237e0dcd43adcb154",
            ),
            start=1,
        )
    ),
    test=(OfficialFile("test_batch", "f53d8d457504f7cff4ea9e021afcf0e0ad8e24a91f3fc42091b8adef61157831"),),
    decode=partial(decode_cifar_python, label_key=b"labels", num_classes=10),
)

_CIFAR100_BINARY = Edition(
    folder="cifar-100-binary",
    archive="cifar-100-binary.tar.gz",
    train=(OfficialFile("train.bin", "f31298fc616915fa142368359df1c4ca2ae984d6915ca468b998a5ec6aeebf29", 153_700_000),),
    test=(
        OfficialFile(
            "test.bin",
            "d8b1e6b7b3bee4020055f0699b111f60b1af1e262aeb93a0b659061746f8224a",
            30_740_000,
            # the copy in class order that the docstring speaks of; a test set's order changes no result
            also="0963a711c782a600e363bd27b2591918dc74a2e98edcd81325889cbdbe2d73fc",
        ),
    ),
    decode=partial(decode_cifar_binary, label_bytes=2, num_classes=100),
)

_CIFAR100_PYTHON = Edition(
    folder="cifar-100-python",
    archive="cifar-100-python.tar.gz",
    train=(OfficialFile("train", "735e79b04f092ca3d2e6d07f368c0a7d70d48c48d28865950cc24454cf45129b"),),
    test=(OfficialFile("test", "4b67687d9933c4db8f0831104447f15b93774f4f464bd0516f0f0f2ac83b7864"),),
    decode=partial(decode_cifar_python, label_key=b"fine_labels", num_classes=100),
)

_FASHION_MNIST = Edition(
    folder="fashion-mnist",
    archive=None,
    train=(
        OfficialFile(
            "train-images-idx3-ubyte",
            "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            47_040_016,
        ),
        OfficialFile(
            "train-labels-idx1-ubyte",
            "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            60_008,
        ),
    ),
    test=(
        OfficialFile(
            "t10k-images-idx3-ubyte",
            "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            7_840_016,
        ),
        OfficialFile(
            "t10k-labels-idx1-ubyte",
            "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
            10_008,
        ),
    ),
    decode=partial(decode_idx, num_classes=10),
)

_CIFAR_HOST = "https://www.cs.toronto.edu/~kriz"
_FASHION_HOST = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"

_CIFAR10 = OfficialDataset(
    name="cifar10",
    class_names=(
        *("airplane", "automobile", "bird", "cat", "deer"),
        *("dog", "frog", "horse", "ship", "truck"),
    ),
    editions=(_CIFAR10_BINARY, _CIFAR10_PYTHON),
    downloads=(
        Download(
            f"{_CIFAR_HOST}/cifar-10-binary.tar.gz",
            "cifar-10-binary.tar.gz",
            170_052_171,
            "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
        ),
    ),
)

_CIFAR100_CLASSES = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly
camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup
dinosaur dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower
leopard lion lizard lobster man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid
otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine possum rabbit raccoon ray road
rocket rose sea seal shark shrew skunk skyscraper snail snake spider squirrel streetcar sunflower
sweet_pepper table tank telephone television tiger tractor train trout tulip turtle wardrobe whale
willow_tree wolf woman worm
"""

_CIFAR100 = OfficialDataset(
    name="cifar100",
    class_names=tuple(_CIFAR100_CLASSES.split()),
    editions=(_CIFAR100_BINARY, _CIFAR100_PYTHON),
    downloads=(
        Download(
            f"{_CIFAR_HOST}/cifar-100-binary.tar.gz",
            "cifar-100-binary.tar.gz",
            168_513_733,
            "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
        ),
    ),
)

_FASHION = OfficialDataset(
    name="fashion-mnist",
    class_names=(
        *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
        *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
    ),
    editions=(_FASHION_MNIST,),
    downloads=tuple(
        Download(f"{_FASHION_HOST}/{name}.gz", f"fashion-mnist/{name}.gz", size, sha256)
        for name, size, sha256 in (
            (
                "train-images-idx3-ubyte",
                26_421_880,
                "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
            ),
            (
                "train-labels-idx1-ubyte",
                29_515,
                "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
            ),
            (
                "t10k-images-idx3-ubyte",
                4_422_102,
                "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
            ),
            (
                "t10k-labels-idx1-ubyte",
                5_148,
                "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
            ),
        )
    ),
    system_folders=("/usr/share/datasets/fashion-mnist",),  # Debian's package dataset-fashion-mnist
)

CATALOGUE = {dataset.name: dataset for dataset in (_FASHION, _CIFAR10, _CIFAR100)}
