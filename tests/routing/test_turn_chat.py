"""Bodies of chat and plain completions, each worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest
from turn_bodies import ANSWER, B64, SYSTEM, USER, Case, call, params, result, t

from smetric_model.routing.turn import TurnInfo, infer_turn

CHAT: list[Case] = [
    (
        "developer is static, and no turn",
        {"messages": [{"role": "developer", "content": t(7)}, USER]},
        (0, 0, 7),
    ),
    (
        "tools are part of the prefix, legacy functions too",
        {"messages": [USER], "tools": [{"k": "123456"}], "functions": [{"k": "123456"}]},
        (0, 0, 7),  # {"k":"123456"} is 14 bytes
    ),
    (
        "two turns, two system messages in front",
        {"messages": [SYSTEM, SYSTEM, USER, ANSWER, USER, ANSWER, USER]},
        (2, 6, 36),
    ),
    (
        "tool loop: each answer to tool results is a turn",
        {
            "messages": [
                SYSTEM,
                USER,
                {"role": "assistant", "content": None, "tool_calls": [call("a"), call("b")]},
                result("a"),
                result("b"),
                {"role": "assistant", "tool_calls": [call("c")]},
                result("c"),
            ]
        },
        (2, 6, 10 + 5 + 6 + 8 + 3),
    ),
    (
        "an answer split into messages in a row is one run",
        {"messages": [USER, ANSWER, {"role": "assistant", "tool_calls": [call("a")]}, result("a")]},
        (1, 3, 5 + 3 + 3),
    ),
    (
        "prefill after a turn: the turn counts, the prefill is input",
        {"messages": [SYSTEM, USER, ANSWER, USER, ANSWER], "continue_final_message": True},
        (1, 3, 18),
    ),
    (
        "a system reminder in the middle is input and ends a run",
        {"messages": [USER, ANSWER, {"role": "system", "content": t(2)}, ANSWER, USER]},
        (2, 4, 5 + 3 + 2 + 3),
    ),
    (
        "a system reminder at the end is new input",
        {"messages": [SYSTEM, USER, ANSWER, USER, {"role": "system", "content": t(100)}]},
        (1, 3, 18),
    ),
    (
        "a system message behind a user message is not in front",
        {"messages": [USER, SYSTEM]},
        (0, 0, 0),
    ),
    (
        "parts of text, images by url and base64, audio, files",
        {
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": t(5)},
                        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{B64}"}},
                        {"type": "image_url", "image_url": "https://host/x.png"},
                        {"type": "input_audio", "input_audio": {"data": B64, "format": "wav"}},
                        {"type": "file", "file": {"file_data": B64, "filename": "a.pdf"}},
                        {"type": "video_url", "video_url": {"url": f"data:video/mp4;base64,{B64}"}},
                    ],
                },
                ANSWER,
                USER,
            ]
        },
        (1, 2, 5 + 2_000 + 3),
    ),
    (
        "reasoning beside the content, in parts, and inline",
        {
            "messages": [
                USER,
                {
                    "role": "assistant",
                    "content": f"<think>{t(9_000)}</think>\n\n{t(3)}",
                    "reasoning_content": t(9_000),
                    "reasoning": t(9_000),
                    "reasoning_details": [{"type": "reasoning.encrypted", "data": B64}],
                },
                USER,
                {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": [{"type": "text", "text": t(9_000)}]},
                        {"type": "text", "text": t(3)},
                    ],
                },
                USER,
            ]
        },
        (2, 4, 16),
    ),
    (
        "refusals, custom tools, legacy function calls, arguments as an object",
        {
            "messages": [
                USER,
                {"role": "assistant", "content": None, "refusal": t(3)},
                USER,
                {
                    "role": "assistant",
                    "tool_calls": [
                        {"id": "a", "type": "custom", "custom": {"name": "exec", "input": t(3)}},
                        {"id": "b", "type": "function", "function": {"name": "read"}},
                    ],
                },
                result("a"),
                {
                    "role": "assistant",
                    "content": "",
                    "function_call": {"name": "find", "arguments": {"q": "12345678"}},
                },
                {"role": "function", "name": "find", "content": t(4)},
            ]
        },
        (3, 6, 5 + 3 + 5 + (1 + 3 + 1) + 4 + (1 + 4)),  # {"q":"12345678"} is 16 bytes
    ),
    (
        "only an answer: a prefill and nothing else",
        {"messages": [ANSWER]},
        (0, 0, 0),
    ),
    (
        "answers without content in every spelling",
        {
            "messages": [
                USER,
                {"role": "assistant"},
                USER,
                {"role": "assistant", "content": None, "tool_calls": None},
                USER,
                {"role": "assistant", "content": []},
                USER,
            ]
        },
        (3, 6, 15),
    ),
    ("null in place of the list", {"messages": None, "tools": None}, (0, 0, 0)),
    (
        "bytes, not characters",
        {
            "messages": [
                {"role": "system", "content": "é" * 8},
                USER,
                {**ANSWER, "content": "語" * 4},
                USER,
            ]
        },
        (1, 3, 4 + 5 + 3),
    ),
    (
        "parts without a type, and strings among parts",
        {
            "messages": [
                {"role": "user", "content": [{"text": t(5)}, {"image_url": "http://x"}, t(1)]},
                ANSWER,
                USER,
            ]
        },
        (1, 2, 5 + 1_000 + 1 + 3),
    ),
    (
        "an end of reasoning in somebody else's text is text",
        {"messages": [{"role": "user", "content": t(10) + "</think>" + t(10)}, ANSWER, USER]},
        (1, 2, 20 + 2 + 3),
    ),
    (
        "a history cut at its front starts with a tool result",
        {"messages": [result("a"), ANSWER, USER]},
        (1, 2, 7),
    ),
    (
        "calls and results interleaved one by one are turns",
        {
            "messages": [
                USER,
                {"role": "assistant", "tool_calls": [call("a")]},
                result("a"),
                {"role": "assistant", "tool_calls": [call("b")]},
                result("b"),
                USER,
            ]
        },
        (2, 4, 5 + 3 + 4 + 3),
    ),
    (
        "a role nobody knows is somebody else's",
        {"messages": [USER, ANSWER, {"role": "critic", "content": t(50)}, ANSWER, USER]},
        (2, 4, 5 + 3 + 50 + 3),
    ),
]

COMPLETIONS: list[Case] = [
    ("text", {"prompt": t(100)}, (0, 0, 0)),
    (
        "a chat flattened into a prompt has no structure that can be trusted",
        {"prompt": "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nhello<|im_end|>\n"},
        (0, 0, 0),
    ),
    ("list of texts", {"prompt": ["a", "b"]}, (0, 0, 0)),
    ("list of token lists", {"prompt": [[1, 2], []]}, (0, 0, 0)),
    ("empty list", {"prompt": []}, (0, 0, 0)),
    ("nothing", {"prompt": None}, (0, 0, 0)),
]


@pytest.mark.parametrize(("body", "expected"), params(CHAT))
def test_chat_body(body: dict[str, Any], expected: tuple[int, int, int]) -> None:
    assert infer_turn("chat", body) == TurnInfo(*expected)


@pytest.mark.parametrize(("body", "expected"), params(COMPLETIONS))
def test_completions_body(body: dict[str, Any], expected: tuple[int, int, int]) -> None:
    assert infer_turn("completions", body) == TurnInfo(*expected)
