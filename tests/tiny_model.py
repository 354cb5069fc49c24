"""A tiny random Llama with a small tokenizer and a chat template, written as a real MLX model directory.

For tests that need a model but no download: `write_tiny_model(folder)` takes well under a second. The tokenizer is of
the same make as SmolLM2's (single digits, byte level BPE, ChatML), so prompts behave alike, only with more tokens.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

CORPUS = """
The harbour was quiet in the early morning, and the first boats had not yet come back from the night.
She wrote the number on a slip of paper, folded it twice, and put it into the drawer of the old desk.
In spring the river rises above the meadow, so that the farmers bring their sheep to the higher fields.
What is the secret number mentioned in the text? The secret number is 4821. Answer with the number only.
Which city did the letter come from? The letter came from the city of Lisbon. Answer with the city only.
He walked along the narrow street, past the baker and the small shop where they used to sell tea and coffee.
A long winter had passed; the roof of the barn needed new boards, and there was no money to pay for them.
The teacher explained that every answer must be found in the text above, and that nothing else would count.
They planned to travel by train, since the road over the mountain was still closed because of the snow.
At noon the market filled with people from the villages, who sold apples, cheese, candles, cloth and bread.
It is not known who built the bridge, but the stones are older than the church that stands beside it.
The captain kept a record of the weather: wind from the west, light rain, then a clear and cold evening.
Read the text below and remember the important fact, for there will be a question about it at the end.
"""


def write_tiny_model(
    folder: Path,
    seed: int = 0,
    *,
    layers: int = 2,
    hidden: int = 64,
    heads: int = 4,
    kv_heads: int = 2,
    vocabulary: int = 600,
    context: int = 8192,
    tied: bool = True,
    scale: float = 0.08,
    corpus: str = CORPUS,
) -> Path:
    """Write config.json, tokenizer.json, tokenizer_config.json and model.safetensors (float16) and return `folder`.

    Equal arguments give equal bytes. `vocabulary` is the size aimed at; a small corpus may give less.
    """
    folder.mkdir(parents=True, exist_ok=True)
    size = write_tiny_tokenizer(folder, vocabulary=vocabulary, corpus=corpus)
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": hidden // heads,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "vocab_size": size,
        "max_position_embeddings": context,
        "tie_word_embeddings": tied,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    save_file(_weights(config, seed, scale), folder / "model.safetensors", metadata={"format": "mlx"})
    return folder


def write_tiny_tokenizer(folder: Path, *, vocabulary: int = 600, corpus: str = CORPUS) -> int:
    """Write tokenizer.json and tokenizer_config.json with a chat template; return the number of tokens."""
    tokenizer = Tokenizer(BPE())
    digits = pre_tokenizers.Digits(individual_digits=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(SPECIALS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus.splitlines(), trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIALS[1],
        "eos_token": SPECIALS[2],
        "pad_token": SPECIALS[2],
        "unk_token": SPECIALS[0],
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1))
    return int(tokenizer.get_vocab_size())


def _weights(config: dict[str, Any], seed: int, scale: float) -> dict[str, np.ndarray[Any, np.dtype[np.float16]]]:
    random = np.random.default_rng(seed)
    hidden, mlp = config["hidden_size"], config["intermediate_size"]
    queries = config["num_attention_heads"] * config["head_dim"]
    keys = config["num_key_value_heads"] * config["head_dim"]

    def matrix(rows: int, columns: int) -> np.ndarray[Any, np.dtype[np.float16]]:
        return (scale * random.standard_normal((rows, columns))).astype(np.float16)

    weights = {"model.embed_tokens.weight": matrix(config["vocab_size"], hidden)}
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        weights[prefix + "self_attn.q_proj.weight"] = matrix(queries, hidden)
        weights[prefix + "self_attn.k_proj.weight"] = matrix(keys, hidden)
        weights[prefix + "self_attn.v_proj.weight"] = matrix(keys, hidden)
        weights[prefix + "self_attn.o_proj.weight"] = matrix(hidden, queries)
        weights[prefix + "mlp.gate_proj.weight"] = matrix(mlp, hidden)
        weights[prefix + "mlp.up_proj.weight"] = matrix(mlp, hidden)
        weights[prefix + "mlp.down_proj.weight"] = matrix(hidden, mlp)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            weights[f"{prefix}{norm}.weight"] = np.ones(hidden, np.float16)
    weights["model.norm.weight"] = np.ones(hidden, np.float16)
    if not config["tie_word_embeddings"]:
        weights["lm_head.weight"] = matrix(config["vocab_size"], hidden)
    return weights
