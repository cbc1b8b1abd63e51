"""The flags that the train.py of slime and miles takes, and which of them a misspelt one may mean.

slime parses its command line with ``ignore_unknown_args``, so it drops an unknown flag without a message; miles stops. Source:
``slime/utils/arguments.py`` and ``scripts/`` of THUDM/slime at 624b824.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import msgspec

from ckptcheck.jobs.framework import find_closest_name, split_names
from ckptcheck.jobs.key_names import is_slip

OWN = split_names("""
    actor_num_gpus_per_node actor_num_nodes advantage_estimator allgather_cp apply_chat_template
    apply_chat_template_kwargs async_save balance_by_flops balance_data buffer_filter_path calculate_per_token_loss
    check_weight_update_equal ci_disable_kl_checker ci_load_grad_norm ci_save_grad_norm ci_test
    ci_train_rollout_logprob_abs_diff_threshold clip_grad colocate custom_advantage_function_path custom_config_path
    custom_convert_samples_to_train_data_path custom_eval_rollout_log_function_path custom_generate_function_path
    custom_loss_function_path custom_megatron_before_log_prob_hook_path custom_megatron_before_train_step_hook_path
    custom_megatron_init_path custom_model_provider_path custom_pg_loss_reducer_function_path
    custom_reward_post_process_path custom_rm_path custom_rollout_log_function_path custom_tis_function_path
    custom_update_weight_post_write_path data_pad_size_multiplier data_source_path debug_rollout_only debug_train_only
    disable_compute_advantages_and_returns disable_grpo_std_normalization disable_rewards_normalization
    disable_rollout_global_dataset disable_wandb_random_suffix distributed_backend distributed_timeout_minutes
    dump_details dynamic_sampling_filter_path enable_mtp_training entropy_coef eps_clip eps_clip_c eps_clip_high
    eval_config eval_function_path eval_input_key eval_interval eval_label_key eval_max_context_len eval_max_prompt_len
    eval_max_response_len eval_min_new_tokens eval_prompt_data eval_reward_key eval_temperature eval_tool_key eval_top_k
    eval_top_p fetch_trajectory_retry_times freeze_indexer freeze_params_name_list gamma get_mismatch_metrics
    global_batch_size group_rm hf_checkpoint http_proxy input_key keep_old_actor kl_coef kl_loss_coef kl_loss_type
    label_key lambd load load_debug_rollout_data load_debug_rollout_data_subsample load_forge_rollout_data
    log_correct_samples log_multi_turn log_passrate log_probs_chunk_size log_probs_max_tokens_per_gpu
    log_reward_category loss_mask_type loss_type lr mask_offpolicy_in_partial_rollout max_tokens_per_gpu
    megatron_config_path megatron_deepgemm_forward_layers megatron_deepgemm_forward_modules
    megatron_deepgemm_moe_forward_layers megatron_deepgemm_moe_forward_modules memory_recorder memory_snapshot_dir
    memory_snapshot_num_steps metadata_key micro_batch_size min_batch_collection_ratio model_name
    mtp_loss_scaling_factor mtp_num_layers multimodal_keys n_samples_per_eval_prompt n_samples_per_prompt no_save_optim
    normalize_advantages num_critic_only_steps num_epoch num_gpus_per_node num_rollout num_steps_per_rollout offload
    offload_rollout offload_train only_train_params_name_list opd_kl_coef opd_teacher_ckpt_step opd_teacher_load
    opd_type opsm_delta over_sampling_batch_size padded_vocab_size partial_rollout profile_target prompt_data
    qwen_gdn_backend recompute_loss_function record_memory_history ref_ckpt_step ref_load ref_update_interval
    release_train reset_optimizer_states reward_key rm_type rm_url rollout_all_samples_process_path rollout_batch_size
    rollout_buffer_url rollout_data_postprocess_path rollout_data_transport rollout_external_engine_addrs
    rollout_function_path rollout_health_check_first_wait rollout_health_check_interval rollout_health_check_timeout
    rollout_max_context_len rollout_max_prompt_len rollout_max_response_len rollout_num_gpus rollout_num_gpus_per_engine
    rollout_sample_filter_path rollout_sample_hook_path rollout_seed rollout_shuffle rollout_skip_special_tokens
    rollout_stop rollout_stop_token_ids rollout_task_type rollout_temperature rollout_top_k rollout_top_p save
    save_debug_rollout_data save_debug_train_data save_hf save_interval seed skip_eval_before_train start_rollout_id
    tb_experiment_name tb_project_name tis_clip tis_clip_low tool_key train_backend train_env_vars
    update_weight_buffer_size update_weight_delta_checksum update_weight_delta_encoding update_weight_disk_dir
    update_weight_disk_keep_files update_weight_local_checkpoint_dir update_weight_mode update_weight_transport
    update_weights_interval use_distributed_post use_dynamic_batch_size use_fault_tolerance use_kl_loss use_opd use_opsm
    use_rollout_entropy use_rollout_logprobs use_rollout_routing_replay use_routing_replay use_stateless_adam
    use_tensorboard use_tis use_unbiased_kl use_wandb value_clip wandb_always_use_train_step wandb_dir wandb_group
    wandb_host wandb_key wandb_mode wandb_project wandb_run_id wandb_team
