"""Run vidur 0.0.26 in its own environment with constant operator times; prints the seconds.

Usage: ``VIDUR_PYTHON benchmarks/vidur_driver.py REQUESTS`` (called by ``simulator.py``).  Its
measured profiles are downloaded on first use; constants in their place change no part of what is
timed here, the events and batches.
"""
# Runs with another interpreter, which has vidur and not this package.

from __future__ import annotations

import sys
import time
from collections import defaultdict


class _Constant(dict):
    def __missing__(self, key: object) -> float:
        return 0.01


def main() -> None:
    import vidur.execution_time_predictor.sklearn_execution_time_predictor as predictor
    from vidur.main import main as vidur_main

    predictor.SklearnExecutionTimePredictor._load_predictions_from_hf = lambda _: defaultdict(
        _Constant
    )
    requests = sys.argv[1]
    options = {
        "replica_config_model_name": "meta-llama/Llama-2-7b-hf",
        "replica_config_device": "a100",
        "replica_config_network_device": "a100_pairwise_nvlink",
        "cluster_config_num_replicas": "4",
        "request_generator_config_type": "synthetic",
        "synthetic_request_generator_config_num_requests": requests,
        "length_generator_config_type": "fixed",
        "fixed_request_length_generator_config_prefill_tokens": "1024",
        "fixed_request_length_generator_config_decode_tokens": "128",
        "interval_generator_config_type": "poisson",
        "poisson_request_interval_generator_config_qps": "10",
        "replica_scheduler_config_type": "sarathi",
        "global_scheduler_config_type": "lor",
    }
    switched_off = (
        "metrics_config_write_metrics",
        "metrics_config_store_plots",
        "metrics_config_write_json_trace",
        "metrics_config_enable_chrome_trace",
        "random_forrest_execution_time_predictor_config_use_native_execution_time_predictor",
    )
    sys.argv = ["vidur"]
    for name, value in options.items():
        sys.argv += [f"--{name}", value]
    sys.argv += [f"--no-{name}" for name in switched_off]
    start = time.perf_counter()
    vidur_main()
    print(f"SECONDS {time.perf_counter() - start}")


if __name__ == "__main__":
    main()
