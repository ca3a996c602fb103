"""A check that all processes make the same call, by one small exchange."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping

import torch

from ..errors import HeadwayError
from ._group import Group, of_others

BYTES = 4096
"""The size of the message of each rank."""
SHOWN = 160
"""The most letters of a value in it; a longer one has a checksum of all of it."""


def agree(group: Group, facts: Mapping[str, object]) -> None:
    """Checks that the ranks of a group agree on a call.

    If sizes differed, the process would end or numbers would be mixed up. Ranks with different encodings would merge
    results that do not belong together, and ranks with different methods would wait for one another. On a CPU each call
    is checked, which takes 16 bytes. On a GPU, reading them would mean waiting for the device, so only the first call
    of each kind is checked.

    Args:
        group: the processes.
        facts: the facts that must be the same on every rank, by name.

    Raises:
        HeadwayError: on every rank, if one fact differs. The message names the ranks and the values.
    """
    if group.size == 1:
        return
    group.begin()
    said = {name: _short(str(value)) for name, value in facts.items()}
    if group.device is None:
        said["the number of exchanges so far"] = str(group.exchanges)
    message = json.dumps(said, ensure_ascii=True).encode()
    signature = zlib.crc32(message), zlib.adler32(message)
    sent = group.sent
    if group.device is None:
        own = torch.tensor(signature)
        if all(torch.equal(x, own) for x in group.all_of(own)):
            group.sent = sent
            group.agreed_on_call()
            return
    elif signature in group.agreed:
        return
    if len(message) > BYTES:
        said = {name: _short(value, 40) for name, value in said.items()}
        message = json.dumps(said, ensure_ascii=True).encode()
    own = torch.zeros(BYTES, dtype=torch.uint8)
    own[: len(message)] = torch.frombuffer(bytearray(message), dtype=torch.uint8)
    own = own if group.device is None else own.to(group.device)
    each = [json.loads(bytes(x.cpu().tolist()).rstrip(b"\0")) for x in group.all_of(own)]
    group.sent = sent
    for name in dict.fromkeys(name for one in each for name in one):
        values = [one.get(name, "nothing") for one in each]
        if len(set(values)) > 1:
            by_value: dict[str, list[int]] = {}
            for rank, value in enumerate(values):
                by_value.setdefault(value, []).append(rank)
            shown = "; ".join(f"{value} on rank {', '.join(map(str, ranks))}" for value, ranks in by_value.items())
            told = group.told()
            raise of_others(
                HeadwayError(
                    f"the processes of a sequence disagree on {name}: {shown}: give all of them the same"
                    f"{told and '; '}{told}"
                )
            )
    group.agreed.add(signature)
    group.agreed_on_call()


def _short(text: str, most: int = SHOWN) -> str:
    return text if len(text) <= most else f"{text[: most - 12]}… ({zlib.crc32(text.encode()):08x})"
