"""Tests that take long and whose kind a quicker test covers: `make drills` runs them, `make test` does not.

Each entry is the beginning of a test's id, with the reason. An entry that names no test is an error.
"""

from __future__ import annotations

_CONTESTANT = "test_a_contestant_computes_the_same_as_with_all_rows_in_memory"

DRILLS = {
    "tests/training/test_train.py::test_training_resumes_exactly_after_any_signal[15]": "SIGINT and SIGKILL stay",
    "tests/training/test_scale.py::test_a_signal_keeps_finished_runs_and_the_sweep_resumes[15]": "SIGINT stays",
    "tests/training/test_offloaded_run.py::test_training_resumes_exactly_after_a_signal[15]": "SIGKILL stays",
    "tests/training/test_sequence_poolings.py::test_encoders_that_see_the_target_beat_the_mean": "trains to quality",
    "tests/distributed/test_faults.py::test_after_a_hang_training_resumes_from_the_checkpoint": (
        "a hang is named and a killed rank is restarted in quicker tests"
    ),
    "tests/distributed/test_faults.py::test_a_rank_that_is_slow_for_a_while_is_waited_for": "waits",
    "tests/distributed/test_launch.py::test_torchrun_joins_the_ranks_of_two_hosts": "torchrun on one host stays",
    **{
        f"tests/distributed/test_training.py::test_losses_and_weights_equal_a_single_process[{name}]": stays
        for name, stays in {
            "accumulated_fsdp": "accumulated and fsdp stay",
            "weightless_batches_sockets": "weightless_batches and sockets stay",
            "weightless_batches_fsdp": "weightless_batches and fsdp stay",
            "ordered_rows_weights_and_averages": "ordered_rows and norms_weights_and_averages stay",
            "label_kinds_fsdp": "label_kinds and fsdp stay",
            "ddp_small_buckets": "ddp stays",
            "hsdp": "fsdp stays",
        }.items()
    },
    **{
        f"tests/distributed/test_training.py::test_the_parallelism_of_the_dense_part_changes_nothing[{name}]": stays
        for name, stays in {"ddp_small_buckets": "no_pipeline and sockets stay", "hsdp": "fsdp stays"}.items()
    },
    **{
        f"tests/distributed/test_training.py::test_plans_of_all_planners_equal_a_single_process[{name}-four]": (
            "two ranks stay, and recshard and autoshard on four"
        )
        for name in ("rules", "baseline", "refined", "torchrec")
    },
    "tests/distributed/test_parity.py": "the smoke run of the benchmark rank_parity does the same",
    "tests/distributed/test_resumed_deltas.py::test_resuming_from_a_delta_changes_nothing[4]": "two ranks stay",
    "tests/distributed/test_resumed_deltas.py::test_resuming_from_a_delta_changes_nothing[1]": "two ranks stay",
    "tests/distributed/test_shampoo_training.py::test_sharded_parameters_equal_replicated_ones_bit_for_bit[hsdp]": (
        "fsdp stays"
    ),
    "tests/distributed/test_offload_ranks.py::test_two_ranks_with_offloaded_tables_equal_two_in_memory[sgd]": (
        "adagrad, which has a state, stays"
    ),
    "tests/distributed/test_offload_ranks.py::test_two_ranks_with_offloaded_tables_equal_two_in_memory[rowwise": (
        "adagrad stays"
    ),
    "tests/distributed/test_offload_ranks.py::test_recshard_uses_memory_and_disk_as_two_tiers[2MB/s]": (
        "the one with the measured rate stays"
    ),
    "tests/metrics/test_power_law.py::test_intervals_cover_the_true_constants_as_often_as_they_say": "200 fits",
    "tests/planning/test_planner_contract.py::test_plans_are_possible_fit_into_memory_and_repeat[autoshard, not": (
        "autoshard stays"
    ),
    "tests/planning/test_planner_contract.py::test_plans_are_possible_fit_into_memory_and_repeat[recshard, greedy]": (
        "recshard stays"
    ),
    "tests/features/test_prepare_interrupted.py::test_a_repeatedly_killed_preparation_gives_the_same_bytes[2]": (
        "SIGKILL stays"
    ),
    "tests/features/test_prepare_ray.py::test_the_command_prepares_on_a_cluster_by_its_address": "a local one stays",
    "tests/bench/test_scaling_law.py::test_the_log_needs_interactions_of_every_order": "trains to quality",
    "tests/bench/test_quality.py::test_a_trial_is_trained_once_and_a_failed_one_is_quoted": "smoke runs train trials",
    "tests/bench/test_checkpoint_benches.py::test_fewer_bits_write_less_and_restores_of_32_bits_are_exact": (
        "the smoke run of the benchmark checkpoint_bytes does the same"
    ),
    "tests/bench/test_bench_workloads.py::test_every_contestant_learns": "the smoke run of throughput trains with all",
    "tests/bench/test_lab_stop.py::test_a_signal_ends_the_ranks_and_removes_the_hosts[2-130]": "SIGTERM stays",
    "tests/bench/test_lab.py::test_ranks_on_two_hosts_communicate_over_the_link": (
        "the smoke run of the benchmark lab_collectives does the same"
    ),
    "tests/data/test_ingest.py::test_no_row_is_lost_or_repeated_when_a_reader_is_lost[9-False]": "the costly one stays",
    "tests/data/test_ingest.py::test_no_row_is_lost_or_repeated_when_a_reader_is_lost[19-False]": "SIGKILL stays",
    "tests/models/test_model_contract.py::test_compiled_model_gives_the_same_logits[deepfm]": "wukong stays",
    "tests/models/test_model_contract.py::test_compiled_model_gives_the_same_logits[dcn_v2]": "wukong stays",
    "tests/training/test_scale_mishaps.py::test_fewer_seeds_and_sizes_keep_finished_runs": "trains eight runs",
    "tests/training/test_scale_mishaps.py::test_a_longer_training_leaves_out_shorter_runs": "trains eight runs",
    **{
        f"tests/bench/test_tiered_contestants.py::{_CONTESTANT}[{kind}]": "one stays, and the smoke run starts all"
        for kind in ("lru", "paging", "3dxp", "nand", "no_look_ahead", "rocksdb")
    },
}
