"""What transformers computes with the published weights, so that tests need not ask it: writes golden.json.

    PYTHONPATH=tests python -m weights.golden [NAME …]

Numbers are of float32, eager attention and one thread, rounded to six decimals; of a vector, its first eight.
SmolLM2 also needs the packages `gguf` and `accelerate`.
"""

from __future__ import annotations

import json
import sys
import wave
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from . import WEIGHTS, folder, why_not

SENTENCES = ["A cat sleeps on the sofa.", "A kitten is napping on the couch.", "The stock markets fell sharply today."]
REACTIONS = ["CC(=O)Cl.NCc1ccccc1>>CC(=O)NCc1ccccc1", "CS.Fc1cccnc1F>>CSc1ncccc1F"]
MAPPING_HEAD = {"layer": 10, "head": 5}
PROMPT = "The capital of France is"
QUESTION = "Name the capital of France."
TEXT = (
    "A river begins in the hills, where rain that the ground cannot hold runs together into streams. On its way to the "
    "sea it carries sand and mud along, faster where it is steep and slower where it is wide; what it can no longer "
    "carry it lets fall. So in the plain it builds the very banks between which it flows, until one spring the water "
    "rises over them and finds another way."
)
PHONEMES = "ðə kˈæt sˈæt ɔnðə mˈæt."


def numbers(values: Tensor) -> Any:
    """The numbers of a tensor of up to two axes as lists, rounded."""
    found = values.tolist()
    if isinstance(found, float):
        return round(found, 6)
    return [[round(x, 6) for x in row] if isinstance(row, list) else round(row, 6) for row in found]


def sentences(name: str) -> dict[str, Any]:
    """Mean-pooled embeddings of three sentences padded to one length, and how similar they are.

    ``hidden`` are the last hidden states of each sentence's first token.
    """
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder(name))
    model = AutoModel.from_pretrained(folder(name), attn_implementation="eager").eval()
    given = tokenizer(SENTENCES, padding=True, return_tensors="pt")
    hidden = model(**given).last_hidden_state
    seen = given["attention_mask"][..., None]
    pooled = torch.nn.functional.normalize((hidden * seen).sum(1) / seen.sum(1), dim=-1)
    return {
        "sentences": SENTENCES,
        "ids": given["input_ids"].tolist(),
        "mask": given["attention_mask"].tolist(),
        "similarity": numbers(pooled @ pooled.T),
        "embeddings": numbers(pooled[:, :8]),
        "hidden": numbers(hidden[:, 0, :8]),
    }


def rxnmapper(name: str) -> dict[str, Any]:
    """On reactions: where one head looks, of all tokens up to the arrow, from each atom of the product.

    ``logits`` are those of the last atom; ``masked`` says what the model guesses where a mask stands for that atom.
    """
    from transformers import AutoModelForMaskedLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder(name))
    model = AutoModelForMaskedLM.from_pretrained(folder(name), attn_implementation="eager").eval()
    facts = {}
    for reaction in REACTIONS:
        given = tokenizer(reaction, return_tensors="pt")
        ids = given["input_ids"]
        tokens = tokenizer.convert_ids_to_tokens(ids[0])
        out = model(**given, output_attentions=True)
        arrow = tokens.index(">>")
        atoms = [i for i, token in enumerate(tokens[:-1]) if i > arrow and token.isalpha()]
        weights, looks_at = out.attentions[MAPPING_HEAD["layer"]][0, MAPPING_HEAD["head"], atoms, :arrow].max(-1)
        masked = ids.clone()
        masked[0, atoms[-1]] = tokenizer.mask_token_id
        top = model(masked).logits[0, atoms[-1]].topk(5)
        facts[reaction] = {
            "ids": ids[0].tolist(),
            "tokens": tokens,
            "atoms": atoms,
            "looks_at": looks_at.tolist(),
            "weights": numbers(weights),
            "logits": numbers(out.logits[0, atoms[-1], :8]),
            "mean_square": numbers(out.logits.square().mean()),
            "masked": {"ids": masked[0].tolist(), "top": top.indices.tolist(), "logits": numbers(top.values)},
        }
    return {"mapping_head": MAPPING_HEAD, "reactions": facts}


