/* log.jsonl: strict JSON, one object per line, each appended with one write(2), so that lines of different moments
 * never mix and at most the last one is ever half. The specification of the records. `event` comes first; numbers that
 * are not finite are null; loss_bits is 8 and params_hash 16 hex digits.
 *
 * - start: schema 1, run_id, version, configuration, sizes, mesh, roles and owners, load, numerics, device, hosts
 * - step: the fields of StepMetrics: phase_ms {forward, backward, ...}, comm (jsonl_comm), publish_wait_us {p50, p90,
 *   p99}, params_hash when asked for
 * - eval: step, loss, loss_bits, tokens, eval_ms
 * - sample: step, prompt, text
 * - checkpoint: step, dir, bytes, copy_ms, write_ms, save_wait_ms
 * - resume: step, set, mesh {replicate, shard, tp} of the set
 * - warning: step, text
 * - end: step, reason, exit_code, peak_rss_bytes of rank 0 */
#ifndef DMUON_METRICS_JSONL_H
#define DMUON_METRICS_JSONL_H

#include "base/json.h"
#include "base/str.h"
#include "metrics/metrics.h"

#define JSONL_SCHEMA 1

typedef struct Jsonl {
    int fd;
    char path[1200];
} Jsonl;

DM_NODISCARD Status jsonl_open(Jsonl *log, const char *run_dir);
void jsonl_close(Jsonl *log);
/* `line` with its newline, in one write. */
DM_NODISCARD Status jsonl_append(Jsonl *log, const Str *line);

/* `key`: {axis: {op: {calls, payload_bytes, bus_bytes}}}, for axes and operations with calls. counts: [AXIS_COUNT]
 * [COMM_OP_COUNT]. */
void jsonl_comm(JsonWriter *w, const char *key, const CommCount *counts);

DM_NODISCARD Status jsonl_start(Jsonl *log, const StartMetrics *start);
DM_NODISCARD Status jsonl_step(Jsonl *log, const StepMetrics *step);
DM_NODISCARD Status jsonl_eval(Jsonl *log, const EvalMetrics *eval);
DM_NODISCARD Status jsonl_sample(Jsonl *log, int64_t step, const char *prompt, const char *text);
DM_NODISCARD Status jsonl_checkpoint(Jsonl *log, const CheckpointMetrics *checkpoint);
DM_NODISCARD Status jsonl_resume(Jsonl *log, int64_t step, const char *set, MeshShape saved_mesh);
DM_NODISCARD Status jsonl_warning(Jsonl *log, int64_t step, const char *text);
DM_NODISCARD Status jsonl_end(Jsonl *log, int64_t step, const char *reason, int exit_code);

#endif
