"""A space taken apart, changed at will, and put together with right or wrong checksums."""

import hashlib
import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import msgspec
from safetensors.numpy import load, save

KINDS = {
    "examples": "examples.jsonl",
    "vectors": "vectors.safetensors",
    "truthful": "rad/truthful.safetensors",
    "wrong": "rad/wrong.safetensors",
}


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def signed_text(manifest):
    """The text of space.json with the checksum of itself, by the words of docs/format.md."""
    text = json.dumps(manifest | {"sha256": "0" * 64}, ensure_ascii=False, allow_nan=True)
    try:
        data = msgspec.json.format(text.encode("utf-8", "surrogatepass"), indent=1) + b"\n"
    except (msgspec.MsgspecError, RecursionError):
        data = text.encode("utf-8", "surrogatepass")
    at = data.rfind(b'"sha256": "' + b"0" * 64) + 11
    return data if at < 11 else data[:at] + sha256(data).encode() + data[at + 64 :]


@dataclass
class Forged:
    """The content of space.json as plain values, and the files by kind."""

    manifest: dict
    files: dict

    @classmethod
    def of(cls, folder):
        manifest = json.loads((folder / "space.json").read_text("utf-8"))
        generation = folder / manifest["folder"]
        files = {kind: generation / name for kind, name in KINDS.items()}
        found = {kind: path.read_bytes() for kind, path in files.items() if path.exists()}
        return cls(manifest, found)

    def set(self, kind, name, make):
        """Put another array in the place of one."""
        arrays = load(self.files[kind])
        self.files[kind] = save(arrays | {name: make(arrays[name])})

    def line(self, changes):
        """Change fields of the first example."""
        first, end, others = self.files["examples"].partition(b"\n")
        first = msgspec.json.encode(json.loads(first) | changes)
        self.files["examples"] = first + end + others

    def write(self, folder, *, is_signed=True, text=None):
        """Write it all into a folder; `text` stands in for space.json's own."""
        shutil.rmtree(folder, ignore_errors=True)
        where = Path(str(self.manifest.get("folder")))
        where = where if where.name.startswith("g-") and len(where.parts) == 1 else Path("g-x")
        for kind, data in self.files.items():
            path = folder / where / KINDS[kind]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            if is_signed and isinstance(self.manifest.get("files"), dict):
                record = {"sha256": sha256(data), "bytes": len(data)}
                if KINDS[kind] in self.manifest["files"]:
                    self.manifest["files"][KINDS[kind]] = record
        if text is None and not is_signed:
            text = json.dumps(self.manifest, ensure_ascii=False)
            text = text.encode("utf-8", "surrogatepass")
        text = signed_text(self.manifest) if text is None else text
        (folder / "space.json").write_bytes(text)
        return folder
