/* A job of several ranks in the manner of the engine: input copied in on a stream of its own, computation, a ring
 * exchange on a third stream, results copied out and read two steps later. Everything is a small integer, so the
 * result is exact. The name of a bug on the command line leaves out, or adds, one line. */
#include <cuda_runtime_api.h>
#include <mpi.h>
#include <nccl.h>

#include "tests/cuda_standin/selftest/check.h"
#include "tests/cuda_standin/selftest/kernels.h"

#define N 4096
#define ROWS 8
#define STEPS 8
#define LATE 2 /* steps until the host reads a result */

const char *planted = "";

typedef struct Job {
    int rank, size;
    ncclComm_t comm;
    cudaStream_t compute, exchange, input, output;
    cudaEvent_t copied[2], used[2], ready, arrived, computed, taken, out[LATE + 1];
    float *host_in[2], *host_out[LATE + 1]; /* pinned */
    float *x[2], *y, *z, *sum;              /* device */
    int wrong;
} Job;

static cudaEvent_t new_event(void) {
    cudaEvent_t event;
    OK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    return event;
}

static cudaStream_t new_stream(void) {
    cudaStream_t stream;
    OK(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, 0));
    return stream;
}

static float *new_floats(int n) {
    float *p;
    OK(cudaMalloc((void **)&p, (size_t)n * sizeof *p));
    return p;
}

static float *new_pinned(int n) {
    float *p;
    OK(cudaHostAlloc((void **)&p, (size_t)n * sizeof *p, cudaHostAllocDefault));
    return p;
}

static void job_open(Job *job) {
    ncclUniqueId id = {{0}};
    OK(cudaSetDevice(bug("one_gpu") ? 0 : job->rank));
    if (job->rank == 0)
        OK(ncclGetUniqueId(&id));
    MPI_Bcast(&id, (int)sizeof id, MPI_BYTE, 0, MPI_COMM_WORLD);
    OK(ncclCommInitRank(&job->comm, job->size, id, job->rank));
    cudaStream_t *streams[] = {&job->compute, &job->exchange, &job->input, &job->output};
    for (int i = 0; i < 4; i++)
        *streams[i] = new_stream();
    cudaEvent_t *events[] = {&job->copied[0], &job->copied[1], &job->used[0], &job->used[1], &job->ready, &job->arrived,
                             &job->computed,  &job->taken,     &job->out[0],  &job->out[1],  &job->out[2]};
    for (int i = 0; i < 11; i++)
        *events[i] = new_event();
    for (int i = 0; i < 2; i++) {
        job->host_in[i] = bug("unpinned") ? malloc(N * sizeof(float)) : new_pinned(N);
        job->x[i] = new_floats(N);
    }
    for (int i = 0; i <= LATE; i++)
        job->host_out[i] = new_pinned(ROWS);
    job->y = new_floats(N);
    job->z = new_floats(N);
    job->sum = new_floats(ROWS);
}

static void job_close(Job *job) {
    cudaStream_t streams[] = {job->compute, job->exchange, job->input, job->output};
    cudaEvent_t events[] = {job->copied[0], job->copied[1], job->used[0], job->used[1], job->ready, job->arrived,
                            job->computed,  job->taken,     job->out[0],  job->out[1],  job->out[2]};
    float *device[] = {job->x[0], job->x[1], job->y, job->z, job->sum};
    float *pinned[] = {job->host_in[0], job->host_in[1], job->host_out[0], job->host_out[1], job->host_out[2]};
    for (int i = 0; i < 4; i++)
        OK(cudaStreamSynchronize(streams[i]));
    for (int i = 0; i < 5; i++)
        OK(cudaFree(device[i]));
    for (int i = 0; i < 5; i++)
        OK(cudaFreeHost(pinned[i]));
    for (int i = 0; i < 11; i++)
        OK(cudaEventDestroy(events[i]));
    OK(ncclCommDestroy(job->comm));
    for (int i = 0; i < 4; i++)
        OK(cudaStreamDestroy(streams[i]));
}

static float input_of(int rank, int step, int i) {
    return (float)((7 * rank + 5 * step + i * (step + 1)) % 13);
}

