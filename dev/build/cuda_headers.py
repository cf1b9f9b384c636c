#!/usr/bin/env python3
"""cuda_headers.py VERSION FOLDER [PACKAGE...]: the headers of a CUDA Toolkit, or of those packages (nvidia-nccl-cu12), from
PyPI's wheels of that version, into FOLDER/include.

A wheel has hundreds of MB of libraries, so only the parts of it where headers lie are read: some 3 MB. Exit code 3 where
PyPI can't be reached.
"""
import io
import json
import pathlib
import re
import shutil
import sys
import urllib.error
import urllib.request
import zipfile


def get(url, **headers):
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=60) as answer:
            return answer.read()
    except (urllib.error.URLError, OSError) as e:
        print(f"cuda_headers.py: {url}: {e}", file=sys.stderr)
        sys.exit(3)


class Remote(io.RawIOBase):
    """A file of a known size that is read by ranges."""
    def __init__(self, url, size):
        super().__init__()
        self.url, self.size, self.at = url, size, 0

    def readable(self):
        return True

    def seekable(self):
        return True

    def seek(self, offset, whence=io.SEEK_SET):
        self.at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self.at, io.SEEK_END: self.size}[whence]
        return self.at

    def readinto(self, buffer):
        n = min(len(buffer), self.size - self.at)
        if n <= 0:
            return 0
        part = get(self.url, Range=f"bytes={self.at}-{self.at + n - 1}")
        if len(part) != n:
            sys.exit(f"cuda_headers.py: {self.url}: asked for {n} bytes at {self.at} and got {len(part)}")
        buffer[:n] = part
        self.at += n
        return n


def newest(package, version):
    listing = json.loads(get(f"https://pypi.org/simple/{package}/", Accept="application/vnd.pypi.simple.v1+json"))
    wheels = [f for f in listing["files"] if f["filename"].split("-")[1].startswith(version + ".")
              and f["filename"].endswith("x86_64.whl") and not f.get("yanked")]
    if not wheels:
        sys.exit(f"cuda_headers.py: PyPI has no wheel of {package} {version}")
    return max(wheels, key=lambda f: [int(n) for n in re.findall(r"\d+", f["filename"].split("-")[1])])


def main():
    version, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    parts = folder / "parts"
    shutil.rmtree(parts, ignore_errors=True)
    for package in sys.argv[3:] or ("nvidia-cuda-runtime-cu12", "nvidia-cuda-nvcc-cu12", "nvidia-cublas-cu12"):
        wheel = newest(package, version)
        with zipfile.ZipFile(io.BufferedReader(Remote(wheel["url"], wheel["size"]), 1 << 17)) as z:
            for name in z.namelist():
                _, found, rest = name.partition("/include/")
                if found and rest and not rest.endswith("/") and ".." not in rest:
                    to = parts / rest
                    to.parent.mkdir(parents=True, exist_ok=True)
                    to.write_bytes(z.read(name))
    parts.rename(folder / "include")


if __name__ == "__main__":
    main()
