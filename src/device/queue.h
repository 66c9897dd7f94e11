/* One worker thread with a FIFO of small work items: a communication stream of the CPU device. */
#ifndef DMUON_DEVICE_QUEUE_H
#define DMUON_DEVICE_QUEUE_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "kernels/kernels.h"

#define QUEUE_ARG_BYTES 512

typedef struct Queue Queue;

/* What to run: `run` is called on the worker's thread with the queue's `self` and the copied item. */
typedef struct QueueItem QueueItem;
struct QueueItem {
    void (*run)(void *self, QueueItem *item);
    void (*fn)(void *arg); /* for items that are calls    */
    KernelId kernel;       /* for items that are launches */
    _Alignas(max_align_t) unsigned char arg[QUEUE_ARG_BYTES];
};

typedef struct QueueOptions {
    const char *thread_name;
    void *self;          /* borrowed                                    */
    uint32_t delay_id;   /* which sequence of delays                    */
    uint64_t delay_seed; /* tests only: 0 is off (DeviceOptions)        */
    int delay_max_us;
} QueueOptions;

DM_NODISCARD Status queue_create(Queue **queue, const QueueOptions *options);
void queue_destroy(Queue *queue); /* runs what is queued, then joins; accepts NULL */

/* Appends a copy of the item's head and of nbytes of `arg`. Never blocks: the ring grows. */
void queue_push(Queue *queue, const QueueItem *head, const void *arg, size_t nbytes);
/* Tickets count pushed items from 1: the mark of all that was pushed so far. */
uint64_t queue_mark(Queue *queue);
/* The newest item that has run. */
uint64_t queue_done(Queue *queue);
/* Sleeps until item `ticket` has run; gives the nanoseconds it waited, 0 when it had. */
int64_t queue_wait(Queue *queue, uint64_t ticket);

#endif
