/* dmuon-ckpt info and verify. */
#include <inttypes.h>

#include "base/json.h"
#include "checkpoint/hf.h"
#include "checkpoint/manifest.h"
#include "checkpoint/tool.h"

/* Whether a tensor is state of the optimizer, by the prefixes of our own files. */
static bool is_state(const char *name) {
    return str_starts_with(name, "momentum.") || str_starts_with(name, "exp_avg.") ||
           str_starts_with(name, "exp_avg_sq.");
}

static int64_t count_parameters(const HfDir *files) {
    int64_t parameters = 0;
    for (int f = 0; f < files->count; f++)
        for (int t = 0; t < files->file[f].count; t++)
            if (!is_state(files->file[f].tensor[t].name))
                parameters += st_numel(&files->file[f].tensor[t]);
    return parameters;
}

static int64_t count_bytes(const Manifest *m) {
    int64_t nbytes = 0;
    for (int f = 0; f < m->file_count; f++)
        nbytes += m->file[f].nbytes;
    return nbytes;
}

static void json_head(JsonWriter *w, const char *dir, const Manifest *m, int64_t parameters) {
    json_string(w, "dir", dir);
    manifest_write_head(w, m);
    json_int(w, "parameters", parameters);
    json_int(w, "bytes", count_bytes(m));
}

static void json_tensor(JsonWriter *w, const StFile *file, const StTensor *tensor, const Manifest *m) {
    uint64_t hash;
    json_begin_object(w, NULL);
    json_string(w, "name", tensor->name);
    json_string(w, "dtype", st_dtype_name(tensor->dtype));
    json_begin_array(w, "shape");
    for (int i = 0; i < tensor->ndim; i++)
        json_int(w, NULL, tensor->dim[i]);
    json_end_array(w);
    json_string(w, "file", str_base_name(file->path));
    if (manifest_find_tensor(m, tensor->name, &hash))
        json_hex64(w, "hash", hash);
    json_end_object(w);
}

static void info_json(const char *dir, const Manifest *m, const HfDir *files, Str *out) {
    JsonWriter w = json_writer(out);
    json_begin_object(&w, NULL);
    json_head(&w, dir, m, count_parameters(files));
    json_begin_array(&w, "files");
    for (int f = 0; f < m->file_count; f++) {
        json_begin_object(&w, NULL);
        json_string(&w, "name", m->file[f].name);
        json_int(&w, "bytes", m->file[f].nbytes);
        json_string(&w, "sha256", m->file[f].sha256);
        json_end_object(&w);
    }
    json_end_array(&w);
    json_begin_array(&w, "tensors");
    for (int f = 0; f < files->count; f++)
        for (int t = 0; t < files->file[f].count; t++)
            json_tensor(&w, &files->file[f], &files->file[f].tensor[t], m);
    json_end_array(&w);
    json_end_object(&w);
    str_append(out, "\n");
}

static void text_tensor(const StTensor *tensor, Str *out) {
    str_printf(out, "  %-4s [", st_dtype_name(tensor->dtype));
    for (int i = 0; i < tensor->ndim; i++)
        str_printf(out, "%s%" PRId64, i > 0 ? ", " : "", tensor->dim[i]);
    str_printf(out, "] %s\n", tensor->name);
}

static void info_text(const char *dir, const Manifest *m, const HfDir *files, Str *out) {
    str_printf(out, "%s\n", dir);
    str_printf(out,
               "step %" PRId64 ", %" PRId64 " samples, %" PRId64 " tokens, %" PRId64 " applied updates, seed %" PRId64
               "\n",
               m->step, m->samples, m->tokens_total, m->adamw_t, m->seed);
    str_printf(out, "run %s, written by dmuon-train %s\n", m->run_id, m->version);
    str_printf(out, "numerics %s, %d segments; mesh replicate %d x shard %d x tp %d, %s\n", m->fast ? "fast" : "exact",
               m->segments, m->mesh.replicate, m->mesh.shard, m->mesh.tp,
               m->data_parallel == DATA_DDP ? "ddp" : "fsdp");
    if (m->products[0] != '\0')
        str_printf(out, "products %s\n", m->products);
    str_printf(out, "%" PRId64 " parameters, %" PRId64 " bytes in %d files\n", count_parameters(files), count_bytes(m),
               m->file_count);
    for (int f = 0; f < files->count; f++) {
        str_printf(out, "%s (%" PRId64 " bytes)\n", str_base_name(files->file[f].path), files->file[f].nbytes);
        for (int t = 0; t < files->file[f].count; t++)
            text_tensor(&files->file[f].tensor[t], out);
    }
}

Status tool_info(const char *dir, ToolFormat format, Str *out) {
    Manifest manifest;
    HfDir files;
    TRY(manifest_read(dir, &manifest));
    const Status status = hf_open_set(&files, dir);
    if (status == STATUS_OK && format == TOOL_JSON)
        info_json(dir, &manifest, &files, out);
    else if (status == STATUS_OK)
        info_text(dir, &manifest, &files, out);
    hf_close(&files);
    manifest_deinit(&manifest);
    return status;
}

/* ---- verify ---- */

Status tool_verify(const char *dir, ToolFormat format, Str *out) {
    Manifest manifest;
    Status status = manifest_read(dir, &manifest);
    if (status == STATUS_OK)
        status = manifest_verify_files(dir, &manifest);
    if (format == TOOL_JSON) {
        Str error = {0};
        str_append_n(&error, status_trail(), (size_t)status_sentence());
        JsonWriter w = json_writer(out);
        json_begin_object(&w, NULL);
        json_string(&w, "dir", dir);
        json_bool(&w, "valid", status == STATUS_OK);
        json_string(&w, "error", status == STATUS_OK ? NULL : error.text);
        json_end_object(&w);
        str_deinit(&error);
        str_append(out, "\n");
    } else if (status == STATUS_OK) {
        str_printf(out,
                   "%s: step %" PRId64 ": %d files, %" PRId64 " bytes, %d tensors: all as " MANIFEST_NAME " says\n",
                   dir, manifest.step, manifest.file_count, count_bytes(&manifest), manifest.tensor_count);
    }
    manifest_deinit(&manifest);
    return status;
}
