/* The run's configuration as one plain struct: what the YAML file and the overrides say, checked. No code here; the
 * keys, bounds, defaults and help lines stand once, in the table of config/schema.c. */
#ifndef DMUON_CONFIG_CONFIG_H
#define DMUON_CONFIG_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "base/str.h"

#define CONFIG_PATH 1024
#define NS_ROUNDED_MAX 3 /* iterations of gram from one restart to the next, with rounded products */
#define CONFIG_NS_MAX 16
#define CONFIG_LIST_MAX 64

typedef enum ComputeType { COMPUTE_F32, COMPUTE_TF32, COMPUTE_BF16 } ComputeType;
typedef enum WireType { WIRE_F32, WIRE_BF16 } WireType;
typedef enum DataParallel { DATA_FSDP, DATA_DDP } DataParallel;
typedef enum Accumulate { ACCUMULATE_REDUCE, ACCUMULATE_LOCAL } Accumulate;
typedef enum BufferReuse { REUSE_OFF, REUSE_GATHER, REUSE_SCATTER, REUSE_ALL } BufferReuse;
typedef enum Recompute { RECOMPUTE_NONE, RECOMPUTE_LAYER } Recompute;
typedef enum OwnerStrategy { OWNER_LPT, OWNER_ROUND_ROBIN, OWNER_RANK0 } OwnerStrategy;
typedef enum MuonScale { SCALE_MATCH_RMS, SCALE_SPECTRAL } MuonScale;
typedef enum NsAlgorithm { NS_AUTO, NS_GRAM, NS_DIRECT } NsAlgorithm;
typedef enum NsCoefficients { NS_POLAR_EXPRESS, NS_YOU, NS_JORDAN, NS_LIST } NsCoefficients;
typedef enum DistributedGram { GRAM_OFF, GRAM_BENEFICIAL, GRAM_ALWAYS } DistributedGram;
typedef enum ScheduleKind { SCHEDULE_CONSTANT, SCHEDULE_LINEAR, SCHEDULE_COSINE, SCHEDULE_WSD } ScheduleKind;
typedef enum DataFormat { FORMAT_AUTO, FORMAT_TEXT, FORMAT_TOKENS } DataFormat;
typedef enum NonFinite { NONFINITE_STOP, NONFINITE_SKIP } NonFinite;

typedef struct ModelConfig { /* models/NAME.yaml */
    char family[16];         /* "llama" */
    int64_t d_model, n_layers, n_heads, n_kv_heads, head_dim, d_ff, vocab_size, max_seq_len;
    double rope_theta, norm_eps, init_std;
    bool tie_embeddings, qkv_bias, qk_norm;
} ModelConfig;

typedef struct NsConfig {
    NsAlgorithm algorithm;
    NsCoefficients coefficients;
    double list[CONFIG_NS_MAX][3]; /* coefficients given as a list of triples (NS_LIST) */
    int list_count;
    int steps;
    int restarts[CONFIG_NS_MAX]; /* iterations (counted from 0) before which gram restarts, ascending */
    int restart_count;
} NsConfig;

