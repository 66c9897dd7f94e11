#include "config/schema.h"

#include <limits.h>
#include <string.h>

#include "base/fatal.h"
#include "config/config.h"

#define AT(field) .offset = offsetof(Config, field), .width = sizeof(((const Config *)NULL)->field)
#define LIST(field, count)                                                                                             \
    .offset = offsetof(Config, field), .width = sizeof(((const Config *)NULL)->field[0]),                              \
    .capacity = (int)(sizeof(((const Config *)NULL)->field) / sizeof(((const Config *)NULL)->field[0])),               \
    .extra = offsetof(Config, count)
#define COMMON(path_, type_, class_, initial_, help_)                                                                  \
    .path = (path_), .type = (type_), .identity = CLASS_##class_, .initial = (initial_), .help = (help_)
#define BOOL(path_, field, class_, initial_, help_)                                                                    \
    { COMMON(path_, KEY_BOOL, class_, initial_, help_), AT(field) }
#define INT(path_, field, class_, initial_, lo, hi, help_)                                                             \
    { COMMON(path_, KEY_INT, class_, initial_, help_), AT(field), .min = (lo), .max = (hi) }
#define INT_AUTO(path_, field, class_, initial_, lo, hi, auto_, help_)                                                 \
    {                                                                                                                  \
        COMMON(path_, KEY_INT, class_, initial_, help_), AT(field), .min = (lo), .max = (hi), .word = "auto",          \
                                                                    .word_value = (auto_)                              \
    }
/* Bounds: [lo, hi], (lo, hi], [lo, hi). */
#define REAL(path_, field, class_, initial_, lo, hi, help_)                                                            \
    { COMMON(path_, KEY_DOUBLE, class_, initial_, help_), AT(field), .min = (lo), .max = (hi) }
#define REAL_ABOVE(path_, field, class_, initial_, lo, hi, help_)                                                      \
    { COMMON(path_, KEY_DOUBLE, class_, initial_, help_), AT(field), .min = (lo), .max = (hi), .min_open = true }
#define REAL_BELOW(path_, field, class_, initial_, lo, hi, help_)                                                      \
    { COMMON(path_, KEY_DOUBLE, class_, initial_, help_), AT(field), .min = (lo), .max = (hi), .max_open = true }
#define ENUM(path_, field, class_, initial_, names_, help_)                                                            \
    { COMMON(path_, KEY_ENUM, class_, initial_, help_), AT(field), .names = (names_) }
#define SWITCH(path_, field, class_, initial_, names_, on, help_)                                                      \
    {                                                                                                                  \
        COMMON(path_, KEY_ENUM, class_, initial_, help_), AT(field), .names = (names_), .true_name = (on),             \
                                                                     .false_name = "off"                               \
    }
#define NAME(path_, field, class_, initial_, names_, help_)                                                            \
    { COMMON(path_, KEY_NAME, class_, initial_, help_), AT(field), .names = (names_) }
#define TEXT(path_, field, class_, initial_, help_)                                                                    \
    { COMMON(path_, KEY_TEXT, class_, initial_, help_), AT(field) }

/* Far beyond any use, and low enough that no product of sizes leaves 64 bits. */
enum { WIDTH_MAX = 1 << 22, HEADS_MAX = 65536, AXIS_MAX = 65536, TOKENS_MAX = 1 << 24, SMALL_MAX = 1000000000 };
#define COUNT_MAX 1e12
#define RATE_MAX 1e6

