"""Files of strangers: the kinds of files that headway reads, and how they are damaged.

    python tests/strangers.py KIND SEED SECONDS

reads damaged files for some seconds, with limited memory, and prints how many were read and refused, and each error
that is not headway's own, with the seed that makes the file again.
"""

from __future__ import annotations

import json
import re
import resource
import signal
import struct
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch

import headway as hw
from headway.errors import HeadwayError
from headway.inspection.texts import read_conll2012, read_conllu, read_gap, read_text
from headway.study import Results
from headway.study.corpora import read as read_corpus

MEMORY = 2 << 30
"""Bytes that reading a file of some kilobytes may take beyond what Python, torch and headway have."""
PATIENCE = 20
"""Seconds that reading one may take."""

# ---------------------------------------------------------------- damage

NUMBERS = (0, 1, 10**9, 2**31 - 1, 2**32 - 1, 2**63 - 1, 2**64 - 1)
WORDS = (b"-1", b"1000000000", b"1e400", b"NaN", b"null", b"[]", b"{}", b'""', b"true", b"../../x", b"9" * 5000)


def cut(content: bytes, random: Random) -> bytes:
    return content[: random.randrange(len(content) + 1)]


def flipped(content: bytes, random: Random) -> bytes:
    made = bytearray(content)
    for _ in range(random.choice((1, 1, 4, 64))):
        if made:
            made[random.randrange(len(made))] ^= 1 << random.randrange(8)
    return bytes(made)


def lying(content: bytes, random: Random) -> bytes:
    """A number of 4 or 8 bytes is another, as a length or an offset would be."""
    form = random.choice(("<I", "<Q", ">I", ">Q"))
    size = struct.calcsize(form)
    at = random.randrange(max(1, min(len(content), random.choice((64, 4096, len(content) + 1)))))
    number = random.choice(NUMBERS) % (1 << 8 * size)
    return content[:at] + struct.pack(form, number) + content[at + size :]


def without_a_part(content: bytes, random: Random) -> bytes:
    start, stop = sorted(random.randrange(len(content) + 1) for _ in range(2))
    return content[:start] + content[stop:]


def doubled(content: bytes, random: Random) -> bytes:
    start, stop = sorted(random.randrange(len(content) + 1) for _ in range(2))
    return content[:stop] + content[start:]


def with_noise(content: bytes, random: Random) -> bytes:
    at = random.randrange(len(content) + 1)
    return (
        content[:at] + random.choice((b"\xff\xfe", b"\x00", b"\xed\xa0\x80", b"\r", random.randbytes(9))) + content[at:]
    )


def of_other_words(content: bytes, random: Random) -> bytes:
    """A number or a text in quotes becomes something else."""
    found = list(re.finditer(rb'"[^"]*"|-?\d+(?:\.\d+)?', content[:100_000]))
    if not found:
        return content
    one = random.choice(found)
    return content[: one.start()] + random.choice(WORDS) + content[one.end() :]


def deep(content: bytes, random: Random) -> bytes:
    at = random.randrange(len(content) + 1)
    return content[:at] + random.choice((b"[", b'{"a":')) * 100_000 + content[at:]


DAMAGES = (cut, flipped, lying, lying, without_a_part, doubled, with_noise, of_other_words, of_other_words, deep)

# ---------------------------------------------------------------- the files


@dataclass(frozen=True)
class Kind:
    """A kind of files.

    Args:
        write: writes one into a folder, and returns the file that is damaged.
        read: reads it.
    """

    write: Callable[[Path], Path]
    read: Callable[[Path], object]


def checkpoint(folder: Path) -> Path:
    torch.manual_seed(0)
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=16, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2
    )
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder / "model.safetensors"


def config_of(folder: Path) -> Path:
    checkpoint(folder)
    return folder / "config.json"


def index_of(folder: Path) -> Path:
    """A checkpoint in parts, with the index that says where each tensor is."""
    from safetensors import safe_open

    whole = checkpoint(folder)
    with safe_open(whole, framework="pt") as file:
        names = list(file.keys())
    part = whole.rename(folder / "model-00001-of-00001.safetensors")
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": dict.fromkeys(names, part.name)}))
    return index


