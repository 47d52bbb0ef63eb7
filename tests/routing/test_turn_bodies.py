"""Request bodies of the four APIs, each worked out by hand.

``t(n)`` is a text of n tokens at 4 bytes a token; an image counts as 1,000 tokens.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from smetric_model.routing.turn import TurnInfo, infer_turn


def t(tokens: int) -> str:
    return "abcd" * tokens


B64 = "A" * 200_000
SYSTEM = {"role": "system", "content": t(10)}
USER = {"role": "user", "content": t(5)}
ANSWER = {"role": "assistant", "content": t(3)}


def call(identity: str, tokens: int = 2) -> dict[str, Any]:
    """A chat tool call: name of one token, arguments of ``tokens``."""
    return {
        "id": identity,
        "type": "function",
        "function": {"name": "read", "arguments": t(tokens)},
    }


def result(identity: str, tokens: int = 4) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": identity, "content": t(tokens)}


CHAT: list[tuple[str, dict[str, Any], tuple[int, int, int]]] = [
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


ANTHROPIC: list[tuple[str, dict[str, Any], tuple[int, int, int]]] = [
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


def fc(identity: str) -> dict[str, Any]:
    return {"type": "function_call", "call_id": identity, "name": "read", "arguments": t(2)}


def fco(identity: str, output: Any = None) -> dict[str, Any]:
    return {
        "type": "function_call_output",
        "call_id": identity,
        "output": t(4) if output is None else output,
    }


THINKING = {
    "type": "reasoning",
    "id": "rs_1",
    "summary": [{"type": "summary_text", "text": t(9_000)}],
    "content": [{"type": "reasoning_text", "text": t(9_000)}],
    "encrypted_content": B64,
}
MESSAGE = {
    "type": "message",
    "id": "msg_1",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "output_text", "text": t(3), "annotations": [], "logprobs": []}],
}
ASKED = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": t(5)}]}

RESPONSES: list[tuple[str, dict[str, Any], tuple[int, int, int]]] = [
    (
        "parallel calls with reasoning are one run",
        {
            "instructions": t(10),
            "input": [ASKED, THINKING, fc("a"), fc("b"), fc("c"), fco("a"), fco("b"), fco("c")],
        },
        (1, 5, 10 + 5 + 9),
    ),
    (
        "sequential calls are turns",
        {"input": [ASKED, fc("a"), fco("a"), THINKING, fc("b"), fco("b"), MESSAGE, ASKED]},
        (3, 7, 5 + 3 + 4 + 3 + 4 + 3),
    ),
    (
        "system and developer items in front, tools flat",
        {
            "input": [{"role": "developer", "content": t(6)}, SYSTEM, USER, MESSAGE, USER],
            "tools": [{"k": "123456"}, {"k": "123456"}],
        },
        (1, 4, 7 + 16 + 5 + 3),
    ),
    (
        "a stored response: one turn more than shown, the hit of what is shown",
        {"previous_response_id": "resp_1", "instructions": t(10), "input": [fco("a")]},
        (1, 0, 10),
    ),
    (
        "a stored response with string input",
        {"previous_response_id": "resp_1", "input": t(5)},
        (1, 0, 0),
    ),
    (
        "a stored response and turns in the body",
        {"previous_response_id": "resp_1", "input": [ASKED, MESSAGE, ASKED]},
        (2, 2, 8),
    ),
    ("no stored response", {"previous_response_id": None, "input": "x"}, (0, 0, 0)),
    ("a stored conversation", {"conversation": {"id": "conv_1"}, "input": "x"}, (1, 0, 0)),
    ("a stored conversation by name", {"conversation": "conv_1", "input": "x"}, (1, 0, 0)),
    (
        "references are to the model's stored items",
        {
            "input": [
                ASKED,
                {"type": "item_reference", "id": "rs_1"},
                {"id": "msg_1"},
                {"type": None, "id": "fc_1"},
                fco("a"),
            ]
        },
        (1, 4, 5),
    ),
    (
        "hosted tools belong to the run",
        {
            "input": [
                ASKED,
                {"type": "web_search_call", "id": "ws", "status": "completed"},
                {"type": "file_search_call", "id": "fs", "queries": ["1234"], "results": None},
                {"type": "code_interpreter_call", "id": "ci", "code": t(6), "outputs": None},
                {"type": "image_generation_call", "id": "ig", "result": B64},
                {"type": "mcp_call", "id": "m", "name": "read", "arguments": t(1), "output": t(2)},
                MESSAGE,
                ASKED,
            ]
        },
        # queries ["1234"] is 8 bytes
        (1, 7, 5 + 2 + 6 + 1_000 + (1 + 1 + 2) + 3),
    ),
    (
        "computer use: screenshots are images",
        {
            "input": [
                ASKED,
                {"type": "computer_call", "call_id": "a", "action": {"x": 1}},
                {
                    "type": "computer_call_output",
                    "call_id": "a",
                    "output": {
                        "type": "computer_screenshot",
                        "image_url": f"data:image/png;base64,{B64}",
                    },
                },
                {"type": "computer_call", "call_id": "b", "action": {"x": 22}},
                {"type": "computer_call_output", "call_id": "b", "output": {"type": "input_image"}},
            ]
        },
        (2, 4, 5 + 1_000 + 3),  # {"x":1} and {"x":22} are 15 bytes
    ),
    (
        "shell, patch, custom tools and approvals",
        {
            "input": [
                ASKED,
                {"type": "custom_tool_call", "call_id": "a", "name": "exec", "input": t(3)},
                {"type": "custom_tool_call_output", "call_id": "a", "output": t(4)},
                {"type": "local_shell_call", "call_id": "b", "action": {"command": ["1234"]}},
                {"type": "local_shell_call_output", "id": "b", "output": t(4)},
                {"type": "apply_patch_call", "call_id": "c", "operation": {"diff": "1234567"}},
                {"type": "apply_patch_call_output", "call_id": "c", "output": None},
                {"type": "mcp_approval_request", "name": "read", "arguments": t(1)},
                {"type": "mcp_approval_response", "approve": True},
            ]
        },
        # {"command":["1234"]} is 20 bytes, {"diff":"1234567"} 18
        (4, 8, 5 + 4 + 4 + 5 + 4 + 4 + 2),
    ),
    (
        "a server's tool list neither makes a turn nor ends a run",
        {
            "input": [
                {"type": "mcp_list_tools", "server_label": "s", "tools": [{"k": "12345678"}]},
                ASKED,
                THINKING,
                {"type": "mcp_list_tools", "server_label": "s", "tools": []},
                MESSAGE,
                ASKED,
            ]
        },
        (1, 5, 4 + 5 + 3),
    ),
    (
        "only a tool list and a question: first turn",
        {"input": [{"type": "mcp_list_tools", "tools": []}, ASKED]},
        (0, 0, 0),
    ),
    (
        "compaction restarts",
        {
            "instructions": t(10),
            "input": [ASKED, MESSAGE, {"type": "compaction", "encrypted_content": B64}, ASKED],
        },
        (0, 0, 10),
    ),
    (
        "turns after a compaction, what lies before it is gone",
        {
            "instructions": t(10),
            "input": [
                ASKED,
                MESSAGE,
                ASKED,
                {"type": "compaction_summary", "encrypted_content": B64},
                MESSAGE,
                ASKED,
                fc("a"),
                fco("a"),
            ],
        },
        (2, 7, 10 + 3 + 5 + 3),
    ),
    ("prefill", {"input": [ASKED, MESSAGE]}, (0, 0, 0)),
    (
        "outputs as parts, input as parts with an image and a file",
        {
            "input": [
                {
                    "role": "user",
                    "content": [
                        {"type": "input_text", "text": t(5)},
                        {"type": "input_image", "image_url": f"data:image/png;base64,{B64}"},
                        {"type": "input_file", "filename": "a.pdf", "file_data": B64},
                    ],
                },
                fc("a"),
                fco("a", [{"type": "input_text", "text": t(6)}, {"type": "input_image"}]),
                {"role": "assistant", "content": [{"type": "refusal", "refusal": t(2)}]},
                ASKED,
            ]
        },
        (2, 4, 5 + 1_000 + 3 + 6 + 1_000 + 2),
    ),
    (
        "an item of a kind nobody knows is read by its name",
        {
            "input": [
                ASKED,
                {"type": "teleport_call", "arguments": t(3)},
                {"type": "teleport_call_output", "output": t(3)},
                {"type": "weather_report", "text": "12"},
            ]
        },
        (1, 2, 5 + 3),
    ),
    (
        "a stored prompt template and no input",
        {"prompt": {"id": "pmpt_1", "variables": {}}, "instructions": t(2)},
        (0, 0, 2),
    ),
    ("empty input", {"input": []}, (0, 0, 0)),
    ("an empty id is none", {"previous_response_id": "", "input": "x"}, (0, 0, 0)),
    (
        "reasoning around the answer belongs to the run",
        {"input": [ASKED, THINKING, MESSAGE, THINKING, ASKED]},
        (1, 4, 8),
    ),
    (
        "a developer's reminder after the answer is new input",
        {"input": [ASKED, MESSAGE, {"role": "developer", "content": t(50)}, ASKED]},
        (1, 2, 8),
    ),
    (
        "instructions as a list of messages",
        {"instructions": [{"role": "developer", "content": t(4)}, t(2)], "input": "x"},
        (0, 0, 6),
    ),
]

COMPLETIONS: list[tuple[str, dict[str, Any], tuple[int, int, int]]] = [
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

CASES = [
    pytest.param(api, body, expected, id=f"{api}: {name}")
    for api, table in (
        ("chat", CHAT),
        ("anthropic", ANTHROPIC),
        ("responses", RESPONSES),
        ("completions", COMPLETIONS),
    )
    for name, body, expected in table
]


@pytest.mark.parametrize(("api", "body", "expected"), CASES)
def test_body(api: str, body: dict[str, Any], expected: tuple[int, int, int]) -> None:
    assert infer_turn(api, body) == TurnInfo(*expected)


@pytest.mark.shared
def test_shared_turn_cases(shared_dir: Path) -> None:
    cases = json.loads((shared_dir / "routing" / "turn_cases.json").read_text())
    assert len(cases) >= 14
    for case in cases:
        told = infer_turn(case["api"], case["body"])
        assert (told.turn, told.history_items) == (case["turn"], case["history_items"]), case
        if "image" in case["name"]:
            assert 1_000 < told.est_hit_tokens < 1_100  # an image, no base64, no reasoning
