"""Text to token ids: a byte is a token, or a tokenizer.json of the user's.

No id is put before a text; one EOS id stands between two documents.
"""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import tokenizers

from actors.brief import in_words
from actors.config import FileTokenizerConfig, TokenizerConfig
from actors.island.data.document import Document
from actors.island.data.text import BYTE_VALUES, SEPARATOR

# What the usual tokenizers call the token that ends a document.
USUAL_EOS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "[EOS]")

Ids = npt.NDArray[np.integer[Any]]


class TextTokenizer(Protocol):
    """``fingerprint`` tells what the ids depend on besides the text."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def eos_id(self) -> int: ...

    @property
    def fingerprint(self) -> str: ...

    def encode(self, documents: Sequence[Document]) -> list[Ids]:
        """Ids of each text, without EOS."""


def load_tokenizer(config: TokenizerConfig) -> TextTokenizer:
    """ValueError says what the file lacks."""
    return FileTokenizer(config) if isinstance(config, FileTokenizerConfig) else ByteTokenizer()


class ByteTokenizer:
    """The UTF-8 bytes; EOS is NUL, which therefore no text may hold."""

    vocab_size = BYTE_VALUES
    eos_id = SEPARATOR[0]
    fingerprint = "bytes"

    def encode(self, documents: Sequence[Document]) -> list[Ids]:
        for document in documents:
            if "\0" in document.text:
                raise ValueError(
                    f"{document.where}: its text holds a NUL character, which ends a document "
                    "when bytes are tokens; leave it out, or give data.tokenizer a file"
                )
        return [np.frombuffer(d.text.encode("utf-8"), dtype=np.uint8) for d in documents]


class FileTokenizer:
    """A tokenizer.json; its truncation, padding and start tokens are not applied."""

    def __init__(self, config: FileTokenizerConfig) -> None:
        file = _tokenizer_file(config.path)
        content = file.read_bytes()
        self._tokenizer = _parsed(content, file)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        # Not the count: ids may have gaps, and a model needs a row for the highest.
        self.vocab_size = 1 + max(self._tokenizer.get_vocab(True).values(), default=-1)
        self.eos_id = _eos_id(self._tokenizer, file, config.eos_token)
        digest = hashlib.sha256(content).hexdigest()
        self.fingerprint = f"{digest} eos {self.eos_id} tokenizers {tokenizers.__version__}"

    def encode(self, documents: Sequence[Document]) -> list[Ids]:
        found = self._tokenizer.encode_batch_fast(
            [d.text for d in documents], add_special_tokens=False
        )
        return [np.array(encoding.ids, dtype=np.int64) for encoding in found]


def _tokenizer_file(path: str) -> Path:
    place = Path(path).expanduser().resolve()
    file = place / "tokenizer.json" if place.is_dir() else place
    if not file.is_file():
        raise ValueError(
            f"data.tokenizer.path={path!r}: {file} is not there; give a tokenizer.json, or a "
            "folder that holds one (save_pretrained of a fast tokenizer writes it)"
        )
    return file


def _parsed(content: bytes, file: Path) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer.from_buffer(content)
    except Exception as error:  # the package raises nothing narrower
        line = " ".join(str(error).split())
        raise ValueError(
            f"data.tokenizer.path: {file} is no tokenizer.json ({line}); save it again"
        ) from error


def _eos_id(tokenizer: tokenizers.Tokenizer, file: Path, named: str | None) -> int:
    """The one that the config names, else the folder, else the one of the usual that is there."""
    token = named if named is not None else _eos_of_folder(file.parent)
    if token is None:
        usual = [t for t in USUAL_EOS if tokenizer.token_to_id(t) is not None]
        if len(usual) != 1:
            raise ValueError(
                f"{file}: which token ends a document? {_candidates(tokenizer, usual)}; name one "
                "in data.tokenizer.eos_token"
            )
        token = usual[0]
    found = tokenizer.token_to_id(token)
    if found is None:
        raise ValueError(
            f"{file}: has no token {token!r} to end a document; {_candidates(tokenizer, [])}; name "
            "one in data.tokenizer.eos_token"
        )
    return found


def _candidates(tokenizer: tokenizers.Tokenizer, usual: list[str]) -> str:
    special = [t.content for t in tokenizer.get_added_tokens_decoder().values() if t.special]
    names = usual or special[:10]
    return f"it has {', '.join(names)}" if names else "it has no special tokens"


def _eos_of_folder(folder: Path) -> str | None:
    """``eos_token`` as save_pretrained writes it beside a tokenizer.json."""
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        try:
            found = json.loads((folder / name).read_text(encoding="utf-8"))
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            why = in_words(error)
            raise ValueError(
                f"{folder / name}: cannot be read ({why}); save the tokenizer again"
            ) from error
        token = found.get("eos_token") if isinstance(found, dict) else None
        if isinstance(token, dict):
            token = token.get("content")
        if isinstance(token, str):
            return token
    return None