def smollm2(name: str) -> dict[str, Any]:
    """Twenty tokens that greedily follow a prompt, how well a text is foretold, and an answer in a conversation.

    ``margin`` is the least by which a token that was taken led the second; ``hidden`` the prompt's last hidden state,
    normalized; ``text_loss`` the mean of −ln p over all tokens but the first.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    (file,) = folder(name).glob("*.gguf")
    tokenizer = AutoTokenizer.from_pretrained(folder(name), gguf_file=file.name)
    model = AutoModelForCausalLM.from_pretrained(
        folder(name), gguf_file=file.name, dtype=torch.float32, attn_implementation="eager"
    ).eval()

    def follow(ids: Tensor, most: int) -> tuple[list[int], Tensor]:
        said, margins = ids, []
        while said.shape[1] < ids.shape[1] + most and said[0, -1] != tokenizer.eos_token_id:
            best = model(said).logits[0, -1].topk(2)
            margins.append(best.values[0] - best.values[1])
            said = torch.cat([said, best.indices[None, :1]], dim=1)
        return said[0, ids.shape[1] :].tolist(), torch.stack(margins).min()

    ids, text = (tokenizer(words, return_tensors="pt")["input_ids"] for words in (PROMPT, TEXT))
    asked = tokenizer.apply_chat_template([{"role": "user", "content": QUESTION}], add_generation_prompt=True,
                                          return_dict=True, return_tensors="pt")["input_ids"]  # fmt: skip
    out = model(ids, output_hidden_states=True)
    top = out.logits[0, -1].topk(5)
    greedy, margin = follow(ids, 20)
    answer, answer_margin = follow(asked, 20)
    return {
        "end": tokenizer.eos_token_id,
        "prompt": PROMPT,
        "ids": ids[0].tolist(),
        "greedy": greedy,
        "greedy_text": tokenizer.decode(greedy),
        "margin": numbers(margin),
        "top": top.indices.tolist(),
        "logits": numbers(top.values),
        "hidden": numbers(out.hidden_states[-1][0, -1, :8]),
        "text": TEXT,
        "text_ids": text[0].tolist(),
        "text_loss": numbers(model(text, labels=text).loss),
        "question": QUESTION,
        "question_ids": asked[0].tolist(),
        "answer": answer,
        "answer_text": tokenizer.decode(answer, skip_special_tokens=True),
        "answer_margin": numbers(answer_margin),
    }


def piper(name: str) -> dict[str, Any]:
    """The text encoder on a sentence of phonemes, behind each of them an empty one, as the voice was trained.

    ``hidden``, ``means`` and ``log_variances`` are rows of ``tokens``; ``weights`` those of one head's attention from
    one token to its neighbours.
    """
    from safetensors.torch import load_file
    from transformers import VitsConfig
    from transformers.models.vits.modeling_vits import VitsTextEncoder

    voice = json.loads((folder(name) / "en_US-joe-medium.onnx.json").read_text(encoding="utf-8"))["phoneme_id_map"]
    apart = [number for phoneme in PHONEMES for number in [*voice[phoneme], *voice["_"]]]
    ids = torch.tensor([[*voice["^"], *voice["_"], *apart, *voice["$"]]])
    encoder = VitsTextEncoder(VitsConfig.from_pretrained(folder(name))).eval()
    tensors = load_file(folder(name) / "model.safetensors")
    encoder.load_state_dict({key.removeprefix("text_encoder."): value for key, value in tensors.items()}, strict=True)
    out = encoder(ids, padding_mask=torch.ones(*ids.shape, 1), output_attentions=True)
    tokens, keys = [0, 20, ids.shape[1] - 1], list(range(14, 27))
    return {
        "phonemes": PHONEMES,
        "ids": ids[0].tolist(),
        "tokens": tokens,
        "hidden": numbers(out.last_hidden_state[0, tokens, :8]),
        "means": numbers(out.prior_means[0, tokens, :8]),
        "log_variances": numbers(out.prior_log_variances[0, tokens, :8]),
        "mean_square": numbers(out.last_hidden_state.square().mean()),
        "attention": {"layer": 2, "head": 1, "query": 20, "keys": keys,
                      "weights": numbers(out.attentions[2][0, 1, 20, keys])},
    }  # fmt: skip


def whisper(name: str) -> dict[str, Any]:
    """The transcript of ten seconds of Beckett, greedily, with what is never said left out.

    ``mel`` are the spectrogram's ``bands`` at ``frames``; ``heard`` the encoder's rows at ``seconds`` · 50; ``logits``
    the largest after ``start``, nothing left out; ``margin`` the least by which a token taken led the second.
    """
    from transformers import AutoTokenizer, WhisperFeatureExtractor, WhisperForConditionalGeneration

    with wave.open(str(folder("audio") / "beckett.wav")) as file:
        rate = file.getframerate()
        sound = torch.frombuffer(bytearray(file.readframes(file.getnframes())), dtype=torch.int16) / 32768
    model = WhisperForConditionalGeneration.from_pretrained(
        folder(name), dtype=torch.float32, attn_implementation="eager"
    ).eval()
    rules = model.generation_config
    extractor = WhisperFeatureExtractor.from_pretrained(folder(name))
    mel = extractor(sound.numpy(), sampling_rate=rate, return_tensors="pt").input_features
    heard = model.model.encoder(mel).last_hidden_state
    start = [rules.decoder_start_token_id, rules.no_timestamps_token_id]
    said, margins, top = list(start), [], None
    while said[-1] != rules.eos_token_id and len(said) < 100:
        logits = model(encoder_outputs=(heard,), decoder_input_ids=torch.tensor([said])).logits[0, -1]
        top = logits.topk(5) if top is None else top
        logits[rules.suppress_tokens] = -torch.inf
        if len(said) == len(start):
            logits[rules.begin_suppress_tokens] = -torch.inf
        best = logits.topk(2)
        margins.append(best.values[0] - best.values[1])
        said.append(int(best.indices[0]))
    bands, frames, seconds = [0, 10, 79], [0, 100, 500], [0, 2, 29]
    return {
        "sound": "beckett.wav",
        "rate": rate,
        "samples": len(sound),
        "bands": bands,
        "frames": frames,
        "mel": numbers(mel[0][bands][:, frames]),
        "mel_mean": numbers(mel.mean()),
        "seconds": seconds,
        "heard": numbers(heard[0, [50 * second for second in seconds], :8]),
        "start": start,
        "end": rules.eos_token_id,
        "top": top.indices.tolist(),
        "logits": numbers(top.values),
        "greedy": said[len(start) :],
        "margin": numbers(torch.stack(margins).min()),
        "transcript": AutoTokenizer.from_pretrained(folder(name)).decode(said, skip_special_tokens=True).strip(),
    }


FACTS: dict[str, Callable[[str], dict[str, Any]]] = {
    "rxnmapper": rxnmapper,
    "minilm": sentences,
    "smollm2": smollm2,
    "piper": piper,
    "whisper": whisper,
    "mpnet": sentences,
}
NEEDS = {"whisper": ["whisper", "audio"]}
"""The weights that the facts of a name are computed with, where they are not its own alone."""


def compute(name: str) -> dict[str, Any]:
    """The facts of this name, from the weights that lie here."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.no_grad():
            return FACTS[name](name)
    finally:
        torch.set_num_threads(threads)


def main(names: list[str]) -> None:
    path = Path(__file__).with_name("golden.json")
    facts = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    for name in names or FACTS:
        missing = [reason for need in NEEDS.get(name, [name]) if (reason := why_not(need))]
        if missing:
            print(f"{name} stays as it was: {missing[0]}")
        else:
            facts[name] = compute(name)
            print(f"{name} is written")
    path.write_text(lines({name: facts[name] for name in WEIGHTS if name in facts}) + "\n", encoding="utf-8")


def lines(facts: Any, indent: str = "") -> str:
    """JSON with a line for each entry of a dictionary, and lists on one line."""
    if not isinstance(facts, dict):
        return json.dumps(facts, ensure_ascii=False)
    inner = indent + " "
    entries = [f"{inner}{json.dumps(key)}: {lines(value, inner)}" for key, value in facts.items()]
    return "{\n" + ",\n".join(entries) + f"\n{indent}}}"


if __name__ == "__main__":
    main(sys.argv[1:])