""")
"""slime's own flags."""
OF_PATCH = split_names("""
    activation_func_clamp_shared_expert dsv4_compress_ratios dsv4_compress_rope_theta dsv4_hc_mult
    dsv4_hc_sinkhorn_iters dsv4_n_hash_layers dsv4_o_groups dsv4_o_lora_rank dsv4_window_size
    freeze_e_score_correction_bias moe_router_freeze_gate post_mlp_layernorm post_self_attn_layernorm
    use_gated_attention
""")
"""Those that patches of Megatron add: docker/patch of THUDM/slime at 624b824, scripts of radixark/miles at 31f1ca961."""
OF_MILES = split_names("""
    allow_partial_train_step async_data_buffer_capacity_factor async_max_concurrent_samples
    async_unused_samples_handler chat_template_path check_lora_weight_equal
    check_rematerialize_param_from_master_weight check_weight_update_allow_quant_error check_weight_update_selector
    check_weight_update_skip_list ci_check_model_hash ci_disable_logprobs_checker ci_disable_weight_update_checker
    ci_ft_test_actions ci_inject_rollout_data_min_match_ratio ci_inject_rollout_data_path
    ci_inject_rollout_data_start_rollout_id ci_metric_checker_key ci_metric_checker_threshold ci_save_model_hash
    control_server_port critic_load critic_lr critic_lr_warmup_iters critic_num_gpus_per_node critic_num_nodes
    critic_save custom_async_data_buffer_path custom_megatron_post_save_hook_path dashboard_flush_interval
    dashboard_forward_prometheus dashboard_gpu_sample_interval dashboard_sglang_metrics
    dashboard_sglang_scrape_interval dashboard_sglang_scrape_mode debug_deterministic_collective
    debug_disable_optimizer debug_exit_after_rollout debug_skip_weight_update delay_split_train_data_by_dp
    disable_rollout_trim_samples dsa_attention_backend dumper_dir dumper_enable dumper_fwd_bwd dumper_fwd_only
    dumper_inference dumper_source_patcher_config_inference dumper_source_patcher_config_train enable_event_analyzer
    enable_witness env_report eval_hf_dir eval_keep_snapshots eval_max_in_flight eval_num_gpus
    eval_num_gpus_per_engine eval_overflow_policy exclude_modules experts_shared_outer_loras
    extra_high_precision_layers_hf extra_high_precision_layers_megatron ft_components fully_async indep_dp
    linear_attention_backend lora_adapter_path lora_alpha lora_base_cpu_backup lora_dropout lora_rank
    lora_sync_from_tensor lora_train_only lora_type low_memory_resume max_weight_staleness megatron_to_hf_mode
    mfu_peak_tflops miles_dsa_topk_backend miles_router_health_check_failure_threshold miles_router_max_connections
    miles_router_timeout mini_ft_controller_enable mini_ft_controller_poll_interval mini_ft_controller_resume_delay
    mlflow_experiment_name mlflow_run_id mlflow_run_name mlflow_tracking_uri moe_input_jitter_eps
    moe_router_force_biased moe_router_force_load_balancing mooncake_replica_num mooncake_store_init_kwargs
    multi_lora_adapter multi_lora_api_port multi_lora_backend_path multi_lora_disable_service_mode
    multi_lora_http_server_path multi_lora_idle_poll_s multi_lora_max_adapter_global_batch_size
    multi_lora_max_coalesce_wait_s multi_lora_max_empty_wait_s multi_lora_n_adapters
    no_sglang_lora_use_virtual_experts object_store_backend observe_training_entropy offload_rollout_level
    offload_train_disk_chunk_mb offload_train_disk_dir offload_train_target opd_log_prob_top_k
    opd_reward_weight_mode opd_teacher_key opd_teacher_urls opd_top_k_strategy opd_topk_per_position
    p2p_transfer_num_workers p2p_transfer_timeout pause_generation_mode pin_rollout_manager_to_head
    prefill_num_servers prometheus_port prometheus_run_name qkv_format recompute_logprobs_via_prefill
    rematerialize_param_from_master_weight rollout_external rollout_submission_granularity save_debug_event_data
    save_debug_trajectory_data save_local_weight_checksum save_trigger_sentinel session_message_matcher
    session_sample_picker_path session_sample_postprocessor_path session_server_ip session_server_port
    skip_actor_forward_only stream_optimizer_state_moment_dtype stream_optimizer_state_to_disk target_modules
    tito_model train_memory_margin_bytes true_on_policy_mode update_weight_transfer_mode
    use_dynamic_global_batch_size use_indexer_replay use_miles_dashboard use_miles_router use_mlflow use_prometheus
    use_rollout_indexer_replay use_session_server witness_buffer_size
""")
"""The flags that miles has beside slime's: ``miles/utils/arguments.py`` of radixark/miles at 31f1ca961."""
OLDER = split_names("""
    agent_rollout_buffer_url buffer_read_function_path buffer_write_function_path critic_config_path
    critic_train_only custom_delta_pre_push_path custom_delta_pre_read_path disable_recompute_loss_function
    disable_weights_backuper diversity_sampling_filter_path enable_off_policy_correction experimental_offload
    int4_params_rollout miles_router_enable_token_input_for_chat_completions miles_router_middleware_paths num_proc
    off_policy_correction_clip_threshold offload_old_actor offload_ref offload_train_mode
    over_sampling_filter_input_size over_sampling_filter_path partial_rollout_filter_path
    partial_rollout_min_response_length partial_rollout_min_tokens partial_rollout_mix_ratio ref_micro_batch_size
    rollout_num_gpus_per_node sampling_batch_size skip_warmup slime_router_health_check_failure_threshold
    slime_router_max_connections slime_router_middleware_paths slime_router_timeout tito_allowed_append_roles
    update_rollout_weights_interval update_weight_delta_dir update_weight_delta_keep_files update_weight_encoding
    use_hf_config_for_megatron use_http2 use_slime_router use_token_output
""")
"""Those that only older commits of ``utils/arguments.py`` of both have: a job of such a version may write them."""
PREFIXES = ("sglang_", "router_", "eval_sglang_", "trainer_heartbeat_checker_")
"""Begin the flags that both take from SGLang's servers and router, and miles from a class of its own."""