typedef struct Config {
    char path[CONFIG_PATH];       /* the YAML file          */
    char model_path[CONFIG_PATH]; /* empty: inline mapping  */
    ModelConfig model;
    char device[16]; /* auto | cpu | cuda */
    bool on_cpu;     /* no key: what `auto` came to, once it is known */
    struct {
        bool fast;
        int segments;
    } numerics;
    struct {
        ComputeType compute;
        WireType wire, grad_reduce;
    } precision;
    int64_t seed;
    int threads; /* 0 = auto */
    struct {
        int replicate, shard, tp; /* 0 = auto: resolved by config_resolve_mesh */
    } mesh;
    struct {
        DataParallel data;
        bool reshard_muon, reshard_adamw; /* true = Z3, false = Z2 */
        int prefetch;
        Accumulate accumulate;
        BufferReuse tp_buffer_reuse;
        Recompute recompute;
        struct {
            OwnerStrategy strategy;
            char cost[16]; /* "flops" */
            int max_per_layer;
            int64_t small_param_threshold; /* -1 = auto */
            bool column_balance;
        } owner;
    } parallel;
    struct {
        struct {
            double lr, momentum, weight_decay;
            bool nesterov;
            MuonScale scale;
            char match[CONFIG_LIST_MAX][128]; /* globs; match_count 0 = auto */
            int match_count;
            NsConfig ns;
            bool replicate_async;
            DistributedGram tp_distributed_gram;
        } muon;
        struct {
            double lr, beta1, beta2, eps, weight_decay;
            bool decay_1d;
        } adamw;
        struct {
            double max_norm, muon_max_norm, adamw_max_norm; /* 0 = off */
        } clip;
        struct {
            ScheduleKind kind;
            int64_t warmup_steps;
            double min_ratio, decay_fraction;
        } schedule;
    } optimizer;
    struct {
        int64_t global, micro, seq_len; /* sequences, sequences, tokens */
    } batch;
    struct {
        char train[CONFIG_PATH], val[CONFIG_PATH];
        DataFormat format;
        bool shuffle;
    } data;
    struct {
        int64_t steps, epochs, eval_every, eval_batches, sample_every, sample_tokens;
        char sample_prompt[CONFIG_PATH];
        double sample_temperature;
        NonFinite nonfinite;
        char max_wall_time[32];
        double max_wall_s; /* parsed; 0 = none */
    } train;
    struct {
        int64_t every, keep;
        char resume[CONFIG_PATH]; /* auto | none | path */
        char init_from[CONFIG_PATH];
        char allow_changes[CONFIG_LIST_MAX][128];
        int allow_count;
        bool background;
    } checkpoint;
    struct {
        int64_t every, params_hash_every, replica_check_every;
        int64_t trace_steps[CONFIG_LIST_MAX];
        int trace_count;
    } log;
    struct {
        double timeout_s;
        bool native; /* reduce: native */
        char transport[8];
    } comm;
    struct {
        char dir[CONFIG_PATH];
    } run;
} Config;

/* Reads the YAML file, then the overrides ("key.path=value", their place in messages is the argument), fills defaults,
 * and checks every rule that needs no other file than the model's and no rank count. All errors are in one trail, one
 * line each: configs/a.yaml:12: optimizer.muon.lr = -1: must be at least 0 ... ; nearest valid key for unknown ones.
 * Warnings (a key without effect in this configuration) are appended to `warnings`, one per line. */
DM_NODISCARD Status config_load(Config *config, const char *path, char *const *overrides, int override_count,
                                Str *warnings);

/* Resolves `mesh: auto` and checks what needs the number of ranks (nranks 0: unknown, auto stays an error; product must
 * equal nranks otherwise: both numbers and a mesh that would fit). Also batch.global against micro*R*G (names the
 * nearest legal value). */
DM_NODISCARD Status config_resolve_mesh(Config *config, int nranks);

/* S lowered to the largest power of two that divides n_kv_heads*head_dim, n_heads*head_dim and d_ff, at most
 * numerics.segments. */
int config_lowered_segments(const Config *config);

/* Whether every reader of a weight gets it rounded to bf16: what `compute` or `wire` bf16 mean for weights. */
bool config_rounds_weights(const Config *config);
/* Whether products may take bf16 operands: what they read is then kept as 16 bits beside its f32 values. A CPU's do
 * not. */
bool config_keeps_bits(const Config *config);

/* The effective configuration as YAML that config_load reads back to the same struct (model inlined). */
void config_dump_yaml(const Config *config, Str *out);
/* The same as one JSON object (value only). */
void config_dump_json(const Config *config, Str *out);
/* The reference that --help-config prints: key, type, default, bounds, one line of help each. */
void config_help(Str *out);

/* The dotted keys in which two configurations differ, in table order: calls fn(arg, key, value_a, value_b, identity),
 * identity = the key is part of the run's identity (a resume must not change it unless checkpoint.allow_changes names
 * it; README "Resume"); 'model.*' and numerics.mode and the segments are `never` (identity 2). Free keys 0. */
void config_diff(const Config *a, const Config *b,
                 void (*fn)(void *arg, const char *key, const char *va, const char *vb, int identity), void *arg);
/* Fills a Config from the YAML text of config_dump_yaml (a checkpoint's). */
DM_NODISCARD Status config_load_text(Config *config, const char *yaml, size_t nbytes, const char *what);

#endif
