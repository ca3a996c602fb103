// One instruction set's kernel: compiled once for each of them.
#include "attention.h"
#include "roof.h"
#include "tokens.h"

#define HW_JOIN(name, isa) hw_##name##_##isa
#define HW_NAME(name, isa) HW_JOIN(name, isa)

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

extern "C" int64_t HW_NAME(run, HW_ISA_NAME)(const int64_t* words, int64_t count) {
    Call call;
    if (int64_t wrong = Reader(words, count).read(call)) return wrong;
    if (call.dtype == FLOAT32) return run<F32, Floats>(call);
    return call.dtype == BFLOAT16 ? run<BF16, HalfWords>(call) : run<F16, Floats>(call);
}

extern "C" int64_t HW_NAME(rms_norm, HW_ISA_NAME)(const int64_t* words, int64_t count) {
    return tokens::norm(words, count);
}

extern "C" int64_t HW_NAME(turn, HW_ISA_NAME)(const int64_t* words, int64_t count) {
    return tokens::turn(words, count);
}
