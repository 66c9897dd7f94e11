/* Streams and events. */
#ifndef CUDA_STANDIN_STREAM_H
#define CUDA_STANDIN_STREAM_H

#include <deque>

#include "standin.h"

namespace standin {

struct Recording; /* of graph.cpp */

struct Stream {
    uint64_t magic;
    int id;
    int device;
    bool nonblocking;
    std::deque<Op *> queue;
    uint64_t priority;
    double patient_until; /* its communication was chosen and is waited for; 0: no */
    Recording *recording; /* what is put on it becomes a graph; NULL: it is queued */
};

struct Event {
    uint64_t magic;
    int id;
    bool timing;
    uint64_t recorded, completed; /* how often */
    Stream *where;                /* of the last record */
    double reached_s;
};

void streams_start();
const std::vector<Stream *> &all_streams(); /* the default stream first */
Stream *stream_create(unsigned flags);
void stream_destroy(cudaStream_t stream);
Stream *stream_of(cudaStream_t handle, const char *api); /* a fault if there is none */
Event *event_create(unsigned flags);
void event_destroy(cudaEvent_t event);
Event *event_of(cudaEvent_t handle, const char *api);
void event_record(Event *event, cudaStream_t stream, const char *api);
void event_wait(Event *event, cudaStream_t stream, const char *api); /* on the stream */

void check_recorded(const Event *event, const char *api); /* a fault if it never was */

/* A fault if queued work names memory of [begin, begin + nbytes). */
void check_unused(const char *begin, size_t nbytes, const char *api);
bool is_used(const char *begin, size_t nbytes);
void check_queues_empty(); /* at exit */

} // namespace standin

#endif
