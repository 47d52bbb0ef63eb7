"""``smetric-model kv``: KV bytes per token, weights and local-tier size of one instance."""

from __future__ import annotations

from typing import Any

import click

from smetric_model.cli.output import echo_json, json_option, print_table
from smetric_model.units import GB, GIB

__all__ = ["command"]


@click.command()
@click.option("--llm", required=True, help="Catalog name, or path to a Hugging Face config.json.")
@click.option("--gpu", required=True, help="Catalog name of the GPU, such as H20.")
@click.option("--tp", default=1, show_default=True, help="GPUs of the instance.")
@click.option("--ep", default=1, show_default=True, help="Expert parallelism; divides --tp.")
@click.option("--weight-dtype", help="bf16, fp16, fp8, int8, int4.  [default: the checkpoint's]")
@click.option("--kv-dtype", help="bf16, fp16, fp8, int8.  [default: as the checkpoint asks]")
@click.option(
    "--kv-bytes", type=float, help="Pool of the whole instance, as read off an engine's log."
)
@click.option(
    "--kv-bytes-per-token", type=float, help="Of the whole instance, in place of the computed one."
)
@click.option("--tokens", type=int, help="Also say how many bytes this many tokens take.")
@click.option("--block", default=16, show_default=True, help="Tokens of one KV block.")
@click.option("--memory-utilisation", default=0.9, show_default=True, help="Share in (0, 1].")
@click.option("--token-budget", default=8192, show_default=True, help="Tokens of one step.")
@click.option("--max-running-requests", default=256, show_default=True)
@click.option("--engine", default="vllm", show_default=True)
@click.option("--eager", is_flag=True, help="Without CUDA graphs.")
@json_option
def command(as_json: bool, kv_bytes: float | None, tokens: int | None, **options: Any) -> None:
    """KV bytes per token, weights and local-tier size of one instance.

    Not fitting is an answer, not an error: fits is false, missing_bytes says how much memory the
    instance lacks, min_tp how many GPUs would do.
    """
    result = _result(kv_bytes=kv_bytes, tokens=tokens, **options)
    if as_json:
        echo_json(result)
    else:
        _print(result)


def _result(
    llm: str,
    gpu: str,
    tp: int,
    ep: int,
    weight_dtype: str | None,
    kv_dtype: str | None,
    kv_bytes: float | None,
    kv_bytes_per_token: float | None,
    tokens: int | None,
    block: int,
    memory_utilisation: float,
    token_budget: int,
    max_running_requests: int,
    engine: str,
    eager: bool,
) -> dict[str, Any]:
    from smetric_model.analytic import memory
    from smetric_model.catalog.gpu import get_gpu
    from smetric_model.catalog.instance import InstanceSpec
    from smetric_model.catalog.llm import get_llm
    from smetric_model.errors import SpecError

    if tokens is not None and tokens < 1:
        raise SpecError(f"--tokens {tokens}: must be >= 1")
    instance = InstanceSpec(
        llm=get_llm(llm),
        gpu=get_gpu(gpu),
        tp=tp,
        ep=ep,
        engine=engine,
        mode="eager" if eager else "graph",
        weight_dtype=weight_dtype,
        kv_dtype=kv_dtype,
        memory_utilisation=memory_utilisation,
        token_budget=token_budget,
        max_running_requests=max_running_requests,
        block_tokens=block,
    )
    served = instance.llm
    budget = memory.memory_budget(instance)
    tier = memory.local_tier(instance, kv_bytes, kv_bytes_per_token)
    per_token = kv_bytes_per_token or memory.kv_bytes_per_token(instance)
    missing = memory.missing_bytes(instance, kv_bytes, kv_bytes_per_token)
    result: dict[str, Any] = {
        "llm": served.name,
        "gpu": instance.gpu.name,
        "tp": tp,
        "ep": ep,
        "weight_dtype": instance.weight_dtype,
        "kv_dtype": instance.kv_dtype,
        "block_tokens": block,
        "memory_utilisation": memory_utilisation,
        "engine": engine,
        "max_context_tokens": served.max_context_tokens,
        "params": served.params.total,
        "active_params": served.params.active,
        "kv_bytes_per_token": per_token,
        "kv_bytes_per_token_per_gpu": per_token / tp,
        "fixed_state_bytes_per_request": memory.fixed_state_bytes_per_request(instance),
        "weight_bytes_per_gpu": budget.weight_bytes,
        "expert_weight_bytes_per_gpu": memory.expert_weight_bytes_per_gpu(instance),
        "device_memory_bytes_per_gpu": budget.device_bytes,
        "usable_memory_bytes_per_gpu": budget.usable_bytes,
        "activation_peak_bytes_per_gpu": budget.activation_peak_bytes,
        "graph_bytes_per_gpu": budget.graph_bytes,
        "runtime_bytes_per_gpu": budget.runtime_bytes,
        "local_tier_bytes": tier.bytes,
        "local_tier_tokens": tier.tokens,
        "local_tier_blocks": tier.blocks,
        "fits": missing == 0,
        "missing_bytes": missing,
        "min_tp": memory.min_tp(instance),
        "notes": list(instance.notes),
    }
    if tokens is not None:
        result["kv_bytes_for_tokens"] = tokens * per_token
    return result


def _size(value: float) -> str:
    """Bytes in GB and GiB."""
    return f"{value / GB:,.2f} GB ({value / GIB:,.2f} GiB)"


def _print(result: dict[str, Any]) -> None:
    r = result
    title = f"{r['llm']} on {r['tp']} {r['gpu']}" + (f", EP {r['ep']}" if r["ep"] > 1 else "")
    rows = [
        ["parameters", f"{r['params']:,}"],
        ["parameters one token passes", f"{r['active_params']:,}"],
        ["weights / KV cache", f"{r['weight_dtype']} / {r['kv_dtype']}"],
        ["KV per token, instance", f"{r['kv_bytes_per_token']:,.0f} B"],
        ["KV per token, GPU", f"{r['kv_bytes_per_token_per_gpu']:,.0f} B"],
    ]
    if r["fixed_state_bytes_per_request"]:
        rows.append(["fixed state per request", _size(r["fixed_state_bytes_per_request"])])
    rows += [
        ["usable memory per GPU", _size(r["usable_memory_bytes_per_gpu"])],
        ["− weights", _size(r["weight_bytes_per_gpu"])],
    ]
    if r["expert_weight_bytes_per_gpu"]:
        rows.append(["  of these, experts", _size(r["expert_weight_bytes_per_gpu"])])
    rows += [
        ["− activation peak", _size(r["activation_peak_bytes_per_gpu"])],
        ["− CUDA graphs", _size(r["graph_bytes_per_gpu"])],
        ["− runtime", _size(r["runtime_bytes_per_gpu"])],
        ["local tier, instance", _size(r["local_tier_bytes"])],
        ["local tier, tokens", f"{r['local_tier_tokens']:,}"],
        [f"local tier, blocks of {r['block_tokens']}", f"{r['local_tier_blocks']:,}"],
    ]
    if "kv_bytes_for_tokens" in r:
        rows.append(["the tokens asked for", _size(r["kv_bytes_for_tokens"])])
    if not r["fits"]:
        rows.append(["does not fit, missing", _size(r["missing_bytes"])])
    rows.append(["smallest TP that fits", str(r["min_tp"] or "none")])
    print_table(title, ["", "value"], rows)
    for note in r["notes"]:
        click.echo(f"note: {note}")
