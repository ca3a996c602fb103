"""Tries an installed headway: its library is there and computes what torch does. It needs torch alone."""

import sys

import torch

import headway as hw


def main() -> None:
    """Prints what was tried.

    Raises:
        SystemExit: if the library is missing or computes other numbers.
    """
    q, k, v = (torch.randn(2, 8, 100, 64) for _ in range(3))
    rope, mask = hw.encoding("rope", head_dim=64), hw.masks.Causal()
    explained = hw.explain(q, k, v, encoding=rope, mask=mask, kernel="cpu")
    if explained.reasons["cpu"]:
        sys.exit(f"the library cannot be used: {'; '.join(explained.reasons['cpu'])}")
    out, expected = (hw.attention(q, k, v, encoding=rope, mask=mask, kernel=name) for name in ("cpu", "reference"))
    if not torch.allclose(out, expected, atol=1e-5):
        sys.exit(f"the library computes other numbers: they differ by {(out - expected).abs().max().item():.2g}")
    print(f"headway {hw.__version__} at {hw.__path__[0]}: its library computes attention")


if __name__ == "__main__":
    main()
