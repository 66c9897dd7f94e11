/* What dmuon-ckpt does, without MPI: look at a set, verify it, compare two, hand its weights on. */
#ifndef DMUON_CHECKPOINT_TOOL_H
#define DMUON_CHECKPOINT_TOOL_H

#include <stdbool.h>

#include "base/status.h"
#include "base/str.h"
#include "checkpoint/safetensors.h"

typedef enum ToolFormat { TOOL_TEXT, TOOL_JSON } ToolFormat;

/* Position, setting, files and tensors of a set, from trainer.json and the headers: {dir, step, samples, adamw_t,
 * tokens_total, seed, run_id, version, numerics {mode, segments}, mesh {replicate, shard, tp}, data_parallel,
 * parameters, bytes, files [{name, bytes, sha256}], tensors [{name, dtype, shape, file, hash}]}. */
DM_NODISCARD Status tool_info(const char *dir, ToolFormat format, Str *out);

/* Every byte against trainer.json, and the tensors of the files against its list. `out` is written whatever the
 * outcome: {dir, valid, error}. */
DM_NODISCARD Status tool_verify(const char *dir, ToolFormat format, Str *out);

/* Every tensor of both directories (sets, or any with safetensors files), bit by bit, and step, samples and adamw_t
 * where both have a trainer.json. {equal, state [{key, a, b}], tensors [{name, difference, index, position, a_bits,
 * b_bits, ulp, differing, elements}]}; difference: missing_in_a, missing_in_b, dtype, shape or values; ulp null where a
 * value is no number. */
DM_NODISCARD Status tool_diff(const char *a, const char *b, ToolFormat format, Str *out, bool *equal);

typedef struct ExportOptions {
    const char *dir; /* a set, verified first */
    const char *out; /* must not exist        */
    StDtype dtype;   /* ST_F32 or ST_BF16     */
    bool single_file;
} ExportOptions;

/* The weights with config.json, as Hugging Face reads them; written beside `out`, renamed when complete. */
DM_NODISCARD Status tool_export(const ExportOptions *options, Str *out);

#endif
