"""``smetric-model turn``: turn and expected hit of one API request body."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

import click

from smetric_model.cli.output import echo_json, json_option, print_table
from smetric_model.errors import SpecError
from smetric_model.routing.turn import APIS, IMAGE_TOKENS, infer_turn, parse_body

__all__ = ["command"]

#: API -> member that holds the conversation
_LISTS = {
    "chat": "messages",
    "completions": "prompt",
    "responses": "input",
    "anthropic": "messages",
}


@click.command("turn")
@click.option("--api", type=click.Choice(APIS), required=True, help="Which API the body is for.")
@click.option(
    "--tokenizer",
    type=click.Path(path_type=Path),
    help="Count tokens with this Hugging Face tokenizer.json instead of 4 bytes a token.",
)
@click.option(
    "--image-tokens",
    type=click.IntRange(min=0),
    default=IMAGE_TOKENS,
    show_default=True,
    help="Tokens of one image.",
)
@json_option
@click.argument("file", type=click.File("rb"))
def command(
    api: str, tokenizer: Path | None, image_tokens: int, as_json: bool, file: BinaryIO
) -> None:
    """Infer from the body of one request how far its session is.

    FILE is the JSON body of a request to an LLM API; - reads standard input.

    turn counts how often the model has answered in the history (0: a session's first request),
    history_items the entries of the message or input list up to the last answer, est_hit_tokens
    the cached prefix to expect on the instance that served the turn before.
    """
    count = None
    if tokenizer is not None:
        from smetric_model.routing.token_count import TokenizerCount

        count = TokenizerCount.from_file(tokenizer)
    try:
        body = parse_body(file.read())
        told = infer_turn(api, body, count, image_tokens)
    except SpecError as error:
        raise SpecError(f"{file.name}: {error}") from None
    _warn_of_other_api(api, body)
    if as_json:
        echo_json(asdict(told))
    else:
        rows = [[name.replace("_", " "), f"{value:,}"] for name, value in asdict(told).items()]
        print_table(f"{file.name} ({api})", ["", "value"], rows)


def _warn_of_other_api(api: str, body: dict[str, Any]) -> None:
    if _LISTS[api] in body:
        return
    found = [name for name in dict.fromkeys(_LISTS.values()) if name in body]
    if found and not (api == "responses" and isinstance(body.get("prompt"), dict)):
        click.echo(
            f"note: the body has no {_LISTS[api]!r} but {found[0]!r}; is --api {api} right?",
            err=True,
        )
