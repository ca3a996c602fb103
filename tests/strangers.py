"""Files of strangers: the kinds of files that headway reads, and how they are damaged.

    python tests/strangers.py KIND[,KIND…] SEED SECONDS

reads damaged files of each kind for some seconds, with limited memory, and prints how many were read and refused, and
each error that is not headway's own, with the seed that makes the file again. Without SECONDS, it reads as many as the
tests do.
"""

from __future__ import annotations

import functools
import gzip
import io
import json
import re
import resource
import signal
import struct
import sys
import tempfile
import time
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch

import headway as hw
from headway._common import text_files
from headway._common.files import LOCK
from headway._common.lines import write_lines
from headway._common.training import train
from headway.checkpoints import _conversation
from headway.errors import HeadwayError
from headway.inspection.texts import read_conll2012, read_conllu, read_gap, read_text
from headway.study import ComparisonResults
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


ENCODINGS = ("utf-8-sig", "utf-16", "utf-16-le", "utf-32", "latin-1", "gb18030", "cp037")


def in_another_encoding(content: bytes, random: Random) -> bytes:
    try:
        return content.decode().encode(random.choice(ENCODINGS), errors="replace")
    except UnicodeDecodeError:
        return content


DAMAGES = (
    *(cut, flipped, lying, lying, without_a_part, doubled, with_noise, of_other_words, of_other_words, deep),
    in_another_encoding,
)