/* clang-format off */
static const KeySpec keys[] = {
    {COMMON("model", KEY_MODEL, NEVER, NULL, "the architecture: a file of models/, or its keys as a mapping"), AT(model_path)},
    NAME("model.family", model.family, NEVER, "llama", "llama", "Llama, Qwen2, Qwen3, Mistral, SmolLM are all of this family"),
    INT("model.d_model", model.d_model, NEVER, NULL, 1, WIDTH_MAX, "width of the residual stream"),
    INT("model.n_layers", model.n_layers, NEVER, NULL, 1, 1000, "decoder layers"),
    INT("model.n_heads", model.n_heads, NEVER, NULL, 1, HEADS_MAX, "query heads"),
    INT("model.n_kv_heads", model.n_kv_heads, NEVER, NULL, 1, HEADS_MAX, "key and value heads; divides n_heads"),
    INT("model.head_dim", model.head_dim, NEVER, NULL, 2, 4096, "width of a head; even"),
    INT("model.d_ff", model.d_ff, NEVER, NULL, 1, WIDTH_MAX, "width of the feed-forward layer"),
    INT("model.vocab_size", model.vocab_size, NEVER, NULL, 1, TOKENS_MAX, "token ids 0 .. vocab_size - 1; 256 for text"),
    INT("model.max_seq_len", model.max_seq_len, NEVER, "2048", 1, TOKENS_MAX, "longest sequence"),
    REAL_ABOVE("model.rope_theta", model.rope_theta, NEVER, "10000.0", 0, 1e12, "base of the rotary frequencies"),
    REAL_ABOVE("model.norm_eps", model.norm_eps, NEVER, "1.0e-5", 0, 1, "epsilon of RMSNorm"),
    BOOL("model.tie_embeddings", model.tie_embeddings, NEVER, "false", "the head is the embedding"),
    BOOL("model.qkv_bias", model.qkv_bias, NEVER, "false", "biases on q, k and v (Qwen2)"),
    BOOL("model.qk_norm", model.qk_norm, NEVER, "false", "RMSNorm on every query and key head (Qwen3)"),
    REAL("model.init_std", model.init_std, NEVER, "0.02", 0, 100, "standard deviation of the initial weights"),

    NAME("device", device, FREE, "auto", "auto|cpu|cuda", "auto: cuda if built in and a GPU is there, else cpu"),
    ENUM("numerics.mode", numerics.fast, NEVER, "exact", "exact|fast", "exact: the same bits on every mesh; `numerics: exact` is short for it"),
    INT("numerics.segments", numerics.segments, NEVER, "8", 1, 64, "segments of the dimensions that tp cuts; a power of two, lowered to what divides the model"),
    ENUM("precision.compute", precision.compute, IDENTITY, "f32", "f32|tf32|bf16", "weights, activations and their gradients in the model; tf32 on cuda only; exact requires f32"),
    ENUM("precision.wire", precision.wire, IDENTITY, "f32", "f32|bf16", "weights in flight, and what every rank reads of them; exact requires f32"),
    ENUM("precision.grad_reduce", precision.grad_reduce, IDENTITY, "f32", "f32|bf16", "gradients in flight; exact requires f32"),
    INT("seed", seed, IDENTITY, "1234", 0, 9007199254740991.0, "initial weights, order of the data, draws"),
    INT_AUTO("threads", threads, FREE, "auto", 1, 1024, 0, "per rank; auto: OMP_NUM_THREADS, else the cores of the affinity mask shared by the node's ranks"),

    INT_AUTO("mesh.replicate", mesh.replicate, FREE, "1", 1, AXIS_MAX, 0, "R; world = R*G*T; one axis may be auto"),
    INT_AUTO("mesh.shard", mesh.shard, FREE, "1", 1, AXIS_MAX, 0, "G"),
    INT_AUTO("mesh.tp", mesh.tp, FREE, "1", 1, AXIS_MAX, 0, "T; divides n_heads, n_kv_heads, d_ff and the segments"),

    ENUM("parallel.data", parallel.data, FREE, "fsdp", "fsdp|ddp", "fsdp: every weight has one home; ddp: every rank keeps all weights"),
    BOOL("parallel.reshard_after_forward.muon", parallel.reshard_muon, FREE, "true", "true: Z3, false: Z2; a single boolean sets both"),
    BOOL("parallel.reshard_after_forward.adamw", parallel.reshard_adamw, FREE, "true", "the same for the AdamW parameters"),
    INT("parallel.prefetch", parallel.prefetch, FREE, "1", 0, 1024, "units unsharded ahead"),
    ENUM("parallel.accumulate", parallel.accumulate, FREE, "reduce", "reduce|local", "reduce gradients after every micro-batch, or once per step"),
    SWITCH("parallel.tp_buffer_reuse", parallel.tp_buffer_reuse, FREE, "off", "off|gather|scatter|all", "all", "keep tp scratch between steps; false: off, true: all"),
    ENUM("parallel.recompute", parallel.recompute, FREE, "none", "none|layer", "layer: recompute a layer's activations in backward"),
    ENUM("parallel.owner.strategy", parallel.owner.strategy, FREE, "lpt", "lpt|round_robin|rank0", "who owns which Muon matrix"),
    NAME("parallel.owner.cost", parallel.owner.cost, FREE, "flops", "flops", "what lpt balances"),
    INT("parallel.owner.max_per_layer", parallel.owner.max_per_layer, FREE, "0", 0, 1 << 20, "owners per layer at most; 0: no limit"),
    INT_AUTO("parallel.owner.small_param_threshold", parallel.owner.small_param_threshold, FREE, "auto", 0, COUNT_MAX, -1,
        "matrices below it travel as one per layer; elements; auto: the smaller of 5,000,000 and P_M/(64*R*G)"),
    BOOL("parallel.owner.column_balance", parallel.owner.column_balance, FREE, "true", "balance the shard columns before the slots"),

    REAL("optimizer.muon.lr", optimizer.muon.lr, IDENTITY, "0.02", 0, RATE_MAX, "learning rate of the Muon matrices"),
    REAL_BELOW("optimizer.muon.momentum", optimizer.muon.momentum, IDENTITY, "0.95", 0, 1, "mu"),
    BOOL("optimizer.muon.nesterov", optimizer.muon.nesterov, IDENTITY, "true", "orthogonalise g + mu*M instead of M"),
    REAL("optimizer.muon.weight_decay", optimizer.muon.weight_decay, IDENTITY, "0.0", 0, RATE_MAX, "decoupled, times lr"),
    ENUM("optimizer.muon.scale", optimizer.muon.scale, IDENTITY, "match_rms", "match_rms|spectral", "0.2*sqrt(max(m, n)), or sqrt(max(1, m/n))"),
    {COMMON("optimizer.muon.match", KEY_TEXTS, IDENTITY, "auto", "auto: the matrices of the decoder layers; or globs of parameter names"),
        LIST(optimizer.muon.match, optimizer.muon.match_count), .word = "auto"},
    ENUM("optimizer.muon.ns.algorithm", optimizer.muon.ns.algorithm, IDENTITY, "auto", "auto|gram|direct", "auto: by operation count of the shape"),
    {COMMON("optimizer.muon.ns.coefficients", KEY_TRIPLES, IDENTITY, "polar_express", "a name, or a list of triples [a, b, c], one per step, the last repeats"),
        AT(optimizer.muon.ns), .capacity = CONFIG_NS_MAX, .min = -1e6, .max = 1e6, .names = "polar_express|you|jordan"},
    INT("optimizer.muon.ns.steps", optimizer.muon.ns.steps, IDENTITY, "5", 1, CONFIG_NS_MAX, "iterations"),
    {COMMON("optimizer.muon.ns.restarts", KEY_INTS, IDENTITY, "[2]", "iterations, from 0, before which gram restarts; ascending, below steps"),
        LIST(optimizer.muon.ns.restarts, optimizer.muon.ns.restart_count), .min = 1, .max = CONFIG_NS_MAX - 1},
    BOOL("optimizer.muon.replicate_async", optimizer.muon.replicate_async, IDENTITY, "true", "publish new weights behind the next forward pass"),
    SWITCH("optimizer.muon.tp_distributed_gram", optimizer.muon.tp_distributed_gram, IDENTITY, "off", "off|beneficial|always", "beneficial",
        "Newton-Schulz where the tp slices are; false: off, true: beneficial"),
    REAL("optimizer.adamw.lr", optimizer.adamw.lr, IDENTITY, "1.0e-3", 0, RATE_MAX, "learning rate of everything else"),
    {COMMON("optimizer.adamw.betas", KEY_PAIR, IDENTITY, "[0.9, 0.999]", "decay of the first and the second moment"),
        AT(optimizer.adamw.beta1), .min = 0, .max = 1, .max_open = true},
    REAL_ABOVE("optimizer.adamw.eps", optimizer.adamw.eps, IDENTITY, "1.0e-8", 0, 1, "added to the root of the second moment"),
    REAL("optimizer.adamw.weight_decay", optimizer.adamw.weight_decay, IDENTITY, "0.01", 0, RATE_MAX, "decoupled, times lr"),
    BOOL("optimizer.adamw.decay_1d", optimizer.adamw.decay_1d, IDENTITY, "false", "decay norms and biases too"),
    REAL("optimizer.clip.max_norm", optimizer.clip.max_norm, IDENTITY, "1.0", 0, 1e30, "limit of the norm over all gradients; 0: off; 0 when a limit per role is given"),
    REAL("optimizer.clip.muon_max_norm", optimizer.clip.muon_max_norm, IDENTITY, "0.0", 0, 1e30, "limit over the Muon matrices alone; 0: off"),
    REAL("optimizer.clip.adamw_max_norm", optimizer.clip.adamw_max_norm, IDENTITY, "0.0", 0, 1e30, "limit over everything else alone; 0: off"),
    ENUM("optimizer.schedule.kind", optimizer.schedule.kind, IDENTITY, "cosine", "constant|linear|cosine|wsd", "a factor on each group's own lr"),
    INT("optimizer.schedule.warmup_steps", optimizer.schedule.warmup_steps, IDENTITY, "0", 0, COUNT_MAX, "linear from 0; at most train.steps"),
    REAL("optimizer.schedule.min_ratio", optimizer.schedule.min_ratio, IDENTITY, "0.1", 0, 1, "factor of the last step"),
    REAL("optimizer.schedule.decay_fraction", optimizer.schedule.decay_fraction, IDENTITY, "0.2", 0, 1, "wsd: part of the steps that decay"),

    INT("batch.global", batch.global, IDENTITY, "16", 1, SMALL_MAX, "sequences per step; a multiple of micro*R*G"),
    INT("batch.micro", batch.micro, IDENTITY, "2", 1, 65536, "sequences per rank at a time"),
    INT("batch.seq_len", batch.seq_len, IDENTITY, "256", 1, TOKENS_MAX, "tokens; at most model.max_seq_len"),

    TEXT("data.train", data.train, IDENTITY, NULL, "a file or a glob"),
    TEXT("data.val", data.val, FREE, "\"\"", "likewise, for validation"),
    ENUM("data.format", data.format, IDENTITY, "auto", "auto|text|tokens", "auto: by name, .txt and .bin"),
    BOOL("data.shuffle", data.shuffle, IDENTITY, "true", "a permutation per epoch"),

    INT("train.steps", train.steps, IDENTITY, "100", 1, COUNT_MAX, "optimizer steps; a resume may change it freely under a constant schedule"),
    INT("train.epochs", train.epochs, IDENTITY, "0", 0, SMALL_MAX, "ends the run earlier; 0: steps alone count"),
    INT("train.eval_every", train.eval_every, FREE, "0", 0, COUNT_MAX, "steps between validations, one after the last step too; 0: none"),
    INT("train.eval_batches", train.eval_batches, FREE, "0", 0, COUNT_MAX, "groups of batch.global windows; 0: all"),
    INT("train.sample_every", train.sample_every, FREE, "0", 0, COUNT_MAX, "steps between samples of text; 0: none"),
    TEXT("train.sample_prompt", train.sample_prompt, FREE, "\"\"", "what the sample continues"),
    INT("train.sample_tokens", train.sample_tokens, FREE, "128", 1, 1000000, "tokens of a sample"),
    REAL("train.sample_temperature", train.sample_temperature, FREE, "0.8", 0, 1000, "0: greedy"),
    ENUM("train.nonfinite", train.nonfinite, IDENTITY, "stop", "stop|skip", "a step whose loss or gradient norm is not finite"),
    {COMMON("train.max_wall_time", KEY_TIME, FREE, "\"\"", "H:MM:SS; stop with a checkpoint before it ends; empty: no limit"),
        AT(train.max_wall_time), .extra = offsetof(Config, train.max_wall_s)},

    INT("checkpoint.every", checkpoint.every, FREE, "0", 0, COUNT_MAX, "steps between checkpoints, one at the end too; 0: none"),
    INT("checkpoint.keep", checkpoint.keep, FREE, "2", 0, SMALL_MAX, "newest ones to keep; 0: all"),
    TEXT("checkpoint.resume", checkpoint.resume, FREE, "auto", "auto: the newest valid one of this run; none: start anew; or a path"),
    TEXT("checkpoint.init_from", checkpoint.init_from, FREE, "\"\"", "start from the weights of a safetensors directory"),
    {COMMON("checkpoint.allow_changes", KEY_TEXTS, FREE, "[]", "keys of the run's identity that this resume may change"),
        LIST(checkpoint.allow_changes, checkpoint.allow_count)},
    BOOL("checkpoint.background", checkpoint.background, FREE, "true", "write while training goes on"),

    INT("log.every", log.every, FREE, "1", 1, COUNT_MAX, "steps per record"),
    INT("log.params_hash_every", log.params_hash_every, FREE, "0", 0, COUNT_MAX, "steps between hashes of the whole state; 0: none"),
    {COMMON("log.trace_steps", KEY_INTS, FREE, "[]", "steps whose spans are written as a Chrome trace"),
        LIST(log.trace_steps, log.trace_count), .min = 1, .max = COUNT_MAX},
    INT("log.replica_check_every", log.replica_check_every, FREE, "0", 0, COUNT_MAX, "steps between comparisons of the replicas; 0: none"),

    REAL_ABOVE("comm.timeout_s", comm.timeout_s, FREE, "600", 0, 1e6, "seconds until a silent peer ends the job"),
    ENUM("comm.reduce", comm.native, FREE, "canonical", "canonical|native", "native: the library's own order; needs numerics.mode fast"),
    NAME("comm.transport", comm.transport, FREE, "auto", "auto|nccl|mpi", "auto: nccl between GPUs, else mpi"),

    TEXT("run.dir", run.dir, FREE, "\"\"", "where the run lives; default runs/NAME, NAME.yaml being this file"),
};
/* clang-format on */

enum { KEY_COUNT = sizeof keys / sizeof keys[0] };
_Static_assert((int)KEY_COUNT <= SCHEMA_MAX_KEYS, "places of keys are arrays of SCHEMA_MAX_KEYS");

int schema_count(void) {
    return KEY_COUNT;
}

const KeySpec *schema_key(int index) {
    DM_ASSERT(index >= 0 && index < KEY_COUNT);
    return &keys[index];
}

int schema_find(const char *path) {
    for (int i = 0; i < KEY_COUNT; i++) {
        if (strcmp(keys[i].path, path) == 0)
            return i;
    }
    return -1;
}

int schema_index(const char *path) {
    const int index = schema_find(path);
    DM_ASSERT(index >= 0);
    return index;
}
