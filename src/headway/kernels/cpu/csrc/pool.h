// Work spread over torch's own threads; without them, or after a fork, the caller's thread does all of it.
#pragma once
#include <stdint.h>

// worker is 0 … workers − 1 and belongs to one thread at a time: scratch memory can be kept by it
typedef void (*hw_task)(void* context, int64_t item, int64_t worker);

extern "C" {

// How many workers hw_parallel will have at most; 1 after a fork or without a pool.
int64_t hw_workers(int64_t threads, int64_t items);

// Runs every item once; each worker takes the next from one counter, so no result may depend on who takes which.
void hw_parallel(int64_t items, int64_t workers, hw_task task, void* context);
}
