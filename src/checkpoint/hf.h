/* Directories in Hugging Face layout: config.json, safetensors files in one piece or with model.safetensors.index.json.
 * Written so that `from_pretrained` opens a set; read so that `init_from` opens what others wrote. */
#ifndef DMUON_CHECKPOINT_HF_H
#define DMUON_CHECKPOINT_HF_H

#include <stdint.h>

#include "base/status.h"
#include "base/str.h"
#include "checkpoint/safetensors.h"
#include "config/config.h"

#define HF_CONFIG_NAME "config.json"
#define HF_INDEX_NAME "model.safetensors.index.json"
#define HF_SINGLE_NAME "model.safetensors"

/* The text of config.json. Without biases and norms of q and k the model is a Llama; qkv_bias makes it a Qwen2, qk_norm
 * a Qwen3. */
void hf_config_text(const ModelConfig *model, StDtype dtype, Str *out);
/* <dir>/config.json for f32 weights. */
DM_NODISCARD Status hf_write_config(const char *dir, const ModelConfig *model);

typedef struct HfIndexEntry {
    char tensor[160];
    char file[128];
    int64_t nbytes;
} HfIndexEntry;

/* <dir>/model.safetensors.index.json: {"metadata": {"total_size": bytes}, "weight_map": {tensor: file}}. */
DM_NODISCARD Status hf_write_index(const char *dir, const HfIndexEntry *entry, int count);

/* Compares <dir>/config.json with the model, key by key, and refuses what the engine cannot compute (rope_scaling, an
 * active sliding window, another activation, biases elsewhere than q, k, v, quantised weights). STATUS_CHECKPOINT with
 * every key that differs and both values. */
DM_NODISCARD Status hf_check(const char *dir, const ModelConfig *model);

typedef struct HfDir {
    StFile *file; /* owned */
    int count;
} HfDir;

/* Opens model.safetensors, or the files of the index if there is one. A tensor the index places where it is not, or one
 * in two files, is an error. */
DM_NODISCARD Status hf_open(HfDir *files, const char *dir);
/* Opens every *.safetensors file of a set. */
DM_NODISCARD Status hf_open_set(HfDir *files, const char *dir);
void hf_close(HfDir *files);
/* NULL when no file has it; otherwise *file is the one that does. */
const StTensor *hf_find(const HfDir *files, const char *name, const StFile **file);
int hf_count(const HfDir *files); /* tensors in all files */

#endif
