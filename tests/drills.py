"""Tests that take long and whose kind a quicker test covers: `make drills` runs them, `make test` does not.

Each entry is the beginning of a test's id, with the reason. An entry that names no test is an error. Some tests of
drawn examples run in both, with fewer examples in `make test`.
"""

from __future__ import annotations

_CONTESTANT = "test_a_contestant_computes_the_same_as_with_all_rows_in_memory"

DRILLS = {
    "tests/planning/test_planner_contract.py::test_a_table_larger_than_any_device_is_split[torchrec]": "others stay",
    "tests/planning/test_planner_contract.py::test_more_memory_never_takes_a_plan_away[torchrec]": "others stay",
    "tests/search/test_search.py::test_an_ensemble_needs_the_runs_of_two_trials": "that of the best trials stays",
    "tests/distributed/test_launch.py::test_torchrun_starts_and_restarts_ranks": (
        "our launcher restarts a killed rank, and torchrun starts the ranks of the benchmarks' lab"
    ),
    "tests/distributed/test_launch.py::test_ctrl_c_saves_on_all_ranks_and_the_command_goes_on[15]": "Ctrl-C stays",
    "tests/distributed/test_training.py::test_a_run_with_ordered_rows_resumes_with_another_planner": (
        "a run resumes on another number of ranks without an order"
    ),
    "tests/end_to_end/test_ingest_command.py::test_readers_with_a_token_and_tls_give_the_same_weights": (
        "tokens and TLS stay in the tests of the readers' network"
    ),
    "tests/training/test_train.py::test_training_resumes_exactly_after_any_signal[9]": (
        "SIGINT stays, and SIGKILL of a run with rows on disk"
    ),
    "tests/data/test_ingest.py::test_a_reader_that_comes_back_is_used_again": "the loss of a reader stays",
    "tests/exporting/test_ensemble_exports.py::test_a_server_predicts_and_ranks_with_the_same_bits": (
        "an ensemble's export gives the same bits without a server, and a server those of other exports"
    ),
    "tests/exporting/test_ensemble_exports.py::test_onnx": "ONNX of single models stays",
    "tests/training/test_scale.py::test_a_signal_keeps_finished_runs_and_the_sweep_resumes[2]": (
        "a training's resume stays, and a signal in the last step of a sweep's run"
    ),
    "tests/cli/test_scale_command.py::test_sweeps_are_trained_drawn_and_compared": "a sweep by the library stays",
    "tests/training/test_scale_mishaps.py::test_a_diverged_size_is_left_out_and_tried_again": "trains eight runs",
    "tests/exporting/test_export_parity.py::test_a_rounded_export_says_what_that_changes[fp16]": "int4 stays",
    "tests/exporting/test_export_parity.py::test_a_rounded_export_says_what_that_changes[int8]": "int4 stays",
    "tests/training/test_snapshots.py::test_a_stopped_run_has_the_snapshots_of_an_uninterrupted_one[None]": "0.9 stays",
    "tests/cli/test_install.py::test_a_failed_install_resumes_and_an_interrupted_one_starts_again": (
        "a second install stays"
    ),
    "tests/exporting/test_dense_graph.py::test_a_models_graph_computes_the_same_bits[dhen-concat-fp32]": "dhen stays",
    "tests/exporting/test_dense_graph.py::test_a_models_graph_computes_the_same_bits[wukong-full-fp32]": (
        "wukong stays"
    ),
    "tests/serving/test_versions.py::test_a_version_equals_the_export_of_its_checkpoint[fp16]": "fp32 and int4 stay",
    "tests/serving/test_versions.py::test_a_version_equals_the_export_of_its_checkpoint[int8]": "fp32 and int4 stay",
    "tests/exporting/test_onnx.py::test_models_on_numbers_or_ids_alone[features0": "ids alone stay",
    "tests/exporting/test_onnx.py::test_models_on_numbers_or_ids_alone[features2": "ids alone stay",
    "tests/features/test_prepare_ray.py::test_workers_that_die_repeatedly_are_an_error": "killed workers stay",
    "tests/serving/test_http_workers.py::test_sigterm_answers_what_was_sent[2]": "one worker stays",
    "tests/checkpoint/test_object_store.py::test_checkpoints_come_back_from_the_store[intermittent]": "others stay",
    "tests/checkpoint/test_object_store.py::test_checkpoints_come_back_from_the_store[consecutive]": "others stay",
    "tests/interactions/test_block_contract.py::test_gradients_equal_finite_differences[ensemble-sum-of-all]": (
        "those of its parts stay"
    ),
    "tests/interactions/test_block_contract.py::test_gradients_equal_finite_differences[ple-two-layers]": "ple stays",
    "tests/distributed/test_shampoo_training.py::test_resuming_between_roots_is_bit_identical": (
        "sharded parameters in the eigenbasis resume between roots as well"
    ),
    **{
        f"tests/bench/test_lab_stop.py::test_options_after_a_module_are_passed_to_it[written{number}]": "one stays"
        for number in (1, 2)
    },
    **{
        f"tests/metrics/test_power_law.py::test_noise_without_a_trend_is_no_power_law[{seed}]": "another seed stays"
        for seed in (2, 3)
    },
    "tests/planning/test_rules.py::test_the_least_memory_is_the_same_whatever_there_is[adam]": "sgd stays",
    "tests/planning/test_autoshard.py::test_by_its_own_costs_no_plan_is_worse_than_the_rules[sgd]": (
        "rowwise_adagrad stays"
    ),
    "tests/planning/test_planner_contract.py::test_a_batch_too_large_for_memory_is_named[recshard, greedy]": (
        "recshard stays"
    ),
    "tests/planning/test_planner_contract.py::test_more_memory_never_takes_a_plan_away[recshard, greedy]": (
        "recshard stays"
    ),
    "tests/training/test_offloaded_run.py::test_a_warm_start_fills_offloaded_rows[False]": "with states stays",
    "tests/towers/test_towers_alone.py::test_a_run_resumes_is_exported_and_predicts[dcn]": "wukong stays",
    "tests/towers/test_partitioner.py::test_groups_are_found_again[8-3]": "others stay",
    "tests/training/test_policy_training.py::test_snapshots_of_rounds_propose_together": "their choice stays",
    "tests/training/test_train.py::test_training_resumes_exactly_after_any_signal[15]": "SIGINT and SIGKILL stay",
    "tests/training/test_scale.py::test_a_signal_keeps_finished_runs_and_the_sweep_resumes[15]": "SIGINT stays",
    "tests/serving/test_ray_serve.py::test_replicas_on_two_hosts": "a cluster takes half a minute; its parts stay",
    "tests/search/test_search_on_ray.py::test_a_stopped_search_resumes": "without Ray it stays",
    "tests/search/pipelines/test_pipelines_of_an_experiment.py::test_the_model_of_the_config_judges": (
        "searches of hyperparameters train their trials in the same way"
    ),
    "tests/search/pipelines/test_estimator.py::test_it_passes_the_checks_of_scikit_learn[cluster]": "standard stays",
    "tests/search/test_search_on_ray.py::test_trials_do_not_outlive_a_search_that_is_killed": "without Ray it stays",
    "tests/training/test_offloaded_run.py::test_training_resumes_exactly_after_a_signal[15]": "SIGKILL stays",
    "tests/training/test_sequence_poolings.py::test_encoders_that_see_the_target_beat_the_mean": "trains to quality",
    "tests/verification/test_damage.py::test_damage_is_named_or_harmless[prepared": "that of a run stays",
    "tests/serving/test_drift.py::test_metrics_and_status_show_drift_and_unknown_ids[2]": "one worker stays",
    "tests/bench/test_tiered_contestants.py": "the smoke run of the benchmark mtrains starts all contestants",
    "tests/bench/test_shampoo_convergence.py::test_every_optimizer_learns_digits": (
        "the smoke run of the benchmark shampoo_convergence trains with all"
    ),
    "tests/bench/test_bench_workloads.py::test_ours_and_the_loop_are_compared_on_rows_held_out": (
        "the smoke run of the benchmark equal_auc does the same"
    ),
    **{
        f"tests/models/test_planted_interaction.py::test_interacting_models_learn_it[{name}]": stays
        for name, stays in {
            "dhen-concat": "dhen stays",
            "dhen-pairs": "dhen stays",
            "wukong-full": "wukong stays",
            "wukong-attentive": "wukong stays",
            "finalmlp-row": "finalmlp stays",
            "masknet-serial": "masknet stays",
            "dcn_v2-low-rank": "dcn_v2 stays",
        }.items()
    },
    **{
        f"tests/models/test_golden_losses.py::test_losses_over_100_steps_are_the_golden_ones[{name}]": stays
        for name, stays in {"dhen-concat": "dhen stays", "autoint-alone": "autoint stays"}.items()
    },
    "tests/distributed/test_faults.py::test_after_a_hang_training_resumes_from_the_checkpoint": (
        "a hang is named and a killed rank is restarted in quicker tests"
    ),
    "tests/distributed/test_row_tiers.py::test_training_equals_a_single_process[8-4]": "4 ranks on 2 hosts stay",
    "tests/distributed/test_row_tiers.py::test_training_equals_a_single_process[4-1]": "4 ranks on 2 hosts stay",
    "tests/distributed/test_use_of_tiers.py::test_an_export_serves_what_the_run_predicts": "a follower stays",
    "tests/distributed/test_tiers_beyond_memory.py": "test_tiered_tables compares such rows in one process group",
    "tests/distributed/test_faults.py::test_a_rank_that_is_slow_for_a_while_is_waited_for": "waits",
    "tests/features/test_compressed_encoders.py::test_a_map_of_ten_million_values": "smaller maps stay",
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
    **{
        f"tests/verification/test_forged.py::{name}-1]": "files of the current version stay"
        for name in (
            "test_a_forged_run[encoders/transform.json",
            "test_a_forged_run[plan.json",
            "test_a_forged_run[results.json",
            "test_a_forged_run[warm_start.json",
            "test_a_forged_dataset[statistics.json",
            "test_a_forged_dataset[encoders/transform.json",
        )
    },
    **{
        f"tests/verification/test_forged.py::test_a_forged_run[{name}]": stays
        for name, stays in {
            "encoders/transform.json-2": "that of a dataset stays",
            "baselines.json-1": "files of the current version stay",
        }.items()
    },
    **{
        f"tests/models/test_golden_losses.py::test_losses_repeat_bit_for_bit[{name}]": "its golden losses stay"
        for name in (
            "dhen",
            "dhen-concat",
            "dhen-pairs",
            "autoint",
            "xdeepfm",
            "wukong-full",
            "wukong-attentive",
            "masknet-serial",
        )
    },
    **{
        f"tests/data/test_block_checksum.py::test_any_bit_of_a_file_is_harmless_or_named[{first}]": "the first stays"
        for first in (3, 6, 9)
    },
    **{
        f"tests/training/test_sequence_poolings.py::test_a_run_resumes_exactly_and_predicts_as_evaluated[{name}]": stays
        for name, stays in {
            "narrow": "all stays",
            "adam": "vectors stays",
            "attention": "all stays",
            "target_attention": "all stays",
            "groups": "all stays",
        }.items()
    },
    **{
        f"tests/features/test_prepare_cluster.py::test_the_dataset_equals_that_of_a_single_process[csv-{split}]": (
            "another split of CSV stays"
        )
        for split in ("split1", "split2", "split5")
    },
    **{
        f"tests/exporting/test_dense_graph.py::test_a_models_graph_computes_the_same_bits[{name}-bf16]": "fp32 stays"
        for name in (
            "logistic_regression",
            "deepfm",
            "dlrm",
            "dcn_v2-parallel",
            "dcn_v2-low-rank",
            "fm",
            "dnn",
            "dnn-mmoe",
            "wide_deep",
            "xdeepfm",
            "autoint",
            "autoint-alone",
            "masknet",
            "masknet-serial",
            "finalmlp",
            "finalmlp-row",
            "finalmlp-ungated",
            "wukong-full",
            "wukong-attentive",
            "dnn-ple",
            "dhen",
            "dhen-concat",
            "dhen-pairs",
        )
    },
    "tests/features/test_prepare_cluster.py::test_cluster_and_single_process_resume_each_other[a cluster-fit-2]": (
        "encode stays"
    ),
    "tests/distributed/test_shampoo_ranks.py::test_every_kind_of_data_parallelism[fsdp-2]": "four ranks stay",
    "tests/distributed/test_shampoo_ranks.py::test_small_blocks_take_the_steps_of_one_rank[2]": "four ranks stay",
    "tests/distributed/test_shampoo_ranks.py::test_fewer_bits_round_updates_and_leave_ranks_equal[bf16": "fp16 stays",
    "tests/training/test_offloaded_run.py::test_an_offloaded_run_equals_the_run_in_memory[sgd]": "adagrad stays",
    "tests/training/test_offloaded_run.py::test_an_offloaded_run_equals_the_run_in_memory[rowwise": "adagrad stays",
    "tests/training/test_train.py::test_every_model_learns_and_resumes_bit_for_bit[dlrm]": "deepfm stays",
    "tests/training/test_train.py::test_every_model_learns_and_resumes_bit_for_bit[dcn_v2]": "deepfm stays",
    **{
        f"tests/towers/test_tower_transform.py::test_rows_and_weights_equal_the_flat_exchange[{shape}]": "4-2 stays"
        for shape in ("8-4", "8-2", "6-3")
    },
    "tests/towers/test_tower_faults.py": "faults of the flat exchange stay",
    "tests/towers/test_tower_training.py::test_two_hosts_of_two_ranks_equal_a_single_process[none_fsdp]": "none stays",
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

_READ = "tests/data/test_read_properties.py::"

FEWER_EXAMPLES = {
    "tests/bench/test_fuzz.py::test_drawn_texts_end_in_rows_or_named_errors": 50,
    "tests/cli/test_init_nested.py::test_init_and_prepare_agree_on_drawn_tables_of_every_format": 6,
    "tests/data/test_dialect.py::test_rewritten_text_has_the_cells_of_the_reference": 200,
    "tests/data/test_json_records.py::test_any_array_is_cut_into_its_elements": 60,
    _READ + "test_fast_and_slow_agree_on_any_csv": 25,
    _READ + "test_fast_and_slow_agree_on_any_json_lines": 25,
    _READ + "test_fast_and_slow_agree_on_any_libsvm": 25,
    _READ + "test_csv_json_lines_and_parquet_of_a_table_give_the_same_rows": 25,
    _READ + "test_block_boundaries_make_no_difference_to_good_rows": 25,
    "tests/planning/test_planner_contract.py::test_plans_are_possible_fit_into_memory_and_repeat": 10,
    "tests/planning/test_planner_contract.py::test_every_weight_is_on_one_device_or_on_all": 10,
    "tests/storage/test_row_log.py::test_rows_read_as_last_written": 10,
    "tests/storage/test_row_log.py::test_the_log_is_cleaned_repeatedly": 8,
}
"""The beginning of a test's id -> its examples in `make test`; `make drills` draws as many as the test says."""
