"""Make smollm2.json and smollm2-logits.npz with readers that are not ours: PyTorch and transformers on the GGUF file.

Not a test, and not run by any: README.md beside it says how to run it and what it needs.

    python make_smollm2_reference.py FOLDER_OF_THE_GGUF
"""

import json
import sys
from pathlib import Path

import numpy as np
import regex
import tokenizers
import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer

GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
HERE = Path(__file__).resolve().parent

TEXTS = [
    "Hello, world!",
    "The capital of France is",
    "The secret number is 4821.",
    "1234567890",
    "12 345 6.78e-9 0x1F, 3rd of 20",
    "Call +44 20 7946 0958 before 09:30 on 2024-02-29.",
    "\u00b2\u00b3 \u00bd \u0664\u0665 \u2167 x1y22z333",
    "na\u00efve caf\u00e9 Stra\u00dfe \u0141\u00f3d\u017a",
    "\u4f60\u597d\uff0c\u4e16\u754c\u3002 \u3053\u3093\u306b\u3061\u306f",
    "\U0001f642 \U0001f468\u200d\U0001f469\u200d\U0001f467 flag \U0001f1eb\U0001f1f7",
    "   leading and   inner spaces  ",
    "\ttab\tseparated\r\nWindows line\n\n\nthree newlines \n ",
    "I'm sure they'll say it's John's, won't they? WE'RE HERE",
    "def f(x: int) -> int:\n    return x**2 + 1  # comment\n",
    '{"key": [1, 2, {"a": null}], "b": "c\\\\d"}',
    "https://example.org/path?query=1&other=two#part",
    "<|im_start|>user\nHi<|im_end|>\n<|endoftext|> <|im_start|x <file_sep><jupyter_code>",
    "Pneumonoultramicroscopicsilicovolcanoconiosis antidisestablishmentarianism",
    "\u0645\u0631\u062d\u0628\u0627 \u0939\u093f\u0928\u094d\u0926\u0940 \u0440\u0443\u0441\u0441\u043a\u0438\u0439",
    "e\u0301 versus \u00e9; zero\u200bwidth; non\u00a0breaking",
    "",
    " ",
]

CHATS = [
    [{"role": "user", "content": "What is the capital of France?"}],
    [
        {"role": "system", "content": "Answer in one word."},
        {"role": "user", "content": "What colour is the sky?"},
        {"role": "assistant", "content": "Blue."},
        {"role": "user", "content": "And the grass?"},
    ],
    [
        {
            "role": "user",
            "content": "Remember this: the secret number is 4821. The market was full, the ships came in, and nobody "
            "spoke of anything else that day. What is the secret number? Answer with the number only.",
        }
    ],
]

PLAIN = ["The capital of France is", "Once upon a time there was a small"]
NEW_TOKENS = 24
TOP, SPREAD = 200, 500


def encode(tokenizer, text: str) -> list[int]:
    """Encode as llama.cpp does for the pre-tokenizer `smollm`: each numeric character alone, then GPT-2's expression.

    transformers reads GPT-2's part only from a GGUF file; the first split is made here, with the expression that
    llama.cpp has (src/llama-vocab.cpp, LLAMA_VOCAB_PRE_TYPE_SMOLLM). Without it only numerals beyond ASCII differ.
    """
    specials = "|".join(regex.escape(token) for token in tokenizer.get_added_vocab())
    pieces = [piece for part in regex.split(f"({specials})", text) for piece in regex.split(r"(\p{N})", part)]
    ids = [index for piece in pieces if piece for index in tokenizer.encode(piece)]
    if ids != tokenizer.encode(text):
        print("differs without the first split:", repr(text))
    return ids


def main(folder: str) -> None:
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=GGUF)
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=GGUF, dtype=torch.float32)
    model.eval()
    prompts = [tokenizer.encode(text) for text in PLAIN]
    prompts += [
        tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=True)["input_ids"] for chat in CHATS
    ]
    # The same evenly spread positions for every prompt, and those of the largest logits.
    spread = np.arange(0, model.config.vocab_size, model.config.vocab_size // SPREAD)[:SPREAD]
    arrays: dict[str, np.ndarray] = {"spread": spread.astype(np.int32)}
    continuations = []
    for number, ids in enumerate(prompts):
        with torch.no_grad():
            logits = model(torch.tensor([ids])).logits[0, -1].float().numpy()
            new = model.generate(
                torch.tensor([ids]),
                attention_mask=torch.ones(1, len(ids), dtype=torch.long),
                do_sample=False,
                max_new_tokens=NEW_TOKENS,
                min_new_tokens=NEW_TOKENS,
                eos_token_id=None,
            )[0, len(ids) :].tolist()
        top = np.argsort(-logits)[:TOP]
        arrays[f"top{number}"] = top.astype(np.int32)
        arrays[f"top_logits{number}"] = logits[top]
        arrays[f"spread_logits{number}"] = logits[spread]
        arrays[f"log_sum_exp{number}"] = np.array(torch.logsumexp(torch.tensor(logits).double(), 0).item())
        continuations.append({"prompt": ids, "new": new, "text": tokenizer.decode(new)})
    reference = {
        "made_with": {
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "tokenizers": tokenizers.__version__,
            "file": GGUF,
        },
        "texts": [{"text": text, "ids": encode(tokenizer, text)} for text in TEXTS],
        "chats": [
            {
                "messages": chat,
                "text": tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False),
                "ids": ids,
            }
            for chat, ids in zip(CHATS, prompts[len(PLAIN) :], strict=True)
        ],
        "continuations": continuations,
    }
    (HERE / "smollm2.json").write_text(json.dumps(reference, indent=1) + "\n")
    np.savez_compressed(HERE / "smollm2-logits.npz", **arrays)


if __name__ == "__main__":
    main(sys.argv[1])
