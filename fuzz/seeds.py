#!/usr/bin/env python3
"""Writes files that programs do write, small ones, as inputs to begin with: `seeds.py FOLDER` has a
folder for each target that is hard to guess. `campaign.py` keeps those that reach something of
their own in the corpora."""

import io
import json
import pathlib
import struct
import sys
import zipfile
import zlib

#: Bytes of the longest input that the targets get (`campaign.py`).
LEN_MAX = 8192

PLAID = pathlib.Path(__file__).parent / "../cli/tests/plaid"


def safetensors(tensors, notes=None):
    """Of name: (type, shape, bytes)."""
    header, data = {}, b""
    if notes:
        header["__metadata__"] = notes
    for name, (dtype, shape, raw) in tensors.items():
        header[name] = {
            "dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)],
        }  # fmt: skip
        data += raw
    text = json.dumps(header, separators=(",", ":")).encode()
    return struct.pack("<Q", len(text)) + text + data


def npy(dtype, shape, raw, version=1, order=False):
    words = f"{{'descr': '{dtype}', 'fortran_order': {order}, 'shape': {tuple(shape)}, }}\n"
    n_bytes = "<H" if version == 1 else "<I"
    head = b"\x93NUMPY" + bytes([version, 0]) + struct.pack(n_bytes, len(words))
    return head + words.encode() + raw


def npz(arrays, method=zipfile.ZIP_STORED):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, raw in arrays.items():
            archive.writestr(zipfile.ZipInfo(name), raw, method)
    return file.getvalue()


def floats(*values):
    return struct.pack(f"<{len(values)}f", *values)


def halves(*values):
    return struct.pack(f"<{len(values)}e", *values)


def longs(*values):
    return struct.pack(f"<{len(values)}q", *values)


def token_files():
    """Number of the kind (`choice % 3` of the target, and options beside it), and the file."""
    four = floats(1, 0.5, -1, 0)
    packed = {"embeddings": ("F32", [2, 2], four), "offsets": ("I64", [3], longs(0, 1, 2))}
    yield 0, safetensors(packed)
    yield 0, safetensors(packed, {"ids": '["a","b"]', "format": "pt"})
    padded = {
        "F16": {"lengths": ("I32", [1], longs(2)[:4])},
        "BF16": {"mask": ("BOOL", [1, 2], b"\1\0")},
        "F32": {"ids": ("I64", [1], longs(7))},
    }
    for kind, beside in padded.items():
        values = floats(1, 2, 0, 0) if kind == "F32" else four[:8]
        yield 0, safetensors({"embeddings": (kind, [1, 2, 2], values), **beside})
    others = {"x_mask": ("U8", [1, 2], b"\1\1"), "mask": ("F32", [1], four[:4])}
    yield 9, safetensors({"x": ("F32", [1, 2, 2], four), **others})
    for kind in ("I8", "F8_E4M3", "U8"):
        codes = {
            "offsets": ("I64", [2], longs(0, 2)), "embeddings": (kind, [2, 4], bytes(range(8))),
            "scales": ("F16", [2], halves(1, 0.5)), "mins": ("F16", [2], halves(0, -1)),
        }  # fmt: skip
        if kind != "U8":
            del codes["mins"]
        yield 0, safetensors(codes)
        codes["scales"] = ("F32", [1], floats(0.25))
        yield 0, safetensors(codes, {"made of": "tokens", "format": "maxsim"})
    for kind in (1, 4, 7):
        yield kind, npy("<f4", [1, 2, 2], floats(1, 2, 0, 0))
    yield 1, npy("<f2", [2, 1, 2], four[:8], version=2)
    yield 1, npy(">f4", [2, 1, 1], four[:8], version=3)
    yield 1, npy("<f4", [1, 2, 2], four, order=True)
    yield 1, npy("|O", [1], b"\x80\4.")
    arrays = {
        "embeddings.npy": npy("<f4", [2, 2], four), "offsets.npy": npy("<i8", [3], longs(0, 1, 2)),
    }  # fmt: skip
    named = {**arrays, "ids.npy": npy("<U1", [2], struct.pack("<2I", 97, 98))}
    single = {"doc_0.npy": npy("<f4", [1, 2], four[:8]), "doc_10.npy": npy("<f4", [1, 2], four[8:])}
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        yield 2, npz(arrays, method)
        yield 2, npz(named, method)
        yield 2, npz(single, method)


def residual_files():
    for nbits, order, normalize, element in (
        (1, "colbert", "true", "F32"), (2, "little-endian", "false", "F16"),
        (4, "colbert", "false", "BF16"), (8, "little-endian", "true", "F32"),
    ):  # fmt: skip
        n = 1 << nbits
        size = 4 if element == "F32" else 2
        notes = {
            "format": "maxsim-residual", "version": "1", "nbits": str(nbits), "bit_order": order,
            "normalize": normalize, "ids": '["a","b"]',
        }  # fmt: skip
        if nbits == 8:
            notes.pop("ids")
        tensors = {
            "offsets": ("I64", [3], longs(0, 1, 2)),
            "codes": ("I32", [2], struct.pack("<2i", 0, 1)),
            "bucket_weights": ("F32", [n], floats(*(i / n for i in range(n)))),
            "centroids": (element, [2, 8], (floats if size == 4 else halves)(*range(16))),
            "residuals": ("U8", [2, nbits], bytes(range(2 * nbits))),
        }
        if nbits < 4:
            tensors["bucket_cutoffs"] = ("F32", [n - 1], floats(*range(n - 1)))
        yield safetensors(tensors, notes)


