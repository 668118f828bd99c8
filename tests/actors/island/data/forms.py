"""The same documents in every form that a data config reads, and a small tokenizer file."""

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import ipc
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from actors.config import DataConfig

TEXTS = (
    "Grüße aus Köln: eins, zwei.\n",
    "w1 w2 w3 " * 20,
    "日本語 w7 🎉 w8",
    'quotes " and \\ and\ttabs\r\nand lines\n',
    "w299",
)
FORMS = ("folder", "jsonl", "jsonl.gz", "parquet", "parquet folder", "hf", "hf splits")


def write(form: str, folder: Path, texts: Sequence[str] = TEXTS, **changes: Any) -> DataConfig:
    """Write ``texts`` under ``folder`` and give the config that reads them back."""
    folder.mkdir(parents=True, exist_ok=True)
    source, _, _ = form.replace(".", " ").partition(" ")
    fields: dict[str, Any] = {"source": source, "cache_dir": str(folder.parent / "cache")}
    match form:
        case "folder":
            for i, text in enumerate(texts):
                (folder / f"{i:03}.txt").write_bytes(text.encode())
            fields["folder"] = str(folder)
        case "jsonl" | "jsonl.gz":
            write_jsonl(folder / f"rows.{form}", texts)
            fields["path"] = str(folder / f"rows.{form}")
        case "parquet":
            write_parquet(folder / "rows.parquet", texts)
            fields["path"] = str(folder / "rows.parquet")
        case "parquet folder":
            write_parquet(folder / "b.parquet", texts[2:])
            (folder / "a").mkdir()
            write_parquet(folder / "a" / "rows.parquet", texts[:2])
            fields["path"] = str(folder)
        case "hf":
            write_dataset(folder / "set", texts)
            fields["path"] = str(folder / "set")
        case "hf splits":
            (folder / "dataset_dict.json").write_text(json.dumps({"splits": ["train", "test"]}))
            write_dataset(folder / "train", texts)
            write_dataset(folder / "test", ["of the test split"])
            fields |= {"path": str(folder), "split": "train"}
    return DataConfig(**(fields | changes))


def write_jsonl(path: Path, texts: Sequence[str]) -> None:
    lines = [json.dumps({"id": i, "text": text}) for i, text in enumerate(texts)]
    data = ("\n".join(lines) + "\n").encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


def write_parquet(path: Path, texts: Sequence[str]) -> None:
    """In row groups of two rows."""
    pq.write_table(table_of(texts), path, row_group_size=2)


def write_dataset(folder: Path, texts: Sequence[str]) -> None:
    """As ``datasets.Dataset.save_to_disk(folder, num_shards=2)`` leaves it."""
    folder.mkdir(parents=True)
    names = [f"data-{n:05d}-of-00002.arrow" for n in range(2)]
    half = (len(texts) + 1) // 2
    for name, part in zip(names, (texts[:half], texts[half:]), strict=True):
        write_stream(folder / name, table_of(part))
    state: dict[str, Any] = {
        "_data_files": [{"filename": name} for name in names],
        "_fingerprint": "0" * 16,
        "_format_columns": None,
        "_format_kwargs": {},
        "_format_type": None,
        "_output_all_columns": False,
        "_split": None,
    }
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text("{}")


def write_stream(path: Path, table: Any) -> None:
    """In batches of two rows."""
    with pa.OSFile(str(path), "wb") as sink, ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)


def table_of(texts: Sequence[str]) -> Any:
    ids = pa.array(range(len(texts)), pa.int64())
    return pa.table({"id": ids, "text": pa.array(list(texts), pa.string())})


def write_tokenizer(path: Path, *, words: int = 300, eos: tuple[str, ...] = ("</s>",)) -> Tokenizer:
    """Words w0, w1, ... and <unk>; its file asks for truncation and padding, as some do."""
    path.parent.mkdir(parents=True, exist_ok=True)
    vocab = {"<unk>": 0} | {f"w{i}": i + 1 for i in range(words)}
    tokenizer = Tokenizer(models.WordLevel(vocab=vocab, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in eos])
    plain = Tokenizer.from_str(tokenizer.to_str())
    tokenizer.enable_truncation(max_length=3)
    tokenizer.enable_padding(length=8, pad_id=0, pad_token="<unk>")
    tokenizer.save(str(path))
    return plain
