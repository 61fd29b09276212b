// Above all a table: a row a name, or for names that mean the same.
#include "engine/config/foreign.h"

#include <vector>

#include "sdk/base/words.h"

namespace meshwright::config {
namespace {

constexpr const char* kAccumulation =
    "accumulation is derived: global_batch_size = local_batch_size * data-parallel ranks * "
    "accumulation";
constexpr const char* kEpochs = "a whole number, in place of step_scheduler.max_steps";
constexpr const char* kStages = "explicit stages are named there, all modules of each";
constexpr const char* kReported =
    "Every step's loss, norm, speed and memory go to metrics.jsonl in the run's folder; nothing "
    "has to be switched on.";
constexpr const char* kEnableCompile =
    "what stands for a compiler: layers as CUDA graphs where the job allows it";
constexpr const char* kCompile =
    "There is no compiler to set up; distributed.fsdp2.enable_compile is what stands for one.";
constexpr const char* kEventFiles = "event files lie in the run's folder, in tensorboard/";
constexpr const char* kWorkers =
    "Samples are read from mapped files by threads (dataset.workers) and all have seq_len tokens, "
    "so "
    "there is nothing to collate, pin or drop.";
constexpr const char* kTokenizer =
    "rows of chats and texts are read with it; without one the tokenizer beside config.json "
    "counts, "
    "and `meshwright tokenize FILES --tokenizer FOLDER --out X.bin` makes token data";
constexpr const char* kTokenizerBesideModel =
    "The tokenizer lies beside config.json; dataset.jsonl.tokenizer names another for rows, "
    "`meshwright tokenize FILES --tokenizer FOLDER --out X.bin` makes token data with it.";
constexpr const char* kOneOptimizer = "There is one implementation of each optimizer.";
constexpr const char* kSizesOfModel =
    "Sizes and settings of a model stand in the config.json that model.config or model.pretrained "
    "names: change them there.";
constexpr const char* kOtherModel =
    "Meshwright trains one model on the next token of text; there is no second model beside it.";
constexpr const char* kLaunch =
    "The number of ranks is the launcher's: meshwright train FILE --nproc N, torchrun or srun.";
constexpr const char* kAdapters =
    "adapters of that rank; lora.alpha and lora.target_modules say the rest";
constexpr const char* kKernels =
    "Attention uses LibTorch's scaled dot product; there are no kernels to choose.";
constexpr const char* kFloat8 =
    "true: Linears of layers, each matrix scaled by its largest element; there are no other "
    "recipes "
    "and no list of modules";
constexpr const char* kRemote =
    "Code that comes with a model is never run; the families built in are read from config.json.";
constexpr const char* kLoss =
    "The loss is the mean cross-entropy of the next token; it cannot be chosen.";
constexpr const char* kLocal = "a folder of this machine, never the name of a model on the hub";
constexpr const char* kPathOfText =
    "a file, folder or pattern of this machine; dataset.kind says what is in it";
constexpr const char* kPreferences =
    "Meshwright trains on the next token of text; preferences and rewards are not learnt.";
constexpr const char* kHub =
    "Results stay on this machine: `hf upload NAME FOLDER` sends an exported folder.";
constexpr const char* kSpecialTokens =
    "Special tokens are those of the tokenizer's folder: change them in tokenizer_config.json.";
constexpr const char* kTrainOn = "\"assistant\" for answers alone, \"all\" for prompts, too";
constexpr const char* kFewBits = "a base of 4 or 8 bits is not in this version";
constexpr const char* kProfile =
    "meshwright train FILE --trace writes a Chrome trace of every rank.";

// Names that mean the same stand in one row, with '|' between them.
struct Row {
  const char *names, *key, *note;
  Carry carry = Carry::told;
};
constexpr Row kRows[] = {
    // torchtitan
    {"job.dump_folder|global.dump_folder", "run.dir", "", Carry::as_is},
    {"job.description", "run.name", "a folder of this name is made in run.dir"},
    {"job.print_config|job.print_args", "", "meshwright config show FILE prints every value."},
    {"job.config_file", "", "The file is named on the command line: meshwright train FILE."},
    {"job.save_config_file", "", "The configuration is always written to the run's folder."},
    {"job.custom_config_module|experimental.custom_import|experimental.custom_args_module", "",
     "There are no Python modules here; plugins are named in [plugins]."},
    {"model.name", "model.config",
     "the path of a Hugging Face config.json; model.pretrained is a folder with weights"},
    {"model.flavor", "model.config", "sizes stand in the Hugging Face config.json that it names"},
    {"model.hf_assets_path", "model.config",
     "the folder's config.json for random weights, or the folder as model.pretrained for its "
     "weights",
     Carry::special},
    {"model.tokenizer_path", "", kTokenizerBesideModel},
    {"model.norm_type|model.attn_mask_type|model.use_flex_attn", "", kSizesOfModel},
    {"model.converters", "model.float8_linear", kFloat8, Carry::special},
    {"model.print_after_conversion", "", "meshwright plan FILE tells every parameter and unit."},
    {"float8.enable_float8_linear|training.enable_float8_linear|training.enable_fp8_linear|"
     "training.fp8_linear",
     "model.float8_linear", kFloat8, Carry::special},
    {"float8|mx|quantize", "model.float8_linear", kFloat8},
    {"hf_transformers.model", "model.config",
     "the path of a Hugging Face config.json on this machine"},
    {"optimizer.beta1", "optimizer.betas", "the first of its two numbers", Carry::special},
    {"optimizer.beta2", "optimizer.betas", "the second of its two numbers", Carry::special},
    {"optimizer.implementation|optimizer.fused|optimizer.foreach|optimizer.amsgrad|"
     "optimizer.bias_correction|optimizer.store_param_remainders|optimizer.compress_state_dict",
     "", kOneOptimizer},
    {"optimizer.exp_avg_dtype|optimizer.exp_avg_sq_dtype", "optimizer.main_dtype",
     "the optimizer's state has the dtype of its weights"},
    {"optimizer.master_weights", "optimizer.main_dtype",
     "\"float32\" for weights kept beside narrower ones", Carry::special},
    {"optimizer.master_weight_dtype", "optimizer.main_dtype", "", Carry::special},
    {"optimizer.master_weight_bits", "optimizer.main_dtype", "\"float32\"", Carry::special},
    {"optimizer.param_group_overrides", "optimizer.group.pattern",
     "an [[optimizer.group]] for each, with lr_factor; * is any run of characters there"},
    {"optimizer.early_step_in_backward", "",
     "Gradients are summed over micro-batches before the optimizer's step."},
    {"lr_scheduler.warmup_steps|training.warmup_steps", "lr_scheduler.lr_warmup_steps", "",
     Carry::as_is},
    {"training.warmup_pct", "lr_scheduler.lr_warmup_steps",
     "a number of steps: warmup_pct * step_scheduler.max_steps", Carry::special},
    {"lr_scheduler.total_steps", "step_scheduler.max_steps", "the schedule ends with the run"},
    {"lr_scheduler.decay_type", "lr_scheduler.lr_decay_style", "constant, linear, cosine or wsd",
     Carry::special},
    {"lr_scheduler.decay_ratio", "lr_scheduler.lr_decay_style",
     "\"constant\" never decays, \"wsd\" over the last 10% of the steps, the others over all after "
     "the warm-up",
     Carry::special},
    {"lr_scheduler.min_lr_factor|lr_scheduler.lr_min", "lr_scheduler.min_lr",
     "min_lr = min_lr_factor * optimizer.lr", Carry::special},
    {"training.dataset", "dataset.path", kPathOfText},
    {"training.dataset_path", "dataset.path", kPathOfText, Carry::special},
    {"training.local_batch_size|training.batch_size", "step_scheduler.local_batch_size", "",
     Carry::as_is},
    {"training.global_batch_size", "step_scheduler.global_batch_size", "a number; there is no -1",
     Carry::special},
    {"training.seq_len", "dataset.seq_len", "", Carry::as_is},
    {"training.max_norm", "optimizer.max_grad_norm", "", Carry::as_is},
    {"training.steps", "step_scheduler.max_steps", "", Carry::as_is},
    {"training.dtype", "model.torch_dtype", "", Carry::as_is},
    {"training.mixed_precision_param", "distributed.mp_policy.param_dtype", "", Carry::as_is},
    {"training.mixed_precision_reduce", "distributed.mp_policy.reduce_dtype", "", Carry::as_is},
    {"training.enable_cpu_offload", "distributed.fsdp2.offload_policy",
     "\"cpu\" for true, \"none\" for false", Carry::special},
    {"training.gc_freq|training.gc_debug", "", "There is no garbage collector."},
    {"training.deterministic", "run.deterministic", "", Carry::as_is},
    {"training.seed|debug.seed", "run.seed", "", Carry::as_is},
    {"debug.deterministic", "run.deterministic", "", Carry::as_is},
    {"debug.deterministic_warn_only", "run.deterministic",
     "true or false; there is no warning only"},
    {"debug.moe_force_load_balance", "distributed.moe.fake_balanced_gate", "", Carry::as_is},
    {"parallelism.data_parallel_replicate_degree|training.data_parallel_replicate_degree",
     "distributed.dp_replicate_size", "", Carry::as_is},
    {"parallelism.data_parallel_shard_degree|training.data_parallel_shard_degree|"
     "training.data_parallel_degree",
     "distributed.dp_size", "dp_size = replicate degree * shard degree, or \"auto\"",
     Carry::special},
    {"parallelism.fsdp_reshard_after_forward|training.fsdp_reshard_after_forward",
     "distributed.fsdp2.reshard_after_forward",
     "\"auto\" for default, true for always, false for never", Carry::special},
    {"parallelism.tensor_parallel_degree|training.tensor_parallel_degree|"
     "training.sequence_parallel_degree",
     "distributed.tp_size", "", Carry::degree},
    {"parallelism.enable_sequence_parallel", "distributed.sequence_parallel", "", Carry::as_is},
    {"experimental.torch_spmd", "", kCompile},
    {"parallelism.disable_loss_parallel|training.enable_loss_parallel", "",
     "The loss is computed on full logits of each rank's tokens."},
    {"parallelism.enable_async_tensor_parallel|experimental.enable_async_tensor_parallel",
     "distributed.enable_async_tensor_parallel", "", Carry::as_is},
    {"parallelism.pipeline_parallel_degree|training.pipeline_parallel_degree|"
     "experimental.pipeline_parallel_degree",
     "distributed.pp_size", "", Carry::degree},
    {"parallelism.pipeline_parallel_schedule|experimental.pipeline_parallel_schedule",
     "distributed.pipeline.pp_schedule", "", Carry::as_is},
    {"parallelism.pipeline_parallel_split_points|experimental.pipeline_parallel_split_points",
     "distributed.pipeline.module_fqns_per_model_part", kStages},
    {"experimental.pipeline_parallel_microbatches", "distributed.pipeline.pp_microbatch_size",
     "samples of each: local_batch_size / microbatches"},
    {"parallelism.pipeline_parallel_schedule_csv|experimental.pipeline_parallel_schedule_csv",
     "distributed.pipeline.pp_schedule_csv", "", Carry::special},
    {"parallelism.pipeline_parallel_microbatch_size", "distributed.pipeline.pp_microbatch_size", "",
     Carry::as_is},
    {"parallelism.pipeline_parallel_layers_per_stage", "distributed.pipeline.layers_per_stage", "",
     Carry::as_is},
    {"parallelism.pipeline_parallel_first_stage_less_layers",
     "distributed.pipeline.first_stage_less_layers", "", Carry::as_is},
    {"parallelism.pipeline_parallel_last_stage_less_layers",
     "distributed.pipeline.last_stage_less_layers", "", Carry::as_is},
    {"parallelism.module_fqns_per_model_part", "distributed.pipeline.module_fqns_per_model_part",
     "", Carry::as_is},
    {"parallelism.pipeline_parallel_expert_parallel_overlap", "", "There is no such overlap here."},
    {"parallelism.context_parallel_degree|experimental.context_parallel_degree",
     "distributed.cp_size", "", Carry::degree},
    {"parallelism.context_parallel_load_balancer", "distributed.context.load_balancer",
     "\"headtail\" or \"none\"", Carry::special},
    {"parallelism.context_parallel_rotate_method|experimental.context_parallel_rotate_method",
     "distributed.context.method", "\"all_gather\" for allgather, \"ring\" for alltoall",
     Carry::special},
    {"parallelism.expert_parallel_degree", "distributed.ep_size", "", Carry::degree},
    {"parallelism.expert_tensor_parallel_degree", "",
     "Experts are not cut by tensor parallelism here; their ranks divide the experts."},
    {"parallelism.expert_parallel_comm_backend", "distributed.moe.dispatcher",
     "\"all_to_all\" or \"all_gather\"", Carry::special},
    {"checkpoint.enable|checkpoint.enable_checkpoint", "checkpoint.every_steps",
     "0 saves only at the end of the run", Carry::special},
    {"checkpoint.folder|training.checkpoint_folder", "run.dir",
     "checkpoints lie in <run.dir>/<run.name>/checkpoints", Carry::special},
    {"checkpoint.interval_type|training.checkpoint_interval_type", "checkpoint.every_steps",
     "saves are counted in steps"},
    {"checkpoint.interval|training.checkpoint_interval", "checkpoint.every_steps", "",
     Carry::special},
    {"checkpoint.keep_latest_k", "checkpoint.keep", "", Carry::special},
    {"checkpoint.async_mode", "checkpoint.async", "true for async, false for disabled",
     Carry::special},
    {"checkpoint.initial_load_path", "model.pretrained",
     "a Hugging Face folder; checkpoint.resume takes a checkpoint of this program"},
    {"checkpoint.initial_load_model_only", "model.pretrained",
     "a Hugging Face folder, of which weights alone are read"},
    {"checkpoint.initial_load_in_hf", "model.pretrained", "always a Hugging Face folder"},
    {"checkpoint.initial_load_in_hf_quantized", "", "Quantized weights are not read."},
    {"checkpoint.last_save_in_hf", "checkpoint.export", "\"final\" for true, \"none\" for false",
     Carry::special},
    {"checkpoint.last_save_model_only|checkpoint.last_save_model_weights_only|"
     "checkpoint.model_weights_only",
     "checkpoint.export", "\"final\" writes a Hugging Face folder of the weights alone"},
    {"checkpoint.export_dtype", "",
     "An export has the dtypes of the model it started from; `meshwright checkpoint export "
     "--dtype` writes another."},
    {"checkpoint.load_step", "checkpoint.resume", "the path of that step's checkpoint",
     Carry::special},
    {"checkpoint.load_only", "", "Checkpoints are always saved at the end of the run."},
    {"checkpoint.exclude_from_loading", "", "A checkpoint is read whole."},
    {"checkpoint.create_seed_checkpoint", "",
     "Every layout starts from the same weights, so no seed checkpoint is needed."},
    {"checkpoint.enable_first_step_checkpoint", "checkpoint.every_steps", "1 saves every step"},
    {"training.enable_selective_ac", "distributed.activation_checkpointing",
     "\"selective\" recomputes the mlp and both norms of every layer"},
    {"activation_checkpoint.mode", "distributed.activation_checkpointing",
     "none, full or selective", Carry::special},
    {"activation_checkpoint.selective_ac_option", "distributed.activation_checkpointing",
     "\"selective\" recomputes the mlp and both norms of every layer"},
    {"compile.enable|compile.enabled|training.compile", "distributed.fsdp2.enable_compile",
     kEnableCompile},
    {"compile.components|compile.backend|compile.mode|compile.fullgraph|compile.dynamic|"
     "compile.options|compile.dynamo_cache_size_limit",
     "", kCompile},
    {"comm.init_timeout_seconds", "dist_env.timeout_minutes",
     "in minutes; there is one limit for all", Carry::special},
    {"comm.train_timeout_seconds", "dist_env.timeout_minutes",
     "in minutes; there is one limit for all", Carry::special},
    {"comm.trace_buf_size", "", kProfile},
    {"metrics.enable_tensorboard", "report.tensorboard", "", Carry::as_is},
    {"metrics.save_tb_folder", "report.tensorboard", kEventFiles},
    {"tensorboard.enable|tensorboard.enabled", "report.tensorboard", "", Carry::as_is},
    {"tensorboard", "report.tensorboard", kEventFiles},
    {"metrics.log_freq|metrics.enable_wandb|metrics.rank_0_only", "", kReported},
    {"metrics.disable_color_printing|metrics.enable_color_printing", "",
     "Colours are switched by --color and NO_COLOR."},
    {"profiling.enable_profiling|profiling.run_profiler", "", kProfile},
    {"profiling", "", kProfile},
    {"validation.enable|validation.enabled", "validation_dataset.path",
     "a validation runs when data is named", Carry::special},
    {"validation.dataset", "validation_dataset.path", kPathOfText, Carry::special},
    {"validation.dataset_path", "validation_dataset.path", kPathOfText, Carry::special},
    {"validation.freq", "validation_dataset.every_steps", "", Carry::special},
    {"validation.steps", "validation_dataset.num_batches", "", Carry::special},
    {"validation.seq_len", "validation_dataset.seq_len", "", Carry::special},
    {"validation.local_batch_size", "step_scheduler.local_batch_size", "validation uses the same"},
    {"fault_tolerance.enable", "",
     "A run that was stopped goes on from its last checkpoint; there is nothing to switch on."},
    {"memory_estimation.enable", "",
     "meshwright plan FILE --world-size N tells the memory of every rank."},
    // Automodel
    {"recipe", "", "meshwright train FILE trains; there is one recipe."},
    {"seed", "run.seed", "", Carry::as_is},
    {"rng.seed", "run.seed", "", Carry::special},
    {"rng.ranked", "", "Every rank draws its own dropout, from one seed."},
    {"step_scheduler.ckpt_every_steps", "checkpoint.every_steps", "", Carry::special},
    {"step_scheduler.val_every_steps", "validation_dataset.every_steps", "", Carry::special},
    {"step_scheduler.num_epochs", "step_scheduler.epochs", kEpochs, Carry::special},
    {"step_scheduler.gc_every_steps", "", "There is no garbage collector."},
    {"step_scheduler.log_remote_every_steps|step_scheduler.loss_average_window_steps", "",
     kReported},
    {"step_scheduler.start_step|step_scheduler.start_epoch", "checkpoint.resume",
     "a run goes on from the step of its checkpoint"},
    {"lr_scheduler.lr_decay_steps", "step_scheduler.max_steps", "the schedule ends with the run",
     Carry::special},
    {"lr_scheduler.init_lr", "lr_scheduler.lr_warmup_steps",
     "the warm-up begins at lr / lr_warmup_steps", Carry::special},
    {"lr_scheduler.max_lr", "optimizer.lr", "", Carry::special},
    {"lr_scheduler.wsd_decay_steps", "lr_scheduler.lr_decay_style",
     "\"wsd\" decays linearly over the last 10% of the steps", Carry::special},
    {"lr_scheduler.lr_wsd_decay_style", "lr_scheduler.lr_decay_style",
     "\"wsd\" decays linearly over the last 10% of the steps", Carry::special},
    {"lr_scheduler.start_wd|lr_scheduler.end_wd|lr_scheduler.wd_incr_steps|"
     "lr_scheduler.wd_incr_style",
     "optimizer.weight_decay", "one number for the whole run"},
    {"lr_scheduler.use_checkpoint_opt_param_scheduler|lr_scheduler.override_opt_param_scheduler",
     "checkpoint.resume", "the schedule is always that of the file, at the checkpoint's step"},
    {"step_scheduler.save_checkpoint_every_epoch", "checkpoint.every_steps",
     "saves are counted in steps"},
    {"step_scheduler.grad_acc_steps", "step_scheduler.global_batch_size", kAccumulation},
    {"model.pretrained_model_name_or_path", "model.pretrained", kLocal, Carry::special},
    {"model.config.pretrained_model_name_or_path|model.config.name_or_path", "model.config",
     "the path of a config.json on this machine", Carry::special},
    {"model.trust_remote_code|model.config.trust_remote_code", "", kRemote},
    {"model.attn_implementation|model.use_liger_kernel|model.use_sdpa_patching", "", kKernels},
    {"model.config|model.text_config|model.vocab_size|model.n_positions|model.n_embd|model.n_layer|"
     "model.n_head|model.output_hidden_states|model.num_labels",
     "", kSizesOfModel},
    {"model.backend", "", kKernels},
    {"model.backend.fake_balanced_gate", "distributed.moe.fake_balanced_gate", "", Carry::as_is},
    {"model.dtype", "model.torch_dtype", "", Carry::as_is},
    {"clip_grad_norm.max_norm|recipe_args.max_grad_norm|max_grad_norm", "optimizer.max_grad_norm",
     "", Carry::as_is},
    {"checkpoint.enabled", "checkpoint.every_steps", "0 saves only at the end of the run",
     Carry::special},
    {"checkpoint.checkpoint_dir", "run.dir", "checkpoints lie in <run.dir>/<run.name>/checkpoints",
     Carry::special},
    {"checkpoint.model_save_format", "", "Checkpoints are safetensors."},
    {"checkpoint.save_consolidated", "checkpoint.export",
     "\"final\" or \"every\" for true, \"none\" for false", Carry::special},
    {"checkpoint.restore_from", "checkpoint.resume",
     "a checkpoint of this program; model.pretrained takes a Hugging Face folder"},
    {"checkpoint.is_async", "checkpoint.async", "", Carry::as_is},
    {"checkpoint.max_recent_checkpoints|checkpoint.keep_last_n", "checkpoint.keep",
     "\"none\" there keeps all", Carry::special},
    {"checkpoint.best_metric_key", "checkpoint.best",
     "true keeps the checkpoint of the lowest validation loss"},
    {"checkpoint", "",
     "Checkpoints are safetensors with global shapes, written and read in one way."},
    {"dataset.paths", "dataset.path", kPathOfText, Carry::special},
    {"dataset.path_or_dataset_id", "dataset.path", kPathOfText, Carry::special},
    {"dataset.path_or_dataset|dataset.dataset_name", "dataset.path", kPathOfText},
    {"dataset.file_pattern", "dataset.path", kPathOfText, Carry::special},
    {"dataset.split|dataset.name|dataset.splits_to_build", "dataset.path",
     "name the files of that part"},
    {"dataset.num_workers", "dataset.workers", "", Carry::as_is},
    {"dataset.chat_template", "dataset.jsonl.chat_template",
     "a file, a template's name or \"chatml\"", Carry::special},
    {"dataset.mask_history", "dataset.jsonl.train_on", "\"last\" for true", Carry::special},
    {"dataset.answer_only_loss_mask", "dataset.jsonl.train_on",
     "\"assistant\" for true, \"all\" for false", Carry::special},
    {"dataset.truncation|dataset.truncate", "dataset.jsonl.truncate", "right, left or drop"},
    {"dataset.padding|dataset.pad_to_max_length|dataset.unshifted", "", kWorkers},
    {"dataset.column_mapping", "dataset.jsonl.format",
     "rows have prompt and completion, messages, or text: rename other columns", Carry::special},
    {"dataset.dataset_info|dataset.grouped_datasets", "dataset.mix.path",
     "a [[dataset.mix]] for each, with its weight"},
    {"dataset.vocab_size|dataset.batch_size|dataset.prompt|dataset.completion", "",
     "Mock data is of the model's vocabulary and of the run's batches."},
    {"dataset.num_samples|dataset.limit_dataset_samples|dataset.num_samples_limit", "",
     "Data is read whole; max_steps * global_batch_size samples of it train."},
    {"dataset.index_mapping_dir", "",
     "Megatron's index is used as it is; nothing is written beside it."},
    {"dataset.tokenizer.pretrained_model_name_or_path", "dataset.jsonl.tokenizer", kTokenizer,
     Carry::special},
    {"tokenizer", "dataset.jsonl.tokenizer", kTokenizer},
    {"dataset.seq_length|dataset.max_length|dataset.max_seq_len", "dataset.seq_len", "",
     Carry::as_is},
    {"dataset.seed|dataset.shuffle_seed", "run.seed",
     "one seed orders the samples and starts the weights"},
    {"validation_dataset.paths", "validation_dataset.path", kPathOfText, Carry::special},
    {"validation_dataset.path_or_dataset_id", "validation_dataset.path", kPathOfText,
     Carry::special},
    {"validation_dataset.path_or_dataset|validation_dataset.dataset_name",
     "validation_dataset.path", kPathOfText},
    {"validation_dataset.split|validation_dataset.name|validation_dataset.splits_to_build",
     "validation_dataset.path", "name the files of that part"},
    {"validation_dataset.chat_template", "validation_dataset.jsonl.chat_template",
     "a file, a template's name or \"chatml\"", Carry::special},
    {"validation_dataset.mask_history", "validation_dataset.jsonl.train_on", "\"last\" for true",
     Carry::special},
    {"validation_dataset.answer_only_loss_mask", "validation_dataset.jsonl.train_on",
     "\"assistant\" for true, \"all\" for false", Carry::special},
    {"validation_dataset.truncation", "validation_dataset.jsonl.truncate", "right, left or drop"},
    {"validation_dataset.tokenizer.pretrained_model_name_or_path",
     "validation_dataset.jsonl.tokenizer", kTokenizer, Carry::special},
    {"validation_dataset.column_mapping", "validation_dataset.jsonl.format",
     "rows have prompt and completion, messages, or text: rename other columns", Carry::special},
    {"validation_dataset.padding|validation_dataset.pad_to_max_length|"
     "validation_dataset.unshifted",
     "", kWorkers},
    {"validation_dataset.num_samples|validation_dataset.limit_dataset_samples|"
     "validation_dataset.num_samples_limit|validation_dataset.num_val_samples",
     "validation_dataset.num_batches", "global batches a validation"},
    {"validation_dataset.shuffle_seed|validation_dataset.seed", "run.seed",
     "one seed orders the samples and starts the weights"},
    {"validation_dataset.index_mapping_dir", "",
     "Megatron's index is used as it is; nothing is written beside it."},
    {"validation_dataset.file_pattern", "validation_dataset.path", kPathOfText, Carry::special},
    {"validation_dataset.seq_length|validation_dataset.max_length", "validation_dataset.seq_len",
     "", Carry::special},
    {"packed_sequence.packed_sequence_size", "dataset.seq_len",
     "token data is one stream, cut into samples of that length; rows are packed as "
     "dataset.jsonl.packing says",
     Carry::special},
    {"packed_sequence", "dataset.jsonl.packing",
     "best fit, in order, or one row a sample; token data is always one stream"},
    {"dataloader.shuffle|data.dataloader.shuffle", "dataset.shuffle", "", Carry::as_is},
    {"dataloader.num_workers|data.dataloader.num_workers", "dataset.workers", "", Carry::as_is},
    {"dataloader.collate_fn|dataloader.pin_memory|dataloader.persistent_workers|"
     "dataloader.prefetch_factor|dataloader.drop_last|dataloader.dataloader_type|"
     "dataloader.group_by_length|data.dataloader.drop_last|data.dataloader.pin_memory|"
     "data.dataloader.prefetch_factor|data.dataloader.persistent_workers",
     "", kWorkers},
    {"dataloader.batch_size", "step_scheduler.local_batch_size", ""},
    {"validation_dataloader.num_workers", "validation_dataset.workers", "", Carry::special},
    {"validation_dataloader.shuffle", "validation_dataset.shuffle", "", Carry::special},
    {"validation_dataloader.collate_fn|validation_dataloader.pin_memory|"
     "validation_dataloader.persistent_workers|validation_dataloader.prefetch_factor|"
     "validation_dataloader.drop_last|validation_dataloader.dataloader_type",
     "", kWorkers},
    {"validation_dataloader.batch_size", "step_scheduler.local_batch_size",
     "validation uses the same"},
    {"loss_fn", "", kLoss},
    {"peft", "lora.r", kAdapters},
    {"peft.dim", "lora.r", "", Carry::as_is},
    {"peft.alpha", "lora.alpha", "", Carry::as_is},
    {"peft.dropout", "lora.dropout", "", Carry::special},
    {"peft.target_modules", "lora.target_modules",
     "last parts of names (\"q_proj\"), \"all-linear\", or a pattern of full names",
     Carry::special},
    {"peft.match_all_linear", "lora.target_modules", "\"all-linear\" for true", Carry::special},
    {"peft.exclude_modules", "lora.exclude_modules",
     "last parts of names (\"q_proj\"), or a pattern of full names", Carry::special},
    {"peft.use_dora", "lora.dora", "", Carry::as_is},
    {"peft.use_rslora|use_rslora|peft_use_rslora", "lora.rslora", "", Carry::as_is},
    {"peft.lora_A_init", "lora.init", "kaiming or gaussian", Carry::special},
    {"peft.lora_dtype", "model.torch_dtype", "the dtype of what trains"},
    {"peft.dropout_position|peft.use_memory_efficient_lora|peft.use_triton|peft.moe_rank_scaling",
     "", "Adapters are computed in one way: what they read is dropped, then two products."},
    {"quantization|qat", "lora.base_dtype", kFewBits},
    {"compile|torch_compile", "distributed.fsdp2.enable_compile", kEnableCompile},
    {"fp8", "model.float8_linear", kFloat8},
    {"fp8.enabled", "model.float8_linear", kFloat8, Carry::special},
    {"teacher_model|teacher_distributed|kd_ratio|kd_loss_fn|offload_teacher_model", "",
     kOtherModel},
    {"wandb|mlflow|comet", "", kReported},
    {"ci", "", "Settings of another project's tests."},
    {"benchmark", "", "meshwright train prints and records the speed of every step."},
    {"optimizer.group.lr|optimizer.group.learning_rate", "optimizer.group.lr_factor",
     "a factor of optimizer.lr, so that the schedule is of all: 0.1 for a tenth of it"},
    {"freeze_config", "optimizer.group.frozen",
     "true in an [[optimizer.group]] whose pattern names the parameters"},
    {"distributed.backend", "dist_env.backend", ""},
    // Hugging Face's Trainer, launch scripts and other programs; known in every table.
    {"learning_rate", "optimizer.lr", "", Carry::as_is},
    {"gradient_accumulation_steps|grad_accumulation_steps|accumulate_grad_batches",
     "step_scheduler.global_batch_size", kAccumulation},
    {"per_device_train_batch_size|micro_batch_size|train_micro_batch_size_per_gpu",
     "step_scheduler.local_batch_size", "", Carry::as_is},
    {"train_batch_size", "step_scheduler.global_batch_size", "", Carry::as_is},
    {"batch_size", "step_scheduler.local_batch_size",
     "samples a rank and micro-batch; step_scheduler.global_batch_size is the whole step's"},
    {"per_device_eval_batch_size|eval_batch_size", "step_scheduler.local_batch_size",
     "validation uses the same"},
    {"max_seq_length|max_seq_len|max_length|model_max_length|block_size|sequence_length|seq_length|"
     "context_length|sequence_len|cutoff_len",
     "dataset.seq_len", "", Carry::as_is},
    {"packing", "dataset.packing",
     "true for token data; rows are packed as dataset.jsonl.packing says"},
    {"num_train_epochs|num_epochs|epochs|max_epochs", "step_scheduler.epochs", kEpochs},
    {"max_train_steps|num_training_steps|train_iters|max_iters", "step_scheduler.max_steps", "",
     Carry::as_is},
    {"total_steps", "step_scheduler.max_steps", ""},
    {"warmup_steps|num_warmup_steps|warmup_iters", "lr_scheduler.lr_warmup_steps", "",
     Carry::as_is},
    {"warmup_ratio", "lr_scheduler.lr_warmup_steps",
     "a number of steps: warmup_ratio * step_scheduler.max_steps"},
    {"lr_scheduler_type", "lr_scheduler.lr_decay_style", "constant, linear, cosine or wsd"},
    {"bf16", "distributed.mp_policy.param_dtype",
     "\"bfloat16\", which is its default; model.torch_dtype is how the weights are stored"},
    {"fp16", "distributed.mp_policy.param_dtype",
     "\"float16\"; optimizer.loss_scale scales losses, optimizer.dynamic_loss_scale = true goes "
     "on past gradients that overflow"},
    {"fp32", "distributed.mp_policy.param_dtype",
     "\"float32\"; model.torch_dtype is how the weights are stored"},
    {"tf32|allow_tf32", "run.float32_matmul_precision", "\"high\" for true, \"highest\" for false",
     Carry::special},
    {"mixed_precision", "distributed.mp_policy.param_dtype",
     "a dtype; the other keys of [distributed.mp_policy] go with it"},
    {"precision", "distributed.mp_policy.param_dtype",
     "a dtype; model.torch_dtype is how the weights are stored"},
    {"gradient_checkpointing", "distributed.activation_checkpointing", "\"full\" for true",
     Carry::special},
    {"activation_recomputation", "distributed.activation_checkpointing", "none, full or selective"},
    {"data_seed", "run.seed", "one seed orders the samples and starts the weights"},
    {"output_dir", "run.dir", "results go to <run.dir>/<run.name>", Carry::as_is},
    {"save_dir|dump_folder", "run.dir", "results go to <run.dir>/<run.name>"},
    {"checkpoint_dir", "run.dir", "checkpoints lie in <run.dir>/<run.name>/checkpoints"},
    {"run_name|experiment_name", "run.name", "", Carry::as_is},
    {"save_steps|save_interval", "checkpoint.every_steps", "", Carry::as_is},
    {"save_strategy|saves_per_epoch|save_first_step", "checkpoint.every_steps",
     "saves are counted in steps"},
    {"save_total_limit", "checkpoint.keep", "", Carry::as_is},
    {"eval_steps", "validation_dataset.every_steps", ""},
    {"eval_strategy|evaluation_strategy|evals_per_epoch", "validation_dataset.every_steps",
     "validations are counted in steps"},
    {"logging_steps|logging_dir|report_to", "", kReported},
    {"resume_from_checkpoint|auto_resume_from_checkpoints", "checkpoint.resume",
     "\"auto\" goes on by itself"},
    {"adam_beta1", "optimizer.betas", "the first of its two numbers"},
    {"adam_beta2", "optimizer.betas", "the second of its two numbers"},
    {"beta1", "optimizer.betas", "the first of its two numbers"},
    {"beta2", "optimizer.betas", "the second of its two numbers"},
    {"adam_epsilon|epsilon", "optimizer.eps", "", Carry::as_is},
    {"optim", "optimizer.name", "adamw or sgd"},
    {"wd", "optimizer.weight_decay", ""},
    {"clip_grad_norm|grad_clip|gradient_clipping|gradient_clip_val|max_norm",
     "optimizer.max_grad_norm", ""},
    {"model_name_or_path|pretrained_model_name_or_path|model_path|model_id|base_model",
     "model.pretrained", kLocal},
    {"base_model_config", "model.config", "the path of a config.json on this machine"},
    {"train_file|train_data_path|data_path|dataset_name|dataset_path", "dataset.path", kPathOfText},
    {"validation_file|val_data_path", "validation_dataset.path", kPathOfText},
    {"fsdp|fsdp_config", "distributed.strategy",
     "\"fsdp2\"; its options stand in [distributed.fsdp2]"},
    {"cpu_offload|fsdp.cpu_offload", "distributed.fsdp2.offload_policy",
     "\"cpu\" for true, \"none\" for false"},
    {"autocast.dtype|autocast.enabled", "distributed.autocast_dtype", "a dtype, or \"none\""},
    {"deepspeed|zero_stage", "distributed.strategy",
     "\"megatron_fsdp\" has the levels of ZeRO as zero_dp_strategy, \"fsdp2\" is level 3"},
    {"tensor_parallel_size|tensor_model_parallel_size|tp_degree|tp", "distributed.tp_size", "",
     Carry::degree},
    {"pipeline_parallel_size|pipeline_model_parallel_size|pp_degree|pp", "distributed.pp_size", "",
     Carry::degree},
    {"context_parallel_size|sequence_parallel_degree|cp_degree|cp", "distributed.cp_size", "",
     Carry::degree},
    {"expert_parallel_size|expert_model_parallel_size|ep", "distributed.ep_size", "",
     Carry::degree},
    {"data_parallel_size|dp", "distributed.dp_size", "", Carry::degree},
    {"world_size|num_gpus|num_processes|nproc_per_node", "", kLaunch},
    {"use_cpu", "dist_env.device", "\"cpu\""},
    {"ddp_timeout", "dist_env.timeout_minutes", "in minutes", Carry::seconds},
    {"attn_implementation|flash_attention", "", kKernels},
    {"dataloader_num_workers|num_workers", "dataset.workers", "", Carry::as_is},
    {"pin_memory|dataloader_drop_last", "", kWorkers},
    {"tokenizer_path|tokenizer_name|tokenizer_config", "dataset.jsonl.tokenizer", kTokenizer},
    {"trust_remote_code", "", kRemote},
    {"use_lora|use_peft|lora_r|lora_rank|lora_dim", "lora.r", kAdapters},
    {"lora.rank", "lora.r", kAdapters, Carry::as_is},
    {"lora_alpha", "lora.alpha", "", Carry::as_is},
    {"lora_dropout", "lora.dropout", "", Carry::as_is},
    {"lora_target_modules", "lora.target_modules", "", Carry::as_is},
    {"lora_target_linear", "lora.target_modules", "\"all-linear\" for true", Carry::special},
    {"lora_target_parameters", "lora.target_modules",
     "names of Linears; experts that lie in one weight get no adapters"},
    {"lora_rank_pattern", "lora.rank_pattern", "{ q_proj = 16 }"},
    {"lora_alpha_pattern", "lora.alpha_pattern", "{ q_proj = 16 }"},
    {"lora_model_dir", "lora.adapter", "a folder with adapter_config.json", Carry::special},
    {"peft_init_lora_weights", "lora.init", "kaiming or gaussian"},
    {"use_dora|peft_use_dora", "lora.dora", "", Carry::as_is},
    {"lora_modules_to_save|unfrozen_parameters", "optimizer.group.frozen",
     "false in an [[optimizer.group]] whose pattern names what trains as a whole beside the "
     "adapters"},
    {"load_in_4bit|load_in_8bit|bnb_4bit_quant_type|bnb_4bit_quant_storage|use_bnb_nested_quant|"
     "bnb_config_kwargs|gptq|quantize_moe_experts|model_quantization_config|"
     "model_quantization_config_kwargs",
     "lora.base_dtype", kFewBits},
    // TRL's arguments, and what axolotl has beside those of the Trainer.
    {"gradient_checkpointing_kwargs", "", "Layers are recomputed in one way."},
    {"activation_offloading", "distributed.activation_checkpointing",
     "\"full\" keeps the least of a layer; nothing of it goes to the host"},
    {"lr_scheduler_kwargs", "lr_scheduler.min_lr", "a rate: the ratio times optimizer.lr",
     Carry::special},
    {"optim_args|optim_target_modules", "optimizer.name", "adamw or sgd"},
    {"neftune_noise_alpha|label_smoothing_factor", "", kLoss},
    {"average_tokens_across_devices", "",
     "A step's loss is always the mean of all its targets, on all ranks."},
    {"ddp_find_unused_parameters", "distributed.strategy",
     "\"ddp\" has find_unused_parameters in its table"},
    {"dp_shard_size", "distributed.dp_size", "dp_size = dp_replicate_size * dp_shard_size",
     Carry::special},
    {"fsdp_version", "distributed.strategy", "\"fsdp2\""},
    {"use_tensorboard", "report.tensorboard", "", Carry::as_is},
    {"push_to_hub|hub_model_id|hub_model_revision|hub_strategy|hub_private_repo|hub_token|"
     "push_dataset_to_hub",
     "", kHub},
    {"do_train|do_eval|log_level|overwrite_output_dir|disable_tqdm|logging_strategy|log_"
     "completions",
     "", "The verb says what is done: train, evaluate or generate."},
    {"wandb_project|mlflow_tracking_uri|comet_project_name|swanlab_project|use_swanlab|"
     "trackio_project_name|use_trackio",
     "", kReported},
    {"remove_unused_columns|skip_prepare_dataset|dataset_num_proc|dataset_prepared_path|group_by_"
     "length|"
     "pad_to_sequence_len|pad_to_multiple_of|padding_free|low_cpu_mem_usage",
     "", kWorkers},
    {"use_liger_kernel|liger_rms_norm|use_kernels|lora_mlp_kernel|lora_qkv_kernel|lora_o_kernel|"
     "cut_cross_entropy|flash_attn_cross_entropy|sdp_attention|xformers_attention|"
     "flex_attention|experts_implementation|use_scattermoe|use_sonicmoe",
     "", kKernels},
    {"special_tokens|added_tokens_overrides|eos_token|pad_token|eot_tokens|"
     "resize_token_embeddings_to_32x",
     "", kSpecialTokens},
    {"model_config", "", kSizesOfModel},
    {"strict", "", "A key that is not known is always refused."},
    {"model_type|tokenizer_type|is_llama_derived_model", "",
     "The family of a model is read from its config.json."},
    {"model_revision|revision_of_model", "", "A folder of this machine is one revision."},
    {"processor_type|freeze_mm_modules", "", "Text alone trains; images and sounds are not read."},
    {"rl|trl|ebft|kto|reward_model|max_prompt_length|max_completion_length|num_generations|ref_"
     "model|"
     "precompute_ref_log_probs",
     "", kPreferences},
    {"dataset_text_field|text_column", "dataset.jsonl.format",
     "rows have prompt and completion, messages, or text: rename other columns", Carry::special},
    {"chat_template_path", "dataset.jsonl.chat_template", "a file, a template's name or \"chatml\"",
     Carry::special},
    {"assistant_only_loss|completion_only_loss|train_on_inputs|roles_to_train",
     "dataset.jsonl.train_on", kTrainOn, Carry::special},
    {"truncation_mode|excess_length_strategy", "dataset.jsonl.truncate", "right, left or drop",
     Carry::special},
    {"eval_sample_packing|eval_packing", "validation_dataset.jsonl.packing",
     "best fit, in order, or one row a sample"},
    {"packing_strategy|sample_packing|sample_packing_sequentially", "dataset.jsonl.packing",
     "best fit, in order, or one row a sample; token data is always one stream", Carry::special},
    {"val_set_size|test_split_size|test_datasets|dataset_test_split", "validation_dataset.path",
     "rows that are held out are a file of their own"},
    {"dataset_train_split|dataset_config|dataset_mixture|dataset_mixer|pretraining_dataset",
     "dataset.path", kPathOfText},
    {"shuffle_merged_datasets|shuffle_dataset", "dataset.shuffle", "", Carry::special},
    {"early_stopping_patience|load_best_model_at_end|metric_for_best_model", "checkpoint.best",
     "true keeps the checkpoint of the lowest validation loss; the run goes to its end"},
    {"loss_watchdog_threshold|loss_watchdog_patience", "run.skip_step_above_z",
     "a step whose loss stands out is left out"},
    {"save_only_model", "checkpoint.export",
     "\"final\" or \"every\" writes a Hugging Face folder of the weights alone"},
};

}  // namespace

std::span<const ForeignName> foreign_names() {
  static const std::vector<ForeignName> all = [] {
    std::vector<ForeignName> names;
    for (const Row& row : kRows) {
      const std::vector<std::string> all_of_row = text::split(row.names, '|');
      for (const std::string& name : all_of_row)
        names.push_back({name, row.key, row.note, row.carry, all_of_row[0]});
    }
    return names;
  }();
  return all;
}

const ForeignName* find_foreign_whole(std::string_view written) {
  for (const ForeignName& known : foreign_names())
    if (known.name == written) return &known;
  return nullptr;
}

const ForeignName* find_foreign(std::string_view written) {
  if (const ForeignName* whole = find_foreign_whole(written)) return whole;
  size_t dot = written.rfind('.');
  return dot == std::string_view::npos ? nullptr : find_foreign_whole(written.substr(dot + 1));
}

const ForeignName* find_foreign_elsewhere(std::string_view last) {
  const ForeignName* only = nullptr;
  for (const ForeignName& known : foreign_names()) {
    const std::string_view name = known.name;
    if (name == "lora.rank") continue;  // elsewhere a rank is a process
    if (name.size() <= last.size() || !name.ends_with(last) ||
        name[name.size() - last.size() - 1] != '.')
      continue;
    if (only != nullptr && std::string_view(only->key) != known.key) return nullptr;
    only = &known;
  }
  return only;
}

std::string foreign_text(const ForeignName& name, std::string_view written) {
  std::string note = name.note, text(written);
  if (*name.key == '\0') return text + " has no counterpart here: " + note;
  return text + " is " + name.key + " here" + (note.empty() ? "" : ": " + note);
}

}  // namespace meshwright::config