#: The files of a folder, as `targets/index.rs` has them.
NAMES = (
    ("metadata.json", "centroids.npy", "bucket_cutoffs.npy", "bucket_weights.npy", "doclens.0.json",
     "0.codes.npy", "0.residuals.npy", "merged_codes.npy", "merged_codes.manifest.json"),
    ("metadata.json", "centroids.pt", "buckets.pt", "doclens.0.json", "0.codes.pt",
     "0.residuals.pt"),
)  # fmt: skip


def folder(kind, files):
    """Files behind their lengths, without those at the end that are not there."""
    parts = [files.get(name, b"") for name in NAMES[kind]]
    while parts and not parts[-1]:
        parts.pop()
    return bytes([kind]) + b"".join(struct.pack("<H", len(part)) + part for part in parts)


def packed_closely(raw):
    """What torch saved, without padding and what is not read; other files as they are."""
    if raw[:2] != b"PK":
        return raw
    archive = zipfile.ZipFile(io.BytesIO(raw))
    names = [name for name in archive.namelist() if name.split("/", 1)[1][0] != "."]
    return npz({name: archive.read(name) for name in names})


def indexes():
    chunked = {
        "centroids.npy": npy("<f4", [2, 8], floats(*range(16))),
        "bucket_cutoffs.npy": npy("<f4", [3], floats(-1, 0, 1)),
        "bucket_weights.npy": npy("<f4", [4], floats(-2, -1, 1, 2)),
        "doclens.0.json": b"[1,2]",
        "0.codes.npy": npy("<i8", [3], longs(0, 1, 0)),
        "0.residuals.npy": npy("|u1", [3, 2], bytes(6)),
    }
    fast = {
        "num_chunks": 1, "nbits": 2, "num_partitions": 2, "num_embeddings": 3, "avg_doclen": 1.5,
        "num_documents": 2,
    }  # fmt: skip
    yield folder(0, {**chunked, "metadata.json": json.dumps(fast).encode()})
    next_plaid = {**fast, "embedding_dim": 8, "next_plaid_compatible": True}
    yield folder(0, {**chunked, "metadata.json": json.dumps(next_plaid).encode()})
    for path in sorted(PLAID.glob("*/")):
        kind = int((path / "centroids.pt").exists())
        files = {name: (path / name).read_bytes() for name in NAMES[kind] if (path / name).exists()}
        files = {name: packed_closely(raw) if kind else raw for name, raw in files.items()}
        # One chunk of several.
        value = json.loads(files["metadata.json"])
        value["num_chunks"] = 1
        files["metadata.json"] = json.dumps(value).encode()
        yield folder(kind, files)


def texts():
    """The number of the reader, and the file."""
    yield 0, b"a\nb\nc\nd\ne\n"
    yield 0, b'{"id":"a"}\n{"id":2}\n{"_id":"c","text":"t"}\n{"id":"d"}\n{"id":4}\n'
    for which in (1, 2):
        words = b"several words \xc3\xa4\xe4\xb8\xad"
        yield which, b'{"id":0,"title":"T","text":"' + words + b'"}\n{"id":3,"text":"x"}\n'
        yield which, b"0\tTitle\n1\tAnother\n"
        yield which, b'{"_id":"4","title":"\\u001b[31mred\\u0000","text":""}\n'
    yield 3, b'{"id":0,"text":"q","relevant":[1,2]}\n{"id":1,"relevant":{"3":2,"4":0}}\n'
    yield 3, b"0 0 1 1\n0 Q0 2 3\n4 0 0 -1\n"
    yield 3, b"query-id\tcorpus-id\tscore\n0\t1\t1\n1\t2\t2.0\n"


def pictures():
    def chunk(name, raw):
        return struct.pack(">I", len(raw)) + name + raw + struct.pack(">I", zlib.crc32(name + raw))

    head = chunk(b"IHDR", struct.pack(">2I5B", 8, 6, 8, 0, 0, 0, 0))
    chunks = [head, chunk(b"IDAT", zlib.compress(bytes(54))), chunk(b"IEND", b"")]
    png = b"\x89PNG\r\n\x1a\n" + b"".join(chunks)
    frame = b"\xff\xc0\0\x0b\x08\0\x06\0\x08\1\1\x11\0"
    jpeg = b"\xff\xd8\xff\xe0\0\x10JFIF\0\1\1\0\0\1\0\1\0\0" + frame + b"\xff\xd9"
    exif = b"\xff\xd8\xff\xe1\0\x0eExif\0\0MM\0*\0\0" + frame + b"\xff\xd9"
    gif = b"GIF89a\x08\0\x06\0\x80\0\0\0\0\0\xff\xff\xff;"
    lossy = b"VP8 \x0a\0\0\0\x30\1\0\x9d\1\x2a\x08\0\x06\0"
    lossless = b"VP8L\x05\0\0\0\x2f\x07\x40\1\0\0"
    extended = b"VP8X\x0a\0\0\0\0\0\0\0\7\0\0\5\0\0"
    kinds = (lossy, lossless, extended)
    webp = [b"RIFF" + struct.pack("<I", 4 + len(kind)) + b"WEBP" + kind for kind in kinds]
    for picture in (png, jpeg, exif, gif, *webp):
        yield bytes([2, 3, 0]) + picture


def main():
    found = {
        "tokens": [bytes([kind]) + raw for kind, raw in token_files()],
        "residual": list(residual_files()),
        "index": list(indexes()),
        "texts": [bytes([kind]) + raw for kind, raw in texts()],
        "pictures": list(pictures()),
    }
    for target, inputs in found.items():
        into = pathlib.Path(sys.argv[1]) / target
        into.mkdir(parents=True, exist_ok=True)
        for i, raw in enumerate(raw for raw in inputs if len(raw) <= LEN_MAX):
            (into / f"seed-{i:02}").write_bytes(raw)


if __name__ == "__main__":
    main()
