"""Laws of turn inference, errors that name the path, tokenizers, and any JSON at all."""

from __future__ import annotations

import builtins
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smetric_model.errors import SpecError
from smetric_model.routing.content import json_text
from smetric_model.routing.token_count import ByteCount, TokenizerCount
from smetric_model.routing.turn import APIS, est_hit_of_lengths, infer_turn, parse_body

TEXT = st.text(max_size=30).filter(
    lambda s: "</think>" not in s and not s.startswith("x-anthropic")
)
#: A conversation: system prompt, then (who, text), first entry by the user.
TALK = st.tuples(TEXT, st.lists(st.tuples(st.sampled_from("ua"), TEXT), max_size=8))


def chat(system: str, talk: list[tuple[str, str]]) -> dict[str, Any]:
    roles = {"u": "user", "a": "assistant"}
    messages = [{"role": roles[who], "content": text} for who, text in [("u", "hi"), *talk]]
    return {"messages": [{"role": "system", "content": system}, *messages]}


def anthropic(system: str, talk: list[tuple[str, str]]) -> dict[str, Any]:
    body = chat(system, talk)
    messages = [
        {"role": m["role"], "content": [{"type": "text", "text": m["content"]}]}
        for m in body["messages"][1:]
    ]
    return {"system": system, "messages": messages}


def responses(system: str, talk: list[tuple[str, str]]) -> dict[str, Any]:
    kinds = {"user": "input_text", "assistant": "output_text"}
    items = [
        {
            "type": "message",
            "role": m["role"],
            "content": [{"type": kinds[m["role"]], "text": m["content"]}],
        }
        for m in chat(system, talk)["messages"][1:]
    ]
    return {"instructions": system, "input": items}


@given(TALK)
def test_the_same_talk_is_the_same_turn_in_every_api(
    talk: tuple[str, list[tuple[str, str]]],
) -> None:
    one = infer_turn("chat", chat(*talk))
    two = infer_turn("anthropic", anthropic(*talk))
    three = infer_turn("responses", responses(*talk))
    assert one.turn == two.turn == three.turn
    assert one.est_hit_tokens == two.est_hit_tokens == three.est_hit_tokens
    assert two.history_items == three.history_items
    assert one.history_items == (two.history_items + 1 if two.history_items else 0)


@given(TALK, TEXT, TEXT)
def test_an_answer_and_a_question_are_one_more_turn(
    talk: tuple[str, list[tuple[str, str]]], answer: str, question: str
) -> None:
    system, said = talk
    before = infer_turn("chat", chat(system, [*said, ("u", "x")]))
    after = infer_turn("chat", chat(system, [*said, ("u", "x"), ("a", answer), ("u", question)]))
    assert after.turn == before.turn + 1
    assert after.history_items == 1 + 1 + len(said) + 2  # system, first user, x and the answer
    assert after.est_hit_tokens >= before.est_hit_tokens


@given(TALK, st.lists(TEXT, min_size=1, max_size=3), st.lists(TEXT, max_size=3))
def test_new_input_and_prefill_change_nothing(
    talk: tuple[str, list[tuple[str, str]]], questions: list[str], prefill: list[str]
) -> None:
    system, said = talk
    asked = [*said, ("u", "x")]
    more = [*asked, *(("u", q) for q in questions), *(("a", p) for p in prefill)]
    assert infer_turn("chat", chat(system, more)) == infer_turn("chat", chat(system, asked))


@given(TALK)
def test_expected_hit_is_part_of_the_body(talk: tuple[str, list[tuple[str, str]]]) -> None:
    body = chat(*talk)
    told = infer_turn("chat", body)
    upper = sum(len(m["content"].encode()) for m in body["messages"])
    assert 0 <= told.est_hit_tokens <= upper // 4
    assert 0 <= told.history_items <= len(body["messages"])
    assert (told.turn == 0) == (told.history_items == 0)


WORDS = (
    "role content type text image_url tool_calls function name arguments input output source data "
    "system messages prompt instructions tools assistant user message tool_use tool_result "
    "function_call compaction reasoning item_reference document thinking id summary"
)


def any_json(floats: bool = True) -> st.SearchStrategy[Any]:
    words = st.sampled_from(WORDS.split(" "))
    leaf: st.SearchStrategy[Any] = st.none() | st.booleans() | st.integers() | words | st.text()
    if floats:
        leaf = leaf | st.floats(allow_nan=False)
    return st.recursive(
        leaf,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(words, inner, max_size=5),
        max_leaves=25,
    )


