/* Data sets of a session: the list of files is made once and shared; headers, sizes and ids are checked before
 * training. */
#include <string.h>

#include "base/arena.h"
#include "base/log.h"
#include "optim/schedule.h"
#include "train/phases.h"

#define CHECK_IDS_LIMIT ((int64_t)2 << 30) /* bytes of ids that are checked at start */

/* Rank 0 lists, everybody opens the same list. Collective. */
static Status open_set(Session *s, const char *pattern, const char *key, Dataset **dataset) {
    Comm *all = s->world->comm;
    Str files = {0};
    TRY(comm_agree(all, s->world->rank == 0 ? dataset_list(pattern, key, &files) : STATUS_OK));
    int64_t nbytes = (int64_t)files.len;
    host_broadcast(all, &nbytes, sizeof nbytes, 0);
    char *list = HEAP_ALLOC(char, nbytes + 1);
    if (s->world->rank == 0)
        memcpy(list, files.text, files.len);
    host_broadcast(all, list, nbytes, 0);
    str_deinit(&files);
    const DatasetOptions options = {.pattern = pattern,
                                    .key = key,
                                    .format = s->config.data.format,
                                    .seq_len = s->config.batch.seq_len,
                                    .vocab_size = s->config.model.vocab_size};
    const Status status = comm_agree(all, dataset_open(dataset, &options, list));
    heap_free(list);
    if (status != STATUS_OK)
        return status;
    if (dataset_id_bytes(*dataset) > CHECK_IDS_LIMIT)
        return STATUS_OK;
    return comm_agree(all, dataset_check_ids(*dataset, s->world->rank, s->world->size));
}

static void choose_leaves(Session *s) {
    const int d = s->mesh.coord.replicate * s->mesh.shape.shard + s->mesh.coord.shard;
    s->leaf = HEAP_ALLOC(int64_t, s->plan.per_rank);
    for (int64_t j = 0; j < s->plan.per_rank; j++)
        s->leaf[j] = plan_leaf(&s->plan, d, j);
}

Status phase_data(Session *s) {
    const Config *c = &s->config;
    TRY(open_set(s, c->data.train, "data.train", &s->train));
    if (c->data.val[0] != '\0')
        TRY(open_set(s, c->data.val, "data.val", &s->val));
    if (s->purpose == PURPOSE_EVAL && !s->val)
        return STATUS_FAIL(STATUS_CONFIG, "%s: --eval needs data.val", c->path);
    TRY(comm_agree(s->world->comm, dataset_identity(s->train, &s->data_identity)));
    s->total_steps = schedule_total_steps(c, dataset_samples(s->train));
    choose_leaves(s);
    if (s->purpose == PURPOSE_TRAIN && s->total_steps == 0)
        return STATUS_FAIL(
            STATUS_DATA,
            "%s: data.train holds %lld samples: train.epochs = %lld of them are less than one batch.global = %lld; "
            "raise train.epochs or lower batch.global",
            c->path, (long long)dataset_samples(s->train), (long long)c->train.epochs, (long long)c->batch.global);
    return STATUS_OK;
}