/* y = 2 x of this rank + 2 x of the one before, summed by row. */
static void read_result(Job *job, int step) {
    const float *got = job->host_out[step % (LATE + 1)];
    const int before = (job->rank + job->size - 1) % job->size;
    if (!bug("host_early"))
        OK(cudaEventSynchronize(job->out[step % (LATE + 1)]));
    for (int r = 0; r < ROWS; r++) {
        float want = 0.0f;
        for (int i = r * (N / ROWS); i < (r + 1) * (N / ROWS); i++)
            want += 2.0f * input_of(job->rank, step, i) + 2.0f * input_of(before, step, i);
        job->wrong += !(got[r] == want);
    }
}

static void copy_input(Job *job, int step) {
    const int b = step % 2;
    if (step >= 2 && !bug("host_reuse"))
        OK(cudaEventSynchronize(job->copied[b]));
    if (step >= 2 && !bug("input_overwrites"))
        OK(cudaStreamWaitEvent(job->input, job->used[b], 0));
    for (int i = 0; i < N; i++)
        job->host_in[b][i] = input_of(job->rank, step, i);
    OK(cudaMemcpyAsync(job->x[b], job->host_in[b], N * sizeof(float), cudaMemcpyHostToDevice, job->input));
    OK(cudaEventRecord(job->copied[b], job->input));
}

static void exchange(Job *job, int step) {
    const int next = (job->rank + 1) % job->size, before = (job->rank + job->size - 1) % job->size;
    const int odd = step == 3 && job->rank == 0;
    const size_t n = bug("size") && odd ? N / 2 : N;
    const ncclDataType_t type = bug("type") && odd ? ncclInt32 : ncclFloat32;
    cudaStream_t stream = bug("two_streams") && step == 3 ? job->compute : job->exchange;
    if (bug("kind") && odd) {
        OK(ncclBroadcast(job->y, job->y, N, ncclFloat32, 0, job->comm, stream));
        return;
    }
    if (!bug("ungrouped"))
        OK(ncclGroupStart());
    OK(ncclSend(job->y, n, type, next, job->comm, stream));
    OK(ncclRecv(job->z, N, ncclFloat32, before, job->comm, stream));
    if (!bug("ungrouped") && !bug("group_open"))
        OK(ncclGroupEnd());
}

static void compute(Job *job, int step) {
    const int b = step % 2;
    if (!bug("input_wait"))
        OK(cudaStreamWaitEvent(job->compute, job->copied[b], 0));
    if (step > 0 && !bug("output_overwrites"))
        OK(cudaStreamWaitEvent(job->compute, job->taken, 0));
    OK(cudaMemsetAsync(job->y, 0, N * sizeof(float), job->compute));
    OK(add_scaled_launch(job->y, job->x[b], 2.0f, N, job->compute));
    OK(cudaEventRecord(job->used[b], job->compute));
    OK(cudaEventRecord(job->ready, job->compute));
    if (!bug("send_wait"))
        OK(cudaStreamWaitEvent(job->exchange, job->ready, 0));
    exchange(job, step);
    OK(cudaEventRecord(job->arrived, job->exchange));
    if (!bug("receive_wait"))
        OK(cudaStreamWaitEvent(job->compute, job->arrived, 0));
    OK(add_scaled_launch(job->y, job->z, 1.0f, N, job->compute));
    OK(row_sum_launch(job->sum, job->y, ROWS, N / ROWS, 1, job->compute));
    OK(cudaEventRecord(job->computed, job->compute));
}

static void copy_output(Job *job, int step) {
    const int o = step % (LATE + 1);
    if (!bug("output_wait"))
        OK(cudaStreamWaitEvent(job->output, job->computed, 0));
    OK(cudaMemcpyAsync(job->host_out[o], job->sum, ROWS * sizeof(float), cudaMemcpyDeviceToHost, job->output));
    OK(cudaEventRecord(job->taken, job->output));
    OK(cudaEventRecord(job->out[o], job->output));
}

int main(int argc, char **argv) {
    Job job = {0};
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &job.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &job.size);
    planted = argc > 1 ? argv[1] : "";
    job_open(&job);
    for (int step = 0; step < STEPS; step++) {
        copy_input(&job, step);
        compute(&job, step);
        copy_output(&job, step);
        if (step >= LATE)
            read_result(&job, step - LATE);
        if (bug("free") && step == 3)
            OK(cudaFree(job.z));
    }
    if (bug("exit"))
        exit(0);
    for (int step = STEPS - LATE; step < STEPS; step++)
        read_result(&job, step);
    job_close(&job);
    if (job.wrong != 0)
        fprintf(stderr, "WRONG: rank %d: %d sums\n", job.rank, job.wrong);
    MPI_Finalize();
    return job.wrong != 0 ? WRONG_EXIT : 0;
}
