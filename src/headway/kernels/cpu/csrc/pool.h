// Distributes work over torch's threads or, without them or after a fork, over threads that live as long as the call.
#pragma once
#include <stdint.h>

// worker is 0 … workers − 1 and belongs to one thread at a time, so scratch memory can be indexed by it
typedef void (*hw_task)(void* context, int64_t item, int64_t worker);

// Items that may run in any order and in parallel
struct hw_stage {
    int64_t items;
    hw_task task;
    void* context;
    int64_t next, done;  // 0 at first
};

extern "C" {

// The largest number of workers of hw_run.
int64_t hw_workers(int64_t threads, int64_t items);

// Runs the stages in order, every item once. No item begins before all earlier stages have ended. Each worker takes the
// next item from one counter, so results must not depend on which worker takes an item.
void hw_run(hw_stage* stages, int64_t count, int64_t workers);
}

static inline void hw_parallel(int64_t items, int64_t workers, hw_task task, void* context) {
    hw_stage stage = {items, task, context, 0, 0};
    hw_run(&stage, 1, workers);
}