def zipped_again(content: bytes, random: Random) -> bytes:
    """A file within a zip archive is damaged, and the archive's sums fit it."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as before:
            held = {name: before.read(name) for name in before.namelist()}
    except (zipfile.BadZipFile, OSError, EOFError, NotImplementedError, RuntimeError, zlib.error, ValueError):
        return content
    if held:
        name = random.choice(list(held))
        held[name] = random.choice(DAMAGES)(held[name], random)
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as after:
        for name, one in held.items():
            after.writestr(name, one)
    return made.getvalue()


@functools.cache
def bomb(start: bytes, part: bytes) -> bytes:
    """The compressed form, of some 200 kB, of much that repeats."""
    packer = zlib.compressobj(1, wbits=31)
    return packer.compress(start) + b"".join(map(packer.compress, [part * 100_000] * 600)) + packer.flush()


def packed_again(content: bytes, random: Random) -> bytes:
    """What is compressed is damaged, or is 10⁹ bytes."""
    if random.random() < 0.1:
        return bomb(random.choice((b"9 8\nword", b"0 ", b" ")), random.choice((b"0", b" 0.5", b" a")))
    try:
        return gzip.compress(random.choice(DAMAGES)(gzip.decompress(content), random), mtime=0)
    except (OSError, EOFError, zlib.error):
        return content


HOSTILE = (
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "{{ 'a' * 10 ** 10 }}",
    "{{ range(10 ** 9) | list }}",
    "{{ cycler.__init__.__globals__ }}",
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ messages | map(attribute='__class__.__base__') | list }}",
    "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "{% include '../../x' %}",
    "{% import '/etc/passwd' as x %}",
    "{{ messages.append(1) }}",
    "{{ 1 / 0 }}",
    "{{ '%9999999d' | format(1) }}",
    "{{ raise_exception('no') }}",
    "{{ none.x.y }}",
)


def with_a_hostile_part(content: bytes, random: Random) -> bytes:
    """A place of a template has a program that takes too much, or what it must not have."""
    part = random.choice(HOSTILE).encode()
    places = [found.end() for found in re.finditer(rb"[}]}|%}", content)] or [len(content)]
    at = random.choice(places)
    return content[:at] + part + content[at:]


def naming_others(content: bytes, random: Random) -> bytes:
    """What names a file names another: the file that names it, a folder, one elsewhere, or one that is special."""
    other = random.choice((b"model.safetensors.index.json", b"config.json", b".", b"../x", b"/etc/passwd"))
    return re.sub(rb"model-0[^\"]*", lambda found: other if random.random() < 0.5 else found[0], content)


def link_to_itself(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


PLACES: tuple[Callable[[Path], None], ...] = (link_to_itself, folder, Path.unlink)
"""What may be where the file was."""

# ---------------------------------------------------------------- the files


@dataclass(frozen=True)
class Kind:
    """A kind of files.

    Args:
        write: writes one into a folder, and returns the file that is damaged.
        read: reads it.
        damages: what else is done to it.
        adds: the names of files that reading it may add, as the lock of a folder that is resumed.
        files: how many are read by the tests, fewer of those that take long.
    """

    write: Callable[[Path], Path]
    read: Callable[[Path], object]
    damages: tuple[Callable[[bytes, Random], bytes], ...] = ()
    adds: tuple[str, ...] = ()
    files: int = 150


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
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
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


def in_utf_16(made: Callable[[Path], Path]) -> Callable[[Path], Path]:
    def written(folder: Path) -> Path:
        path = made(folder)
        path.write_text(path.read_text(encoding="utf-8"), encoding="utf-16")
        return path

    return written


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


FORM = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}<{{ m.role }}>{{ m.content }}{{ eos_token }}"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
ASKED = [{"role": "user", "content": "Why?"}]


def template_file(folder: Path) -> Path:
    (folder / "chat_template.jinja").write_text(FORM)
    return folder / "chat_template.jinja"


def tokenizer_settings(folder: Path) -> Path:
    settings = {"chat_template": FORM, "bos_token": "<s>", "eos_token": {"content": "</s>"}}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder / "tokenizer_config.json"


def special_tokens(folder: Path) -> Path:
    (folder / "chat_template.jinja").write_text(FORM)
    held = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "additional_special_tokens": ["<x>"]}
    (folder / "special_tokens_map.json").write_text(json.dumps(held))
    return folder / "special_tokens_map.json"


def added_tokens(folder: Path) -> Path:
    vocabulary_file(folder)
    token = {"content": "<x>", "lstrip": True, "rstrip": False, "normalized": False, "special": True}
    held = {"added_tokens_decoder": {"10": token, "11": {**token, "content": "<y>"}}, "image_token": "cat"}
    (folder / "tokenizer_config.json").write_text(json.dumps(held))
    return folder / "tokenizer_config.json"


def asked(path: Path) -> str | None:
    """The prompt of a conversation."""
    return hw.checkpoints.conversation(path, ASKED)


def generation_file(folder: Path) -> Path:
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 6], "temperature": 0.7}))
    return folder / "generation_config.json"


def vocabulary_file(folder: Path) -> Path:
    settings = {"unk_token": "[UNK]", "mask_token": {"content": "[MASK]"}, "do_lower_case": True}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "##s", "é", "猫"]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    return folder / "vocab.txt"


def vocabulary_settings(folder: Path) -> Path:
    return vocabulary_file(folder).with_name("tokenizer_config.json")


def cut_into_tokens(folder: Path) -> list[int]:
    found = hw.checkpoints.tokenizer(folder).encode("the cats sat on 猫").ids
    assert len(found) < 1000
    return found


def gguf_tokenizer(folder: Path) -> Path:
    import gguf

    path = folder / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    tokens = [*(chr(code) for code in range(33, 127)), "th", "the", "<s>", "</s>"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("llama-bpe")
    writer.add_token_list(tokens)
    writer.add_token_types([1] * (len(tokens) - 2) + [3, 3])
    writer.add_token_merges(["t h", "th e"])
    writer.add_bos_token_id(len(tokens) - 2)
    writer.add_eos_token_id(len(tokens) - 1)
    writer.add_add_bos_token(True)
    writer.add_chat_template(FORM)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def read_gguf_tokenizer(path: Path) -> object:
    found = hw.checkpoints.stop_ids(path), hw.checkpoints.tokenizer(path).encode("the cat").ids
    return found, asked(path)


def pickle_file(folder: Path) -> Path:
    tensors = {"a": torch.ones(4, 3), "b": torch.ones(3, dtype=torch.bfloat16)}
    torch.save({"epoch": 3, "state_dict": tensors}, folder / "pytorch_model.bin")
    return folder / "pytorch_model.bin"


class Small(torch.nn.Module):
    """A language model of one layer of attention."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = torch.nn.Embedding(16, 8)
        self.attention = hw.nn.MultiHeadAttention(8, 2, encoding=hw.encoding("rope", head_dim=4))
        self.head = torch.nn.Linear(8, 16)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids)
        return self.head(x + self.attention(x, mask=hw.masks.Causal()))


