"""The target's tokenizer, reduced to what the engine needs: prompt ids of a request, text of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jinja2 import TemplateError

from specdemo.types import Request, SpecdemoError


class HFTokenizer:
    """A transformers tokenizer as :class:`specdemo.types.Tokenizer`. ``hf`` is the original."""

    def __init__(self, hf: Any) -> None:
        self.hf = hf
        self.size = len(hf)

    def encode(self, request: Request) -> list[int]:
        """Prompt ids: a conversation through the chat template, or raw text with the tokenizer's own special tokens.

        At least one token: an empty prompt is the beginning of a text.
        """
        if request.prompt is None:
            ids = self._ids(self._render(request), special=False)
        else:
            ids = self._ids(request.prompt, special=True)
        bos = self.hf.bos_token_id
        if bos is not None and ids[:2] == [bos, bos]:  # written in the text as well as added
            ids = ids[1:]
        start = bos if bos is not None else self.hf.eos_token_id
        return ids or [0 if start is None else int(start)]

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of the tokens, special tokens and ids beyond the vocabulary (padding of the logits) left out."""
        known = [token for token in tokens if token < self.size]
        text: str = self.hf.decode(known, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text

    def _ids(self, text: str, special: bool) -> list[int]:
        return list(self.hf(text, add_special_tokens=special).input_ids)

    def _render(self, request: Request) -> str:
        if not self.hf.chat_template:
            raise SpecdemoError(
                "This model has no chat template, so it cannot hold a conversation. Send raw text (prompt) instead."
            )
        turns = [{"role": message.role, "content": message.content} for message in request.messages]
        try:
            return str(self.hf.apply_chat_template(turns, tokenize=False, add_generation_prompt=True))
        except TemplateError as error:
            raise SpecdemoError(
                f"The model's chat template refuses this conversation: {error}. Check roles and their order "
                "(some models take no system message, and most want user and assistant in turns)."
            ) from error
