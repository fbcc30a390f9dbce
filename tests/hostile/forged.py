"""A space taken apart, changed at will, and put together with right or wrong checksums."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from safetensors.numpy import load, save

SUFFIXES = {"examples": "jsonl"}


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def sign(manifest):
    """The checksum of a manifest, by the words of docs/format.md."""
    rest = {name: value for name, value in manifest.items() if name != "sha256"}
    text = json.dumps(rest, sort_keys=True, ensure_ascii=False)
    return sha256(text.encode("utf-8", "surrogatepass"))


@dataclass
class Forged:
    """The manifest as plain values, and the files of each segment by kind."""

    manifest: dict
    files: list

    @classmethod
    def of(cls, folder):
        manifest = json.loads((folder / "manifest.json").read_text("utf-8"))
        files = [
            {kind: (folder / file["name"]).read_bytes() for kind, file in each["files"].items()}
            for each in manifest["segments"]
        ]
        return cls(manifest, files)

    def change(self, kind, change, segment=0):
        """Change the arrays of a file, given by name, in place or by what is returned."""
        arrays = load(self.files[segment][kind])
        found = change(arrays)
        arrays = arrays if found is None else found
        self.files[segment][kind] = save(arrays)

    def set(self, kind, name, make, segment=0):
        """Put another array in the place of one."""
        self.change(kind, lambda arrays: arrays | {name: make(arrays[name])}, segment)

    def poke(self, kind, name, index, value, segment=0):
        """Change one number of an array."""

        def poked(array):
            array = array.copy()
            array[index] = value
            return array

        self.set(kind, name, poked, segment)

    def line(self, change, number=0, segment=0):
        """Change one example, given as an object, in place or by what is returned."""
        lines = self.files[segment]["examples"].decode("utf-8").split("\n")
        record = json.loads(lines[number])
        record = change(record) or record
        lines[number] = json.dumps(record, ensure_ascii=False)
        self.files[segment]["examples"] = "\n".join(lines).encode("utf-8", "surrogatepass")

    def name_files(self):
        """Name, measure and hash every file anew, as if it had been written so."""
        for segment, files in zip(self.manifest["segments"], self.files, strict=False):
            for kind, data in files.items():
                hashed = sha256(data)
                name = f"{kind}-{hashed[:16]}.{SUFFIXES.get(kind, 'safetensors')}"
                record = {"name": name, "sha256": hashed, "bytes": len(data)}
                segment["files"][kind] = record
            name_segment(segment)

    def write(self, folder, *, is_signed=True, text=None):
        """Put all files into a folder; `text` stands in for the manifest's own."""
        folder.mkdir(exist_ok=True)
        for path in folder.iterdir():
            if path.is_file():
                path.unlink()
        for segment, files in zip(self.manifest["segments"], self.files, strict=False):
            for kind, data in files.items():
                name = Path(segment["files"][kind]["name"]).name
                if name.isprintable() and name:
                    (folder / name).write_bytes(data)
        if is_signed:
            self.manifest["sha256"] = sign(self.manifest)
        text = json.dumps(self.manifest, ensure_ascii=False) if text is None else text
        data = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
        (folder / "manifest.json").write_bytes(data)
        return folder


def name_segment(segment):
    """Name a segment by its files."""
    hashes = " ".join(f"{kind} {f['sha256']}" for kind, f in sorted(segment["files"].items()))
    segment["name"] = sha256(hashes.encode("utf-8", "surrogatepass"))[:16]
