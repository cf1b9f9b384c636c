"""What a run has written, in an order and form that two runs can be compared by.

The rows of metrics.jsonl and stats.jsonl, TensorBoard's scalars and the rows for W&B, without what is measured
(seconds, bytes, rates) and joined over the starts of the run.
"""

import json
import struct
import zlib

MEASURED = set(
    "seconds time phases steps_per_second tokens_per_second flops memory_bytes "
    "steps_per_second_by_rank tokens_per_second_by_rank flops_by_rank memory_by_rank reserved_by_rank "
    "comm_seconds exposed_seconds overlap_efficiency "
    "bytes_sent axes pipeline seconds_by_rank slow_rank slow_ratio".split()
)
MEASURED_SCALARS = ("speed/", "time/", "memory/", "communication/", "pipeline/", "tokens_per_second", "mfu")


def rows(file):
    """The lines as JSON; a line that is none throws."""
    found = []
    if file.exists():
        for line in file.read_text().splitlines(keepends=True):
            if not line.endswith("\n"):
                raise ValueError(f"{file}: ends in the middle of a line: {line!r}")
            found.append({k: v for k, v in json.loads(line).items() if k not in MEASURED})
    return found


def fields(message):
    """(number, value) of a protobuf message: an integer, or bytes."""
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(message):
        tag = varint()
        if tag & 7 == 0:
            yield tag >> 3, varint()
            continue
        assert tag & 7 in (1, 2, 5), tag
        size = {1: 8, 5: 4}.get(tag & 7) or varint()
        yield tag >> 3, message[at : at + size]
        at += size


def tensorboard(folder):
    """{(step, tag): value} over all event files, the later ones last."""
    found = {}
    for path in sorted(folder.glob("events.out.tfevents.*")):
        data = path.read_bytes()
        at = 0
        while at < len(data):
            (size,) = struct.unpack_from("<Q", data, at)
            event = dict(fields(data[at + 12 : at + 12 + size]))
            at += 12 + size + 4
            step = event.get(2, 0)
            if 7 in event:  # a start: what was logged from its step on is void
                found = {key: value for key, value in found.items() if key[0] < step}
            for number, value in fields(event.get(5, b"")):
                one = dict(fields(value))
                if number == 1 and 2 in one and not one[1].decode().startswith(MEASURED_SCALARS):
                    found[step, one[1].decode()] = struct.unpack("<f", one[2])[0]
    return found


def records(path, cut=False):
    """The messages of a file for W&B, each in one or more parts of its blocks. cut: its run may have been killed."""
    data, head = path.read_bytes(), struct.pack("<4sHB", b":W&B", 0xBEE1, 0)
    assert data[:7] == head or cut and head.startswith(data)
    at, parts = 7, None  # the record's bytes so far: none, or its first part, which may be empty
    while at < len(data):
        room = 32768 - at % 32768
        if room < 7:
            assert not any(data[at : at + room])
            at += room
            continue
        crc, length, kind = struct.unpack("<IHB", data[at : at + 7].ljust(7, b"\0"))
        if cut and at + 7 + length > len(data):
            return
        body = data[at + 7 : at + 7 + length]
        assert zlib.crc32(bytes([kind]) + body) == crc and length + 7 <= room
        at += 7 + length
        assert (kind in (1, 2)) == (parts is None), "a part without its beginning"
        parts = (parts or b"") + body
        if kind in (1, 4):
            yield parts
            parts = None
    assert cut or parts is None


def wandb(folder):
    """{(step, key): JSON} over the files of all starts; of one that was logged again the later."""
    found = {}
    for path in sorted(folder.glob("wandb/offline-run-*/run-*.wandb")):
        for record in records(path, cut=True):
            for number, history in fields(record):
                if number != 2:
                    continue
                items = [dict(fields(item)) for field, item in fields(history) if field == 1]
                row = {item[1].decode(): item[16].decode() for item in items}
                step = int(row.pop("_step"))
                for key, value in row.items():
                    if not key.startswith(("_", *MEASURED_SCALARS)):
                        found[step, key] = value
    return found


def text(folder):
    lines = [f"metrics {json.dumps(row)}" for row in rows(folder / "metrics.jsonl")]
    lines += [f"stats {json.dumps(row)}" for row in rows(folder / "stats.jsonl")]
    lines += [f"tensorboard {key} {value}" for key, value in sorted(tensorboard(folder).items())]
    lines += [f"wandb {key} {value}" for key, value in sorted(wandb(folder).items())]
    return "\n".join(lines) + "\n"
