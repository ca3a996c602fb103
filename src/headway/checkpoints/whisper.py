"""Whisper: from speech to text."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import HeadwayError
from ..models import EncoderDecoder
from ..nn import Embedding, Head
from ..positions import Learned
from ._base import Config, Family
from ._left_out import Copy
from ._rules import Rule
from .bart import rules, stack

SAMPLING_RATE, SECONDS = 16000, 30
WINDOW, HOP = 400, 160
"""Samples of which a spectrum is made, and from one spectrum to the next: 25 and 10 ms."""


class Whisper(Family):
    """An encoder of spectra and a decoder of text, with norms before each part.

        model, tokenizer = headway.load("whisper-tiny.en"), checkpoints.tokenizer("whisper-tiny.en")
        spoken = models.generate(model, log_mel(samples), decoder_start=[50257, 50362], stop=50256)
        text = tokenizer.decode(spoken.ids[0])           # 50257: start; 50362: no times; 50256: end, of .en models

    The source are log-mel features [batch, mels, frames], of which two convolutions make a vector for every second
    frame. Positions: the encoder's are sinusoids, those of ``Sinusoidal(width, variant="tensor2tensor")``, but stored,
    and rounded by up to 2.5·10⁻⁴: the numbers are taken as they are, as a table that is not learned. The decoder's are
    learned. Keys have no bias. The head is the embeddings of the text. Features need no mask: silence is heard.
    Cite: Radford et al. 2023.
    """

    architectures = {"WhisperModel": False, "WhisperForConditionalGeneration": True}
    examples = tuple(
        {
            "architectures": [architecture],
            "model_type": "whisper",
            "vocab_size": 40,
            "num_mel_bins": 8,
            "d_model": 32,
            "encoder_layers": 3,
            "encoder_attention_heads": 4,
            "encoder_ffn_dim": 48,
            "decoder_layers": 2,
            "decoder_attention_heads": 2,
            "decoder_ffn_dim": 56,
            "max_source_positions": 16,
            "max_target_positions": 24,
            "decoder_start_token_id": 1,
            "bos_token_id": 2,
            "eos_token_id": 2,
            "pad_token_id": 2,
            "begin_suppress_tokens": None,
        }
        for architecture in ("WhisperForConditionalGeneration", "WhisperModel")
    )
    prefix = "model."
    ignored = {
        "proj_out.weight": Copy(),
    }

    def build(self, config: Config, *, head: bool) -> nn.Module:
        config.only("scale_embedding", False)
        config.only("tie_word_embeddings", True)
        width, vocab_size = config["d_model"], config["vocab_size"]
        sinusoids = Learned(config.get("max_source_positions", 1500), width).requires_grad_(False)
        encoder, decoder = (
            stack(config, side, encoding, norm_first=True, bias="qvo", dropout=0.0, norm=nn.LayerNorm(width))
            for side, encoding in (
                ("encoder", sinusoids),
                ("decoder", Learned(config.get("max_target_positions", 448), width)),
            )
        )
        return EncoderDecoder.of_parts(
            Embedding(vocab_size, width),
            encoder,
            decoder,
            Head(width, vocab_size, tied=True) if head else None,
            source_embedding=Convolutions(config.get("num_mel_bins", 80), width),
        )

    def body(self, config: Config) -> tuple[Rule, ...]:
        return (
            Rule("decoder.embed_tokens.weight", "embedding.weight"),
            Rule("encoder.conv1", "source_embedding.first"),
            Rule("encoder.conv2", "source_embedding.second"),
            *(
                rule
                for side in ("encoder", "decoder")
                for rule in (
                    Rule(f"{side}.embed_positions.weight", f"{side}.encodings.0.table"),
                    *rules(side),
                    Rule(f"{side}.layer_norm", f"{side}.norm"),
                )
            ),
        )


class Convolutions(nn.Module):
    """Features of sound into vectors, half as many as there are frames.

        y = gelu(second(gelu(first(features)))),   both of width 3, the second by steps of 2

    Shapes: features [batch, mels, frames] → [batch, ⌈frames/2⌉, width].
    Raises HeadwayError for features of another shape.
    """

    def __init__(self, mels: int, width: int) -> None:
        super().__init__()
        self.first = nn.Conv1d(mels, width, 3, padding=1)
        self.second = nn.Conv1d(width, width, 3, stride=2, padding=1)

    def forward(self, features: Tensor) -> Tensor:
        """features [batch, mels, frames] → [batch, ⌈frames/2⌉, width]"""
        mels = self.first.in_channels
        if features.ndim != 3 or features.shape[1] != mels:
            raise HeadwayError(
                f"the features have shape {tuple(features.shape)}: give [batch, {mels}, frames], such as log_mel makes"
            )
        features = features.to(self.first.weight.dtype)  # they are made in float32
        out: Tensor = F.gelu(self.second(F.gelu(self.first(features))))
        return out.transpose(1, 2)


def log_mel(samples: Tensor, sampling_rate: int = SAMPLING_RATE, *, num_mels: int = 80) -> Tensor:
    """Sound as Whisper hears it: the logarithm of the energy in each band of pitch, every 10 ms, in 30 s.

        P[f, t] = |Σₙ w(n)·x(160·t + n − 200)·e^(−2πi·f·n/400)|²,   w(n) = sin²(πn/400)
        y = log₁₀ max(M·P, 10⁻¹⁰),   features = (max(y, max y − 8) + 4)/4

    M are triangles on Slaney's scale of pitch from 0 to 8000 Hz, each of the same area. Sound that is shorter is filled
    up with silence; at both ends it is mirrored.

    Shapes: samples [n] or [batch, n], a tensor or what torch makes one of, −1 … 1, at 16 kHz, at most 30 s →
    [batch, num_mels, 3000], float32. num_mels is 80, and 128 for large-v3.
    Raises HeadwayError for another sampling rate, another shape, and sound that is longer.
    Cite: Radford et al. 2023, section 2.2; Slaney 1998 (the scale).
    """
    if sampling_rate != SAMPLING_RATE:
        raise HeadwayError(f"sampling_rate is {sampling_rate}: resample the sound to {SAMPLING_RATE} Hz")
    # in float64: silence is below what float32 adds up to
    x = torch.as_tensor(samples).to(torch.float64)
    full = SAMPLING_RATE * SECONDS
    if x.ndim not in (1, 2) or not 0 < x.shape[-1] <= full:
        raise HeadwayError(
            f"samples have shape {tuple(x.shape)}: give [n] or [batch, n] with n from 1 to {full}, which is {SECONDS} s"
        )
    x = F.pad(torch.atleast_2d(x), (0, full - x.shape[-1]))
    window = torch.hann_window(WINDOW, dtype=x.dtype, device=x.device)
    spectra = torch.stft(x, WINDOW, HOP, window=window, return_complex=True)[..., :-1]
    power = spectra.real.square() + spectra.imag.square()
    y = (mel_filters(num_mels).to(x.device) @ power).clamp(min=1e-10).log10()
    y = y.maximum(y.amax((1, 2), keepdim=True) - 8)
    return ((y + 4) / 4).float()


def mel_filters(num_mels: int) -> Tensor:
    """A triangle for each band over the frequencies of a spectrum, float64 [num_mels, 201].

    Bands are as wide as their pitch is: pitch rises with the frequency up to 1000 Hz and with its logarithm above, 15
    of its units up to there and 27 for each factor of 6.4. A triangle reaches from the middle of the band below to that
    above, and its area over the frequencies in Hz is 1.
    Raises HeadwayError for fewer than one band.
    """
    if num_mels < 1:
        raise HeadwayError(f"num_mels is {num_mels}: give at least 1")
    end = SAMPLING_RATE / 2
    step = torch.log(torch.tensor(6.4, dtype=torch.float64)) / 27
    top = 15 + torch.log(torch.tensor(end / 1000, dtype=torch.float64)) / step
    pitch = torch.linspace(0, 1, num_mels + 2, dtype=torch.float64) * top
    hertz = torch.where(pitch < 15, pitch * 200 / 3, 1000 * torch.exp((pitch - 15) * step))
    low, middle, high = hertz[:-2, None], hertz[1:-1, None], hertz[2:, None]
    frequency = torch.linspace(0, end, WINDOW // 2 + 1, dtype=torch.float64)
    rising, falling = (frequency - low) / (middle - low), (high - frequency) / (high - middle)
    return rising.minimum(falling).clamp(min=0) * (2 / (high - low))
