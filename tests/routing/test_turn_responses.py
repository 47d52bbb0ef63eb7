"""Bodies of the Responses API, each worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest
from turn_bodies import B64, SYSTEM, USER, Case, params, t

from smetric_model.routing.turn import TurnInfo, infer_turn


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

RESPONSES: list[Case] = [
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


@pytest.mark.parametrize(("body", "expected"), params(RESPONSES))
def test_responses_body(body: dict[str, Any], expected: tuple[int, int, int]) -> None:
    assert infer_turn("responses", body) == TurnInfo(*expected)