class MegatronFlags(msgspec.Struct, frozen=True):
    """The names of Megatron's flags in all its releases: ``megatron_flags.json``, of fixtures/learn_megatron_flags.py."""

    repository: str
    """The repository on GitHub: owner/name."""
    commit: str
    """The newest commit that was read."""
    date: str
    """The date of that commit."""
    names: frozenset[str]


@cache
def load_megatron_flags() -> MegatronFlags:
    """Return Megatron's flags."""
    return msgspec.json.decode(Path(__file__).with_name("megatron_flags.json").read_bytes(), type=MegatronFlags)


@cache
def list_known_flags() -> frozenset[str]:
    """Return the names of all flags of slime, miles and Megatron."""
    return OWN | OF_PATCH | OF_MILES | OLDER | load_megatron_flags().names


def find_meant_flag(name: str) -> str:
    """Return the flag that a misspelt one means; "" if the name is known, or resembles none.

    >>> find_meant_flag("debug_rolout_only"), find_meant_flag("rollout_only_debug"), find_meant_flag("debug_rollouts_only")
    ('debug_rollout_only', 'debug_rollout_only', 'debug_rollout_only')
    >>> find_meant_flag("rollout_batch_size"), find_meant_flag("adam_beta3"), find_meant_flag("no_offload_train")
    ('', '', '')
    """
    known = list_known_flags()
    if name in known or name.removeprefix("no_") in known:
        return ""
    near = find_closest_name(name, known)
    return near if is_slip(name, near) or sorted(name.split("_")) == sorted(near.split("_")) else ""