@settings(max_examples=800)
@given(st.sampled_from(APIS), any_json(), any_json(), any_json())
def test_any_json_is_read_or_refused_by_name(api: str, items: Any, one: Any, system: Any) -> None:
    body = {
        "messages": items if isinstance(items, list) else [one, {"role": "assistant"}, one],
        "input": [one] if one else items,
        "prompt": items,
        "system": system,
        "instructions": system,
    }
    try:
        told = infer_turn(api, body)
    except SpecError as error:
        refused = str(error)
    else:
        assert told.turn >= 0
        assert told.est_hit_tokens >= 0
        return
    assert refused.startswith("$")
    assert "allowed" in refused or "needs" in refused


WRONG: list[tuple[str, Any, str]] = [
    ("chat", [], r"^\$ is a list; an object is allowed"),
    ("chat", {"messages": "hi"}, r"^\$\.messages is a string; a list"),
    ("chat", {"messages": ["hi"]}, r"^\$\.messages\[0\] is a string; an object"),
    ("chat", {"messages": [None]}, r"^\$\.messages\[0\] is null"),
    ("chat", {"messages": [{"content": "x"}]}, r"^\$\.messages\[0\]\.role is missing"),
    ("chat", {"messages": [{"role": 1}]}, r"^\$\.messages\[0\]\.role is a number"),
    (
        "chat",
        {"messages": [{"role": "user", "content": 5}]},
        r"^\$\.messages\[0\]\.content is a num",
    ),
    ("chat", {"messages": [{"role": "user", "content": {}}]}, r"\.content is an object"),
    ("chat", {"messages": [{"role": "user", "content": [[]]}]}, r"\.content\[0\] is a list"),
    (
        "chat",
        {"messages": [{"role": "user", "content": ["a", {"type": "text", "text": 3}]}]},
        r"^\$\.messages\[0\]\.content\[1\]\.text is a number",
    ),
    (
        "chat",
        {"messages": [{"role": "user", "content": [{"type": 3}]}]},
        r"content\[0\]\.type is a",
    ),
    ("chat", {"messages": [{"role": "a", "tool_calls": {}}]}, r"\.tool_calls is an object"),
    ("chat", {"messages": [{"role": "a", "tool_calls": [1]}]}, r"\.tool_calls\[0\] is a number"),
    (
        "chat",
        {"messages": [{"role": "a", "tool_calls": [{"function": {"arguments": True}}]}]},
        r"\.tool_calls\[0\]\.function\.arguments is a boolean",
    ),
    ("chat", {"tools": {}}, r"^\$\.tools is an object; a list"),
    ("chat", {"tools": ["x"]}, r"^\$\.tools\[0\] is a string; an object"),
    ("anthropic", {"system": 7}, r"^\$\.system is a number"),
    (
        "anthropic",
        {
            "messages": [
                {
                    "role": "user",
                    "content": [{"type": "tool_result", "content": [{"type": "text", "text": []}]}],
                }
            ]
        },
        r"^\$\.messages\[0\]\.content\[0\]\.content\[0\]\.text is a list",
    ),
    (
        "anthropic",
        {"messages": [{"role": "user", "content": [{"type": "document", "source": "x"}]}]},
        r"content\[0\]\.source is a string",
    ),
    ("responses", {"input": 5}, r"^\$\.input is a number"),
    ("responses", {"input": ["x"]}, r"^\$\.input\[0\] is a string"),
    ("responses", {"input": [{}]}, r"^\$\.input\[0\] has neither 'role' nor 'type'"),
    ("responses", {"input": [{"type": "message"}]}, r"^\$\.input\[0\]\.role is missing"),
    ("responses", {"input": [{"type": 4}]}, r"^\$\.input\[0\]\.type is a number"),
    ("responses", {"previous_response_id": 4}, r"^\$\.previous_response_id is a number"),
    ("responses", {"conversation": {"id": 4}}, r"^\$\.conversation\.id is a number"),
    ("responses", {"conversation": []}, r"^\$\.conversation is a list"),
    ("responses", {"instructions": {}}, r"^\$\.instructions is an object"),
    ("completions", {"prompt": {}}, r"^\$\.prompt is an object"),
    ("completions", {"prompt": [1, "a"]}, r"^\$\.prompt\[1\] is 'a'; a token id"),
    ("completions", {"prompt": ["a", 1]}, r"^\$\.prompt\[1\] is a number"),
    ("completions", {"prompt": [[1], [True]]}, r"^\$\.prompt\[1\]\[0\] is True"),
    ("completions", {"prompt": [-1]}, r"^\$\.prompt\[0\] is -1; a string, a token id"),
    ("completions", {"prompt": [1.0]}, r"^\$\.prompt\[0\] is 1\.0; a string, a token id"),
    ("completions", {"prompt": [None]}, r"^\$\.prompt\[0\] is null"),
    ("gemini", {}, r"api 'gemini' is not known; one of chat, completions, responses, anthropic"),
]