IDS = torch.arange(12).view(2, 6)


def head_log(folder: Path) -> Path:
    model = Small()
    log = hw.inspection.HeadLog(model, folder / "heads.jsonl", vocab_size=16)
    for step in (0, 100, 200):
        log.write(step, IDS)
    return folder / "heads.jsonl"


def read_log(path: Path) -> object:
    hw.inspection.HeadLog(Small(), path, vocab_size=16).table()
    rows = hw.inspection.read_head_log(path)
    numbers = [value for row in rows for name, value in row.items() if name != "layer"]
    assert all(abs(value) >= 0 or value != value for value in numbers)
    return rows


def effects_file(folder: Path) -> Path:
    read_effects(folder / "effects.jsonl")
    return folder / "effects.jsonl"


def read_effects(path: Path) -> object:
    return hw.inspection.head_effects(Small(), [IDS], "cross_entropy", file=path).table()


def training(path: Path, steps: int) -> object:
    model = Small()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def loss(model: torch.nn.Module, step: int) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(model(IDS[:, :-1]).flatten(0, 1), IDS[:, 1:].flatten())

    return train(model, loss, optimizer, steps=steps, rate=lambda step: 1.0, clip=1.0, checkpoint=path)


def training_checkpoint(folder: Path) -> Path:
    """One that is not at its end, as an interruption leaves it."""

    training(folder / "model.pt", 2)
    state = torch.load(folder / "model.pt", weights_only=True)
    model = Small()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model(IDS).sum().backward()
    optimizer.step()
    torch.save({**state, "optimizer": optimizer.state_dict()}, folder / "model.pt")
    return folder / "model.pt"


TEXTS = ["the cat sat on the mat and the dog sat on the rug"] * 30


def bert(folder: Path) -> object:
    from headway.vectors import train_bert

    options = {"vocab_size": 64, "embed_dim": 8, "num_layers": 1, "num_heads": 2, "length": 8, "steps": 2, "batch": 2}
    return train_bert(TEXTS, folder, **options)


@functools.cache
def trained_bert() -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as scratch:
        bert(Path(scratch))
        return {path.name: path.read_bytes() for path in Path(scratch).iterdir()}


def bert_folder(name: str, without: tuple[str, ...] = ()) -> Callable[[Path], Path]:
    """The folder of a BERT's training, or of one that is not finished."""

    def write(folder: Path) -> Path:
        for one, content in trained_bert().items():
            if one not in without:
                (folder / one).write_bytes(content)
        return folder / name

    return write


@functools.cache
def fitted_bert() -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as scratch:
        bert(Path(scratch) / "model")
        made = hw.vectors.Bert(path=Path(scratch) / "model").fit(TEXTS)
        made.save(Path(scratch) / "saved")
        return {path.name: path.read_bytes() for path in (Path(scratch) / "saved").iterdir()}


