"""Conversations as texts: the chat template of an instruct model, a Jinja program in its files, run in a sandbox."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from attention_jax.errors import InputError
from attention_jax.pretrained import gguf
from attention_jax.pretrained.foreign_files import json_object
from attention_jax.pretrained.tokenizer import PretrainedTokenizer

Conversation = str | Sequence[Mapping[str, Any]]
"""What a user says, or messages {"role": "system", "user" or "assistant", "content": text} in their order."""


def chat_template(path: Path) -> str | None:
    """The chat template of the model in a directory or a .gguf file, or None.

    A directory has it in chat_template.jinja, or as `chat_template` in chat_template.json or tokenizer_config.json; of
    several named ones it is "default".
    """
    if path.suffix == gguf.SUFFIX and path.is_file():
        return gguf.header_of(path).fields.get("tokenizer.chat_template")
    directory = path if path.is_dir() else path.parent
    if (file := directory / "chat_template.jinja").is_file():
        return file.read_text("utf-8")
    for name in ("chat_template.json", "tokenizer_config.json"):
        template = json_object(directory / name, needed=False).get("chat_template")
        if isinstance(template, list):
            template = {entry.get("name"): entry.get("template") for entry in template}.get("default")
        if template is not None:
            return template
    return None


def render_chat(template: str, conversation: Conversation, special: Mapping[str, str]) -> str:
    """The text of a conversation, up to where the assistant's next answer begins.

    `special` are the texts of the special tokens, {"bos_token": "<s>", ...}. The template sees what that of
    transformers does: messages, add_generation_prompt, raise_exception, strftime_now and the filter tojson.

    Raises InputError for messages that the template refuses, and for a template that is no Jinja program.

    >>> template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ eos_token }}{% endfor %}"
    >>> template += "{% if add_generation_prompt %}<assistant>{% endif %}"
    >>> render_chat(template, "Hello!", {"eos_token": "</s>"})
    '<user>Hello!</s><assistant>'
    """
    from jinja2 import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = lambda x, **kwargs: json.dumps(x, ensure_ascii=False, **kwargs)
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda format: datetime.now().strftime(format)
    messages = check_conversation(conversation)
    try:
        return environment.from_string(template).render(messages=messages, add_generation_prompt=True, **special)
    except (TemplateError, TypeError, ValueError, ArithmeticError, LookupError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"the model's chat template cannot be applied: {' '.join(str(error).split())}") from error


def _refuse(message: str) -> NoReturn:
    raise InputError(f"the model's chat template refuses these messages: {message}")


def check_conversation(conversation: Conversation) -> list[dict]:
    """The messages of a conversation. Raises InputError for what is none.

    >>> check_conversation("Hello!")
    [{'role': 'user', 'content': 'Hello!'}]
    """
    messages = [{"role": "user", "content": conversation}] if isinstance(conversation, str) else conversation
    is_message = lambda x: (
        isinstance(x, Mapping)
        and isinstance(x.get("role"), str)
        and isinstance(x.get("content"), str)
        and bool(x["content"].strip())
    )
    if not isinstance(messages, Sequence) or not messages or not all(map(is_message, messages)):
        raise InputError(
            'a conversation is a text, or messages {"role": "user", "content": "..."} that are not empty, got '
            f"{str(conversation)[:100]!r}"
        )
    return [dict(message) for message in messages]


def special_texts(tokenizer: PretrainedTokenizer) -> dict[str, str]:
    """The texts of special tokens by the names that templates use, such as bos_token."""
    return {f"{name}_token": tokenizer.names[number] for name, number in tokenizer.special.items()}
