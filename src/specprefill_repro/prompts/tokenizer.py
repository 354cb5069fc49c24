"""Tokenizer and chat template of a model folder, without importing transformers (which takes seconds)."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, NoReturn

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Encoding, Tokenizer

from specprefill_repro.errors import Exit, ReproError
from specprefill_repro.files import read_limited
from specprefill_repro.models.manifest import MAX_TOKENIZER_BYTES

MAX_SETTINGS_BYTES = 10_000_000
SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")

# Some templates print today's date; prompts must be the same on every day.
DATE = "2026-01-01"

# Messages that differ at once; what their encodings share is the template's.
PROBES = ("Amber", "Zither", "mole", "quay", "7", "K")


@dataclass(frozen=True)
class ChatTokenizer:
    tokenizer: Tokenizer
    template: jinja2.Template
    special: dict[str, str]
    """Names and texts of special tokens, as the template may use them."""
    reserved: tuple[str, ...]
    """Texts that the tokenizer turns into special tokens wherever they stand."""

    def render(self, text: str) -> str:
        """Return what the model reads for the user's message `text`, up to where its answer begins.

        The message is data: template syntax in it stays as it is.

        Raises:
            ReproError: the message holds the text of a special token, or the template fails.
        """
        for token in self.reserved:
            if token in text:
                raise ReproError(
                    f"The user's message holds {token!r}, which this tokenizer reads as a special token.",
                    "Such a message could end its own turn and speak for the system or the model.",
                    "Take it out of the message.",
                )
        try:
            return self.template.render(
                messages=[{"role": "user", "content": text}],
                add_generation_prompt=True,
                # Reasoning models answer at once; templates that do not know the word ignore it.
                enable_thinking=False,
                tools=None,
                documents=None,
                **self.special,
            )
        except (jinja2.TemplateError, TypeError, ValueError, ArithmeticError, LookupError, RecursionError) as error:
            raise _template_error(f"failed: {error}") from error

    def encode(self, rendered: str) -> Encoding:
        """Encode rendered text; the template has already put the special tokens there, so none is added."""
        return self.tokenizer.encode(rendered, add_special_tokens=False)

    def free_from(self) -> int:
        """Index of the first token that the template leaves free: where the encodings of different messages part."""
        encodings = [self.encode(self.render(probe)).ids for probe in PROBES]
        return min(shared_prefix(one, other) for one, other in combinations(encodings, 2))

    def count(self, texts: Sequence[str]) -> list[int]:
        """Number of tokens of each text on its own, without template."""
        if len(texts) < 16:  # below that, starting the library's threads costs more than they save
            return [len(self.encode(text).ids) for text in texts]
        return [len(encoding.ids) for encoding in self.tokenizer.encode_batch(list(texts), add_special_tokens=False)]

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens))


def shared_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """Number of leading ids that two prompts share."""
    for index, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return index
    return min(len(one), len(other))


def load_tokenizer(folder: Path) -> ChatTokenizer:
    """Read tokenizer.json, tokenizer_config.json and, where there is one, chat_template.jinja of a model folder.

    Raises:
        ReproError: a file is missing, damaged or too large, or there is no chat template.
    """
    path = folder / "tokenizer.json"
    try:
        tokenizer = Tokenizer.from_str(read_limited(path, MAX_TOKENIZER_BYTES).decode())
    except ReproError:
        raise
    except Exception as error:  # the library raises bare Exception
        raise ReproError(
            f"{path} is not a tokenizer: {error}",
            "The file is damaged, or newer than the installed tokenizers library.",
            "Fetch the model again: delete its folder and run the same command.",
            Exit.VERIFICATION,
        ) from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    settings = _read_settings(folder / "tokenizer_config.json")
    return ChatTokenizer(
        tokenizer=tokenizer,
        template=_compile(_template_source(folder, settings)),
        special={name: text for name in SPECIAL_TOKENS if (text := _token_text(settings.get(name))) is not None},
        reserved=tuple(
            sorted(token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special)
        ),
    )


def _read_settings(path: Path) -> dict[str, Any]:
    try:
        settings = json.loads(read_limited(path, MAX_SETTINGS_BYTES))
    except (ValueError, RecursionError) as error:
        raise ReproError(
            f"{path} is not JSON: {error}",
            "The file is damaged.",
            "Fetch the model again: delete its folder and run the same command.",
            Exit.VERIFICATION,
        ) from error
    return settings if isinstance(settings, dict) else {}


def _token_text(value: Any) -> str | None:
    """Text of a special token, which the settings hold plainly or as an object."""
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) else None


def _template_source(folder: Path, settings: dict[str, Any]) -> str:
    file = folder / "chat_template.jinja"
    if file.exists():
        return read_limited(file, MAX_SETTINGS_BYTES).decode(errors="replace")
    template = settings.get("chat_template")
    if isinstance(template, list):  # several by name
        template = next((entry.get("template") for entry in template if entry.get("name") == "default"), None)
    if not isinstance(template, str):
        raise ReproError(
            f"The model in {folder} has no chat template.",
            "It is a base model, which does not answer questions, or its chat_template.jinja was left out.",
            "Use the instruction-tuned variant of the model.",
        )
    return template


def _compile(source: str) -> jinja2.Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _fixed_date
    try:
        return environment.from_string(source)
    except jinja2.TemplateError as error:
        raise _template_error(f"cannot be read: {error}") from error


class _Generation(Extension):
    """`{% generation %}...{% endgeneration %}` marks answers for training; here it only has to let them through."""

    tags = {"generation"}  # noqa: RUF012  (jinja2 declares it so)

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _tojson(value: Any, indent: int | None = None, ensure_ascii: bool = False, **options: Any) -> str:
    return json.dumps(value, indent=indent, ensure_ascii=ensure_ascii, **options)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _fixed_date(pattern: str) -> str:
    from datetime import date

    return date.fromisoformat(DATE).strftime(pattern)


def _template_error(what: str) -> ReproError:
    return ReproError(
        f"The model's chat template {what}",
        "The template is damaged, or wants something that a single user message does not give it.",
        "Look at chat_template in the model's tokenizer_config.json or at its chat_template.jinja.",
    )
