"""Small files in the official formats of Fashion-MNIST and CIFAR, written byte by byte."""

import io
import struct
import tarfile


def idx(shape, values):
    """An IDX file of unsigned bytes."""
    return bytes([0, 0, 8, len(shape)]) + b"".join(struct.pack(">I", size) for size in shape) + bytes(values)


def cifar_pixels(image):
    """3072 bytes that differ from image to image and from place to place."""
    return bytes((7 * image + 5 * place + place // 1024) % 256 for place in range(3072))


def cifar_binary(labels):
    """A file of the binary version; each label is a tuple of one or two bytes."""
    return b"".join(bytes(label) + cifar_pixels(image) for image, label in enumerate(labels))


def cifar_python(label_key, labels):
    """A file of the python version, with the opcodes that Python 2 wrote (pickle protocol 2)."""
    pixels = b"".join(cifar_pixels(image) for image in range(len(labels)))
    return b"".join(
        [
            b"\x80\x02}(",  # protocol 2, an empty dict, a mark
            *(_string(b"batch_label"), _string(b"training batch 1 of 1")),
            *(_string(label_key), b"](", *(b"K" + bytes([label]) for label in labels), b"e"),
            *(_string(b"data"), byte_array(len(labels), pixels)),
            b"u.",  # set the items, stop
        ]
    )


def byte_array(rows, content, code=b"u1", name=b"numpy.core.multiarray\n_reconstruct"):
    """The opcodes of a NumPy array of `rows` rows."""
    columns = len(content) // rows if rows else 0
    return b"".join(
        [
            *(b"c", name, b"\n", b"cnumpy\nndarray\n", b"K\x00\x85", _string(b"b"), b"\x87R"),
            *(b"(K\x01", _integer(rows), _integer(columns), b"\x86"),
            *(b"cnumpy\ndtype\n", _string(code), b"K\x00K\x01\x87R"),
            *(b"(K\x03", _string(b"|"), b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"),
            *(b"\x89", b"T", struct.pack("<i", len(content)), content, b"tb"),
        ]
    )


def tar_gz(members):
    """A `.tar.gz` of `{name: content}`; a content that is a TarInfo is added as it is, without data."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in members.items():
            if isinstance(content, tarfile.TarInfo):
                archive.addfile(content)
                continue
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def _string(text):
    return b"U" + bytes([len(text)]) + text


def _integer(value):
    return b"J" + struct.pack("<i", value)
