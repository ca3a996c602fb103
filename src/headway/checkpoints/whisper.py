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
from .bart import BART, rules, stack

SAMPLING_RATE, SECONDS = 16000, 30
WINDOW, HOP = 400, 160
"""The samples of one spectrum and the step between spectra: 25 and 10 ms."""


class Whisper(Family):
    """An encoder of spectra and a decoder of text, with norms before each part.

        model, tokenizer = headway.load("whisper-tiny.en"), checkpoints.tokenizer("whisper-tiny.en")
        spoken = models.generate(model, log_mel(samples), decoder_start=[50257, 50362], stop=50256)
        text = tokenizer.decode(spoken.ids[0])           # of .en models: 50257 start, 50362 no timestamps, 50256 end

    The input is log-mel features [batch, mels, frames], from which two convolutions compute a vector for every second
    frame. Positions: the encoder's are the sinusoids of ``Sinusoidal(width, variant="tensor2tensor")``, but the file
    stores them, rounded by up to 2.5·10⁻⁴. headway uses the stored numbers, as a table that is not trained. The
    decoder's positions are learned. Keys have no bias. The head is tied to the embeddings of the text. Features need no
    mask, since silence is encoded too.

    References:
        Radford et al. 2023.
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
    aliases = {**BART.aliases, "num_key_value_heads": "encoder_attention_heads"}
    ignored = {"proj_out.weight": Copy()}

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
    """Computes a vector for every second frame of the features of sound.

    y = gelu(second(gelu(first(features)))),   kernels of width 3, the second with stride 2
    """

    def __init__(self, mels: int, width: int) -> None:
        super().__init__()
        self.first = nn.Conv1d(mels, width, 3, padding=1)
        self.second = nn.Conv1d(width, width, 3, stride=2, padding=1)

    def forward(self, features: Tensor) -> Tensor:
        """Returns the vectors [batch, ⌈frames/2⌉, width] of features [batch, mels, frames]."""
        mels = self.first.in_channels
        if features.ndim != 3 or features.shape[1] != mels:
            raise HeadwayError(
                f"the features have shape {tuple(features.shape)}: give [batch, {mels}, frames], such as log_mel's"
            )
        features = features.to(self.first.weight.dtype)  # log_mel returns float32
        out: Tensor = F.gelu(self.second(F.gelu(self.first(features))))
        return out.transpose(1, 2)


def log_mel(samples: Tensor, sampling_rate: int = SAMPLING_RATE, *, num_mels: int = 80) -> Tensor:
    """The log-mel features of Whisper: the logarithm of the energy in each mel band, every 10 ms, for 30 s.

        P[f, t] = |Σₙ w(n)·x(160·t + n − 200)·e^(−2πi·f·n/400)|²,   w(n) = sin²(πn/400)
        y = log₁₀ max(M·P, 10⁻¹⁰),   features = (max(y, max y − 8) + 4)/4

    M are triangular filters of equal area on Slaney's mel scale, from 0 to 8000 Hz. Shorter sound is padded with
    silence to 30 s, and reflected at both ends.

    Args:
        samples: [n] or [batch, n], a tensor or anything that ``torch.as_tensor`` takes, from −1 to 1, at most 30 s.
        sampling_rate: the samples per second, which must be 16,000.
        num_mels: the number of mel bands: 80, or 128 for large-v3.

    Returns:
        The features, float32 [batch, num_mels, 3000].

    Raises:
        HeadwayError: if the sampling rate or the shape is wrong, the sound is longer, or num_mels is below 1.

    References:
        Radford et al. 2023, section 2.2; Slaney 1998 (the scale).
    """
    if sampling_rate != SAMPLING_RATE:
        raise HeadwayError(f"sampling_rate is {sampling_rate}: resample the sound to {SAMPLING_RATE} Hz")
    # in float64, since the energy of silence is below the rounding errors of float32
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
    """The triangular filter of each mel band over the frequencies of a spectrum, float64 [num_mels, 201].

    Bands are equally wide on the mel scale, which is linear up to 1000 Hz (15 mels) and logarithmic above (27 mels for
    each factor of 6.4). A triangle reaches from the centre of the band below to that of the band above, and its area
    over the frequencies in Hz is 1.
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
