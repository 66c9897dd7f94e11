/* The flight record: the last operations of this rank on every stream, in a memory-mapped file that survives the death
 * of the process, SIGKILL included. <run.dir>/flight/rank-00000.bin, little-endian: FlightHeader, then `rings` rings
 * (compute, gather, reduce, publish, host) of `slots` FlightEntry. scripts/flight.py prints it. */
#ifndef DMUON_COMM_FLIGHT_H
#define DMUON_COMM_FLIGHT_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "device/device.h"

#define FLIGHT_RINGS (STREAM_COUNT + 1) /* the streams, and the calls of the host */
#define FLIGHT_SLOTS 64
#define FLIGHT_VERSION 1

typedef enum FlightState {
    FLIGHT_RUNNING, /* a process that is gone in this state was killed */
    FLIGHT_CLOSED,
    FLIGHT_FAILED /* it has said why */
} FlightState;

typedef struct FlightHeader {
    char magic[8]; /* "DMFLIGHT" */
    uint32_t version, rings, slots, entry_bytes;
    int32_t rank, size;
    int64_t pid;
    _Atomic int32_t state; /* FlightState */
    int32_t unused;
    char host[128];
    char padding[80];
} FlightHeader;

/* One operation. Those of one axis, leader and ring have the same sequence and hash on every member of the axis. */
typedef struct FlightEntry {
    _Atomic uint64_t number; /* over all rings, from 1; 0: empty, or being written */
    uint64_t sequence;       /* of its axis and ring, from 1                       */
    uint64_t hash;           /* of (sequence, op, count, root, label) up to here   */
    int64_t step;            /* -1: none                                           */
    int64_t count, nbytes;   /* elements, bytes                                    */
    int64_t begin_ns;        /* since 1970                                         */
    _Atomic int64_t end_ns;  /* 0: under way                                       */
    int32_t unit, root;
    int32_t leader; /* rank in the world of the axis' rank 0 */
    int32_t unused;
    char op[16], axis[16], what[48];
} FlightEntry;

typedef struct FlightFile {
    FlightHeader header;
    FlightEntry entry[FLIGHT_RINGS][FLIGHT_SLOTS];
} FlightFile;

/* What an entry is made of; op, axis and what are copied. */
typedef struct FlightOperation {
    const char *op, *axis, *what;
    uint64_t sequence, hash;
    int64_t step, count, nbytes;
    int unit, root, leader;
} FlightOperation;

/* Writes an entry: a few stores, no lock. A ring is written by one thread at a time. */
FlightEntry *flight_begin(int ring, const FlightOperation *operation);
void flight_end(FlightEntry *entry);

/* From here on the record of this rank is <dir>/rank-NNNNN.bin, the operations so far included. No operation may be
 * under way. Not collective. */
DM_NODISCARD Status flight_open(const char *dir, int rank, int size, const char *host);
/* The file stays, marked as closed. Nothing if none is open. */
void flight_close(void);
/* This process ends after it has said why. Safe in a signal handler. */
void flight_failed(void);

void flight_path(char *path, size_t capacity, const char *dir, int rank);
/* The last operation of a rank, one under way before finished ones: "step 3 unit 1 stream gather: ... (under way)" into
 * `text`. Gives its FlightState, or -1 when the file cannot be read. */
int flight_last(const char *path, char *text, size_t capacity);

#endif
