/* The worker and its ring. Items are copied out before they run, so that the ring may grow meanwhile. */
#include "device/queue.h"

#include <pthread.h>
#include <stdbool.h>
#include <string.h>

#include "base/arena.h"
#include "base/clock.h"
#include "base/fatal.h"
#include "base/rng.h"
#include "device/thread.h"

struct Queue {
    QueueOptions options;
    pthread_t thread;
    pthread_mutex_t mutex;  /* guards all below                           */
    pthread_cond_t arrived; /* an item, or stop                           */
    pthread_cond_t ran;     /* done grew                                  */
    QueueItem *ring;        /* [capacity], owned; item t is at t % capacity */
    uint64_t capacity;      /* a power of two                             */
    uint64_t pushed, taken, done;
    bool stop;
};

static void delay(const Queue *queue, uint64_t ticket) {
    uint32_t words[4];
    if (queue->options.delay_seed == 0 || queue->options.delay_max_us <= 0)
        return;
    rng_block(queue->options.delay_seed, RNG_DELAY, queue->options.delay_id, ticket, words);
    clock_sleep_us((int64_t)(words[0] % ((uint32_t)queue->options.delay_max_us + 1u)));
}

static void *worker_main(void *arg) {
    Queue *queue = arg;
    QueueItem item;
    thread_sharpen_sleep();
    pthread_mutex_lock(&queue->mutex);
    for (;;) {
        while (queue->taken == queue->pushed && !queue->stop)
            pthread_cond_wait(&queue->arrived, &queue->mutex);
        if (queue->taken == queue->pushed)
            break;
        const uint64_t ticket = ++queue->taken;
        item = queue->ring[ticket % queue->capacity];
        pthread_mutex_unlock(&queue->mutex);
        delay(queue, ticket);
        item.run(queue->options.self, &item);
        pthread_mutex_lock(&queue->mutex);
        queue->done = ticket;
        pthread_cond_broadcast(&queue->ran);
    }
    pthread_mutex_unlock(&queue->mutex);
    return NULL;
}

Status queue_create(Queue **out, const QueueOptions *options) {
    Queue *queue = HEAP_ALLOC(Queue, 1);
    *queue = (Queue){.options = *options, .capacity = 64};
    queue->ring = HEAP_ALLOC(QueueItem, queue->capacity);
    pthread_mutex_init(&queue->mutex, NULL);
    pthread_cond_init(&queue->arrived, NULL);
    pthread_cond_init(&queue->ran, NULL);
    const Status status = thread_start(&queue->thread, options->thread_name, worker_main, queue);
    if (status != STATUS_OK) {
        heap_free(queue->ring);
        heap_free(queue);
        return status;
    }
    *out = queue;
    return STATUS_OK;
}

void queue_destroy(Queue *queue) {
    if (queue == NULL)
        return;
    pthread_mutex_lock(&queue->mutex);
    queue->stop = true;
    pthread_cond_signal(&queue->arrived);
    pthread_mutex_unlock(&queue->mutex);
    pthread_join(queue->thread, NULL);
    pthread_cond_destroy(&queue->ran);
    pthread_cond_destroy(&queue->arrived);
    pthread_mutex_destroy(&queue->mutex);
    heap_free(queue->ring);
    heap_free(queue);
}

static void ring_grow(Queue *queue) {
    const uint64_t capacity = queue->capacity * 2;
    QueueItem *ring = HEAP_ALLOC(QueueItem, capacity);
    for (uint64_t t = queue->taken + 1; t <= queue->pushed; t++)
        ring[t % capacity] = queue->ring[t % queue->capacity];
    heap_free(queue->ring);
    queue->ring = ring;
    queue->capacity = capacity;
}

void queue_push(Queue *queue, const QueueItem *head, const void *arg, size_t nbytes) {
    DM_ASSERT(nbytes <= QUEUE_ARG_BYTES);
    DM_ASSERT(!pthread_equal(pthread_self(), queue->thread)); /* work on a stream does not queue on it */
    pthread_mutex_lock(&queue->mutex);
    if (queue->pushed - queue->taken == queue->capacity)
        ring_grow(queue);
    QueueItem *item = &queue->ring[++queue->pushed % queue->capacity];
    item->run = head->run;
    item->fn = head->fn;
    item->kernel = head->kernel;
    if (nbytes > 0)
        memcpy(item->arg, arg, nbytes);
    pthread_cond_signal(&queue->arrived);
    pthread_mutex_unlock(&queue->mutex);
}

uint64_t queue_mark(Queue *queue) {
    pthread_mutex_lock(&queue->mutex);
    const uint64_t mark = queue->pushed;
    pthread_mutex_unlock(&queue->mutex);
    return mark;
}

uint64_t queue_done(Queue *queue) {
    pthread_mutex_lock(&queue->mutex);
    const uint64_t done = queue->done;
    pthread_mutex_unlock(&queue->mutex);
    return done;
}

int64_t queue_wait(Queue *queue, uint64_t ticket) {
    int64_t waited = 0;
    pthread_mutex_lock(&queue->mutex);
    if (queue->done < ticket) {
        const int64_t begin = clock_ns();
        while (queue->done < ticket)
            pthread_cond_wait(&queue->ran, &queue->mutex);
        waited = clock_ns() - begin;
    }
    pthread_mutex_unlock(&queue->mutex);
    return waited;
}
