/* Two host threads and one device: a producer fills slots on its stream, a consumer adds them up on its own; events go
 * from one to the other, and back. Each thread also polls, waits and allocates at its own pace. */
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <semaphore.h>

#include "tests/cuda_standin/selftest/check.h"
#include "tests/cuda_standin/selftest/kernels.h"

#define GPU 1 /* not what a thread begins with */
#define N 512
#define SLOTS 3
#define ROUNDS 40

const char *planted = "";

typedef struct Slot {
    float *device, *pinned;
    cudaEvent_t full, empty;
    sem_t filled, emptied; /* the events have been recorded */
} Slot;

static Slot slots[SLOTS];
static float *total, *result; /* device, pinned: [N] */

static void open_slots(void) {
    OK(cudaSetDevice(GPU));
    for (int s = 0; s < SLOTS; s++) {
        OK(cudaMalloc((void **)&slots[s].device, N * sizeof(float)));
        OK(cudaMallocHost((void **)&slots[s].pinned, N * sizeof(float)));
        OK(cudaEventCreateWithFlags(&slots[s].full, cudaEventDisableTiming));
        OK(cudaEventCreateWithFlags(&slots[s].empty, cudaEventDisableTiming));
        sem_init(&slots[s].filled, 0, 0);
        sem_init(&slots[s].emptied, 0, 0);
    }
    OK(cudaMalloc((void **)&total, N * sizeof(float)));
    OK(cudaMallocHost((void **)&result, N * sizeof(float)));
}

static void *produce(void *unused) {
    cudaStream_t stream;
    OK(cudaSetDevice(GPU));
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    for (int round = 0; round < ROUNDS; round++) {
        Slot *slot = &slots[round % SLOTS];
        if (round >= SLOTS) {
            sem_wait(&slot->emptied);
            if (!bug("empty_wait"))
                OK(cudaStreamWaitEvent(stream, slot->empty, 0));
            OK(cudaEventSynchronize(slot->full)); /* of the round before: the pinned buffer is free */
        }
        for (int i = 0; i < N; i++)
            slot->pinned[i] = (float)(round + i);
        OK(cudaMemcpyAsync(slot->device, slot->pinned, N * sizeof(float), cudaMemcpyHostToDevice, stream));
        OK(cudaEventRecord(slot->full, stream));
        sem_post(&slot->filled);
    }
    OK(cudaStreamSynchronize(stream));
    OK(cudaStreamDestroy(stream));
    return unused;
}

static void *consume(void *unused) {
    cudaStream_t stream;
    if (!bug("thread_gpu"))
        OK(cudaSetDevice(GPU));
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    OK(cudaMemsetAsync(total, 0, N * sizeof(float), stream));
    for (int round = 0; round < ROUNDS; round++) {
        Slot *slot = &slots[round % SLOTS];
        float *scratch;
        sem_wait(&slot->filled);
        if (!bug("full_wait"))
            OK(cudaStreamWaitEvent(stream, slot->full, 0));
        OK(add_scaled_launch(total, slot->device, 1.0f, N, stream));
        OK(cudaEventRecord(slot->empty, stream));
        if (round % 5 == 4) {
            while (cudaEventQuery(slot->empty) == cudaErrorNotReady)
                (void)cudaGetLastError();
        }
        sem_post(&slot->emptied);
        OK(cudaMalloc((void **)&scratch, 4096));
        OK(cudaFree(scratch));
    }
    OK(cudaMemcpyAsync(result, total, N * sizeof(float), cudaMemcpyDeviceToHost, stream));
    OK(cudaStreamSynchronize(stream));
    OK(cudaStreamDestroy(stream));
    return unused;
}

int main(int argc, char **argv) {
    pthread_t producer, consumer;
    int wrong = 0;
    planted = argc > 1 ? argv[1] : "";
    open_slots();
    pthread_create(&producer, NULL, produce, NULL);
    pthread_create(&consumer, NULL, consume, NULL);
    pthread_join(producer, NULL);
    pthread_join(consumer, NULL);
    for (int i = 0; i < N; i++)
        wrong += !(result[i] == (float)(ROUNDS * i + ROUNDS * (ROUNDS - 1) / 2));
    for (int s = 0; s < SLOTS; s++) {
        OK(cudaFree(slots[s].device));
        OK(cudaFreeHost(slots[s].pinned));
        OK(cudaEventDestroy(slots[s].full));
        OK(cudaEventDestroy(slots[s].empty));
    }
    OK(cudaFree(total));
    OK(cudaFreeHost(result));
    if (wrong != 0)
        fprintf(stderr, "WRONG: %d sums\n", wrong);
    return wrong != 0 ? WRONG_EXIT : 0;
}