def gguf_file(folder: Path) -> Path:
    import gguf
    import numpy as np

    path = folder / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(8)
    writer.add_feed_forward_length(8)
    writer.add_head_count(2)
    writer.add_head_count_kv(2)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(16)
    names = {"attn_q": (8, 8), "attn_k": (8, 8), "attn_v": (8, 8), "attn_output": (8, 8), "attn_norm": (8,)}
    names |= {"ffn_gate": (8, 8), "ffn_up": (8, 8), "ffn_down": (8, 8), "ffn_norm": (8,)}
    tensors = {f"blk.0.{name}.weight": shape for name, shape in names.items()}
    tensors |= {"token_embd.weight": (16, 8), "output_norm.weight": (8,), "output.weight": (16, 8)}
    for name, shape in tensors.items():
        writer.add_tensor(name, np.ones(shape, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def tokenizer_file(folder: Path) -> Path:
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel()
    made.train_from_iterator(["the cat sat on the mat"] * 9, trainers.BpeTrainer(vocab_size=300, show_progress=False))
    made.save(str(folder / "tokenizer.json"))
    return folder / "tokenizer.json"


def vectors_file(name: str, format: str | None) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        random = torch.Generator().manual_seed(0)
        table = hw.vectors.Pretrained.of([f"word{i}" for i in range(40)], torch.randn(40, 8, generator=random))
        if format is None:
            table.save(folder / name)
        else:
            hw.vectors.write(table, folder / name, format)
        return folder / name

    return write


def fasttext_file(folder: Path) -> Path:
    texts = ["the cat sat on the mat", "the dog sat on the rug"] * 9
    made = hw.vectors.FastText(dim=8, min_count=1, epochs=1, bucket=50, tokenizer=str.split).fit(texts)
    hw.vectors.write(made, folder / "v.bin", "fasttext")
    return folder / "v.bin"


def text_file(name: str, content: str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        (folder / name).write_text(content, encoding="utf-8")
        return folder / name

    return write


CONLLU = "# text = It is\n1\tIt\tit\tPRON\tPRP\t_\t2\tnsubj\t_\t_\n2\tis\tbe\tAUX\tVBZ\t_\t0\troot\t_\t_\n\n" * 4
CONLL2012 = "#begin document (a/b); part 000\n" + "a/b 0 0 It PRP * - - - - * (1)\na/b 0 1 is VBZ * - - - - * -\n\n" * 3
CONLL2012 += "#end document\n"
GAP = "ID\tText\tPronoun\tPronoun-offset\tA\tA-offset\tA-coref\tB\tB-offset\tB-coref\tURL\n"
GAP += "t-1\tAnn told Bea that she won.\tshe\t18\tAnn\t0\tTRUE\tBea\t9\tFALSE\thttp://x\n" * 4


def results_file(folder: Path) -> Path:
    kept = Path(__file__).parents[1] / "benchmarks" / "results" / "comparison-chinese"
    for name in ("settings.json", "results.jsonl"):
        lines = (kept / name).read_text(encoding="utf-8").splitlines(keepends=True)
        (folder / name).write_text("".join(lines[:8] if name.endswith("l") else lines), encoding="utf-8")
    return folder / "results.jsonl"


def settings_file(folder: Path) -> Path:
    results_file(folder)
    return folder / "settings.json"


KINDS: dict[str, Kind] = {
    "safetensors": Kind(checkpoint, lambda path: hw.checkpoints.load(path.parent)),
    "config.json": Kind(config_of, lambda path: hw.checkpoints.load(path.parent)),
    "index.json": Kind(index_of, lambda path: hw.checkpoints.load(path.parent)),
    "gguf": Kind(gguf_file, hw.checkpoints.load),
    "tokenizer.json": Kind(tokenizer_file, lambda path: hw.checkpoints.tokenizer(path.parent)),
    "headway's vectors": Kind(vectors_file("v.safetensors", None), hw.vectors.load),
    "word2vec text": Kind(vectors_file("v.vec", "word2vec"), hw.vectors.load),
    "word2vec binary": Kind(vectors_file("v.bin", "word2vec-binary"), hw.vectors.load),
    "GloVe text": Kind(vectors_file("v.txt", "glove"), hw.vectors.load),
    "fastText's .bin": Kind(fasttext_file, hw.vectors.load),
    "results.jsonl": Kind(results_file, lambda path: Results.load(path.parent)),
    "settings.json": Kind(settings_file, lambda path: Results.load(path.parent)),
    "CoNLL-U": Kind(text_file("t.conllu", CONLLU), read_conllu),
    "CoNLL-2012": Kind(text_file("t.conll", CONLL2012), read_conll2012),
    "GAP": Kind(text_file("t.tsv", GAP), read_gap),
    "plain text": Kind(text_file("t.txt", "A sentence.\n\nAnother one.\n" * 9), read_text),
    "corpus": Kind(text_file("t.txt", "A sentence.\n\nAnother one.\n" * 9), read_corpus),
}


def damaged(kind: str, seed: int, folder: Path) -> Path:
    """Writes a file of a kind into a folder, with the damage of a seed."""
    random = Random(f"{kind} {seed}")
    path = KINDS[kind].write(folder)
    content = path.read_bytes()
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        content = random.choice(DAMAGES)(content, random)
    path.write_bytes(content)
    return path


@contextmanager
def impatient(seconds: int) -> Iterator[None]:
    """Raises TimeoutError after some seconds."""

    def late(*_: object) -> None:
        raise TimeoutError(f"no answer within {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def outcome(kind: str, seed: int) -> str:
    """Returns "read", "refused", or what else came of a damaged file."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "within"
        folder.mkdir()
        path = damaged(kind, seed, folder)
        before = sorted(path.name for path in folder.iterdir())
        try:
            with impatient(PATIENCE), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                KINDS[kind].read(path)
            said = "read"
        except HeadwayError as error:
            said = "refused" if str(error).strip() else "an error without a message"
        except (Exception, RecursionError) as error:
            said = f"{type(error).__name__}: {error}"
        if sorted(path.name for path in folder.iterdir()) != before or len(list(Path(scratch).iterdir())) != 1:
            return f"{said}, and it wrote files"
        return said


def limit_memory() -> None:
    """Limits the address space to what is in use and MEMORY."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, resource.RLIM_INFINITY))


def main(kind: str, first: int, seconds: float, most: int | None = None) -> dict[str, Any]:
    """Reads damaged files for some seconds, or as many as ``most``; the counts, and the faults by seed."""
    with tempfile.TemporaryDirectory() as scratch:
        KINDS[kind].read(KINDS[kind].write(Path(scratch)))  # imports what it needs, and is right without damage
    limit_memory()
    counts, faults, seed, begun = {"read": 0, "refused": 0}, {}, first, time.monotonic()
    while time.monotonic() - begun < seconds and (most is None or seed < first + most):
        said = outcome(kind, seed)
        if said in counts:
            counts[said] += 1
        else:
            faults[seed] = said
        seed += 1
    return {"kind": kind, **counts, "faults": faults}


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), *map(int, sys.argv[4:]))))
