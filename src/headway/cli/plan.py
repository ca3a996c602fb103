"""``headway plan``: computes what the attention of a long sequence costs on several processes."""

from __future__ import annotations

from typing import Annotated

import typer

from ._console import consoles, points, print_json
from ._options import Json, completing


def run(
    tokens: Annotated[str, typer.Option(help="Number of tokens in a sequence: a number, 32k or 1M (powers of 1,024).")],
    heads: Annotated[int, typer.Option(help="Number of query heads.")],
    head_dim: Annotated[int, typer.Option(help="Width of each head.")],
    ranks: Annotated[int, typer.Option(help="Number of processes that share the sequence.")],
    kv_heads: Annotated[int | None, typer.Option(help="Number of key heads. Default: that of --heads.")] = None,
    batch: Annotated[int, typer.Option(help="Number of sequences in a call.")] = 1,
    dtype: Annotated[
        str,
        typer.Option(
            help="bfloat16, float16, float32 or float64.",
            autocompletion=completing(lambda: ("bfloat16", "float16", "float32", "float64")),
        ),
    ] = "bfloat16",
    causal: Annotated[
        bool, typer.Option(help="Whether the mask is causal, with shards in zig-zag. Default: causal.")
    ] = True,
    reads_input: Annotated[
        bool,
        typer.Option(help="Whether the encoding reads the layer's input, as forgetting does. Default: it does not."),
    ] = False,
    flops: Annotated[
        str | None,
        typer.Option(
            help="Floating point operations per second that the kernel of a rank reaches, such as 400T; a100, h100 and "
            "h200 stand for the peaks that NVIDIA states. Default: none, and no speed of a link is computed.",
            autocompletion=completing(lambda: ("a100", "h100", "h200")),
        ),
    ] = None,
    link: Annotated[
        str | None,
        typer.Option(help="Bytes per second that a rank sends, such as 50G. Default: none, and no times are computed."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Compute what attention over several processes costs with each method: bytes, memory, and the link it needs.

    Nothing is run. The figures are for one layer, on the rank that sends the most.

    Examples:
        headway plan --tokens 1M --heads 32 --head-dim 128 --ranks 64
        headway plan --tokens 32k --heads 8 --head-dim 64 --ranks 8 --flops h100
    """
    from ..parallel import plan

    made = plan(
        tokens, heads=heads, head_dim=head_dim, ranks=ranks, kv_heads=kv_heads, batch=batch, dtype=dtype,
        causal=causal, reads_input=reads_input, flops=flops, link=link,
    )  # fmt: skip
    if as_json:
        print_json("plan", made.rows, notes=made.notes)
        return
    say, _ = consoles(as_json)
    say.print(made.table.rich())
    points(say, made.notes)