def vectors_folder(which: str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        for name, content in fitted_bert().items():
            (folder / name).write_bytes(content)
        return folder / which

    return write


def read_vectors(folder: Path) -> object:
    found = hw.vectors.load(folder)
    return found.most_similar("cat", 2), found.encode("the cat")


def extension_rows(folder: Path) -> Path:
    read_extension(folder)
    return folder / "results.jsonl"


@functools.cache
def small_llama() -> Any:
    with tempfile.TemporaryDirectory() as scratch:
        checkpoint(Path(scratch))
        return hw.load(scratch)


def read_extension(folder: Path) -> object:
    from headway.study import extension

    tokens = [number % 16 for number in range(40)]
    found = extension.measure(small_llama(), tokens, ["linear"], factor=2.0, out=folder, window=8)
    return found.markdown()


def vectors_rows(folder: Path) -> Path:
    shown = {"neighbours": {"cat": [["dog", 0.5]]}, "unseen": {"cats": {"reason": "no vector: it is new"}}}
    fact = {"value": 0.25, "used": 30, "pairs": 20}
    points = [[f"word{number}", "group", 0.5, float(number)] for number in range(9)]
    row = {"method": "glove", "seed": 0, "length": 32, "dim": 8, "wordsim353": fact, "simlex999": {"reason": "no pair"}}
    row |= {"analogies": fact, "own_group": 0.5, "known": 0.9, "nats_per_word": 4.5, "map": points, **shown}
    rows = [row, {"method": "learned", "seed": 0, "length": 32, "nats_per_word": 4.75}]
    write_lines(folder / "results.jsonl", rows)
    (folder / "settings.json").write_text(json.dumps({"lengths": [32]}))
    return folder / "results.jsonl"


def read_vectors_rows(folder: Path) -> object:
    from headway.study import word_vectors
    from headway.study.store import Store as Folder

    said = {"quick": False, "corpus": "a text", "sha256": "0" * 64, "documents": [9, 1]}
    said |= {"min_count": 1, "max_words": 9, "dim": 8}
    said |= {"small_text": {}, "layers": 1, "width": 8, "heads": 2, "predicted": 9, "steps": 2, "batch": 2}
    said |= {"length": 32, "learning_rate": 0.1, "misspelt": None, "unseen": "cats"}
    with Folder(folder, word_vectors.KEYS, word_vectors.ROW) as store:
        rows = [row for row in store.rows if row["length"] == 32]
        return word_vectors.Comparison(rows, said, ["glove", "learned"]).markdown()


def bench_rows(folder: Path) -> Path:
    kept = Path(__file__).parents[1] / "benchmarks" / "results" / "2026-11-22-bench.jsonl"
    lines = kept.read_text(encoding="utf-8").splitlines(keepends=True)
    (folder / "rows.jsonl").write_text("".join(lines[:400:25]), encoding="utf-8")
    return folder / "rows.jsonl"


def read_bench_rows(path: Path) -> object:
    from headway.bench import report, rows

    found = rows.read(path)
    return report.markdown(found, found[0]["where"], "headway bench") if found else None


def read_results(folder: Path) -> object:
    """The results of a comparison with all that is said of them."""
    from headway.study.tables import tables_of

    found = ComparisonResults.load(folder)
    return found.conclusions(), tables_of(found) if found.rows else None, found.protocol.text()


def resumed(folder: Path) -> object:
    """The folder of a comparison, as one that goes on uses it."""
    from headway.study.store import ROW
    from headway.study.store import Store as Folder

    with Folder(folder, kind=ROW) as store:
        store.agree({"steps": 2000, "lengths": [128, 256, 512, 1024]})
        store.agree_on_sources(["rope"])
        store.add_tried("rope", "0.004", {"bits_per_byte": 3.0, "peak_memory_bytes": 9})
        return store.has(("rope", 0)), store.equal_time_steps("lstm", 0, 9), store.tried("rope"), store.fact("new", int)


def comparison_folder(folder: Path) -> Path:
    found = {"steps": 2000, "lengths": [128, 256, 512, 1024], "sources": {}, "equal_time_steps": {"lstm, seed 0": 9}}
    found["learning_rates_tried"] = {"rope": {"0.002": {"bits_per_byte": 3.5, "peak_memory_bytes": 9}}}
    (folder / "settings.json").write_text(json.dumps({**found, "fit_seconds": {"a": 1.5}, "counted": {"2-gram": 3.5}}))
    return folder / "settings.json"


def of_a_comparison(path: Path) -> object:
    from headway.study.tokenization import Tokens

    found = Tokens.named(str(path), b"the cat")
    assert found.vocabulary < 1 << 31
    return found.encode(b"the cat sat")


def in_words(read: str) -> Callable[[Path], object]:
    """Reads a test set of word vectors with vectors that have some of its words."""

    def score(path: Path) -> object:
        words = ["cat", "dog", "man", "woman", "king", "queen", "Paris", "猫"]
        table = hw.vectors.Pretrained.of(words, torch.randn(8, 4, generator=torch.Generator().manual_seed(0)))
        return getattr(hw.vectors, read)(table, path)

    return score


PAIRS = "# words\ncat\tdog\t7.5\nman\twoman\t8\nking\tqueen\t8.25\ncat\tParis\t1\n猫\tcat\t9\n"
FOURS = ": family\nman woman king queen\nking queen man woman\n: other\ncat dog man woman\n"
GROUPS = "animals: cat, dog\n皇室：king、queen\nman woman\n"
MIXED = "A sentence, déjà vu.\n\n这是另一句话。\n\n"


def groups_of(path: Path) -> object:
    from headway.cli.vectors import _groups_of

    return _groups_of([], path)


def text_to_extend_on(path: Path) -> object:
    return text_files.read_text(path, f"--text {path}")


def documents_of(path: Path) -> object:
    from headway.study._word_vectors_text import read

    return read(path)


KINDS: dict[str, Kind] = {
    "safetensors": Kind(checkpoint, lambda path: hw.checkpoints.load(path.parent)),
    "config.json": Kind(config_of, lambda path: hw.checkpoints.load(path.parent)),
    "index.json": Kind(index_of, lambda path: hw.checkpoints.load(path.parent), (naming_others,)),
    "gguf": Kind(gguf_file, hw.checkpoints.load),
    "tokenizer.json": Kind(tokenizer_file, lambda path: hw.checkpoints.tokenizer(path.parent)),
    "headway's vectors": Kind(vectors_file("v.safetensors", None), hw.vectors.load),
    "word2vec text": Kind(vectors_file("v.vec", "word2vec"), hw.vectors.load),
    "word2vec binary": Kind(vectors_file("v.bin", "word2vec-binary"), hw.vectors.load),
    "GloVe text": Kind(vectors_file("v.txt", "glove"), hw.vectors.load),
    "fastText's .bin": Kind(fasttext_file, hw.vectors.load),
    "compressed vectors": Kind(vectors_file("v.vec.gz", "word2vec"), hw.vectors.load, (packed_again,), files=60),
    "vectors in bzip2": Kind(vectors_file("v.vec.bz2", "word2vec"), hw.vectors.load, files=40),
    "vectors in xz": Kind(vectors_file("v.vec.xz", "word2vec"), hw.vectors.load, files=40),
    "vectors in UTF-16": Kind(in_utf_16(vectors_file("v.txt", "glove")), hw.vectors.load, files=40),
    "BERT's vectors": Kind(vectors_folder("vectors.safetensors"), lambda path: read_vectors(path.parent)),
    "BERT's options": Kind(vectors_folder("vectors.json"), lambda path: read_vectors(path.parent)),
    "results.jsonl": Kind(results_file, lambda path: read_results(path.parent)),
    "settings.json": Kind(settings_file, lambda path: read_results(path.parent)),
    "resumed settings": Kind(comparison_folder, lambda path: resumed(path.parent), adds=(LOCK, "settings.json")),
    "resumed results": Kind(results_file, lambda path: resumed(path.parent), adds=(LOCK,)),
    "extension's results": Kind(
        extension_rows, lambda path: read_extension(path.parent), adds=(LOCK, "results.jsonl"), files=40
    ),
    "word vectors' results": Kind(vectors_rows, lambda path: read_vectors_rows(path.parent), adds=(LOCK,)),
    "benchmark's rows": Kind(bench_rows, read_bench_rows),
    "head log": Kind(head_log, read_log, files=80),
    "head effects": Kind(effects_file, read_effects, adds=("effects.jsonl",), files=60),
    "training checkpoint": Kind(
        training_checkpoint, lambda path: training(path, 3), (zipped_again,), adds=("model.pt",), files=80
    ),
    "BERT's training.json": Kind(bert_folder("training.json"), lambda path: bert(path.parent)),
    "BERT's tokenizer.json": Kind(
        bert_folder("tokenizer.json", ("config.json", "model.safetensors")),
        lambda path: bert(path.parent),
        adds=("config.json", "model.safetensors", "tokenizer.json", "training.jsonl", "training.pt"),
    ),
    "pytorch_model.bin": Kind(
        pickle_file,
        lambda path: hw.checkpoints.unpickle(path.parent),
        (zipped_again,),
        adds=("model.safetensors",),
        files=80,
    ),
    "chat template": Kind(template_file, lambda path: asked(path.parent), (with_a_hostile_part,), files=30),
    "tokenizer_config.json": Kind(
        tokenizer_settings, lambda path: asked(path.parent), (with_a_hostile_part,), files=40
    ),
    "special_tokens_map.json": Kind(special_tokens, lambda path: asked(path.parent), files=40),
    "generation_config.json": Kind(generation_file, lambda path: hw.checkpoints.stop_ids(path.parent)),
    "vocab.txt": Kind(vocabulary_file, lambda path: cut_into_tokens(path.parent)),
    "vocab.txt's settings": Kind(vocabulary_settings, lambda path: cut_into_tokens(path.parent)),
    "vocab.txt's added tokens": Kind(added_tokens, lambda path: cut_into_tokens(path.parent)),
    "GGUF's tokenizer": Kind(gguf_tokenizer, read_gguf_tokenizer, files=60),
    "comparison's tokenizer": Kind(tokenizer_file, of_a_comparison),
    "sub-words": Kind(tokenizer_file, lambda path: hw.vectors.SubWords.read(path)("the cat")),
    "word pairs": Kind(text_file("t.tsv", PAIRS), in_words("word_similarity")),
    "analogies": Kind(text_file("t.txt", FOURS), in_words("word_analogies")),
    "words of a map": Kind(text_file("t.txt", GROUPS), groups_of),
    "CoNLL-U": Kind(text_file("t.conllu", CONLLU), read_conllu),
    "CoNLL-2012": Kind(text_file("t.conll", CONLL2012), read_conll2012),
    "GAP": Kind(text_file("t.tsv", GAP), read_gap),
    "plain text": Kind(text_file("t.txt", MIXED * 9), read_text),
    "corpus": Kind(text_file("t.txt", MIXED * 9), read_corpus),
    "documents": Kind(text_file("t.txt", MIXED * 9), documents_of),
    "text to extend on": Kind(text_file("t.txt", MIXED * 9), text_to_extend_on),
}


def damaged(kind: str, seed: int, folder: Path) -> Path:
    """Writes a file of a kind into a folder, with the damage of a seed."""
    random = Random(f"{kind} {seed}")
    path = KINDS[kind].write(folder)
    content = path.read_bytes()
    own = KINDS[kind].damages
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        content = random.choice(own if own and random.random() < 0.5 else DAMAGES)(content, random)
    path.write_bytes(content)
    if random.random() < 0.02:
        random.choice(PLACES)(path)
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
        before = {path.name for path in folder.iterdir()}
        _conversation.SECONDS = 1  # a template without an end is not waited for as long as users wait
        try:
            with impatient(PATIENCE), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                KINDS[kind].read(path)
            said = "read"
        except HeadwayError as error:
            said = "refused" if str(error).strip() else "an error without a message"
        except (Exception, RecursionError) as error:
            said = f"{type(error).__name__}: {error}"
        added = {path.name for path in folder.iterdir()} ^ before
        if not added <= {*KINDS[kind].adds} or len(list(Path(scratch).iterdir())) != 1:
            return f"{said}, and it wrote files"
        return said


def limit_memory() -> None:
    """Limits the address space to what is in use and MEMORY."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, resource.RLIM_INFINITY))


def main(kind: str, first: int, seconds: float | None = None) -> dict[str, Any]:
    """Reads damaged files for some seconds, or as many as the tests do; the counts, and the faults by seed."""
    counts, faults, seed, begun = {"read": 0, "refused": 0}, {}, first, time.monotonic()
    while seed < first + KINDS[kind].files if seconds is None else time.monotonic() - begun < seconds:
        said = outcome(kind, seed)
        if said in counts:
            counts[said] += 1
        else:
            faults[seed] = said
        seed += 1
    return {"kind": kind, **counts, "faults": faults}


if __name__ == "__main__":
    torch.set_num_threads(1)
    kinds = sys.argv[1].split(",")
    for kind in kinds:
        with tempfile.TemporaryDirectory() as scratch:
            KINDS[kind].read(KINDS[kind].write(Path(scratch)))  # imports what it needs, and is right without damage
    limit_memory()
    for kind in kinds:
        print(json.dumps(main(kind, int(sys.argv[2]), *map(float, sys.argv[3:]))), flush=True)