@pytest.mark.parametrize(("api", "body", "message"), WRONG)
def test_wrong_bodies_name_the_path(api: str, body: Any, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        infer_turn(api, body)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"{'a': 1}", "not valid JSON"),
        (b"\xff\xfe{", "not valid JSON"),
        (b'{"a": NaN}', "not valid JSON"),
        (b"[1]", r"^\$ is a list; an object is allowed"),
        (b"null", r"^\$ is null"),
        (b"[" * 5_000 + b"]" * 5_000, "not valid JSON"),
    ],
)
def test_what_is_not_a_json_object_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        parse_body(data)


def test_a_byte_order_mark_is_no_error() -> None:
    assert parse_body(b'\xef\xbb\xbf{"prompt": "x"}') == {"prompt": "x"}


def nested(value: Any, depth: int, key: str) -> Any:
    for _ in range(depth):
        value = [{key: value}]
    return value


def test_depth_is_no_problem() -> None:
    deep = nested([], 5_000, "k")
    results: Any = [{"type": "text", "text": "abcd"}]
    for _ in range(5_000):
        results = [{"type": "tool_result", "content": results}]
    body = {
        "tools": [{"schema": deep}],
        "messages": [
            {"role": "user", "content": results},
            {"role": "assistant", "content": [{"type": "tool_use", "name": "", "input": deep}]},
            {"role": "user", "content": "x"},
        ],
    }
    told = infer_turn("anthropic", body)
    assert (told.turn, told.history_items) == (1, 2)
    assert told.est_hit_tokens > 15_000


def test_lone_surrogates_are_counted_not_fatal() -> None:
    message = {"role": "system", "content": "\ud83d" * 4}
    assert infer_turn("chat", {"messages": [message]}).est_hit_tokens == 3
    assert json_text({"\ud83d": "\ud83d"}) == '{"?":"?"}'


@given(any_json(floats=False))
def test_json_text_is_compact_json(value: Any) -> None:
    assert json_text(value) == json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def test_json_text_leaves_out_what_never_reaches_the_prompt() -> None:
    value = {"id": 1, "keep": "x", "image": "data:image/png;base64,AAAA", "deep": [{"id": 2}]}
    assert json_text(value, ("id",)) == '{"keep":"x","deep":[{}]}'
    assert json_text({"id": 1}, ("id",)) == ""
    assert json_text({}) == "{}"


def test_encoded_data_and_reasoning_do_not_change_the_hit() -> None:
    def told(size: int) -> Any:
        image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * size}}
        return infer_turn(
            "chat",
            {
                "messages": [
                    {"role": "user", "content": [image]},
                    {"role": "assistant", "content": "x", "reasoning_content": "y" * size},
                    {"role": "user", "content": "z"},
                ]
            },
        )

    assert told(10) == told(1_000_000)


@pytest.fixture
def tokenizer_file(tmp_path: Path) -> Path:
    """A tokenizer with one token per word."""
    tokenizers = pytest.importorskip("tokenizers")
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<unk>": 0}, unk_token="<unk>"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    path = tmp_path / "tokenizer.json"
    words.save(str(path))
    return path


def test_a_tokenizer_counts_words_in_place_of_bytes(tokenizer_file: Path) -> None:
    body = chat("one two three", [("a", "four five"), ("u", "six")])  # first user entry: "hi"
    for path in (tokenizer_file, tokenizer_file.parent):
        count = TokenizerCount.from_file(path)
        assert infer_turn("chat", body, count).est_hit_tokens == 3 + 1 + 2
    assert TokenizerCount.from_file(tokenizer_file).tokens(["", "a \ud83d b"]) == 3
    assert infer_turn("chat", body, ByteCount()).est_hit_tokens == (13 + 2 + 9) // 4


def test_wrong_tokenizer_files_are_named(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    with pytest.raises(SpecError, match="no such file"):
        TokenizerCount.from_file(tmp_path / "nothing.json")
    broken = tmp_path / "broken.json"
    broken.write_text("{}")
    with pytest.raises(SpecError, match=r"broken\.json: not a Hugging Face tokenizer"):
        TokenizerCount.from_file(broken)


def test_a_missing_tokenizers_package_is_explained(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real = builtins.__import__

    def refuse(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "tokenizers":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(SpecError, match=r"pip install 'smetric-model\[tokenizers\]'"):
        TokenizerCount.from_file(tmp_path)


def test_images_count_as_told() -> None:
    message = {"role": "system", "content": [{"type": "image_url"}]}
    assert infer_turn("chat", {"messages": [message]}, image_tokens=85).est_hit_tokens == 85
    with pytest.raises(SpecError, match="image_tokens is -1"):
        infer_turn("chat", {}, image_tokens=-1)


def test_expected_hit_of_lengths() -> None:
    assert est_hit_of_lengths(1_000, 200, 1_500) == 1_200
    assert est_hit_of_lengths(1_000, 200, 700) == 700  # the history was cut
