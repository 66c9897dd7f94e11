/* Named communicators and their collectives, each queued on a stream, in one canonical order of addition (README,
 * "Numerics"): a reduction adds tree(rank 0 .. rank N-1), whatever the root and the message size. Each stream has its
 * own duplicate of the communicator, so that no two streams share a sequence; host_* calls have one more and may be
 * used for logging, checkpoints and agreement while streams are busy. A failure inside a collective is fatal (naming
 * rank, host, step, unit, stream, operation, axis, bytes); a peer that does not answer within comm.timeout_s likewise.
 *
 * A Comm of size 1 does the local copy that the definition asks for and nothing else. Counts are elements, never bytes.
 */
#ifndef DMUON_COMM_COMM_H
#define DMUON_COMM_COMM_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "device/device.h"
#include "tensor/dtype.h"

typedef struct Comm Comm; /* opaque; owned by the mesh */

typedef enum CommOp {
    COMM_BROADCAST,
    COMM_REDUCE,
    COMM_ALL_REDUCE,
    COMM_REDUCE_SCATTER,
    COMM_ALL_GATHER,
    COMM_GATHER,
    COMM_SCATTER,
    COMM_OP_COUNT
} CommOp;
const char *comm_op_name(CommOp op); /* "broadcast", "reduce", "all_reduce", "reduce_scatter", ... */

/* What a message is for: error lines, traces and the byte counters. */
typedef struct CommTag {
    const char *what; /* borrowed, run lifetime: "layers.3 owner 2" */
    int unit;         /* -1: none                                   */
    int64_t payload;  /* bytes of the whole logical message without padding; 0: not counted (eval, hash, save) */
} CommTag;

const char *comm_name(const Comm *comm); /* "replicate", "shard", "tp", "data", "world" */
int comm_rank(const Comm *comm);
int comm_size(const Comm *comm);

/* Makes ready what the transport needs for operations on this stream; nothing with mpi. Once for every pair that is
 * used, by all members in the same order. Collective over `comm`. */
void comm_prepare(Comm *comm, Stream *stream);

/* All of these are collective over `comm` and queue on `stream`. Buffers must stay untouched until the stream passed
 * them. */

/* buf [n] of the root to all. */
void comm_broadcast(Comm *comm, Stream *stream, void *buf, int64_t n, Dtype dtype, int root, CommTag tag);
/* dst [n] at the root = tree over ranks of src [n]. dst is ignored elsewhere (may be NULL); dst may alias src. f32,
 * f64, u64 (mod 2^64). */
void comm_reduce(Comm *comm, Stream *stream, const void *src, void *dst, int64_t n, Dtype dtype, int root, CommTag tag);
void comm_all_reduce(Comm *comm, Stream *stream, const void *src, void *dst, int64_t n, Dtype dtype, CommTag tag);
/* dst [n] = tree over ranks of part `rank` of src [size*n]. dst may be src + rank*n. */
void comm_reduce_scatter(Comm *comm, Stream *stream, const void *src, void *dst, int64_t n, Dtype dtype, CommTag tag);
/* dst [size*n] = src [n] of every rank, in rank order. src may be dst + rank*n. */
void comm_all_gather(Comm *comm, Stream *stream, const void *src, void *dst, int64_t n, Dtype dtype, CommTag tag);
/* Root: dst [size*n]. */
void comm_gather(Comm *comm, Stream *stream, const void *src, void *dst, int64_t n, Dtype dtype, int root, CommTag tag);
void comm_scatter(Comm *comm, Stream *stream, const void *src, void *dst, int64_t n, Dtype dtype, int root,
                  CommTag tag);

/* Host-side, synchronous, uncounted, with the host's own communicator; call from one thread at a time. */
void host_broadcast(Comm *comm, void *buf, int64_t nbytes, int root);
void host_all_gather(Comm *comm, const void *src, void *dst, int64_t nbytes); /* nbytes per rank */
void host_sum_u64(Comm *comm, uint64_t *values, int n);                       /* all-reduce, mod 2^64 */
void host_sum_f64(Comm *comm, double *values, int n);                         /* all-reduce in tree order */
void host_max_f64(Comm *comm, double *values, int n);
void host_send(Comm *comm, const void *buf, int64_t nbytes, int to,
               int tag); /* 0 <= tag < 30000; nbytes may pass 2^31 */
void host_recv(Comm *comm, void *buf, int64_t nbytes, int from, int tag);
void host_barrier(Comm *comm);

/* Every stream of every communicator has queued the same collectives on all its members up to here; otherwise fatal(),
 * naming step, stream, axis and two ranks. Collective over the world: once per step, between the same two collectives.
 */
void comm_compare_sequences(Comm *world);

/* Every rank brings its own outcome and leaves with that of the lowest failing rank, trail included; a trail of another
 * rank is prefixed "rank R (host): ". Collective over `comm`. Not inside a training step: there a peer may wait
 * elsewhere. */
DM_NODISCARD Status comm_agree(Comm *comm, Status local);

/* Byte counters since the last take, of the collectives in which this rank was comm rank 0 (so that a sum over all
 * ranks counts each collective once). bus_bytes as README, "Log": (N-1)p for broadcast, reduce, all_gather,
 * reduce_scatter; 2(N-1)p for all_reduce; (N-1)/N p for gather and scatter, p the tag's payload. A Comm of size 1
 * counts nothing. */
typedef struct CommCount {
    int64_t calls, payload_bytes, bus_bytes;
} CommCount;
void comm_take_counts(Comm *comm, CommCount counts[COMM_OP_COUNT]);

#endif
