// One instruction set's kernel: compiled once for each of them.
#include "attention.h"
#include "roof.h"

#define HW_RUN_NAME(isa) hw_run_##isa
#define HW_RUN_OF(isa) HW_RUN_NAME(isa)

namespace {

template <class T, class Words>
i64 run(const Call& call) {
    Attention<T, Words> attention(call);
    return attention.run();
}

#if defined(__AVX512BF16__)
typedef Pairs HalfWords;
#else
typedef Floats HalfWords;
#endif

}  // namespace

extern "C" int64_t HW_RUN_OF(HW_ISA_NAME)(const int64_t* words, int64_t count) {
    Call call;
    if (int64_t wrong = Reader(words, count).read(call)) return wrong;
    if (call.dtype == FLOAT32) return run<F32, Floats>(call);
    return call.dtype == BFLOAT16 ? run<BF16, HalfWords>(call) : run<F16, Floats>(call);
}
