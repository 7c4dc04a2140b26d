"""
Sealed files of accounts: ``token export`` writes them, ``token import --key-file`` reads them.

No token is on disk in the clear.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import typer

from tidewarden.cli.connection import NodeLine
from tidewarden.cli.options import REFUSED, USAGE, stop
from tidewarden.cli.output import print_json
from tidewarden.config.sealed_file import (
    KEY_FILE_BYTES_MIN,
    PASSPHRASE_CHARS_MIN,
    Header,
    NotSealed,
    check_last,
    file_key,
    last_line,
    new_header,
    open_line,
    read_header,
)

from .progress import ProgressLine

PAGE = 500
BATCH_BYTES = 262_144


def export_sealed(
    file: Path,
    key_file: str,
    passphrase_env: str,
    provider: str,
    line_to_node: Callable[[], Any],
    as_json: bool,
) -> None:
    """Write all accounts, or a provider's, into a new file."""
    secret, kdf = _secret(key_file, passphrase_env)
    header = new_header(kdf)
    key = file_key(header, secret)
    aside = file.with_name(file.name + ".part")
    try:
        if file.exists():
            raise stop(f"{file} is there already", USAGE)
        descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    except OSError as error:
        raise stop(f"{file}: cannot be written: {error.strerror or error}", USAGE) from None
    try:
        with os.fdopen(descriptor, "wb") as out, line_to_node() as node:
            written, unreadable = _write(out, node, header, key, provider)
            out.flush()
            os.fsync(out.fileno())
        aside.rename(file)
    except OSError as error:
        raise stop(f"{file}: cannot be written: {error.strerror or error}", REFUSED) from None
    finally:
        aside.unlink(missing_ok=True)
    if as_json:
        print_json({"accounts": written, "unreadable": unreadable})
    else:
        typer.echo(f"{written:,} accounts written to {file}")
        for account in unreadable:
            typer.echo(f"tidewarden: {account} does not open here and was left out", err=True)
    if unreadable:
        raise typer.Exit(REFUSED)


def _write(
    out: BinaryIO, node: NodeLine, header: Header, key: bytes, provider: str
) -> tuple[int, list[str]]:
    """
    Write page by page; returns the count of accounts, and the names of those that do not open.

    Raises: OSError: not all is written.
    """
    written, unreadable, after = 0, list[str](), ""
    out.write(header.line().encode() + b"\n")
    with ProgressLine("exporting") as pace:
        while True:
            options = [
                word
                for pair in (("PROVIDER", provider), ("AFTER", after))
                if pair[1]
                for word in pair
            ]
            lines, after, bad = node.call(
                "T.EXPORT", key.hex(), header.id.hex(), written + 1, "COUNT", PAGE, *options
            )
            out.writelines(str(line).encode() + b"\n" for line in lines)
            written += len(lines)
            unreadable += bad
            pace.note(f"{written:,} written", written)
            if not after:
                break
    out.write(last_line(key, header.id, written) + b"\n")
    return written, unreadable


def import_sealed(
    file: str, key_file: str, passphrase_env: str, line_to_node: Callable[[], Any], as_json: bool
) -> None:
    """
    Import a sealed file.

    It is first read to its end, so that half a file imports nothing.
    """
    stored = unchanged = 0
    faults: list[tuple[int, str]] = []
    try:
        with open(file, "rb") as source:
            header = read_header(source.readline(4096))
            secret, kdf = _secret(key_file, passphrase_env)
            if kdf != header.kdf:
                wanted = "--key-file" if header.kdf == "hkdf" else "a passphrase"
                raise stop(f"{file}: was sealed with {wanted}", USAGE)
            key = file_key(header, secret)
            start = source.tell()
            accounts = _checked(source, key, header.id)
            source.seek(start)
            with (
                line_to_node() as node,
                ProgressLine("importing", os.fstat(source.fileno()).st_size) as pace,
            ):
                for first, lines in _batches(source, accounts):
                    answers = node.call("T.IMPORT", key.hex(), header.id.hex(), first, *lines)
                    for number, answer in enumerate(answers, first):
                        if isinstance(answer, int):
                            stored, unchanged = stored + answer, unchanged + 1 - answer
                        else:
                            faults.append((number + 1, str(answer)))
                    done = stored + unchanged + len(faults)
                    pace.note(
                        f"{done:,} of {accounts:,} done", done, sum(len(line) + 1 for line in lines)
                    )
    except OSError as error:
        raise stop(f"{file}: cannot be read: {error.strerror or error}", USAGE) from None
    except NotSealed as error:
        raise stop(f"{file}: {error}", USAGE) from None
    for number, reason in faults:
        if as_json:
            print_json({"line": number, "reason": reason})
        else:
            typer.echo(f"line {number}: {reason}", err=True)
    if as_json:
        print_json({"stored": stored, "unchanged": unchanged, "bad": len(faults)})
    else:
        typer.echo(
            f"{stored:,} accounts stored, {unchanged:,} were there, {len(faults):,} bad lines"
        )
    if faults:
        raise typer.Exit(REFUSED)


def _checked(source: Any, key: bytes, file_id: bytes) -> int:
    """
    Check every line of a file; returns how many accounts it holds.

    Raises: NotSealed: any of its lines does not open, or the last one is missing.
    """
    number, line = 0, b""
    for following in source:
        if line:
            number += 1
            open_line(key, file_id, number, line)
        line = following
    if not line:
        raise NotSealed("it was cut short: the line that ends it is missing")
    try:
        check_last(key, file_id, number + 1, line)
    except NotSealed:
        open_line(key, file_id, number + 1, line)  # Says so if it is damage.
        raise NotSealed("it was cut short: the line that ends it is missing") from None
    return number


def _batches(source: Any, accounts: int) -> Any:
    first, lines, size = 1, [], 0
    for number in range(1, accounts + 1):
        lines.append(source.readline().strip())
        size += len(lines[-1])
        if len(lines) == PAGE or size >= BATCH_BYTES:
            yield first, lines
            first, lines, size = number + 1, [], 0
    if lines:
        yield first, lines


def _secret(key_file: str, passphrase_env: str) -> tuple[bytes, str]:
    """Return what the key is made from, and how."""
    if key_file and passphrase_env:
        raise stop("--key-file and --passphrase-env: give one of them", USAGE)
    if key_file:
        try:
            content = Path(key_file).read_bytes()
        except OSError as error:
            raise stop(f"--key-file {key_file}: {error.strerror or error}", USAGE) from None
        if len(content) < KEY_FILE_BYTES_MIN:
            raise stop(
                f"--key-file {key_file}: has {len(content)} bytes; at least {KEY_FILE_BYTES_MIN}",
                USAGE,
            )
        return content, "hkdf"
    asked = typer.prompt("Passphrase", hide_input=True, err=True) if not passphrase_env else ""
    passphrase: str = asked or os.environ.get(passphrase_env, "")
    if len(passphrase) < PASSPHRASE_CHARS_MIN:
        raise stop(
            f"the passphrase has {len(passphrase)} characters; at least {PASSPHRASE_CHARS_MIN}",
            USAGE,
        )
    return passphrase.encode("utf-8", "surrogateescape"), "scrypt"
