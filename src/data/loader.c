/* Batches ahead of time: a ring of k + 1 leaves, one in the caller's hands and one step being prepared. */
#include "data/loader.h"

#include <inttypes.h>
#include <pthread.h>
#include <string.h>

#include "base/arena.h"
#include "base/fatal.h"
#include "data/order.h"

struct Loader {
    LoaderOptions options;
    int64_t slots;   /* k + 1                                                     */
    int32_t *tokens; /* [slots, B, T] owned                                       */
    int32_t *targets;
    pthread_t thread;
    pthread_mutex_t mutex; /* guards all that follows                                   */
    pthread_cond_t changed;
    int64_t prepared; /* leaves the thread has finished, counted from the start    */
    int64_t returned; /* leaves the caller has given back                          */
    int64_t lent;     /* leaves handed to the caller: returned or returned + 1     */
    bool stop;
    Status failed; /* of leaf `prepared`                                        */
    char *trail;   /* owned, when failed                                        */
};

static Status fill_leaf(const Loader *loader, int64_t leaf, int32_t *tokens, int32_t *targets) {
    const LoaderOptions *o = &loader->options;
    const int64_t step = leaf / o->per_rank, of_step = o->leaf[leaf % o->per_rank];
    const int64_t first = o->first_sample + (step * o->leaves_per_step + of_step) * o->B;
    for (int64_t row = 0; row < o->B; row++) {
        const int64_t window = order_window(o->seed, dataset_samples(o->dataset), first + row, o->shuffle);
        TRY(dataset_window(o->dataset, window, tokens + row * o->T, targets + row * o->T));
    }
    return STATUS_OK;
}

/* Waits for room; false when the loader ends. */
static bool wait_for_slot(Loader *loader) {
    pthread_mutex_lock(&loader->mutex);
    while (!loader->stop && loader->prepared - loader->returned == loader->slots)
        pthread_cond_wait(&loader->changed, &loader->mutex);
    const bool more = !loader->stop;
    pthread_mutex_unlock(&loader->mutex);
    return more;
}

static void *prepare_leaves(void *arg) {
    Loader *loader = arg;
    const int64_t leaf_nelem = loader->options.B * loader->options.T;
    Status status = STATUS_OK;
    for (int64_t leaf = 0; status == STATUS_OK && wait_for_slot(loader); leaf++) {
        const int64_t at = leaf % loader->slots * leaf_nelem;
        status = fill_leaf(loader, leaf, loader->tokens + at, loader->targets + at);
        pthread_mutex_lock(&loader->mutex);
        if (status == STATUS_OK) {
            loader->prepared++;
        } else {
            loader->failed = status;
            loader->trail = heap_strdup(status_trail());
        }
        pthread_cond_broadcast(&loader->changed);
        pthread_mutex_unlock(&loader->mutex);
    }
    return NULL;
}

/* k + 1 leaves of B*T tokens. */
static Status ring_nelem(const LoaderOptions *options, int64_t *nelem) {
    int64_t nbytes;
    if (__builtin_mul_overflow(options->B, options->T, nelem) ||
        __builtin_mul_overflow(*nelem, options->per_rank + 1, nelem) ||
        __builtin_mul_overflow(*nelem, (int64_t)sizeof(int32_t), &nbytes))
        return STATUS_FAIL(STATUS_NO_MEMORY,
                           "data: %" PRId64 " leaves of %" PRId64 " x %" PRId64 " tokens exceed 2^63 bytes",
                           options->per_rank, options->B, options->T);
    return STATUS_OK;
}

static void free_loader(Loader *loader) {
    pthread_cond_destroy(&loader->changed);
    pthread_mutex_destroy(&loader->mutex);
    heap_free(loader->trail);
    heap_free(loader->tokens);
    heap_free(loader->targets);
    heap_free(loader);
}

Status loader_create(Loader **loader, const LoaderOptions *options) {
    DM_ASSERT(options->B >= 1 && options->T >= 1 && options->per_rank >= 1 && options->first_sample >= 0);
    int64_t nelem;
    *loader = NULL;
    TRY(ring_nelem(options, &nelem));
    Loader *created = HEAP_ALLOC(Loader, 1);
    created->options = *options;
    created->slots = options->per_rank + 1;
    created->tokens = HEAP_ALLOC(int32_t, nelem);
    created->targets = HEAP_ALLOC(int32_t, nelem);
    pthread_mutex_init(&created->mutex, NULL);
    pthread_cond_init(&created->changed, NULL);
    const int rc = pthread_create(&created->thread, NULL, prepare_leaves, created);
    if (rc != 0) {
        free_loader(created);
        return STATUS_FAIL(STATUS_NO_MEMORY, "data: cannot start the loader's thread: %s", strerror(rc));
    }
    *loader = created;
    return STATUS_OK;
}

void loader_destroy(Loader *loader) {
    if (!loader)
        return;
    pthread_mutex_lock(&loader->mutex);
    loader->stop = true;
    pthread_cond_broadcast(&loader->changed);
    pthread_mutex_unlock(&loader->mutex);
    pthread_join(loader->thread, NULL);
    free_loader(loader);
}

Status loader_next(Loader *loader, const int32_t **tokens, const int32_t **targets) {
    pthread_mutex_lock(&loader->mutex);
    loader->returned = loader->lent;
    pthread_cond_broadcast(&loader->changed);
    while (loader->prepared == loader->lent && loader->failed == STATUS_OK)
        pthread_cond_wait(&loader->changed, &loader->mutex);
    const bool ready = loader->prepared > loader->lent;
    const int64_t leaf = loader->lent;
    loader->lent += ready;
    pthread_mutex_unlock(&loader->mutex);
    if (!ready) {
        status_trail_set(loader->trail);
        return loader->failed;
    }
    const int64_t at = leaf % loader->slots * loader->options.B * loader->options.T;
    *tokens = loader->tokens + at;
    *targets = loader->targets + at;
    return STATUS_OK;
}
