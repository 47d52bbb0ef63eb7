"""Bodies of Anthropic's messages, each worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest
from turn_bodies import ANSWER, B64, USER, Case, params, t

from smetric_model.routing.turn import TurnInfo, infer_turn

ANTHROPIC: list[Case] = [
    (
        "system as a string, tools with cache marks",
        {
            "system": t(10),
            "tools": [{"k": "123456", "cache_control": {"type": "ephemeral"}}],
            "messages": [USER],
        },
        (0, 0, 13),  # 40 + 14 bytes
    ),
    (
        "the billing header is not in the prompt, as a block or as a line",
        {
            "system": [
                {"type": "text", "text": "x-anthropic-billing-header: cch=1; v=2.1;" + t(50)},
                {"type": "text", "text": t(10), "cache_control": {"type": "ephemeral"}},
                {"type": "text", "text": "x-anthropic-billing-header: cch=1;\n" + t(2)},
            ],
            "messages": [USER, ANSWER, USER],
        },
        (1, 2, 10 + 2 + 5 + 3),
    ),
    (
        "parallel tool use, results with text and image, thinking dropped",
        {
            "messages": [
                USER,
                {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": t(9_000), "signature": B64},
                        {"type": "redacted_thinking", "data": B64},
                        {"type": "text", "text": t(3)},
                        {"type": "tool_use", "id": "a", "name": "read", "input": {"p": "12345678"}},
                        {"type": "tool_use", "id": "b", "name": "shot", "input": {}},
                    ],
                },
                {
                    "role": "user",
                    "content": [
                        {"type": "tool_result", "tool_use_id": "a", "content": t(20)},
                        {
                            "type": "tool_result",
                            "tool_use_id": "b",
                            "is_error": False,
                            "content": [
                                {"type": "text", "text": t(6)},
                                {
                                    "type": "image",
                                    "source": {
                                        "type": "base64",
                                        "media_type": "image/png",
                                        "data": B64,
                                    },
                                },
                            ],
                        },
                        {"type": "text", "text": t(1)},
                    ],
                },
                {"role": "assistant", "content": [{"type": "text", "text": t(3)}]},
                USER,
            ]
        },
        # arguments: 16 bytes and "{}" (2 bytes, half a token)
        (2, 4, 5 + (3 + 1 + 4 + 1) + (20 + 6 + 1_000 + 1) + 3),
    ),
    (
        "prefill",
        {"system": t(10), "messages": [USER, {"role": "assistant", "content": "{"}]},
        (0, 0, 10),
    ),
    (
        "a paused server tool run that is sent back is input like any prefill",
        {
            "messages": [
                USER,
                {
                    "role": "assistant",
                    "content": [
                        {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}
                    ],
                },
            ]
        },
        (0, 0, 0),
    ),
    (
        "server tools run within one answer",
        {
            "messages": [
                USER,
                {
                    "role": "assistant",
                    "content": [
                        {
                            "type": "server_tool_use",
                            "id": "s",
                            "name": "find",
                            "input": {"q": "12345678"},
                        },
                        {
                            "type": "web_search_tool_result",
                            "tool_use_id": "s",
                            "content": [
                                {"type": "web_search_result", "url": "u", "encrypted_content": B64}
                            ],
                        },
                        {"type": "text", "text": t(3), "citations": [{"cited_text": B64}]},
                    ],
                },
                USER,
            ]
        },
        # {"url":"u"} is 11 bytes, 2 tokens and 3 bytes
        (1, 2, 5 + (1 + 4 + 2 + 3)),
    ),
    (
        "documents: text counts, base64 does not",
        {
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {
                            "type": "document",
                            "title": t(1),
                            "source": {"type": "text", "media_type": "text/plain", "data": t(40)},
                        },
                        {"type": "document", "source": {"type": "base64", "data": B64}},
                        {
                            "type": "document",
                            "source": {
                                "type": "content",
                                "content": [{"type": "text", "text": t(5)}],
                            },
                        },
                        {
                            "type": "search_result",
                            "title": t(1),
                            "source": t(2),
                            "content": [{"type": "text", "text": t(3)}],
                        },
                        {"type": "container_upload", "file_id": "f"},
                    ],
                },
                ANSWER,
                USER,
            ]
        },
        (1, 2, 1 + 40 + 5 + 6 + 3),
    ),
    (
        "compaction at the end of an answer restarts the session",
        {
            "system": t(10),
            "messages": [
                USER,
                ANSWER,
                USER,
                {
                    "role": "assistant",
                    "content": [
                        {"type": "text", "text": t(3)},
                        {"type": "compaction", "content": t(30)},
                    ],
                },
                USER,
            ],
        },
        (0, 0, 10),
    ),
    (
        "what was generated after a compaction is a turn on the compacted context",
        {
            "system": t(10),
            "messages": [
                USER,
                ANSWER,
                USER,
                {
                    "role": "assistant",
                    "content": [
                        {"type": "text", "text": t(3)},
                        {"type": "compaction", "content": t(30)},
                        {"type": "text", "text": t(4)},
                    ],
                },
                USER,
            ],
        },
        (1, 4, 10 + 30 + 4),
    ),
    (
        "the turns after a compaction",
        {
            "messages": [
                USER,
                {"role": "assistant", "content": [{"type": "compaction", "content": t(30)}]},
                USER,
                ANSWER,
                USER,
                ANSWER,
                USER,
            ]
        },
        (2, 6, 30 + 8 + 8),
    ),
    (
        "a failed compaction does nothing, and is no content",
        {
            "messages": [
                USER,
                {
                    "role": "assistant",
                    "content": [
                        {"type": "compaction", "content": None},
                        {"type": "text", "text": t(3)},
                    ],
                },
                USER,
            ]
        },
        (1, 2, 8),
    ),
    (
        "a code result as an object",
        {
            "messages": [
                USER,
                {
                    "role": "assistant",
                    "content": [
                        {
                            "type": "code_execution_tool_result",
                            "tool_use_id": "s",
                            "content": {"type": "code_execution_result", "stdout": "12345"},
                        }
                    ],
                },
                USER,
            ]
        },
        (1, 2, 5 + 4),  # {"stdout":"12345"} is 18 bytes
    ),
    (
        "blocks of a kind nobody knows count as JSON, encoded data left out",
        {
            "messages": [
                USER,
                {
                    "role": "assistant",
                    "content": [{"type": "hologram", "id": "h", "text2": "12345", "data": B64}],
                },
                USER,
            ]
        },
        (1, 2, 5 + 4),  # {"text2":"12345"} is 17 bytes
    ),
]


@pytest.mark.parametrize(("body", "expected"), params(ANTHROPIC))
def test_messages_body(body: dict[str, Any], expected: tuple[int, int, int]) -> None:
    assert infer_turn("anthropic", body) == TurnInfo(*expected)
